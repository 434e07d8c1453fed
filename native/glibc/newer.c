/* What the headers of newer C libraries ask for, in terms of what glibc 2.17 has. Linked into each library and hidden in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HERE __attribute__((visibility("hidden")))

/* Functions since 2.33; before, the headers made other calls of them. On 64-bit machines the kernel fills what libc declares. */
HERE int stat(const char *path, struct stat *status) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

HERE int fstat(int descriptor, struct stat *status) {
    return (int)syscall(SYS_fstat, descriptor, status);
}

/* Since 2.27. */
HERE int memfd_create(const char *name, unsigned int flags) {
    return (int)syscall(SYS_memfd_create, name, flags);
}

/* Since 2.26. */
HERE void *reallocarray(void *array, size_t count, size_t bytes) {
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(array, total);
}

/* Never in libc.so itself: every library has its own, by which libc knows whose handlers go when a library goes. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);
HERE extern void *__dso_handle;

HERE int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return __register_atfork(prepare, parent, child, __dso_handle);
}

/* Since 2.38 the headers give these names to the functions that read binary numbers too. */
HERE long __isoc23_strtol(const char *text, char **end, int base);
HERE unsigned long __isoc23_strtoul(const char *text, char **end, int base);
HERE int __isoc23_sscanf(const char *text, const char *format, ...);
int __isoc99_vsscanf(const char *text, const char *format, va_list arguments);
extern long old_strtol(const char *text, char **end, int base) __asm__("strtol");
extern unsigned long old_strtoul(const char *text, char **end, int base) __asm__("strtoul");

long __isoc23_strtol(const char *text, char **end, int base) {
    return old_strtol(text, end, base);
}

unsigned long __isoc23_strtoul(const char *text, char **end, int base) {
    return old_strtoul(text, end, base);
}

int __isoc23_sscanf(const char *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int read = __isoc99_vsscanf(text, format, arguments);
    va_end(arguments);
    return read;
}
