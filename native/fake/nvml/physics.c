/* Temperature, power and clocks: plausible constants of an idle or busy card, so that displays have values. They depend
 * on nothing. */
#include "fake_nvml.h"

#define NUMBER_OF_KIND(name, value)                                                                                    \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int kind, unsigned int *number) {                              \
        nvmlReturn_t checked = fake_check(device);                                                                     \
        if (checked != NVML_SUCCESS) return checked;                                                                   \
        if (number == NULL || kind > 8) return NVML_ERROR_INVALID_ARGUMENT;                                            \
        *number = (value);                                                                                             \
        return NVML_SUCCESS;                                                                                           \
    }

enum { POWER_MW = 70000, POWER_LIMIT_MW = 300000, CELSIUS = 40, MEMORY_MHZ = 5000, SM_MHZ = 1500, MEMORY_CLOCK = 2 };

NUMBER(nvmlDeviceGetPowerUsage, POWER_MW)
NUMBER(nvmlDeviceGetPowerManagementLimit, POWER_LIMIT_MW)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, POWER_LIMIT_MW)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT_MW)
NUMBER(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetPerformanceState, 0)
NUMBER(nvmlDeviceGetPowerState, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER_OF_KIND(nvmlDeviceGetTemperature, CELSIUS)
NUMBER_OF_KIND(nvmlDeviceGetTemperatureThreshold, 95)
NUMBER_OF_KIND(nvmlDeviceGetClockInfo, kind == MEMORY_CLOCK ? MEMORY_MHZ : SM_MHZ)
NUMBER_OF_KIND(nvmlDeviceGetMaxClockInfo, kind == MEMORY_CLOCK ? MEMORY_MHZ : SM_MHZ)
NUMBER_OF_KIND(nvmlDeviceGetPcieThroughput, 0)

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                              unsigned int *most) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (least == NULL || most == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *least = POWER_MW;
    *most = POWER_LIMIT_MW;
    return NVML_SUCCESS;
}
