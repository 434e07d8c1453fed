/* What the files of the simulated libcuda share: its objects, the current context, and how work reaches a stream.
 *
 * Handles that callers get are pointers to the structs here. Each starts with a kind; destroying an object clears the
 * kind and keeps the memory for the next object of that kind, so a stale handle is an error code and not a crash.
 *
 * All data effects happen when a call is made (copies, fills, named kernels); only time is asynchronous: a stream
 * remembers the point of device time at which its last work is done (engine.h). */
#ifndef GPUSLICE_SIMULATOR_DRIVER_H
#define GPUSLICE_SIMULATOR_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL /* every version of every function, under its exported name */
#include <cuda.h>

#include "../engine.h"
#include "../machine.h"

#include <pthread.h>

enum kind {
    KIND_NONE,
    KIND_CONTEXT,
    KIND_DORMANT, /* a context that does not live: not yet, or no more */
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,   /* CUmodule */
    KIND_LIBRARY,  /* CUlibrary */
    KIND_FUNCTION, /* CUfunction and CUkernel */
    KIND_LINKER,
    KIND_POOL,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_PHYSICAL, /* CUmemGenericAllocationHandle */
    KIND_GRAPH,
    KIND_NODE,
    KIND_GRAPH_EXEC,
    KIND_TEXTURE,
    KIND_SURFACE,
    KIND_USER_OBJECT,
    KIND_COUNT
};

struct object {
    _Atomic uint32_t kind;
    struct object *next_free;
};

/* Zeroed memory for an object of that kind; NULL when the host is out of memory. */
void *object_new(enum kind kind, size_t size);
/* True for exactly one caller, which then owns the teardown and must call object_free afterwards. */
bool object_retire(void *object, enum kind kind);
void object_free(void *object, enum kind kind);
static inline bool object_is(const void *object, enum kind kind) {
    return object != NULL && atomic_load_explicit(&((const struct object *)object)->kind, memory_order_acquire) == kind;
}

/* ---- process and devices ---- */

struct context;
struct stream;
struct pool;
struct graph;

struct device { /* what one CUDA ordinal stands for: a GPU, or one MIG compute instance */
    int ordinal;
    uint32_t gpu, domain;
    const struct sim_gpu_spec *spec;
    uint32_t multiprocessors;
    uint64_t memory_bytes;
    CUuuid uuid;
    char name[128];
    struct context *primary; /* under the process lock, as is what follows; NULL until its handle is asked for */
    int primary_users;
    bool primary_closing;
    unsigned int primary_flags;
    struct pool *default_pool;
    _Atomic(struct pool *) current_pool;
    struct pool *graph_pool; /* what memory nodes of graphs draw on */
    _Atomic bool freed_to_pool; /* since the last synchronization */
    struct arena *arena;     /* its addresses; made with the first context */
    int contexts;            /* live contexts of this process; the first pays spec->context_bytes */
};

struct driver {
    struct sim_process process;
    _Atomic int state; /* 0 before cuInit, 1 after, 2 in a child forked after cuInit (never usable again) */
    int device_count;
    struct device devices[SIM_MAX_GPUS];
    pthread_mutex_t lock; /* contexts, pools, device set-up: nothing on a hot path */
};
extern struct driver driver;

/* CUDA_SUCCESS, or CUDA_ERROR_NOT_INITIALIZED. Also CUDA_ERROR_INVALID_DEVICE for a bad ordinal. */
CUresult driver_ready(void);
CUresult device_at(CUdevice ordinal, struct device **device);
CUresult device_of_location(const CUmemLocation *location, struct device **device);

/* ---- contexts ---- */

struct context {
    struct object object;
    struct device *device;
    unsigned int flags;
    bool primary;
    uint64_t id;
    _Atomic int attached;         /* cuCtxAttach */
    _Atomic bool closing;         /* a thread is destroying it */
    struct stream *legacy_stream; /* stream 0 and CU_STREAM_LEGACY */
    struct stream *thread_stream; /* CU_STREAM_PER_THREAD */
    pthread_mutex_t lock;         /* guards `streams` and `storage` */
    struct stream *streams;       /* every stream made in this context, through stream.sibling */
    struct local_storage *storage; /* the runtime's per-context values (export_tables.c) */
    size_t limits[16];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    uint32_t peers; /* bit per ordinal: cuCtxEnablePeerAccess */
    _Atomic uint64_t retired_tail; /* when the work of its destroyed streams is done */
};

