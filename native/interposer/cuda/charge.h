/* From a CUDA call to the session's page: which GPU it concerns, and whether its bytes fit. */
#ifndef GPUSLICE_CHARGE_H
#define GPUSLICE_CHARGE_H

#include "real_cuda.h"
#include "../session.h"
#include "allocation_table.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

#define SHARED_LANE 0u /* for what is charged under a lock anyway */

struct place { /* where an allocation would be */
    CUcontext context;
    uint32_t gpu;
    uint32_t lane; /* the thread's */
};

/* The session's number for a device or for the current context's; NO_GPU when the session has no share of it. */
uint32_t gpu_of_device(CUdevice device);
/* False when no context is current: then the driver refuses by itself, and there is nothing to charge. */
bool place_of_current(struct place *place);
/* After a context is destroyed, its handle may come back for another device. */
void place_forget_contexts(void);
/* A forked child attaches anew, and may number its GPUs otherwise. */
void place_forget_devices(void);

static inline uint64_t charge_rounded(uint64_t bytes) {
    return bytes > UINT64_MAX - GPUSLICE_UNIT ? bytes : (bytes + GPUSLICE_UNIT - 1) / GPUSLICE_UNIT * GPUSLICE_UNIT;
}

/* Charges rounded bytes to the session, after giving back what this process's pools no longer hold if it is tight. */
bool charge_begin(uint32_t gpu, uint32_t lane, uint64_t rounded);
/* Counts a request that is refused for good, whatever for. Always false. */
bool charge_denied(uint32_t gpu, uint64_t rounded);
void charge_back(uint32_t gpu, uint32_t lane, uint64_t rounded);

/* Live allocations of this process by device pointer or array handle. */
extern struct table charges;

/* ---- pools (pools.c) ---- */

/* Lets go of what pools returned to the driver since; true if that changed anything. */
bool pools_refresh(void);
void pools_freed(const struct table_entry *entry);
/* What a look at the pools may bring: nothing, something after the next synchronization, something now. */
enum pools_state { POOLS_SETTLED, POOLS_KEEPING, POOLS_FREED };
extern _Atomic int pools_state;
static inline void pools_look(enum pools_state least) {
    if (__builtin_expect(atomic_load_explicit(&pools_state, memory_order_relaxed) >= (int)least, 0)) {
        pools_refresh();
    }
}
static inline void pools_keep(void) {
    int settled = POOLS_SETTLED;
    atomic_compare_exchange_strong(&pools_state, &settled, POOLS_KEEPING);
}
/* ---- graphs (graphs.c): the device's pool for memory nodes ---- */
bool graphs_refresh(void);

/* ---- memory on its way back (deferred_free.c) ---- */

/* Takes over an entry whose free was put into the stream just now. */
void deferred_free_add(const struct table_entry *entry, CUstream stream, bool per_thread);
/* Gives back what was freed since; true if that changed anything. */
bool deferred_free_refresh(void);
/* The context took its memory with it. */
void deferred_free_forget(CUcontext context);

/* Gives back what an entry that was taken out of the table had charged. */
void charge_entry_back(const struct table_entry *entry);

/* The record goes first: once the driver has the address back, another thread may be given it. */
#define CHARGED_FREE(key, call, back)                                                                             \
    do {                                                                                                              \
        struct table_entry entry;                                                                                     \
        bool known = table_take(&charges, key, &entry);                                                               \
        CUresult result = (call);                                                                                     \
        if (known && result == CUDA_SUCCESS) {                                                                        \
            back;                                                                                                     \
        } else if (known) {                                                                                           \
            table_put(&charges, &entry);                                                                              \
        }                                                                                                             \
        return result;                                                                                                \
    } while (0)

#pragma GCC visibility pop

#endif
