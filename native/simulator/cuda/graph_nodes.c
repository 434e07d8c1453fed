/* The calls on single nodes: adding them, and reading and changing what they do, here and in what was instantiated. There
 * is one way for all kinds (CUgraphNodeParams); the older calls for each kind are thin layers over it. */
#include "graph.h"
#include "graph_exec.h"
#include "launch_attribute.h"

#include <string.h>

/* ---- adding ---- */

static CUresult check_dependencies(const struct graph *graph, const CUgraphNode *dependencies, size_t count) {
    if (dependencies == NULL && count != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (!object_is(dependencies[i], KIND_NODE) || ((struct node *)dependencies[i])->graph != graph) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult add_locked(struct graph *graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data,
                           size_t count, const CUgraphNodeParams *params, struct node **node) {
    struct operation operation;
    CUresult result = check_dependencies(graph, dependencies, count);
    if (result == CUDA_SUCCESS) {
        result = operation_from_params(params, &operation);
    }
    return result == CUDA_SUCCESS
               ? node_new(graph, &operation, (struct node *const *)dependencies, data, count, node)
               : result;
}

static CUresult add(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                    const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params) {
    struct graph *graph;
    struct node *node;
    graph_lock();
    CUresult result = graph_from(graph_handle, &graph);
    if (result == CUDA_SUCCESS && (handle == NULL || params == NULL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = add_locked(graph, dependencies, data, count, params, &node);
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUgraphNode)node;
        if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            params->alloc.dptr = node->operation.memory.address;
        }
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params) {
    return add(node, graph, dependencies, data, count, params);
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params) {
    return add(node, graph, dependencies, data, count, params);
}

CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUgraphNodeParams *params) {
    return add(node, graph, dependencies, NULL, count, params);
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(node, graph, dependencies, NULL, count, &params);
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *given) {
    _Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2), "the same fields");
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    if (given != NULL) {
        memcpy(&params.alloc, given, sizeof *given);
    }
    CUresult result = add(node, graph, dependencies, NULL, count, given != NULL ? &params : NULL);
    if (result == CUDA_SUCCESS) {
        given->dptr = params.alloc.dptr;
    }
    return result;
}

/* ---- reading and changing ---- */

static CUresult get(CUgraphNode handle, CUgraphNodeType type, bool any_type, CUgraphNodeParams *params, const void *out) {
    struct node *node;
    graph_lock();
    CUresult result = node_from(handle, &node);
    if (result == CUDA_SUCCESS && (out == NULL || (!any_type && node_type(node) != type))) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        params_from_node(node, params);
    }
    graph_unlock();
    return result;
}

static CUresult set(CUgraphNode handle, const CUgraphNodeParams *params) {
    struct node *node;
    graph_lock();
    CUresult result = node_from(handle, &node);
    if (result == CUDA_SUCCESS) {
        result = node_change(node, params);
    }
    graph_unlock();
    return result;
}

static CUresult set_in_exec(CUgraphExec exec_handle, CUgraphNode handle, const CUgraphNodeParams *params) {
    struct graph_exec *exec;
    struct node *node;
    graph_lock();
    CUresult result = exec_node_from(exec_handle, handle, &exec, &node);
    if (result == CUDA_SUCCESS) {
        result = exec_node_change(node, params);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *params) {
    return get(node, CU_GRAPH_NODE_TYPE_EMPTY, true, params, params);
}

CUresult CUDAAPI cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *params) {
    return set(node, params);
}

CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
    return set(node, params);
}

CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params) {
    return set_in_exec(exec, node, params);
}

/* ---- the calls of each kind: `given`'s fields are the first of params.member ---- */

#define GIVEN(node_kind, member)                                                                                 \
    CUgraphNodeParams params = {.type = node_kind};                                                              \
    _Static_assert(sizeof *given <= sizeof params.member, "older descriptions are the beginning of newer ones"); \
    if (given != NULL) {                                                                                         \
        memcpy(&params.member, given, sizeof *given);                                                            \
    }                                                                                                            \
    CUgraphNodeParams *described = given != NULL ? &params : NULL;

