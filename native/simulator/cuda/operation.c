/* Operations: the one shape of all work on streams, done at once, deferred, or kept in a graph's node. */
#include "capture.h"
#include "deferred.h"
#include "event.h"

#include <stdlib.h>
#include <string.h>

/* Kinds that may have to wait even when nothing is before them. */
#define MAY_WAIT (1u << OPERATION_HOST | 1u << OPERATION_EVENT_WAIT | 1u << OPERATION_VALUES)

static CUresult launch(struct stream *stream, const struct operation *operation) {
    const struct function *function = operation->kernel.function;
    const struct device *device = stream->context->device;
    if (!object_is(function, KIND_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE; /* its module was unloaded */
    }
    const unsigned int *grid = operation->kernel.grid, *block = operation->kernel.block;
    void *unpacked[FUNCTION_MAX_ARGUMENTS], **arguments;
    CUresult result =
        function_arguments(function, operation->kernel.arguments, operation->kernel.extra, unpacked, &arguments);
    if (result == CUDA_SUCCESS) {
        result = function_compute(function, grid, block, arguments, NULL);
    }
    if (result == CUDA_SUCCESS) {
        uint64_t duration = function_duration_ns(function, device, grid, block, arguments);
        stream_extend(stream, sim_engine_submit(&driver.process, device->domain, duration));
    }
    return result;
}

static CUresult wait_for_event(struct stream *stream, const struct operation *operation) {
    struct event *event = (struct event *)operation->event.event;
    if (!object_is(event, KIND_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct event_mark mark = event_mark(event);
    if (operation->event.ticket == 0 && mark.ticket != 0 && event_is_point(event, stream, mark)) {
        stream_extend(stream, mark.point);
    }
    return CUDA_SUCCESS; /* a deferred wait is over when it comes here */
}

static CUresult record_event(struct stream *stream, const struct operation *operation) {
    struct event *event = (struct event *)operation->event.event;
    if (!object_is(event, KIND_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event_record(event, stream, operation->event.ticket != 0 ? operation->event.ticket : event_issue(event));
    return CUDA_SUCCESS;
}

static CUresult call_host(const struct operation *operation) {
    if (operation->host.callback != NULL) {
        operation->host.callback(operation->host.callback_stream, CUDA_SUCCESS, operation->host.data);
    } else {
        operation->host.function(operation->host.data);
    }
    return CUDA_SUCCESS;
}

CUresult operation_execute(struct stream *stream, const struct operation *operation) {
    switch (operation->kind) {
    case OPERATION_KERNEL:
        return launch(stream, operation);
    case OPERATION_COPY:
        return copy_execute(operation);
    case OPERATION_FILL:
        return fill_execute(operation);
    case OPERATION_HOST:
        return call_host(operation);
    case OPERATION_EVENT_RECORD:
        return record_event(stream, operation);
    case OPERATION_EVENT_WAIT:
        return wait_for_event(stream, operation);
    case OPERATION_ALLOCATE:
        return pool_charge_address(operation->memory.pool, operation->memory.address);
    case OPERATION_FREE:
        return memory_free(operation->memory.address);
    case OPERATION_VALUES:      /* done while it was looked whether they are ready */
    case OPERATION_CHILD_GRAPH: /* a launch goes through the child's nodes itself */
    case OPERATION_EMPTY:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult submit_with_attention(struct stream *stream, const struct operation *operation) {
    if (atomic_load(&stream->capture) != NULL) {
        return capture_add(stream, operation, NULL);
    }
    CUresult result = capture_forbids(stream);
    return result == CUDA_SUCCESS ? deferred_perform(stream, operation, true) : result;
}

CUresult stream_submit(struct stream *stream, const struct operation *operation) {
    if (__builtin_expect(atomic_load_explicit(&stream_attention, memory_order_acquire) == 0 &&
                             (MAY_WAIT >> operation->kind & 1) == 0,
                         1)) {
        return operation_execute(stream, operation);
    }
    return submit_with_attention(stream, operation);
}

CUresult operation_perform(struct stream *stream, const struct operation *operation) {
    bool simple = atomic_load(&stream_attention) == 0 && (MAY_WAIT >> operation->kind & 1) == 0;
    return simple ? operation_execute(stream, operation) : deferred_perform(stream, operation, false);
}

/* ---- operations that outlive the call ---- */

/* One piece of memory: the pointers, then the values they point to, each at a multiple of its own size. */
static CUresult copy_arguments(struct operation *operation) {
    const struct function *function = operation->kernel.function;
    void *unpacked[FUNCTION_MAX_ARGUMENTS], **arguments;
    CUresult result =
        function_arguments(function, operation->kernel.arguments, operation->kernel.extra, unpacked, &arguments);
    operation->kernel.arguments = operation->kernel.extra = NULL;
    if (result != CUDA_SUCCESS || arguments == NULL) {
        return result; /* an unknown kernel never reads its arguments */
    }
    size_t count = (size_t)function->argument_count, room = count * sizeof(void *);
    for (size_t i = 0; i < count; i++) {
        room += 2u * function->argument_sizes[i];
    }
    void **copied = malloc(room);
    if (copied == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    char *at = (char *)&copied[count];
    for (size_t i = 0; i < count; i++) {
        size_t size = function->argument_sizes[i];
        at += (size - (uintptr_t)at % size) % size;
        copied[i] = memcpy(at, arguments[i], size);
        at += size;
    }
    operation->kernel.arguments = copied;
    return CUDA_SUCCESS;
}

static CUresult copy_values(struct operation *operation) {
    size_t bytes = operation->values.count * sizeof operation->values.list[0];
    CUstreamBatchMemOpParams *list = malloc(bytes);
    if (list != NULL) {
        memcpy(list, operation->values.list, bytes);
    }
    operation->values.list = list;
    return list != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult operation_copy(struct operation *to, const struct operation *from) {
    *to = *from;
    switch (to->kind) {
    case OPERATION_KERNEL:
        return copy_arguments(to);
    case OPERATION_VALUES:
        return copy_values(to);
    default:
        return CUDA_SUCCESS;
    }
}

void operation_release(struct operation *operation) {
    if (operation->kind == OPERATION_KERNEL) {
        free(operation->kernel.arguments);
    } else if (operation->kind == OPERATION_VALUES) {
        free(operation->values.list);
    }
    operation->kind = OPERATION_EMPTY;
}
