/* What calls of the simulated driver cost, each beside a baseline of the same run: a call into a shared library that
 * does nothing, or the C library's malloc and free. A batch of the baseline and a batch of the call take turns, so that
 * both see the same machine. Noise only adds time, so a low quantile of the batches counts, and the spread beside it says
 * how noisy the machine was. One JSON object per line on standard output. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BATCHES 301
#define LOW (BATCHES / 10)
#define HIGH (BATCHES * 9 / 10)
#define CALLS 1000 /* in a batch: long enough that reading the clock does not count */
#define BLOCK_BYTES 1024u
#define MOST_LIVE 100000u

int empty_call(void *argument); /* libempty.so */

struct measurement {
    const char *name;
    void (*call)(void);
    void (*baseline)(void);
    const char *baseline_name;
};

static CUfunction plain, fill;
static CUstream stream;
static CUdeviceptr live[MOST_LIVE];

static void require(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "error: %s: CUresult %d\n", what, (int)result);
        exit(1);
    }
}

/* ---- what is measured ---- */

static void call_nothing(void) {
    static int (*volatile call)(void *) = empty_call; /* volatile: a call that the compiler knows nothing about */
    call(&plain);
}

static void allocate_host(void) {
    void *volatile block = malloc(BLOCK_BYTES);
    free(block);
}

static void allocate_device(void) {
    CUdeviceptr block;
    require(cuMemAlloc(&block, BLOCK_BYTES), "cuMemAlloc");
    require(cuMemFree(block), "cuMemFree");
}

static void ask_memory(void) {
    size_t free_bytes, total_bytes;
    require(cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
}

static void launch_plain(void) {
    require(cuLaunchKernel(plain, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void launch_in_stream(void) {
    require(cuLaunchKernel(plain, 4, 1, 1, 256, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
}

static void launch_fill(void) {
    CUdeviceptr to = live[0];
    float value = 1;
    unsigned long long count = 0;
    void *arguments[] = {&to, &value, &count};
    require(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
}

/* ---- measuring ---- */

static double batch_ns(void (*call)(void)) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < CALLS; i++) {
        call();
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / CALLS;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void measure(const struct measurement *measurement) {
    static double calls[BATCHES], baselines[BATCHES];
    batch_ns(measurement->call); /* to be warm */
    for (int i = 0; i < BATCHES; i++) {
        baselines[i] = batch_ns(measurement->baseline);
        calls[i] = batch_ns(measurement->call);
    }
    qsort(calls, BATCHES, sizeof calls[0], compare);
    qsort(baselines, BATCHES, sizeof baselines[0], compare);
    printf("{\"name\": \"%s\", \"nanoseconds\": %.2f, \"spread\": %.2f, \"baseline\": %.2f, \"baseline_name\": \"%s\"}\n",
           measurement->name, calls[LOW], calls[HIGH] / calls[LOW], baselines[LOW], measurement->baseline_name);
    fflush(stdout);
}

static void measure_allocations(void) {
    uint32_t held = 1; /* launch_fill's */
    for (uint32_t wanted = 1; wanted <= MOST_LIVE; wanted *= wanted == 1 ? 1000 : 10) {
        for (; held < wanted; held++) {
            require(cuMemAlloc(&live[held], BLOCK_BYTES), "cuMemAlloc");
        }
        char name[64];
        snprintf(name, sizeof name, "alloc+free, %u live", held);
        measure(&(struct measurement){name, allocate_device, allocate_host, "malloc+free"});
    }
}

int main(void) {
    static const char code[] = ".version 8.0\n.target sm_80\n"
                               ".entry plain() { ret; }\n.entry gpuslice_fill() { ret; }\n";
    static const struct measurement measurements[] = {
        {"cuMemGetInfo", ask_memory, call_nothing, "empty call"},
        {"cuLaunchKernel", launch_plain, call_nothing, "empty call"},
        {"cuLaunchKernel, own stream", launch_in_stream, call_nothing, "empty call"},
        {"cuLaunchKernel, named kernel", launch_fill, call_nothing, "empty call"},
    };
    CUcontext context;
    CUmodule module;
    require(cuInit(0), "cuInit");
    require(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    require(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    require(cuModuleLoadData(&module, code), "cuModuleLoadData");
    require(cuModuleGetFunction(&plain, module, "plain"), "cuModuleGetFunction");
    require(cuModuleGetFunction(&fill, module, "gpuslice_fill"), "cuModuleGetFunction");
    require(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    require(cuMemAlloc(&live[0], BLOCK_BYTES), "cuMemAlloc");
    measure_allocations();
    /* Launches take less time than their kernels: the queue is deep from the first batch on, and left so at the end. */
    for (size_t i = 0; i < sizeof measurements / sizeof measurements[0]; i++) {
        measure(&measurements[i]);
    }
    return 0;
}
