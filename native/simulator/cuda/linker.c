/* The just-in-time linker: reads the names of every input and gives out a cubin that has all of them. */
#define _GNU_SOURCE
#include "image.h"

#include <stdlib.h>

struct linker {
    struct object object;
    pthread_mutex_t lock; /* the rest */
    struct image image;   /* of all inputs so far */
    void *cubin;          /* once complete; the caller reads it until the linker is destroyed */
    size_t cubin_bytes;
};

CUresult CUDAAPI cuLinkCreate_v2(unsigned int option_count, CUjit_option *options, void **values, CUlinkState *handle) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && handle == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = image_options(option_count, options, values);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct linker *linker = object_new(KIND_LINKER, sizeof *linker);
    if (linker == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_init(&linker->lock, NULL);
    *handle = (CUlinkState)linker;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkCreate(unsigned int option_count, CUjit_option *options, void **values, CUlinkState *handle) {
    return cuLinkCreate_v2(option_count, options, values, handle);
}

/* Inputs that are no image of their own (archives, objects, LTO code) may hold any kernel. */
static bool is_opaque(CUjitInputType type) {
    return type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY || type == CU_JIT_INPUT_NVVM;
}

static CUresult linker_from(CUlinkState handle, bool arguments_given, struct linker **linker) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!arguments_given) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *linker = (struct linker *)handle;
    return object_is(handle, KIND_LINKER) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* An input from memory or, when `path` is given, from that file. */
static CUresult add(CUlinkState handle, CUjitInputType type, const void *data, size_t size, const char *path,
                    unsigned int option_count, const CUjit_option *options, void **values) {
    struct linker *linker;
    bool given = (path != NULL || (data != NULL && size != 0)) && (unsigned int)type < CU_JIT_NUM_INPUT_TYPES;
    CUresult result = linker_from(handle, given, &linker);
    if (result == CUDA_SUCCESS) {
        result = image_options(option_count, options, values);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&linker->lock);
    if (linker->cubin != NULL) {
        result = CUDA_ERROR_INVALID_VALUE; /* complete is complete */
    } else {
        result = path != NULL ? image_read_file(path, &linker->image) : image_parse(data, size, &linker->image);
        if (result == CUDA_ERROR_INVALID_IMAGE && is_opaque(type)) {
            linker->image.opaque = true;
            result = CUDA_SUCCESS;
        } else if (result == CUDA_ERROR_INVALID_IMAGE && type == CU_JIT_INPUT_PTX) {
            result = CUDA_ERROR_INVALID_PTX;
        }
    }
    pthread_mutex_unlock(&linker->lock);
    return result;
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void *data, size_t size, const char *name,
                                  unsigned int option_count, CUjit_option *options, void **values) {
    (void)name; /* for messages, of which there are none */
    return add(handle, type, data, size, NULL, option_count, options, values);
}

CUresult CUDAAPI cuLinkAddData(CUlinkState handle, CUjitInputType type, void *data, size_t size, const char *name,
                               unsigned int option_count, CUjit_option *options, void **values) {
    return cuLinkAddData_v2(handle, type, data, size, name, option_count, options, values);
}

CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char *path, unsigned int option_count,
                                  CUjit_option *options, void **values) {
    return add(handle, type, NULL, 0, path, option_count, options, values);
}

CUresult CUDAAPI cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char *path, unsigned int option_count,
                               CUjit_option *options, void **values) {
    return cuLinkAddFile_v2(handle, type, path, option_count, options, values);
}

CUresult CUDAAPI cuLinkComplete(CUlinkState handle, void **cubin, size_t *size) {
    struct linker *linker;
    CUresult result = linker_from(handle, cubin != NULL, &linker);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&linker->lock);
    if (linker->cubin == NULL) {
        result = elf_write(&linker->image, &linker->cubin, &linker->cubin_bytes);
    }
    if (result == CUDA_SUCCESS) {
        *cubin = linker->cubin;
        if (size != NULL) {
            *size = linker->cubin_bytes;
        }
    }
    pthread_mutex_unlock(&linker->lock);
    return result;
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState handle) {
    struct linker *linker;
    CUresult result = linker_from(handle, true, &linker);
    if (result == CUDA_SUCCESS && !object_retire(linker, KIND_LINKER)) {
        result = CUDA_ERROR_INVALID_HANDLE; /* another thread was faster */
    }
    if (result == CUDA_SUCCESS) {
        image_free(&linker->image);
        free(linker->cubin);
        pthread_mutex_destroy(&linker->lock);
        object_free(linker, KIND_LINKER);
    }
    return result;
}
