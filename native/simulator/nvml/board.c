/* The board around the chip: power, heat, clocks, fans, ECC, the PCIe link. All of it follows from the model and
 * from how busy the GPU is. */
#define _GNU_SOURCE
#include "internal.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#define IDLE_TEMPERATURE 32u
#define LOAD_TEMPERATURE 40u /* more, at full load */
#define SLOWDOWN_TEMPERATURE 90u
#define SHUTDOWN_TEMPERATURE 95u
#define IDLE_CLOCK_MHZ 210u
#define HBM_BUS_BITS 1024u /* a wider bus than any board with GDDR has */
#define LANES 16u

/* GeForce boards with ECC leave the factory with it off; the others have it on. */
static nvmlEnableState_t ecc(const struct sim_gpu_spec *spec) {
    return is_geforce(spec) ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
}

static bool has_row_remapping(const struct sim_gpu_spec *spec) {
    return spec->architecture >= NVML_DEVICE_ARCH_AMPERE && ecc(spec) == NVML_FEATURE_ENABLED;
}

static bool is_working(const struct target *target) {
    sim_reap(&process);
    return gpu_in_use(target->gpu) || gpu_load(target) != 0;
}

/* ---- power and heat ---- */

static unsigned int idle_power(const struct sim_gpu_spec *spec) {
    return spec->power_limit_milliwatts / 8;
}

static unsigned int load_power(const struct sim_gpu_spec *spec) {
    return spec->power_limit_milliwatts - spec->power_limit_milliwatts / 16 - idle_power(spec);
}

static unsigned int temperature(const struct target *target) {
    return IDLE_TEMPERATURE + gpu_load(target) * LOAD_TEMPERATURE / 100;
}

/* Idle power since the host started, and what work took on top of it. The sum must never shrink, whatever becomes of
 * the partitions, so work on any of them counts as a seventh of the GPU's. */
static uint64_t energy_millijoules(const struct target *target) {
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    gpu_load(target); /* brings the engines' busy time up to date */
    uint64_t energy = (uint64_t)up.tv_sec * idle_power(target->spec);
    for (uint32_t part = 0; part < SIM_DOMAINS_PER_GPU; part++) {
        const struct sim_engine *engine = &process.machine->engines[sim_domain(target->gpu, part)];
        uint64_t busy_ms = engine->states[atomic_load(&engine->current) & 1].busy_ns / 1000000u;
        energy += busy_ms * load_power(target->spec) / (part == 0 ? 1000u : 1000u * SIM_MAX_INSTANCES);
    }
    return energy;
}

GETTER(nvmlDeviceGetPowerUsage, WHOLE_GPU, unsigned int,
       idle_power(target.spec) + load_power(target.spec) / 100u * gpu_load(&target))
GETTER(nvmlDeviceGetPowerManagementLimit, WHOLE_GPU, unsigned int, target.spec->power_limit_milliwatts)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, WHOLE_GPU, unsigned int, target.spec->power_limit_milliwatts)
GETTER(nvmlDeviceGetEnforcedPowerLimit, WHOLE_GPU, unsigned int, target.spec->power_limit_milliwatts)
GETTER(nvmlDeviceGetPowerManagementMode, WHOLE_GPU, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GETTER(nvmlDeviceGetTotalEnergyConsumption, WHOLE_GPU, unsigned long long, energy_millijoules(&target))
PAIR_GETTER_IF(nvmlDeviceGetPowerManagementLimitConstraints, WHOLE_GPU, true, unsigned int,
               target.spec->power_limit_milliwatts / 4, target.spec->power_limit_milliwatts)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *value) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, value, &target);
    if (result == NVML_SUCCESS && sensor != NVML_TEMPERATURE_GPU) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *value = temperature(&target);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *value) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, value, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (value->version != nvmlTemperature_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (value->sensorType != NVML_TEMPERATURE_GPU) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    value->temperature = (int)temperature(&target);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold,
                                               unsigned int *value) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, value, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    switch (threshold) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        *value = SHUTDOWN_TEMPERATURE;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
        *value = SLOWDOWN_TEMPERATURE;
        return NVML_SUCCESS;
    default:
        return (unsigned int)threshold < NVML_TEMPERATURE_THRESHOLD_COUNT ? NVML_ERROR_NOT_SUPPORTED
                                                                         : NVML_ERROR_INVALID_ARGUMENT;
    }
}

/* ---- fans: only desktop boards have one ---- */

GETTER(nvmlDeviceGetNumFans, WHOLE_GPU, unsigned int, is_geforce(target.spec))
GETTER_IF(nvmlDeviceGetFanSpeed, WHOLE_GPU, is_geforce(target.spec), unsigned int, 30 + gpu_load(&target) / 2)

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed) {
    nvmlReturn_t result = nvmlDeviceGetFanSpeed(device, speed);
    return result == NVML_SUCCESS && fan != 0 ? NVML_ERROR_INVALID_ARGUMENT : result;
}

