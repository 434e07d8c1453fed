/* Objects behind handles: memory that is reused for the same kind only and never handed back, so that asking a stale
 * handle for its kind is always safe. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    struct object *free;
} shelves[KIND_COUNT] = {[0 ... KIND_COUNT - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .free = NULL}};

void *object_new(enum kind kind, size_t size) {
    pthread_mutex_lock(&shelves[kind].lock);
    struct object *object = shelves[kind].free;
    if (object != NULL) {
        shelves[kind].free = object->next_free;
    }
    pthread_mutex_unlock(&shelves[kind].lock);
    if (object == NULL) {
        object = malloc(size);
        if (object == NULL) {
            return NULL;
        }
        atomic_init(&object->kind, KIND_NONE);
    }
    /* A stale handle may be looking at the kind right now, so everything but the kind is cleared plainly. */
    memset((char *)object + sizeof object->kind, 0, size - sizeof object->kind);
    atomic_store_explicit(&object->kind, kind, memory_order_release);
    return object;
}

bool object_retire(void *object, enum kind kind) {
    if (object == NULL) {
        return false;
    }
    uint32_t expected = kind;
    return atomic_compare_exchange_strong(&((struct object *)object)->kind, &expected, KIND_NONE);
}

void object_free(void *object, enum kind kind) {
    struct object *freed = object;
    pthread_mutex_lock(&shelves[kind].lock);
    freed->next_free = shelves[kind].free;
    shelves[kind].free = freed;
    pthread_mutex_unlock(&shelves[kind].lock);
}
