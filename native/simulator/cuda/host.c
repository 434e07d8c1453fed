/* Page-locked host memory: allocated here, or the program's own, registered. Device addresses are host addresses. */
#define _GNU_SOURCE
#include "driver.h"

#include <sys/mman.h>
#include <unistd.h>

#define HOST_ALLOC_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define HOST_REGISTER_FLAGS                                                                                           \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

static size_t whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || (flags & ~(unsigned int)HOST_ALLOC_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t mapped = whole_pages(bytes);
    void *memory = mapped == 0 ? MAP_FAILED
                               : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct range range = {.start = (uintptr_t)memory, .size = bytes, .kind = RANGE_HOST,
                          .flags = flags | CU_MEMHOSTALLOC_DEVICEMAP, .owner = context};
    if (!range_add(&range)) {
        munmap(memory, mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = memory;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocHost_v2(void **address, size_t bytes) {
    return cuMemHostAlloc(address, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void *address) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS || address == NULL) {
        return result;
    }
    struct range removed;
    if (!range_remove((uintptr_t)address, RANGE_HOST, &removed)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(address, whole_pages(removed.size));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || (flags & ~(unsigned int)HOST_REGISTER_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct range range = {.start = (uintptr_t)address, .size = bytes, .kind = RANGE_REGISTERED,
                          .flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP, .owner = context};
    return range_add(&range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult CUDAAPI cuMemHostUnregister(void *address) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range removed;
    bool found = address != NULL && range_remove((uintptr_t)address, RANGE_REGISTERED, &removed);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

static bool find_host(const void *address, struct range *range) {
    return range_find((uintptr_t)address, range) && (range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED);
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address, unsigned int flags) {
    CUresult result = driver_ready();
    struct range range;
    if (result == CUDA_SUCCESS && (device_address == NULL || flags != 0 || !find_host(address, &range))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *device_address = (CUdeviceptr)(uintptr_t)address;
    }
    return result;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int *flags, void *address) {
    CUresult result = driver_ready();
    struct range range;
    if (result == CUDA_SUCCESS && (flags == NULL || !find_host(address, &range))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *flags = range.flags;
    }
    return result;
}
