/* What the simulator wants from a code image: the names of its kernels and variables. Images are bytes from
 * outside, so parsing trusts no size or offset in them; only copies of what was found are kept. */
#ifndef GPUSLICE_SIMULATOR_IMAGE_H
#define GPUSLICE_SIMULATOR_IMAGE_H

#include "driver.h"

struct image_variable { /* a __device__ or __constant__ variable */
    char *name;
    size_t bytes;
    void *initial; /* `bytes` of it, or NULL: zeros */
};

struct image {
    bool opaque; /* compressed or foreign code inside: any kernel may be in it */
    char **kernels;
    size_t kernel_count;
    struct image_variable *variables;
    size_t variable_count;
};

/* Each adds to the image what it finds, so that a linker can read many inputs into one. On an error the image may hold
 * a part of them: the caller frees it. CUDA_ERROR_INVALID_IMAGE for what is no image. */
CUresult image_parse(const void *bytes, size_t size, struct image *image);
/* From a pointer alone: the size is what the image's own headers say. Also takes nvcc's fatbin wrapper. */
CUresult image_read(const void *memory, struct image *image);
CUresult image_read_file(const char *path, struct image *image);
void image_free(struct image *image);

bool image_has_kernel(const struct image *image, const char *name);
const struct image_variable *image_variable(const struct image *image, const char *name);

/* For the parsers: copies of the name (which need not be terminated) and of the initial bytes (may be NULL). */
CUresult image_add_kernel(struct image *image, const char *name, size_t length);
CUresult image_add_variable(struct image *image, const char *name, size_t length, size_t bytes, const void *initial);

bool elf_recognised(const void *bytes, size_t size); /* elf.c */
CUresult elf_parse(const void *bytes, size_t size, struct image *image);
size_t elf_size(const void *memory);
/* A cubin that reads back as the same image; the caller frees it. */
CUresult elf_write(const struct image *image, void **bytes, size_t *size);

bool ptx_recognised(const char *text, size_t size); /* ptx.c */
CUresult ptx_parse(const char *text, size_t size, struct image *image);

/* What a just-in-time compiler that has nothing to say leaves in the caller's options: empty logs. */
CUresult image_options(unsigned int count, const CUjit_option *options, void **values);

#endif
