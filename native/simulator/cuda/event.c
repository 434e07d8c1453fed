/* Events. A record is a point of its device's time; the event is complete when the device gets there. An interprocess
 * event keeps this in a small shared file, which works because device time is the machine's and not the process's. */
#define _GNU_SOURCE
#include "event.h"
#include "capture.h"
#include "deferred.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define IPC_EVENT_MAGIC 0x3145504947534c53ull
#define IPC_EVENT_NAME "gpuslice-sim-event"
#define POLL_NS 50000

#define EVENT_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

static bool has_timing(const struct event *event) {
    return (event->flags & CU_EVENT_DISABLE_TIMING) == 0;
}

/* ---- where a record stands ---- */

uint64_t event_issue(struct event *event) {
    static _Atomic uint64_t last_ticket;
    /* Another process counts its own tickets, so a shared event counts on from what it has. */
    uint64_t before = atomic_load(&event->state->issued), ticket = atomic_fetch_add(&last_ticket, 1) + 1;
    ticket = ticket > before ? ticket : before + 1;
    atomic_store(&event->state->issued, ticket);
    return ticket;
}

static bool is_recorded(const struct event *event) {
    return atomic_load(&event->state->issued) != 0;
}

struct event_mark event_mark(const struct event *event) {
    const struct event_state *state = event->state;
    for (;;) { /* until no thread records it in between */
        uint64_t issued = atomic_load(&state->issued), executed = atomic_load(&state->executed);
        uint64_t point = executed == issued ? atomic_load(&state->point) : UINT64_MAX;
        if (atomic_load(&state->executed) == executed) {
            return (struct event_mark){.ticket = issued, .point = point};
        }
    }
}

void event_record(struct event *event, struct stream *stream, uint64_t ticket) {
    struct event_state *state = event->state;
    uint64_t point = stream_end(stream), now = has_timing(event) ? sim_clock_ns() : 0;
    /* A point that lies behind needs no history of device time to be found in later. */
    bool reached = has_timing(event) && sim_engine_reached(&driver.process, state->domain, point);
    atomic_store(&state->point, point);
    atomic_store(&state->recorded_ns, now);
    atomic_store(&state->completed_ns, reached ? now : 0);
    atomic_store(&state->slot, driver.process.slot + 1);
    atomic_store(&state->executed, ticket);
}

static bool recorded_here(const struct event_state *state) {
    return atomic_load(&state->slot) == driver.process.slot + 1;
}

/* The point of a record that was deferred when the wait began is that of the newest: it cannot lie before. */
static uint64_t point_of(const struct event_state *state, struct event_mark mark) {
    if (mark.point != UINT64_MAX || atomic_load(&state->executed) < mark.ticket) {
        return mark.point;
    }
    return atomic_load(&state->point);
}

bool event_is_point(const struct event *event, const struct stream *stream, struct event_mark mark) {
    const struct event_state *state = event->state;
    return point_of(state, mark) != UINT64_MAX && recorded_here(state) &&
           state->domain == stream->context->device->domain;
}

bool event_passed(struct event *event, struct event_mark mark) {
    const struct event_state *state = event->state;
    if (mark.ticket == 0) {
        return true;
    }
    uint64_t point = point_of(state, mark);
    if (point != UINT64_MAX && sim_engine_reached(&driver.process, state->domain, point)) {
        return true;
    }
    /* The work of a process that is gone will never be done, so its event counts as reached. */
    uint32_t slot = atomic_load(&state->slot);
    return slot != 0 && !recorded_here(state) && !sim_slot_alive(&driver.process, slot - 1, NULL);
}

static void wait_for(struct event *event) {
    const struct event_state *state = event->state;
    struct event_mark mark = event_mark(event);
    while (!event_passed(event, mark)) {
        if (mark.point != UINT64_MAX && recorded_here(state)) {
            sim_engine_wait(&driver.process, state->domain, mark.point);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        }
    }
}

/* The wall-clock time of a complete event. Work cannot be done before it was asked for. */
static uint64_t time_of(struct event_state *state) {
    uint64_t completed = atomic_load(&state->completed_ns);
    if (completed == 0) {
        uint64_t recorded = atomic_load(&state->recorded_ns);
        completed = sim_engine_time_of(&driver.process, state->domain, atomic_load(&state->point));
        completed = completed > recorded ? completed : recorded;
        atomic_store(&state->completed_ns, completed);
    }
    return completed;
}

/* ---- making and destroying ---- */

static struct event *event_new(struct context *context, unsigned int flags) {
    struct event *event = object_new(KIND_EVENT, sizeof *event);
    if (event != NULL) {
        event->context = context;
        event->flags = flags;
        event->own.domain = context->device->domain;
        event->state = &event->own;
        event->file = -1;
    }
    return event;
}

static void unmap_state(void *state) {
    munmap(state, sizeof(struct event_state));
}

