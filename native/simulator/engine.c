/* Device time: see engine.h for the idea. */
#define _GNU_SOURCE
#include "engine.h"

#include <sched.h>
#include <time.h>

#define WINDOW_NS 1000000000ull
/* The coarse clock may stand still for a tick; a queue longer than this cannot have drained meanwhile. */
#define COARSE_SLACK_NS 16000000ull
#define SPIN_NS 80000ull /* sleeping is not more precise than this */

/* (time << shift) - progress at the last evaluation by this process. Progress cannot run faster than time, so
 * while `time << shift < anchor + finish` the own queue is certainly not empty, and adding to it needs no lock. */
static _Atomic uint64_t anchors[SIM_MAX_DOMAINS];

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t sim_clock_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

/* ---- the engine's lock: a dead holder is found by its slot, and its half-done work is in the state not yet current ---- */

static void lock_engine(struct sim_process *process, struct sim_engine *engine) {
    for (unsigned spins = 1;; spins++) {
        uint32_t holder = 0;
        if (atomic_compare_exchange_weak(&engine->lock, &holder, process->slot + 1)) {
            return;
        }
        if (spins % 64 == 0) {
            sched_yield();
        }
        if (spins % 4096 == 0 && holder != 0 && !sim_slot_alive(process, holder - 1, NULL)) {
            if (atomic_compare_exchange_strong(&engine->lock, &holder, process->slot + 1)) {
                return;
            }
        }
    }
}

static void unlock_engine(struct sim_engine *engine) {
    atomic_store(&engine->lock, 0);
}

static struct sim_engine_state load_state(const struct sim_engine *engine) {
    return engine->states[atomic_load(&engine->current)];
}

static void commit_state(struct sim_engine *engine, const struct sim_engine_state *state) {
    uint32_t next = 1 - atomic_load(&engine->current);
    engine->states[next] = *state;
    atomic_store(&engine->current, next);
    atomic_store(&engine->progress, state->progress);
}

/* ---- which slots are busy ---- */

static void mark_active(struct sim_engine *engine, uint32_t slot) {
    atomic_fetch_or(&engine->active[slot / 64], 1ull << (slot % 64));
    atomic_fetch_or(&engine->active_summary[slot / 4096], 1ull << (slot / 64 % 64));
}

struct busy {
    uint32_t count;
    uint64_t nearest; /* the smallest finish among them */
};

typedef void (*visit_function)(struct sim_work *work, const struct sim_engine_state *state);

/* Visits the busy slots, forgetting those that are done. */
static struct busy look_at_busy(struct sim_process *process, uint32_t domain, const struct sim_engine_state *state,
                                visit_function visit) {
    struct sim_engine *engine = &process->machine->engines[domain];
    struct busy busy = {0, UINT64_MAX};
    for (uint32_t group = 0; group < SIM_MAX_SLOTS / 4096; group++) {
        for (uint64_t words = atomic_load(&engine->active_summary[group]); words != 0; words &= words - 1) {
            uint32_t word = group * 64 + (uint32_t)__builtin_ctzll(words);
            uint64_t bits = atomic_load(&engine->active[word]);
            if (bits == 0) {
                atomic_fetch_and(&engine->active_summary[group], ~(words & -words));
            }
            for (; bits != 0; bits &= bits - 1) {
                uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
                struct sim_work *work = &process->machine->slots[slot].work[domain];
                if (visit != NULL) {
                    visit(work, state);
                }
                uint64_t finish = atomic_load(&work->finish);
                if (finish <= state->progress) {
                    atomic_fetch_and(&engine->active[word], ~(bits & -bits));
                    continue;
                }
                busy.count++;
                busy.nearest = finish < busy.nearest ? finish : busy.nearest;
            }
        }
    }
    return busy;
}

static uint64_t served(const struct sim_work *work, uint64_t progress) {
    uint64_t finish = atomic_load(&work->finish), base = atomic_load(&work->base);
    uint64_t reached = finish < progress ? finish : progress;
    return reached > base ? reached - base : 0;
}

/* Overwrites the oldest sample, unless the newest is younger than the sampling interval: a process that starts and
 * stops thousands of times a second must not push the window out of its few samples. */
static void add_sample(struct sim_sample *samples, uint64_t time_ns, uint64_t value) {
    struct sim_sample *oldest = &samples[0];
    for (uint32_t i = 0; i < SIM_SAMPLES; i++) {
        if (samples[i].time_ns + SIM_SAMPLE_NS > time_ns) {
            return;
        }
        if (samples[i].time_ns < oldest->time_ns) {
            oldest = &samples[i];
        }
    }
    *oldest = (struct sim_sample){time_ns, value};
}

