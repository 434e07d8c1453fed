/* Work that cannot be done when it is submitted: host functions, waits for a value in memory, waits for an event of
 * another device or process, and everything that comes behind one of these in its stream. See deferred.c. */
#ifndef GPUSLICE_SIMULATOR_DEFERRED_H
#define GPUSLICE_SIMULATOR_DEFERRED_H

#include "driver.h"

/* Does the operation, or defers it when it or something before it in its stream has to wait. `from_call`: memory of the
 * caller that is only promised until the call returns (pageable memory) is read or written before it does. */
CUresult deferred_perform(struct stream *stream, const struct operation *operation, bool from_call);
/* Is anything of the stream deferred? The legacy stream answers for all streams that synchronize with it. */
bool deferred_pending(struct stream *stream);
/* Waits until nothing is. */
void deferred_drain(struct stream *stream);
void deferred_drain_context(struct context *context);
/* A context goes: drops its deferred work, waiting for what runs just now. */
void deferred_discard(struct context *context);
/* A destroyed stream: true when it still has deferred work, and will be freed when that is done. */
bool deferred_close(struct stream *stream);
/* Calls the function when everything that is deferred now is done: at once when nothing is. */
void deferred_finalize(CUhostFn function, void *data);
/* Is this a host function's thread? Waiting there would wait for itself. */
bool deferred_is_worker(void);

/* operation.c: a copy that owns what the caller only lent (kernel arguments, lists of values), and its end. */
CUresult operation_copy(struct operation *to, const struct operation *from);
void operation_release(struct operation *operation);
/* What stream_submit does, for the nodes of a graph: whether the stream captures was settled before. */
CUresult operation_perform(struct stream *stream, const struct operation *operation);
/* stream_value.c: does them up to the first wait that is not satisfied; true when all are done. */
bool values_advance(struct operation *operation);
CUresult values_check(const CUstreamBatchMemOpParams *list, unsigned int count, unsigned int flags);

/* stream.c: the point at which all that the stream has to wait for is done; closing a stream that has nothing left. */
uint64_t stream_end(struct stream *stream);
void stream_free(struct stream *stream);
/* Waits for the stream's work, as synchronous copies do: unlike stream_wait it does not let pools shrink. */
CUresult stream_settle(struct stream *stream);
static inline bool stream_is_blocking(const struct stream *stream) {
    return (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}
static inline bool stream_is_legacy(const struct stream *stream) {
    return stream == stream->context->legacy_stream;
}

/* copy.c: checks a copy or a fill; checks and does it, now. */
CUresult copy_check(const struct operation *operation);
CUresult fill_check(const struct operation *operation);
CUresult copy_execute(const struct operation *operation);
CUresult fill_execute(const struct operation *operation);
/* copy_calls.c: the driver's own description of a copy as an operation, and back. */
struct operation copy_from_3d(const CUDA_MEMCPY3D *description);
CUDA_MEMCPY3D copy_to_3d(const struct operation *operation);

#endif
