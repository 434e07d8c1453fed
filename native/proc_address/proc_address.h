/* Which exported function cuGetProcAddress means by a name, a CUDA version and a kind of default stream. The table is
 * generated from NVIDIA's headers (native/tools/symbols.py) and names the functions of the library that it is linked into. */
#ifndef GPUSLICE_PROC_ADDRESS_H
#define GPUSLICE_PROC_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

struct entry {
    const char *name;
    int version;    /* the first CUDA version with this ABI */
    int per_thread; /* the variant whose stream 0 is the thread's own */
    void (*function)(void);
};

#pragma GCC visibility push(hidden)

extern const struct entry entry_table[]; /* sorted by name */
extern const size_t entry_count;

/* The newest that fits; NULL if there is none, and *named tells whether the name exists at all. */
const struct entry *entry_find(const char *name, int version, bool per_thread, bool *named);

#pragma GCC visibility pop

#endif
