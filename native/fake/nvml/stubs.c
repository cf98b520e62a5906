/* Answers "not supported" for every function of NVML that a simulated card does not have, as real cards do for many.
 * The symbols are weak, so that definitions in the other files replace them. */
#include "fake_nvml.h"

#define GP_EXPORT(name)                                                                                                \
    API __attribute__((weak)) nvmlReturn_t name(void);                                                                 \
    nvmlReturn_t name(void) { return NVML_ERROR_NOT_SUPPORTED; }
#include "generated/nvml_exports.h"
