/* Launches: the kernels that compute, both forms of arguments, what is refused, graphs, occupancy, and textures. */
#include "check.h"

#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

/* Not in any header of NVIDIA's wheels. */
extern CUresult cuProfilerStart(void);
extern CUresult cuProfilerStop(void);

#define COUNT 1000u

static const char ptx[] = ".version 8.0\n.target sm_80\n"
                          ".entry gpuslice_fill() { ret; }\n.entry _Z14gpuslice_saxpyfPKfPfy() { ret; }\n"
                          ".entry gpuslice_sum() { ret; }\n.entry gpuslice_spin() { ret; }\n"
                          ".entry _Z15gpuslice_fillerPf() { ret; }\n.entry plain() { ret; }\n";

static CUmodule module;
static CUfunction fill, saxpy, sum, spin, filler, plain;
static CUdeviceptr x, y;

static CUresult launch(CUfunction function, CUstream stream, void **arguments) {
    return cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
}

static CUresult launch_fill(CUstream stream, CUdeviceptr to, float value, unsigned long long count) {
    return launch(fill, stream, (void *[]){&to, &value, &count});
}

/* Are all COUNT floats there that value? */
static int all_are(CUdeviceptr from, float value) {
    float floats[COUNT];
    if (cuMemcpyDtoH(floats, from, sizeof floats) != CUDA_SUCCESS) {
        return 0;
    }
    for (unsigned int i = 0; i < COUNT; i++) {
        if (floats[i] != value) {
            return 0;
        }
    }
    return 1;
}

static void named_kernels_compute(void) {
    float a = 3, total;
    unsigned long long count = COUNT, one = 1;
    CHECK_RESULT(CUDA_SUCCESS, launch_fill(NULL, x, 2, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, launch_fill(NULL, y, 1, COUNT));
    CHECK(all_are(x, 2) && all_are(y, 1));
    CHECK_RESULT(CUDA_SUCCESS, launch(saxpy, NULL, (void *[]){&a, &x, &y, &count}));
    CHECK(all_are(y, 7) && all_are(x, 2));
    CHECK_RESULT(CUDA_SUCCESS, launch(sum, NULL, (void *[]){&y, &x, &count}));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&total, x, sizeof total));
    CHECK(total == 7 * COUNT);
    CHECK_RESULT(CUDA_SUCCESS, launch(spin, NULL, (void *[]){&one}));
    CHECK_RESULT(CUDA_SUCCESS, launch(plain, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, launch(filler, NULL, NULL)); /* a longer name is another kernel */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
}

