/* MIG: the instances that gpus.conf describes, one compute instance in each. The layout cannot be changed. */
#include <stdio.h>
#include <string.h>

#include "fake_nvml.h"

enum { MOST_INSTANCES = 7, FIRST_WITH_MIG = 8 /* compute capability */ };

static bool has_mig(nvmlDevice_t device) { return device->gpu->mig_count > 0; }

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
    if (index >= device->gpu->mig_count) return NVML_ERROR_NOT_FOUND;
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
    *id = (unsigned int)device->mig + 1;
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

/* Profiles: numbers 0 to 4 stand for 1, 2, 3, 4 and 7 slices. Memory comes in eighths of the card's. */
static nvmlReturn_t profile_of(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info) {
    static const unsigned int compute[] = {1, 2, 3, 4, 7}, memory[] = {1, 2, 4, 4, 8};
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL || device->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->gpu->major < FIRST_WITH_MIG || profile > 4) return NVML_ERROR_NOT_SUPPORTED;
    info->id = profile;
    info->isP2pSupported = 0;
    info->sliceCount = compute[profile];
    info->instanceCount = MOST_INSTANCES / compute[profile];
    info->multiprocessorCount = device->gpu->multiprocessors * compute[profile] / MOST_INSTANCES;
    info->copyEngineCount = compute[profile];
    info->decoderCount = info->encoderCount = info->jpegCount = info->ofaCount = 0;
    info->memorySizeMB = (device->gpu->memory_bytes >> 20) * memory[profile] / 8;
    snprintf(info->name, sizeof info->name, "MIG %ug.%llugb", info->sliceCount, (info->memorySizeMB + 1023) / 1024);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return profile_of(device, profile, info);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                     nvmlGpuInstanceProfileInfo_t *info) {
    nvmlGpuInstanceProfileInfo_v2_t found;
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = profile_of(device, profile, &found);
    if (result != NVML_SUCCESS) return result;
    *info = (nvmlGpuInstanceProfileInfo_t){.id = found.id,
                                           .sliceCount = found.sliceCount,
                                           .instanceCount = found.instanceCount,
                                           .multiprocessorCount = found.multiprocessorCount,
                                           .copyEngineCount = found.copyEngineCount,
                                           .memorySizeMB = found.memorySizeMB};
    return NVML_SUCCESS;
}
