/* Copies and fills: every kind of memory, dimensions, bounds, and pointers that are wrong. */
#include "device.h"

#define COUNT 1000u

static unsigned char pattern[COUNT * 4], back[COUNT * 4];

static int same(size_t bytes) {
    int equal = memcmp(pattern, back, bytes) == 0;
    memset(back, 0, sizeof back);
    return equal;
}

static void rows_go_everywhere(void) {
    CUdeviceptr first, second;
    CUstream stream;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&first, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&second, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoD(first, pattern, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoD(second, first, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(back, second, COUNT));
    CHECK(same(COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoDAsync(second, pattern + 1, COUNT, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoDAsync(first, second, COUNT, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(back + 1, first, COUNT, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(memcmp(pattern + 1, back + 1, COUNT) == 0);
    /* cuMemcpy finds out itself where a pointer points. */
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy(first, (CUdeviceptr)(uintptr_t)pattern, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAsync((CUdeviceptr)(uintptr_t)back, first, COUNT, stream));
    CHECK(same(COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyPeer(second, context, first, context, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyPeerAsync(second, context, first, context, COUNT, stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeer(second, NULL, first, context, COUNT));
    /* The middle of an allocation, and its end. */
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(back, first + COUNT - 1, 1));
    CHECK(back[0] == pattern[COUNT - 1]);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, first + COUNT - 1, 2));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(first, pattern, COUNT + 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy(first, second + 1, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(second));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, second, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy((CUdeviceptr)(uintptr_t)back, second, 1)); /* nor is it host memory */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(0, pattern, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(first, NULL, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(NULL, first, 1, stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(12345, pattern, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoD(first, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuMemcpyHtoDAsync(first, pattern, 1, (CUstream)pattern));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(first));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void pitched_memory_is_copied_in_rows(void) {
    CUdeviceptr memory;
    size_t pitch;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocPitch(&memory, &pitch, 40, 10, 4));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD2D8(memory, pitch, 0xee, 40, 10));
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pattern, .srcPitch = 20,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .dstPitch = pitch,
                        .dstXInBytes = 4, .dstY = 1, .WidthInBytes = 20, .Height = 5};
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = memory, .srcPitch = pitch,
                          .srcXInBytes = 4, .srcY = 1, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back,
                          .dstPitch = 20, .WidthInBytes = 20, .Height = 5};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&up));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2DUnaligned(&down));
    CHECK(same(100));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(back, memory + pitch, 4)); /* left of what was copied */
    CHECK(back[0] == 0xee && back[3] == 0xee);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2DAsync(&down, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(NULL));
    CHECK(same(100));
    up.Height = 10; /* the last row would be beyond the allocation */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&up));
    up.Height = 5, up.srcPitch = 19; /* rows that overlap */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&up));
    up.srcPitch = 20, up.dstMemoryType = (CUmemorytype)9;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&up));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DAsync(NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DPeer(NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
}

static void boxes_keep_their_layers(void) {
    CUdeviceptr memory;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, 8 * 6 * 5));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(memory, 0, 8 * 6 * 5));
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pattern, .srcPitch = 4, .srcHeight = 3,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .dstPitch = 8, .dstHeight = 6,
                         .dstXInBytes = 2, .dstY = 1, .dstZ = 1, .WidthInBytes = 4, .Height = 3, .Depth = 2};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3D(&box));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(back, memory, 8 * 6 * 5));
    for (int z = 0; z < 2; z++) {
        for (int y = 0; y < 3; y++) {
            CHECK(memcmp(&back[(z + 1) * 48 + (y + 1) * 8 + 2], &pattern[z * 12 + y * 4], 4) == 0);
        }
    }
    CHECK(back[48 + 8 + 1] == 0 && back[48 + 8 + 6] == 0);
    box.dstZ = 4; /* two layers from the last one */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&box));
    box.dstZ = 0, box.Depth = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3D(&box)); /* nothing to do */
    box.Depth = (size_t)-1;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&box));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
}

