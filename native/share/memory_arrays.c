/* Arrays and mipmapped arrays: charged as large as the driver says such an array is.
 *
 * The layout of arrays is not documented, and the driver reports the size only of arrays whose memory is mapped later
 * (DEFERRED_MAPPING). So the hook first creates such a copy, which takes no memory, reads its size, and destroys it. If
 * the driver does not support such arrays, texels are counted, in rows of 512 bytes. Sparse arrays and arrays with
 * deferred mapping have no memory of their own: memory mapped into them is charged as physical memory.
 */
#include "memory.h"

#define ROW_BYTES 512u
#define NO_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

static uint64_t times(uint64_t one, uint64_t other) {
    return one != 0 && other > UINT64_MAX / one ? UINT64_MAX : one * other;
}

static uint64_t texel_bytes(CUarray_format format, unsigned int channels) {
    uint64_t bytes = 4; /* of a channel; formats that are not known here are block-compressed or planar, and smaller */
    if (format == CU_AD_FORMAT_UNSIGNED_INT8 || format == CU_AD_FORMAT_SIGNED_INT8)
        bytes = 1;
    else if (format == CU_AD_FORMAT_UNSIGNED_INT16 || format == CU_AD_FORMAT_SIGNED_INT16 || format == CU_AD_FORMAT_HALF)
        bytes = 2;
    return bytes * (channels == 0 ? 1 : channels);
}

static uint64_t at_least_one(uint64_t extent) { return extent == 0 ? 1 : extent; }

static uint64_t counted(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned int levels) {
    uint64_t sum = 0, width = of->Width, height = of->Height, depth = of->Depth;
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        uint64_t row = gp_round_up(times(width, texel_bytes(of->Format, of->NumChannels)), ROW_BYTES);
        uint64_t bytes = times(times(row, at_least_one(height)), at_least_one(depth));
        sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
        width = at_least_one(width / 2);
        height /= 2;
        if (!(of->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
            depth /= 2;
    }
    return sum;
}

static bool array_size(const CUDA_ARRAY3D_DESCRIPTOR *of, CUdevice device, CUDA_ARRAY_MEMORY_REQUIREMENTS *size) {
    CUarray twin;
    if (!gp_has(GP_cuArrayGetMemoryRequirements) || OWN(cuArray3DCreate_v2, &twin, of) != CUDA_SUCCESS)
        return false;
    CUresult result = OWN(cuArrayGetMemoryRequirements, size, twin, device);
    OWN(cuArrayDestroy, twin);
    return result == CUDA_SUCCESS;
}

static bool mipmap_size(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned int levels, CUdevice device,
                        CUDA_ARRAY_MEMORY_REQUIREMENTS *size) {
    CUmipmappedArray twin;
    if (!gp_has(GP_cuMipmappedArrayGetMemoryRequirements) ||
        OWN(cuMipmappedArrayCreate, &twin, of, levels) != CUDA_SUCCESS)
        return false;
    CUresult result = OWN(cuMipmappedArrayGetMemoryRequirements, size, twin, device);
    OWN(cuMipmappedArrayDestroy, twin);
    return result == CUDA_SUCCESS;
}

/* levels 0: not mipmapped. */
static uint64_t size_of(CUDA_ARRAY3D_DESCRIPTOR of, unsigned int levels) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS size;
    CUdevice device;
    of.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (OWN(cuCtxGetDevice, &device) == CUDA_SUCCESS &&
        (levels == 0 ? array_size(&of, device, &size) : mipmap_size(&of, levels, device, &size)))
        return size.size;
    return counted(&of, levels == 0 ? 1 : levels);
}

