/* Attributes and settings of contexts. */
#include "fake.h"

API CUresult cuCtxGetFlags(unsigned int *flags) {
    ENTER_CONTEXT(context);
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned int flags) {
    ENTER_CONTEXT(context);
    if ((flags & ~(unsigned int)CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext asked, unsigned long long *id) {
    ENTER;
    CUcontext context = asked != NULL ? asked : fake_top();
    if (!fake_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext asked, unsigned int *version) {
    ENTER;
    CUcontext context = asked != NULL ? asked : fake_top();
    if (!fake_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = context->version;
    return CUDA_SUCCESS;
}

#define LIMITS 10       /* of CUDA 13 */
#define GRAPHICS_LIMIT 7 /* this and later: shared memory and state of contexts for graphics, which there are none of */

API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    ENTER_CONTEXT(context);
    if (value == NULL || (int)limit < 0 || (int)limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    *value = (int)limit < GRAPHICS_LIMIT ? context->limits[limit] : 0; /* cuBLAS needs an answer to both */
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    ENTER_CONTEXT(context);
    if ((int)limit < 0 || (int)limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    if ((int)limit >= GRAPHICS_LIMIT) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
    ENTER_CONTEXT(context);
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *config = 0;
    return context->error;
}

API CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    ENTER_CONTEXT(context);
    (void)config;
    return context->error;
}

API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    ENTER_CONTEXT(context);
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *config = 1;
    return context->error;
}

API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    ENTER_CONTEXT(context);
    (void)config;
    return context->error;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT(context);
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return context->error;
}

API CUresult cuCtxResetPersistingL2Cache(void) {
    ENTER_CONTEXT(context);
    return context->error;
}

/* Memory of one device of this process can always be reached from another. */
API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    ENTER_CONTEXT(context);
    if (!fake_is_context(peer) || peer->gpu == context->gpu) return CUDA_ERROR_INVALID_CONTEXT;
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    ENTER_CONTEXT(context);
    return fake_is_context(peer) && peer->gpu != context->gpu ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxSynchronize(void) {
    ENTER_CONTEXT(context);
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    fake_wait_gpu(context->gpu, context);
    fake_pools_after_sync(context->gpu);
    return context->error;
}

API CUresult cuCtxSynchronize_v2(CUcontext asked) {
    ENTER;
    CUcontext context = asked != NULL ? asked : fake_top();
    if (!fake_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    fake_wait_gpu(context->gpu, context);
    fake_pools_after_sync(context->gpu);
    return context->error;
}
