/* Of EGL, what NVIDIA's headers name: see GL/gl.h. */
#ifndef GPUSLICE_EGL_H
#define GPUSLICE_EGL_H

typedef int EGLint;

#endif
