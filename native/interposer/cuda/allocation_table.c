/* Open addressing with linear probing. Removal shifts later entries back, so no tombstones slow the table down. */
#define _GNU_SOURCE
#include "allocation_table.h"

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
    struct table_entry *old_entries = shard->entries;
    size_t old_room = shard->room;
    shard->entries = entries;
    shard->room = room;
    release(old_entries, old_room); /* last: a child that is forked now must not find it in the shard */
    return true;
}

bool table_put(struct table *table, const struct table_entry *entry, struct table_entry *replaced) {
    struct table_shard *shard = shard_of(table, mix(entry->key));
    replaced->key = 0;
    pthread_mutex_lock(&shard->lock);
    bool fits = shard->used < shard->room / 2 || grow(shard);
    if (fits) {
        size_t at = position(shard->entries, shard->room, entry->key);
        if (__builtin_expect(shard->entries[at].key != 0, 0)) {
            *replaced = shard->entries[at];
        } else {
            shard->used++;
        }
        shard->entries[at] = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
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
    pthread_mutex_lock(&shard->lock);
    if (shard->room != 0 && key != 0) {
        size_t at = position(shard->entries, shard->room, key);
        found = shard->entries[at].key != 0;
        if (found) {
            *entry = shard->entries[at];
            remove_at(shard, at);
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

void table_take_owner(struct table *table, uint64_t owner, void (*visit)(const struct table_entry *entry)) {
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct table_shard *shard = &table->shards[i];
        pthread_mutex_lock(&shard->lock);
        for (size_t at = 0; at < shard->room;) {
            if (shard->entries[at].key != 0 && shard->entries[at].owner == owner) {
                struct table_entry entry = shard->entries[at];
                remove_at(shard, at); /* may move another entry here: look at this place again */
                visit(&entry);
            } else {
                at++;
            }
        }
        pthread_mutex_unlock(&shard->lock);
    }
}

void table_forget(struct table *table) {
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        release(table->shards[i].entries, table->shards[i].room);
    }
    *table = (struct table)TABLE_INITIALIZER;
}
