/* Of VDPAU, what NVIDIA's headers name: see GL/gl.h. */
#ifndef GPUSLICE_VDPAU_H
#define GPUSLICE_VDPAU_H

#include <stdint.h>

typedef uint32_t VdpDevice;
typedef uint32_t VdpOutputSurface;
typedef uint32_t VdpVideoSurface;
typedef int VdpGetProcAddress(VdpDevice device, uint32_t function, void **address);

#endif
