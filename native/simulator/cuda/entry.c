/* cuGetProcAddress: the function that fits the CUDA version and the kind of default stream that the caller asks for. */
#include "driver.h"
#include "entry_table.h"

#include <string.h>

static size_t first_of_name(const char *name) {
    size_t low = 0, high = entry_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(entry_table[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static CUdriverProcAddressQueryResult find_entry(const char *name, int version, bool per_thread, void **function) {
    const struct entry *best = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = first_of_name(name); i < entry_count && strcmp(entry_table[i].name, name) == 0; i++) {
        const struct entry *entry = &entry_table[i];
        if (entry->per_thread && !per_thread) {
            continue;
        }
        if (entry->version > version) {
            status = best != NULL ? status : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            continue;
        }
        bool better = best == NULL || entry->per_thread > best->per_thread ||
                      (entry->per_thread == best->per_thread && entry->version > best->version);
        if (better) {
            best = entry;
            status = CU_GET_PROC_ADDRESS_SUCCESS;
        }
    }
    *function = best != NULL ? (void *)best->function : NULL;
    return status;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
    int newest = CUDA_VERSION;
    if (symbol == NULL || function == NULL || cuDriverGetVersion(&newest) != CUDA_SUCCESS || version > newest) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    CUdriverProcAddressQueryResult found = find_entry(symbol, version, per_thread, function);
    if (status != NULL) {
        *status = found;
    }
    return CUDA_SUCCESS;
}

/* Before CUDA 12 there was no status, and a missing name was an error. */
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, &status);
    return result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}
