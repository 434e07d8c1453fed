/* A program that uses the driver in every way in which memory can be had and given back, one command per line of its
 * input, one line of output each: a CUresult, or what was asked for.
 *
 *     device N            use the primary context of device N
 *     take KIND BYTES     allocate; block 0 is the first one
 *     give HOW BLOCK      free it
 *     do WHAT             something that frees without naming a block
 *     export BLOCK        a handle for another process, which it opens with
 *     open HANDLE
 *     info | total        cuMemGetInfo, cuDeviceTotalMem
 *
 * How it reaches the driver is told by TENANT_WAY (see resolve), or by linking it (-DLINKED). */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL /* every version of every function, under its exported name */
#include <cuda.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_BLOCKS 4096

/* ---- ways in ---- */

#ifdef LINKED
#define CALL(name) name
#else
#define CALL(name) ((__typeof__(&name))resolve(#name))

typedef CUresult (*get_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void fail(const char *what, const char *name) {
    fprintf(stderr, "tenant: %s: %s\n", what, name);
    exit(3);
}

static void *ask_driver(void *library, const char *name, const char *way) {
    char plain[128];
    snprintf(plain, sizeof plain, "%s", name);
    size_t length = strlen(plain);
    if (length > 3 && plain[length - 3] == '_' && plain[length - 2] == 'v') {
        plain[length - 3] = '\0';
    }
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    bool per_thread = strstr(way, "per-thread") != NULL;
    cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    if (strstr(way, "ptsz") != NULL) {
        get_v1 get = (get_v1)dlsym(library, "cuGetProcAddress_ptsz");
        get(plain, &function, 11080, 0);
    } else if (strstr(way, "v1") != NULL) {
        get_v1 get = (get_v1)dlsym(library, "cuGetProcAddress");
        get(plain, &function, 11080, flags);
    } else {
        get_v2 get = (get_v2)dlsym(library, "cuGetProcAddress_v2");
        get(plain, &function, 13000, flags, &status);
    }
    return function;
}

static void *resolve(const char *name) {
    static void *library;
    static const char *way;
    if (library == NULL) {
        way = getenv("TENANT_WAY") != NULL ? getenv("TENANT_WAY") : "soname";
        const char *path = getenv("TENANT_PATH");
        const char *file = path != NULL ? path : strcmp(way, "short name") == 0 ? "libcuda.so" : "libcuda.so.1";
        library = strcmp(way, "namespace") == 0 ? dlmopen(LM_ID_NEWLM, file, RTLD_NOW) : dlopen(file, RTLD_NOW);
        if (library == NULL) {
            fail("dlopen", dlerror());
        }
    }
    void *function = strncmp(way, "procaddress", 11) == 0 ? ask_driver(library, name, way) : dlsym(library, name);
    if (function == NULL) {
        fail("no such function", name);
    }
    return function;
}
#endif

/* ---- blocks ---- */

struct block {
    CUdeviceptr address;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUmipmappedArray mipmap;
    CUgraph graph;
    CUgraphExec executable;
    size_t offset; /* in the multicast object */
};

static struct block blocks[MOST_BLOCKS];
static int block_count;
static CUdevice device;
static CUcontext context;
static CUmemoryPool pool;
static CUmemGenericAllocationHandle multicast;
static size_t bound;
static CUstream stream, capturing;

static CUmemAllocationProp physical_properties(void) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUresult take_pitched(struct block *block) { /* rows of four bytes: nearly all of it is padding */
    size_t pitch;
    return CALL(cuMemAllocPitch_v2)(&block->address, &pitch, 4, block->bytes / 512, 4);
}

static CUresult take_from_own_pool(struct block *block) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    cuuint64_t everything = UINT64_MAX;
    CUresult result = CUDA_SUCCESS;
    if (pool == NULL) {
        result = CALL(cuMemPoolCreate)(&pool, &properties);
        result = result == CUDA_SUCCESS ? CALL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything)
                                        : result;
    }
    return result == CUDA_SUCCESS ? CALL(cuMemAllocFromPoolAsync)(&block->address, block->bytes, pool, stream) : result;
}

