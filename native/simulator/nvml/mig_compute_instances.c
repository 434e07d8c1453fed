/* Compute instances: the parts of a GPU instance that programs run on. */
#define _GNU_SOURCE
#include "internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- UUIDs ---- */

static uint64_t scramble(uint64_t value) { /* the finalizer of splitmix64 */
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

/* As with the real driver the UUID follows from the GPU's and from both numbers: the same layout made again gets
 * the same UUIDs. It has the form of a version 5 UUID. */
static void make_uuid(const struct target *target, uint32_t compute, char *uuid, size_t size) {
    char name[sizeof target->spec->uuid + 32];
    int length = snprintf(name, sizeof name, "%s/%u/%u", target->spec->uuid, target->instance->id, compute);
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
    for (int n = 0; n < length; n++) {
        hash = (hash ^ (unsigned char)name[n]) * 0x100000001b3ull;
    }
    uint64_t high = scramble(hash), low = scramble(hash + 0x9e3779b97f4a7c15ull);
    high = (high & ~0xF000ull) | 0x5000u;
    low = (low & ~(3ull << 62)) | 2ull << 62;
    snprintf(uuid, size, "MIG-%08x-%04x-%04x-%04x-%012llx", (unsigned int)(high >> 32),
             (unsigned int)(high >> 16) & 0xFFFFu, (unsigned int)high & 0xFFFFu, (unsigned int)(low >> 48),
             (unsigned long long)(low & 0xFFFFFFFFFFFFull));
}

/* ---- room ---- */

static bool slices_free(const struct sim_gpu_instance *instance, uint32_t start, uint32_t slices) {
    for (uint32_t c = 0; c < SIM_MAX_COMPUTE_INSTANCES; c++) {
        const struct sim_compute_instance *other = &instance->compute[c];
        if (atomic_load(&other->used) && start < other->start + other->slices && other->start < start + slices) {
            return false;
        }
    }
    return true;
}

/* What all functions about a compute profile of a GPU instance check first. The id of a profile is its number. */
static nvmlReturn_t enter_profile(nvmlGpuInstance_t handle, unsigned int id, const void *answer, struct target *target,
                                  uint32_t *slices) {
    nvmlReturn_t result = enter_gpu_instance(handle, answer, target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *slices = compute_profile_slices(target, id);
    if (*slices == 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    return administrator() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned int id,
                                                                unsigned int *count) {
    struct target target;
    uint32_t slices, start;
    nvmlReturn_t result = enter_profile(handle, id, count, &target, &slices);
    if (result == NVML_SUCCESS) {
        *count = 0;
        for (uint32_t n = 0; compute_placement(&target, slices, n, &start); n++) {
            *count += slices_free(target.instance, start, slices);
        }
    }
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t handle, unsigned int id,
                                                                 nvmlComputeInstancePlacement_t *placements,
                                                                 unsigned int *count) {
    struct target target;
    uint32_t slices, start, n = 0;
    nvmlReturn_t result = enter_profile(handle, id, count, &target, &slices);
    if (result == NVML_SUCCESS) {
        for (; compute_placement(&target, slices, n, &start); n++) {
            if (placements != NULL) {
                placements[n] = (nvmlComputeInstancePlacement_t){start, slices};
            }
        }
        *count = n;
    }
    return result;
}

/* ---- making and destroying: see mig_gpu_instances.c for the order of writes ---- */

static nvmlReturn_t place(const struct target *target, unsigned int profile, uint32_t slices, uint32_t start,
                          nvmlComputeInstance_t *handle) {
    for (uint32_t c = 0; c < SIM_MAX_COMPUTE_INSTANCES; c++) {
        struct sim_compute_instance *compute = &target->instance->compute[c];
        if (atomic_load(&compute->used)) {
            continue;
        }
        compute->id = c;
        compute->profile = profile;
        compute->start = start;
        compute->slices = slices;
        make_uuid(target, c, compute->uuid, sizeof compute->uuid);
        atomic_store(&compute->used, next_serial());
        *handle = compute_instance_handle(target, c);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* At the wanted placement, or at the first that is free. */
static nvmlReturn_t create(nvmlGpuInstance_t handle, unsigned int id, const nvmlComputeInstancePlacement_t *wanted,
                           nvmlComputeInstance_t *compute) {
    struct target target;
    uint32_t slices, start;
    nvmlReturn_t result = enter_profile(handle, id, compute, &target, &slices);
    if (result != NVML_SUCCESS) {
        return result;
    }
    bool possible = wanted == NULL;
    for (uint32_t n = 0; !possible && compute_placement(&target, slices, n, &start); n++) {
        possible = wanted->start == start && wanted->size == slices;
    }
    if (!possible) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    sim_lock(&process);
    result = enter_gpu_instance(handle, compute, &target); /* again: it may have gone while we waited */
    if (result == NVML_SUCCESS) {
        result = NVML_ERROR_INSUFFICIENT_RESOURCES;
        for (uint32_t n = 0; compute_placement(&target, slices, n, &start); n++) {
            if ((wanted == NULL || wanted->start == start) && slices_free(target.instance, start, slices)) {
                result = place(&target, id, slices, start, compute);
                break;
            }
        }
    }
    sim_unlock(&process);
    return result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int id,
                                                  nvmlComputeInstance_t *compute) {
    return create(handle, id, NULL, compute);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t handle, unsigned int id,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *compute) {
    if (placement == NULL) {
        return initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    }
    return create(handle, id, placement, compute);
}

/* Which compute instance a process runs on is not known, so one on the GPU instance keeps all of them. */
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
    struct target target;
    nvmlReturn_t result = enter_compute_instance(handle, handle, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    sim_reap(&process);
    sim_lock(&process);
    result = enter_compute_instance(handle, handle, &target);
    if (result == NVML_SUCCESS) {
        if (domain_in_use(instance_domain(&target))) {
            result = NVML_ERROR_IN_USE;
        } else {
            atomic_store(&target.compute->used, 0);
        }
    }
    sim_unlock(&process);
    return result;
}

/* ---- finding them ---- */

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int id,
                                                nvmlComputeInstance_t *computes, unsigned int *count) {
    struct target target;
    uint32_t slices;
    nvmlReturn_t result = enter_profile(handle, id, computes == NULL ? NULL : count, &target, &slices);
    if (result == NVML_SUCCESS) {
        *count = 0;
        for (uint32_t c = 0; c < SIM_MAX_COMPUTE_INSTANCES; c++) {
            if (select_compute(&target, c) && target.compute->profile == id) {
                computes[(*count)++] = compute_instance_handle(&target, c);
            }
        }
    }
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                   nvmlComputeInstance_t *compute) {
    struct target target;
    nvmlReturn_t result = enter_gpu_instance(handle, compute, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (!select_compute(&target, id)) {
        return NVML_ERROR_NOT_FOUND;
    }
    *compute = compute_instance_handle(&target, id);
    return NVML_SUCCESS;
}

/* The first version ended before the placement, and so does its caller's structure. */
static nvmlReturn_t put_info(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info, size_t size) {
    struct target target;
    nvmlReturn_t result = enter_compute_instance(handle, info, &target);
    if (result == NVML_SUCCESS) {
        nvmlComputeInstanceInfo_t all = {
            .device = gpu_handle(target.gpu),
            .gpuInstance = gpu_instance_handle(&target, target.instance_index),
            .id = target.compute->id,
            .profileId = target.compute->profile,
            .placement = {.start = target.compute->start, .size = target.compute->slices},
        };
        memcpy(info, &all, size);
    }
    return result;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info) {
    return put_info(handle, info, sizeof *info);
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info) {
    return put_info(handle, info, offsetof(nvmlComputeInstanceInfo_t, placement));
}
