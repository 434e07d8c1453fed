/* What callers say of a node (CUgraphNodeParams and its relatives) as an operation, and back. */
#include "graph.h"

#include <string.h>

static CUresult allocation_from(const CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params, struct operation *operation) {
    struct device *device;
    if (params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (params->accessDescs == NULL && params->accessDescCount != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = device_of_location(&params->poolProps.location, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device->graph_pool == NULL) { /* no context has been on the device yet */
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    operation->memory.bytes = params->bytesize;
    operation->memory.pool = device->graph_pool;
    return CUDA_SUCCESS;
}

static void kernel_from(const CUDA_KERNEL_NODE_PARAMS_v3 *params, struct operation *operation) {
    void *handle = params->func != NULL ? (void *)params->func : (void *)params->kern;
    operation->kernel.function = handle;
    operation->kernel.grid[0] = params->gridDimX;
    operation->kernel.grid[1] = params->gridDimY;
    operation->kernel.grid[2] = params->gridDimZ;
    operation->kernel.block[0] = params->blockDimX;
    operation->kernel.block[1] = params->blockDimY;
    operation->kernel.block[2] = params->blockDimZ;
    operation->kernel.shared_bytes = params->sharedMemBytes;
    operation->kernel.arguments = params->kernelParams;
    operation->kernel.extra = params->extra;
}

static bool kernel_fits(const struct operation *operation) {
    const unsigned int *grid = operation->kernel.grid, *block = operation->kernel.block;
    return grid[0] != 0 && grid[1] != 0 && grid[2] != 0 && block[0] != 0 && block[1] != 0 && block[2] != 0 &&
           (uint64_t)block[0] * block[1] * block[2] <= 1024;
}

CUresult operation_from_params(const CUgraphNodeParams *params, struct operation *operation) {
    memset(operation, 0, sizeof *operation);
    CUresult result = CUDA_SUCCESS;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        operation->kind = OPERATION_KERNEL;
        kernel_from(&params->kernel, operation);
        result = kernel_fits(operation) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        *operation = copy_from_3d(&params->memcpy.copyParams);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        operation->kind = OPERATION_FILL;
        operation->fill.to = params->memset.dst;
        operation->fill.pitch = params->memset.pitch;
        operation->fill.width = params->memset.width;
        operation->fill.height = params->memset.height;
        operation->fill.element_bytes = params->memset.elementSize;
        operation->fill.value = params->memset.value;
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        operation->kind = OPERATION_HOST;
        operation->host.function = params->host.fn;
        operation->host.data = params->host.userData;
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        operation->kind = OPERATION_CHILD_GRAPH;
        operation->child.graph = (struct graph *)params->graph.graph;
        result = params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
        break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        operation->kind = OPERATION_EMPTY;
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        operation->kind = OPERATION_EVENT_WAIT;
        operation->event.event = params->eventWait.event;
        break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        operation->kind = OPERATION_EVENT_RECORD;
        operation->event.event = params->eventRecord.event;
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        operation->kind = OPERATION_ALLOCATE;
        result = allocation_from(&params->alloc, operation);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        operation->kind = OPERATION_FREE;
        operation->memory.address = params->free.dptr;
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        operation->kind = OPERATION_VALUES;
        operation->values.list = params->memOp.paramArray;
        operation->values.count = params->memOp.count;
        break;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return result == CUDA_SUCCESS ? node_check(operation) : result;
}

void params_from_node(const struct node *node, CUgraphNodeParams *params) {
    const struct operation *operation = &node->operation;
    memset(params, 0, sizeof *params);
    params->type = node_type(node);
    switch (operation->kind) {
    case OPERATION_KERNEL:
        params->kernel = (CUDA_KERNEL_NODE_PARAMS_v3){
            .func = (CUfunction)operation->kernel.function,
            .gridDimX = operation->kernel.grid[0],
            .gridDimY = operation->kernel.grid[1],
            .gridDimZ = operation->kernel.grid[2],
            .blockDimX = operation->kernel.block[0],
            .blockDimY = operation->kernel.block[1],
            .blockDimZ = operation->kernel.block[2],
            .sharedMemBytes = operation->kernel.shared_bytes,
            .kernelParams = operation->kernel.arguments,
        };
        break;
    case OPERATION_COPY:
        params->memcpy.copyParams = copy_to_3d(operation);
        break;
    case OPERATION_FILL:
        params->memset = (CUDA_MEMSET_NODE_PARAMS_v2){
            .dst = operation->fill.to,
            .pitch = operation->fill.pitch,
            .value = operation->fill.value,
            .elementSize = operation->fill.element_bytes,
            .width = operation->fill.width,
            .height = operation->fill.height,
        };
        break;
    case OPERATION_HOST:
        params->host.fn = operation->host.function;
        params->host.userData = operation->host.data;
        break;
    case OPERATION_CHILD_GRAPH:
        params->graph.graph = (CUgraph)operation->child.graph;
        break;
    case OPERATION_EVENT_WAIT:
        params->eventWait.event = operation->event.event;
        break;
    case OPERATION_EVENT_RECORD:
        params->eventRecord.event = operation->event.event;
        break;
    case OPERATION_ALLOCATE:
        params->alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        params->alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        params->alloc.poolProps.location.id = node->reservation->device->ordinal;
        params->alloc.bytesize = operation->memory.bytes;
        params->alloc.dptr = operation->memory.address;
        break;
    case OPERATION_FREE:
        params->free.dptr = operation->memory.address;
        break;
    case OPERATION_VALUES:
        params->memOp.count = operation->values.count;
        params->memOp.paramArray = operation->values.list;
        break;
    case OPERATION_EMPTY:
        break;
    }
}
