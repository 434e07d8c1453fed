/* Virtual memory management: physical memory is charged when it is made and given back when neither a handle nor a
 * mapping holds it, which is when the driver frees it. Imported memory is its owner's to pay for and is not in the books. */
#include "charge.h"

#include <pthread.h>
#include <stdlib.h>

struct physical {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    uint32_t gpu;
    int references, mappings;
};

/* Held across the driver's call: a handle that the driver has back may be another thread's at once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct table handles;  /* handle -> struct physical in `owner` */
static struct table mappings; /* start of a mapping -> struct physical in `owner`, its size in `bytes` */

static struct physical *look_at(struct table *table, uint64_t key) {
    struct table_entry entry;
    if (!table_take(table, key, &entry)) {
        return NULL;
    }
    table_put(table, &entry); /* cannot fail: its place was just freed */
    return (struct physical *)(uintptr_t)entry.owner;
}

static void drop_if_unused(struct physical *physical) {
    struct table_entry entry;
    if (physical->references == 0 && physical->mappings == 0) {
        table_take(&handles, physical->handle, &entry);
        charge_back(physical->gpu, SHARED_LANE, physical->bytes);
        free(physical);
    }
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    if (handle == NULL || properties == NULL || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return REAL(cuMemCreate)(handle, size, properties, flags); /* an error, or host memory */
    }
    struct physical *physical = malloc(sizeof *physical);
    uint32_t gpu = gpu_of_device(properties->location.id);
    if (physical == NULL || !charge_begin(gpu, SHARED_LANE, size)) {
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result == CUDA_SUCCESS) {
        *physical = (struct physical){.handle = *handle, .bytes = size, .gpu = gpu, .references = 1};
        struct table_entry entry = {.key = *handle, .owner = (uint64_t)(uintptr_t)physical};
        if (!table_put(&handles, &entry)) {
            REAL(cuMemRelease)(*handle);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) {
        charge_back(gpu, SHARED_LANE, size);
        free(physical);
    }
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct physical *physical = look_at(&handles, handle);
    CUresult result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS && physical != NULL && physical->references > 0) {
        physical->references--;
        drop_if_unused(physical);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct physical *physical = result == CUDA_SUCCESS ? look_at(&handles, *handle) : NULL;
    if (physical != NULL) {
        physical->references++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemMap)(address, size, offset, handle, flags);
    struct physical *physical = result == CUDA_SUCCESS ? look_at(&handles, handle) : NULL;
    if (physical != NULL) {
        struct table_entry entry = {.key = address, .owner = (uint64_t)(uintptr_t)physical, .bytes = size};
        if (table_put(&mappings, &entry)) {
            physical->mappings++;
        } else {
            REAL(cuMemUnmap)(address, size);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* One call may unmap several mappings that lie side by side. Those of imported memory are not in the books: their sizes
 * are asked of the driver before they are gone. */
CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    pthread_mutex_lock(&lock);
    size_t first_size = 0;
    CUdeviceptr first_start = 0;
    bool known = look_at(&mappings, address) != NULL;
    if (!known && REAL(cuMemGetAddressRange_v2)(&first_start, &first_size, address) != CUDA_SUCCESS) {
        first_size = size;
    }
    CUresult result = REAL(cuMemUnmap)(address, size);
    for (CUdeviceptr at = address; result == CUDA_SUCCESS && at < address + size;) {
        struct table_entry entry;
        if (table_take(&mappings, at, &entry)) {
            struct physical *physical = (struct physical *)(uintptr_t)entry.owner;
            at += entry.bytes;
            physical->mappings--;
            drop_if_unused(physical);
        } else {
            at += at == address && first_size != 0 ? first_size : 2u << 20; /* the smallest granularity there is */
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Memory that sparse arrays or multicast objects use lives on after its handle is released, and the driver does not tell
 * until when. It stays charged as long as the process lives: counting too much is the safe side. */
static void keep(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct physical *physical = look_at(&handles, handle);
    if (physical != NULL) {
        physical->mappings++;
    }
    pthread_mutex_unlock(&lock);
}

static CUresult keep_mapped(CUresult result, const CUarrayMapInfo *maps, unsigned int count) {
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (maps[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
            keep(maps[i].memHandle.memHandle);
        }
    }
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *maps, unsigned int count, CUstream stream) {
    return keep_mapped(REAL(cuMemMapArrayAsync)(maps, count, stream), maps, count);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *maps, unsigned int count, CUstream stream) {
    return keep_mapped(REAL(cuMemMapArrayAsync_ptsz)(maps, count, stream), maps, count);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
                            CUmemGenericAllocationHandle memory, size_t offset, size_t size, unsigned long long flags) {
    CUresult result = REAL(cuMulticastBindMem)(multicast, multicast_offset, memory, offset, size, flags);
    if (result == CUDA_SUCCESS) {
        keep(memory);
    }
    return result;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
                               CUmemGenericAllocationHandle memory, size_t offset, size_t size, unsigned long long flags) {
    CUresult result = REAL(cuMulticastBindMem_v2)(multicast, device, multicast_offset, memory, offset, size, flags);
    if (result == CUDA_SUCCESS) {
        keep(memory);
    }
    return result;
}
