/* Initializing and shutting down, errors as text, and what NVML says of the system as a whole. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct sim_process process;

static pthread_mutex_t session_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t initializations;

int sim_nvml_unsupported(void);
nvmlReturn_t gpusliceSimInjectXid(unsigned int gpu, unsigned int xid);

bool initialized(void) {
    return atomic_load(&initializations) != 0;
}

/* What the generated stubs answer. */
int sim_nvml_unsupported(void) {
    return initialized() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;
}

/* A forked child owns no slot: it starts over, and until it does every call answers UNINITIALIZED. */
static void forget_in_child(void) {
    atomic_store(&initializations, 0);
    sim_forget(&process);
    session_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, forget_in_child);
}

static nvmlReturn_t open_machine(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handler);
    switch (sim_open(&process, true)) {
    case SIM_OPEN_OK:
        return NVML_SUCCESS;
    case SIM_OPEN_ABSENT:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case SIM_OPEN_FULL:
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case SIM_OPEN_INVALID:
        break;
    }
    return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags; /* they say what to do about GPUs that cannot be attached; these always can */
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&session_mutex);
    if (process.machine == NULL) {
        result = open_machine();
    }
    if (result == NVML_SUCCESS) {
        atomic_fetch_add(&initializations, 1);
    }
    pthread_mutex_unlock(&session_mutex);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void) SAME_AS(nvmlInit_v2);

/* The machine stays mapped for the next nvmlInit: closing the file would drop this process's other locks on it. */
nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&session_mutex);
    if (initialized()) {
        atomic_fetch_sub(&initializations, 1);
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&session_mutex);
    return result;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        [NVML_SUCCESS] = "Success",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
        [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
        [NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
        [NVML_ERROR_OPERATING_SYSTEM] = "GPU access blocked by the operating system",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
        [NVML_ERROR_IN_USE] = "In use by another client",
        [NVML_ERROR_MEMORY] = "Insufficient Memory",
        [NVML_ERROR_NO_DATA] = "No data",
        [NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "Operation not available on this vGPU because ECC is enabled",
        [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
        [NVML_ERROR_FREQ_NOT_SUPPORTED] = "Frequency not supported",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
        [NVML_ERROR_DEPRECATED] = "Function is deprecated",
        [NVML_ERROR_NOT_READY] = "System is not ready",
        [NVML_ERROR_GPU_NOT_FOUND] = "No GPUs were found",
        [NVML_ERROR_INVALID_STATE] = "Invalid state",
        [NVML_ERROR_RESET_TYPE_NOT_SUPPORTED] = "Reset type not supported",
    };
    unsigned int number = (unsigned int)result;
    return number < sizeof texts / sizeof *texts ? texts[number] : "Unknown Error";
}

bool administrator(void) {
    struct stat status;
    return geteuid() == 0 || (fstat(process.slots_fd, &status) == 0 && status.st_uid == geteuid());
}

nvmlReturn_t put_string(char *destination, unsigned int size, const char *text) {
    if (destination == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    size_t needed = strlen(text) + 1;
    if (needed > size) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(destination, text, needed);
    return NVML_SUCCESS;
}

uint64_t realtime_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* ---- the system ---- */

static nvmlReturn_t describe(const void *answer, const struct sim_description **description) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (answer == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *description = &process.machine->description;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    const struct sim_description *description;
    nvmlReturn_t result = describe(version, &description);
    return result == NVML_SUCCESS ? put_string(version, length, description->driver_version) : result;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    const struct sim_description *description;
    nvmlReturn_t result = describe(version, &description);
    return result == NVML_SUCCESS ? put_string(version, length, description->nvml_version) : result;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    const struct sim_description *description;
    nvmlReturn_t result = describe(version, &description);
    if (result == NVML_SUCCESS) {
        *version = (int)description->cuda_version;
    }
    return result;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) SAME_AS(nvmlSystemGetCudaDriverVersion_v2);

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length) {
    const struct sim_description *description;
    nvmlReturn_t result = describe(info, &description);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (info->version != nvmlSystemDriverBranchInfo_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    char branch[sizeof description->driver_version + 8];
    size_t major = strcspn(description->driver_version, ".");
    snprintf(branch, sizeof branch, "r%.*s_00", (int)major, description->driver_version);
    return put_string(info->branch, length < sizeof info->branch ? length : (unsigned int)sizeof info->branch, branch);
}

/* The name is cut to the length given, as NVML does. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (name == NULL || length == 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) {
        return NVML_ERROR_NOT_FOUND;
    }
    ssize_t got = read(fd, name, length - 1);
    close(fd);
    name[got > 0 ? got : 0] = '\0'; /* cmdline separates arguments with NUL, so this is the first of them */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count) {
    const struct sim_description *description;
    nvmlReturn_t result = describe(count, &description);
    if (result == NVML_SUCCESS) {
        *count = 0;
    }
    return result;
}

/* ---- the simulator's own ---- */

nvmlReturn_t gpusliceSimInjectXid(unsigned int gpu, unsigned int xid) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (gpu >= process.machine->description.gpu_count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!administrator()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    sim_inject_xid(&process, gpu, xid);
    return NVML_SUCCESS;
}
