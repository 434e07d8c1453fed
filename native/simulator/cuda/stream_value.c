/* Values in memory that streams write, and wait for: cuStreamWriteValue, cuStreamWaitValue and batches of them. Writes
 * happen at once; a wait whose value is not there yet holds up its stream (deferred.c). */
#include "deferred.h"

static size_t width_of(const CUstreamBatchMemOpParams *value) {
    switch (value->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return sizeof(uint32_t);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return sizeof(uint64_t);
    default:
        return 0;
    }
}

static bool is_valid(const CUstreamBatchMemOpParams *value) {
    size_t width = width_of(value);
    if (width == 0) {
        return value->operation == CU_STREAM_MEM_OP_BARRIER || value->operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    }
    return value->waitValue.address % width == 0 && memory_bytes_at(value->waitValue.address, width) != NULL;
}

/* Differences are taken in the value's own width, so that a counter may wrap. */
static bool is_satisfied(uint64_t seen, uint64_t wanted, size_t width, unsigned int flags) {
    switch (flags & ~(unsigned int)CU_STREAM_WAIT_VALUE_FLUSH) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return width == sizeof(uint32_t) ? (int32_t)((uint32_t)seen - (uint32_t)wanted) >= 0
                                         : (int64_t)(seen - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & wanted) != 0;
    default: { /* NOR */
        uint64_t mask = width == sizeof(uint32_t) ? UINT32_MAX : UINT64_MAX;
        return (~(seen | wanted) & mask) != 0;
    }
    }
}

/* True when it is done: a write always, a wait when the value is there (or its memory is gone). */
static bool perform(const CUstreamBatchMemOpParams *value) {
    size_t width = width_of(value);
    void *at = width != 0 ? memory_bytes_at(value->waitValue.address, width) : NULL;
    if (at == NULL) {
        return true;
    }
    uint64_t wanted = width == sizeof(uint32_t) ? value->waitValue.value : value->waitValue.value64;
    switch (value->operation) {
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        atomic_store((_Atomic uint32_t *)at, (uint32_t)wanted);
        return true;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        atomic_store((_Atomic uint64_t *)at, wanted);
        return true;
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return is_satisfied(atomic_load((_Atomic uint32_t *)at), wanted, width, value->waitValue.flags);
    default:
        return is_satisfied(atomic_load((_Atomic uint64_t *)at), wanted, width, value->waitValue.flags);
    }
}

bool values_advance(struct operation *operation) {
    while (operation->values.next < operation->values.count && perform(&operation->values.list[operation->values.next])) {
        operation->values.next++;
    }
    return operation->values.next == operation->values.count;
}

CUresult values_check(const CUstreamBatchMemOpParams *list, unsigned int count, unsigned int flags) {
    if (count == 0 || count > 256 || list == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (list[i].operation == CU_STREAM_MEM_OP_ATOMIC_REDUCTION) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (!is_valid(&list[i])) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBatchMemOp_v2(CUstream handle, unsigned int count, CUstreamBatchMemOpParams *list,
                                       unsigned int flags) {
    struct stream *stream;
    CUresult result = stream_from(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = values_check(list, count, flags);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct operation operation = {.kind = OPERATION_VALUES, .values = {.list = list, .count = count}};
    return stream_submit(stream, &operation);
}

CUresult CUDAAPI cuStreamBatchMemOp(CUstream handle, unsigned int count, CUstreamBatchMemOpParams *list,
                                    unsigned int flags) {
    return cuStreamBatchMemOp_v2(handle, count, list, flags);
}

#define VALUE_FUNCTION(name, type, kind, member, field, known_flags)                                     \
    CUresult CUDAAPI name##_v2(CUstream handle, CUdeviceptr address, type value, unsigned int flags) {   \
        if ((flags & ~(unsigned int)(known_flags)) != 0) {                                               \
            return CUDA_ERROR_INVALID_VALUE;                                                             \
        }                                                                                                \
        CUstreamBatchMemOpParams one = {.member = {.operation = kind, .address = address, .flags = flags}}; \
        one.member.field = value;                                                                        \
        return cuStreamBatchMemOp_v2(handle, 1, &one, 0);                                                \
    }                                                                                                    \
    CUresult CUDAAPI name(CUstream handle, CUdeviceptr address, type value, unsigned int flags) {        \
        return name##_v2(handle, address, value, flags);                                                 \
    }

#define WRITE_FLAGS CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
#define WAIT_FLAGS (CU_STREAM_WAIT_VALUE_FLUSH | CU_STREAM_WAIT_VALUE_NOR)

VALUE_FUNCTION(cuStreamWriteValue32, cuuint32_t, CU_STREAM_MEM_OP_WRITE_VALUE_32, writeValue, value, WRITE_FLAGS)
VALUE_FUNCTION(cuStreamWriteValue64, cuuint64_t, CU_STREAM_MEM_OP_WRITE_VALUE_64, writeValue, value64, WRITE_FLAGS)
VALUE_FUNCTION(cuStreamWaitValue32, cuuint32_t, CU_STREAM_MEM_OP_WAIT_VALUE_32, waitValue, value, WAIT_FLAGS)
VALUE_FUNCTION(cuStreamWaitValue64, cuuint64_t, CU_STREAM_MEM_OP_WAIT_VALUE_64, waitValue, value64, WAIT_FLAGS)
