/* Linear, pitched and managed memory, and freeing by whichever call. */
#include "charge.h"

/* Charged before the driver is asked, recorded after it agreed, given back if it did not. */
#define CHARGED_ALLOCATION(address, bytes, call)                                                                      \
    do {                                                                                                              \
        struct place place;                                                                                           \
        if (!place_of_current(&place)) {                                                                              \
            return (call);                                                                                            \
        }                                                                                                             \
        uint64_t rounded = charge_rounded(bytes);                                                                     \
        if (!charge_begin(place.gpu, place.lane, rounded)) {                                                          \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = (call);                                                                                     \
        return result == CUDA_SUCCESS ? record(*(address), &place, rounded) : give_back(&place, rounded, result);     \
    } while (0)

static CUresult give_back(const struct place *place, uint64_t rounded, CUresult result) {
    charge_back(place->gpu, place->lane, rounded);
    return result;
}

/* Memory that cannot be found again cannot be given back, so without a record there is no allocation. */
static CUresult record(CUdeviceptr address, const struct place *place, uint64_t rounded) {
    struct table_entry entry = {.key = address, .owner = (uint64_t)(uintptr_t)place->context, .bytes = rounded,
                                .gpu = (uint8_t)place->gpu, .kind = CHARGE_LINEAR, .lane = place->lane & 0xfu};
    if (__builtin_expect(table_put(&charges, &entry), 1)) {
        return CUDA_SUCCESS;
    }
    REAL(cuMemFree_v2)(address);
    return give_back(place, rounded, CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    CHARGED_ALLOCATION(address, bytes, REAL(cuMemAlloc_v2)(address, bytes));
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    CHARGED_ALLOCATION(address, bytes, REAL(cuMemAllocManaged)(address, bytes, flags));
}

/* The pitch is the driver's choice: charge what it usually chooses, then what it chose. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element_bytes) {
    struct place place;
    if (!place_of_current(&place) || address == NULL || pitch == NULL) {
        return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element_bytes);
    }
    size_t expected, actual;
    if (__builtin_mul_overflow(charge_rounded(width), height, &expected) || !charge_begin(place.gpu, place.lane, expected)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element_bytes);
    if (result != CUDA_SUCCESS) {
        return give_back(&place, expected, result);
    }
    actual = charge_rounded(*pitch * height);
    if (actual < expected) {
        charge_back(place.gpu, place.lane, expected - actual);
    } else if (actual > expected && !charge_begin(place.gpu, place.lane, actual - expected)) {
        REAL(cuMemFree_v2)(*address);
        return give_back(&place, expected, CUDA_ERROR_OUT_OF_MEMORY);
    }
    return record(*address, &place, actual);
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

/* In stream order: a pool's books know by themselves when it holds less, other memory is gone when the stream is there. */
static void freed_in_stream(const struct table_entry *entry, CUstream stream, bool per_thread) {
    if (entry->kind == CHARGE_POOLED) {
        charge_entry_back(entry);
    } else {
        deferred_free_add(entry, stream, per_thread);
    }
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    CHARGED_FREE(address, REAL(cuMemFree_v2)(address), charge_entry_back(&entry));
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    CHARGED_FREE(address, REAL(cuMemFreeAsync)(address, stream), freed_in_stream(&entry, stream, false));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    CHARGED_FREE(address, REAL(cuMemFreeAsync_ptsz)(address, stream), freed_in_stream(&entry, stream, true));
}
