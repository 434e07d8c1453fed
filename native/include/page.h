/* The contract between the agent and the interposer: the memory that a session shares, and the one message with which a
 * process asks for its place in it. gpuslice.node.sessions.page mirrors it; tests/native proves that both agree byte for byte.
 *
 * A session has two pieces of memory. `control` is the agent's: tenants map it read-only and cannot open it for writing,
 * even as root in a container (the agent opens it through a read-only mount before it passes it on). `cells` is the
 * tenants': a memfd that can neither grow nor shrink (sealed; a process checks that before it maps it), with one cell per
 * GPU and slot for each of a few lanes, a cache line each. A slot belongs to one process from attach until the agent clears
 * it; its threads are dealt out over the lanes, so that they do not meet either.
 *
 * Cells have no name: an agent that is started again finds them in the processes of the session, so each keeps its
 * descriptor open. Where that fails there are new ones, which `cells_inode` names, and a process with others is denied.
 *
 * Reserving memory (interposer/reserve.h) needs no lock. Before a process asks the driver for more than it has charged
 * it adds to `charged` in its own cell and then sums all cells of the GPU. A process that adds later sees what was
 * added before, so two cannot both fit into the last gap. There is no total that could go stale: the sum is the truth,
 * and clearing a dead process's cells is all of recovery. A process may keep what it frees charged as spare, and take
 * it again without a look at other cells. A process that finds too little room reclaims the spare of others first. */
#ifndef GPUSLICE_PAGE_H
#define GPUSLICE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define GPUSLICE_PAGE_MAGIC 0x31454741504c5347ull /* "GSLPAGE1" */
#define GPUSLICE_PAGE_VERSION 4u
#define GPUSLICE_MAX_GPUS 16u
#define GPUSLICE_SLOTS 512u /* processes of one session at a time */
#ifndef GPUSLICE_LANES
#define GPUSLICE_LANES 4u /* cells of one process on one GPU */
#endif
#define GPUSLICE_SESSION_BYTES 64u
#define GPUSLICE_TOKEN_BYTES 128u
#define GPUSLICE_CONTROL_BYTES 4096u

/* gpuslice_control.state */
#define GPUSLICE_ACTIVE 0u
#define GPUSLICE_EXPIRED 1u  /* past its time to live: what is held stays, nothing new */
#define GPUSLICE_RELEASED 2u /* the agent forgot it */

/* A cell's `charged` is one word of three numbers, so that no kill can leave them apart: the units charged (held, spare
 * and asked for just now), how many of them are spare, and the low bits of the epoch in which the process last found
 * the session within its limit. Spare of another epoch is not used: the room has become less since. */
#define GPUSLICE_UNIT 512u /* bytes; the driver hands out no less */
#define GPUSLICE_UNITS_MASK ((1ull << 36) - 1)
#define GPUSLICE_SPARE_SHIFT 36
#define GPUSLICE_SPARE_MASK 0xffffull
#define GPUSLICE_EPOCH_SHIFT 52
#define GPUSLICE_EPOCH_MASK 0xfffull
#define GPUSLICE_BYTES_MASK (GPUSLICE_UNITS_MASK * GPUSLICE_UNIT + GPUSLICE_UNIT - 1) /* no limit is higher */

struct gpuslice_gpu {
    uint8_t uuid[16];
    _Atomic uint64_t limit_bytes;
    _Atomic uint32_t core_percent; /* of the GPU's time, see gpuslice_clock; 0 and 100: not limited */
    _Atomic uint32_t epoch;        /* raised by the agent after it lowered the limit or raised an overhead */
};

struct gpuslice_control {
    uint64_t magic;
    uint32_t version, gpu_count;
    _Atomic uint32_t state;
    _Atomic uint32_t slots_high;     /* slots at and above this are free; raised before one is given out */
    _Atomic uint64_t heartbeat_ns;   /* CLOCK_MONOTONIC of the agent's last sign of life */
    _Atomic uint64_t grace_ns;       /* how old that may be before new allocations are denied */
    _Atomic uint64_t cells_inode;    /* the cells that count; a process that has others is not in the session any more */
    char session[GPUSLICE_SESSION_BYTES];
    struct gpuslice_gpu gpus[GPUSLICE_MAX_GPUS];
};
_Static_assert(sizeof(struct gpuslice_control) <= GPUSLICE_CONTROL_BYTES, "the control file is one page");

