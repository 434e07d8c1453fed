/* Threads that allocate and free in every way while their process forks: a child must not wait for what a thread of its
 * parent held.
 *
 *     forks CHILDREN    "CHILDREN 0": how many there were, and how many did not end by themselves */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 100 /* at least, of each thread */
#define BYTES ((size_t)2 << 20)

static CUcontext context;
static atomic_int over;
static CUdeviceptr parents;
static CUmemGenericAllocationHandle parents_handle;

static void use_physical(void) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (cuMemCreate(&handle, BYTES, &properties, 0) == CUDA_SUCCESS) {
        if (cuMemAddressReserve(&address, BYTES, 0, 0, 0) == CUDA_SUCCESS) {
            cuMemMap(address, BYTES, 0, handle, 0);
            cuMemUnmap(address, BYTES);
            cuMemAddressFree(address, BYTES);
        }
        cuMemRelease(handle);
    }
}

static void use_stream(CUstream stream) {
    CUdeviceptr address;
    if (cuMemAllocAsync(&address, BYTES, stream) == CUDA_SUCCESS) {
        cuMemFreeAsync(address, stream);
    }
    if (cuMemAlloc_v2(&address, BYTES) == CUDA_SUCCESS) {
        cuMemFreeAsync(address, stream);
    }
    cuStreamSynchronize(stream);
}

static void use_graph(void) {
    CUgraph graph;
    CUgraphNode allocate, release;
    CUgraphExec executable;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                             .bytesize = BYTES};
    if (cuGraphCreate(&graph, 0) != CUDA_SUCCESS) {
        return;
    }
    if (cuGraphAddMemAllocNode(&allocate, graph, NULL, 0, &parameters) == CUDA_SUCCESS &&
        cuGraphAddMemFreeNode(&release, graph, &allocate, 1, parameters.dptr) == CUDA_SUCCESS &&
        cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS) {
        cuGraphLaunch(executable, NULL);
        cuGraphExecDestroy(executable);
    }
    cuGraphDestroy(graph);
}

static void use_everything(CUstream stream) {
    CUdeviceptr address;
    if (cuMemAlloc_v2(&address, 512) == CUDA_SUCCESS) {
        cuMemFree_v2(address);
    }
    use_physical();
    use_stream(stream);
    use_graph();
}

static void *work(void *unused) {
    CUstream stream;
    (void)unused;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        _exit(1);
    }
    for (int round = 0; round < ROUNDS || !atomic_load(&over); round++) {
        use_everything(stream);
    }
    return NULL;
}

/* True if it ended by itself. */
static int ended(pid_t child) {
    for (int i = 0; i < 60000; i++) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) {
            return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        usleep(500);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}

int main(int argc, char **argv) {
    int children = argc > 1 ? atoi(argv[1]) : 1, stuck = 0;
    pthread_t threads[THREADS];
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc_v2(&parents, BYTES) != CUDA_SUCCESS ||
        cuMemCreate(&parents_handle, BYTES, &properties, 0) != CUDA_SUCCESS) {
        return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, work, NULL) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < children && stuck < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            use_everything(NULL);
            cuMemFree_v2(parents);
            cuMemRelease(parents_handle);
            cuCtxSynchronize();
            _exit(0);
        }
        stuck += !ended(child);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%d %d\n", children, stuck);
    return 0;
}
