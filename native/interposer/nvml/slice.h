/* Which GPU of the session an NVML handle means. */
#ifndef GPUSLICE_NVML_SLICE_H
#define GPUSLICE_NVML_SLICE_H

#include "../session.h"
#include "real_nvml.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

#define NO_GPU UINT32_MAX

/* The page, when this process is in a session; NULL when it was refused (the user was told). */
const struct page *slice_page(void);
/* The session's number of the GPU, NO_GPU when it has no share of it. */
uint32_t slice_gpu(const struct page *page, nvmlDevice_t device);

#pragma GCC visibility pop

#endif
