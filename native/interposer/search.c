/* The loader's order: the folders of LD_LIBRARY_PATH, those that the program was linked with, ld.so.cache, and what is usual. */
#define _GNU_SOURCE
#include "search.h"

#include "loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void *open_in(const char *folder, size_t length, const char *soname, search_open open) {
    char path[PATH_MAX];
    int written = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, soname);
    return written > 0 && (size_t)written < sizeof path ? open(path) : NULL;
}

static void *search_environment(const char *soname, search_open open) {
    const char *folders = secure_getenv("LD_LIBRARY_PATH"); /* a set-user-ID program must not load what its user names */
    while (folders != NULL && *folders != '\0') {
        size_t length = strcspn(folders, ":;");
        void *handle = length > 0 ? open_in(folders, length, soname, open) : NULL;
        if (handle != NULL) {
            return handle;
        }
        folders += length + (folders[length] != '\0');
    }
    return NULL;
}

static bool names(const Dl_serinfo *folders, const char *folder) {
    for (unsigned int i = 0; folders != NULL && i < folders->dls_cnt; i++) {
        if (strcmp(folders->dls_serpath[i].dls_name, folder) == 0) {
            return true;
        }
    }
    return false;
}

/* The loader searches the same folders for every library, but for those that a library was linked with. This one was linked
 * with none, so what it has not is the program's own. */
static void *search_program(const char *soname, search_open open) {
    Dl_serinfo *of_program = loader_folders(NULL), *of_all = loader_folders(loader_own_file());
    void *handle = NULL;
    for (unsigned int i = 0; of_program != NULL && of_all != NULL && handle == NULL && i < of_program->dls_cnt; i++) {
        const char *folder = of_program->dls_serpath[i].dls_name;
        if (!names(of_all, folder)) {
            handle = open_in(folder, strlen(folder), soname, open);
        }
    }
    free(of_program);
    free(of_all);
    return handle;
}

void *search_library(const char *soname, search_open open) {
    void *handle = search_environment(soname, open);
    handle = handle != NULL ? handle : search_program(soname, open);
    handle = handle != NULL ? handle : search_loader_cache(soname, open);
    for (size_t i = 0; handle == NULL && i < sizeof usual_folders / sizeof usual_folders[0]; i++) {
        handle = open_in(usual_folders[i], strlen(usual_folders[i]), soname, open);
    }
    return handle;
}
