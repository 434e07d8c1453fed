/* NVML behind this library. */
#include "real_nvml.h"

static const char *const names[] = {
#define NAME(name) #name,
    NVML_FUNCTION_NAMES(NAME)
#undef NAME
};

static _Atomic(real_pointer) functions[NVML_FUNCTIONS];

static nvmlReturn_t not_supported(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static nvmlReturn_t no_library(void) {
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

struct real_library real_nvml = {
    .soname = "libnvidia-ml.so.1",
    .variable = "GPUSLICE_LIBNVML",
    .names = names,
    .table = functions,
    .missing = (real_pointer)not_supported,
    .absent = (real_pointer)no_library,
};
