/* Attributes of streams and of kernel nodes: remembered and given back. None of them changes what the simulator does. */
#include "launch_attribute.h"

#include <stdlib.h>
#include <string.h>

static bool is_known(CUlaunchAttributeID identifier) {
    return identifier > CU_LAUNCH_ATTRIBUTE_IGNORE && identifier < CU_LAUNCH_ATTRIBUTE_MAX;
}

CUresult launch_attribute_set(CUlaunchAttributeValue **values, CUlaunchAttributeID identifier,
                              const CUlaunchAttributeValue *value) {
    if (!is_known(identifier) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (*values == NULL) {
        *values = calloc(CU_LAUNCH_ATTRIBUTE_MAX, sizeof **values);
    }
    if (*values == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*values)[identifier] = *value;
    return CUDA_SUCCESS;
}

CUresult launch_attribute_get(const CUlaunchAttributeValue *values, CUlaunchAttributeID identifier,
                              CUlaunchAttributeValue *value) {
    if (!is_known(identifier) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (values != NULL) {
        *value = values[identifier];
    } else {
        memset(value, 0, sizeof *value);
    }
    return CUDA_SUCCESS;
}

CUresult launch_attribute_copy(CUlaunchAttributeValue **to, const CUlaunchAttributeValue *from) {
    CUlaunchAttributeValue *copied = NULL;
    if (from != NULL) {
        copied = malloc(CU_LAUNCH_ATTRIBUTE_MAX * sizeof *copied);
        if (copied == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memcpy(copied, from, CU_LAUNCH_ATTRIBUTE_MAX * sizeof *copied);
    }
    free(*to);
    *to = copied;
    return CUDA_SUCCESS;
}

/* ---- of streams; the context's lock keeps the values together ---- */

CUresult CUDAAPI cuStreamSetAttribute(CUstream handle, CUstreamAttrID identifier, const CUstreamAttrValue *value) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&stream->context->lock);
    result = launch_attribute_set(&stream->attributes, identifier, value);
    if (result == CUDA_SUCCESS && identifier == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
        stream->priority = value->priority;
    }
    pthread_mutex_unlock(&stream->context->lock);
    return result;
}

CUresult CUDAAPI cuStreamGetAttribute(CUstream handle, CUstreamAttrID identifier, CUstreamAttrValue *value) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&stream->context->lock);
    result = launch_attribute_get(stream->attributes, identifier, value);
    if (result == CUDA_SUCCESS && identifier == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
        value->priority = stream->priority;
    } else if (result == CUDA_SUCCESS && identifier == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY &&
               value->syncPolicy == 0) {
        value->syncPolicy = CU_SYNC_POLICY_AUTO;
    }
    pthread_mutex_unlock(&stream->context->lock);
    return result;
}

CUresult CUDAAPI cuStreamCopyAttributes(CUstream to, CUstream from) {
    struct stream *target, *source;
    CUresult result = stream_from(to, &target);
    if (result == CUDA_SUCCESS) {
        result = stream_from(from, &source);
    }
    if (result != CUDA_SUCCESS || target == source) {
        return result;
    }
    CUlaunchAttributeValue *copied = NULL;
    pthread_mutex_lock(&source->context->lock);
    result = launch_attribute_copy(&copied, source->attributes);
    pthread_mutex_unlock(&source->context->lock);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&target->context->lock);
        free(target->attributes);
        target->attributes = copied;
        pthread_mutex_unlock(&target->context->lock);
    }
    return result;
}
