/* GPU instances: making, finding and destroying them, by the rules of the hardware.
 *
 * An instance needs one of its profile's placements with all its memory slices free, and enough compute slices. `used`
 * is written last when an instance is made and first when it is destroyed, so that readers without the lock, and
 * the next process after a SIGKILL, see whole instances and nothing else. */
#include "internal.h"

static bool overlap(uint32_t start1, uint32_t size1, uint32_t start2, uint32_t size2) {
    return start1 < start2 + size2 && start2 < start1 + size1;
}

static bool placement_free(const struct target *target, const struct sim_placement *placement) {
    for (uint32_t n = 0; n < SIM_MAX_INSTANCES; n++) {
        const struct sim_gpu_instance *instance = &target->state->instances[n];
        if (atomic_load(&instance->used) &&
            overlap(instance->start, instance->size, placement->start, placement->size)) {
            return false;
        }
    }
    return true;
}

/* How many placements of any profile would still be free beside this one. */
static uint32_t left_beside(const struct target *target, const struct sim_placement *taken) {
    uint32_t left = 0;
    for (uint32_t p = 0; p < target->spec->profile_count; p++) {
        const struct sim_profile *profile = &target->spec->profiles[p];
        for (uint32_t n = 0; n < profile->placement_count; n++) {
            const struct sim_placement *other = &profile->placements[n];
            left += !overlap(taken->start, taken->size, other->start, other->size) && placement_free(target, other);
        }
    }
    return left;
}

/* Where the driver would put it: where it is least in the way of others, and there as low as possible. That gives the
 * order seen on real GPUs: a 3g at 4 before 0, a 2g at 4 before 0 and 2, a 1g at 6, then 4, 5, 0, 1, 2, 3. */
static const struct sim_placement *best_placement(const struct target *target, const struct sim_profile *profile) {
    const struct sim_placement *best = NULL;
    uint32_t most = 0;
    for (uint32_t n = 0; n < profile->placement_count; n++) {
        const struct sim_placement *placement = &profile->placements[n];
        if (placement_free(target, placement)) {
            uint32_t left = left_beside(target, placement);
            if (best == NULL || left > most) {
                best = placement;
                most = left;
            }
        }
    }
    return best;
}

/* How many more the profile's own limit and the compute slices allow, room aside. */
static uint32_t allowance(const struct target *target, const struct sim_profile *profile) {
    uint32_t all = 0, taken = 0, same = 0;
    for (uint32_t p = 0; p < target->spec->profile_count; p++) {
        uint32_t slices = target->spec->profiles[p].compute_slices;
        all = slices > all ? slices : all;
    }
    for (uint32_t n = 0; n < SIM_MAX_INSTANCES; n++) {
        const struct sim_gpu_instance *instance = &target->state->instances[n];
        if (atomic_load(&instance->used)) {
            const struct sim_profile *other = &target->spec->profiles[instance->profile];
            taken += other->compute_slices;
            same += other == profile;
        }
    }
    uint32_t by_limit = profile->max_instances > same ? profile->max_instances - same : 0;
    uint32_t by_slices = all > taken ? (all - taken) / profile->compute_slices : 0;
    return by_limit < by_slices ? by_limit : by_slices;
}

static bool id_taken(const struct target *target, uint32_t id) {
    for (uint32_t n = 0; n < SIM_MAX_INSTANCES; n++) {
        const struct sim_gpu_instance *instance = &target->state->instances[n];
        if (atomic_load(&instance->used) && instance->id == id) {
            return true;
        }
    }
    return false;
}

/* The driver numbers instances by place, as nodes of a binary tree: 0 is the whole GPU, 1 and 2 its halves, 3 to 6 the
 * quarters, 7 to 14 the eighths. A GPU described by hand may have sizes that are no such part: then the next free. */
static uint32_t instance_id(const struct target *target, const struct sim_placement *placement) {
    uint32_t whole = placement->size;
    for (uint32_t p = 0; p < target->spec->profile_count; p++) {
        uint32_t slices = target->spec->profiles[p].memory_slices;
        whole = slices > whole ? slices : whole;
    }
    uint32_t id = whole / placement->size - 1 + placement->start / placement->size;
    while (id_taken(target, id)) {
        id++;
    }
    return id;
}

uint32_t next_serial(void) {
    uint32_t serial;
    do {
        serial = atomic_fetch_add(&process.machine->next_instance_id, 1) + 1;
    } while (serial == 0);
    return serial;
}

