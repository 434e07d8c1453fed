/* Handles: how a GPU, a MIG device, a GPU instance and a compute instance are named to callers, and found.
 *
 * A handle is a number and points nowhere, so a bad one can be told from a good one without following it. It carries
 * the serial number that the instance got when it was made (in `used`, never given twice): a handle that outlived its
 * instance is refused and never means another one that took its place. */
#define _GNU_SOURCE
#include "internal.h"

#include "device_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum kind { KIND_GPU = 1, KIND_MIG_DEVICE, KIND_GPU_INSTANCE, KIND_COMPUTE_INSTANCE };

/* The upper bits of no address in user space. */
#define HANDLE_TAG 0x6e76ull
#define HANDLE_TAG_SHIFT 48
#define KIND_SHIFT 44
#define GPU_SHIFT 40
#define INSTANCE_SHIFT 36
#define COMPUTE_SHIFT 32
#define FIELD_MASK 0xFu

static void *make_handle(enum kind kind, uint32_t gpu, uint32_t instance, uint32_t compute, uint32_t serial) {
    uint64_t handle = HANDLE_TAG << HANDLE_TAG_SHIFT | (uint64_t)kind << KIND_SHIFT | (uint64_t)gpu << GPU_SHIFT |
                      (uint64_t)instance << INSTANCE_SHIFT | (uint64_t)compute << COMPUTE_SHIFT | serial;
    return (void *)(uintptr_t)handle;
}

nvmlDevice_t gpu_handle(uint32_t gpu) {
    return make_handle(KIND_GPU, gpu, 0, 0, 0);
}

nvmlDevice_t mig_device_handle(const struct target *target, uint32_t instance, uint32_t compute) {
    uint32_t serial = atomic_load(&target->state->instances[instance].compute[compute].used);
    return make_handle(KIND_MIG_DEVICE, target->gpu, instance, compute, serial);
}

nvmlGpuInstance_t gpu_instance_handle(const struct target *target, uint32_t instance) {
    uint32_t serial = atomic_load(&target->state->instances[instance].used);
    return make_handle(KIND_GPU_INSTANCE, target->gpu, instance, 0, serial);
}

nvmlComputeInstance_t compute_instance_handle(const struct target *target, uint32_t compute) {
    uint32_t serial = atomic_load(&target->instance->compute[compute].used);
    return make_handle(KIND_COMPUTE_INSTANCE, target->gpu, target->instance_index, compute, serial);
}

static struct target gpu_target(uint32_t gpu) {
    return (struct target){
        .gpu = gpu,
        .spec = &process.machine->description.gpus[gpu],
        .state = &process.machine->gpus[gpu],
    };
}

bool select_instance(struct target *target, uint32_t instance) {
    if (instance >= SIM_MAX_INSTANCES || !atomic_load(&target->state->instances[instance].used)) {
        return false;
    }
    target->instance_index = instance;
    target->instance = &target->state->instances[instance];
    target->compute = NULL;
    return true;
}

bool select_compute(struct target *target, uint32_t compute) {
    if (compute >= SIM_MAX_COMPUTE_INSTANCES || !atomic_load(&target->instance->compute[compute].used)) {
        return false;
    }
    target->compute_index = compute;
    target->compute = &target->instance->compute[compute];
    return true;
}

/* The kind of a good handle, and what it stands for; 0 for anything else. */
static enum kind decode(const void *handle, struct target *target) {
    uint64_t number = (uint64_t)(uintptr_t)handle;
    uint32_t gpu = (number >> GPU_SHIFT) & FIELD_MASK, serial = (uint32_t)number;
    if (number >> HANDLE_TAG_SHIFT != HANDLE_TAG || gpu >= process.machine->description.gpu_count) {
        return 0;
    }
    *target = gpu_target(gpu);
    enum kind kind = (number >> KIND_SHIFT) & FIELD_MASK;
    if (kind == KIND_GPU) {
        return kind;
    }
    if (!select_instance(target, (number >> INSTANCE_SHIFT) & FIELD_MASK)) {
        return 0;
    }
    if (kind == KIND_GPU_INSTANCE) {
        return atomic_load(&target->instance->used) == serial ? kind : 0;
    }
    if (!select_compute(target, (number >> COMPUTE_SHIFT) & FIELD_MASK)) {
        return 0;
    }
    return atomic_load(&target->compute->used) == serial ? kind : 0;
}

