/* Device memory as NVML counts it: of the GPU, or of the GPU instance a MIG device belongs to. */
#include "internal.h"

struct usage {
    uint64_t total, used;
};

enum { MOST_LOOKS = 16 };

static uint64_t look(const struct target *target) {
    sim_reap(&process);
    if (target->compute != NULL) {
        return sim_memory_used(&process, instance_domain(target));
    }
    uint64_t used = 0;
    for (uint32_t part = 0; part < SIM_DOMAINS_PER_GPU; part++) {
        used += sim_memory_used(&process, sim_domain(target->gpu, part));
    }
    return used;
}

/* Processes go on while they are added up: what one of them frees, or leaves when it dies, may be counted once more with
 * the one that took it. So it is looked again until two looks agree, and of what never stands still the least is taken. */
static uint64_t look_steadily(const struct target *target) {
    uint64_t before = look(target), least = before;
    for (int looks = 1; looks < MOST_LOOKS; looks++) {
        uint64_t now = look(target);
        if (now == before) {
            return now;
        }
        least = now < least ? now : least;
        before = now;
    }
    return least;
}

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
    uint32_t domain = target.compute != NULL ? instance_domain(&target) : sim_domain(target.gpu, 0);
    uint64_t capacity = sim_memory_capacity(process.machine, domain), used = look_steadily(&target);
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
