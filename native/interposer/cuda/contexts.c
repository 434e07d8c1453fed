/* Start-up, fork, and contexts: destroying one frees its memory without a call per allocation, so its records go with it. */
#include "../compute/launch.h"
#include "pool_account.h"

#include <pthread.h>

#define MAX_ORDINALS 64

static _Atomic(CUcontext) primaries[MAX_ORDINALS];

/* ---- start-up and fork ---- */

/* The parent's memory is not the child's, and another thread of the parent may have been in any of these. */
static void forget_after_fork(void) {
    table_forget(&charges);
    place_forget_devices();
    accounts_forget();
    pools_forget();
    graphs_forget();
    deferred_free_forget();
    virtual_memory_forget();
    samples_forget();
    for (int ordinal = 0; ordinal < MAX_ORDINALS; ordinal++) {
        atomic_store(&primaries[ordinal], NULL);
    }
}

/* Two threads may both register it: to forget twice is to forget. pthread_once is not in every libc.so.6, and a lock could be
 * taken when another thread forks. */
static void follow_forks(void) {
    static _Atomic bool following;
    if (!atomic_load(&following) && pthread_atfork(NULL, NULL, forget_after_fork) == 0) {
        atomic_store(&following, true);
    }
}

CUresult cuInit(unsigned int flags) {
    follow_forks();
    CUresult result = REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS) {
        session_attach(false); /* refused: every allocation will be denied, and the user was told */
    }
    return result;
}

/* ---- contexts of the program's own ---- */

static void forget_context(CUcontext context) {
    place_forget_contexts();
    table_take_owner(&charges, (uint64_t)(uintptr_t)context, charge_entry_back);
}

static CUresult end_teardown(CUcontext context, CUresult result, bool destroyed) {
    deferred_free_end_teardown(context, destroyed);
    if (destroyed) {
        forget_context(context);
    }
    return result;
}

/* If another thread makes the context current meanwhile, that is the program's mistake, as with the driver itself. */
CUresult cuCtxDestroy(CUcontext context) {
    samples_close(context);
    deferred_free_begin_teardown(context);
    CUresult result = REAL(cuCtxDestroy)(context);
    return end_teardown(context, result, result == CUDA_SUCCESS);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    samples_close(context);
    deferred_free_begin_teardown(context);
    CUresult result = REAL(cuCtxDestroy_v2)(context);
    return end_teardown(context, result, result == CUDA_SUCCESS);
}

CUresult cuCtxDetach(CUcontext context) {
    unsigned int version;
    samples_close(context);
    deferred_free_begin_teardown(context);
    CUresult result = REAL(cuCtxDetach)(context);
    bool was_last = result == CUDA_SUCCESS && REAL(cuCtxGetApiVersion)(context, &version) != CUDA_SUCCESS;
    return end_teardown(context, result, was_last);
}

/* ---- primary contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_SUCCESS && device >= 0 && device < MAX_ORDINALS) {
        atomic_store(&primaries[device], *context);
    }
    return result;
}

/* The device's primary context, about to end perhaps; NULL if it was never asked for. */
static CUcontext begin_primary_teardown(CUdevice device) {
    CUcontext context = device >= 0 && device < MAX_ORDINALS ? atomic_load(&primaries[device]) : NULL;
    if (context != NULL) {
        samples_close(context);
        deferred_free_begin_teardown(context);
    }
    return context;
}

static CUresult end_primary_teardown(CUdevice device, CUcontext context, CUresult result) {
    unsigned int flags;
    int active = 1;
    if (context == NULL) {
        return result;
    }
    bool ended = result == CUDA_SUCCESS && REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && !active;
    if (ended) {
        atomic_compare_exchange_strong(&primaries[device], &(CUcontext){context}, NULL);
    }
    end_teardown(context, result, ended);
    if (ended) {
        pools_context_ended(device);
        graphs_refresh();
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    CUcontext context = begin_primary_teardown(device);
    return end_primary_teardown(device, context, REAL(cuDevicePrimaryCtxRelease)(device));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUcontext context = begin_primary_teardown(device);
    return end_primary_teardown(device, context, REAL(cuDevicePrimaryCtxRelease_v2)(device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    CUcontext context = begin_primary_teardown(device);
    return end_primary_teardown(device, context, REAL(cuDevicePrimaryCtxReset)(device));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    CUcontext context = begin_primary_teardown(device);
    return end_primary_teardown(device, context, REAL(cuDevicePrimaryCtxReset_v2)(device));
}
