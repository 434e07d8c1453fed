/* MIG geometry: the mode, the shapes of GPU instances and compute instances, and where each may sit.
 *
 * GPU-instance shapes come from the GPU's description. Compute-instance shapes follow from their GPU instance: so many
 * of its compute slices, with all its memory and engines shared. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

const struct sim_profile *profile_with_id(const struct sim_gpu_spec *spec, unsigned int id) {
    for (uint32_t n = 0; n < spec->profile_count; n++) {
        if (spec->profiles[n].id == id) {
            return &spec->profiles[n];
        }
    }
    return NULL;
}

static const struct sim_profile *profile_with_number(const struct sim_gpu_spec *spec, unsigned int number) {
    for (uint32_t n = 0; n < spec->profile_count; n++) {
        if (spec->profiles[n].number == number) {
            return &spec->profiles[n];
        }
    }
    return NULL;
}

/* ---- the mode ---- */

PAIR_GETTER_IF(nvmlDeviceGetMigMode, WHOLE_GPU, target.spec->mig_capable, unsigned int,
               atomic_load(&target.state->mig_mode), atomic_load(&target.state->mig_pending))

static bool has_instances(const struct target *target) {
    for (uint32_t instance = 0; instance < SIM_MAX_INSTANCES; instance++) {
        if (atomic_load(&target->state->instances[instance].used)) {
            return true;
        }
    }
    return false;
}

/* A GPU that is in use keeps its mode and remembers the new one as pending: the caller is to idle it and try again. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, activation, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (mode != NVML_DEVICE_MIG_DISABLE && mode != NVML_DEVICE_MIG_ENABLE) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!target.spec->mig_capable) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    sim_reap(&process);
    sim_lock(&process);
    if (mode == NVML_DEVICE_MIG_DISABLE && has_instances(&target)) {
        result = NVML_ERROR_IN_USE;
    } else {
        bool change = atomic_load(&target.state->mig_mode) != mode;
        *activation = change && gpu_in_use(target.gpu) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
        atomic_store(&target.state->mig_pending, mode);
        if (*activation == NVML_SUCCESS) {
            atomic_store(&target.state->mig_mode, mode);
        }
    }
    sim_unlock(&process);
    return result;
}

/* ---- GPU-instance profiles ---- */

/* Versions 2 and 3 hold the same in another order; one macro writes both, and the unversioned one. */
#define PUT_PROFILE(info, profile)                                                                                     \
    do {                                                                                                               \
        (info)->id = (profile)->id;                                                                                    \
        (info)->sliceCount = (profile)->compute_slices;                                                                \
        (info)->instanceCount = (profile)->max_instances;                                                              \
        (info)->multiprocessorCount = (profile)->multiprocessors;                                                      \
        (info)->copyEngineCount = (profile)->copy_engines;                                                             \
        (info)->decoderCount = (profile)->decoders;                                                                    \
        (info)->encoderCount = (profile)->encoders;                                                                    \
        (info)->jpegCount = (profile)->jpegs;                                                                          \
        (info)->ofaCount = (profile)->ofas;                                                                            \
        (info)->memorySizeMB = (profile)->memory_bytes / MEBIBYTE;                                                     \
    } while (0)

#define PUT_NAME(info, text) snprintf((info)->name, sizeof(info)->name, "MIG %s", text)

#define PROFILE_WITH_GRAPHICS 2u /* sim_profile.media */

