/* Virtual memory management: physical memory is charged when it is made and given back when neither a handle nor a
 * mapping nor a binding holds it, which is when the driver frees it. */
#define _GNU_SOURCE
#include "virtual_memory.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

struct mapping {
    CUdeviceptr start;
    size_t size;
    struct physical *physical;
    struct mapping *next; /* among those that one call unmaps */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *physicals; /* tree of struct physical by handle */
static void *mappings;  /* tree of struct mapping by address */

void virtual_memory_lock(void) {
    pthread_mutex_lock(&lock);
}

void virtual_memory_unlock(void) {
    pthread_mutex_unlock(&lock);
}

/* The trees are not freed: another thread of the parent may have been changing them. */
void virtual_memory_forget(void) {
    physicals = mappings = NULL;
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    multicast_forget();
}

/* ---- physical memory; under the lock ---- */

static int compare_physicals(const void *one, const void *other) {
    CUmemGenericAllocationHandle first = ((const struct physical *)one)->handle;
    CUmemGenericAllocationHandle second = ((const struct physical *)other)->handle;
    return first < second ? -1 : first > second;
}

struct physical *physical_of_handle(CUmemGenericAllocationHandle handle) {
    struct physical wanted = {.handle = handle};
    struct physical **found = tfind(&wanted, &physicals, compare_physicals);
    return found != NULL ? *found : NULL;
}

struct physical *physical_new(void) {
    return calloc(1, sizeof(struct physical));
}

static void remove_record(struct physical *physical) {
    if (physical_of_handle(physical->handle) == physical) {
        tdelete(physical, &physicals, compare_physicals);
    }
}

static bool is_held(const struct physical *physical) {
    return physical->references != 0 || physical->holders != 0;
}

/* Until the driver has everything back: then the charge goes. */
static void settle(struct physical *physical) {
    if (is_held(physical) || physical->calls != 0) {
        return;
    }
    multicast_ended(physical);
    if (physical->gpu != NO_GPU) {
        charge_back(physical->gpu, SHARED_LANE, physical->bytes);
    }
    free(physical);
}

bool physical_record(struct physical *physical) {
    struct physical *former = physical_of_handle(physical->handle);
    if (former != NULL) { /* the driver gave its handle out again, so nothing refers to it any more */
        remove_record(former);
        former->references = 0;
        settle(former);
    }
    return tsearch(physical, &physicals, compare_physicals) != NULL;
}

void physical_begin_drop(struct physical *physical, int references, int holders) {
    physical->references -= references;
    physical->holders -= holders;
    physical->calls++;
    if (!is_held(physical)) { /* its handle may be another's as soon as the driver has it back */
        remove_record(physical);
    }
}

void physical_end_drop(struct physical *physical, int references, int holders, bool dropped) {
    physical->calls--;
    if (!dropped) {
        bool was_held = is_held(physical);
        physical->references += references;
        physical->holders += holders;
        if (!was_held) {
            physical_record(physical); /* without memory for it, it stays charged: the safe side */
        }
    }
    settle(physical);
}

void physical_hold(struct physical *physical) {
    physical->holders++;
}

/* ---- handles ---- */

static CUresult create(struct physical *physical, CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    physical->handle = *handle;
    physical->references = 1;
    pthread_mutex_lock(&lock);
    bool recorded = physical_record(physical);
    pthread_mutex_unlock(&lock);
    if (!recorded) {
        REAL(cuMemRelease)(*handle);
    }
    return recorded ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    if (handle == NULL || properties == NULL || location_is_host(&properties->location)) {
        return REAL(cuMemCreate)(handle, size, properties, flags); /* an error, or host memory */
    }
    struct physical *physical = physical_new();
    CUdevice device = -1;
    uint32_t gpu = location_device(&properties->location, &device) ? gpu_of_device(device) : NO_GPU;
    if (physical == NULL || !charge_begin(gpu, SHARED_LANE, size)) {
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *physical = (struct physical){.bytes = size, .gpu = gpu, .device = device};
    CUresult result = create(physical, handle, size, properties, flags);
    if (result != CUDA_SUCCESS) {
        charge_back(gpu, SHARED_LANE, size);
        free(physical);
    }
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_of_handle(handle);
    if (physical != NULL && physical->references > 0) {
        physical_begin_drop(physical, 1, 0);
    } else {
        physical = NULL;
    }
    pthread_mutex_unlock(&lock);
    CUresult result = REAL(cuMemRelease)(handle);
    if (physical != NULL) {
        pthread_mutex_lock(&lock);
        physical_end_drop(physical, 1, 0, result == CUDA_SUCCESS);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_at_address((CUdeviceptr)(uintptr_t)address);
    if (physical != NULL) {
        physical->references++; /* before the driver's: an unmapping in another thread must not give the memory back */
    }
    pthread_mutex_unlock(&lock);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (physical != NULL && result != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        physical_begin_drop(physical, 1, 0);
        physical_end_drop(physical, 1, 0, true);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

/* ---- mappings ---- */

/* Ranges that overlap are equal: mappings do not overlap, so a range finds any mapping inside it. */
static int compare_mappings(const void *one, const void *other) {
    const struct mapping *first = one, *second = other;
    if (first->start < second->start) {
        return second->start - first->start >= first->size ? -1 : 0;
    }
    return first->start - second->start >= second->size ? 1 : 0;
}

static struct mapping *find_mapping(CUdeviceptr start, size_t size) {
    struct mapping wanted = {.start = start, .size = size};
    struct mapping **found = size != 0 ? tfind(&wanted, &mappings, compare_mappings) : NULL;
    return found != NULL ? *found : NULL;
}

struct physical *physical_at_address(CUdeviceptr address) {
    struct mapping *mapping = find_mapping(address, 1);
    return mapping != NULL ? mapping->physical : NULL;
}

/* Takes all mappings of the range out of the tree, before the driver unmaps them: then their addresses may be mapped
 * anew by another thread. */
static struct mapping *take_mappings(CUdeviceptr start, size_t size) {
    struct mapping *taken = NULL, *mapping;
    while ((mapping = find_mapping(start, size)) != NULL) {
        tdelete(mapping, &mappings, compare_mappings);
        physical_begin_drop(mapping->physical, 0, 1);
        mapping->next = taken;
        taken = mapping;
    }
    return taken;
}

static void end_unmapping(struct mapping *mapping, bool unmapped) {
    physical_end_drop(mapping->physical, 0, 1, unmapped);
    if (unmapped) {
        free(mapping);
    } else {
        tsearch(mapping, &mappings, compare_mappings); /* without memory for it, it stays charged: the safe side */
    }
}

static bool lies_within(const struct mapping *mapping, CUdeviceptr start, size_t size) {
    return mapping->start >= start && mapping->size <= size && mapping->start - start <= size - mapping->size;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    pthread_mutex_lock(&lock);
    struct mapping *taken = take_mappings(address, size);
    pthread_mutex_unlock(&lock);
    CUresult result = REAL(cuMemUnmap)(address, size);
    pthread_mutex_lock(&lock);
    while (taken != NULL) {
        struct mapping *mapping = taken;
        taken = mapping->next;
        end_unmapping(mapping, result == CUDA_SUCCESS && lies_within(mapping, address, size));
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The physical memory of a handle with one more holder; NULL for what is not charged here. */
static struct physical *hold_handle(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_of_handle(handle);
    if (physical != NULL) {
        physical_hold(physical);
    }
    pthread_mutex_unlock(&lock);
    return physical;
}

static void let_go(struct physical *physical) {
    physical_begin_drop(physical, 0, 1);
    physical_end_drop(physical, 0, 1, true);
}

static bool record_mapping(struct mapping *mapping) {
    struct mapping *stale;
    while ((stale = find_mapping(mapping->start, mapping->size)) != NULL) { /* the driver maps no address twice */
        tdelete(stale, &mappings, compare_mappings);
        let_go(stale->physical);
        free(stale);
    }
    return tsearch(mapping, &mappings, compare_mappings) != NULL;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct physical *physical = hold_handle(handle);
    if (physical == NULL) {
        return REAL(cuMemMap)(address, size, offset, handle, flags);
    }
    struct mapping *mapping = malloc(sizeof *mapping);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool recorded = false;
    if (mapping != NULL) {
        *mapping = (struct mapping){.start = address, .size = size, .physical = physical};
        result = REAL(cuMemMap)(address, size, offset, handle, flags);
    }
    pthread_mutex_lock(&lock);
    recorded = result == CUDA_SUCCESS && record_mapping(mapping);
    pthread_mutex_unlock(&lock);
    if (recorded) {
        return CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        REAL(cuMemUnmap)(address, size);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(mapping);
    pthread_mutex_lock(&lock);
    let_go(physical);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- sparse arrays ---- */

/* Memory that a sparse array uses lives on after its handle is released, and the driver does not tell until when. It
 * stays charged as long as the process lives: counting too much is the safe side. */
static CUresult keep_mapped(CUresult result, const CUarrayMapInfo *maps, unsigned int count) {
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (maps[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
            hold_handle(maps[i].memHandle.memHandle);
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
