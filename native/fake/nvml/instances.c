/* Creating and destroying MIG instances, with the conditions and error codes that nvml.h documents. The mode itself
 * cannot be changed. A compute instance has all slices of its GPU instance; smaller ones are not simulated. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake_nvml.h"

enum { FIRST_WITH_MIG = 8 /* compute capability */, MOST_SLICES = 7, NUMBERS = 0x12, COMPUTE_NUMBERS = 9 };

struct nvmlGpuInstance_st {
    nvmlDevice_t card;
    uint32_t place; /* in `migs` */
};
struct nvmlComputeInstance_st {
    struct nvmlGpuInstance_st *gpu_instance;
};
static struct nvmlGpuInstance_st gpu_instances[FAKE_GPUS][FAKE_MIGS];
static struct nvmlComputeInstance_st compute_instances[FAKE_GPUS][FAKE_MIGS];

static const struct fake_mig *mig_of(nvmlGpuInstance_t instance) { return &instance->card->gpu->migs[instance->place]; }

static nvmlReturn_t check_card(nvmlDevice_t device, const void *result) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (result == NULL || device->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    return device->gpu->major < FIRST_WITH_MIG && !device->gpu->mig_mode ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* The same, for calls of privileged users on a card in MIG mode. */
static nvmlReturn_t check_privileged(nvmlDevice_t device, const void *result) {
    nvmlReturn_t checked = check_card(device, result);
    if (checked != NVML_SUCCESS) return checked;
    if (!device->gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    return fake_faults_of(device->gpu->index).mig_denied ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

static nvmlReturn_t check_instance(nvmlGpuInstance_t instance) {
    const struct nvmlGpuInstance_st *first = &gpu_instances[0][0], *end = &gpu_instances[FAKE_GPUS][0];
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (instance < first || instance >= end || instance->card == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t checked = fake_check(instance->card);
    if (checked != NVML_SUCCESS) return checked;
    return mig_of(instance)->exists ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlGpuInstance_t handle_at(nvmlDevice_t card, uint32_t place) {
    nvmlGpuInstance_t instance = &gpu_instances[card->gpu->index][place];
    *instance = (struct nvmlGpuInstance_st){card, place};
    return instance;
}

static nvmlComputeInstance_t compute_at(nvmlGpuInstance_t instance) {
    nvmlComputeInstance_t compute = &compute_instances[instance->card->gpu->index][instance->place];
    compute->gpu_instance = instance;
    return compute;
}

/* -- profiles ----------------------------------------------------------------------------------------------------- */

static nvmlReturn_t profile_of(nvmlDevice_t device, unsigned int number, nvmlGpuInstanceProfileInfo_v2_t *info) {
    nvmlReturn_t checked = check_card(device, info);
    if (checked != NVML_SUCCESS) return checked;
    const struct fake_profile *profile = fake_profile_numbered(number);
    if (profile == NULL) return number < NUMBERS ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    char name[32];
    fake_profile_name(profile, device->gpu, name);
    info->id = profile->id;
    info->isP2pSupported = 0;
    info->sliceCount = profile->slices;
    info->instanceCount = profile->media ? 1 : profile->count;
    info->multiprocessorCount = device->gpu->multiprocessors * profile->slices / MOST_SLICES;
    info->copyEngineCount = profile->slices;
    info->decoderCount = info->encoderCount = info->jpegCount = info->ofaCount = profile->media;
    info->memorySizeMB = (device->gpu->memory_bytes >> 20) * profile->memory_slices / 8;
    snprintf(info->name, sizeof info->name, "MIG %s", name);
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

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                               nvmlGpuInstancePlacement_t *places,
                                                               unsigned int *count) {
    nvmlReturn_t checked = check_card(device, count);
    if (checked != NVML_SUCCESS) return checked;
    const struct fake_profile *profile = fake_profile_of_id(id);
    if (profile == NULL) return NVML_ERROR_NOT_SUPPORTED;
    *count = profile->count;
    for (unsigned int i = 0; places != NULL && i < profile->count; i++) {
        places[i] = (nvmlGpuInstancePlacement_t){profile->starts[i], profile->memory_slices};
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count) {
    nvmlReturn_t checked = check_privileged(device, count);
    if (checked != NVML_SUCCESS) return checked;
    const struct fake_profile *profile = fake_profile_of_id(id);
    if (profile == NULL) return NVML_ERROR_NOT_SUPPORTED;
    *count = fake_profile_room(profile, device->gpu, NULL);
    return NVML_SUCCESS;
}

/* -- GPU instances ------------------------------------------------------------------------------------------------ */

/* Sets the amount of memory in the state that processes share, which an earlier instance at this place has left. */
static void resize(uint32_t card, const struct fake_mig *mig, uint32_t place) {
    struct fake_device *device = fake_device_open(card, (int)place);
    if (device == NULL) return;
    fake_lock(device);
    fake_sweep(device);
    device->state->memory_bytes = mig->memory_bytes;
    fake_unlock(device);
}

static void name_at_random(char uuid[96]) {
    uint8_t b[16] = {0};
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC); /* getrandom is not in every C library */
    if (random < 0 || read(random, b, sizeof b) != (ssize_t)sizeof b) b[0] = 1;
    if (random >= 0) close(random);
    snprintf(uuid, 96, "MIG-EMULATED-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Puts an instance into the table, which is fresh and locked. */
static bool put(struct fake_gpu *gpu, const struct fake_profile *profile, int32_t start, uint32_t *place) {
    for (*place = 0; *place < MOST_SLICES && gpu->migs[*place].exists; ++*place) continue;
    if (*place == MOST_SLICES) return false;
    struct fake_mig mig = {.exists = true,
                           .id = *place + 1,
                           .profile_id = profile->id,
                           .start = start,
                           .size = profile->memory_slices,
                           .memory_bytes = gpu->memory_bytes / 8 * profile->memory_slices,
                           .multiprocessors = gpu->multiprocessors * profile->slices / MOST_SLICES};
    fake_profile_name(profile, gpu, mig.profile);
    name_at_random(mig.uuid);
    fake_uuid_bytes(mig.uuid, mig.uuid_bytes);
    gpu->migs[*place] = mig;
    if (*place >= gpu->mig_count) gpu->mig_count = *place + 1;
    return true;
}

/* `wanted`: the place, or NULL for any. */
static nvmlReturn_t create(nvmlDevice_t device, unsigned int id, const nvmlGpuInstancePlacement_t *wanted,
                           nvmlGpuInstance_t *instance) {
    nvmlReturn_t checked = check_privileged(device, instance);
    if (checked != NVML_SUCCESS) return checked;
    const struct fake_profile *profile = fake_profile_of_id(id);
    if (profile == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    struct fake_profile only = *profile; /* with that place alone */
    if (wanted != NULL) {
        only.count = 0;
        for (uint32_t i = 0; i < profile->count; i++) {
            bool same = profile->starts[i] == wanted->start && profile->memory_slices == wanted->size;
            if (same) only.starts[only.count++] = wanted->start;
        }
        if (only.count == 0) return NVML_ERROR_INVALID_ARGUMENT;
    }
    int lock = fake_migs_begin();
    if (lock < 0) return NVML_ERROR_NO_PERMISSION;
    struct fake_gpu *gpu = fake_gpu_changed(device->gpu->index);
    int32_t start;
    uint32_t place;
    bool fits = fake_profile_room(&only, gpu, &start) > 0 && put(gpu, profile, start, &place);
    if (!fake_migs_end(lock, fits)) return NVML_ERROR_UNKNOWN;
    if (!fits) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *instance = handle_at(device, place);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    return create(device, id, NULL, instance);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                          const nvmlGpuInstancePlacement_t *place,
                                                          nvmlGpuInstance_t *instance) {
    return place == NULL ? NVML_ERROR_INVALID_ARGUMENT : create(device, id, place, instance);
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *found,
                                           unsigned int *count) {
    nvmlReturn_t checked = check_privileged(device, count);
    if (checked != NVML_SUCCESS) return checked;
    if (found == NULL || fake_profile_of_id(id) == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (uint32_t k = 0; k < device->gpu->mig_count; k++) {
        const struct fake_mig *mig = &device->gpu->migs[k];
        if (mig->exists && mig->profile_id == id) found[(*count)++] = handle_at(device, k);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    nvmlReturn_t checked = check_privileged(device, instance);
    if (checked != NVML_SUCCESS) return checked;
    for (uint32_t k = 0; k < device->gpu->mig_count; k++) {
        const struct fake_mig *mig = &device->gpu->migs[k];
        if (!mig->exists || mig->id != id) continue;
        *instance = handle_at(device, k);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    nvmlReturn_t checked = check_instance(instance);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fake_mig *mig = mig_of(instance);
    nvmlGpuInstancePlacement_t place = {(unsigned int)mig->start, mig->size};
    *info = (nvmlGpuInstanceInfo_t){instance->card, mig->id, mig->profile_id, place};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    nvmlReturn_t checked = check_instance(instance);
    if (checked == NVML_SUCCESS) checked = check_privileged(instance->card, instance);
    if (checked != NVML_SUCCESS) return checked;
    int lock = fake_migs_begin();
    if (lock < 0) return NVML_ERROR_NO_PERMISSION;
    struct fake_mig *mig = &fake_gpu_changed(instance->card->gpu->index)->migs[instance->place];
    bool in_use = mig->usable;
    if (!in_use) mig->exists = false;
    if (!fake_migs_end(lock, !in_use)) return NVML_ERROR_UNKNOWN;
    return in_use ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}

/* -- compute instances -------------------------------------------------------------------------------------------- */

/* Slices of the compute instance profiles by number; their ids are the numbers. */
static const unsigned int compute_slices[COMPUTE_NUMBERS] = {1, 2, 3, 4, 7};

static unsigned int slices_of(nvmlGpuInstance_t instance) {
    const struct fake_profile *profile = fake_profile_of_id(mig_of(instance)->profile_id);
    return profile != NULL ? profile->slices : 1;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int number,
                                                              unsigned int engines,
                                                              nvmlComputeInstanceProfileInfo_t *info) {
    nvmlReturn_t checked = check_instance(instance);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL || number >= COMPUTE_NUMBERS || engines != 0) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int slices = compute_slices[number], all = slices_of(instance);
    if (slices == 0 || slices > all) return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){.id = number,
                                               .sliceCount = slices,
                                               .instanceCount = all / slices,
                                               .multiprocessorCount = mig_of(instance)->multiprocessors * slices / all};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int number,
                                                               unsigned int engines,
                                                               nvmlComputeInstanceProfileInfo_v2_t *info) {
    nvmlComputeInstanceProfileInfo_t found;
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engines, &found);
    if (result != NVML_SUCCESS) return result;
    *info = (nvmlComputeInstanceProfileInfo_v2_t){.version = info->version,
                                                  .id = found.id,
                                                  .sliceCount = found.sliceCount,
                                                  .instanceCount = found.instanceCount,
                                                  .multiprocessorCount = found.multiprocessorCount};
    snprintf(info->name, sizeof info->name, "MIG %uc.%s", found.sliceCount, mig_of(instance)->profile);
    return NVML_SUCCESS;
}

/* Changes whether there is a compute instance. Its memory is that of the GPU instance. */
static nvmlReturn_t set_usable(nvmlGpuInstance_t instance, bool usable) {
    uint32_t card = instance->card->gpu->index;
    int lock = fake_migs_begin();
    if (lock < 0) return NVML_ERROR_NO_PERMISSION;
    struct fake_mig *mig = &fake_gpu_changed(card)->migs[instance->place];
    mig->usable = usable;
    if (usable) resize(card, mig, instance->place);
    return fake_migs_end(lock, true) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int id,
                                                      nvmlComputeInstance_t *compute) {
    nvmlReturn_t checked = check_instance(instance);
    if (checked == NVML_SUCCESS) checked = check_privileged(instance->card, compute);
    if (checked != NVML_SUCCESS) return checked;
    if (id >= COMPUTE_NUMBERS || compute_slices[id] != slices_of(instance)) return NVML_ERROR_NOT_SUPPORTED;
    struct fake_faults faults = fake_faults_of(instance->card->gpu->index);
    nanosleep(&(struct timespec){faults.slow_instance_ms / 1000, faults.slow_instance_ms % 1000 * 1000000L}, NULL);
    if (faults.no_compute_instance || mig_of(instance)->usable) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    nvmlReturn_t result = set_usable(instance, true);
    if (result == NVML_SUCCESS) *compute = compute_at(instance);
    return result;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int id,
                                                    nvmlComputeInstance_t *found, unsigned int *count) {
    nvmlReturn_t checked = check_instance(instance);
    if (checked == NVML_SUCCESS) checked = check_privileged(instance->card, count);
    if (checked != NVML_SUCCESS) return checked;
    if (found == NULL || id >= COMPUTE_NUMBERS) return NVML_ERROR_INVALID_ARGUMENT;
    *count = mig_of(instance)->usable && compute_slices[id] == slices_of(instance);
    if (*count > 0) found[0] = compute_at(instance);
    return NVML_SUCCESS;
}

/* Returns whether a process uses the instance. */
static bool has_processes(nvmlGpuInstance_t instance) {
    struct fake_device *device = fake_device_open(instance->card->gpu->index, (int)instance->place);
    if (device == NULL) return false;
    fake_lock(device);
    fake_sweep(device);
    uint64_t live = 0;
    for (uint32_t i = 0; i < FAKE_PROCESSES / 64; i++) live |= device->state->live[i];
    fake_unlock(device);
    return live != 0;
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute) {
    const struct nvmlComputeInstance_st *first = &compute_instances[0][0], *end = &compute_instances[FAKE_GPUS][0];
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (compute < first || compute >= end || compute->gpu_instance == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlGpuInstance_t instance = compute->gpu_instance;
    nvmlReturn_t checked = check_instance(instance);
    if (checked == NVML_SUCCESS) checked = check_privileged(instance->card, instance);
    if (checked != NVML_SUCCESS) return checked;
    if (!mig_of(instance)->usable) return NVML_ERROR_INVALID_ARGUMENT;
    return has_processes(instance) ? NVML_ERROR_IN_USE : set_usable(instance, false);
}
