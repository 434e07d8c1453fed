/* The reserve protocol on the session's cells: see page.h for what the words mean.
 *
 * Never over the limit: every attempt adds its bytes before it sums, both sequentially consistent, so of any two attempts
 * one sees the other. No false denial from a race: two attempts that fit alone but not together both withdraw and try
 * again, not in step; and because a sum may contain bytes that another attempt is about to take back, a request is denied
 * only when many looks, apart in time, found no room. A request that does not fit adds nothing, so one that is refused
 * again and again is in nobody's way. Nothing blocks on another process: one that dies in the middle leaves bytes in its
 * own cell, which the agent clears.
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
#define RESERVE_LOOKS 64     /* before a full session counts as full */

struct page { /* a session as one process sees it */
    const struct gpuslice_control *control;
    struct gpuslice_cell *cells;
    uint32_t slot, gpu_count;
};

static inline struct gpuslice_cell *page_row(const struct page *page, uint32_t gpu) {
    return page->cells + (uint64_t)gpu * GPUSLICE_SLOTS;
}

static inline uint32_t page_slots(const struct page *page) {
    uint32_t high = atomic_load(&page->control->slots_high); /* after the own bytes were added, or a new slot is missed */
    return high < GPUSLICE_SLOTS ? high : GPUSLICE_SLOTS;
}

static inline uint64_t page_limit(const struct page *page, uint32_t gpu) {
    return atomic_load_explicit(&page->control->gpus[gpu].limit_bytes, memory_order_relaxed);
}

/* What all processes of the session have charged on the GPU, attempts included, and their overhead. */
static inline uint64_t page_sum(const struct page *page, uint32_t gpu) {
    const struct gpuslice_cell *row = page_row(page, gpu);
    uint32_t slots = page_slots(page);
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < slots; slot++) {
        sum += atomic_load(&row[slot].charged) & GPUSLICE_BYTES_MASK;
        sum += atomic_load_explicit(&row[slot].overhead, memory_order_relaxed) & GPUSLICE_BYTES_MASK;
    }
    return sum;
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

/* Is there room, now or in a moment? */
static inline bool reserve_room(const struct page *page, uint32_t gpu, uint64_t bytes, uint64_t limit) {
    for (uint32_t look = 0; look < RESERVE_LOOKS; look++) {
        if (page_sum(page, gpu) + bytes <= limit) {
            return true;
        }
        reserve_pause(look);
    }
    return false;
}

/* Adds to the own cell; whoever brings the attempts round to zero counts the lap. */
static inline void reserve_add(struct gpuslice_cell *own, uint64_t bytes) {
    uint64_t before = atomic_fetch_add(&own->charged, GPUSLICE_ATTEMPT + bytes);
    if (__builtin_expect(before >> 48 == 0xffff, 0)) {
        atomic_fetch_add_explicit(&own->laps, 1, memory_order_relaxed);
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
    atomic_fetch_add_explicit(&(page_row(page, gpu) + page->slot)->denied, 1, memory_order_relaxed);
}

/* Charges `bytes` to this process, or refuses because the session's limit would be exceeded. */
static inline bool reserve(const struct page *page, uint32_t gpu, uint64_t bytes) {
    struct gpuslice_cell *own = page_row(page, gpu) + page->slot;
    for (uint32_t attempt = 0; attempt < RESERVE_ATTEMPTS; attempt++) {
        uint64_t limit = page_limit(page, gpu);
        /* The first comparison also keeps sizes that do not fit into 48 bits out of the word. */
        if (bytes > limit || !reserve_room(page, gpu, bytes, limit)) {
            return false;
        }
        GPUSLICE_STEP("room");
        reserve_add(own, bytes);
        GPUSLICE_STEP("charged");
        uint64_t sum = page_sum(page, gpu);
        GPUSLICE_STEP("summed");
        if (__builtin_expect(sum <= limit, 1)) {
            reserve_raise_peak(own, sum);
            return true;
        }
        atomic_fetch_sub(&own->charged, bytes);
        GPUSLICE_STEP("withdrawn");
        atomic_fetch_add_explicit(&own->withdrawn, 1, memory_order_relaxed);
        for (uint32_t wait = (page->slot % 8 + 1) * (attempt % 16 + 1); wait > 0; wait--) {
            reserve_pause(attempt); /* not everybody at once again */
        }
    }
    return false;
}

static inline void reserve_release(const struct page *page, uint32_t gpu, uint64_t bytes) {
    GPUSLICE_STEP("release");
    atomic_fetch_sub(&(page_row(page, gpu) + page->slot)->charged, bytes);
    GPUSLICE_STEP("released");
}

#endif
