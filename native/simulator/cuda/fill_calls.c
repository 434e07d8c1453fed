/* Every call that fills memory (cuMemset*). Those without a stream go into the legacy stream. */
#include "deferred.h"

static CUresult fill_in_stream(CUdeviceptr to, size_t pitch, size_t width, size_t height, unsigned int element_bytes,
                               unsigned int value, CUstream handle) {
    struct context *context;
    struct stream *stream;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = stream_from(handle, &stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct operation operation = {
        .kind = OPERATION_FILL,
        .fill = {.to = to, .pitch = pitch, .width = width, .height = height, .element_bytes = element_bytes,
                 .value = value},
    };
    return stream_submit(stream, &operation);
}

static CUresult fill_now(CUdeviceptr to, size_t pitch, size_t width, size_t height, unsigned int element_bytes,
                         unsigned int value) {
    CUresult result = capture_check();
    return result == CUDA_SUCCESS ? fill_in_stream(to, pitch, width, height, element_bytes, value, CU_STREAM_LEGACY)
                                  : result;
}

#define FILLS(bits, type)                                                                                            \
    CUresult CUDAAPI cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {                                \
        return fill_now(to, 0, count, 1, sizeof value, value);                                                       \
    }                                                                                                                \
    CUresult CUDAAPI cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream handle) {             \
        return fill_in_stream(to, 0, count, 1, sizeof value, value, handle);                                         \
    }                                                                                                                \
    CUresult CUDAAPI cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) { \
        return fill_now(to, pitch, width, height, sizeof value, value);                                              \
    }                                                                                                                \
    CUresult CUDAAPI cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, \
                                              CUstream handle) {                                                     \
        return fill_in_stream(to, pitch, width, height, sizeof value, value, handle);                                \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
