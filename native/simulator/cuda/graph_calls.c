/* The calls on whole graphs: making, cloning, destroying and looking into them, their edges, and a picture of them. */
#include "graph.h"

#include <stdio.h>
#include <string.h>

/* ---- graphs ---- */

CUresult CUDAAPI cuGraphCreate(CUgraph *handle, unsigned int flags) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && (handle == NULL || flags != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct graph *graph;
    graph_lock();
    result = graph_new(&graph);
    graph_unlock();
    if (result == CUDA_SUCCESS) {
        *handle = (CUgraph)graph;
    }
    return result;
}

CUresult CUDAAPI cuGraphClone(CUgraph *handle, CUgraph original) {
    struct graph *graph, *clone;
    graph_lock();
    CUresult result = graph_from(original, &graph);
    if (result == CUDA_SUCCESS && handle == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && graph_has_memory(graph)) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        result = graph_clone(graph, &clone);
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUgraph)clone;
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(handle, &graph);
    if (result == CUDA_SUCCESS && (graph->owned || graph->capturing)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        graph_delete(graph);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode handle) {
    struct node *node;
    graph_lock();
    CUresult result = node_from(handle, &node);
    if (result == CUDA_SUCCESS && node->graph->capturing) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && graph_has_memory(node->graph)) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        node_delete(node);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode *handle, CUgraphNode original_handle, CUgraph clone_handle) {
    struct node *original, *found = NULL;
    struct graph *clone;
    graph_lock();
    CUresult result = node_from(original_handle, &original);
    if (result == CUDA_SUCCESS) {
        result = graph_from(clone_handle, &clone);
    }
    if (result == CUDA_SUCCESS && handle != NULL) {
        found = graph_find_clone(clone, original);
    }
    if (result == CUDA_SUCCESS && found == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUgraphNode)found;
    }
    graph_unlock();
    return result;
}

#define QUESTION(name, handle_type, struct_type, from, type, answer)    \
    CUresult CUDAAPI name(handle_type handle, type *value) {            \
        struct struct_type *asked;                                      \
        graph_lock();                                                   \
        CUresult result = from(handle, &asked);                         \
        if (result == CUDA_SUCCESS && value == NULL) {                  \
            result = CUDA_ERROR_INVALID_VALUE;                          \
        } else if (result == CUDA_SUCCESS) {                            \
            *value = answer;                                            \
        }                                                               \
        graph_unlock();                                                 \
        return result;                                                  \
    }

QUESTION(cuGraphGetId, CUgraph, graph, graph_from, unsigned int, asked->id)
QUESTION(cuGraphNodeGetType, CUgraphNode, node, node_from, CUgraphNodeType, node_type(asked))
QUESTION(cuGraphNodeGetContainingGraph, CUgraphNode, node, node_from, CUgraph, (CUgraph)asked->graph)
QUESTION(cuGraphNodeGetLocalId, CUgraphNode, node, node_from, unsigned int, asked->local_id)
QUESTION(cuGraphNodeGetToolsId, CUgraphNode, node, node_from, unsigned long long, asked->id)

/* ---- lists: as many as there is room for; with no room given, only how many there are ---- */

struct list {
    CUgraphNode *first, *second;
    CUgraphEdgeData *data;
    size_t room, count;
    bool lossy; /* an edge says more than the caller has room for */
};

static void list_add(struct list *list, struct node *first, const struct node *second, const CUgraphEdgeData *data) {
    static const CUgraphEdgeData plain;
    if (list->first != NULL && list->count < list->room) {
        list->first[list->count] = (CUgraphNode)first;
        if (list->second != NULL) {
            list->second[list->count] = (CUgraphNode)(uintptr_t)second;
        }
        if (list->data != NULL) {
            list->data[list->count] = data != NULL ? *data : plain;
        } else if (data != NULL && memcmp(data, &plain, sizeof plain) != 0) {
            list->lossy = true;
        }
    }
    list->count++;
}

