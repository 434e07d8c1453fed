#define _GNU_SOURCE /* before what loader.h includes */
#include "loader.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Filled by every glibc in whose process the functions are: in libc.so.6 itself, or in a libdl.so.2 that the program needs. */
#pragma weak dlsym
#pragma weak dlclose
#pragma weak dladdr
#pragma weak dlinfo

/* How glibc's own parts opened libraries, up to 2.33. */
extern void *__libc_dlopen_mode(const char *file, int mode) __attribute__((weak));
extern void *__libc_dlsym(void *library, const char *name) __attribute__((weak));
#define INTERNAL_MODE ((int)0x80000000)

/* A program that is linked with the driver and opens no library itself has no libdl.so.2 yet; with the driver it would get one,
 * because the driver needs it. */
static void *in_libdl(const char *name) {
    static _Atomic(void *) opened;
    if (__libc_dlopen_mode == NULL || __libc_dlsym == NULL) {
        return NULL;
    }
    void *library = atomic_load(&opened);
    if (library == NULL) {
        library = __libc_dlopen_mode("libdl.so.2", RTLD_NOW | INTERNAL_MODE);
        atomic_store(&opened, library);
    }
    return library != NULL ? __libc_dlsym(library, name) : NULL;
}

/* The function of that name, whose address the linker left in `linked` if the process had it when it started. */
#define LOADER_FUNCTION(name) loader_function((void *)(name), #name)

static void *loader_function(void *linked, const char *name) {
    return linked != NULL ? linked : in_libdl(name);
}

void *loader_symbol(void *library, const char *name) {
    __typeof__(&dlsym) function;
    void *found = LOADER_FUNCTION(dlsym);
    memcpy(&function, &found, sizeof function);
    return function != NULL ? function(library, name) : NULL;
}

void loader_close(void *library) {
    __typeof__(&dlclose) function;
    void *found = LOADER_FUNCTION(dlclose);
    memcpy(&function, &found, sizeof function);
    if (function != NULL) {
        function(library);
    }
}

const char *loader_own_file(void) {
    __typeof__(&dladdr) function;
    void *found = LOADER_FUNCTION(dladdr);
    memcpy(&function, &found, sizeof function);
    static const char own;
    Dl_info info;
    return function != NULL && function(&own, &info) != 0 ? info.dli_fname : NULL;
}

int loader_information(void *library, int request, void *information) {
    __typeof__(&dlinfo) function;
    void *found = LOADER_FUNCTION(dlinfo);
    memcpy(&function, &found, sizeof function);
    return function != NULL ? function(library, request, information) : -1;
}

Dl_serinfo *loader_folders(const char *file) {
    void *library = loader_open(file, RTLD_LAZY | RTLD_NOLOAD);
    Dl_serinfo size, *folders = NULL;
    if (library != NULL && loader_information(library, RTLD_DI_SERINFOSIZE, &size) == 0) {
        folders = malloc(size.dls_size);
    }
    if (folders != NULL && (loader_information(library, RTLD_DI_SERINFOSIZE, folders) != 0 ||
                            loader_information(library, RTLD_DI_SERINFO, folders) != 0)) {
        free(folders);
        folders = NULL;
    }
    if (library != NULL) {
        loader_close(library);
    }
    return folders;
}

/* The loader's function of a name that this library exports too. */
static void *behind_ours(const char *name) {
    void *symbol = loader_symbol(RTLD_NEXT, name);
    return symbol != NULL ? symbol : in_libdl(name);
}

dlopen_function loader_dlopen(void) {
    static _Atomic(dlopen_function) next;
    dlopen_function function = atomic_load_explicit(&next, memory_order_acquire);
    if (function == NULL) {
        void *symbol = behind_ours("dlopen");
        memcpy(&function, &symbol, sizeof function);
        atomic_store_explicit(&next, function, memory_order_release);
    }
    return function;
}

dlmopen_function loader_dlmopen(void) {
    dlmopen_function function;
    void *symbol = behind_ours("dlmopen");
    memcpy(&function, &symbol, sizeof function);
    return function;
}

void *loader_open(const char *file, int mode) {
    dlopen_function function = loader_dlopen();
    return function != NULL ? function(file, mode) : NULL;
}
