/* Allocates and frees without a pause, and prints a line after every thousand calls. It ends when stdout is closed. */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCKS 8
#define UNIT ((size_t)1 << 20)

int main(int argc, char **argv) {
    unsigned int seed = argc > 1 ? (unsigned int)atoi(argv[1]) : 1;
    CUdeviceptr blocks[BLOCKS] = {0};
    CUcontext context;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        return 1;
    }
    for (unsigned int calls = 1;; calls++) {
        CUdeviceptr *block = &blocks[(unsigned int)rand_r(&seed) % BLOCKS];
        if (*block != 0) {
            if (cuMemFree(*block) != CUDA_SUCCESS) {
                return 1;
            }
            *block = 0;
        } else if (cuMemAlloc(block, UNIT * (1 + (size_t)rand_r(&seed) % 4)) != CUDA_SUCCESS) {
            *block = 0;
        }
        if (calls % 1000 == 0 && write(STDOUT_FILENO, "on\n", 3) != 3) {
            return 0;
        }
    }
}
