/* Instantiated graphs, for graph_nodes.c. All under the graph lock. */
#ifndef GPUSLICE_SIMULATOR_GRAPH_EXEC_H
#define GPUSLICE_SIMULATOR_GRAPH_EXEC_H

#include "graph.h"

/* The instantiated graph's own node for the caller's. */
CUresult exec_node_from(CUgraphExec exec_handle, CUgraphNode handle, struct graph_exec **exec, struct node **node);
/* Gives a node new parameters of the same kind; an instantiated child graph must keep its shape. */
CUresult node_change(struct node *node, const CUgraphNodeParams *params);
CUresult exec_node_change(struct node *node, const CUgraphNodeParams *params);

#endif
