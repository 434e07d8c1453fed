/* Code images: tells their kinds apart, and keeps the names that the parsers of each kind (elf.c, ptx.c) find. */
#define _GNU_SOURCE
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FATBIN_MAGIC "\x50\xed\x55\xba"  /* 0xBA55ED50 */
#define WRAPPER_MAGIC "\xb1\x43\x62\x46" /* 0x466243B1 */
#define MAGIC_BYTES 4

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* that follow the header */
};

struct fatbin_wrapper { /* what nvcc puts into a program's .nvFatBinSegment */
    uint32_t magic, version;
    const void *data;
    const void *unused;
};

/* ---- the names ---- */

/* Room for one more in an array that doubles at every power of two, so that it needs no capacity beside its count. */
static bool make_room(void **array, size_t count, size_t element_bytes) {
    if ((count & (count - 1)) != 0) {
        return true;
    }
    void *larger = reallocarray(*array, count == 0 ? 1 : count * 2, element_bytes);
    if (larger != NULL) {
        *array = larger;
    }
    return larger != NULL;
}

CUresult image_add_kernel(struct image *image, const char *name, size_t length) {
    if (!make_room((void **)&image->kernels, image->kernel_count, sizeof *image->kernels)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    char *copy = strndup(name, length);
    if (copy == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    image->kernels[image->kernel_count++] = copy;
    return CUDA_SUCCESS;
}

CUresult image_add_variable(struct image *image, const char *name, size_t length, size_t bytes, const void *initial) {
    if (!make_room((void **)&image->variables, image->variable_count, sizeof *image->variables)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct image_variable variable = {.name = strndup(name, length), .bytes = bytes};
    if (initial != NULL) {
        variable.initial = malloc(bytes);
    }
    if (variable.name == NULL || (initial != NULL && variable.initial == NULL)) {
        free(variable.name);
        free(variable.initial);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (initial != NULL) {
        memcpy(variable.initial, initial, bytes);
    }
    image->variables[image->variable_count++] = variable;
    return CUDA_SUCCESS;
}

void image_free(struct image *image) {
    for (size_t i = 0; i < image->kernel_count; i++) {
        free(image->kernels[i]);
    }
    for (size_t i = 0; i < image->variable_count; i++) {
        free(image->variables[i].name);
        free(image->variables[i].initial);
    }
    free(image->kernels);
    free(image->variables);
    *image = (struct image){0};
}

bool image_has_kernel(const struct image *image, const char *name) {
    for (size_t i = 0; i < image->kernel_count; i++) {
        if (strcmp(image->kernels[i], name) == 0) {
            return true;
        }
    }
    return image->opaque && name[0] != '\0';
}

const struct image_variable *image_variable(const struct image *image, const char *name) {
    for (size_t i = 0; i < image->variable_count; i++) {
        if (strcmp(image->variables[i].name, name) == 0) {
            return &image->variables[i];
        }
    }
    return NULL;
}

/* ---- telling kinds apart ---- */

static bool fatbin_recognised(const void *bytes, size_t size) {
    struct fatbin_header header;
    if (size < sizeof header || memcmp(bytes, FATBIN_MAGIC, MAGIC_BYTES) != 0) {
        return false;
    }
    memcpy(&header, bytes, sizeof header);
    return header.header_bytes >= sizeof header && header.header_bytes <= size &&
           header.bytes <= size - header.header_bytes;
}

CUresult image_parse(const void *bytes, size_t size, struct image *image) {
    if (elf_recognised(bytes, size)) {
        return elf_parse(bytes, size, image);
    }
    if (fatbin_recognised(bytes, size)) {
        image->opaque = true; /* its parts are usually compressed */
        return CUDA_SUCCESS;
    }
    if (ptx_recognised(bytes, size)) {
        return ptx_parse(bytes, size, image);
    }
    return CUDA_ERROR_INVALID_IMAGE;
}

CUresult image_read(const void *memory, struct image *image) {
    /* strncmp: the image may be a text shorter than any magic number. */
    if (strncmp(memory, WRAPPER_MAGIC, MAGIC_BYTES) == 0) {
        const struct fatbin_wrapper *wrapper = memory;
        /* One wrapper deep: a wrapper in a wrapper is no image, and could be a ring of them. */
        if (wrapper->data == NULL || strncmp(wrapper->data, WRAPPER_MAGIC, MAGIC_BYTES) == 0) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        return image_read(wrapper->data, image);
    }
    if (strncmp(memory, "\x7f" "ELF", MAGIC_BYTES) == 0) {
        return image_parse(memory, elf_size(memory), image);
    }
    if (strncmp(memory, FATBIN_MAGIC, MAGIC_BYTES) == 0) {
        const struct fatbin_header *header = memory;
        return header->bytes > SIZE_MAX - header->header_bytes
                   ? CUDA_ERROR_INVALID_IMAGE
                   : image_parse(memory, header->header_bytes + header->bytes, image);
    }
    /* Text begins with a directive, a comment or space; anything else is not worth looking for its end. */
    if (strchr("./ \t\r\n", *(const char *)memory) == NULL) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    return image_parse(memory, strlen(memory), image);
}

CUresult image_read_file(const char *path, struct image *image) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    struct stat status;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        size_t size = (size_t)status.st_size;
        void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes == MAP_FAILED) {
            result = errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
        } else {
            result = image_parse(bytes, size, image);
            munmap(bytes, size);
        }
    }
    close(file);
    return result;
}

/* ---- options of the just-in-time compiler ---- */

CUresult image_options(unsigned int count, const CUjit_option *options, void **values) {
    if (count != 0 && (options == NULL || values == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    char *logs[2] = {NULL, NULL};
    bool has_room[2] = {false, false};
    for (unsigned int i = 0; i < count; i++) {
        switch (options[i]) {
        case CU_JIT_INFO_LOG_BUFFER:
        case CU_JIT_ERROR_LOG_BUFFER:
            logs[options[i] == CU_JIT_ERROR_LOG_BUFFER] = values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            /* An integer in the place of a pointer, in and out: of which only the low half counts. */
            has_room[options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES] = (unsigned int)(uintptr_t)values[i] != 0;
            values[i] = NULL;
            break;
        case CU_JIT_WALL_TIME: /* a float that is zero has no bit set */
            values[i] = NULL;
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (logs[i] != NULL && has_room[i]) {
            logs[i][0] = '\0';
        }
    }
    return CUDA_SUCCESS;
}
