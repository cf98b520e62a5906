/* The accounts of the round robin: the time that each tenant has had, compared with the time that it should have had.
 *
 * `ahead` is a tenant's deficit in another form. A classic deficit counter grows in every round by a quantum in
 * proportion to the weight and shrinks by the time used. Here the time used is divided by the weight and added up, and
 * the tenant with the smallest sum is next. With quanta in proportion to weights both methods visit every tenant once
 * a round, and even out overruns and shortened rounds, however unequal kernels are. But this form needs no rounds:
 * tenants may join and leave, and weights may change, at any moment.
 *
 * `ahead` is relative to the active tenant that has had the least time (`ahead` = 0). Therefore:
 *   - A tenant that holds the GPU alone pays nothing, because it is the tenant with the least time.
 *   - The debt of an absent tenant shrinks by its share of the time that others use; the debt of a lone tenant shrinks
 *     by all of that time. Its excess was compensated to active tenants, or no tenant wanted it.
 *   - The credit of an absent tenant grows in the same way, up to one quantum. So a new tenant has the same claim as
 *     one that has waited for a round.
 * Debts are limited so that no tenant waits longer for its turn than longest_debt_ns.
 *
 * The time in which several tenants have work on the GPU (one drains for too long) is divided among them by the number
 * of their processes, as the hardware's time slices are.
 */
#include "drr.h"

#define PERMILLE 1000
#define SPAN_MOST_NS INT64_C(60000000000) /* longest time charged for one step: after a longer one the machine was suspended */

static int64_t weight(const struct drr_tenant *tenant) {
    return tenant->weight_permille == 0 ? 1 : tenant->weight_permille > PERMILLE ? PERMILLE : tenant->weight_permille;
}

int64_t drr_weighted(const struct drr_tenant *tenant, int64_t ns) { return ns * PERMILLE / weight(tenant); }

int64_t drr_owed(const struct drr_tenant *tenant, const struct drr_tenant *other) {
    return (tenant->ahead - other->ahead) / PERMILLE * weight(tenant);
}

bool drr_capped(const struct drr_tenant *tenant) {
    return tenant->policy == DRR_CAP && weight(tenant) < PERMILLE;
}

/* Returns the sum of the weights of all active tenants and of this one, even if it is inactive. */
static int64_t weight_with(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    return gpu->weight + (tenant->active ? 0 : weight(tenant));
}

int64_t drr_quantum(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    int64_t round = 2 * gpu->settings.quantum_ns;
    int64_t fair = round * weight(tenant) / weight_with(gpu, tenant);
    return fair > gpu->settings.least_quantum_ns ? fair : gpu->settings.least_quantum_ns;
}

/* The tokens that a capped tenant needs before it continues, to avoid tiny grants; it can save twice that number. */
static int64_t enough_tokens(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    int64_t share = 2 * gpu->settings.quantum_ns * weight(tenant) / PERMILLE;
    return share > gpu->settings.least_quantum_ns ? share : gpu->settings.least_quantum_ns;
}

int64_t drr_rest_ns(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    int64_t missing = enough_tokens(gpu, tenant) - tenant->tokens_ns;
    return missing <= 0 ? 0 : missing * PERMILLE / weight(tenant) + 1;
}

static int64_t all_using(const struct drr_gpu *gpu) {
    int64_t sum = 0;
    for (uint32_t i = 0; i < gpu->count; i++)
        sum += gpu->tenants[i]->using;
    return sum;
}

int64_t drr_until_used(const struct drr_gpu *gpu, const struct drr_tenant *tenant, int64_t ns) {
    if (ns <= 0 || tenant->using == 0)
        return ns <= 0 ? 0 : INT64_MAX / 4;
    return ns * all_using(gpu) / tenant->using + 1;
}

/* -- charging ------------------------------------------------------------------------------------------------------ */

static void fill_tokens(const struct drr_gpu *gpu, struct drr_tenant *tenant, int64_t span, int64_t part) {
    int64_t most = 2 * enough_tokens(gpu, tenant), least = -gpu->settings.longest_debt_ns * weight(tenant) / PERMILLE;
    int64_t tokens = tenant->tokens_ns + span * weight(tenant) / PERMILLE - part;
    tenant->tokens_ns = tokens > most ? most : tokens < least ? least : tokens;
}

static void charge(const struct drr_gpu *gpu, struct drr_tenant *tenant, int64_t span, int64_t sum) {
    int64_t part = tenant->using == 0 ? 0 : span * tenant->using / sum;
    tenant->held_ns += (uint64_t)part;
    tenant->left_ns -= part;
    tenant->ahead += drr_weighted(tenant, part);
    if (drr_capped(tenant))
        fill_tokens(gpu, tenant, span, part);
}

