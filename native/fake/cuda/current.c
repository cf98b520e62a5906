/* The contexts of a thread: a stack, the topmost of which is current. */
#include "fake.h"

#define DEPTH 64

static __thread struct {
    CUcontext contexts[DEPTH];
    int count;
} stack;

CUcontext fake_top(void) { return stack.count > 0 ? stack.contexts[stack.count - 1] : NULL; }

CUresult fake_current(CUcontext *context) {
    *context = fake_top();
    if (*context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    return (*context)->alive ? (*context)->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult fake_current_device(struct gpu **gpu) {
    CUcontext context;
    CUresult result = fake_current(&context);
    if (result == CUDA_SUCCESS) *gpu = context->gpu;
    return result;
}

static CUresult push(CUcontext context) {
    if (stack.count == DEPTH) return CUDA_ERROR_INVALID_VALUE;
    stack.contexts[stack.count++] = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER;
    return fake_is_context(context) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER;
    if (fake_top() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext top = stack.contexts[--stack.count];
    if (context != NULL) *context = top;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER;
    if (context != NULL && !fake_may_be_current(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.count > 0) stack.count--;
    return context != NULL ? push(context) : CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = fake_top();
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER_CONTEXT(context);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->gpu->ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext asked) {
    ENTER;
    CUcontext context = asked != NULL ? asked : fake_top();
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL || !fake_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->gpu->ordinal;
    return CUDA_SUCCESS;
}

/* A new context is current for the thread that made it. */
static CUresult create(CUcontext *context, uint32_t flags, CUdevice device, uint32_t version) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (context == NULL || (flags & ~(uint32_t)CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (stack.count == DEPTH) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_context_open(gpu, false, flags, version, context);
    return result == CUDA_SUCCESS ? push(*context) : result;
}

API CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    return create(context, flags, device, 3010);
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    return create(context, flags, device, 3020);
}

API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                            CUdevice device) {
    if (count != 0 && affinity != NULL) return CUDA_ERROR_NOT_SUPPORTED; /* needs MPS */
    return create(context, flags, device, 3020);
}

API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device) {
    if (parameters != NULL && (parameters->numExecAffinityParams != 0 || parameters->cigParams != NULL)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return create(context, flags, device, 3020);
}

API CUresult cuCtxDestroy_v2(CUcontext context) {
    ENTER;
    if (!fake_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->primary) return CUDA_ERROR_INVALID_VALUE;
    if (fake_top() == context) stack.count--;
    fake_context_close(context);
    return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
