/* Stream-ordered memory. A pool is charged for what it holds and not for its blocks: it grows in chunks, and what is freed
 * to it stays on the GPU until the driver returns it. What it must grow by is charged before the driver is asked, what
 * it grew by after; whether it holds less is asked at synchronizations and when memory is tight. */
#include "pool_account.h"

#include <string.h>

#define MAX_POOLS 1024
#define CHUNK_BYTES (2u << 20) /* pools grow by no less */

static struct pool_account accounts[MAX_POOLS]; /* they never move */
static _Atomic size_t account_count;            /* places at and above this were never used */

_Atomic int pools_state;

/* ---- accounts; under the lock ---- */

static struct pool_account *account_of(CUmemoryPool pool) {
    size_t count = atomic_load(&account_count);
    for (size_t i = 0; i < count; i++) {
        if (accounts[i].open && accounts[i].pool == pool && !accounts[i].destroyed) {
            return &accounts[i];
        }
    }
    return NULL;
}

static struct pool_account *account_new(CUmemoryPool pool, uint32_t gpu, bool permanent) {
    for (size_t i = 0; i < MAX_POOLS; i++) {
        struct pool_account *account = &accounts[i];
        if (!account->open && atomic_load(&account->questions) == 0) {
            account_grew(account); /* an answer for the former pool of this place does not count */
            account->pool = pool;
            account->gpu = gpu;
            account->permanent = permanent;
            account->destroyed = false;
            account->used = account->charged = 0;
            account->open = true;
            atomic_store(&account->closing, false);
            if (i >= atomic_load(&account_count)) {
                atomic_store(&account_count, i + 1);
            }
            return account;
        }
    }
    return NULL;
}

/* ---- memory that comes back ---- */

static bool may_lower(const struct pool_account *account) {
    accounts_lock();
    bool may = account->open && account->charged > account->used;
    accounts_unlock();
    return may;
}

bool pools_refresh(void) {
    atomic_store(&pools_state, POOLS_SETTLED);
    bool changed = deferred_free_refresh(), keeping = false;
    size_t count = atomic_load(&account_count);
    for (size_t i = 0; i < count; i++) {
        if (may_lower(&accounts[i])) {
            changed |= account_refresh(&accounts[i]);
            keeping |= may_lower(&accounts[i]);
        }
    }
    if (keeping) {
        pools_keep();
    }
    return changed;
}

void pools_freed(const struct table_entry *entry) {
    struct pool_account *account = (struct pool_account *)(uintptr_t)entry->owner;
    accounts_lock();
    account->used -= entry->bytes;
    if (account->destroyed) {
        account_lower(account, 0);
    }
    accounts_unlock();
    if (atomic_load_explicit(&pools_state, memory_order_relaxed) != POOLS_FREED) {
        atomic_store(&pools_state, POOLS_FREED);
    }
}

/* Whether a reset of the device ends the allocations of its pools is the driver's choice: it is asked. */
void pools_context_ended(CUdevice device) {
    uint32_t gpu = gpu_of_device(device);
    size_t count = atomic_load(&account_count);
    for (size_t i = 0; i < count && gpu != NO_GPU; i++) {
        struct pool_account *account = &accounts[i];
        accounts_lock();
        bool concerned = account->open && !account->destroyed && account->gpu == gpu && account->charged != 0;
        accounts_unlock();
        if (!concerned) {
            continue;
        }
        struct pool_answer answer = account_ask_and_lock(account, POOL_USED);
        bool ended = answer.gone || (answer.known && answer.used == 0);
        if (answer.gone && !account->permanent) {
            account_destroyed(account);
        }
        accounts_unlock();
        if (ended) {
            table_take_owner(&charges, (uint64_t)(uintptr_t)account, charge_entry_back);
        }
    }
    pools_refresh();
}

void pools_forget(void) {
    memset(accounts, 0, atomic_load(&account_count) * sizeof accounts[0]);
    atomic_store(&account_count, 0);
    atomic_store(&pools_state, POOLS_SETTLED);
}

/* ---- allocating ---- */

typedef CUresult (*allocate_function)(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);

/* Charges what the pool must grow by: memory that it kept is used again without a charge. Memory whose free is still to
 * come in its stream is in use by the driver's count, though no longer by ours. */
