/* How cards reach each other: all over one PCI host bridge, none by NVLink. */
#include "fake_nvml.h"

enum { SAME_BOARD = 0, HOST_BRIDGE = 30 };     /* nvmlGpuTopologyLevel_t */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };    /* nvmlGpuP2PStatus_t */
enum { P2P_OVER_NVLINK = 2 };                  /* nvmlGpuP2PCapsIndex_t */

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

/* NCCL asks for each pair, also of a card with itself, and stops without an answer. */
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int kind, unsigned int *status) {
    nvmlReturn_t checked = fake_check(one);
    if (checked == NVML_SUCCESS) checked = fake_check(other);
    if (checked != NVML_SUCCESS) return checked;
    if (status == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    bool broken = fake_faults_of(one->gpu->index).no_peer || fake_faults_of(other->gpu->index).no_peer;
    *status = kind == P2P_OVER_NVLINK || broken ? P2P_NOT_SUPPORTED : P2P_OK;
    return NVML_SUCCESS;
}
