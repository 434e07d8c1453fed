/* Uses the simulator from many threads at once, for the sanitizers to watch: memory of every thread's own, one pool, one
 * device, and an observer that looks at it all through NVML. */
#include <cuda.h>
#include <nvml.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 8
#define ROUNDS 200

static CUcontext context;
static atomic_int working = THREADS;

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        int result = (int)(call);                                                                                     \
        if (result != 0) {                                                                                            \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, result);                            \
            _Exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

static void copy_there_and_back(size_t bytes, unsigned char value) {
    unsigned char *there = malloc(bytes), *back = calloc(1, bytes);
    memset(there, value, bytes);
    CUdeviceptr device;
    CHECK(cuMemAlloc(&device, bytes));
    CHECK(cuMemcpyHtoD(device, there, bytes));
    CHECK(cuMemcpyDtoH(back, device, bytes));
    CHECK(memcmp(there, back, bytes));
    CHECK(cuMemFree(device));
    free(there);
    free(back);
}

static void use_a_stream(size_t bytes) {
    CUstream stream;
    CUevent begin, end;
    CUdeviceptr device;
    float milliseconds;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(begin, stream));
    CHECK(cuMemAllocAsync(&device, bytes, stream));
    CHECK(cuMemsetD8Async(device, 7, bytes, stream));
    CHECK(cuMemFreeAsync(device, stream));
    CHECK(cuEventRecord(end, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuEventElapsedTime(&milliseconds, begin, end));
    CHECK(cuEventDestroy(begin));
    CHECK(cuEventDestroy(end));
    CHECK(cuStreamDestroy(stream));
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    CHECK(cuCtxSetCurrent(context));
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = 1 + (size_t)rand_r(&seed) % 65536;
        copy_there_and_back(bytes, (unsigned char)round);
        use_a_stream(bytes);
        size_t available, total;
        CHECK(cuMemGetInfo(&available, &total));
    }
    atomic_fetch_sub(&working, 1);
    return NULL;
}

static void *watch(void *argument) {
    (void)argument;
    nvmlDevice_t device;
    CHECK(nvmlInit());
    CHECK(nvmlDeviceGetHandleByIndex(0, &device));
    while (atomic_load(&working) > 0) {
        nvmlMemory_t memory;
        nvmlUtilization_t utilization;
        nvmlProcessInfo_t processes[64];
        unsigned count = 64;
        CHECK(nvmlDeviceGetMemoryInfo(device, &memory));
        CHECK(nvmlDeviceGetUtilizationRates(device, &utilization));
        CHECK(nvmlDeviceGetComputeRunningProcesses(device, &count, processes));
    }
    CHECK(nvmlShutdown());
    return NULL;
}

int main(void) {
    CUdevice device;
    pthread_t threads[THREADS + 1];
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(pthread_create(&threads[THREADS], NULL, watch, NULL));
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)));
    for (int i = 0; i <= THREADS; i++) CHECK(pthread_join(threads[i], NULL));
    CHECK(cuDevicePrimaryCtxRelease(device));
    puts("done");
    return 0;
}
