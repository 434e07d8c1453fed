/* Capturing: a stream that records into a graph instead of working. Streams that wait for an event of a capturing stream
 * become part of the capture; all of them must be joined again before it ends. Everything is under the graph lock. */
#include "capture.h"
#include "capture_sequence.h"
#include "event.h"

#include <stdlib.h>
#include <string.h>

static struct sequence *sequences;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- what a stream's next node depends on ---- */

void capture_set_nodes(struct capture *capture, struct node **nodes, CUgraphEdgeData *data, size_t count) {
    free(capture->nodes);
    free(capture->data);
    capture->nodes = nodes;
    capture->data = data;
    capture->count = count;
}

CUresult capture_add_nodes(struct capture *capture, struct node *const *nodes, const CUgraphEdgeData *data, size_t count) {
    struct node **more = realloc(capture->nodes, (capture->count + count + 1) * sizeof *more);
    capture->nodes = more != NULL ? more : capture->nodes;
    CUgraphEdgeData *more_data = realloc(capture->data, (capture->count + count + 1) * sizeof *more_data);
    capture->data = more_data != NULL ? more_data : capture->data;
    if (more == NULL || more_data == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < capture->count && capture->nodes[at] != nodes[i]) {
            at++;
        }
        if (at == capture->count) {
            capture->nodes[at] = nodes[i];
            capture->data[at] = data != NULL ? data[i] : (CUgraphEdgeData){0};
            capture->count++;
        }
    }
    return CUDA_SUCCESS;
}

/* ---- joining and ending ---- */

static struct sequence *find_sequence(uint64_t id) {
    struct sequence *sequence = sequences;
    while (sequence != NULL && sequence->id != id) {
        sequence = sequence->next;
    }
    return sequence;
}

static struct capture *join(struct sequence *sequence, struct stream *stream) {
    struct capture *capture = calloc(1, sizeof *capture);
    if (capture != NULL) {
        *capture = (struct capture){.next = sequence->members, .sequence = sequence, .stream = stream};
        sequence->members = capture;
        atomic_store(&stream->capture, capture);
    }
    return capture;
}

static void leave(struct capture *capture) {
    struct capture **link = &capture->sequence->members;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    atomic_store(&capture->stream->capture, NULL);
    capture_set_nodes(capture, NULL, NULL, 0);
    free(capture);
}

