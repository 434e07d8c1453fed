/* A process with a context on the first GPU, taken from the driver behind gpuslice's back; it says so and waits for the end
 * of its input. */
#include <cuda.h>

#include <stdio.h>
#include <unistd.h>

int main(void) {
    CUcontext context;
    char byte;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) {
        return 1;
    }
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
