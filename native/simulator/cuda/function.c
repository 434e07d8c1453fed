/* Functions, which are kernels too (CUfunction and CUkernel are one object): their attributes, their arguments, how
 * long they take and what they compute. */
#define _GNU_SOURCE
#include "module.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_SHARED_BYTES 49152 /* what a block gets without asking for more */
#define THREADS_PER_BLOCK 1024
#define REGISTERS_PER_THREAD 32
#define MAX_DURATION_NS 3600000000000ull /* an hour: more is a mistake, and sums of it cannot overflow */

/* ---- making and unmaking: module.c keeps the list ---- */

struct function *function_open(struct module *module, const char *name) {
    struct function *function = object_new(KIND_FUNCTION, sizeof *function);
    if (function == NULL) {
        return NULL;
    }
    function->name = strdup(name);
    if (function->name == NULL) {
        function_close(function);
        return NULL;
    }
    function->module = module;
    const struct kernel *kernel = kernel_named(name);
    if (kernel != NULL) {
        function->argument_sizes = kernel->argument_sizes;
        function->argument_count = kernel->argument_count;
        function->compute = kernel->compute;
        function->duration_ns = kernel->duration_ns;
    }
    atomic_store(&function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], THREADS_PER_BLOCK);
    atomic_store(&function->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS], REGISTERS_PER_THREAD);
    atomic_store(&function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], DEFAULT_SHARED_BYTES);
    atomic_store(&function->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT], -1);
    return function;
}

void function_close(struct function *function) {
    object_retire(function, KIND_FUNCTION);
    free(function->name);
    free(atomic_load(&function->legacy));
    object_free(function, KIND_FUNCTION);
}

/* ---- handles ---- */

CUresult function_described(const void *handle, bool arguments_given, struct function **function) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!arguments_given) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!object_is(handle, KIND_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *function = (struct function *)handle;
    return CUDA_SUCCESS;
}

CUresult function_from(CUfunction handle, bool arguments_given, struct context **context, struct function **function) {
    CUresult result = context_current(context);
    return result != CUDA_SUCCESS ? result : function_described(handle, arguments_given, function);
}

/* ---- launches ---- */

/* Takes the packed buffer apart: arguments in order, each at a multiple of its size. */
static CUresult unpack(const struct function *function, void **extra, void *unpacked[FUNCTION_MAX_ARGUMENTS]) {
    char *buffer = NULL;
    size_t size = 0, offset = 0;
    for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[1];
        } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != NULL) {
            size = *(const size_t *)extra[1];
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (int i = 0; i < function->argument_count; i++) {
        size_t bytes = function->argument_sizes[i];
        offset = (offset + bytes - 1) / bytes * bytes;
        if (buffer == NULL || offset + bytes > size) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        unpacked[i] = buffer + offset;
        offset += bytes;
    }
    return CUDA_SUCCESS;
}

