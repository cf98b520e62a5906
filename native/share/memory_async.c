/* Stream-ordered allocation, in all its forms; see memory_pools.c for what is charged. */
#include "memory.h"

GP_HOOK CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuMemAllocAsync)(pointer, bytes, stream));
    return gp_pool_allocate(pointer, bytes, NULL, stream, false, false);
}

GP_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream));
    return gp_pool_allocate(pointer, bytes, NULL, stream, true, false);
}

GP_HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream));
    return gp_pool_allocate(pointer, bytes, pool, stream, false, true);
}

GP_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream));
    return gp_pool_allocate(pointer, bytes, pool, stream, true, true);
}
