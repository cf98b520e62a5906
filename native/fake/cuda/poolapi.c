/* Memory pools in the forms of the interface. */
#include "pools.h"

static struct pool *pool_of(CUmemoryPool handle) {
    struct pool *pool = (struct pool *)handle;
    return pool != NULL && pool->magic == MAGIC_POOL ? pool : NULL;
}

static struct pool *current_pool(struct gpu *gpu) {
    return gpu->current_pool != NULL ? gpu->current_pool : fake_pool_default(gpu);
}

API CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *properties) {
    ENTER;
    if (made == NULL || properties == NULL || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct gpu *gpu = fake_gpu(properties->location.id);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *made = (CUmemoryPool)fake_pool_new(gpu, properties->maxSize);
    return *made != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Its allocations live on; its reserved memory is returned with the last of them. */
API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    ENTER;
    struct pool *pool = pool_of(handle);
    if (pool == NULL || pool == pool->gpu->default_pool) return CUDA_ERROR_INVALID_VALUE;
    if (pool->gpu->current_pool == pool) pool->gpu->current_pool = NULL;
    fake_settle();
    pool->magic = 0;
    pool->destroyed = true;
    pool->threshold = 0;
    fake_pool_shrink(pool, 0);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    ENTER;
    struct pool *pool = pool_of(handle);
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    fake_settle();
    fake_pool_shrink(pool, keep);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *pool = (CUmemoryPool)fake_pool_default(gpu);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *pool = (CUmemoryPool)current_pool(gpu);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    struct pool *pool = pool_of(handle);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (pool == NULL || pool->gpu != gpu) return CUDA_ERROR_INVALID_VALUE;
    gpu->current_pool = pool;
    return CUDA_SUCCESS;
}

static bool on_device(const CUmemLocation *location, CUmemAllocationType type) {
    return location != NULL && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return on_device(location, type) ? cuDeviceGetDefaultMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return on_device(location, type) ? cuDeviceGetMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    return on_device(location, type) ? cuDeviceSetMemPool(location->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    ENTER;
    struct pool *pool = pool_of(handle);
    if (pool == NULL || value == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    fake_settle();
    int *number = value;
    cuuint64_t *bytes = value;
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *number = pool->reuse[(int)attribute - 1]; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *bytes = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *bytes = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *bytes = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *bytes = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *bytes = pool->used_high; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *number = CU_MEM_ALLOCATION_TYPE_PINNED; break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES: *number = CU_MEM_HANDLE_TYPE_NONE; break;
    case CU_MEMPOOL_ATTR_LOCATION_ID: *number = pool->gpu->ordinal; break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *number = CU_MEM_LOCATION_TYPE_DEVICE; break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE: *bytes = pool->most; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    ENTER;
    struct pool *pool = pool_of(handle);
    if (pool == NULL || value == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    const cuuint64_t *bytes = value;
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse[(int)attribute -
        1] = *(const int *)value; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *bytes; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (*bytes == 0) pool->reserved_high = pool->reserved;
        return *bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*bytes == 0) pool->used_high = pool->used;
        return *bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list, size_t count) {
    ENTER;
    if (pool_of(handle) == NULL || list == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || fake_gpu(list[i].location.id) == NULL) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location) {
    ENTER;
    if (pool_of(handle) == NULL || flags == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, struct pool *pool, CUstream handle) {
    bool captured;
    CUstream stream;
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (captured) return fake_capture_allocation(stream, bytes, address);
    if (pool == NULL) pool = current_pool(stream->context->gpu);
    return fake_pool_take(pool, bytes, stream, address);
}

API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    ENTER;
    return allocate(address, bytes, NULL, stream);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream) {
    ENTER;
    struct pool *pool = pool_of(handle);
    return pool != NULL ? allocate(address, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    bool captured;
    ENTER;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (address == 0) return CUDA_SUCCESS;
    if (captured) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &address);
    struct range *range = fake_range_find(address);
    if (range == NULL || range->base != address) return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == RANGE_GRAPH) return fake_graph_free(range, stream);
    return range->kind == RANGE_POOL ? fake_pool_free(range, stream) : CUDA_ERROR_INVALID_VALUE;
}
