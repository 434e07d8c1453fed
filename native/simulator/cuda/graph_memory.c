/* The addresses of memory nodes. A node has its address from the start; its bytes come with a launch (graph_exec.c). As with
 * the real driver, an allocation gets the address of an earlier one of the same graph that is freed before it. */
#include "graph.h"

#include <stdlib.h>

/* An allocation of a launch that is not freed is the program's, even when the graph is gone: it becomes one like
 * cuMemAllocAsync's. Runs when no deferred work can use the address any more. */
static void reservation_end(void *data) {
    struct reservation *reservation = data;
    struct device *device;
    CUdeviceptr start;
    struct block *block = arena_find(reservation->address, &device, &start);
    if (block != NULL && atomic_load(&block->charged)) {
        atomic_store(&block->kind, BLOCK_POOLED);
    } else if (block != NULL) {
        pool_discard_address(reservation->device->graph_pool, reservation->address);
    }
    free(reservation);
}

void reservation_drop(struct reservation *reservation) {
    if (reservation != NULL && --reservation->references == 0) {
        graph_call_later(reservation_end, reservation);
    }
}

static CUresult reserve(const struct operation *operation, struct reservation **made) {
    struct reservation *reservation = calloc(1, sizeof *reservation);
    struct device *device;
    CUdeviceptr start;
    if (reservation == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = pool_reserve_address(operation->memory.pool, operation->memory.bytes, &reservation->address);
    if (result != CUDA_SUCCESS || arena_find(reservation->address, &device, &start) == NULL) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    reservation->device = device;
    reservation->pool = operation->memory.pool;
    reservation->bytes = operation->memory.bytes;
    *made = reservation;
    return CUDA_SUCCESS;
}

/* How often the graph (or its marked nodes) allocates the address without freeing it. */
static int allocated(const struct graph *graph, CUdeviceptr address, bool marked_only) {
    int balance = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        bool counts = !marked_only || node->mark;
        if (counts && node->operation.kind == OPERATION_ALLOCATE && node->operation.memory.address == address) {
            balance++;
        } else if (counts && node->operation.kind == OPERATION_FREE && node->operation.memory.address == address) {
            balance--;
        }
    }
    return balance;
}

static bool is_used_beside(const struct graph *graph, CUdeviceptr address) {
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        if (!node->mark && node->operation.kind == OPERATION_ALLOCATE && node->operation.memory.address == address) {
            return true;
        }
    }
    return false;
}

/* One whose every use is over when the node's turn comes. */
static struct reservation *find_free(struct node *node) {
    const struct graph *graph = node->graph;
    if (!graph_mark_before(graph, &node, 1)) {
        return NULL;
    }
    for (size_t i = 0; i < graph->node_count; i++) {
        struct reservation *candidate = graph->nodes[i]->mark ? graph->nodes[i]->reservation : NULL;
        if (candidate != NULL && candidate->bytes == node->operation.memory.bytes &&
            candidate->pool == node->operation.memory.pool && allocated(graph, candidate->address, true) == 0 &&
            !is_used_beside(graph, candidate->address)) {
            return candidate;
        }
    }
    return NULL;
}

CUresult reservation_take(struct node *node) {
    struct reservation *reservation = find_free(node);
    CUresult result = reservation == NULL ? reserve(&node->operation, &reservation) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        reservation->references++;
        node->reservation = reservation;
        node->operation.memory.address = reservation->address;
    }
    return result;
}

bool graph_may_free(const struct graph *graph, CUdeviceptr address) {
    bool own = false;
    for (size_t i = 0; i < graph->node_count && !own; i++) {
        own = graph->nodes[i]->reservation != NULL && graph->nodes[i]->reservation->address == address;
    }
    return allocated(graph, address, false) >= (own ? 1 : 0);
}
