/* Launches. cuLaunchKernel is the call that everything else is measured against, so its common path (an unknown
 * kernel, while nothing captures or waits) is a few checks, one division-free duration and one submission.
 *
 * A GPU that an XID took off the bus answers CUDA_ERROR_LAUNCH_FAILED to every launch, as real drivers do to contexts
 * that had work on it; new contexts on it are refused as unavailable (context.c). */
#define _GNU_SOURCE
#include "deferred.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>

#define LEGACY_PARAMETER_BYTES 4096

struct legacy_launch { /* the launch that cuFuncSetBlockShape and cuParamSet* put together */
    unsigned int block[3], shared_bytes;
    size_t parameter_bytes;
    _Alignas(16) unsigned char parameters[LEGACY_PARAMETER_BYTES];
};

/* The grid's and the block's limits of all NVIDIA GPUs. Zero is out of range as well: 0 - 1 is the largest number. */
static inline bool dimensions_fit(const unsigned int grid[3], const unsigned int block[3]) {
    return grid[0] - 1 < 0x7fffffffu && grid[1] - 1 < 0xffffu && grid[2] - 1 < 0xffffu && block[0] - 1 < 1024u &&
           block[1] - 1 < 1024u && block[2] - 1 < 64u && block[0] * block[1] * block[2] <= 1024u;
}

/* Everything that a launch can be refused for, apart from its arguments. */
static inline CUresult check(CUfunction handle, const unsigned int grid[3], const unsigned int block[3],
                             unsigned int shared_bytes, CUstream stream_handle, struct stream **stream) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(handle, KIND_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct function *function = (struct function *)handle;
    int shared_limit = atomic_load_explicit(
        &function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], memory_order_relaxed);
    if (!dimensions_fit(grid, block) || shared_bytes > (unsigned int)shared_limit) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream_handle == NULL) {
        *stream = context->legacy_stream;
    } else if ((result = stream_from(stream_handle, stream)) != CUDA_SUCCESS) {
        return result;
    }
    const struct sim_gpu *gpu = &driver.process.machine->gpus[(*stream)->context->device->gpu];
    return atomic_load_explicit(&gpu->lost, memory_order_relaxed) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

/* The long way: a stream captures, or has work that waits. */
static CUresult submit(struct stream *stream, struct function *function, const unsigned int grid[3],
                       const unsigned int block[3], unsigned int shared_bytes, void **arguments) {
    struct operation operation = {
        .kind = OPERATION_KERNEL,
        .kernel = {.function = function,
                   .grid = {grid[0], grid[1], grid[2]},
                   .block = {block[0], block[1], block[2]},
                   .shared_bytes = shared_bytes,
                   .arguments = arguments},
    };
    return stream_submit(stream, &operation);
}

static inline CUresult launch(CUfunction handle, const unsigned int grid[3], const unsigned int block[3],
                              unsigned int shared_bytes, CUstream stream_handle, void **arguments, void **extra) {
    struct stream *stream;
    CUresult result = check(handle, grid, block, shared_bytes, stream_handle, &stream);
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
        return result;
    }
    struct function *function = (struct function *)handle;
    void *unpacked[FUNCTION_MAX_ARGUMENTS], **values = NULL;
    if (function->argument_count != 0) {
        result = function_arguments(function, arguments, extra, unpacked, &values);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    if (__builtin_expect(atomic_load_explicit(&stream_attention, memory_order_acquire) != 0, 0)) {
        return submit(stream, function, grid, block, shared_bytes, values);
    }
    if (function->compute != NULL) {
        result = function->compute(values, grid, block);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    const struct device *device = stream->context->device;
    uint64_t duration = function_duration_ns(function, device, grid, block, values);
    stream_extend(stream, sim_engine_submit(&driver.process, device->domain, duration));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                unsigned int shared_bytes, CUstream stream, void **arguments, void **extra) {
    const unsigned int grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared_bytes, stream, arguments, extra);
}

/* ---- cooperative launches: all blocks must be on the GPU at once ---- */

static CUresult check_cooperative(CUfunction handle, const unsigned int grid[3], const unsigned int block[3],
                                  unsigned int shared_bytes, CUstream stream_handle) {
    struct stream *stream;
    CUresult result = check(handle, grid, block, shared_bytes, stream_handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct device *device = stream->context->device;
    uint64_t room = (uint64_t)device->multiprocessors * occupancy_blocks((struct function *)handle, device,
                                                                         block[0] * block[1] * block[2], shared_bytes);
    /* Neither product can overflow: the second is only worked out when the first is as small as a device. */
    uint64_t blocks = (uint64_t)grid[0] * grid[1];
    return blocks <= room && blocks * grid[2] <= room ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                           unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                           unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                           void **arguments) {
    const unsigned int grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    CUresult result = check_cooperative(function, grid, block, shared_bytes, stream);
    return result != CUDA_SUCCESS ? result : launch(function, grid, block, shared_bytes, stream, arguments, NULL);
}

CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                                                      unsigned int flags) {
    const unsigned int known = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                               CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS &&
        (launches == NULL || count == 0 || count > (unsigned int)driver.device_count || (flags & ~known) != 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) { /* all or none */
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        const unsigned int grid[3] = {one->gridDimX, one->gridDimY, one->gridDimZ};
        const unsigned int block[3] = {one->blockDimX, one->blockDimY, one->blockDimZ};
        result = one->hStream != NULL
                     ? check_cooperative(one->function, grid, block, one->sharedMemBytes, one->hStream)
                     : CUDA_ERROR_INVALID_HANDLE;
    }
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        result = cuLaunchKernel(one->function, one->gridDimX, one->gridDimY, one->gridDimZ, one->blockDimX,
                                one->blockDimY, one->blockDimZ, one->sharedMemBytes, one->hStream,
                                one->kernelParams, NULL);
    }
    return result;
}

