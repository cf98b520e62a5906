/* Errors and events: a simulated card has none. */
#include <time.h>

#include "fake_nvml.h"

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (current == NULL || pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                             unsigned long long *errors) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (errors == NULL || type > 1 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    *errors = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                           unsigned int *pending, unsigned int *failed) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (corrected == NULL || uncorrected == NULL || pending == NULL || failed == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *pending = 0;
    return NVML_SUCCESS;
}

struct nvmlEventSet_st {
    int unused;
};
static struct nvmlEventSet_st the_only_set;

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *set = &the_only_set;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    return set == &the_only_set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    (void)types;
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    return set == &the_only_set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    if (set != &the_only_set || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec wait = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
    return NVML_ERROR_TIMEOUT;
}
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
