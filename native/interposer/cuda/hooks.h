/* Every driver function that this library defines itself. The others are forwarded; cuGetProcAddress hands out these
 * instead of the driver's. tests/native compares the list with the symbols of the library. */
#ifndef GPUSLICE_HOOKS_H
#define GPUSLICE_HOOKS_H

#define HOOKS(X)                                                                                                      \
    X(cuInit)                                                                                                         \
    X(cuGetProcAddress)                                                                                               \
    X(cuGetProcAddress_v2)                                                                                            \
    X(cuGetProcAddress_ptsz)                                                                                          \
    X(cuMemAlloc)                                                                                                     \
    X(cuMemAlloc_v2)                                                                                                  \
    X(cuMemAllocManaged)                                                                                              \
    X(cuMemAllocPitch)                                                                                                \
    X(cuMemAllocPitch_v2)                                                                                             \
    X(cuMemFree_v2)                                                                                                   \
    X(cuMemFreeAsync)                                                                                                 \
    X(cuMemFreeAsync_ptsz)                                                                                            \
    X(cuMemAllocAsync)                                                                                                \
    X(cuMemAllocAsync_ptsz)                                                                                           \
    X(cuMemAllocFromPoolAsync)                                                                                        \
    X(cuMemAllocFromPoolAsync_ptsz)                                                                                   \
    X(cuMemPoolCreate)                                                                                                \
    X(cuMemPoolDestroy)                                                                                               \
    X(cuMemPoolTrimTo)                                                                                                \
    X(cuStreamSynchronize)                                                                                            \
    X(cuStreamSynchronize_ptsz)                                                                                       \
    X(cuEventSynchronize)                                                                                             \
    X(cuCtxSynchronize)                                                                                               \
    X(cuCtxSynchronize_v2)                                                                                            \
    X(cuMemCreate)                                                                                                    \
    X(cuMemRelease)                                                                                                   \
    X(cuMemRetainAllocationHandle)                                                                                    \
    X(cuMemMap)                                                                                                       \
    X(cuMemUnmap)                                                                                                     \
    X(cuMemMapArrayAsync)                                                                                             \
    X(cuMemMapArrayAsync_ptsz)                                                                                        \
    X(cuMulticastBindMem)                                                                                             \
    X(cuMulticastBindMem_v2)                                                                                          \
    X(cuMulticastBindAddr)                                                                                            \
    X(cuMulticastBindAddr_v2)                                                                                         \
    X(cuMulticastUnbind)                                                                                              \
    X(cuMulticastCreate)                                                                                              \
    X(cuArrayCreate)                                                                                                  \
    X(cuArrayCreate_v2)                                                                                               \
    X(cuArray3DCreate)                                                                                                \
    X(cuArray3DCreate_v2)                                                                                             \
    X(cuArrayDestroy)                                                                                                 \
    X(cuMipmappedArrayCreate)                                                                                         \
    X(cuMipmappedArrayDestroy)                                                                                        \
    X(cuGraphInstantiate)                                                                                             \
    X(cuGraphInstantiate_v2)                                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                                    \
    X(cuGraphInstantiateWithParams)                                                                                   \
    X(cuGraphInstantiateWithParams_ptsz)                                                                              \
    X(cuGraphLaunch)                                                                                                  \
    X(cuGraphLaunch_ptsz)                                                                                             \
    X(cuGraphUpload)                                                                                                  \
    X(cuGraphUpload_ptsz)                                                                                             \
    X(cuGraphExecDestroy)                                                                                             \
    X(cuDeviceGraphMemTrim)                                                                                           \
    X(cuCtxDestroy)                                                                                                   \
    X(cuCtxDestroy_v2)                                                                                                \
    X(cuCtxDetach)                                                                                                    \
    X(cuDevicePrimaryCtxRetain)                                                                                       \
    X(cuDevicePrimaryCtxRelease)                                                                                      \
    X(cuDevicePrimaryCtxRelease_v2)                                                                                   \
    X(cuDevicePrimaryCtxReset)                                                                                        \
    X(cuDevicePrimaryCtxReset_v2)                                                                                     \
    X(cuMemGetInfo)                                                                                                   \
    X(cuMemGetInfo_v2)                                                                                                \
    X(cuDeviceTotalMem)                                                                                               \
    X(cuDeviceTotalMem_v2)

#endif
