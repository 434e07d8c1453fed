/* The reserve protocol on the session's cells: see page.h for what the words mean.
 *
 * Never over the limit: every attempt to grow adds its units before it sums, both sequentially consistent, so of any two
 * attempts one sees the other. Spare is in the sum, so taking it changes no sum, and needs a look at no other cell: that
 * is the usual way, one exchange of the own word. No false denial from a race: two attempts that fit alone but not
 * together both withdraw and try again, not in step; and because a sum may contain what another attempt is about to take
 * back, a request is denied only when many looks, apart in time, found no room, not even with the spare of all cells. A
 * request that does not fit takes no spare, so a process that is refused again and again disturbs no other.
 * Nothing blocks on another process: one that dies in the middle leaves units in its own cell, which the agent clears.
 *
 * When there is less room than before (page.h: epoch), a process uses no spare until it has grown once within what is
 * left; so memory from before is not handed out anew above a lowered limit.
 *
 * What is charged in one lane is given back to it: then each cell is right for itself.
 *
 * A header, because the allocation path must be inlined and because tests run it step by step (GPUSLICE_STEP). */
#ifndef GPUSLICE_RESERVE_H
#define GPUSLICE_RESERVE_H

#include "../include/page.h"

#include <sched.h>
#include <stdbool.h>

#ifndef GPUSLICE_STEP
#define GPUSLICE_STEP(name) ((void)0) /* tests stop a process here */
#endif

#define RESERVE_ATTEMPTS 256 /* before contention counts as denial */
#ifndef RESERVE_LOOKS
#define RESERVE_LOOKS 64 /* before a full session counts as full */
#endif
#ifndef RESERVE_SPARE_PART
#define RESERVE_SPARE_PART 64 /* a lane keeps no more than this part of the limit */
#endif

struct page { /* a session as one process sees it */
    const struct gpuslice_control *control;
    struct gpuslice_cell *cells;
    _Atomic uint64_t cells_inode; /* of the cells that are mapped here */
    uint32_t slot, gpu_count;
};

struct page_sum { /* in bytes */
    uint64_t charged; /* by all processes of the session, attempts and spare included, and their overhead */
    uint64_t spare;   /* how much of it is not in use */
};

static inline struct gpuslice_cell *page_row(const struct page *page, uint32_t gpu) {
    return page->cells + (uint64_t)gpu * GPUSLICE_SLOTS * GPUSLICE_LANES;
}

static inline struct gpuslice_cell *page_own(const struct page *page, uint32_t gpu, uint32_t lane) {
    return page_row(page, gpu) + page->slot * GPUSLICE_LANES + lane;
}

/* How many cells of a row may be in use. */
static inline uint32_t page_cells(const struct page *page) {
    uint32_t high = atomic_load(&page->control->slots_high); /* after the own units were added, or a new slot is missed */
    return (high < GPUSLICE_SLOTS ? high : GPUSLICE_SLOTS) * GPUSLICE_LANES;
}

static inline uint64_t page_limit(const struct page *page, uint32_t gpu) {
    uint64_t limit = atomic_load_explicit(&page->control->gpus[gpu].limit_bytes, memory_order_relaxed);
    return limit < GPUSLICE_BYTES_MASK ? limit : GPUSLICE_BYTES_MASK;
}

/* As far as a cell has room for it. What else is read afterwards is no older. */
static inline uint64_t page_epoch(const struct page *page, uint32_t gpu) {
    return atomic_load(&page->control->gpus[gpu].epoch) & GPUSLICE_EPOCH_MASK;
}

static inline struct page_sum page_sum(const struct page *page, uint32_t gpu) {
    const struct gpuslice_cell *row = page_row(page, gpu);
    uint32_t cells = page_cells(page);
    uint64_t units = 0, held = 0, overhead = 0;
    for (uint32_t i = 0; i < cells; i++) {
        uint64_t charged = atomic_load(&row[i].charged);
        units += gpuslice_units(charged);
        held += gpuslice_held_units(charged);
        overhead += atomic_load_explicit(&row[i].overhead, memory_order_relaxed) & GPUSLICE_BYTES_MASK;
    }
    return (struct page_sum){.charged = units * GPUSLICE_UNIT + overhead, .spare = (units - held) * GPUSLICE_UNIT};
}

