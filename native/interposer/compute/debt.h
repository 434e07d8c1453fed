/* The debt protocol: a session's device time on one GPU as one word, `paid_until` of page.h.
 *
 * A charge of c nanoseconds of device time at a share of r moves the word by c / r, from where it stands or from a little
 * before now: what was not used in the past is credit for 25 ms of device time and no more. A launch is admitted by the
 * exchange that charges it, and only while the word is not in the future: of many that wait one goes at a time. So what is
 * admitted in a time t is at most r t, the credit, and one launch more.
 *
 * No process waits for another: a word in the future becomes the past by itself. Nothing is repaired after a kill. A word
 * too far in the future (a clock that was set back, a tenant that wrote it) counts as LONGEST_DEBT.
 *
 * A header, because the launch path inlines it and tests run it alone. */
#ifndef GPUSLICE_DEBT_H
#define GPUSLICE_DEBT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DEBT_CREDIT_NS 25000000ull      /* device time */
#define DEBT_LONGEST_NS 600000000000ull /* time */

/* How long a share of that percentage takes to earn so much device time. */
static inline uint64_t debt_time(uint64_t device_ns, uint32_t percent) {
    return device_ns * 100u / percent;
}

/* Where a charge is added: no further back than the credit, and no further ahead than the longest debt. */
static inline uint64_t debt_from(uint64_t paid_until, uint64_t now, uint32_t percent) {
    uint64_t credit = debt_time(DEBT_CREDIT_NS, percent), earliest = now > credit ? now - credit : 0;
    if (paid_until < earliest) {
        return earliest;
    }
    return paid_until < now + DEBT_LONGEST_NS ? paid_until : now + DEBT_LONGEST_NS;
}

/* Charges, or withdraws a charge that was too high, without asking whether it fits. */
static inline void debt_correct(_Atomic uint64_t *paid_until, uint64_t now, uint32_t percent, int64_t device_ns) {
    uint64_t seen = atomic_load_explicit(paid_until, memory_order_relaxed), next;
    do {
        uint64_t from = debt_from(seen, now, percent);
        uint64_t time = debt_time((uint64_t)(device_ns < 0 ? -device_ns : device_ns), percent);
        next = device_ns < 0 ? (from > time ? from - time : 0) : from + time;
        next = debt_from(next, now, percent);
    } while (!atomic_compare_exchange_weak(paid_until, &seen, next));
}

/* Admits and charges, or says how long to wait before the next attempt. */
static inline bool debt_admit(_Atomic uint64_t *paid_until, uint64_t now, uint32_t percent, uint64_t device_ns,
                              uint64_t *wait_ns) {
    uint64_t seen = atomic_load_explicit(paid_until, memory_order_relaxed), from;
    do {
        from = debt_from(seen, now, percent);
        if (from > now) {
            *wait_ns = from - now;
            return false;
        }
    } while (!atomic_compare_exchange_weak(paid_until, &seen, from + debt_time(device_ns, percent)));
    return true;
}

#endif
