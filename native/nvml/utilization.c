/* Hooks that report the utilisation of the lease's own processes, in percent of the whole card's time: a busy slice of a
 * quarter shows about 25. The work of other leases is not included. If the driver has no figures for each process (MIG,
 * some old cards), the utilisation of the whole card is reported. */
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "own.h"

enum { WINDOW_US = 1000000 };

struct question {
    nvmlDevice_t device;
    unsigned long long since; /* microseconds since the epoch */
};

static nvmlReturn_t ask(void *context, unsigned int *count, void *array) {
    const struct question *question = context;
    return REAL(nvmlDeviceGetProcessUtilization)(question->device, array, count, question->since);
}

/* Returns the samples of the lease's processes. The caller frees *samples. */
static nvmlReturn_t own_samples(struct question *question, void **samples, unsigned int *count) {
    const size_t size = sizeof(nvmlProcessUtilizationSample_t);
    nvmlReturn_t result = gp_read_list(ask, question, size, samples, count);
    if (result != NVML_SUCCESS) return result;
    struct own own;
    gp_read_own(&own);
    *count = gp_keep_own(&own, *samples, *count, size, offsetof(nvmlProcessUtilizationSample_t, pid));
    return *count > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

GP_HOOK nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                     unsigned int *count, unsigned long long last_seen) {
    if (count == NULL || gp_index_of(device) < 0) {
        return REAL(nvmlDeviceGetProcessUtilization)(device, utilization, count, last_seen);
    }
    struct question question = {device, last_seen};
    void *samples;
    unsigned int found = 0;
    nvmlReturn_t result = own_samples(&question, &samples, &found);
    if (result == NVML_SUCCESS) result = gp_hand_over(samples, found, sizeof *utilization, utilization, count);
    else if (result == NVML_ERROR_NOT_FOUND) *count = 0;
    free(samples);
    return result;
}

static unsigned long long a_window_ago(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000 - WINDOW_US;
}

static nvmlUtilization_t sum(const nvmlProcessUtilizationSample_t *samples, unsigned int count) {
    nvmlUtilization_t all = {0, 0};
    for (unsigned int i = 0; i < count; i++) {
        all.gpu += samples[i].smUtil;
        all.memory += samples[i].memUtil;
    }
    return (nvmlUtilization_t){all.gpu < 100 ? all.gpu : 100, all.memory < 100 ? all.memory : 100};
}

GP_HOOK nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(device, utilization);
    if (result != NVML_SUCCESS || gp_index_of(device) < 0) return result;
    struct question question = {device, a_window_ago()};
    void *samples;
    unsigned int found = 0;
    nvmlReturn_t told = own_samples(&question, &samples, &found);
    if (told == NVML_SUCCESS) *utilization = sum(samples, found);
    else if (told == NVML_ERROR_NOT_FOUND) *utilization = (nvmlUtilization_t){0, 0};
    free(samples);
    return NVML_SUCCESS;
}

/* -- the same in newer drivers ---------------------------------------------------------------------------------- */

struct infos {
    nvmlDevice_t device;
    nvmlProcessesUtilizationInfo_v1_t info;
};

static nvmlReturn_t ask_infos(void *context, unsigned int *count, void *array) {
    struct infos *infos = context;
    nvmlProcessesUtilizationInfo_v1_t asked = infos->info;
    asked.processSamplesCount = *count;
    asked.procUtilArray = array;
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(infos->device, &asked);
    *count = asked.processSamplesCount;
    return result;
}

GP_HOOK nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                           nvmlProcessesUtilizationInfo_v1_t *info) {
    if (info == NULL || gp_index_of(device) < 0) return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    struct infos infos = {device, *info};
    const size_t size = sizeof *info->procUtilArray;
    void *all;
    unsigned int found = 0;
    nvmlReturn_t result = gp_read_list(ask_infos, &infos, size, &all, &found);
    if (result == NVML_SUCCESS) {
        struct own own;
        gp_read_own(&own);
        found = gp_keep_own(&own, all, found, size, offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
        result = gp_hand_over(all, found, size, info->procUtilArray, &info->processSamplesCount);
    }
    free(all);
    return result;
}
