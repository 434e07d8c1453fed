/* Open addressing with linear probing; removal shifts later entries back, so there are no tombstones to slow it down. */
#define _GNU_SOURCE
#include "allocation_table.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_ROOM 64

static uint64_t mix(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15ull;
    return key ^ (key >> 29);
}

static struct table_shard *shard_of(struct table *table, uint64_t hash) {
    return &table->shards[hash >> 58];
}
_Static_assert(TABLE_SHARDS == 1 << 6, "the shard is the top six bits of the hash");

static void lock(struct table_shard *shard) {
    for (unsigned int spins = 1; atomic_exchange_explicit(&shard->locked, true, memory_order_acquire); spins++) {
        if (spins % 64 == 0) {
            sched_yield();
        }
    }
}

static void unlock(struct table_shard *shard) {
    atomic_store_explicit(&shard->locked, false, memory_order_release);
}

/* Not malloc: a program may bring its own, and may call us from inside it. */
static struct table_entry *allocate(size_t room) {
    void *memory = mmap(NULL, room * sizeof(struct table_entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void release(struct table_entry *entries, size_t room) {
    if (entries != NULL) {
        munmap(entries, room * sizeof *entries);
    }
}

/* The entry of that key, or the hole where it would go. */
static size_t position(const struct table_entry *entries, size_t room, uint64_t key) {
    size_t at = mix(key) & (room - 1);
    while (entries[at].key != 0 && entries[at].key != key) {
        at = (at + 1) & (room - 1);
    }
    return at;
}

static bool grow(struct table_shard *shard) {
    size_t room = shard->room != 0 ? 2 * shard->room : FIRST_ROOM;
    struct table_entry *entries = allocate(room);
    if (entries == NULL) {
        return shard->used + 1 < shard->room; /* a fuller table is slower, not wrong */
    }
    for (size_t i = 0; i < shard->room; i++) {
        if (shard->entries[i].key != 0) {
            entries[position(entries, room, shard->entries[i].key)] = shard->entries[i];
        }
    }
    release(shard->entries, shard->room);
    shard->entries = entries;
    shard->room = room;
    return true;
}

bool table_put(struct table *table, const struct table_entry *entry) {
    struct table_shard *shard = shard_of(table, mix(entry->key));
    lock(shard);
    bool fits = shard->used < shard->room / 2 || grow(shard);
    if (fits) {
        size_t at = position(shard->entries, shard->room, entry->key);
        shard->used += shard->entries[at].key == 0;
        shard->entries[at] = *entry;
    }
    unlock(shard);
    return fits;
}

static void remove_at(struct table_shard *shard, size_t hole) {
    size_t mask = shard->room - 1;
    for (size_t next = (hole + 1) & mask; shard->entries[next].key != 0; next = (next + 1) & mask) {
        size_t home = mix(shard->entries[next].key) & mask;
        if (((next - home) & mask) >= ((next - hole) & mask)) { /* it may move back to the hole */
            shard->entries[hole] = shard->entries[next];
            hole = next;
        }
    }
    shard->entries[hole].key = 0;
    shard->used--;
}

bool table_take(struct table *table, uint64_t key, struct table_entry *entry) {
    struct table_shard *shard = shard_of(table, mix(key));
    bool found = false;
    lock(shard);
    if (shard->room != 0 && key != 0) {
        size_t at = position(shard->entries, shard->room, key);
        found = shard->entries[at].key != 0;
        if (found) {
            *entry = shard->entries[at];
            remove_at(shard, at);
        }
    }
    unlock(shard);
    return found;
}

void table_take_owner(struct table *table, uint64_t owner, void (*visit)(const struct table_entry *entry)) {
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct table_shard *shard = &table->shards[i];
        lock(shard);
        for (size_t at = 0; at < shard->room;) {
            if (shard->entries[at].key != 0 && shard->entries[at].owner == owner) {
                struct table_entry entry = shard->entries[at];
                remove_at(shard, at); /* may move another entry here: look at this place again */
                visit(&entry);
            } else {
                at++;
            }
        }
        unlock(shard);
    }
}

void table_forget(struct table *table) {
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        release(table->shards[i].entries, table->shards[i].room);
    }
    memset(table, 0, sizeof *table);
}
