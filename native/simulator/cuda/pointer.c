/* What a pointer is: cuPointerGetAttribute(s), and advice about managed memory. */
#include "driver.h"

#include <string.h>

struct pointee {
    bool known, host;
    CUdeviceptr start;
    size_t size;
    struct device *device;
    struct context *context;
    struct block *block; /* NULL outside the arenas */
    struct range range;
};

static struct pointee look_up(CUdeviceptr address) {
    struct pointee pointee = {0};
    struct block *block = arena_find(address, &pointee.device, &pointee.start);
    if (block != NULL && address - pointee.start < block->size) {
        enum block_kind kind = atomic_load(&block->kind);
        bool of_context = kind == BLOCK_LINEAR || kind == BLOCK_MANAGED;
        pointee.known = true;
        pointee.size = block->size;
        pointee.block = block;
        pointee.context = of_context ? block->owner : NULL;
    } else if (range_find(address, &pointee.range)) {
        pointee.known = true;
        pointee.start = pointee.range.start;
        pointee.size = pointee.range.size;
        pointee.host = pointee.range.kind == RANGE_HOST || pointee.range.kind == RANGE_REGISTERED;
        pointee.context = pointee.host ? pointee.range.owner : NULL;
        pointee.device = pointee.host && pointee.context != NULL ? pointee.context->device : pointee.range.device;
    }
    return pointee;
}

static uint64_t buffer_id(const struct pointee *pointee) {
    static _Atomic uint64_t next = 1;
    if (pointee->block == NULL) {
        return pointee->start;
    }
    uint64_t none = 0;
    _Atomic uint64_t *id = (_Atomic uint64_t *)&pointee->block->id;
    if (atomic_load(id) == 0) {
        atomic_compare_exchange_strong(id, &none, atomic_fetch_add(&next, 1));
    }
    return atomic_load(id);
}

static bool is_kind(const struct pointee *pointee, enum block_kind kind) {
    return pointee->block != NULL && atomic_load(&pointee->block->kind) == kind;
}

/* Stores the attribute of a known pointer. */
static CUresult store(const struct pointee *pointee, CUpointer_attribute attribute, CUdeviceptr address, void *data) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = (CUcontext)pointee->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = pointee->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = pointee->host || is_kind(pointee, BLOCK_MANAGED) ? (void *)(uintptr_t)address : NULL;
        return pointee->host || is_kind(pointee, BLOCK_MANAGED) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned int *)data = pointee->block != NULL ? pointee->block->sync_memops : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = buffer_id(pointee);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned int *)data = is_kind(pointee, BLOCK_MANAGED);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = pointee->device != NULL ? pointee->device->ordinal : -1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned int *)data = is_kind(pointee, BLOCK_LINEAR);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = pointee->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = pointee->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned int *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = is_kind(pointee, BLOCK_POOLED) ? pointee->block->owner : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(unsigned int *)data = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct pointee pointee = look_up(address);
    return data != NULL && pointee.known ? store(&pointee, attribute, address, data) : CUDA_ERROR_INVALID_VALUE;
}

static void store_nothing(CUpointer_attribute attribute, void *data) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = -2; /* what the driver says of memory it does not know */
        break;
    default:
        *(unsigned int *)data = 0;
    }
}

/* Unlike the single form, an unknown pointer is not an error here: its attributes are zero. */
CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == 0 || attributes == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct pointee pointee = look_up(address);
    for (unsigned int i = 0; i < count; i++) {
        if (data[i] == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!pointee.known || store(&pointee, attributes[i], address, data[i]) != CUDA_SUCCESS) {
            store_nothing(attributes[i], data[i]);
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct pointee pointee = look_up(address);
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || pointee.block == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pointee.block->sync_memops = *(const unsigned int *)value != 0;
    return CUDA_SUCCESS;
}

/* ---- managed memory: advice is taken and changes nothing, because every byte is everywhere ---- */

static CUresult managed(CUdeviceptr address, size_t bytes) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct pointee pointee = look_up(address);
    bool inside = is_kind(&pointee, BLOCK_MANAGED) && bytes != 0 && bytes <= pointee.size - (address - pointee.start);
    return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
    (void)advice;
    (void)device;
    return managed(address, bytes);
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
    (void)advice;
    (void)location;
    return managed(address, bytes);
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream handle) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    (void)device;
    return result == CUDA_SUCCESS ? managed(address, bytes) : result;
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                                       CUstream handle) {
    return flags == 0 ? cuMemPrefetchAsync(address, bytes, location.id, handle) : CUDA_ERROR_INVALID_VALUE;
}
