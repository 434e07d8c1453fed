/* Memory nodes of graphs. Their addresses are fixed when a graph is made, their bytes come with a launch and stay in the
 * device's own pool for graphs until it is trimmed. So before a launch the pool is charged for the most that it may then
 * have to hold, and what the driver says that it really holds is kept. */
#include "../compute/launch.h"
#include "pool_account.h"

#include <stdlib.h>
#include <string.h>

struct graph_account { /* of a GPU; under the accounts' lock */
    struct pool_account pool; /* its `used` is the most that launches in flight may need */
    unsigned int launches;    /* in flight */
    uint64_t launched;        /* what executable graphs that were ever launched can hold: each has its addresses only once */
    uint64_t orphaned;        /* what destroyed ones may have left behind */
};

static struct graph_account accounts[GPUSLICE_MAX_GPUS];
static struct table executables = TABLE_INITIALIZER; /* executable_key -> bytes; `owner` says whether it was ever launched */
static _Atomic uint64_t executable_count;

/* Pointers use 47 bits, so the GPU fits above them. */
static uint64_t executable_key(CUgraphExec executable, uint32_t gpu) {
    return (uint64_t)(uintptr_t)executable | (uint64_t)(gpu + 1) << 56;
}

/* ---- what a graph may allocate ---- */

static bool add_graph(CUgraph graph, uint64_t bytes[GPUSLICE_MAX_GPUS]);

static bool add_memory(const CUDA_MEM_ALLOC_NODE_PARAMS *parameters, uint64_t bytes[GPUSLICE_MAX_GPUS]) {
    CUdevice device;
    if (location_is_host(&parameters->poolProps.location)) {
        return true;
    }
    uint32_t gpu = location_device(&parameters->poolProps.location, &device) ? gpu_of_device(device) : NO_GPU;
    if (gpu == NO_GPU) {
        return false;
    }
    accounts_lock();
    if (!accounts[gpu].pool.open) { /* from now on these are read without the lock */
        accounts[gpu].pool.gpu = gpu;
        accounts[gpu].pool.device = device;
        accounts[gpu].pool.open = true;
    }
    accounts_unlock();
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
    accounts_lock();
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        if (table_take(&executables, executable_key(executable, gpu), &entry)) {
            atomic_fetch_sub(&executable_count, 1);
            accounts[gpu].launched -= entry.owner != 0 ? entry.bytes : 0;
            accounts[gpu].orphaned += entry.owner != 0 ? entry.bytes : 0;
        }
    }
    accounts_unlock();
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
        struct table_entry replaced;
        if (bytes[gpu] != 0) {
            booked = bytes[gpu] <= GPUSLICE_BYTES_MASK && table_put(&executables, &entry, &replaced);
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

/* ---- what the pools for graphs hold ---- */

bool graphs_refresh(void) {
    bool changed = false;
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        accounts_lock();
        bool may_lower = accounts[gpu].pool.charged > accounts[gpu].pool.used;
        accounts_unlock();
        changed |= may_lower && account_refresh(&accounts[gpu].pool);
    }
    return changed;
}

void graphs_forget(void) {
    memset(accounts, 0, sizeof accounts);
    table_forget(&executables);
    atomic_store(&executable_count, 0);
}

/* ---- launching ---- */

/* The most that the pool may hold once the graph runs: what is in use and the graph's own, but never more than all
 * graphs together can hold. A graph that is launched again may find its own memory in use and use that. */
static uint64_t most_after_launch(struct graph_account *account, const struct pool_answer *now, uint64_t bytes) {
    uint64_t used = now->known ? now->used : account->pool.charged;
    account->orphaned = account->orphaned < used ? account->orphaned : used;
    uint64_t most = used + bytes, together = account->launched + account->orphaned;
    most = most < together ? most : together;
    return most > now->reserved ? most : now->reserved;
}

/* Under the lock. Charges one launch, and keeps its charge from being lowered until it is over. */
static bool begin_launch(struct graph_account *account, uint64_t most) {
    struct pool_account *pool = &account->pool;
    bool granted = account_raise(pool, most > pool->charged ? most - pool->charged : 0);
    if (granted) {
        pool->used = most > pool->used ? most : pool->used;
        account->launches++;
    }
    return granted;
}

/* What an executable graph may hold on the GPU; false if nothing. */
static bool executable_bytes(CUgraphExec executable, uint32_t gpu, uint64_t *bytes) {
    struct table_entry entry, replaced;
    if (!accounts[gpu].pool.open || !table_take(&executables, executable_key(executable, gpu), &entry)) {
        return false;
    }
    accounts[gpu].launched += entry.owner == 0 ? entry.bytes : 0;
    entry.owner = 1;
    table_put(&executables, &entry, &replaced); /* cannot fail: its place was just freed */
    *bytes = entry.bytes;
    return true;
}

