/* Event sets: XIDs and the like, from the ring that all processes of the machine share. A set is this process's own; it
 * sees what happened after the GPU was registered with it. */
#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NS 2000000L
/* An event that stays incomplete for so long was left by a process that died while it wrote it. */
#define ABANDONED_NS 100000000ull
#define SUPPORTED_EVENTS                                                                                               \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState |                           \
     nvmlEventTypeXidCriticalError | nvmlEventTypeClock)

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    uint64_t cursor; /* the next event to look at */
    uint64_t waiting_since_ns;
    unsigned long long types[SIM_MAX_GPUS];
    uint64_t since[SIM_MAX_GPUS]; /* the first event after registration */
};

static pthread_mutex_t sets_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st *sets;

/* With the mutex held. Looks the pointer up instead of following it: it may be anything. */
static bool is_set(nvmlEventSet_t set) {
    for (struct nvmlEventSet_st *known = sets; known != NULL; known = known->next) {
        if (known == set) {
            return true;
        }
    }
    return false;
}

/* A fork may have happened while another thread held the mutex; a child begins without sets in any case. */
static void forget_sets_in_child(void) {
    sets = NULL;
    sets_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, forget_sets_in_child);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (set == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    pthread_once(&once, register_fork_handler);
    struct nvmlEventSet_st *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return NVML_ERROR_MEMORY;
    }
    created->cursor = atomic_load(&process.machine->xid_count);
    pthread_mutex_lock(&sets_mutex);
    created->next = sets;
    sets = created;
    pthread_mutex_unlock(&sets_mutex);
    *set = created;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&sets_mutex);
    for (struct nvmlEventSet_st **link = &sets; *link != NULL; link = &(*link)->next) {
        if (*link == set) {
            *link = set->next;
            free(set);
            result = NVML_SUCCESS;
            break;
        }
    }
    pthread_mutex_unlock(&sets_mutex);
    return result;
}

GETTER(nvmlDeviceGetSupportedEventTypes, WHOLE_GPU, unsigned long long, SUPPORTED_EVENTS)

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, set, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if ((types & ~(unsigned long long)SUPPORTED_EVENTS) != 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&sets_mutex);
    if (!is_set(set)) {
        result = NVML_ERROR_INVALID_ARGUMENT;
    } else {
        if (set->types[target.gpu] == 0) {
            set->since[target.gpu] = atomic_load(&process.machine->xid_count);
        }
        set->types[target.gpu] |= types;
    }
    pthread_mutex_unlock(&sets_mutex);
    return result;
}

/* Copies event number `number` if it is complete and was not overwritten meanwhile. */
static bool read_event(uint64_t number, struct sim_xid *copy) {
    const struct sim_xid *event = &process.machine->xids[number % SIM_XID_RING];
    if (atomic_load(&event->sequence) != number + 1) {
        return false;
    }
    copy->type = event->type;
    copy->gpu = event->gpu;
    copy->xid = event->xid;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load(&event->sequence) == number + 1 && copy->gpu < SIM_MAX_GPUS;
}

/* Moves on to the next event that the set was registered for. With the mutex held. */
static bool next_event(struct nvmlEventSet_st *set, struct sim_xid *event) {
    for (;;) {
        uint64_t count = atomic_load(&process.machine->xid_count);
        if (count > set->cursor + SIM_XID_RING) {
            set->cursor = count - SIM_XID_RING; /* the ones before are gone */
        }
        if (set->cursor == count) {
            return false;
        }
        if (!read_event(set->cursor, event)) {
            uint64_t now = sim_clock_ns();
            if (set->waiting_since_ns == 0) {
                set->waiting_since_ns = now;
            }
            if (now - set->waiting_since_ns < ABANDONED_NS) {
                return false;
            }
            set->waiting_since_ns = 0;
            set->cursor++;
            continue;
        }
        set->waiting_since_ns = 0;
        uint64_t number = set->cursor++;
        if ((set->types[event->gpu] & event->type) != 0 && number >= set->since[event->gpu]) {
            return true;
        }
    }
}

/* The first version of the structure ended before the instances, and so does its caller's. */
static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms, size_t size) {
    if (!initialized()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (data == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    uint64_t deadline = sim_clock_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        struct sim_xid event;
        pthread_mutex_lock(&sets_mutex);
        bool known = is_set(set), found = known && next_event(set, &event);
        pthread_mutex_unlock(&sets_mutex);
        if (!known) {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        if (found) {
            nvmlEventData_t all = {
                .device = gpu_handle(event.gpu),
                .eventType = event.type,
                .eventData = event.xid,
                .gpuInstanceId = NOT_MIG,
                .computeInstanceId = NOT_MIG,
            };
            memcpy(data, &all, size);
            return NVML_SUCCESS;
        }
        if (sim_clock_ns() >= deadline) {
            return NVML_ERROR_TIMEOUT;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    return wait_for_event(set, data, timeout_ms, sizeof *data);
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    return wait_for_event(set, data, timeout_ms, offsetof(nvmlEventData_t, gpuInstanceId));
}
