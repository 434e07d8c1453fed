/* Which CUDA devices this process sees: the GPUs or the one MIG compute instance that CUDA_VISIBLE_DEVICES leaves. */
#ifndef GPUSLICE_SIMULATOR_VISIBLE_H
#define GPUSLICE_SIMULATOR_VISIBLE_H

#include "driver.h"

/* Fills `devices` (room for SIM_MAX_GPUS) and returns how many there are. */
int visible_devices(const struct sim_machine *machine, struct device *devices);

/* Reads the 16 bytes of the UUID in "GPU-..." or "MIG-...". */
bool uuid_parse(const char *text, CUuuid *uuid);

#endif
