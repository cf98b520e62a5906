/* Memory pools: the books follow what each pool has reserved from the GPU, not what was allocated from it.
 *
 * A pool keeps what is freed, and gives it out again; charging each allocation would count that twice, and charging
 * nothing would let a pool grow past the limit. So each allocation is reserved in full before the driver is asked, as
 * if the pool had to grow by it; then the pool says what it holds (RESERVED_MEM_CURRENT) and what was reserved too much
 * goes back. Allocations from pools are made one at a time within a process, or growth could not be told apart.
 *
 * Pools grow by at least 32 MiB, by what was seen of drivers, and by multiples of 2 MiB; no document says so. So an
 * allocation needs that much room in the slice for a moment even if the pool could serve it from what it has: close to
 * the limit free memory of the pool is given back to the GPU to make that room. Should a pool grow by more, and the
 * slice have no room for it, the allocation is undone and refused, what the pool keeps of it all the same is charged,
 * and from then on more is reserved.
 *
 * Pools shrink without a call that says so, in synchronising calls. Before anything is refused all pools are looked at
 * again, and as much of their free memory as is lacking is given back to the GPU. That of other processes of the tenant
 * cannot be: it is theirs until they allocate, ask how much memory is free, or end.
 *
 * A pool that is destroyed while allocations of it live holds memory that nobody can ask about any more. Its
 * destruction is put off: it keeps nothing that is free, and is destroyed once it is seen to be empty.
 */
#include <stdlib.h>

#include "memory.h"

#define LEAST_GROWTH (UINT64_C(32) << 20)
#define GRANULE_MAX (UINT64_C(1) << 30)

struct pool {
    struct pool *next;
    CUmemoryPool handle;
    struct gp_gpu *gpu;
    uint64_t charged, least, granule; /* least: that it grows by, where little is asked for */
    bool doomed;
};

static struct pool *pools;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gp_pools_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL;
}

/* Our own calls must not break a capture under way in this thread. */
static CUstreamCaptureMode relax(CUstreamCaptureMode mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static uint64_t ask(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t otherwise) {
    cuuint64_t value = 0;
    return REAL(cuMemPoolGetAttribute)(handle, attribute, &value) == CUDA_SUCCESS ? value : otherwise;
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

/* The GPU of a pool that was not made by cuMemPoolCreate: one of a device, as far as it can be on a GPU at all. */
static struct gp_gpu *gpu_of_device_pool(CUmemoryPool handle) {
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUmemoryPool of_device;
        if (REAL(cuDeviceGet)(&device, i) != CUDA_SUCCESS)
            continue;
        if (REAL(cuDeviceGetDefaultMemPool)(&of_device, device) == CUDA_SUCCESS && of_device == handle)
            return gp_gpu_of(device);
        if (REAL(cuDeviceGetMemPool)(&of_device, device) == CUDA_SUCCESS && of_device == handle)
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

/* The pool holds this much: charged in full even above the limit, for it is held. */
static void charge_to(struct pool *pool, uint64_t bytes) {
    if (bytes > pool->charged)
        gp_take_anyway(pool->gpu, bytes - pool->charged, GP_POOL);
    else if (bytes < pool->charged)
        gp_unreserve(pool->gpu, pool->charged - bytes, GP_POOL);
    pool->charged = bytes;
}

static void settle(struct pool *pool) {
    if (pool->doomed)
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
    charge_to(pool, reserved(pool));
    if (!pool->doomed || pool->charged != 0 || ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 1) != 0)
        return;
    REAL(cuMemPoolDestroy)(pool->handle);
    forget(pool);
}

static void settle_all(const struct gp_gpu *gpu) {
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        if (gpu == NULL || pool->gpu == gpu)
            settle(pool);
    }
}

/* Gives back at most `bytes` of what is free in the pool. */
static void trim(struct pool *pool, uint64_t bytes) {
    uint64_t used = ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->charged);
    uint64_t spare = used < pool->charged ? pool->charged - used : 0;
    if (spare == 0)
        return;
    REAL(cuMemPoolTrimTo)(pool->handle, bytes < spare ? pool->charged - bytes : used);
    settle(pool);
}

/* Under the lock. */
static void make_room(struct gp_gpu *gpu, uint64_t bytes) {
    CUstreamCaptureMode mode = relax(CU_STREAM_CAPTURE_MODE_RELAXED);
    gp_late_settle();
    settle_all(gpu);
    gp_graphs_settle(gpu);
    uint64_t lacking = gp_lacking(gpu, bytes);
    for (struct pool *pool = pools, *next; pool != NULL && lacking != 0; pool = next) {
        next = pool->next;
        if (pool->gpu == gpu)
            trim(pool, lacking);
        lacking = gp_lacking(gpu, bytes);
    }
    if (lacking != 0)
        gp_graphs_trim(gpu);
    relax(mode);
}

void gp_make_room(struct gp_gpu *gpu, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    make_room(gpu, bytes);
    pthread_mutex_unlock(&lock);
}

void gp_pools_settle(struct gp_gpu *gpu) {
    CUstreamCaptureMode mode = relax(CU_STREAM_CAPTURE_MODE_RELAXED);
    pthread_mutex_lock(&lock);
    gp_late_settle();
    settle_all(gpu);
    gp_graphs_settle(gpu);
    pthread_mutex_unlock(&lock);
    relax(mode);
}

