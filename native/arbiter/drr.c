/* The decisions of the round robin; drr_account.c has the accounts and defines `ahead`.
 *
 *   grant    if no tenant has a grant and no other tenant drains (or one has drained for too long): grant to the tenant
 *            that has had the least time
 *   revoke   if others want the GPU and the holder has used up its quantum, leaves the GPU idle, or does not use its
 *            grant; if a tenant wakes with credit and the holder has had its minimum; if a cap is reached
 *   wait     briefly, if the holder leaves the GPU idle but the next tenant is deep in debt: kernels cannot be stopped,
 *            and with one long kernel in each short pause a tenant with a tenth of the GPU would use half of it
 *   extend   if the quantum is over and the holder is still the tenant that has had the least time (others overran)
 *
 * A draining tenant may get another grant: an endless kernel cannot block its own tenant, and blocks others for at most
 * drain_ns. A tenant that leaves grants unused (its process is stopped) gets them less and less often.
 *
 * CONTENDED asks the tenant to report when it is idle. Tenants do not report this otherwise, so a tenant that is alone
 * gets the flag from time to time for a moment. Without that a program that computed once would count as busy forever.
 */
#include "drr.h"

#include <stdlib.h>
#include <string.h>

#define ABSENCES_MOST 6u /* doublings */
#define SOON_NS 20000    /* shortest interval between requested steps */
#define NOTHING ((struct drr_action){DRR_NOTHING, NULL})

static int64_t or_default(int64_t value, int64_t otherwise) { return value > 0 ? value : otherwise; }

void drr_init(struct drr_gpu *gpu, const struct drr_settings *settings) {
    memset(gpu, 0, sizeof *gpu);
    struct drr_settings set = settings == NULL ? (struct drr_settings){0} : *settings;
    set.quantum_ns = or_default(set.quantum_ns, 20000000);
    set.least_quantum_ns = or_default(set.least_quantum_ns, 4500000);
    set.least_hold_ns = or_default(set.least_hold_ns, 2000000);
    set.drain_ns = or_default(set.drain_ns, 2 * set.quantum_ns > 50000000 ? 2 * set.quantum_ns : 50000000);
    set.absent_ns = or_default(set.absent_ns, 10000000);
    set.longest_debt_ns = or_default(set.longest_debt_ns, INT64_C(20000000000));
    set.patience_ns = or_default(set.patience_ns, 10000000);
    set.look_every_ns = or_default(set.look_every_ns, 1000000000);
    set.look_ns = or_default(set.look_ns, 5000000);
    gpu->settings = set;
    gpu->wake_ns = UINT64_MAX;
}

void drr_free(struct drr_gpu *gpu) { free(gpu->tenants); }

bool drr_add(struct drr_gpu *gpu, struct drr_tenant *tenant, uint64_t now) {
    if (gpu->count == gpu->room) {
        uint32_t room = gpu->room == 0 ? 4 : 2 * gpu->room;
        struct drr_tenant **tenants = realloc(gpu->tenants, room * sizeof(struct drr_tenant *));
        if (tenants == NULL)
            return false;
        gpu->tenants = tenants;
        gpu->room = room;
    }
    drr_account(gpu, now);
    tenant->revoked_at = gpu->now;
    tenant->tokens_ns = drr_quantum(gpu, tenant);
    gpu->tenants[gpu->count++] = tenant;
    return true;
}

void drr_remove(struct drr_gpu *gpu, struct drr_tenant *tenant, uint64_t now) {
    drr_account(gpu, now);
    for (uint32_t i = 0; i < gpu->count; i++) {
        if (gpu->tenants[i] == tenant) {
            memmove(&gpu->tenants[i], &gpu->tenants[i + 1], (gpu->count - i - 1) * sizeof(struct drr_tenant *));
            gpu->count--;
            break;
        }
    }
    drr_observe(gpu);
}

/* -- look-up of tenants -------------------------------------------------------------------------------------------------- */

static struct drr_tenant *holder_of(const struct drr_gpu *gpu) {
    for (uint32_t i = 0; i < gpu->count; i++)
        if (gpu->tenants[i]->state == DRR_GRANTED)
            return gpu->tenants[i];
    return NULL;
}

