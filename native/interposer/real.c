/* Finding the real library. Our own SONAME is the real one's, so asking the loader by name would find ourselves: the
 * folders are searched by hand, in the loader's order, and our own file is passed over. */
#define _GNU_SOURCE
#include "real.h"

#include "loader.h"
#include "search.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a program opened by its path, when it got this library instead. */
static struct {
    _Atomic bool taken, written;
    char path[PATH_MAX];
} named;

/* A preloaded library that stands in for the same SONAME must not find itself, nor a second copy of itself. */
static void *open_real(const char *path) {
    struct stat status;
    void *handle = stat(path, &status) == 0 ? loader_open(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (handle != NULL && loader_symbol(handle, "gpuslice_stand_in") != NULL) {
        loader_close(handle);
        return NULL;
    }
    return handle;
}

void gpuslice_stand_in(const char *path) {
    if (path != NULL && path[0] == '/' && strlen(path) < sizeof named.path && !atomic_exchange(&named.taken, true)) {
        strcpy(named.path, path);
        atomic_store(&named.written, true);
    }
}

static void *search(const struct real_library *library) {
    const char *given = secure_getenv(library->variable); /* a set-user-ID program must not load what its user names */
    if (given != NULL && given[0] == '/') {
        return open_real(given);
    }
    void *handle = search_library(library->soname, open_real);
    return handle == NULL && atomic_load(&named.written) ? open_real(named.path) : handle;
}

/* Two threads may search at the same time: both find the same library. A lock would be held while the library's
 * constructors run, and a child that is forked meanwhile would find it taken. */
static void *library_handle(struct real_library *library) {
    if (!atomic_load_explicit(&library->searched, memory_order_acquire)) {
        void *found = search(library);
        if (found != NULL) {
            atomic_store_explicit(&library->handle, found, memory_order_relaxed);
        }
        atomic_store_explicit(&library->searched, true, memory_order_release);
    }
    return atomic_load_explicit(&library->handle, memory_order_relaxed);
}

bool real_present(struct real_library *library) {
    return library_handle(library) != NULL;
}

real_pointer real_resolve(struct real_library *library, size_t index) {
    void *handle = library_handle(library);
    real_pointer function = library->absent;
    if (handle != NULL) {
        void *symbol = loader_symbol(handle, library->names[index]);
        memcpy(&function, &symbol, sizeof function);
        function = symbol != NULL ? function : library->missing;
    }
    atomic_store_explicit(&library->table[index], function, memory_order_release);
    return function;
}
