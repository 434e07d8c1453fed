/* Stream-ordered memory: pools hold what was freed to them until a synchronization finds them above their release
 * threshold, or the program trims them. Memory nodes of graphs draw on a pool of their own, one per device. */
#include "driver.h"

#include <string.h>

#define CHUNK_UNITS (2u * 1024 * 1024 / SIM_UNIT) /* pools grow in steps of this, as the driver's do */

struct pool {
    struct object object;
    struct device *device;
    struct pool *next;     /* all pools of the process, under pools_lock */
    pthread_mutex_t lock;  /* guards the numbers below */
    uint64_t used, used_high, reserved, reserved_high; /* units */
    uint64_t release_threshold;                        /* bytes */
    int reuse[3];
    bool retired; /* destroyed by its owner, waiting for its last block */
    CUmemPoolProps properties;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;

static struct pool *pool_new(struct device *device) {
    struct pool *pool = object_new(KIND_POOL, sizeof *pool);
    if (pool != NULL) {
        pool->device = device;
        pthread_mutex_init(&pool->lock, NULL);
        pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
        pool->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        pool->properties.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal};
        pthread_mutex_lock(&pools_lock);
        pool->next = pools;
        pools = pool;
        pthread_mutex_unlock(&pools_lock);
    }
    return pool;
}

static void pool_delete(struct pool *pool) {
    pthread_mutex_lock(&pools_lock);
    struct pool **link = &pools;
    while (*link != pool) {
        link = &(*link)->next;
    }
    *link = pool->next;
    pthread_mutex_unlock(&pools_lock);
    pthread_mutex_destroy(&pool->lock);
    object_free(pool, KIND_POOL);
}

/* Under driver.lock. */
CUresult pool_open_defaults(struct device *device) {
    if (device->default_pool == NULL) {
        struct pool *first = pool_new(device), *second = pool_new(device);
        if (first == NULL || second == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        device->default_pool = first;
        device->graph_pool = second;
        atomic_store(&device->current_pool, first);
    }
    return CUDA_SUCCESS;
}

/* ---- the numbers; under pool->lock ---- */

static bool pool_use(struct pool *pool, uint64_t units) {
    if (pool->used + units > pool->reserved) {
        uint64_t missing = pool->used + units - pool->reserved;
        uint64_t grow = (missing + CHUNK_UNITS - 1) / CHUNK_UNITS * CHUNK_UNITS;
        if (!sim_memory_claim(&driver.process, pool->device->domain, grow)) {
            grow = missing; /* the last bytes of a GPU need not be whole chunks */
            if (!sim_memory_claim(&driver.process, pool->device->domain, grow)) {
                return false;
            }
        }
        pool->reserved += grow;
    }
    pool->used += units;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    return true;
}

static void pool_shrink(struct pool *pool, uint64_t keep) {
    uint64_t least = (pool->used + CHUNK_UNITS - 1) / CHUNK_UNITS * CHUNK_UNITS;
    keep = keep > least ? keep : least;
    if (pool->reserved > keep) {
        sim_memory_release(&driver.process, pool->device->domain, pool->reserved - keep);
        pool->reserved = keep;
    }
}

static void pool_unuse(struct pool *pool, uint64_t units) {
    pthread_mutex_lock(&pool->lock);
    pool->used -= units;
    bool last = pool->retired && pool->used == 0;
    if (last) {
        pool_shrink(pool, 0);
    }
    pthread_mutex_unlock(&pool->lock);
    atomic_store(&pool->device->freed_to_pool, true);
    if (last) {
        pool_delete(pool);
    }
}

size_t pool_trim(struct pool *pool, size_t keep_bytes) {
    pthread_mutex_lock(&pool->lock);
    pool_shrink(pool, units_of(keep_bytes));
    size_t kept = pool->reserved * SIM_UNIT;
    pthread_mutex_unlock(&pool->lock);
    return kept;
}

void pool_synchronized(struct device *device) {
    if (!atomic_exchange(&device->freed_to_pool, false)) {
        return;
    }
    pthread_mutex_lock(&pools_lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device == device && pool != device->graph_pool) { /* graphs keep theirs until they are trimmed */
            pool_trim(pool, pool->release_threshold < SIZE_MAX - SIM_UNIT ? pool->release_threshold : SIZE_MAX - SIM_UNIT);
        }
    }
    pthread_mutex_unlock(&pools_lock);
}

/* ---- blocks ---- */