#define ADD(name, node_kind, given_type, member)                                                           \
    CUresult CUDAAPI name(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, \
                          const given_type *given) {                                                       \
        GIVEN(node_kind, member)                                                                           \
        return add(node, graph, dependencies, NULL, count, described);                                     \
    }
#define ADD_IN_CONTEXT(name, node_kind, given_type, member)                                                \
    CUresult CUDAAPI name(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, \
                          const given_type *given, CUcontext context) {                                    \
        (void)context; /* memory knows where it is */                                                      \
        GIVEN(node_kind, member)                                                                           \
        return add(node, graph, dependencies, NULL, count, described);                                     \
    }
#define GET(name, node_kind, given_type, member)                       \
    CUresult CUDAAPI name(CUgraphNode node, given_type *given) {       \
        CUgraphNodeParams params;                                      \
        CUresult result = get(node, node_kind, false, &params, given); \
        if (result == CUDA_SUCCESS) {                                  \
            memcpy(given, &params.member, sizeof *given);              \
        }                                                              \
        return result;                                                 \
    }
#define SET(name, node_kind, given_type, member)                       \
    CUresult CUDAAPI name(CUgraphNode node, const given_type *given) { \
        GIVEN(node_kind, member)                                       \
        return set(node, described);                                   \
    }
#define SET_IN_EXEC(name, node_kind, given_type, member)                                 \
    CUresult CUDAAPI name(CUgraphExec exec, CUgraphNode node, const given_type *given) { \
        GIVEN(node_kind, member)                                                         \
        return set_in_exec(exec, node, described);                                       \
    }
#define SET_IN_EXEC_IN_CONTEXT(name, node_kind, given_type, member)                                         \
    CUresult CUDAAPI name(CUgraphExec exec, CUgraphNode node, const given_type *given, CUcontext context) { \
        (void)context;                                                                                      \
        GIVEN(node_kind, member)                                                                            \
        return set_in_exec(exec, node, described);                                                          \
    }

#define KERNEL(action, name, type) action(name, CU_GRAPH_NODE_TYPE_KERNEL, type, kernel)
KERNEL(ADD, cuGraphAddKernelNode, CUDA_KERNEL_NODE_PARAMS_v1)
KERNEL(ADD, cuGraphAddKernelNode_v2, CUDA_KERNEL_NODE_PARAMS)
KERNEL(GET, cuGraphKernelNodeGetParams, CUDA_KERNEL_NODE_PARAMS_v1)
KERNEL(GET, cuGraphKernelNodeGetParams_v2, CUDA_KERNEL_NODE_PARAMS)
KERNEL(SET, cuGraphKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS_v1)
KERNEL(SET, cuGraphKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS)
KERNEL(SET_IN_EXEC, cuGraphExecKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS_v1)
KERNEL(SET_IN_EXEC, cuGraphExecKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS)

#define COPY(action, name) action(name, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, memcpy.copyParams)
COPY(ADD_IN_CONTEXT, cuGraphAddMemcpyNode)
COPY(GET, cuGraphMemcpyNodeGetParams)
COPY(SET, cuGraphMemcpyNodeSetParams)
COPY(SET_IN_EXEC_IN_CONTEXT, cuGraphExecMemcpyNodeSetParams)

#define FILL(action, name) action(name, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, memset)
FILL(ADD_IN_CONTEXT, cuGraphAddMemsetNode)
FILL(GET, cuGraphMemsetNodeGetParams)
FILL(SET, cuGraphMemsetNodeSetParams)
FILL(SET_IN_EXEC_IN_CONTEXT, cuGraphExecMemsetNodeSetParams)

#define HOST(action, name) action(name, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
HOST(ADD, cuGraphAddHostNode)
HOST(GET, cuGraphHostNodeGetParams)
HOST(SET, cuGraphHostNodeSetParams)
HOST(SET_IN_EXEC, cuGraphExecHostNodeSetParams)

