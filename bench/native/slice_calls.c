/* What calls cost that an interposer stands in front of; run bare and with each interposer preloaded.
 *
 *     slice_calls calls              pairs with 1 to 100,000 live allocations, launch, memory info
 *     slice_calls pair               pairs alone, with one live allocation
 *     slice_calls together           the same, when its input says so: several processes begin at the same time
 *     slice_calls threads N          pairs by N threads at once, each in nanoseconds of its own time
 *     slice_calls start              what cuInit took, and the process's private memory after it
 *     slice_calls stay               takes part in the session and says so, until its input ends
 *
 * One line "NAME NUMBER" per figure; nanoseconds are medians over batches. */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BATCHES 61
#define CALLS 2000
#define BLOCK_BYTES 1024u
#define MOST_LIVE 100000u

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

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The thread's own time: what other processes do on this machine meanwhile does not count. */
static double median_ns(void (*call)(void)) {
    double batches[BATCHES];
    for (int i = -1; i < BATCHES; i++) {
        double start = now_ns(CLOCK_THREAD_CPUTIME_ID);
        for (int j = 0; j < CALLS; j++) {
            call();
        }
        batches[i < 0 ? 0 : i] = (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / CALLS; /* the first is to be warm */
    }
    qsort(batches, BATCHES, sizeof batches[0], compare);
    return batches[BATCHES / 2];
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

static void measure_calls(void) {
    uint32_t held = 0;
    for (uint32_t wanted = 1; wanted <= MOST_LIVE; wanted *= wanted == 1 ? 1000 : 10) {
        for (; held < wanted; held++) {
            require(cuMemAlloc(&live[held], BLOCK_BYTES), "cuMemAlloc");
        }
        printf("live-%u %.2f\n", wanted, median_ns(pair));
    }
    printf("async %.2f\n", median_ns(async_pair));
    printf("info %.2f\n", median_ns(ask_memory));
    printf("launch %.2f\n", median_ns(launch));
}

static void *measure_thread(void *result) {
    require(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    *(double *)result = median_ns(pair);
    return NULL;
}

static void measure_threads(int count) {
    pthread_t threads[64];
    double results[64];
    for (int i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, measure_thread, &results[i]) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    qsort(results, (size_t)count, sizeof results[0], compare);
    printf("threads-%d %.2f\n", count, results[count / 2]);
}

static void say_ready(void) {
    puts("ready 0");
    fflush(stdout);
}

/* What it wrote to and shares with nobody. */
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
    open_device();
    if (strcmp(what, "calls") == 0) {
        measure_calls();
    } else if (strcmp(what, "pair") == 0) {
        printf("pair %.2f\n", median_ns(pair));
    } else if (strcmp(what, "together") == 0) {
        say_ready();
        if (getchar() != EOF) {
            printf("pair %.2f\n", median_ns(pair));
        }
    } else if (strcmp(what, "threads") == 0 && argc == 3) {
        measure_threads(atoi(argv[2]));
    } else if (strcmp(what, "stay") == 0) {
        require(cuMemAlloc(&live[0], BLOCK_BYTES), "cuMemAlloc");
        say_ready();
        while (getchar() != EOF) {
        }
    } else {
        return 2;
    }
    return 0;
}