/* What is in use, for queries such as cuMemGetInfo. */
static inline uint64_t page_used(const struct page *page, uint32_t gpu) {
    struct page_sum sum = page_sum(page, gpu);
    return sum.charged - sum.spare;
}

static inline uint64_t reserve_units(uint64_t bytes) {
    return bytes / GPUSLICE_UNIT + (bytes % GPUSLICE_UNIT != 0);
}

static inline void reserve_pause(uint32_t round) {
    if (round % 16 == 15) {
        sched_yield();
    } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Without its spare. */
static inline uint64_t reserve_bare(uint64_t charged) {
    return (charged & GPUSLICE_EPOCH_MASK << GPUSLICE_EPOCH_SHIFT) | gpuslice_held_units(charged);
}

/* Takes up to `wanted` bytes of spare out of the cells, the own one first. */
static inline void reserve_reclaim(const struct page *page, uint32_t gpu, uint32_t lane, uint64_t wanted) {
    struct gpuslice_cell *row = page_row(page, gpu);
    uint32_t cells = page_cells(page), own = page->slot * GPUSLICE_LANES + lane;
    uint64_t units = 0;
    for (uint32_t i = 0; i < cells && units < reserve_units(wanted); i++) {
        _Atomic uint64_t *cell = &row[(own + i) % cells].charged;
        uint64_t charged = atomic_load(cell);
        if (gpuslice_spare(charged) != 0 && atomic_compare_exchange_strong(cell, &charged, reserve_bare(charged))) {
            units += gpuslice_spare(charged); /* else it is being used: the next look tells */
        }
        GPUSLICE_STEP("reclaimed");
    }
}

/* Is there room, now or in a moment, in what is free and what is spare? */
static inline bool reserve_room(const struct page *page, uint32_t gpu, uint32_t lane, uint64_t bytes, uint64_t limit) {
    for (uint32_t look = 0; look < RESERVE_LOOKS; look++) {
        struct page_sum sum = page_sum(page, gpu);
        if (sum.charged + bytes <= limit) {
            return true;
        }
        if (sum.charged - sum.spare + bytes <= limit) {
            reserve_reclaim(page, gpu, lane, sum.charged + bytes - limit);
        }
        reserve_pause(look);
    }
    return false;
}

/* Adds to the own cell; what was spare there is part of it. False when a cell cannot hold that much. */
static inline bool reserve_add(struct gpuslice_cell *own, uint64_t units) {
    uint64_t charged = atomic_load(&own->charged);
    do {
        if (gpuslice_held_units(charged) + units > GPUSLICE_UNITS_MASK) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&own->charged, &charged, reserve_bare(charged) + units));
    return true;
}

/* From now on the process may use its spare: in that epoch the session was within its limit, spare included. */
static inline void reserve_enter_epoch(struct gpuslice_cell *own, uint64_t epoch) {
    uint64_t charged = atomic_load(&own->charged);
    while (__builtin_expect(gpuslice_epoch(charged) != epoch, 0) &&
           !atomic_compare_exchange_weak(&own->charged, &charged,
                                         (charged & ~(GPUSLICE_EPOCH_MASK << GPUSLICE_EPOCH_SHIFT)) |
                                             epoch << GPUSLICE_EPOCH_SHIFT)) {
    }
}

