/* Memory pools: the charge follows the memory that each pool has reserved from the GPU, not its allocations.
 *
 * A pool keeps freed memory and reuses it. Charging each allocation would count that memory twice, and charging nothing
 * would let a pool grow beyond the limit. So each allocation is first reserved in full, as if the pool had to grow by
 * it. After the call the pool reports its memory (RESERVED_MEM_CURRENT), and the excess is released. Allocations from
 * pools are made one at a time within a process; otherwise growth could not be attributed.
 *
 * Close to the limit the slice has no room for that reservation, although a steady program only reuses the memory of its
 * pool. Then the driver is called without a reservation if the pool has enough free memory: returning memory to the GPU
 * and taking it again in each step would cost milliseconds. If the pool grows nevertheless, because its free memory is
 * fragmented, the charge exceeds the limit during one call; the allocation is undone, room is made, and it is repeated
 * with a reservation.
 *
 * Pools grow by at least 32 MiB and by multiples of 2 MiB. This was observed in drivers and is not documented. If a pool
 * grows by more than was reserved and the slice has no room for it, the allocation is undone and refused, the memory
 * that the pool keeps is charged, and later reservations are larger.
 *
 * Pools also shrink inside synchronising calls, without notice. Before any refusal all pools are checked again, and
 * enough of their free memory is returned to the GPU. Free memory in pools of other processes of the tenant cannot be
 * returned: they keep it until they allocate, ask for the free memory, or end.
 *
 * A pool that is destroyed while its allocations live holds memory that can no longer be queried. Its destruction is
 * therefore delayed: it keeps no free memory, and is destroyed when it is empty.
 */
#include <stdlib.h>

#include "compute.h"
#include "memory.h"

#define LEAST_GROWTH (UINT64_C(32) << 20)
#define GRANULE_MAX (UINT64_C(1) << 30)

struct pool {
    struct pool *next;
    CUmemoryPool handle;
    struct gp_gpu *gpu;
    uint64_t charged, least, granule; /* smallest growth, also for small requests */
    bool doomed;
};

static struct pool *pools;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gp_pools_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL;
}

static uint64_t ask(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t otherwise) {
    cuuint64_t value = 0;
    return OWN(cuMemPoolGetAttribute, handle, attribute, &value) == CUDA_SUCCESS ? value : otherwise;
}

/* -- which pools there are ---------------------------------------------------------------------------------------- */

static struct pool *find(CUmemoryPool handle) {
    struct pool *pool = pools;
    while (pool != NULL && pool->handle != handle)
        pool = pool->next;
    return pool;
}

static struct pool *add(CUmemoryPool handle, struct gp_gpu *gpu) {
    struct pool *pool = gpu == NULL ? NULL : malloc(sizeof *pool);
    if (pool == NULL)
        return NULL;
    *pool = (struct pool){.next = pools, .handle = handle, .gpu = gpu, .least = LEAST_GROWTH, .granule = GP_BLOCK_BYTES};
    return pools = pool;
}

static void forget(struct pool *pool) {
    struct pool **at = &pools;
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    free(pool);
}

/* Returns the GPU of a pool that was not made by cuMemPoolCreate: it belongs to a device if it is GPU memory at all. */
static struct gp_gpu *gpu_of_device_pool(CUmemoryPool handle) {
    int count = 0;
    OWN(cuDeviceGetCount, &count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUmemoryPool of_device;
        if (OWN(cuDeviceGet, &device, i) != CUDA_SUCCESS)
            continue;
        if (OWN(cuDeviceGetDefaultMemPool, &of_device, device) == CUDA_SUCCESS && of_device == handle)
            return gp_gpu_of(device);
        if (OWN(cuDeviceGetMemPool, &of_device, device) == CUDA_SUCCESS && of_device == handle)
            return gp_gpu_of(device);
    }
    if (ask(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, 0) != CU_MEM_LOCATION_TYPE_DEVICE)
        return NULL;
    return gp_gpu_of((CUdevice)ask(handle, CU_MEMPOOL_ATTR_LOCATION_ID, UINT64_MAX));
}

static struct pool *known(CUmemoryPool handle) {
    struct pool *pool = find(handle);
    return pool != NULL ? pool : add(handle, gpu_of_device_pool(handle));
}

/* -- what they hold ------------------------------------------------------------------------------------------------- */

static uint64_t reserved(const struct pool *pool) {
    return ask(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, pool->charged);
}

/* Charges the memory that the pool holds in full, even above the limit, because it is in use. */
static void charge_to(struct pool *pool, uint64_t bytes) {
    if (bytes > pool->charged)
        gp_take_anyway(pool->gpu, bytes - pool->charged, GP_POOL);
    else if (bytes < pool->charged)
        gp_unreserve(pool->gpu, pool->charged - bytes, GP_POOL);
    pool->charged = bytes;
}

static void settle(struct pool *pool) {
    if (pool->doomed)
        OWN(cuMemPoolTrimTo, pool->handle, 0);
    charge_to(pool, reserved(pool));
    if (!pool->doomed || pool->charged != 0 || ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 1) != 0)
        return;
    OWN(cuMemPoolDestroy, pool->handle);
    forget(pool);
}

