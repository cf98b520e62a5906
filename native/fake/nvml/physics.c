/* Temperature, power and clocks: plausible constants of an idle or busy card, so that displays have values. They depend
 * on nothing but the card's faults (faults.c). */
#include "fake_nvml.h"

#define NUMBER_OF_KIND(name, value)                                                                                    \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int kind, unsigned int *number) {                              \
        nvmlReturn_t checked = fake_check(device);                                                                     \
        if (checked != NVML_SUCCESS) return checked;                                                                   \
        if (number == NULL || kind > 8) return NVML_ERROR_INVALID_ARGUMENT;                                            \
        *number = (value);                                                                                             \
        return NVML_SUCCESS;                                                                                           \
    }

static unsigned int celsius(nvmlDevice_t device) { return fake_faults_of(device->gpu->index).throttle ? 96 : 40; }

static unsigned int lanes(nvmlDevice_t device) {
    unsigned int factor = fake_faults_of(device->gpu->index).slow_link;
    return factor < 16 ? 16 / factor : 1;
}

enum { POWER_MW = 70000, POWER_LIMIT_MW = 300000, MEMORY_MHZ = 5000, SM_MHZ = 1500, MEMORY_CLOCK = 2 };
#define HW_SLOWDOWN_THERMAL 0x48ull /* HwSlowdown and HwThermalSlowdown of nvml.h */

static unsigned int sm_mhz(nvmlDevice_t device) {
    return fake_faults_of(device->gpu->index).throttle ? SM_MHZ / 2 : SM_MHZ;
}

NUMBER(nvmlDeviceGetPowerUsage, POWER_MW)
NUMBER(nvmlDeviceGetPowerManagementLimit, POWER_LIMIT_MW)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, POWER_LIMIT_MW)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT_MW)
NUMBER(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetPerformanceState, 0)
NUMBER(nvmlDeviceGetPowerState, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, lanes(device))
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER_OF_KIND(nvmlDeviceGetTemperature, celsius(device))
NUMBER_OF_KIND(nvmlDeviceGetTemperatureThreshold, 95)
NUMBER_OF_KIND(nvmlDeviceGetClockInfo, kind == MEMORY_CLOCK ? MEMORY_MHZ : sm_mhz(device))
NUMBER_OF_KIND(nvmlDeviceGetMaxClockInfo, kind == MEMORY_CLOCK ? MEMORY_MHZ : SM_MHZ)
NUMBER_OF_KIND(nvmlDeviceGetPcieThroughput, 0)

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (reasons == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *reasons = fake_faults_of(device->gpu->index).throttle ? HW_SLOWDOWN_THERMAL : 0;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                              unsigned int *most) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (least == NULL || most == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *least = POWER_MW;
    *most = POWER_LIMIT_MW;
    return NVML_SUCCESS;
}
