/* Multicast objects: they hold the memory that is bound to them; what is written to their addresses reaches none of it. */
#include "vmm.h"

#include <stdlib.h>

static bool has_multicast(void) {
    int supported = 0;
    return cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0) == CUDA_SUCCESS && supported;
}

CUresult CUDAAPI cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
                                           CUmulticastGranularity_flags option) {
    (void)option;
    if (granularity == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = GRANULARITY;
    return has_multicast() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    if (driver_ready() != CUDA_SUCCESS || !has_multicast()) {
        return driver_ready() != CUDA_SUCCESS ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_SUPPORTED;
    }
    if (handle == NULL || properties == NULL || !is_granular(properties->size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct physical *multicast = object_new(KIND_PHYSICAL, sizeof *multicast);
    if (multicast == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    multicast->device = &driver.devices[0];
    multicast->size = properties->size;
    multicast->references = 1;
    multicast->imported = multicast->multicast = true;
    if (physical_back_with_file(multicast) != CUDA_SUCCESS) {
        object_retire(multicast, KIND_PHYSICAL);
        object_free(multicast, KIND_PHYSICAL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)multicast;
    return CUDA_SUCCESS;
}

static struct physical *multicast_from(CUmemGenericAllocationHandle handle) {
    struct physical *multicast = physical_from(handle);
    return multicast != NULL && multicast->multicast ? multicast : NULL;
}

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal) {
    struct device *device;
    return multicast_from(handle) != NULL ? device_at(ordinal, &device) : CUDA_ERROR_INVALID_VALUE;
}

/* Under vmm_lock. */
static CUresult bind(CUmemGenericAllocationHandle handle, struct physical *memory, struct binding wanted) {
    struct physical *multicast = multicast_from(handle);
    if (multicast == NULL || memory == NULL || memory->multicast || !is_granular(wanted.size) ||
        wanted.offset % GRANULARITY != 0 || wanted.offset > multicast->size || wanted.size > multicast->size - wanted.offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct binding *binding = malloc(sizeof *binding);
    if (binding == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    wanted.memory = memory;
    wanted.device = wanted.device >= 0 ? wanted.device : memory->device->ordinal;
    wanted.next = multicast->bindings;
    *binding = wanted;
    multicast->bindings = binding;
    memory->mappings++;
    return CUDA_SUCCESS;
}

static void unbind(struct physical *multicast, CUdevice device, size_t offset, size_t size) {
    struct binding **link = &multicast->bindings;
    while (*link != NULL) {
        struct binding *binding = *link;
        if (binding->device == device && binding->offset >= offset && binding->offset - offset < size) {
            *link = binding->next;
            physical_drop(binding->memory, 0, 1);
            free(binding);
        } else {
            link = &binding->next;
        }
    }
}

void multicast_unbind_all(struct physical *multicast) {
    for (int i = 0; multicast->bindings != NULL && i < driver.device_count; i++) {
        unbind(multicast, i, 0, SIZE_MAX);
    }
}

CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t multicast_offset,
                                       CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                                       unsigned long long flags) {
    pthread_mutex_lock(&vmm_lock);
    CUresult result = offset != 0 || flags != 0
                          ? CUDA_ERROR_INVALID_VALUE
                          : bind(handle, physical_from(memory),
                                 (struct binding){.device = device, .offset = multicast_offset, .size = size});
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t multicast_offset,
                                    CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                                    unsigned long long flags) {
    return cuMulticastBindMem_v2(handle, -1, multicast_offset, memory, offset, size, flags);
}

CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t multicast_offset,
                                        CUdeviceptr address, size_t size, unsigned long long flags) {
    struct range range;
    pthread_mutex_lock(&vmm_lock);
    bool mapped = range_find(address, &range) && range.kind == RANGE_MAPPED;
    CUresult result = !mapped || flags != 0 ? CUDA_ERROR_INVALID_VALUE
                                            : bind(handle, range.owner, (struct binding){.device = device,
                                                                                         .offset = multicast_offset,
                                                                                         .size = size});
    pthread_mutex_unlock(&vmm_lock);
    return result;
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t multicast_offset, CUdeviceptr address,
                                     size_t size, unsigned long long flags) {
    return cuMulticastBindAddr_v2(handle, -1, multicast_offset, address, size, flags);
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size) {
    pthread_mutex_lock(&vmm_lock);
    struct physical *multicast = multicast_from(handle);
    if (multicast != NULL) {
        unbind(multicast, device, offset, size);
    }
    pthread_mutex_unlock(&vmm_lock);
    return multicast != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