static void arguments_come_in_a_buffer_too(void) {
    struct {
        float a; /* and four bytes of padding */
        CUdeviceptr x, y;
        unsigned long long count;
    } packed = {2, x, y, COUNT};
    size_t size = sizeof packed, too_small = size - 1;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CHECK_RESULT(CUDA_SUCCESS, launch_fill(NULL, x, 1, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, launch_fill(NULL, y, 1, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(saxpy, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    CHECK(all_are(y, 3));
    extra[3] = &too_small;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(saxpy, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    extra[3] = NULL;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(saxpy, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    extra[0] = (void *)7;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(saxpy, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    extra[0] = CU_LAUNCH_PARAM_END;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(saxpy, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
}

static void bad_launches_are_refused(void) {
    unsigned int sizes[][6] = {{0, 1, 1, 1, 1, 1},    {1, 0, 1, 1, 1, 1},  {1, 1, 1, 0, 1, 1},
                               {1, 1, 1, 1, 1, 0},    {1, 1, 1, 1025, 1, 1}, {1, 1, 1, 32, 33, 1},
                               {1, 1, 1, 1, 1, 65},   {1, 65536, 1, 1, 1, 1}, {0x80000000u, 1, 1, 1, 1, 1},
                               {1, 1, 1, 1u << 16, 1u << 16, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned int *d = sizes[i];
        CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuLaunchKernel(plain, d[0], d[1], d[2], d[3], d[4], d[5], 0, NULL, NULL, NULL));
    }
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(plain, 1, 1, 1, 1, 1, 1, 49153, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncSetAttribute(plain, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(plain, 1, 1, 1, 1, 1, 1, 49153, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, launch(fill, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, launch(fill, NULL, (void *[]){&x, NULL, NULL}));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, launch_fill(NULL, 0, 0, 1));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, launch_fill(NULL, x, 0, 1ull << 40));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, launch_fill(NULL, x, 0, UINT64_MAX));
    CHECK_RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, launch_fill(NULL, x + 1, 0, 1));
    CHECK_RESULT(CUDA_SUCCESS, launch_fill(NULL, 0, 0, 0));
    CUstream stream;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, launch(plain, stream, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, launch(plain, stream, NULL));
}

static void events_measure_a_spin(void) {
    CUevent start, end;
    float milliseconds = 0;
    unsigned long long microseconds = 300000; /* so long that the question below comes before its end on a busy machine, too */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_OR_EXIT(CUDA_SUCCESS, cuEventCreate(&start, CU_EVENT_DEFAULT));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(start, NULL));
    CHECK_RESULT(CUDA_SUCCESS, launch(spin, NULL, (void *[]){&microseconds}));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(end, NULL));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(end));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(end));
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 299.9f); /* at least: the wall clock may have gone on before the spin was queued */
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(start));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(end));
}

static void captured_launches_run_with_the_graph(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    float value = 5;
    unsigned long long count = COUNT;
    CUdeviceptr to = y;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, launch_fill(NULL, y, 0, COUNT));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK_RESULT(CUDA_SUCCESS, launch(fill, stream, (void *[]){&to, &value, &count}));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CHECK(all_are(y, 0));
    value = 6, to = 0, count = 0; /* the arguments were copied */
    CHECK_OR_EXIT(CUDA_SUCCESS, cuGraphInstantiate(&executable, graph, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(executable, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(all_are(y, 5));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(executable));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void the_other_ways_to_launch(void) {
    float value = 8;
    unsigned long long count = COUNT;
    void *arguments[] = {&y, &value, &count};
    CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, &cooperative, 1};
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernelEx(&config, fill, arguments, NULL));
    CHECK(all_are(y, 8));
    config.gridDimX = 1u << 20;
    CHECK_RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchKernelEx(&config, fill, arguments, NULL));
    config.attrs = NULL;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, fill, arguments, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(NULL, fill, arguments, NULL));

    value = 9;
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchCooperativeKernel(fill, 1, 1, 1, 32, 1, 1, 0, NULL, arguments));
    CHECK(all_are(y, 9));
    CHECK_RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                 cuLaunchCooperativeKernel(fill, 0x7fffffff, 65535, 65535, 1, 1, 1, 0, NULL, arguments));

    value = 10;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunch(fill)); /* it has no block yet */
    CHECK_RESULT(CUDA_SUCCESS, cuFuncSetBlockShape(fill, 32, 1, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncSetSharedSize(fill, 16));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetSize(fill, 24));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetv(fill, 0, &y, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetf(fill, 8, value));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetv(fill, 16, &count, 8));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuParamSetv(fill, 4090, &count, 8));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuParamSetv(fill, -1, &count, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchGrid(fill, 2, 2));
    CHECK(all_are(y, 10));
    CHECK_RESULT(CUDA_SUCCESS, cuProfilerStart());
    CHECK_RESULT(CUDA_SUCCESS, cuProfilerStop());
}

static size_t shared_of_block(int threads) {
    return (size_t)threads * 100;
}

