/* Memory pools inside the fake driver. */
#ifndef FAKE_POOLS_H
#define FAKE_POOLS_H

#include "fake.h"

struct chunk { /* a piece of the card that a pool has reserved */
    struct space space;
    uint64_t live; /* allocations in it, and those whose freeing is not over */
    struct chunk *next;
};

struct pool {
    enum magic magic;
    struct gpu *gpu;
    bool destroyed;
    uint64_t reserved, reserved_high, used, used_high, threshold, most;
    int reuse[3]; /* follow events, opportunistic, internal dependencies: kept, not obeyed */
    struct chunk *chunks;
    struct op *last_free; /* counted: space given back is used again behind it */
    struct pool *next;
};

struct pool *fake_pool_new(struct gpu *gpu, uint64_t most);
struct pool *fake_pool_default(struct gpu *gpu);
void fake_pool_shrink(struct pool *pool, uint64_t keep);
CUresult fake_pool_take(struct pool *pool, uint64_t bytes, CUstream stream, CUdeviceptr *address);

#endif
