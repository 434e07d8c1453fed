/* Of OpenGL, what NVIDIA's headers name: the functions are passed on, so their arguments' sizes are all that counts. */
#ifndef GPUSLICE_GL_H
#define GPUSLICE_GL_H

typedef unsigned int GLenum;
typedef unsigned int GLuint;

#endif
