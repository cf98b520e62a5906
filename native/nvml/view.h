/* The share library's view of NVML from the inside: what nvidia-smi, pynvml and frameworks of a lease see.
 *
 *   proxy.c        finds the real NVML and passes everything on that is not a hook
 *   lease.c        the lease's pages, read only; which device is which GPU of the lease
 *   devices.c      hooks: there are the lease's GPUs and no others
 *   memory.c       hooks: a GPU has the memory of the slice
 *   processes.c    hooks: on a GPU are the lease's processes and no others
 *   utilization.c  hooks: a GPU does what the lease's processes have it do
 *
 * Like its sister for CUDA it is preloaded into every program of a lease, so nothing happens before a first call. It
 * claims no slot: looking is not taking part. It is a view and no wall: whoever loads the driver by its path sees the
 * whole card, and so does nvidia-smi's table of processes, which comes from a private interface of the driver.
 * Administrative calls are passed on: the driver refuses them to those who may not make them.
 */
#ifndef GPUPOOL_NVML_VIEW_H
#define GPUPOOL_NVML_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generated/nvml_index.h"
#include "gpupool/pages.h"
#include "nvml_types.h"

#include "generated/nvml_prototypes.h"

#define GP_HOOK __attribute__((visibility("default")))

/* -- proxy.c ---------------------------------------------------------------------------------------------------- */

/* The real NVML's function; never NULL: one that it does not have answers NVML_ERROR_FUNCTION_NOT_FOUND. */
void *gp_real(enum gp_nvml_api which);
#define REAL(name) ((__typeof__(name) *)gp_real(GP_##name))

/* -- lease.c ---------------------------------------------------------------------------------------------------- */

/* Whether this process has a lease. Without one every call passes through. With one whose pages cannot be used there
 * are no GPUs. */
bool gp_leased(void);
uint32_t gp_gpu_count(void);
const struct gpupool_control_gpu *gp_control(uint32_t index);
const struct gpupool_status_gpu *gp_status(uint32_t index);
/* The path of the real NVML that the lease names, empty where it says that there is none; NULL without a lease. */
const char *gp_nvml_path(void);

/* The real handle of a GPU of the lease. */
nvmlReturn_t gp_handle_of(uint32_t index, nvmlDevice_t *device);
/* Which GPU of the lease a device is; negative for none of them, also where there is no lease. */
int gp_index_of(nvmlDevice_t device);
/* Whether a device belongs to the lease: is a GPU of it, or an instance on one, or the card of one. */
bool gp_belongs(nvmlDevice_t device);

#endif