/* If no tenant wants the GPU, all debts shrink at the rate of real time. */
static void forgive(struct drr_gpu *gpu, int64_t span) {
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct drr_tenant *tenant = gpu->tenants[i];
        int64_t part = drr_weighted(tenant, span);
        if (tenant->ahead > 0)
            tenant->ahead = tenant->ahead > part ? tenant->ahead - part : 0;
    }
}

/* Makes the active tenant with the least time the reference, unless it has credit, which it keeps. The reference moves
 * at most at twice the rate at which all tenants together are served. Otherwise a tenant that leaves for a moment would
 * cancel the debts of the others: a tenant that is alone reduces its debt only as time passes. */
static void move_measure(struct drr_gpu *gpu, int64_t span) {
    if (gpu->weight == 0) {
        forgive(gpu, span);
        return;
    }
    int64_t least = 2 * span * PERMILLE / gpu->weight;
    for (uint32_t i = 0; i < gpu->count; i++)
        if (gpu->tenants[i]->active && gpu->tenants[i]->ahead < least)
            least = gpu->tenants[i]->ahead;
    for (uint32_t i = 0; i < gpu->count && least > 0; i++)
        gpu->tenants[i]->ahead -= least;
}

static void bound(const struct drr_gpu *gpu, struct drr_tenant *tenant) {
    int64_t credit = drr_weighted(tenant, drr_quantum(gpu, tenant));
    if (tenant->ahead < -credit)
        tenant->ahead = -credit;
    int64_t others = weight_with(gpu, tenant) - weight(tenant);
    if (tenant->ahead <= 0 || others == 0)
        return;
    int64_t debt = gpu->settings.longest_debt_ns / others * PERMILLE;
    if (tenant->ahead > debt)
        tenant->ahead = debt;
}

void drr_account(struct drr_gpu *gpu, uint64_t now) {
    if (now <= gpu->now)
        return;
    int64_t span = now - gpu->now > (uint64_t)SPAN_MOST_NS ? SPAN_MOST_NS : (int64_t)(now - gpu->now);
    int64_t sum = all_using(gpu);
    gpu->now = now;
    for (uint32_t i = 0; i < gpu->count; i++)
        charge(gpu, gpu->tenants[i], span, sum);
    move_measure(gpu, span);
    for (uint32_t i = 0; i < gpu->count; i++)
        bound(gpu, gpu->tenants[i]);
}

/* -- observing ----------------------------------------------------------------------------------------------------- */

/* A tenant without a grant wants one if it waits, has tokens, and has not recently left grants unused. */
static bool wants(const struct drr_gpu *gpu, struct drr_tenant *tenant) {
    if (tenant->resting && drr_rest_ns(gpu, tenant) == 0)
        tenant->resting = false;
    return tenant->policy != DRR_NONE && tenant->state != DRR_GRANTED && tenant->waiting != 0 && !tenant->resting &&
           gpu->now >= tenant->absent_until;
}

static uint32_t parts(const struct drr_tenant *tenant) {
    bool has = tenant->state == DRR_DRAINING ||
               (tenant->state == DRR_GRANTED && (tenant->busy != 0 || tenant->waiting != 0 || tenant->contended));
    return !has ? 0 : tenant->busy == 0 ? 1 : tenant->busy;
}

static void observe(struct drr_gpu *gpu, struct drr_tenant *tenant) {
    bool before = tenant->wanting;
    if (tenant->state == DRR_DRAINING && tenant->busy == 0)
        tenant->state = DRR_IDLE;
    if (tenant->state == DRR_GRANTED && (tenant->busy != 0 || tenant->waiting == 0)) {
        tenant->shown = true;
        tenant->absences = 0;
    }
    tenant->wanting = wants(gpu, tenant);
    tenant->using = parts(tenant);
    tenant->active = tenant->wanting || tenant->using != 0;
    if (!before)
        tenant->wanted_at = gpu->now;
    if (tenant->wanting && !before)
        tenant->eager = drr_weighted(tenant, gpu->settings.least_hold_ns) <= -tenant->ahead;
    else if (!tenant->wanting)
        tenant->eager = false;
}

void drr_observe(struct drr_gpu *gpu) {
    gpu->weight = 0;
    for (uint32_t i = 0; i < gpu->count; i++) {
        observe(gpu, gpu->tenants[i]);
        gpu->weight += gpu->tenants[i]->active ? weight(gpu->tenants[i]) : 0;
    }
}
