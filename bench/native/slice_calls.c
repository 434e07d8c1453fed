/* What calls cost that an interposer stands in front of; run bare and with each interposer preloaded.
 *
 *     slice_calls serve              measures one batch per line of its input, so that variants can take turns:
 *                                      live N        holds N allocations from now on
 *                                      pair | async | info | launch     a batch of that call
 *                                      threads N     a batch of pairs by N threads at once
 *     slice_calls start              what cuInit took, and the process's private memory after it
 *
 * One line per answer: nanoseconds per call of the calling thread's own time; for `start`, "NAME NUMBER". */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALLS 1000 /* in a batch: long enough that reading the clock does not count, short enough to take turns */
#define BLOCK_BYTES 1024u
#define MOST_LIVE 100000u
#define MOST_THREADS 64

static CUcontext context;
static CUfunction plain;
static CUdeviceptr live[MOST_LIVE];

static void require(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "error: %s: CUresult %d\n", what, (int)result);
        exit(1);
    }
}

static double now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void pair(void) {
    CUdeviceptr block;
    require(cuMemAlloc(&block, BLOCK_BYTES), "cuMemAlloc");
    require(cuMemFree(block), "cuMemFree");
}

static void async_pair(void) {
    CUdeviceptr block;
    require(cuMemAllocAsync(&block, BLOCK_BYTES, NULL), "cuMemAllocAsync");
    require(cuMemFreeAsync(block, NULL), "cuMemFreeAsync");
}

static void ask_memory(void) {
    size_t free_bytes, total;
    require(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
}

static void launch(void) {
    require(cuLaunchKernel(plain, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

/* The thread's own time: what other processes do on this machine meanwhile does not count. */
static double batch_ns(void (*call)(void)) {
    double start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < CALLS; i++) {
        call();
    }
    return (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / CALLS;
}

static void open_device(void) {
    static const char code[] = ".version 8.0\n.target sm_80\n.entry plain() { ret; }\n";
    CUmodule module;
    require(cuInit(0), "cuInit");
    require(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    require(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    require(cuModuleLoadData(&module, code), "cuModuleLoadData");
    require(cuModuleGetFunction(&plain, module, "plain"), "cuModuleGetFunction");
}

static double hold(uint32_t wanted) {
    static uint32_t held;
    for (; held < wanted && held < MOST_LIVE; held++) {
        require(cuMemAlloc(&live[held], BLOCK_BYTES), "cuMemAlloc");
    }
    for (; held > wanted; held--) {
        require(cuMemFree(live[held - 1]), "cuMemFree");
    }
    return held;
}

/* Threads stay for all batches: starting one costs more than a batch. */
static struct {
    pthread_barrier_t begin, end;
    int count;
    double results[MOST_THREADS];
} crew;

static void *measure_thread(void *number) {
    require(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (;;) {
        pthread_barrier_wait(&crew.begin);
        crew.results[(intptr_t)number] = batch_ns(pair);
        pthread_barrier_wait(&crew.end);
    }
    return NULL;
}

static double threads_ns(int count) {
    if (crew.count == 0) {
        crew.count = count < MOST_THREADS ? count : MOST_THREADS;
        pthread_barrier_init(&crew.begin, NULL, (unsigned)crew.count + 1);
        pthread_barrier_init(&crew.end, NULL, (unsigned)crew.count + 1);
        for (intptr_t i = 0; i < crew.count; i++) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, measure_thread, (void *)i) != 0) {
                exit(1);
            }
        }
    }
    pthread_barrier_wait(&crew.begin);
    pthread_barrier_wait(&crew.end);
    double sum = 0;
    for (int i = 0; i < crew.count; i++) {
        sum += crew.results[i];
    }
    return sum / crew.count;
}

static double answer(const char *what, unsigned number) {
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = {{"pair", pair}, {"async", async_pair}, {"info", ask_memory}, {"launch", launch}};
    if (strcmp(what, "live") == 0) {
        return hold(number);
    }
    if (strcmp(what, "threads") == 0) {
        return threads_ns((int)number);
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (strcmp(what, calls[i].name) == 0) {
            return batch_ns(calls[i].call);
        }
    }
    fprintf(stderr, "error: what is %s?\n", what);
    exit(2);
}

static void serve(void) {
    char line[64], what[32];
    open_device();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned number = 0;
        if (sscanf(line, "%31s %u", what, &number) >= 1) {
            printf("%.3f\n", answer(what, number));
            fflush(stdout);
        }
    }
}

/* What it wrote to and shares with no process. */
static double private_bytes(void) {
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Private_Dirty: %lf kB", &kilobytes) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kilobytes * 1024;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "start") == 0) {
        double start = now_ns(CLOCK_MONOTONIC);
        require(cuInit(0), "cuInit");
        printf("init %.0f\n", now_ns(CLOCK_MONOTONIC) - start);
        printf("private %.0f\n", private_bytes());
        return 0;
    }
    if (strcmp(what, "serve") == 0) {
        serve();
        return 0;
    }
    return 2;
}
