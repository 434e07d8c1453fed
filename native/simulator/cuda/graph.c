/* Graphs and their nodes as things: making, cloning, ordering and destroying them. */
#include "graph.h"
#include "launch_attribute.h"

#include <stdlib.h>
#include <string.h>

struct later {
    struct later *next;
    CUhostFn function;
    void *data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct later *calls;

void graph_lock(void) {
    pthread_mutex_lock(&lock);
}

void graph_unlock(void) {
    struct later *due = calls;
    calls = NULL;
    pthread_mutex_unlock(&lock);
    while (due != NULL) {
        struct later *next = due->next;
        deferred_finalize(due->function, due->data);
        free(due);
        due = next;
    }
}

void graph_call_later(CUhostFn function, void *data) {
    struct later *call = malloc(sizeof *call);
    if (call != NULL) { /* without host memory for this, leaking the program's object is the least harm */
        *call = (struct later){.next = calls, .function = function, .data = data};
        calls = call;
    }
}

/* ---- nodes ---- */

static const CUgraphNodeType node_types[] = {
    [OPERATION_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
    [OPERATION_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
    [OPERATION_FILL] = CU_GRAPH_NODE_TYPE_MEMSET,
    [OPERATION_HOST] = CU_GRAPH_NODE_TYPE_HOST,
    [OPERATION_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,
    [OPERATION_EVENT_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    [OPERATION_EVENT_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    [OPERATION_ALLOCATE] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    [OPERATION_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
    [OPERATION_CHILD_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
    [OPERATION_VALUES] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
};

CUgraphNodeType node_type(const struct node *node) {
    return node_types[node->operation.kind];
}

CUresult node_check(const struct operation *operation) {
    struct device *device;
    CUdeviceptr start;
    const struct block *block;
    switch (operation->kind) {
    case OPERATION_KERNEL:
        return object_is(operation->kernel.function, KIND_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case OPERATION_COPY:
        return copy_check(operation);
    case OPERATION_FILL:
        return fill_check(operation);
    case OPERATION_HOST: /* cuStreamAddCallback cannot be captured */
        return operation->host.callback != NULL   ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
               : operation->host.function != NULL ? CUDA_SUCCESS
                                                  : CUDA_ERROR_INVALID_VALUE;
    case OPERATION_EVENT_RECORD:
    case OPERATION_EVENT_WAIT:
        return object_is(operation->event.event, KIND_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case OPERATION_ALLOCATE:
        return operation->memory.bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case OPERATION_FREE: /* only what a graph allocated */
        block = arena_find(operation->memory.address, &device, &start);
        return block != NULL && start == operation->memory.address && atomic_load(&block->kind) == BLOCK_GRAPH
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    case OPERATION_CHILD_GRAPH:
        return object_is(operation->child.graph, KIND_GRAPH) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case OPERATION_VALUES:
        return values_check(operation->values.list, operation->values.count, 0);
    case OPERATION_EMPTY:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult own_operation(struct operation *own, const struct operation *lent) {
    if (lent->kind != OPERATION_CHILD_GRAPH) {
        return operation_copy(own, lent);
    }
    struct graph *child;
    if (graph_has_memory(lent->child.graph)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = graph_clone(lent->child.graph, &child);
    if (result == CUDA_SUCCESS) {
        child->owned = true;
        *own = (struct operation){.kind = OPERATION_CHILD_GRAPH, .child = {.graph = child}};
    }
    return result;
}

static void drop_operation(struct operation *operation) {
    if (operation->kind == OPERATION_CHILD_GRAPH) {
        graph_delete(operation->child.graph);
    }
    operation_release(operation);
}

CUresult node_set_operation(struct node *node, const struct operation *operation) {
    struct operation own;
    CUresult result = own_operation(&own, operation);
    if (result == CUDA_SUCCESS) {
        drop_operation(&node->operation);
        node->operation = own;
    }
    return result;
}

static bool make_room(struct graph *graph) {
    if (graph->node_count == graph->room) {
        size_t room = graph->room != 0 ? graph->room * 2 : 16;
        struct node **nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (nodes == NULL) {
            return false;
        }
        graph->nodes = nodes;
        graph->room = room;
    }
    return true;
}

/* An empty node at the end of the graph. */
static struct node *node_append(struct graph *graph) {
    static uint64_t next_id = 1;
    struct node *node = make_room(graph) ? object_new(KIND_NODE, sizeof *node) : NULL;
    if (node != NULL) {
        node->graph = graph;
        node->id = next_id++;
        node->local_id = graph->next_local_id++;
        node->operation.kind = OPERATION_EMPTY;
        graph->nodes[graph->node_count++] = node;
    }
    return node;
}

CUresult node_new(struct graph *graph, const struct operation *operation, struct node *const *dependencies,
                  const CUgraphEdgeData *data, size_t count, struct node **made) {
    if (operation->kind == OPERATION_FREE && !graph_may_free(graph, operation->memory.address)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct node *node = node_append(graph);
    if (node == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = node_set_operation(node, operation);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = node_depend(node, dependencies[i], data != NULL ? &data[i] : NULL);
    }
    if (result == CUDA_SUCCESS && operation->kind == OPERATION_ALLOCATE) {
        result = reservation_take(node);
    }
    if (result != CUDA_SUCCESS) {
        node_delete(node);
        return result;
    }
    *made = node;
    return CUDA_SUCCESS;
}

static void node_free(struct node *node) {
    object_retire(node, KIND_NODE);
    drop_operation(&node->operation);
    reservation_drop(node->reservation);
    free(node->attributes);
    free(node->edges);
    object_free(node, KIND_NODE);
}

static void forget_edges_from(struct node *node, const struct node *gone) {
    size_t kept = 0;
    for (size_t i = 0; i < node->edge_count; i++) {
        if (node->edges[i].from != gone) {
            node->edges[kept++] = node->edges[i];
        }
    }
    node->edge_count = kept;
}

void node_delete(struct node *node) {
    struct graph *graph = node->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i] != node) {
            forget_edges_from(graph->nodes[i], node);
            graph->nodes[kept++] = graph->nodes[i];
        }
    }
    graph->node_count = kept;
    node_free(node);
}

static bool same_edge(const struct edge *edge, const struct node *from, const CUgraphEdgeData *data) {
    return edge->from == from && memcmp(&edge->data, data, sizeof *data) == 0;
}

CUresult node_depend(struct node *node, struct node *from, const CUgraphEdgeData *data) {
    static const CUgraphEdgeData plain;
    data = data != NULL ? data : &plain;
    for (size_t i = 0; i < node->edge_count; i++) {
        if (same_edge(&node->edges[i], from, data)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    struct edge *edges = realloc(node->edges, (node->edge_count + 1) * sizeof *edges);
    if (edges == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->edges = edges;
    edges[node->edge_count++] = (struct edge){.from = from, .data = *data};
    return CUDA_SUCCESS;
}

/* ---- graphs ---- */

CUresult graph_new(struct graph **made) {
    static unsigned int next_id = 1;
    struct graph *graph = object_new(KIND_GRAPH, sizeof *graph);
    if (graph == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->id = next_id++;
    *made = graph;
    return CUDA_SUCCESS;
}

void graph_delete(struct graph *graph) {
    object_retire(graph, KIND_GRAPH);
    for (size_t i = 0; i < graph->node_count; i++) {
        node_free(graph->nodes[i]);
    }
    user_objects_release(graph);
    free(graph->nodes);
    free(graph->order);
    object_free(graph, KIND_GRAPH);
}

/* The addresses of memory nodes are shared: the callers see to it that only one of the two is ever launched. */
static CUresult node_clone(const struct node *from, struct graph *to) {
    struct node *node = node_append(to);
    if (node == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->original_id = from->id;
    node->local_id = from->local_id;
    CUresult result = node_set_operation(node, &from->operation);
    if (result == CUDA_SUCCESS) {
        result = launch_attribute_copy(&node->attributes, from->attributes);
    }
    if (result == CUDA_SUCCESS && from->reservation != NULL) {
        from->reservation->references++;
        node->reservation = from->reservation;
    }
    return result;
}

static CUresult edges_clone(const struct graph *from, struct graph *to) {
    for (size_t i = 0; i < from->node_count; i++) {
        from->nodes[i]->position = i;
    }
    for (size_t i = 0; i < from->node_count; i++) {
        const struct node *node = from->nodes[i];
        if (node->edge_count == 0) {
            continue;
        }
        to->nodes[i]->edges = malloc(node->edge_count * sizeof node->edges[0]);
        if (to->nodes[i]->edges == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        for (size_t j = 0; j < node->edge_count; j++) {
            struct edge edge = {.from = to->nodes[node->edges[j].from->position], .data = node->edges[j].data};
            to->nodes[i]->edges[to->nodes[i]->edge_count++] = edge;
        }
    }
    return CUDA_SUCCESS;
}

CUresult graph_clone(const struct graph *from, struct graph **made) {
    struct graph *clone;
    CUresult result = graph_new(&clone);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t i = 0; i < from->node_count && result == CUDA_SUCCESS; i++) {
        result = node_clone(from->nodes[i], clone);
    }
    if (result == CUDA_SUCCESS) {
        result = edges_clone(from, clone);
    }
    if (result != CUDA_SUCCESS) {
        graph_delete(clone);
        return result;
    }
    clone->next_local_id = from->next_local_id;
    user_objects_share(clone, from);
    *made = clone;
    return CUDA_SUCCESS;
}

bool graph_has_memory(const struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        enum operation_kind kind = graph->nodes[i]->operation.kind;
        if (kind == OPERATION_ALLOCATE || kind == OPERATION_FREE) {
            return true;
        }
    }
    return false;
}

struct node *graph_find_clone(const struct graph *clone, const struct node *original) {
    for (size_t i = 0; i < clone->node_count; i++) {
        struct node *node = clone->nodes[i];
        if (node->original_id == original->id) {
            return node;
        }
        struct node *inside =
            node->operation.kind == OPERATION_CHILD_GRAPH ? graph_find_clone(node->operation.child.graph, original) : NULL;
        if (inside != NULL) {
            return inside;
        }
    }
    return NULL;
}

enum { UNSEEN, OPEN, PLACED }; /* a node's mark; PLACED is what callers see as true */

/* Depth first along the dependencies, without recursion: a graph may be one long chain. `position` counts the edges of an
 * open node that were followed. */
CUresult graph_sort(struct graph *graph) {
    size_t count = graph->node_count, placed = 0;
    struct node **order = malloc((count + 1) * sizeof *order), **stack = malloc((count + 1) * sizeof *stack);
    CUresult result = order != NULL && stack != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        graph->nodes[i]->mark = UNSEEN;
        graph->nodes[i]->position = 0;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        size_t depth = 0;
        if (graph->nodes[i]->mark == UNSEEN) {
            graph->nodes[i]->mark = OPEN;
            stack[depth++] = graph->nodes[i];
        }
        while (depth > 0 && result == CUDA_SUCCESS) {
            struct node *node = stack[depth - 1];
            if (node->position == node->edge_count) {
                node->mark = PLACED;
                order[placed++] = node;
                depth--;
                continue;
            }
            struct node *next = node->edges[node->position++].from;
            if (next->mark == OPEN) {
                result = CUDA_ERROR_INVALID_VALUE;
            } else if (next->mark == UNSEEN) {
                next->mark = OPEN;
                stack[depth++] = next;
            }
        }
    }
    free(stack);
    if (result != CUDA_SUCCESS) {
        free(order);
        return result;
    }
    free(graph->order);
    graph->order = order;
    return CUDA_SUCCESS;
}

bool graph_mark_before(const struct graph *graph, struct node *const *last, size_t count) {
    struct node **stack = malloc((graph->node_count + 1) * sizeof *stack);
    size_t depth = 0;
    if (stack == NULL) {
        return false;
    }
    for (size_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i]->mark = UNSEEN;
    }
    for (size_t i = 0; i < count; i++) {
        last[i]->mark = PLACED;
        stack[depth++] = last[i];
    }
    while (depth > 0) {
        const struct node *node = stack[--depth];
        for (size_t i = 0; i < node->edge_count; i++) {
            struct node *before = node->edges[i].from;
            if (before->mark == UNSEEN) {
                before->mark = PLACED;
                stack[depth++] = before;
            }
        }
    }
    free(stack);
    return true;
}
