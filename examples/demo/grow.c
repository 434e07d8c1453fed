/* A CUDA program that wants more and more memory, against NVIDIA's runtime and nothing else.
 *
 * usage: grow NAME CHUNKS
 *
 * Allocates that many chunks of 256 MiB, writes into each, and prints how far it came. It keeps them until its
 * standard input ends, then checks that each is as it was written. Exits with 1 if the runtime reported an error. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)256 << 20)
#define WRITTEN ((size_t)1 << 20) /* of each chunk: enough to tell it from the others */
#define MOST 64

static unsigned char *pattern(int chunk) {
    static unsigned char bytes[WRITTEN];
    memset(bytes, chunk + 1, sizeof bytes);
    return bytes;
}

static int is_as_written(const void *device, int chunk) {
    static unsigned char bytes[WRITTEN];
    return cudaMemcpy(bytes, device, sizeof bytes, cudaMemcpyDeviceToHost) == cudaSuccess &&
           memcmp(bytes, pattern(chunk), sizeof bytes) == 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "grow";
    int wanted = argc > 2 ? atoi(argv[2]) : 4, held = 0, intact = 0;
    void *chunks[MOST];
    cudaError_t error = cudaSuccess;
    while (held < wanted && held < MOST && error == cudaSuccess) {
        error = cudaMalloc(&chunks[held], CHUNK);
        if (error == cudaSuccess) {
            error = cudaMemcpy(chunks[held], pattern(held), WRITTEN, cudaMemcpyHostToDevice);
            held++;
        }
    }
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    printf("%s: has %zu MiB and sees a GPU of %zu MiB with %zu MiB free", name, held * CHUNK >> 20, total >> 20, available >> 20);
    if (error != cudaSuccess) {
        printf("; the next 256 MiB: %s (%s)", cudaGetErrorName(error), cudaGetErrorString(error));
    }
    printf("\n");
    fflush(stdout);

    while (getchar() != EOF) continue;
    for (int i = 0; i < held; i++) intact += is_as_written(chunks[i], i);
    printf("%s: %d of %d chunks are as they were written\n", name, intact, held);
    return error == cudaSuccess && intact == held ? 0 : 1;
}
