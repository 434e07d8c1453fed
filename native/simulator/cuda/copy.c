/* Copies and fills: moving bytes between host memory, device memory and arrays. All the calls that ask for it are in
 * copy_calls.c and fill_calls.c; graphs and deferred work come here as well. */
#include "deferred.h"

#include <string.h>

/* One side of a copy with its addresses worked out: rows at `row` bytes from each other, layers at `layer`. */
struct side {
    char *first;
    size_t row, layer;
};

/* Bytes from the first to one past the last that the extent touches. */
static bool span_of(const struct side *side, const struct operation *operation, size_t *span) {
    size_t rows, layers;
    return !__builtin_mul_overflow(operation->copy.height - 1, side->row, &rows) &&
           !__builtin_mul_overflow(operation->copy.depth - 1, side->layer, &layers) &&
           !__builtin_add_overflow(rows, layers, span) && !__builtin_add_overflow(*span, operation->copy.width_bytes, span);
}

/* Pointers are what cuMemcpy gets: memory of the driver's, checked; or any other host memory, which cannot be. */
static CUresult resolve_pointer(const struct copy_end *end, size_t offset, size_t span, struct side *side) {
    CUdeviceptr address = end->device + offset;
    struct device *device = NULL;
    CUdeviceptr start;
    struct range range;
    if (end->device == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side->first = (char *)(uintptr_t)address;
    if (end->type == CU_MEMORYTYPE_HOST || memory_bytes_at(address, span) != NULL) {
        return CUDA_SUCCESS;
    }
    arena_find(address, &device, &start); /* sets the device for every address of its own, allocated or not */
    bool foreign = end->type == CU_MEMORYTYPE_UNIFIED && device == NULL && !range_find(address, &range);
    return foreign ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult resolve_linear(const struct copy_end *end, const struct operation *operation, struct side *side) {
    bool one_row = operation->copy.height == 1 && operation->copy.depth == 1;
    size_t used = end->x_bytes + operation->copy.width_bytes;
    side->row = end->pitch != 0 ? end->pitch : used;
    size_t rows = end->height != 0 ? end->height : end->y + operation->copy.height, offset, above, span;
    if (used < end->x_bytes || (!one_row && side->row < used) ||
        (operation->copy.depth > 1 && rows < end->y + operation->copy.height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (__builtin_mul_overflow(side->row, rows, &side->layer) || __builtin_mul_overflow(side->layer, end->z, &offset) ||
        __builtin_mul_overflow(side->row, end->y, &above) || __builtin_add_overflow(offset, above, &offset) ||
        __builtin_add_overflow(offset, end->x_bytes, &offset) || !span_of(side, operation, &span)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return resolve_pointer(end, offset, span, side);
}

static CUresult resolve_array(const struct copy_end *end, const struct operation *operation, struct side *side) {
    const struct array *array = end->array;
    if (!object_is(array, KIND_ARRAY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    size_t layer = array->row_bytes * array->height, width = operation->copy.width_bytes;
    if (end->level != 0 || operation->copy.height > array->height || end->y > array->height - operation->copy.height ||
        operation->copy.depth > array->depth || end->z > array->depth - operation->copy.depth) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* A single row may run on into the next ones: that is how linear copies into arrays are meant. */
    bool one_row = operation->copy.height == 1 && operation->copy.depth == 1;
    size_t room = one_row ? layer - end->y * array->row_bytes : array->row_bytes;
    bool fits = width <= room && end->x_bytes <= room - width;
    if (!fits) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side->row = array->row_bytes;
    side->layer = layer;
    size_t span, offset = end->z * layer + end->y * side->row + end->x_bytes;
    bool inside = span_of(side, operation, &span) && memory_bytes_at(array->address + offset, span) != NULL;
    side->first = (char *)(uintptr_t)(array->address + offset);
    return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult resolve(const struct copy_end *end, const struct operation *operation, struct side *side) {
    switch (end->type) {
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        return resolve_linear(end, operation, side);
    case CU_MEMORYTYPE_ARRAY:
        return resolve_array(end, operation, side);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_empty(const struct operation *operation) {
    return operation->copy.width_bytes == 0 || operation->copy.height == 0 || operation->copy.depth == 0;
}

static CUresult resolve_both(const struct operation *operation, struct side *from, struct side *to) {
    CUresult result = resolve(&operation->copy.from, operation, from);
    return result == CUDA_SUCCESS ? resolve(&operation->copy.to, operation, to) : result;
}

CUresult copy_check(const struct operation *operation) {
    struct side from, to;
    return is_empty(operation) ? CUDA_SUCCESS : resolve_both(operation, &from, &to);
}

CUresult copy_execute(const struct operation *operation) {
    struct side from, to;
    if (is_empty(operation)) {
        return CUDA_SUCCESS;
    }
    CUresult result = resolve_both(operation, &from, &to);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    size_t width = operation->copy.width_bytes, height = operation->copy.height, depth = operation->copy.depth;
    if (from.row == width && to.row == width && (depth == 1 || (from.layer == width * height && to.layer == from.layer))) {
        memmove(to.first, from.first, width * height * depth);
        return CUDA_SUCCESS;
    }
    for (size_t z = 0; z < depth; z++) {
        for (size_t y = 0; y < height; y++) {
            memmove(to.first + z * to.layer + y * to.row, from.first + z * from.layer + y * from.row, width);
        }
    }
    return CUDA_SUCCESS;
}

/* ---- fills ---- */

static CUresult resolve_fill(const struct operation *operation, char **first, size_t *row_bytes) {
    unsigned int element = operation->fill.element_bytes;
    size_t above, span, height = operation->fill.height, pitch = height > 1 ? operation->fill.pitch : 0;
    if ((element != 1 && element != 2 && element != 4) || operation->fill.to % element != 0 || pitch % element != 0 ||
        __builtin_mul_overflow(operation->fill.width, (size_t)element, row_bytes) ||
        __builtin_mul_overflow(height - 1, pitch, &above) || __builtin_add_overflow(above, *row_bytes, &span) ||
        (height > 1 && pitch < *row_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *first = memory_bytes_at(operation->fill.to, span);
    return *first != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fill_check(const struct operation *operation) {
    char *first;
    size_t row_bytes;
    bool empty = operation->fill.width == 0 || operation->fill.height == 0;
    return empty ? CUDA_SUCCESS : resolve_fill(operation, &first, &row_bytes);
}

/* Doubles what is there already: memcpy's speed for every element size. */
static void fill_row(char *row, size_t bytes, unsigned int value, unsigned int element) {
    if (element == 1) {
        memset(row, (int)(value & 0xff), bytes);
        return;
    }
    memcpy(row, &value, element); /* the low bytes come first on every machine that CUDA runs on */
    for (size_t done = element; done < bytes;) {
        size_t next = done < bytes - done ? done : bytes - done;
        memcpy(row + done, row, next);
        done += next;
    }
}

CUresult fill_execute(const struct operation *operation) {
    char *first;
    size_t row_bytes;
    if (operation->fill.width == 0 || operation->fill.height == 0) {
        return CUDA_SUCCESS;
    }
    CUresult result = resolve_fill(operation, &first, &row_bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t y = 0; y < operation->fill.height; y++) {
        fill_row(first + y * operation->fill.pitch, row_bytes, operation->fill.value, operation->fill.element_bytes);
    }
    return CUDA_SUCCESS;
}