static nvmlReturn_t put_profile(const struct sim_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info) {
    if (info->version == nvmlGpuInstanceProfileInfo_v2) {
        PUT_PROFILE(info, profile);
        PUT_NAME(info, profile->name);
        info->isP2pSupported = 0;
        return NVML_SUCCESS;
    }
    if (info->version == nvmlGpuInstanceProfileInfo_v3) {
        nvmlGpuInstanceProfileInfo_v3_t *info_v3 = (void *)info; /* the caller says so by its version */
        PUT_PROFILE(info_v3, profile);
        PUT_NAME(info_v3, profile->name);
        info_v3->capabilities = profile->media & PROFILE_WITH_GRAPHICS ? NVML_GPU_INSTANCE_PROFILE_CAPS_GFX : 0;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

static nvmlReturn_t find_numbered_profile(nvmlDevice_t device, unsigned int number, const void *answer,
                                          const struct sim_profile **profile) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, answer, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (number >= NVML_GPU_INSTANCE_PROFILE_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *profile = profile_with_number(target.spec, number);
    return *profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    const struct sim_profile *profile;
    nvmlReturn_t result = find_numbered_profile(device, number, info, &profile);
    if (result == NVML_SUCCESS) {
        PUT_PROFILE(info, profile);
        info->isP2pSupported = 0;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
    const struct sim_profile *profile;
    nvmlReturn_t result = find_numbered_profile(device, number, info, &profile);
    return result == NVML_SUCCESS ? put_profile(profile, info) : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, info, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct sim_profile *profile = profile_with_id(target.spec, id);
    return profile == NULL ? NVML_ERROR_NOT_SUPPORTED : put_profile(profile, info);
}

/* All the placements a profile has, whether they are free or not. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, count, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct sim_profile *profile = profile_with_id(target.spec, id);
    if (profile == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    for (uint32_t n = 0; placements != NULL && n < profile->placement_count; n++) {
        placements[n] = (nvmlGpuInstancePlacement_t){profile->placements[n].start, profile->placements[n].size};
    }
    *count = profile->placement_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count)
    SAME_AS(nvmlDeviceGetGpuInstancePossiblePlacements_v2);

/* ---- compute-instance profiles ---- */

struct compute_shape {
    uint32_t slices;
    uint32_t stride; /* of its placements */
};

/* By NVML_COMPUTE_INSTANCE_PROFILE_*. The two revisions at the end are of GPUs that are not simulated. */
static const struct compute_shape compute_shapes[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {
    [NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = {1, 1}, [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = {2, 2},
    [NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = {3, 4}, [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = {4, 4},
    [NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = {7, 8}, [NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE] = {8, 8},
    [NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE] = {6, 8},
};

/* A GPU instance can be one compute instance, or be divided into smaller ones; NVIDIA has no 3c in a 4g, and divides
 * nothing into parts of 6 or more. */
uint32_t compute_profile_slices(const struct target *target, unsigned int profile) {
    if (profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT) {
        return 0;
    }
    uint32_t slices = compute_shapes[profile].slices, whole = instance_profile(target)->compute_slices;
    bool part = slices < whole && slices <= 4 && !(slices == 3 && whole == 4);
    return part || slices == whole ? slices : 0;
}

bool compute_placement(const struct target *target, uint32_t slices, uint32_t n, uint32_t *start) {
    uint32_t stride = slices;
    for (unsigned int profile = 0; profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; profile++) {
        if (compute_shapes[profile].slices == slices) {
            stride = compute_shapes[profile].stride;
        }
    }
    *start = n * stride;
    return *start + slices <= instance_profile(target)->compute_slices;
}

/* A slice of a divided instance has as many multiprocessors as the leanest instance of the GPU has per slice; an
 * instance that is not divided may have more (60 in a 3g of an H100, and not 3 x 16). */
uint32_t compute_profile_multiprocessors(const struct target *target, uint32_t slices) {
    const struct sim_profile *profile = instance_profile(target);
    if (slices == profile->compute_slices) {
        return profile->multiprocessors;
    }
    uint32_t leanest = profile->multiprocessors / profile->compute_slices;
    for (uint32_t n = 0; n < target->spec->profile_count; n++) {
        const struct sim_profile *other = &target->spec->profiles[n];
        uint32_t per_slice = other->multiprocessors / other->compute_slices;
        leanest = per_slice < leanest ? per_slice : leanest;
    }
    return slices * leanest;
}

void mig_name(const struct target *target, uint32_t slices, char *name, size_t size) {
    const struct sim_profile *profile = instance_profile(target);
    if (slices == profile->compute_slices) {
        snprintf(name, size, "%s", profile->name);
    } else {
        snprintf(name, size, "%uc.%s", slices, profile->name);
    }
}

#define PUT_COMPUTE_PROFILE(info, number, target, slices)                                                              \
    do {                                                                                                               \
        const struct sim_profile *whole_ = instance_profile(target);                                                   \
        uint32_t start_, places_ = 0;                                                                                  \
        while (compute_placement(target, slices, places_, &start_)) {                                                  \
            places_++;                                                                                                 \
        }                                                                                                              \
        (info)->id = (number);                                                                                         \
        (info)->sliceCount = (slices);                                                                                 \
        (info)->instanceCount = places_;                                                                               \
        (info)->multiprocessorCount = compute_profile_multiprocessors(target, slices);                                 \
        (info)->sharedCopyEngineCount = whole_->copy_engines;                                                          \
        (info)->sharedDecoderCount = whole_->decoders;                                                                 \
        (info)->sharedEncoderCount = whole_->encoders;                                                                 \
        (info)->sharedJpegCount = whole_->jpegs;                                                                       \
        (info)->sharedOfaCount = whole_->ofas;                                                                         \
    } while (0)

static nvmlReturn_t find_compute_profile(nvmlGpuInstance_t instance, unsigned int number, unsigned int engines,
                                         const void *answer, struct target *target, uint32_t *slices) {
    nvmlReturn_t result = enter_gpu_instance(instance, answer, target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *slices = compute_profile_slices(target, number);
    return *slices == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int number,
                                                          unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    struct target target;
    uint32_t slices;
    nvmlReturn_t result = find_compute_profile(instance, number, engines, info, &target, &slices);
    if (result == NVML_SUCCESS) {
        PUT_COMPUTE_PROFILE(info, number, &target, slices);
    }
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int number,
                                                           unsigned int engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info) {
    struct target target;
    uint32_t slices;
    nvmlReturn_t result = find_compute_profile(instance, number, engines, info, &target, &slices);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char name[48];
    mig_name(&target, slices, name, sizeof name);
    if (info->version == nvmlComputeInstanceProfileInfo_v2) {
        PUT_COMPUTE_PROFILE(info, number, &target, slices);
        PUT_NAME(info, name);
        return NVML_SUCCESS;
    }
    if (info->version == nvmlComputeInstanceProfileInfo_v3) {
        nvmlComputeInstanceProfileInfo_v3_t *info_v3 = (void *)info;
        PUT_COMPUTE_PROFILE(info_v3, number, &target, slices);
        PUT_NAME(info_v3, name);
        info_v3->capabilities = 0;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}