extern __thread struct context *context_current_of_thread __attribute__((visibility("hidden")));

/* The thread's current context, alive: or NOT_INITIALIZED / INVALID_CONTEXT / CONTEXT_IS_DESTROYED. */
CUresult context_current_slow(struct context **context);
static inline CUresult context_current(struct context **context) {
    struct context *current = context_current_of_thread;
    if (__builtin_expect(object_is(current, KIND_CONTEXT), 1)) {
        *context = current;
        return CUDA_SUCCESS;
    }
    return context_current_slow(context);
}
/* export_tables.c: calls what the runtime left to be called when the context goes. */
void local_storage_clear(struct context *context);
/* The device's primary context, whether it is active or not. */
CUresult primary_handle(CUdevice ordinal, struct context **context);
/* A context handle given by the caller (NULL means the current one). */
CUresult context_from(CUcontext handle, struct context **context);

/* ---- streams (stream.c) ---- */

struct capture; /* capture.c: a stream that records into a graph */

struct stream {
    struct object object;
    struct context *context;
    struct stream *sibling;
    unsigned int flags;
    int priority;
    uint64_t id;
    _Atomic uint64_t tail;     /* device-time point at which its last work is done */
    _Atomic(struct capture *) capture;
    struct deferred *first_deferred, *last_deferred; /* work that has to wait for something (deferred.c) */
    struct stream *next_deferring;
    bool closing;                       /* destroyed, and freed when its deferred work is done */
    CUlaunchAttributeValue *attributes; /* by identifier; NULL until one is set (launch_attribute.c) */
};

/* Translates NULL / CU_STREAM_LEGACY / CU_STREAM_PER_THREAD with the current context. */
CUresult stream_from(CUstream handle, struct stream **stream);
/* Made and unmade with a context: its two built-in streams, then everything else of it. */
CUresult stream_open_defaults(struct context *context);
void stream_close_all(struct context *context);
void stream_extend(struct stream *stream, uint64_t progress); /* tail = max(tail, progress) */
/* Waits for the stream (or all of the context), its host functions included, then lets pools shrink (pool_synchronized). */
CUresult stream_wait(struct stream *stream);
CUresult context_wait(struct context *context);

/* ---- work on streams (operation.c): executed now, or recorded when the stream captures ---- */

struct function;

struct copy_end { /* one side of a copy */
    CUmemorytype type; /* HOST, DEVICE, ARRAY or UNIFIED */
    union {
        void *host;
        CUdeviceptr device;
        struct array *array;
    };
    size_t x_bytes, y, z, level;
    size_t pitch, height; /* of linear memory; 0: tight */
};

enum operation_kind {
    OPERATION_KERNEL,
    OPERATION_COPY,
    OPERATION_FILL,
    OPERATION_HOST,
    OPERATION_EMPTY,
    OPERATION_EVENT_RECORD,
    OPERATION_EVENT_WAIT,
    OPERATION_ALLOCATE,
    OPERATION_FREE,
    OPERATION_CHILD_GRAPH,
    OPERATION_VALUES, /* cuStreamWriteValue, cuStreamWaitValue and batches of them */
};

struct operation {
    enum operation_kind kind;
    union {
        struct {
            struct function *function;
            unsigned int grid[3], block[3], shared_bytes;
            void **arguments; /* kernelParams, or NULL */
            void **extra;
        } kernel;
        struct {
            struct copy_end from, to;
            size_t width_bytes, height, depth;
        } copy;
        struct {
            CUdeviceptr to;
            size_t pitch, width, height; /* width in elements */
            unsigned int element_bytes, value;
        } fill;
        struct {
            CUhostFn function;
            void *data;
            CUstreamCallback callback; /* cuStreamAddCallback: instead of function */
            CUstream callback_stream;
        } host;
        struct {
            CUevent event;
            uint64_t ticket, point; /* which record of it: 0 until the operation is deferred (event.h) */
        } event;
        struct {
            CUdeviceptr address;
            size_t bytes;
            struct pool *pool;
        } memory;
        struct {
            struct graph *graph;
        } child;
        struct {
            CUstreamBatchMemOpParams *list;
            unsigned int count, next; /* those before `next` are done */
        } values;
    };
};

