/* Every call that copies. Synchronous ones wait for the legacy stream and those that synchronize with it, then copy;
 * asynchronous ones go through their stream. */
#include "deferred.h"

#include <string.h>

/* ---- the two ways ---- */

static CUresult copy_now(const struct operation *operation) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = capture_check();
    }
    if (result == CUDA_SUCCESS) {
        result = stream_settle(context->legacy_stream);
    }
    return result == CUDA_SUCCESS ? copy_execute(operation) : result;
}

static CUresult copy_in_stream(const struct operation *operation, CUstream handle) {
    struct context *context;
    struct stream *stream;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = stream_from(handle, &stream);
    }
    return result == CUDA_SUCCESS ? stream_submit(stream, operation) : result;
}

#define PARAMETERS(...) __VA_ARGS__

#define COPY_NOW(name, parameters, description) \
    CUresult CUDAAPI name(parameters) {         \
        struct operation operation = description; \
        return copy_now(&operation);            \
    }

#define COPY_IN_STREAM(name, parameters, description)    \
    CUresult CUDAAPI name(parameters, CUstream handle) { \
        struct operation operation = description;        \
        return copy_in_stream(&operation, handle);       \
    }

#define COPY_BOTH(name, version, parameters, description) \
    COPY_NOW(name##version, PARAMETERS(parameters), PARAMETERS(description)) \
    COPY_IN_STREAM(name##Async##version, PARAMETERS(parameters), PARAMETERS(description))

/* ---- one row ---- */

static struct copy_end host_end(const void *host) {
    return (struct copy_end){.type = CU_MEMORYTYPE_HOST, .host = (void *)(uintptr_t)host};
}

static struct copy_end device_end(CUdeviceptr device) {
    return (struct copy_end){.type = CU_MEMORYTYPE_DEVICE, .device = device};
}

static struct copy_end any_end(CUdeviceptr pointer) {
    return (struct copy_end){.type = CU_MEMORYTYPE_UNIFIED, .device = pointer};
}

static struct copy_end array_end(CUarray array, size_t offset) {
    return (struct copy_end){.type = CU_MEMORYTYPE_ARRAY, .array = (struct array *)array, .x_bytes = offset};
}

static struct operation row(struct copy_end to, struct copy_end from, size_t bytes) {
    return (struct operation){
        .kind = OPERATION_COPY,
        .copy = {.from = from, .to = to, .width_bytes = bytes, .height = 1, .depth = 1},
    };
}

COPY_BOTH(cuMemcpy, , PARAMETERS(CUdeviceptr to, CUdeviceptr from, size_t bytes), row(any_end(to), any_end(from), bytes))
COPY_BOTH(cuMemcpyHtoD, _v2, PARAMETERS(CUdeviceptr to, const void *from, size_t bytes),
          row(device_end(to), host_end(from), bytes))
COPY_BOTH(cuMemcpyDtoH, _v2, PARAMETERS(void *to, CUdeviceptr from, size_t bytes),
          row(host_end(to), device_end(from), bytes))
COPY_BOTH(cuMemcpyDtoD, _v2, PARAMETERS(CUdeviceptr to, CUdeviceptr from, size_t bytes),
          row(device_end(to), device_end(from), bytes))
COPY_BOTH(cuMemcpyHtoA, _v2, PARAMETERS(CUarray to, size_t offset, const void *from, size_t bytes),
          row(array_end(to, offset), host_end(from), bytes))
COPY_BOTH(cuMemcpyAtoH, _v2, PARAMETERS(void *to, CUarray from, size_t offset, size_t bytes),
          row(host_end(to), array_end(from, offset), bytes))
COPY_NOW(cuMemcpyDtoA_v2, PARAMETERS(CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
         row(array_end(to, offset), device_end(from), bytes))
COPY_NOW(cuMemcpyAtoD_v2, PARAMETERS(CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
         row(device_end(to), array_end(from, offset), bytes))
COPY_NOW(cuMemcpyAtoA_v2, PARAMETERS(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
         row(array_end(to, to_offset), array_end(from, from_offset), bytes))

static CUresult check_peers(CUcontext to, CUcontext from) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return object_is(to, KIND_CONTEXT) && object_is(from, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              size_t bytes) {
    CUresult result = check_peers(to_context, from_context);
    return result == CUDA_SUCCESS ? cuMemcpyDtoD_v2(to, from, bytes) : result;
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   size_t bytes, CUstream handle) {
    CUresult result = check_peers(to_context, from_context);
    return result == CUDA_SUCCESS ? cuMemcpyDtoDAsync_v2(to, from, bytes, handle) : result;
}

/* ---- two and three dimensions ---- */

static struct copy_end end_of(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array) {
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        return host_end(host);
    case CU_MEMORYTYPE_ARRAY:
        return array_end(array, 0);
    default:
        return (struct copy_end){.type = type, .device = device};
    }
}

struct operation copy_from_3d(const CUDA_MEMCPY3D *description) {
    const CUDA_MEMCPY3D *d = description;
    struct operation operation = row(end_of(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstArray),
                                     end_of(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcArray), d->WidthInBytes);
    struct copy_end *to = &operation.copy.to, *from = &operation.copy.from;
    to->x_bytes = d->dstXInBytes, to->y = d->dstY, to->z = d->dstZ, to->level = d->dstLOD;
    to->pitch = d->dstPitch, to->height = d->dstHeight;
    from->x_bytes = d->srcXInBytes, from->y = d->srcY, from->z = d->srcZ, from->level = d->srcLOD;
    from->pitch = d->srcPitch, from->height = d->srcHeight;
    operation.copy.height = d->Height;
    operation.copy.depth = d->Depth;
    return operation;
}

CUDA_MEMCPY3D copy_to_3d(const struct operation *operation) {
    const struct copy_end *to = &operation->copy.to, *from = &operation->copy.from;
    CUDA_MEMCPY3D d = {
        .srcXInBytes = from->x_bytes, .srcY = from->y, .srcZ = from->z, .srcLOD = from->level,
        .srcMemoryType = from->type, .srcPitch = from->pitch, .srcHeight = from->height,
        .dstXInBytes = to->x_bytes, .dstY = to->y, .dstZ = to->z, .dstLOD = to->level,
        .dstMemoryType = to->type, .dstPitch = to->pitch, .dstHeight = to->height,
        .WidthInBytes = operation->copy.width_bytes, .Height = operation->copy.height, .Depth = operation->copy.depth,
    };
    if (from->type == CU_MEMORYTYPE_HOST) {
        d.srcHost = from->host;
    } else if (from->type == CU_MEMORYTYPE_ARRAY) {
        d.srcArray = (CUarray)from->array;
    } else {
        d.srcDevice = from->device;
    }
    if (to->type == CU_MEMORYTYPE_HOST) {
        d.dstHost = to->host;
    } else if (to->type == CU_MEMORYTYPE_ARRAY) {
        d.dstArray = (CUarray)to->array;
    } else {
        d.dstDevice = to->device;
    }
    return d;
}

static struct operation copy_from_2d(const CUDA_MEMCPY2D *description) {
    const CUDA_MEMCPY2D *d = description;
    CUDA_MEMCPY3D same = {
        .srcXInBytes = d->srcXInBytes, .srcY = d->srcY, .srcMemoryType = d->srcMemoryType, .srcHost = d->srcHost,
        .srcDevice = d->srcDevice, .srcArray = d->srcArray, .srcPitch = d->srcPitch,
        .dstXInBytes = d->dstXInBytes, .dstY = d->dstY, .dstMemoryType = d->dstMemoryType, .dstHost = d->dstHost,
        .dstDevice = d->dstDevice, .dstArray = d->dstArray, .dstPitch = d->dstPitch,
        .WidthInBytes = d->WidthInBytes, .Height = d->Height, .Depth = 1,
    };
    return copy_from_3d(&same);
}

/* A copy between contexts says in addition which they are, in two fields that are reserved otherwise. */
static struct operation copy_from_peer(const CUDA_MEMCPY3D_PEER *description) {
    _Static_assert(sizeof(CUDA_MEMCPY3D_PEER) == sizeof(CUDA_MEMCPY3D), "the same fields in the same places");
    CUDA_MEMCPY3D same;
    memcpy(&same, description, sizeof same);
    return copy_from_3d(&same);
}

/* No context comes before no description among the errors. */
static CUresult check_description(const void *description) {
    struct context *context;
    CUresult result = context_current(&context);
    return result == CUDA_SUCCESS && description == NULL ? CUDA_ERROR_INVALID_VALUE : result;
}

#define COPY_DESCRIBED(name, type, convert)                         \
    CUresult CUDAAPI name(const type *description) {                \
        CUresult result = check_description(description);           \
        if (result != CUDA_SUCCESS) {                               \
            return result;                                          \
        }                                                           \
        struct operation operation = convert(description);          \
        return copy_now(&operation);                                \
    }

#define COPY_DESCRIBED_IN_STREAM(name, type, convert)                 \
    CUresult CUDAAPI name(const type *description, CUstream handle) { \
        CUresult result = check_description(description);             \
        if (result != CUDA_SUCCESS) {                                 \
            return result;                                            \
        }                                                             \
        struct operation operation = convert(description);            \
        return copy_in_stream(&operation, handle);                    \
    }

COPY_DESCRIBED(cuMemcpy2D_v2, CUDA_MEMCPY2D, copy_from_2d)
COPY_DESCRIBED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, copy_from_2d)
COPY_DESCRIBED(cuMemcpy3D_v2, CUDA_MEMCPY3D, copy_from_3d)
COPY_DESCRIBED(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, copy_from_peer)
COPY_DESCRIBED_IN_STREAM(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, copy_from_2d)
COPY_DESCRIBED_IN_STREAM(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, copy_from_3d)
COPY_DESCRIBED_IN_STREAM(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, copy_from_peer)

/* ---- batches: each copy as if alone; the first that fails ends the batch and is named ---- */

static bool is_legacy(CUstream handle) {
    return handle == NULL || handle == CU_STREAM_LEGACY;
}

static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count,
                           const CUmemcpyAttributes *attributes, const size_t *starts, size_t attribute_count,
                           size_t *failed, CUstream handle) {
    CUresult result = check_description(to);
    *failed = SIZE_MAX;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (from == NULL || sizes == NULL || count == 0 || attributes == NULL || starts == NULL || attribute_count == 0 ||
        attribute_count > count || starts[0] != 0 || is_legacy(handle)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = cuMemcpyAsync(to[i], from[i], sizes[i], handle);
        *failed = result == CUDA_SUCCESS ? SIZE_MAX : i;
    }
    return result;
}

CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                       CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                       CUstream handle) {
    size_t failed;
    return copy_batch(to, from, sizes, count, attributes, starts, attribute_count, &failed, handle);
}

CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                    size_t *failed, CUstream handle) {
    size_t ignored;
    return copy_batch(to, from, sizes, count, attributes, starts, attribute_count, failed != NULL ? failed : &ignored,
                      handle);
}

CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
                                             CUstream handle) {
    CUresult result = check_description(attributes);
    return result == CUDA_SUCCESS ? cuMemcpyAsync(to, from, bytes, handle) : result;
}

static size_t element_bytes_of(const CUmemcpy3DOperand *operand) {
    bool array = operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY && object_is(operand->op.array.array, KIND_ARRAY);
    return array ? ((const struct array *)operand->op.array.array)->element_bytes : 1;
}

/* Lengths count elements: an array's own, or bytes when the copy is between pointers. */
static struct copy_end operand_end(const CUmemcpy3DOperand *operand, size_t element_bytes) {
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        struct copy_end end = array_end(operand->op.array.array, operand->op.array.offset.x * element_bytes);
        end.y = operand->op.array.offset.y;
        end.z = operand->op.array.offset.z;
        return end;
    }
    struct copy_end end = any_end(operand->op.ptr.ptr);
    end.pitch = operand->op.ptr.rowLength * element_bytes;
    end.height = operand->op.ptr.layerHeight;
    return end;
}

CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *description, unsigned long long flags,
                                               CUstream handle) {
    CUresult result = check_description(description);
    if (result != CUDA_SUCCESS || flags != 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    size_t from_element = element_bytes_of(&description->src), to_element = element_bytes_of(&description->dst);
    size_t element = from_element > to_element ? from_element : to_element;
    struct operation operation = row(operand_end(&description->dst, element), operand_end(&description->src, element),
                                     description->extent.width * element);
    operation.copy.height = description->extent.height;
    operation.copy.depth = description->extent.depth;
    return copy_in_stream(&operation, handle);
}

static CUresult copy_batch_3d(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, size_t *failed,
                              CUstream handle) {
    CUresult result = check_description(list);
    *failed = SIZE_MAX;
    if (result == CUDA_SUCCESS && (count == 0 || flags != 0 || is_legacy(handle))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = cuMemcpy3DWithAttributesAsync(&list[i], 0, handle);
        *failed = result == CUDA_SUCCESS ? SIZE_MAX : i;
    }
    return result;
}

CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,
                                         CUstream handle) {
    size_t failed;
    return copy_batch_3d(count, list, flags, &failed, handle);
}

CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
                                      CUstream handle) {
    size_t ignored;
    return copy_batch_3d(count, list, flags, failed != NULL ? failed : &ignored, handle);
}
