/* cuGetProcAddress: the way in which the CUDA runtime and most frameworks find the driver's functions. The driver chooses
 * the version; if what it chose is a function that we define, ours is handed out instead. */
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

/* Ours for the driver's function. When the driver hands out something that is none of its exported functions under a
 * name that we must guard, it is a version newer than this library: nothing is handed out, because it would be a way
 * around the limit. */
static void *guarded(const char *name, void *function) {
    bool must_guard = false;
    for (size_t i = 0; i < HOOK_COUNT && function != NULL; i++) {
        real_pointer real = real_function(&real_cuda, hooks[i].index);
        if (memcmp(&real, &function, sizeof function) == 0) {
            void *own;
            memcpy(&own, &hooks[i].own, sizeof own);
            return own;
        }
        must_guard |= is_version_of(hooks[i].symbol, name);
    }
    return must_guard ? NULL : function;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && function != NULL && *function != NULL) {
        *function = guarded(symbol, *function);
        if (*function == NULL && status != NULL) {
            *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    return result;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && symbol != NULL && function != NULL && *function != NULL) {
        *function = guarded(symbol, *function);
    }
    return result == CUDA_SUCCESS && function != NULL && *function == NULL ? CUDA_ERROR_NOT_FOUND : result;
}
