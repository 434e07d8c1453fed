/* Events: completion, elapsed time, waiting across streams and devices, and other processes. */
#include "device.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void events_complete_with_the_work_before_them(void) {
    CUstream stream;
    CUevent event;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(event)); /* never recorded */
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(event));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 100000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, stream));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 100000));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(event));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(event));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream)); /* what came after is still running */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(event));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(event));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(event));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void elapsed_time_is_device_time(void) {
    CUevent start, end, plain;
    float milliseconds = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&start, CU_EVENT_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, start, end)); /* not recorded */
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(start, NULL));
    CHECK_RESULT(CUDA_SUCCESS, spin(NULL, 30000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(end, NULL));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, start, end));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(end));
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 29.999f);
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&milliseconds, end, start));
    CHECK(milliseconds <= -29.999f);
    /* Both in a busy stream: the time between is what the work between took. */
    CHECK_RESULT(CUDA_SUCCESS, spin(NULL, 20000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(start, NULL));
    CHECK_RESULT(CUDA_SUCCESS, spin(NULL, 20000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(end, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 19.99f);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(plain, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, start, plain));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuEventElapsedTime(NULL, start, end));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&plain, CU_EVENT_INTERPROCESS));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&plain, 0x80));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(start));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(end));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(plain));
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void wait_at_gate(void *data) {
    (void)data;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}

static void streams_wait_for_events(void) {
    CUstream first, second;
    CUevent event;
    CUdeviceptr memory;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, sizeof(float)));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, spin(first, 100000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, first));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(second, event, 0));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(second));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(first));
    /* A record that stands behind a host function: so does what waits for it. */
    CHECK_RESULT(CUDA_SUCCESS, fill(second, memory, 1, 1));
    pthread_mutex_lock(&gate);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(first, wait_at_gate, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, first));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(second, event, 0));
    CHECK_RESULT(CUDA_SUCCESS, fill(second, memory, 2, 1));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    CHECK(first_float(memory) == 1);
    pthread_mutex_unlock(&gate);
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(event));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(second));
    CHECK(first_float(memory) == 2);
    /* An event that is gone holds no stream up. */
    pthread_mutex_lock(&gate);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(first, wait_at_gate, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, first));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(second, event, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(event));
    pthread_mutex_unlock(&gate);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(first));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(second));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
}

static void streams_wait_for_events_of_another_device(void) {
    int devices;
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetCount(&devices));
    if (devices < 2) {
        return;
    }
    CUcontext other;
    CUstream here, there;
    CUevent event;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&here, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, spin(here, 50000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, here));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&other, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(other));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, there));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(there, event, 0));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(there));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(there));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(event));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(there));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(1));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(event));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(here));
}

/* ---- another process: it makes an event, records it behind some work, and is killed when we have seen that ---- */

static void export_event(int channel) {
    char turn;
    CUevent event;
    CUipcEventHandle handle;
    device_open();
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    CHECK_RESULT(CUDA_SUCCESS, cuIpcGetEventHandle(&handle, event));
    CHECK_RESULT(CUDA_SUCCESS, spin(NULL, 300000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, NULL));
    CHECK(write(channel, &handle, sizeof handle) == (ssize_t)sizeof handle);
    CHECK(read(channel, &turn, 1) == 1);
    CHECK_RESULT(CUDA_SUCCESS, spin(NULL, 60000000));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(event, NULL));
    CHECK(write(channel, "", 1) == 1);
    pause();
}

static void other_processes_share_events(pid_t exporter, int channel) {
    CUevent event, plain;
    CUipcEventHandle handle;
    CUstream stream;
    char turn;
    CHECK(read(channel, &handle, sizeof handle) == (ssize_t)sizeof handle);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuIpcOpenEventHandle(&event, handle));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(stream, event, 0));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(event));
    CHECK(write(channel, "", 1) == 1);
    CHECK(read(channel, &turn, 1) == 1);
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    CHECK(kill(exporter, SIGKILL) == 0);
    CHECK(waitpid(exporter, NULL, 0) == exporter);
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(event)); /* a dead process's work is not waited for */
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(event));
    CHECK_RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&event, handle));
    memset(&handle, 0, sizeof handle);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuIpcOpenEventHandle(&event, handle));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, plain));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(plain));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

int main(void) {
    int channel[2];
    CHECK_OR_EXIT(0, socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t exporter = fork(); /* before cuInit: a driver does not survive a fork */
    if (exporter == 0) {
        export_event(channel[1]);
        return 1;
    }
    close(channel[1]);
    device_open();
    other_processes_share_events(exporter, channel[0]);
    events_complete_with_the_work_before_them();
    elapsed_time_is_device_time();
    streams_wait_for_events();
    streams_wait_for_events_of_another_device();
    return device_close();
}
