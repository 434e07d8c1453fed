/* Memory of a device: the slice's. */
#include "slice.h"

static unsigned long long smaller(unsigned long long a, unsigned long long b) {
    return a < b ? a : b;
}

/* A process without a session sees a GPU that is full, which is what it will find. */
static void show_slice(nvmlDevice_t device, unsigned long long *total, unsigned long long *used, unsigned long long *free_bytes) {
    uint32_t gpu = slice_gpu(device);
    if (gpu == NO_GPU) {
        *used = *total;
        *free_bytes = 0;
        return;
    }
    *total = smaller(*total, session_limit(gpu));
    *used = smaller(session_used(gpu), *total);
    *free_bytes = smaller(*free_bytes, *total - *used);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS) {
        show_slice(device, &memory->total, &memory->used, &memory->free);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS) {
        show_slice(device, &memory->total, &memory->used, &memory->free);
        memory->reserved = 0; /* the driver's own share is not the slice's */
    }
    return result;
}
