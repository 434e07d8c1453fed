/* Graphs: nodes and edges, launches, memory nodes, changing what was instantiated, captures with forks and joins. */
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static CUdeviceptr x, y;

static CUDA_KERNEL_NODE_PARAMS fill_params(void **arguments) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = fill_kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
                                     .blockDimY = 1, .blockDimZ = 1, .kernelParams = arguments};
}

/* The arguments live on this function's stack, which is gone when the graph runs. */
static __attribute__((noinline)) CUgraphNode add_fill(CUgraph graph, CUgraphNode *after, float value) {
    unsigned long long count = 1;
    CUdeviceptr to = x;
    void *arguments[] = {&to, &value, &count};
    CUDA_KERNEL_NODE_PARAMS params = fill_params(arguments);
    CUgraphNode node = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddKernelNode(&node, graph, after, after != NULL, &params));
    return node;
}

static CUgraphNode add_copy(CUgraph graph, CUgraphNode *after) {
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = x, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = y, .WidthInBytes = sizeof(float), .Height = 1, .Depth = 1};
    CUgraphNode node = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemcpyNode(&node, graph, after, after != NULL, &copy, context));
    return node;
}

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void launch(CUgraphExec exec) {
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(NULL));
}

static void nodes_run_after_what_they_depend_on(void) {
    CUgraph graph;
    CUgraphNode nodes[4], from[4], to[4];
    size_t count = 4;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CUgraphNode last = add_copy(graph, NULL), second = add_fill(graph, NULL, 2), first = add_fill(graph, NULL, 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddDependencies(graph, &first, &second, NULL, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddDependencies(graph, &second, &last, NULL, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &second, &last, NULL, 1)); /* again */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &second, &second, NULL, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(graph, nodes, &count));
    CHECK(count == 3 && nodes[0] == last && nodes[3] == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetRootNodes(graph, nodes, &count));
    CHECK(count == 1 && nodes[0] == first);
    count = 4;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, from, to, NULL, &count));
    CHECK(count == 2 && from[0] == second && to[0] == last);
    count = 1;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependencies(last, nodes, NULL, &count));
    CHECK(count == 1 && nodes[0] == second);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependentNodes(first, nodes, NULL, &count));
    CHECK(count == 1 && nodes[0] == second);
    CUgraphExec exec = instantiate(graph);
    launch(exec);
    CHECK(first_float(x) == 2 && first_float(y) == 2);
    /* What was instantiated does not change with the graph. */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphRemoveDependencies(graph, &second, &last, NULL, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &second, &last, NULL, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroyNode(last));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphDestroyNode(last));
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, y, 0, 1));
    launch(exec);
    CHECK(first_float(y) == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddDependencies(graph, &second, &first, NULL, 1)); /* a circle */
    CUgraphExec impossible = NULL;
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&impossible, graph, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&impossible, graph, &params));
    CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE && impossible == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphGetNodes(graph, NULL, &count));
    launch(exec);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, NULL));
}

static void nothing_crashes_on_null(void) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(NULL, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&node, graph, NULL, 0, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(NULL, graph, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, graph, NULL, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphAddEmptyNode(&node, NULL, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&node, graph, NULL, 0, &(CUDA_HOST_NODE_PARAMS){0}));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphAddEventRecordNode(&node, graph, NULL, 0, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphAddChildGraphNode(&node, graph, NULL, 0, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, NULL, 0, x));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(graph, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(NULL, graph, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 1u << 20));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphInstantiate(&exec, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphClone(NULL, graph));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(NULL, NULL));
    CUgraphNodeParams conditional = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CHECK_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddNode(&node, graph, NULL, NULL, 0, &conditional));
    CUDA_KERNEL_NODE_PARAMS no_kernel = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                                         .blockDimZ = 1};
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphAddKernelNode(&node, graph, NULL, 0, &no_kernel));
    size_t count = 9;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 0); /* what failed left nothing behind */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
}

static atomic_int calls;

static void count_call(void *data) {
    atomic_fetch_add(&calls, (int)(intptr_t)data);
}

