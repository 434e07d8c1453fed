/* Start-up: cuInit, versions, errors in words, and what a fork leaves. */
#include "driver.h"
#include "visible.h"

#include <string.h>

enum { STATE_NEW, STATE_READY, STATE_FORKED };

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A CUDA process that forks leaves the child without a driver, as the real one does: the child's slot would be the
 * parent's, and the kernel does not let a child inherit the lock that proves a process alive. */
static void after_fork_in_child(void) {
    if (driver.process.machine != NULL) {
        sim_forget(&driver.process);
        atomic_store(&driver.state, atomic_load(&driver.state) == STATE_NEW ? STATE_NEW : STATE_FORKED);
        context_current_of_thread = NULL;
        driver.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    }
}

/* Under driver.lock. */
static CUresult open_machine(void) {
    if (driver.process.machine != NULL) {
        return CUDA_SUCCESS;
    }
    switch (sim_open(&driver.process, false)) {
    case SIM_OPEN_OK:
        pthread_atfork(NULL, NULL, after_fork_in_child);
        return CUDA_SUCCESS;
    case SIM_OPEN_ABSENT:
        return CUDA_ERROR_NO_DEVICE;
    case SIM_OPEN_INVALID:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    default:
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

CUresult CUDAAPI cuInit(unsigned int flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (atomic_load(&driver.state) == STATE_READY) {
        return CUDA_SUCCESS;
    }
    if (atomic_load(&driver.state) == STATE_FORKED) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&driver.lock);
    CUresult result = open_machine();
    if (result == CUDA_SUCCESS && atomic_load(&driver.state) == STATE_NEW) {
        driver.device_count = visible_devices(driver.process.machine, driver.devices);
        result = driver.device_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
        if (result == CUDA_SUCCESS) {
            atomic_store(&driver.state, STATE_READY);
        }
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

CUresult driver_ready(void) {
    return atomic_load_explicit(&driver.state, memory_order_acquire) == STATE_READY ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult CUDAAPI cuDriverGetVersion(int *version) {
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    bool open = open_machine() == CUDA_SUCCESS;
    *version = open ? (int)driver.process.machine->description.cuda_version : CUDA_VERSION;
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

static const struct error_text {
    int value;
    const char *name, *words;
} error_texts[] = {
#include "cuda_errors.inc"
};

static const struct error_text *error_text(CUresult error) {
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++) {
        if (error_texts[i].value == (int)error) {
            return &error_texts[i];
        }
    }
    return NULL;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) {
    if (text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct error_text *found = error_text(error);
    *text = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
    if (text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct error_text *found = error_text(error);
    *text = found ? found->words : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
