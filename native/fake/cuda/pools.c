/* Memory pools: space reserved on the card in chunks, allocated and freed in the order of streams.
 *
 * What is freed is free for the next allocation at once; the allocation's place in time is behind the freeing. A chunk
 * in which nothing is left goes back to the card when a process waits for the GPU and the pool has more than its
 * threshold, when it is trimmed, or before an allocation anywhere on the card fails.
 */
#include "pools.h"

#include <stdlib.h>

#define CHUNK_BYTES (UINT64_C(32) << 20)

struct pool *fake_pool_new(struct gpu *gpu, uint64_t most) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    *pool = (struct pool){.magic = MAGIC_POOL, .gpu = gpu, .most = most, .reuse = {1, 1, 1}, .next = gpu->pools};
    gpu->pools = pool;
    return pool;
}

struct pool *fake_pool_default(struct gpu *gpu) {
    if (gpu->default_pool == NULL) gpu->default_pool = fake_pool_new(gpu, 0);
    return gpu->default_pool;
}

static void give_chunk(struct pool *pool, struct chunk *chunk) {
    pool->gpu->shared->state->processes[pool->gpu->slot].pool_unmaps++;
    pool->reserved -= chunk->space.bytes;
    fake_give(pool->gpu->shared, pool->gpu->slot, FAKE_POOL, chunk->space.bytes);
    fake_forget(chunk->space.base, chunk->space.bytes);
    fake_space_give(fake_addresses(), chunk->space.base, chunk->space.bytes);
    free(chunk->space.gaps);
    free(chunk);
}

void fake_pool_shrink(struct pool *pool, uint64_t keep) {
    for (struct chunk **at = &pool->chunks; *at != NULL && pool->reserved > keep;) {
        struct chunk *chunk = *at;
        if (chunk->live > 0 || pool->reserved - chunk->space.bytes < (keep < pool->used ? pool->used : keep)) {
            at = &chunk->next;
            continue;
        }
        *at = chunk->next;
        give_chunk(pool, chunk);
    }
}

void fake_pools_after_sync(struct gpu *gpu) {
    for (struct pool *pool = gpu->pools; pool != NULL; pool = pool->next) {
        if (pool->reserved > pool->threshold) fake_pool_shrink(pool, pool->threshold);
    }
}

void fake_pools_trim_unused(struct gpu *gpu) {
    for (struct pool *pool = gpu->pools; pool != NULL; pool = pool->next) fake_pool_shrink(pool, 0);
}

static bool of_gpu(struct range *range, void *gpu) { return range->kind == RANGE_POOL && range->gpu == gpu; }

/* The last context of the process is gone: all memory is returned. */
void fake_pools_close(struct gpu *gpu) {
    fake_ranges_each(of_gpu, gpu);
    for (struct pool *pool = gpu->pools; pool != NULL; pool = pool->next) {
        for (struct chunk *chunk = pool->chunks, *next; chunk != NULL; chunk = next) {
            next = chunk->next;
            give_chunk(pool, chunk);
        }
        pool->chunks = NULL;
        pool->used = 0;
        fake_release(pool->last_free);
        pool->last_free = NULL;
    }
}

static struct chunk *add_chunk(struct pool *pool, uint64_t bytes) {
    uint64_t at;
    if (pool->most > 0 && (bytes > pool->most || pool->reserved > pool->most - bytes)) return NULL;
    if (!fake_take(pool->gpu->shared, pool->gpu->slot, FAKE_POOL, bytes)) return NULL;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    struct space *space = fake_addresses();
    if (chunk == NULL || space == NULL || !fake_space_take(space, bytes, BLOCK_BYTES, &at)) {
        fake_give(pool->gpu->shared, pool->gpu->slot, FAKE_POOL, bytes);
        free(chunk);
        return NULL;
    }
    fake_space_init(&chunk->space, at, bytes);
    pool->gpu->shared->state->processes[pool->gpu->slot].pool_maps++;
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->reserved += bytes;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return chunk;
}

/* Grows by a chunk of the usual size or, if that is too much, by the needed size. */
static struct chunk *grow(struct pool *pool, uint64_t bytes) {
    uint64_t least = ALIGN_UP(bytes, BLOCK_BYTES), usual = least > CHUNK_BYTES ? least : CHUNK_BYTES;
    struct chunk *chunk = add_chunk(pool, usual);
    if (chunk == NULL && least < usual) chunk = add_chunk(pool, least);
    if (chunk != NULL) return chunk;
    fake_settle();
    fake_pools_trim_unused(pool->gpu);
    return add_chunk(pool, least);
}

static struct chunk *find_room(struct pool *pool, uint64_t bytes, uint64_t *at) {
    for (struct chunk *chunk = pool->chunks; chunk != NULL; chunk = chunk->next) {
        if (fake_space_take(&chunk->space, bytes, UNIT_BYTES, at)) return chunk;
    }
    struct chunk *chunk = grow(pool, bytes);
    return chunk != NULL && fake_space_take(&chunk->space, bytes, UNIT_BYTES, at) ? chunk : NULL;
}

CUresult fake_pool_take(struct pool *pool, uint64_t bytes, CUstream stream, CUdeviceptr *address) {
    uint64_t size = ALIGN_UP(bytes, UNIT_BYTES), at;
    if (pool->gpu->slot < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (size < bytes || size > pool->gpu->shared->state->memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    struct chunk *chunk = find_room(pool, size, &at);
    struct range *range = chunk != NULL ? fake_range_add(at, bytes, RANGE_POOL) : NULL;
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    range->gpu = pool->gpu;
    range->context = stream->context;
    range->owner = pool;
    chunk->live++;
    pool->used += size;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    fake_release(fake_issue_held(stream, &(struct work){0}, &pool->last_free, 1));
    *address = at;
    return CUDA_SUCCESS;
}

struct freeing {
    struct pool *pool;
    uint64_t at, bytes;
};

static struct chunk *chunk_of(struct pool *pool, uint64_t at) {
    struct chunk *chunk = pool->chunks;
    while (chunk != NULL && at - chunk->space.base >= chunk->space.bytes) chunk = chunk->next;
    return chunk;
}

static void end_free(void *data) {
    const struct freeing *freeing = data;
    struct chunk *chunk = chunk_of(freeing->pool, freeing->at);
    if (chunk == NULL) return; /* the pool was closed meanwhile */
    chunk->live--;
    freeing->pool->used -= freeing->bytes;
    if (freeing->pool->destroyed) fake_pool_shrink(freeing->pool, 0);
}

CUresult fake_pool_free(struct range *range, CUstream stream) {
    struct pool *pool = range->owner;
    struct freeing *freeing = malloc(sizeof *freeing);
    if (freeing == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *freeing = (struct freeing){pool, range->base, ALIGN_UP(range->bytes, UNIT_BYTES)};
    struct chunk *chunk = chunk_of(pool, range->base);
    bool wait = stream == NULL;
    if (wait) stream = range->context->legacy;
    fake_range_remove(range);
    if (chunk != NULL) fake_space_give(&chunk->space, freeing->at, freeing->bytes);
    struct op *op = fake_issue_held(stream, &(struct work){.run = end_free, .data = freeing}, NULL, 0);
    fake_release(pool->last_free);
    pool->last_free = fake_hold(op);
    if (wait) {
        fake_wait(op);
        fake_pools_after_sync(pool->gpu);
    }
    fake_release(op);
    return CUDA_SUCCESS;
}
