/* MIG devices: a compute instance seen as a device of its own. */
#include "internal.h"

#include <stddef.h>
#include <string.h>

GETTER(nvmlDeviceIsMigDeviceHandle, ANY_DEVICE, unsigned int, target.compute != NULL)

/* About a whole GPU there is nothing to say here. */
#define MIG_GETTER(function, type, expression) GETTER_IF(function, ANY_DEVICE, target.compute != NULL, type, expression)
MIG_GETTER(nvmlDeviceGetGpuInstanceId, unsigned int, target.instance->id)
MIG_GETTER(nvmlDeviceGetComputeInstanceId, unsigned int, target.compute->id)
MIG_GETTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t, gpu_handle(target.gpu))

/* As many as the GPU has compute slices to give, and none while MIG is off. */
GETTER(nvmlDeviceGetMaxMigDeviceCount, WHOLE_GPU, unsigned int, mig_enabled(&target) ? SIM_MAX_INSTANCES : 0)

/* The MIG devices of a GPU in NVML's order: by the number of the GPU instance, then by that of the compute instance. */
struct mig_devices {
    struct {
        uint32_t instance, compute;
        uint64_t rank;
    } items[SIM_MAX_INSTANCES * SIM_MAX_COMPUTE_INSTANCES];
    uint32_t count;
};

static void list_mig_devices(const struct target *parent, struct mig_devices *devices) {
    struct target target = *parent;
    devices->count = 0;
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++) {
        for (uint32_t c = 0; select_instance(&target, i) && c < SIM_MAX_COMPUTE_INSTANCES; c++) {
            if (!select_compute(&target, c) || !reaches_compute(&target)) {
                continue;
            }
            uint64_t rank = (uint64_t)target.instance->id << 32 | target.compute->id;
            uint32_t at = devices->count++;
            for (; at > 0 && devices->items[at - 1].rank > rank; at--) {
                devices->items[at] = devices->items[at - 1];
            }
            devices->items[at].instance = i;
            devices->items[at].compute = c;
            devices->items[at].rank = rank;
        }
    }
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig_device) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, mig_device, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!target.spec->mig_capable) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    struct mig_devices devices;
    list_mig_devices(&target, &devices);
    if (index >= devices.count) {
        return NVML_ERROR_NOT_FOUND;
    }
    *mig_device = mig_device_handle(&target, devices.items[index].instance, devices.items[index].compute);
    return NVML_SUCCESS;
}

static unsigned int mig_device_index(const struct target *target) {
    struct mig_devices devices;
    list_mig_devices(target, &devices);
    uint32_t index = 0;
    while (index < devices.count && (devices.items[index].instance != target->instance_index ||
                                     devices.items[index].compute != target->compute_index)) {
        index++;
    }
    return index;
}

GETTER(nvmlDeviceGetIndex, ANY_DEVICE, unsigned int,
       target.compute != NULL ? mig_device_index(&target) : reachable_before(target.gpu))

/* The first version ended before the slices, and so does its caller's structure. */
static nvmlReturn_t put_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes, size_t size) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, attributes, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (target.compute == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const struct sim_profile *profile = instance_profile(&target);
    nvmlDeviceAttributes_t all = {
        .multiprocessorCount = compute_profile_multiprocessors(&target, target.compute->slices),
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedEncoderCount = profile->encoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
        .gpuInstanceSliceCount = profile->compute_slices,
        .computeInstanceSliceCount = target.compute->slices,
        .memorySizeMB = profile->memory_bytes / MEBIBYTE,
    };
    memcpy(attributes, &all, size);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return put_attributes(device, attributes, sizeof *attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return put_attributes(device, attributes, offsetof(nvmlDeviceAttributes_t, gpuInstanceSliceCount));
}
