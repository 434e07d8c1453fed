/* The calls that begin and end captures, and that ask about them. */
#include "capture_sequence.h"

/* ---- beginning and ending ---- */

static CUresult check_begin(CUstream handle, CUstreamCaptureMode mode, struct stream **stream) {
    CUresult result = stream_from(handle, stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((unsigned int)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream_is_legacy(*stream)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return atomic_load(&(*stream)->capture) == NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    struct stream *stream;
    struct graph *graph;
    graph_lock();
    CUresult result = check_begin(handle, mode, &stream);
    if (result == CUDA_SUCCESS) {
        result = graph_new(&graph);
    }
    if (result == CUDA_SUCCESS) {
        result = sequence_begin(stream, graph, false, mode);
        if (result != CUDA_SUCCESS) {
            graph_delete(graph);
        }
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle) {
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult check_nodes(const struct graph *graph, const CUgraphNode *nodes, size_t count) {
    bool valid = nodes != NULL || count == 0;
    for (size_t i = 0; valid && i < count; i++) {
        valid = object_is(nodes[i], KIND_NODE) && ((struct node *)nodes[i])->graph == graph;
    }
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode) {
    struct stream *stream;
    struct graph *graph;
    graph_lock();
    CUresult result = check_begin(handle, mode, &stream);
    if (result == CUDA_SUCCESS) {
        result = graph_from(graph_handle, &graph);
    }
    if (result == CUDA_SUCCESS) {
        result = graph->capturing ? CUDA_ERROR_INVALID_VALUE : check_nodes(graph, dependencies, count);
    }
    if (result == CUDA_SUCCESS) {
        result = sequence_begin(stream, graph, true, mode);
    }
    if (result == CUDA_SUCCESS && count != 0) {
        result = capture_add_nodes(atomic_load(&stream->capture), (struct node *const *)dependencies, data, count);
    }
    graph_unlock();
    return result;
}

/* Work of another member that the origin's last nodes do not depend on was never joined. */
static bool is_joined(const struct sequence *sequence, const struct capture *origin) {
    bool joined = graph_mark_before(sequence->graph, origin->nodes, origin->count);
    for (const struct capture *member = sequence->members; member != NULL; member = member->next) {
        for (size_t i = 0; i < member->count; i++) {
            joined = joined && member->nodes[i]->mark;
        }
    }
    return joined;
}

static CUresult end(struct stream *stream, CUgraph *graph) {
    struct capture *capture = atomic_load(&stream->capture);
    if (capture == NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    struct sequence *sequence = capture->sequence;
    if (sequence->origin != stream) {
        sequence->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (sequence->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(sequence->thread, pthread_self())) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    CUresult result = sequence->invalid              ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : !is_joined(sequence, capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                      : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        *graph = (CUgraph)sequence_end(sequence);
    } else {
        sequence_throw_away(sequence);
    }
    return result;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result == CUDA_SUCCESS && graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *graph = NULL;
    graph_lock();
    result = end(stream, graph);
    graph_unlock();
    return result;
}

/* ---- asking ---- */

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies, const CUgraphEdgeData **data,
                                           size_t *count) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result == CUDA_SUCCESS && status == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    graph_lock();
    if (stream_is_legacy(stream) && capture_in_context(stream->context, true, false)) {
        graph_unlock();
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const struct capture *capture = atomic_load(&stream->capture);
    const struct sequence *sequence = capture != NULL ? capture->sequence : NULL;
    *status = sequence == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
              : sequence->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    bool active = *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id != NULL && sequence != NULL) {
        *id = sequence->id;
    }
    if (graph != NULL && active) {
        *graph = (CUgraph)sequence->graph;
    }
    if (dependencies != NULL && active) {
        *dependencies = (CUgraphNode *)capture->nodes;
    }
    if (data != NULL && active) {
        *data = capture->data;
    }
    if (count != NULL && active) {
        *count = capture->count;
    }
    graph_unlock();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies, size_t *count) {
    return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, NULL, count);
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return cuStreamGetCaptureInfo_v3(handle, status, id, NULL, NULL, NULL, NULL);
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    return cuStreamGetCaptureInfo_v3(handle, status, NULL, NULL, NULL, NULL, NULL);
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies,
                                                      const CUgraphEdgeData *data, size_t count, unsigned int flags) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES && flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph_lock();
    struct capture *capture = atomic_load(&stream->capture);
    if (capture == NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->sequence->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else {
        result = check_nodes(capture->sequence->graph, dependencies, count);
    }
    if (result == CUDA_SUCCESS && flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        capture_set_nodes(capture, NULL, NULL, 0);
    }
    if (result == CUDA_SUCCESS) {
        result = capture_add_nodes(capture, (struct node *const *)dependencies, data, count);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, size_t count,
                                                   unsigned int flags) {
    return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, NULL, count, flags);
}
