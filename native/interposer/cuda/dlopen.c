/* dlopen of the driver, or of NVML, by another name or into a namespace of its own. The SONAME covers "libcuda.so.1" and programs
 * that link the driver; a program that opens "libcuda.so", an absolute path or a namespace would get the real one, so those are
 * answered with ours. Every other call must reach the loader as if we were not here: it looks at its caller's address to know
 * whose RUNPATH and namespace to use, so we jump to it instead of calling it. */
#define _GNU_SOURCE
#include "../loader.h"
#include "../session.h"

#include <link.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *stem, *soname;
} stood_in_for[] = {
    {"libcuda.so", "libcuda.so.1"},
    {"libnvidia-ml.so", "libnvidia-ml.so.1"},
};

#define STAND_INS (sizeof stood_in_for / sizeof stood_in_for[0])

static bool names_library(const char *file, const char *stem) {
    const char *name = strrchr(file, '/');
    name = name != NULL ? name + 1 : file;
    size_t length = strlen(stem);
    return strncmp(name, stem, length) == 0 && (name[length] == '\0' || name[length] == '.');
}

/* Our library that stands in for that file, or NULL. */
static void *stand_in(const char *file, int mode) {
    for (size_t i = 0; file != NULL && i < STAND_INS; i++) {
        if (!names_library(file, stood_in_for[i].stem)) {
            continue;
        }
        /* We were loaded before everything else, so the first library of that name is ours if any is. */
        void *handle = loader_open(stood_in_for[i].soname, mode | RTLD_NOLOAD);
        void (*tell)(const char *path) = NULL;
        void *symbol = handle != NULL ? loader_symbol(handle, "gpuslice_stand_in") : NULL;
        if (symbol != NULL) {
            memcpy(&tell, &symbol, sizeof tell);
            tell(file);
            return handle;
        }
        if (handle != NULL) {
            loader_close(handle);
        }
    }
    return NULL;
}

#define FOR_ASSEMBLER __attribute__((used, visibility("hidden")))

void *loader_stand_in(const char *file, int mode, dlopen_function *next);
void *loader_space_stand_in(Lmid_t space, const char *file, int mode, dlmopen_function *next);

/* Called by the exported functions with their arguments: what is opened, or NULL for "jump to the loader". */
FOR_ASSEMBLER void *loader_stand_in(const char *file, int mode, dlopen_function *next) {
    *next = loader_dlopen();
    return stand_in(file, mode);
}

static void *refuse(Lmid_t space, const char *file, int mode) {
    (void)space, (void)file, (void)mode;
    return NULL;
}

/* Nothing is preloaded into another namespace: a library there that needs the driver has got the real one. */
static bool brought_a_real_library(void *handle) {
    struct link_map *map = NULL;
    if (loader_information(handle, RTLD_DI_LINKMAP, &map) != 0) {
        return true;
    }
    while (map->l_prev != NULL) {
        map = map->l_prev;
    }
    for (; map != NULL; map = map->l_next) {
        for (size_t i = 0; i < STAND_INS; i++) {
            if (names_library(map->l_name, stood_in_for[i].stem)) {
                return true;
            }
        }
    }
    return false;
}

FOR_ASSEMBLER void *loader_space_stand_in(Lmid_t space, const char *file, int mode, dlmopen_function *next) {
    *next = loader_dlmopen();
    void *handle = stand_in(file, mode);
    if (handle != NULL || space == LM_ID_BASE || *next == NULL) {
        return handle;
    }
    handle = (*next)(space, file, mode);
    if (handle != NULL && brought_a_real_library(handle)) {
        session_complain(COMPLAINT_NAMESPACE, "dlmopen is refused: it would load the GPU driver beside the session's");
        loader_close(handle);
        handle = NULL;
        *next = refuse;
    }
    return handle; /* one that failed fails again, and says why */
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
        ".size dlopen, . - dlopen\n"
        ".globl dlmopen\n"
        ".type dlmopen, @function\n"
        "dlmopen:\n"
        "    push %rdi\n"
        "    push %rsi\n"
        "    push %rdx\n"
        "    sub $16, %rsp\n"
        "    mov %rsp, %rcx\n"
        "    call loader_space_stand_in\n"
        "    mov (%rsp), %r11\n"
        "    add $16, %rsp\n"
        "    pop %rdx\n"
        "    pop %rsi\n"
        "    pop %rdi\n"
        "    test %rax, %rax\n"
        "    jnz 1f\n"
        "    jmp *%r11\n"
        "1:  ret\n"
        ".size dlmopen, . - dlmopen\n");
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
        ".size dlopen, . - dlopen\n"
        ".globl dlmopen\n"
        ".type dlmopen, %function\n"
        "dlmopen:\n"
        "    stp x29, x30, [sp, #-48]!\n"
        "    stp x0, x1, [sp, #16]\n"
        "    str x2, [sp, #32]\n"
        "    add x3, sp, #40\n"
        "    bl loader_space_stand_in\n"
        "    mov x9, x0\n"
        "    ldr x16, [sp, #40]\n"
        "    ldr x2, [sp, #32]\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #48\n"
        "    cbnz x9, 1f\n"
        "    br x16\n"
        "1:  mov x0, x9\n"
        "    ret\n"
        ".size dlmopen, . - dlmopen\n");
#else
#error "dlopen must jump to the loader: write it for this architecture"
#endif
