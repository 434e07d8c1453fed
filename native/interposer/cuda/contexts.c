/* Start-up, and contexts: destroying one frees its memory without a call per allocation, so its records go with it. */
#include "charge.h"

#include <pthread.h>

#define MAX_ORDINALS 64

static _Atomic(CUcontext) primaries[MAX_ORDINALS];

/* The parent's memory is not the child's, and another thread of the parent may have been in the table. */
static void forget_after_fork(void) {
    table_forget(&charges);
    place_forget_devices();
}

static void follow_forks(void) {
    pthread_atfork(NULL, NULL, forget_after_fork);
}

CUresult cuInit(unsigned int flags) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    CUresult result = REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS) {
        pthread_once(&once, follow_forks);
        session_attach(false); /* refused: every allocation will be denied, and the user was told */
    }
    return result;
}

static void forget_context(CUcontext context) {
    place_forget_contexts();
    deferred_free_forget(context);
    table_take_owner(&charges, (uint64_t)(uintptr_t)context, charge_entry_back);
}

/* A context made current by another thread meanwhile is that program's mistake, as with the driver itself. */
#define DESTROYS(name)                                                                                                \
    CUresult name(CUcontext context) {                                                                                \
        CUresult result = REAL(name)(context);                                                                        \
        if (result == CUDA_SUCCESS) {                                                                                 \
            forget_context(context);                                                                                  \
        }                                                                                                             \
        return result;                                                                                                \
    }

DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)

CUresult cuCtxDetach(CUcontext context) {
    unsigned int version;
    CUresult result = REAL(cuCtxDetach)(context);
    if (result == CUDA_SUCCESS && REAL(cuCtxGetApiVersion)(context, &version) != CUDA_SUCCESS) {
        forget_context(context); /* that was the last use of it */
    }
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_SUCCESS && device >= 0 && device < MAX_ORDINALS) {
        atomic_store(&primaries[device], *context);
    }
    return result;
}

static void forget_primary_if_gone(CUdevice device) {
    unsigned int flags;
    int active = 1;
    if (device >= 0 && device < MAX_ORDINALS && REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS &&
        !active) {
        CUcontext context = atomic_exchange(&primaries[device], NULL);
        if (context != NULL) {
            forget_context(context);
        }
    }
}

#define ENDS_PRIMARY(name)                                                                                            \
    CUresult name(CUdevice device) {                                                                                  \
        CUresult result = REAL(name)(device);                                                                         \
        if (result == CUDA_SUCCESS) {                                                                                 \
            forget_primary_if_gone(device);                                                                           \
        }                                                                                                             \
        return result;                                                                                                \
    }

ENDS_PRIMARY(cuDevicePrimaryCtxRelease)
ENDS_PRIMARY(cuDevicePrimaryCtxRelease_v2)
ENDS_PRIMARY(cuDevicePrimaryCtxReset)
ENDS_PRIMARY(cuDevicePrimaryCtxReset_v2)
