/* Threads that allocate, and free what other threads allocated: nothing is lost between them, and what one frees
 * another can have, to the last byte. */
#include "check.h"

#include <cuda.h>
#include <pthread.h>
#include <stdint.h>

#define THREADS 6 /* more than lanes */
#define BLOCKS 200
#define ROUNDS 20

static CUcontext context;
static CUdeviceptr blocks[THREADS][BLOCKS];
static pthread_barrier_t barrier;
static size_t all_of_it;

static size_t free_bytes(void) {
    size_t found = 0, total;
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&found, &total));
    return found;
}

static void meet(void) {
    pthread_barrier_wait(&barrier);
}

static void *take_and_give(void *argument) {
    int own = (int)(intptr_t)argument, next = (own + 1) % THREADS;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&blocks[own][i], (size_t)(i % 5 + 1) * 512));
        }
        meet();
        for (int i = 0; i < BLOCKS; i++) {
            CHECK_RESULT(CUDA_SUCCESS, cuMemFree(blocks[next][i]));
        }
        meet();
        CHECK(free_bytes() == all_of_it);
        meet();
    }
    for (int turn = 0; turn < THREADS; turn++) {
        CUdeviceptr large, one_more;
        if (turn == own) {
            CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&large, all_of_it));
            CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&one_more, 1));
            CHECK_RESULT(CUDA_SUCCESS, cuMemFree(large));
        }
        meet();
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    CHECK_RESULT(CUDA_SUCCESS, cuInit(0));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    all_of_it = free_bytes();
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, take_and_give, (void *)(intptr_t)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    return check_summary();
}