static CUresult take_from_default_pool(struct block *block) {
    CUmemoryPool of_device;
    CUresult result = CALL(cuDeviceGetDefaultMemPool)(&of_device, device);
    return result == CUDA_SUCCESS ? CALL(cuMemAllocFromPoolAsync)(&block->address, block->bytes, of_device, stream) : result;
}

static CUresult take_physical(struct block *block) {
    CUmemAllocationProp properties = physical_properties();
    return CALL(cuMemCreate)(&block->handle, block->bytes, &properties, 0);
}

static CUresult take_shareable(struct block *block) {
    CUmemAllocationProp properties = physical_properties();
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return CALL(cuMemCreate)(&block->handle, block->bytes, &properties, 0);
}

static CUresult take_mapped(struct block *block) {
    CUresult result = CALL(cuMemAddressReserve)(&block->address, block->bytes, 0, 0, 0);
    result = result == CUDA_SUCCESS ? take_physical(block) : result;
    return result == CUDA_SUCCESS ? CALL(cuMemMap)(block->address, block->bytes, 0, block->handle, 0) : result;
}

/* Memory of a part of the device, which is not of the type of the device's. */
static CUresult take_locality_domain(struct block *block) {
    CUmemAllocationProp properties = physical_properties();
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    properties.location.localized.deviceId = (unsigned char)device;
    properties.location.localized.localityDomainId = 0;
    return CALL(cuMemCreate)(&block->handle, block->bytes, &properties, 0);
}

static CUresult take_nowhere(struct block *block) { /* a type of location that no header has */
    CUmemAllocationProp properties = physical_properties();
    properties.location.type = (CUmemLocationType)77;
    return CALL(cuMemCreate)(&block->handle, block->bytes, &properties, 0);
}

static CUresult take_from_domain_pool(struct block *block) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN}};
    properties.location.localized.deviceId = (unsigned char)device;
    CUresult result = pool == NULL ? CALL(cuMemPoolCreate)(&pool, &properties) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? CALL(cuMemAllocFromPoolAsync)(&block->address, block->bytes, pool, stream) : result;
}

static CUresult use_multicast(void) {
    CUmulticastObjectProp properties = {.numDevices = 1, .size = (size_t)1 << 30};
    CUresult result = multicast == 0 ? CALL(cuMulticastCreate)(&multicast, &properties) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? CALL(cuMulticastAddDevice)(multicast, device) : result;
}

/* Only the multicast object holds it afterwards. */
static CUresult take_bound(struct block *block) {
    CUresult result = use_multicast();
    result = result == CUDA_SUCCESS ? take_physical(block) : result;
    if (result == CUDA_SUCCESS) {
        block->offset = bound;
        bound += block->bytes;
        result = CALL(cuMulticastBindMem)(multicast, block->offset, block->handle, 0, block->bytes, 0);
        CALL(cuMemRelease)(block->handle);
    }
    return result;
}

static CUresult take_bound_by_address(struct block *block) {
    CUresult result = use_multicast();
    result = result == CUDA_SUCCESS ? take_mapped(block) : result;
    if (result == CUDA_SUCCESS) {
        block->offset = bound;
        bound += block->bytes;
        result = CALL(cuMulticastBindAddr)(multicast, block->offset, block->address, block->bytes, 0);
        CALL(cuMemUnmap)(block->address, block->bytes);
        CALL(cuMemRelease)(block->handle);
    }
    return result;
}

static CUresult take_array_1d(struct block *block) {
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = block->bytes / 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CALL(cuArrayCreate_v2)(&block->array, &shape);
}

static CUresult take_array_2d(struct block *block) {
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 256, .Height = block->bytes / 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    return CALL(cuArrayCreate_v2)(&block->array, &shape);
}