static void set_pinned(void *data) {
    *(float *)data = 5;
}

static void every_kind_of_node_works(void) {
    CUgraph graph, child, inside;
    CUgraphNode node, previous;
    CUevent event;
    CUgraphNodeType type;
    float *pinned;
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostAlloc((void **)&pinned, sizeof(float), 0));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&child, 0));
    CUgraphNode inner = add_fill(child, NULL, 9);
    CUDA_MEMSET_NODE_PARAMS zero = {.dst = y, .value = 0, .elementSize = 4, .width = 1, .height = 1}, read_back;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemsetNode(&previous, graph, NULL, 0, &zero, context));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemsetNodeGetParams(previous, &read_back));
    CHECK(read_back.dst == y && read_back.elementSize == 4 && read_back.width == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddHostNode(&node, graph, &previous, 1,
                                                  &(CUDA_HOST_NODE_PARAMS){.fn = set_pinned, .userData = pinned}));
    previous = node;
    /* Behind the host function: sees what it wrote. */
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pinned, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = y, .WidthInBytes = sizeof(float), .Height = 1, .Depth = 1};
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemcpyNode(&node, graph, &previous, 1, &copy, context));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddChildGraphNode(&previous, graph, &node, 1, child));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphChildGraphNodeGetGraph(previous, &inside));
    CHECK(inside != child);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(inside)); /* it is the node's */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeFindInClone(&node, inner, inside));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetType(node, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_KERNEL && node != inner);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(child));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEventRecordNode(&node, graph, &previous, 1, event));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEventWaitNode(&previous, graph, &node, 1, event));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEmptyNode(&node, graph, &previous, 1));
    CUstreamBatchMemOpParams write = {
        .writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = y + 4, {.value = 77}}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {.ctx = context, .count = 1, .paramArray = &write};
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddBatchMemOpNode(&previous, graph, &node, 1, &batch));
    atomic_store(&calls, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddHostNode(&node, graph, &previous, 1,
                                                  &(CUDA_HOST_NODE_PARAMS){.fn = count_call, .userData = (void *)1}));
    CUgraphExec exec = instantiate(graph);
    for (int i = 1; i <= 3; i++) {
        *pinned = 0;
        CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(CU_STREAM_PER_THREAD));
        unsigned int written;
        CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&written, y + 4, sizeof written));
        CHECK(first_float(x) == 9 && first_float(y) == 5 && written == 77 && atomic_load(&calls) == i);
        CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(event));
    }
    char path[] = "/tmp/gpuslice-test-graph.XXXXXX";
    close(mkstemp(path));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDebugDotPrint(graph, path, 0));
    char text[8] = "";
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && fread(text, 1, 7, file) == 7 && strcmp(text, "digraph") == 0);
    fclose(file);
    unlink(path);
    CHECK_RESULT(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph, "/nowhere/file", 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(event));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeHost(pinned));
}

static void what_was_instantiated_can_be_changed(void) {
    CUgraph graph, other, clone;
    CUgraphNode in_clone;
    unsigned int enabled = 9;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CUgraphNode kernel = add_fill(graph, NULL, 1), copy = add_copy(graph, &kernel);
    CUgraphExec exec = instantiate(graph);
    CUDA_KERNEL_NODE_PARAMS params;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetParams(kernel, &params));
    CHECK(params.func == fill_kernel && *(float *)params.kernelParams[1] == 1);
    float value = 3;
    unsigned long long count = 1;
    void *arguments[] = {&x, &value, &count};
    params = fill_params(arguments);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecKernelNodeSetParams(exec, kernel, &params));
    value = 100; /* was copied */
    launch(exec);
    CHECK(first_float(y) == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetParams(kernel, &params));
    CHECK(*(float *)params.kernelParams[1] == 1); /* the graph itself is as it was */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeSetEnabled(exec, copy, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetEnabled(exec, copy, &enabled));
    CHECK(enabled == 0);
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, y, 0, 1));
    launch(exec);
    CHECK(first_float(x) == 3 && first_float(y) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeSetEnabled(exec, copy, 1));
    /* A graph of the same shape takes its place. */
    CUgraphExecUpdateResultInfo info;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&other, 0));
    CUgraphNode other_kernel = add_fill(other, NULL, 6);
    CHECK_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    CUgraphNode other_copy = add_copy(other, NULL);
    CHECK_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddDependencies(other, &other_kernel, &other_copy, NULL, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecUpdate(exec, other, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecUpdate(exec, other, NULL));
    launch(exec);
    CHECK(first_float(y) == 6);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams(exec, other_kernel, &params)); /* not its node */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams(exec, copy, &params));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphClone(&clone, graph));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeFindInClone(&in_clone, kernel, clone));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&in_clone, kernel, other));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeSetParams(in_clone, &params));
    CUkernelNodeAttrValue attribute = {.priority = -2};
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeSetAttribute(kernel, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeCopyAttributes(in_clone, kernel));
    attribute.priority = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetAttribute(in_clone, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    CHECK(attribute.priority == -2);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetAttribute(copy, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(clone));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(other));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
}

