/* The shared machine: opening it, slots, the machine lock, and memory that is finite across processes. */
#define _GNU_SOURCE
#include "machine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MACHINE_LOCK_BYTE 0
#define XID_GPU_LOST 79u
#define EVENT_TYPE_XID 8ull /* nvmlEventTypeXidCriticalError */

/* The threads of one process share its OFD lock, so they need a lock of their own in front of it. */
static pthread_mutex_t process_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct flock byte_range(short type, off_t byte) {
    struct flock range;
    memset(&range, 0, sizeof range);
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = byte;
    range.l_len = 1;
    return range;
}

static off_t slot_byte(uint32_t slot) {
    return (off_t)slot + 1;
}

void sim_lock(struct sim_process *process) {
    pthread_mutex_lock(&process_mutex);
    struct flock range = byte_range(F_WRLCK, MACHINE_LOCK_BYTE);
    while (fcntl(process->slots_fd, F_OFD_SETLKW, &range) == -1 && errno == EINTR) {
    }
}

void sim_unlock(struct sim_process *process) {
    struct flock range = byte_range(F_UNLCK, MACHINE_LOCK_BYTE);
    fcntl(process->slots_fd, F_OFD_SETLK, &range);
    pthread_mutex_unlock(&process_mutex);
}

/* An OFD probe conflicts with every POSIX lock, the caller's own included, and names its owner. */
bool sim_slot_alive(struct sim_process *process, uint32_t slot, int *pid) {
    struct flock range = byte_range(F_WRLCK, slot_byte(slot));
    if (fcntl(process->slots_fd, F_OFD_GETLK, &range) == -1) {
        range.l_type = F_WRLCK; /* unknown: never take what may belong to a living process */
        range.l_pid = 0;
    }
    if (pid != NULL) {
        *pid = range.l_type == F_UNLCK || range.l_pid < 0 ? 0 : range.l_pid;
    }
    return range.l_type != F_UNLCK;
}

static uint32_t lanes_of(const struct sim_slot *slot) {
    uint64_t lanes = atomic_load(&slot->lanes);
    return lanes < SIM_LANES ? (uint32_t)lanes : SIM_LANES;
}

/* Called under the machine lock for a slot whose owner is dead, or that has had no owner. Writes only what is not zero,
 * so that pages of the sparse file that were never touched stay that way. */
static void clear_slot(struct sim_machine *machine, uint32_t number) {
    struct sim_slot *slot = &machine->slots[number];
    uint32_t domains = sim_domain(machine->description.gpu_count, 0);
    for (uint32_t domain = 0; domain < domains; domain++) {
        struct sim_engine *engine = &machine->engines[domain];
        uint64_t bit = 1ull << (number % 64);
        if (atomic_load(&engine->active[number / 64]) & bit) {
            atomic_fetch_and(&engine->active[number / 64], ~bit);
        }
        uint32_t holder = number + 1;
        if (atomic_load(&engine->lock) == holder) {
            atomic_compare_exchange_strong(&engine->lock, &holder, 0);
        }
        for (uint32_t lane = 0; lane < lanes_of(slot); lane++) {
            if (atomic_load(&slot->memory[lane][domain]) != 0) {
                atomic_store(&slot->memory[lane][domain], 0);
            }
        }
        if (atomic_load(&slot->contexts[domain]) != 0) {
            atomic_store(&slot->contexts[domain], 0);
        }
        struct sim_work *work = &slot->work[domain];
        if (atomic_load(&work->finish) != 0 || atomic_load(&work->base) != 0) {
            memset(work, 0, sizeof *work);
        }
    }
    if (atomic_load(&slot->lanes) != 0) {
        atomic_store(&slot->lanes, 0);
    }
    atomic_store(&slot->used, 0);
}

static void reap_locked(struct sim_process *process) {
    struct sim_machine *machine = process->machine;
    uint32_t high = atomic_load(&machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        if (atomic_load(&machine->slots[slot].used) && !sim_slot_alive(process, slot, NULL)) {
            clear_slot(machine, slot);
        }
    }
}

void sim_reap(struct sim_process *process) {
    struct sim_machine *machine = process->machine;
    uint32_t high = atomic_load(&machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        if (atomic_load(&machine->slots[slot].used) && !sim_slot_alive(process, slot, NULL)) {
            sim_lock(process);
            reap_locked(process);
            sim_unlock(process);
            return;
        }
    }
}

