/* The loader's functions, without needing the library that has them. Up to glibc 2.33 that is libdl.so.2, and since then it is
 * libc.so.6: a preloaded library that needs libdl.so.2 ends every process of an image that lacks it, and images of both kinds
 * do, where only what their programs need was copied. */
#ifndef GPUSLICE_LOADER_H
#define GPUSLICE_LOADER_H

#include <dlfcn.h>

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

typedef void *(*dlopen_function)(const char *file, int mode);
typedef void *(*dlmopen_function)(Lmid_t space, const char *file, int mode);

/* The loader's own, not those that we put in front of it (cuda/dlopen.c). */
dlopen_function loader_dlopen(void);
dlmopen_function loader_dlmopen(void);
void *loader_open(const char *file, int mode);
void *loader_symbol(void *library, const char *name);
void loader_close(void *library);
/* What dlinfo knows of a library; 0 if it could be told. */
int loader_information(void *library, int request, void *information);
/* The folders that are searched for what this library needs, or the program if it is NULL; to be freed. */
Dl_serinfo *loader_folders(const char *file);
/* The file that the loader mapped this library from, or NULL. */
const char *loader_own_file(void);

#pragma GCC visibility pop

#endif
