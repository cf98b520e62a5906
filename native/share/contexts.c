/* Contexts: charges the first context of a process on a GPU with the known size of contexts there, and releases the
 * charge with the last one.
 *
 * All contexts of a process on a GPU share most of the driver's memory for it, so it is charged once: the agent's
 * estimate before the context is created, and the measured size afterwards (context_size.c). Memory that the driver
 * takes later (modules, local memory, heaps) reaches the limit through the agent's correction. A context that was
 * created without a hook is noticed at its first allocation and charged by estimate.
 *
 * The destruction of a context frees its plain memory and arrays. They are removed from the book before that, because
 * the next context may get the same addresses, and are restored if the destruction fails.
 */
#include <stdlib.h>

#include "memory.h"

struct context {
    struct gp_entry entry; /* key: its handle */
    struct gp_gpu *gpu;
    CUdevice device;
    uint32_t uses;
};

struct of_gpu {
    _Atomic bool charged;
    uint64_t bytes;    /* charged for contexts */
    uint32_t contexts; /* other than the primary one */
    uint32_t retained; /* the primary one, by this process's calls */
    CUcontext primary; /* as last read */
};

static struct gp_table contexts;
static struct of_gpu of_gpus[GPUPOOL_MAX_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gp_contexts_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    gp_table_forget(&contexts);
    for (uint32_t i = 0; i < GPUPOOL_MAX_GPUS; i++) {
        atomic_store(&of_gpus[i].charged, false);
        of_gpus[i].bytes = of_gpus[i].contexts = of_gpus[i].retained = 0;
        of_gpus[i].primary = NULL;
    }
}

/* Under the lock. */
static bool charge(struct gp_gpu *gpu) {
    struct of_gpu *of = &of_gpus[gpu->index];
    if (atomic_load(&of->charged))
        return true;
    of->bytes = gpu->control->context_bytes;
    if (of->bytes != 0 && !gp_reserve(gpu, of->bytes, GP_CONTEXT))
        return false;
    atomic_store(&of->charged, true);
    return true;
}

/* One creation of a context; `first`: it is the first of this process on this GPU. */
struct opening {
    bool first;
    struct gp_context_size size;
};

/* Under the lock, before the driver call; false: the slice has no room for a context. */
static bool open_begin(struct gp_gpu *gpu, struct opening *opening) {
    *opening = (struct opening){.first = !atomic_load(&of_gpus[gpu->index].charged)};
    if (!charge(gpu))
        return false;
    if (opening->first)
        gp_context_size_begin(&opening->size, gpu);
    return true;
}

/* Replaces the estimate of a context by its measured size; false: the slice is too small for it. */
static bool charge_measured(struct gp_gpu *gpu, uint64_t measured) {
    struct of_gpu *of = &of_gpus[gpu->index];
    uint64_t bytes = gp_round_up(measured, UINT64_C(1) << GPUPOOL_UNIT_SHIFT);
    if (bytes > of->bytes && !gp_take_for_driver(gpu, bytes - of->bytes))
        return false;
    if (bytes < of->bytes)
        gp_unreserve(gpu, of->bytes - bytes, GP_CONTEXT);
    of->bytes = bytes;
    atomic_fetch_or(&gpu->slot->flags, GPUPOOL_SLOT_MEASURED);
    return true;
}

/* Under the lock, after the driver call; false: the context must be destroyed again. */
static bool open_end(struct gp_gpu *gpu, struct opening *opening, CUresult result) {
    uint64_t measured = opening->first ? gp_context_size_end(&opening->size, gpu) : 0;
    return result != CUDA_SUCCESS || measured == 0 || charge_measured(gpu, measured);
}