static CUresult take_array_3d(struct block *block) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 128, .Height = 64, .Depth = block->bytes / 128 / 64 / 2,
                                     .Format = CU_AD_FORMAT_HALF, .NumChannels = 1};
    return CALL(cuArray3DCreate_v2)(&block->array, &shape);
}

static CUresult take_old_array_2d(struct block *block) {
    CUDA_ARRAY_DESCRIPTOR_v1 shape = {.Width = 1024, .Height = (unsigned int)(block->bytes / 4096),
                                      .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CALL(cuArrayCreate)(&block->array, &shape);
}

static CUresult take_old_array_3d(struct block *block) {
    CUDA_ARRAY3D_DESCRIPTOR_v1 shape = {.Width = 128, .Height = 128, .Depth = (unsigned int)(block->bytes / 128 / 128),
                                        .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    return CALL(cuArray3DCreate)(&block->array, &shape);
}

static CUresult take_mipmap(struct block *block) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024, .Height = block->bytes / 4096, .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1};
    return CALL(cuMipmappedArrayCreate)(&block->mipmap, &shape, 1);
}

/* ---- graphs: the memory comes with the launch ---- */

static CUresult launch(struct block *block, CUresult made) {
    if (made == CUDA_SUCCESS) {
        made = CALL(cuGraphInstantiateWithFlags)(&block->executable, block->graph, 0);
    }
    return made == CUDA_SUCCESS ? CALL(cuGraphLaunch)(block->executable, stream) : made;
}

static CUresult take_graph(struct block *block) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 parameters = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
                                                .bytesize = block->bytes};
    CUresult result = CALL(cuGraphCreate)(&block->graph, 0);
    result = result == CUDA_SUCCESS ? CALL(cuGraphAddMemAllocNode)(&node, block->graph, NULL, 0, &parameters) : result;
    block->address = parameters.dptr;
    return launch(block, result);
}

static CUresult take_graph_node(struct block *block) {
    CUgraphNode node;
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    parameters.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.alloc.poolProps.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    parameters.alloc.bytesize = block->bytes;
    CUresult result = CALL(cuGraphCreate)(&block->graph, 0);
    result = result == CUDA_SUCCESS ? CALL(cuGraphAddNode_v2)(&node, block->graph, NULL, NULL, 0, &parameters) : result;
    block->address = parameters.alloc.dptr;
    return launch(block, result);
}

static CUresult capture(struct block *block, bool with_free) {
    CUresult result = CALL(cuStreamBeginCapture_v2)(capturing, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemAllocAsync)(&block->address, block->bytes, capturing);
        if (result == CUDA_SUCCESS && with_free) {
            result = CALL(cuMemFreeAsync)(block->address, capturing);
        }
        CUresult ended = CALL(cuStreamEndCapture)(capturing, &block->graph);
        result = result == CUDA_SUCCESS ? ended : result;
    }
    return launch(block, result);
}

static CUresult take_capture(struct block *block) {
    return capture(block, false);
}

static CUresult take_capture_with_free(struct block *block) {
    return capture(block, true);
}

static CUresult take_linear(struct block *block) {
    return CALL(cuMemAlloc_v2)(&block->address, block->bytes);
}

