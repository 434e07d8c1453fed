/* Which GPU of the session a call concerns, and its bytes. Devices are told apart by UUID: their numbers depend on
 * CUDA_VISIBLE_DEVICES, their UUIDs do not. */
#include "charge.h"

#include <string.h>

#define MAX_ORDINALS 64
#define UNKNOWN 0xffu /* not looked up yet */

struct table charges = TABLE_INITIALIZER;

static _Atomic uint8_t gpu_by_ordinal[MAX_ORDINALS] = {[0 ... MAX_ORDINALS - 1] = UNKNOWN};
static _Atomic uint64_t context_epoch = 1;

static __thread struct {
    CUcontext context;
    uint64_t epoch;
    uint32_t gpu;
    uint32_t lane; /* plus one; zero: not dealt yet */
} latest;

static uint32_t deal_lane(void) {
    static _Atomic uint32_t threads;
    return atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % GPUSLICE_LANES + 1;
}

static uint32_t look_up(CUdevice device) {
    CUuuid uuid;
    if (REAL(cuDeviceGetUuid_v2)(&uuid, device) != CUDA_SUCCESS && REAL(cuDeviceGetUuid)(&uuid, device) != CUDA_SUCCESS) {
        return NO_GPU;
    }
    uint8_t bytes[16];
    memcpy(bytes, uuid.bytes, sizeof bytes);
    uint32_t gpu = session_find(bytes);
    if (gpu == NO_GPU) {
        session_complain(COMPLAINT_FOREIGN_GPU, "the session has no share of the GPU that the program uses (see gpuslice ps)");
    }
    return gpu;
}

uint32_t gpu_of_device(CUdevice device) {
    if (device < 0 || device >= MAX_ORDINALS ||
        (atomic_load(&session.state) != SESSION_ATTACHED && !session_attach(false))) {
        return NO_GPU;
    }
    uint8_t known = atomic_load_explicit(&gpu_by_ordinal[device], memory_order_relaxed);
    if (known != UNKNOWN) {
        return known;
    }
    uint32_t gpu = look_up(device);
    if (gpu != NO_GPU) {
        atomic_store_explicit(&gpu_by_ordinal[device], (uint8_t)gpu, memory_order_relaxed);
    }
    return gpu;
}

bool place_of_current(struct place *place) {
    CUcontext context = NULL;
    CUdevice device;
    if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL) {
        return false;
    }
    uint64_t epoch = atomic_load_explicit(&context_epoch, memory_order_acquire);
    if (latest.context != context || latest.epoch != epoch || latest.gpu == NO_GPU) {
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) {
            return false;
        }
        latest.lane = latest.lane != 0 ? latest.lane : deal_lane();
        latest.context = context;
        latest.epoch = epoch;
        latest.gpu = gpu_of_device(device);
    }
    *place = (struct place){.context = context, .gpu = latest.gpu, .lane = latest.lane - 1};
    return true;
}

void place_forget_contexts(void) {
    atomic_fetch_add(&context_epoch, 1);
}

void place_forget_devices(void) {
    for (int ordinal = 0; ordinal < MAX_ORDINALS; ordinal++) {
        atomic_store(&gpu_by_ordinal[ordinal], UNKNOWN);
    }
    place_forget_contexts();
}

bool location_is_host(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool location_device(const CUmemLocation *location, CUdevice *device) {
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *device = location->id;
        return true;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        *device = location->localized.deviceId;
        return true;
    default:
        return REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
    }
}

bool charge_begin(uint32_t gpu, uint32_t lane, uint64_t rounded) {
    if (!session_allows(gpu)) {
        return charge_denied(gpu, rounded);
    }
    if (session_reserve(gpu, lane, rounded)) {
        return true;
    }
    bool regained = pools_refresh();
    regained |= graphs_refresh();
    return (regained && session_reserve(gpu, lane, rounded)) || charge_denied(gpu, rounded);
}

bool charge_denied(uint32_t gpu, uint64_t rounded) {
    if (gpu != NO_GPU && atomic_load(&session.state) == SESSION_ATTACHED) {
        session_count_denied(gpu);
        session_debug("denied %llu bytes on GPU %u: %llu of %llu are in use", (unsigned long long)rounded, gpu,
                      (unsigned long long)session_used(gpu), (unsigned long long)session_limit(gpu));
    }
    return false;
}

void charge_back(uint32_t gpu, uint32_t lane, uint64_t rounded) {
    session_release(gpu, lane, rounded);
}

bool pending_begin(struct pending_charge *pending, uint64_t rounded) {
    pending->bytes = rounded;
    pending->charged = place_of_current(&pending->place);
    return !pending->charged || charge_begin(pending->place.gpu, pending->place.lane, rounded);
}

bool pending_record(const struct pending_charge *pending, uint64_t key, enum charge_kind kind) {
    struct table_entry entry = {.key = key, .owner = (uint64_t)(uintptr_t)pending->place.context, .bytes = pending->bytes,
                                .gpu = (uint8_t)pending->place.gpu, .kind = kind, .lane = pending->place.lane & 0xfu};
    return charge_record(&entry);
}

void pending_cancel(const struct pending_charge *pending) {
    charge_back(pending->place.gpu, pending->place.lane, pending->bytes);
}

void charge_entry_back(const struct table_entry *entry) {
    if (entry->kind == CHARGE_POOLED) {
        pools_freed(entry);
    } else {
        charge_back((uint32_t)entry->gpu, (uint32_t)entry->lane, entry->bytes);
    }
}

bool charge_record(const struct table_entry *entry) {
    struct table_entry replaced;
    bool recorded = table_put(&charges, entry, &replaced);
    if (__builtin_expect(replaced.key != 0, 0)) {
        charge_entry_back(&replaced);
    }
    return recorded;
}

void charge_entry_freed(const struct table_entry *entry, CUresult result) {
    struct table_entry replaced;
    if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
        charge_entry_back(entry);
    } else {
        table_put(&charges, entry, &replaced); /* if the host has no memory, it stays charged: the safe side */
    }
}
