/* The kernels that really compute, known by their names. Everything else that a program launches takes its time and
 * touches nothing. */
#define _GNU_SOURCE
#include "module.h"

#include <stdio.h>
#include <string.h>

/* The floats of an argument that is a device pointer. */
static CUresult floats_at(const void *argument, uint64_t count, float **floats) {
    CUdeviceptr address;
    memcpy(&address, argument, sizeof address);
    if (address % sizeof(float) != 0) {
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    }
    size_t bytes;
    *floats = __builtin_mul_overflow(count, sizeof(float), &bytes) ? NULL : memory_bytes_at(address, bytes);
    return *floats != NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static uint64_t count_at(const void *argument) {
    uint64_t count;
    memcpy(&count, argument, sizeof count);
    return count;
}

static float value_at(const void *argument) {
    float value;
    memcpy(&value, argument, sizeof value);
    return value;
}

/* gpuslice_fill(float *to, float value, unsigned long long count) */
static CUresult fill(void **arguments, const unsigned int grid[3], const unsigned int block[3]) {
    (void)grid, (void)block;
    uint64_t count = count_at(arguments[2]);
    float *to, value = value_at(arguments[1]);
    CUresult result = count != 0 ? floats_at(arguments[0], count, &to) : CUDA_SUCCESS;
    for (uint64_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        to[i] = value;
    }
    return result;
}

/* gpuslice_saxpy(float a, const float *x, float *y, unsigned long long count): y = a x + y */
static CUresult saxpy(void **arguments, const unsigned int grid[3], const unsigned int block[3]) {
    (void)grid, (void)block;
    uint64_t count = count_at(arguments[3]);
    float *x, *y, a = value_at(arguments[0]);
    CUresult result = count != 0 ? floats_at(arguments[1], count, &x) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && count != 0) {
        result = floats_at(arguments[2], count, &y);
    }
    for (uint64_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        y[i] = a * x[i] + y[i];
    }
    return result;
}

/* gpuslice_sum(const float *from, float *to, unsigned long long count): *to = the sum */
static CUresult sum(void **arguments, const unsigned int grid[3], const unsigned int block[3]) {
    (void)grid, (void)block;
    uint64_t count = count_at(arguments[2]);
    float *from, *to;
    double total = 0; /* in float, the sum of many would depend on their order */
    CUresult result = floats_at(arguments[1], 1, &to);
    if (result == CUDA_SUCCESS && count != 0) {
        result = floats_at(arguments[0], count, &from);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (uint64_t i = 0; i < count; i++) {
        total += from[i];
    }
    *to = (float)total;
    return CUDA_SUCCESS;
}

/* gpuslice_spin(unsigned long long microseconds): exactly that much device time */
static uint64_t spin_ns(void **arguments) {
    uint64_t nanoseconds;
    return __builtin_mul_overflow(count_at(arguments[0]), 1000, &nanoseconds) ? UINT64_MAX : nanoseconds;
}

static const uint8_t fill_sizes[] = {8, 4, 8};
static const uint8_t saxpy_sizes[] = {4, 8, 8, 8};
static const uint8_t sum_sizes[] = {8, 8, 8};
static const uint8_t spin_sizes[] = {8};

static const struct kernel kernels[] = {
    {"gpuslice_fill", fill_sizes, sizeof fill_sizes, fill, NULL},
    {"gpuslice_saxpy", saxpy_sizes, sizeof saxpy_sizes, saxpy, NULL},
    {"gpuslice_sum", sum_sizes, sizeof sum_sizes, sum, NULL},
    {"gpuslice_spin", spin_sizes, sizeof spin_sizes, NULL, spin_ns},
};

const struct kernel *kernel_named(const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        char mangled[64]; /* _Z13gpuslice_fillPffy: the length tells it from gpuslice_filler */
        snprintf(mangled, sizeof mangled, "%zu%s", strlen(kernels[i].name), kernels[i].name);
        if (strcmp(name, kernels[i].name) == 0 || (strncmp(name, "_Z", 2) == 0 && strstr(name, mangled) != NULL)) {
            return &kernels[i];
        }
    }
    return NULL;
}
