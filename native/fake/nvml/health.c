/* Errors and events: a simulated card has none, except an XID that faults.c asks for. */
#include <stdatomic.h>
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

#define EVENT_XID 8ull

struct nvmlEventSet_st {
    _Atomic uint64_t waiting; /* bit g: card g is registered for XIDs and has not reported one */
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
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (set != &the_only_set) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & EVENT_XID) atomic_fetch_or(&set->waiting, UINT64_C(1) << device->gpu->index);
    return NVML_SUCCESS;
}

/* Returns the next XID of a registered card. */
static bool next_xid(struct nvmlEventSet_st *set, nvmlEventData_t *data) {
    for (uint32_t g = 0; (int)g < fake_gpu_count(); g++) {
        uint64_t bit = UINT64_C(1) << g;
        uint32_t xid = fake_faults_of(g).xid;
        if (xid == 0 || (atomic_fetch_and(&set->waiting, ~bit) & bit) == 0) continue;
        *data = (nvmlEventData_t){.device = fake_handle(g, -1), .eventType = EVENT_XID, .eventData = xid};
        return true;
    }
    return false;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    if (set != &the_only_set || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (next_xid(set, data)) return NVML_SUCCESS;
    struct timespec wait = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
    return NVML_ERROR_TIMEOUT;
}
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
