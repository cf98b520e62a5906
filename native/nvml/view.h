/* The share library's view of NVML from the inside: what nvidia-smi, pynvml and frameworks of a lease see.
 *
 *   proxy.c        finds the real NVML and passes everything on that is not a hook
 *   lease.c        the lease's pages, read only; which device is which GPU of the lease
 *   devices.c      hooks that show only the lease's GPUs
 *   memory.c       hooks that show the memory of the slice
 *   processes.c    hooks that show only the lease's processes
 *   utilization.c  hooks that show the utilisation of the lease's processes
 *
 * Like the library for CUDA it is preloaded into every program of a lease, so it does nothing before its first call. It
 * claims no slot, because it only reads. It filters what programs see but does not protect: a program that loads the
 * driver by path sees the whole card, and so does nvidia-smi's table of processes, which comes from a private interface
 * of the driver. Administrative calls are passed on: the driver refuses them to users without the permission.
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

/* Returns the real NVML's function; never NULL: for a missing one, a function that answers
 * NVML_ERROR_FUNCTION_NOT_FOUND. */
void *gp_real(enum gp_nvml_api which);
#define REAL(name) ((__typeof__(name) *)gp_real(GP_##name))

/* -- lease.c ---------------------------------------------------------------------------------------------------- */

/* Returns true if this process has a lease. Without a lease every call passes through. If the pages of the lease cannot
 * be used, no GPUs are shown. */
bool gp_leased(void);
/* Returns true if the lease is lazy and has no GPUs yet. NVML cannot be initialised then, so that frameworks ask CUDA for
 * the number of devices, which waits for the GPUs. */
bool gp_waits(void);
uint32_t gp_gpu_count(void);
const struct gpupool_control_gpu *gp_control(uint32_t index);
const struct gpupool_status_gpu *gp_status(uint32_t index);
/* Returns the path of the real NVML from the lease; empty if the lease names none; NULL without a lease. */
const char *gp_nvml_path(void);

/* Returns the real handle of a GPU of the lease. */
nvmlReturn_t gp_handle_of(uint32_t index, nvmlDevice_t *device);
/* Returns the index of a device in the lease; negative if it is not in the lease or there is no lease. */
int gp_index_of(nvmlDevice_t device);
/* Returns true if a device belongs to the lease: a GPU of it, a MIG instance on one, or the card of one. */
bool gp_belongs(nvmlDevice_t device);

#endif
