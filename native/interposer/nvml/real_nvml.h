/* The real NVML behind this library: REAL(nvmlInit_v2)() calls it. Resolved when first needed. */
#ifndef GPUSLICE_REAL_NVML_H
#define GPUSLICE_REAL_NVML_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* every version of every function, under its exported name */
#include <nvml.h>

#include "../real.h"
#include "nvml_indexes.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

extern struct real_library real_nvml;

#define REAL(name) ((__typeof__(&name))real_function(&real_nvml, INDEX_##name))

#pragma GCC visibility pop

#endif
