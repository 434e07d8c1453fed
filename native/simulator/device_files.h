/* Which GPUs and MIG devices a process can reach. On a real machine those whose device files are in its container; here
 * those with a file of their UUID in DEVICE_FILES, or all of them where there is no such folder (outside of containers)
 * or a file `all` is in it. Files from several CDI devices add up. */
#ifndef GPUSLICE_SIMULATOR_DEVICE_FILES_H
#define GPUSLICE_SIMULATOR_DEVICE_FILES_H

#include "machine.h"

#define DEVICE_FILES "/run/gpuslice-sim/visible"

/* A GPU: by a file of its own, or by one of a MIG device that is on it now. */
bool device_file_of_gpu(const struct sim_machine *machine, uint32_t gpu);
/* A MIG device: by a file of its own, or by its GPU's. */
bool device_file_of_compute_instance(const struct sim_machine *machine, uint32_t gpu, uint32_t instance,
                                     uint32_t compute);

#endif
