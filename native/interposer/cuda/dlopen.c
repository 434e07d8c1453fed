/* dlopen of the driver, or of NVML, by another name. The SONAME covers "libcuda.so.1" and programs that link the driver; a program
 * that opens "libcuda.so" or an absolute path would get the real one, so those names are answered with ours. Every
 * other call must reach the loader as if we were not here: it looks at its caller's address to know whose RUNPATH
 * and namespace to use, so we jump to it instead of calling it. */
#define _GNU_SOURCE
#include "../real.h"

#include <dlfcn.h>
#include <string.h>

static const struct {
    const char *stem, *soname;
} stood_in_for[] = {
    {"libcuda.so", "libcuda.so.1"},
    {"libnvidia-ml.so", "libnvidia-ml.so.1"},
};

static bool names_library(const char *file, const char *stem) {
    const char *name = strrchr(file, '/');
    name = name != NULL ? name + 1 : file;
    size_t length = strlen(stem);
    return strncmp(name, stem, length) == 0 && (name[length] == '\0' || name[length] == '.');
}

void *loader_stand_in(const char *file, int mode, dlopen_function *next);

/* Called by the exported dlopen with its arguments: a library of ours, or NULL for "jump to the loader". */
__attribute__((used, visibility("hidden"))) void *loader_stand_in(const char *file, int mode, dlopen_function *next) {
    *next = next_dlopen();
    for (size_t i = 0; file != NULL && i < sizeof stood_in_for / sizeof stood_in_for[0]; i++) {
        if (!names_library(file, stood_in_for[i].stem)) {
            continue;
        }
        /* We were loaded before everything else, so the first library of that name is ours if any is. */
        void *handle = real_dlopen(stood_in_for[i].soname, mode | RTLD_NOLOAD);
        if (handle != NULL && dlsym(handle, "gpuslice_stand_in") != NULL) {
            return handle;
        }
        if (handle != NULL) {
            dlclose(handle);
        }
    }
    return NULL;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlopen\n"
        ".type dlopen, @function\n"
        "dlopen:\n"
        "    push %rdi\n"
        "    push %rsi\n"
        "    sub $8, %rsp\n"
        "    mov %rsp, %rdx\n"
        "    call loader_stand_in\n"
        "    pop %r11\n"
        "    pop %rsi\n"
        "    pop %rdi\n"
        "    test %rax, %rax\n"
        "    jnz 1f\n"
        "    jmp *%r11\n"
        "1:  ret\n"
        ".size dlopen, . - dlopen\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlopen\n"
        ".type dlopen, %function\n"
        "dlopen:\n"
        "    stp x29, x30, [sp, #-48]!\n"
        "    stp x0, x1, [sp, #16]\n"
        "    add x2, sp, #32\n"
        "    bl loader_stand_in\n"
        "    mov x9, x0\n"
        "    ldr x16, [sp, #32]\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #48\n"
        "    cbnz x9, 1f\n"
        "    br x16\n"
        "1:  mov x0, x9\n"
        "    ret\n"
        ".size dlopen, . - dlopen\n");
#else
#error "dlopen must jump to the loader: write it for this architecture"
#endif
