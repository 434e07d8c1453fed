/* Streams: what they say of themselves, order, host functions, waiting for values, and what is refused. */
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* It has the parent's handles, and nothing behind them. */
static void a_forked_child_has_no_driver(void) {
    CUstream stream;
    CUdeviceptr memory = 0;
    int status = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pid_t child = fork();
    if (child == 0) {
        int refused = cuStreamSynchronize(stream) == CUDA_ERROR_NOT_INITIALIZED &&
                       cuMemAllocAsync(&memory, 512, stream) == CUDA_ERROR_NOT_INITIALIZED &&
                       cuLaunchKernel(plain_kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(refused ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void streams_answer_questions(void) {
    CUstream stream, urgent;
    unsigned int flags;
    int priority;
    unsigned long long id, other_id;
    CUcontext its_context;
    CUdevice its_device;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreateWithPriority(&urgent, CU_STREAM_DEFAULT, -100));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetFlags(stream, &flags));
    CHECK(flags == CU_STREAM_NON_BLOCKING);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetPriority(urgent, &priority));
    CHECK(priority == -5);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetId(stream, &id));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetId(urgent, &other_id));
    CHECK(id != other_id);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCtx(stream, &its_context));
    CHECK(its_context == context);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetDevice(stream, &its_device));
    CHECK(its_device == device);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetFlags(NULL, &flags));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetFlags(CU_STREAM_PER_THREAD, &flags));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(urgent));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(NULL));
}

static void nothing_crashes_on_null(void) {
    CUstream stream;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 0x80));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamGetFlags(NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(NULL, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(NULL, NULL, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(NULL, 1, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(NULL, 0, 1, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(NULL, NULL, 0));
}

static void work_takes_time(void) {
    CUstream stream, other;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 200000));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(other));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(NULL)); /* does not synchronize with it */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(stream));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 100000));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream)); /* at once: its work goes on */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(other));
}

static void the_legacy_stream_waits_for_the_blocking_ones(void) {
    CUstream stream;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 100000));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

/* ---- host functions ---- */

static atomic_int order[8], order_count;

static void note(void *data) {
    atomic_store(&order[atomic_fetch_add(&order_count, 1)], (int)(intptr_t)data);
}

static void note_if_done(void *data) {
    note(cuStreamQuery((CUstream)data) == CUDA_ERROR_NOT_READY ? (void *)1 : (void *)2);
}

static void callback(CUstream stream, CUresult status, void *data) {
    (void)stream;
    note(status == CUDA_SUCCESS ? data : NULL);
}

static void host_functions_run_in_order(void) {
    CUstream stream;
    atomic_store(&order_count, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 20000));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, note, (void *)1));
    CHECK(atomic_load(&order_count) == 0); /* not before the kernel is done */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamAddCallback(stream, callback, (void *)2, 0));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 1000));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, note, (void *)3));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(atomic_load(&order_count) == 3);
    for (int i = 0; i < 3; i++) {
        CHECK(atomic_load(&order[i]) == i + 1);
    }
    atomic_store(&order_count, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, note_if_done, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, note, (void *)3));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream)); /* its host functions still run */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(atomic_load(&order_count) == 2);
    CHECK(atomic_load(&order[1]) == 3);
}

static void write_host(void *data) {
    *(int *)data = 42;
}

static void double_host(void *data) {
    *(int *)data *= 2;
}

static void work_behind_a_host_function_sees_what_it_did(void) {
    CUstream stream;
    CUdeviceptr memory;
    int *pinned, back = 0, pageable = 7;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, sizeof(int)));
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostAlloc((void **)&pinned, 2 * sizeof(int), 0));
    pinned[0] = 1;
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 5000));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, write_host, pinned));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoDAsync(memory, pinned, sizeof(int), stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(&pinned[1], memory, sizeof(int), stream));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, double_host, &pinned[1]));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(pinned[1] == 84);
    /* Pageable memory is read before the call returns, and written before it returns. */
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, write_host, pinned));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoDAsync(memory, &pageable, sizeof(int), stream));
    pageable = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(&back, memory, sizeof(int), stream));
    CHECK(back == 7);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(memory + 1, pinned, 4096, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeHost(pinned));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void wait_at_gate(void *data) {
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    note(data);
}

