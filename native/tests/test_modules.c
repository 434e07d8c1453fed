/* Modules, libraries, functions and the linker: what loads, what is found in it, and what stale handles answer. */
#define _GNU_SOURCE
#include "check.h"

#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char ptx[] = "//\n"
                          "// .entry not_this_one (\n"
                          "/* .global .u32 nor_this; */\n"
                          ".version 8.0\n.target sm_80\n.address_size 64\n"
                          ".extern .global .u32 elsewhere;\n"
                          ".visible .global .align 4 .u32 counter;\n"
                          ".global .align 16 .v4 .f32 table[3][5] = {1, 2};\n"
                          ".const .align 8 .b8 text[13];\n"
                          ".global .attribute(.managed) .align 8 .u64 shared_with_host;\n"
                          ".func helper() { ret; }\n"
                          ".visible .entry first(\n.param .u64 first_param_0\n)\n{\n.reg .b32 %r<2>;\n"
                          "ld.global.u32 %r1, [counter];\n.file 1 \".entry nor_that\"\nret;\n}\n"
                          ".entry _Z13gpuslice_fillPffy(.param .u64 a, .param .f32 b, .param .u64 c) { ret; }\n";

static struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
    char content[16];
} fatbin = {0xBA55ED50, 1, 16, 16, "compressed code"};

static struct {
    uint32_t magic, version;
    const void *data, *unused;
} wrapper = {0x466243B1, 1, &fatbin, NULL};

static void modules_find_what_is_in_ptx(void) {
    CUmodule module;
    CUfunction function, again;
    CUdeviceptr address, same;
    size_t bytes;
    unsigned int count;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "first"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&again, module, "first"));
    CHECK(function == again);
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&again, module, "not_this_one"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&again, module, "nor_that"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&again, module, "helper"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&again, module, "firs"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&again, module, ""));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunctionCount(&count, module));
    CHECK(count == 2);

    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&address, &bytes, module, "counter"));
    CHECK(bytes == 4);
    uint32_t value = 1;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&value, address, 4));
    CHECK(value == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&same, NULL, module, "counter"));
    CHECK(address == same);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(NULL, &bytes, module, "table"));
    CHECK(bytes == 4 * 4 * 3 * 5);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&address, &bytes, module, "text"));
    CHECK(bytes == 13);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&address, &bytes, module, "shared_with_host"));
    CHECK(bytes == 8);
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, &bytes, module, "elsewhere"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, &bytes, module, "nor_this"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
}

static void unloading_gives_back_memory_and_makes_handles_stale(void) {
    CUmodule module, its_module;
    CUfunction function;
    CUdeviceptr address;
    const char *name;
    size_t before, during, after;
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&before, NULL));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "first"));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetModule(&its_module, function));
    CHECK(its_module == module);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&address, NULL, module, "counter"));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&during, NULL));
    CHECK(during < before);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&after, NULL));
    CHECK(after == before);
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&function, module, "first"));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuFuncGetName(&name, function));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void every_kind_of_image_loads(void) {
    CUmodule module;
    CUfunction function;
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoadFatBinary(&module, &fatbin));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "anything"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoadData(&module, &wrapper));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "anything"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "no image"));
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, ""));
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, ".target sm_80"));
    wrapper.data = &wrapper;
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, &wrapper));
    wrapper.data = NULL;
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, &wrapper));
    wrapper.data = &fatbin;
}

static void files_load(void) {
    CUmodule module;
    CUlibrary library;
    char path[64];
    int file = memfd_create("image", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    CHECK_RESULT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nonexistent"));
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoad(&module, path)); /* empty */
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoad(&module, "/proc"));
    CHECK(write(file, ptx, strlen(ptx)) == (ssize_t)strlen(ptx));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoad(&module, path));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryUnload(library));
    /* A wrapper's pointer means nothing in a file. */
    CHECK(ftruncate(file, 0) == 0 && pwrite(file, &wrapper, sizeof wrapper, 0) == sizeof wrapper);
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoad(&module, path));
    close(file);
}

static void logs_come_back_empty(void) {
    CUmodule module;
    char information[8] = "before", errors[8] = "before";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER,
                              CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_WALL_TIME};
    void *values[] = {(void *)(uintptr_t)sizeof information, information, errors, (void *)0, (void *)1};
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoadDataEx(&module, ptx, 5, options, values));
    CHECK(information[0] == '\0');
    CHECK(errors[0] == 'b'); /* a buffer of no size is not written to */
    CHECK(values[0] == NULL && values[3] == NULL && values[4] == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadDataEx(&module, ptx, 1, NULL, NULL));
}

static void libraries_share_objects_with_functions(void) {
    CUlibrary library, found;
    CUkernel kernel, kernels[4] = {NULL};
    CUfunction function;
    CUmodule module;
    CUdeviceptr address;
    unsigned int count;
    const char *name;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetKernel(&kernel, library, "first"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "second"));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetFunction(&function, kernel));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetName(&name, kernel));
    CHECK(strcmp(name, "first") == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetLibrary(&found, kernel));
    CHECK(found == library);
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetKernelCount(&count, library));
    CHECK(count == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryEnumerateKernels(kernels, 4, library));
    CHECK(kernels[0] == kernel && kernels[1] != NULL && kernels[2] == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetGlobal(&address, NULL, library, "counter"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&address, NULL, library, "counter"));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetModule(&module, library));
    CHECK_RESULT(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(module));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryUnload(library));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(library));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuKernelGetFunction(&function, kernel));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunctionCount(&count, module));
}

