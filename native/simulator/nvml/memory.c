/* Device memory as NVML counts it: of the GPU, or of the GPU instance a MIG device belongs to. */
#include "internal.h"

struct usage {
    uint64_t total, used;
};

/* The whole GPU's numbers tell what all tenants of its partitions hold, so with MIG only an administrator sees them. */
static nvmlReturn_t measure(nvmlDevice_t device, const void *answer, struct usage *usage) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, answer, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (target.compute == NULL && mig_enabled(&target) && !administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    sim_reap(&process);
    uint64_t used = 0, capacity;
    if (target.compute != NULL) {
        capacity = sim_memory_capacity(process.machine, instance_domain(&target));
        used = sim_memory_used(&process, instance_domain(&target));
    } else {
        capacity = sim_memory_capacity(process.machine, sim_domain(target.gpu, 0));
        for (uint32_t part = 0; part < SIM_DOMAINS_PER_GPU; part++) {
            used += sim_memory_used(&process, sim_domain(target.gpu, part));
        }
    }
    usage->total = capacity * SIM_UNIT;
    usage->used = used < capacity ? used * SIM_UNIT : usage->total;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct usage usage;
    nvmlReturn_t result = measure(device, memory, &usage);
    if (result == NVML_SUCCESS) {
        *memory = (nvmlMemory_t){.total = usage.total, .free = usage.total - usage.used, .used = usage.used};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct usage usage;
    nvmlReturn_t result = measure(device, memory, &usage);
    if (result == NVML_SUCCESS && memory->version != nvmlMemory_v2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (result == NVML_SUCCESS) {
        memory->total = usage.total;
        memory->reserved = 0; /* a simulated driver needs none for itself */
        memory->free = usage.total - usage.used;
        memory->used = usage.used;
    }
    return result;
}

/* BAR1 spans all of memory, rounded up to what a PCI bar can be. Nothing maps it here. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1) {
    struct usage usage;
    nvmlReturn_t result = measure(device, bar1, &usage);
    if (result == NVML_SUCCESS) {
        unsigned long long size = MEBIBYTE;
        while (size < usage.total) {
            size *= 2;
        }
        *bar1 = (nvmlBAR1Memory_t){.bar1Total = size, .bar1Free = size - MEBIBYTE, .bar1Used = MEBIBYTE};
    }
    return result;
}
