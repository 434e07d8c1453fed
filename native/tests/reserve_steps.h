/* The reserve protocol with a step at every access to the books, for test_reserve.c: included once, by the file that
 * defines what happens at a step. */
#ifndef GPUSLICE_RESERVE_STEPS_H
#define GPUSLICE_RESERVE_STEPS_H

#ifndef GPUSLICE_LANES
#define GPUSLICE_LANES 1u /* a lane is a cell like any other: several are only more of the same steps */
#endif
#include "../include/page.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

/* Every access to a cell's bytes is a step at which another process may come first, and every pause lets one by. So is
 * a look at the limit or the epoch where they change. */
static bool is_step(const volatile void *at, size_t bytes);
static void step(void);
static void named_step(const char *name);
static uint64_t spare_part = 1; /* so that even the tiniest sizes are kept */
static uint32_t looks = 64;
#undef atomic_load
#undef atomic_load_explicit
#undef atomic_fetch_sub
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_strong
#define atomic_load(at) ((void)(is_step(at, sizeof *(at)) ? step(), 0 : 0), __atomic_load_n(at, __ATOMIC_SEQ_CST))
#define atomic_load_explicit(at, order) ((void)(is_step(at, 0) ? step(), 0 : 0), __atomic_load_n(at, __ATOMIC_RELAXED))
#define atomic_fetch_sub(at, value) (step(), __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_weak(at, expected, value) \
    (step(), __atomic_compare_exchange_n(at, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_strong(at, expected, value) \
    (step(), __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define __builtin_ia32_pause() step()
#define sched_yield() step()
#define GPUSLICE_STEP(name) named_step(name)
#define RESERVE_SPARE_PART spare_part
#define RESERVE_LOOKS looks
#ifndef RESERVE_HEADER
#define RESERVE_HEADER "../interposer/reserve.h" /* a test hands in a broken one, which must be found out */
#endif
#include RESERVE_HEADER
#undef __builtin_ia32_pause
#undef sched_yield
#undef atomic_load
#undef atomic_load_explicit
#undef atomic_fetch_sub
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_strong
#define atomic_load(at) __atomic_load_n(at, __ATOMIC_SEQ_CST)
#define atomic_fetch_sub(at, value) __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST)

#endif
