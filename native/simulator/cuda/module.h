/* Modules and functions, for the files that share them. A library is a module that belongs to no
 * context, so both find kernels and variables in the same way. */
#ifndef GPUSLICE_SIMULATOR_MODULE_H
#define GPUSLICE_SIMULATOR_MODULE_H

#include "image.h"

struct library;

struct variable { /* the memory of one variable of an image in one context */
    struct variable *next;
    const struct image_variable *declared;
    struct context *context;
    CUdeviceptr address;
};

struct module {
    struct object object;
    struct context *context; /* NULL: a library's */
    struct library *library; /* NULL: not a library's */
    struct image image;
    struct function *functions; /* those that the program asked for; under the modules' lock, like the next two */
    struct variable *variables;
    struct module *previous, *next;
};

struct library {
    struct object object;
    struct module *module;
};

/* A module for an image that was read into `image`, which is the module's (or freed) from then on. */
CUresult module_open(struct image *image, struct context *context, struct library *library, struct module **module);
void module_close(struct module *module); /* for the caller that retired it */
CUresult module_variable(struct module *module, const char *name, CUdeviceptr *address, size_t *bytes);
/* The first `count` functions by order in the image; fewer when it has fewer. */
CUresult module_functions(struct module *module, CUfunction *functions, unsigned int count);

/* function.c: a new function object that is in no list yet, and its end. */
struct function *function_open(struct module *module, const char *name);
void function_close(struct function *function);
/* The checks that calls on a function begin with: context, arguments, handle. */
CUresult function_from(CUfunction handle, bool arguments_given, struct context **context, struct function **function);
/* The same for calls that need no context, as those on a CUkernel. */
CUresult function_described(const void *handle, bool arguments_given, struct function **function);
CUresult function_attribute(const struct function *function, const struct device *device,
                            CUfunction_attribute attribute, int *value);
CUresult function_set_attribute(struct function *function, const struct device *device, CUfunction_attribute attribute,
                                int value);

/* occupancy.c: how many such blocks fit on one multiprocessor; 0 for a block that fits on none. */
unsigned int occupancy_blocks(const struct function *function, const struct device *device, unsigned int block_threads,
                              size_t dynamic_shared_bytes);

struct kernel { /* kernels.c: one that really computes, or takes a time of its own */
    const char *name;
    const uint8_t *argument_sizes;
    int argument_count;
    CUresult (*compute)(void **arguments, const unsigned int grid[3], const unsigned int block[3]);
    uint64_t (*duration_ns)(void **arguments);
};
/* The kernel that the name, which a C++ compiler may have mangled, stands for; NULL if it is none of ours. */
const struct kernel *kernel_named(const char *name);

#endif