static bool waited_too_long(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    return gpu->now - tenant->wanted_at >= (uint64_t)gpu->settings.longest_debt_ns;
}

static bool goes_before(const struct drr_gpu *gpu, const struct drr_tenant *one, const struct drr_tenant *other) {
    bool late = waited_too_long(gpu, one), other_late = waited_too_long(gpu, other);
    if (late != other_late)
        return late;
    return one->ahead < other->ahead || (one->ahead == other->ahead && one->turn < other->turn);
}

/* Returns the tenant with the least time among those that want a grant; of equals the one served longest ago. */
static struct drr_tenant *next_of(const struct drr_gpu *gpu) {
    struct drr_tenant *best = NULL;
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct drr_tenant *tenant = gpu->tenants[i];
        if (tenant->wanting && (best == NULL || goes_before(gpu, tenant, best)))
            best = tenant;
    }
    return best;
}

static struct drr_tenant *eager_before(const struct drr_gpu *gpu, const struct drr_tenant *holder) {
    struct drr_tenant *next = next_of(gpu);
    return next != NULL && next->eager && next->ahead < holder->ahead ? next : NULL;
}

static void wake_at(struct drr_gpu *gpu, uint64_t when) {
    if (when < gpu->now + SOON_NS)
        when = gpu->now + SOON_NS;
    if (when < gpu->wake_ns)
        gpu->wake_ns = when;
}

/* -- holding ------------------------------------------------------------------------------------------------------- */

/* Returns true if a lone tenant that counts as busy should be asked whether it still is. */
static bool to_be_asked(struct drr_gpu *gpu, const struct drr_tenant *holder) {
    if (holder->busy == 0)
        return false;
    uint64_t every = (uint64_t)gpu->settings.look_every_ns;
    uint64_t since = (gpu->now - holder->granted_at) % every, from = every - (uint64_t)gpu->settings.look_ns;
    wake_at(gpu, gpu->now + (since < from ? from : every) - since);
    return since >= from;
}

static bool is_contended(struct drr_gpu *gpu, const struct drr_tenant *holder) {
    return next_of(gpu) != NULL || drr_capped(holder) || to_be_asked(gpu, holder);
}

/* Returns true if the time `after` the grant has passed; else notes it as a time to wake at. */
static bool is_time(struct drr_gpu *gpu, const struct drr_tenant *holder, int64_t after) {
    uint64_t when = holder->granted_at + (uint64_t)after;
    if (gpu->now >= when)
        return true;
    wake_at(gpu, when);
    return false;
}

static bool cap_reached(struct drr_gpu *gpu, struct drr_tenant *holder, bool idle) {
    if (!drr_capped(holder))
        return false;
    holder->resting = holder->tokens_ns <= 0;
    if (!holder->resting && !idle)
        wake_at(gpu, gpu->now + (uint64_t)drr_until_used(gpu, holder, holder->tokens_ns));
    return holder->resting || idle;
}

/* The grant was not used. */
static bool absent(struct drr_gpu *gpu, struct drr_tenant *holder) {
    if (holder->shown || !is_time(gpu, holder, gpu->settings.absent_ns))
        return false;
    holder->absent_until = gpu->now + ((uint64_t)gpu->settings.absent_ns << holder->absences);
    if (holder->absences < ABSENCES_MOST)
        holder->absences++;
    return true;
}

static bool quantum_over(struct drr_gpu *gpu, struct drr_tenant *holder, const struct drr_tenant *next) {
    if (waited_too_long(gpu, next) || (holder->left_ns <= 0 && next->ahead <= holder->ahead))
        return true;
    if (holder->left_ns <= 0)
        holder->left_ns = drr_quantum(gpu, holder);
    wake_at(gpu, gpu->now + (uint64_t)drr_until_used(gpu, holder, holder->left_ns));
    return false;
}

/* Returns true if the wait for an idle holder has lasted as long as the debt of the next tenant justifies. */
static bool paused_too_long(struct drr_gpu *gpu, const struct drr_tenant *holder, const struct drr_tenant *next) {
    int64_t owed = drr_owed(next, holder), patience = owed / 4;
    if (owed < drr_quantum(gpu, next))
        return true;
    if (patience > gpu->settings.patience_ns)
        patience = gpu->settings.patience_ns;
    uint64_t end = holder->idle_since + (uint64_t)patience;
    wake_at(gpu, end);
    return gpu->now >= end;
}

