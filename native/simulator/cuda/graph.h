/* Graphs: nodes that hold operations, edges between them, and what can be launched. One lock guards all graphs and
 * captures of the process, as programs are told to keep to one thread per graph anyway. */
#ifndef GPUSLICE_SIMULATOR_GRAPH_H
#define GPUSLICE_SIMULATOR_GRAPH_H

#include "deferred.h"

struct reservation { /* the address of a memory node, shared by the graph and what was instantiated from it */
    int references;
    struct device *device;
    struct pool *pool;
    CUdeviceptr address;
    size_t bytes;
};

struct edge {
    struct node *from;
    CUgraphEdgeData data;
};

struct node {
    struct object object;
    struct graph *graph;
    uint64_t id, original_id; /* of the node that it was cloned from; 0: of none */
    unsigned int local_id;
    struct operation operation; /* owns what it points to */
    CUlaunchAttributeValue *attributes;
    struct reservation *reservation; /* of OPERATION_ALLOCATE */
    struct edge *edges;              /* what it depends on */
    size_t edge_count;
    bool disabled; /* in an instantiated graph: does nothing */
    unsigned int mark; /* scratch: for the walk that is going on */
    size_t position;
};

struct retained { /* references to a user object */
    struct retained *next;
    struct user_object *object;
    unsigned int count;
};

struct graph {
    struct object object;
    unsigned int id;
    struct node **nodes; /* as they were made */
    size_t node_count, room;
    unsigned int next_local_id;
    struct node **order; /* of an instantiated graph: each after what it depends on */
    bool owned;          /* by a node or an instantiated graph: not the caller's to destroy */
    bool capturing;      /* a capture builds it: not the caller's to destroy yet */
    int instances;       /* that are alive; a graph with memory nodes may have one */
    struct retained *retained;
};

struct graph_exec {
    struct object object;
    unsigned int id;
    struct graph *graph;  /* a private copy, whose nodes know their originals */
    struct graph *source; /* only compared, and only while source_id is its id */
    unsigned int source_id;
    cuuint64_t flags;
};

/* Unlocking also runs what became due under the lock and must not run inside it. */
void graph_lock(void);
void graph_unlock(void);

/* All of these are called under the lock. */
CUresult graph_new(struct graph **graph);
void graph_delete(struct graph *graph);
CUresult graph_clone(const struct graph *from, struct graph **clone);
bool graph_has_memory(const struct graph *graph); /* memory nodes */
/* Fills graph->order; INVALID_VALUE when there is a cycle. */
CUresult graph_sort(struct graph *graph);
struct node *graph_find_clone(const struct graph *clone, const struct node *original);

/* Sets node->mark for those nodes, whatever they depend on, and no others. False when there is no memory for it. */
bool graph_mark_before(const struct graph *graph, struct node *const *last, size_t count);

/* Takes a copy of the operation; a child graph is cloned. */
CUresult node_new(struct graph *graph, const struct operation *operation, struct node *const *dependencies,
                  const CUgraphEdgeData *data, size_t count, struct node **node);
void node_delete(struct node *node);
CUresult node_set_operation(struct node *node, const struct operation *operation);
CUresult node_depend(struct node *node, struct node *from, const CUgraphEdgeData *data);
CUgraphNodeType node_type(const struct node *node);
/* Checks an operation that is to become a node: what a stream would refuse, a graph refuses as well. */
CUresult node_check(const struct operation *operation);

/* graph_memory.c: gives a new OPERATION_ALLOCATE its address, and gives it up again. */
CUresult reservation_take(struct node *node);
void reservation_drop(struct reservation *reservation);
/* An address of the graph's own must be allocated in it as often as it is freed; another graph's may be freed once. */
bool graph_may_free(const struct graph *graph, CUdeviceptr address);

/* graph_params.c: the driver's own description of a node as an operation, and back. */
CUresult operation_from_params(const CUgraphNodeParams *params, struct operation *operation);
void params_from_node(const struct node *node, CUgraphNodeParams *params);

/* user_object.c */
void user_objects_share(struct graph *to, const struct graph *from);
void user_objects_release(struct graph *graph);
/* To be called when the lock is given up. */
void graph_call_later(CUhostFn function, void *data);

static inline CUresult graph_from(CUgraph handle, struct graph **graph) {
    CUresult result = driver_ready();
    *graph = (struct graph *)handle;
    return result != CUDA_SUCCESS || object_is(handle, KIND_GRAPH) ? result : CUDA_ERROR_INVALID_HANDLE;
}

static inline CUresult node_from(CUgraphNode handle, struct node **node) {
    CUresult result = driver_ready();
    *node = (struct node *)handle;
    return result != CUDA_SUCCESS || object_is(handle, KIND_NODE) ? result : CUDA_ERROR_INVALID_HANDLE;
}

static inline CUresult exec_from(CUgraphExec handle, struct graph_exec **exec) {
    CUresult result = driver_ready();
    *exec = (struct graph_exec *)handle;
    return result != CUDA_SUCCESS || object_is(handle, KIND_GRAPH_EXEC) ? result : CUDA_ERROR_INVALID_HANDLE;
}

#endif
