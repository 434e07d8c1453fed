/* HMAC (RFC 2104) over MD2 (RFC 1319), with which the CUDA runtime asks whether it talks to a driver it knows. */
#ifndef GPUSLICE_SIMULATOR_DIGEST_H
#define GPUSLICE_SIMULATOR_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_BYTES 16

struct md2 {
    uint8_t state[DIGEST_BYTES], checksum[DIGEST_BYTES], block[DIGEST_BYTES];
    size_t filled;
};

void md2_start(struct md2 *md2);
void md2_add(struct md2 *md2, const void *data, size_t size);
void md2_finish(struct md2 *md2, uint8_t digest[DIGEST_BYTES]);

struct hmac {
    struct md2 md2;
    uint8_t key[DIGEST_BYTES];
};

void hmac_start(struct hmac *hmac, const uint8_t key[DIGEST_BYTES]);
void hmac_finish(struct hmac *hmac, uint8_t digest[DIGEST_BYTES]);

#endif
