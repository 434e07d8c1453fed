/* The whole driver API: with what it shares with graphics, which is not in cuda.h. */
#ifndef GPUSLICE_CUDA_GRAPHICS_H
#define GPUSLICE_CUDA_GRAPHICS_H

#include <cuda.h>

#include <vdpau/vdpau.h> /* before what uses it */

#include <cudaEGL.h>
#include <cudaGL.h>
#include <cudaVDPAU.h>

#endif