/* ---- memory nodes ---- */

static CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes) {
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes,
    };
}

static cuuint64_t used_by_graphs(void) {
    cuuint64_t used = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    return used;
}

static void memory_nodes_allocate_at_launch(void) {
    CUgraph graph, clone;
    CUgraphNode node, previous, free_node;
    CUgraphExec exec, again;
    size_t total, before, after;
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceTotalMem(&total, device));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&before, &total));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    /* Four allocations of a third of the GPU, each freed before the next. */
    CUDA_MEM_ALLOC_NODE_PARAMS params, read_back;
    CUdeviceptr freed = 0;
    previous = NULL;
    for (int i = 0; i < 4; i++) {
        params = allocation(total / 3);
        CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemAllocNode(&node, graph, &previous, previous != NULL, &params));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphMemAllocNodeGetParams(node, &read_back));
        CHECK(read_back.dptr == params.dptr && read_back.bytesize == total / 3);
        CUDA_MEMSET_NODE_PARAMS one = {.dst = params.dptr, .value = 1, .elementSize = 1, .width = 64, .height = 1};
        CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemsetNode(&previous, graph, &node, 1, &one, context));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemFreeNode(&free_node, graph, &previous, 1, params.dptr));
        CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, &previous, 1, params.dptr));
        previous = free_node;
    }
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemFreeNodeGetParams(free_node, &freed));
    CHECK(freed == params.dptr);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&after, &total));
    CHECK(after == before); /* nothing until it is launched */
    exec = instantiate(graph);
    CHECK_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiate(&again, graph, 0));
    CHECK_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, graph));
    launch(exec);
    launch(exec);
    CHECK(used_by_graphs() == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&after, &total));
    CHECK(after < before); /* graphs keep what they used until they are trimmed */
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGraphMemTrim(device));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&after, &total));
    CHECK(after == before);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&again, graph, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(again));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(params.dptr, 0, 1)); /* the address went with the graph */
}

static void a_launch_that_does_not_fit_leaves_nothing_behind(void) {
    CUgraph graph;
    CUgraphNode node, fill_node;
    size_t total, before, after;
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&before, &total));
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, x, 1, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    fill_node = add_fill(graph, NULL, 2);
    CUDA_MEM_ALLOC_NODE_PARAMS first = allocation(total / 2), second = allocation(total / 4 * 3);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemAllocNode(&node, graph, &fill_node, 1, &first));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemAllocNode(&node, graph, &node, 1, &second));
    CUgraphExec exec = instantiate(graph);
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec, NULL));
    CHECK(first_float(x) == 1 && used_by_graphs() == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGraphMemTrim(device));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&after, &total));
    CHECK(after == before);
}