static void occupancy_follows_the_gpu(CUdevice device) {
    int blocks, threads, grid, per_multiprocessor, multiprocessors;
    size_t bytes;
    CHECK_RESULT(CUDA_SUCCESS,
                 cuDeviceGetAttribute(&per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device));
    CHECK_RESULT(CUDA_SUCCESS,
                 cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 256, 0));
    CHECK(blocks == per_multiprocessor / 256);
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 255, 0));
    CHECK(blocks == per_multiprocessor / 256); /* whole warps */
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 2000, 0));
    CHECK(blocks == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxPotentialBlockSize(&grid, &threads, plain, NULL, 0, 0));
    CHECK(threads == 1024 && grid == multiprocessors * (per_multiprocessor / 1024));
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxPotentialBlockSize(&grid, &threads, plain, NULL, 0, 100));
    CHECK(threads > 0 && threads <= 100);
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxPotentialBlockSize(&grid, &threads, plain, shared_of_block, 0, 0));
    CHECK(threads > 0 && threads < 1024);
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyAvailableDynamicSMemPerBlock(&bytes, plain, 4, 256));
    CHECK(bytes > 0 && bytes <= 65536);
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 256, bytes));
    CHECK(blocks >= 4);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuOccupancyAvailableDynamicSMemPerBlock(&bytes, plain, 1000, 256));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, plain, 256, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 0, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, NULL, 256, 0));
}

static void textures_remember_their_descriptors(void) {
    CUtexObject texture;
    CUsurfObject surface;
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR}, read;
    CUDA_TEXTURE_DESC sampling = {.maxAnisotropy = 3}, sampling_read;
    CUDA_RESOURCE_VIEW_DESC view;
    resource.res.linear.devPtr = x;
    resource.res.linear.format = CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = COUNT * sizeof(float);
    CHECK_OR_EXIT(CUDA_SUCCESS, cuTexObjectCreate(&texture, &resource, &sampling, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectGetResourceDesc(&read, texture));
    CHECK(read.res.linear.devPtr == x);
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectGetTextureDesc(&sampling_read, texture));
    CHECK(sampling_read.maxAnisotropy == 3);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceViewDesc(&view, texture));
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectDestroy(texture));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuTexObjectDestroy(texture));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuTexObjectGetResourceDesc(&read, texture));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, NULL, &sampling, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &resource, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &resource)); /* only of arrays */
    resource.res.linear.devPtr = 0;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &resource, &sampling, NULL));

    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 4, .Height = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CHECK_OR_EXIT(CUDA_SUCCESS, cuArrayCreate(&array, &shape));
    memset(&resource, 0, sizeof resource);
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CHECK_RESULT(CUDA_SUCCESS, cuSurfObjectCreate(&surface, &resource));
    CHECK_RESULT(CUDA_SUCCESS, cuSurfObjectGetResourceDesc(&read, surface));
    CHECK(read.res.array.hArray == array);
    CHECK_RESULT(CUDA_SUCCESS, cuSurfObjectDestroy(surface));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(array));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuSurfObjectCreate(&surface, &resource));
}

static void *launch_often(void *context) {
    CUstream stream;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 1000; i++) {
        CHECK_RESULT(CUDA_SUCCESS, launch(plain, i % 2 == 0 ? stream : NULL, NULL));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    return NULL;
}

static void threads_launch_at_once(CUcontext context) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, launch_often, context) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CHECK_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuInit(0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDeviceGet(&device, 0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, device));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&fill, module, "gpuslice_fill"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&saxpy, module, "_Z14gpuslice_saxpyfPKfPfy"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&sum, module, "gpuslice_sum"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&spin, module, "gpuslice_spin"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&filler, module, "_Z15gpuslice_fillerPf"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&plain, module, "plain"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuMemAlloc(&x, COUNT * sizeof(float)));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuMemAlloc(&y, COUNT * sizeof(float)));
    named_kernels_compute();
    arguments_come_in_a_buffer_too();
    bad_launches_are_refused();
    events_measure_a_spin();
    captured_launches_run_with_the_graph();
    the_other_ways_to_launch();
    occupancy_follows_the_gpu(device);
    textures_remember_their_descriptors();
    threads_launch_at_once(context);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    return check_summary();
}