static void event_delete(struct event *event) {
    capture_forget_event(event);
    if (event->state != &event->own) {
        deferred_finalize(unmap_state, event->state); /* a deferred wait may be looking at it */
    }
    if (event->file != -1) {
        close(event->file);
    }
    object_free(event, KIND_EVENT);
}

static bool map_state(struct event *event, int file) {
    void *shared = mmap(NULL, sizeof *event->state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) {
        return false;
    }
    event->state = shared;
    return true;
}

static bool share(struct event *event) {
    event->file = memfd_create(IPC_EVENT_NAME, MFD_CLOEXEC);
    if (event->file == -1 || ftruncate(event->file, sizeof *event->state) == -1 || !map_state(event, event->file)) {
        return false;
    }
    event->state->domain = event->context->device->domain;
    return true;
}

CUresult CUDAAPI cuEventCreate(CUevent *handle, unsigned int flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
    if (handle == NULL || (flags & ~(unsigned int)EVENT_FLAGS) != 0 ||
        (interprocess && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct event *event = event_new(context, flags);
    if (event == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (interprocess && !share(event)) {
        object_retire(event, KIND_EVENT);
        event_delete(event);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_retire(handle, KIND_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event_delete((struct event *)handle);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent handle) {
    return cuEventDestroy_v2(handle);
}

static CUresult event_from(CUevent handle, struct event **event) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *event = (struct event *)handle;
    return object_is(handle, KIND_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- recording and waiting on streams ---- */

CUresult CUDAAPI cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
    struct event *event;
    struct stream *stream;
    CUresult result = event_from(handle, &event);
    if (result == CUDA_SUCCESS) {
        result = stream_from(stream_handle, &stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned int)CU_EVENT_RECORD_EXTERNAL) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (event->state->domain != stream->context->device->domain) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    bool handled;
    result = capture_record_event(stream, event, (flags & CU_EVENT_RECORD_EXTERNAL) != 0, &handled);
    if (handled) {
        return result;
    }
    return stream_submit(stream, &(struct operation){.kind = OPERATION_EVENT_RECORD, .event = {.event = handle}});
}

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream) {
    return cuEventRecordWithFlags(handle, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
    struct event *event;
    struct stream *stream;
    CUresult result = event_from(handle, &event);
    if (result == CUDA_SUCCESS) {
        result = stream_from(stream_handle, &stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned int)CU_EVENT_WAIT_EXTERNAL) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool handled;
    result = capture_wait_event(stream, event, (flags & CU_EVENT_WAIT_EXTERNAL) != 0, &handled);
    if (handled) {
        return result;
    }
    return stream_submit(stream, &(struct operation){.kind = OPERATION_EVENT_WAIT, .event = {.event = handle}});
}

/* ---- asking ---- */

CUresult CUDAAPI cuEventQuery(CUevent handle) {
    struct event *event;
    CUresult result = event_from(handle, &event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (atomic_load(&event->captured) != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return event_passed(event, event_mark(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
    struct event *event;
    CUresult result = event_from(handle, &event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (atomic_load(&event->captured) != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (deferred_is_worker()) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    wait_for(event);
    pool_synchronized(event->context->device);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    struct event *start, *end;
    CUresult result = event_from(start_handle, &start);
    if (result == CUDA_SUCCESS) {
        result = event_from(end_handle, &end);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (milliseconds == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool usable = has_timing(start) && has_timing(end) && start->context == end->context;
    if (!usable || !is_recorded(start) || !is_recorded(end)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (cuEventQuery(start_handle) != CUDA_SUCCESS || cuEventQuery(end_handle) != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = (float)((double)(int64_t)(time_of(end->state) - time_of(start->state)) / 1e6);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

/* ---- other processes ---- */

struct ipc_event { /* what fills the 64 opaque bytes of CUipcEventHandle */
    uint64_t magic;
    int32_t pid, file;
};
_Static_assert(sizeof(struct ipc_event) <= sizeof(CUipcEventHandle), "a handle has 64 bytes");

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event_handle) {
    struct event *event;
    CUresult result = event_from(event_handle, &event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || event->file == -1) {
        return handle == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    struct ipc_event shared = {.magic = IPC_EVENT_MAGIC, .pid = getpid(), .file = event->file};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &shared, sizeof shared);
    return CUDA_SUCCESS;
}

static int open_exporter(const struct ipc_event *shared) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", shared->pid, shared->file);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    return strstr(target, IPC_EVENT_NAME) != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *handle, CUipcEventHandle exported) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct ipc_event shared;
    memcpy(&shared, &exported, sizeof shared);
    if (handle == NULL || shared.magic != IPC_EVENT_MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (shared.pid == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    int file = open_exporter(&shared);
    if (file == -1) {
        return CUDA_ERROR_MAP_FAILED;
    }
    struct event *event = event_new(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    bool mapped = event != NULL && map_state(event, file);
    close(file);
    if (!mapped) {
        if (event != NULL) {
            object_retire(event, KIND_EVENT);
            event_delete(event);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}