CUresult pool_allocate(struct pool *pool, size_t bytes, enum block_kind kind, CUdeviceptr *address) {
    uint64_t units = units_of(bytes);
    pthread_mutex_lock(&pool->lock);
    bool granted = pool_use(pool, units);
    pthread_mutex_unlock(&pool->lock);
    if (!granted) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct block *block = arena_take(pool->device, bytes, kind, pool, address);
    if (block == NULL) {
        pool_unuse(pool, units);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_store(&block->charged, 1);
    return CUDA_SUCCESS;
}

CUresult pool_free(struct device *device, CUdeviceptr address, struct block *block) {
    uint64_t units = units_of(block->size);
    struct pool *pool = block->owner;
    if (!arena_give(device, address, block, BLOCK_POOLED)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pool_unuse(pool, units);
    return CUDA_SUCCESS;
}

CUresult pool_reserve_address(struct pool *pool, size_t bytes, CUdeviceptr *address) {
    return arena_take(pool->device, bytes, BLOCK_GRAPH, pool, address) != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_charge_address(struct pool *pool, CUdeviceptr address) {
    struct device *device;
    CUdeviceptr start;
    struct block *block = arena_find(address, &device, &start);
    if (block == NULL || block->owner != pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (atomic_exchange(&block->charged, 1)) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&pool->lock);
    bool granted = pool_use(pool, units_of(block->size));
    pthread_mutex_unlock(&pool->lock);
    if (!granted) {
        atomic_store(&block->charged, 0);
    }
    return granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void pool_refund(struct device *device, CUdeviceptr address, struct block *block) {
    (void)device;
    (void)address;
    if (atomic_exchange(&block->charged, 0)) {
        pool_unuse(block->owner, units_of(block->size));
    }
}

CUresult pool_discard_address(struct pool *pool, CUdeviceptr address) {
    struct device *device;
    CUdeviceptr start;
    struct block *block = arena_find(address, &device, &start);
    if (block == NULL || block->owner != pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pool_refund(device, start, block);
    arena_give(device, start, block, BLOCK_GRAPH);
    return CUDA_SUCCESS;
}

static void end_block(struct device *device, CUdeviceptr address, struct block *block) {
    if (atomic_load(&block->kind) == BLOCK_GRAPH) {
        pool_refund(device, address, block); /* its address stays the graph's */
    } else {
        pool_free(device, address, block);
    }
}

void pool_reset(struct device *device) {
    pthread_mutex_lock(&pools_lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device == device && !pool->retired) {
            arena_for_owner(device, pool, end_block);
            pool_trim(pool, 0);
        }
    }
    pthread_mutex_unlock(&pools_lock);
}

/* ---- allocation in stream order ---- */

static CUresult allocate_on(struct stream *stream, struct pool *pool, size_t bytes, CUdeviceptr *address) {
    if (address == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (atomic_load(&stream->capture) != NULL) {
        struct operation operation = {.kind = OPERATION_ALLOCATE,
                                      .memory = {.bytes = bytes, .pool = stream->context->device->graph_pool}};
        return capture_add(stream, &operation, address);
    }
    if (bytes == 0) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    return pool_allocate(pool, bytes, BLOCK_POOLED, address);
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream handle) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return allocate_on(stream, atomic_load(&stream->context->device->current_pool), bytes, address);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream_handle) {
    struct stream *stream;
    CUresult result = stream_from(stream_handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct pool *pool = (struct pool *)handle;
    return object_is(pool, KIND_POOL) ? allocate_on(stream, pool, bytes, address) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result != CUDA_SUCCESS || address == 0) {
        return result;
    }
    struct operation operation = {.kind = OPERATION_FREE, .memory = {.address = address}};
    return stream_submit(stream, &operation);
}

/* ---- pools as handles ---- */

static CUresult device_of(const CUmemLocation *location, struct device **device) {
    CUresult result = location != NULL ? device_of_location(location, device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) { /* a pool may be asked for before the first context */
        pthread_mutex_lock(&driver.lock);
        result = arena_open(*device);
        result = result == CUDA_SUCCESS ? pool_open_defaults(*device) : result;
        pthread_mutex_unlock(&driver.lock);
    }
    return result;
}

static CUresult device_numbered(CUdevice ordinal, struct device **device) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
    return device_of(&location, device);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties) {
    struct device *device;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || properties == NULL || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = device_of(&properties->location, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct pool *pool = pool_new(device);
    if (pool == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->properties = *properties;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
    struct pool *pool = (struct pool *)handle;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(pool, KIND_POOL) || pool == pool->device->default_pool || pool == pool->device->graph_pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct pool *current = pool;
    atomic_compare_exchange_strong(&pool->device->current_pool, &current, pool->device->default_pool);
    if (!object_retire(pool, KIND_POOL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&pool->lock);
    pool->retired = true;
    pool_shrink(pool, 0);
    bool empty = pool->used == 0;
    pthread_mutex_unlock(&pool->lock);
    if (empty) {
        pool_delete(pool);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    if (!object_is(handle, KIND_POOL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pool_trim((struct pool *)handle, keep);
    return CUDA_SUCCESS;
}

/* The number behind an attribute, and whether it is counted in units. */
static void *attribute_of(struct pool *pool, CUmemPool_attribute attribute, bool *units, bool *is_int) {
    *units = *is_int = false;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *is_int = true;
        return &pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->release_threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *units = true;
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *units = true;
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *units = true;
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *units = true;
        return &pool->used_high;
    default:
        return NULL;
    }
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    struct pool *pool = (struct pool *)handle;
    if (!object_is(pool, KIND_POOL) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool units, is_int;
    const void *number = attribute_of(pool, attribute, &units, &is_int);
    if (number == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&pool->lock);
    if (is_int) {
        *(int *)value = *(const int *)number;
    } else {
        *(cuuint64_t *)value = *(const uint64_t *)number * (units ? SIM_UNIT : 1);
    }
    pthread_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    struct pool *pool = (struct pool *)handle;
    if (!object_is(pool, KIND_POOL) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool units, is_int;
    void *number = attribute_of(pool, attribute, &units, &is_int);
    bool high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    if (number == NULL || (units && (!high || *(cuuint64_t *)value != 0))) {
        return CUDA_ERROR_INVALID_VALUE; /* of the counters only the high marks can be set, and only to zero */
    }
    pthread_mutex_lock(&pool->lock);
    if (is_int) {
        *(int *)number = *(int *)value;
    } else {
        *(uint64_t *)number = *(cuuint64_t *)value;
    }
    pthread_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count) {
    if (!object_is(handle, KIND_POOL) || (access == NULL && count != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS; /* every device of this machine reaches every other */
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location) {
    if (!object_is(handle, KIND_POOL) || flags == NULL || location == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

/* ---- a device's pools ---- */

static CUresult give_pool(CUresult result, struct pool *pool, CUmemoryPool *handle) {
    if (result == CUDA_SUCCESS && handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUmemoryPool)pool;
    }
    return result;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *handle, CUdevice ordinal) {
    struct device *device = NULL;
    CUresult result = device_numbered(ordinal, &device);
    return give_pool(result, result == CUDA_SUCCESS ? device->default_pool : NULL, handle);
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice ordinal) {
    struct device *device = NULL;
    CUresult result = device_numbered(ordinal, &device);
    return give_pool(result, result == CUDA_SUCCESS ? atomic_load(&device->current_pool) : NULL, handle);
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
    struct device *device;
    CUresult result = device_numbered(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct pool *pool = (struct pool *)handle;
    if (!object_is(pool, KIND_POOL) || pool->device != device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    atomic_store(&device->current_pool, pool);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type) {
    bool usable = location != NULL && type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return usable ? cuDeviceGetDefaultMemPool(handle, location->id) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type) {
    bool usable = location != NULL && type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return usable ? cuDeviceGetMemPool(handle, location->id) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle) {
    bool usable = location != NULL && type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return usable ? cuDeviceSetMemPool(location->id, handle) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice ordinal) {
    struct device *device;
    CUresult result = device_numbered(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        pool_trim(device->graph_pool, 0);
    }
    return result;
}

static CUmemPool_attribute pool_attribute_of(CUgraphMem_attribute attribute) {
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: return CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: return CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: return CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    default: return (CUmemPool_attribute)0;
    }
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
    struct device *device;
    CUresult result = device_numbered(ordinal, &device);
    return result == CUDA_SUCCESS
               ? cuMemPoolGetAttribute((CUmemoryPool)device->graph_pool, pool_attribute_of(attribute), value)
               : result;
}

CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
    struct device *device;
    CUresult result = device_numbered(ordinal, &device);
    return result == CUDA_SUCCESS
               ? cuMemPoolSetAttribute((CUmemoryPool)device->graph_pool, pool_attribute_of(attribute), value)
               : result;
}
