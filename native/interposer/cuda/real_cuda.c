/* The driver behind this library. */
#include "real_cuda.h"

static const char *const names[] = {
#define NAME(name) #name,
    CUDA_FUNCTION_NAMES(NAME)
#undef NAME
};

static _Atomic(real_pointer) functions[CUDA_FUNCTIONS];

static CUresult not_supported(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_driver(void) {
    return CUDA_ERROR_NO_DEVICE;
}

struct real_library real_cuda = {
    .soname = "libcuda.so.1",
    .variable = "GPUSLICE_LIBCUDA",
    .names = names,
    .table = functions,
    .missing = (real_pointer)not_supported,
    .absent = (real_pointer)no_driver,
};
