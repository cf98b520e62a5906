/* MIG instances as devices, one compute instance in each. instances.c creates and destroys them. */
#include <stdio.h>
#include <string.h>

#include "fake_nvml.h"

enum { MOST_INSTANCES = 7, FIRST_WITH_MIG = 8 /* compute capability */ };

static bool has_mig(nvmlDevice_t device) { return device->gpu->mig_mode; }

/* `3g.40gb` is three seventh of the processors. */
static unsigned int slices(const struct fake_mig *mig) {
    unsigned int found = 0;
    return sscanf(mig->profile, "%ug.", &found) == 1 ? found : 1;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (current == NULL || pending == NULL || device->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->gpu->major < FIRST_WITH_MIG && !has_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = has_mig(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (is_mig == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *is_mig = device->mig >= 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = has_mig(device) ? MOST_INSTANCES : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *found) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (found == NULL || device->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= device->gpu->mig_count || !device->gpu->migs[index].usable) return NVML_ERROR_NOT_FOUND;
    *found = fake_handle(device->gpu->index, (int)index);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *card) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (card == NULL || device->mig < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *card = fake_handle(device->gpu->index, -1);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (id == NULL || device->mig < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *id = fake_mig_of(device)->id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (id == NULL || device->mig < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *id = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (attributes == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->mig < 0) return NVML_ERROR_NOT_SUPPORTED; /* as on real cards: instances only */
    const struct fake_mig *mig = fake_mig_of(device);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = mig->multiprocessors;
    attributes->sharedCopyEngineCount = slices(mig);
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = slices(mig);
    attributes->memorySizeMB = mig->memory_bytes >> 20;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