/* Returns CUDA_SUCCESS and a charge, or no charge if the driver is to be called without one. */
static CUresult reserve(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned int levels, struct gp_charge **charge) {
    struct gp_gpu *gpu;
    *charge = NULL;
    if (!gp_memory_gpu(&gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (gpu == NULL || of->Flags & NO_MEMORY)
        return CUDA_SUCCESS;
    *charge = gp_charge_reserve(gpu, size_of(*of, levels));
    return *charge == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

#define CREATE(handle, of, levels, call)                                                                              \
    do {                                                                                                              \
        struct gp_charge *charge_;                                                                                    \
        CUresult result_ = reserve(of, levels, &charge_);                                                             \
        if (result_ != CUDA_SUCCESS)                                                                                  \
            return result_;                                                                                           \
        result_ = call;                                                                                               \
        if (charge_ != NULL && result_ == CUDA_SUCCESS)                                                               \
            gp_charge_keep(charge_, (uint64_t)(uintptr_t) * (handle));                                                \
        else if (charge_ != NULL)                                                                                     \
            gp_charge_drop(charge_);                                                                                  \
        return result_;                                                                                               \
    } while (0)

GP_HOOK CUresult cuArrayCreate(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR_v1 *of) {
    GP_ATTACHED_OR(REAL(cuArrayCreate)(handle, of));
    if (handle == NULL || of == NULL)
        return REAL(cuArrayCreate)(handle, of);
    CUDA_ARRAY3D_DESCRIPTOR wide = {of->Width, of->Height, 0, of->Format, of->NumChannels, 0};
    CREATE(handle, &wide, 0, REAL(cuArrayCreate)(handle, of));
}

GP_HOOK CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *of) {
    GP_ATTACHED_OR(REAL(cuArrayCreate_v2)(handle, of));
    if (handle == NULL || of == NULL)
        return REAL(cuArrayCreate_v2)(handle, of);
    CUDA_ARRAY3D_DESCRIPTOR wide = {of->Width, of->Height, 0, of->Format, of->NumChannels, 0};
    CREATE(handle, &wide, 0, REAL(cuArrayCreate_v2)(handle, of));
}

GP_HOOK CUresult cuArray3DCreate(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *of) {
    GP_ATTACHED_OR(REAL(cuArray3DCreate)(handle, of));
    if (handle == NULL || of == NULL)
        return REAL(cuArray3DCreate)(handle, of);
    CUDA_ARRAY3D_DESCRIPTOR wide = {of->Width, of->Height, of->Depth, of->Format, of->NumChannels, of->Flags};
    CREATE(handle, &wide, 0, REAL(cuArray3DCreate)(handle, of));
}

GP_HOOK CUresult cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *of) {
    GP_ATTACHED_OR(REAL(cuArray3DCreate_v2)(handle, of));
    if (handle == NULL || of == NULL)
        return REAL(cuArray3DCreate_v2)(handle, of);
    CREATE(handle, of, 0, REAL(cuArray3DCreate_v2)(handle, of));
}

GP_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *of,
                                        unsigned int levels) {
    GP_ATTACHED_OR(REAL(cuMipmappedArrayCreate)(handle, of, levels));
    if (handle == NULL || of == NULL || levels == 0)
        return REAL(cuMipmappedArrayCreate)(handle, of, levels);
    CREATE(handle, of, levels, REAL(cuMipmappedArrayCreate)(handle, of, levels));
}

static CUresult destroyed(uint64_t handle, struct gp_charge *charge, CUresult result) {
    if (charge != NULL && result == CUDA_SUCCESS)
        gp_charge_drop(charge);
    else if (charge != NULL)
        gp_charge_keep(charge, handle);
    else if (result == CUDA_SUCCESS)
        gp_vmm_array_gone(handle);
    return result;
}

GP_HOOK CUresult cuArrayDestroy(CUarray handle) {
    GP_CHARGED_OR(REAL(cuArrayDestroy)(handle));
    struct gp_charge *charge = gp_charge_find((uint64_t)(uintptr_t)handle);
    return destroyed((uint64_t)(uintptr_t)handle, charge, REAL(cuArrayDestroy)(handle));
}

GP_HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    GP_CHARGED_OR(REAL(cuMipmappedArrayDestroy)(handle));
    struct gp_charge *charge = gp_charge_find((uint64_t)(uintptr_t)handle);
    return destroyed((uint64_t)(uintptr_t)handle, charge, REAL(cuMipmappedArrayDestroy)(handle));
}
