/* Graphs: nodes and edges, launches, memory nodes, and changing what was instantiated. */
#include "graph.h"

#include <pthread.h>
#include <unistd.h>

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
    /* Five allocations of a quarter of the GPU, each freed before the next. */
    CUDA_MEM_ALLOC_NODE_PARAMS params, read_back;
    CUdeviceptr freed = 0;
    previous = NULL;
    for (int i = 0; i < 5; i++) {
        params = allocation(total / 4);
        CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemAllocNode(&node, graph, &previous, previous != NULL, &params));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphMemAllocNodeGetParams(node, &read_back));
        CHECK(read_back.dptr == params.dptr && read_back.bytesize == total / 4);
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

static void addresses_are_used_again_within_a_graph(void) {
    CUstream stream;
    CUgraph graph;
    CUdeviceptr first, second, beside;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&first, 1 << 20, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&beside, 1 << 20, stream));
    CHECK(first != beside); /* both are alive */
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(first, stream));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(first, stream));
    for (int i = 0; i < 100; i++) {
        CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&second, 1 << 20, stream));
        CHECK(second == first);
        CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(second, stream));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(beside, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = instantiate(graph);
    launch(exec);
    launch(exec);
    CHECK(used_by_graphs() == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(exec));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(graph));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGraphMemTrim(device));
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
    graph_device_open();
    nodes_run_after_what_they_depend_on();
    nothing_crashes_on_null();
    every_kind_of_node_works();
    what_was_instantiated_can_be_changed();
    memory_nodes_allocate_at_launch();
    a_launch_that_does_not_fit_leaves_nothing_behind();
    allocations_outlive_the_graph();
    addresses_are_used_again_within_a_graph();
    a_launch_takes_the_time_of_its_nodes();
    user_objects_live_as_long_as_they_are_needed();
    threads_do_not_disturb_each_other();
    return graph_device_close();
}
