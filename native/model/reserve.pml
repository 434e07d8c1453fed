/* The reserve protocol of native/interposer/reserve.h, for Spin. tests/interposer/test_model.py runs it.
 *
 * Each tenant is one slot of a session's page: a process that reserves, is handed memory by the driver, gives some back,
 * and may be killed before any step; then the driver has freed its memory (a process is reaped after its files are
 * closed), the agent clears its cell some time later, and a new process is given the slot. Reading a cell, adding to it
 * and taking from it are single steps in any order: the sequential consistency that reserve.h asks of its atomics.
 *
 * Proven for the sizes below, over all orders of all steps:
 *   - what living processes hold never exceeds the limit, and is never more than what their cells say (assertions);
 *   - when all is over the cells say exactly what is held (assertions at the end), after any kill and clear;
 *   - nobody waits for anybody: no order of steps gets stuck (Spin's check for invalid end states);
 *   - with -DCONTEST: of two requests that fit alone but not together not both are refused for want of room;
 *   - with -DCONTEST -DPAUSES and weak fairness: one of them is granted after all, however many attempts that takes.
 *
 * Not proven, because time is not in the model: that a bounded number of attempts (256) is enough. Two processes that
 * take every step in turn for ever would withdraw for ever; without PAUSES Spin finds that order, and the test asks it to.
 * reserve.h makes it impossible in practice: each waits after a withdrawal, and no two slots below eight wait equally
 * long. PAUSES stands for that: the process in the higher slot stays in its pause until the other had an attempt to
 * itself. Weaker memory orders than sequential consistency are not in the model either.
 *
 * -DONCE: nobody gives back while it lives, so that three tenants and a kill are few enough states.
 * -DSUM_FIRST breaks the protocol as a check-then-add would: Spin must find more than the limit handed out. */

#ifndef TENANTS
#define TENANTS 2
#endif
#ifndef LIMIT
#define LIMIT 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef LOOKS
#define LOOKS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif

byte charged[TENANTS]; /* the cells */
byte held[TENANTS];    /* what the driver has handed out: not known to the protocol */
bool killed[TENANTS];
bool ended[TENANTS];   /* did what it wanted; what it still holds it keeps */

#ifdef CONTEST
bool granted[TENANTS];
bool refused[TENANTS];
bool in_attempt[TENANTS];
byte attempts_alone;   /* that the lower slot began while the higher one paused */
#endif

inline check_limit() {
    d_step {
        n = 0; total = 0;
        do
        :: n < TENANTS -> assert(held[n] <= charged[n] || killed[n]); total = total + held[n]; n++
        :: else -> break
        od;
        assert(total <= LIMIT);
        n = 0; total = 0
    }
}

inline page_sum() {
    sum = 0; at = 0;
    do
    :: at < TENANTS -> atomic { sum = sum + charged[at]; at++ } /* one cell, one step */
    :: else -> break
    od;
    at = 0
}

/* The own bytes, added. With SUM_FIRST the sum was taken before, so the own bytes are added to it afterwards. */
inline add_then_sum() {
#ifdef SUM_FIRST
    page_sum();
    sum = sum + bytes;
    charged[me] = charged[me] + bytes
#else
    charged[me] = charged[me] + bytes;
    page_sum()
#endif
}

inline room() {
    looks = 0; fits = false;
    do
    :: looks < LOOKS && !fits -> page_sum(); fits = (sum + bytes <= LIMIT); looks++
    :: else -> break
    od;
    looks = 0; sum = 0
}

inline pause_after_withdrawal() {
#ifdef PAUSES
    if
    :: me == 1 -> /* until the other has begun an attempt since, and ended it; or asks for nothing */
        attempts_alone = 0;
        (granted[0] || refused[0] || (attempts_alone > 0 && !in_attempt[0]))
    :: else
    fi
#else
    skip
#endif
}

inline reserve() {
    success = false; attempt = 0;
    do
#ifdef CONTEST
    :: !success -> /* as often as it takes */
#else
    :: !success && attempt < ATTEMPTS -> attempt++;
#endif
        room();
        if
        :: !fits -> break
        :: else
        fi;
        fits = false;
#ifdef CONTEST
        atomic { in_attempt[me] = true; if :: me == 0 && attempts_alone == 0 -> attempts_alone = 1 :: else fi }
#endif
        add_then_sum();
        if
        :: sum <= LIMIT -> success = true
        :: else -> charged[me] = charged[me] - bytes;
#ifdef CONTEST
            in_attempt[me] = false;
#endif
            pause_after_withdrawal()
        fi;
        sum = 0
    :: else -> break
    od;
    attempt = 0; fits = false
}

proctype tenant(byte me; byte bytes) {
    byte sum, at, looks, attempt, n, total;
    bool fits, success;
again:
    {
        reserve();
        if
        :: success -> atomic { held[me] = held[me] + bytes; check_limit() } /* the driver is asked */
#ifdef CONTEST
            ; granted[me] = true
#endif
        :: else
#ifdef CONTEST
            ; atomic { refused[me] = true; assert(!(refused[0] && refused[1])) }
#endif
        fi;
#if !defined(CONTEST) && !defined(ONCE)
        if
        :: success -> held[me] = held[me] - bytes; charged[me] = charged[me] - bytes; reserve(); /* given back, wanted again */
            if
            :: success -> atomic { held[me] = held[me] + bytes; check_limit() }
            :: else
            fi
        :: skip /* kept until the end */
        fi;
#endif
        atomic { !killed[me] -> ended[me] = true }
    } unless {
        killed[me];
        held[me] = 0; /* the kernel and the driver, before anybody hears of its end */
        atomic { charged[me] = 0; killed[me] = false; /* the agent */
                 sum = 0; at = 0; looks = 0; attempt = 0; fits = false; success = false };
        goto again
    }
}

/* Kills the first or the last at any moment, or nobody. */
proctype reaper() {
    byte kills = 0;
    do
    :: kills < KILLS -> kills++;
        if
        :: atomic { !ended[0] -> killed[0] = true }
        :: atomic { !ended[TENANTS - 1] -> killed[TENANTS - 1] = true }
        :: skip
        fi
    :: else -> break
    od
}

init {
    byte n = 0, total = 0;
    atomic {
        run tenant(0, 2);
        run tenant(1, 2);
#if TENANTS > 2
        run tenant(2, 1);
#endif
#if KILLS > 0
        run reaper()
#endif
    };
    (_nr_pr == 1);
    do /* the books are exact */
    :: n < TENANTS -> assert(charged[n] == held[n]); total = total + held[n]; n++
    :: else -> break
    od;
    assert(total <= LIMIT)
}

#ifdef CONTEST
ltl one_of_them { <> (granted[0] || granted[1]) }
#endif
