/* Memory totals that stay exact if processes are killed at any time.
 *
 * A lock in shared memory would have to be broken when its holder is killed, and the breaker could not know the progress
 * of the holder. Therefore there is no lock: a process writes its intent into its slot, changes the tenant's word by one
 * compare-and-swap, and records that it is done. The words of a dead process always show its progress:
 *
 *   intent == ledger                       no operation is unfinished
 *   intent != ledger, and intent's sequence number is in `tenant` (with this slot's number) or in `applied`
 *                                          the tenant's word has been changed: the intent is the truth
 *   otherwise                              it has not been changed: the ledger is the truth
 *
 * The second line holds because no process replaces a tenant's word (T, t, q) before slots[t].applied says q.
 *
 * Sequence numbers. A word has room for 23 bits, `applied` for all 64: it only ever grows, its low 23 bits are the
 * number in the word, and so a helper that slept cannot set it back or make a late store pass for a new one. When
 * (t, q) is in `tenant`, applied of t is q or q-1: every earlier number of t has been replaced, and stored first. A
 * helper that has read `applied` therefore looks at `tenant` once more; only if the same word is still there does the
 * difference of the numbers mean anything. What is left of wraparound: a process stopped between reading and swapping
 * the tenant's word while one slot does exactly a multiple of 2^23 operations, ends on the same total, and is killed
 * between its own swap and the line after it. It would cost the tenant that one operation until the lease ends.
 *
 * Order. `intent` is visible before the swap, the swap before `ledger`, and `applied` before the swap that replaces a
 * word. Every swap is sequentially consistent. For `intent` and `ledger` the release order of a store is enough: other
 * processes act on them only after the owner's death, and its own threads hold `own_slots`. An allocation costs the
 * driver microseconds; these cost tens of nanoseconds.
 *
 * Tampering. The pages belong to the tenant. Nothing read from them is used as an address: slot numbers have 7 bits
 * and there are 128 slots. Totals are clamped to what a word can say. A repairer gives up after a bounded number of
 * attempts, so that a process that rewrites the word without end cannot hold it.
 */
#include "ledger.h"

#include <pthread.h>

/* Tests end the process, or switch to another one, at each of these points. */
#ifndef GP_STEP
#define GP_STEP(n) ((void)0)
#endif

#define UNITS_MAX ((UINT64_C(1) << 34) - 1)
#define SEQ_MASK 0x7fffffu
#define SEQ_HALF 0x400000u
#define UNLIMITED UINT64_MAX
#define PATIENT UINT32_MAX
#define REPAIR_ATTEMPTS 4096u

static pthread_mutex_t own_slots = PTHREAD_MUTEX_INITIALIZER; /* of this process: a slot has one writer */

