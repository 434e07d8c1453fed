/* This process's place in its sessions: attached once, then only read. Shared by the stand-ins of the driver and of NVML. */
#ifndef GPUSLICE_SESSION_H
#define GPUSLICE_SESSION_H

#include "reserve.h"

#include <time.h>

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

enum session_state { SESSION_NEW, SESSION_ATTACHED, SESSION_REFUSED };

#define SESSION_MOST 16u /* sessions of one process: a container may have several claims */

struct session_gpu { /* a GPU that this process has a share of */
    const struct page *page;
    uint32_t index; /* in that page */
};

/* All sessions of this process. Its GPUs are numbered through, over all of them. */
struct session {
    _Atomic int state;
    uint32_t page_count, gpu_count;
    struct page pages[SESSION_MOST];
    int connections[SESSION_MOST]; /* open as long as the process lives: their end tells the agent of exec */
    int cells[SESSION_MOST];       /* likewise: an agent that is started again finds the cells here; -1 for observers */
    struct session_gpu gpus[GPUSLICE_MAX_GPUS];
    _Atomic uint64_t retry_ns; /* when a refused session may ask again */
    _Atomic uint64_t clock_offset_ns; /* how far the clock of this process's time namespace is ahead of the machine's */
};
extern struct session session;

#define NO_GPU UINT32_MAX

/* Attaches if that was not tried yet, or was refused a while ago: to all sessions or to none. An observer reads the
 * pages and holds no slot. */
bool session_attach(bool observer);

/* For observers that are attached: maps what has taken the place of pages that the agent no longer serves. */
void session_refresh(void);

/* The process's number for the GPU; NO_GPU when no session has a share of it. Only once attached. */
uint32_t session_find(const uint8_t uuid[16]);

/* The processes of all sessions, asked of the agent now; no more than `most`. 0 if there is no answer. */
uint32_t session_processes(struct gpuslice_process *found, uint32_t most);

/* One line on stderr, once per reason. */
enum session_complaint { COMPLAINT_REFUSED, COMPLAINT_EXPIRED, COMPLAINT_AGENT_GONE, COMPLAINT_CELLS_LOST, COMPLAINT_FOREIGN_GPU, COMPLAINT_NAMESPACE, COMPLAINTS };
void session_complain(enum session_complaint complaint, const char *why);
void session_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Tells the user why nothing may be allocated now although the process is attached. */
void session_explain(const struct page *page);

uint64_t session_clock_offset(void);

/* By the machine's clock, as the agent's heartbeat is: a container may have a time namespace of its own. */
static inline uint64_t session_now_ns(void) {
    struct timespec now; /* coarse is precise enough for a heartbeat and cheap enough for every allocation */
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
           atomic_load_explicit(&session.clock_offset_ns, memory_order_relaxed);
}

/* Whether the cells that are mapped are those that count. */
static inline bool session_is_current(const struct page *page) {
    return atomic_load_explicit(&page->control->cells_inode, memory_order_relaxed) ==
           atomic_load_explicit(&page->cells_inode, memory_order_relaxed);
}

static inline bool session_is_live(const struct page *page) {
    const struct gpuslice_control *control = page->control;
    uint64_t heartbeat = atomic_load_explicit(&control->heartbeat_ns, memory_order_relaxed);
    uint64_t grace = atomic_load_explicit(&control->grace_ns, memory_order_relaxed);
    return atomic_load_explicit(&control->state, memory_order_relaxed) == GPUSLICE_ACTIVE &&
           session_is_current(page) && session_now_ns() <= heartbeat + grace;
}

/* True if this process may allocate on the GPU now. Otherwise the user was told why. */
static inline bool session_allows(uint32_t gpu) {
    if (__builtin_expect(atomic_load_explicit(&session.state, memory_order_acquire) != SESSION_ATTACHED, 0) &&
        !session_attach(false)) {
        return false;
    }
    if (gpu == NO_GPU) {
        return false;
    }
    const struct page *page = session.gpus[gpu].page;
    if (__builtin_expect(session_is_live(page), 1)) {
        return true;
    }
    session_explain(page);
    return false;
}

/* ---- a GPU of an attached process ---- */

static inline bool session_reserve(uint32_t gpu, uint32_t lane, uint64_t bytes) {
    return reserve(session.gpus[gpu].page, session.gpus[gpu].index, lane, bytes);
}

/* To the lane that it was reserved in. */
static inline void session_release(uint32_t gpu, uint32_t lane, uint64_t bytes) {
    reserve_release(session.gpus[gpu].page, session.gpus[gpu].index, lane, bytes);
}

static inline void session_count_denied(uint32_t gpu) {
    reserve_count_denied(session.gpus[gpu].page, session.gpus[gpu].index);
}

static inline uint64_t session_limit(uint32_t gpu) {
    return page_limit(session.gpus[gpu].page, session.gpus[gpu].index);
}

/* What all processes of the session use on it. */
static inline uint64_t session_used(uint32_t gpu) {
    return page_used(session.gpus[gpu].page, session.gpus[gpu].index);
}

#pragma GCC visibility pop

#endif
