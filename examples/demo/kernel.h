/* A kernel for a program that no nvcc compiled. nvcc puts a fatbin into the program, code that registers it with the
 * runtime before main, and a host function that stands for each kernel; this is the same by hand. The fatbin is empty:
 * the simulated driver knows the kernel `gpuslice_saxpy` by its name. The functions below are the runtime's, which
 * every program from nvcc calls and no public header declares.
 *
 *     cudaError_t error = launch_saxpy(2.0f, x, y, count);    // y = 2 x + y, on device memory
 */
#ifndef GPUSLICE_DEMO_KERNEL_H
#define GPUSLICE_DEMO_KERNEL_H

#include <cuda_runtime_api.h>
#include <stdint.h>

extern void **__cudaRegisterFatBinary(void *wrapper);
extern void __cudaRegisterFatBinaryEnd(void **handle);
extern void __cudaUnregisterFatBinary(void **handle);
extern void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function,
                                   const char *device_name, int thread_limit, uint3 *thread, uint3 *block,
                                   struct dim3 *block_size, struct dim3 *grid_size, int *warp_size);

static const struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of code after the header */
} fatbin = {0xBA55ED50, 1, 16, 0};

static struct {
    uint32_t magic, version;
    const void *data, *unused;
} fatbin_wrapper = {0x466243B1, 1, &fatbin, NULL};

static void **fatbin_handle;

/* Never called: its address is the kernel's name on the host's side. */
static void saxpy(void) {
}

__attribute__((constructor)) static void register_kernels(void) {
    static char name[] = "gpuslice_saxpy";
    fatbin_handle = __cudaRegisterFatBinary(&fatbin_wrapper);
    __cudaRegisterFunction(fatbin_handle, (const char *)(uintptr_t)saxpy, name, name, -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(fatbin_handle);
}

__attribute__((destructor)) static void unregister_kernels(void) {
    __cudaUnregisterFatBinary(fatbin_handle);
}

static inline cudaError_t launch_saxpy(float a, const float *x, float *y, unsigned long long count) {
    struct dim3 block = {256, 1, 1}, grid = {(unsigned int)((count + block.x - 1) / block.x), 1, 1};
    void *arguments[] = {&a, &x, &y, &count};
    return cudaLaunchKernel((const void *)(uintptr_t)saxpy, grid, block, arguments, 0, NULL);
}

#endif
