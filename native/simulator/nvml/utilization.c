/* How busy devices and processes are. As on real GPUs, none of it is known of a GPU in MIG mode. */
#include "internal.h"

#define SAMPLE_US (SIM_SAMPLE_NS / 1000u)

/* Nothing here measures the memory bus: half of the time that kernels run is as good a guess as any. */
static unsigned int memory_share(unsigned int busy) {
    return busy / 2;
}

static bool measurable(const struct target *target) {
    return target->compute == NULL && !mig_enabled(target);
}

uint32_t gpu_load(const struct target *target) {
    uint64_t load = sim_engine_utilization(&process, sim_domain(target->gpu, 0));
    for (uint32_t instance = 0; instance < SIM_MAX_INSTANCES; instance++) {
        struct target part = *target;
        if (select_instance(&part, instance)) {
            load += (uint64_t)sim_engine_utilization(&process, instance_domain(&part)) *
                    instance_profile(&part)->multiprocessors / target->spec->multiprocessors;
        }
    }
    return load < 100 ? (uint32_t)load : 100;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, utilization, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!measurable(&target)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    sim_reap(&process);
    utilization->gpu = gpu_load(&target);
    utilization->memory = memory_share(utilization->gpu);
    return NVML_SUCCESS;
}

/* No program can use these engines here, so they are idle; the sampling period is the driver's. */
#define IDLE_ENGINE(function)                                                                                          \
    PAIR_GETTER_IF(function, ANY_DEVICE, measurable(&target), unsigned int, 0, SAMPLE_US)

IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization)

/* ---- per process ---- */

struct process_sample {
    unsigned int pid, busy;
    uint64_t time_us;
};

typedef void (*write_function)(void *samples, unsigned int n, const struct process_sample *sample);

static void write_sample(void *samples, unsigned int n, const struct process_sample *sample) {
    ((nvmlProcessUtilizationSample_t *)samples)[n] = (nvmlProcessUtilizationSample_t){
        .pid = sample->pid,
        .timeStamp = sample->time_us,
        .smUtil = sample->busy,
        .memUtil = memory_share(sample->busy),
    };
}

static void write_info(void *samples, unsigned int n, const struct process_sample *sample) {
    ((nvmlProcessUtilizationInfo_v1_t *)samples)[n] = (nvmlProcessUtilizationInfo_v1_t){
        .pid = sample->pid,
        .timeStamp = sample->time_us,
        .smUtil = sample->busy,
        .memUtil = memory_share(sample->busy),
    };
}

/* One sample for every process that did something lately. Samples are made on a fixed beat, so that asking again for
 * what came after the newest one gives nothing until the next beat. */
static nvmlReturn_t sample_processes(nvmlDevice_t device, unsigned int *count, void *samples, uint64_t last_seen_us,
                                     write_function write) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, count, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!measurable(&target)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    sim_reap(&process);
    struct process_sample sample = {.time_us = realtime_us() / SAMPLE_US * SAMPLE_US};
    if (sample.time_us <= last_seen_us) {
        return NVML_ERROR_NOT_FOUND;
    }
    unsigned int room = samples == NULL ? 0 : *count, found = 0;
    uint32_t domain = sim_domain(target.gpu, 0), high = atomic_load(&process.machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        int pid;
        if (atomic_load(&process.machine->slots[slot].contexts[domain]) == 0 ||
            !sim_slot_alive(&process, slot, &pid) || pid == 0) {
            continue;
        }
        sample.pid = (unsigned int)pid;
        sample.busy = sim_engine_utilization_of(&process, domain, slot);
        if (sample.busy == 0) {
            continue;
        }
        if (found < room) {
            write(samples, found, &sample);
        }
        found++;
    }
    *count = found;
    if (found == 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen) {
    return sample_processes(device, count, samples, last_seen, write_sample);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, info, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (info->version != nvmlProcessesUtilizationInfo_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return sample_processes(device, &info->processSamplesCount, info->procUtilArray, info->lastSeenTimeStamp,
                            write_info);
}