static void sample_work(struct sim_work *work, const struct sim_engine_state *state) {
    add_sample(work->served, state->time_ns, served(work, state->progress));
}

static void add_breakpoint(struct sim_engine *engine, struct sim_engine_state *state) {
    engine->history[state->history_head % SIM_HISTORY] = (struct sim_breakpoint){state->time_ns, state->progress};
    state->history_head++;
}

/* Brings the state up to `now`. Under the engine's lock. */
static struct busy advance(struct sim_process *process, uint32_t domain, struct sim_engine_state *state, uint64_t now) {
    struct sim_engine *engine = &process->machine->engines[domain];
    struct busy busy = look_at_busy(process, domain, state, NULL);
    while (state->time_ns < now) {
        uint64_t sample_at = (state->time_ns / SIM_SAMPLE_NS + 1) * SIM_SAMPLE_NS;
        uint64_t limit = sample_at < now ? sample_at : now;
        if (busy.count == 0) {
            uint64_t far = now > WINDOW_NS * 2 ? (now - WINDOW_NS * 2) / SIM_SAMPLE_NS * SIM_SAMPLE_NS : 0;
            state->time_ns = far > limit ? far : limit; /* nothing happened: no need to walk through all of it */
        } else {
            uint64_t left = busy.nearest - state->progress;
            uint64_t ends = state->time_ns + ((left * busy.count) >> SIM_PROGRESS_SHIFT) + 1;
            if (ends <= limit) {
                state->busy_ns += ends - state->time_ns;
                state->time_ns = ends;
                state->progress = busy.nearest;
                add_breakpoint(engine, state);
            } else {
                uint64_t step = ((limit - state->time_ns) << SIM_PROGRESS_SHIFT) / busy.count;
                state->busy_ns += limit - state->time_ns;
                state->time_ns = limit;
                state->progress += step < left ? step : left - 1;
            }
        }
        bool sampling = state->time_ns == sample_at;
        if (sampling) {
            add_sample(engine->busy_samples, state->time_ns, state->busy_ns);
        }
        if (sampling || busy.count != 0) {
            busy = look_at_busy(process, domain, state, sampling ? sample_work : NULL);
        }
    }
    return busy;
}

static struct sim_engine_state evaluate(struct sim_process *process, uint32_t domain, struct busy *busy) {
    struct sim_engine *engine = &process->machine->engines[domain];
    lock_engine(process, engine);
    struct sim_engine_state state = load_state(engine);
    struct busy seen = advance(process, domain, &state, sim_clock_ns());
    commit_state(engine, &state);
    unlock_engine(engine);
    if (busy != NULL) {
        *busy = seen;
    }
    return state;
}

/* ---- submitting and waiting ---- */

static uint64_t submit_slowly(struct sim_process *process, uint32_t domain, uint64_t work_size) {
    struct sim_engine *engine = &process->machine->engines[domain];
    struct sim_work *work = &process->self->work[domain];
    lock_engine(process, engine);
    struct sim_engine_state state = load_state(engine);
    advance(process, domain, &state, sim_clock_ns());
    uint64_t finish = atomic_load(&work->finish), next;
    do { /* other threads of this process may be adding without the lock */
        next = (finish > state.progress ? finish : state.progress) + work_size;
    } while (!atomic_compare_exchange_weak(&work->finish, &finish, next));
    if (finish <= state.progress) {
        atomic_fetch_add(&work->base, state.progress - finish);
        sample_work(work, &state);
    }
    mark_active(engine, process->slot);
    add_breakpoint(engine, &state);
    atomic_store(&anchors[domain], (state.time_ns << SIM_PROGRESS_SHIFT) - state.progress);
    commit_state(engine, &state);
    unlock_engine(engine);
    return next;
}

uint64_t sim_engine_submit(struct sim_process *process, uint32_t domain, uint64_t duration_ns) {
    _Atomic uint64_t *finish = &process->self->work[domain].finish;
    uint64_t work_size = duration_ns << SIM_PROGRESS_SHIFT;
    uint64_t queue = atomic_load_explicit(finish, memory_order_relaxed);
    if (work_size == 0) {
        return queue;
    }
    uint64_t busy_until = (atomic_load_explicit(&anchors[domain], memory_order_relaxed) + queue) >> SIM_PROGRESS_SHIFT;
    if (clock_ns(CLOCK_MONOTONIC_COARSE) + COARSE_SLACK_NS < busy_until || sim_clock_ns() < busy_until) {
        return atomic_fetch_add_explicit(finish, work_size, memory_order_relaxed) + work_size;
    }
    return submit_slowly(process, domain, work_size);
}