static void arrays_hold_what_is_copied_to_them(void) {
    CUarray line, plane;
    CUdeviceptr memory;
    CUstream stream;
    CUDA_ARRAY_DESCRIPTOR of_line = {.Width = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 4};
    CUDA_ARRAY_DESCRIPTOR of_plane = {.Width = 16, .Height = 8, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayCreate(&line, &of_line));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayCreate(&plane, &of_plane));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, 512));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoA(line, 0, pattern, 256));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoH(back, line, 0, 256));
    CHECK(same(256));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoAAsync(line, 0, pattern, 256, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoHAsync(back, line, 0, 256, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(same(256));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoD(memory, line, 8, 100));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoA(line, 8, memory, 100));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoA(line, 100, line, 0, 100));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoH(back, line, 100, 100));
    CHECK(same(100));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(line, 1, pattern, 256));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuMemcpyHtoA(NULL, 0, pattern, 1));
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pattern, .srcPitch = 64,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = plane, .WidthInBytes = 64, .Height = 8};
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = plane, .srcXInBytes = 4, .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .dstPitch = 4, .WidthInBytes = 4,
                          .Height = 6};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&up));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&down));
    for (int y = 0; y < 6; y++) {
        CHECK(memcmp(&back[y * 4], &pattern[(y + 2) * 64 + 4], 4) == 0);
    }
    down.Height = 7;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&down));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoH(back, plane, 0, 512)); /* on from row to row */
    CHECK(same(512));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(plane));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuMemcpy2D(&up));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(line));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void batches_copy_all(void) {
    CUdeviceptr memory, to[3], from[3];
    size_t sizes[3] = {10, 20, 30}, starts[1] = {0};
    CUmemcpyAttributes attributes[1] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    CUstream stream;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, 64));
    for (size_t i = 0, offset = 0; i < 3; offset += sizes[i++]) {
        to[i] = memory + offset;
        from[i] = (CUdeviceptr)(uintptr_t)&pattern[offset];
    }
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 1, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(back, memory, 60));
    CHECK(same(60));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 1, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(NULL, NULL, NULL, 3, NULL, NULL, 1, stream));
    CUDA_MEMCPY3D_BATCH_OP box = {
        .src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = {.ptr = from[0], .rowLength = 8}},
        .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = {.ptr = memory, .rowLength = 8}},
        .extent = {8, 4, 1},
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    };
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3DBatchAsync(1, &box, 0, stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, NULL, 0, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(back, memory, 32));
    CHECK(same(32));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void fills_fill(void) {
    CUdeviceptr memory;
    unsigned short halves[COUNT];
    unsigned int words[COUNT];
    CUstream stream;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&memory, COUNT * 4));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32(memory, 0xdeadbeef, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(words, memory, sizeof words));
    CHECK(words[0] == 0xdeadbeef && words[COUNT - 1] == 0xdeadbeef);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD16Async(memory, 0x1234, COUNT - 1, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(halves, memory, sizeof halves));
    CHECK(halves[0] == 0x1234 && halves[COUNT - 2] == 0x1234 && halves[COUNT - 1] == 0xdead);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8Async(memory, 7, 3, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD2D32(memory + 64, 16, 9, 2, 3));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD2D16Async(memory + 128, 16, 9, 2, 3, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(words, memory, sizeof words));
    CHECK((words[0] & 0xffffff) == 0x070707 && words[16] == 9 && words[17] == 9 && words[18] != 9 && words[20] == 9);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(memory + 2, 0, 1)); /* not aligned */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(memory, 0, COUNT * 4 + 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(memory, 4, 0, 8, 2)); /* rows wider than the pitch */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(0, 0, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(memory, 0, (size_t)1 << 62));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(0, 0, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(memory));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void managed_and_pinned_memory_count_as_device_memory(void) {
    CUdeviceptr managed;
    unsigned char *pinned;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocManaged(&managed, COUNT, CU_MEM_ATTACH_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostAlloc((void **)&pinned, COUNT, 0));
    memcpy((void *)(uintptr_t)managed, pattern, COUNT);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(pinned, managed, COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoD((CUdeviceptr)(uintptr_t)pinned, managed, COUNT));
    memcpy(back, pinned, COUNT);
    CHECK(same(COUNT));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8((CUdeviceptr)(uintptr_t)pinned, 1, COUNT));
    CHECK(pinned[COUNT - 1] == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeHost(pinned));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(managed));
}

int main(void) {
    for (size_t i = 0; i < sizeof pattern; i++) {
        pattern[i] = (unsigned char)(i * 7 + i / 251);
    }
    CHECK_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuMemcpyHtoD(1, pattern, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuInit(0));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyHtoD(1, pattern, 1));
    device_open();
    rows_go_everywhere();
    pitched_memory_is_copied_in_rows();
    boxes_keep_their_layers();
    arrays_hold_what_is_copied_to_them();
    batches_copy_all();
    fills_fill();
    managed_and_pinned_memory_count_as_device_memory();
    return device_close();
}
