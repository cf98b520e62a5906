/* Every function of NVML that a simulated card does not know: not supported, as many cards say of many functions.
 * Weak, so that what the other files define stands. */
#include "fake_nvml.h"

#define GP_EXPORT(name)                                                                                                \
    API __attribute__((weak)) nvmlReturn_t name(void);                                                                 \
    nvmlReturn_t name(void) { return NVML_ERROR_NOT_SUPPORTED; }
#include "generated/nvml_exports.h"
