/* Arrays and mipmapped arrays: memory with rows, laid out plainly.
 *
 * An array takes 512 bytes or a multiple for each level: rows, rounded up to 32 bytes, times height, times depth. One
 * with deferred mapping takes nothing (and cannot be mapped here); only of such a one may the requirements be asked, as
 * with the real driver.
 */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define ROW_ALIGNMENT 32u
#define DEFERRED_ALIGNMENT 65536u
#define LEVELS 16u
#define LARGEST_SIDE (UINT64_C(1) << 28)

struct gp_CUarray {
    enum magic magic;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct gp_CUmipmappedArray *parent; /* a level of it */
    uint64_t base, bytes, pitch, slice;
};

struct gp_CUmipmappedArray {
    enum magic magic;
    uint64_t base, bytes;
    unsigned int count;
    struct gp_CUarray levels[LEVELS];
};

static uint64_t element_bytes(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static bool lay_out(struct gp_CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    uint64_t element = element_bytes(d->Format) * d->NumChannels, height = d->Height > 0 ? d->Height : 1;
    uint64_t depth = d->Depth > 0 ? d->Depth : 1, bytes;
    if (element == 0 || d->Width == 0 || (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4)) {
        return false;
    }
    if (d->Width > LARGEST_SIDE || height > LARGEST_SIDE || depth > LARGEST_SIDE) return false;
    *array = (struct gp_CUarray){.magic = MAGIC_ARRAY, .descriptor = *d};
    array->pitch = ALIGN_UP(d->Width * element, ROW_ALIGNMENT);
    if (__builtin_mul_overflow(array->pitch, height, &array->slice) ||
        __builtin_mul_overflow(array->slice, depth, &bytes)) {
        return false;
    }
    array->bytes = ALIGN_UP(bytes, UNIT_BYTES);
    return true;
}

/* Returns the address of memory for an array; 0 without room. */
static uint64_t take(CUcontext context, uint64_t bytes, void *owner) {
    struct range *range = fake_allocate(context->gpu, bytes, UNIT_BYTES, RANGE_ARRAY, FAKE_ARRAY);
    if (range == NULL) {
        fake_settle();
        fake_pools_trim_unused(context->gpu);
        range = fake_allocate(context->gpu, bytes, UNIT_BYTES, RANGE_ARRAY, FAKE_ARRAY);
    }
    if (range == NULL) return 0;
    range->context = context;
    range->owner = owner;
    return range->base;
}

API CUresult cuArray3DCreate_v2(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    struct gp_CUarray layout;
    ENTER_CONTEXT(context);
    if (made == NULL || descriptor == NULL || !lay_out(&layout, descriptor)) return CUDA_ERROR_INVALID_VALUE;
    if ((descriptor->Flags & CUDA_ARRAY3D_SPARSE) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    struct gp_CUarray *array = malloc(sizeof *array);
    if (array == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *array = layout;
    bool deferred = (descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0;
    if (!deferred && (array->base = take(context, array->bytes, array)) == 0) {
        free(array);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = array;
    return CUDA_SUCCESS;
}

API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    if (d == NULL) return CUDA_ERROR_INVALID_VALUE;
    return cuArray3DCreate_v2(array, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

static bool is_array(CUarray array) { return array != NULL && array->magic == MAGIC_ARRAY; }

static void give(uint64_t base) {
    struct range *range = base != 0 ? fake_range_find(base) : NULL;
    if (range != NULL && range->base == base && range->kind == RANGE_ARRAY) fake_deallocate(range, FAKE_ARRAY);
}

API CUresult cuArrayDestroy(CUarray array) {
    ENTER;
    if (!is_array(array) || array->parent != NULL) return CUDA_ERROR_INVALID_HANDLE;
    array->magic = 0; /* its memory stays, so that an old handle is recognised */
    for (uint32_t i = 0; i < fake_device_count(); i++) fake_wait_gpu(fake_gpu((CUdevice)i), NULL);
    give(array->base);
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array) {
    ENTER;
    if (descriptor == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray array) {
    ENTER;
    if (d == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    const CUDA_ARRAY3D_DESCRIPTOR *whole = &array->descriptor;
    *d = (CUDA_ARRAY_DESCRIPTOR){whole->Width, whole->Height, whole->Format, whole->NumChannels};
    return CUDA_SUCCESS;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, bool deferred, uint64_t bytes, CUdevice device) {
    if (out == NULL || !deferred) return CUDA_ERROR_INVALID_VALUE;
    if (fake_gpu(device) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    memset(out, 0, sizeof *out);
    out->size = ALIGN_UP(bytes, DEFERRED_ALIGNMENT);
    out->alignment = DEFERRED_ALIGNMENT;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device) {
    ENTER;
    if (!is_array(array)) return CUDA_ERROR_INVALID_VALUE;
    return requirements(out, (array->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0, array->bytes, device);
}

static uint64_t halved(uint64_t side, unsigned int level) {
    return side == 0 ? 0 : side >> level > 0 ? side >> level : 1;
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                    unsigned int count) {
    ENTER_CONTEXT(context);
    if (made == NULL || descriptor == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((descriptor->Flags & CUDA_ARRAY3D_SPARSE) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    struct gp_CUmipmappedArray *array = calloc(1, sizeof *array);
    if (array == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    array->magic = MAGIC_ARRAY;
    array->count = count < LEVELS ? count : LEVELS;
    bool good = true;
    for (unsigned int i = 0; i < array->count && good; i++) {
        CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
        level.Width = halved(level.Width, i);
        level.Height = halved(level.Height, i);
        if ((level.Flags & CUDA_ARRAY3D_LAYERED) == 0) level.Depth = halved(level.Depth, i);
        good = lay_out(&array->levels[i], &level);
        array->levels[i].parent = array;
        array->bytes += array->levels[i].bytes;
    }
    bool deferred = (descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0;
    if (good && !deferred) array->base = take(context, array->bytes, array);
    if (!good || (!deferred && array->base == 0)) {
        free(array);
        return good ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t at = array->base;
    for (unsigned int i = 0; i < array->count && !deferred; at += array->levels[i++].bytes) array->levels[i].base = at;
    *made = array;
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    ENTER;
    if (array == NULL || array->magic != MAGIC_ARRAY) return CUDA_ERROR_INVALID_HANDLE;
    array->magic = 0;
    for (unsigned int i = 0; i < array->count; i++) array->levels[i].magic = 0;
    for (uint32_t i = 0; i < fake_device_count(); i++) fake_wait_gpu(fake_gpu((CUdevice)i), NULL);
    give(array->base);
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned int index) {
    ENTER;
    if (array == NULL || array->magic != MAGIC_ARRAY) return CUDA_ERROR_INVALID_HANDLE;
    if (level == NULL || index >= array->count) return CUDA_ERROR_INVALID_VALUE;
    *level = &array->levels[index];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array,
                                                   CUdevice device) {
    ENTER;
    if (array == NULL || array->magic != MAGIC_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    return requirements(out, (array->levels[0].descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0, array->bytes,
                        device);
}

uint64_t fake_array_base(CUarray array, uint64_t *pitch, uint64_t *slice, uint64_t *bytes) {
    if (!is_array(array)) return 0;
    *pitch = array->pitch;
    *slice = array->slice;
    *bytes = array->bytes;
    return array->base;
}
