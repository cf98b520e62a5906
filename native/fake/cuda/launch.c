/* Launches of kernels, in all forms. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

CUresult fake_check_launch(const struct launch *launch) {
    for (int i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    if (threads > 1024 || launch->block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
    if (launch->grid[0] > 2147483647u || launch->grid[1] > 65535 || launch->grid[2] > 65535) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t allowed = (uint32_t)launch->kernel->dynamic_shared_bytes;
    return launch->shared_bytes <= 49152 || launch->shared_bytes <= allowed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fake_launch(const struct launch *launch, CUstream handle) {
    bool captured;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (captured) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_KERNEL, launch);
    CUcontext context = stream->context;
    struct gpu *gpu = context->gpu;
    struct work work = {.cost_ns = fake_kernel_cost(launch, gpu), .kernels = 1, .launch = true};
    fake_kernel_effect(launch, context, &work.run, &work.data);
    if (gpu->launches_pending >= 1024) fake_wait_launches(gpu);
    if (stream->magic != MAGIC_STREAM) { /* destroyed while this waited */
        free(work.data);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    gpu->shared->state->processes[gpu->slot].launches++;
    fake_issue(stream, &work);
    return context->error;
}

struct shape {
    unsigned int grid[3], block[3], shared_bytes;
};

/* A plain or a cooperative launch; a cooperative one must fit on the card at once. */
static CUresult launch(CUfunction function, struct shape shape, CUstream stream, void **parameters, void **extra,
                       bool cooperative) {
    struct launch asked = {.shared_bytes = shape.shared_bytes};
    CUresult result = fake_kernel_of(function, &asked.kernel);
    if (result != CUDA_SUCCESS) return result;
    memcpy(asked.grid, shape.grid, sizeof asked.grid);
    memcpy(asked.block, shape.block, sizeof asked.block);
    result = fake_check_launch(&asked);
    if (result == CUDA_SUCCESS) result = fake_read_parameters(&asked, parameters, extra);
    if (result != CUDA_SUCCESS) return result;
    CUstream found;
    result = fake_stream(stream, &found);
    if (result != CUDA_SUCCESS) return result;
    uint64_t blocks = (uint64_t)shape.grid[0] * shape.grid[1] * shape.grid[2];
    uint64_t threads = (uint64_t)shape.block[0] * shape.block[1] * shape.block[2];
    uint64_t at_once = (uint64_t)found->context->gpu->shared->gpu->multiprocessors * (2048 / threads);
    if (cooperative && blocks > at_once) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return fake_launch(&asked, stream);
}

#define SHAPE(gx, gy, gz, bx, by, bz, shared) ((struct shape){{gx, gy, gz}, {bx, by, bz}, shared})

API CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                            unsigned int by,
                            unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra) {
    ENTER;
    return launch(function, SHAPE(gx, gy, gz, bx, by, bz, shared), stream, parameters, extra, false);
}

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                       unsigned int bx,
                                       unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                                           void **parameters) {
    ENTER;
    return launch(function, SHAPE(gx, gy, gz, bx, by, bz, shared), stream, parameters, NULL, true);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **parameters, void **extra) {
    bool cooperative = false;
    CUevent done = NULL;
    ENTER;
    if (c == NULL || (c->numAttrs > 0 && c->attrs == NULL)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = c->attrs[i].value.cooperative != 0;
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            done = c->attrs[i].value.launchCompletionEvent.event;
        }
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) done = c->attrs[i].value.programmaticEvent.event;
    }
    struct shape shape = SHAPE(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                               c->sharedMemBytes);
    CUresult result = launch(function, shape, c->hStream, parameters, extra, cooperative);
    CUstream stream;
    if (result == CUDA_SUCCESS && fake_is_event(done) && fake_stream(c->hStream, &stream) == CUDA_SUCCESS &&
        stream->capture == NULL) {
        fake_record(done, stream);
    }
    return result;
}

/* Launches once on each device, in the given order. */
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    ENTER;
    if (list == NULL || count == 0 || count > fake_device_count() || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *p = &list[i];
        if (p->hStream == NULL) return CUDA_ERROR_INVALID_VALUE;
        struct shape shape = SHAPE(p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ,
                                   p->sharedMemBytes);
        CUresult result = launch(p->function, shape, p->hStream, p->kernelParams, NULL, true);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

/* The oldest way: parameters and shape are set on the function first. */
API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    struct kernel *kernel;
    ENTER;
    CUresult result = fake_kernel_of(function, &kernel);
    if (result != CUDA_SUCCESS) return result;
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    memcpy(kernel->block, (uint32_t[3]){(uint32_t)x, (uint32_t)y, (uint32_t)z}, sizeof kernel->block);
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    struct kernel *kernel;
    ENTER;
    (void)bytes;
    return fake_kernel_of(function, &kernel);
}

static CUresult set_parameter(CUfunction function, int offset, const void *value, size_t size) {
    struct kernel *kernel;
    CUresult result = fake_kernel_of(function, &kernel);
    if (result != CUDA_SUCCESS) return result;
    if (offset < 0) return CUDA_ERROR_INVALID_VALUE;
    if ((size_t)offset + size <= sizeof kernel->parameters) memcpy(kernel->parameters + offset, value, size);
    return CUDA_SUCCESS;
}

API CUresult cuParamSetSize(CUfunction function, unsigned int bytes) {
    ENTER;
    (void)bytes;
    return set_parameter(function, 0, NULL, 0);
}

API CUresult cuParamSeti(CUfunction function, int offset, unsigned int value) {
    ENTER;
    return set_parameter(function, offset, &value, sizeof value);
}

API CUresult cuParamSetf(CUfunction function, int offset, float value) {
    ENTER;
    return set_parameter(function, offset, &value, sizeof value);
}

API CUresult cuParamSetv(CUfunction function, int offset, void *value, unsigned int bytes) {
    ENTER;
    return value != NULL ? set_parameter(function, offset, value, bytes) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult launch_set(CUfunction function, int width, int height, CUstream stream) {
    struct launch asked = {.grid = {(uint32_t)width, (uint32_t)height, 1}};
    CUresult result = fake_kernel_of(function, &asked.kernel);
    if (result != CUDA_SUCCESS) return result;
    if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
    memcpy(asked.block, asked.kernel->block, sizeof asked.block);
    memcpy(asked.parameters, asked.kernel->parameters, sizeof asked.parameters);
    result = fake_check_launch(&asked);
    return result == CUDA_SUCCESS ? fake_launch(&asked, stream) : result;
}

API CUresult cuLaunch(CUfunction function) {
    ENTER;
    return launch_set(function, 1, 1, NULL);
}

API CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    ENTER;
    return launch_set(function, width, height, NULL);
}

API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    ENTER;
    return launch_set(function, width, height, stream);
}