CUresult function_arguments(const struct function *function, void **arguments, void **extra,
                            void *unpacked[FUNCTION_MAX_ARGUMENTS], void ***values) {
    *values = NULL;
    if (function->argument_count == 0) {
        return CUDA_SUCCESS;
    }
    if ((arguments == NULL) == (extra == NULL)) {
        return CUDA_ERROR_INVALID_VALUE; /* neither, or both */
    }
    if (extra != NULL) {
        *values = unpacked;
        return unpack(function, extra, unpacked);
    }
    for (int i = 0; i < function->argument_count; i++) {
        if (arguments[i] == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    *values = arguments;
    return CUDA_SUCCESS;
}

uint64_t function_duration_ns(const struct function *function, const struct device *device, const unsigned int grid[3],
                              const unsigned int block[3], void **arguments) {
    const struct sim_description *machine = &driver.process.machine->description;
    uint64_t duration;
    if (function->duration_ns != NULL && arguments != NULL) {
        duration = function->duration_ns(arguments);
    } else {
        uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
        uint64_t capacity = (uint64_t)device->multiprocessors * device->spec->threads_per_multiprocessor;
        uint64_t waves = 1;
        if (__builtin_mul_overflow(threads, (uint64_t)grid[0] * grid[1], &threads) ||
            __builtin_mul_overflow(threads, grid[2], &threads)) {
            return MAX_DURATION_NS;
        }
        if (threads > capacity && capacity != 0) { /* most grids fit at once and are spared the division */
            waves = (threads - 1) / capacity + 1;
        }
        if (__builtin_mul_overflow(waves, machine->wave_ns, &duration) ||
            __builtin_add_overflow(duration, machine->kernel_ns, &duration)) {
            return MAX_DURATION_NS;
        }
    }
    return duration < MAX_DURATION_NS ? duration : MAX_DURATION_NS;
}

CUresult function_compute(const struct function *function, const unsigned int grid[3], const unsigned int block[3],
                          void **arguments, void **extra) {
    if (function->compute == NULL) {
        return CUDA_SUCCESS;
    }
    void *unpacked[FUNCTION_MAX_ARGUMENTS], **values;
    CUresult result = function_arguments(function, arguments, extra, unpacked, &values);
    return result != CUDA_SUCCESS ? result : function->compute(values, grid, block);
}

/* ---- attributes ---- */

CUresult function_attribute(const struct function *function, const struct device *device,
                            CUfunction_attribute attribute, int *value) {
    if ((unsigned int)attribute >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool version = attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION || attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION;
    *value = version ? (int)(device->spec->compute_major * 10 + device->spec->compute_minor)
                     : atomic_load(&function->attributes[attribute]);
    return CUDA_SUCCESS;
}

CUresult function_set_attribute(struct function *function, const struct device *device, CUfunction_attribute attribute,
                                int value) {
    bool valid = false;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        valid = value >= 0 && (unsigned int)value <= device->spec->shared_memory_per_block_optin;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        valid = value >= -1 && value <= 100; /* percent */
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        valid = value == 0 || value == 1;
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        valid = value >= 0;
        break;
    default: /* the rest is a property of the code */
        break;
    }
    if (!valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    atomic_store(&function->attributes[attribute], value);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    struct context *context;
    struct function *function;
    CUresult result = function_from(handle, value != NULL, &context, &function);
    return result != CUDA_SUCCESS ? result : function_attribute(function, context->device, attribute, value);
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    struct context *context;
    struct function *function;
    CUresult result = function_from(handle, true, &context, &function);
    return result != CUDA_SUCCESS ? result : function_set_attribute(function, context->device, attribute, value);
}

/* Cache and bank preferences are hints, and there is no cache here to hint at. */
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
    struct context *context;
    struct function *function;
    return function_from(handle, (unsigned int)config <= CU_FUNC_CACHE_PREFER_EQUAL, &context, &function);
}

CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
    struct context *context;
    struct function *function;
    bool known = (unsigned int)config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
    return function_from(handle, known, &context, &function);
}

/* ---- what it is ---- */

CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction handle) {
    struct context *context;
    struct function *function;
    CUresult result = function_from(handle, module != NULL, &context, &function);
    if (result == CUDA_SUCCESS) {
        *module = (CUmodule)function->module;
    }
    return result;
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction handle) {
    struct function *function;
    CUresult result = function_described(handle, name != NULL, &function);
    if (result == CUDA_SUCCESS) {
        *name = function->name;
    }
    return result;
}

CUresult CUDAAPI cuFuncGetParamCount(CUfunction handle, size_t *count) {
    struct function *function;
    CUresult result = function_described(handle, count != NULL, &function);
    if (result == CUDA_SUCCESS) {
        *count = (size_t)function->argument_count;
    }
    return result;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    struct function *function;
    CUresult result = function_described(handle, offset != NULL, &function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (index >= (size_t)function->argument_count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t start = 0, bytes = 0;
    for (size_t i = 0; i <= index; i++) {
        start += bytes;
        bytes = function->argument_sizes[i];
        start = (start + bytes - 1) / bytes * bytes;
    }
    *offset = start;
    if (size != NULL) {
        *size = bytes;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle) {
    struct context *context;
    struct function *function;
    CUresult result = function_from(handle, state != NULL, &context, &function);
    if (result == CUDA_SUCCESS) {
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    }
    return result;
}

CUresult CUDAAPI cuFuncLoad(CUfunction handle) {
    struct context *context;
    struct function *function;
    return function_from(handle, true, &context, &function);
}
