/* Memory nodes of graphs. Their addresses are fixed when a graph is made, their bytes come with a launch and stay in the
 * device's own pool for graphs until it is trimmed. So before a launch the pool is charged for the most that it may then
 * have to hold, and what the driver says that it really holds is kept. */
#include "charge.h"

#include <pthread.h>
#include <stdlib.h>

struct device_account {
    bool known;
    CUdevice device;
    uint64_t charged;
    uint64_t launched; /* what executable graphs that were ever launched can hold: each has its addresses only once */
    uint64_t orphaned; /* what destroyed ones may have left behind */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_account accounts[GPUSLICE_MAX_GPUS];
static struct table executables; /* executable_key -> bytes; `owner` says whether it was ever launched */
static _Atomic uint64_t executable_count;

/* Pointers use 47 bits, so the GPU fits above them. */
static uint64_t executable_key(CUgraphExec executable, uint32_t gpu) {
    return (uint64_t)(uintptr_t)executable | (uint64_t)(gpu + 1) << 56;
}

/* ---- what a graph may allocate ---- */

static bool add_graph(CUgraph graph, uint64_t bytes[GPUSLICE_MAX_GPUS]);

static bool add_memory(const CUDA_MEM_ALLOC_NODE_PARAMS *parameters, uint64_t bytes[GPUSLICE_MAX_GPUS]) {
    if (parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return true;
    }
    uint32_t gpu = gpu_of_device(parameters->poolProps.location.id);
    if (gpu == NO_GPU) {
        return false;
    }
    pthread_mutex_lock(&lock);
    accounts[gpu].known = true;
    accounts[gpu].device = parameters->poolProps.location.id;
    pthread_mutex_unlock(&lock);
    return !__builtin_add_overflow(bytes[gpu], charge_rounded(parameters->bytesize), &bytes[gpu]);
}

static bool add_node(CUgraphNode node, uint64_t bytes[GPUSLICE_MAX_GPUS]) {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) {
        return false;
    }
    switch (type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS && add_memory(&parameters, bytes);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS && add_graph(child, bytes);
    default:
        return true;
    }
}

/* False when it wants memory that cannot be charged: on a GPU that is not the session's, or of unknown size. */
static bool add_graph(CUgraph graph, uint64_t bytes[GPUSLICE_MAX_GPUS]) {
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS) {
        return false;
    }
    if (count == 0) {
        return true;
    }
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    bool known = nodes != NULL && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS;
    for (size_t i = 0; known && i < count; i++) {
        known = add_node(nodes[i], bytes);
    }
    free(nodes);
    return known;
}

