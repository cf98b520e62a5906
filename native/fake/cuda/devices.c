/* Devices: names and sizes. */
#include <stdio.h>
#include <string.h>

#include "fake.h"

#define ENTER_DEVICE(name, ordinal)                                                                                   \
    ENTER;                                                                                                            \
    struct gpu *name = fake_gpu(ordinal);                                                                             \
    if (name == NULL) return CUDA_ERROR_INVALID_DEVICE

API CUresult cuDeviceGetCount(int *count) {
    ENTER;
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)fake_device_count();
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER_DEVICE(gpu, ordinal);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = gpu->ordinal;
    return CUDA_SUCCESS;
}

/* Returns the model's name, with a mark that it is simulated. */
API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (name == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    const struct fake_device *shared = gpu->shared;
    const char *mig = shared->mig != NULL ? " MIG " : "", *profile = shared->mig != NULL ? shared->mig->profile : "";
    snprintf(name, (size_t)length, "%s%s%s (emulated)", shared->gpu->name, mig, profile);
    return CUDA_SUCCESS;
}

/* Returns the card's name, also for an instance of it; the second form gives the instance's own. */
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (uuid == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, gpu->shared->gpu->uuid_bytes, 16);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (uuid == NULL) return CUDA_ERROR_INVALID_VALUE;
    const struct fake_device *shared = gpu->shared;
    memcpy(uuid->bytes, shared->mig != NULL ? shared->mig->uuid_bytes : shared->gpu->uuid_bytes, 16);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    *bytes = gpu->shared->state->memory_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (major == NULL || minor == NULL) return CUDA_ERROR_INVALID_VALUE;
    *major = (int)gpu->shared->gpu->major;
    *minor = (int)gpu->shared->gpu->minor;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (text == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)length, "0000:%02X:00.0", gpu->shared->gpu->index + 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    unsigned int domain, bus, slot, function = 0;
    ENTER;
    if (device == NULL || text == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < fake_device_count(); i++) {
        if (fake_gpu((CUdevice)i)->shared->gpu->index + 1 != bus) continue;
        *device = (CUdevice)i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER_DEVICE(gpu, device);
    if (can == NULL || fake_gpu(peer) == NULL) return CUDA_ERROR_INVALID_VALUE;
    bool broken = fake_faults_of(gpu->shared->gpu->index).no_peer || fake_faults_of(fake_gpu(peer)->shared->gpu->index).no_peer;
    *can = peer != gpu->ordinal && !broken;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device) {
    ENTER_DEVICE(gpu, device);
    if (supported == NULL || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return gpu->ordinal == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) {
    ENTER;
    (void)attribute;
    if (value == NULL || fake_gpu(source) == NULL || fake_gpu(target) == NULL || source == target) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = 1;
    return CUDA_SUCCESS;
}
