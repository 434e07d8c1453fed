/* Samples: two events around a launch, and the time between them, asked for at some later launch. The tenant's streams are
 * never synchronized. Time between two events contains what the GPU gave to other processes meanwhile, so beside busy
 * neighbours a launch counts for more than it took: a share is never exceeded for it, and may not be reached.
 *
 * A place is FREE, TAKEN by the one thread that works on it, or WAITING for the GPU. There is no lock. */
#include "launch.h"

#include <sched.h>

#define PLACES 64

enum place_state { PLACE_FREE, PLACE_TAKEN, PLACE_WAITING };

struct sample {
    _Atomic int state;
    _Atomic(CUcontext) context; /* of the events; NULL: it has none */
    CUevent before, after;
    uint32_t gpu, inverse_probability;
    uint64_t key, predicted_ns, begun_ns;
};

static struct sample places[PLACES];

/* Asking for an event would break a capture that this thread has begun elsewhere, if the driver were not told that we
 * know about the capture. */
static CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static bool take(struct sample *place, int state) {
    return atomic_compare_exchange_strong(&place->state, &state, PLACE_TAKEN);
}

static void leave(struct sample *place, int state) {
    atomic_store(&place->state, state);
}

/* ---- taking ---- */

static CUresult record(CUevent event, const struct launch *launch) {
    return launch->per_thread ? REAL(cuEventRecord_ptsz)(event, launch->stream)
                              : REAL(cuEventRecord)(event, launch->stream);
}

static bool is_default_stream(CUstream stream) {
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    CUresult result = is_default_stream(stream) ? REAL(cuCtxGetCurrent)(&context) : REAL(cuStreamGetCtx)(stream, &context);
    return result == CUDA_SUCCESS ? context : NULL;
}

static void drop_events(struct sample *place) {
    if (atomic_load(&place->context) != NULL) {
        REAL(cuEventDestroy_v2)(place->before);
        REAL(cuEventDestroy_v2)(place->after);
        atomic_store(&place->context, NULL);
    }
}

static bool make_events(struct sample *place, CUcontext context) {
    drop_events(place);
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
        return false;
    }
    bool made = REAL(cuEventCreate)(&place->before, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
    if (made && REAL(cuEventCreate)(&place->after, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(place->before);
        made = false;
    }
    CUcontext popped;
    REAL(cuCtxPopCurrent_v2)(&popped);
    atomic_store(&place->context, made ? context : NULL);
    return made;
}

/* A free place, with events of the context if there is one. */
static struct sample *take_place(CUcontext context) {
    for (int i = 0; i < PLACES; i++) {
        if (atomic_load(&places[i].context) == context && take(&places[i], PLACE_FREE)) {
            if (atomic_load(&places[i].context) == context) {
                return &places[i];
            }
            leave(&places[i], PLACE_FREE);
        }
    }
    for (int i = 0; i < PLACES; i++) {
        if (take(&places[i], PLACE_FREE)) {
            if (make_events(&places[i], context)) {
                return &places[i];
            }
            leave(&places[i], PLACE_FREE);
            return NULL;
        }
    }
    return NULL;
}

struct sample *sample_begin(const struct launch *launch, uint64_t key, uint32_t inverse_probability) {
    CUcontext context = context_of(launch->stream);
    CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    struct sample *sample = context != NULL ? take_place(context) : NULL;
    if (sample != NULL && record(sample->before, launch) != CUDA_SUCCESS) {
        leave(sample, PLACE_FREE);
        sample = NULL;
    }
    exchange_capture_mode(mode);
    if (sample != NULL) {
        sample->gpu = launch->gpu;
        sample->key = key;
        sample->predicted_ns = launch->predicted_ns;
        sample->inverse_probability = inverse_probability;
        sample->begun_ns = clock_now_ns();
    }
    return sample;
}

void sample_end(struct sample *sample, const struct launch *launch, bool launched) {
    CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    bool recorded = launched && record(sample->after, launch) == CUDA_SUCCESS;
    exchange_capture_mode(mode);
    leave(sample, recorded ? PLACE_WAITING : PLACE_FREE);
}

/* ---- asking ---- */

/* What is seen of one launch counts for all like it that nobody looked at. */
static void account(const struct sample *sample, uint64_t seen_ns) {
    cost_learn(sample->key, seen_ns);
    int64_t difference = (int64_t)seen_ns - (int64_t)sample->predicted_ns;
    launch_correct(sample->gpu, difference * (int64_t)sample->inverse_probability);
}

/* True when the place is done with. */
static bool ask(const struct sample *sample) {
    float milliseconds;
    CUresult result = REAL(cuEventQuery)(sample->after);
    if (result == CUDA_ERROR_NOT_READY) {
        return false;
    }
    if (result == CUDA_SUCCESS) {
        result = REAL(cuEventElapsedTime)(&milliseconds, sample->before, sample->after);
    }
    if (result == CUDA_SUCCESS && milliseconds >= 0) {
        account(sample, (uint64_t)((double)milliseconds * 1e6));
    } else {
        account(sample, clock_now_ns() - sample->begun_ns);
    }
    return true;
}

void samples_collect(void) {
    CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 0; i < PLACES; i++) {
        if (atomic_load_explicit(&places[i].state, memory_order_relaxed) == PLACE_WAITING &&
            take(&places[i], PLACE_WAITING)) {
            leave(&places[i], ask(&places[i]) ? PLACE_FREE : PLACE_WAITING);
        }
    }
    exchange_capture_mode(mode);
}

/* ---- ends ---- */

void samples_close(CUcontext context) {
    for (int i = 0; i < PLACES; i++) {
        struct sample *place = &places[i];
        while (context != NULL && atomic_load(&place->context) == context) {
            bool waiting = take(place, PLACE_WAITING);
            if (!waiting && !take(place, PLACE_FREE)) {
                sched_yield(); /* another thread asks for it just now */
                continue;
            }
            if (waiting && !ask(place)) {
                account(place, clock_now_ns() - place->begun_ns);
            }
            drop_events(place);
            leave(place, PLACE_FREE);
        }
    }
}

void samples_forget(void) {
    for (int i = 0; i < PLACES; i++) {
        atomic_store(&places[i].context, NULL);
        atomic_store(&places[i].state, PLACE_FREE);
    }
}
