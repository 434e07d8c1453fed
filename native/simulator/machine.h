/* The simulated machine: one file that every process of the machine maps, as every process of a real machine
 * talks to one kernel driver. `gpuslice sim up` writes the description (struct sim_gpu_spec); the libraries keep
 * the state. All-zero state is a machine at rest, so creating one is writing the description and nothing else.
 *
 * The kernel tells which processes are alive: each holds a POSIX lock on its slot's byte of the `slots` file, the kernel
 * drops it however the process dies, and tells a process that probes the lock the owner's PID in the prober's own PID
 * namespace (so NVML outside a container shows host PIDs). The `slots` file is opened once per library and never
 * closed: POSIX locks go when a process closes any descriptor of the file.
 *
 * gpuslice.simulator.layout mirrors the description for Python; tests/native proves that both agree byte for byte. */
#ifndef GPUSLICE_SIMULATOR_MACHINE_H
#define GPUSLICE_SIMULATOR_MACHINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC 0x314d495345435047ull /* "GPCESIM1" */
#define SIM_VERSION 2u
#define SIM_MAX_GPUS 16u
#define SIM_MAX_INSTANCES 7u                     /* GPU instances on one GPU */
#define SIM_DOMAINS_PER_GPU (1u + SIM_MAX_INSTANCES) /* 0: the GPU itself; 1 + n: its n-th GPU instance */
#define SIM_MAX_DOMAINS (SIM_MAX_GPUS * SIM_DOMAINS_PER_GPU)
#define SIM_MAX_SLOTS 8192u
#define SIM_MAX_PROFILES 16u
#define SIM_MAX_PLACEMENTS 8u
#define SIM_MAX_COMPUTE_INSTANCES 8u
#define SIM_LANES 4u /* a process's threads share its memory words, so it has some of them */
#define SIM_UNIT 512u /* device memory is handed out and counted in units of this many bytes */
#define SIM_XID_RING 256u
#define SIM_HISTORY 2048u /* breakpoints of device time that are remembered */
#define SIM_SAMPLES 8u    /* utilization samples that are remembered */
#define SIM_SAMPLE_NS 125000000ull

/* ---- the description, written once by `gpuslice sim up`; natural alignment, no hidden padding ---- */

struct sim_placement {
    uint32_t start, size; /* in memory slices */
};

struct sim_profile {        /* one MIG GPU-instance profile */
    uint32_t number;        /* NVML_GPU_INSTANCE_PROFILE_*, the index callers ask by */
    uint32_t id;            /* what nvidia-smi shows: 19 for 1g */
    uint32_t compute_slices, memory_slices;
    uint32_t multiprocessors, max_instances;
    uint32_t copy_engines, decoders, encoders, jpegs, ofas;
    uint32_t media; /* 1: a "+me" profile; 2: "+gfx"; 4: "-me" (no media), as bits */
    uint64_t memory_bytes;
    uint32_t placement_count, reserved;
    struct sim_placement placements[SIM_MAX_PLACEMENTS];
    char name[32]; /* "1g.5gb+me" */
};

struct sim_gpu_spec {
    char name[96];  /* "NVIDIA A100-SXM4-40GB" */
    char uuid[48];  /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    char serial[32];
    char model[32]; /* the preset's name, "A100-40GB" */
    uint64_t memory_bytes;
    uint64_t context_bytes; /* what a process's first context takes */
    uint32_t multiprocessors, threads_per_multiprocessor;
    uint32_t compute_major, compute_minor;
    uint32_t architecture; /* NVML_DEVICE_ARCH_* */
    uint32_t brand;        /* NVML_BRAND_* */
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t pci_device_id, pci_subsystem_id;
    uint32_t clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
    uint32_t shared_memory_per_multiprocessor, shared_memory_per_block_optin;
    uint32_t power_limit_milliwatts;
    uint32_t numa_node; /* UINT32_MAX: none */
    uint32_t mig_capable, profile_count;
    uint32_t reserved;
    struct sim_profile profiles[SIM_MAX_PROFILES];
};

