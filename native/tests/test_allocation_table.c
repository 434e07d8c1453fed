/* The table of live allocations: against a model, with 100,000 entries, from many threads, and with no memory to grow. */
#define _GNU_SOURCE
#include "../interposer/cuda/allocation_table.h"

/* mmap as allocation_table.c calls it, so that it can be refused. */
#include <sys/mman.h>
static bool refuse_memory;
static void *mmap_or_not(void *address, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    return refuse_memory ? MAP_FAILED : mmap(address, bytes, protection, flags, descriptor, offset);
}
#define mmap mmap_or_not
#include "../interposer/cuda/allocation_table.c"
#undef mmap

#include "check.h"

#include <pthread.h>

static struct table table = TABLE_INITIALIZER;
static struct table_entry replaced;

static struct table_entry entry_of(uint64_t key, uint64_t owner, uint64_t bytes) {
    return (struct table_entry){.key = key, .owner = owner, .bytes = bytes, .gpu = key % 16, .kind = CHARGE_LINEAR};
}

/* ---- against a model: an array indexed by a small key ---- */

#define KEYS 4000u /* few enough that keys come back, many enough that shards grow several times */

static struct table_entry model[KEYS];
static uint64_t visited;

static uint64_t key_of(unsigned int number) {
    return 0x7f0000000000ull + (uint64_t)number * 512; /* as addresses are: far up, aligned, dense */
}

static void leave(const struct table_entry *entry) {
    struct table_entry *expected = &model[(entry->key - key_of(0)) / 512];
    CHECK(expected->key == entry->key && expected->bytes == entry->bytes && expected->gpu == entry->gpu);
    expected->key = 0;
    visited++;
}

static void test_against_model(void) {
    unsigned int seed = 1;
    for (int i = 0; i < 400000; i++) {
        unsigned int number = (unsigned int)rand_r(&seed) % KEYS, what = (unsigned int)rand_r(&seed) % 1000;
        struct table_entry entry;
        if (what == 0) { /* rarely: a context goes */
            uint64_t owner = 1 + (uint64_t)rand_r(&seed) % 8, expected = 0;
            for (unsigned int k = 0; k < KEYS; k++) {
                expected += model[k].key != 0 && model[k].owner == owner;
            }
            visited = 0;
            table_take_owner(&table, owner, leave);
            CHECK(visited == expected);
        } else if (what < 550) {
            entry = entry_of(key_of(number), 1 + (uint64_t)rand_r(&seed) % 8, (uint64_t)rand_r(&seed));
            CHECK(table_put(&table, &entry, &replaced));
            CHECK(replaced.key == model[number].key && (replaced.key == 0 || replaced.bytes == model[number].bytes));
            model[number] = entry;
        } else {
            bool found = table_take(&table, key_of(number), &entry);
            CHECK(found == (model[number].key != 0));
            CHECK(!found || (entry.bytes == model[number].bytes && entry.owner == model[number].owner));
            model[number].key = 0;
        }
    }
    CHECK(!table_take(&table, 0, &(struct table_entry){0}));
    for (unsigned int k = 0; k < KEYS; k++) {
        struct table_entry entry;
        CHECK(table_take(&table, key_of(k), &entry) == (model[k].key != 0));
    }
    table_forget(&table);
}

/* ---- many ---- */

static void count(const struct table_entry *entry) {
    (void)entry;
    visited++;
}

static void test_hundred_thousand(void) {
    for (uint64_t i = 0; i < 100000; i++) {
        struct table_entry entry = entry_of(key_of((unsigned int)i), i % 2 + 1, i);
        CHECK(table_put(&table, &entry, &replaced));
    }
    visited = 0;
    table_take_owner(&table, 1, count);
    CHECK(visited == 50000);
    uint64_t found = 0, wrong = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        struct table_entry entry;
        if (table_take(&table, key_of((unsigned int)i), &entry)) {
            found++;
            wrong += entry.bytes != i || i % 2 != 1;
        }
    }
    CHECK(found == 50000 && wrong == 0);
    table_forget(&table);
}

/* ---- threads: each has keys of its own and all fight over some; what one took no other gets ---- */

#define THREADS 8
#define ROUNDS 30000
#define SHARED_KEYS 64u

static _Atomic int64_t shared_balance[SHARED_KEYS]; /* puts that added minus takes that found: 0 or 1 when all is over */

static void *put_and_take(void *argument) {
    uint64_t self = (uint64_t)(uintptr_t)argument;
    unsigned int seed = (unsigned int)self + 1;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct table_entry own = entry_of(key_of((unsigned int)(1000000 * (self + 1) + i)), self + 1, i), found, former;
        CHECK(table_put(&table, &own, &former) && former.key == 0);
        unsigned int number = (unsigned int)rand_r(&seed) % SHARED_KEYS;
        if (table_take(&table, key_of(number), &found)) {
            CHECK(found.key == key_of(number) && found.bytes == number);
            CHECK(atomic_fetch_sub(&shared_balance[number], 1) == 1);
            atomic_fetch_add(&shared_balance[number], 1); /* before it is there again for others */
            CHECK(table_put(&table, &found, &former) && former.key == 0);
        }
        if (i % 4 != 0) { /* every fourth stays: the shards grow while others look into them */
            CHECK(table_take(&table, own.key, &found) && found.bytes == i);
        }
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREADS];
    for (unsigned int i = 0; i < SHARED_KEYS; i++) {
        struct table_entry entry = entry_of(key_of(i), 99, i);
        CHECK(table_put(&table, &entry, &replaced));
        atomic_store(&shared_balance[i], 1);
    }
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, put_and_take, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    visited = 0;
    table_take_owner(&table, 99, count);
    CHECK(visited == SHARED_KEYS);
    for (uint64_t owner = 1; owner <= THREADS; owner++) {
        visited = 0;
        table_take_owner(&table, owner, count);
        CHECK(visited == ROUNDS / 4);
    }
    table_forget(&table);
}

/* ---- no memory: what is in stays, what does not fit is refused ---- */

static void test_no_memory(void) {
    struct table_entry entry = entry_of(key_of(1), 1, 1);
    refuse_memory = true;
    CHECK(!table_put(&table, &entry, &replaced));
    refuse_memory = false;
    CHECK(table_put(&table, &entry, &replaced));
    refuse_memory = true;
    uint64_t accepted = 1, refused = 0;
    for (unsigned int i = 2; i < 20000; i++) {
        entry = entry_of(key_of(i), 1, i);
        bool fits = table_put(&table, &entry, &replaced);
        accepted += fits;
        refused += !fits;
    }
    CHECK(accepted < FIRST_ROOM && refused > 0);
    uint64_t found = 0;
    for (unsigned int i = 1; i < 20000; i++) { /* a look for what is not there must end, however full it is */
        found += table_take(&table, key_of(i), &entry) && entry.bytes == i;
    }
    CHECK(found == accepted);
    refuse_memory = false;
    table_forget(&table);
}

int main(void) {
    test_against_model();
    test_hundred_thousand();
    test_threads();
    test_no_memory();
    return check_summary();
}
