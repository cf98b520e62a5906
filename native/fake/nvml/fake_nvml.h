/* Internal interfaces of the fake NVML.
 *
 *   handles.c    start and end; which devices there are and how they are found
 *   identity.c   identity of a device: name, UUID, PCI address, versions, capabilities
 *   usage.c      use: memory, processes, utilisation, from the shared state of the fake driver
 *   mig.c        MIG instances as devices
 *   instances.c  creating and destroying them
 *   health.c     errors and events: only those of faults.c
 *   physics.c    temperature, power and clocks: plausible constants
 *   links.c      links and distances between cards
 *
 * Everything else that NVML exports answers NVML_ERROR_NOT_SUPPORTED, in stubs made when this is built.
 */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "gpus.h"
#include "nvml_types.h"

/* What is exported here is declared in NVML's own header, which is not needed to build this. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define API __attribute__((visibility("default")))
#define DRIVER_VERSION "580.00.00"
#define CUDA_VERSION 13000

struct nvmlDevice_st { /* behind a handle: a card, or a MIG instance on it */
    const struct fake_gpu *gpu;
    int mig; /* negative: the card */
};

/* Returns NVML_SUCCESS for a live handle between nvmlInit and nvmlShutdown. */
nvmlReturn_t fake_check(nvmlDevice_t device);
nvmlReturn_t fake_check_started(void);
/* Returns the handle of a card (mig negative) or of one of its instances. */
nvmlDevice_t fake_handle(uint32_t gpu, int mig);
/* Copies text, or reports that there is no room for it. */
nvmlReturn_t fake_copy(char *to, unsigned int length, const char *text);

static inline const struct fake_mig *fake_mig_of(nvmlDevice_t device) {
    return device->mig < 0 ? NULL : &device->gpu->migs[device->mig];
}

/* A getter of one number. */
#define NUMBER(name, value)                                                                                            \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *number) {                                                 \
        nvmlReturn_t checked = fake_check(device);                                                                     \
        if (checked != NVML_SUCCESS) return checked;                                                                   \
        if (number == NULL) return NVML_ERROR_INVALID_ARGUMENT;                                                        \
        *number = (unsigned int)(value);                                                                               \
        return NVML_SUCCESS;                                                                                           \
    }

#endif
