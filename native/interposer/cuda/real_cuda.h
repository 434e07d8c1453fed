/* The real driver behind this library: REAL(cuMemAlloc_v2)(...) calls it. Resolved when first needed. */
#ifndef GPUSLICE_REAL_CUDA_H
#define GPUSLICE_REAL_CUDA_H

#define __CUDA_API_VERSION_INTERNAL /* every version of every function, under its exported name */
#include <cuda_graphics.h>

/* CUDA 11 exports it, and no later header declares it. */
CUresult cuGetProcAddress_ptsz(const char *symbol, void **function, int version, cuuint64_t flags);

#include "cuda_indexes.h"
#include "../real.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

extern struct real_library real_cuda;

#define REAL(name) ((__typeof__(&name))real_function(&real_cuda, INDEX_##name))

#pragma GCC visibility pop

#endif
