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

static CUresult finish_array(const struct pending_charge *pending, CUresult result, const CUarray *array) {
    if (!pending->charged) {
        return result;
    }
    if (result == CUDA_SUCCESS) {
        if (pending_record(pending, (uint64_t)(uintptr_t)*array, CHARGE_ARRAY)) {
            return CUDA_SUCCESS;
        }
        REAL(cuArrayDestroy)(*array);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pending_cancel(pending);
    return result;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    struct pending_charge pending;
    if (array == NULL || descriptor == NULL || brings_no_memory(descriptor)) {
        return REAL(cuArray3DCreate_v2)(array, descriptor);
    }
    if (!pending_begin(&pending, array_bytes(descriptor))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish_array(&pending, REAL(cuArray3DCreate_v2)(array, descriptor), array);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    struct pending_charge pending;
    if (array == NULL || descriptor == NULL) {
        return REAL(cuArrayCreate_v2)(array, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = descriptor->Width, .Height = descriptor->Height,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    if (!pending_begin(&pending, array_bytes(&flat))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish_array(&pending, REAL(cuArrayCreate_v2)(array, descriptor), array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
    struct pending_charge pending;
    if (array == NULL || descriptor == NULL) {
        return REAL(cuArray3DCreate)(array, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = descriptor->Width, .Height = descriptor->Height, .Depth = descriptor->Depth,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    if (!pending_begin(&pending, array_bytes(&wide))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish_array(&pending, REAL(cuArray3DCreate)(array, descriptor), array);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
    struct pending_charge pending;
    if (array == NULL || descriptor == NULL) {
        return REAL(cuArrayCreate)(array, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = descriptor->Width, .Height = descriptor->Height,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    if (!pending_begin(&pending, array_bytes(&wide))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish_array(&pending, REAL(cuArrayCreate)(array, descriptor), array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels) {
    struct pending_charge pending;
    if (mipmap == NULL || descriptor == NULL || brings_no_memory(descriptor)) {
        return REAL(cuMipmappedArrayCreate)(mipmap, descriptor, levels);
    }
    if (!pending_begin(&pending, mipmap_bytes(descriptor, levels))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMipmappedArrayCreate)(mipmap, descriptor, levels);
    if (!pending.charged) {
        return result;
    }
    if (result == CUDA_SUCCESS) {
        if (pending_record(&pending, (uint64_t)(uintptr_t)*mipmap, CHARGE_ARRAY)) {
            return CUDA_SUCCESS;
        }
        REAL(cuMipmappedArrayDestroy)(*mipmap);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pending_cancel(&pending);
    return result;
}

CUresult cuArrayDestroy(CUarray array) {
    struct table_entry entry;
    bool known = table_take(&charges, (uint64_t)(uintptr_t)array, &entry);
    CUresult result = REAL(cuArrayDestroy)(array);
    if (known) {
        charge_entry_freed(&entry, result);
    }
    return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    struct table_entry entry;
    bool known = table_take(&charges, (uint64_t)(uintptr_t)mipmap, &entry);
    CUresult result = REAL(cuMipmappedArrayDestroy)(mipmap);
    if (known) {
        charge_entry_freed(&entry, result);
    }
    return result;
}
