/* Addresses of device memory. Each device has one stretch of addresses, backed by a memory file that fills as it is
 * written, cut into one region per power of two; a block of size s lives in a slot of the next power of two. So the
 * slot of any address, and its record, is arithmetic; addresses are plentiful, and the bytes between a block and
 * its slot's end are never touched. Free slots of a region form lock-free stacks, one per lane of threads.
 *
 * The memory file ends with the process however it dies, and other processes reach it through /proc for IPC. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALLEST_SHIFT 9u /* SIM_UNIT */
#define LARGEST_SHIFT 40u
#define REGIONS (LARGEST_SHIFT - SMALLEST_SHIFT + 1)
#define REGION_ALIGNMENT (2ull << 20)
#define PUNCH_BYTES (64u << 10) /* smaller blocks keep their host pages for the next user */

/* A stack head: the slot number + 1 below, a counter above that makes every change unique. */
#define HEAD_BITS 40
#define HEAD_MASK ((1ull << HEAD_BITS) - 1)

struct region {
    struct block *blocks;
    uint64_t slots;
    _Alignas(64) _Atomic uint64_t fresh; /* slots at and above this were never used */
    struct {
        _Alignas(64) _Atomic uint64_t head;
    } free[SIM_LANES];
};

struct arena {
    uintptr_t start, end;
    uint64_t region_bytes;
    unsigned int region_count;
    int file;
    struct region regions[REGIONS];
};

static unsigned int shift_of(uint64_t size) {
    return size <= SIM_UNIT ? SMALLEST_SHIFT : 64u - (unsigned int)__builtin_clzll(size - 1);
}