static bool to_be_revoked(struct drr_gpu *gpu, struct drr_tenant *holder) {
    bool idle = holder->busy == 0 && holder->waiting == 0;
    holder->idle_since = !idle ? 0 : holder->idle_since == 0 ? gpu->now : holder->idle_since;
    if (cap_reached(gpu, holder, idle))
        return true;
    const struct drr_tenant *next = next_of(gpu);
    if (next == NULL) {
        holder->left_ns = drr_quantum(gpu, holder);
        return false;
    }
    if ((idle && paused_too_long(gpu, holder, next)) || absent(gpu, holder) || quantum_over(gpu, holder, next))
        return true;
    return eager_before(gpu, holder) != NULL && is_time(gpu, holder, gpu->settings.least_hold_ns);
}

/* -- granting ------------------------------------------------------------------------------------------------------ */

/* Returns true if another tenant still drains, and not for too long. */
static bool to_be_waited_for(struct drr_gpu *gpu, const struct drr_tenant *next) {
    bool wait = false;
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct drr_tenant *tenant = gpu->tenants[i];
        uint64_t end = tenant->revoked_at + (uint64_t)gpu->settings.drain_ns;
        if (tenant == next || tenant->state != DRR_DRAINING || gpu->now >= end)
            continue;
        wake_at(gpu, end);
        wait = true;
    }
    return wait;
}

/* Handles tenants that wait for a time and not for other tenants. */
static void wake_for_the_rest(struct drr_gpu *gpu) {
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct drr_tenant *tenant = gpu->tenants[i];
        if (tenant->waiting == 0 || tenant->state == DRR_GRANTED || tenant->policy == DRR_NONE)
            continue;
        if (tenant->wanting && !waited_too_long(gpu, tenant))
            wake_at(gpu, tenant->wanted_at + (uint64_t)gpu->settings.longest_debt_ns);
        if (tenant->resting)
            wake_at(gpu, gpu->now + (uint64_t)drr_rest_ns(gpu, tenant));
        if (tenant->absent_until > gpu->now)
            wake_at(gpu, tenant->absent_until);
    }
}

static struct drr_action act(struct drr_gpu *gpu, enum drr_verb verb, struct drr_tenant *tenant) {
    drr_observe(gpu);
    if (verb == DRR_GRANT) /* the other tenants are known only now */
        tenant->contended = next_of(gpu) != NULL || drr_capped(tenant);
    return (struct drr_action){verb, tenant};
}

static struct drr_action grant(struct drr_gpu *gpu, struct drr_tenant *tenant) {
    tenant->left_ns = drr_quantum(gpu, tenant);
    tenant->state = DRR_GRANTED;
    tenant->granted_at = gpu->now;
    tenant->turn = ++gpu->turns;
    tenant->grants++;
    tenant->shown = tenant->eager = false;
    tenant->idle_since = 0;
    return act(gpu, DRR_GRANT, tenant);
}

static struct drr_action revoke(struct drr_gpu *gpu, struct drr_tenant *tenant) {
    tenant->contended = 0;
    tenant->revoked_at = gpu->now;
    tenant->state = DRR_DRAINING;
    uint32_t busy = tenant->busy;
    tenant->busy = busy == 0 ? 1 : busy; /* until the caller has read `busy` again */
    return act(gpu, DRR_REVOKE, tenant);
}

struct drr_action drr_step(struct drr_gpu *gpu, uint64_t now) {
    drr_account(gpu, now);
    drr_observe(gpu);
    gpu->wake_ns = UINT64_MAX;
    wake_for_the_rest(gpu);
    struct drr_tenant *holder = holder_of(gpu);
    if (holder != NULL) {
        if (to_be_revoked(gpu, holder))
            return revoke(gpu, holder);
        uint32_t contended = is_contended(gpu, holder);
        if (contended == holder->contended)
            return NOTHING;
        holder->contended = contended;
        return act(gpu, contended ? DRR_CONTENDED : DRR_UNCONTENDED, holder);
    }
    struct drr_tenant *next = next_of(gpu);
    if (next == NULL || to_be_waited_for(gpu, next))
        return NOTHING;
    return grant(gpu, next);
}