static void forget_executable(CUgraphExec executable) {
    struct table_entry entry;
    pthread_mutex_lock(&lock);
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        if (table_take(&executables, executable_key(executable, gpu), &entry)) {
            atomic_fetch_sub(&executable_count, 1);
            accounts[gpu].launched -= entry.owner != 0 ? entry.bytes : 0;
            accounts[gpu].orphaned += entry.owner != 0 ? entry.bytes : 0;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* An executable graph whose memory cannot be booked is not handed out. */
static CUresult book_executable(CUresult result, CUgraphExec *executable, CUgraph graph) {
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t bytes[GPUSLICE_MAX_GPUS] = {0};
    bool booked = add_graph(graph, bytes);
    for (uint32_t gpu = 0; booked && gpu < GPUSLICE_MAX_GPUS; gpu++) {
        struct table_entry entry = {.key = executable_key(*executable, gpu), .bytes = bytes[gpu], .gpu = (uint8_t)gpu};
        if (bytes[gpu] != 0) {
            booked = bytes[gpu] <= GPUSLICE_BYTES_MASK && table_put(&executables, &entry);
            atomic_fetch_add(&executable_count, booked);
        }
    }
    if (!booked) {
        forget_executable(*executable);
        REAL(cuGraphExecDestroy)(*executable);
    }
    return booked ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    return book_executable(REAL(cuGraphInstantiate)(executable, graph, error_node, log, log_size), executable, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    return book_executable(REAL(cuGraphInstantiate_v2)(executable, graph, error_node, log, log_size), executable, graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    return book_executable(REAL(cuGraphInstantiateWithFlags)(executable, graph, flags), executable, graph);
}

/* ---- what the pools for graphs hold; under the lock ---- */

static uint64_t attribute(const struct device_account *account, CUgraphMem_attribute which) {
    cuuint64_t value = 0;
    CUresult result = REAL(cuDeviceGetGraphMemAttribute)(account->device, which, &value);
    return result == CUDA_SUCCESS ? charge_rounded(value) : account->charged;
}

static bool account_refresh(uint32_t gpu) {
    struct device_account *account = &accounts[gpu];
    uint64_t reserved = account->charged != 0 ? attribute(account, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) : 0;
    bool lower = reserved < account->charged;
    if (lower) {
        charge_back(gpu, SHARED_LANE, account->charged - reserved);
        account->charged = reserved;
    }
    return lower;
}

bool graphs_refresh(void) {
    bool changed = false;
    pthread_mutex_lock(&lock);
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        changed |= accounts[gpu].known && account_refresh(gpu);
    }
    pthread_mutex_unlock(&lock);
    return changed;
}

/* The most that the pool may hold once the graph runs: what is in use and the graph's own, but never more than all
 * graphs together can hold. A graph that is launched again may find its own memory in use and use that. */
static uint64_t most_after_launch(struct device_account *account, uint64_t bytes) {
    uint64_t reserved = attribute(account, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = attribute(account, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    account->orphaned = account->orphaned < used ? account->orphaned : used;
    uint64_t most = used + bytes, together = account->launched + account->orphaned;
    most = most < together ? most : together;
    return most > reserved ? most : reserved;
}

/* One executable graph on one GPU. */
static bool charge_executable(CUgraphExec executable, uint32_t gpu) {
    struct device_account *account = &accounts[gpu];
    struct table_entry entry;
    if (!table_take(&executables, executable_key(executable, gpu), &entry)) {
        return true;
    }
    account->launched += entry.owner == 0 ? entry.bytes : 0;
    entry.owner = 1;
    table_put(&executables, &entry); /* cannot fail: its place was just freed */
    if (!session_allows(gpu)) {
        return false;
    }
    uint64_t most = most_after_launch(account, entry.bytes);
    uint64_t grown = most > account->charged ? most - account->charged : 0;
    bool granted = grown == 0 || session_reserve(gpu, SHARED_LANE, grown);
    account->charged += granted ? grown : 0;
    return granted;
}

/* True, or the GPU that it does not fit on. */
static bool charge_everywhere(CUgraphExec executable, uint32_t *gpu) {
    bool granted = true;
    pthread_mutex_lock(&lock);
    for (*gpu = 0; *gpu < GPUSLICE_MAX_GPUS; ++*gpu) {
        granted = !accounts[*gpu].known || charge_executable(executable, *gpu);
        if (!granted) {
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return granted;
}

static bool charge_launch(CUgraphExec executable) {
    uint32_t gpu;
    if (__builtin_expect(atomic_load_explicit(&executable_count, memory_order_relaxed) == 0, 1) ||
        charge_everywhere(executable, &gpu) || (pools_refresh() && charge_everywhere(executable, &gpu))) {
        return true;
    }
    return charge_denied(gpu, 0);
}

#define CHARGED_LAUNCH(executable, call)                                                                              \
    do {                                                                                                              \
        if (!charge_launch(executable)) {                                                                             \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = (call);                                                                                     \
        if (result != CUDA_SUCCESS) {                                                                                 \
            graphs_refresh();                                                                                         \
        }                                                                                                             \
        return result;                                                                                                \
    } while (0)

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    CHARGED_LAUNCH(executable, REAL(cuGraphLaunch)(executable, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
    CHARGED_LAUNCH(executable, REAL(cuGraphLaunch_ptsz)(executable, stream));
}

CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    CHARGED_LAUNCH(executable, REAL(cuGraphUpload)(executable, stream));
}

CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream) {
    CHARGED_LAUNCH(executable, REAL(cuGraphUpload_ptsz)(executable, stream));
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    CUresult result = REAL(cuGraphExecDestroy)(executable);
    if (result == CUDA_SUCCESS && atomic_load(&executable_count) != 0) {
        forget_executable(executable);
        graphs_refresh();
    }
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    graphs_refresh();
    return result;
}

/* Uploading brings the memory, so an upload that is asked for with the instantiation is done after it, charged. */
#define INSTANTIATES_WITH_PARAMETERS(name, upload)                                                                    \
    CUresult name(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {                \
        cuuint64_t flags = parameters != NULL ? parameters->flags : 0;                                                \
        if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {                                                             \
            parameters->flags = flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;                              \
        }                                                                                                             \
        CUresult result = book_executable(REAL(name)(executable, graph, parameters), executable, graph);              \
        if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {                                                             \
            parameters->flags = flags;                                                                                \
            if (result == CUDA_SUCCESS && (result = upload(*executable, parameters->hUploadStream)) != CUDA_SUCCESS) { \
                cuGraphExecDestroy(*executable);                                                                      \
            }                                                                                                         \
        }                                                                                                             \
        return result;                                                                                                \
    }

INSTANTIATES_WITH_PARAMETERS(cuGraphInstantiateWithParams, cuGraphUpload)
INSTANTIATES_WITH_PARAMETERS(cuGraphInstantiateWithParams_ptsz, cuGraphUpload_ptsz)