static nvmlReturn_t place(const struct target *target, const struct sim_profile *profile,
                          const struct sim_placement *placement, nvmlGpuInstance_t *handle) {
    for (uint32_t n = 0; n < SIM_MAX_INSTANCES; n++) {
        struct sim_gpu_instance *instance = &target->state->instances[n];
        if (atomic_load(&instance->used)) {
            continue;
        }
        instance->id = instance_id(target, placement);
        instance->profile = (uint32_t)(profile - target->spec->profiles);
        instance->start = placement->start;
        instance->size = placement->size;
        for (uint32_t c = 0; c < SIM_MAX_COMPUTE_INSTANCES; c++) {
            atomic_store(&instance->compute[c].used, 0);
        }
        atomic_store(&instance->used, next_serial());
        *handle = gpu_instance_handle(target, n);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* What all functions about a profile of a GPU in MIG mode check first. */
static nvmlReturn_t enter_profile(nvmlDevice_t device, unsigned int id, const void *answer, struct target *target,
                                  const struct sim_profile **profile) {
    nvmlReturn_t result = enter(device, WHOLE_GPU, answer, target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *profile = profile_with_id(target->spec, id);
    if (*profile == NULL || !mig_enabled(target)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    return administrator() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count) {
    struct target target;
    const struct sim_profile *profile;
    nvmlReturn_t result = enter_profile(device, id, count, &target, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    uint32_t room = 0; /* placements of one profile never overlap each other */
    for (uint32_t n = 0; n < profile->placement_count; n++) {
        room += placement_free(&target, &profile->placements[n]);
    }
    uint32_t allowed = allowance(&target, profile);
    *count = room < allowed ? room : allowed;
    return NVML_SUCCESS;
}

static nvmlReturn_t create(const struct target *target, const struct sim_profile *profile,
                           const struct sim_placement *wanted, nvmlGpuInstance_t *handle) {
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    sim_lock(&process);
    const struct sim_placement *placement = wanted != NULL ? wanted : best_placement(target, profile);
    if (!mig_enabled(target)) {
        result = NVML_ERROR_NOT_SUPPORTED; /* another process turned it off meanwhile */
    } else if (placement != NULL && placement_free(target, placement) && allowance(target, profile) != 0) {
        result = place(target, profile, placement, handle);
    }
    sim_unlock(&process);
    return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    struct target target;
    const struct sim_profile *profile;
    nvmlReturn_t result = enter_profile(device, id, instance, &target, &profile);
    return result == NVML_SUCCESS ? create(&target, profile, NULL, instance) : result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance) {
    struct target target;
    const struct sim_profile *profile;
    nvmlReturn_t result = enter_profile(device, id, placement == NULL ? NULL : instance, &target, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (uint32_t n = 0; n < profile->placement_count; n++) {
        const struct sim_placement *possible = &profile->placements[n];
        if (possible->start == placement->start && possible->size == placement->size) {
            return create(&target, profile, possible, instance);
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

static bool has_compute_instances(const struct sim_gpu_instance *instance) {
    for (uint32_t c = 0; c < SIM_MAX_COMPUTE_INSTANCES; c++) {
        if (atomic_load(&instance->compute[c].used)) {
            return true;
        }
    }
    return false;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
    struct target target;
    nvmlReturn_t result = enter_gpu_instance(handle, handle, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    sim_reap(&process);
    sim_lock(&process);
    result = enter_gpu_instance(handle, handle, &target); /* again: it may have gone while we waited */
    if (result == NVML_SUCCESS) {
        if (has_compute_instances(target.instance) || domain_in_use(instance_domain(&target))) {
            result = NVML_ERROR_IN_USE;
        } else {
            atomic_store(&target.instance->used, 0);
        }
    }
    sim_unlock(&process);
    return result;
}

/* In the order of their numbers, which is the order of their places. */
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
                                       unsigned int *count) {
    struct target target;
    const struct sim_profile *profile;
    nvmlReturn_t result = enter_profile(device, id, instances == NULL ? NULL : count, &target, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    uint32_t order[SIM_MAX_INSTANCES], found = 0;
    for (uint32_t n = 0; n < SIM_MAX_INSTANCES; n++) {
        const struct sim_gpu_instance *instance = &target.state->instances[n];
        if (!atomic_load(&instance->used) || &target.spec->profiles[instance->profile] != profile) {
            continue;
        }
        uint32_t at = found++;
        for (; at > 0 && target.state->instances[order[at - 1]].id > instance->id; at--) {
            order[at] = order[at - 1];
        }
        order[at] = n;
    }
    for (uint32_t n = 0; n < found; n++) {
        instances[n] = gpu_instance_handle(&target, order[n]);
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, instance, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!mig_enabled(&target)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    for (uint32_t n = 0; n < SIM_MAX_INSTANCES; n++) {
        if (select_instance(&target, n) && target.instance->id == id) {
            *instance = gpu_instance_handle(&target, n);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info) {
    struct target target;
    nvmlReturn_t result = enter_gpu_instance(handle, info, &target);
    if (result == NVML_SUCCESS) {
        *info = (nvmlGpuInstanceInfo_t){
            .device = gpu_handle(target.gpu),
            .id = target.instance->id,
            .profileId = instance_profile(&target)->id,
            .placement = {.start = target.instance->start, .size = target.instance->size},
        };
    }
    return result;
}