static bool primary_is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return OWN(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

/* Under the lock: releases the charge when no context is left. */
static void settle(struct gp_gpu *gpu, CUdevice device) {
    struct of_gpu *of = &of_gpus[gpu->index];
    if (!atomic_load(&of->charged) || of->contexts != 0 || primary_is_active(device))
        return;
    atomic_store(&of->charged, false);
    if (of->bytes != 0)
        gp_unreserve(gpu, of->bytes, GP_CONTEXT);
    gp_pools_settle(gpu);
}

bool gp_context_is_charged(const struct gp_gpu *gpu) {
    return atomic_load_explicit(&of_gpus[gpu->index].charged, memory_order_relaxed);
}

bool gp_context_charged(struct gp_gpu *gpu, CUdevice device) {
    (void)device;
    if (GP_LIKELY(gp_context_is_charged(gpu)))
        return true;
    pthread_mutex_lock(&lock);
    bool done = charge(gpu);
    pthread_mutex_unlock(&lock);
    return done;
}

/* -- what goes with a context --------------------------------------------------------------------------------------- */

static struct gp_charge *close_begin(CUcontext context, CUdevice device) {
    if (context == NULL)
        return NULL;
    gp_compute_context_closing(context, device);
    gp_late_closing(context);
    return gp_charges_of(context);
}

/* -- contexts of their own ---------------------------------------------------------------------------------------------- */

static void created(CUcontext handle, struct gp_gpu *gpu, CUdevice device) {
    struct context *context = malloc(sizeof *context);
    of_gpus[gpu->index].contexts++; /* without a record it counts until the process ends */
    if (context == NULL)
        return;
    *context = (struct context){.entry.key = (uint64_t)(uintptr_t)handle, .gpu = gpu, .device = device, .uses = 1};
    gp_table_put(&contexts, &context->entry);
}

#define CREATE(handle, device, call)                                                                                  \
    do {                                                                                                              \
        struct gp_gpu *gpu_ = gp_gpu_of(device);                                                                      \
        if (gpu_ == NULL)                                                                                             \
            return call;                                                                                              \
        pthread_mutex_lock(&lock);                                                                                    \
        struct opening opening_;                                                                                      \
        CUresult result_ = CUDA_ERROR_OUT_OF_MEMORY;                                                                  \
        if (open_begin(gpu_, &opening_)) {                                                                            \
            result_ = call;                                                                                           \
            if (!open_end(gpu_, &opening_, result_)) {                                                                \
                OWN(cuCtxDestroy_v2, *(handle));                                                                      \
                result_ = CUDA_ERROR_OUT_OF_MEMORY;                                                                   \
            }                                                                                                         \
        }                                                                                                             \
        if (result_ == CUDA_SUCCESS)                                                                                  \
            created(*(handle), gpu_, device);                                                                         \
        else                                                                                                          \
            settle(gpu_, device);                                                                                     \
        pthread_mutex_unlock(&lock);                                                                                  \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device) {
    GP_ATTACHED_OR(REAL(cuCtxCreate)(handle, flags, device));
    CREATE(handle, device, REAL(cuCtxCreate)(handle, flags, device));
}

GP_HOOK CUresult cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device) {
    GP_ATTACHED_OR(REAL(cuCtxCreate_v2)(handle, flags, device));
    CREATE(handle, device, REAL(cuCtxCreate_v2)(handle, flags, device));
}

GP_HOOK CUresult cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int count, unsigned int flags,
                                CUdevice device) {
    GP_ATTACHED_OR(REAL(cuCtxCreate_v3)(handle, affinity, count, flags, device));
    CREATE(handle, device, REAL(cuCtxCreate_v3)(handle, affinity, count, flags, device));
}

GP_HOOK CUresult cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *how, unsigned int flags, CUdevice device) {
    GP_ATTACHED_OR(REAL(cuCtxCreate_v4)(handle, how, flags, device));
    CREATE(handle, device, REAL(cuCtxCreate_v4)(handle, how, flags, device));
}

static struct context *find(CUcontext handle) {
    return (struct context *)gp_table_find(&contexts, (uint64_t)(uintptr_t)handle);
}

/* Under the lock, before the driver is asked; and after. */
static CUresult destroyed(struct context *context, struct gp_charge *charges, CUresult result) {
    gp_charges_end(charges, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS || context == NULL)
        return result;
    gp_table_take(&contexts, context->entry.key);
    of_gpus[context->gpu->index].contexts--;
    settle(context->gpu, context->device);
    free(context);
    return result;
}

#define DESTROY(handle, call)                                                                                         \
    do {                                                                                                              \
        pthread_mutex_lock(&lock);                                                                                    \
        struct context *context_ = find(handle);                                                                      \
        struct gp_charge *charges_ = context_ == NULL ? NULL : close_begin(handle, context_->device);                 \
        CUresult result_ = destroyed(context_, charges_, call);                                                       \
        pthread_mutex_unlock(&lock);                                                                                  \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuCtxDestroy(CUcontext handle) {
    GP_CHARGED_OR(REAL(cuCtxDestroy)(handle));
    DESTROY(handle, REAL(cuCtxDestroy)(handle));
}

GP_HOOK CUresult cuCtxDestroy_v2(CUcontext handle) {
    GP_CHARGED_OR(REAL(cuCtxDestroy_v2)(handle));
    DESTROY(handle, REAL(cuCtxDestroy_v2)(handle));
}

/* cuCtxAttach, the deprecated way to add a user of a context. */
GP_HOOK CUresult cuCtxAttach(CUcontext *handle, unsigned int flags) {
    GP_CHARGED_OR(REAL(cuCtxAttach)(handle, flags));
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuCtxAttach)(handle, flags);
    struct context *context = result == CUDA_SUCCESS ? find(*handle) : NULL;
    if (context != NULL)
        context->uses++;
    pthread_mutex_unlock(&lock);
    return result;
}

