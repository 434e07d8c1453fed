/* Modules: code loaded into one context. An image gives names; a name that is asked for becomes a function object, or
 * device memory if it is a variable. */
#define _GNU_SOURCE
#include "module.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER; /* the list, and the lists in each module */
static struct module *modules;

/* ---- what libraries need too ---- */

CUresult module_open(struct image *image, struct context *context, struct library *library, struct module **module) {
    struct module *opened = object_new(KIND_MODULE, sizeof *opened);
    if (opened == NULL) {
        image_free(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    opened->context = context;
    opened->library = library;
    opened->image = *image;
    pthread_mutex_lock(&modules_lock);
    opened->next = modules;
    if (modules != NULL) {
        modules->previous = opened;
    }
    modules = opened;
    pthread_mutex_unlock(&modules_lock);
    *module = opened;
    return CUDA_SUCCESS;
}

/* Frees the variables that the module has in the context, or in all of them (NULL). Under the lock. */
static void close_variables(struct module *module, const struct context *context) {
    struct variable **link = &module->variables;
    while (*link != NULL) {
        struct variable *variable = *link;
        if (context != NULL && variable->context != context) {
            link = &variable->next;
            continue;
        }
        *link = variable->next;
        memory_free(variable->address);
        free(variable);
    }
}

static void close_locked(struct module *module) {
    *(module->previous != NULL ? &module->previous->next : &modules) = module->next;
    if (module->next != NULL) {
        module->next->previous = module->previous;
    }
    close_variables(module, NULL);
    while (module->functions != NULL) {
        struct function *function = module->functions;
        module->functions = function->next;
        function_close(function);
    }
    image_free(&module->image);
    object_free(module, KIND_MODULE);
}

void module_close(struct module *module) {
    pthread_mutex_lock(&modules_lock);
    close_locked(module);
    pthread_mutex_unlock(&modules_lock);
}

void module_close_all(struct context *context) {
    pthread_mutex_lock(&modules_lock);
    for (struct module *module = modules, *next; module != NULL; module = next) {
        next = module->next;
        if (module->context != context) {
            close_variables(module, context);
        } else if (object_retire(module, KIND_MODULE)) {
            close_locked(module);
        }
    }
    pthread_mutex_unlock(&modules_lock);
}

/* Under the lock. NULL: the host is out of memory. */
static struct function *function_of(struct module *module, const char *name) {
    for (struct function *function = module->functions; function != NULL; function = function->next) {
        if (strcmp(function->name, name) == 0) {
            return function;
        }
    }
    struct function *function = function_open(module, name);
    if (function != NULL) {
        function->next = module->functions;
        module->functions = function;
    }
    return function;
}

CUresult module_function(struct module *module, const char *name, struct function **function) {
    if (!image_has_kernel(&module->image, name)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    pthread_mutex_lock(&modules_lock);
    struct function *found = function_of(module, name);
    pthread_mutex_unlock(&modules_lock);
    if (found == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *function = found;
    return CUDA_SUCCESS;
}

CUresult module_functions(struct module *module, CUfunction *functions, unsigned int count) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < module->image.kernel_count && i < count && result == CUDA_SUCCESS; i++) {
        result = module_function(module, module->image.kernels[i], (struct function **)&functions[i]);
    }
    return result;
}

/* Under the lock. Memory for the variable in the current context. */
static CUresult place_variable(struct module *module, struct context *context, const struct image_variable *declared,
                               struct variable **placed) {
    struct variable *variable = calloc(1, sizeof *variable);
    if (variable == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = cuMemAlloc_v2(&variable->address, declared->bytes);
    void *bytes = result == CUDA_SUCCESS ? memory_bytes_at(variable->address, declared->bytes) : NULL;
    if (bytes == NULL) {
        free(variable);
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;
    }
    if (declared->initial != NULL) {
        memcpy(bytes, declared->initial, declared->bytes);
    } else {
        memset(bytes, 0, declared->bytes);
    }
    variable->declared = declared;
    variable->context = context;
    variable->next = module->variables;
    module->variables = variable;
    *placed = variable;
    return CUDA_SUCCESS;
}

CUresult module_variable(struct module *module, const char *name, CUdeviceptr *address, size_t *bytes) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct image_variable *declared = image_variable(&module->image, name);
    if (declared == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    pthread_mutex_lock(&modules_lock);
    struct variable *variable = module->variables;
    while (variable != NULL && (variable->declared != declared || variable->context != context)) {
        variable = variable->next;
    }
    if (variable == NULL) {
        result = place_variable(module, context, declared, &variable);
    }
    CUdeviceptr placed = result == CUDA_SUCCESS ? variable->address : 0;
    pthread_mutex_unlock(&modules_lock);
    if (result == CUDA_SUCCESS && address != NULL) {
        *address = placed;
    }
    if (result == CUDA_SUCCESS && bytes != NULL) {
        *bytes = declared->bytes;
    }
    return result;
}

/* ---- loading and unloading ---- */

/* Reads the image from memory or, when `path` is given, from that file. */
static CUresult load(const void *memory, const char *path, struct module **module) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct image image = {0};
    result = path != NULL ? image_read_file(path, &image) : image_read(memory, &image);
    if (result != CUDA_SUCCESS) {
        image_free(&image);
        return result;
    }
    return module_open(&image, context, NULL, module);
}

CUresult module_load_image(const void *image, struct module **module) {
    return image == NULL || module == NULL ? CUDA_ERROR_INVALID_VALUE : load(image, NULL, module);
}

CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path) {
    return module == NULL || path == NULL ? CUDA_ERROR_INVALID_VALUE : load(NULL, path, (struct module **)module);
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) {
    return module_load_image(image, (struct module **)module);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int option_count,
                                    CUjit_option *options, void **values) {
    CUresult result = image_options(option_count, options, values);
    return result != CUDA_SUCCESS ? result : cuModuleLoadData(module, image);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
    struct module *module = (struct module *)handle;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (object_is(module, KIND_MODULE) && module->library != NULL) {
        return CUDA_ERROR_NOT_PERMITTED; /* it goes with its library */
    }
    if (!object_retire(module, KIND_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    module_close(module);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && mode == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *mode = CU_MODULE_LAZY_LOADING;
    }
    return result;
}

/* ---- what is in a module ---- */

/* The checks that all of these begin with. */
static CUresult module_from(CUmodule handle, bool arguments_given, struct module **module) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!arguments_given) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!object_is(handle, KIND_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *module = (struct module *)handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    struct module *module;
    CUresult result = module_from(handle, function != NULL && name != NULL, &module);
    return result != CUDA_SUCCESS ? result : module_function(module, name, (struct function **)function);
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int *count, CUmodule handle) {
    struct module *module;
    CUresult result = module_from(handle, count != NULL, &module);
    if (result == CUDA_SUCCESS) {
        *count = (unsigned int)module->image.kernel_count;
    }
    return result;
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule handle) {
    struct module *module;
    CUresult result = module_from(handle, functions != NULL && count != 0, &module);
    return result != CUDA_SUCCESS ? result : module_functions(module, functions, count);
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle, const char *name) {
    struct module *module;
    CUresult result = module_from(handle, name != NULL && (address != NULL || bytes != NULL), &module);
    return result != CUDA_SUCCESS ? result : module_variable(module, name, address, bytes);
}

/* Texture and surface references went with CUDA 12: no image of ours has any. */
CUresult CUDAAPI cuModuleGetTexRef(CUtexref *reference, CUmodule handle, const char *name) {
    struct module *module;
    CUresult result = module_from(handle, reference != NULL && name != NULL, &module);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuModuleGetSurfRef(CUsurfref *reference, CUmodule handle, const char *name) {
    struct module *module;
    CUresult result = module_from(handle, reference != NULL && name != NULL, &module);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
}
