/* The least that an interposer can do: one atomic counter that all processes share, and a table of pointers in stripes.
 * No session, no recovery from a process that dies, no pools, nothing but the calls that are measured. What gpuslice
 * costs beyond this is what its promises cost.
 *
 * Preloaded; FLOOR_REAL names the real driver, FLOOR_PAGE a file that holds the counter and the limit. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STRIPES 64
#define ROOM 8192 /* of a stripe: enough for 100,000 pointers and for keeping it half empty */

struct page {
    _Alignas(64) _Atomic uint64_t used;
    uint64_t limit;
};

struct stripe {
    _Alignas(64) _Atomic bool locked;
    struct {
        CUdeviceptr address;
        uint64_t bytes;
    } entries[ROOM];
};

static struct page *page;
static struct stripe *stripes;
static __typeof__(&cuMemAlloc) real_allocate;
static __typeof__(&cuMemFree) real_free;
static __typeof__(&cuMemGetInfo) real_info;
static __typeof__(&cuLaunchKernel) real_launch;

__attribute__((constructor)) static void start(void) {
    const char *driver = getenv("FLOOR_REAL"), *file = getenv("FLOOR_PAGE");
    void *library = driver != NULL ? dlopen(driver, RTLD_NOW | RTLD_LOCAL) : NULL;
    int descriptor = file != NULL ? open(file, O_RDWR | O_CLOEXEC) : -1;
    if (library == NULL || descriptor == -1) {
        return;
    }
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    stripes = mmap(NULL, STRIPES * sizeof *stripes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    real_allocate = (__typeof__(real_allocate))dlsym(library, "cuMemAlloc_v2");
    real_free = (__typeof__(real_free))dlsym(library, "cuMemFree_v2");
    real_info = (__typeof__(real_info))dlsym(library, "cuMemGetInfo_v2");
    real_launch = (__typeof__(real_launch))dlsym(library, "cuLaunchKernel");
}

static uint64_t mix(uint64_t key) {
    key *= 0x9e3779b97f4a7c15ull;
    return key ^ (key >> 29);
}

static struct stripe *lock(uint64_t hash) {
    struct stripe *stripe = &stripes[hash >> 58];
    while (atomic_exchange_explicit(&stripe->locked, true, memory_order_acquire)) {
    }
    return stripe;
}

static void unlock(struct stripe *stripe) {
    atomic_store_explicit(&stripe->locked, false, memory_order_release);
}

static void put(CUdeviceptr address, uint64_t bytes) {
    uint64_t hash = mix(address);
    struct stripe *stripe = lock(hash);
    uint64_t at = hash % ROOM;
    while (stripe->entries[at].address != 0) {
        at = (at + 1) % ROOM;
    }
    stripe->entries[at].address = address;
    stripe->entries[at].bytes = bytes;
    unlock(stripe);
}

static uint64_t take(CUdeviceptr address) {
    uint64_t hash = mix(address), bytes = 0;
    struct stripe *stripe = lock(hash);
    uint64_t at = hash % ROOM;
    while (stripe->entries[at].address != 0 && stripe->entries[at].address != address) {
        at = (at + 1) % ROOM;
    }
    if (stripe->entries[at].address != 0) {
        uint64_t hole = at;
        bytes = stripe->entries[at].bytes;
        for (uint64_t next = (at + 1) % ROOM; stripe->entries[next].address != 0; next = (next + 1) % ROOM) {
            uint64_t home = mix(stripe->entries[next].address) % ROOM;
            if ((next - home) % ROOM >= (next - hole) % ROOM) {
                stripe->entries[hole] = stripe->entries[next];
                hole = next;
            }
        }
        stripe->entries[hole].address = 0;
    }
    unlock(stripe);
    return bytes;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    if (atomic_fetch_add(&page->used, bytes) + bytes > page->limit) {
        atomic_fetch_sub(&page->used, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real_allocate(address, bytes);
    if (result == CUDA_SUCCESS) {
        put(*address, bytes);
    } else {
        atomic_fetch_sub(&page->used, bytes);
    }
    return result;
}

CUresult cuMemFree(CUdeviceptr address) {
    uint64_t bytes = take(address);
    CUresult result = real_free(address);
    if (result == CUDA_SUCCESS) {
        atomic_fetch_sub(&page->used, bytes);
    }
    return result;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    CUresult result = real_info(free_bytes, total);
    *total = page->limit;
    *free_bytes = page->limit - atomic_load(&page->used);
    return result;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                        void **extra) {
    return real_launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
