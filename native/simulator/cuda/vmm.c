/* Virtual memory management: addresses, physical memory and the mapping between them, each on its own. */
#define _GNU_SOURCE
#include "vmm.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LABEL_MAGIC 0x59524f4d454d5047ull /* "GPMEMORY" */

struct label { /* the last page of an exported file, so that an importer knows what it is */
    uint64_t magic, size;
    CUuuid uuid;
};

struct reservation {
    uintptr_t start;
    size_t size;
};

pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct reservation reservations[4096];
static size_t reservation_count;

/* ---- addresses ---- */

static void *map_nothing(void *address, size_t size, int flags) {
    return mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

/* Kernel mappings are aligned to pages only, so ask for more and give the ends back. */
static uintptr_t reserve_aligned(size_t size, size_t alignment, uintptr_t wanted) {
    if (wanted != 0 && map_nothing((void *)wanted, size, MAP_FIXED_NOREPLACE) == (void *)wanted) {
        return wanted;
    }
    char *start = map_nothing(NULL, size + alignment, 0);
    if (start == MAP_FAILED) {
        return 0;
    }
    uintptr_t aligned = ((uintptr_t)start + alignment - 1) / alignment * alignment;
    size_t before = aligned - (uintptr_t)start;
    if (before != 0) {
        munmap(start, before);
    }
    munmap((void *)(aligned + size), alignment - before);
    return aligned;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                                     unsigned long long flags) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool alignment_fits = (alignment & (alignment - 1)) == 0;
    if (address == NULL || !is_granular(size) || !alignment_fits || flags != 0 || wanted % GRANULARITY != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    alignment = alignment > GRANULARITY ? alignment : GRANULARITY;
    size_t extended;
    if (__builtin_add_overflow(size, alignment, &extended)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uintptr_t start = reserve_aligned(size, alignment, wanted);
    if (start == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&vmm_lock);
    if (reservation_count < sizeof reservations / sizeof reservations[0]) {
        reservations[reservation_count++] = (struct reservation){start, size};
        *address = start;
    } else {
        munmap((void *)start, size);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

static bool overlaps_mapping(uintptr_t start, size_t size) {
    struct range range;
    for (uintptr_t at = start; at < start + size; at += GRANULARITY) {
        if (range_find(at, &range)) {
            return true;
        }
    }
    return false;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&vmm_lock);
    for (size_t i = 0; i < reservation_count; i++) {
        if (reservations[i].start == address && reservations[i].size == size && !overlaps_mapping(address, size)) {
            munmap((void *)(uintptr_t)address, size);
            reservations[i] = reservations[--reservation_count];
            result = CUDA_SUCCESS;
            break;
        }
    }
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

/* ---- physical memory ---- */

CUresult physical_back_with_file(struct physical *physical) {
    physical->file = memfd_create("gpuslice-sim-exported-memory", MFD_CLOEXEC);
    if (physical->file == -1 || ftruncate(physical->file, (off_t)(physical->size + GRANULARITY)) == -1) {
        if (physical->file != -1) {
            close(physical->file);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct label label = {LABEL_MAGIC, physical->size, physical->device->uuid};
    ssize_t written = pwrite(physical->file, &label, sizeof label, (off_t)physical->size);
    return written == (ssize_t)sizeof label ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult back_with_arena(struct physical *physical) {
    struct block *block = arena_take(physical->device, physical->size, BLOCK_PHYSICAL, physical, &physical->address);
    if (block == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_store(&block->touched, 1); /* it is written through other addresses */
    physical->file = arena_file(physical->device);
    physical->offset = arena_offset(physical->device, physical->address);
    return CUDA_SUCCESS;
}

/* Under vmm_lock, when neither a handle nor a mapping is left. */
static void free_physical(struct physical *physical) {
    struct device *device = physical->device;
    multicast_unbind_all(physical);
    if (physical->address != 0) {
        CUdeviceptr start;
        struct block *block = arena_find(physical->address, &device, &start);
        arena_give(device, physical->address, block, BLOCK_PHYSICAL);
    } else {
        close(physical->file);
    }
    if (!physical->imported) {
        sim_memory_release(&driver.process, device->domain, units_of(physical->size));
    }
    object_free(physical, KIND_PHYSICAL);
}

void physical_drop(struct physical *physical, int references, int mappings) {
    physical->references -= references;
    physical->mappings -= mappings;
    if (physical->references == 0) {
        object_retire(physical, KIND_PHYSICAL); /* the handle is dead; mappings may live on */
    }
    if (physical->references == 0 && physical->mappings == 0) {
        free_physical(physical);
    }
}

static CUresult check_properties(const CUmemAllocationProp *properties, struct device **device) {
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (properties->requestedHandleTypes & ~(unsigned int)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return device_of_location(&properties->location, device);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                             unsigned long long flags) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device;
    result = check_properties(properties, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || !is_granular(size) || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    result = arena_open(device);
    pthread_mutex_unlock(&driver.lock);
    if (result != CUDA_SUCCESS || !sim_memory_claim(&driver.process, device->domain, units_of(size))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical *physical = object_new(KIND_PHYSICAL, sizeof *physical);
    if (physical != NULL) {
        physical->device = device;
        physical->size = size;
        physical->properties = *properties;
        physical->references = 1;
        result = properties->requestedHandleTypes != 0 ? physical_back_with_file(physical) : back_with_arena(physical);
        if (result != CUDA_SUCCESS && object_retire(physical, KIND_PHYSICAL)) {
            object_free(physical, KIND_PHYSICAL);
        }
    }
    if (physical == NULL || result != CUDA_SUCCESS) {
        sim_memory_release(&driver.process, device->domain, units_of(size));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

struct physical *physical_from(CUmemGenericAllocationHandle handle) {
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return object_is(physical, KIND_PHYSICAL) ? physical : NULL;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (driver_ready() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&vmm_lock);
    struct physical *physical = physical_from(handle);
    if (physical != NULL) {
        physical_drop(physical, 1, 0);
    }
    pthread_mutex_unlock(&vmm_lock);
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct range range;
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&vmm_lock);
    if (range_find((uintptr_t)address, &range) && range.kind == RANGE_MAPPED) {
        struct physical *physical = range.owner;
        if (physical->references++ == 0) { /* only its mappings kept it: it has a handle again */
            atomic_store(&physical->object.kind, KIND_PHYSICAL);
        }
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

/* ---- mapping ---- */

static bool is_reserved(uintptr_t start, size_t size) {
    for (size_t i = 0; i < reservation_count; i++) {
        uintptr_t inside = start - reservations[i].start;
        if (start >= reservations[i].start && inside < reservations[i].size && size <= reservations[i].size - inside) {
            return true;
        }
    }
    return false;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&vmm_lock);
    struct physical *physical = physical_from(handle);
    if (physical != NULL && is_granular(size) && address % GRANULARITY == 0 && offset == 0 && flags == 0 &&
        size <= physical->size && is_reserved(address, size) && !overlaps_mapping(address, size)) {
        void *target = (void *)(uintptr_t)address;
        struct range range = {.start = address, .size = size, .kind = RANGE_MAPPED, .device = physical->device,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE, .owner = physical};
        result = CUDA_ERROR_OUT_OF_MEMORY;
        if (mmap(target, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, (off_t)physical->offset) != MAP_FAILED) {
            if (range_add(&range)) {
                madvise(target, size, MADV_DONTFORK);
                physical->mappings++;
                result = CUDA_SUCCESS;
            } else {
                map_nothing(target, size, MAP_FIXED);
            }
        }
    }
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

/* Calls apply for each mapping in [address, address + size), which they must fill exactly. */
static CUresult for_mappings(CUdeviceptr address, size_t size, void (*apply)(const struct range *range, int argument),
                             int argument) {
    struct range range;
    uintptr_t end = address + size;
    for (int pass = 0; pass < 2; pass++) { /* look first, then change: all or nothing */
        for (uintptr_t at = address; at < end; at += range.size) {
            if (!range_find(at, &range) || range.kind != RANGE_MAPPED || range.start != at || range.size > end - at) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            if (pass == 1) {
                apply(&range, argument);
            }
        }
    }
    return CUDA_SUCCESS;
}

static void unmap(const struct range *range, int argument) {
    struct range removed;
    (void)argument;
    map_nothing((void *)range->start, range->size, MAP_FIXED);
    range_remove(range->start, RANGE_MAPPED, &removed);
    physical_drop(range->owner, 0, 1);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&vmm_lock);
    result = is_granular(size) ? for_mappings(address, size, unmap, 0) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

static void protect(const struct range *range, int access) {
    int protection = access == CU_MEM_ACCESS_FLAGS_PROT_NONE        ? PROT_NONE
                     : access == CU_MEM_ACCESS_FLAGS_PROT_READ      ? PROT_READ
                                                                    : PROT_READ | PROT_WRITE;
    mprotect((void *)range->start, range->size, protection);
    range_set_flags(range->start, RANGE_MAPPED, (unsigned int)access);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (access == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        struct device *device;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_at(access[i].location.id, &device) != CUDA_SUCCESS) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    pthread_mutex_lock(&vmm_lock);
    result = for_mappings(address, size, protect, (int)access[count - 1].flags);
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    struct range range;
    if (flags == NULL || location == NULL || !range_find(address, &range) || range.kind != RANGE_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = range.flags;
    return CUDA_SUCCESS;
}

/* ---- questions, and handles for other processes ---- */

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                               CUmemAllocationGranularity_flags option) {
    struct device *device;
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        result = granularity == NULL ? CUDA_ERROR_INVALID_VALUE : check_properties(properties, &device);
    }
    if (result == CUDA_SUCCESS) {
        *granularity = GRANULARITY;
    }
    (void)option; /* the recommended granularity is the minimum */
    return result;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    struct physical *physical = physical_from(handle);
    if (properties == NULL || physical == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
    struct physical *physical = physical_from(handle);
    if (shareable == NULL || physical == NULL || physical->address != 0 || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int copy = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
    if (copy == -1) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)shareable = copy;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                                CUmemAllocationHandleType type) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int file = (int)(intptr_t)os_handle;
    struct stat status;
    struct label label;
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(file, &status) == -1 ||
        status.st_size < (off_t)GRANULARITY ||
        pread(file, &label, sizeof label, status.st_size - (off_t)GRANULARITY) != (ssize_t)sizeof label ||
        label.magic != LABEL_MAGIC || label.size != (uint64_t)status.st_size - GRANULARITY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < driver.device_count; i++) {
        if (memcmp(&driver.devices[i].uuid, &label.uuid, sizeof label.uuid) != 0) {
            continue;
        }
        struct physical *physical = object_new(KIND_PHYSICAL, sizeof *physical);
        int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
        if (physical == NULL || copy == -1) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        physical->device = &driver.devices[i];
        physical->size = label.size;
        physical->references = 1;
        physical->file = copy;
        physical->imported = true;
        physical->properties = (CUmemAllocationProp){
            .type = CU_MEM_ALLOCATION_TYPE_PINNED,
            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = i},
        };
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}
