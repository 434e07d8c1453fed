/* Instantiated graphs: private copies of a graph in an order in which they can be launched, changing them, launching. */
#include "graph_exec.h"
#include "capture.h"
#include "launch_attribute.h"

#include <string.h>

#define KNOWN_FLAGS                                                                            \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |    \
     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

/* ---- making and destroying ---- */

static CUresult sort_all(struct graph *graph) {
    CUresult result = graph_sort(graph);
    for (size_t i = 0; i < graph->node_count && result == CUDA_SUCCESS; i++) {
        if (graph->nodes[i]->operation.kind == OPERATION_CHILD_GRAPH) {
            result = sort_all(graph->nodes[i]->operation.child.graph);
        }
    }
    return result;
}

static CUresult instantiate_locked(struct graph *source, cuuint64_t flags, struct graph_exec **made) {
    static unsigned int next_id = 1;
    if (source->instances != 0 && graph_has_memory(source)) {
        return CUDA_ERROR_NOT_SUPPORTED; /* their addresses can be in use by one launch only */
    }
    struct graph *graph;
    CUresult result = graph_clone(source, &graph);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    graph->owned = true;
    result = sort_all(graph);
    struct graph_exec *exec = result == CUDA_SUCCESS ? object_new(KIND_GRAPH_EXEC, sizeof *exec) : NULL;
    if (exec == NULL) {
        graph_delete(graph);
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *exec = (struct graph_exec){.object = exec->object, .id = next_id++, .graph = graph, .source = source,
                                .source_id = source->id, .flags = flags};
    source->instances++;
    *made = exec;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, cuuint64_t flags) {
    struct graph *graph;
    struct graph_exec *exec;
    graph_lock();
    CUresult result = graph_from(graph_handle, &graph);
    if (result == CUDA_SUCCESS && (handle == NULL || (flags & ~(cuuint64_t)KNOWN_FLAGS) != 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        result = instantiate_locked(graph, flags, &exec);
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUgraphExec)exec;
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiate(exec, graph, flags);
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (params == NULL) {
        CUresult ready = driver_ready();
        return ready == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : ready;
    }
    CUresult result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                         : result == CUDA_ERROR_INVALID_VALUE ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                              : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size) {
    if (error_node != NULL) {
        *error_node = NULL;
    }
    if (log != NULL && size != 0) {
        log[0] = '\0';
    }
    return instantiate(exec, graph, 0);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size) {
    return cuGraphInstantiate_v2(exec, graph, error_node, log, size);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
    struct graph_exec *exec;
    graph_lock();
    CUresult result = exec_from(handle, &exec);
    if (result == CUDA_SUCCESS && object_retire(exec, KIND_GRAPH_EXEC)) {
        if (object_is(exec->source, KIND_GRAPH) && exec->source->id == exec->source_id) {
            exec->source->instances--;
        }
        graph_delete(exec->graph);
        object_free(exec, KIND_GRAPH_EXEC);
    }
    graph_unlock();
    return result;
}

#define EXEC_QUESTION(name, type, answer)                               \
    CUresult CUDAAPI name(CUgraphExec handle, type *value) {            \
        struct graph_exec *exec;                                        \
        graph_lock();                                                   \
        CUresult result = exec_from(handle, &exec);                     \
        if (result == CUDA_SUCCESS && value == NULL) {                  \
            result = CUDA_ERROR_INVALID_VALUE;                          \
        } else if (result == CUDA_SUCCESS) {                            \
            *value = answer;                                            \
        }                                                               \
        graph_unlock();                                                 \
        return result;                                                  \
    }

EXEC_QUESTION(cuGraphExecGetFlags, cuuint64_t, exec->flags)
EXEC_QUESTION(cuGraphExecGetId, unsigned int, exec->id)

/* ---- changing ---- */

CUresult exec_node_from(CUgraphExec exec_handle, CUgraphNode handle, struct graph_exec **exec, struct node **node) {
    struct node *original;
    CUresult result = exec_from(exec_handle, exec);
    if (result == CUDA_SUCCESS) {
        result = node_from(handle, &original);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *node = graph_find_clone((*exec)->graph, original);
    return *node != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult change_to(const struct node *node, const CUgraphNodeParams *params, struct operation *operation) {
    if (params == NULL || params->type != node_type(node)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool memory = node->operation.kind == OPERATION_ALLOCATE || node->operation.kind == OPERATION_FREE;
    return memory ? CUDA_ERROR_NOT_SUPPORTED : operation_from_params(params, operation);
}

CUresult node_change(struct node *node, const CUgraphNodeParams *params) {
    struct operation operation;
    CUresult result = change_to(node, params, &operation);
    return result == CUDA_SUCCESS ? node_set_operation(node, &operation) : result;
}

struct difference {
    CUgraphExecUpdateResult result;
    struct node *node, *from;
};

static bool differs(struct difference *difference, CUgraphExecUpdateResult result, struct node *node, struct node *from) {
    *difference = (struct difference){.result = result, .node = node, .from = from};
    return true;
}

/* Nodes correspond in the order in which they were made. True when the graph cannot take the other's place. */
static bool graph_differs(struct graph *graph, struct graph *other, struct difference *difference) {
    if (graph->node_count != other->node_count) {
        return differs(difference, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
    }
    for (size_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i]->position = other->nodes[i]->position = i;
    }
    for (size_t i = 0; i < graph->node_count; i++) {
        struct node *mine = graph->nodes[i], *theirs = other->nodes[i];
        if (mine->operation.kind != theirs->operation.kind) {
            return differs(difference, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, theirs, NULL);
        }
        if (mine->edge_count != theirs->edge_count) {
            return differs(difference, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, theirs, NULL);
        }
        for (size_t j = 0; j < mine->edge_count; j++) {
            const struct edge *a = &mine->edges[j], *b = &theirs->edges[j];
            if (a->from->position != b->from->position || memcmp(&a->data, &b->data, sizeof a->data) != 0) {
                return differs(difference, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, theirs, b->from);
            }
        }
        if (mine->reservation != theirs->reservation) {
            return differs(difference, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, theirs, NULL);
        }
    }
    for (size_t i = 0; i < graph->node_count; i++) {
        struct operation *mine = &graph->nodes[i]->operation, *theirs = &other->nodes[i]->operation;
        if (mine->kind == OPERATION_CHILD_GRAPH && graph_differs(mine->child.graph, theirs->child.graph, difference)) {
            return true;
        }
    }
    return false;
}

/* The graphs are known to have the same shape. */
static CUresult take_over(struct graph *graph, const struct graph *other) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->node_count && result == CUDA_SUCCESS; i++) {
        struct node *mine = graph->nodes[i];
        const struct node *theirs = other->nodes[i];
        if (mine->operation.kind == OPERATION_CHILD_GRAPH) {
            result = take_over(mine->operation.child.graph, theirs->operation.child.graph);
        } else {
            result = node_set_operation(mine, &theirs->operation);
        }
        if (result == CUDA_SUCCESS) {
            result = launch_attribute_copy(&mine->attributes, theirs->attributes);
        }
    }
    user_objects_share(graph, other);
    return result;
}

CUresult exec_node_change(struct node *node, const CUgraphNodeParams *params) {
    struct operation operation;
    struct difference difference;
    CUresult result = change_to(node, params, &operation);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (operation.kind != OPERATION_CHILD_GRAPH) {
        return node_set_operation(node, &operation);
    }
    if (graph_differs(node->operation.child.graph, operation.child.graph, &difference)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return take_over(node->operation.child.graph, operation.child.graph);
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec_handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info) {
    struct graph_exec *exec;
    struct graph *graph;
    struct difference difference = {.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    graph_lock();
    CUresult result = exec_from(exec_handle, &exec);
    if (result == CUDA_SUCCESS) {
        result = graph_from(graph_handle, &graph);
    }
    if (result == CUDA_SUCCESS && info == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        bool changed = graph_differs(exec->graph, graph, &difference);
        result = changed ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : take_over(exec->graph, graph);
    }
    if (info != NULL) {
        info->result = result == CUDA_SUCCESS || difference.result != CU_GRAPH_EXEC_UPDATE_SUCCESS
                           ? difference.result
                           : CU_GRAPH_EXEC_UPDATE_ERROR;
        info->errorNode = (CUgraphNode)difference.node;
        info->errorFromNode = (CUgraphNode)difference.from;
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                                   CUgraphExecUpdateResult *update_result) {
    CUgraphExecUpdateResultInfo info;
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error_node != NULL) {
        *error_node = info.errorNode;
    }
    if (update_result != NULL) {
        *update_result = info.result;
    }
    return result;
}

static bool can_be_disabled(const struct node *node) {
    enum operation_kind kind = node->operation.kind;
    return kind == OPERATION_KERNEL || kind == OPERATION_COPY || kind == OPERATION_FILL;
}

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec exec_handle, CUgraphNode handle, unsigned int enabled) {
    struct graph_exec *exec;
    struct node *node;
    graph_lock();
    CUresult result = exec_node_from(exec_handle, handle, &exec, &node);
    if (result == CUDA_SUCCESS && !can_be_disabled(node)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        node->disabled = enabled == 0;
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec exec_handle, CUgraphNode handle, unsigned int *enabled) {
    struct graph_exec *exec;
    struct node *node;
    graph_lock();
    CUresult result = exec_node_from(exec_handle, handle, &exec, &node);
    if (result == CUDA_SUCCESS && (enabled == NULL || !can_be_disabled(node))) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *enabled = !node->disabled;
    }
    graph_unlock();
    return result;
}

/* ---- launching ---- */

static bool is_allocated(const struct node *node) {
    struct device *device;
    CUdeviceptr start;
    const struct block *block = arena_find(node->operation.memory.address, &device, &start);
    return block != NULL && atomic_load(&block->charged);
}

/* Frees what an earlier launch left allocated. An error if the graph was not instantiated for that. */
static CUresult settle_leftovers(const struct graph_exec *exec) {
    for (size_t i = 0; i < exec->graph->node_count; i++) {
        const struct node *node = exec->graph->nodes[i];
        if (node->operation.kind != OPERATION_ALLOCATE || !is_allocated(node)) {
            continue;
        }
        if ((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        memory_free(node->operation.memory.address);
    }
    return CUDA_SUCCESS;
}

static CUresult account_for(const struct node *node, bool back) {
    const struct operation *operation = &node->operation;
    if (operation->kind != OPERATION_ALLOCATE && operation->kind != OPERATION_FREE) {
        return CUDA_SUCCESS;
    }
    if ((operation->kind == OPERATION_ALLOCATE) != back) {
        struct device *device;
        CUdeviceptr start;
        struct block *block = arena_find(operation->memory.address, &device, &start);
        return block != NULL ? pool_charge_address(block->owner, operation->memory.address) : CUDA_ERROR_INVALID_VALUE;
    }
    return memory_free(operation->memory.address);
}

/* Goes through allocations and frees in the graph's order, so that one takes the place of the other, before anything
 * else is done: a launch that does not fit leaves nothing behind. The bytes stay readable until the address is given
 * back, so the nodes between may run afterwards. */
static CUresult account(const struct graph_exec *exec) {
    CUresult result = settle_leftovers(exec);
    const struct graph *graph = exec->graph;
    size_t done = 0;
    while (done < graph->node_count && result == CUDA_SUCCESS) {
        result = account_for(graph->order[done], false);
        done += result == CUDA_SUCCESS;
    }
    while (result != CUDA_SUCCESS && done > 0) {
        account_for(graph->order[--done], true);
    }
    return result;
}

static CUresult run(struct stream *stream, const struct graph *graph) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->node_count && result == CUDA_SUCCESS; i++) {
        const struct node *node = graph->order[i];
        enum operation_kind kind = node->operation.kind;
        if (kind == OPERATION_CHILD_GRAPH) {
            result = run(stream, node->operation.child.graph);
        } else if (!node->disabled && kind != OPERATION_ALLOCATE && kind != OPERATION_FREE) {
            result = operation_perform(stream, &node->operation);
        }
    }
    return result;
}

static CUresult launch_locked(CUgraphExec handle, struct stream *stream) {
    struct graph_exec *exec;
    CUresult result = exec_from(handle, &exec);
    if (result == CUDA_SUCCESS) {
        result = account(exec);
    }
    return result == CUDA_SUCCESS ? run(stream, exec->graph) : result;
}

/* In a capturing stream a launch becomes a child graph. */
static CUresult capture_launch(CUgraphExec handle, struct stream *stream) {
    struct graph_exec *exec;
    CUresult result = exec_from(handle, &exec);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct operation operation = {.kind = OPERATION_CHILD_GRAPH, .child = {.graph = exec->graph}};
    return stream_submit(stream, &operation);
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    struct stream *stream;
    CUresult result = stream_from(stream_handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (atomic_load(&stream->capture) != NULL) {
        return capture_launch(handle, stream);
    }
    result = capture_forbids(stream);
    if (result == CUDA_SUCCESS) {
        graph_lock();
        result = launch_locked(handle, stream);
        graph_unlock();
    }
    return result;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    struct graph_exec *exec;
    struct stream *stream;
    CUresult result = stream_from(stream_handle, &stream);
    return result == CUDA_SUCCESS ? exec_from(handle, &exec) : result;
}
