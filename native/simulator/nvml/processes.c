/* Which processes have a context on a device, and how much of its memory each holds. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* One process on one memory domain. The three versions of NVML's structure are prefixes of this. */
struct entry {
    unsigned int pid;
    uint64_t bytes;
    unsigned int gpu_instance, compute_instance;
};

struct entries {
    struct entry *items;
    unsigned int count, capacity;
};

bool domain_in_use(uint32_t domain) {
    uint32_t high = atomic_load(&process.machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        if (atomic_load(&process.machine->slots[slot].contexts[domain]) != 0) {
            return true;
        }
    }
    return false;
}

bool gpu_in_use(uint32_t gpu) {
    for (uint32_t part = 0; part < SIM_DOMAINS_PER_GPU; part++) {
        if (domain_in_use(sim_domain(gpu, part))) {
            return true;
        }
    }
    return false;
}

/* A slot knows the GPU instance it runs on but not the compute instance: the first one stands for all. */
static unsigned int first_compute_instance(const struct sim_gpu_instance *instance) {
    for (uint32_t compute = 0; compute < SIM_MAX_COMPUTE_INSTANCES; compute++) {
        if (atomic_load(&instance->compute[compute].used)) {
            return instance->compute[compute].id;
        }
    }
    return NOT_MIG;
}

/* NVML's lists. A client of MPS is in two of them. */
enum list { COMPUTE_LIST = 1, GRAPHICS_LIST = 2, MPS_LIST = 4, ALL_LISTS = 7 };

static bool is_in(uint32_t slot, enum list list) {
    static const unsigned int lists[] = {
        [SIM_COMPUTE] = COMPUTE_LIST,
        [SIM_OBSERVER] = 0,
        [SIM_GRAPHICS] = GRAPHICS_LIST,
        [SIM_MPS] = COMPUTE_LIST | MPS_LIST,
    };
    uint32_t kind = process.machine->slots[slot].kind;
    return kind <= SIM_MPS && (lists[kind] & list) != 0;
}

/* Adds the processes on one domain. A process that the caller's PID namespace cannot name is left out. */
static bool collect_domain(struct entries *entries, const struct target *target, uint32_t part, enum list list) {
    uint32_t domain = sim_domain(target->gpu, part);
    struct entry entry = {.gpu_instance = NOT_MIG, .compute_instance = NOT_MIG};
    if (part != 0) {
        const struct sim_gpu_instance *instance = &target->state->instances[part - 1];
        entry.gpu_instance = instance->id;
        entry.compute_instance = first_compute_instance(instance);
    }
    uint32_t high = atomic_load(&process.machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        int pid;
        if (atomic_load(&process.machine->slots[slot].contexts[domain]) == 0 || !is_in(slot, list) ||
            !sim_slot_alive(&process, slot, &pid) || pid == 0) {
            continue;
        }
        if (entries->count == entries->capacity) {
            unsigned int capacity = entries->capacity * 2 + 16;
            struct entry *grown = realloc(entries->items, capacity * sizeof *grown);
            if (grown == NULL) {
                return false;
            }
            entries->items = grown;
            entries->capacity = capacity;
        }
        entry.pid = (unsigned int)pid;
        entry.bytes = sim_memory_used_by(process.machine, slot, domain) * SIM_UNIT;
        entries->items[entries->count++] = entry;
    }
    return true;
}

static bool collect(struct entries *entries, const struct target *target, enum list list) {
    if (target->compute != NULL) {
        bool stands_for_all = first_compute_instance(target->instance) == target->compute->id;
        return !stands_for_all || collect_domain(entries, target, 1 + target->instance_index, list);
    }
    for (uint32_t part = 0; part < SIM_DOMAINS_PER_GPU; part++) {
        if (!collect_domain(entries, target, part, list)) {
            return false;
        }
    }
    return true;
}

typedef void (*write_function)(void *infos, unsigned int n, const struct entry *entry);

static void write_v1(void *infos, unsigned int n, const struct entry *entry) {
    ((nvmlProcessInfo_v1_t *)infos)[n] = (nvmlProcessInfo_v1_t){entry->pid, entry->bytes};
}

static void write_v2(void *infos, unsigned int n, const struct entry *entry) {
    ((nvmlProcessInfo_v2_t *)infos)[n] =
        (nvmlProcessInfo_v2_t){entry->pid, entry->bytes, entry->gpu_instance, entry->compute_instance};
}

/* What _v3 writes: as its header says, or as the driver did that had another record than its header. */
static void write_v3(void *infos, unsigned int n, const struct entry *entry) {
    struct {
        nvmlProcessInfo_v2_t known;
        unsigned long long protected_bytes;
    } record = {{entry->pid, entry->bytes, entry->gpu_instance, entry->compute_instance}, 0};
    size_t size = process.machine->description.process_record_bytes;
    size = size == sizeof record ? size : sizeof record.known;
    memcpy((char *)infos + n * size, &record, size);
}

static void write_detail(void *infos, unsigned int n, const struct entry *entry) {
    ((nvmlProcessDetail_v1_t *)infos)[n] = (nvmlProcessDetail_v1_t){
        .pid = entry->pid,
        .usedGpuMemory = entry->bytes,
        .gpuInstanceId = entry->gpu_instance,
        .computeInstanceId = entry->compute_instance,
        .usedGpuCcProtectedMemory = 0,
    };
}

static nvmlReturn_t list_processes(nvmlDevice_t device, enum list list, unsigned int *count, void *infos,
                                   write_function write) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, count, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (*count != 0 && infos == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (target.compute == NULL && mig_enabled(&target) && !administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    struct entries entries = {0};
    sim_reap(&process);
    if (!collect(&entries, &target, list)) {
        free(entries.items);
        return NVML_ERROR_MEMORY;
    }
    if (entries.count <= *count) {
        for (unsigned int n = 0; n < entries.count; n++) {
            write(infos, n, &entries.items[n]);
        }
    } else {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    *count = entries.count;
    free(entries.items);
    return result;
}

#define PROCESS_LIST(function, list, type, write)                                                                      \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *infos) {                                     \
        return list_processes(device, list, count, infos, write);                                                      \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE_LIST, nvmlProcessInfo_v1_t, write_v1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE_LIST, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE_LIST, nvmlProcessInfo_t, write_v3)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS_LIST, nvmlProcessInfo_v1_t, write_v1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS_LIST, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS_LIST, nvmlProcessInfo_t, write_v3)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS_LIST, nvmlProcessInfo_v1_t, write_v1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS_LIST, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS_LIST, nvmlProcessInfo_t, write_v3)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, list, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (list->version != nvmlProcessDetailList_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (list->mode >= NVML_PROCESS_MODE_MAX) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (target.spec->architecture < NVML_DEVICE_ARCH_HOPPER) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    static const enum list lists[] = {
        [NVML_PROCESS_MODE_COMPUTE] = COMPUTE_LIST,
        [NVML_PROCESS_MODE_GRAPHICS] = GRAPHICS_LIST,
        [NVML_PROCESS_MODE_MPS] = MPS_LIST,
        [NVML_PROCESS_MODE_ALL] = ALL_LISTS,
    };
    return list_processes(device, lists[list->mode], &list->numProcArrayEntries, list->procArray, write_detail);
}
