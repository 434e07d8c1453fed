/* Looking a function up by name, version and kind of default stream. */
#include "proc_address.h"

#include <string.h>

static size_t first_of_name(const char *name) {
    size_t low = 0, high = entry_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(entry_table[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct entry *entry_find(const char *name, int version, bool per_thread, bool *named) {
    const struct entry *best = NULL;
    *named = false;
    for (size_t i = first_of_name(name); i < entry_count && strcmp(entry_table[i].name, name) == 0; i++) {
        const struct entry *entry = &entry_table[i];
        *named |= !entry->per_thread || per_thread;
        if ((entry->per_thread && !per_thread) || entry->version > version) {
            continue;
        }
        bool better = best == NULL || entry->per_thread > best->per_thread ||
                      (entry->per_thread == best->per_thread && entry->version > best->version);
        best = better ? entry : best;
    }
    return best;
}
