/* Calls every function that the interposer defines with nothing but NULL and zero, before and after cuInit, with a context
 * and without, and then with NULL in one place at a time where others are right. Lives if none of them crashes. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "../../native/interposer/cuda/hooks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*function)(void *, void *, void *, void *, void *, void *, void *, void *);

static const char *const names[] = {
#define NAME(name) #name,
    HOOKS(NAME)
#undef NAME
};

static void call_all(void *library) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        function call = (function)dlsym(library, names[i]);
        if (call != NULL) {
            call(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
        }
    }
}

static void call_with_one_null(void) {
    CUdeviceptr address = 0;
    size_t pitch = 0, number = 0;
    CUarray array = NULL;
    CUmipmappedArray mipmap = NULL;
    CUmemoryPool pool = NULL;
    CUgraphExec executable = NULL;
    CUgraph graph = NULL;
    CUmemGenericAllocationHandle handle = 0;
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUmemAllocationProp memory = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemPoolProps pooled = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    cuMemAlloc_v2(NULL, 512);
    cuMemAllocManaged(NULL, 512, CU_MEM_ATTACH_GLOBAL);
    cuMemAllocPitch_v2(NULL, &pitch, 4, 4, 4);
    cuMemAllocPitch_v2(&address, NULL, 4, 4, 4);
    cuMemAllocAsync(NULL, 512, NULL);
    cuMemAllocAsync_ptsz(NULL, 512, NULL);
    cuMemAllocFromPoolAsync(NULL, 512, NULL, NULL);
    cuMemAllocFromPoolAsync(&address, 512, NULL, NULL);
    cuDeviceGetDefaultMemPool(&pool, 0);
    cuMemAllocFromPoolAsync(NULL, 512, pool, NULL);
    cuMemPoolCreate(NULL, &pooled);
    cuMemPoolCreate(&pool, NULL);
    cuMemCreate(NULL, 2 << 20, &memory, 0);
    cuMemCreate(&handle, 2 << 20, NULL, 0);
    cuMemRetainAllocationHandle(NULL, &address);
    cuMemRetainAllocationHandle(&handle, NULL);
    cuArrayCreate_v2(NULL, &flat);
    cuArrayCreate_v2(&array, NULL);
    cuArray3DCreate_v2(NULL, &shape);
    cuArray3DCreate_v2(&array, NULL);
    cuMipmappedArrayCreate(NULL, &shape, 1);
    cuMipmappedArrayCreate(&mipmap, NULL, 1);
    cuGraphCreate(&graph, 0);
    cuGraphInstantiateWithFlags(NULL, graph, 0);
    cuGraphInstantiateWithFlags(&executable, NULL, 0);
    cuGraphInstantiateWithParams(&executable, graph, NULL);
    cuGraphInstantiateWithParams(NULL, graph, &(CUDA_GRAPH_INSTANTIATE_PARAMS){.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD});
    cuDevicePrimaryCtxRetain(NULL, 0);
    cuMemGetInfo_v2(NULL, &number);
    cuMemGetInfo_v2(&number, NULL);
    cuDeviceTotalMem_v2(NULL, 0);
    cuGetProcAddress_v2(NULL, &found, 12000, 0, &status);
    cuGetProcAddress_v2("cuMemAlloc", NULL, 12000, 0, &status);
    cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, NULL);
    cuGetProcAddress(NULL, &found, 11000, 0);
    cuGetProcAddress("cuMemAlloc", NULL, 11000, 0);
}

int main(void) {
    CUcontext context;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        return 2;
    }
    call_all(library);
    call_with_one_null();
    if (cuInit(0) != CUDA_SUCCESS) {
        return 3;
    }
    call_all(library);
    call_with_one_null();
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        return 4;
    }
    call_with_one_null();
    call_all(library);
    puts("alive");
    return 0;
}
