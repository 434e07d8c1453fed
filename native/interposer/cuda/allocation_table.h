/* The live allocations of a process, by device pointer or handle: a hash table that stays fast with any number of
 * allocations and threads. Each shard has a lock of its own, so threads rarely wait for each other. */
#ifndef GPUSLICE_ALLOCATION_TABLE_H
#define GPUSLICE_ALLOCATION_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

enum charge_kind { CHARGE_LINEAR, CHARGE_POOLED, CHARGE_ARRAY };

struct table_entry {
    uint64_t key;   /* never 0 */
    uint64_t owner; /* the context, or the pool's account for CHARGE_POOLED */
    uint64_t bytes : 48;
    uint64_t gpu : 8;
    uint64_t kind : 4;
    uint64_t lane : 4; /* that it was charged in */
};

#define TABLE_SHARDS 64

struct table_shard {
    _Alignas(64) pthread_mutex_t lock;
    struct table_entry *entries;
    size_t room, used; /* room is zero or a power of two */
};

struct table {
    struct table_shard shards[TABLE_SHARDS];
};

#define TABLE_INITIALIZER {.shards = {[0 ... TABLE_SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}}

/* False when the host has no memory for it. `replaced` gets the entry that had the same key; its key is 0 if none had. */
bool table_put(struct table *table, const struct table_entry *entry, struct table_entry *replaced);
/* Takes the entry out: one caller gets it, and no second one. */
bool table_take(struct table *table, uint64_t key, struct table_entry *entry);
/* Takes out every entry with that owner and hands it to visit. */
void table_take_owner(struct table *table, uint64_t owner, void (*visit)(const struct table_entry *entry));
/* In a forked child: empties the table, whatever state the parent's threads left it in. */
void table_forget(struct table *table);

#pragma GCC visibility pop

#endif