static void settle_all(const struct gp_gpu *gpu) {
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        if (gpu == NULL || pool->gpu == gpu)
            settle(pool);
    }
}

/* Returns at most `bytes` of the pool's free memory to the GPU. */
static void trim(struct pool *pool, uint64_t bytes) {
    uint64_t used = ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->charged);
    uint64_t spare = used < pool->charged ? pool->charged - used : 0;
    if (spare == 0)
        return;
    OWN(cuMemPoolTrimTo, pool->handle, bytes < spare ? pool->charged - bytes : used);
    settle(pool);
}

/* Returns free memory of the pools of a GPU until a request fits: only the missing part or, with `all`, all of it,
 * because drivers return whole blocks only. Returns the bytes that are still missing. */
static uint64_t trim_pools(struct gp_gpu *gpu, uint64_t bytes, bool all) {
    uint64_t lacking = gp_lacking(gpu, bytes);
    for (struct pool *pool = pools, *next; pool != NULL && lacking != 0; pool = next) {
        next = pool->next;
        if (pool->gpu == gpu)
            trim(pool, all ? UINT64_MAX : lacking);
        lacking = gp_lacking(gpu, bytes);
    }
    return lacking;
}

/* Under the lock. */
static void make_room(struct gp_gpu *gpu, uint64_t bytes) {
    gp_late_settle();
    settle_all(gpu);
    gp_graphs_settle(gpu);
    if (trim_pools(gpu, bytes, false) != 0 && trim_pools(gpu, bytes, true) != 0)
        gp_graphs_trim(gpu);
}

void gp_make_room(struct gp_gpu *gpu, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    make_room(gpu, bytes);
    pthread_mutex_unlock(&lock);
}

void gp_pools_settle(struct gp_gpu *gpu) {
    pthread_mutex_lock(&lock);
    gp_late_settle();
    settle_all(gpu);
    gp_graphs_settle(gpu);
    pthread_mutex_unlock(&lock);
}

/* -- allocations ------------------------------------------------------------------------------------------------------ */

struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUstream stream;
    bool per_thread, named; /* the driver's function: see call_driver */
};

/* Returns the possible growth of the pool for a request. */
static uint64_t growth(const struct pool *pool, uint64_t bytes) {
    uint64_t most = gp_round_up(bytes, pool->granule);
    return most < pool->least ? pool->least : most;
}

/* Handles a pool that grew by more than was reserved. */
static void learn(struct pool *pool, uint64_t bytes, uint64_t grew) {
    if (bytes <= pool->least)
        pool->least = grew;
    while (pool->granule < GRANULE_MAX && gp_round_up(bytes, pool->granule) < grew)
        pool->granule *= 2;
}

