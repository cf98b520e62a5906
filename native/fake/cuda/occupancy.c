/* Occupancy, by threads alone: 2,048 of each multiprocessor's, at most 32 blocks. */
#include "kernels.h"

#define THREADS 2048
#define BLOCKS 32
#define BEST 256

static CUresult active(int *blocks, CUfunction function, int block, size_t shared) {
    struct kernel *kernel;
    ENTER;
    if (fake_kernel_of(function, &kernel) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (blocks == NULL || block <= 0) return CUDA_ERROR_INVALID_VALUE;
    int by_threads = THREADS / block, by_shared = shared > 0 ? (int)(65536 / shared) : BLOCKS;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > BLOCKS) *blocks = BLOCKS;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block, size_t shared) {
    return active(blocks, function, block, shared);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block,
                                                                  size_t shared, unsigned int flags) {
    return flags <= 1 ? active(blocks, function, block, shared) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult potential(int *grid, int *block, CUfunction function, int limit) {
    struct kernel *kernel;
    ENTER_CONTEXT(context);
    if (fake_kernel_of(function, &kernel) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (grid == NULL || block == NULL || limit < 0) return CUDA_ERROR_INVALID_VALUE;
    *block = limit > 0 && limit < BEST ? limit : BEST;
    *grid = (int)context->gpu->shared->gpu->multiprocessors * (THREADS / *block < BLOCKS ? THREADS / *block : BLOCKS);
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                              size_t shared, int limit) {
    (void)shared_of;
    (void)shared;
    return potential(grid, block, function, limit);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                       CUoccupancyB2DSize shared_of,
                                                       size_t shared, int limit, unsigned int flags) {
    (void)shared_of;
    (void)shared;
    return flags <= 1 ? potential(grid, block, function, limit) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int block) {
    struct kernel *kernel;
    ENTER;
    if (fake_kernel_of(function, &kernel) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == NULL || blocks <= 0 || block <= 0) return CUDA_ERROR_INVALID_VALUE;
    *bytes = 49152u / (unsigned int)blocks;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config) {
    struct kernel *kernel;
    ENTER;
    if (fake_kernel_of(function, &kernel) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (size == NULL || config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *size = 1;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) {
    struct kernel *kernel;
    ENTER_CONTEXT(context);
    if (fake_kernel_of(function, &kernel) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (count == NULL || config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)context->gpu->shared->gpu->multiprocessors;
    return CUDA_SUCCESS;
}
