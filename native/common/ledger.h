/* The operations on a tenant's memory word and its slots (see gpupool/pages.h for the words themselves).
 *
 * Used by the share library for its own slots and by the arbiter for those of dead processes.
 */
#ifndef GPUPOOL_LEDGER_H
#define GPUPOOL_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpupool/pages.h"

/* Adds delta units to the total of a slot of this process and to its tenant's, unless that takes the tenant above the
 * limit: then nothing changes and the answer is false. A negative delta always passes and takes at most what the slot
 * has. Callers of one process may race; processes may die inside at any instruction (see gp_ledger_repair_slot). */
bool gp_ledger_change(struct gpupool_status_gpu *status, uint32_t slot, int64_t delta_units, uint64_t limit_units);

/* For a slot whose owner is dead: finishes or drops the operation under way, gives back everything the slot holds,
 * clears the slot and frees it. May be killed anywhere and called again by another process, but only one process may
 * be at it at a time. False: others changed the tenant's word too often meanwhile; call again later. */
bool gp_ledger_repair_slot(struct gpupool_status_gpu *status, uint32_t slot);

/* The same without freeing: this process owns the slot since before an exec and has no memory any more. */
bool gp_ledger_reset_slot(struct gpupool_status_gpu *status, uint32_t slot);

/* Units in use by all slots of the tenant. */
static inline uint64_t gp_ledger_total(const struct gpupool_status_gpu *status) {
    return gpupool_word_units(atomic_load(&status->tenant));
}

/* Bytes of a slice in use: what its ledgers say, and what the driver says beyond that; at most the limit. What
 * cuMemGetInfo and NVML show is this, so that they agree to the byte. */
static inline uint64_t gp_used_bytes(const struct gpupool_control_gpu *control,
                                     const struct gpupool_status_gpu *status) {
    int64_t ledgers = (int64_t)(gp_ledger_total(status) << GPUPOOL_UNIT_SHIFT);
    int64_t used = ledgers + atomic_load_explicit(&control->correction_bytes, memory_order_relaxed);
    if (used <= 0) return 0;
    return (uint64_t)used < control->memory_limit_bytes ? (uint64_t)used : control->memory_limit_bytes;
}

/* In the child of a fork, before anything else here: a lock that another thread of the parent held is forgotten. */
void gp_ledger_after_fork(void);

#endif
