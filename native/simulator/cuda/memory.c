/* Linear, pitched and managed device memory, freeing of every kind, and what is left. */
#include "driver.h"

#define PITCH_ALIGNMENT 512u

/* Charges, then takes an address: the order in which a full GPU costs least. */
static CUresult allocate(struct context *context, size_t bytes, enum block_kind kind, CUdeviceptr *address) {
    struct device *device = context->device;
    uint64_t units = units_of(bytes);
    CUresult allowed = capture_check();
    if (allowed != CUDA_SUCCESS) {
        return allowed;
    }
    if (!sim_memory_claim(&driver.process, device->domain, units)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (arena_take(device, bytes, kind, context, address) == NULL) {
        sim_memory_release(&driver.process, device->domain, units);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return allocate(context, bytes, BLOCK_LINEAR, address);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                    unsigned int element_bytes) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool element_fits = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
    if (address == NULL || pitch == NULL || width == 0 || height == 0 || !element_fits || width > INT32_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t row = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT, bytes;
    if (__builtin_mul_overflow(row, height, &bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = allocate(context, bytes, BLOCK_LINEAR, address);
    if (result == CUDA_SUCCESS) {
        *pitch = row;
    }
    return result;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool attach_fits = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
    if (address == NULL || bytes == 0 || !attach_fits) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return allocate(context, bytes, BLOCK_MANAGED, address);
}

CUresult memory_free(CUdeviceptr address) {
    struct device *device;
    CUdeviceptr start;
    struct block *block = arena_find(address, &device, &start);
    if (block == NULL || start != address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    enum block_kind kind = atomic_load_explicit(&block->kind, memory_order_relaxed);
    switch (kind) {
    case BLOCK_LINEAR:
    case BLOCK_MANAGED: {
        uint64_t units = units_of(block->size);
        if (!arena_give(device, address, block, kind)) {
            return CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
        }
        sim_memory_release(&driver.process, device->domain, units);
        return CUDA_SUCCESS;
    }
    case BLOCK_POOLED:
        return pool_free(device, address, block);
    case BLOCK_GRAPH:
        pool_refund(device, address, block);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE; /* arrays and physical memory have calls of their own */
    }
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || address == 0) {
        return result;
    }
    result = capture_check();
    return result == CUDA_SUCCESS ? memory_free(address) : result;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device = context->device;
    sim_reap_sometimes(&driver.process);
    uint64_t used = sim_memory_used(&driver.process, device->domain) * SIM_UNIT;
    if (free_bytes != NULL) {
        *free_bytes = used < device->memory_bytes ? device->memory_bytes - used : 0;
    }
    if (total_bytes != NULL) {
        *total_bytes = device->memory_bytes;
    }
    return CUDA_SUCCESS;
}

static bool touch_block(CUdeviceptr address, size_t bytes) {
    struct device *device;
    CUdeviceptr start;
    struct block *block = arena_find(address, &device, &start);
    if (block == NULL || address - start > block->size || bytes > block->size - (address - start)) {
        return false;
    }
    atomic_store_explicit(&block->touched, 1, memory_order_relaxed);
    return true;
}

/* Mappings that lie side by side are one stretch of memory to a program. */
static bool inside_ranges(uintptr_t address, size_t bytes) {
    struct range range;
    while (range_find(address, &range) && (range.kind != RANGE_MAPPED || range.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)) {
        size_t covered = range.size - (address - range.start);
        if (covered >= bytes) {
            return true;
        }
        address += covered;
        bytes -= covered;
    }
    return false;
}

void *memory_bytes_at(CUdeviceptr address, size_t bytes) {
    return touch_block(address, bytes) || inside_ranges(address, bytes) ? (void *)(uintptr_t)address : NULL;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device;
    CUdeviceptr start;
    size_t size;
    struct range range;
    struct block *block = arena_find(address, &device, &start);
    if (block != NULL && address - start < block->size) {
        size = block->size;
    } else if (block == NULL && range_find(address, &range)) {
        start = range.start;
        size = range.size;
    } else {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = start;
    }
    if (bytes != NULL) {
        *bytes = size;
    }
    return CUDA_SUCCESS;
}
