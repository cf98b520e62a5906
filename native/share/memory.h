/* Declarations for memory.c, memory_*.c and contexts.c: the memory limit in this process.
 *
 * Locks are of this process only. They are taken in this order, and only the first two are held while the driver
 * allocates:
 *
 *   contexts.c      one context is opened or closed at a time
 *   memory_pools.c  one allocation from a pool, or look at what pools hold, at a time
 *   the others      a table for the moment of a look-up (and while the driver says how many references or bytes it
 *                   holds, or takes one back); then the ledger
 */
#ifndef GPUPOOL_SHARE_MEMORY_H
#define GPUPOOL_SHARE_MEMORY_H

#include <pthread.h>

#include "nvml_types.h"
#include "share.h"

#define GP_BLOCK_BYTES (UINT64_C(2) << 20) /* granularity of the driver's mapped memory */

static inline uint64_t gp_round_up(uint64_t bytes, uint64_t to) {
    return bytes > UINT64_MAX - to ? UINT64_MAX : (bytes + to - 1) / to * to;
}

/* The first line of each hook that allocates: it passes calls of processes without a lease on, and refuses those of
 * processes with a lease that cannot be used. */
#define GP_ATTACHED_OR(call)                                                                                          \
    do {                                                                                                              \
        enum gp_state state_ = gp_attach();                                                                           \
        if (GP_LIKELY(state_ == GP_FREE))                                                                             \
            return call;                                                                                              \
        if (GP_UNLIKELY(state_ == GP_BROKEN))                                                                         \
            return CUDA_ERROR_SYSTEM_NOT_READY;                                                                       \
    } while (0)
/* The first line of each hook that only frees. */
#define GP_CHARGED_OR(call)                                                                                           \
    do {                                                                                                              \
        if (gp_attach() != GP_ATTACHED)                                                                               \
            return call;                                                                                              \
    } while (0)

/* -- memory.c --------------------------------------------------------------------------------------------------- */

/* Does the same as gp_reserve, without making room and without counting the refusal. */
bool gp_take(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind);
/* Charges memory that is already held, even above the limit. */
void gp_take_anyway(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind);
/* Charges memory that the driver already holds for itself; false, and nothing is charged, if the slice is smaller than
 * that. The agent's correction is ignored, because it may be for the same bytes. */
bool gp_take_for_driver(struct gp_gpu *gpu, uint64_t bytes);
void gp_count_refusal(struct gp_gpu *gpu);
/* Returns the bytes that a request of this size lacks; 0: it would fit. */
uint64_t gp_lacking(const struct gp_gpu *gpu, uint64_t bytes);
/* Returns the GPU of the thread's current context; NULL: none, or not of the lease. Charges the context if necessary;
 * false if there is no room even for that. */
bool gp_memory_gpu(struct gp_gpu **gpu);
CUcontext gp_memory_context(void);

/* -- memory_table.c: a hash table; callers lock -------------------------------------------------------------------- */

struct gp_entry { /* first member of the stored values */
    struct gp_entry *next;
    uint64_t key;
};
struct gp_table {
    struct gp_entry **buckets;
    size_t size, count;
    struct gp_entry *only; /* the only bucket if the host has no memory */
};
void gp_table_put(struct gp_table *table, struct gp_entry *entry);
struct gp_entry *gp_table_find(const struct gp_table *table, uint64_t key);
struct gp_entry *gp_table_take(struct gp_table *table, uint64_t key);
/* Removes all values for which `which` returns true; returns them as a list. */
struct gp_entry *gp_table_take_all(struct gp_table *table, bool (*which)(const struct gp_entry *, const void *),
                                   const void *data);
/* In the child of a fork: empties the table, independent of what other threads of the parent were doing. */
void gp_table_forget(struct gp_table *table);

/* -- memory_book.c: what this process has been charged for each pointer and array ------------------------------------ */

struct gp_charge {
    struct gp_entry entry; /* key: pointer or handle */
    struct gp_gpu *gpu;
    uint64_t bytes;
    CUcontext context; /* its context, with which it is freed */
};
/* Prepares a charge before the driver call; NULL: no room in the slice, or no memory on the host. */
struct gp_charge *gp_charge_reserve(struct gp_gpu *gpu, uint64_t bytes);
/* Completes the charge with the driver's result, or drops it after a refusal. */
void gp_charge_keep(struct gp_charge *charge, uint64_t key);
void gp_charge_drop(struct gp_charge *charge);
/* Removes a charge from the book before the driver frees. NULL: not ours. Afterwards restore it, or drop it. */
struct gp_charge *gp_charge_find(uint64_t key);
/* Removes all charges of a context before it is destroyed. Afterwards restore them, or drop them. */
struct gp_charge *gp_charges_of(CUcontext context);
void gp_charges_end(struct gp_charge *list, bool destroyed);
void gp_book_after_fork(void);

/* -- memory_pools.c -------------------------------------------------------------------------------------------------- */

/* Updates the charges of pools and graphs, and releases their free memory if a request lacks room. */
void gp_make_room(struct gp_gpu *gpu, uint64_t bytes);
/* Does only the first half of that. */
void gp_pools_settle(struct gp_gpu *gpu);
void gp_pools_after_fork(void);
CUresult gp_pool_allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread,
                          bool named);

/* Returns true if work for this stream becomes nodes of a graph. */
bool gp_stream_is_capturing(CUstream stream, bool per_thread);

/* -- memory_late.c: plain memory freed with cuMemFreeAsync, charged until the stream has come there ------------------- */

void gp_late_add(struct gp_charge *charge, CUstream stream, bool per_thread);
void gp_late_settle(void);
void gp_late_closing(CUcontext context);
void gp_late_after_fork(void);

/* -- context_size.c: what the driver takes for the first context of this process on a GPU ------------------------------ */

struct gp_context_size {
    bool started, usable;
    nvmlDevice_t device;
    uint64_t before;
};
/* Call it before the context is created. Each begin is followed by an end. */
void gp_context_size_begin(struct gp_context_size *size, const struct gp_gpu *gpu);
/* Returns the bytes taken since; 0 if NVML gives no value. */
uint64_t gp_context_size_end(struct gp_context_size *size, const struct gp_gpu *gpu);

/* -- memory_graphs.c, memory_vmm.c, contexts.c ------------------------------------------------------------------------ */

void gp_graphs_settle(struct gp_gpu *gpu);
void gp_graphs_trim(struct gp_gpu *gpu);
void gp_graphs_after_fork(void);
/* Releases the tiles that were mapped into a sparse array. */
void gp_vmm_array_gone(uint64_t handle);
void gp_vmm_after_fork(void);
/* Returns true if a context of this process is charged; charges a context that was created without a hook. */
bool gp_context_charged(struct gp_gpu *gpu, CUdevice device);
/* Returns true if a context of this process is charged; charges nothing. */
bool gp_context_is_charged(const struct gp_gpu *gpu);
void gp_contexts_after_fork(void);

#endif
