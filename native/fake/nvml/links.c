/* How cards reach each other: all over one PCI host bridge, none by NVLink. */
#include "fake_nvml.h"

enum { SAME_BOARD = 0, HOST_BRIDGE = 30 }; /* nvmlGpuTopologyLevel_t */

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level) {
    nvmlReturn_t checked = fake_check(one);
    if (checked == NVML_SUCCESS) checked = fake_check(other);
    if (checked != NVML_SUCCESS) return checked;
    if (level == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *level = one->gpu == other->gpu ? SAME_BOARD : HOST_BRIDGE;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                                  nvmlDevice_t *devices) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int room = *count, found = 0;
    for (uint32_t g = 0; level >= HOST_BRIDGE && (int)g < fake_gpu_count(); g++) {
        if (g == device->gpu->index) continue;
        if (devices != NULL && found < room) devices[found] = fake_handle(g, -1);
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same) {
    nvmlReturn_t checked = fake_check(one);
    if (checked == NVML_SUCCESS) checked = fake_check(other);
    if (checked != NVML_SUCCESS) return checked;
    if (same == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *same = one->gpu == other->gpu;
    return NVML_SUCCESS;
}
