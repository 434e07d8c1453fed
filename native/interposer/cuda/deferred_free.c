/* Memory of cuMemAlloc that was freed with cuMemFreeAsync: the GPU holds it until the stream gets there, and it stays
 * charged until then. An event behind the free tells when. The driver is asked while no lock is held. */
#include "charge.h"

#include <pthread.h>
#include <string.h>

#define MOST_DEFERRED 256

struct deferred_free {
    _Atomic(CUevent) event; /* NULL: the place is free */
    unsigned int questions; /* about the event, in flight */
    bool given_back;        /* by one thread, while others may still ask */
    unsigned int closing;   /* calls in flight that may destroy its context: nothing asks */
    struct table_entry entry;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;
static struct deferred_free list[MOST_DEFERRED];
static _Atomic size_t count;

/* Asking for an event would break a capture that this thread has begun elsewhere, if the driver were not told that we
 * know about the capture. */
static CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static bool record_event(CUevent *event, CUstream stream, bool per_thread) {
    if (REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        return false;
    }
    CUresult result = per_thread ? REAL(cuEventRecord_ptsz)(*event, stream) : REAL(cuEventRecord)(*event, stream);
    if (result != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(*event);
    }
    return result == CUDA_SUCCESS;
}

static bool add(CUevent event, const struct table_entry *entry) {
    bool added = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_DEFERRED && !added; i++) {
        if (list[i].event == NULL) {
            list[i].given_back = false;
            list[i].closing = 0;
            list[i].entry = *entry;
            list[i].event = event;
            atomic_fetch_add(&count, 1);
            added = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return added;
}

void deferred_free_add(const struct table_entry *entry, CUstream stream, bool per_thread) {
    CUevent event;
    CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    bool recorded = record_event(&event, stream, per_thread);
    bool waiting = recorded && REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY && add(event, entry);
    exchange_capture_mode(mode);
    if (waiting) {
        pools_keep();
        return;
    }
    if (recorded) { /* the stream is there already, or too many frees wait: waiting is slow but right */
        REAL(cuEventSynchronize)(event);
        REAL(cuEventDestroy_v2)(event);
    } else {
        (void)(per_thread ? REAL(cuStreamSynchronize_ptsz)(stream) : REAL(cuStreamSynchronize)(stream));
    }
    charge_entry_back(entry);
}

/* ---- asking ---- */

static CUevent begin_question(struct deferred_free *deferred) {
    CUevent event = NULL;
    pthread_mutex_lock(&lock);
    if (deferred->event != NULL && !deferred->given_back && deferred->closing == 0) {
        event = deferred->event;
        deferred->questions++;
    }
    pthread_mutex_unlock(&lock);
    return event;
}

/* Under the lock. */
static void release_place(struct deferred_free *deferred) {
    deferred->event = NULL;
    atomic_fetch_sub(&count, 1);
}

/* True if this answer gave the memory back. The last thread that asked destroys the event; its question ends only then,
 * so that the event's context is still there. */
static bool end_question(struct deferred_free *deferred, CUevent event, bool freed) {
    pthread_mutex_lock(&lock);
    bool first = freed && !deferred->given_back;
    if (first) {
        deferred->given_back = true;
        charge_entry_back(&deferred->entry);
    }
    bool last = deferred->given_back && deferred->questions == 1;
    if (last) {
        pthread_mutex_unlock(&lock);
        REAL(cuEventDestroy_v2)(event);
        pthread_mutex_lock(&lock);
        release_place(deferred);
    }
    deferred->questions--;
    pthread_cond_broadcast(&answered);
    pthread_mutex_unlock(&lock);
    return first;
}

bool deferred_free_refresh(void) {
    if (atomic_load(&count) == 0) {
        return false;
    }
    bool changed = false;
    CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    for (size_t i = 0; i < MOST_DEFERRED; i++) {
        CUevent event = list[i].event != NULL ? begin_question(&list[i]) : NULL;
        if (event != NULL) {
            changed |= end_question(&list[i], event, REAL(cuEventQuery)(event) != CUDA_ERROR_NOT_READY);
        }
    }
    exchange_capture_mode(mode);
    if (atomic_load(&count) != 0) {
        pools_keep();
    }
    return changed;
}

/* ---- contexts that end ---- */

static bool belongs_to(const struct deferred_free *deferred, CUcontext context) {
    return deferred->event != NULL && deferred->entry.owner == (uint64_t)(uintptr_t)context;
}

void deferred_free_begin_teardown(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_DEFERRED; i++) {
        list[i].closing += belongs_to(&list[i], context);
        while (list[i].closing != 0 && list[i].questions != 0) {
            pthread_cond_wait(&answered, &lock);
        }
    }
    pthread_mutex_unlock(&lock);
}

void deferred_free_end_teardown(CUcontext context, bool destroyed) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_DEFERRED; i++) {
        if (!belongs_to(&list[i], context)) {
            continue;
        }
        list[i].closing -= list[i].closing != 0; /* one that was added meanwhile was not counted */
        if (destroyed) { /* and its event with it */
            charge_entry_back(&list[i].entry);
            release_place(&list[i]);
        }
    }
    pthread_mutex_unlock(&lock);
}

void deferred_free_forget(void) {
    memset(list, 0, sizeof list);
    atomic_store(&count, 0);
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    answered = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
