/* Memory of cuMemAlloc that was freed with cuMemFreeAsync: the GPU holds it until the stream gets there, and so long it
 * stays charged. An event behind the free tells. */
#include "charge.h"

#include <pthread.h>

#define MOST_LEAVING 256

struct leaving {
    CUevent event;
    struct table_entry entry;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct leaving list[MOST_LEAVING];
static size_t count;

/* Asking for an event would break a capture that this thread has begun elsewhere, if it were not told that we know. */
static CUstreamCaptureMode relax(CUstreamCaptureMode mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static bool mark(CUevent *event, CUstream stream, bool per_thread) {
    if (REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        return false;
    }
    CUresult result = per_thread ? REAL(cuEventRecord_ptsz)(*event, stream) : REAL(cuEventRecord)(*event, stream);
    if (result != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(*event);
    }
    return result == CUDA_SUCCESS;
}

static bool put(CUevent event, const struct table_entry *entry) {
    pthread_mutex_lock(&lock);
    bool fits = count < MOST_LEAVING;
    if (fits) {
        list[count++] = (struct leaving){event, *entry};
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

void deferred_free_add(const struct table_entry *entry, CUstream stream, bool per_thread) {
    CUevent event;
    CUstreamCaptureMode mode = relax(CU_STREAM_CAPTURE_MODE_RELAXED);
    bool marked = mark(&event, stream, per_thread);
    bool waiting = marked && REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY && put(event, entry);
    relax(mode);
    if (waiting) {
        pools_keep();
        return;
    }
    if (marked) { /* it is there already, or too many are not: waiting is dull but right */
        REAL(cuEventSynchronize)(event);
        REAL(cuEventDestroy_v2)(event);
    } else {
        (void)(per_thread ? REAL(cuStreamSynchronize_ptsz)(stream) : REAL(cuStreamSynchronize)(stream));
    }
    charge_entry_back(entry);
}

bool deferred_free_refresh(void) {
    bool changed = false;
    pthread_mutex_lock(&lock);
    bool relaxed = count > 0;
    CUstreamCaptureMode mode = relaxed ? relax(CU_STREAM_CAPTURE_MODE_RELAXED) : CU_STREAM_CAPTURE_MODE_RELAXED;
    for (size_t i = 0; i < count;) {
        if (REAL(cuEventQuery)(list[i].event) == CUDA_ERROR_NOT_READY) {
            i++;
            continue;
        }
        REAL(cuEventDestroy_v2)(list[i].event);
        charge_entry_back(&list[i].entry);
        list[i] = list[--count];
        changed = true;
    }
    if (relaxed) {
        relax(mode);
    }
    bool waiting = count > 0;
    pthread_mutex_unlock(&lock);
    if (waiting) {
        pools_keep();
    }
    return changed;
}

void deferred_free_forget(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count;) {
        if (list[i].entry.owner == (uint64_t)(uintptr_t)context) { /* its event is gone too */
            charge_entry_back(&list[i].entry);
            list[i] = list[--count];
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&lock);
}
