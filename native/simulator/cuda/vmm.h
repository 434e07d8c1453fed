/* Physical memory as vmm.c and multicast.c share it. */
#ifndef GPUSLICE_SIMULATOR_VMM_H
#define GPUSLICE_SIMULATOR_VMM_H

#include "driver.h"

#define GRANULARITY (2ull << 20)

struct physical { /* CUmemGenericAllocationHandle */
    struct object object;
    struct device *device;
    size_t size;
    CUmemAllocationProp properties;
    int references, mappings; /* under vmm_lock; gone when both are zero */
    int file;                 /* a file of its own when it can be exported, else the arena's */
    uint64_t offset;
    CUdeviceptr address; /* of the arena's block; 0: has a file of its own */
    bool imported;       /* charged to the process that made it, or a multicast object, which has no memory */
    bool multicast;
    struct binding *bindings; /* of a multicast object */
};

struct binding { /* of physical memory, which stays until it is unbound or the multicast object is gone */
    struct physical *memory;
    CUdevice device;
    size_t offset, size;
    struct binding *next;
};

extern pthread_mutex_t vmm_lock;

static inline bool is_granular(size_t value) {
    return value != 0 && value % GRANULARITY == 0;
}

CUresult physical_back_with_file(struct physical *physical);
/* Under vmm_lock. */
struct physical *physical_from(CUmemGenericAllocationHandle handle);
void physical_drop(struct physical *physical, int references, int mappings);
void multicast_unbind_all(struct physical *multicast);

#endif