static CUresult list_end(struct list *list, size_t *count) {
    if (list->first == NULL) {
        *count = list->count;
        return CUDA_SUCCESS;
    }
    for (size_t i = list->count; i < *count; i++) {
        list->first[i] = NULL;
        if (list->second != NULL) {
            list->second[i] = NULL;
        }
    }
    *count = list->count < *count ? list->count : *count;
    return list->lossy ? CUDA_ERROR_LOSSY_QUERY : CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots_only) {
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(handle, &graph);
    if (result == CUDA_SUCCESS && count == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        struct list list = {.first = nodes, .room = *count};
        for (size_t i = 0; i < graph->node_count; i++) {
            if (!roots_only || graph->nodes[i]->edge_count == 0) {
                list_add(&list, graph->nodes[i], NULL, NULL);
            }
        }
        result = list_end(&list, count);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return list_nodes(graph, nodes, count, false);
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return list_nodes(graph, nodes, count, true);
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
                                    size_t *count) {
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(handle, &graph);
    bool matching = (from == NULL) == (to == NULL) && (data == NULL || from != NULL);
    if (result == CUDA_SUCCESS && (count == NULL || !matching)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        struct list list = {.first = from, .second = to, .data = data, .room = *count};
        for (size_t i = 0; i < graph->node_count; i++) {
            struct node *node = graph->nodes[i];
            for (size_t j = 0; j < node->edge_count; j++) {
                list_add(&list, node->edges[j].from, node, &node->edges[j].data);
            }
        }
        result = list_end(&list, count);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static void add_dependents(struct list *list, const struct node *node) {
    for (size_t i = 0; i < node->graph->node_count; i++) {
        struct node *other = node->graph->nodes[i];
        for (size_t j = 0; j < other->edge_count; j++) {
            if (other->edges[j].from == node) {
                list_add(list, other, NULL, &other->edges[j].data);
            }
        }
    }
}

static void add_dependencies(struct list *list, const struct node *node) {
    for (size_t j = 0; j < node->edge_count; j++) {
        list_add(list, node->edges[j].from, NULL, &node->edges[j].data);
    }
}

static CUresult list_neighbours(CUgraphNode handle, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count,
                                void (*neighbours)(struct list *list, const struct node *node)) {
    struct node *node;
    graph_lock();
    CUresult result = node_from(handle, &node);
    if (result == CUDA_SUCCESS && (count == NULL || (data != NULL && nodes == NULL))) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        struct list list = {.first = nodes, .data = data, .room = *count};
        neighbours(&list, node);
        result = list_end(&list, count);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count) {
    return list_neighbours(node, nodes, data, count, add_dependencies);
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    return list_neighbours(node, nodes, NULL, count, add_dependencies);
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data,
                                                 size_t *count) {
    return list_neighbours(node, nodes, data, count, add_dependents);
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    return list_neighbours(node, nodes, NULL, count, add_dependents);
}

/* ---- edges ---- */

static CUresult check_edges(const struct graph *graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    if (count != 0 && (from == NULL || to == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        const struct node *first = (struct node *)from[i], *second = (struct node *)to[i];
        if (!object_is(first, KIND_NODE) || !object_is(second, KIND_NODE) || first->graph != graph ||
            second->graph != graph || first == second) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static struct edge *find_edge(const struct node *node, const struct node *from, const CUgraphEdgeData *data) {
    for (size_t i = 0; i < node->edge_count; i++) {
        struct edge *edge = &node->edges[i];
        if (edge->from == from && (data == NULL || memcmp(&edge->data, data, sizeof *data) == 0)) {
            return edge;
        }
    }
    return NULL;
}

static void remove_edge(struct node *node, struct edge *edge) {
    size_t after = (size_t)(&node->edges[node->edge_count] - edge) - 1;
    memmove(edge, edge + 1, after * sizeof *edge);
    node->edge_count--;
}

CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                           const CUgraphEdgeData *data, size_t count) {
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(handle, &graph);
    if (result == CUDA_SUCCESS) {
        result = check_edges(graph, from, to, count);
    }
    size_t added = 0;
    while (result == CUDA_SUCCESS && added < count) {
        result = node_depend((struct node *)to[added], (struct node *)from[added], data != NULL ? &data[added] : NULL);
        added += result == CUDA_SUCCESS;
    }
    while (result != CUDA_SUCCESS && added > 0) { /* all or none */
        ((struct node *)to[--added])->edge_count--;
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                              const CUgraphEdgeData *data, size_t count) {
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(handle, &graph);
    if (result == CUDA_SUCCESS) {
        result = check_edges(graph, from, to, count);
    }
    if (result == CUDA_SUCCESS && graph_has_memory(graph)) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        bool there = find_edge((struct node *)to[i], (struct node *)from[i], data != NULL ? &data[i] : NULL) != NULL;
        result = there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct node *node = (struct node *)to[i];
        struct edge *edge = find_edge(node, (struct node *)from[i], data != NULL ? &data[i] : NULL);
        if (edge != NULL) { /* named twice: gone already */
            remove_edge(node, edge);
        }
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

/* ---- a picture ---- */

static const char *const type_names[] = {
    [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",           [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
    [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",           [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
    [CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",             [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
    [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "WAIT_EVENT",   [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
    [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",     [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
    [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
};

static void draw(FILE *file, const struct graph *graph) {
    fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", graph->id, graph->id);
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        bool kernel = node->operation.kind == OPERATION_KERNEL && object_is(node->operation.kernel.function, KIND_FUNCTION);
        fprintf(file, "\"graph_%u_node_%u\" [label=\"%u\\n%s%s%s\"];\n", graph->id, node->local_id, node->local_id,
                type_names[node_type(node)], kernel ? "\\n" : "", kernel ? node->operation.kernel.function->name : "");
        if (node->operation.kind == OPERATION_CHILD_GRAPH) {
            draw(file, node->operation.child.graph);
        }
        for (size_t j = 0; j < node->edge_count; j++) {
            fprintf(file, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\";\n", graph->id, node->edges[j].from->local_id,
                    graph->id, node->local_id);
        }
    }
    fprintf(file, "}\n");
}

CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned int flags) {
    (void)flags; /* there is no more to say */
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(handle, &graph);
    if (result == CUDA_SUCCESS && path == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    FILE *file = result == CUDA_SUCCESS ? fopen(path, "we") : NULL;
    if (file != NULL) {
        fprintf(file, "digraph dot {\n");
        draw(file, graph);
        fprintf(file, "}\n");
        result = fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    } else if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_OPERATING_SYSTEM;
    }
    graph_unlock();
    return result;
}
