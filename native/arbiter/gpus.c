/* The tenants of each GPU: reads their requests from their pages and writes the decisions of drr.c into them.
 *
 * GPUs are distinguished by the name that NVML prints for them. A tenant with policy "none" may launch at any time.
 *
 * While a tenant drains, its page is read every millisecond, because bells may get lost.
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arbiter.h"

#define NET_NS UINT64_C(1000000)
#define ACTIONS_MOST 64 /* in a row, on one GPU */

static struct gpu *gpus;

/* -- reading ------------------------------------------------------------------------------------------------------- */

static void look(struct seat *seat) {
    uint32_t busy = 0, waiting = 0;
    for (uint32_t i = 0; i < seat->live_count; i++) {
        struct gpupool_slot *slot = &seat->status->slots[seat->live[i]];
        busy += atomic_load(&slot->busy) != 0;
        waiting += atomic_load(&slot->waiting) != 0;
    }
    seat->drr.busy = busy;
    seat->drr.waiting = waiting;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void write_grant(struct seat *seat, uint32_t epochs, uint32_t flags) {
    uint32_t before = atomic_load(&seat->control->grant);
    uint32_t epoch = (before >> GPUPOOL_GRANT_EPOCH_SHIFT) + epochs;
    uint32_t after = epoch << GPUPOOL_GRANT_EPOCH_SHIFT | flags;
    if (after == before)
        return;
    atomic_store(&seat->control->grant, after);
    syscall(SYS_futex, &seat->control->grant, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void carry_out(struct drr_action action) {
    if (action.verb == DRR_NOTHING)
        return;
    struct seat *seat = (struct seat *)(void *)action.tenant;
    uint32_t contended = action.tenant->contended ? GPUPOOL_GRANT_CONTENDED : 0;
    switch (action.verb) {
    case DRR_GRANT:
        write_grant(seat, 1, GPUPOOL_GRANT_GRANTED | contended);
        break;
    case DRR_REVOKE:
        write_grant(seat, 0, 0);
        look(seat);
        break;
    case DRR_CONTENDED:
    case DRR_UNCONTENDED:
        write_grant(seat, 0, GPUPOOL_GRANT_GRANTED | contended);
        break;
    case DRR_NOTHING:
        break;
    }
}

/* -- joining ------------------------------------------------------------------------------------------------------- */

static struct gpu *gpu_named(const struct seat *seat) {
    for (struct gpu *gpu = gpus; gpu != NULL; gpu = gpu->next)
        if (strcmp(gpu->uuid, seat->control->uuid_text) == 0)
            return gpu;
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return NULL;
    memcpy(gpu->uuid, seat->control->uuid_text, sizeof gpu->uuid);
    memcpy(gpu->uuid_bytes, seat->control->uuid, sizeof gpu->uuid_bytes);
    drr_init(&gpu->drr, NULL);
    gpu->wake_ns = ARB_NEVER;
    gpu->next = gpus;
    gpus = gpu;
    return gpu;
}

static bool has_seat(const struct lease *lease, const struct gpu *gpu) {
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        if (lease->seats[i].gpu == gpu)
            return true;
    return false;
}

/* Revokes grants of an earlier arbiter; they may drain like any other. */
bool arb_gpus_join(struct seat *seat) {
    struct gpu *gpu = gpu_named(seat);
    bool gated = seat->control->policy != GPUPOOL_POLICY_NONE;
    write_grant(seat, !gated, gated ? 0 : GPUPOOL_GRANT_GRANTED);
    if (gpu == NULL || has_seat(seat->lease, gpu))
        return false;
    if (memcmp(gpu->uuid_bytes, seat->control->uuid, sizeof gpu->uuid_bytes) != 0)
        arb_warn(seat->lease, seat->lease->path, "Another lease gives other bytes for the same GPU's UUID.");
    look(seat);
    seat->drr.weight_permille = seat->control->weight_permille;
    seat->drr.policy = seat->control->policy == GPUPOOL_POLICY_CAP ? DRR_CAP : gated ? DRR_GUARANTEE : DRR_NONE;
    seat->drr.state = gated && seat->drr.busy != 0 ? DRR_DRAINING : DRR_IDLE;
    if (!drr_add(&gpu->drr, &seat->drr, arb_now()))
        return false;
    seat->gpu = gpu;
    return true;
}

static void forget_if_empty(struct gpu *gpu) {
    struct gpu **at = &gpus;
    while (*at != NULL && *at != gpu)
        at = &(*at)->next;
    if (*at == NULL || gpu->drr.count > 0)
        return;
    *at = gpu->next;
    drr_free(&gpu->drr);
    free(gpu);
}

void arb_gpus_leave(struct seat *seat) {
    write_grant(seat, 0, 0);
    struct gpu *gpu = seat->gpu;
    if (gpu == NULL)
        return;
    seat->gpu = NULL;
    drr_remove(&gpu->drr, &seat->drr, arb_now());
    gpu->stirred = true;
    forget_if_empty(gpu);
}

/* -- running ------------------------------------------------------------------------------------------------------- */

void arb_gpus_stir(struct lease *lease) {
    lease->rung = true;
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        if (lease->seats[i].gpu != NULL)
            lease->seats[i].gpu->stirred = true;
}

/* Reads the pages of tenants that have the GPU always, those of the others after a bell. */
static void look_at_all(const struct gpu *gpu) {
    for (uint32_t i = 0; i < gpu->drr.count; i++) {
        struct seat *seat = (struct seat *)(void *)gpu->drr.tenants[i];
        if (seat->lease->rung || seat->drr.state != DRR_IDLE)
            look(seat);
    }
}

/* ... and is polled. A tenant that takes longer is checked every tick. */
static bool somebody_drains(const struct gpu *gpu) {
    for (uint32_t i = 0; i < gpu->drr.count; i++)
        if (gpu->drr.tenants[i]->state == DRR_DRAINING &&
            gpu->drr.tenants[i]->revoked_at + (uint64_t)gpu->drr.settings.drain_ns > gpu->drr.now)
            return true;
    return false;
}

static void run(struct gpu *gpu) {
    look_at_all(gpu);
    struct drr_action action;
    int actions = 0;
    do {
        action = drr_step(&gpu->drr, arb_now());
        carry_out(action);
    } while (action.verb != DRR_NOTHING && ++actions < ACTIONS_MOST);
    gpu->stirred = action.verb != DRR_NOTHING;
    gpu->wake_ns = gpu->drr.wake_ns;
    uint64_t net = gpu->drr.now + NET_NS;
    if (somebody_drains(gpu) && net < gpu->wake_ns)
        gpu->wake_ns = net;
}

uint64_t arb_gpus_run(uint64_t now) {
    uint64_t wake = ARB_NEVER;
    for (struct gpu *gpu = gpus; gpu != NULL; gpu = gpu->next) {
        if (gpu->stirred || gpu->wake_ns <= now)
            run(gpu);
        uint64_t next = gpu->stirred ? now : gpu->wake_ns;
        wake = next < wake ? next : wake;
    }
    for (uint32_t i = 0; i < arb_lease_end; i++)
        if (arb_leases[i] != NULL)
            arb_leases[i]->rung = false;
    return wake;
}
