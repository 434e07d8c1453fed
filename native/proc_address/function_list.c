/* The table behind cuGetProcAddress. It names every symbol without its type, so it must not see cuda.h. */
#include "proc_address.h"

#define ENTRY(name, version, per_thread, symbol) extern void symbol(void);
#include "cuda_entries.inc"
#undef ENTRY

const struct entry entry_table[] = {
#define ENTRY(name, version, per_thread, symbol) {name, version, per_thread, symbol},
#include "cuda_entries.inc"
#undef ENTRY
};
const size_t entry_count = sizeof entry_table / sizeof entry_table[0];
