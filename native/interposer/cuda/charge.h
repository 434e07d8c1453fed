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

/* Host memory is not charged. Whatever location is not known to be the host's counts as device memory. */
bool location_is_host(const CUmemLocation *location);
/* The device whose memory a location names. A location that names none (managed pools, newer drivers) is charged to the
 * current context's device, as managed memory is; false without one. */
bool location_device(const CUmemLocation *location, CUdevice *device);

static inline uint64_t charge_rounded(uint64_t bytes) {
    return bytes > UINT64_MAX - GPUSLICE_UNIT ? bytes : (bytes + GPUSLICE_UNIT - 1) / GPUSLICE_UNIT * GPUSLICE_UNIT;
}

/* Charges rounded bytes to the session, after giving back what this process's pools no longer hold if it is tight. */
bool charge_begin(uint32_t gpu, uint32_t lane, uint64_t rounded);
/* Counts a request that is refused for good, whatever for. Always false. */
bool charge_denied(uint32_t gpu, uint64_t rounded);
void charge_back(uint32_t gpu, uint32_t lane, uint64_t rounded);

/* ---- an allocation in the current context: charged before the driver is asked, recorded after it agreed ---- */

/* Live allocations of this process by device pointer or array handle. */
extern struct table charges;

struct pending_charge {
    struct place place;
    uint64_t bytes; /* rounded */
    bool charged;   /* false without a current context: then the driver refuses by itself */
};

/* False when the session has no room for it. */
bool pending_begin(struct pending_charge *pending, uint64_t rounded);
/* The driver made it: records it. False when the host has no memory for the record; then the caller undoes the
 * allocation, because memory that cannot be found again cannot be given back. */
bool pending_record(const struct pending_charge *pending, uint64_t key, enum charge_kind kind);
void pending_cancel(const struct pending_charge *pending);

/* Gives back what an entry that was taken out of the table had charged. */
void charge_entry_back(const struct table_entry *entry);
/* Records an entry. An older one of the same key is gone in the driver, and is given back. */
bool charge_record(const struct table_entry *entry);
/* The record leaves the table before the driver frees: once the driver has the address back, another thread may get it.
 * Afterwards it is given back, or, if the driver refused, recorded again. */
void charge_entry_freed(const struct table_entry *entry, CUresult result);

/* ---- pools (pools.c) ---- */

/* Lets go of what pools returned to the driver since; true if that changed anything. */
bool pools_refresh(void);
void pools_freed(const struct table_entry *entry);
/* The device's primary context ended, which may have ended allocations of its pools too. */
void pools_context_ended(CUdevice device);
void pools_forget(void);
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
void graphs_forget(void);

/* ---- memory freed in stream order that no pool made (deferred_free.c) ---- */

/* Takes over an entry whose free was put into the stream just now. */
void deferred_free_add(const struct table_entry *entry, CUstream stream, bool per_thread);
/* Gives back what was freed since; true if that changed anything. */
bool deferred_free_refresh(void);
/* A context takes its memory and its events with it: until the end, nothing asks for its events. */
void deferred_free_begin_teardown(CUcontext context);
void deferred_free_end_teardown(CUcontext context, bool destroyed);
void deferred_free_forget(void);

/* ---- physical memory (virtual_memory.c, multicast.c) ---- */

void virtual_memory_forget(void);

#pragma GCC visibility pop

#endif