/* Deferred operations plus captures of this process (deferred.c). While it is 0 nothing stands before or around new work,
 * and a launch may do without stream_submit. */
extern _Atomic uint32_t stream_attention __attribute__((visibility("hidden")));
/* The one way for asynchronous work into a stream. */
CUresult stream_submit(struct stream *stream, const struct operation *operation);
/* Does it, on that stream, without looking at captures: for stream_submit and graph launches. */
CUresult operation_execute(struct stream *stream, const struct operation *operation);
/* capture.c: appends a node for the operation to the graph that the stream is captured into. For OPERATION_ALLOCATE
 * the node's address is stored through `address`. */
CUresult capture_add(struct stream *stream, const struct operation *operation, CUdeviceptr *address);
/* For calls that the driver forbids during a capture, unless the capture's mode or the thread's says otherwise
 * (allocations that are not stream-ordered, synchronous copies): CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is
 * invalid from then on. One load when no stream captures. */
CUresult capture_check(void);

/* ---- modules and kernels (module.c, function.c, kernels.c) ---- */

struct module;
/* An image in memory: a cubin, PTX text, a fatbin, or the wrapper that nvcc puts around one. Of the current context. */
CUresult module_load_image(const void *image, struct module **module);
/* The function of that name, the same object each time. */
CUresult module_function(struct module *module, const char *name, struct function **function);
/* A context goes: so do its modules, and the variables that libraries have in it. Before the context's memory. */
void module_close_all(struct context *context);

#define FUNCTION_MAX_ARGUMENTS 8

struct function {
    struct object object;
    struct module *module; /* its owner */
    struct function *next; /* of the same module */
    char *name;
    const uint8_t *argument_sizes; /* in order, each naturally aligned */
    int argument_count;            /* 0: a kernel that is not known here, which never reads its arguments */
    /* Named kernels really compute; NULL: succeeds and does nothing. */
    CUresult (*compute)(void **arguments, const unsigned int grid[3], const unsigned int block[3]);
    uint64_t (*duration_ns)(void **arguments); /* NULL: by size, see function_duration_ns */
    _Atomic int attributes[CU_FUNC_ATTRIBUTE_MAX];
    _Atomic(struct legacy_launch *) legacy; /* what cuFuncSetBlockShape and cuParamSet* set (launch.c) */
};

/* Both forms of arguments as the first one, pointers to values: `arguments` itself, or `extra`'s buffer taken apart
 * into `unpacked`. *values is NULL for a kernel that never reads them; INVALID_VALUE when a named kernel lacks some.
 * The values are not copied. */
CUresult function_arguments(const struct function *function, void **arguments, void **extra,
                            void *unpacked[FUNCTION_MAX_ARGUMENTS], void ***values);
/* How long this launch takes on this device. `arguments` as from function_arguments. */
uint64_t function_duration_ns(const struct function *function, const struct device *device, const unsigned int grid[3],
                              const unsigned int block[3], void **arguments);
/* Runs a named kernel's computation, if it has one. `extra` is the packed-buffer form of the arguments. */
CUresult function_compute(const struct function *function, const unsigned int grid[3], const unsigned int block[3],
                          void **arguments, void **extra);

/* ---- memory ---- */

enum block_kind { BLOCK_FREE, BLOCK_LINEAR, BLOCK_MANAGED, BLOCK_POOLED, BLOCK_GRAPH, BLOCK_ARRAY, BLOCK_PHYSICAL };

struct block { /* one piece of device memory; records live beside the arena and are never unmapped */
    _Alignas(64) uint64_t size; /* a cache line each: threads do not meet at their neighbours' */
    void *owner; /* struct context, or struct pool for BLOCK_POOLED / BLOCK_GRAPH */
    uint64_t id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID, given when first asked for */
    _Atomic uint32_t next; /* arena.c: the free slot below this one */
    _Atomic uint8_t kind;
    _Atomic uint8_t touched; /* its host pages may exist */
    _Atomic uint8_t charged; /* its bytes are claimed from the domain by this block (not by a pool) */
    uint8_t sync_memops;
};