bool sim_engine_reached(struct sim_process *process, uint32_t domain, uint64_t progress) {
    if (atomic_load(&process->machine->engines[domain].progress) >= progress) {
        return true;
    }
    return evaluate(process, domain, NULL).progress >= progress;
}

void sim_engine_wait(struct sim_process *process, uint32_t domain, uint64_t progress) {
    while (!sim_engine_reached(process, domain, progress)) {
        struct busy busy;
        struct sim_engine_state state = evaluate(process, domain, &busy);
        uint64_t left = progress > state.progress ? progress - state.progress : 0;
        uint64_t estimate = (left * (busy.count ? busy.count : 1)) >> SIM_PROGRESS_SHIFT;
        if (estimate <= SPIN_NS) {
            sched_yield();
            continue;
        }
        /* Others may finish or die meanwhile, and then the end comes sooner. */
        uint64_t nap = busy.count > 1 && estimate > 2 * SPIN_NS ? estimate / busy.count : estimate;
        nap = nap > SPIN_NS ? nap - SPIN_NS / 2 : nap;
        struct timespec pause = {(time_t)(nap / 1000000000u), (long)(nap % 1000000000u)};
        nanosleep(&pause, NULL);
        sim_reap_sometimes(process);
    }
}

uint64_t sim_engine_time_of(struct sim_process *process, uint32_t domain, uint64_t progress) {
    struct sim_engine *engine = &process->machine->engines[domain];
    lock_engine(process, engine);
    struct sim_engine_state state = load_state(engine);
    uint64_t low = state.history_head > SIM_HISTORY ? state.history_head - SIM_HISTORY : 0;
    uint64_t oldest = low, high = state.history_head;
    while (low < high) { /* the first breakpoint at or after the point asked for */
        uint64_t middle = low + (high - low) / 2;
        if (engine->history[middle % SIM_HISTORY].progress < progress) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    struct sim_breakpoint after = {state.time_ns, state.progress};
    if (low < state.history_head) {
        after = engine->history[low % SIM_HISTORY];
    }
    struct sim_breakpoint before = after;
    if (low > oldest) {
        before = engine->history[(low - 1) % SIM_HISTORY];
    }
    unlock_engine(engine);
    if (after.progress <= before.progress || progress <= before.progress) {
        return before.time_ns;
    }
    double part = (double)(progress - before.progress) / (double)(after.progress - before.progress);
    return before.time_ns + (uint64_t)(part * (double)(after.time_ns - before.time_ns));
}

/* ---- utilization ---- */

/* Growth per nanosecond over the last window, from samples and the value now. A sample is taken whenever something runs,
 * so no sample inside the window means that nothing ran in it. */
static double rate(const struct sim_sample *samples, uint64_t now, uint64_t value) {
    uint64_t start = now > WINDOW_NS ? now - WINDOW_NS : 0;
    struct sim_sample from = {UINT64_MAX, 0};
    for (uint32_t i = 0; i < SIM_SAMPLES; i++) {
        if (samples[i].time_ns > start && samples[i].time_ns < from.time_ns) {
            from = samples[i];
        }
    }
    if (from.time_ns >= now || value <= from.value) {
        return 0;
    }
    /* The first sample of a burst stands for the idle time before it, so the whole window counts. */
    uint64_t span = from.time_ns < start + 2 * SIM_SAMPLE_NS ? now - from.time_ns : WINDOW_NS;
    return (double)(value - from.value) / (double)span;
}

static uint32_t percent(double share) {
    return share >= 1 ? 100 : (uint32_t)(share * 100 + 0.5);
}

uint32_t sim_engine_utilization(struct sim_process *process, uint32_t domain) {
    struct sim_engine_state state = evaluate(process, domain, NULL);
    return percent(rate(process->machine->engines[domain].busy_samples, state.time_ns, state.busy_ns));
}

uint32_t sim_engine_utilization_of(struct sim_process *process, uint32_t domain, uint32_t slot) {
    struct sim_engine_state state = evaluate(process, domain, NULL);
    const struct sim_work *work = &process->machine->slots[slot].work[domain];
    return percent(rate(work->served, state.time_ns, served(work, state.progress)) / (1u << SIM_PROGRESS_SHIFT));
}

uint64_t sim_engine_served_ns(struct sim_process *process, uint32_t domain, uint32_t slot) {
    struct sim_engine_state state = evaluate(process, domain, NULL);
    return served(&process->machine->slots[slot].work[domain], state.progress) >> SIM_PROGRESS_SHIFT;
}
