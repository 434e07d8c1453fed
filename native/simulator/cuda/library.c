/* Libraries: code that belongs to no context. Each is a module inside, and a CUkernel is the same object as the
 * CUfunction it gives in any context. */
#include "module.h"

/* ---- loading and unloading ---- */

static CUresult load(CUlibrary *library, const void *code, const char *path, unsigned int jit_count,
                     const CUjit_option *jit_options, void **jit_values) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (library == NULL || (code == NULL && path == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = image_options(jit_count, jit_options, jit_values);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct image image = {0};
    result = path != NULL ? image_read_file(path, &image) : image_read(code, &image);
    struct library *opened = result == CUDA_SUCCESS ? object_new(KIND_LIBRARY, sizeof *opened) : NULL;
    if (opened == NULL) {
        image_free(&image);
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = module_open(&image, NULL, opened, &opened->module);
    if (result != CUDA_SUCCESS) {
        object_retire(opened, KIND_LIBRARY);
        object_free(opened, KIND_LIBRARY);
        return result;
    }
    *library = (CUlibrary)opened;
    return CUDA_SUCCESS;
}

/* Library options only say how long the caller keeps the code's bytes; nothing here needs them after the call. */
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                                   unsigned int jit_count, CUlibraryOption *library_options, void **library_values,
                                   unsigned int library_count) {
    if (library_count != 0 && library_options == NULL) { /* values may be missing: one option takes none */
        return CUDA_ERROR_INVALID_VALUE;
    }
    (void)library_values;
    return load(library, code, NULL, jit_count, jit_options, jit_values);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                       void **jit_values, unsigned int jit_count, CUlibraryOption *library_options,
                                       void **library_values, unsigned int library_count) {
    if (library_count != 0 && library_options == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    (void)library_values;
    return load(library, NULL, path, jit_count, jit_options, jit_values);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
    struct library *unloaded = (struct library *)library;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_retire(unloaded, KIND_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    object_retire(unloaded->module, KIND_MODULE); /* never fails: cuModuleUnload refuses a library's module */
    module_close(unloaded->module);
    object_free(unloaded, KIND_LIBRARY);
    return CUDA_SUCCESS;
}

/* ---- what is in a library ---- */

static CUresult library_from(CUlibrary handle, bool arguments_given, struct library **library) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!arguments_given) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!object_is(handle, KIND_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *library = (struct library *)handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    struct library *found;
    CUresult result = library_from(library, kernel != NULL && name != NULL, &found);
    return result != CUDA_SUCCESS ? result : module_function(found->module, name, (struct function **)kernel);
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle) {
    struct library *library;
    CUresult result = library_from(handle, count != NULL, &library);
    if (result == CUDA_SUCCESS) {
        *count = (unsigned int)library->module->image.kernel_count;
    }
    return result;
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary handle) {
    struct library *library;
    CUresult result = library_from(handle, kernels != NULL && count != 0, &library);
    return result != CUDA_SUCCESS ? result : module_functions(library->module, (CUfunction *)kernels, count);
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    struct library *found;
    struct context *context;
    CUresult result = library_from(library, module != NULL, &found);
    if (result == CUDA_SUCCESS) {
        result = context_current(&context);
    }
    if (result == CUDA_SUCCESS) {
        *module = (CUmodule)found->module;
    }
    return result;
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
    struct library *found;
    CUresult result = library_from(library, name != NULL && (address != NULL || bytes != NULL), &found);
    return result != CUDA_SUCCESS ? result : module_variable(found->module, name, address, bytes);
}

/* Neither managed variables nor unified function pointers exist here. */
CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
    struct library *found;
    CUresult result = library_from(library, name != NULL && (address != NULL || bytes != NULL), &found);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuLibraryGetUnifiedFunction(void **pointer, CUlibrary library, const char *symbol) {
    struct library *found;
    CUresult result = library_from(library, pointer != NULL && symbol != NULL, &found);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
}

/* ---- kernels: functions under another name; what they have in common is in function.c ---- */

CUresult CUDAAPI cuKernelGetFunction(CUfunction *function_handle, CUkernel kernel) {
    struct function *function;
    struct context *context;
    CUresult result = function_described(kernel, function_handle != NULL, &function);
    if (result == CUDA_SUCCESS) {
        result = context_current(&context);
    }
    if (result == CUDA_SUCCESS) {
        *function_handle = (CUfunction)function;
    }
    return result;
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    struct function *function;
    CUresult result = function_described(kernel, library != NULL, &function);
    if (result == CUDA_SUCCESS && function->module->library == NULL) {
        result = CUDA_ERROR_INVALID_HANDLE; /* a module's function */
    }
    if (result == CUDA_SUCCESS) {
        *library = (CUlibrary)function->module->library;
    }
    return result;
}

CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel function) {
    return cuFuncGetName(name, (CUfunction)function);
}

CUresult CUDAAPI cuKernelGetParamCount(CUkernel kernel, size_t *count) {
    return cuFuncGetParamCount((CUfunction)kernel, count);
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo((CUfunction)kernel, index, offset, size);
}

/* One value for all devices: no program has been seen to set different ones. */
CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice ordinal) {
    struct function *function;
    struct device *device;
    CUresult result = function_described(kernel, value != NULL, &function);
    if (result == CUDA_SUCCESS) {
        result = device_at(ordinal, &device);
    }
    return result != CUDA_SUCCESS ? result : function_attribute(function, device, attribute, value);
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice ordinal) {
    struct function *function;
    struct device *device;
    CUresult result = function_described(kernel, true, &function);
    if (result == CUDA_SUCCESS) {
        result = device_at(ordinal, &device);
    }
    return result != CUDA_SUCCESS ? result : function_set_attribute(function, device, attribute, value);
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice ordinal) {
    struct device *device;
    CUresult result = device_at(ordinal, &device);
    return result != CUDA_SUCCESS ? result : cuFuncSetCacheConfig((CUfunction)kernel, config);
}
