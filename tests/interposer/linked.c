/* Linked with the driver, and opens no library: takes memory until it is refused, and says how much it got. */
#include <cuda.h>
#include <stdio.h>

int main(void) {
    size_t got = 0;
    CUcontext context;
    CUdeviceptr place;
    CUresult code = cuInit(0);
    if (code != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        printf("no GPU: %d\n", (int)code);
        return 1;
    }
    while ((code = cuMemAlloc(&place, 1 << 20)) == CUDA_SUCCESS) {
        got += 1 << 20;
    }
    printf("got %zu\nrefused with %d\n", got, (int)code);
    return 0;
}