/* ---- launches with attributes ---- */

static CUresult launch_configured(const CUlaunchConfig *config, CUstream stream, CUfunction function, void **arguments,
                                  void **extra) {
    if (config == NULL || (config->numAttrs != 0 && config->attrs == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const unsigned int grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned int block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < config->numAttrs && result == CUDA_SUCCESS; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config->attrs[i].value.cooperative != 0) {
            result = check_cooperative(function, grid, block, config->sharedMemBytes, stream);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = launch(function, grid, block, config->sharedMemBytes, stream, arguments, extra);
    }
    for (unsigned int i = 0; i < config->numAttrs && result == CUDA_SUCCESS; i++) {
        /* Both events fire while the kernel runs; its end is the moment that is known here. */
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
            result = cuEventRecord(config->attrs[i].value.programmaticEvent.event, stream);
        } else if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            result = cuEventRecord(config->attrs[i].value.launchCompletionEvent.event, stream);
        }
    }
    return result;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    return launch_configured(config, config != NULL ? config->hStream : NULL, function, arguments, extra);
}

/* By hand, because the stream is in the configuration where the generated variants do not look. */
CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                       void **extra) {
    CUstream stream = config != NULL && config->hStream != NULL ? config->hStream : CU_STREAM_PER_THREAD;
    return launch_configured(config, stream, function, arguments, extra);
}

/* ---- the first way of launching: the function remembers its block, its shared memory and its parameters ---- */

static CUresult legacy_from(CUfunction handle, bool arguments_given, struct legacy_launch **legacy) {
    struct context *context;
    struct function *function;
    CUresult result = function_from(handle, arguments_given, &context, &function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *legacy = atomic_load(&function->legacy);
    if (*legacy == NULL) {
        struct legacy_launch *made = calloc(1, sizeof *made);
        if (made == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (atomic_compare_exchange_strong(&function->legacy, legacy, made)) {
            *legacy = made;
        } else {
            free(made); /* another thread was faster, and *legacy is what it made */
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    struct legacy_launch *legacy;
    CUresult result = legacy_from(function, x > 0 && y > 0 && z > 0, &legacy);
    if (result == CUDA_SUCCESS) {
        legacy->block[0] = (unsigned int)x;
        legacy->block[1] = (unsigned int)y;
        legacy->block[2] = (unsigned int)z;
    }
    return result;
}

CUresult CUDAAPI cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    struct legacy_launch *legacy;
    CUresult result = legacy_from(function, true, &legacy);
    if (result == CUDA_SUCCESS) {
        legacy->shared_bytes = bytes;
    }
    return result;
}

CUresult CUDAAPI cuParamSetSize(CUfunction function, unsigned int bytes) {
    struct legacy_launch *legacy;
    CUresult result = legacy_from(function, bytes <= LEGACY_PARAMETER_BYTES, &legacy);
    if (result == CUDA_SUCCESS) {
        legacy->parameter_bytes = bytes;
    }
    return result;
}

CUresult CUDAAPI cuParamSetv(CUfunction function, int offset, void *from, unsigned int bytes) {
    struct legacy_launch *legacy;
    bool fits = from != NULL && offset >= 0 && (size_t)offset + bytes <= LEGACY_PARAMETER_BYTES;
    CUresult result = legacy_from(function, fits, &legacy);
    if (result == CUDA_SUCCESS) {
        memcpy(legacy->parameters + offset, from, bytes);
    }
    return result;
}

CUresult CUDAAPI cuParamSeti(CUfunction function, int offset, unsigned int value) {
    return cuParamSetv(function, offset, &value, sizeof value);
}

CUresult CUDAAPI cuParamSetf(CUfunction function, int offset, float value) {
    return cuParamSetv(function, offset, &value, sizeof value);
}

CUresult CUDAAPI cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    struct legacy_launch *legacy;
    CUresult result = legacy_from(function, width > 0 && height > 0, &legacy);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const unsigned int grid[3] = {(unsigned int)width, (unsigned int)height, 1};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, legacy->parameters, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &legacy->parameter_bytes, CU_LAUNCH_PARAM_END};
    return launch(function, grid, legacy->block, legacy->shared_bytes, stream, NULL, extra);
}

CUresult CUDAAPI cuLaunchGrid(CUfunction function, int width, int height) {
    return cuLaunchGridAsync(function, width, height, NULL);
}

CUresult CUDAAPI cuLaunch(CUfunction function) {
    return cuLaunchGridAsync(function, 1, 1, NULL);
}