struct sim_description {
    uint64_t magic;
    uint32_t version, gpu_count;
    uint64_t file_bytes;    /* sizeof(struct sim_machine): refuses a library of another build */
    uint64_t kernel_ns;     /* what a kernel that the simulator does not know takes at least */
    uint64_t wave_ns;       /* and for each full load of the GPU with threads */
    uint32_t cuda_version;  /* 13040 */
    uint32_t process_record_bytes; /* what NVML's newest lists of processes write for each: 24, or 32 as R535.54 did */
    char driver_version[32], nvml_version[32], machine_name[64];
    struct sim_gpu_spec gpus[SIM_MAX_GPUS];
};

/* ---- the state; everything below starts as zeros ---- */

struct sim_compute_instance { /* changed under the machine lock */
    _Atomic uint32_t used;
    uint32_t id, profile; /* profile: NVML_COMPUTE_INSTANCE_PROFILE_* */
    uint32_t start, slices;
    char uuid[48]; /* "MIG-..." */
};

struct sim_gpu_instance { /* changed under the machine lock */
    _Atomic uint32_t used;
    uint32_t id, profile; /* profile: index into sim_gpu_spec.profiles */
    uint32_t start, size; /* placement in memory slices */
    uint32_t reserved;
    struct sim_compute_instance compute[SIM_MAX_COMPUTE_INSTANCES];
};

struct sim_gpu {
    _Atomic uint32_t mig_mode, mig_pending;
    _Atomic uint32_t lost; /* set by an XID that takes the GPU off the bus (79) */
    _Atomic uint32_t last_xid;
    struct sim_gpu_instance instances[SIM_MAX_INSTANCES];
};

struct sim_xid { /* event number n sits at n % SIM_XID_RING; sequence is n + 1 once it is complete */
    _Atomic uint64_t sequence;
    uint64_t timestamp_ns, type; /* type: nvmlEventType* */
    uint32_t gpu, xid;
};

/* Device time: see engine.h. */
struct sim_breakpoint {
    uint64_t time_ns, progress;
};
struct sim_engine_state {
    uint64_t time_ns;  /* up to when this is evaluated */
    uint64_t progress; /* fair-share progress: what every busy process has been served since ever */
    uint64_t busy_ns;
    uint64_t history_head;
    uint64_t sample_head;
};
struct sim_sample {
    uint64_t time_ns, value;
};
struct sim_engine {
    _Atomic uint32_t lock;    /* slot number + 1 of the holder */
    _Atomic uint32_t current; /* which of the two states is valid */
    _Atomic uint64_t progress; /* that of the valid state, for readers without the lock */
    struct sim_engine_state states[2];
    _Atomic uint64_t active_summary[SIM_MAX_SLOTS / 64 / 64];
    _Atomic uint64_t active[SIM_MAX_SLOTS / 64]; /* slots with unfinished work */
    struct sim_sample busy_samples[SIM_SAMPLES];
    struct sim_breakpoint history[SIM_HISTORY];
};

struct sim_work { /* one process's queue on one domain */
    _Atomic uint64_t finish; /* the progress at which all that was submitted is done */
    _Atomic uint64_t base;   /* progress that passed while there was nothing to do: served = min(finish, now) - base */
    struct sim_sample served[SIM_SAMPLES];
};

struct sim_slot {
    _Atomic uint32_t used; /* 0 free, 1 in use (its owner may be dead: probe the lock) */
    uint32_t kind;         /* enum sim_kind */
    _Atomic uint64_t started_ns;
    _Atomic uint64_t lanes; /* at and above this all is zero: a process with one thread is summed as fast as ever */
    /* Per domain: units claimed from the domain in the high half, those of them not allocated now in the low half.
     * One word, so that no kill can leave the two apart. What one thread claims another may free, so only the sum over
     * the lanes, modulo 2^32, means something. */
    _Atomic uint64_t memory[SIM_LANES][SIM_MAX_DOMAINS];
    _Atomic uint32_t contexts[SIM_MAX_DOMAINS];
    struct sim_work work[SIM_MAX_DOMAINS];
} __attribute__((aligned(4096)));

