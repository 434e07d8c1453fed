/* Memory outside the arenas that the driver knows about, as a sorted list of ranges that never overlap. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct {
    pthread_rwlock_t lock;
    struct range *ranges;
    size_t count, room;
} table = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* The number of ranges that start at or below the address. */
static size_t position_of(uintptr_t address) {
    size_t low = 0, high = table.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table.ranges[middle].start <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool range_add(const struct range *range) {
    bool added = false;
    pthread_rwlock_wrlock(&table.lock);
    size_t position = position_of(range->start);
    bool before_fits = position == 0 || range->start - table.ranges[position - 1].start >= table.ranges[position - 1].size;
    bool after_fits = position == table.count || table.ranges[position].start - range->start >= range->size;
    if (before_fits && after_fits) {
        if (table.count == table.room) {
            size_t room = table.room != 0 ? 2 * table.room : 64;
            struct range *larger = realloc(table.ranges, room * sizeof *larger);
            table.room = larger != NULL ? room : table.room;
            table.ranges = larger != NULL ? larger : table.ranges;
        }
        if (table.count < table.room) {
            memmove(&table.ranges[position + 1], &table.ranges[position], (table.count - position) * sizeof *range);
            table.ranges[position] = *range;
            table.count++;
            added = true;
        }
    }
    pthread_rwlock_unlock(&table.lock);
    return added;
}

bool range_remove(uintptr_t start, enum range_kind kind, struct range *removed) {
    bool found = false;
    pthread_rwlock_wrlock(&table.lock);
    size_t position = position_of(start);
    if (position > 0 && table.ranges[position - 1].start == start && table.ranges[position - 1].kind == kind) {
        position--;
        *removed = table.ranges[position];
        table.count--;
        memmove(&table.ranges[position], &table.ranges[position + 1], (table.count - position) * sizeof *removed);
        found = true;
    }
    pthread_rwlock_unlock(&table.lock);
    return found;
}

bool range_find(uintptr_t address, struct range *found) {
    bool inside = false;
    pthread_rwlock_rdlock(&table.lock);
    size_t position = position_of(address);
    if (position > 0 && address - table.ranges[position - 1].start < table.ranges[position - 1].size) {
        *found = table.ranges[position - 1];
        inside = true;
    }
    pthread_rwlock_unlock(&table.lock);
    return inside;
}

bool range_set_flags(uintptr_t start, enum range_kind kind, unsigned int flags) {
    bool found = false;
    pthread_rwlock_wrlock(&table.lock);
    size_t position = position_of(start);
    if (position > 0 && table.ranges[position - 1].start == start && table.ranges[position - 1].kind == kind) {
        table.ranges[position - 1].flags = flags;
        found = true;
    }
    pthread_rwlock_unlock(&table.lock);
    return found;
}
