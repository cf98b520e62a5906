/* Finds the GPU of the lease for a device number of the driver, or for the calling thread's context.
 *
 * Devices are distinguished by UUID only: their numbers depend on CUDA_VISIBLE_DEVICES and differ between processes.
 */
#include <string.h>

#include "attach.h"

#define DEVICES 64

/* 0: not queried yet; -1: not of the lease; else index + 1. */
static _Atomic int8_t index_of_device[DEVICES];
static _Atomic int device_count; /* 0: not queried yet; a driver never changes it */

void gp_forget_devices(void) {
    for (int i = 0; i < DEVICES; i++)
        atomic_store_explicit(&index_of_device[i], 0, memory_order_relaxed);
    atomic_store_explicit(&device_count, 0, memory_order_relaxed);
}

static bool read_uuid(CUdevice device, CUuuid *uuid) {
    if (gp_has(GP_cuDeviceGetUuid_v2))
        return OWN(cuDeviceGetUuid_v2, uuid, device) == CUDA_SUCCESS;
    return OWN(cuDeviceGetUuid, uuid, device) == CUDA_SUCCESS;
}

/* Returns the same as index_of_device; 0 if the driver gives no answer, as before cuInit. */
static int8_t look_up(CUdevice device) {
    CUuuid uuid;
    if (!read_uuid(device, &uuid))
        return 0;
    for (uint32_t i = 0; i < gp_gpu_count(); i++)
        if (memcmp(uuid.bytes, gp_gpu_at(i)->control->uuid, sizeof uuid.bytes) == 0)
            return (int8_t)(i + 1);
    return -1;
}

struct gp_gpu *gp_gpu_of(CUdevice device) {
    if (gp_attach() != GP_ATTACHED || device < 0 || device >= DEVICES)
        return NULL;
    int8_t known = atomic_load_explicit(&index_of_device[device], memory_order_relaxed);
    if (GP_UNLIKELY(known == 0)) {
        known = look_up(device);
        atomic_store_explicit(&index_of_device[device], known, memory_order_relaxed);
    }
    return known > 0 ? gp_gpu_at((uint32_t)known - 1) : NULL;
}

struct gp_gpu *gp_gpu_of_only_device(void) {
    int count = atomic_load_explicit(&device_count, memory_order_relaxed);
    if (GP_UNLIKELY(count == 0)) {
        if (OWN(cuDeviceGetCount, &count) != CUDA_SUCCESS)
            return NULL;
        atomic_store_explicit(&device_count, count, memory_order_relaxed);
    }
    return count == 1 ? gp_gpu_of(GP_ONLY_DEVICE) : NULL;
}

struct gp_gpu *gp_gpu_of_context(void) {
    if (gp_attach() != GP_ATTACHED)
        return NULL;
    if (gp_gpu_count() == 1)
        return gp_gpu_at(0);
    CUdevice device;
    return OWN(cuCtxGetDevice, &device) == CUDA_SUCCESS ? gp_gpu_of(device) : NULL;
}