struct sim_machine {
    struct sim_description description;
    _Atomic uint32_t slots_high; /* slots at and above this were never used */
    _Atomic uint32_t next_instance_id;
    _Atomic uint64_t xid_count;
    _Atomic uint64_t reaped_ns;  /* when a process last looked for dead ones */
    struct sim_xid xids[SIM_XID_RING];
    struct sim_gpu gpus[SIM_MAX_GPUS];
    struct sim_engine engines[SIM_MAX_DOMAINS];
    struct sim_slot slots[SIM_MAX_SLOTS];
};

/* This process's view of the machine. One per library per process. */
struct sim_process {
    struct sim_machine *machine;
    int slots_fd;
    uint32_t slot;
    struct sim_slot *self;
};

/* In which of NVML's lists a process is; an observer holds no memory and runs nothing, and is in none. */
enum sim_kind { SIM_COMPUTE, SIM_OBSERVER, SIM_GRAPHICS, SIM_MPS };

enum sim_open_result { SIM_OPEN_OK, SIM_OPEN_ABSENT, SIM_OPEN_INVALID, SIM_OPEN_FULL };

/* Maps the machine and takes a slot. It is the one that GPUSLICE_SIM names (a name or an absolute folder), else the one
 * that `gpuslice-sim` beside this library leads to, as where the library is a node's driver, else "default".
 * GPUSLICE_SIM_KIND=graphics or mps puts a process that is no observer into NVML's other lists. */
enum sim_open_result sim_open(struct sim_process *process, bool observer);
/* After fork, in the child: forgets the parent's slot without touching it. */
void sim_forget(struct sim_process *process);

static inline uint32_t sim_domain(uint32_t gpu, uint32_t instance) {
    return gpu * SIM_DOMAINS_PER_GPU + instance;
}

/* The machine lock: for MIG changes, slots and growing claims. Not recursive; the kernel drops it with its holder. */
void sim_lock(struct sim_process *process);
void sim_unlock(struct sim_process *process);

/* Is the slot's owner alive? *pid, if wanted: its PID in the caller's namespace, 0 if it has none there. */
bool sim_slot_alive(struct sim_process *process, uint32_t slot, int *pid);
/* Frees what dead processes held. Takes the machine lock if there is anything to do. */
void sim_reap(struct sim_process *process);
/* The same, at most once per tick of the coarse clock on the whole machine: cheap enough for every query. */
void sim_reap_sometimes(struct sim_process *process);

/* The calling thread's: threads are dealt out over the lanes. */
uint32_t sim_lane(void);

/* Device memory, in units of SIM_UNIT. A claim is refused when the domain is full even without the dead. */
bool sim_memory_claim(struct sim_process *process, uint32_t domain, uint64_t units);
void sim_memory_release(struct sim_process *process, uint32_t domain, uint64_t units);
uint64_t sim_memory_capacity(const struct sim_machine *machine, uint32_t domain); /* units */
uint64_t sim_memory_used(struct sim_process *process, uint32_t domain);           /* units, over all slots */
uint64_t sim_memory_used_by(const struct sim_machine *machine, uint32_t slot, uint32_t domain);

/* Contexts: what makes a process appear on a GPU. */
void sim_context_opened(struct sim_process *process, uint32_t domain);
void sim_context_closed(struct sim_process *process, uint32_t domain);

/* Adds an event for NVML's event sets; xid 79 also marks the GPU as lost. */
void sim_inject_xid(struct sim_process *process, uint32_t gpu, uint32_t xid);

#endif
