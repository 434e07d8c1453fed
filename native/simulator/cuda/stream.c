/* Streams: making and destroying them, asking about them, and waiting for them. In one process all work on one device is
 * one queue of device time, so a stream is hardly more than the point at which its last work is done. */
#include "capture.h"
#include "deferred.h"

#include <stdlib.h>

#define PRIORITY_GREATEST (-5) /* as cuCtxGetStreamPriorityRange says */

/* ---- handles ---- */

CUresult stream_from(CUstream handle, struct stream **stream) {
    if ((uintptr_t)handle > (uintptr_t)CU_STREAM_PER_THREAD) {
        CUresult ready = driver_ready(); /* not in a forked child, which has the parent's handles and no machine */
        *stream = (struct stream *)handle;
        return ready != CUDA_SUCCESS ? ready : object_is(handle, KIND_STREAM) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    struct context *context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        *stream = handle == CU_STREAM_PER_THREAD ? context->thread_stream : context->legacy_stream;
    }
    return result;
}

static CUresult stream_new(struct context *context, unsigned int flags, int priority, struct stream **made) {
    static _Atomic uint64_t next_id = 1;
    struct stream *stream = object_new(KIND_STREAM, sizeof *stream);
    if (stream == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority > 0 ? 0 : priority < PRIORITY_GREATEST ? PRIORITY_GREATEST : priority;
    stream->id = atomic_fetch_add(&next_id, 1);
    pthread_mutex_lock(&context->lock);
    stream->sibling = context->streams;
    context->streams = stream;
    pthread_mutex_unlock(&context->lock);
    *made = stream;
    return CUDA_SUCCESS;
}

CUresult stream_open_defaults(struct context *context) {
    CUresult result = stream_new(context, CU_STREAM_DEFAULT, 0, &context->legacy_stream);
    if (result == CUDA_SUCCESS) {
        result = stream_new(context, CU_STREAM_DEFAULT, 0, &context->thread_stream);
    }
    if (result != CUDA_SUCCESS) {
        stream_close_all(context);
    }
    return result;
}

/* The stream is retired, captures nothing and has nothing deferred. */
void stream_free(struct stream *stream) {
    struct context *context = stream->context;
    pthread_mutex_lock(&context->lock);
    for (struct stream **link = &context->streams; *link != NULL; link = &(*link)->sibling) {
        if (*link == stream) {
            *link = stream->sibling;
            break;
        }
    }
    uint64_t tail = atomic_load(&stream->tail);
    if (tail > atomic_load(&context->retired_tail)) {
        atomic_store(&context->retired_tail, tail);
    }
    pthread_mutex_unlock(&context->lock);
    free(stream->attributes);
    object_free(stream, KIND_STREAM);
}

void stream_close_all(struct context *context) {
    deferred_discard(context);
    while (context->streams != NULL) {
        struct stream *stream = context->streams;
        capture_abandon(stream);
        object_retire(stream, KIND_STREAM);
        stream_free(stream);
    }
    context->legacy_stream = context->thread_stream = NULL;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *handle, unsigned int flags, int priority) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct stream *stream;
    result = stream_new(context, flags, priority, &stream);
    if (result == CUDA_SUCCESS) {
        *handle = (CUstream)stream;
    }
    return result;
}

CUresult CUDAAPI cuStreamCreate(CUstream *handle, unsigned int flags) {
    return cuStreamCreateWithPriority(handle, flags, 0);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct stream *stream = (struct stream *)handle;
    if ((uintptr_t)handle <= (uintptr_t)CU_STREAM_PER_THREAD || !object_retire(stream, KIND_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    capture_abandon(stream);
    if (!deferred_close(stream)) {
        stream_free(stream);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
    return cuStreamDestroy_v2(handle);
}

/* ---- questions ---- */

#define STREAM_QUESTION(name, type, answer)                       \
    CUresult CUDAAPI name(CUstream handle, type *value) {         \
        struct stream *stream;                                    \
        CUresult result = stream_from(handle, &stream);           \
        if (result == CUDA_SUCCESS && value == NULL) {            \
            return CUDA_ERROR_INVALID_VALUE;                      \
        }                                                         \
        if (result == CUDA_SUCCESS) {                             \
            *value = answer;                                      \
        }                                                         \
        return result;                                            \
    }

STREAM_QUESTION(cuStreamGetPriority, int, stream->priority)
STREAM_QUESTION(cuStreamGetFlags, unsigned int, stream->flags)
STREAM_QUESTION(cuStreamGetId, unsigned long long, stream->id)
STREAM_QUESTION(cuStreamGetDevice, CUdevice, stream->context->device->ordinal)
STREAM_QUESTION(cuStreamGetCtx, CUcontext, (CUcontext)stream->context)
STREAM_QUESTION(cuStreamGetGreenCtx, CUgreenCtx, NULL)

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
    if (green != NULL) {
        *green = NULL;
    }
    return cuStreamGetCtx(handle, context);
}

/* ---- time ---- */

void stream_extend(struct stream *stream, uint64_t progress) {
    uint64_t tail = atomic_load_explicit(&stream->tail, memory_order_relaxed);
    while (tail < progress && !atomic_compare_exchange_weak(&stream->tail, &tail, progress)) {
    }
}

static uint64_t context_end(struct context *context, bool blocking_only) {
    uint64_t end = blocking_only ? 0 : atomic_load(&context->retired_tail);
    pthread_mutex_lock(&context->lock);
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->sibling) {
        uint64_t tail = atomic_load(&stream->tail);
        if (tail > end && (!blocking_only || stream_is_blocking(stream))) {
            end = tail;
        }
    }
    pthread_mutex_unlock(&context->lock);
    return end;
}

/* The legacy stream runs after all earlier work of the streams that synchronize with it. */
uint64_t stream_end(struct stream *stream) {
    return stream_is_legacy(stream) ? context_end(stream->context, true) : atomic_load(&stream->tail);
}

CUresult stream_settle(struct stream *stream) {
    if (deferred_is_worker()) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    CUresult result = capture_forbids(stream);
    if (result == CUDA_SUCCESS) {
        deferred_drain(stream);
        sim_engine_wait(&driver.process, stream->context->device->domain, stream_end(stream));
    }
    return result;
}

CUresult stream_wait(struct stream *stream) {
    CUresult result = stream_settle(stream);
    if (result == CUDA_SUCCESS) {
        pool_synchronized(stream->context->device);
    }
    return result;
}

CUresult context_wait(struct context *context) {
    if (deferred_is_worker()) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    CUresult result = capture_forbids_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    deferred_drain_context(context);
    sim_engine_wait(&driver.process, context->device->domain, context_end(context, false));
    pool_synchronized(context->device);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    return result == CUDA_SUCCESS ? stream_wait(stream) : result;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = capture_forbids(stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool done = !deferred_pending(stream) &&
                sim_engine_reached(&driver.process, stream->context->device->domain, stream_end(stream));
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Managed memory is one memory here, so attaching it to a stream changes nothing. */
CUresult CUDAAPI cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length, unsigned int flags) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool one = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE;
    return one && memory_bytes_at(address, length != 0 ? length : 1) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
