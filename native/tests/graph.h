/* What tests of graphs share: two places in device memory, and nodes that fill and copy them. */
#ifndef GPUSLICE_TESTS_GRAPH_H
#define GPUSLICE_TESTS_GRAPH_H

#include "device.h"

#include <stdatomic.h>

static CUdeviceptr x, y;

static inline CUDA_KERNEL_NODE_PARAMS fill_params(void **arguments) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = fill_kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
                                     .blockDimY = 1, .blockDimZ = 1, .kernelParams = arguments};
}

/* The arguments live on this function's stack, which is gone when the graph runs. */
static __attribute__((noinline, unused)) CUgraphNode add_fill(CUgraph graph, CUgraphNode *after, float value) {
    unsigned long long count = 1;
    CUdeviceptr to = x;
    void *arguments[] = {&to, &value, &count};
    CUDA_KERNEL_NODE_PARAMS params = fill_params(arguments);
    CUgraphNode node = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddKernelNode(&node, graph, after, after != NULL, &params));
    return node;
}

static inline CUgraphNode add_copy(CUgraph graph, CUgraphNode *after) {
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = x, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = y, .WidthInBytes = sizeof(float), .Height = 1, .Depth = 1};
    CUgraphNode node = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemcpyNode(&node, graph, after, after != NULL, &copy, context));
    return node;
}

static inline CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static inline void launch(CUgraphExec exec) {
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(NULL));
}

static atomic_int calls;

static inline void count_call(void *data) {
    atomic_fetch_add(&calls, (int)(intptr_t)data);
}

static inline void graph_device_open(void) {
    device_open();
    CHECK_OR_EXIT(CUDA_SUCCESS, cuMemAlloc(&x, 4096));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuMemAlloc(&y, 4096));
}

static inline int graph_device_close(void) {
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(x));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(y));
    return device_close();
}

#endif
