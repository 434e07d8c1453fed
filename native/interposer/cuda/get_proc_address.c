/* cuGetProcAddress: by it the CUDA runtime and most frameworks find the driver's functions. The driver chooses the
 * version; if it chose a function that we define, ours is handed out instead. */
#include "../../proc_address/proc_address.h"
#include "hooks.h"
#include "real_cuda.h"

#include <string.h>

struct hook {
    const char *symbol;
    enum cuda_index index;
    real_pointer own;
};

static const struct hook hooks[] = {
#define HOOK(name) {#name, INDEX_##name, (real_pointer)name},
    HOOKS(HOOK)
#undef HOOK
};
#define HOOK_COUNT (sizeof hooks / sizeof hooks[0])

/* Is `symbol` the name, or the name with a version or stream suffix? */
static bool is_version_of(const char *symbol, const char *name) {
    size_t length = strlen(name);
    return strncmp(symbol, name, length) == 0 &&
           (symbol[length] == '\0' || strncmp(symbol + length, "_v", 2) == 0 || strncmp(symbol + length, "_pt", 3) == 0);
}

/* The driver handed out something under a name that we guard, and it is none of its exported functions. Then the headers
 * say which of our functions the version means. A version newer than they are is not handed out at all: it may be another
 * ABI, and the driver's own would be a way around the limit. */
static void *by_version(const char *name, int version, bool per_thread) {
    bool named;
    const struct entry *entry = version <= CUDA_VERSION ? entry_find(name, version, per_thread, &named) : NULL;
    void *own = NULL;
    if (entry != NULL) {
        memcpy(&own, &entry->function, sizeof own);
    }
    return own;
}

static void *guarded(const char *name, int version, bool per_thread, void *function) {
    bool must_guard = false;
    for (size_t i = 0; i < HOOK_COUNT; i++) {
        real_pointer real = real_function(&real_cuda, hooks[i].index);
        if (memcmp(&real, &function, sizeof function) == 0) {
            void *own;
            memcpy(&own, &hooks[i].own, sizeof own);
            return own;
        }
        must_guard |= is_version_of(hooks[i].symbol, name);
    }
    return must_guard ? by_version(name, version, per_thread) : function;
}

static bool wants_per_thread(cuuint64_t flags) {
    return (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && function != NULL && *function != NULL) {
        *function = guarded(symbol, version, wants_per_thread(flags), *function);
        if (*function == NULL && status != NULL) {
            *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    return result;
}

/* Before CUDA 12 there was no status, and a missing name was an error. */
static CUresult guard_function(CUresult result, const char *symbol, void **function, int version, bool per_thread) {
    if (result == CUDA_SUCCESS && symbol != NULL && function != NULL && *function != NULL) {
        *function = guarded(symbol, version, per_thread, *function);
    }
    return result == CUDA_SUCCESS && function != NULL && *function == NULL ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    return guard_function(result, symbol, function, version, wants_per_thread(flags));
}

/* Without a flag it means the thread's own stream. */
CUresult cuGetProcAddress_ptsz(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress_ptsz)(symbol, function, version, flags);
    bool per_thread = wants_per_thread(flags) || (flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM) == 0;
    return guard_function(result, symbol, function, version, per_thread);
}
