/* Start and end; which devices there are and how they are found. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "fake_nvml.h"

static _Atomic unsigned started; /* nvmlInit less nvmlShutdown */
/* A handle is the address of one of these: [gpu][0] the card, [gpu][1 + i] its i-th instance. */
static struct nvmlDevice_st devices[FAKE_GPUS][1 + FAKE_MIGS];

nvmlReturn_t fake_check_started(void) { return atomic_load(&started) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

nvmlReturn_t fake_check(nvmlDevice_t device) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    const struct nvmlDevice_st *first = &devices[0][0], *last = &devices[FAKE_GPUS - 1][FAKE_MIGS];
    bool known = device >= first && device <= last && device->gpu != NULL;
    if (!known) return NVML_ERROR_INVALID_ARGUMENT;
    fake_migs_refresh();
    if (device->mig >= 0 && !fake_mig_of(device)->usable) return NVML_ERROR_INVALID_ARGUMENT; /* it was destroyed */
    return fake_faults_of(device->gpu->index).vanished ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlDevice_t fake_handle(uint32_t gpu, int mig) {
    nvmlDevice_t device = &devices[gpu][1 + mig];
    device->mig = mig;
    device->gpu = fake_gpu_at(gpu);
    return device;
}

nvmlReturn_t fake_copy(char *to, unsigned int length, const char *text) {
    if (to == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (length < strlen(text) + 1) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (fake_gpu_count() <= 0) return NVML_ERROR_DRIVER_NOT_LOADED;
    atomic_fetch_add(&started, 1);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    unsigned before = atomic_load(&started);
    do {
        if (before == 0) return NVML_ERROR_UNINITIALIZED;
    } while (!atomic_compare_exchange_weak(&started, &before, before - 1));
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)fake_gpu_count();
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || (int)index >= fake_gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
    if (fake_faults_of(index).vanished) return NVML_ERROR_GPU_IS_LOST;
    *device = fake_handle(index, -1);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Returns the device of this UUID on a card; NULL if there is none. */
static nvmlDevice_t find_on(uint32_t index, const char *uuid) {
    const struct fake_gpu *gpu = fake_gpu_at(index);
    if (strcasecmp(gpu->uuid, uuid) == 0) return fake_handle(index, -1);
    for (uint32_t m = 0; m < gpu->mig_count; m++) {
        if (gpu->migs[m].usable && strcasecmp(gpu->migs[m].uuid, uuid) == 0) return fake_handle(index, (int)m);
    }
    return NULL;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    fake_migs_refresh();
    for (uint32_t g = 0; (int)g < fake_gpu_count(); g++) {
        nvmlDevice_t found = find_on(g, uuid);
        if (found == NULL || fake_faults_of(g).vanished) continue;
        *device = found;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    unsigned int number;
    if (serial == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(serial, "EMULATED%u", &number) != 1 || (int)number >= fake_gpu_count()) return NVML_ERROR_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(number, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (text == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int domain = 0, bus = 0, slot = 0;
    bool whole = sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3;
    if (!whole) domain = 0;
    if (!whole && sscanf(text, "%x:%x", &bus, &slot) != 2) return NVML_ERROR_INVALID_ARGUMENT;
    if (domain != 0 || slot != 0 || bus == 0 || (int)bus > fake_gpu_count()) return NVML_ERROR_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}
