/* What most tests begin with: a context on the first GPU and the kernels that compute. */
#ifndef GPUSLICE_TESTS_DEVICE_H
#define GPUSLICE_TESTS_DEVICE_H

#include "check.h"

#include <cuda.h>
#include <string.h>

static CUdevice device;
static CUcontext context;
static CUfunction fill_kernel, saxpy_kernel, spin_kernel, plain_kernel;

static inline void device_open(void) {
    static const char ptx[] = ".version 8.0\n.target sm_80\n.entry gpuslice_fill() { ret; }\n"
                              ".entry gpuslice_saxpy() { ret; }\n.entry gpuslice_spin() { ret; }\n"
                              ".entry plain() { ret; }\n";
    CUmodule module;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuInit(0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDeviceGet(&device, 0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, device));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&fill_kernel, module, "gpuslice_fill"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&saxpy_kernel, module, "gpuslice_saxpy"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&spin_kernel, module, "gpuslice_spin"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&plain_kernel, module, "plain"));
}

static inline int device_close(void) {
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(device));
    return check_summary();
}

static inline CUresult spin(CUstream stream, unsigned long long microseconds) {
    return cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&microseconds}, NULL);
}

static inline CUresult fill(CUstream stream, CUdeviceptr to, float value, unsigned long long count) {
    return cuLaunchKernel(fill_kernel, 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){&to, &value, &count}, NULL);
}

static inline float first_float(CUdeviceptr from) {
    float value = -1;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&value, from, sizeof value));
    return value;
}

#endif
