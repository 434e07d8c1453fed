/* A thread whose call blocks in the driver (blocking_driver.c, at the path in GPUSLICE_LIBCUDA) must not keep other threads
 * from allocating.
 *
 *     blocking FUNCTION    "free" if another thread goes on while a call of that driver function is blocked */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES ((size_t)2 << 20)
#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        int result = (int)(call);                                                                                     \
        if (result != 0) {                                                                                            \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, result);                            \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

static CUcontext context;
static atomic_int held_up = 1;

static void CUDA_CB hold_up(void *unused) {
    (void)unused;
    while (atomic_load(&held_up)) {
        usleep(200);
    }
}

static void use_physical(void) {
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr address;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CHECK(cuMemCreate(&handle, BYTES, &properties, 0));
    CHECK(cuMemAddressReserve(&address, BYTES, 0, 0, 0));
    CHECK(cuMemMap(address, BYTES, 0, handle, 0));
    CHECK(cuMemRetainAllocationHandle(&again, (void *)address));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemUnmap(address, BYTES));
    CHECK(cuMemRelease(again));
    CHECK(cuMemAddressFree(address, BYTES));
}

static void use_pools(void) {
    CUmemoryPool pool;
    CUdeviceptr address;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuMemAllocFromPoolAsync(&address, BYTES, pool, NULL));
    CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuMemPoolDestroy(pool));
}

static void use_graphs(void) {
    CUgraph graph;
    CUgraphNode allocate, release;
    CUgraphExec executable;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                             .bytesize = BYTES};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&allocate, graph, NULL, 0, &parameters));
    CHECK(cuGraphAddMemFreeNode(&release, graph, &allocate, 1, parameters.dptr));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, NULL));
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
}

static void use_deferred_free(void) { /* behind work that is held up, in a stream of its own */
    CUstream stream;
    CUdeviceptr address;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&address, BYTES));
    CHECK(cuLaunchHostFunc(stream, hold_up, NULL));
    CHECK(cuMemFreeAsync(address, stream));
}

static void use_linear(void) {
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, BYTES));
    CHECK(cuMemFree_v2(address));
}

/* The interposer asks whether memory that was freed in a stream is free now. */
static void trim(void) {
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cuMemPoolTrimTo(pool, 0));
}

static void use_everything(void) {
    trim();
    use_linear();
    use_physical();
    use_pools();
    use_graphs();
    use_deferred_free();
}

static void *work(void *unused) {
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    use_everything();
    return NULL;
}

int main(int argc, char **argv) {
    void *driver = dlopen(getenv("GPUSLICE_LIBCUDA"), RTLD_NOW);
    _Atomic(const char *) *chosen = driver != NULL ? dlsym(driver, "blocking_driver_chosen") : NULL;
    _Atomic int *blocked = driver != NULL ? dlsym(driver, "blocking_driver_blocked") : NULL;
    pthread_t thread;
    if (argc != 2 || chosen == NULL || blocked == NULL) {
        return 2;
    }
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    alarm(60);
    use_deferred_free();
    atomic_store(chosen, argv[1]);
    CHECK(pthread_create(&thread, NULL, work, NULL));
    while (!atomic_load(blocked)) {
        usleep(200);
    }
    use_everything();
    puts(atomic_load(blocked) ? "free" : "not blocked");
    fflush(stdout);
    atomic_store(blocked, 0);
    CHECK(pthread_join(thread, NULL));
    atomic_store(&held_up, 0);
    CHECK(cuCtxSynchronize());
    return 0;
}