static void *reserve(size_t bytes, int file) {
    int flags = MAP_NORESERVE | (file == -1 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
}

static void arena_close(struct arena *arena) {
    for (unsigned int i = 0; i < arena->region_count; i++) {
        if (arena->regions[i].blocks != NULL) {
            munmap(arena->regions[i].blocks, arena->regions[i].slots * sizeof(struct block));
        }
    }
    if (arena->start != 0) {
        munmap((void *)arena->start, arena->end - arena->start);
    }
    if (arena->file != -1) {
        close(arena->file);
    }
    free(arena);
}

/* Under driver.lock. */
CUresult arena_open(struct device *device) {
    if (device->arena != NULL) {
        return CUDA_SUCCESS;
    }
    struct arena *arena = aligned_alloc(_Alignof(struct arena), sizeof *arena);
    if (arena == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(arena, 0, sizeof *arena);
    /* A block takes more than half of its slot, so twice the memory is room for every block that can be live. */
    arena->region_bytes = (2 * device->memory_bytes + REGION_ALIGNMENT - 1) / REGION_ALIGNMENT * REGION_ALIGNMENT;
    arena->region_count = shift_of(device->memory_bytes) - SMALLEST_SHIFT + 1;
    uint64_t bytes = arena->region_bytes * arena->region_count;
    arena->file = memfd_create("gpuslice-sim-device-memory", MFD_CLOEXEC);
    void *address = MAP_FAILED;
    if (arena->region_count <= REGIONS && arena->file != -1 && ftruncate(arena->file, (off_t)bytes) == 0) {
        address = reserve(bytes, arena->file);
    }
    bool complete = address != MAP_FAILED;
    if (complete) {
        arena->start = (uintptr_t)address;
        arena->end = arena->start + bytes;
        madvise(address, bytes, MADV_DONTFORK);
        madvise(address, bytes, MADV_DONTDUMP);
    }
    for (unsigned int i = 0; complete && i < arena->region_count; i++) {
        struct region *region = &arena->regions[i];
        region->slots = arena->region_bytes >> (i + SMALLEST_SHIFT);
        void *blocks = reserve(region->slots * sizeof(struct block), -1);
        complete = blocks != MAP_FAILED;
        region->blocks = complete ? blocks : NULL;
    }
    if (!complete) {
        arena_close(arena);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    device->arena = arena;
    return CUDA_SUCCESS;
}

static uint64_t pop_free(struct region *region, uint32_t lane) {
    uint64_t head = atomic_load(&region->free[lane].head);
    while ((head & HEAD_MASK) != 0) {
        uint64_t slot = (head & HEAD_MASK) - 1;
        uint64_t below = atomic_load_explicit(&region->blocks[slot].next, memory_order_relaxed);
        uint64_t next = ((head >> HEAD_BITS) + 1) << HEAD_BITS | below;
        if (atomic_compare_exchange_weak(&region->free[lane].head, &head, next)) {
            return slot;
        }
    }
    return UINT64_MAX;
}

static void push_free(struct region *region, uint64_t slot) {
    _Atomic uint64_t *top = &region->free[sim_lane()].head;
    uint64_t head = atomic_load(top), next;
    do {
        atomic_store_explicit(&region->blocks[slot].next, (uint32_t)(head & HEAD_MASK), memory_order_relaxed);
        next = ((head >> HEAD_BITS) + 1) << HEAD_BITS | (slot + 1);
    } while (!atomic_compare_exchange_weak(top, &head, next));
}

/* One's own, else what other threads freed, else what was never used. */
static uint64_t take_slot(struct region *region) {
    uint32_t lane = sim_lane();
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        uint64_t slot = pop_free(region, (lane + i) % SIM_LANES);
        if (slot != UINT64_MAX) {
            return slot;
        }
    }
    uint64_t fresh = atomic_fetch_add(&region->fresh, 1);
    if (fresh >= region->slots) {
        atomic_fetch_sub(&region->fresh, 1);
        return UINT64_MAX;
    }
    return fresh;
}

struct block *arena_take(struct device *device, uint64_t size, enum block_kind kind, void *owner, CUdeviceptr *address) {
    struct arena *arena = device->arena;
    unsigned int shift = shift_of(size), number = shift - SMALLEST_SHIFT;
    if (arena == NULL || number >= arena->region_count) {
        return NULL;
    }
    struct region *region = &arena->regions[number];
    uint64_t slot = take_slot(region);
    if (slot == UINT64_MAX) {
        return NULL;
    }
    struct block *block = &region->blocks[slot];
    block->size = size;
    block->owner = owner;
    block->id = 0;
    block->sync_memops = 0;
    atomic_store_explicit(&block->charged, 0, memory_order_relaxed);
    atomic_store_explicit(&block->touched, kind == BLOCK_MANAGED, memory_order_relaxed);
    atomic_store_explicit(&block->kind, (uint8_t)kind, memory_order_release);
    *address = arena->start + number * arena->region_bytes + (slot << shift);
    return block;
}

bool arena_give(struct device *device, CUdeviceptr address, struct block *block, enum block_kind kind) {
    uint8_t expected = (uint8_t)kind;
    uint64_t size = block->size;
    if (!atomic_compare_exchange_strong(&block->kind, &expected, BLOCK_FREE)) {
        return false;
    }
    struct arena *arena = device->arena;
    unsigned int number = shift_of(size) - SMALLEST_SHIFT;
    struct region *region = &arena->regions[number];
    if (size >= PUNCH_BYTES && atomic_load_explicit(&block->touched, memory_order_relaxed)) {
        fallocate(arena->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)arena_offset(device, address),
                  (off_t)size);
    }
    push_free(region, (uint64_t)(block - region->blocks));
    return true;
}

static struct block *find_in(struct device *device, CUdeviceptr address, CUdeviceptr *start) {
    struct arena *arena = device->arena;
    uint64_t offset = address - arena->start;
    unsigned int number = (unsigned int)(offset / arena->region_bytes);
    uint64_t inside = offset - number * arena->region_bytes;
    unsigned int shift = number + SMALLEST_SHIFT;
    uint64_t slot = inside >> shift;
    struct region *region = &arena->regions[number];
    if (slot >= region->slots || slot >= atomic_load_explicit(&region->fresh, memory_order_relaxed)) {
        return NULL;
    }
    struct block *block = &region->blocks[slot];
    if (atomic_load_explicit(&block->kind, memory_order_acquire) == BLOCK_FREE) {
        return NULL;
    }
    *start = arena->start + number * arena->region_bytes + (slot << shift);
    return block;
}

struct block *arena_find(CUdeviceptr address, struct device **device, CUdeviceptr *start) {
    for (int i = 0; i < driver.device_count; i++) {
        struct device *candidate = &driver.devices[i];
        if (candidate->arena != NULL && address >= candidate->arena->start && address < candidate->arena->end) {
            *device = candidate;
            return find_in(candidate, address, start);
        }
    }
    return NULL;
}

void arena_for_owner(struct device *device, const void *owner,
                     void (*visit)(struct device *device, CUdeviceptr address, struct block *block)) {
    struct arena *arena = device->arena;
    for (unsigned int number = 0; number < arena->region_count; number++) {
        struct region *region = &arena->regions[number];
        uint64_t used = atomic_load(&region->fresh);
        for (uint64_t slot = 0; slot < used && slot < region->slots; slot++) {
            struct block *block = &region->blocks[slot];
            if (atomic_load(&block->kind) != BLOCK_FREE && block->owner == owner) {
                visit(device, arena->start + number * arena->region_bytes + (slot << (number + SMALLEST_SHIFT)), block);
            }
        }
    }
}

int arena_file(const struct device *device) {
    return device->arena->file;
}

uint64_t arena_offset(const struct device *device, CUdeviceptr address) {
    return address - device->arena->start;
}
