/* The identity of a device: name, UUID, PCI address, versions, capabilities. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fake_nvml.h"

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    if (fake_check_started() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
    return fake_copy(version, length, DRIVER_VERSION);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return fake_copy(version, length, "13." DRIVER_VERSION);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (version == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64], text[256] = "";
    if (name == NULL || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    if (readlink(path, text, sizeof text - 1) < 0) return NVML_ERROR_NOT_FOUND;
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

/* The name says that the card is simulated. */
API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    const struct fake_mig *mig = fake_mig_of(device);
    char text[192];
    if (mig == NULL) snprintf(text, sizeof text, "%s (emulated)", device->gpu->name);
    else snprintf(text, sizeof text, "%s MIG %s (emulated)", device->gpu->name, mig->profile);
    return fake_copy(name, length, text);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    return fake_copy(uuid, length, device->mig < 0 ? device->gpu->uuid : fake_mig_of(device)->uuid);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    char text[30];
    snprintf(text, sizeof text, "EMULATED%04u", device->gpu->index);
    return fake_copy(serial, length, text);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (pci == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->bus = device->gpu->index + 1;
    pci->pciDeviceId = 0x10DE; /* NVIDIA, and no device of theirs */
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0", pci->domain, pci->bus);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", pci->domain, pci->bus);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}
API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (major == NULL || minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)device->gpu->major;
    *minor = (int)device->gpu->minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    nvmlReturn_t checked = fake_check(device);
    return checked != NVML_SUCCESS ? checked : fake_copy(version, length, "00.00.00.00.00");
}

NUMBER(nvmlDeviceGetIndex, device->mig < 0 ? (int)device->gpu->index : device->mig)
NUMBER(nvmlDeviceGetMinorNumber, device->gpu->index)
NUMBER(nvmlDeviceGetBoardId, (device->gpu->index + 1) << 8)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER(nvmlDeviceGetBrand, 2 /* Tesla */)
NUMBER(nvmlDeviceGetArchitecture, device->gpu->major)
NUMBER(nvmlDeviceGetNumGpuCores, device->gpu->multiprocessors * 128)
NUMBER(nvmlDeviceGetMemoryBusWidth, 256)
NUMBER(nvmlDeviceGetComputeMode, 0 /* shared by everybody */)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetAccountingMode, 0)
