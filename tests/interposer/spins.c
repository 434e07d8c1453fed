/* Launches kernels that take exactly so much device time, in one of several ways: spins WAY COUNT MICROSECONDS. Prints the
 * nanoseconds from the first launch until all are done. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char image[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                            ".visible .entry gpuslice_spin(.param .u64 microseconds)\n{\n ret;\n}\n";

static void check(CUresult result) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "error %d\n", (int)result);
        exit(1);
    }
}

static unsigned long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

static CUgraphExec graph_of(CUstream stream, CUfunction function, void **arguments) {
    CUgraph graph;
    CUgraphExec executable;
    check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    check(cuStreamEndCapture(stream, &graph));
    check(cuGraphInstantiate(&executable, graph, 0));
    return executable;
}

int main(int count, char **words) {
    if (count != 4) {
        return 2;
    }
    unsigned long long microseconds = strtoull(words[3], NULL, 10);
    int launches = atoi(words[2]);
    void *arguments[] = {&microseconds};
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    check(cuInit(0));
    check(cuDeviceGet(&device, 0));
    check(cuDevicePrimaryCtxRetain(&context, device));
    check(cuCtxSetCurrent(context));
    check(cuModuleLoadData(&module, image));
    check(cuModuleGetFunction(&function, module, "gpuslice_spin"));
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraphExec graph = graph_of(stream, function, arguments);
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
                             .hStream = stream};
    unsigned long long start = now_ns();
    for (int i = 0; i < launches; i++) {
        if (strcmp(words[1], "kernel") == 0) {
            check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        } else if (strcmp(words[1], "changing") == 0) { /* no launch is like one before */
            check(cuLaunchKernel(function, 1 + (unsigned int)i, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        } else if (strcmp(words[1], "configured") == 0) {
            check(cuLaunchKernelEx(&config, function, arguments, NULL));
        } else if (strcmp(words[1], "graph") == 0) {
            check(cuGraphLaunch(graph, stream));
        } else {
            return 2;
        }
    }
    check(cuCtxSynchronize());
    printf("%llu\n", now_ns() - start);
    return 0;
}
