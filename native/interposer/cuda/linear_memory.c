/* Linear, pitched and managed memory, and freeing by any of the driver's calls. */
#include "charge.h"

static CUresult finish(const struct pending_charge *pending, CUresult result, const CUdeviceptr *address) {
    if (!pending->charged) {
        return result;
    }
    if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
        if (__builtin_expect(pending_record(pending, *address, CHARGE_LINEAR), 1)) {
            return CUDA_SUCCESS;
        }
        REAL(cuMemFree_v2)(*address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pending_cancel(pending);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    struct pending_charge pending;
    if (!pending_begin(&pending, charge_rounded(bytes))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish(&pending, REAL(cuMemAlloc_v2)(address, bytes), address);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    struct pending_charge pending;
    if (!pending_begin(&pending, charge_rounded(bytes))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish(&pending, REAL(cuMemAllocManaged)(address, bytes, flags), address);
}

/* Corrects a charge for rows of the expected pitch to rows of the pitch that the driver chose. */
static bool correct_pitch(struct pending_charge *pending, uint64_t actual) {
    uint64_t expected = pending->bytes;
    if (actual > expected && !charge_begin(pending->place.gpu, pending->place.lane, actual - expected)) {
        return false;
    }
    if (actual < expected) {
        charge_back(pending->place.gpu, pending->place.lane, expected - actual);
    }
    pending->bytes = actual;
    return true;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element_bytes) {
    struct pending_charge pending;
    uint64_t expected;
    if (address == NULL || pitch == NULL) {
        return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element_bytes);
    }
    if (__builtin_mul_overflow(charge_rounded(width), height, &expected) || !pending_begin(&pending, expected)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element_bytes);
    if (result == CUDA_SUCCESS && pending.charged && !correct_pitch(&pending, charge_rounded(*pitch * height))) {
        REAL(cuMemFree_v2)(*address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish(&pending, result, address);
}

/* The 32-bit calls of CUDA before 3.2 cannot address a modern GPU; nothing may be had through them uncounted. */
CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes) {
    (void)address;
    (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element_bytes) {
    (void)address;
    (void)pitch;
    (void)width;
    (void)height;
    (void)element_bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- freeing ---- */

CUresult cuMemFree_v2(CUdeviceptr address) {
    struct table_entry entry;
    bool known = table_take(&charges, address, &entry);
    CUresult result = REAL(cuMemFree_v2)(address);
    if (__builtin_expect(known, 1)) {
        charge_entry_freed(&entry, result);
    }
    return result;
}

/* A pool's account learns by itself when the pool holds less; other memory is gone once the stream gets there. */
static void freed_in_stream(const struct table_entry *entry, CUresult result, CUstream stream, bool per_thread) {
    if (entry->kind == CHARGE_POOLED || result != CUDA_SUCCESS) {
        charge_entry_freed(entry, result);
    } else {
        deferred_free_add(entry, stream, per_thread);
    }
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    struct table_entry entry;
    bool known = table_take(&charges, address, &entry);
    CUresult result = REAL(cuMemFreeAsync)(address, stream);
    if (known) {
        freed_in_stream(&entry, result, stream, false);
    }
    return result;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    struct table_entry entry;
    bool known = table_take(&charges, address, &entry);
    CUresult result = REAL(cuMemFreeAsync_ptsz)(address, stream);
    if (known) {
        freed_in_stream(&entry, result, stream, true);
    }
    return result;
}
