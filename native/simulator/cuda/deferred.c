/* Deferred work. Data effects happen when a call is made, except where that would be wrong: a host function runs after the
 * stream's earlier work, a wait for a value or for an event of another device holds up its stream, and what comes behind
 * these in the same stream must not overtake them. Such work stands in its stream's queue; one thread, started with the
 * first of it, does what is ready. Nothing here is on the path of a program that uses none of these. */
#define _GNU_SOURCE
#include "deferred.h"
#include "event.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define SHORTEST_NAP_NS 20000
#define LONGEST_NAP_NS 1000000

struct deferred {
    struct deferred *next;
    uint64_t ticket; /* grows over all streams: who came first */
    struct operation operation;
    void *staged; /* the copy of pageable memory that the operation reads */
};

struct finalizer {
    struct finalizer *next;
    uint64_t ticket;
    CUhostFn function;
    void *data;
};

_Atomic uint32_t stream_attention;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;  /* for the worker: there is more to do */
static pthread_cond_t finished; /* for threads that wait: something was done */
static struct stream *deferring;  /* streams with deferred work */
static struct stream *running;    /* whose first operation is being done now */
static struct finalizer *finalizers, **last_finalizer = &finalizers;
static uint64_t next_ticket = 1;
static bool started;
static __thread bool is_worker;

bool deferred_is_worker(void) {
    return is_worker;
}

/* ---- order; everything here is under the lock ---- */

static bool older(const struct stream *stream, uint64_t ticket) {
    return stream->first_deferred != NULL && stream->first_deferred->ticket < ticket;
}

/* Is there deferred work older than the ticket that work of this stream comes behind? The legacy stream and the streams
 * that synchronize with it come behind each other. */
static bool behind(const struct stream *stream, uint64_t ticket) {
    struct context *context = stream->context;
    if (older(stream, ticket)) {
        return true;
    }
    if (!stream_is_legacy(stream)) {
        return stream_is_blocking(stream) && context->legacy_stream != NULL && older(context->legacy_stream, ticket);
    }
    bool found = false;
    pthread_mutex_lock(&context->lock);
    for (const struct stream *other = context->streams; other != NULL && !found; other = other->sibling) {
        found = stream_is_blocking(other) && older(other, ticket);
    }
    pthread_mutex_unlock(&context->lock);
    return found;
}

static struct event_mark mark_of(const struct operation *operation) {
    return (struct event_mark){.ticket = operation->event.ticket, .point = operation->event.point};
}

static bool is_ready(struct stream *stream) {
    struct deferred *item = stream->first_deferred;
    struct operation *operation = &item->operation;
    if (behind(stream, item->ticket)) {
        return false;
    }
    switch (operation->kind) {
    case OPERATION_HOST:
        return sim_engine_reached(&driver.process, stream->context->device->domain, stream_end(stream));
    case OPERATION_EVENT_WAIT:
        return !object_is(operation->event.event, KIND_EVENT) ||
               event_passed((struct event *)operation->event.event, mark_of(operation));
    case OPERATION_VALUES:
        return values_advance(operation);
    default:
        return true;
    }
}

/* ---- the worker ---- */

static void item_free(struct deferred *item) {
    operation_release(&item->operation);
    free(item->staged);
    free(item);
    atomic_fetch_sub(&stream_attention, 1);
}

static void leave_if_empty(struct stream *stream) {
    if (stream->first_deferred != NULL) {
        return;
    }
    stream->last_deferred = NULL;
    for (struct stream **link = &deferring; *link != NULL; link = &(*link)->next_deferring) {
        if (*link == stream) {
            *link = stream->next_deferring;
            break;
        }
    }
    if (stream->closing) {
        stream_free(stream);
    }
}

static bool run_one(void) {
    struct stream *stream = deferring;
    while (stream != NULL && !is_ready(stream)) {
        stream = stream->next_deferring;
    }
    if (stream == NULL) {
        return false;
    }
    struct deferred *item = stream->first_deferred;
    running = stream;
    pthread_mutex_unlock(&lock);
    operation_execute(stream, &item->operation);
    pthread_mutex_lock(&lock);
    running = NULL;
    stream->first_deferred = item->next;
    item_free(item);
    leave_if_empty(stream);
    pthread_cond_broadcast(&finished);
    return true;
}

