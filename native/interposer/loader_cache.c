/* /etc/ld.so.cache, as ldconfig writes it. Up to glibc 2.31 the table that is read here stands behind an older one. */
#define _GNU_SOURCE
#include "search.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE "/etc/ld.so.cache"
#define OLD_MAGIC "ld.so-1.7.0"
#define MAGIC "glibc-ld.so.cache1.1"
/* Of a library for glibc and this architecture. */
#if defined(__x86_64__)
#define FLAGS 0x0303
#elif defined(__aarch64__)
#define FLAGS 0x0a03
#else
#error "ld.so.cache marks libraries by architecture: say how it marks this one"
#endif

struct old_header {
    char magic[sizeof OLD_MAGIC - 1];
    uint32_t count;
};

struct old_entry {
    int32_t flags;
    uint32_t name, path;
};

struct header {
    char magic[sizeof MAGIC - 1];
    uint32_t count, string_bytes;
    uint32_t unused[5];
};

struct entry {
    int32_t flags;
    uint32_t name, path; /* where these texts begin, counted from the header */
    uint32_t system_version;
    uint64_t capabilities;
};

_Static_assert(sizeof(struct header) == 48 && sizeof(struct entry) == 24, "as ldconfig writes them");

struct cache {
    const char *start;
    size_t bytes;
};

/* The newer table, or nothing. */
static struct cache table_of(struct cache file) {
    struct old_header old;
    size_t skipped = 0;
    if (file.bytes >= sizeof old && memcmp(file.start, OLD_MAGIC, sizeof old.magic) == 0) {
        memcpy(&old, file.start, sizeof old);
        skipped = (sizeof old + (size_t)old.count * sizeof(struct old_entry) + 7) / 8 * 8;
    }
    if (skipped > file.bytes || file.bytes - skipped < sizeof(struct header) ||
        memcmp(file.start + skipped, MAGIC, sizeof MAGIC - 1) != 0) {
        return (struct cache){NULL, 0};
    }
    return (struct cache){file.start + skipped, file.bytes - skipped};
}

/* A text of the table, or NULL if it does not end inside. */
static const char *text(struct cache table, uint32_t offset) {
    return offset < table.bytes && memchr(table.start + offset, '\0', table.bytes - offset) != NULL ? table.start + offset : NULL;
}

static void *search_table(struct cache table, const char *soname, search_open open) {
    struct header header;
    memcpy(&header, table.start, sizeof header);
    if (header.count > (table.bytes - sizeof header) / sizeof(struct entry)) {
        return NULL;
    }
    /* Of several folders that have the library, the one that the loader takes comes first. */
    for (uint32_t i = 0; i < header.count; i++) {
        struct entry entry;
        memcpy(&entry, table.start + sizeof header + i * sizeof entry, sizeof entry);
        const char *name = entry.flags == FLAGS && entry.capabilities == 0 ? text(table, entry.name) : NULL;
        const char *path = name != NULL && strcmp(name, soname) == 0 ? text(table, entry.path) : NULL;
        void *handle = path != NULL ? open(path) : NULL;
        if (handle != NULL) {
            return handle;
        }
    }
    return NULL;
}

void *search_loader_cache(const char *soname, search_open open_path) {
    int file = open(CACHE, O_RDONLY | O_CLOEXEC);
    struct stat status;
    void *handle = NULL;
    if (file != -1 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        size_t bytes = (size_t)status.st_size;
        void *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped != MAP_FAILED) {
            struct cache table = table_of((struct cache){mapped, bytes});
            handle = table.start != NULL ? search_table(table, soname, open_path) : NULL;
            munmap(mapped, bytes);
        }
    }
    if (file != -1) {
        close(file);
    }
    return handle;
}
