/* What a program can ask of NVIDIA's CUDA runtime, asked of every version of it: compiled with the headers of that
 * version, on a machine with two GPUs.
 *
 * usage: runtime              every check; one line for each that fails
 *        runtime hold DEVICE  holds memory of that GPU until its input ends
 *        runtime allocate MIB prints what cudaMalloc answers to that
 *        runtime import HEX   writes into memory that another process shared */
#include "../../examples/demo/kernel.h"
#include "../../native/tests/check.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define COUNT 4096u
#define BYTES (COUNT * sizeof(float))
#define SUCCEEDS(call) CHECK_RESULT(cudaSuccess, call)
#define REQUIRE(call) CHECK_OR_EXIT(cudaSuccess, call)

static float host[COUNT], back[COUNT];

/* ---- kernels beside saxpy ---- */

static void spin_kernel(void) {
}

static void unknown_kernel(void) {
}

static void **more_kernels;

__attribute__((constructor)) static void register_more(void) {
    static char spin_name[] = "gpuslice_spin", unknown_name[] = "_Z7unknownPf";
    more_kernels = __cudaRegisterFatBinary(&fatbin_wrapper);
    __cudaRegisterFunction(more_kernels, (const char *)(uintptr_t)spin_kernel, spin_name, spin_name, -1, NULL, NULL, NULL,
                           NULL, NULL);
    __cudaRegisterFunction(more_kernels, (const char *)(uintptr_t)unknown_kernel, unknown_name, unknown_name, -1, NULL,
                           NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(more_kernels);
}

__attribute__((destructor)) static void unregister_more(void) {
    __cudaUnregisterFatBinary(more_kernels);
}

static cudaError_t launch(void (*kernel)(void), void **arguments, cudaStream_t stream) {
    struct dim3 one = {1, 1, 1};
    return cudaLaunchKernel((const void *)(uintptr_t)kernel, one, one, arguments, 0, stream);
}

static cudaError_t spin(unsigned long long microseconds, cudaStream_t stream) {
    return launch(spin_kernel, (void *[]){&microseconds}, stream);
}

/* ---- helpers ---- */

static void *allocated(size_t bytes) {
    void *device = NULL;
    REQUIRE(cudaMalloc(&device, bytes));
    return device;
}

/* Different each time, so that nothing passes with what an earlier check left. */
static void new_numbers(void) {
    static float start;
    start += 10000;
    for (unsigned int i = 0; i < COUNT; i++) {
        host[i] = start + (float)i;
    }
    memset(back, 0xff, sizeof back);
}

static bool all_back(void) {
    return memcmp(host, back, sizeof back) == 0;
}

static size_t available(void) {
    size_t free_bytes = 0, total = 0;
    SUCCEEDS(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes <= total);
    return free_bytes;
}

/* ---- the checks ---- */

static void devices_are_described(void) {
    int count = 0, runtime = 0, driver = 0, processors = 0, current = -1;
    struct cudaDeviceProp properties;
    char bus[32] = "";
    REQUIRE(cudaGetDeviceCount(&count));
    CHECK(count == 2);
    SUCCEEDS(cudaRuntimeGetVersion(&runtime));
    SUCCEEDS(cudaDriverGetVersion(&driver));
    CHECK(runtime / 1000 == CUDART_VERSION / 1000 && driver >= runtime);
    for (int device = 0; device < count; device++) {
        SUCCEEDS(cudaGetDeviceProperties(&properties, device));
        CHECK(strcmp(properties.name, "NVIDIA A100-SXM4-40GB") == 0);
        CHECK(properties.totalGlobalMem == 40960ull << 20 && properties.major == 8 && properties.minor == 0);
        SUCCEEDS(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
        CHECK(processors == 108 && properties.multiProcessorCount == 108);
        SUCCEEDS(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
        SUCCEEDS(cudaDeviceGetByPCIBusId(&current, bus));
        CHECK(current == device);
    }
    CHECK_RESULT(cudaErrorInvalidDevice, cudaSetDevice(count));
    CHECK_RESULT(cudaErrorInvalidDevice, cudaGetLastError());
    CHECK_RESULT(cudaSuccess, cudaGetLastError());
}

static void copies_give_back_what_was_written(void) {
    void *first = allocated(BYTES), *second = allocated(BYTES);
    new_numbers();
    SUCCEEDS(cudaMemcpy(first, host, BYTES, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaMemcpy(second, first, BYTES, cudaMemcpyDeviceToDevice));
    SUCCEEDS(cudaMemcpy(back, second, BYTES, cudaMemcpyDefault));
    CHECK(all_back());
    SUCCEEDS(cudaMemset(second, 0, BYTES));
    SUCCEEDS(cudaMemcpy(back, second, BYTES, cudaMemcpyDeviceToHost));
    CHECK(back[0] == 0 && back[COUNT - 1] == 0);
    struct cudaPointerAttributes attributes;
    SUCCEEDS(cudaPointerGetAttributes(&attributes, first));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
    SUCCEEDS(cudaFree(first));
    SUCCEEDS(cudaFree(second));
    CHECK_RESULT(cudaErrorInvalidValue, cudaFree(second));
    cudaGetLastError();
}

static void memory_info_follows_allocations(void) {
    size_t before = available();
    void *device = allocated(64 << 20);
    CHECK(available() == before - (64 << 20));
    SUCCEEDS(cudaFree(device));
    CHECK(available() == before);
    CHECK_RESULT(cudaErrorMemoryAllocation, cudaMalloc(&device, before + 1));
    CHECK((int)cudaErrorMemoryAllocation == 2);
    CHECK_RESULT(cudaErrorMemoryAllocation, cudaGetLastError());
}

static void pitched_memory_keeps_its_rows(void) {
    size_t pitch = 0, width = 100 * sizeof(float);
    void *device = NULL;
    new_numbers();
    REQUIRE(cudaMallocPitch(&device, &pitch, width, 40));
    CHECK(pitch >= width && pitch % 32 == 0);
    SUCCEEDS(cudaMemcpy2D(device, pitch, host, width, width, 40, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaMemcpy2D(back, width, device, pitch, width, 40, cudaMemcpyDeviceToHost));
    CHECK(memcmp(host, back, 40 * width) == 0);
    SUCCEEDS(cudaFree(device));
    struct cudaPitchedPtr box;
    REQUIRE(cudaMalloc3D(&box, (struct cudaExtent){width, 4, 5}));
    SUCCEEDS(cudaMemset3D(box, 0, (struct cudaExtent){width, 4, 5}));
    SUCCEEDS(cudaFree(box.ptr));
}

static void host_and_managed_memory_are_one_with_the_devices(void) {
    float *managed = NULL, *pinned = NULL, *seen = NULL;
    new_numbers();
    REQUIRE(cudaMallocManaged((void **)&managed, BYTES, cudaMemAttachGlobal));
    memcpy(managed, host, BYTES);
    SUCCEEDS(launch_saxpy(1, managed, managed, COUNT));
    SUCCEEDS(cudaDeviceSynchronize());
    CHECK(managed[0] == 2 * host[0] && managed[COUNT - 1] == 2 * host[COUNT - 1]);
    REQUIRE(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocMapped));
    SUCCEEDS(cudaHostGetDevicePointer((void **)&seen, pinned, 0));
    SUCCEEDS(cudaMemcpy(seen, host, BYTES, cudaMemcpyDefault));
    CHECK(memcmp(pinned, host, BYTES) == 0);
    SUCCEEDS(cudaFreeHost(pinned));
    SUCCEEDS(cudaFree(managed));
    SUCCEEDS(cudaHostRegister(back, sizeof back, cudaHostRegisterDefault));
    SUCCEEDS(cudaHostUnregister(back));
}

static void arrays_and_mipmaps_hold_elements(void) {
    struct cudaChannelFormatDesc floats = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    cudaArray_t array = NULL, box = NULL, level = NULL;
    cudaMipmappedArray_t mipmap = NULL;
    size_t row = 64 * sizeof(float);
    new_numbers();
    REQUIRE(cudaMallocArray(&array, &floats, 64, 64, 0));
    SUCCEEDS(cudaMemcpy2DToArray(array, 0, 0, host, row, row, 64, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaMemcpy2DFromArray(back, row, array, 0, 0, row, 64, cudaMemcpyDeviceToHost));
    CHECK(all_back());
    SUCCEEDS(cudaFreeArray(array));
    REQUIRE(cudaMalloc3DArray(&box, &floats, (struct cudaExtent){16, 16, 16}, 0));
    struct cudaMemcpy3DParms there = {.srcPtr = {host, row / 4, 16, 16}, .dstArray = box, .extent = {16, 16, 16},
                                      .kind = cudaMemcpyHostToDevice};
    struct cudaMemcpy3DParms and_back = {.srcArray = box, .dstPtr = {back, row / 4, 16, 16}, .extent = {16, 16, 16},
                                         .kind = cudaMemcpyDeviceToHost};
    memset(back, 0, sizeof back);
    SUCCEEDS(cudaMemcpy3D(&there));
    SUCCEEDS(cudaMemcpy3D(&and_back));
    CHECK(all_back());
    SUCCEEDS(cudaFreeArray(box));
    REQUIRE(cudaMallocMipmappedArray(&mipmap, &floats, (struct cudaExtent){64, 64, 0}, 3, 0));
    SUCCEEDS(cudaGetMipmappedArrayLevel(&level, mipmap, 1));
    SUCCEEDS(cudaMemcpy2DToArray(level, 0, 0, host, row / 2, row / 2, 32, cudaMemcpyHostToDevice));
    memset(back, 0, sizeof back);
    SUCCEEDS(cudaMemcpy2DFromArray(back, row / 2, level, 0, 0, row / 2, 32, cudaMemcpyDeviceToHost));
    CHECK(memcmp(host, back, row / 2 * 32) == 0);
    SUCCEEDS(cudaFreeMipmappedArray(mipmap));
}

static void note_the_call(void *data) {
    *(int *)data = 1;
}

static void streams_keep_their_order(void) {
    cudaStream_t stream, urgent;
    void *device = allocated(BYTES);
    int least = 0, greatest = 0, called = 0;
    new_numbers();
    SUCCEEDS(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    REQUIRE(cudaStreamCreate(&stream));
    REQUIRE(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    SUCCEEDS(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, stream));
    SUCCEEDS(spin(500000, stream));
    SUCCEEDS(cudaLaunchHostFunc(stream, note_the_call, &called));
    CHECK_RESULT(cudaErrorNotReady, cudaStreamQuery(stream));
    SUCCEEDS(cudaStreamQuery(urgent));
    SUCCEEDS(cudaMemcpyAsync(back, device, BYTES, cudaMemcpyDeviceToHost, stream));
    SUCCEEDS(cudaStreamSynchronize(stream));
    CHECK(called == 1 && all_back());
    SUCCEEDS(cudaStreamQuery(stream));
    SUCCEEDS(cudaStreamDestroy(stream));
    SUCCEEDS(cudaStreamDestroy(urgent));
    SUCCEEDS(cudaFree(device));
    cudaGetLastError();
}

static void stream_ordered_memory_comes_from_pools(void) {
    cudaStream_t stream;
    cudaMemPool_t pool;
    void *plain = NULL, *pooled = NULL;
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
    uint64_t used = 0;
    new_numbers();
    REQUIRE(cudaStreamCreate(&stream));
    REQUIRE(cudaMemPoolCreate(&pool, &properties));
    SUCCEEDS(cudaMallocAsync(&plain, BYTES, stream));
    SUCCEEDS(cudaMallocFromPoolAsync(&pooled, BYTES, pool, stream));
    SUCCEEDS(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    CHECK(used == BYTES);
    SUCCEEDS(cudaMemcpyAsync(plain, host, BYTES, cudaMemcpyHostToDevice, stream));
    SUCCEEDS(cudaMemcpyAsync(pooled, plain, BYTES, cudaMemcpyDeviceToDevice, stream));
    SUCCEEDS(cudaMemcpyAsync(back, pooled, BYTES, cudaMemcpyDeviceToHost, stream));
    SUCCEEDS(cudaFreeAsync(plain, stream));
    SUCCEEDS(cudaFreeAsync(pooled, stream));
    SUCCEEDS(cudaStreamSynchronize(stream));
    CHECK(all_back());
    SUCCEEDS(cudaMemPoolTrimTo(pool, 0));
    SUCCEEDS(cudaMemPoolDestroy(pool));
    SUCCEEDS(cudaStreamDestroy(stream));
}

static void events_measure_device_time(void) {
    cudaEvent_t begin, end;
    float milliseconds = -1;
    REQUIRE(cudaEventCreate(&begin));
    REQUIRE(cudaEventCreate(&end));
    SUCCEEDS(cudaEventRecord(begin, NULL));
    SUCCEEDS(spin(3000, NULL));
    SUCCEEDS(cudaEventRecord(end, NULL));
    SUCCEEDS(cudaEventSynchronize(end));
    SUCCEEDS(cudaEventElapsedTime(&milliseconds, begin, end));
    CHECK(milliseconds >= 2.99f);
    SUCCEEDS(cudaEventDestroy(begin));
    SUCCEEDS(cudaEventDestroy(end));
}

static void registered_kernels_run(void) {
    float *x = allocated(BYTES), *y = allocated(BYTES);
    struct cudaFuncAttributes attributes;
    int blocks = 0;
    new_numbers();
    SUCCEEDS(cudaMemcpy(x, host, BYTES, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaMemcpy(y, host, BYTES, cudaMemcpyHostToDevice));
    SUCCEEDS(launch_saxpy(2, x, y, COUNT));
    SUCCEEDS(cudaMemcpy(back, y, BYTES, cudaMemcpyDeviceToHost));
    CHECK(back[0] == 3 * host[0] && back[COUNT - 1] == 3 * host[COUNT - 1]);
    SUCCEEDS(launch(unknown_kernel, (void *[]){&y}, NULL));
    SUCCEEDS(cudaDeviceSynchronize());
    SUCCEEDS(cudaMemcpy(back, y, BYTES, cudaMemcpyDeviceToHost));
    CHECK(back[1] == 3 * host[1]);
    SUCCEEDS(cudaFuncGetAttributes(&attributes, (const void *)(uintptr_t)saxpy));
    CHECK(attributes.maxThreadsPerBlock == 1024);
    SUCCEEDS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)(uintptr_t)saxpy, 256, 0));
    CHECK(blocks > 0);
    SUCCEEDS(cudaFree(x));
    SUCCEEDS(cudaFree(y));
}

static void captured_graphs_do_the_same_again(void) {
    float *x = allocated(BYTES), *y = allocated(BYTES);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    struct dim3 one = {1, 1, 1};
    float a = 1;
    unsigned long long count = COUNT;
    size_t nodes = 0;
    new_numbers();
    REQUIRE(cudaStreamCreate(&stream));
    SUCCEEDS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    SUCCEEDS(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, stream));
    SUCCEEDS(cudaMemsetAsync(y, 0, BYTES, stream));
    SUCCEEDS(cudaLaunchKernel((const void *)(uintptr_t)saxpy, one, one, (void *[]){&a, &x, &y, &count}, 0, stream));
    SUCCEEDS(cudaMemcpyAsync(back, y, BYTES, cudaMemcpyDeviceToHost, stream));
    REQUIRE(cudaStreamEndCapture(stream, &graph));
    SUCCEEDS(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 4 && !all_back());
    REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    for (int round = 0; round < 2; round++) {
        new_numbers();
        SUCCEEDS(cudaGraphLaunch(executable, stream));
        SUCCEEDS(cudaStreamSynchronize(stream));
        CHECK(all_back());
    }
    SUCCEEDS(cudaGraphExecDestroy(executable));
    SUCCEEDS(cudaGraphDestroy(graph));
    SUCCEEDS(cudaStreamDestroy(stream));
    SUCCEEDS(cudaFree(x));
    SUCCEEDS(cudaFree(y));
}

static void graphs_allocate_with_memory_nodes(void) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaGraphNode_t allocation, release;
    struct cudaMemAllocNodeParams wanted = {
        .poolProps = {.allocType = cudaMemAllocationTypePinned, .location = {.type = cudaMemLocationTypeDevice}},
        .bytesize = BYTES};
    uint64_t reserved = 0;
    REQUIRE(cudaGraphCreate(&graph, 0));
    REQUIRE(cudaGraphAddMemAllocNode(&allocation, graph, NULL, 0, &wanted));
    CHECK(wanted.dptr != NULL);
    SUCCEEDS(cudaGraphAddMemFreeNode(&release, graph, &allocation, 1, wanted.dptr));
    REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    SUCCEEDS(cudaGraphLaunch(executable, NULL));
    SUCCEEDS(cudaDeviceSynchronize());
    SUCCEEDS(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    CHECK(reserved >= BYTES);
    SUCCEEDS(cudaGraphExecDestroy(executable));
    SUCCEEDS(cudaGraphDestroy(graph));
    SUCCEEDS(cudaDeviceGraphMemTrim(0));
}

static void peers_reach_each_other(void) {
    int can = 0;
    void *here = allocated(BYTES), *there = NULL;
    new_numbers();
    SUCCEEDS(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1);
    SUCCEEDS(cudaDeviceEnablePeerAccess(1, 0));
    CHECK_RESULT(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    cudaGetLastError();
    SUCCEEDS(cudaSetDevice(1));
    there = allocated(BYTES);
    SUCCEEDS(cudaMemcpy(there, host, BYTES, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaMemcpyPeer(here, 0, there, 1, BYTES));
    SUCCEEDS(cudaFree(there));
    SUCCEEDS(cudaSetDevice(0));
    SUCCEEDS(cudaMemcpy(back, here, BYTES, cudaMemcpyDeviceToHost));
    CHECK(all_back());
    SUCCEEDS(cudaFree(here));
}

static void *use_the_other_device(void *unused) {
    (void)unused;
    int device = -1;
    float mine[4] = {1, 2, 3, 4}, read[4] = {0};
    SUCCEEDS(cudaGetDevice(&device));
    CHECK(device == 0); /* a new thread begins there */
    SUCCEEDS(cudaSetDevice(1));
    void *memory = allocated(sizeof mine);
    SUCCEEDS(cudaMemcpy(memory, mine, sizeof mine, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaMemcpy(read, memory, sizeof mine, cudaMemcpyDeviceToHost));
    CHECK(memcmp(mine, read, sizeof mine) == 0);
    SUCCEEDS(cudaFree(memory));
    return NULL;
}

static void each_thread_has_its_device(void) {
    pthread_t thread;
    int device = -1;
    CHECK(pthread_create(&thread, NULL, use_the_other_device, NULL) == 0 && pthread_join(thread, NULL) == 0);
    SUCCEEDS(cudaGetDevice(&device));
    CHECK(device == 0);
}

static void another_process_shares_memory(const char *program) {
    void *device = allocated(BYTES);
    cudaIpcMemHandle_t handle;
    char command[1024];
    SUCCEEDS(cudaMemset(device, 0, BYTES));
    REQUIRE(cudaIpcGetMemHandle(&handle, device));
    int length = snprintf(command, sizeof command, "exec '%s' import ", program);
    for (size_t i = 0; i < sizeof handle; i++) {
        length += snprintf(command + length, sizeof command - (size_t)length, "%02x", (unsigned char)handle.reserved[i]);
    }
    CHECK(system(command) == 0);
    SUCCEEDS(cudaMemcpy(back, device, BYTES, cudaMemcpyDeviceToHost));
    CHECK(back[0] == 42 && back[COUNT - 1] == 42);
    SUCCEEDS(cudaFree(device));
}

static int import(const char *hex) {
    cudaIpcMemHandle_t handle;
    void *shared = NULL;
    for (size_t i = 0; i < sizeof handle; i++) {
        unsigned int byte = 0;
        CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        handle.reserved[i] = (char)byte;
    }
    for (unsigned int i = 0; i < COUNT; i++) {
        host[i] = 42;
    }
    REQUIRE(cudaIpcOpenMemHandle(&shared, handle, cudaIpcMemLazyEnablePeerAccess));
    SUCCEEDS(cudaMemcpy(shared, host, BYTES, cudaMemcpyHostToDevice));
    SUCCEEDS(cudaIpcCloseMemHandle(shared));
    return check_summary();
}

static void work_goes_on_after_a_reset(void) {
    size_t before = available();
    for (int round = 0; round < 3; round++) {
        allocated(32 << 20); /* the reset frees it */
        cudaStream_t stream;
        SUCCEEDS(cudaStreamCreate(&stream));
        SUCCEEDS(spin(100, stream));
        SUCCEEDS(cudaDeviceReset());
        CHECK(available() >= before);
        copies_give_back_what_was_written();
        registered_kernels_run();
    }
}

static int hold(int device) {
    int count = 0;
    REQUIRE(cudaGetDeviceCount(&count));
    REQUIRE(cudaSetDevice(device));
    allocated(64 << 20);
    registered_kernels_run();
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return check_summary();
}

static int allocate(size_t megabytes) {
    void *device = NULL;
    printf("%d\n", (int)cudaMalloc(&device, megabytes << 20));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "hold") == 0) {
        return hold(atoi(argv[2]));
    }
    if (argc == 3 && strcmp(argv[1], "allocate") == 0) {
        return allocate((size_t)atoi(argv[2]));
    }
    if (argc == 3) {
        return import(argv[2]);
    }
    devices_are_described();
    copies_give_back_what_was_written();
    memory_info_follows_allocations();
    pitched_memory_keeps_its_rows();
    host_and_managed_memory_are_one_with_the_devices();
    arrays_and_mipmaps_hold_elements();
    streams_keep_their_order();
    stream_ordered_memory_comes_from_pools();
    events_measure_device_time();
    registered_kernels_run();
    captured_graphs_do_the_same_again();
    graphs_allocate_with_memory_nodes();
    peers_reach_each_other();
    each_thread_has_its_device();
    another_process_shares_memory(argv[0]);
    work_goes_on_after_a_reset();
    return check_summary();
}
