/* A driver in which one call of a chosen function blocks until it is let go. In front of a copy of the simulator under
 * another SONAME (BEHIND), which answers for everything. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* The next call of that function blocks; NULL once one does. */
_Atomic(const char *) blocking_driver_chosen;
/* One while a call is blocked. The program sets it to zero to let the call go. */
_Atomic int blocking_driver_blocked;

static void *behind(const char *name) {
    const char *chosen = atomic_load(&blocking_driver_chosen);
    if (chosen != NULL && strcmp(chosen, name) == 0 &&
        atomic_compare_exchange_strong(&blocking_driver_chosen, &chosen, NULL)) {
        atomic_store(&blocking_driver_blocked, 1);
        while (atomic_load(&blocking_driver_blocked)) {
            usleep(200);
        }
    }
    return dlsym(dlopen(BEHIND, RTLD_NOW | RTLD_NOLOAD), name);
}

#define BLOCKS(name, parameters, arguments)                                                                           \
    CUresult name parameters {                                                                                        \
        CUresult(*real) parameters = (CUresult(*) parameters)behind(#name);                                           \
        return real arguments;                                                                                        \
    }

BLOCKS(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
       (handle, size, prop, flags))
BLOCKS(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
BLOCKS(cuMemMap, (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
       (address, size, offset, handle, flags))
BLOCKS(cuMemUnmap, (CUdeviceptr address, size_t size), (address, size))
BLOCKS(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))
BLOCKS(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value), (device, attribute, value))
BLOCKS(cuEventQuery, (CUevent event), (event))
