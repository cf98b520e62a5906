/* Contexts: a process needs one on a GPU before any other operation there.
 *
 * The first of a process on a GPU takes that GPU's context_bytes, or GPUPOOL_FAKE_CONTEXT_MIB; its end gives them back.
 * Each module that is loaded takes GPUPOOL_FAKE_CONTEXT_GROWTH_MIB more (default 0). Both variables are for tests. All of a process's contexts
 * on one GPU share one place in the GPU's time, where a real driver would give each its own time slices.
 */
#include <stdlib.h>

#include "fake.h"

#define SIZE_VARIABLE "GPUPOOL_FAKE_CONTEXT_MIB"
#define GROWTH_VARIABLE "GPUPOOL_FAKE_CONTEXT_GROWTH_MIB"
#define MIB_LIMIT (UINT64_C(1) << 30)

uint64_t fake_next_id(void) {
    static uint64_t last;
    return ++last;
}

bool fake_is_context(CUcontext context) { return context != NULL && context->magic == MAGIC_CONTEXT && context->alive; }

/* A primary context may become current before it is retained; calls that need it fail until then. */
bool fake_may_be_current(CUcontext context) {
    return fake_is_context(context) || (context->magic == MAGIC_CONTEXT && context->primary);
}

bool fake_joined(struct gpu *gpu) {
    if (gpu->slot < 0) {
        fake_lock(gpu->shared);
        gpu->slot = fake_join(gpu->shared);
        fake_unlock(gpu->shared);
    }
    return gpu->slot >= 0;
}

/* Returns a size in MiB from the environment, in bytes; `otherwise` if the variable is unset or not a number. */
static uint64_t size_variable(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long long mib = text != NULL ? strtoull(text, &end, 10) : 0;
    return text != NULL && end != text && *end == '\0' && mib < MIB_LIMIT ? mib << 20 : otherwise;
}

static bool take(struct gpu *gpu, uint64_t bytes) {
    if (!fake_take(gpu->shared, gpu->slot, FAKE_CONTEXT, bytes)) return false;
    gpu->context_bytes += bytes;
    return true;
}

/* Takes the memory of contexts. */
static CUresult arrive(struct gpu *gpu) {
    if (!fake_joined(gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (gpu->context_count > 0) return CUDA_SUCCESS;
    bool there = take(gpu, size_variable(SIZE_VARIABLE, gpu->shared->gpu->context_bytes));
    return there ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fake_context_grow(struct gpu *gpu) {
    uint64_t bytes = size_variable(GROWTH_VARIABLE, 0);
    return bytes == 0 || take(gpu, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void set_limits(CUcontext context) {
    static const size_t usual[] = {1024, 1048576, 8388608, 2, 2048, 64, 0};
    for (size_t i = 0; i < sizeof context->limits / sizeof *context->limits; i++) {
        context->limits[i] = i < sizeof usual / sizeof *usual ? usual[i] : 0;
    }
}

/* Returns the same context for the whole life of the process, active or not. NULL: out of memory. */
CUcontext fake_primary_context(struct gpu *gpu) {
    if (gpu->primary == NULL) gpu->primary = calloc(1, sizeof *gpu->primary);
    if (gpu->primary != NULL && gpu->primary->magic != MAGIC_CONTEXT) {
        *gpu->primary = (struct gp_CUcontext){.magic = MAGIC_CONTEXT, .gpu = gpu, .primary = true};
    }
    return gpu->primary;
}

CUresult fake_context_open(struct gpu *gpu, bool primary, uint32_t flags, uint32_t version, CUcontext *opened) {
    if (fake_faults_of(gpu->shared->gpu->index).vanished) return CUDA_ERROR_UNKNOWN;
    CUresult result = arrive(gpu);
    if (result != CUDA_SUCCESS) return result;
    CUcontext context = primary ? fake_primary_context(gpu) : calloc(1, sizeof *context);
    if (context == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *context = (struct gp_CUcontext){.magic = MAGIC_CONTEXT, .gpu = gpu, .primary = primary, .alive = true,
                                     .flags = flags, .version = version, .id = fake_next_id()};
    set_limits(context);
    context->legacy = fake_stream_new(context, CU_STREAM_DEFAULT, 0);
    context->legacy->legacy = true;
    gpu->context_count++;
    *opened = context;
    return CUDA_SUCCESS;
}

static bool belongs(struct range *range, void *context) {
    if (range->context != context) return false;
    if (range->kind == RANGE_DEVICE || range->kind == RANGE_MANAGED) {
        fake_give(range->gpu->shared, range->gpu->slot, FAKE_PLAIN, range->charged);
    }
    else if (range->kind == RANGE_ARRAY) fake_give(range->gpu->shared, range->gpu->slot, FAKE_ARRAY, range->charged);
    else return false;
    fake_space_give(fake_addresses(), range->base, ALIGN_UP(range->bytes, UNIT_BYTES));
    fake_forget(range->base, range->bytes);
    return true;
}

/* The functions that are called may call the driver. */
static void end_stored(CUcontext context) {
    while (context->stored != NULL) {
        struct stored *stored = context->stored;
        context->stored = stored->next;
        if (stored->end != NULL) {
            pthread_mutex_unlock(&fake_mutex);
            stored->end(context, stored->key, stored->value);
            pthread_mutex_lock(&fake_mutex);
        }
        free(stored);
    }
}

/* Ends its work and frees its memory; the memory of the context itself stays, so that old handles are recognised. */
void fake_context_close(CUcontext context) {
    struct gpu *gpu = context->gpu;
    end_stored(context);
    fake_wait_gpu(gpu, context);
    context->alive = false;
    for (struct gp_CUstream *stream = gpu->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->context == context) fake_stream_retire(stream);
    }
    fake_ranges_each(belongs, context);
    if (--gpu->context_count > 0) return;
    fake_pools_close(gpu);
    fake_graphs_close(gpu);
    fake_give(gpu->shared, gpu->slot, FAKE_CONTEXT, gpu->context_bytes);
    gpu->context_bytes = 0;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (!fake_is_context(gpu->primary)) {
        CUresult result = fake_context_open(gpu, true, gpu->primary_flags, 3020, context);
        if (result != CUDA_SUCCESS) return result;
    }
    gpu->primary_count++;
    *context = gpu->primary;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (gpu->primary_count == 0 || !fake_is_context(gpu->primary)) return CUDA_ERROR_INVALID_CONTEXT;
    if (--gpu->primary_count == 0) fake_context_close(gpu->primary);
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (fake_is_context(gpu->primary)) fake_context_close(gpu->primary);
    gpu->primary_count = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~(unsigned int)CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    gpu->primary_flags = flags;
    if (fake_is_context(gpu->primary)) gpu->primary->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (flags == NULL || active == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = gpu->primary_flags;
    *active = fake_is_context(gpu->primary);
    return CUDA_SUCCESS;
}
