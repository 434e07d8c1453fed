/* MD2's substitution comes from the digits of pi (RFC 1319); the rest is a sponge of 48 bytes stirred 18 times. */
#include "digest.h"

#include <string.h>

static const uint8_t substitution[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243, 192, 199,
    115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,
    138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122, 169, 104,
    121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,
    53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,
    170, 198, 79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,
    100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,
    97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193,
    171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,
    80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,
};

void md2_start(struct md2 *md2) {
    memset(md2, 0, sizeof *md2);
}

static void stir(struct md2 *md2) {
    uint8_t sponge[3 * DIGEST_BYTES];
    uint8_t last = md2->checksum[DIGEST_BYTES - 1];
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        sponge[i] = md2->state[i];
        sponge[i + DIGEST_BYTES] = md2->block[i];
        sponge[i + 2 * DIGEST_BYTES] = md2->state[i] ^ md2->block[i];
        last = md2->checksum[i] ^= substitution[md2->block[i] ^ last];
    }
    uint8_t carry = 0;
    for (unsigned int round = 0; round < 18; round++) {
        for (size_t i = 0; i < sizeof sponge; i++) {
            carry = sponge[i] ^= substitution[carry];
        }
        carry = (uint8_t)(carry + round);
    }
    memcpy(md2->state, sponge, DIGEST_BYTES);
}

void md2_add(struct md2 *md2, const void *data, size_t size) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        md2->block[md2->filled++] = bytes[i];
        if (md2->filled == DIGEST_BYTES) {
            md2->filled = 0;
            stir(md2);
        }
    }
}

void md2_finish(struct md2 *md2, uint8_t digest[DIGEST_BYTES]) {
    uint8_t padding[DIGEST_BYTES], checksum[DIGEST_BYTES];
    size_t missing = DIGEST_BYTES - md2->filled;
    memset(padding, (int)missing, sizeof padding);
    md2_add(md2, padding, missing);
    memcpy(checksum, md2->checksum, sizeof checksum);
    md2_add(md2, checksum, sizeof checksum);
    memcpy(digest, md2->state, DIGEST_BYTES);
}

static void start_with(struct hmac *hmac, uint8_t mask) {
    uint8_t masked[DIGEST_BYTES];
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        masked[i] = hmac->key[i] ^ mask;
    }
    md2_start(&hmac->md2);
    md2_add(&hmac->md2, masked, sizeof masked);
}

void hmac_start(struct hmac *hmac, const uint8_t key[DIGEST_BYTES]) {
    memcpy(hmac->key, key, DIGEST_BYTES);
    start_with(hmac, 0x36);
}

void hmac_finish(struct hmac *hmac, uint8_t digest[DIGEST_BYTES]) {
    uint8_t inner[DIGEST_BYTES];
    md2_finish(&hmac->md2, inner);
    start_with(hmac, 0x5c);
    md2_add(&hmac->md2, inner, sizeof inner);
    md2_finish(&hmac->md2, digest);
}
