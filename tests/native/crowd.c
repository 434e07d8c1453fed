/* One of many processes at once on a simulated machine: says "ready" when it holds memory, waits for its input to end,
 * then allocates, writes, reads back, compares and frees, ROUNDS times.
 *
 * usage: crowd ROUNDS */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call)                                                                        \
    do {                                                                                   \
        int result = (int)(call);                                                          \
        if (result != 0) {                                                                 \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, result); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static void round_trip(size_t bytes, unsigned char value) {
    static unsigned char there[65536], back[65536];
    CUdeviceptr device;
    memset(there, value, bytes);
    CHECK(cuMemAlloc(&device, bytes));
    CHECK(cuMemcpyHtoD(device, there, bytes));
    CHECK(cuMemcpyDtoH(back, device, bytes));
    CHECK(memcmp(there, back, bytes));
    CHECK(cuMemFree(device));
}

int main(int argc, char **argv) {
    unsigned int rounds = argc > 1 ? (unsigned int)atoi(argv[1]) : 100, seed = (unsigned int)getpid();
    CUcontext context;
    CUdeviceptr kept;
    unsigned int mine = seed, still = 0;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc(&kept, 1 << 20));
    CHECK(cuMemcpyHtoD(kept, &mine, sizeof mine));
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    for (unsigned int i = 0; i < rounds; i++) {
        round_trip(1 + (size_t)rand_r(&seed) % 65536, (unsigned char)(mine + i));
    }
    CHECK(cuMemcpyDtoH(&still, kept, sizeof still));
    CHECK(still != mine);
    CHECK(cuMemFree(kept));
    CHECK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