CUresult sequence_begin(struct stream *stream, struct graph *graph, bool existing, CUstreamCaptureMode mode) {
    static uint64_t next_id = 1;
    struct sequence *sequence = calloc(1, sizeof *sequence);
    if (sequence == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *sequence = (struct sequence){.next = sequences, .id = next_id, .graph = graph, .into_existing = existing,
                                  .mode = mode, .thread = pthread_self(), .origin = stream};
    if (join(sequence, stream) == NULL) {
        free(sequence);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    next_id++;
    sequences = sequence;
    graph->capturing = true;
    atomic_fetch_add(&stream_attention, 1);
    return CUDA_SUCCESS;
}

struct graph *sequence_end(struct sequence *sequence) {
    while (sequence->members != NULL) {
        leave(sequence->members);
    }
    struct sequence **link = &sequences;
    while (*link != sequence) {
        link = &(*link)->next;
    }
    *link = sequence->next;
    struct graph *graph = sequence->graph;
    graph->capturing = false;
    free(sequence);
    atomic_fetch_sub(&stream_attention, 1);
    return graph;
}

void sequence_throw_away(struct sequence *sequence) {
    bool keep = sequence->into_existing;
    struct graph *graph = sequence_end(sequence);
    if (!keep) {
        graph_delete(graph);
    }
}

void capture_abandon(struct stream *stream) {
    if (atomic_load(&stream->capture) == NULL) {
        return;
    }
    graph_lock();
    struct capture *capture = atomic_load(&stream->capture);
    if (capture != NULL && capture->sequence->origin == stream) {
        sequence_throw_away(capture->sequence);
    } else if (capture != NULL) {
        capture->sequence->invalid = true;
        leave(capture);
    }
    graph_unlock();
}

/* ---- what a capture does not allow ---- */

bool capture_in_context(const struct context *context, bool blocking_only, bool invalidate) {
    bool found = false;
    for (struct sequence *sequence = sequences; sequence != NULL; sequence = sequence->next) {
        for (struct capture *member = sequence->members; member != NULL; member = member->next) {
            if (member->stream->context == context && (!blocking_only || stream_is_blocking(member->stream))) {
                sequence->invalid |= invalidate;
                found = true;
            }
        }
    }
    return found;
}

CUresult capture_forbids(struct stream *stream) {
    if (atomic_load(&stream_attention) == 0) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    graph_lock();
    struct capture *capture = atomic_load(&stream->capture);
    if (capture != NULL) {
        capture->sequence->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream_is_legacy(stream) && capture_in_context(stream->context, true, true)) {
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    graph_unlock();
    return result;
}

CUresult capture_forbids_context(struct context *context) {
    if (atomic_load(&stream_attention) == 0) {
        return CUDA_SUCCESS;
    }
    graph_lock();
    bool found = capture_in_context(context, false, true);
    graph_unlock();
    return found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static bool concerns_thread(const struct sequence *sequence) {
    if (sequence->mode == CU_STREAM_CAPTURE_MODE_RELAXED || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    return pthread_equal(sequence->thread, pthread_self()) ||
           (sequence->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_check(void) {
    if (atomic_load_explicit(&stream_attention, memory_order_acquire) == 0) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    graph_lock();
    for (struct sequence *sequence = sequences; sequence != NULL; sequence = sequence->next) {
        if (concerns_thread(sequence)) {
            sequence->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode == NULL || (unsigned int)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- recording ---- */

static CUresult add_node(struct capture *capture, const struct operation *operation, struct node **made) {
    struct sequence *sequence = capture->sequence;
    struct node *node;
    if (sequence->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    CUresult result = node_check(operation);
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
        sequence->invalid = true;
    }
    struct node **last = result == CUDA_SUCCESS ? malloc(sizeof(struct node *)) : NULL;
    CUgraphEdgeData *data = result == CUDA_SUCCESS ? calloc(1, sizeof *data) : NULL;
    if (result == CUDA_SUCCESS) {
        result = last != NULL && data != NULL
                     ? node_new(sequence->graph, operation, capture->nodes, capture->data, capture->count, &node)
                     : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        free(last);
        free(data);
        return result;
    }
    last[0] = node;
    capture_set_nodes(capture, last, data, 1);
    *made = node;
    return CUDA_SUCCESS;
}

CUresult capture_add(struct stream *stream, const struct operation *operation, CUdeviceptr *address) {
    struct node *node;
    graph_lock();
    struct capture *capture = atomic_load(&stream->capture);
    CUresult result = capture != NULL ? add_node(capture, operation, &node) : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (result == CUDA_SUCCESS && address != NULL) {
        *address = node->operation.memory.address;
    }
    graph_unlock();
    return result;
}

static void forget(struct event *event) {
    free(event->captured_nodes);
    event->captured_nodes = NULL;
    event->captured_count = 0;
    atomic_store(&event->captured, 0);
}

void capture_forget_event(struct event *event) {
    if (atomic_load(&event->captured) != 0) {
        graph_lock();
        forget(event);
        graph_unlock();
    }
}

/* The event now stands for the stream's last nodes. */
static CUresult remember(struct event *event, const struct capture *capture) {
    struct node **nodes = malloc((capture->count + 1) * sizeof *nodes);
    if (nodes == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (capture->count != 0) {
        memcpy(nodes, capture->nodes, capture->count * sizeof *nodes);
    }
    forget(event);
    event->captured_nodes = nodes;
    event->captured_count = capture->count;
    atomic_store(&event->captured, capture->sequence->id);
    return CUDA_SUCCESS;
}

static bool concerns_capture(const struct stream *stream, const struct event *event) {
    return atomic_load(&stream->capture) != NULL || atomic_load(&event->captured) != 0;
}

CUresult capture_record_event(struct stream *stream, struct event *event, bool external, bool *handled) {
    *handled = false;
    if (!concerns_capture(stream, event)) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    struct node *node;
    graph_lock();
    struct capture *capture = atomic_load(&stream->capture);
    *handled = capture != NULL;
    if (capture == NULL) {
        forget(event);
    } else if (capture->sequence->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (external) {
        struct operation operation = {.kind = OPERATION_EVENT_RECORD, .event = {.event = (CUevent)event}};
        result = add_node(capture, &operation, &node);
    } else {
        result = remember(event, capture);
    }
    graph_unlock();
    return result;
}

static CUresult follow(struct stream *stream, struct capture *capture, struct event *event) {
    struct sequence *sequence = find_sequence(atomic_load(&event->captured));
    if (sequence == NULL) {
        return CUDA_ERROR_CAPTURED_EVENT; /* that capture is over */
    }
    if (sequence->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (capture != NULL && capture->sequence != sequence) {
        capture->sequence->invalid = sequence->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream_is_legacy(stream)) {
        sequence->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    capture = capture != NULL ? capture : join(sequence, stream);
    return capture != NULL ? capture_add_nodes(capture, event->captured_nodes, NULL, event->captured_count)
                           : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A capturing stream waits for an event from outside, which is not part of the graph. */
static CUresult wait_for_outside(struct capture *capture, const struct event *event) {
    if (capture->sequence->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (event_mark(event).ticket == 0) {
        return CUDA_SUCCESS; /* never recorded: nothing to wait for */
    }
    capture->sequence->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

CUresult capture_wait_event(struct stream *stream, struct event *event, bool external, bool *handled) {
    *handled = concerns_capture(stream, event);
    if (!*handled) {
        return CUDA_SUCCESS;
    }
    CUresult result;
    struct node *node;
    graph_lock();
    struct capture *capture = atomic_load(&stream->capture);
    if (capture != NULL && external) {
        struct operation operation = {.kind = OPERATION_EVENT_WAIT, .event = {.event = (CUevent)event}};
        result = add_node(capture, &operation, &node);
    } else if (atomic_load(&event->captured) != 0) {
        result = follow(stream, capture, event);
    } else {
        result = capture != NULL ? wait_for_outside(capture, event) : CUDA_SUCCESS;
        *handled = capture != NULL;
    }
    graph_unlock();
    return result;
}