static CUresult undo(struct pool *pool, const struct request *request) {
    if (request->per_thread)
        OWN(cuMemFreeAsync_ptsz, *request->pointer, request->stream);
    else
        OWN(cuMemFreeAsync, *request->pointer, request->stream);
    trim(pool, UINT64_MAX);
    settle(pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult call_driver(const struct request *at, CUmemoryPool pool) {
    if (at->named)
        return at->per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(at->pointer, at->bytes, pool, at->stream)
                              : REAL(cuMemAllocFromPoolAsync)(at->pointer, at->bytes, pool, at->stream);
    return at->per_thread ? REAL(cuMemAllocAsync_ptsz)(at->pointer, at->bytes, at->stream)
                          : REAL(cuMemAllocAsync)(at->pointer, at->bytes, at->stream);
}

/* Calls the driver with `extra` bytes reserved for the growth of the pool, and charges the growth. */
static CUresult allocate_within(struct pool *pool, const struct request *request, uint64_t extra) {
    uint64_t before = pool->charged;
    CUresult result = call_driver(request, pool->handle);
    uint64_t holds = reserved(pool);
    pool->charged += extra;
    if (holds > pool->charged && extra != 0)
        learn(pool, request->bytes, holds - before);
    if (holds > pool->charged && gp_take(pool->gpu, holds - pool->charged, GP_POOL))
        pool->charged = holds;
    bool over = holds > pool->charged;
    charge_to(pool, holds);
    if (over && extra != 0)
        gp_count_refusal(pool->gpu);
    return over && result == CUDA_SUCCESS ? undo(pool, request) : result;
}

/* Returns true if the pool has so much free memory that the driver need not take more from the GPU for this request.
 * Small requests are not worth the risk: room for them costs little. */
static bool has_spare(struct pool *pool, uint64_t bytes) {
    if (bytes < pool->least)
        return false;
    charge_to(pool, reserved(pool));
    uint64_t used = ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->charged);
    return used <= pool->charged && bytes <= pool->charged - used;
}

/* Under the lock. If the slice has no room for growth and the pool has free memory, the driver is first called without
 * a reservation. If the free memory was fragmented and the pool grew, that is undone. */
static CUresult allocate(struct pool *pool, const struct request *request) {
    uint64_t extra = growth(pool, request->bytes);
    if (gp_take(pool->gpu, extra, GP_POOL))
        return allocate_within(pool, request, extra);
    if (has_spare(pool, request->bytes)) {
        CUresult result = allocate_within(pool, request, 0);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
    }
    make_room(pool->gpu, extra);
    if (gp_take(pool->gpu, extra, GP_POOL))
        return allocate_within(pool, request, extra);
    gp_count_refusal(pool->gpu);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool gp_stream_is_capturing(CUstream stream, bool per_thread) {
    if (GP_LIKELY(atomic_load_explicit(&gp_captures, memory_order_relaxed) == 0))
        return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? OWN(cuStreamIsCapturing_ptsz, stream, &status)
                                 : OWN(cuStreamIsCapturing, stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Returns the pool that cuMemAllocAsync uses. Before 12.8 a stream does not report its device; then it is the
 * context's. */
static CUmemoryPool pool_of_stream(CUstream stream, bool per_thread) {
    CUdevice device;
    CUmemoryPool handle = NULL;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (GP_LIKELY(gp_gpu_of_only_device() != NULL))
        return OWN(cuDeviceGetMemPool, &handle, GP_ONLY_DEVICE) == CUDA_SUCCESS ? handle : NULL;
    if (gp_has(GP_cuStreamGetDevice))
        result = per_thread ? OWN(cuStreamGetDevice_ptsz, stream, &device) : OWN(cuStreamGetDevice, stream, &device);
    if (result != CUDA_SUCCESS)
        result = OWN(cuCtxGetDevice, &device);
    return result == CUDA_SUCCESS && OWN(cuDeviceGetMemPool, &handle, device) == CUDA_SUCCESS ? handle : NULL;
}

CUresult gp_pool_allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool handle, CUstream stream, bool per_thread,
                          bool named) {
    const struct request request = {pointer, bytes, stream, per_thread, named};
    struct gp_gpu *gpu;
    if (bytes == 0 || pointer == NULL || gp_stream_is_capturing(stream, per_thread)) /* a node of a graph: see memory_graphs.c */
        return call_driver(&request, handle);
    if (!gp_memory_gpu(&gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    CUmemoryPool meant = named ? handle : pool_of_stream(stream, per_thread);
    struct pool *pool = meant == NULL ? NULL : known(meant);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (pool == NULL)
        result = call_driver(&request, handle);
    else if (!pool->doomed)
        result = allocate(pool, &request);
    pthread_mutex_unlock(&lock);
    return result;
}

/* -- pools come and go -------------------------------------------------------------------------------------------------- */

GP_HOOK CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties) {
    GP_ATTACHED_OR(REAL(cuMemPoolCreate)(handle, properties));
    CUresult result = REAL(cuMemPoolCreate)(handle, properties);
    if (result != CUDA_SUCCESS || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return result;
    pthread_mutex_lock(&lock);
    add(*handle, gp_gpu_of(properties->location.id));
    pthread_mutex_unlock(&lock);
    return result;
}

/* A destroyed pool is not the current pool of a device. */
static void unset_current(CUmemoryPool handle) {
    int count = 0;
    OWN(cuDeviceGetCount, &count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUmemoryPool pool;
        if (OWN(cuDeviceGet, &device, i) == CUDA_SUCCESS && OWN(cuDeviceGetMemPool, &pool, device) == CUDA_SUCCESS &&
            pool == handle && OWN(cuDeviceGetDefaultMemPool, &pool, device) == CUDA_SUCCESS)
            OWN(cuDeviceSetMemPool, device, pool);
    }
}

static CUresult destroy(struct pool *pool) {
    if (ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) == 0)
        OWN(cuMemPoolTrimTo, pool->handle, 0);
    charge_to(pool, reserved(pool));
    if (pool->charged == 0) {
        CUresult result = REAL(cuMemPoolDestroy)(pool->handle);
        if (result == CUDA_SUCCESS)
            forget(pool);
        return result;
    }
    cuuint64_t nothing = 0;
    OWN(cuMemPoolSetAttribute, pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    unset_current(pool->handle);
    pool->doomed = true;
    return CUDA_SUCCESS;
}

static bool is_default(CUmemoryPool handle) {
    int count = 0;
    OWN(cuDeviceGetCount, &count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUmemoryPool pool;
        if (OWN(cuDeviceGet, &device, i) == CUDA_SUCCESS &&
            OWN(cuDeviceGetDefaultMemPool, &pool, device) == CUDA_SUCCESS && pool == handle)
            return true;
    }
    return false;
}

GP_HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    GP_CHARGED_OR(REAL(cuMemPoolDestroy)(handle));
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    bool ours = pool != NULL && !pool->doomed && !is_default(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (ours)
        result = destroy(pool);
    else if (pool == NULL || !pool->doomed)
        result = REAL(cuMemPoolDestroy)(handle);
    pthread_mutex_unlock(&lock);
    return result;
}

GP_HOOK CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    GP_CHARGED_OR(REAL(cuMemPoolTrimTo)(handle, keep));
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemPoolTrimTo)(handle, keep);
    struct pool *pool = find(handle);
    if (pool != NULL)
        settle(pool);
    pthread_mutex_unlock(&lock);
    return result;
}