static nvmlReturn_t enter_any(const void *handle, const void *answer, struct target *target, enum kind *kind) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (answer == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *kind = decode(handle, target);
    if (*kind == 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return atomic_load(&target->state->lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t enter(nvmlDevice_t device, enum reach reach, const void *answer, struct target *target) {
    enum kind kind;
    nvmlReturn_t result = enter_any(device, answer, target, &kind);
    if (result == NVML_SUCCESS && kind != KIND_GPU && kind != KIND_MIG_DEVICE) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return result == NVML_SUCCESS && kind == KIND_MIG_DEVICE && reach == WHOLE_GPU ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t enter_gpu_instance(nvmlGpuInstance_t handle, const void *answer, struct target *target) {
    enum kind kind;
    nvmlReturn_t result = enter_any(handle, answer, target, &kind);
    return result == NVML_SUCCESS && kind != KIND_GPU_INSTANCE ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t enter_compute_instance(nvmlComputeInstance_t handle, const void *answer, struct target *target) {
    enum kind kind;
    nvmlReturn_t result = enter_any(handle, answer, target, &kind);
    return result == NVML_SUCCESS && kind != KIND_COMPUTE_INSTANCE ? NVML_ERROR_INVALID_ARGUMENT : result;
}

/* ---- finding devices. A GPU that is lost is still counted and found; only queries about it fail. ---- */

static bool reachable(uint32_t gpu) {
    return device_file_of_gpu(process.machine, gpu);
}

uint32_t reachable_before(uint32_t gpu) {
    uint32_t count = 0;
    for (uint32_t other = 0; other < gpu; other++) {
        count += reachable(other);
    }
    return count;
}

uint32_t reachable_gpus(void) {
    return reachable_before(process.machine->description.gpu_count);
}

bool reaches_compute(const struct target *target) {
    return device_file_of_compute_instance(process.machine, target->gpu, target->instance_index,
                                           target->compute_index);
}

static nvmlReturn_t enter_search(const void *key, nvmlDevice_t *device) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    return key == NULL || device == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = reachable_gpus();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) SAME_AS(nvmlDeviceGetCount_v2);

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    uint32_t gpus = process.machine->description.gpu_count;
    for (uint32_t gpu = 0; device != NULL && gpu < gpus; gpu++) {
        if (reachable(gpu) && index-- == 0) {
            *device = gpu_handle(gpu);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
    SAME_AS(nvmlDeviceGetHandleByIndex_v2);

/* A MIG device is known by its own UUID and, as before R470, as "MIG-<UUID of the GPU>/<GPU instance>/<compute
 * instance>". */
static bool is_mig_device_named(const struct target *target, const char *uuid) {
    if (strcasecmp(target->compute->uuid, uuid) == 0) {
        return true;
    }
    char name[sizeof target->spec->uuid + 32];
    snprintf(name, sizeof name, "MIG-%s/%u/%u", target->spec->uuid, target->instance->id, target->compute->id);
    return strcasecmp(name, uuid) == 0;
}

static bool find_mig_device(struct target *target, const char *uuid, nvmlDevice_t *device) {
    for (uint32_t instance = 0; instance < SIM_MAX_INSTANCES; instance++) {
        if (!select_instance(target, instance)) {
            continue;
        }
        for (uint32_t compute = 0; compute < SIM_MAX_COMPUTE_INSTANCES; compute++) {
            if (select_compute(target, compute) && reaches_compute(target) && is_mig_device_named(target, uuid)) {
                *device = mig_device_handle(target, instance, compute);
                return true;
            }
        }
    }
    return false;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = enter_search(uuid, device);
    for (uint32_t gpu = 0; result == NVML_SUCCESS && gpu < process.machine->description.gpu_count; gpu++) {
        struct target target = gpu_target(gpu);
        if (reachable(gpu) && strcasecmp(target.spec->uuid, uuid) == 0) {
            *device = gpu_handle(gpu);
            return NVML_SUCCESS;
        }
        if (find_mig_device(&target, uuid, device)) {
            return NVML_SUCCESS;
        }
    }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = enter_search(uuid, device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (uuid->version != nvmlUUID_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (uuid->type == NVML_UUID_TYPE_ASCII) {
        char text[sizeof uuid->value.str + 1] = {0}; /* the caller's need not be terminated */
        memcpy(text, uuid->value.str, sizeof uuid->value.str);
        return nvmlDeviceGetHandleByUUID(text, device);
    }
    if (uuid->type != NVML_UUID_TYPE_BINARY) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const unsigned char *b = uuid->value.bytes;
    char text[48];
    for (int mig = 0; mig < 2; mig++) {
        snprintf(text, sizeof text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                 mig ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
                 b[13], b[14], b[15]);
        result = nvmlDeviceGetHandleByUUID(text, device);
        if (result != NVML_ERROR_NOT_FOUND) {
            break;
        }
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    nvmlReturn_t result = enter_search(serial, device);
    for (uint32_t gpu = 0; result == NVML_SUCCESS && gpu < process.machine->description.gpu_count; gpu++) {
        const char *candidate = gpu_target(gpu).spec->serial;
        if (reachable(gpu) && candidate[0] != '\0' && strcmp(candidate, serial) == 0) {
            *device = gpu_handle(gpu);
            return NVML_SUCCESS;
        }
    }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

/* "0000:07:00.0", "00000000:07:00.0", or without the domain; the function may be left out. */
static bool parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *slot) {
    unsigned int function = 0;
    int read = 0;
    if (sscanf(text, "%8x:%2x:%2x%n", domain, bus, slot, &read) != 3) {
        *domain = 0;
        if (sscanf(text, "%2x:%2x%n", bus, slot, &read) != 2) {
            return false;
        }
    }
    if (text[read] == '.') {
        int more = 0;
        if (sscanf(text + read, ".%1x%n", &function, &more) != 1) {
            return false;
        }
        read += more;
    }
    return text[read] == '\0' && function == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    nvmlReturn_t result = enter_search(bus_id, device);
    unsigned int domain, bus, slot;
    if (result == NVML_SUCCESS && !parse_bus_id(bus_id, &domain, &bus, &slot)) {
        return NVML_ERROR_NOT_FOUND;
    }
    for (uint32_t gpu = 0; result == NVML_SUCCESS && gpu < process.machine->description.gpu_count; gpu++) {
        const struct sim_gpu_spec *spec = gpu_target(gpu).spec;
        if (reachable(gpu) && spec->pci_domain == domain && spec->pci_bus == bus && spec->pci_device == slot) {
            *device = gpu_handle(gpu);
            return NVML_SUCCESS;
        }
    }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
    SAME_AS(nvmlDeviceGetHandleByPciBusId_v2);
