/* Hooks that show only the lease's GPUs, numbered in the order of the lease, as CUDA numbers them. */
#include "view.h"

GP_HOOK nvmlReturn_t nvmlInit_v2(void) { return gp_waits() ? NVML_ERROR_DRIVER_NOT_LOADED : REAL(nvmlInit_v2)(); }
GP_HOOK nvmlReturn_t nvmlInit(void) { return gp_waits() ? NVML_ERROR_DRIVER_NOT_LOADED : REAL(nvmlInit)(); }
GP_HOOK nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    return gp_waits() ? NVML_ERROR_DRIVER_NOT_LOADED : REAL(nvmlInitWithFlags)(flags);
}

GP_HOOK nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(count);
    if (result == NVML_SUCCESS && gp_leased()) *count = gp_gpu_count();
    return result;
}
GP_HOOK nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

GP_HOOK nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (!gp_leased()) return REAL(nvmlDeviceGetHandleByIndex_v2)(index, device);
    if (device != NULL && index < gp_gpu_count()) return gp_handle_of(index, device);
    unsigned int count; /* "not initialised" has precedence over other errors */
    nvmlReturn_t started = REAL(nvmlDeviceGetCount_v2)(&count);
    return started != NVML_SUCCESS ? started : NVML_ERROR_INVALID_ARGUMENT;
}
GP_HOOK nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Returns the device that the driver found, unless it is not in the lease. */
static nvmlReturn_t only_own(nvmlReturn_t result, nvmlDevice_t *device) {
    if (result != NVML_SUCCESS || !gp_leased() || gp_belongs(*device)) return result;
    *device = NULL;
    return NVML_ERROR_NOT_FOUND;
}

GP_HOOK nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return only_own(REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device) {
    return only_own(REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    return only_own(REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device) {
    return only_own(REAL(nvmlDeviceGetHandleByPciBusId_v2)(address, device), device);
}
GP_HOOK nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *device) {
    return only_own(REAL(nvmlDeviceGetHandleByPciBusId)(address, device), device);
}

GP_HOOK nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    nvmlReturn_t result = REAL(nvmlDeviceGetIndex)(device, index);
    int own = result == NVML_SUCCESS ? gp_index_of(device) : -1;
    if (own >= 0) *index = (unsigned int)own;
    return result;
}

/* -- neighbours: only those of the lease ------------------------------------------------------------------------ */

enum { NEIGHBOURS = 128 };

/* Copies those of the `found` devices that are in the lease, as many as the caller has room for. */
static void keep_own(const nvmlDevice_t *all, unsigned int found, unsigned int *count, nvmlDevice_t *devices) {
    unsigned int room = *count, kept = 0;
    for (unsigned int i = 0; i < found; i++) {
        if (!gp_belongs(all[i])) continue;
        if (devices != NULL && kept < room) devices[kept] = all[i];
        kept++;
    }
    *count = devices != NULL && kept > room ? room : kept;
}

GP_HOOK nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                                      unsigned int *count, nvmlDevice_t *devices) {
    if (!gp_leased() || count == NULL) return REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, devices);
    nvmlDevice_t all[NEIGHBOURS];
    unsigned int found = NEIGHBOURS;
    nvmlReturn_t result = REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &found, all);
    if (result == NVML_SUCCESS) keep_own(all, found < NEIGHBOURS ? found : NEIGHBOURS, count, devices);
    return result;
}

GP_HOOK nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices) {
    if (!gp_leased() || count == NULL) return REAL(nvmlSystemGetTopologyGpuSet)(cpu, count, devices);
    nvmlDevice_t all[NEIGHBOURS];
    unsigned int found = NEIGHBOURS;
    nvmlReturn_t result = REAL(nvmlSystemGetTopologyGpuSet)(cpu, &found, all);
    if (result == NVML_SUCCESS) keep_own(all, found < NEIGHBOURS ? found : NEIGHBOURS, count, devices);
    return result;
}
