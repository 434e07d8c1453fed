/* cuGetProcAddress: the function that fits the CUDA version and the kind of default stream that the caller asks for. */
#include "../../proc_address/proc_address.h"
#include "driver.h"

#include <string.h>

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
    int newest = CUDA_VERSION;
    if (symbol == NULL || function == NULL || cuDriverGetVersion(&newest) != CUDA_SUCCESS || version > newest) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool named;
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct entry *entry = entry_find(symbol, version, per_thread, &named);
    *function = NULL;
    if (entry != NULL) {
        memcpy(function, &entry->function, sizeof *function);
    }
    if (status != NULL) {
        *status = entry != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : named       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

/* Before CUDA 12 there was no status, and a missing name was an error. */
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, NULL);
    return result == CUDA_SUCCESS && *function == NULL ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult CUDAAPI cuGetProcAddress_ptsz(const char *symbol, void **function, int version, cuuint64_t flags);

/* Without a flag it means the thread's own stream. CUDA 11 has it; no later header declares it. */
CUresult CUDAAPI cuGetProcAddress_ptsz(const char *symbol, void **function, int version, cuuint64_t flags) {
    cuuint64_t either = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    flags |= (flags & either) == 0 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    return cuGetProcAddress(symbol, function, version, flags);
}
