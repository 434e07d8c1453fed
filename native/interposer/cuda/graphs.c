/* Memory nodes of graphs. Their addresses are fixed when a graph is made, their bytes come with a launch and stay in the
 * device's own pool for graphs until it is trimmed. So a launch is charged for what its executable graph may allocate,
 * and then what the driver says that pool really holds is kept. */
#include "charge.h"

#include <pthread.h>
#include <stdlib.h>

struct device_account {
    bool known;
    CUdevice device;
    uint64_t charged;
    uint64_t epoch; /* grows when the charge shrinks: executable graphs charged before must be charged anew */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_account accounts[GPUSLICE_MAX_GPUS];
static struct table executables; /* executable_key -> bytes; `owner` is the epoch in which they were charged */
static _Atomic uint64_t executable_count;

/* Pointers use 47 bits, so the GPU fits above them. */
static uint64_t executable_key(CUgraphExec executable, uint32_t gpu) {
    return (uint64_t)(uintptr_t)executable | (uint64_t)(gpu + 1) << 56;
}

/* ---- what a graph may allocate ---- */

static void add_graph(CUgraph graph, uint64_t bytes[GPUSLICE_MAX_GPUS]);

static void add_node(CUgraphNode node, uint64_t bytes[GPUSLICE_MAX_GPUS]) {
    CUgraphNodeType type;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) {
        return;
    }
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    CUgraph child;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS) {
        uint32_t gpu = gpu_of_device(parameters.poolProps.location.id);
        if (gpu != NO_GPU) {
            pthread_mutex_lock(&lock);
            accounts[gpu].known = true;
            accounts[gpu].device = parameters.poolProps.location.id;
            pthread_mutex_unlock(&lock);
            bytes[gpu] += charge_rounded(parameters.bytesize);
        }
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS) {
        add_graph(child, bytes);
    }
}

static void add_graph(CUgraph graph, uint64_t bytes[GPUSLICE_MAX_GPUS]) {
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0) {
        return;
    }
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes != NULL && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS) {
        for (size_t i = 0; i < count; i++) {
            add_node(nodes[i], bytes);
        }
    }
    free(nodes);
}

static void forget_executable(CUgraphExec executable) {
    struct table_entry entry;
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        if (table_take(&executables, executable_key(executable, gpu), &entry)) {
            atomic_fetch_sub(&executable_count, 1);
        }
    }
}

/* An executable graph whose memory cannot be booked is not handed out. */
static CUresult book_executable(CUresult result, CUgraphExec *executable, CUgraph graph) {
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t bytes[GPUSLICE_MAX_GPUS] = {0};
    add_graph(graph, bytes);
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        struct table_entry entry = {.key = executable_key(*executable, gpu), .owner = UINT64_MAX, .bytes = bytes[gpu],
                                    .gpu = (uint8_t)gpu};
        if (bytes[gpu] == 0) {
            continue;
        }
        if (bytes[gpu] > GPUSLICE_BYTES_MASK || !table_put(&executables, &entry)) {
            forget_executable(*executable);
            REAL(cuGraphExecDestroy)(*executable);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        atomic_fetch_add(&executable_count, 1);
    }
    return CUDA_SUCCESS;
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

CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return book_executable(REAL(cuGraphInstantiateWithParams)(executable, graph, parameters), executable, graph);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return book_executable(REAL(cuGraphInstantiateWithParams_ptsz)(executable, graph, parameters), executable, graph);
}

/* ---- what the pools for graphs hold; under the lock ---- */

static uint64_t attribute(const struct device_account *account, CUgraphMem_attribute which) {
    cuuint64_t value = 0;
    CUresult result = REAL(cuDeviceGetGraphMemAttribute)(account->device, which, &value);
    return result == CUDA_SUCCESS ? value : account->charged;
}

static bool account_refresh(uint32_t gpu) {
    struct device_account *account = &accounts[gpu];
    uint64_t reserved = account->charged != 0 ? attribute(account, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) : 0;
    bool lower = reserved < account->charged;
    if (lower) {
        charge_back(gpu, account->charged - reserved);
        account->charged = reserved;
        account->epoch++;
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

/* One executable graph on one GPU. Running it again uses the same memory again, so it is charged once per epoch. */
static bool charge_executable(CUgraphExec executable, uint32_t gpu) {
    struct device_account *account = &accounts[gpu];
    struct table_entry entry;
    uint64_t key = executable_key(executable, gpu);
    if (!table_take(&executables, key, &entry)) {
        return true;
    }
    const struct page *page = session_page();
    bool granted = page != NULL;
    if (granted && entry.owner != account->epoch) {
        uint64_t reserved = attribute(account, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
        uint64_t wanted = attribute(account, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) + entry.bytes;
        wanted = wanted > reserved ? wanted : reserved;
        uint64_t grown = wanted > account->charged ? wanted - account->charged : 0;
        granted = reserve(page, gpu, grown);
        if (granted) {
            account->charged += grown;
            entry.owner = account->epoch;
        } else {
            reserve_count_denied(page, gpu);
        }
    }
    table_put(&executables, &entry); /* cannot fail: its place was just freed */
    return granted;
}

static bool charge_launch(CUgraphExec executable) {
    if (__builtin_expect(atomic_load_explicit(&executable_count, memory_order_relaxed) == 0, 1)) {
        return true;
    }
    bool granted = true;
    for (int attempt = 0; attempt < 2; attempt++) {
        granted = true;
        pthread_mutex_lock(&lock);
        for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS && granted; gpu++) {
            granted = !accounts[gpu].known || charge_executable(executable, gpu);
        }
        pthread_mutex_unlock(&lock);
        if (granted || !pools_refresh()) {
            break;
        }
    }
    return granted;
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
