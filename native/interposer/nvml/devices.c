/* Start-up and enumeration: a tenant sees the GPUs that its session has a share of, numbered from zero, and no others. */
#include "slice.h"

#include <ctype.h>
#include <string.h>

#define ATTACHING(name, parameters, arguments)                                                                        \
    nvmlReturn_t name parameters {                                                                                    \
        nvmlReturn_t result = REAL(name) arguments;                                                                   \
        if (result == NVML_SUCCESS) {                                                                                 \
            session_attach(true);                                                                                     \
        }                                                                                                             \
        return result;                                                                                                \
    }

ATTACHING(nvmlInit, (void), ())
ATTACHING(nvmlInit_v2, (void), ())
ATTACHING(nvmlInitWithFlags, (unsigned int flags), (flags))

static bool is_attached(void) {
    if (atomic_load_explicit(&session.state, memory_order_acquire) != SESSION_ATTACHED) {
        return session_attach(true);
    }
    session_refresh();
    return true;
}

/* "GPU-" or "MIG-" and 32 hexadecimal digits with dashes among them. */
static bool parse_uuid(const char *text, uint8_t uuid[16]) {
    int digits = 0;
    memset(uuid, 0, 16);
    for (const char *c = strlen(text) > 4 ? text + 4 : ""; *c != '\0' && digits < 32; c++) {
        if (*c == '-') {
            continue;
        }
        if (!isxdigit((unsigned char)*c)) {
            return false;
        }
        int value = isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10;
        uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32;
}

uint32_t slice_gpu(nvmlDevice_t device) {
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    uint8_t uuid[16];
    if (!is_attached() || REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, uuid)) {
        return NO_GPU;
    }
    return session_find(uuid);
}

/* A GPU in MIG mode belongs to the session when one of its MIG devices does. */
static bool is_visible(nvmlDevice_t device) {
    if (slice_gpu(device) != NO_GPU) {
        return true;
    }
    unsigned int count = 0;
    nvmlDevice_t part;
    if (!is_attached() || REAL(nvmlDeviceGetMaxMigDeviceCount)(device, &count) != NVML_SUCCESS) {
        return false;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, i, &part) == NVML_SUCCESS && slice_gpu(part) != NO_GPU) {
            return true;
        }
    }
    return false;
}

/* Counts the visible GPUs; stops at number `wanted` and stores it. */
static nvmlReturn_t walk(unsigned int wanted, unsigned int *count, nvmlDevice_t *found) {
    unsigned int all = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&all);
    *count = 0;
    for (unsigned int i = 0; result == NVML_SUCCESS && i < all; i++) {
        nvmlDevice_t device;
        if (REAL(nvmlDeviceGetHandleByIndex_v2)(i, &device) != NVML_SUCCESS || !is_visible(device)) {
            continue;
        }
        if (*count == wanted) {
            *found = device;
            return NVML_SUCCESS;
        }
        ++*count;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlDevice_t ignored;
    unsigned int visible;
    nvmlReturn_t result = walk(UINT32_MAX, &visible, &ignored);
    if (result == NVML_SUCCESS && count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *count = visible;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlDevice_t found = NULL;
    unsigned int visible;
    nvmlReturn_t result = walk(index, &visible, &found);
    if (result == NVML_SUCCESS && (device == NULL || found == NULL)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *device = found;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    nvmlDevice_t other;
    unsigned int real, visible, count;
    nvmlReturn_t result = REAL(nvmlDeviceGetIndex)(device, &real);
    if (result != NVML_SUCCESS || index == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    result = nvmlDeviceGetCount_v2(&count);
    for (visible = 0; result == NVML_SUCCESS && visible < count; visible++) {
        unsigned int number;
        if (nvmlDeviceGetHandleByIndex_v2(visible, &other) == NVML_SUCCESS &&
            REAL(nvmlDeviceGetIndex)(other, &number) == NVML_SUCCESS && number == real) {
            *index = visible;
            return NVML_SUCCESS;
        }
    }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

/* By any other name: found, but only if it is one of the session's. */
static nvmlReturn_t if_visible(nvmlReturn_t result, nvmlDevice_t *device) {
    if (result == NVML_SUCCESS && !is_visible(*device)) {
        *device = NULL;
        return NVML_ERROR_NOT_FOUND;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return if_visible(REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    return if_visible(REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    return if_visible(REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
    return if_visible(REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus, device);
}
