/* What launches cost: for each key a mean of the device times that were seen and how far they lay apart. A launch whose cost
 * is high or uncertain is looked at often; one that always takes a few microseconds, now and then. How often a launch is
 * looked at is decided before it runs, and what is seen counts for all that were not looked at: then the sum that is charged
 * is right on average, whatever is predicted here. Threads may overwrite each other's entry: that makes a prediction worse,
 * and no sum wrong. */
#include "launch.h"

#define ENTRIES 2048u
#define TYPICAL_NS 1000000u         /* a launch of this cost is looked at every other time */
#define LARGEST_INVERSE 64u         /* a surprise counts for no more launches than this */
#define UNKNOWN_NS 20000u
#define LARGEST_NS 4000000000ull

struct entry {
    _Atomic uint64_t key;
    _Atomic uint32_t mean_ns, deviation_ns;
    _Atomic uint32_t inverse_probability;
};

static struct entry entries[ENTRIES];

static struct entry *entry_of(uint64_t key) {
    return &entries[key >> 53];
}
_Static_assert(ENTRIES == 1u << 11, "the upper bits of a key");

struct cost cost_predict(uint64_t key) {
    struct entry *entry = entry_of(key);
    if (atomic_load_explicit(&entry->key, memory_order_relaxed) != key) {
        return (struct cost){.nanoseconds = UNKNOWN_NS, .inverse_probability = 1};
    }
    return (struct cost){
        .nanoseconds = atomic_load_explicit(&entry->mean_ns, memory_order_relaxed),
        .inverse_probability = atomic_load_explicit(&entry->inverse_probability, memory_order_relaxed),
    };
}

static uint32_t moved(uint32_t from, uint32_t to, uint32_t part) {
    return (uint32_t)((int64_t)from + ((int64_t)to - (int64_t)from) / (int64_t)part);
}

void cost_learn(uint64_t key, uint64_t seen_ns) {
    struct entry *entry = entry_of(key);
    uint32_t seen = (uint32_t)(seen_ns < LARGEST_NS ? seen_ns : LARGEST_NS), mean = seen, deviation = seen;
    if (atomic_load_explicit(&entry->key, memory_order_relaxed) == key) {
        mean = atomic_load_explicit(&entry->mean_ns, memory_order_relaxed);
        deviation = atomic_load_explicit(&entry->deviation_ns, memory_order_relaxed);
        uint32_t apart = seen > mean ? seen - mean : mean - seen;
        deviation = moved(deviation, apart, apart > deviation ? 2 : 32); /* quick to doubt, slow to trust */
        mean = moved(mean, seen, 16);
    }
    uint64_t weight = (uint64_t)mean + deviation + 1, inverse = (weight + TYPICAL_NS) / weight;
    atomic_store_explicit(&entry->mean_ns, mean, memory_order_relaxed);
    atomic_store_explicit(&entry->deviation_ns, deviation, memory_order_relaxed);
    atomic_store_explicit(&entry->inverse_probability, (uint32_t)(inverse < LARGEST_INVERSE ? inverse : LARGEST_INVERSE),
                          memory_order_relaxed);
    atomic_store_explicit(&entry->key, key, memory_order_relaxed);
}