static void allocations_outlive_the_graph(void) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    cuuint64_t flags;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(1 << 20);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    exec = instantiate(graph);
    launch(exec);
    CHECK(used_by_graphs() == 1 << 20);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(params.dptr, 7, 1 << 20));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL)); /* not freed yet */
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(params.dptr, NULL));
    launch(exec);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(params.dptr));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecGetFlags(exec, &flags));
    CHECK(flags == CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    launch(exec);
    launch(exec);
    CHECK(used_by_graphs() == 1 << 20);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(params.dptr, 8, 1 << 20)); /* still there */
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(params.dptr));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(params.dptr, 8, 1));
    CHECK(used_by_graphs() == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGraphMemTrim(device));
}

/* ---- captures ---- */

static void captured_work_runs_when_launched(void) {
    CUstream stream;
    CUgraph graph;
    CUstreamCaptureStatus status;
    CUdeviceptr memory;
    cuuint64_t id = 0;
    size_t count;
    const CUgraphNode *dependencies;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, x, 0, 1));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&memory, 4096, stream));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, memory, 4, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoDAsync(x, memory, sizeof(float), stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(memory, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32Async(y, 0, 1, stream));
    atomic_store(&calls, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, count_call, (void *)1));
    CHECK_RESULT(CUDA_SUCCESS, spin(stream, 1000));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, NULL, &count));
    CHECK(id != 0 && count == 1 && dependencies[0] != NULL);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph)); /* the capture's */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CHECK(first_float(x) == 0); /* nothing has happened yet */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 7);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    CHECK(count == 6);
    CUgraphExec exec = instantiate(graph);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK(first_float(x) == 4 && atomic_load(&calls) == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void captures_fork_and_join(void) {
    CUstream stream, side;
    CUevent fork, join;
    CUgraph graph;
    CUgraphNode from[8], to[8];
    size_t count = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 1, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(side, fork, 0));
    CHECK_RESULT(CUDA_SUCCESS, fill(side, y, 2, 1));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 3, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(join, side));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(side, &graph));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CHECK(graph == NULL);
    CHECK_RESULT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(join));
    CHECK_RESULT(CUDA_SUCCESS, fill(side, y, 0, 1)); /* both streams work as before */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(side));
    for (int joined = 0; joined < 2; joined++) {
        CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 1, 1));
        CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(side, fork, 0));
        CHECK_RESULT(CUDA_SUCCESS, fill(side, y, 2, 1));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 3, 1));
        if (joined) {
            CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(join, side));
            CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(stream, join, 0));
            CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 4, 1));
        }
        CHECK_RESULT(joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, from, to, NULL, &count));
    CHECK(count == 4 && to[2] == to[3] && from[0] == from[1]); /* a diamond */
    CUgraphExec exec = instantiate(graph);
    launch(exec);
    CHECK(first_float(x) == 4 && first_float(y) == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, stream)); /* an event again like any other */
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(fork));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(fork));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(join));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(side));
}

static void *end_elsewhere(void *stream) {
    CUgraph graph;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture((CUstream)stream, &graph));
    return NULL;
}

static void callback(CUstream stream, CUresult status, void *data) {
    (void)stream;
    (void)status;
    (void)data;
}

static void captures_forbid_what_cannot_be_captured(void) {
    CUstream stream, blocking;
    CUevent outside;
    CUgraph graph;
    float value;
    CUstreamCaptureStatus status;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(outside, stream));
    for (int i = 0; i < 7; i++) {
        CUstream captured = i == 6 ? blocking : stream;
        CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        switch (i) {
        case 0:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(captured));
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, fill(captured, x, 1, 1));
            CHECK_RESULT(CUDA_SUCCESS, cuStreamIsCapturing(captured, &status));
            CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
            break;
        case 1:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(captured));
            break;
        case 2:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
            break;
        case 3:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemcpyDtoH(&value, x, sizeof value));
            break;
        case 4:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(captured, outside, 0));
            break;
        case 5:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamAddCallback(captured, callback, NULL, 0));
            break;
        default:
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
            CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, fill(NULL, x, 1, 1));
            break;
        }
        CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
    }
    /* Relaxed captures, and relaxed threads, allow what is only dangerous. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&value, x, sizeof value));
    CHECK_RESULT(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end_elsewhere, stream) == 0 && pthread_join(thread, NULL) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream)); /* and its capture with it */
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&value, x, sizeof value));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(blocking));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(outside));
}

