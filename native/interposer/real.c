/* Finding the real library. Our own SONAME is the real one's, so asking the loader by name would find ourselves: the
 * folders are searched by hand, in the loader's order, and our own file is passed over. */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const usual_folders[] = {
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/cuda/compat",
};

dlopen_function next_dlopen(void) {
    static _Atomic(dlopen_function) next;
    dlopen_function function = atomic_load_explicit(&next, memory_order_acquire);
    if (function == NULL) {
        void *symbol = dlsym(RTLD_NEXT, "dlopen");
        memcpy(&function, &symbol, sizeof function);
        atomic_store_explicit(&next, function, memory_order_release);
    }
    return function;
}

void *real_dlopen(const char *file, int mode) {
    dlopen_function function = next_dlopen();
    return function != NULL ? function(file, mode) : NULL;
}

/* A preloaded library that stands in for the same SONAME must not find itself, nor a second copy of itself. */
static bool is_stand_in(void *handle) {
    return dlsym(handle, "gpuslice_stand_in") != NULL;
}

static void *open_file(const char *folder, size_t length, const char *soname) {
    char path[PATH_MAX];
    struct stat status;
    int written = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, soname);
    if (written <= 0 || (size_t)written >= sizeof path || stat(path, &status) == -1) {
        return NULL;
    }
    void *handle = real_dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL && is_stand_in(handle)) {
        dlclose(handle);
        return NULL;
    }
    return handle;
}

static void *search(const struct real_library *library) {
    const char *given = secure_getenv(library->variable); /* a set-user-ID program must not load what its user names */
    if (given != NULL && given[0] == '/') {
        void *handle = real_dlopen(given, RTLD_NOW | RTLD_LOCAL);
        return handle != NULL && !is_stand_in(handle) ? handle : NULL;
    }
    const char *folders = secure_getenv("LD_LIBRARY_PATH");
    while (folders != NULL && *folders != '\0') {
        size_t length = strcspn(folders, ":;");
        void *handle = length > 0 ? open_file(folders, length, library->soname) : NULL;
        if (handle != NULL) {
            return handle;
        }
        folders += length + (folders[length] != '\0');
    }
    for (size_t i = 0; i < sizeof usual_folders / sizeof usual_folders[0]; i++) {
        void *handle = open_file(usual_folders[i], strlen(usual_folders[i]), library->soname);
        if (handle != NULL) {
            return handle;
        }
    }
    return NULL;
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
        void *symbol = dlsym(handle, library->names[index]);
        memcpy(&function, &symbol, sizeof function);
        function = symbol != NULL ? function : library->missing;
    }
    atomic_store_explicit(&library->table[index], function, memory_order_release);
    return function;
}
