/* Every launch of a kernel. Graphs are launched in cuda/graphs.c, which charges their memory too. Cooperative launches are
 * charged and not delayed: their kernels may wait for each other, and the next launch pays. */
#include "launch.h"

static uint64_t kernel_key(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                           unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes) {
    return launch_mix((uint64_t)(uintptr_t)function, (uint64_t)grid_x << 32 | grid_y,
                      (uint64_t)grid_z << 32 | (block_x & 0xffffu) << 16 | (block_y & 0xffffu),
                      (uint64_t)block_z << 32 | shared_bytes);
}

#define SHAPE grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes
#define SHAPE_PARAMETERS                                                                                               \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,         \
        unsigned int block_z, unsigned int shared_bytes

CUresult cuLaunchKernel(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **arguments, void **extra) {
    struct launch launch;
    launch_pay(&launch, kernel_key(function, SHAPE), stream, LAUNCH_WAITS);
    return launch_paid(&launch, REAL(cuLaunchKernel)(function, SHAPE, stream, arguments, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **arguments, void **extra) {
    struct launch launch;
    launch_pay(&launch, kernel_key(function, SHAPE), stream, LAUNCH_WAITS | LAUNCH_PER_THREAD);
    return launch_paid(&launch, REAL(cuLaunchKernel_ptsz)(function, SHAPE, stream, arguments, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **arguments) {
    struct launch launch;
    launch_pay(&launch, kernel_key(function, SHAPE), stream, 0);
    return launch_paid(&launch, REAL(cuLaunchCooperativeKernel)(function, SHAPE, stream, arguments));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **arguments) {
    struct launch launch;
    launch_pay(&launch, kernel_key(function, SHAPE), stream, LAUNCH_PER_THREAD);
    return launch_paid(&launch, REAL(cuLaunchCooperativeKernel_ptsz)(function, SHAPE, stream, arguments));
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags) {
    struct launch paid[GPUSLICE_MAX_GPUS];
    unsigned int known = launches != NULL && count <= GPUSLICE_MAX_GPUS ? count : 0; /* the driver refuses any other */
    for (unsigned int i = 0; i < known; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        launch_pay(&paid[i],
                   kernel_key(one->function, one->gridDimX, one->gridDimY, one->gridDimZ, one->blockDimX, one->blockDimY,
                              one->blockDimZ, one->sharedMemBytes),
                   one->hStream, 0);
    }
    CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
    for (unsigned int i = 0; i < known; i++) {
        launch_paid(&paid[i], result);
    }
    return result;
}

/* ---- launches with attributes ---- */

static bool is_cooperative(const CUlaunchConfig *config) {
    for (unsigned int i = 0; config->attrs != NULL && i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config->attrs[i].value.cooperative != 0) {
            return true;
        }
    }
    return false;
}

static void pay_configured(struct launch *launch, const CUlaunchConfig *config, CUfunction function, unsigned int flags) {
    launch->metered = false;
    if (config != NULL) {
        launch_pay(launch,
                   kernel_key(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                              config->blockDimY, config->blockDimZ, config->sharedMemBytes),
                   config->hStream, flags | (is_cooperative(config) ? 0 : LAUNCH_WAITS));
    }
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    struct launch launch;
    pay_configured(&launch, config, function, 0);
    return launch_paid(&launch, REAL(cuLaunchKernelEx)(config, function, arguments, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    struct launch launch;
    pay_configured(&launch, config, function, LAUNCH_PER_THREAD);
    return launch_paid(&launch, REAL(cuLaunchKernelEx_ptsz)(config, function, arguments, extra));
}

/* ---- the first way of launching: the function remembers its block ---- */

static void pay_grid(struct launch *launch, CUfunction function, int width, int height, CUstream stream) {
    launch_pay(launch, launch_mix((uint64_t)(uintptr_t)function, (unsigned int)width, (unsigned int)height, 2), stream,
               LAUNCH_WAITS);
}

CUresult cuLaunch(CUfunction function) {
    struct launch launch;
    pay_grid(&launch, function, 1, 1, NULL);
    return launch_paid(&launch, REAL(cuLaunch)(function));
}

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    struct launch launch;
    pay_grid(&launch, function, width, height, NULL);
    return launch_paid(&launch, REAL(cuLaunchGrid)(function, width, height));
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    struct launch launch;
    pay_grid(&launch, function, width, height, stream);
    return launch_paid(&launch, REAL(cuLaunchGridAsync)(function, width, height, stream));
}
