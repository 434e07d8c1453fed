/* Arrays and mipmapped arrays: opaque to programs, plain rows of device memory here. */
#include "driver.h"

static size_t format_bytes(CUarray_format format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static CUresult array_open(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct array **opened) {
    struct device *device = context->device;
    size_t element = format_bytes(descriptor->Format) * descriptor->NumChannels;
    size_t height = descriptor->Height ? descriptor->Height : 1, depth = descriptor->Depth ? descriptor->Depth : 1;
    bool channels_fit = descriptor->NumChannels == 1 || descriptor->NumChannels == 2 || descriptor->NumChannels == 4;
    size_t row, bytes;
    if (element == 0 || !channels_fit || descriptor->Width == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (__builtin_mul_overflow(descriptor->Width, element, &row) || __builtin_mul_overflow(row, height, &bytes) ||
        __builtin_mul_overflow(bytes, depth, &bytes) || bytes > device->memory_bytes ||
        !sim_memory_claim(&driver.process, device->domain, units_of(bytes))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct array *array = object_new(KIND_ARRAY, sizeof *array);
    if (array == NULL || arena_take(device, bytes, BLOCK_ARRAY, context, &array->address) == NULL) {
        sim_memory_release(&driver.process, device->domain, units_of(bytes));
        if (array != NULL && object_retire(array, KIND_ARRAY)) {
            object_free(array, KIND_ARRAY);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    array->context = context;
    array->context_id = context->id;
    array->descriptor = *descriptor;
    array->element_bytes = element;
    array->row_bytes = row;
    array->height = height;
    array->depth = depth;
    *opened = array;
    return CUDA_SUCCESS;
}

static CUresult array_close(struct array *array) {
    if (!object_retire(array, KIND_ARRAY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct device *device;
    CUdeviceptr start;
    bool context_lives = object_is(array->context, KIND_CONTEXT) && array->context->id == array->context_id;
    struct block *block = context_lives ? arena_find(array->address, &device, &start) : NULL;
    if (block != NULL) {
        uint64_t units = units_of(block->size);
        if (arena_give(device, start, block, BLOCK_ARRAY)) {
            sim_memory_release(&driver.process, device->domain, units);
        }
    }
    object_free(array, KIND_ARRAY);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || descriptor == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct array *array;
    result = array_open(context, descriptor, &array);
    if (result == CUDA_SUCCESS) {
        *handle = (CUarray)array;
    }
    return result;
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    if (descriptor == NULL) {
        return cuArray3DCreate_v2(handle, NULL);
    }
    CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = descriptor->Width, .Height = descriptor->Height,
                                    .Format = descriptor->Format, .NumChannels = descriptor->NumChannels};
    return cuArray3DCreate_v2(handle, &flat);
}

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct array *array = (struct array *)handle;
    if (!object_is(array, KIND_ARRAY) || array->mipmap != NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return array_close(array);
}

CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray handle) {
    if (!object_is(handle, KIND_ARRAY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (descriptor == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *descriptor = ((struct array *)handle)->descriptor;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray handle) {
    CUDA_ARRAY3D_DESCRIPTOR full;
    CUresult result = cuArray3DGetDescriptor_v2(&full, handle);
    if (result == CUDA_SUCCESS && descriptor == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *descriptor = (CUDA_ARRAY_DESCRIPTOR){full.Width, full.Height, full.Format, full.NumChannels};
    }
    return result;
}

CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray handle, CUdevice device) {
    struct array *array = (struct array *)handle;
    if (!object_is(array, KIND_ARRAY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (requirements == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    (void)device;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->row_bytes * array->height * array->depth,
                                                     .alignment = SIM_UNIT};
    return CUDA_SUCCESS;
}

static size_t half(size_t length) {
    return length > 1 ? length / 2 : length;
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                        unsigned int levels) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct mipmap *mipmap = NULL;
    if (handle == NULL || descriptor == NULL || levels == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mipmap = object_new(KIND_MIPMAP, sizeof *mipmap);
    if (mipmap == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
    while (result == CUDA_SUCCESS && mipmap->level_count < levels &&
           mipmap->level_count < sizeof mipmap->levels / sizeof mipmap->levels[0]) {
        struct array *array;
        result = array_open(context, &level, &array);
        if (result == CUDA_SUCCESS) {
            array->mipmap = mipmap;
            array->level = mipmap->level_count;
            mipmap->levels[mipmap->level_count++] = array;
            if (level.Width <= 1 && level.Height <= 1 && level.Depth <= 1) {
                break; /* more levels than halvings: the driver stops at one element */
            }
            level.Width = half(level.Width);
            level.Height = half(level.Height);
            level.Depth = (level.Flags & CUDA_ARRAY3D_LAYERED) != 0 ? level.Depth : half(level.Depth);
        }
    }
    *handle = (CUmipmappedArray)mipmap;
    if (result != CUDA_SUCCESS) {
        cuMipmappedArrayDestroy(*handle);
        *handle = NULL;
    }
    return result;
}

CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray handle, unsigned int level) {
    struct mipmap *mipmap = (struct mipmap *)handle;
    if (!object_is(mipmap, KIND_MIPMAP)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (array == NULL || level >= mipmap->level_count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *array = (CUarray)mipmap->levels[level];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    struct mipmap *mipmap = (struct mipmap *)handle;
    if (!object_retire(mipmap, KIND_MIPMAP)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (unsigned int level = 0; level < mipmap->level_count; level++) {
        array_close(mipmap->levels[level]);
    }
    object_free(mipmap, KIND_MIPMAP);
    return CUDA_SUCCESS;
}
