/* Where a library is, by the loader's own rules. */
#ifndef GPUSLICE_SEARCH_H
#define GPUSLICE_SEARCH_H

#include <stddef.h>

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

/* Opens a file if it is what is looked for, or is NULL. */
typedef void *(*search_open)(const char *path);

/* The first file of that name that `open` takes, in the order in which the loader would look. */
void *search_library(const char *soname, search_open open);
/* Of those that ld.so.cache names: what the container's owner, or the vendor's toolkit, told the loader. */
void *search_loader_cache(const char *soname, search_open open);

#pragma GCC visibility pop

#endif
