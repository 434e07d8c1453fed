/* Paying for a launch. Each thread collects a little predicted device time before it touches the session's word; then it
 * waits until the word lies in the past, in naps of a few milliseconds, so that a changed share holds at once. */
#define _GNU_SOURCE
#include "debt.h"
#include "launch.h"

#include <errno.h>

#define COLLECTED_NS 100000u     /* device time that a thread may owe unseen */
#define LONGEST_NAP_NS 5000000u
#define PLACE_NAP_NS 1000000l    /* all samples wait for the GPU: the queue is long */
#define PLACE_NAPS 20
#define UNSEEN_NS 5000000u       /* what a launch counts for that should have been looked at and could not */

static __thread struct {
    uint64_t owed_ns;
    uint32_t gpu; /* on which it is owed */
    uint32_t launches;
    uint64_t random;
} lane;

uint64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
           atomic_load_explicit(&session.clock_offset_ns, memory_order_relaxed);
}

static struct gpuslice_clock *clock_of(uint32_t gpu) {
    const struct session_gpu *share = &session.gpus[gpu];
    char *cells = (char *)share->page->cells;
    return (struct gpuslice_clock *)(cells + gpuslice_clocks_offset(share->page->gpu_count)) + share->index;
}

static uint32_t percent_of(uint32_t gpu) {
    const struct session_gpu *share = &session.gpus[gpu];
    uint32_t percent = atomic_load_explicit(&share->page->control->gpus[share->index].core_percent, memory_order_relaxed);
    return percent < 100 ? percent : 0;
}

void launch_correct(uint32_t gpu, int64_t device_ns) {
    struct gpuslice_clock *clock = clock_of(gpu);
    uint32_t percent = percent_of(gpu);
    atomic_fetch_add_explicit(&clock->device_ns, (uint64_t)device_ns, memory_order_relaxed);
    if (percent != 0) {
        debt_correct(&clock->paid_until, clock_now_ns(), percent, device_ns);
    }
}

static void nap(uint64_t nanoseconds) {
    int saved_errno = errno;
    nanosleep(&(struct timespec){.tv_nsec = (long)nanoseconds}, NULL);
    errno = saved_errno;
}

/* Waits until the session may go on, and charges what the thread owes. */
static void pay(uint32_t gpu, uint64_t device_ns, bool waits) {
    struct gpuslice_clock *clock = clock_of(gpu);
    uint64_t wait_ns, began = 0;
    uint32_t percent;
    samples_collect();
    while ((percent = percent_of(gpu)) != 0 && waits &&
           !debt_admit(&clock->paid_until, clock_now_ns(), percent, device_ns, &wait_ns)) {
        if (began == 0) {
            began = clock_now_ns();
            session_debug("GPU %u: a launch waits for the session's %u%% of the GPU's time (%llu us)", gpu, percent,
                          (unsigned long long)wait_ns / 1000u);
        }
        nap(wait_ns < LONGEST_NAP_NS ? wait_ns : LONGEST_NAP_NS);
        samples_collect();
    }
    if (percent != 0 && !waits) {
        debt_correct(&clock->paid_until, clock_now_ns(), percent, (int64_t)device_ns);
    }
    if (began != 0) {
        atomic_fetch_add_explicit(&clock->throttled_ns, clock_now_ns() - began, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&clock->device_ns, device_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&clock->launches, lane.launches, memory_order_relaxed);
    lane.launches = 0;
}

/* xorshift: what the tenant cannot foresee from its launches is random enough. */
static uint32_t random_below(uint32_t limit) {
    if (lane.random == 0) {
        lane.random = (clock_now_ns() * 0x9e3779b97f4a7c15ull ^ (uint64_t)(uintptr_t)&lane) | 1u;
    }
    lane.random ^= lane.random << 13;
    lane.random ^= lane.random >> 7;
    lane.random ^= lane.random << 17;
    return (uint32_t)((lane.random >> 32) * limit >> 32);
}

/* With one GPU there is nothing to ask. Otherwise the stream says which GPU works. */
static uint32_t gpu_of_stream(CUstream stream) {
    struct place place;
    CUcontext context;
    if (session.gpu_count == 1) {
        return 0;
    }
    bool other = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
                 REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    uint32_t gpu = place_of_current(&place) ? place.gpu : NO_GPU;
    if (other) {
        REAL(cuCtxPopCurrent_v2)(&context);
    }
    return gpu;
}

/* A launch into a graph runs later or never. What cannot be told is not touched either. */
static bool is_captured(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status;
    CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* All places are waiting: the GPU is far behind. A clock lets the launch go, whatever the GPU does. */
static struct sample *look(struct launch *launch, uint64_t key, uint32_t inverse_probability, bool waits) {
    struct sample *sample = sample_begin(launch, key, inverse_probability);
    for (int i = 0; sample == NULL && waits && i < PLACE_NAPS; i++) {
        nap(PLACE_NAP_NS);
        samples_collect();
        sample = sample_begin(launch, key, inverse_probability);
    }
    return sample;
}

void launch_pay_metered(struct launch *launch, uint64_t key, CUstream stream, unsigned int flags) {
    uint32_t gpu = gpu_of_stream(stream);
    bool per_thread = (flags & LAUNCH_PER_THREAD) != 0, waits = (flags & LAUNCH_WAITS) != 0;
    struct cost cost = cost_predict(key);
    bool looked_at = cost.inverse_probability <= 1 || random_below(cost.inverse_probability) == 0;
    *launch = (struct launch){.metered = gpu != NO_GPU, .per_thread = per_thread, .gpu = gpu,
                              .predicted_ns = cost.nanoseconds, .stream = stream};
    if (!launch->metered) {
        return;
    }
    bool is_due = looked_at || lane.gpu != gpu || lane.owed_ns + cost.nanoseconds >= COLLECTED_NS;
    if (is_due && is_captured(stream, per_thread)) {
        launch->metered = false;
        return;
    }
    lane.launches++;
    if (lane.gpu != gpu && lane.owed_ns != 0) {
        launch_correct(lane.gpu, (int64_t)lane.owed_ns);
        lane.owed_ns = 0;
    }
    lane.gpu = gpu;
    lane.owed_ns += cost.nanoseconds;
    if (is_due) {
        uint64_t owed = lane.owed_ns;
        lane.owed_ns = 0;
        pay(gpu, owed, waits);
    }
    if (looked_at && (launch->sample = look(launch, key, cost.inverse_probability, waits)) == NULL) {
        launch_correct(gpu, UNSEEN_NS * (int64_t)cost.inverse_probability);
    }
}

CUresult launch_paid_metered(struct launch *launch, CUresult result) {
    if (launch->sample != NULL) {
        sample_end(launch->sample, launch, result == CUDA_SUCCESS);
    }
    return result;
}
