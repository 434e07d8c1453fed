/* What a program asks of a context or sets on it: device, id, flags, limits, cache preferences, peers. */
#include "driver.h"

/* Most of these read one value of the current context. */
#define CURRENT_OR_RETURN(output)                                                                                     \
    struct context *context;                                                                                          \
    CUresult current_result = context_current(&context);                                                              \
    if (current_result != CUDA_SUCCESS) {                                                                             \
        return current_result;                                                                                        \
    }                                                                                                                 \
    if ((output) == NULL) {                                                                                           \
        return CUDA_ERROR_INVALID_VALUE;                                                                              \
    }

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
    CURRENT_OR_RETURN(device);
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
    struct context *context;
    CUresult result = context_from(handle, &context);
    if (result == CUDA_SUCCESS && device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *device = context->device->ordinal;
    }
    return result;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long *id) {
    struct context *context;
    CUresult result = context_from(handle, &context);
    if (result == CUDA_SUCCESS && id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *id = context->id;
    }
    return result;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    struct context *context;
    CUresult result = context_from(handle, &context);
    if (result == CUDA_SUCCESS && version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *version = 3020;
    }
    return result;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags) {
    CURRENT_OR_RETURN(flags);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags) {
    CURRENT_OR_RETURN(&context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    CURRENT_OR_RETURN(&context);
    return context_wait(context);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
    struct context *context;
    CUresult result = context_from(handle, &context);
    return result == CUDA_SUCCESS ? context_wait(context) : result;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
    CURRENT_OR_RETURN(&context);
    if ((unsigned int)limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit) {
    CURRENT_OR_RETURN(value);
    if ((unsigned int)limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache *config) {
    CURRENT_OR_RETURN(config);
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
    CURRENT_OR_RETURN(&context);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    CURRENT_OR_RETURN(config);
    *config = context->shared_config;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig config) {
    CURRENT_OR_RETURN(&context);
    context->shared_config = config;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CURRENT_OR_RETURN(&context);
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
    CURRENT_OR_RETURN(&context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
    CURRENT_OR_RETURN(handle);
    struct context *peer;
    CUresult result = context_from(handle, &peer);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (peer->device == context->device) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    uint32_t bit = 1u << peer->device->ordinal;
    pthread_mutex_lock(&context->lock);
    result = context->peers & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
    context->peers |= bit;
    pthread_mutex_unlock(&context->lock);
    return result;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext handle) {
    CURRENT_OR_RETURN(handle);
    struct context *peer;
    CUresult result = context_from(handle, &peer);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint32_t bit = 1u << peer->device->ordinal;
    pthread_mutex_lock(&context->lock);
    result = context->peers & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~bit;
    pthread_mutex_unlock(&context->lock);
    return result;
}
