/* Hooks that report the size and the free memory of the slice, equal to the byte in all processes of the tenant. */
#include <limits.h>

#include "memory.h"

static void shown(const struct gp_gpu *gpu, uint64_t *available, uint64_t *total) {
    *total = gpu->control->memory_limit_bytes;
    *available = *total - gp_used(gpu);
}

static struct gp_gpu *looked_at(CUresult result) {
    CUdevice device;
    if (result != CUDA_SUCCESS || gp_attach() != GP_ATTACHED || OWN(cuCtxGetDevice, &device) != CUDA_SUCCESS)
        return NULL;
    struct gp_gpu *gpu = gp_gpu_of(device);
    if (gpu != NULL)
        gp_pools_settle(gpu);
    return gpu;
}

GP_HOOK CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    CUresult result = REAL(cuMemGetInfo_v2)(available, total);
    struct gp_gpu *gpu = looked_at(result);
    if (gpu != NULL) {
        uint64_t sizes[2];
        shown(gpu, &sizes[0], &sizes[1]);
        *available = sizes[0];
        *total = sizes[1];
    }
    return result;
}

static unsigned int narrow(uint64_t bytes) { return bytes > UINT_MAX ? UINT_MAX : (unsigned int)bytes; }

GP_HOOK CUresult cuMemGetInfo(unsigned int *available, unsigned int *total) {
    CUresult result = REAL(cuMemGetInfo)(available, total);
    struct gp_gpu *gpu = looked_at(result);
    if (gpu != NULL) {
        uint64_t sizes[2];
        shown(gpu, &sizes[0], &sizes[1]);
        *available = narrow(sizes[0]);
        *total = narrow(sizes[1]);
    }
    return result;
}

GP_HOOK CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    struct gp_gpu *gpu = result == CUDA_SUCCESS ? gp_gpu_of(device) : NULL;
    if (gpu != NULL)
        *bytes = gpu->control->memory_limit_bytes;
    return result;
}

GP_HOOK CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    struct gp_gpu *gpu = result == CUDA_SUCCESS ? gp_gpu_of(device) : NULL;
    if (gpu != NULL)
        *bytes = narrow(gpu->control->memory_limit_bytes);
    return result;
}
