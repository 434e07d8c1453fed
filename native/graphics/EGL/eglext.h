/* Of EGL's extensions, what NVIDIA's headers name: see GL/gl.h. */
#ifndef GPUSLICE_EGLEXT_H
#define GPUSLICE_EGLEXT_H

typedef void *EGLImageKHR;
typedef void *EGLStreamKHR;
typedef void *EGLSyncKHR;

#endif
