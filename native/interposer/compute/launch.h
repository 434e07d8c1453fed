/* The way of a launch: what it will cost is predicted and paid for before the driver gets it, by waiting for a clock and
 * never for the GPU; what it did cost is seen for some launches, chosen at random, and corrects the debt. */
#ifndef GPUSLICE_LAUNCH_H
#define GPUSLICE_LAUNCH_H

#include "../cuda/charge.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

#define LAUNCH_WAITS 1u      /* may be delayed; without it the next launch pays */
#define LAUNCH_PER_THREAD 2u /* the default stream is the thread's own */

struct sample;

struct launch { /* one launch, from payment to the driver's answer */
    bool metered;
    bool per_thread;
    uint32_t gpu;
    uint64_t predicted_ns;
    CUstream stream;
    struct sample *sample; /* NULL: nobody looks how long it takes */
};

void launch_pay_metered(struct launch *launch, uint64_t key, CUstream stream, unsigned int flags);
CUresult launch_paid_metered(struct launch *launch, CUresult result);

/* Whether any GPU of this process's sessions has a share of its time to keep to. */
static inline bool launch_is_metered(void) {
    if (atomic_load_explicit(&session.state, memory_order_acquire) != SESSION_ATTACHED) {
        return false;
    }
    for (uint32_t gpu = 0; gpu < session.gpu_count; gpu++) {
        const struct session_gpu *share = &session.gpus[gpu];
        uint32_t percent = atomic_load_explicit(&share->page->control->gpus[share->index].core_percent, memory_order_relaxed);
        if (percent != 0 && percent < 100) {
            return true;
        }
    }
    return false;
}

static inline void launch_pay(struct launch *launch, uint64_t key, CUstream stream, unsigned int flags) {
    launch->metered = launch_is_metered();
    if (__builtin_expect(launch->metered, 0)) {
        launch_pay_metered(launch, key, stream, flags);
    }
}

static inline CUresult launch_paid(struct launch *launch, CUresult result) {
    return __builtin_expect(launch->metered, 0) ? launch_paid_metered(launch, result) : result;
}

/* What is expected to take equally long has the same key. */
static inline uint64_t launch_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t sum = a * 0x9e3779b97f4a7c15ull + b * 0xc2b2ae3d27d4eb4full + c * 0x165667b19e3779f9ull + d * 0xd6e8feb86659fd93ull;
    sum ^= sum >> 32;
    return (sum * 0xd6e8feb86659fd93ull) | 1u; /* 0 is no key */
}

static inline uint64_t launch_graph_key(CUgraphExec executable) {
    return launch_mix((uint64_t)(uintptr_t)executable, 0, 0, 1);
}

/* ---- samples.c: event pairs around launches, asked for later ---- */

/* Puts an event before the launch; NULL if no sample can be taken now. */
struct sample *sample_begin(const struct launch *launch, uint64_t key, uint32_t inverse_probability);
/* Puts an event behind it, or withdraws the sample of a launch that failed. */
void sample_end(struct sample *sample, const struct launch *launch, bool launched);
/* Asks for those that wait, and corrects debts by what was seen. Never waits for the GPU. */
void samples_collect(void);
/* The context may end: nothing asks for its events any more. What is not seen yet is charged by the clock. */
void samples_close(CUcontext context);
void samples_forget(void);

/* ---- costs.c: what was learned ---- */

struct cost {
    uint32_t nanoseconds;
    uint32_t inverse_probability; /* one launch in so many is looked at; 1: each */
};

struct cost cost_predict(uint64_t key);
void cost_learn(uint64_t key, uint64_t seen_ns);

/* ---- throttle.c ---- */

uint64_t clock_now_ns(void);
void launch_correct(uint32_t gpu, int64_t device_ns);

#pragma GCC visibility pop

#endif