#define VALUES(action, name) action(name, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, memOp)
VALUES(ADD, cuGraphAddBatchMemOpNode)
VALUES(GET, cuGraphBatchMemOpNodeGetParams)
VALUES(SET, cuGraphBatchMemOpNodeSetParams)
VALUES(SET_IN_EXEC, cuGraphExecBatchMemOpNodeSetParams)

GET(cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, alloc)

/* ---- kinds that are described by one handle or address ---- */

#define ADD_ONE(name, node_kind, given_type, field)                                                        \
    CUresult CUDAAPI name(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, \
                          given_type value) {                                                              \
        CUgraphNodeParams params = {.type = node_kind};                                                    \
        params.field = value;                                                                              \
        return add(node, graph, dependencies, NULL, count, &params);                                       \
    }
#define GET_ONE(name, node_kind, given_type, field)                    \
    CUresult CUDAAPI name(CUgraphNode node, given_type *value) {       \
        CUgraphNodeParams params;                                      \
        CUresult result = get(node, node_kind, false, &params, value); \
        if (result == CUDA_SUCCESS) {                                  \
            *value = params.field;                                     \
        }                                                              \
        return result;                                                 \
    }
#define SET_ONE(name, node_kind, given_type, field)             \
    CUresult CUDAAPI name(CUgraphNode node, given_type value) { \
        CUgraphNodeParams params = {.type = node_kind};         \
        params.field = value;                                   \
        return set(node, &params);                              \
    }
#define SET_ONE_IN_EXEC(name, node_kind, given_type, field)                       \
    CUresult CUDAAPI name(CUgraphExec exec, CUgraphNode node, given_type value) { \
        CUgraphNodeParams params = {.type = node_kind};                           \
        params.field = value;                                                     \
        return set_in_exec(exec, node, &params);                                  \
    }

ADD_ONE(cuGraphAddChildGraphNode, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, graph.graph)
GET_ONE(cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, graph.graph)
SET_ONE_IN_EXEC(cuGraphExecChildGraphNodeSetParams, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, graph.graph)

ADD_ONE(cuGraphAddEventRecordNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent, eventRecord.event)
GET_ONE(cuGraphEventRecordNodeGetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent, eventRecord.event)
SET_ONE(cuGraphEventRecordNodeSetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent, eventRecord.event)
SET_ONE_IN_EXEC(cuGraphExecEventRecordNodeSetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent, eventRecord.event)

ADD_ONE(cuGraphAddEventWaitNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, eventWait.event)
GET_ONE(cuGraphEventWaitNodeGetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, eventWait.event)
SET_ONE(cuGraphEventWaitNodeSetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, eventWait.event)
SET_ONE_IN_EXEC(cuGraphExecEventWaitNodeSetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, eventWait.event)

ADD_ONE(cuGraphAddMemFreeNode, CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr, free.dptr)
GET_ONE(cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr, free.dptr)

/* ---- attributes of kernel nodes ---- */

static CUresult kernel_node_from(CUgraphNode handle, struct node **node) {
    CUresult result = node_from(handle, node);
    return result == CUDA_SUCCESS && (*node)->operation.kind != OPERATION_KERNEL ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID identifier,
                                               const CUkernelNodeAttrValue *value) {
    struct node *node;
    graph_lock();
    CUresult result = kernel_node_from(handle, &node);
    if (result == CUDA_SUCCESS) {
        result = launch_attribute_set(&node->attributes, identifier, value);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID identifier,
                                               CUkernelNodeAttrValue *value) {
    struct node *node;
    graph_lock();
    CUresult result = kernel_node_from(handle, &node);
    if (result == CUDA_SUCCESS) {
        result = launch_attribute_get(node->attributes, identifier, value);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
    struct node *target, *source;
    graph_lock();
    CUresult result = kernel_node_from(to, &target);
    if (result == CUDA_SUCCESS) {
        result = kernel_node_from(from, &source);
    }
    if (result == CUDA_SUCCESS && target != source) {
        result = launch_attribute_copy(&target->attributes, source->attributes);
    }
    graph_unlock();
    return result;
}
