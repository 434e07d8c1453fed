/* Contexts: primary and created ones, the stack of current contexts that each thread has, and what goes with a context
 * when it is destroyed. */
#include "driver.h"

#include <string.h>

#define STACK_DEPTH 16 /* thread-local memory of a library that is loaded late is scarce */

__thread struct context *context_current_of_thread;
static __thread struct context *stack[STACK_DEPTH]; /* below the current one */
static __thread int stack_depth;                    /* contexts pushed, the current one included */

CUresult context_current_slow(struct context **context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct context *current = context_current_of_thread;
    if (current == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = current;
    return object_is(current, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_from(CUcontext handle, struct context **context) {
    if (handle == NULL) {
        return context_current(context);
    }
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *context = (struct context *)handle;
    return object_is(handle, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- making and destroying ---- */

static void set_default_limits(struct context *context) {
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7340032;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608;
    context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

static void free_block(struct device *device, CUdeviceptr address, struct block *block) {
    uint64_t units = units_of(block->size);
    enum block_kind kind = atomic_load(&block->kind);
    if (arena_give(device, address, block, kind)) {
        sim_memory_release(&driver.process, device->domain, units);
    }
}

/* Under driver.lock. The first context of a process on a device pays for the driver's own memory there. */
static CUresult enter_device(struct device *device) {
    uint64_t own = units_of(device->spec->context_bytes);
    if (atomic_load(&driver.process.machine->gpus[device->gpu].lost)) {
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (device->contexts == 0 && own != 0 && !sim_memory_claim(&driver.process, device->domain, own)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = arena_open(device);
    if (result == CUDA_SUCCESS) {
        result = pool_open_defaults(device);
    }
    if (result != CUDA_SUCCESS && device->contexts == 0) {
        sim_memory_release(&driver.process, device->domain, own);
    }
    if (result == CUDA_SUCCESS) {
        device->contexts++;
        sim_context_opened(&driver.process, device->domain);
    }
    return result;
}

static void leave_device(struct device *device) {
    sim_context_closed(&driver.process, device->domain);
    if (--device->contexts == 0) {
        sim_memory_release(&driver.process, device->domain, units_of(device->spec->context_bytes));
    }
}

/* Under driver.lock. Makes a living context of an object that is dormant. */
static CUresult context_open(struct context *context, struct device *device, unsigned int flags, bool primary) {
    static uint64_t next_id = 1;
    CUresult result = enter_device(device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    memset((char *)context + sizeof context->object, 0, sizeof *context - sizeof context->object);
    context->device = device;
    context->flags = flags;
    context->primary = primary;
    context->id = next_id++;
    atomic_store(&context->attached, 1);
    pthread_mutex_init(&context->lock, NULL);
    set_default_limits(context);
    result = stream_open_defaults(context);
    if (result != CUDA_SUCCESS) {
        pthread_mutex_destroy(&context->lock);
        leave_device(device);
        return result;
    }
    atomic_store_explicit(&context->object.kind, KIND_CONTEXT, memory_order_release);
    return CUDA_SUCCESS;
}

/* Without driver.lock: the runtime's own clean-up, which still sees a living context, calls back into the driver. After
 * it the object is dormant. */
static void context_close(struct context *context) {
    struct device *device = context->device;
    local_storage_clear(context);
    context_wait(context);
    module_close_all(context);
    stream_close_all(context);
    arena_for_owner(device, context, free_block);
    atomic_store_explicit(&context->object.kind, KIND_DORMANT, memory_order_release);
    pthread_mutex_destroy(&context->lock);
    pthread_mutex_lock(&driver.lock);
    leave_device(device);
    pthread_mutex_unlock(&driver.lock);
}

static void context_forget(struct context *context) {
    if (object_retire(context, KIND_DORMANT)) {
        object_free(context, KIND_DORMANT);
    }
}

static CUresult push(struct context *context) {
    if (stack_depth >= STACK_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack[stack_depth++] = context_current_of_thread;
    context_current_of_thread = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice ordinal) {
    struct device *device;
    CUresult result = device_at(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || (flags & ~(unsigned int)CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stack_depth >= STACK_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct context *context = object_new(KIND_DORMANT, sizeof *context);
    if (context == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&driver.lock);
    result = context_open(context, device, flags, false);
    pthread_mutex_unlock(&driver.lock);
    if (result != CUDA_SUCCESS) {
        context_forget(context);
        return result;
    }
    *handle = (CUcontext)context;
    return push(context);
}

CUresult CUDAAPI cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice ordinal) {
    return cuCtxCreate_v2(handle, flags, ordinal);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *parameters, int count, unsigned int flags,
                                CUdevice ordinal) {
    return parameters == NULL && count == 0 ? cuCtxCreate_v2(handle, flags, ordinal) : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *parameters, unsigned int flags, CUdevice ordinal) {
    if (parameters != NULL && parameters->numExecAffinityParams != 0) {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    return cuCtxCreate_v2(handle, flags, ordinal);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct context *context = (struct context *)handle;
    if (!object_is(context, KIND_CONTEXT) || context->primary || atomic_exchange(&context->closing, true)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    bool current = context_current_of_thread == context;
    context_close(context);
    context_forget(context);
    if (current) {
        context_current_of_thread = stack_depth > 0 ? stack[--stack_depth] : NULL;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
    return cuCtxDestroy_v2(handle);
}

CUresult CUDAAPI cuCtxAttach(CUcontext *handle, unsigned int flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && (handle == NULL || flags != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        atomic_fetch_add(&context->attached, 1);
        *handle = (CUcontext)context;
    }
    return result;
}

CUresult CUDAAPI cuCtxDetach(CUcontext handle) {
    struct context *context;
    CUresult result = context_from(handle, &context);
    if (result == CUDA_SUCCESS && atomic_fetch_sub(&context->attached, 1) == 1) {
        return cuCtxDestroy_v2(handle);
    }
    return result;
}

/* ---- primary contexts ----
 *
 * The handle of a device's primary context is the same for as long as the process lives, whether the context is active
 * or not: the runtime asks for it early and for every device, keeps it current through a reset, and learns of the reset
 * by using it. */

static pthread_cond_t primary_closed = PTHREAD_COND_INITIALIZER;
static __thread bool closing_primary;

static bool primary_active(const struct device *device) {
    return object_is(device->primary, KIND_CONTEXT);
}

CUresult primary_handle(CUdevice ordinal, struct context **context) {
    struct device *device;
    CUresult result = device_at(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    if (device->primary == NULL) {
        device->primary = object_new(KIND_DORMANT, sizeof *device->primary);
        if (device->primary != NULL) {
            device->primary->primary = true;
        }
    }
    *context = device->primary;
    pthread_mutex_unlock(&driver.lock);
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice ordinal) {
    struct context *context;
    CUresult result = primary_handle(ordinal, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct device *device = &driver.devices[ordinal];
    pthread_mutex_lock(&driver.lock);
    while (device->primary_closing && !closing_primary) { /* the runtime's clean-up must not wait for itself */
        pthread_cond_wait(&primary_closed, &driver.lock);
    }
    if (device->primary_closing) {
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (!primary_active(device)) {
        result = context_open(context, device, device->primary_flags, true);
    }
    if (result == CUDA_SUCCESS) {
        device->primary_users++;
        *handle = (CUcontext)context;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

static CUresult primary_drop(CUdevice ordinal, bool all) {
    struct device *device;
    CUresult result = device_at(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool close = false;
    pthread_mutex_lock(&driver.lock);
    if (!primary_active(device) || device->primary_closing) {
        result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else {
        device->primary_users = all ? 0 : device->primary_users - 1;
        close = device->primary_closing = device->primary_users == 0;
    }
    pthread_mutex_unlock(&driver.lock);
    if (close) {
        closing_primary = true;
        context_close(device->primary);
        closing_primary = false;
        if (all) {
            pool_reset(device);
        }
        pthread_mutex_lock(&driver.lock);
        device->primary_closing = false;
        pthread_cond_broadcast(&primary_closed);
        pthread_mutex_unlock(&driver.lock);
    }
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return primary_drop(ordinal, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return primary_drop(ordinal, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return primary_drop(ordinal, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return primary_drop(ordinal, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags) {
    struct device *device;
    CUresult result = device_at(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    device->primary_flags = flags;
    if (primary_active(device)) {
        device->primary->flags = flags;
    }
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active) {
    struct device *device;
    CUresult result = device_at(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    *flags = device->primary_flags;
    *active = primary_active(device);
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

/* ---- the thread's stack ---- */

/* A primary context may be current before it is active: the runtime makes it so, and activates it when it needs it. */
static CUresult context_to_be_current(CUcontext handle, struct context **context) {
    CUresult result = context_from(handle, context);
    if (result == CUDA_ERROR_INVALID_CONTEXT && object_is(handle, KIND_DORMANT) && (*context)->primary) {
        result = CUDA_SUCCESS;
    }
    return result;
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
    struct context *context;
    CUresult result = handle == NULL ? CUDA_ERROR_INVALID_CONTEXT : context_to_be_current(handle, &context);
    return result == CUDA_SUCCESS ? push(context) : result;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
    return cuCtxPushCurrent_v2(handle);
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *handle) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context_current_of_thread == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (handle != NULL) {
        *handle = (CUcontext)context_current_of_thread;
    }
    context_current_of_thread = stack_depth > 0 ? stack[--stack_depth] : NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *handle) {
    return cuCtxPopCurrent_v2(handle);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    struct context *context = NULL;
    CUresult result = handle == NULL ? driver_ready() : context_to_be_current(handle, &context);
    if (result == CUDA_SUCCESS) {
        context_current_of_thread = context;
    }
    return result;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *handle) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUcontext)context_current_of_thread;
    }
    return result;
}