/* One executable graph on one GPU. `begun` gets the GPU's bit if the launch is to be ended there. */
static bool charge_on(CUgraphExec executable, uint32_t gpu, uint32_t *begun) {
    uint64_t bytes;
    accounts_lock();
    bool concerned = executable_bytes(executable, gpu, &bytes);
    accounts_unlock();
    if (!concerned) {
        return true;
    }
    if (!session_allows(gpu)) {
        return false;
    }
    struct graph_account *account = &accounts[gpu];
    struct pool_answer now = account_ask_and_lock(&account->pool, POOL_RESERVED | POOL_USED);
    bool granted = begin_launch(account, most_after_launch(account, &now, bytes));
    accounts_unlock();
    *begun |= granted ? 1u << gpu : 0;
    return granted;
}

static void end_launch(uint32_t begun) {
    accounts_lock();
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        if ((begun & 1u << gpu) != 0 && --accounts[gpu].launches == 0) {
            accounts[gpu].pool.used = 0;
        }
    }
    accounts_unlock();
}

/* On all GPUs or on none; `refused` gets the one that it does not fit on. */
static bool charge_everywhere(CUgraphExec executable, uint32_t *begun, uint32_t *refused) {
    *begun = 0;
    for (uint32_t gpu = 0; gpu < GPUSLICE_MAX_GPUS; gpu++) {
        if (!charge_on(executable, gpu, begun)) {
            end_launch(*begun);
            *refused = gpu;
            return false;
        }
    }
    return true;
}
_Static_assert(GPUSLICE_MAX_GPUS <= 32, "a bit for each GPU");

/* False when the graph's memory does not fit. */
static bool launch_begin(CUgraphExec executable, uint32_t *begun) {
    uint32_t refused;
    *begun = 0;
    if (__builtin_expect(atomic_load_explicit(&executable_count, memory_order_relaxed) == 0, 1) ||
        charge_everywhere(executable, begun, &refused) ||
        (pools_refresh() && charge_everywhere(executable, begun, &refused))) {
        return true;
    }
    return charge_denied(refused, 0);
}

static CUresult launch_end(uint32_t begun, CUresult result) {
    if (__builtin_expect(begun != 0, 0)) {
        end_launch(begun);
    }
    if (result != CUDA_SUCCESS) {
        graphs_refresh();
    }
    return result;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    uint32_t begun;
    if (!launch_begin(executable, &begun)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct launch launch;
    launch_pay(&launch, launch_graph_key(executable), stream, LAUNCH_WAITS);
    return launch_end(begun, launch_paid(&launch, REAL(cuGraphLaunch)(executable, stream)));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
    uint32_t begun;
    if (!launch_begin(executable, &begun)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct launch launch;
    launch_pay(&launch, launch_graph_key(executable), stream, LAUNCH_WAITS | LAUNCH_PER_THREAD);
    return launch_end(begun, launch_paid(&launch, REAL(cuGraphLaunch_ptsz)(executable, stream)));
}

CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    uint32_t begun;
    if (!launch_begin(executable, &begun)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return launch_end(begun, REAL(cuGraphUpload)(executable, stream));
}

CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream) {
    uint32_t begun;
    if (!launch_begin(executable, &begun)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return launch_end(begun, REAL(cuGraphUpload_ptsz)(executable, stream));
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

/* ---- instantiating with an upload: the upload brings the memory, so it is done afterwards, charged ---- */

static bool wants_upload(const CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return parameters != NULL && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
}

static CUresult uploaded_or_destroyed(CUresult uploaded, CUgraphExec executable) {
    if (uploaded != CUDA_SUCCESS) {
        cuGraphExecDestroy(executable);
    }
    return uploaded;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    if (!wants_upload(parameters)) {
        return book_executable(REAL(cuGraphInstantiateWithParams)(executable, graph, parameters), executable, graph);
    }
    parameters->flags ^= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult result = REAL(cuGraphInstantiateWithParams)(executable, graph, parameters);
    parameters->flags ^= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    result = book_executable(result, executable, graph);
    return result == CUDA_SUCCESS ? uploaded_or_destroyed(cuGraphUpload(*executable, parameters->hUploadStream), *executable)
                                  : result;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    if (!wants_upload(parameters)) {
        return book_executable(REAL(cuGraphInstantiateWithParams_ptsz)(executable, graph, parameters), executable, graph);
    }
    parameters->flags ^= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult result = REAL(cuGraphInstantiateWithParams_ptsz)(executable, graph, parameters);
    parameters->flags ^= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    result = book_executable(result, executable, graph);
    return result == CUDA_SUCCESS
               ? uploaded_or_destroyed(cuGraphUpload_ptsz(*executable, parameters->hUploadStream), *executable)
               : result;
}
