/* Device memory: plain, pitched and managed allocations, and the free rest. */
#include <string.h>

#include "fake.h"

#define ALIGNMENT 512u
#define PITCH_ALIGNMENT 512u

static CUresult allocate(CUcontext context, CUdeviceptr *address, size_t bytes, enum range_kind kind, uint32_t flags) {
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    struct range *range = fake_allocate(context->gpu, bytes, bytes >= BLOCK_BYTES ? BLOCK_BYTES : ALIGNMENT, kind,
                                        FAKE_PLAIN);
    if (range == NULL) {
        fake_pools_trim_unused(context->gpu);
        range = fake_allocate(context->gpu, bytes, bytes >= BLOCK_BYTES ? BLOCK_BYTES : ALIGNMENT, kind, FAKE_PLAIN);
    }
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    range->context = context;
    range->flags = flags;
    *address = range->base;
    return CUDA_SUCCESS;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    ENTER_CONTEXT(context);
    return allocate(context, address, bytes, RANGE_DEVICE, 0);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                unsigned int element) {
    ENTER_CONTEXT(context);
    if (pitch == NULL || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    size_t row = ALIGN_UP(width, PITCH_ALIGNMENT), bytes;
    if (row < width || __builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(context, address, bytes, RANGE_DEVICE, 0);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

/* Counted as always on the card, although the real driver can move it away. */
API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    ENTER_CONTEXT(context);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return allocate(context, address, bytes, RANGE_MANAGED, flags);
}

/* Waits for the card first, as the real driver does: the memory may be in use. */
API CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER;
    if (address == 0) return CUDA_SUCCESS;
    struct range *range = fake_range_find(address);
    if (range == NULL || range->base != address) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    if (range->kind == RANGE_POOL) return fake_pool_free(range, NULL);
    if (range->kind == RANGE_GRAPH) return fake_graph_free(range, NULL);
    if (range->kind != RANGE_DEVICE && range->kind != RANGE_MANAGED) return CUDA_ERROR_INVALID_VALUE;
    fake_wait_gpu(range->gpu, NULL);
    range = fake_range_find(address); /* others had the lock meanwhile */
    if (range == NULL || range->base != address) return CUDA_ERROR_INVALID_VALUE;
    fake_deallocate(range, FAKE_PLAIN);
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    ENTER_CONTEXT(context);
    if (free_bytes == NULL || total_bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct fake_device *shared = context->gpu->shared;
    fake_lock(shared);
    fake_sweep(shared);
    uint64_t used = fake_used(shared), total = shared->state->memory_bytes;
    fake_unlock(shared);
    *free_bytes = used < total ? total - used : 0;
    *total_bytes = total;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    ENTER_CONTEXT(context);
    struct range *range = fake_range_find(address);
    if (range == NULL) return context->error != CUDA_SUCCESS ? context->error : CUDA_ERROR_NOT_FOUND;
    if (base != NULL) *base = range->base;
    if (bytes != NULL) *bytes = range->bytes;
    return CUDA_SUCCESS;
}

/* Hints about managed memory have no effect: it is always where it is needed. */
API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
    ENTER;
    (void)advice;
    (void)location;
    struct range *range = fake_range_find(address);
    return range != NULL && range->kind == RANGE_MANAGED && bytes > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(address, bytes, advice, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device});
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                                   CUstream handle) {
    bool captured;
    ENTER;
    CUstream stream;
    (void)location;
    struct range *range = fake_range_find(address);
    if (range == NULL || range->kind != RANGE_MANAGED || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result == CUDA_SUCCESS && !captured) {
        fake_issue(stream, &(struct work){.cost_ns = fake_copy_cost(bytes, false)});
    }
    return result;
}

API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync_v2(address, bytes, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}, 0, stream);
}
