/* This process's place in its session: attached once, then only read. Shared by the stand-ins of the driver and of NVML. */
#ifndef GPUSLICE_SESSION_H
#define GPUSLICE_SESSION_H

#include "reserve.h"

#include <time.h>

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

enum session_state { SESSION_NEW, SESSION_ATTACHED, SESSION_REFUSED };

struct session {
    _Atomic int state;
    struct page page;
    int connection;            /* open as long as the process lives: its end tells the agent of exec */
    _Atomic uint64_t retry_ns; /* when a refused session may ask again */
};
extern struct session session;

/* Attaches if that was not tried yet, or was refused a while ago. An observer reads the pages and holds no slot. */
bool session_attach(bool observer);

/* One line on stderr, once per reason. */
enum session_complaint { COMPLAINT_REFUSED, COMPLAINT_EXPIRED, COMPLAINT_AGENT_GONE, COMPLAINT_FOREIGN_GPU, COMPLAINTS };
void session_complain(enum session_complaint complaint, const char *why);
void session_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Why nothing may be allocated now although the process is attached, after telling the user; NULL is never returned. */
void session_explain(void);

static inline uint64_t session_now_ns(void) {
    struct timespec now; /* coarse is precise enough for a heartbeat and cheap enough for every allocation */
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline bool session_is_live(const struct gpuslice_control *control) {
    uint64_t heartbeat = atomic_load_explicit(&control->heartbeat_ns, memory_order_relaxed);
    uint64_t grace = atomic_load_explicit(&control->grace_ns, memory_order_relaxed);
    return atomic_load_explicit(&control->state, memory_order_relaxed) == GPUSLICE_ACTIVE &&
           session_now_ns() <= heartbeat + grace;
}

/* The page, if this process may allocate now. Otherwise NULL, and the user was told why. */
static inline const struct page *session_page(void) {
    if (__builtin_expect(atomic_load_explicit(&session.state, memory_order_acquire) == SESSION_ATTACHED, 1) ||
        session_attach(false)) {
        if (__builtin_expect(session_is_live(session.page.control), 1)) {
            return &session.page;
        }
        session_explain();
    }
    return NULL;
}

#pragma GCC visibility pop

#endif
