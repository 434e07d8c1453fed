/* Arrays and mipmapped arrays. The driver does not say how much one takes, so its elements are counted; what the driver
 * adds for alignment shows up in the process's overhead. */
#include "charge.h"

static uint64_t element_bytes(CUarray_format format, unsigned int channels) {
    uint64_t bytes = 4; /* formats that pack several channels into a word */
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        bytes = 1;
        break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        bytes = 2;
        break;
    default:
        break;
    }
    return bytes * (channels != 0 ? channels : 1);
}

static uint64_t at_least_one(uint64_t value) {
    return value != 0 ? value : 1;
}

/* UINT64_MAX when the product does not fit: no limit allows that much. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    uint64_t bytes = element_bytes(descriptor->Format, descriptor->NumChannels);
    bool overflow = __builtin_mul_overflow(bytes, at_least_one(descriptor->Width), &bytes) ||
                    __builtin_mul_overflow(bytes, at_least_one(descriptor->Height), &bytes) ||
                    __builtin_mul_overflow(bytes, at_least_one(descriptor->Depth), &bytes);
    return overflow ? UINT64_MAX : charge_rounded(bytes);
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels) {
    CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
    uint64_t bytes = 0;
    for (unsigned int i = 0; i < levels && i < 64; i++) {
        if (__builtin_add_overflow(bytes, array_bytes(&level), &bytes)) {
            return UINT64_MAX;
        }
        if (level.Width <= 1 && level.Height <= 1 && level.Depth <= 1) {
            break;
        }
        level.Width = level.Width > 1 ? level.Width / 2 : level.Width;
        level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
        bool layered = (level.Flags & CUDA_ARRAY3D_LAYERED) != 0;
        level.Depth = level.Depth > 1 && !layered ? level.Depth / 2 : level.Depth;
    }
    return bytes;
}

/* Memory for these is made and charged elsewhere (cuMemCreate). */
static bool brings_no_memory(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

/* Makes it and records it under its handle; `destroy` undoes it when there is no room for the record. */
#define CHARGED_ARRAY(handle, total, call, destroy)                                                                   \
    do {                                                                                                              \
        struct place place;                                                                                           \
        uint64_t bytes = (total);                                                                                     \
        if (!place_of_current(&place)) {                                                                              \
            return (call);                                                                                            \
        }                                                                                                             \
        if (!charge_begin(place.gpu, place.lane, bytes)) {                                                            \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = (call);                                                                                     \
        struct table_entry entry = {.owner = (uint64_t)(uintptr_t)place.context, .bytes = bytes,                      \
                                    .gpu = (uint8_t)place.gpu, .kind = CHARGE_ARRAY, .lane = place.lane & 0xfu};      \
        if (result == CUDA_SUCCESS) {                                                                                 \
            entry.key = (uint64_t)(uintptr_t)*(handle);                                                               \
            if (table_put(&charges, &entry)) {                                                                        \
                return CUDA_SUCCESS;                                                                                  \
            }                                                                                                         \
            destroy(*(handle));                                                                                       \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                                        \
        }                                                                                                             \
        charge_back(place.gpu, place.lane, bytes);                                                                    \
        return result;                                                                                                \
    } while (0)

CUresult cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    if (handle == NULL || descriptor == NULL || brings_no_memory(descriptor)) {
        return REAL(cuArray3DCreate_v2)(handle, descriptor);
    }
    CHARGED_ARRAY(handle, array_bytes(descriptor), REAL(cuArray3DCreate_v2)(handle, descriptor), REAL(cuArrayDestroy));
}

CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    if (handle == NULL || descriptor == NULL) {
        return REAL(cuArrayCreate_v2)(handle, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = descriptor->Width, .Height = descriptor->Height,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    CHARGED_ARRAY(handle, array_bytes(&flat), REAL(cuArrayCreate_v2)(handle, descriptor), REAL(cuArrayDestroy));
}

CUresult cuArray3DCreate(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
    if (handle == NULL || descriptor == NULL) {
        return REAL(cuArray3DCreate)(handle, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = descriptor->Width, .Height = descriptor->Height, .Depth = descriptor->Depth,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    CHARGED_ARRAY(handle, array_bytes(&wide), REAL(cuArray3DCreate)(handle, descriptor), REAL(cuArrayDestroy));
}

CUresult cuArrayCreate(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
    if (handle == NULL || descriptor == NULL) {
        return REAL(cuArrayCreate)(handle, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = descriptor->Width, .Height = descriptor->Height,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    CHARGED_ARRAY(handle, array_bytes(&wide), REAL(cuArrayCreate)(handle, descriptor), REAL(cuArrayDestroy));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels) {
    if (handle == NULL || descriptor == NULL || brings_no_memory(descriptor)) {
        return REAL(cuMipmappedArrayCreate)(handle, descriptor, levels);
    }
    CHARGED_ARRAY(handle, mipmap_bytes(descriptor, levels), REAL(cuMipmappedArrayCreate)(handle, descriptor, levels),
                  REAL(cuMipmappedArrayDestroy));
}

CUresult cuArrayDestroy(CUarray handle) {
    CHARGED_FREE((uint64_t)(uintptr_t)handle, REAL(cuArrayDestroy)(handle), charge_entry_back(&entry));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    CHARGED_FREE((uint64_t)(uintptr_t)handle, REAL(cuMipmappedArrayDestroy)(handle), charge_entry_back(&entry));
}
