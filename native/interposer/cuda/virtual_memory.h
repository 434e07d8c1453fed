/* Physical memory of cuMemCreate and what holds it: handles, mappings, and bindings to multicast objects. */
#ifndef GPUSLICE_VIRTUAL_MEMORY_H
#define GPUSLICE_VIRTUAL_MEMORY_H

#include "charge.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

/* Physical memory, or a multicast object, which holds no memory of its own. The driver frees it when nothing holds it.
 *
 * The counts change before the driver is asked to drop something, because the driver may hand a handle or an address that
 * it has back to another thread at once. They change back if the driver refuses. */
struct physical {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    uint32_t gpu;   /* NO_GPU: not charged */
    CUdevice device;
    int references; /* to the handle */
    int holders;    /* mappings and bindings */
    int calls;      /* to the driver, in flight, that drop something of it: until they are over it stays charged */
};

/* One lock for all of it. It is never held during a call to the driver. */
void virtual_memory_lock(void);
void virtual_memory_unlock(void);

/* ---- under the lock ---- */

/* NULL for what is not charged here: imported memory is its owner's to pay for. */
struct physical *physical_of_handle(CUmemGenericAllocationHandle handle);
struct physical *physical_at_address(CUdeviceptr address);
/* Before and after a call to the driver that drops a reference or a holder. */
void physical_begin_drop(struct physical *physical, int references, int holders);
void physical_end_drop(struct physical *physical, int references, int holders, bool dropped);
/* Adds a holder before a call to the driver that makes it; physical_end_drop takes it back. */
void physical_hold(struct physical *physical);

/* Records what the driver made, and takes its handle's first reference. NULL when the host has no memory. */
struct physical *physical_new(void);
bool physical_record(struct physical *physical);

/* ---- multicast.c ---- */

/* Under the lock. The multicast object is gone, and its bindings with it. */
void multicast_ended(const struct physical *multicast);
void multicast_forget(void);

#pragma GCC visibility pop

#endif