/* -- allocations ------------------------------------------------------------------------------------------------------ */

/* Reserves what the pool may grow by; 0: refused. */
static uint64_t reserve_growth(struct pool *pool, uint64_t bytes) {
    uint64_t most = gp_round_up(bytes, pool->granule);
    if (most < pool->least)
        most = pool->least;
    if (gp_take(pool->gpu, most, GP_POOL))
        return most;
    make_room(pool->gpu, most);
    if (gp_take(pool->gpu, most, GP_POOL))
        return most;
    gp_count_refusal(pool->gpu);
    return 0;
}

/* It grew by more than was thought possible. */
static void learn(struct pool *pool, uint64_t bytes, uint64_t growth) {
    if (bytes <= pool->least)
        pool->least = growth;
    while (pool->granule < GRANULE_MAX && gp_round_up(bytes, pool->granule) < growth)
        pool->granule *= 2;
}

static CUresult undo(struct pool *pool, CUdeviceptr pointer, CUstream stream, bool per_thread) {
    if (per_thread)
        REAL(cuMemFreeAsync_ptsz)(pointer, stream);
    else
        REAL(cuMemFreeAsync)(pointer, stream);
    trim(pool, UINT64_MAX);
    settle(pool);
    gp_count_refusal(pool->gpu);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult call_driver(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread,
                            bool named) {
    if (named)
        return per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream)
                          : REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
    return per_thread ? REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream) : REAL(cuMemAllocAsync)(pointer, bytes, stream);
}

/* Under the lock. */
static CUresult allocate(struct pool *pool, CUdeviceptr *pointer, size_t bytes, CUstream stream, bool per_thread,
                         bool named) {
    uint64_t extra = reserve_growth(pool, bytes);
    if (extra == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t before = pool->charged;
    CUresult result = call_driver(pointer, bytes, pool->handle, stream, per_thread, named);
    uint64_t holds = reserved(pool);
    pool->charged += extra;
    if (holds > pool->charged)
        learn(pool, bytes, holds - before);
    if (holds > pool->charged && gp_take(pool->gpu, holds - pool->charged, GP_POOL))
        pool->charged = holds;
    bool over = holds > pool->charged;
    charge_to(pool, holds);
    return over && result == CUDA_SUCCESS ? undo(pool, *pointer, stream, per_thread) : result;
}

static bool is_capturing(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status)
                                 : REAL(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The pool that cuMemAllocAsync means. Before 12.8 a stream does not tell its device; then it is the context's. */
static CUmemoryPool pool_of_stream(CUstream stream, bool per_thread) {
    CUdevice device;
    CUmemoryPool handle = NULL;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (gp_has(GP_cuStreamGetDevice))
        result = per_thread ? REAL(cuStreamGetDevice_ptsz)(stream, &device) : REAL(cuStreamGetDevice)(stream, &device);
    if (result != CUDA_SUCCESS)
        result = REAL(cuCtxGetDevice)(&device);
    return result == CUDA_SUCCESS && REAL(cuDeviceGetMemPool)(&handle, device) == CUDA_SUCCESS ? handle : NULL;
}

CUresult gp_pool_allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool handle, CUstream stream, bool per_thread,
                          bool named) {
    struct gp_gpu *gpu;
    if (bytes == 0 || pointer == NULL || is_capturing(stream, per_thread)) /* a node of a graph: see memory_graphs.c */
        return call_driver(pointer, bytes, handle, stream, per_thread, named);
    if (!gp_memory_gpu(&gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    CUmemoryPool meant = named ? handle : pool_of_stream(stream, per_thread);
    struct pool *pool = meant == NULL ? NULL : known(meant);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (pool == NULL)
        result = call_driver(pointer, bytes, handle, stream, per_thread, named);
    else if (!pool->doomed)
        result = allocate(pool, pointer, bytes, stream, per_thread, named);
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

/* A destroyed pool is no device's current one. */
static void unset_current(CUmemoryPool handle) {
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUmemoryPool pool;
        if (REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS && REAL(cuDeviceGetMemPool)(&pool, device) == CUDA_SUCCESS &&
            pool == handle && REAL(cuDeviceGetDefaultMemPool)(&pool, device) == CUDA_SUCCESS)
            REAL(cuDeviceSetMemPool)(device, pool);
    }
}

static CUresult destroy(struct pool *pool) {
    if (ask(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) == 0)
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
    charge_to(pool, reserved(pool));
    if (pool->charged == 0) {
        CUresult result = REAL(cuMemPoolDestroy)(pool->handle);
        if (result == CUDA_SUCCESS)
            forget(pool);
        return result;
    }
    cuuint64_t nothing = 0;
    REAL(cuMemPoolSetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    unset_current(pool->handle);
    pool->doomed = true;
    return CUDA_SUCCESS;
}

static bool is_default(CUmemoryPool handle) {
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUmemoryPool pool;
        if (REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS &&
            REAL(cuDeviceGetDefaultMemPool)(&pool, device) == CUDA_SUCCESS && pool == handle)
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