/* ---- clocks ---- */

static nvmlReturn_t highest_clock(const struct sim_gpu_spec *spec, nvmlClockType_t type, unsigned int *mhz) {
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
        *mhz = spec->clock_khz / 1000;
        return NVML_SUCCESS;
    case NVML_CLOCK_MEM:
        *mhz = spec->memory_clock_khz / 1000;
        return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO:
        *mhz = spec->clock_khz / 1000 * 9 / 10;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, mhz, &target);
    return result == NVML_SUCCESS ? highest_clock(target.spec, type, mhz) : result;
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
    SAME_AS(nvmlDeviceGetMaxClockInfo);
nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
    SAME_AS(nvmlDeviceGetMaxClockInfo);
nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
    SAME_AS(nvmlDeviceGetMaxClockInfo);

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, mhz, &target);
    if (result == NVML_SUCCESS) {
        result = highest_clock(target.spec, type, mhz);
    }
    if (result == NVML_SUCCESS && type != NVML_CLOCK_MEM && !is_working(&target)) {
        *mhz = IDLE_CLOCK_MHZ;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t which, unsigned int *mhz) {
    if ((unsigned int)which >= NVML_CLOCK_ID_COUNT) {
        return initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    }
    return which == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, mhz)
                                          : nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

/* Boards with HBM stay in P0; the others rest in P8. */
static nvmlPstates_t performance_state(const struct target *target) {
    return target->spec->memory_bus_bits >= HBM_BUS_BITS || is_working(target) ? NVML_PSTATE_0 : NVML_PSTATE_8;
}

GETTER(nvmlDeviceGetPerformanceState, WHOLE_GPU, nvmlPstates_t, performance_state(&target))
nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *state) SAME_AS(nvmlDeviceGetPerformanceState);

GETTER(nvmlDeviceGetCurrentClocksEventReasons, WHOLE_GPU, unsigned long long, 0)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, WHOLE_GPU, unsigned long long, nvmlClocksEventReasonAll)
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
    SAME_AS(nvmlDeviceGetCurrentClocksEventReasons);
nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
    SAME_AS(nvmlDeviceGetSupportedClocksEventReasons);

/* ---- modes ---- */

GETTER(nvmlDeviceGetPersistenceMode, WHOLE_GPU, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GETTER(nvmlDeviceGetComputeMode, ANY_DEVICE, nvmlComputeMode_t, NVML_COMPUTEMODE_DEFAULT)
GETTER(nvmlDeviceGetDisplayMode, WHOLE_GPU, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GETTER(nvmlDeviceGetDisplayActive, WHOLE_GPU, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GETTER(nvmlDeviceGetAccountingMode, WHOLE_GPU, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GETTER(nvmlDeviceGetAccountingBufferSize, WHOLE_GPU, unsigned int, 4000)

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, count, &target);
    if (result == NVML_SUCCESS && *count != 0 && pids == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *count = 0;
    }
    return result;
}

/* ---- ECC: simulated memory never fails ---- */

PAIR_GETTER_IF(nvmlDeviceGetEccMode, WHOLE_GPU, true, nvmlEnableState_t, ecc(target.spec), ecc(target.spec))
GETTER(nvmlDeviceGetDefaultEccMode, WHOLE_GPU, nvmlEnableState_t, ecc(target.spec))
GETTER_IF(nvmlDeviceGetRetiredPagesPendingStatus, WHOLE_GPU, ecc(target.spec) == NVML_FEATURE_ENABLED,
          nvmlEnableState_t, NVML_FEATURE_DISABLED)

static nvmlReturn_t no_errors(nvmlDevice_t device, bool good_types, unsigned long long *count) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, count, &target);
    if (result == NVML_SUCCESS && !good_types) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS && ecc(target.spec) == NVML_FEATURE_DISABLED) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (result == NVML_SUCCESS) {
        *count = 0;
    }
    return result;
}

