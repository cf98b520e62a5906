/* Plain, pitched and managed memory: the request is charged from before the driver's allocation until after its free.
 *
 * Managed memory is charged in full from the start, because it may move to the GPU at any time. Pinned host memory is
 * not GPU memory. Memory opened from another process is charged to its owner.
 */
#include "memory.h"

#define PITCH_BYTES 512u /* drivers round rows up to this */

/* Calls the driver between reservation and record. `pointer`: an lvalue that the call sets. */
#define ALLOCATE(bytes, pointer, call)                                                                                \
    do {                                                                                                              \
        struct gp_gpu *gpu_;                                                                                          \
        if (!gp_memory_gpu(&gpu_))                                                                                    \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        if (gpu_ == NULL || (bytes) == 0)                                                                             \
            return call;                                                                                              \
        struct gp_charge *charge_ = gp_charge_reserve(gpu_, bytes);                                                   \
        if (charge_ == NULL)                                                                                          \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        CUresult result_ = call;                                                                                      \
        if (result_ == CUDA_SUCCESS)                                                                                  \
            gp_charge_keep(charge_, (uint64_t)(pointer));                                                             \
        else                                                                                                          \
            gp_charge_drop(charge_);                                                                                  \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    GP_ATTACHED_OR(REAL(cuMemAlloc)(pointer, bytes));
    ALLOCATE(bytes, *pointer, REAL(cuMemAlloc)(pointer, bytes));
}

GP_HOOK CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    GP_ATTACHED_OR(REAL(cuMemAlloc_v2)(pointer, bytes));
    ALLOCATE(bytes, *pointer, REAL(cuMemAlloc_v2)(pointer, bytes));
}

GP_HOOK CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    GP_ATTACHED_OR(REAL(cuMemAllocManaged)(pointer, bytes, flags));
    ALLOCATE(bytes, *pointer, REAL(cuMemAllocManaged)(pointer, bytes, flags));
}

/* -- pitched: what is charged is known exactly only afterwards ---------------------------------------------------- */

static uint64_t pitched_bytes(uint64_t width, uint64_t height) {
    uint64_t pitch = gp_round_up(width, PITCH_BYTES);
    return height != 0 && pitch > UINT64_MAX / height ? UINT64_MAX : pitch * height;
}

/* Handles the driver's allocation: false if it is larger than the charge and the slice has no room for it. */
static bool corrected(struct gp_charge *charge, uint64_t bytes) {
    if (bytes > charge->bytes) {
        if (!gp_reserve(charge->gpu, bytes - charge->bytes, GP_PLAIN))
            return false;
    } else if (bytes < charge->bytes) {
        gp_unreserve(charge->gpu, charge->bytes - bytes, GP_PLAIN);
    }
    charge->bytes = bytes;
    return true;
}

/* Both sizes are multiples of 512, so that a difference can be released separately. */
static CUresult keep_pitched(struct gp_charge *charge, uint64_t pointer, uint64_t bytes, bool old) {
    if (corrected(charge, gp_round_up(bytes, PITCH_BYTES))) {
        gp_charge_keep(charge, pointer);
        return CUDA_SUCCESS;
    }
    if (old)
        OWN(cuMemFree, (CUdeviceptr_v1)pointer);
    else
        OWN(cuMemFree_v2, pointer);
    gp_charge_drop(charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Returns CUDA_SUCCESS with a charge, or without one if the driver is to be called without it. */
static CUresult reserve_pitched(uint64_t width, uint64_t height, struct gp_charge **charge) {
    struct gp_gpu *gpu;
    *charge = NULL;
    if (!gp_memory_gpu(&gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (gpu == NULL || width == 0 || height == 0)
        return CUDA_SUCCESS;
    *charge = gp_charge_reserve(gpu, pitched_bytes(width, height));
    return *charge == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

#define ALLOCATE_PITCHED(pointer, pitch, width, height, old, call)                                                    \
    do {                                                                                                              \
        struct gp_charge *charge_;                                                                                    \
        CUresult result_ = reserve_pitched(width, height, &charge_);                                                  \
        if (result_ != CUDA_SUCCESS)                                                                                  \
            return result_;                                                                                           \
        result_ = call;                                                                                               \
        if (charge_ == NULL)                                                                                          \
            return result_;                                                                                           \
        if (result_ == CUDA_SUCCESS)                                                                                  \
            return keep_pitched(charge_, *(pointer), (uint64_t) * (pitch) * (height), old);                           \
        gp_charge_drop(charge_);                                                                                      \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                                 unsigned int element) {
    GP_ATTACHED_OR(REAL(cuMemAllocPitch)(pointer, pitch, width, height, element));
    ALLOCATE_PITCHED(pointer, pitch, width, height, true,
                     REAL(cuMemAllocPitch)(pointer, pitch, width, height, element));
}

GP_HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                    unsigned int element) {
    GP_ATTACHED_OR(REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element));
    ALLOCATE_PITCHED(pointer, pitch, width, height, false,
                     REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element));
}

/* -- freeing --------------------------------------------------------------------------------------------------------- */

#define FREE(pointer, call)                                                                                           \
    do {                                                                                                              \
        struct gp_charge *charge_ = gp_charge_find(pointer);                                                          \
        CUresult result_ = call;                                                                                      \
        if (charge_ == NULL)                                                                                          \
            return result_;                                                                                           \
        if (result_ == CUDA_SUCCESS)                                                                                  \
            gp_charge_drop(charge_);                                                                                  \
        else                                                                                                          \
            gp_charge_keep(charge_, pointer);                                                                         \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    GP_CHARGED_OR(REAL(cuMemFree)(pointer));
    FREE(pointer, REAL(cuMemFree)(pointer));
}

GP_HOOK CUresult cuMemFree_v2(CUdeviceptr pointer) {
    GP_CHARGED_OR(REAL(cuMemFree_v2)(pointer));
    FREE(pointer, REAL(cuMemFree_v2)(pointer));
}

static CUresult free_later(struct gp_charge *charge, CUdeviceptr pointer, CUstream stream, bool per_thread,
                           CUresult result) {
    if (charge != NULL && result == CUDA_SUCCESS)
        gp_late_add(charge, stream, per_thread);
    else if (charge != NULL)
        gp_charge_keep(charge, pointer);
    return result;
}

GP_HOOK CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    GP_CHARGED_OR(REAL(cuMemFreeAsync)(pointer, stream));
    struct gp_charge *charge = gp_charge_find(pointer);
    return free_later(charge, pointer, stream, false, REAL(cuMemFreeAsync)(pointer, stream));
}

GP_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    GP_CHARGED_OR(REAL(cuMemFreeAsync_ptsz)(pointer, stream));
    struct gp_charge *charge = gp_charge_find(pointer);
    return free_later(charge, pointer, stream, true, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}