static CUresult take_managed(struct block *block) {
    return CALL(cuMemAllocManaged)(&block->address, block->bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult take_async_elsewhere(struct block *block) { /* in a stream that waits for nothing */
    return CALL(cuMemAllocAsync)(&block->address, block->bytes, capturing);
}

static CUresult take_async(struct block *block) {
    return CALL(cuMemAllocAsync)(&block->address, block->bytes, stream);
}

static const struct {
    const char *name;
    CUresult (*take)(struct block *block);
} kinds[] = {
    {"linear", take_linear},
    {"managed", take_managed},
    {"pitched", take_pitched},
    {"async", take_async},
    {"async-elsewhere", take_async_elsewhere},
    {"own-pool", take_from_own_pool},
    {"default-pool", take_from_default_pool},
    {"physical", take_physical},
    {"shareable", take_shareable},
    {"mapped", take_mapped},
    {"locality-domain", take_locality_domain},
    {"nowhere", take_nowhere},
    {"domain-pool", take_from_domain_pool},
    {"bound", take_bound},
    {"bound-by-address", take_bound_by_address},
    {"array-1d", take_array_1d},
    {"array-2d", take_array_2d},
    {"array-3d", take_array_3d},
    {"old-array-2d", take_old_array_2d},
    {"old-array-3d", take_old_array_3d},
    {"mipmap", take_mipmap},
    {"graph", take_graph},
    {"graph-node", take_graph_node},
    {"capture", take_capture},
    {"capture-with-free", take_capture_with_free},
};

static CUresult take(const char *kind, size_t bytes) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, kind) == 0 && block_count < MOST_BLOCKS) {
            struct block *block = &blocks[block_count];
            *block = (struct block){.bytes = bytes};
            CUresult result = kinds[i].take(block);
            block_count += result == CUDA_SUCCESS;
            return result;
        }
    }
    return -1;
}

/* ---- giving back ---- */

static CUresult both(CUresult first, CUresult second) {
    return first != CUDA_SUCCESS ? first : second;
}

static CUresult release_then_unmap(struct block *block) {
    return both(CALL(cuMemRelease)(block->handle), CALL(cuMemUnmap)(block->address, block->bytes));
}

static CUresult unmap_then_release(struct block *block) {
    return both(CALL(cuMemUnmap)(block->address, block->bytes), CALL(cuMemRelease)(block->handle));
}

static CUresult retain_then_release_all(struct block *block) {
    CUmemGenericAllocationHandle again;
    CUresult result = CALL(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)block->address);
    result = both(result, CALL(cuMemRelease)(block->handle));
    result = both(result, CALL(cuMemUnmap)(block->address, block->bytes));
    return both(result, CALL(cuMemRelease)(again));
}

static CUresult give(const char *how, struct block *block) {
    if (strcmp(how, "free") == 0) {
        return CALL(cuMemFree_v2)(block->address);
    }
    if (strcmp(how, "free-async") == 0) {
        return CALL(cuMemFreeAsync)(block->address, stream);
    }
    if (strcmp(how, "release") == 0) {
        return CALL(cuMemRelease)(block->handle);
    }
    if (strcmp(how, "unmap") == 0) {
        return CALL(cuMemUnmap)(block->address, block->bytes);
    }
    if (strcmp(how, "release-unmap") == 0) {
        return release_then_unmap(block);
    }
    if (strcmp(how, "unmap-release") == 0) {
        return unmap_then_release(block);
    }
    if (strcmp(how, "retain-release") == 0) {
        return retain_then_release_all(block);
    }
    if (strcmp(how, "unbind") == 0) {
        return CALL(cuMulticastUnbind)(multicast, device, block->offset, block->bytes);
    }
    if (strcmp(how, "array") == 0) {
        return CALL(cuArrayDestroy)(block->array);
    }
    if (strcmp(how, "mipmap") == 0) {
        return CALL(cuMipmappedArrayDestroy)(block->mipmap);
    }
    if (strcmp(how, "executable") == 0) {
        return both(CALL(cuGraphExecDestroy)(block->executable), CALL(cuGraphDestroy)(block->graph));
    }
    if (strcmp(how, "close") == 0) {
        return CALL(cuIpcCloseMemHandle)(block->address);
    }
    return strcmp(how, "launch") == 0 ? CALL(cuGraphLaunch)(block->executable, stream) : (CUresult)-1;
}

static CUresult use_context(CUcontext made) {
    context = made;
    CUresult result = CALL(cuCtxSetCurrent)(context);
    result = result == CUDA_SUCCESS ? CALL(cuStreamCreate)(&stream, CU_STREAM_DEFAULT) : result;
    return result == CUDA_SUCCESS ? CALL(cuStreamCreate)(&capturing, CU_STREAM_NON_BLOCKING) : result;
}

