/* The reserve protocol of native/interposer/reserve.h, for Spin. tests/interposer/test_model.py runs it.
 *
 * Each tenant is one slot of a session's page: a process that reserves, is handed memory by the driver, gives it back and
 * keeps it as spare or not, reserves again, and may be killed before any step; then the driver has freed its memory (a
 * process is reaped after its files are closed), the agent clears its cell some time later, and a new process is given
 * the slot. Reading a cell and exchanging its word are single steps in any order: the sequential consistency that
 * reserve.h asks of its atomics. An exchange that fails changes nothing and is tried again, so it is no step here.
 *
 * Proven for the sizes below, over all orders of all steps:
 *   - what living processes hold never exceeds the limit, and with their spare never what their cells say (assertions);
 *   - when all is over the cells say exactly what is held and kept (assertions at the end), after any kill and clear;
 *   - no process waits for another: no order of steps gets stuck (Spin's check for invalid end states);
 *   - with -DLOWERED=n: the agent lowers the limit at any moment; no request after that is granted that would bring
 *     what is held above the lowered limit, whatever is kept from before;
 *   - with -DFITS: requests that fit together are all granted, though all that they need is another's spare at first;
 *   - with -DCONTEST: of two requests that fit alone but not together not both are refused for want of room;
 *   - with -DCONTEST -DPAUSES and weak fairness: one of them is granted after all, however many attempts that takes.
 *
 * Not proven, because time is not in the model: that a bounded number of attempts (256) is enough. Two processes that
 * take every step in turn for ever would withdraw for ever; without PAUSES Spin finds that order, and the test asks it to.
 * reserve.h makes it impossible in practice: each waits after a withdrawal, and no two slots below eight wait equally
 * long. PAUSES stands for that: the process in the higher slot stays in its pause until the other had an attempt to
 * itself. Weaker memory orders than sequential consistency are not in the model either, nor epochs that go round.
 *
 * -DKEPT=n: so much is spare in the first slot at first. -DONCE: no process gives back while it lives, so that three
 * tenants and a kill are few enough states. These break the protocol, and Spin must find it: -DSUM_FIRST as a check
 * before the addition would, -DANY_EPOCH by using spare from before the limit was lowered, -DNO_RECHECK by growing
 * within the limit that was. */

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
#ifndef KEPT
#define KEPT 0
#endif

byte charged[TENANTS]; /* the cells: each tenant's three numbers are one word */
byte spare[TENANTS];
bit seen_epoch[TENANTS];
byte limit = LIMIT; /* the agent's */
bit epoch;
byte held[TENANTS]; /* what the driver has handed out: not known to the protocol */
bool killed[TENANTS];
bool ended[TENANTS]; /* did what it wanted; what it still holds it keeps */

#ifdef CONTEST
bool granted[TENANTS];
bool refused[TENANTS];
bool in_attempt[TENANTS];
byte attempts_alone; /* that the lower slot began while the higher one paused */
#endif

/* The driver is asked. */
inline hand_out() {
    d_step {
        held[me] = held[me] + bytes;
        n = 0; total = 0;
        do
        :: n < TENANTS -> assert(held[n] + spare[n] <= charged[n] || killed[n]); total = total + held[n]; n++
        :: else -> break
        od;
        assert(total <= LIMIT);
#ifdef LOWERED
        assert(!asked_after || total <= LOWERED);
#endif
        n = 0; total = 0
    }
}

inline page_sum() {
    atomic { sum = 0; idle = 0; at = 0 };
    do
    :: at < TENANTS -> d_step { sum = sum + charged[at]; idle = idle + spare[at]; at++ } /* one cell, one step */
    :: else -> break
    od;
    at = 0
}

/* The own units, added, and what was spare among them. With SUM_FIRST the sum was taken before. */
inline add_then_sum() {
#ifdef SUM_FIRST
    page_sum();
    d_step { sum = sum - spare[me] + bytes; charged[me] = charged[me] - spare[me] + bytes; spare[me] = 0 }
#else
    d_step { charged[me] = charged[me] - spare[me] + bytes; spare[me] = 0 };
    page_sum()
#endif
}