static inline uint64_t units_of(uint64_t bytes) {
    return (bytes + SIM_UNIT - 1) / SIM_UNIT;
}

/* arena.c: addresses. Neither charges nor refunds. NULL when the address space is used up. */
CUresult arena_open(struct device *device);
struct block *arena_take(struct device *device, uint64_t size, enum block_kind kind, void *owner, CUdeviceptr *address);
/* True for exactly one caller: the block is free and its host pages are given back. */
bool arena_give(struct device *device, CUdeviceptr address, struct block *block, enum block_kind kind);
/* The block that the address lies in, with its start; NULL when it is not in any arena or is free. */
struct block *arena_find(CUdeviceptr address, struct device **device, CUdeviceptr *start);
/* Calls visit for every block with that owner; used when an owner goes. */
void arena_for_owner(struct device *device, const void *owner,
                     void (*visit)(struct device *device, CUdeviceptr address, struct block *block));
/* Where the arena's bytes live, for IPC and VMM: a memory file and the offset of an address in it. */
int arena_file(const struct device *device);
uint64_t arena_offset(const struct device *device, CUdeviceptr address);

/* range.c: memory outside the arenas that the driver knows: host allocations and registrations, VMM mappings, IPC
 * and external imports. */
enum range_kind { RANGE_HOST, RANGE_REGISTERED, RANGE_MAPPED, RANGE_IPC };
struct range {
    uintptr_t start;
    size_t size;
    enum range_kind kind;
    unsigned int flags;    /* of host memory: CU_MEMHOST*; of RANGE_MAPPED: CUmemAccess_flags */
    struct device *device; /* of RANGE_MAPPED and RANGE_IPC */
    void *owner;           /* the context of host memory, the physical allocation of a mapping */
};
bool range_add(const struct range *range);
bool range_remove(uintptr_t start, enum range_kind kind, struct range *removed);
bool range_find(uintptr_t address, struct range *found);
bool range_set_flags(uintptr_t start, enum range_kind kind, unsigned int flags);

/* memory.c: the address that the CPU may use for [address, address + bytes), which is the address itself; NULL when any
 * part of it is not device-accessible memory (callers answer CUDA_ERROR_INVALID_VALUE). */
void *memory_bytes_at(CUdeviceptr address, size_t bytes);

/* array.c */
struct array {
    struct object object;
    struct context *context;
    uint64_t context_id; /* the context may be gone, and its memory with it */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    size_t element_bytes, row_bytes, height, depth; /* at least 1 each */
    CUdeviceptr address;
    struct mipmap *mipmap; /* levels belong to it */
    unsigned int level;
};

/* pool.c */
CUresult pool_open_defaults(struct device *device);
CUresult pool_allocate(struct pool *pool, size_t bytes, enum block_kind kind, CUdeviceptr *address);
CUresult pool_free(struct device *device, CUdeviceptr address, struct block *block);
/* For memory nodes: an address now, bytes at launch. */
CUresult pool_reserve_address(struct pool *pool, size_t bytes, CUdeviceptr *address);
CUresult pool_charge_address(struct pool *pool, CUdeviceptr address); /* idempotent while charged */
CUresult pool_discard_address(struct pool *pool, CUdeviceptr address); /* the graph is gone: address and bytes */
void pool_refund(struct device *device, CUdeviceptr address, struct block *block); /* a graph's block: keeps the address */
void pool_synchronized(struct device *device); /* release what is above the release thresholds */
/* A reset of the device ends what was allocated from its pools; the pools stay. */
void pool_reset(struct device *device);
size_t pool_trim(struct pool *pool, size_t keep_bytes);
/* array.c */
struct mipmap {
    struct object object;
    struct array *levels[16];
    unsigned int level_count;
};
/* memory.c: any pointer of ours, however it was allocated; stream-ordered or not. */
CUresult memory_free(CUdeviceptr address);

#endif