static bool run_one_finalizer(void) {
    struct finalizer *first = finalizers;
    for (struct stream *stream = deferring; first != NULL && stream != NULL; stream = stream->next_deferring) {
        first = older(stream, first->ticket) ? NULL : first;
    }
    if (first == NULL) {
        return false;
    }
    finalizers = first->next;
    last_finalizer = finalizers == NULL ? &finalizers : last_finalizer;
    pthread_mutex_unlock(&lock);
    first->function(first->data);
    free(first);
    pthread_mutex_lock(&lock);
    return true;
}

/* Readiness depends on time or on memory that the program writes, so the worker looks for it in growing intervals. */
static void nap(long nanoseconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += nanoseconds;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&changed, &lock, &until);
}

static void *work(void *unused) {
    (void)unused;
    is_worker = true;
    long pause = SHORTEST_NAP_NS;
    pthread_mutex_lock(&lock);
    for (;;) {
        if (run_one() || run_one_finalizer()) {
            pause = SHORTEST_NAP_NS;
        } else if (deferring == NULL) {
            pthread_cond_wait(&changed, &lock);
        } else {
            nap(pause);
            pause = pause * 2 < LONGEST_NAP_NS ? pause * 2 : LONGEST_NAP_NS;
        }
    }
    return NULL;
}

/* Under the lock. The program's signals are not for this thread. */
static bool start(void) {
    if (started) {
        return true;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &monotonic);
    pthread_cond_init(&finished, NULL);
    pthread_condattr_destroy(&monotonic);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    started = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_detach(thread);
        pthread_setname_np(thread, "cuda-host");
    }
    return started;
}

/* ---- submitting ---- */

static bool is_pageable(const struct copy_end *end) {
    bool pointer = end->type == CU_MEMORYTYPE_HOST || end->type == CU_MEMORYTYPE_UNIFIED;
    return pointer && memory_bytes_at(end->device, 1) == NULL;
}