GP_HOOK CUresult cuCtxDetach(CUcontext handle) {
    GP_CHARGED_OR(REAL(cuCtxDetach)(handle));
    pthread_mutex_lock(&lock);
    struct context *context = find(handle);
    bool last = context != NULL && context->uses == 1;
    struct gp_charge *charges = last ? close_begin(handle, context->device) : NULL;
    CUresult result = REAL(cuCtxDetach)(handle);
    if (context != NULL && !last && result == CUDA_SUCCESS)
        context->uses--;
    if (last)
        destroyed(context, charges, result);
    pthread_mutex_unlock(&lock);
    return result;
}

/* -- the primary context ------------------------------------------------------------------------------------------------ */

GP_HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device) {
    GP_ATTACHED_OR(REAL(cuDevicePrimaryCtxRetain)(handle, device));
    struct gp_gpu *gpu = gp_gpu_of(device);
    if (gpu == NULL)
        return REAL(cuDevicePrimaryCtxRetain)(handle, device);
    pthread_mutex_lock(&lock);
    struct opening opening;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (open_begin(gpu, &opening)) {
        result = REAL(cuDevicePrimaryCtxRetain)(handle, device);
        if (!open_end(gpu, &opening, result)) {
            OWN(cuDevicePrimaryCtxRelease_v2, device);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        of_gpus[gpu->index].retained++;
        of_gpus[gpu->index].primary = *handle;
    } else {
        settle(gpu, device);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

#define RELEASE(device, call)                                                                                         \
    do {                                                                                                              \
        struct gp_gpu *gpu_ = gp_gpu_of(device);                                                                      \
        if (gpu_ == NULL)                                                                                             \
            return call;                                                                                              \
        struct of_gpu *of_ = &of_gpus[gpu_->index];                                                                   \
        pthread_mutex_lock(&lock);                                                                                    \
        struct gp_charge *charges_ = of_->retained <= 1 ? close_begin(of_->primary, device) : NULL;                   \
        CUresult result_ = call;                                                                                      \
        if (result_ == CUDA_SUCCESS && of_->retained > 0)                                                             \
            of_->retained--;                                                                                          \
        gp_charges_end(charges_, result_ == CUDA_SUCCESS && !primary_is_active(device));                              \
        settle(gpu_, device);                                                                                         \
        pthread_mutex_unlock(&lock);                                                                                  \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    GP_CHARGED_OR(REAL(cuDevicePrimaryCtxRelease)(device));
    RELEASE(device, REAL(cuDevicePrimaryCtxRelease)(device));
}

GP_HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    GP_CHARGED_OR(REAL(cuDevicePrimaryCtxRelease_v2)(device));
    RELEASE(device, REAL(cuDevicePrimaryCtxRelease_v2)(device));
}

#define RESET(device, call)                                                                                           \
    do {                                                                                                              \
        struct gp_gpu *gpu_ = gp_gpu_of(device);                                                                      \
        if (gpu_ == NULL)                                                                                             \
            return call;                                                                                              \
        pthread_mutex_lock(&lock);                                                                                    \
        struct gp_charge *charges_ = close_begin(of_gpus[gpu_->index].primary, device);                               \
        CUresult result_ = call;                                                                                      \
        gp_charges_end(charges_, result_ == CUDA_SUCCESS);                                                            \
        settle(gpu_, device);                                                                                         \
        pthread_mutex_unlock(&lock);                                                                                  \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    GP_CHARGED_OR(REAL(cuDevicePrimaryCtxReset)(device));
    RESET(device, REAL(cuDevicePrimaryCtxReset)(device));
}

GP_HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    GP_CHARGED_OR(REAL(cuDevicePrimaryCtxReset_v2)(device));
    RESET(device, REAL(cuDevicePrimaryCtxReset_v2)(device));
}
