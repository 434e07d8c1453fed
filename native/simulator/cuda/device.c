/* Devices: how many, their names and identities, memory, and how they reach each other. */
#include "driver.h"
#include "visible.h"

#include <stdio.h>
#include <string.h>

CUresult device_at(CUdevice ordinal, struct device **device) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (ordinal < 0 || ordinal >= driver.device_count) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = &driver.devices[ordinal];
    return CUDA_SUCCESS;
}

/* These devices have one locality domain, which is all of their memory. */
CUresult device_of_location(const CUmemLocation *location, struct device **device) {
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_at(location->id, device);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return location->localized.localityDomainId == 0 ? device_at(location->localized.deviceId, device)
                                                         : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Most queries: one output, one device. */
#define DEVICE_OR_RETURN(output, ordinal)                                                                             \
    struct device *device;                                                                                            \
    CUresult device_result = device_at(ordinal, &device);                                                             \
    if (device_result != CUDA_SUCCESS) {                                                                              \
        return device_result;                                                                                         \
    }                                                                                                                 \
    if ((output) == NULL) {                                                                                           \
        return CUDA_ERROR_INVALID_VALUE;                                                                              \
    }

CUresult CUDAAPI cuDeviceGetCount(int *count) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *count = driver.device_count;
    }
    return result;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *handle, int ordinal) {
    DEVICE_OR_RETURN(handle, ordinal);
    *handle = device->ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice handle) {
    DEVICE_OR_RETURN(name, handle);
    if (length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)length, "%s", device->name);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice handle) {
    DEVICE_OR_RETURN(uuid, handle);
    *uuid = device->uuid;
    return CUDA_SUCCESS;
}

/* The older call names the GPU even for a MIG device. */
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice handle) {
    DEVICE_OR_RETURN(uuid, handle);
    uuid_parse(device->spec->uuid, uuid);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice handle) {
    DEVICE_OR_RETURN(bytes, handle);
    *bytes = device->memory_bytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice handle) {
    DEVICE_OR_RETURN(major, handle);
    if (minor == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *major = (int)device->spec->compute_major;
    *minor = (int)device->spec->compute_minor;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetProperties(CUdevprop *properties, CUdevice handle) {
    DEVICE_OR_RETURN(properties, handle);
    *properties = (CUdevprop){
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = 49152,
        .totalConstantMemory = 65536,
        .SIMDWidth = 32,
        .memPitch = 2147483647,
        .regsPerBlock = 65536,
        .clockRate = (int)device->spec->clock_khz,
        .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int length, CUdevice handle) {
    DEVICE_OR_RETURN(text, handle);
    const struct sim_gpu_spec *spec = device->spec;
    char bus_id[32];
    int written = snprintf(bus_id, sizeof bus_id, "%04X:%02X:%02X.0", spec->pci_domain, spec->pci_bus, spec->pci_device);
    if (length <= written) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(text, bus_id, (size_t)written + 1);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *handle, const char *text) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    unsigned int domain = 0, bus = 0, slot = 0;
    if (handle == NULL || text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (int i = 0; i < driver.device_count; i++) {
        const struct sim_gpu_spec *spec = driver.devices[i].spec;
        if (spec->pci_domain == domain && spec->pci_bus == bus && spec->pci_device == slot) {
            *handle = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned int channels,
                                                    CUdevice handle) {
    DEVICE_OR_RETURN(width, handle);
    (void)format;
    *width = channels != 0 ? 268435456 / channels : 268435456;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice handle) {
    DEVICE_OR_RETURN(supported, handle);
    (void)type;
    *supported = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *possible, CUdevice handle, CUdevice peer) {
    DEVICE_OR_RETURN(possible, handle);
    struct device *other;
    CUresult result = device_at(peer, &other);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *possible = device != other;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
                                         CUdevice destination) {
    DEVICE_OR_RETURN(value, source);
    struct device *other;
    CUresult result = device_at(destination, &other);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device == other) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}