/* Reads the pageable source now, as the real driver does, and lets the copy continue from there. */
static CUresult stage(struct deferred *item) {
    struct operation *operation = &item->operation;
    size_t row = operation->copy.width_bytes, rows, bytes;
    if (__builtin_mul_overflow(operation->copy.height, operation->copy.depth, &rows) ||
        __builtin_mul_overflow(row, rows, &bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    item->staged = malloc(bytes != 0 ? bytes : 1);
    if (item->staged == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct copy_end middle = {.type = CU_MEMORYTYPE_HOST, .host = item->staged, .pitch = row,
                              .height = operation->copy.height};
    struct operation first = *operation;
    first.copy.to = middle;
    operation->copy.from = middle;
    return copy_execute(&first);
}

static CUresult prepare(struct deferred *item, const struct operation *operation, bool from_call) {
    CUresult result = operation_copy(&item->operation, operation);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct operation *own = &item->operation;
    struct event_mark mark;
    switch (own->kind) {
    case OPERATION_COPY:
        result = copy_check(own);
        return result == CUDA_SUCCESS && from_call && is_pageable(&own->copy.from) ? stage(item) : result;
    case OPERATION_FILL:
        return fill_check(own);
    case OPERATION_EVENT_RECORD:
        own->event.ticket = event_issue((struct event *)own->event.event);
        return CUDA_SUCCESS;
    case OPERATION_EVENT_WAIT:
        mark = event_mark((struct event *)own->event.event);
        own->event.ticket = mark.ticket;
        own->event.point = mark.point;
        return CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

/* Under the lock. */
static CUresult append(struct stream *stream, const struct operation *operation, bool from_call) {
    struct deferred *item = start() ? calloc(1, sizeof *item) : NULL;
    if (item == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_fetch_add(&stream_attention, 1);
    CUresult result = prepare(item, operation, from_call);
    if (result != CUDA_SUCCESS) {
        item_free(item);
        return result;
    }
    item->ticket = next_ticket++;
    if (stream->first_deferred == NULL) {
        stream->first_deferred = item;
        stream->next_deferring = deferring;
        deferring = stream;
    } else {
        stream->last_deferred->next = item;
    }
    stream->last_deferred = item;
    pthread_cond_signal(&changed);
    return CUDA_SUCCESS;
}

/* Must the operation itself wait, even with nothing before it? Waits for values are done as far as they are ready. */
static bool must_wait(const struct stream *stream, struct operation *operation) {
    switch (operation->kind) {
    case OPERATION_HOST:
        return true;
    case OPERATION_EVENT_WAIT: {
        struct event *event = (struct event *)operation->event.event;
        struct event_mark mark = event_mark(event);
        return !event_is_point(event, stream, mark) && !event_passed(event, mark);
    }
    case OPERATION_VALUES:
        return !values_advance(operation);
    default:
        return false;
    }
}

CUresult deferred_perform(struct stream *stream, const struct operation *operation, bool from_call) {
    struct operation rest = *operation;
    pthread_mutex_lock(&lock);
    if (!behind(stream, UINT64_MAX) && !must_wait(stream, &rest)) {
        pthread_mutex_unlock(&lock);
        return operation_execute(stream, &rest);
    }
    CUresult result;
    if (from_call && rest.kind == OPERATION_COPY && is_pageable(&rest.copy.to)) {
        /* The real driver, too, comes back from such a copy only when it is done. */
        pthread_mutex_unlock(&lock);
        if (is_worker) {
            return CUDA_ERROR_NOT_PERMITTED;
        }
        deferred_drain(stream);
        return operation_execute(stream, &rest);
    }
    result = append(stream, &rest, from_call);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- waiting and ending ---- */

bool deferred_pending(struct stream *stream) {
    if (atomic_load(&stream_attention) == 0) {
        return false;
    }
    pthread_mutex_lock(&lock);
    bool pending = behind(stream, UINT64_MAX);
    pthread_mutex_unlock(&lock);
    return pending;
}

void deferred_drain(struct stream *stream) {
    if (atomic_load(&stream_attention) == 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    while (behind(stream, UINT64_MAX)) {
        pthread_cond_wait(&finished, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static bool context_has_deferred(const struct context *context) {
    const struct stream *stream = deferring;
    while (stream != NULL && stream->context != context) {
        stream = stream->next_deferring;
    }
    return stream != NULL;
}

void deferred_drain_context(struct context *context) {
    if (atomic_load(&stream_attention) == 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    while (context_has_deferred(context)) {
        pthread_cond_wait(&finished, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* Under the lock: all but what runs. */
static void drop_waiting(struct stream *stream) {
    struct deferred **link = stream == running ? &stream->first_deferred->next : &stream->first_deferred;
    struct deferred *item = *link;
    *link = NULL;
    stream->last_deferred = stream->first_deferred;
    while (item != NULL) {
        struct deferred *next = item->next;
        item_free(item);
        item = next;
    }
}

void deferred_discard(struct context *context) {
    pthread_mutex_lock(&lock);
    for (struct stream *stream = deferring, *next; stream != NULL; stream = next) {
        next = stream->next_deferring;
        if (stream->context == context) {
            drop_waiting(stream);
            leave_if_empty(stream);
        }
    }
    while (context_has_deferred(context) && !is_worker) {
        pthread_cond_wait(&finished, &lock);
    }
    pthread_mutex_unlock(&lock);
}

bool deferred_close(struct stream *stream) {
    pthread_mutex_lock(&lock);
    stream->closing = stream->first_deferred != NULL;
    bool closing = stream->closing;
    pthread_mutex_unlock(&lock);
    return closing;
}

void deferred_finalize(CUhostFn function, void *data) {
    struct finalizer *finalizer = NULL;
    pthread_mutex_lock(&lock);
    if (deferring != NULL) {
        finalizer = malloc(sizeof *finalizer);
    }
    if (finalizer != NULL) {
        *finalizer = (struct finalizer){.ticket = next_ticket++, .function = function, .data = data};
        *last_finalizer = finalizer;
        last_finalizer = &finalizer->next;
    }
    pthread_mutex_unlock(&lock);
    if (finalizer == NULL) {
        function(data);
    }
}