struct gpuslice_cell { /* a lane of one process on one GPU; while it lives, only `overhead` is the agent's to write */
    _Atomic uint64_t charged;  /* others take the spare out of it */
    _Atomic uint64_t granted;  /* allocations */
    _Atomic uint64_t denied;   /* requests refused */
    _Atomic uint64_t overhead; /* bytes that NVML counts beyond those held: contexts, modules; in the first lane */
    _Atomic uint64_t peak;     /* the largest sum over all cells of the GPU, in bytes, that was brought about from here */
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct gpuslice_cell) == 64, "a cell is a cache line");

/* A session's time on one GPU (interposer/compute/debt.h). Device time that is charged moves `paid_until` into the future;
 * a launch waits until that time has passed. It is a time and not a balance: nothing refills it, and a process that is
 * killed in debt leaves a debt that passes by itself. */
struct gpuslice_clock {
    _Atomic uint64_t paid_until;   /* CLOCK_MONOTONIC of the machine, in nanoseconds */
    _Atomic uint64_t device_ns;    /* device time charged */
    _Atomic uint64_t throttled_ns; /* that launches waited, over all threads */
    _Atomic uint64_t launches;
    uint64_t reserved[4];
};
_Static_assert(sizeof(struct gpuslice_clock) == 64, "a clock is a cache line");

static inline uint64_t gpuslice_units(uint64_t charged) {
    return charged & GPUSLICE_UNITS_MASK;
}

static inline uint64_t gpuslice_spare(uint64_t charged) {
    return charged >> GPUSLICE_SPARE_SHIFT & GPUSLICE_SPARE_MASK;
}

static inline uint64_t gpuslice_epoch(uint64_t charged) {
    return charged >> GPUSLICE_EPOCH_SHIFT;
}

/* What the process really holds. A cell that says that more is spare than charged was not written by this library. */
static inline uint64_t gpuslice_held_units(uint64_t charged) {
    uint64_t units = gpuslice_units(charged), spare = gpuslice_spare(charged);
    return units > spare ? units - spare : 0;
}

/* `cells` holds gpu_count rows of GPUSLICE_SLOTS slots of GPUSLICE_LANES cells, and behind them a clock per GPU. */
static inline uint64_t gpuslice_clocks_offset(uint32_t gpu_count) {
    return (uint64_t)gpu_count * GPUSLICE_SLOTS * GPUSLICE_LANES * sizeof(struct gpuslice_cell);
}

static inline uint64_t gpuslice_cells_bytes(uint32_t gpu_count) {
    return gpuslice_clocks_offset(gpu_count) + gpu_count * sizeof(struct gpuslice_clock);
}

/* ---- attach: one message each way over a unix stream socket; the connection stays open as long as the process ---- */

#define GPUSLICE_ATTACH_MAGIC 0x4843415454414c53ull

#define GPUSLICE_ATTACH_OBSERVER 1u /* wants to read the pages and needs no slot: NVML's stand-in */
#define GPUSLICE_ATTACH_PROCESSES 2u /* wants to know the session's processes, and nothing else */
#define GPUSLICE_NO_SLOT 0xffffffffu

struct gpuslice_attach {
    uint64_t magic;
    uint32_t version, flags;
    char session[GPUSLICE_SESSION_BYTES]; /* zero-padded */
    char token[GPUSLICE_TOKEN_BYTES];     /* zero-padded */
};

/* gpuslice_attached.status */
#define GPUSLICE_ATTACH_OK 0u
#define GPUSLICE_ATTACH_DENIED 1u  /* wrong token, or another pod's session */
#define GPUSLICE_ATTACH_UNKNOWN 2u /* no such session */
#define GPUSLICE_ATTACH_FULL 3u    /* no slot left */
#define GPUSLICE_ATTACH_BROKEN 4u  /* the agent cannot serve it: the message says why */
#define GPUSLICE_ATTACH_BUSY 5u    /* too many requests of the session wait: ask again a little later */

struct gpuslice_attached { /* with status OK, two descriptors travel with it: control, cells; both to read, for an observer */
    uint64_t magic;
    uint32_t version, status;
    uint32_t slot, gpu_count;
    char message[104]; /* for a person, zero-terminated */
};

/* To GPUSLICE_ATTACH_PROCESSES no descriptor comes, `slot` is the number of processes, and after the answer come as many: */
struct gpuslice_process {
    uint32_t pid;     /* as the machine knows it */
    uint32_t own_pid; /* in the asking process's PID namespace; 0 if it is not visible there */
};
_Static_assert(sizeof(struct gpuslice_attach) == 208 && sizeof(struct gpuslice_attached) == 128, "fixed sizes");

#endif