inline reclaim() {
    at = 0;
    do
    :: at < TENANTS && sum + bytes > most -> /* the own cell first, until there is enough */
        d_step {
            n = (me + at) % TENANTS;
            sum = sum - (sum > spare[n] -> spare[n] : sum);
            charged[n] = charged[n] - spare[n]; spare[n] = 0;
            n = 0; at++
        }
    :: else -> break
    od;
    at = 0
}

inline room() {
    looks = 0; fits = false;
    do
    :: looks < LOOKS && !fits -> page_sum(); looks++;
        if
        :: sum + bytes <= most -> fits = true
        :: sum + bytes > most && sum - idle + bytes <= most -> reclaim()
        :: else
        fi
    :: else -> break
    od;
    atomic { looks = 0; sum = 0; idle = 0 }
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

inline grow() {
    attempt = 0;
    do
#ifdef CONTEST
    :: !success -> /* as often as it takes */
#else
    :: !success && attempt < ATTEMPTS -> attempt++;
#endif
#ifdef LOWERED
        now = epoch; most = limit; /* in this order */
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
#ifdef NO_RECHECK
        :: sum <= most -> success = true; seen_epoch[me] = now
#else
        :: sum <= most && epoch == now -> success = true; seen_epoch[me] = now
#endif
        :: else -> charged[me] = charged[me] - bytes;
#ifdef CONTEST
            in_attempt[me] = false;
#endif
            pause_after_withdrawal()
        fi;
        atomic { sum = 0; idle = 0 }
    :: else -> break
    od;
    atomic { attempt = 0; fits = false }
}

inline reserve() {
    success = false;
#ifdef LOWERED
    atomic { now = epoch; asked_after = (epoch == 1) };
#endif
    d_step { /* from the own spare, with one exchange */
        if
#ifdef ANY_EPOCH
        :: spare[me] >= bytes -> spare[me] = spare[me] - bytes; success = true
#else
        :: seen_epoch[me] == now && spare[me] >= bytes -> spare[me] = spare[me] - bytes; success = true
#endif
        :: else
        fi
    };
    if
    :: !success -> grow()
    :: else
    fi;
#ifdef FITS
    assert(success);
#endif
    if
    :: success -> hand_out()
    :: else
    fi
}

inline give_back() {
    held[me] = held[me] - bytes;
    if
    :: spare[me] = spare[me] + bytes /* kept */
    :: charged[me] = charged[me] - bytes /* as much was kept before */
    fi
}

proctype tenant(byte me; byte bytes) {
    byte sum, idle, at, looks, attempt, n, total, most = LIMIT;
    bit now;
    bool fits, success, asked_after;
again:
    {
        reserve();
#ifdef CONTEST
        if
        :: success -> granted[me] = true
        :: else -> atomic { refused[me] = true; assert(!(refused[0] && refused[1])) }
        fi;
#endif
#if !defined(CONTEST) && !defined(ONCE)
        if
        :: success -> give_back(); reserve() /* wanted again */
        :: skip /* kept until the end */
        fi;
#endif
        atomic { !killed[me] -> ended[me] = true }
    } unless {
        killed[me];
        held[me] = 0; /* the kernel and the driver, before the agent hears of its end */
        d_step { charged[me] = 0; spare[me] = 0; seen_epoch[me] = 0; killed[me] = false; /* the agent */
                 sum = 0; idle = 0; at = 0; looks = 0; attempt = 0; n = 0; total = 0; most = LIMIT; now = 0;
                 fits = false; success = false; asked_after = false };
        goto again
    }
}

#ifdef LOWERED
proctype agent() {
    limit = LOWERED;
    epoch = 1
}
#endif

/* Kills the first or the last tenant at any moment, or neither. */
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
        charged[0] = KEPT; spare[0] = KEPT;
#ifdef FITS
        run tenant(0, 1);
#else
        run tenant(0, 2);
#endif
        run tenant(1, 2);
#if TENANTS > 2
        run tenant(2, 1);
#endif
#ifdef LOWERED
        run agent();
#endif
#if KILLS > 0
        run reaper()
#endif
    };
    (_nr_pr == 1);
    do /* the books are exact */
    :: n < TENANTS -> assert(charged[n] == held[n] + spare[n]); total = total + charged[n]; n++
    :: else -> break
    od;
    assert(total <= LIMIT)
}

#ifdef CONTEST
ltl one_of_them { <> (granted[0] || granted[1]) }
#endif