static inline void reserve_raise_peak(struct gpuslice_cell *own, uint64_t sum) {
    uint64_t peak = atomic_load_explicit(&own->peak, memory_order_relaxed);
    while (__builtin_expect(sum > peak, 0) &&
           !atomic_compare_exchange_weak_explicit(&own->peak, &peak, sum, memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Counts a request that was refused for good. */
static inline void reserve_count_denied(const struct page *page, uint32_t gpu) {
    atomic_fetch_add_explicit(&page_own(page, gpu, 0)->denied, 1, memory_order_relaxed);
}

static inline bool reserve_from_spare(struct gpuslice_cell *own, uint64_t units, uint64_t epoch) {
    uint64_t charged = atomic_load(&own->charged);
    while (__builtin_expect(gpuslice_epoch(charged) == epoch && gpuslice_spare(charged) >= units, 1)) {
        if (atomic_compare_exchange_weak(&own->charged, &charged, charged - (units << GPUSLICE_SPARE_SHIFT))) {
            return true;
        }
    }
    return false;
}

static inline bool reserve_growing(const struct page *page, uint32_t gpu, uint32_t lane, uint64_t units) {
    struct gpuslice_cell *own = page_own(page, gpu, lane);
    for (uint32_t attempt = 0; attempt < RESERVE_ATTEMPTS; attempt++) {
        uint64_t epoch = page_epoch(page, gpu), limit = page_limit(page, gpu);
        if (units > limit / GPUSLICE_UNIT || !reserve_room(page, gpu, lane, units * GPUSLICE_UNIT, limit)) {
            return false;
        }
        GPUSLICE_STEP("room");
        if (!reserve_add(own, units)) {
            return false;
        }
        GPUSLICE_STEP("charged");
        uint64_t sum = page_sum(page, gpu).charged;
        GPUSLICE_STEP("summed");
        if (__builtin_expect(sum <= limit && page_epoch(page, gpu) == epoch, 1)) {
            reserve_enter_epoch(own, epoch);
            reserve_raise_peak(own, sum);
            return true;
        }
        atomic_fetch_sub(&own->charged, units);
        GPUSLICE_STEP("withdrawn");
        for (uint32_t wait = (page->slot % 8 + 8 * lane + 1) * (attempt % 16 + 1); wait > 0; wait--) {
            reserve_pause(attempt); /* not all at once again */
        }
    }
    return false;
}

/* Charges `bytes` to this process, in whole units, or refuses because the session's limit would be exceeded. */
static inline bool reserve(const struct page *page, uint32_t gpu, uint32_t lane, uint64_t bytes) {
    struct gpuslice_cell *own = page_own(page, gpu, lane);
    uint64_t units = reserve_units(bytes);
    bool granted = reserve_from_spare(own, units, page_epoch(page, gpu)) || reserve_growing(page, gpu, lane, units);
    if (granted) {
        GPUSLICE_STEP("granted");
        atomic_fetch_add_explicit(&own->granted, 1, memory_order_relaxed);
    }
    return granted;
}

/* The most units that a lane keeps. */
static inline uint64_t reserve_most_spare(const struct page *page, uint32_t gpu) {
    uint64_t most = page_limit(page, gpu) / (RESERVE_SPARE_PART * GPUSLICE_UNIT);
    return most < GPUSLICE_SPARE_MASK ? most : GPUSLICE_SPARE_MASK;
}

/* The driver has it back: what the process may keep becomes spare, the rest is the session's again. */
static inline void reserve_release(const struct page *page, uint32_t gpu, uint32_t lane, uint64_t bytes) {
    struct gpuslice_cell *own = page_own(page, gpu, lane);
    uint64_t units = reserve_units(bytes), most = reserve_most_spare(page, gpu);
    GPUSLICE_STEP("release");
    uint64_t charged = atomic_load(&own->charged), after;
    do {
        uint64_t spare = gpuslice_spare(charged) + units;
        uint64_t kept = spare < most ? spare : most;
        uint64_t held = gpuslice_units(charged) > spare ? gpuslice_units(charged) - spare : 0;
        after = (charged & GPUSLICE_EPOCH_MASK << GPUSLICE_EPOCH_SHIFT) | kept << GPUSLICE_SPARE_SHIFT | (held + kept);
    } while (!atomic_compare_exchange_weak(&own->charged, &charged, after));
    GPUSLICE_STEP("released");
}

#endif
