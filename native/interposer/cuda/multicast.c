/* Multicast objects: memory that is bound to one stays on the GPU after its handle is released, until it is unbound or the
 * object is gone. An object that another process made is seen here only by its handle: what is bound to it counts until
 * it is unbound. */
#include "virtual_memory.h"

#include <stdlib.h>

struct binding {
    CUmemGenericAllocationHandle multicast;
    struct physical *object; /* NULL for a multicast object of another process */
    CUdevice device;
    size_t offset, size;
    struct physical *physical;
    struct binding *next;
};

static struct binding *bindings; /* under the lock of virtual_memory.c */

void multicast_forget(void) {
    bindings = NULL;
}

/* ---- bindings; under the lock ---- */

/* Takes those bindings out of the list. */
static struct binding *take_bindings(bool (*matches)(const struct binding *binding, const struct binding *wanted),
                                     const struct binding *wanted) {
    struct binding *taken = NULL, **link = &bindings;
    while (*link != NULL) {
        struct binding *binding = *link;
        if (matches(binding, wanted)) {
            *link = binding->next;
            binding->next = taken;
            taken = binding;
        } else {
            link = &binding->next;
        }
    }
    return taken;
}

static bool of_object(const struct binding *binding, const struct binding *wanted) {
    return binding->object == wanted->object;
}

static bool of_range(const struct binding *binding, const struct binding *wanted) {
    return binding->object == wanted->object && binding->multicast == wanted->multicast &&
           binding->device == wanted->device && binding->offset >= wanted->offset &&
           binding->offset - wanted->offset < wanted->size;
}

void multicast_ended(const struct physical *multicast) {
    if (bindings == NULL) {
        return;
    }
    struct binding wanted = {.object = (struct physical *)multicast};
    struct binding *taken = take_bindings(of_object, &wanted);
    while (taken != NULL) {
        struct binding *binding = taken;
        taken = binding->next;
        physical_begin_drop(binding->physical, 0, 1);
        physical_end_drop(binding->physical, 0, 1, true);
        free(binding);
    }
}

/* ---- binding ---- */

/* A binding of that memory, which holds it from now on; NULL if the memory is not charged here, or no memory is left. */
static struct binding *begin_binding(struct physical *physical, struct binding binding) {
    struct binding *made = physical != NULL ? malloc(sizeof *made) : NULL;
    if (made != NULL) {
        *made = binding;
        made->physical = physical;
        made->object = physical_of_handle(binding.multicast);
        made->device = binding.device >= 0 ? binding.device : physical->device;
        physical_hold(physical);
    }
    return made;
}

static CUresult end_binding(struct binding *binding, CUresult result) {
    if (binding == NULL) {
        return result;
    }
    virtual_memory_lock();
    if (result == CUDA_SUCCESS) {
        binding->next = bindings;
        bindings = binding;
    } else {
        physical_begin_drop(binding->physical, 0, 1);
        physical_end_drop(binding->physical, 0, 1, true);
        free(binding);
    }
    virtual_memory_unlock();
    return result;
}

/* False when the memory is charged here and cannot be recorded. */
static bool begin_by_handle(struct binding **binding, CUmemGenericAllocationHandle memory, struct binding wanted) {
    virtual_memory_lock();
    struct physical *physical = physical_of_handle(memory);
    *binding = begin_binding(physical, wanted);
    virtual_memory_unlock();
    return physical == NULL || *binding != NULL;
}

static bool begin_by_address(struct binding **binding, CUdeviceptr address, struct binding wanted) {
    virtual_memory_lock();
    struct physical *physical = physical_at_address(address);
    *binding = begin_binding(physical, wanted);
    virtual_memory_unlock();
    return physical == NULL || *binding != NULL;
}

#define OWN_DEVICE (-1) /* of the memory that is bound */

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
                            CUmemGenericAllocationHandle memory, size_t offset, size_t size, unsigned long long flags) {
    struct binding wanted = {.multicast = multicast, .device = OWN_DEVICE, .offset = multicast_offset, .size = size};
    struct binding *binding;
    if (!begin_by_handle(&binding, memory, wanted)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return end_binding(binding, REAL(cuMulticastBindMem)(multicast, multicast_offset, memory, offset, size, flags));
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
                               CUmemGenericAllocationHandle memory, size_t offset, size_t size, unsigned long long flags) {
    struct binding wanted = {.multicast = multicast, .device = device, .offset = multicast_offset, .size = size};
    struct binding *binding;
    if (!begin_by_handle(&binding, memory, wanted)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMulticastBindMem_v2)(multicast, device, multicast_offset, memory, offset, size, flags);
    return end_binding(binding, result);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t multicast_offset, CUdeviceptr address,
                             size_t size, unsigned long long flags) {
    struct binding wanted = {.multicast = multicast, .device = OWN_DEVICE, .offset = multicast_offset, .size = size};
    struct binding *binding;
    if (!begin_by_address(&binding, address, wanted)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return end_binding(binding, REAL(cuMulticastBindAddr)(multicast, multicast_offset, address, size, flags));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
                                CUdeviceptr address, size_t size, unsigned long long flags) {
    struct binding wanted = {.multicast = multicast, .device = device, .offset = multicast_offset, .size = size};
    struct binding *binding;
    if (!begin_by_address(&binding, address, wanted)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return end_binding(binding, REAL(cuMulticastBindAddr_v2)(multicast, device, multicast_offset, address, size, flags));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, size_t size) {
    virtual_memory_lock();
    struct binding wanted = {.multicast = multicast, .object = physical_of_handle(multicast), .device = device,
                             .offset = offset, .size = size};
    struct binding *taken = take_bindings(of_range, &wanted);
    for (struct binding *binding = taken; binding != NULL; binding = binding->next) {
        physical_begin_drop(binding->physical, 0, 1);
    }
    virtual_memory_unlock();
    CUresult result = REAL(cuMulticastUnbind)(multicast, device, offset, size);
    virtual_memory_lock();
    while (taken != NULL) {
        struct binding *binding = taken;
        taken = binding->next;
        physical_end_drop(binding->physical, 0, 1, result == CUDA_SUCCESS);
        if (result == CUDA_SUCCESS) {
            free(binding);
        } else {
            binding->next = bindings;
            bindings = binding;
        }
    }
    virtual_memory_unlock();
    return result;
}

/* ---- the objects themselves: their handles and mappings are followed as those of memory are ---- */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    CUresult result = REAL(cuMulticastCreate)(handle, properties);
    struct physical *object = result == CUDA_SUCCESS ? physical_new() : NULL;
    if (object != NULL) {
        *object = (struct physical){.handle = *handle, .gpu = NO_GPU, .references = 1};
        virtual_memory_lock();
        bool recorded = physical_record(object);
        virtual_memory_unlock();
        if (!recorded) { /* as if another process had made it: what is bound counts until it is unbound */
            free(object);
        }
    }
    return result;
}