static void captures_can_extend_a_graph(void) {
    CUstream stream;
    CUgraph graph, ended;
    size_t count;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CUgraphNode first = add_fill(graph, NULL, 1), second = add_fill(graph, &first, 2);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(stream, &second, NULL, 1,
                                                                 CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    CHECK_RESULT(CUDA_SUCCESS, fill(stream, x, 3, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &ended));
    CHECK(ended == graph);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    CHECK(count == 3);
    CUgraphExec exec = instantiate(graph);
    launch(exec);
    CHECK(first_float(x) == 3);
    /* A launch in a capturing stream becomes a child graph. */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &ended));
    CUgraphExec outer = instantiate(ended);
    CHECK_RESULT(CUDA_SUCCESS, fill(NULL, x, 0, 1));
    launch(outer);
    CHECK(first_float(x) == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(outer));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(ended));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

/* ---- time, user objects, threads ---- */

static void a_launch_takes_the_time_of_its_nodes(void) {
    CUgraph graph;
    CUevent start, end;
    CUstream stream;
    float milliseconds;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&start, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&end, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 10; i++) {
        CHECK_RESULT(CUDA_SUCCESS, spin(stream, 2000));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = instantiate(graph);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphUpload(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(start, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(end, stream));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(end));
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 19.99f);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(start));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(end));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
}

static void user_objects_live_as_long_as_they_are_needed(void) {
    CUuserObject object;
    CUgraph graph;
    CUgraphNode node;
    atomic_store(&calls, 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectCreate(&object, (void *)100, count_call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, NULL, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectRetain(object, 2));
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectRelease(object, 2));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 2));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(graph, object, 2));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddHostNode(&node, graph, NULL, 0,
                                                  &(CUDA_HOST_NODE_PARAMS){.fn = count_call, .userData = (void *)1}));
    CUgraphExec exec = instantiate(graph);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK(atomic_load(&calls) == 0);
    CHECK_RESULT(CUDA_SUCCESS, spin(NULL, 20000));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec)); /* the launch is still going on, and needs the object */
    CHECK(atomic_load(&calls) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(NULL));
    for (int i = 0; i < 1000 && atomic_load(&calls) != 101; i++) {
        usleep(1000);
    }
    CHECK(atomic_load(&calls) == 101);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 1));
}

static void *use_graphs(void *unused) {
    (void)unused;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    for (int i = 0; i < 20; i++) {
        CUstream stream;
        CUgraph graph;
        CUgraphExec exec;
        CUdeviceptr memory;
        CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&memory, 4096, stream));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, memory, 1, 1024));
        CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(stream, count_call, (void *)1));
        CHECK_RESULT(CUDA_SUCCESS, fill(stream, memory, 2, 1024));
        CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(memory, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    }
    return NULL;
}

static void threads_do_not_disturb_each_other(void) {
    pthread_t threads[4];
    atomic_store(&calls, 0);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, use_graphs, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(atomic_load(&calls) == 80);
    CHECK(used_by_graphs() == 0);
}

int main(void) {
    device_open();
    CHECK_OR_EXIT(CUDA_SUCCESS, cuMemAlloc(&x, 4096));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuMemAlloc(&y, 4096));
    nodes_run_after_what_they_depend_on();
    nothing_crashes_on_null();
    every_kind_of_node_works();
    what_was_instantiated_can_be_changed();
    memory_nodes_allocate_at_launch();
    a_launch_that_does_not_fit_leaves_nothing_behind();
    allocations_outlive_the_graph();
    captured_work_runs_when_launched();
    captures_fork_and_join();
    captures_forbid_what_cannot_be_captured();
    captures_can_extend_a_graph();
    a_launch_takes_the_time_of_its_nodes();
    user_objects_live_as_long_as_they_are_needed();
    threads_do_not_disturb_each_other();
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(x));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(y));
    return device_close();
}