static bool account_grow(struct pool_account *account, uint64_t rounded) {
    struct pool_answer answer = account_ask_and_lock(account, POOL_USED);
    uint64_t used = account->used > answer.used ? account->used : answer.used;
    uint64_t wanted = (used + rounded + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
    bool granted = account_raise(account, wanted > account->charged ? wanted - account->charged : 0);
    account->used += granted ? rounded : 0;
    accounts_unlock();
    return granted;
}

static bool account_use(struct pool_account *account, uint64_t rounded) {
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
static bool account_settle(struct pool_account *account) {
    struct pool_answer answer = account_ask_and_lock(account, POOL_RESERVED);
    bool fits = answer.reserved <= account->charged || account_raise(account, answer.reserved - account->charged);
    account_lower(account, answer.reserved);
    accounts_unlock();
    return fits;
}

static void account_unuse(struct pool_account *account, uint64_t rounded) {
    accounts_lock();
    account->used -= rounded;
    accounts_unlock();
    account_refresh(account);
}

static CUresult allocate_from(struct pool_account *account, CUdeviceptr *address, size_t bytes, CUstream stream,
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
        if (account_settle(account) && charge_record(&entry)) {
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

/* A pool that the program did not create is the own one of a device. */
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

static struct pool_account *find_account(CUmemoryPool pool) {
    accounts_lock();
    struct pool_account *account = account_of(pool);
    accounts_unlock();
    return account;
}

/* For a pool that the program did not create. */
static struct pool_account *open_foreign_account(CUmemoryPool pool, CUdevice device) {
    CUdevice own_device;
    bool permanent = device_of_pool(pool, &own_device);
    uint32_t gpu = gpu_of_device(permanent ? own_device : device);
    accounts_lock();
    struct pool_account *account = account_of(pool);
    if (account == NULL && gpu != NO_GPU) {
        account = account_new(pool, gpu, permanent);
    }
    accounts_unlock();
    return account;
}

static struct pool_account *account_on(CUmemoryPool pool, CUdevice device) {
    struct pool_account *account = find_account(pool);
    return account != NULL ? account : open_foreign_account(pool, device);
}

static struct pool_account *current_account(CUdevice device) {
    CUmemoryPool pool;
    return REAL(cuDeviceGetMemPool)(&pool, device) == CUDA_SUCCESS ? account_on(pool, device) : NULL;
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
    return allocate_from(account_on(pool, device), address, bytes, stream, call);
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

/* False when the memory of a new pool could not be charged. */
static bool open_account(CUmemoryPool pool, const CUmemLocation *location) {
    CUdevice device;
    bool on_host = location_is_host(location);
    uint32_t gpu = !on_host && location_device(location, &device) ? gpu_of_device(device) : NO_GPU;
    if (!on_host && gpu == NO_GPU) {
        return false;
    }
    accounts_lock();
    struct pool_account *former = account_of(pool);
    if (former != NULL) { /* another thread destroyed that pool just now: the driver gave its handle out again */
        account_destroyed(former);
    }
    bool opened = account_new(pool, gpu, false) != NULL;
    accounts_unlock();
    return opened;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS && !open_account(*pool, &properties->location)) {
        REAL(cuMemPoolDestroy)(*pool);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct pool_account *account = find_account(pool);
    if (account == NULL || account->permanent) {
        return REAL(cuMemPoolDestroy)(pool);
    }
    account_close(account);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    accounts_lock();
    account_end_close(account, result == CUDA_SUCCESS);
    accounts_unlock();
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_refresh();
    return result;
}

/* ---- where the driver lets go of what pools keep ---- */

CUresult cuStreamSynchronize(CUstream stream) {
    CUresult result = REAL(cuStreamSynchronize)(stream);
    pools_look(POOLS_KEEPING);
    return result;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    CUresult result = REAL(cuStreamSynchronize_ptsz)(stream);
    pools_look(POOLS_KEEPING);
    return result;
}

CUresult cuEventSynchronize(CUevent event) {
    CUresult result = REAL(cuEventSynchronize)(event);
    pools_look(POOLS_KEEPING);
    return result;
}

CUresult cuCtxSynchronize(void) {
    CUresult result = REAL(cuCtxSynchronize)();
    pools_look(POOLS_KEEPING);
    return result;
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    CUresult result = REAL(cuCtxSynchronize_v2)(context);
    pools_look(POOLS_KEEPING);
    return result;
}
