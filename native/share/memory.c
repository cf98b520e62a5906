/* Reserves and releases bytes of the slice: used at the begin and end of every hook that allocates.
 *
 * An allocation reserves first, then calls the driver, and releases if the driver refused. A free calls the driver
 * first, then releases. So the charge is never below the memory that the driver holds, and two processes that race for
 * the last bytes cannot both get them. A refusal is always CUDA_ERROR_OUT_OF_MEMORY, as from the driver: frameworks
 * answer it by freeing their caches.
 *
 * The charge is the request rounded up to 512 bytes (plain memory, arrays), or the memory that the driver reports for a
 * pool or a graph. The driver takes memory for plain requests in blocks of 2 MiB that several requests may share. That
 * difference, like the one between the size of a context and its charge, reaches the limit through
 * control.correction_bytes.
 */
#include "memory.h"

#include "ledger.h"

static uint64_t limit_units(const struct gp_gpu *gpu) {
    int64_t correction = atomic_load_explicit(&gpu->control->correction_bytes, memory_order_relaxed);
    uint64_t limit = gpu->control->memory_limit_bytes;
    if (correction >= 0)
        limit -= (uint64_t)correction < limit ? (uint64_t)correction : limit;
    else
        limit += -(uint64_t)correction;
    return limit >> GPUPOOL_UNIT_SHIFT;
}

/* Only for people, and written only by this process. */
static void note(struct gp_gpu *gpu, uint64_t units, enum gp_kind kind, bool more) {
    _Atomic uint64_t *const counters[] = {NULL, &gpu->slot->pool_bytes, &gpu->slot->vmm_bytes,
                                          &gpu->slot->context_bytes};
    uint64_t bytes = units << GPUPOOL_UNIT_SHIFT;
    if (kind != GP_PLAIN)
        atomic_fetch_add_explicit(counters[kind], more ? bytes : -bytes, memory_order_relaxed);
}

static bool change(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind, uint64_t limit) {
    uint64_t units = gpupool_units(bytes);
    if (!gp_ledger_change(gpu->status, gpu->slot_index, (int64_t)units, limit))
        return false;
    note(gpu, units, kind, true);
    return true;
}

bool gp_take(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind) {
    return change(gpu, bytes, kind, limit_units(gpu));
}

void gp_take_anyway(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind) { change(gpu, bytes, kind, UINT64_MAX); }

bool gp_take_for_driver(struct gp_gpu *gpu, uint64_t bytes) {
    return change(gpu, bytes, GP_CONTEXT, gpu->control->memory_limit_bytes >> GPUPOOL_UNIT_SHIFT);
}

void gp_count_refusal(struct gp_gpu *gpu) { atomic_fetch_add(&gpu->status->oom_count, 1); }

uint64_t gp_lacking(const struct gp_gpu *gpu, uint64_t bytes) {
    uint64_t wanted = gp_ledger_total(gpu->status) + gpupool_units(bytes), limit = limit_units(gpu);
    return wanted > limit ? (wanted - limit) << GPUPOOL_UNIT_SHIFT : 0;
}

bool gp_reserve(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind) {
    if (gp_take(gpu, bytes, kind))
        return true;
    if (gpupool_units(bytes) <= limit_units(gpu)) { /* otherwise no room would be enough */
        gp_make_room(gpu, bytes);
        if (gp_take(gpu, bytes, kind))
            return true;
    }
    gp_count_refusal(gpu);
    return false;
}

void gp_unreserve(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind) {
    uint64_t units = gpupool_units(bytes);
    gp_ledger_change(gpu->status, gpu->slot_index, -(int64_t)units, 0);
    note(gpu, units, kind, false);
}

uint64_t gp_used(const struct gp_gpu *gpu) { return gp_used_bytes(gpu->control, gpu->status); }

bool gp_memory_gpu(struct gp_gpu **gpu) {
    CUdevice device;
    *gpu = gp_gpu_of_only_device();
    if (GP_LIKELY(*gpu != NULL && gp_context_is_charged(*gpu)))
        return true;
    *gpu = NULL;
    if (OWN(cuCtxGetDevice, &device) == CUDA_SUCCESS)
        *gpu = gp_gpu_of(device);
    return *gpu == NULL || gp_context_charged(*gpu, device);
}

CUcontext gp_memory_context(void) {
    CUcontext context = NULL;
    return OWN(cuCtxGetCurrent, &context) == CUDA_SUCCESS ? context : NULL;
}

void gp_memory_after_fork(void) {
    gp_ledger_after_fork();
    gp_book_after_fork();
    gp_pools_after_fork();
    gp_late_after_fork();
    gp_graphs_after_fork();
    gp_vmm_after_fork();
    gp_contexts_after_fork();
}
