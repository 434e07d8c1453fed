/* What cuGetProcAddress can answer: generated from NVIDIA's headers (native/tools/symbols.py). */
#ifndef GPUSLICE_SIMULATOR_ENTRY_TABLE_H
#define GPUSLICE_SIMULATOR_ENTRY_TABLE_H

#include <stddef.h>

struct entry {
    const char *name;
    int version;    /* the first CUDA version with this ABI */
    int per_thread; /* the variant whose stream 0 is the thread's own */
    void (*function)(void);
};
extern const struct entry entry_table[]; /* sorted by name */
extern const size_t entry_count;

#endif
