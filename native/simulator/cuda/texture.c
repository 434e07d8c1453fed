/* Texture and surface objects: handles that remember what they were made from. No kernel here samples them. */
#include "driver.h"

struct texture {
    struct object object;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    CUDA_RESOURCE_VIEW_DESC view;
    bool has_view;
};

struct surface {
    struct object object;
    CUDA_RESOURCE_DESC resource;
};

static CUresult check_resource(const CUDA_RESOURCE_DESC *resource, bool for_surface) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (resource == NULL || resource->flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return object_is(resource->res.array.hArray, KIND_ARRAY) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        if (for_surface) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        return object_is(resource->res.mipmap.hMipmappedArray, KIND_MIPMAP) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
        return !for_surface && memory_bytes_at(resource->res.linear.devPtr, resource->res.linear.sizeInBytes) != NULL
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D: {
        size_t bytes;
        bool fits = !__builtin_mul_overflow(resource->res.pitch2D.pitchInBytes, resource->res.pitch2D.height, &bytes) &&
                    memory_bytes_at(resource->res.pitch2D.devPtr, bytes) != NULL;
        return !for_surface && fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* What every call on an existing object begins with. */
static CUresult check_object(unsigned long long handle, enum kind kind, bool arguments_given) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && !arguments_given) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && !object_is((void *)(uintptr_t)handle, kind)) {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    return result;
}

static CUresult destroy(unsigned long long handle, enum kind kind) {
    void *object = (void *)(uintptr_t)handle;
    CUresult result = check_object(handle, kind, true);
    if (result == CUDA_SUCCESS && !object_retire(object, kind)) {
        result = CUDA_ERROR_INVALID_HANDLE; /* another thread was faster */
    }
    if (result == CUDA_SUCCESS) {
        object_free(object, kind);
    }
    return result;
}

static struct texture *texture_of(CUtexObject handle) {
    return (struct texture *)(uintptr_t)handle;
}

CUresult CUDAAPI cuTexObjectCreate(CUtexObject *handle, const CUDA_RESOURCE_DESC *resource,
                                   const CUDA_TEXTURE_DESC *sampling, const CUDA_RESOURCE_VIEW_DESC *view) {
    CUresult result = check_resource(resource, false);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || sampling == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct texture *texture = object_new(KIND_TEXTURE, sizeof *texture);
    if (texture == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    texture->resource = *resource;
    texture->sampling = *sampling;
    texture->has_view = view != NULL;
    if (view != NULL) {
        texture->view = *view;
    }
    *handle = (uintptr_t)texture;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject handle) {
    return destroy(handle, KIND_TEXTURE);
}

CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject handle) {
    CUresult result = check_object(handle, KIND_TEXTURE, resource != NULL);
    if (result == CUDA_SUCCESS) {
        *resource = texture_of(handle)->resource;
    }
    return result;
}

CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *sampling, CUtexObject handle) {
    CUresult result = check_object(handle, KIND_TEXTURE, sampling != NULL);
    if (result == CUDA_SUCCESS) {
        *sampling = texture_of(handle)->sampling;
    }
    return result;
}

CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle) {
    CUresult result = check_object(handle, KIND_TEXTURE, view != NULL);
    if (result == CUDA_SUCCESS && !texture_of(handle)->has_view) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *view = texture_of(handle)->view;
    }
    return result;
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject *handle, const CUDA_RESOURCE_DESC *resource) {
    CUresult result = check_resource(resource, true);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct surface *surface = object_new(KIND_SURFACE, sizeof *surface);
    if (surface == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    surface->resource = *resource;
    *handle = (uintptr_t)surface;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject handle) {
    return destroy(handle, KIND_SURFACE);
}

CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject handle) {
    CUresult result = check_object(handle, KIND_SURFACE, resource != NULL);
    if (result == CUDA_SUCCESS) {
        *resource = ((struct surface *)(uintptr_t)handle)->resource;
    }
    return result;
}