void gp_ledger_after_fork(void) { own_slots = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

enum outcome { DONE, OVER_LIMIT, OUTRUN };

/* Makes slots[t].applied record that `word`, just read from the tenant's word, was there. False: it is no longer there.
 * A lost compare-and-swap is as good as a won one: the winner stored at least this number. */
static bool note_applied(struct gpupool_status_gpu *status, uint64_t word) {
    _Atomic uint64_t *applied = &status->slots[gpupool_word_slot(word)].applied;
    uint64_t known = atomic_load(applied);
    GP_STEP(1);
    if (atomic_load(&status->tenant) != word)
        return false;
    GP_STEP(2);
    uint32_t ahead = (gpupool_word_seq(word) - (uint32_t)known) & SEQ_MASK;
    if (ahead != 0 && ahead < SEQ_HALF)
        atomic_compare_exchange_strong(applied, &known, known + ahead);
    GP_STEP(3);
    return true;
}

/* Returns the tenant's total after a change; above UNITS_MAX if there is no such total; never below 0. */
static uint64_t changed_total(uint64_t total, int64_t delta) {
    if (delta >= 0)
        return total + (uint64_t)delta;
    uint64_t less = -(uint64_t)delta;
    return less < total ? total - less : 0;
}

static enum outcome swap_tenant(struct gpupool_status_gpu *status, uint64_t intent, int64_t delta, uint64_t limit,
                                uint32_t attempts) {
    while (attempts-- > 0) {
        uint64_t word = atomic_load(&status->tenant);
        GP_STEP(4);
        uint64_t total = changed_total(gpupool_word_units(word), delta);
        if (delta > 0 && (total > limit || total > UNITS_MAX))
            return OVER_LIMIT;
        if (!note_applied(status, word))
            continue;
        uint64_t next = gpupool_word(total, gpupool_word_slot(intent), gpupool_word_seq(intent));
        if (atomic_compare_exchange_strong(&status->tenant, &word, next))
            return DONE;
        GP_STEP(5);
    }
    return OUTRUN;
}

/* Performs one whole operation of a slot without an unfinished operation. */
static enum outcome operate(struct gpupool_status_gpu *status, uint32_t number, int64_t delta, uint64_t limit,
                            uint32_t attempts) {
    struct gpupool_slot *slot = &status->slots[number];
    uint64_t ledger = atomic_load(&slot->ledger);
    uint64_t intent = gpupool_word(changed_total(gpupool_word_units(ledger), delta), number, (uint32_t)ledger + 1);
    atomic_store_explicit(&slot->intent, intent, memory_order_release);
    GP_STEP(6);
    enum outcome outcome = swap_tenant(status, intent, delta, limit, attempts);
    GP_STEP(7);
    if (outcome == DONE)
        atomic_store_explicit(&slot->ledger, intent, memory_order_release);
    else
        atomic_store_explicit(&slot->intent, ledger, memory_order_release);
    GP_STEP(8);
    return outcome;
}

/* Finishes or drops the operation that its owner (or its repairer) left unfinished. */
static void settle(struct gpupool_status_gpu *status, uint32_t number) {
    struct gpupool_slot *slot = &status->slots[number];
    uint64_t ledger = atomic_load(&slot->ledger);
    uint64_t intent = atomic_load(&slot->intent);
    if (intent == ledger)
        return;
    uint32_t seq = gpupool_word_seq(intent);
    uint64_t word = atomic_load(&status->tenant); /* before `applied`: a process that replaces it stores there first */
    GP_STEP(9);
    bool there = gpupool_word_slot(word) == number && gpupool_word_seq(word) == seq;
    bool happened = there || (atomic_load(&slot->applied) & SEQ_MASK) == seq;
    GP_STEP(10);
    if (happened)
        atomic_store(&slot->ledger, intent);
    else
        atomic_store(&slot->intent, ledger);
    GP_STEP(11);
}

static void raise_peak(struct gpupool_status_gpu *status) {
    uint64_t now = gp_ledger_total(status) << GPUPOOL_UNIT_SHIFT;
    uint64_t peak = atomic_load(&status->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&status->peak_bytes, &peak, now))
        ;
}

bool gp_ledger_change(struct gpupool_status_gpu *status, uint32_t slot, int64_t delta_units, uint64_t limit_units) {
    if (delta_units == 0)
        return true;
    if (slot >= GPUPOOL_SLOTS || delta_units > (int64_t)UNITS_MAX)
        return false;
    pthread_mutex_lock(&own_slots);
    settle(status, slot);
    int64_t has = (int64_t)gpupool_word_units(atomic_load(&status->slots[slot].ledger));
    if (delta_units < -has)
        delta_units = -has;
    bool done = delta_units == 0 || operate(status, slot, delta_units, limit_units, PATIENT) == DONE;
    pthread_mutex_unlock(&own_slots);
    if (done && delta_units > 0)
        raise_peak(status);
    return done;
}

/* Settles the unfinished operation, then gives the slot's total back as one more operation of that slot. */
static bool give_back(struct gpupool_status_gpu *status, uint32_t number) {
    settle(status, number);
    int64_t has = (int64_t)gpupool_word_units(atomic_load(&status->slots[number].ledger));
    return has == 0 || operate(status, number, -has, UNLIMITED, REPAIR_ATTEMPTS) == DONE;
}

/* Clears everything except the owner and the three words of the ledger, whose sequence numbers continue with the next
 * owner. */
static void clear_notes(struct gpupool_slot *slot) {
    _Atomic uint64_t *const words[] = {&slot->vmm_bytes, &slot->pool_bytes,     &slot->context_bytes, &slot->launches,
                                       &slot->waited_ns, &slot->graph_launches, &slot->paced_ns,      &slot->ungated};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        atomic_store(words[i], 0);
    atomic_store(&slot->busy, 0);
    atomic_store(&slot->waiting, 0);
    atomic_store(&slot->flags, 0);
}

bool gp_ledger_repair_slot(struct gpupool_status_gpu *status, uint32_t slot) {
    if (slot >= GPUPOOL_SLOTS || !give_back(status, slot))
        return false;
    struct gpupool_slot *dead = &status->slots[slot];
    clear_notes(dead);
    atomic_store(&dead->host_pid, 0);
    atomic_store(&dead->pid_ns, 0);
    GP_STEP(12);
    atomic_store(&dead->owner, 0); /* last, so that the next owner finds a clean slot */
    return true;
}

bool gp_ledger_reset_slot(struct gpupool_status_gpu *status, uint32_t slot) {
    if (slot >= GPUPOOL_SLOTS)
        return false;
    pthread_mutex_lock(&own_slots);
    bool given = give_back(status, slot);
    clear_notes(&status->slots[slot]);
    pthread_mutex_unlock(&own_slots);
    return given;
}
