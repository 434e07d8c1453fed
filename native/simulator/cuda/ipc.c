/* Memory of one process opened by another. A handle names the exporter's memory file; the importer reaches it through
 * /proc, which works where the real driver's does: when the exporter is alive, visible and of the same user. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define IPC_MAGIC 0x3143504947534c53ull

struct ipc_memory { /* what fills the 64 opaque bytes of CUipcMemHandle */
    uint64_t magic, offset, size;
    CUuuid uuid;
    int32_t pid, file;
};
_Static_assert(sizeof(struct ipc_memory) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device;
    CUdeviceptr start;
    struct block *block = handle != NULL ? arena_find(address, &device, &start) : NULL;
    if (block == NULL || atomic_load(&block->kind) != BLOCK_LINEAR) {
        return CUDA_ERROR_INVALID_VALUE; /* only plain allocations can be shared this way */
    }
    struct ipc_memory memory = {.magic = IPC_MAGIC, .offset = arena_offset(device, start), .size = block->size,
                                .uuid = device->uuid, .pid = getpid(), .file = arena_file(device)};
    atomic_store(&block->touched, 1); /* another process may write to it */
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &memory, sizeof memory);
    return CUDA_SUCCESS;
}

static struct device *device_with(const CUuuid *uuid) {
    for (int i = 0; i < driver.device_count; i++) {
        if (memcmp(&driver.devices[i].uuid, uuid, sizeof *uuid) == 0) {
            return &driver.devices[i];
        }
    }
    return NULL;
}

static int open_exporter(const struct ipc_memory *memory) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", memory->pid, memory->file);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    return strstr(target, "gpuslice-sim-device-memory") != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct ipc_memory memory;
    memcpy(&memory, &handle, sizeof memory);
    if (address == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memory.magic != IPC_MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct device *device = device_with(&memory.uuid);
    if (device == NULL || memory.pid == getpid()) {
        return device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_CONTEXT;
    }
    int file = open_exporter(&memory);
    if (file == -1) {
        return CUDA_ERROR_MAP_FAILED;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), lead = memory.offset % page;
    char *mapped = mmap(NULL, memory.size + lead, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(memory.offset - lead));
    close(file);
    if (mapped == MAP_FAILED) {
        return CUDA_ERROR_MAP_FAILED;
    }
    struct range range = {.start = (uintptr_t)mapped + lead, .size = memory.size, .kind = RANGE_IPC, .device = device};
    if (!range_add(&range)) {
        munmap(mapped, memory.size + lead);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = range.start;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range removed;
    if (!range_remove(address, RANGE_IPC, &removed)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uintptr_t lead = removed.start % (uintptr_t)sysconf(_SC_PAGESIZE);
    munmap((void *)(removed.start - lead), removed.size + lead);
    return CUDA_SUCCESS;
}
