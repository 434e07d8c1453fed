/* What the files of the simulated NVML share: the session, what a handle stands for, and the shape of a query.
 *
 * Every query begins with enter(): the library is initialized, there is somewhere to put the answer, the handle is
 * good and its GPU is still on the bus. Nothing that a caller passes is followed before that. */
#ifndef GPUSLICE_SIMULATOR_NVML_INTERNAL_H
#define GPUSLICE_SIMULATOR_NVML_INTERNAL_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* the old entry points are defined too, beside the new ones */
#include <nvml.h>

#include "engine.h"

#define NOT_MIG 0xFFFFFFFFu /* what NVML reports as the instance where there is none */
#define MEBIBYTE (1024ull * 1024ull)

/* A second name for the function `target`, for versions that differ in nothing. */
#define SAME_AS(target) __attribute__((alias(#target)))

/* ---- the session (session.c) ---- */

extern struct sim_process process;

bool initialized(void);
/* May the caller change the machine? Root may, and so may the owner of the simulated machine. */
bool administrator(void);
/* Copies text as NVML does: all of it or INSUFFICIENT_SIZE. */
nvmlReturn_t put_string(char *destination, unsigned int size, const char *text);
uint64_t realtime_us(void);

/* ---- handles (handles.c) ---- */

/* What a handle stands for. `instance` is set for all but whole GPUs, `compute` for MIG devices and compute
 * instances. */
struct target {
    uint32_t gpu;
    const struct sim_gpu_spec *spec;
    struct sim_gpu *state;
    uint32_t instance_index, compute_index;
    struct sim_gpu_instance *instance;
    struct sim_compute_instance *compute;
};

enum reach {
    WHOLE_GPU, /* a MIG device's handle is answered with NOT_SUPPORTED */
    ANY_DEVICE,
};

nvmlReturn_t enter(nvmlDevice_t device, enum reach reach, const void *answer, struct target *target);
nvmlReturn_t enter_gpu_instance(nvmlGpuInstance_t handle, const void *answer, struct target *target);
nvmlReturn_t enter_compute_instance(nvmlComputeInstance_t handle, const void *answer, struct target *target);

nvmlDevice_t gpu_handle(uint32_t gpu);
nvmlDevice_t mig_device_handle(const struct target *target, uint32_t instance, uint32_t compute);
nvmlGpuInstance_t gpu_instance_handle(const struct target *target, uint32_t instance);
nvmlComputeInstance_t compute_instance_handle(const struct target *target, uint32_t compute);

/* Fills in the instance (and compute instance) of a target whose GPU is known; false if there is none. */
bool select_instance(struct target *target, uint32_t instance);
bool select_compute(struct target *target, uint32_t compute);

/* NVML numbers the GPUs that this process can reach (device_files.h), the machine all of them. */
uint32_t reachable_gpus(void);
uint32_t reachable_before(uint32_t gpu); /* the index of a GPU that can be reached */
/* Whether this process can reach the target's compute instance as a MIG device. */
bool reaches_compute(const struct target *target);

/* ---- what several files ask of the machine ---- */

/* Boards for desks, not for racks: they differ in much that a board reports. */
static inline bool is_geforce(const struct sim_gpu_spec *spec) {
    return spec->brand == NVML_BRAND_GEFORCE;
}

static inline bool mig_enabled(const struct target *target) {
    return atomic_load(&target->state->mig_mode) == NVML_DEVICE_MIG_ENABLE;
}

static inline const struct sim_profile *instance_profile(const struct target *target) {
    return &target->spec->profiles[target->instance->profile];
}

static inline uint32_t instance_domain(const struct target *target) {
    return sim_domain(target->gpu, 1 + target->instance_index);
}

/* Processes with a context on the domain. Reap first: this does not tell the dead from the living. */
bool domain_in_use(uint32_t domain); /* processes.c */
bool gpu_in_use(uint32_t gpu);
/* How busy the GPU is, in percent of its multiprocessors, whatever its partitions (utilization.c). */
uint32_t gpu_load(const struct target *target);

/* Never the same number twice, and never 0: an instance's `used` (mig_gpu_instances.c). */
uint32_t next_serial(void);

/* MIG geometry (mig_profiles.c). */
const struct sim_profile *profile_with_id(const struct sim_gpu_spec *spec, unsigned int id);
uint32_t compute_profile_slices(const struct target *target, unsigned int profile); /* 0: not on this instance */
uint32_t compute_profile_multiprocessors(const struct target *target, uint32_t slices);
/* The n-th place for that many compute slices in the GPU instance; false past the last. */
bool compute_placement(const struct target *target, uint32_t slices, uint32_t n, uint32_t *start);
/* "1g.5gb", or "1c.3g.20gb" for a compute instance that is a part of its GPU instance. */
void mig_name(const struct target *target, uint32_t slices, char *name, size_t size);

/* ---- getters of one value ---- */

/* Defines `function`, which answers with `expression` about `target`. */
#define GETTER(function, reach, type, expression)                                                                      \
    nvmlReturn_t function(nvmlDevice_t device, type *answer) {                                                         \
        struct target target;                                                                                          \
        nvmlReturn_t result = enter(device, reach, answer, &target);                                                   \
        if (result == NVML_SUCCESS) {                                                                                  \
            *answer = (type)(expression);                                                                              \
        }                                                                                                              \
        return result;                                                                                                 \
    }

/* The same where not every GPU has an answer. */
#define GETTER_IF(function, reach, condition, type, expression)                                                        \
    nvmlReturn_t function(nvmlDevice_t device, type *answer) {                                                         \
        struct target target;                                                                                          \
        nvmlReturn_t result = enter(device, reach, answer, &target);                                                   \
        if (result == NVML_SUCCESS && !(condition)) {                                                                  \
            result = NVML_ERROR_NOT_SUPPORTED;                                                                         \
        }                                                                                                              \
        if (result == NVML_SUCCESS) {                                                                                  \
            *answer = (type)(expression);                                                                              \
        }                                                                                                              \
        return result;                                                                                                 \
    }

/* Two values of one kind: `first` must be an answer to give, `second` as well. */
#define PAIR_GETTER_IF(function, reach, condition, type, first_expression, second_expression)                          \
    nvmlReturn_t function(nvmlDevice_t device, type *first, type *second) {                                            \
        struct target target;                                                                                          \
        nvmlReturn_t result = enter(device, reach, second == NULL ? NULL : first, &target);                            \
        if (result == NVML_SUCCESS && !(condition)) {                                                                  \
            result = NVML_ERROR_NOT_SUPPORTED;                                                                         \
        }                                                                                                              \
        if (result == NVML_SUCCESS) {                                                                                  \
            *first = (type)(first_expression);                                                                         \
            *second = (type)(second_expression);                                                                       \
        }                                                                                                              \
        return result;                                                                                                 \
    }

#endif
