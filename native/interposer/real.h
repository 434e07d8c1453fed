/* A real library that this one stands in front of: found beside or behind us, opened by absolute path. */
#ifndef GPUSLICE_REAL_H
#define GPUSLICE_REAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

typedef void (*real_pointer)(void);

struct real_library {
    const char *soname;           /* "libcuda.so.1" */
    const char *variable;         /* environment variable with the path, for odd installations */
    const char *const *names;     /* of all functions, by index */
    _Atomic(real_pointer) *table; /* resolved functions, by index */
    real_pointer missing;         /* stands for a function that the library has not: answers "not supported" */
    real_pointer absent;          /* stands for every function when there is no library at all */
    _Atomic(void *) handle;       /* the library, NULL if there is none */
    _Atomic bool searched;
};

real_pointer real_resolve(struct real_library *library, size_t index);
/* True when the real library was found. */
bool real_present(struct real_library *library);

/* By this name stand-ins know each other. Exported; called with the path that a program opened to get the real library: it is
 * taken for that if it is found nowhere else. */
__attribute__((visibility("default"))) void gpuslice_stand_in(const char *path);

static inline real_pointer real_function(struct real_library *library, size_t index) {
    real_pointer function = atomic_load_explicit(&library->table[index], memory_order_acquire);
    return __builtin_expect(function != NULL, 1) ? function : real_resolve(library, index);
}

#pragma GCC visibility pop

#endif
