/* Host functions: calls of the program's own that run between a stream's other work (deferred.c calls them). */
#include "deferred.h"

static CUresult submit(CUstream handle, const struct operation *operation) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    return result == CUDA_SUCCESS ? stream_submit(stream, operation) : result;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    if (function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return submit(handle, &(struct operation){.kind = OPERATION_HOST, .host = {.function = function, .data = data}});
}

/* How the device waits for the function is the device's business, and ours does not spin. */
CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *data, unsigned int mode) {
    if (mode != CU_HOST_TASK_BLOCKING && mode != CU_HOST_TASK_SPINWAIT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuLaunchHostFunc(handle, function, data);
}

CUresult CUDAAPI cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned int flags) {
    if (callback == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operation operation = {
        .kind = OPERATION_HOST,
        .host = {.callback = callback, .callback_stream = handle, .data = data},
    };
    return submit(handle, &operation);
}