void sim_reap_sometimes(struct sim_process *process) {
    struct timespec tick;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    uint64_t now = (uint64_t)tick.tv_sec * 1000000000u + (uint64_t)tick.tv_nsec;
    uint64_t last = atomic_load_explicit(&process->machine->reaped_ns, memory_order_relaxed);
    if (last != now && atomic_compare_exchange_strong(&process->machine->reaped_ns, &last, now)) {
        sim_reap(process);
    }
}

/* In libdl before glibc 2.34, where not every process has it. */
#pragma weak dladdr

/* What is installed as a node's driver leads to its machine by a link, wherever the node's file tree is mounted. */
static bool folder_beside_library(char *folder, size_t size) {
    Dl_info info;
    if (dladdr == NULL || dladdr((void *)(uintptr_t)sim_open, &info) == 0 || info.dli_fname == NULL) {
        return false;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    if (slash == NULL) {
        return false;
    }
    int length = snprintf(folder, size, "%.*s/gpuslice-sim", (int)(slash - info.dli_fname), info.dli_fname);
    struct stat status;
    return length > 0 && (size_t)length < size && stat(folder, &status) == 0 && S_ISDIR(status.st_mode);
}

static int machine_folder(char *folder, size_t size) {
    const char *name = getenv("GPUSLICE_SIM");
    if (name == NULL || name[0] == '\0') {
        if (folder_beside_library(folder, size)) {
            return 0;
        }
        name = "default";
    }
    const char *prefix = name[0] == '/' ? "" : "/dev/shm/gpuslice-sim.";
    int length = snprintf(folder, size, "%s%s", prefix, name);
    return length > 0 && (size_t)length < size ? 0 : -1;
}

static int open_in(const char *folder, const char *file) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, file);
    return length > 0 && (size_t)length < sizeof path ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static struct sim_machine *map_machine(const char *folder, enum sim_open_result *result) {
    int fd = open_in(folder, "machine");
    if (fd == -1) {
        *result = SIM_OPEN_ABSENT;
        return NULL;
    }
    struct stat status;
    void *address = MAP_FAILED;
    *result = SIM_OPEN_INVALID;
    if (fstat(fd, &status) == 0 && status.st_size == (off_t)sizeof(struct sim_machine)) {
        address = mmap(NULL, sizeof(struct sim_machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (address == MAP_FAILED) {
        return NULL;
    }
    struct sim_machine *machine = address;
    const struct sim_description *description = &machine->description;
    if (description->magic != SIM_MAGIC || description->version != SIM_VERSION ||
        description->file_bytes != sizeof *machine || description->gpu_count > SIM_MAX_GPUS) {
        munmap(address, sizeof *machine);
        return NULL;
    }
    *result = SIM_OPEN_OK;
    return machine;
}

static bool take_slot(struct sim_process *process, uint32_t number) {
    struct flock range = byte_range(F_WRLCK, slot_byte(number));
    if (fcntl(process->slots_fd, F_SETLK, &range) == -1) {
        return false;
    }
    struct sim_machine *machine = process->machine;
    clear_slot(machine, number);
    process->slot = number;
    process->self = &machine->slots[number];
    if (number >= atomic_load(&machine->slots_high)) {
        atomic_store(&machine->slots_high, number + 1);
    }
    return true;
}

static bool find_slot(struct sim_process *process) {
    for (uint32_t slot = 0; slot < SIM_MAX_SLOTS; slot++) {
        if (!atomic_load(&process->machine->slots[slot].used) && take_slot(process, slot)) {
            return true;
        }
    }
    return false;
}

static enum sim_kind kind_of_process(void) {
    const char *kind = getenv("GPUSLICE_SIM_KIND");
    if (kind == NULL) {
        return SIM_COMPUTE;
    }
    return strcmp(kind, "graphics") == 0 ? SIM_GRAPHICS : strcmp(kind, "mps") == 0 ? SIM_MPS : SIM_COMPUTE;
}

enum sim_open_result sim_open(struct sim_process *process, bool observer) {
    char folder[2048];
    if (machine_folder(folder, sizeof folder) == -1) {
        return SIM_OPEN_ABSENT;
    }
    enum sim_open_result result;
    struct sim_process opened;
    memset(&opened, 0, sizeof opened);
    opened.machine = map_machine(folder, &result);
    if (opened.machine == NULL) {
        return result;
    }
    opened.slots_fd = open_in(folder, "slots");
    if (opened.slots_fd == -1) {
        munmap(opened.machine, sizeof *opened.machine);
        return SIM_OPEN_INVALID;
    }
    sim_lock(&opened);
    bool found = find_slot(&opened);
    if (!found) {
        reap_locked(&opened);
        found = find_slot(&opened);
    }
    if (found) {
        opened.self->kind = observer ? SIM_OBSERVER : kind_of_process();
        atomic_store(&opened.self->used, 1);
    }
    sim_unlock(&opened);
    if (!found) {
        /* slots_fd stays open: closing it would drop the locks of the other library in this process. */
        munmap(opened.machine, sizeof *opened.machine);
        return SIM_OPEN_FULL;
    }
    *process = opened;
    return SIM_OPEN_OK;
}

/* The slot in which this thread's lane was shown to others. */
static __thread const struct sim_slot *shown_in;

void sim_forget(struct sim_process *process) {
    shown_in = NULL; /* the child's own slot may come to lie at the same address */
    if (process->machine != NULL) {
        /* The child owns no POSIX lock, so this close takes nothing from the parent; but it must not keep the
         * parent's machine lock alive through the shared open file. */
        close(process->slots_fd);
        munmap(process->machine, sizeof *process->machine);
    }
    memset(process, 0, sizeof *process);
    process_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* ---- memory ---- */

uint32_t sim_lane(void) {
    static _Atomic uint32_t threads;
    static __thread uint32_t lane; /* plus one */
    if (__builtin_expect(lane == 0, 0)) {
        lane = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % SIM_LANES + 1;
    }
    return lane - 1;
}

static uint32_t claimed_units(uint64_t word) {
    return (uint32_t)(word >> 32);
}

static uint32_t idle_units(uint64_t word) {
    return (uint32_t)word;
}

static uint64_t both_halves(uint64_t units) {
    return units << 32 | units;
}

uint64_t sim_memory_capacity(const struct sim_machine *machine, uint32_t domain) {
    uint32_t gpu = domain / SIM_DOMAINS_PER_GPU, instance = domain % SIM_DOMAINS_PER_GPU;
    const struct sim_gpu_spec *spec = &machine->description.gpus[gpu];
    if (instance == 0) {
        return spec->memory_bytes / SIM_UNIT;
    }
    const struct sim_gpu_instance *partition = &machine->gpus[gpu].instances[instance - 1];
    return atomic_load(&partition->used) ? spec->profiles[partition->profile].memory_bytes / SIM_UNIT : 0;
}

uint64_t sim_memory_used_by(const struct sim_machine *machine, uint32_t slot, uint32_t domain) {
    uint32_t used = 0; /* goes round, and comes out right */
    for (uint32_t lane = 0, lanes = lanes_of(&machine->slots[slot]); lane < lanes; lane++) {
        uint64_t word = atomic_load(&machine->slots[slot].memory[lane][domain]);
        used += claimed_units(word) - idle_units(word);
    }
    return (int32_t)used > 0 ? used : 0; /* below: something was freed while we looked */
}

uint64_t sim_memory_used(struct sim_process *process, uint32_t domain) {
    uint64_t used = 0;
    uint32_t high = atomic_load(&process->machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        used += sim_memory_used_by(process->machine, slot, domain);
    }
    return used;
}

static uint64_t claimed_by_all(const struct sim_machine *machine, uint32_t domain) {
    uint32_t claimed = 0;
    uint32_t high = atomic_load(&machine->slots_high);
    for (uint32_t slot = 0; slot < high; slot++) {
        for (uint32_t lane = 0, lanes = lanes_of(&machine->slots[slot]); lane < lanes; lane++) {
            claimed += claimed_units(atomic_load(&machine->slots[slot].memory[lane][domain]));
        }
    }
    return claimed;
}

/* Takes up to `wanted` units that other processes and other threads claimed and do not use. */
static uint64_t collect_idle(struct sim_process *process, const _Atomic uint64_t *own, uint32_t domain, uint64_t wanted) {
    struct sim_machine *machine = process->machine;
    uint32_t words = atomic_load(&machine->slots_high) * SIM_LANES;
    uint64_t collected = 0;
    for (uint32_t i = 0; i < words && collected < wanted; i++) {
        _Atomic uint64_t *word = &machine->slots[i / SIM_LANES].memory[i % SIM_LANES][domain];
        if (word == own) {
            continue;
        }
        uint64_t seen = atomic_load(word);
        while (idle_units(seen) != 0) {
            uint64_t idle = idle_units(seen);
            uint64_t take = idle < wanted - collected ? idle : wanted - collected;
            if (atomic_compare_exchange_weak(word, &seen, seen - both_halves(take))) {
                collected += take;
                break;
            }
        }
    }
    return collected;
}

static void show_lane(struct sim_slot *self, uint32_t lane) {
    uint64_t shown = atomic_load(&self->lanes);
    while (shown <= lane && !atomic_compare_exchange_weak(&self->lanes, &shown, lane + 1)) {
    }
}

/* Before a thread changes its word for the first time, it shows others where to look. */
static _Atomic uint64_t *own_word(struct sim_process *process, uint32_t domain) {
    uint32_t lane = sim_lane();
    if (__builtin_expect(shown_in != process->self, 0)) {
        show_lane(process->self, lane);
        shown_in = process->self;
    }
    return &process->self->memory[lane][domain];
}

/* Under the machine lock claims of others can only shrink, so what is free now stays free until it is taken here. */
static bool claim_slowly(struct sim_process *process, uint32_t domain, uint64_t units) {
    uint64_t capacity = sim_memory_capacity(process->machine, domain);
    if (units > capacity) {
        return false;
    }
    _Atomic uint64_t *word = own_word(process, domain);
    bool granted = false;
    sim_lock(process);
    uint64_t claimed = claimed_by_all(process->machine, domain);
    uint64_t free_units = claimed < capacity ? capacity - claimed : 0;
    for (int attempt = 0; attempt < 2 && !granted; attempt++) {
        if (attempt == 1) { /* not enough: first what the dead left, then what the living do not use */
            reap_locked(process);
            claimed = claimed_by_all(process->machine, domain);
            free_units = claimed < capacity ? capacity - claimed : 0;
            uint64_t idle = idle_units(atomic_load(word));
            if (units > idle + free_units) {
                free_units += collect_idle(process, word, domain, units - idle - free_units);
            }
        }
        uint64_t seen = atomic_load(word);
        for (;;) {
            uint64_t idle = idle_units(seen);
            uint64_t grow = units > idle ? units - idle : 0;
            if (grow > free_units) {
                break;
            }
            if (atomic_compare_exchange_weak(word, &seen, seen + both_halves(grow) - units)) {
                granted = true;
                break;
            }
        }
    }
    sim_unlock(process);
    return granted;
}

bool sim_memory_claim(struct sim_process *process, uint32_t domain, uint64_t units) {
    _Atomic uint64_t *word = own_word(process, domain);
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while (idle_units(seen) >= units) {
        if (atomic_compare_exchange_weak(word, &seen, seen - units)) {
            return true;
        }
    }
    return claim_slowly(process, domain, units);
}

void sim_memory_release(struct sim_process *process, uint32_t domain, uint64_t units) {
    atomic_fetch_add(own_word(process, domain), units);
}

/* ---- contexts and events ---- */

void sim_context_opened(struct sim_process *process, uint32_t domain) {
    atomic_fetch_add(&process->self->contexts[domain], 1);
}

void sim_context_closed(struct sim_process *process, uint32_t domain) {
    atomic_fetch_sub(&process->self->contexts[domain], 1);
}

void sim_inject_xid(struct sim_process *process, uint32_t gpu, uint32_t xid) {
    struct sim_machine *machine = process->machine;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t number = atomic_fetch_add(&machine->xid_count, 1);
    struct sim_xid *event = &machine->xids[number % SIM_XID_RING];
    event->timestamp_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    event->type = EVENT_TYPE_XID;
    event->gpu = gpu;
    event->xid = xid;
    atomic_store(&machine->gpus[gpu].last_xid, xid);
    if (xid == XID_GPU_LOST) {
        atomic_store(&machine->gpus[gpu].lost, 1);
    }
    atomic_store(&event->sequence, number + 1);
}