static void functions_have_attributes(CUdevice device) {
    CUmodule module;
    CUfunction first, fill;
    int value;
    size_t count, offset, size;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&first, module, "first"));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleGetFunction(&fill, module, "_Z13gpuslice_fillPffy"));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, first));
    CHECK(value == 1024);
    CHECK_RESULT(CUDA_SUCCESS,
                 cuFuncSetAttribute(first, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                    (CUkernel)first, device));
    CHECK(value == 64 * 1024);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                 cuFuncSetAttribute(first, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(first, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, first));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&value, (CUfunction_attribute)-1, first));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncSetCacheConfig(first, CU_FUNC_CACHE_PREFER_L1));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetParamCount(fill, &count));
    CHECK(count == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetParamInfo(fill, 2, &offset, &size));
    CHECK(offset == 16 && size == 8);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(fill, 3, &offset, &size));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
}

static void the_linker_keeps_all_names(void) {
    static char other[] = ".version 8.0\n.global .f64 second_variable;\n.entry second() { ret; }";
    CUlinkState linker;
    CUmodule module;
    CUfunction function;
    CUdeviceptr address;
    void *cubin;
    size_t size, bytes;
    unsigned int count;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkCreate(0, NULL, NULL, &linker));
    CHECK_RESULT(CUDA_SUCCESS,
                 cuLinkAddData(linker, CU_JIT_INPUT_PTX, (void *)(uintptr_t)ptx, sizeof ptx, "a", 0, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkAddData(linker, CU_JIT_INPUT_PTX, other, sizeof other, NULL, 0, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_PTX, cuLinkAddData(linker, CU_JIT_INPUT_PTX, "junk", 4, NULL, 0, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile(linker, CU_JIT_INPUT_PTX, "/nonexistent", 0, NULL, NULL));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkComplete(linker, &cubin, &size));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                 cuLinkAddData(linker, CU_JIT_INPUT_PTX, other, sizeof other, NULL, 0, NULL, NULL));
    CHECK(size > 64 && memcmp(cubin, "\x7f" "ELF", 4) == 0);
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, cubin));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunctionCount(&count, module));
    CHECK(count == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "first"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "second"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "third"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&address, &bytes, module, "second_variable"));
    CHECK(bytes == 8);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));

    /* A cubin is an input too, and code that the simulator cannot read may hold any kernel. */
    CUlinkState relinker;
    void *larger;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkCreate(0, NULL, NULL, &relinker));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkAddData(relinker, CU_JIT_INPUT_CUBIN, cubin, size, NULL, 0, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkAddData(relinker, CU_JIT_INPUT_LIBRARY, "!<arch>", 7, NULL, 0, NULL, NULL));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkComplete(relinker, &larger, &size));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, larger));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "third"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(relinker));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(linker));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(linker));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLinkComplete(linker, &cubin, &size));
}

static void missing_arguments_are_errors(void) {
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUlinkState linker;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(NULL, ptx));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleLoad(&module, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(NULL, module, "first"));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&function, module, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleGetGlobal(NULL, NULL, module, "counter"));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleGetLoadingMode(NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&function, NULL, "first"));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(NULL, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLinkCreate(0, NULL, NULL, NULL));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuLinkCreate(0, NULL, NULL, &linker));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLinkAddData(linker, CU_JIT_INPUT_PTX, NULL, 4, NULL, 0, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLinkAddFile(linker, CU_JIT_INPUT_PTX, NULL, 0, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(linker, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(linker));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
}

static void *load_and_unload(void *context) {
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    for (int i = 0; i < 200; i++) {
        CUmodule module;
        CUfunction function;
        CUdeviceptr address;
        CHECK_RESULT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
        CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "first"));
        CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&address, NULL, module, "counter"));
        CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(module));
    }
    return NULL;
}

static void threads_do_not_disturb_each_other(CUcontext context) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, load_and_unload, context) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void modules_go_with_their_context(CUdevice device) {
    CUcontext context;
    CUmodule module;
    CUlibrary library;
    CUdeviceptr address;
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxCreate(&context, NULL, 0, device));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoadData(&module, ptx));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetGlobal(&address, NULL, library, "counter"));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(context));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetGlobal(&address, NULL, library, "counter"));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryUnload(library));
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUlibrary library;
    CHECK_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuModuleLoadData(&module, ptx));
    CHECK_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuInit(0));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDeviceGet(&device, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuModuleLoadData(&module, ptx));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, device));
    CHECK_OR_EXIT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    modules_find_what_is_in_ptx();
    unloading_gives_back_memory_and_makes_handles_stale();
    every_kind_of_image_loads();
    files_load();
    logs_come_back_empty();
    libraries_share_objects_with_functions();
    functions_have_attributes(device);
    the_linker_keeps_all_names();
    missing_arguments_are_errors();
    threads_do_not_disturb_each_other(context);
    modules_go_with_their_context(device);
    return check_summary();
}