static bool good_error_types(nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter) {
    return (unsigned int)error < NVML_MEMORY_ERROR_TYPE_COUNT && (unsigned int)counter < NVML_ECC_COUNTER_TYPE_COUNT;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *count) {
    return no_errors(device, good_error_types(error, counter), count);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *count) {
    bool good = good_error_types(error, counter) && (unsigned int)location < NVML_MEMORY_LOCATION_COUNT;
    return no_errors(device, good, count);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *times) {
    (void)addresses;
    (void)times;
    unsigned long long none;
    nvmlReturn_t result =
        no_errors(device, (unsigned int)cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT, count == NULL ? NULL : &none);
    if (result == NVML_SUCCESS) {
        *count = 0;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses) {
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    struct target target;
    bool complete = correctable != NULL && uncorrectable != NULL && pending != NULL;
    nvmlReturn_t result = enter(device, WHOLE_GPU, complete ? failed : NULL, &target);
    if (result == NVML_SUCCESS && !has_row_remapping(target.spec)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (result == NVML_SUCCESS) {
        *correctable = *uncorrectable = *pending = *failed = 0;
    }
    return result;
}

/* ---- the PCIe link and where the board sits ---- */

static unsigned int link_generation(const struct sim_gpu_spec *spec) {
    if (spec->architecture >= NVML_DEVICE_ARCH_HOPPER) {
        return 5;
    }
    return spec->architecture >= NVML_DEVICE_ARCH_AMPERE ? 4 : 3;
}

static unsigned int link_speed_mbps(const struct sim_gpu_spec *spec) {
    return 1000u << link_generation(spec); /* 8 GT/s in generation 3, twice as much in each one after */
}

GETTER(nvmlDeviceGetMaxPcieLinkGeneration, WHOLE_GPU, unsigned int, link_generation(target.spec))
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, WHOLE_GPU, unsigned int, link_generation(target.spec))
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, WHOLE_GPU, unsigned int, link_generation(target.spec))
GETTER(nvmlDeviceGetMaxPcieLinkWidth, WHOLE_GPU, unsigned int, LANES)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, WHOLE_GPU, unsigned int, LANES)
GETTER(nvmlDeviceGetPcieLinkMaxSpeed, WHOLE_GPU, unsigned int, link_generation(target.spec))
GETTER(nvmlDeviceGetPcieSpeed, WHOLE_GPU, unsigned int, link_speed_mbps(target.spec))
GETTER(nvmlDeviceGetPcieReplayCounter, WHOLE_GPU, unsigned int, 0)

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, value, &target);
    if (result == NVML_SUCCESS && (unsigned int)counter >= NVML_PCIE_UTIL_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *value = 0; /* copies cost nothing here */
    }
    return result;
}

GETTER_IF(nvmlDeviceGetNumaNodeId, WHOLE_GPU, target.spec->numa_node != UINT32_MAX, unsigned int,
          target.spec->numa_node)

static nvmlReturn_t put_bits(nvmlDevice_t device, unsigned int words, unsigned long *set, long first, long count) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, words == 0 ? NULL : set, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (unsigned int word = 0; word < words; word++) {
        set[word] = 0;
    }
    const long bits = 8 * (long)sizeof *set;
    for (long bit = first; bit < first + count && bit < bits * (long)words; bit++) {
        set[bit / bits] |= 1ul << (bit % bits);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
    return put_bits(device, words, set, 0, sysconf(_SC_NPROCESSORS_CONF));
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                 nvmlAffinityScope_t scope) {
    if (scope > NVML_AFFINITY_SCOPE_SOCKET) {
        return initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    }
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         nvmlAffinityScope_t scope) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, set, &target);
    if (result == NVML_SUCCESS && scope > NVML_AFFINITY_SCOPE_SOCKET) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result != NVML_SUCCESS) {
        return result;
    }
    uint32_t node = target.spec->numa_node == UINT32_MAX ? 0 : target.spec->numa_node;
    return put_bits(device, words, set, (long)node, 1);
}

static nvmlReturn_t enter_pair(nvmlDevice_t device1, nvmlDevice_t device2, const void *answer, struct target *first,
                               struct target *second) {
    nvmlReturn_t result = enter(device1, WHOLE_GPU, answer, first);
    return result == NVML_SUCCESS ? enter(device2, WHOLE_GPU, answer, second) : result;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *level) {
    struct target first, second;
    nvmlReturn_t result = enter_pair(device1, device2, level, &first, &second);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (first.gpu == second.gpu) {
        *level = NVML_TOPOLOGY_INTERNAL;
    } else {
        *level = first.spec->numa_node == second.spec->numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    }
    return NVML_SUCCESS;
}

/* Peers are GPUs of one product, GeForce excepted, and never partitions; they have no NVLink between them. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t capability,
                                    nvmlGpuP2PStatus_t *status) {
    struct target first, second;
    nvmlReturn_t result = enter_pair(device1, device2, status, &first, &second);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if ((unsigned int)capability >= NVML_P2P_CAPS_INDEX_UNKNOWN || first.gpu == second.gpu) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    bool peers = first.spec->pci_device_id == second.spec->pci_device_id && !is_geforce(first.spec) &&
                 !mig_enabled(&first) && !mig_enabled(&second) && capability != NVML_P2P_CAPS_INDEX_NVLINK;
    *status = peers ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