static CUresult use_device(int number) {
    CUcontext primary;
    device = number;
    CUresult result = CALL(cuDevicePrimaryCtxRetain)(&primary, device);
    return result == CUDA_SUCCESS ? use_context(primary) : result;
}

/* Physical memory that was exported and comes back as an import: a second handle, no second memory. */
static CUresult import_first_block(void) {
    int descriptor = -1;
    CUmemGenericAllocationHandle imported;
    CUresult result = CALL(cuMemExportToShareableHandle)(&descriptor, blocks[0].handle,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemImportFromShareableHandle)(&imported, (void *)(intptr_t)descriptor,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        close(descriptor);
    }
    if (result == CUDA_SUCCESS) {
        blocks[block_count++] = (struct block){.handle = imported, .bytes = blocks[0].bytes};
    }
    return result;
}

static void print_handle(unsigned long long number) {
    CUipcMemHandle handle;
    CUresult result = CALL(cuIpcGetMemHandle)(&handle, blocks[number].address);
    printf("%d ", (int)result);
    for (size_t i = 0; i < sizeof handle; i++) {
        printf("%02x", (unsigned char)handle.reserved[i]);
    }
    printf("\n");
}

static CUresult open_handle(const char *text) {
    CUipcMemHandle handle;
    for (size_t i = 0; i < sizeof handle; i++) {
        unsigned int byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        handle.reserved[i] = (char)byte;
    }
    blocks[block_count] = (struct block){0};
    CUresult result = CALL(cuIpcOpenMemHandle_v2)(&blocks[block_count].address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    block_count += result == CUDA_SUCCESS;
    return result;
}

/* In a child of a process that uses CUDA the driver refuses everything. */
static bool child_is_refused(void) {
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties = physical_properties();
    const struct block *last = &blocks[block_count - 1];
    size_t free_bytes, total;
    CUresult results[] = {
        CALL(cuMemFree_v2)(blocks[0].address),
        CALL(cuMemAlloc_v2)(&address, 512),
        CALL(cuCtxSynchronize)(),
        CALL(cuMemFreeAsync)(blocks[0].address, NULL),
        CALL(cuMemAllocAsync)(&address, 512, NULL),
        CALL(cuMemCreate)(&handle, (size_t)2 << 20, &properties, 0),
        CALL(cuMemRelease)(last->handle),
        CALL(cuMemUnmap)(last->address, last->bytes),
        CALL(cuGraphLaunch)(last->executable, NULL),
        CALL(cuDeviceGraphMemTrim)(device),
        CALL(cuMemGetInfo_v2)(&free_bytes, &total),
    };
    bool refused = true;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        refused &= results[i] != CUDA_SUCCESS;
    }
    CALL(cuMemPoolTrimTo)(pool, 0);
    CALL(cuDevicePrimaryCtxReset_v2)(device);
    return refused;
}

static CUresult fork_and_take(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a child that waits for a lock of its parent's would wait forever */
        _exit(child_is_refused() ? 0 : 1);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? (CUresult)WEXITSTATUS(status) : (CUresult)-1;
}

static atomic_int held_up;

static void CUDA_CB hold_up(void *unused) {
    (void)unused;
    while (atomic_load(&held_up)) {
        usleep(200);
    }
}

