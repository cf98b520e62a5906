/* The operations on a tenant's memory word and its slots (see gpupool/pages.h for the words themselves).
 *
 * Used by the share library for its own slots and by the arbiter for those of dead processes.
 */
#ifndef GPUPOOL_LEDGER_H
#define GPUPOOL_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpupool/pages.h"

/* Adds delta units to the total of a slot of this process and to its tenant's. If that takes the tenant above the
 * limit, nothing changes and the answer is false. A negative delta always passes and takes at most the slot's total.
 * Callers of one process may race; processes may die inside at any instruction (see gp_ledger_repair_slot). */
bool gp_ledger_change(struct gpupool_status_gpu *status, uint32_t slot, int64_t delta_units, uint64_t limit_units);

/* For a slot whose owner is dead: finishes or drops the unfinished operation, gives back everything that the slot
 * holds, clears the slot and frees it. It may be killed anywhere and called again by another process, but only one
 * process at a time may repair a slot. False: others changed the tenant's word too often; call again later. */
bool gp_ledger_repair_slot(struct gpupool_status_gpu *status, uint32_t slot);

/* Does the same without freeing the slot: this process has owned it since before an exec, and has no memory. */
bool gp_ledger_reset_slot(struct gpupool_status_gpu *status, uint32_t slot);

/* Returns the units in use by all slots of the tenant. */
static inline uint64_t gp_ledger_total(const struct gpupool_status_gpu *status) {
    return gpupool_word_units(atomic_load(&status->tenant));
}

/* Returns the bytes of a slice in use: the total of its ledgers plus the driver's correction, at most the limit.
 * cuMemGetInfo and NVML show this value, so that they agree to the byte. */
static inline uint64_t gp_used_bytes(const struct gpupool_control_gpu *control,
                                     const struct gpupool_status_gpu *status) {
    int64_t ledgers = (int64_t)(gp_ledger_total(status) << GPUPOOL_UNIT_SHIFT);
    int64_t used = ledgers + atomic_load_explicit(&control->correction_bytes, memory_order_relaxed);
    if (used <= 0) return 0;
    return (uint64_t)used < control->memory_limit_bytes ? (uint64_t)used : control->memory_limit_bytes;
}

/* Call it in the child of a fork before anything else here: it resets a lock that another thread of the parent held. */
void gp_ledger_after_fork(void);

#endif
