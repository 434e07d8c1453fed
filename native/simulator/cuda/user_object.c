/* User objects: something of the program's that graphs keep alive, and that is destroyed with its last reference. */
#include "graph.h"

#include <stdlib.h>

struct user_object {
    struct object object;
    unsigned int references; /* under the graph lock */
    CUhostFn destroy;
    void *data;
};

static CUresult user_object_from(CUuserObject handle, unsigned int count, struct user_object **object) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *object = (struct user_object *)handle;
    return count != 0 && object_is(handle, KIND_USER_OBJECT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void release(struct user_object *object, unsigned int count) {
    object->references -= count;
    if (object->references == 0 && object_retire(object, KIND_USER_OBJECT)) {
        graph_call_later(object->destroy, object->data);
        object_free(object, KIND_USER_OBJECT);
    }
}

static struct retained **find(struct graph *graph, const struct user_object *object) {
    struct retained **link = &graph->retained;
    while (*link != NULL && (*link)->object != object) {
        link = &(*link)->next;
    }
    return link;
}

/* The references themselves are counted by the caller. */
static bool add(struct graph *graph, struct user_object *object, unsigned int count) {
    struct retained **link = find(graph, object);
    if (*link == NULL) {
        *link = calloc(1, sizeof **link);
        if (*link == NULL) {
            return false;
        }
        (*link)->object = object;
    }
    (*link)->count += count;
    return true;
}

void user_objects_share(struct graph *to, const struct graph *from) {
    for (const struct retained *retained = from->retained; retained != NULL; retained = retained->next) {
        if (add(to, retained->object, retained->count)) {
            retained->object->references += retained->count;
        }
    }
}

void user_objects_release(struct graph *graph) {
    while (graph->retained != NULL) {
        struct retained *retained = graph->retained;
        graph->retained = retained->next;
        release(retained->object, retained->count);
        free(retained);
    }
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject *handle, void *data, CUhostFn destroy, unsigned int references,
                                    unsigned int flags) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || destroy == NULL || references == 0 || references > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct user_object *object = object_new(KIND_USER_OBJECT, sizeof *object);
    if (object == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object->references = references;
    object->destroy = destroy;
    object->data = data;
    *handle = (CUuserObject)object;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject handle, unsigned int count) {
    struct user_object *object;
    graph_lock();
    CUresult result = user_object_from(handle, count, &object);
    if (result == CUDA_SUCCESS && __builtin_add_overflow(object->references, count, &object->references)) {
        object->references -= count;
        result = CUDA_ERROR_INVALID_VALUE;
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject handle, unsigned int count) {
    struct user_object *object;
    graph_lock();
    CUresult result = user_object_from(handle, count, &object);
    if (result == CUDA_SUCCESS && count > object->references) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        release(object, count);
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count,
                                         unsigned int flags) {
    struct user_object *object;
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(graph_handle, &graph);
    if (result == CUDA_SUCCESS) {
        result = user_object_from(handle, count, &object);
    }
    if (result == CUDA_SUCCESS && (flags & ~(unsigned int)CU_GRAPH_USER_OBJECT_MOVE) != 0) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && !add(graph, object, count)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS && (flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) {
        object->references += count; /* otherwise the caller's become the graph's */
    }
    graph_unlock();
    return result;
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count) {
    struct user_object *object;
    struct graph *graph;
    graph_lock();
    CUresult result = graph_from(graph_handle, &graph);
    if (result == CUDA_SUCCESS) {
        result = user_object_from(handle, count, &object);
    }
    struct retained **link = result == CUDA_SUCCESS ? find(graph, object) : NULL;
    if (result == CUDA_SUCCESS && (*link == NULL || (*link)->count < count)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        struct retained *retained = *link;
        retained->count -= count;
        if (retained->count == 0) {
            *link = retained->next;
            free(retained);
        }
        release(object, count);
    }
    graph_unlock();
    return result;
}