/* Closes the descriptors of the session's cells, as a program that closes what it does not know. */
static CUresult hide_cells(void) {
    int closed = 0;
    for (int descriptor = 3; descriptor < 1024; descriptor++) {
        char path[64], link[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        if (readlink(path, link, sizeof link - 1) > 0 && strncmp(link, "/memfd:gpuslice-cells", 21) == 0) {
            closed += close(descriptor) == 0;
        }
    }
    return closed == 1 ? CUDA_SUCCESS : (CUresult)-1;
}

static CUresult act(const char *what) {
    if (strcmp(what, "hide-cells") == 0) {
        return hide_cells();
    }
    if (strcmp(what, "hold-up-stream") == 0) {
        atomic_store(&held_up, 1);
        return CALL(cuLaunchHostFunc)(stream, hold_up, NULL);
    }
    if (strcmp(what, "let-stream-go") == 0) {
        atomic_store(&held_up, 0);
        return CALL(cuStreamSynchronize)(stream);
    }
    if (strcmp(what, "exec") == 0) {
        execl("/proc/self/exe", "tenant", NULL);
    }
    if (strcmp(what, "synchronize") == 0) {
        return CALL(cuCtxSynchronize)();
    }
    if (strcmp(what, "synchronize-stream") == 0) {
        return CALL(cuStreamSynchronize)(stream);
    }
    if (strcmp(what, "trim-pool") == 0) {
        return CALL(cuMemPoolTrimTo)(pool, 0);
    }
    if (strcmp(what, "destroy-pool") == 0) {
        CUresult result = CALL(cuMemPoolDestroy)(pool);
        pool = NULL;
        return result;
    }
    if (strcmp(what, "release-multicast") == 0) {
        CUresult result = CALL(cuMemRelease)(multicast);
        multicast = 0;
        bound = 0;
        return result;
    }
    if (strcmp(what, "trim-graphs") == 0) {
        return CALL(cuDeviceGraphMemTrim)(device);
    }
    if (strcmp(what, "release-primary") == 0) {
        return CALL(cuDevicePrimaryCtxRelease_v2)(device);
    }
    if (strcmp(what, "reset-primary") == 0) {
        return CALL(cuDevicePrimaryCtxReset_v2)(device);
    }
    if (strcmp(what, "use-primary") == 0) {
        return use_device(device);
    }
    if (strcmp(what, "make-context") == 0) {
        CUcontext made;
        CUresult result = CALL(cuCtxCreate_v2)(&made, 0, device);
        return result == CUDA_SUCCESS ? use_context(made) : result;
    }
    if (strcmp(what, "destroy-context") == 0) {
        return CALL(cuCtxDestroy_v2)(context);
    }
    if (strcmp(what, "no-context") == 0) {
        return CALL(cuCtxSetCurrent)(NULL);
    }
    if (strcmp(what, "import") == 0) {
        return import_first_block();
    }
    if (strcmp(what, "free-unknown") == 0) {
        return CALL(cuMemFree_v2)(0x123456000);
    }
    return strcmp(what, "fork") == 0 ? fork_and_take() : (CUresult)-1;
}

int main(void) {
    char line[256], word[64];
    unsigned long long number;
    printf("ready %d %d\n", (int)getpid(), (int)CALL(cuInit)(0));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "take %63s %llu", word, &number) == 2) {
            printf("%d\n", (int)take(word, number));
        } else if (sscanf(line, "give %63s %llu", word, &number) == 2 && number < (unsigned long long)block_count) {
            printf("%d\n", (int)give(word, &blocks[number]));
        } else if (sscanf(line, "device %llu", &number) == 1) {
            printf("%d\n", (int)use_device((int)number));
        } else if (sscanf(line, "do %63s", word) == 1) {
            printf("%d\n", (int)act(word));
        } else if (sscanf(line, "export %llu", &number) == 1) {
            print_handle(number);
        } else if (strncmp(line, "open ", 5) == 0) {
            printf("%d\n", (int)open_handle(line + 5));
        } else if (strcmp(line, "info\n") == 0) {
            size_t free_bytes = 0, total = 0;
            CUresult result = CALL(cuMemGetInfo_v2)(&free_bytes, &total);
            printf("%d %zu %zu\n", (int)result, free_bytes, total);
        } else if (strcmp(line, "total\n") == 0) {
            size_t total = 0;
            CUresult result = CALL(cuDeviceTotalMem_v2)(&total, device);
            printf("%d %zu\n", (int)result, total);
        } else {
            printf("-2\n");
        }
        fflush(stdout);
    }
    return 0;
}
