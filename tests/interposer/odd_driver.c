/* A driver whose cuGetProcAddress hands out other addresses than its exported functions have: each is a jump to one. In
 * front of a copy of the simulator under another SONAME (BEHIND), which answers for everything else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define JUMP_BYTES 16

static void *jump_to(void *function) {
    static unsigned char *jumps;
    static size_t used;
    if (jumps == NULL) {
        jumps = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
#if defined(__x86_64__)
    static const unsigned char code[] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp to the address behind it */
    size_t address = sizeof code;
#else
    static const unsigned char code[] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6}; /* ldr x16, the address; br x16 */
    size_t address = 8;
#endif
    unsigned char *jump = jumps + JUMP_BYTES * used++;
    memcpy(jump, code, sizeof code);
    memcpy(jump + address, &function, sizeof function);
    return jump;
}

static void *behind(const char *name) {
    return dlsym(dlopen(BEHIND, RTLD_NOW | RTLD_NOLOAD), name);
}

/* Static: a call by an exported name would end in whatever stands in front of this driver. */
static int look_up(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    int (*real)(const char *, void **, int, uint64_t, int *);
    void *found = behind("cuGetProcAddress_v2");
    memcpy(&real, &found, sizeof real);
    int result = real(symbol, function, version, flags, status);
    if (result == 0 && *function != NULL) {
        *function = jump_to(*function);
    }
    return result;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    return look_up(symbol, function, version, flags, status);
}

static int look_up_without_status(const char *symbol, void **function, int version, uint64_t flags) {
    int result = look_up(symbol, function, version, flags, NULL);
    return result == 0 && *function == NULL ? 500 : result;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return look_up_without_status(symbol, function, version, flags);
}

int cuGetProcAddress_ptsz(const char *symbol, void **function, int version, uint64_t flags) {
    return look_up_without_status(symbol, function, version, flags != 0 ? flags : 2);
}
