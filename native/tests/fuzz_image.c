/* Random damage to images: every one must load or be refused, and nothing may crash (the sanitizers watch). The same
 * seed gives the same images.
 *
 * usage: fuzz_image [ROUNDS [SEED]]
 *
 * Images go in through calls that know their size, of files and of the linker: no call can check a bare pointer. */
#define _GNU_SOURCE
#include "check.h"

#include <cuda.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGEST 4096

static const char ptx[] = ".version 8.0\n.target sm_80\n/* comment */ .global .align 8 .v2 .f32 table[3][5];\n"
                          ".visible .entry kernel(.param .u64 p) { .reg .b32 %r<2>; ret; } // end\n"
                          ".const .b8 text[13] = \"abc\";\n.file 1 \"name\"\n.entry other() { ret; }\n";

static uint64_t state;

static uint32_t random_below(uint32_t limit) { /* splitmix64 */
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((mixed ^ mixed >> 31) % limit);
}

static size_t damage(unsigned char *bytes, size_t size) {
    static const uint64_t awkward[] = {0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX};
    for (uint32_t changes = 1 + random_below(8); changes > 0; changes--) {
        size_t at = random_below((uint32_t)size), width = (size_t)1 << random_below(4);
        switch (random_below(4)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << random_below(8));
            break;
        case 1:
            bytes[at] = (unsigned char)random_below(256);
            break;
        case 2: /* a number at the edge of its type, where a field may be */
            at = at / width * width;
            memcpy(bytes + at, &awkward[random_below(10)], width < size - at ? width : size - at);
            break;
        default: /* a piece over another */
            width = random_below((uint32_t)(size - at)) + 1;
            memmove(bytes + random_below((uint32_t)(size - width + 1)), bytes + at, width);
            break;
        }
    }
    return random_below(4) == 0 ? 1 + random_below((uint32_t)size) : size;
}

static void use(CUmodule module) {
    CUfunction functions[16] = {NULL};
    CUdeviceptr address;
    size_t bytes;
    CHECK_RESULT(CUDA_SUCCESS, cuModuleEnumerateFunctions(functions, 16, module));
    for (int i = 0; i < 16 && functions[i] != NULL; i++) {
        CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(functions[i], 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
    CUresult result = cuModuleGetGlobal(&address, &bytes, module, "text");
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
}

static void load_file(int file, const unsigned char *bytes, size_t size) {
    char path[64];
    CUmodule module;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    CHECK(ftruncate(file, 0) == 0 && pwrite(file, bytes, size, 0) == (ssize_t)size);
    CUresult result = cuModuleLoad(&module, path);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_IMAGE);
    if (result == CUDA_SUCCESS) {
        use(module);
    }
}

static void link_bytes(const unsigned char *bytes, size_t size) {
    CUlinkState linker;
    CUmodule module;
    void *cubin, *exact = malloc(size); /* on the heap, where a sanitizer sees a read past its end */
    memcpy(exact, bytes, size);
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkCreate(0, NULL, NULL, &linker));
    CUresult result = cuLinkAddData(linker, CU_JIT_INPUT_CUBIN, exact, size, NULL, 0, NULL, NULL);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_IMAGE);
    free(exact);
    result = cuLinkComplete(linker, &cubin, NULL);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_IMAGE);
    if (result == CUDA_SUCCESS) {
        CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, cubin));
        use(module);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(linker));
}

int main(int count, char **arguments) {
    unsigned long rounds = count > 1 ? strtoul(arguments[1], NULL, 0) : 20000;
    state = count > 2 ? strtoull(arguments[2], NULL, 0) : 1;
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t bytes;
        char content[16];
    } fatbin = {0xBA55ED50, 1, 16, 16, "compressed code"};
    CUcontext context;
    CUlinkState linker;
    struct {
        const void *bytes;
        size_t size;
    } seeds[3] = {{ptx, sizeof ptx - 1}, {&fatbin, sizeof fatbin}};
    CHECK_OR_EXIT(CUDA_SUCCESS, cuInit(0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkCreate(0, NULL, NULL, &linker));
    CHECK_OR_EXIT(CUDA_SUCCESS,
                  cuLinkAddData(linker, CU_JIT_INPUT_PTX, (void *)(uintptr_t)ptx, sizeof ptx, NULL, 0, NULL, NULL));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkComplete(linker, (void **)&seeds[2].bytes, &seeds[2].size));
    CHECK(seeds[2].size <= LARGEST);

    int file = memfd_create("image", MFD_CLOEXEC);
    for (unsigned long i = 0; i < rounds; i++) {
        unsigned char bytes[LARGEST];
        uint32_t seed = "00012222"[random_below(8)] - '0'; /* fatbins, of which only the header is read, least often */
        memcpy(bytes, seeds[seed].bytes, seeds[seed].size);
        size_t size = damage(bytes, seeds[seed].size);
        if (i % 2 == 0) {
            load_file(file, bytes, size);
        } else {
            link_bytes(bytes, size);
        }
    }
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(linker));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    return check_summary();
}
