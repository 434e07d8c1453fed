/* Stream-ordered memory. What is freed to a pool stays on the GPU until the driver returns it, so a pool keeps its
 * charge until the driver says that it holds less; that is asked for at synchronizations and when memory is tight. */
#include "charge.h"

#include <pthread.h>

#define MAX_POOLS 1024

struct account { /* one pool's books in this process; never moves */
    CUmemoryPool pool; /* NULL: free */
    uint32_t gpu;      /* NO_GPU: host memory, not charged */
    bool destroyed;    /* waiting for its last block */
    uint64_t used, charged;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct account accounts[MAX_POOLS];
static size_t account_count; /* places at and above this were never used */

_Atomic bool pools_dirty;

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
        charge_back(account->gpu, account->charged - charged);
    }
    account->charged = charged < account->charged ? charged : account->charged;
    if (account->destroyed && account->used == 0) {
        account->pool = NULL;
    }
    return lower;
}

static bool account_refresh(struct account *account) {
    cuuint64_t reserved = 0;
    if (!account->destroyed) {
        CUresult result = REAL(cuMemPoolGetAttribute)(account->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
        if (result != CUDA_SUCCESS) {
            return false;
        }
    }
    return account_lower(account, reserved > account->used ? reserved : account->used);
}

bool pools_refresh(void) {
    bool changed = false;
    atomic_store(&pools_dirty, false);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < account_count; i++) {
        if (accounts[i].pool != NULL && accounts[i].charged > accounts[i].used) {
            changed |= account_refresh(&accounts[i]);
        }
    }
    pthread_mutex_unlock(&lock);
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
    atomic_store(&pools_dirty, true);
}

/* ---- allocating ---- */

typedef CUresult (*allocate_function)(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);

/* Charges what the pool must grow by: memory that it kept is used again without a charge. */
static bool account_use(struct account *account, uint64_t rounded, uint64_t *grown) {
    for (int attempt = 0; attempt < 2; attempt++) {
        pthread_mutex_lock(&lock);
        uint64_t wanted = account->used + rounded;
        *grown = wanted > account->charged ? wanted - account->charged : 0;
        const struct page *page = session_page();
        bool granted = page != NULL && reserve(page, account->gpu, *grown);
        if (granted) {
            account->used += rounded;
            account->charged += *grown;
        }
        pthread_mutex_unlock(&lock);
        if (granted || page == NULL) {
            return granted;
        }
        bool regained = attempt == 0 && pools_refresh();
        regained |= attempt == 0 && graphs_refresh();
        if (!regained) {
            reserve_count_denied(page, account->gpu);
            return false;
        }
    }
    return false;
}

static void account_unuse(struct account *account, uint64_t rounded, uint64_t grown) {
    pthread_mutex_lock(&lock);
    account->used -= rounded;
    account->charged -= grown;
    charge_back(account->gpu, grown);
    pthread_mutex_unlock(&lock);
}

static CUresult allocate_from(struct account *account, CUdeviceptr *address, size_t bytes, CUstream stream,
                              allocate_function call) {
    if (account == NULL || account->gpu == NO_GPU) {
        return account == NULL ? CUDA_ERROR_OUT_OF_MEMORY : call(address, bytes, account->pool, stream);
    }
    uint64_t rounded = charge_rounded(bytes), grown;
    if (!account_use(account, rounded, &grown)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = call(address, bytes, account->pool, stream);
    struct table_entry entry = {.owner = (uint64_t)(uintptr_t)account, .bytes = rounded, .gpu = (uint8_t)account->gpu,
                                .kind = CHARGE_POOLED};
    if (result == CUDA_SUCCESS) {
        entry.key = *address;
        if (entry.key == 0 || table_put(&charges, &entry)) {
            if (entry.key == 0) { /* zero bytes have no address to be found by */
                account_unuse(account, rounded, grown);
            }
            return result;
        }
        REAL(cuMemFreeAsync)(*address, stream);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    account_unuse(account, rounded, grown);
    return result;
}

/* A capturing stream records the allocation; it is charged when the graph is launched (graphs.c). */
static bool is_capturing(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool device_of_stream(CUstream stream, CUdevice *device) {
    bool built_in = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    if (!built_in && REAL(cuStreamGetDevice)(stream, device) == CUDA_SUCCESS) {
        return true;
    }
    return REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
}

static struct account *current_account(CUstream stream) {
    CUdevice device;
    CUmemoryPool pool;
    if (!device_of_stream(stream, &device) || REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS) {
        return NULL;
    }
    uint32_t gpu = gpu_of_device(device);
    pthread_mutex_lock(&lock);
    struct account *account = gpu != NO_GPU ? account_open(pool, gpu) : account_of(pool);
    pthread_mutex_unlock(&lock);
    return account;
}

static struct account *named_account(CUmemoryPool pool) {
    struct place place;
    pthread_mutex_lock(&lock);
    struct account *account = account_of(pool);
    pthread_mutex_unlock(&lock);
    if (account == NULL && place_of_current(&place) && place.gpu != NO_GPU) { /* a default pool, or one made elsewhere */
        pthread_mutex_lock(&lock);
        account = account_open(pool, place.gpu);
        pthread_mutex_unlock(&lock);
    }
    return account;
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

static CUresult allocate_current(CUdeviceptr *address, size_t bytes, CUstream stream, bool per_thread, allocate_function call) {
    struct place place;
    if (address == NULL || !place_of_current(&place) || is_capturing(stream, per_thread)) {
        return call(address, bytes, NULL, stream);
    }
    return allocate_from(current_account(stream), address, bytes, stream, call);
}

static CUresult allocate_named(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread,
                               allocate_function call) {
    struct place place;
    if (address == NULL || pool == NULL || !place_of_current(&place) || is_capturing(stream, per_thread)) {
        return call(address, bytes, pool, stream);
    }
    return allocate_from(named_account(pool), address, bytes, stream, call);
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
        pools_synchronized();                                                                                         \
        return result;                                                                                                \
    }

SYNCHRONIZES(cuStreamSynchronize, (CUstream stream), (stream))
SYNCHRONIZES(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
SYNCHRONIZES(cuEventSynchronize, (CUevent event), (event))
SYNCHRONIZES(cuCtxSynchronize, (void), ())
SYNCHRONIZES(cuCtxSynchronize_v2, (CUcontext context), (context))