static void blocked_streams_block_what_synchronizes_with_them(void) {
    CUstream blocking, free_stream;
    CUdeviceptr memory;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, sizeof(float)));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, memory, 1, 1));
    atomic_store(&order_count, 0);
    pthread_mutex_lock(&gate);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(blocking, wait_at_gate, (void *)1));
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, memory, 2, 1)); /* the legacy stream comes behind the blocked one */
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    CHECK_RESULT(CUDA_SUCCESS, fill(free_stream, memory, 3, 1)); /* this one does not */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(free_stream));
    pthread_mutex_unlock(&gate);
    CHECK(first_float(memory) == 2); /* synchronous copies wait for both */
    CHECK(atomic_load(&order_count) == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(blocking));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(free_stream));
}

static void synchronize_inside(void *data) {
    note(cuStreamSynchronize((CUstream)data) == CUDA_ERROR_NOT_PERMITTED ? (void *)1 : (void *)2);
}

static void host_functions_may_not_wait(void) {
    CUstream stream;
    atomic_store(&order_count, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, synchronize_inside, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(atomic_load(&order[0]) == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

/* ---- values ---- */

static void streams_write_and_wait_for_values(void) {
    CUstream stream;
    CUdeviceptr flags, data;
    unsigned int seen;
    _Atomic unsigned int *mapped;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&data, sizeof(float)));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocManaged(&flags, 64, CU_MEM_ATTACH_GLOBAL));
    mapped = (_Atomic unsigned int *)(uintptr_t)flags;
    atomic_store(mapped, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWriteValue32(stream, flags, 5, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWriteValue64(stream, flags + 8, 1ull << 40, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitValue32(stream, flags, 5, CU_STREAM_WAIT_VALUE_EQ));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitValue32(stream, flags, 4, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitValue64(stream, flags + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_AND));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitValue32(stream, flags, 5, CU_STREAM_WAIT_VALUE_NOR));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&seen, flags, sizeof seen));
    CHECK(seen == 5);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(stream, flags + 1, 5, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(stream, 4096, 5, 0));
    /* A value that comes later holds up what is behind it. */
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, data, 1, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitValue32(stream, flags, 6, CU_STREAM_WAIT_VALUE_EQ));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, data, 2, 1));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CHECK(first_float(data) == 1);
    atomic_store(mapped, 6);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(first_float(data) == 2);
    /* A batch is done up to where it has to wait. */
    CUstreamBatchMemOpParams batch[3] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = flags + 4, {.value = 1}}},
        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = flags, {.value = 7},
                       .flags = CU_STREAM_WAIT_VALUE_EQ}},
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = flags + 4, {.value = 2}}},
    };
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBatchMemOp(stream, 3, batch, 0));
    CHECK(atomic_load(&mapped[1]) == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWriteValue32(NULL, flags, 7, 0)); /* another stream lets it go on */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(atomic_load(&mapped[1]) == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(flags));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(data));
}

static void attributes_are_remembered(void) {
    CUstream stream, other;
    CUstreamAttrValue value = {.syncPolicy = CU_SYNC_POLICY_YIELD};
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&other, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCopyAttributes(other, stream));
    memset(&value, 0, sizeof value);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CHECK(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(stream, (CUstreamAttrID)999, &value));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(other));
}

/* ---- many threads ---- */

static void count_up(void *data) {
    atomic_fetch_add((atomic_int *)data, 1);
}

static void *use_streams(void *data) {
    atomic_int *calls = data;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    for (int i = 0; i < 20; i++) {
        CUstream stream;
        CUevent event;
        CUdeviceptr memory;
        CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, i % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
        CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&event, 0));
        CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&memory, 4096, stream));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, memory, 1, 1024));
        CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, count_up, calls));
        CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(memory, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(event));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
        CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(event));
    }
    return NULL;
}

static void threads_do_not_disturb_each_other(void) {
    pthread_t threads[4];
    atomic_int calls = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, use_streams, &calls) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(atomic_load(&calls) == 80);
}

static void a_context_goes_with_work_outstanding(void) {
    CUcontext second;
    CUstream stream;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxCreate(&second, NULL, 0, device));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
    atomic_store(&order_count, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, note, (void *)1));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(second));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
}

int main(void) {
    device_open();
    a_forked_child_has_no_driver(); /* first: what forks has one thread */
    streams_answer_questions();
    nothing_crashes_on_null();
    work_takes_time();
    the_legacy_stream_waits_for_the_blocking_ones();
    host_functions_run_in_order();
    work_behind_a_host_function_sees_what_it_did();
    blocked_streams_block_what_synchronizes_with_them();
    host_functions_may_not_wait();
    streams_write_and_wait_for_values();
    attributes_are_remembered();
    threads_do_not_disturb_each_other();
    a_context_goes_with_work_outstanding();
    return device_close();
}
