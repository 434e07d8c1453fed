/* How much memory there is: the slice, not the GPU. */
#include "charge.h"

#include <limits.h>

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* What the session leaves of the GPU's numbers. A process that may not allocate sees a GPU with nothing free. */
static void show_slice(uint32_t gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    if (gpu == NO_GPU || atomic_load_explicit(&session.state, memory_order_acquire) != SESSION_ATTACHED) {
        *free_bytes = 0;
        return;
    }
    uint64_t limit = session_limit(gpu), used = session_used(gpu);
    *free_bytes = smaller(*free_bytes, limit > used ? limit - used : 0);
    *total_bytes = smaller(*total_bytes, limit);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    size_t real_free, real_total;
    struct place place;
    CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result != CUDA_SUCCESS || !place_of_current(&place)) {
        return result;
    }
    pools_look(POOLS_FREED);
    uint64_t slice_free = real_free, slice_total = real_total;
    show_slice(place.gpu, &slice_free, &slice_total);
    if (free_bytes != NULL) {
        *free_bytes = slice_free;
    }
    if (total_bytes != NULL) {
        *total_bytes = slice_total;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
    size_t wide_free = 0, wide_total = 0;
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS && free_bytes != NULL) {
        *free_bytes = (unsigned int)smaller(wide_free, UINT_MAX);
    }
    if (result == CUDA_SUCCESS && total_bytes != NULL) {
        *total_bytes = (unsigned int)smaller(wide_total, UINT_MAX);
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS) {
        uint64_t ignored = 0, total = *bytes;
        show_slice(gpu_of_device(device), &ignored, &total);
        *bytes = total;
    }
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    size_t wide = 0;
    CUresult result = cuDeviceTotalMem_v2(&wide, device);
    if (result == CUDA_SUCCESS && bytes != NULL) {
        *bytes = (unsigned int)smaller(wide, UINT_MAX);
    }
    return bytes == NULL && result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}
