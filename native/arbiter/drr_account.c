/* The books of the round robin: what each tenant has had, against what it should have had.
 *
 * `ahead` is a tenant's deficit in another form. A classic deficit counter is filled by a quantum in proportion to the
 * weight every round and emptied by what is used; here the time used is divided by the weight and added up, and the
 * one who has had least is next. With quanta in proportion to weights both visit everybody once a round, and overruns
 * and rounds cut short even out afterwards, however unequal kernels are. But this form needs no rounds: tenants come
 * and go, and weights change, at any moment.
 *
 * The figure is relative to the active tenant that has had least (`ahead` = 0). Hence
 *   - holding alone costs nothing: who is alone is the one who has had least;
 *   - debts of a tenant that is away shrink by its share of the time that others use, those of one that is alone by
 *     all of that time: what it had too much is made good to those who are there, or wanted by nobody;
 *   - credit of a tenant that is away grows in the same way, up to one quantum, so a newcomer is as good as one who
 *     has waited a round, and no better.
 * Debts are cut so that nobody waits longer for his turn than longest_debt_ns.
 *
 * The time in which several tenants have work on the GPU (one drains for too long) is divided among them by the number
 * of their processes, as the hardware's time slices are.
 */
#include "drr.h"

#define PERMILLE 1000
#define SPAN_MOST_NS INT64_C(60000000000) /* a step that comes later is taken to come then: the machine was asleep */

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

/* The weights of all active tenants, and of this one though it be away. */
static int64_t weight_with(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    return gpu->weight + (tenant->active ? 0 : weight(tenant));
}

int64_t drr_quantum(const struct drr_gpu *gpu, const struct drr_tenant *tenant) {
    int64_t round = 2 * gpu->settings.quantum_ns;
    int64_t fair = round * weight(tenant) / weight_with(gpu, tenant);
    return fair > gpu->settings.least_quantum_ns ? fair : gpu->settings.least_quantum_ns;
}

/* What a capped tenant must have before it goes on, so that it does not go on in crumbs; it can save up twice that. */
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

/* Nobody wants the GPU: what anybody had too much is forgotten as fast as time goes by. */
static void forgive(struct drr_gpu *gpu, int64_t span) {
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct drr_tenant *tenant = gpu->tenants[i];
        int64_t part = drr_weighted(tenant, span);
        if (tenant->ahead > 0)
            tenant->ahead = tenant->ahead > part ? tenant->ahead - part : 0;
    }
}

/* Whoever of the active tenants has had least becomes the measure, unless he has credit: that he keeps. It moves at
 * most at twice the pace at which all of them together are served, so that a tenant that leaves for a moment does not
 * acquit those that owe it time: who is alone pays his debts off second by second. */
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

/* A tenant without a grant wants one if it waits, does not rest, and has not lately left grants unused. */
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
