/* Contexts: primary ones, whose handle outlives them, created ones, and the stack of each thread. */
#include "check.h"

#include <cuda.h>
#include <pthread.h>
#include <string.h>

static CUdevice first, second;

/* What the runtime asks for every device: the primary context's handle, not the context. */
static CUcontext primary_handle(CUdevice device) {
    static const CUuuid uuid = {{0x6b, (char)0xd5, (char)0xfb, 0x6c, 0x5b, (char)0xf4, (char)0xe7, 0x4a, (char)0x89,
                                 (char)0x87, (char)0xd9, 0x39, 0x12, (char)0xfd, (char)0x9d, (char)0xf9}};
    const void *table = NULL;
    CUcontext handle = NULL;
    CUresult (*ask)(CUcontext *, CUdevice);
    CHECK_OR_EXIT(CUDA_SUCCESS, cuGetExportTable(&table, &uuid));
    memcpy(&ask, (const char *)table + 2 * sizeof ask, sizeof ask);
    CHECK_RESULT(CUDA_SUCCESS, ask(&handle, device));
    CHECK(handle != NULL);
    return handle;
}

static int active(CUdevice device) {
    unsigned int flags = 0;
    int is_active = -1;
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(device, &flags, &is_active));
    return is_active;
}

static void the_primary_handle_is_there_before_the_context(void) {
    CUcontext handle = primary_handle(first), other = primary_handle(second), retained = NULL, current = NULL;
    size_t bytes;
    CUdeviceptr memory;
    CHECK(handle != other && !active(first) && !active(second));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(handle));
    CHECK_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&memory, 512));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&retained, first));
    CHECK(retained == handle && active(first) && !active(second));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, 512));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&retained, first));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(first));
    CHECK(active(first));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(first));
    CHECK(!active(first));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(first));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&current));
    CHECK(current == handle);
    CHECK_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemGetInfo(&bytes, &bytes));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(NULL));
}

static void a_reset_frees_everything_and_work_goes_on(void) {
    CUcontext context, again;
    CUdeviceptr memory;
    CUstream stream;
    size_t before, after, total;
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, first));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&before, &total));
    for (int i = 0; i < 3; i++) {
        CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, 1 << 20));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
        CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxReset(first));
        CHECK(!active(first));
        CHECK_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&memory, 512));
        CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&again, first));
        CHECK(again == context);
        CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
        CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&after, &total));
        CHECK(after == before);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(first));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxReset(first)); /* nothing to reset */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(NULL));
}

static CUresult create(CUcontext *context, CUdevice device) {
    return cuCtxCreate(context, NULL, 0, device);
}

static void created_contexts_nest(void) {
    CUcontext outer = NULL, inner = NULL, popped = NULL, current = NULL;
    CUdevice device = -1;
    CHECK_RESULT(CUDA_SUCCESS, create(&outer, first));
    CHECK_RESULT(CUDA_SUCCESS, create(&inner, second));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetDevice(&device));
    CHECK(device == second);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxPopCurrent(&popped));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&current));
    CHECK(popped == inner && current == outer);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxPushCurrent(inner));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(inner)); /* current: the one below comes back */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&current));
    CHECK(current == outer);
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(inner));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(inner));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(outer));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&current));
    CHECK(current == NULL);
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&popped));
}

static void the_stack_has_an_end(void) {
    CUcontext contexts[64];
    int count = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < 64 && (result = create(&contexts[count], first)) == CUDA_SUCCESS) {
        count++;
    }
    CHECK(count >= 8 && (count == 64 || result == CUDA_ERROR_OUT_OF_MEMORY));
    while (count > 0) {
        CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(contexts[--count]));
    }
}

/* Retains and releases that open and close the context, from many threads; now and then a reset. */
static void *open_and_close(void *argument) {
    CUcontext context;
    for (int i = 0; i < 200; i++) {
        CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, first));
        CHECK(context == argument);
        CUresult result = i % 16 == 15 ? cuDevicePrimaryCtxReset(first) : cuDevicePrimaryCtxRelease(first);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT); /* another's reset took it */
    }
    return NULL;
}

static void threads_open_and_close_the_same_one(void) {
    pthread_t threads[4];
    CUcontext handle = primary_handle(first);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, open_and_close, handle) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxReset(first));
    CHECK(!active(first));
}

int main(void) {
    CHECK_OR_EXIT(CUDA_SUCCESS, cuInit(0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDeviceGet(&first, 0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDeviceGet(&second, 1));
    the_primary_handle_is_there_before_the_context();
    a_reset_frees_everything_and_work_goes_on();
    created_contexts_nest();
    the_stack_has_an_end();
    threads_open_and_close_the_same_one();
    return check_summary();
}
