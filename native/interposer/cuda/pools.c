/* Stream-ordered memory. A pool is charged for what it holds and not for its blocks: it grows in chunks, and what is freed
 * to it stays on the GPU until the driver returns it. What it must grow by is charged before the driver is asked, what
 * it grew by after; that it holds less is asked for at synchronizations and when memory is tight. */
#include "charge.h"

#include <pthread.h>

#define MAX_POOLS 1024
#define CHUNK_BYTES (2u << 20) /* pools grow by no less */

struct account { /* one pool's books in this process; never moves */
    CUmemoryPool pool; /* NULL: free */
    uint32_t gpu;      /* NO_GPU: host memory, not charged */
    bool destroyed;    /* waiting for its last block */
    uint64_t used, charged;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct account accounts[MAX_POOLS];
static size_t account_count; /* places at and above this were never used */

_Atomic int pools_state;

/* All below: under the lock. */
static struct account *account_of(CUmemoryPool pool) {
    for (size_t i = 0; i < account_count; i++) {
        if (accounts[i].pool == pool && !accounts[i].destroyed) {
            return &accounts[i];
        }
    }
    return NULL;
}

static struct account *account_open(CUmemoryPool pool, uint32_t gpu) {
    struct account *account = account_of(pool);
    for (size_t i = 0; account == NULL && i < MAX_POOLS; i++) {
        if (accounts[i].pool == NULL) {
            account = &accounts[i];
            *account = (struct account){.pool = pool, .gpu = gpu};
            account_count = i + 1 > account_count ? i + 1 : account_count;
        }
    }
    return account;
}

static bool account_lower(struct account *account, uint64_t charged) {
    bool lower = charged < account->charged && account->gpu != NO_GPU;
    if (lower) {
        charge_back(account->gpu, SHARED_LANE, account->charged - charged);
    }
    account->charged = charged < account->charged ? charged : account->charged;
    if (account->destroyed && account->used == 0) {
        account->pool = NULL;
    }
    return lower;
}

static uint64_t attribute(const struct account *account, CUmemPool_attribute which, uint64_t otherwise) {
    cuuint64_t value = 0;
    return REAL(cuMemPoolGetAttribute)(account->pool, which, &value) == CUDA_SUCCESS ? charge_rounded(value) : otherwise;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* What the pool holds: no less than what it has handed out, whatever the driver says. */
static uint64_t account_holds(const struct account *account) {
    uint64_t reserved =
        account->destroyed ? 0 : attribute(account, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, account->charged);
    return larger(reserved, account->used);
}

bool pools_refresh(void) {
    atomic_store(&pools_state, POOLS_SETTLED);
    bool changed = deferred_free_refresh(), keeping = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < account_count; i++) {
        if (accounts[i].pool != NULL && accounts[i].charged > accounts[i].used) {
            changed |= account_lower(&accounts[i], account_holds(&accounts[i]));
            keeping |= accounts[i].charged > accounts[i].used;
        }
    }
    pthread_mutex_unlock(&lock);
    if (keeping) {
        pools_keep();
    }
    return changed;
}

void pools_freed(const struct table_entry *entry) {
    struct account *account = (struct account *)(uintptr_t)entry->owner;
    pthread_mutex_lock(&lock);
    account->used -= entry->bytes;
    if (account->destroyed) {
        account_lower(account, account->used);
    }
    pthread_mutex_unlock(&lock);
    atomic_store(&pools_state, POOLS_FREED);
}

/* ---- allocating ---- */

typedef CUresult (*allocate_function)(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);

/* Charges what the pool must grow by: memory that it kept is used again without a charge. Memory whose free is still to
 * come in its stream is in use by the driver's count, though no longer by ours. */
static bool account_grow(struct account *account, uint64_t rounded) {
    pthread_mutex_lock(&lock);
    uint64_t used = larger(account->used, attribute(account, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0));
    uint64_t wanted = (used + rounded + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
    uint64_t grown = wanted > account->charged ? wanted - account->charged : 0;
    bool granted = grown == 0 || session_reserve(account->gpu, SHARED_LANE, grown);
    if (granted) {
        account->used += rounded;
        account->charged += grown;
    }
    pthread_mutex_unlock(&lock);
    return granted;
}

static bool account_use(struct account *account, uint64_t rounded) {
    if (session_allows(account->gpu) && rounded <= GPUSLICE_BYTES_MASK) {
        if (account_grow(account, rounded)) {
            return true;
        }
        bool regained = pools_refresh();
        regained |= graphs_refresh();
        if (regained && account_grow(account, rounded)) {
            return true;
        }
    }
    return charge_denied(account->gpu, rounded);
}

/* After the driver's answer: charges what the pool holds now. It may have grown by more than was expected, because free
 * blocks did not fit or could not be used yet; false when there is no room for that. */
static bool account_settle(struct account *account) {
    pthread_mutex_lock(&lock);
    uint64_t holds = account_holds(account);
    bool fits = holds <= account->charged || session_reserve(account->gpu, SHARED_LANE, holds - account->charged);
    if (fits && holds > account->charged) {
        account->charged = holds;
    } else {
        account_lower(account, holds);
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

static void account_unuse(struct account *account, uint64_t rounded) {
    pthread_mutex_lock(&lock);
    account->used -= rounded;
    account_lower(account, account_holds(account));
    pthread_mutex_unlock(&lock);
}

static CUresult allocate_from(struct account *account, CUdeviceptr *address, size_t bytes, CUstream stream,
                              allocate_function call) {
    if (account == NULL || account->gpu == NO_GPU) {
        return account == NULL ? CUDA_ERROR_OUT_OF_MEMORY : call(address, bytes, account->pool, stream);
    }
    uint64_t rounded = charge_rounded(bytes);
    if (!account_use(account, rounded)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUmemoryPool pool = account->pool;
    CUresult result = call(address, bytes, pool, stream);
    if (result == CUDA_SUCCESS && *address != 0) {
        struct table_entry entry = {.key = *address, .owner = (uint64_t)(uintptr_t)account, .bytes = rounded,
                                    .gpu = (uint8_t)account->gpu, .kind = CHARGE_POOLED};
        if (account_settle(account) && table_put(&charges, &entry)) {
            return CUDA_SUCCESS;
        }
        REAL(cuMemFreeAsync)(*address, stream);
        REAL(cuMemPoolTrimTo)(pool, 0);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    account_unuse(account, rounded); /* refused, or zero bytes, which have no address to be found by */
    return result;
}

/* A capturing stream records the allocation; it is charged when the graph is launched (graphs.c). */
static bool is_capturing(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool device_of_context(CUcontext context, CUdevice *device) {
    CUcontext ignored;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
        return false;
    }
    CUresult result = REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&ignored);
    return result == CUDA_SUCCESS;
}

/* A stream has a device of its own: it may be used while another context is current, or none. */
static bool device_of_stream(CUstream stream, CUdevice *device) {
    CUcontext context;
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
    }
    return REAL(cuStreamGetDevice)(stream, device) == CUDA_SUCCESS || /* not in drivers before 12.8 */
           (REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && device_of_context(context, device));
}

/* Pools that nobody made are the devices' own. */
static bool device_of_pool(CUmemoryPool pool, CUdevice *device) {
    int count = 0;
    CUmemoryPool own;
    REAL(cuDeviceGetCount)(&count);
    for (*device = 0; *device < count; ++*device) {
        if (REAL(cuDeviceGetDefaultMemPool)(&own, *device) == CUDA_SUCCESS && own == pool) {
            return true;
        }
    }
    return false;
}

static struct account *account_on(CUmemoryPool pool, CUdevice device) {
    uint32_t gpu = gpu_of_device(device);
    pthread_mutex_lock(&lock);
    struct account *account = gpu != NO_GPU ? account_open(pool, gpu) : account_of(pool);
    pthread_mutex_unlock(&lock);
    return account;
}

static struct account *current_account(CUdevice device) {
    CUmemoryPool pool;
    return REAL(cuDeviceGetMemPool)(&pool, device) == CUDA_SUCCESS ? account_on(pool, device) : NULL;
}

static struct account *named_account(CUmemoryPool pool, CUdevice stream_device) {
    CUdevice device;
    pthread_mutex_lock(&lock);
    struct account *account = account_of(pool);
    pthread_mutex_unlock(&lock);
    if (account != NULL) {
        return account;
    }
    return account_on(pool, device_of_pool(pool, &device) ? device : stream_device);
}

static CUresult call_current(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)pool;
    return REAL(cuMemAllocAsync)(address, bytes, stream);
}

static CUresult call_current_per_thread(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)pool;
    return REAL(cuMemAllocAsync_ptsz)(address, bytes, stream);
}

static CUresult call_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return REAL(cuMemAllocFromPoolAsync)(address, bytes, pool, stream);
}

static CUresult call_pool_per_thread(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return REAL(cuMemAllocFromPoolAsync_ptsz)(address, bytes, pool, stream);
}

/* Without a device the driver refuses by itself. */
static CUresult allocate_current(CUdeviceptr *address, size_t bytes, CUstream stream, bool per_thread, allocate_function call) {
    CUdevice device;
    if (address == NULL || is_capturing(stream, per_thread) || !device_of_stream(stream, &device)) {
        return call(address, bytes, NULL, stream);
    }
    return allocate_from(current_account(device), address, bytes, stream, call);
}

static CUresult allocate_named(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread,
                               allocate_function call) {
    CUdevice device;
    if (address == NULL || pool == NULL || is_capturing(stream, per_thread) || !device_of_stream(stream, &device)) {
        return call(address, bytes, pool, stream);
    }
    return allocate_from(named_account(pool, device), address, bytes, stream, call);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return allocate_current(address, bytes, stream, false, call_current);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return allocate_current(address, bytes, stream, true, call_current_per_thread);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_named(address, bytes, pool, stream, false, call_pool);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_named(address, bytes, pool, stream, true, call_pool_per_thread);
}

/* ---- the life of pools ---- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS) {
        bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        uint32_t gpu = on_device ? gpu_of_device(properties->location.id) : NO_GPU;
        pthread_mutex_lock(&lock);
        bool booked = (!on_device || gpu != NO_GPU) && account_open(*pool, gpu) != NULL;
        pthread_mutex_unlock(&lock);
        if (!booked) {
            REAL(cuMemPoolDestroy)(*pool);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        struct account *account = account_of(pool);
        if (account != NULL) {
            account->destroyed = true;
            account_lower(account, account->used);
        }
        pthread_mutex_unlock(&lock);
    }
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_refresh();
    return result;
}

/* ---- where the driver lets go of what pools keep ---- */

#define SYNCHRONIZES(name, parameters, arguments)                                                                     \
    CUresult name parameters {                                                                                        \
        CUresult result = REAL(name) arguments;                                                                       \
        pools_look(POOLS_KEEPING);                                                                                         \
        return result;                                                                                                \
    }

SYNCHRONIZES(cuStreamSynchronize, (CUstream stream), (stream))
SYNCHRONIZES(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
SYNCHRONIZES(cuEventSynchronize, (CUevent event), (event))
SYNCHRONIZES(cuCtxSynchronize, (void), ())
SYNCHRONIZES(cuCtxSynchronize_v2, (CUcontext context), (context))
