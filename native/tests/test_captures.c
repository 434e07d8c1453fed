/* Captures: streams that record into a graph, with forks and joins, and what is forbidden meanwhile. */
#include "graph.h"

#include <pthread.h>

static void captured_work_runs_when_launched(void) {
    CUstream stream;
    CUgraph graph;
    CUstreamCaptureStatus status;
    CUdeviceptr memory;
    cuuint64_t id = 0;
    size_t count;
    const CUgraphNode *dependencies;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, x, 0, 1));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&memory, 4096, stream));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, memory, 4, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoDAsync(x, memory, sizeof(float), stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(memory, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32Async(y, 0, 1, stream));
    atomic_store(&calls, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, count_call, (void *)1));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 1000));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, NULL, &count));
    CHECK(id != 0 && count == 1 && dependencies[0] != NULL);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph)); /* the capture's */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CHECK(first_float(x) == 0); /* nothing has happened yet */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 7);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    CHECK(count == 6);
    CUgraphExec exec = instantiate(graph);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(first_float(x) == 4 && atomic_load(&calls) == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void captures_fork_and_join(void) {
    CUstream stream, side;
    CUevent fork, join;
    CUgraph graph;
    CUgraphNode from[8], to[8];
    size_t count = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 1, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(side, fork, 0));
    CHECK_RESULT(CUDA_SUCCESS, fill(side, y, 2, 1));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 3, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(join, side));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(side, &graph));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CHECK(graph == NULL);
    CHECK_RESULT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(join));
    CHECK_RESULT(CUDA_SUCCESS, fill(side, y, 0, 1)); /* both streams work as before */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(side));
    for (int joined = 0; joined < 2; joined++) {
        CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 1, 1));
        CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(side, fork, 0));
        CHECK_RESULT(CUDA_SUCCESS, fill(side, y, 2, 1));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 3, 1));
        if (joined) {
            CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(join, side));
            CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(stream, join, 0));
            CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 4, 1));
        }
        CHECK_RESULT(joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, from, to, NULL, &count));
    CHECK(count == 4 && to[2] == to[3] && from[0] == from[1]); /* a diamond */
    CUgraphExec exec = instantiate(graph);
    launch(exec);
    CHECK(first_float(x) == 4 && first_float(y) == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, stream)); /* an event again like any other */
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(fork));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(fork));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(join));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(side));
}

static void *end_elsewhere(void *stream) {
    CUgraph graph;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture((CUstream)stream, &graph));
    return NULL;
}

static void callback(CUstream stream, CUresult status, void *data) {
    (void)stream;
    (void)status;
    (void)data;
}

static void captures_forbid_what_cannot_be_captured(void) {
    CUstream stream, blocking;
    CUevent outside;
    CUgraph graph;
    float value;
    CUstreamCaptureStatus status;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(outside, stream));
    for (int i = 0; i < 7; i++) {
        CUstream captured = i == 6 ? blocking : stream;
        CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        switch (i) {
        case 0:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(captured));
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, fill(captured, x, 1, 1));
            CHECK_RESULT(CUDA_SUCCESS, cuStreamIsCapturing(captured, &status));
            CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
            break;
        case 1:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(captured));
            break;
        case 2:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
            break;
        case 3:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemcpyDtoH(&value, x, sizeof value));
            break;
        case 4:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(captured, outside, 0));
            break;
        case 5:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamAddCallback(captured, callback, NULL, 0));
            break;
        default:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, fill(NULL, x, 1, 1));
            break;
        }
        CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
    }
    /* Relaxed captures, and relaxed threads, allow what is only dangerous. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&value, x, sizeof value));
    CHECK_RESULT(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end_elsewhere, stream) == 0 && pthread_join(thread, NULL) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream)); /* and its capture with it */
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&value, x, sizeof value));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(blocking));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(outside));
}

static void captures_can_extend_a_graph(void) {
    CUstream stream;
    CUgraph graph, ended;
    size_t count;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CUgraphNode first = add_fill(graph, NULL, 1), second = add_fill(graph, &first, 2);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(stream, &second, NULL, 1,
                                                                 CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 3, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &ended));
    CHECK(ended == graph);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    CHECK(count == 3);
    CUgraphExec exec = instantiate(graph);
    launch(exec);
    CHECK(first_float(x) == 3);
    /* A launch in a capturing stream becomes a child graph. */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &ended));
    CUgraphExec outer = instantiate(ended);
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, x, 0, 1));
    launch(outer);
    CHECK(first_float(x) == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(outer));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(ended));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

int main(void) {
    graph_device_open();
    captured_work_runs_when_launched();
    captures_fork_and_join();
    captures_forbid_what_cannot_be_captured();
    captures_can_extend_a_graph();
    return graph_device_close();
}
