/* Occupancy: how many blocks of a function fit on a multiprocessor, by threads, by shared memory and by the number of
 * blocks a multiprocessor takes. Registers never limit: no function here uses many. */
#include "module.h"

#define WARP 32u
#define THREADS_PER_BLOCK 1024u
#define PORTABLE_CLUSTER_BLOCKS 8
#define LARGEST_CLUSTER_BLOCKS 16
#define SHARED_STEP 128u /* shared memory is handed out in steps of this */

static unsigned int attribute_of(const struct device *device, CUdevice_attribute attribute) {
    int value = 0;
    cuDeviceGetAttribute(&value, attribute, device->ordinal);
    return (unsigned int)value;
}

static unsigned int shared_limit(const struct function *function) {
    return (unsigned int)atomic_load(&function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]);
}

unsigned int occupancy_blocks(const struct function *function, const struct device *device, unsigned int block_threads,
                              size_t dynamic_shared_bytes) {
    if (block_threads == 0 || block_threads > THREADS_PER_BLOCK || dynamic_shared_bytes > shared_limit(function)) {
        return 0;
    }
    unsigned int threads = (block_threads + WARP - 1) / WARP * WARP;
    unsigned int blocks = device->spec->threads_per_multiprocessor / threads;
    unsigned int limit = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    blocks = blocks < limit ? blocks : limit;
    size_t shared = (dynamic_shared_bytes + SHARED_STEP - 1) / SHARED_STEP * SHARED_STEP +
                    attribute_of(device, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    if (shared != 0 && device->spec->shared_memory_per_multiprocessor / shared < blocks) {
        blocks = (unsigned int)(device->spec->shared_memory_per_multiprocessor / shared);
    }
    return blocks;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int block_threads,
                                                                      size_t dynamic_shared_bytes, unsigned int flags) {
    struct context *context;
    struct function *function;
    bool given = blocks != NULL && block_threads > 0 && flags <= CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE;
    CUresult result = function_from(handle, given, &context, &function);
    if (result == CUDA_SUCCESS) {
        *blocks = (int)occupancy_blocks(function, context->device, (unsigned int)block_threads, dynamic_shared_bytes);
    }
    return result;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int block_threads,
                                                             size_t dynamic_shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block_threads, dynamic_shared_bytes,
                                                                CU_OCCUPANCY_DEFAULT);
}

/* The largest block among those that keep the most threads busy. */
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_blocks, int *block_threads, CUfunction handle,
                                                           CUoccupancyB2DSize shared_of_block,
                                                           size_t dynamic_shared_bytes, int limit, unsigned int flags) {
    struct context *context;
    struct function *function;
    bool given = grid_blocks != NULL && block_threads != NULL && limit >= 0 &&
                 flags <= CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE;
    CUresult result = function_from(handle, given, &context, &function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool limited = limit > 0 && (unsigned int)limit < THREADS_PER_BLOCK;
    unsigned int largest = limited ? (unsigned int)limit : THREADS_PER_BLOCK;
    unsigned int best_threads = 0, best_blocks = 0;
    for (unsigned int threads = largest; threads > 0; threads = (threads - 1) / WARP * WARP) {
        size_t shared = shared_of_block != NULL ? shared_of_block((int)threads) : dynamic_shared_bytes;
        unsigned int blocks = occupancy_blocks(function, context->device, threads, shared);
        if (blocks * threads > best_blocks * best_threads) {
            best_threads = threads;
            best_blocks = blocks;
        }
    }
    *block_threads = (int)best_threads;
    *grid_blocks = (int)(best_blocks * context->device->multiprocessors);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *grid_blocks, int *block_threads, CUfunction handle,
                                                  CUoccupancyB2DSize shared_of_block, size_t dynamic_shared_bytes,
                                                  int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_blocks, block_threads, handle, shared_of_block,
                                                     dynamic_shared_bytes, limit, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks,
                                                         int block_threads) {
    struct context *context;
    struct function *function;
    CUresult result = function_from(handle, bytes != NULL && blocks > 0 && block_threads > 0, &context, &function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct device *device = context->device;
    if ((unsigned int)blocks > occupancy_blocks(function, device, (unsigned int)block_threads, 0)) {
        return CUDA_ERROR_INVALID_VALUE; /* so many do not fit even without */
    }
    unsigned int share = device->spec->shared_memory_per_multiprocessor / (unsigned int)blocks -
                         attribute_of(device, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    share = share / SHARED_STEP * SHARED_STEP;
    *bytes = share < shared_limit(function) ? share : shared_limit(function);
    return CUDA_SUCCESS;
}

/* ---- clusters: blocks that run side by side, from compute capability 9.0 on ---- */

static CUresult clusters_from(CUfunction handle, const void *result_given, const CUlaunchConfig *config,
                              struct context **context, struct function **function) {
    bool given = result_given != NULL && config != NULL && (config->numAttrs == 0 || config->attrs != NULL);
    CUresult result = function_from(handle, given, context, function);
    if (result == CUDA_SUCCESS && (*context)->device->spec->compute_major < 9) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    return result;
}

static int largest_cluster(const struct function *function) {
    bool large = atomic_load(&function->attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED]) != 0;
    return large ? LARGEST_CLUSTER_BLOCKS : PORTABLE_CLUSTER_BLOCKS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int *cluster_blocks, CUfunction handle,
                                                    const CUlaunchConfig *config) {
    struct context *context;
    struct function *function;
    CUresult result = clusters_from(handle, cluster_blocks, config, &context, &function);
    if (result == CUDA_SUCCESS) {
        *cluster_blocks = largest_cluster(function);
    }
    return result;
}

/* 0 for a block that is too large. */
static unsigned int threads_of(const CUlaunchConfig *config) {
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY;
    bool fits = threads <= THREADS_PER_BLOCK && config->blockDimZ <= THREADS_PER_BLOCK / (threads != 0 ? threads : 1);
    return fits ? (unsigned int)threads * config->blockDimZ : 0;
}

CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *clusters, CUfunction handle, const CUlaunchConfig *config) {
    struct context *context;
    struct function *function;
    CUresult result = clusters_from(handle, clusters, config, &context, &function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t cluster = 1;
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const CUlaunchAttributeValue *value = &config->attrs[i].value;
            /* The first product cannot overflow; a third factor that could is too large by itself. */
            cluster = (uint64_t)value->clusterDim.x * value->clusterDim.y;
            cluster = value->clusterDim.z > LARGEST_CLUSTER_BLOCKS ? 0 : cluster * value->clusterDim.z;
        }
    }
    if (cluster == 0 || cluster > (uint64_t)largest_cluster(function)) {
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    unsigned int blocks = occupancy_blocks(function, context->device, threads_of(config), config->sharedMemBytes);
    *clusters = (int)(blocks * context->device->multiprocessors / cluster);
    return CUDA_SUCCESS;
}
