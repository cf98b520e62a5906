/* Hooks that show only the lease's processes. The memory of each is the driver's figure, which includes the driver's own
 * memory for the process. */
#include <stdlib.h>

#include "own.h"

typedef nvmlReturn_t real_list(nvmlDevice_t device, unsigned int *count, void *infos);

struct question {
    real_list *real;
    nvmlDevice_t device;
};

static nvmlReturn_t ask(void *context, unsigned int *count, void *array) {
    const struct question *question = context;
    return question->real(question->device, count, array);
}

/* Reads one of NVML's nine lists of processes; the pid is the first member in all of them. */
static nvmlReturn_t list(void *real, nvmlDevice_t device, unsigned int *count, void *infos, size_t size) {
    struct question question = {(real_list *)(uintptr_t)real, device};
    if (count == NULL || gp_index_of(device) < 0) return question.real(device, count, infos);
    void *all;
    unsigned int found = 0;
    nvmlReturn_t result = gp_read_list(ask, &question, size, &all, &found);
    if (result == NVML_SUCCESS) {
        struct own own;
        gp_read_own(&own);
        result = gp_hand_over(all, gp_keep_own(&own, all, found, size, 0), size, infos, count);
    }
    free(all);
    return result;
}
#define LIST(name) list(gp_real(GP_##name), device, count, infos, sizeof *infos)

GP_HOOK nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *infos) {
    return LIST(nvmlDeviceGetComputeRunningProcesses);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v2_t *infos) {
    return LIST(nvmlDeviceGetComputeRunningProcesses_v2);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_t *infos) {
    return LIST(nvmlDeviceGetComputeRunningProcesses_v3);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                           nvmlProcessInfo_v1_t *infos) {
    return LIST(nvmlDeviceGetGraphicsRunningProcesses);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                              nvmlProcessInfo_v2_t *infos) {
    return LIST(nvmlDeviceGetGraphicsRunningProcesses_v2);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                              nvmlProcessInfo_t *infos) {
    return LIST(nvmlDeviceGetGraphicsRunningProcesses_v3);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v1_t *infos) {
    return LIST(nvmlDeviceGetMPSComputeRunningProcesses);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                                nvmlProcessInfo_v2_t *infos) {
    return LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                                nvmlProcessInfo_t *infos) {
    return LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3);
}

/* -- the same in newer drivers, with details -------------------------------------------------------------------- */

struct details {
    nvmlDevice_t device;
    nvmlProcessDetailList_v1_t list;
};

static nvmlReturn_t ask_details(void *context, unsigned int *count, void *array) {
    struct details *details = context;
    details->list.numProcArrayEntries = *count;
    details->list.procArray = array;
    nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(details->device, &details->list);
    *count = details->list.numProcArrayEntries;
    return result;
}

GP_HOOK nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list_) {
    if (list_ == NULL || gp_index_of(device) < 0) return REAL(nvmlDeviceGetRunningProcessDetailList)(device, list_);
    struct details details = {device, *list_};
    const size_t size = sizeof *list_->procArray;
    void *all;
    unsigned int found = 0;
    nvmlReturn_t result = gp_read_list(ask_details, &details, size, &all, &found);
    if (result == NVML_SUCCESS) {
        struct own own;
        gp_read_own(&own);
        found = gp_keep_own(&own, all, found, size, 0);
        result = gp_hand_over(all, found, size, list_->procArray, &list_->numProcArrayEntries);
    }
    free(all);
    return result;
}
