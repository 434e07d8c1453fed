/* Which GPU of the session an NVML handle means. */
#ifndef GPUSLICE_NVML_SLICE_H
#define GPUSLICE_NVML_SLICE_H

#include "../session.h"
#include "real_nvml.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

/* The process's number of the GPU; NO_GPU when it has no share of it, or was refused (then the user was told). */
uint32_t slice_gpu(nvmlDevice_t device);

#pragma GCC visibility pop

#endif
