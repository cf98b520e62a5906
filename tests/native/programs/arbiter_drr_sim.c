/* Simulated tenants around the round robin's core, in virtual time: what the share library does with a grant, and a GPU
 * that serves all processes with work alike. Compiled with drr.c and drr_account.c as a library for ctypes.
 *
 * Time goes in ticks of 10 microseconds. A tenant launches kernels while it has the grant and less than its bound is
 * queued (a kernel longer than the bound only on an empty queue), and says that it is no longer busy when its queue is
 * empty and it has lost the grant, or has been idle for half a millisecond while others want the GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "arbiter/drr.h"

#define TICK 10000
#define IDLE_NS 500000
#define KINDS 4

struct spec { /* mirrored in test_drr.py */
    uint32_t weight_permille, policy;
    int64_t kernel_ns[KINDS]; /* launched in turn; zeros at the end are left out */
    int64_t burst_ns;         /* 0: there is always more to launch */
    int64_t think_ns;         /* between bursts */
    int64_t gap_ns;           /* between a kernel's end and the next launch (0: kernels are queued) */
    int64_t inflight_ns, wake_ns, drained_ns; /* bound of the queue; time to notice a grant, and that it has drained */
    int64_t starts_ns, ends_ns;               /* joins and leaves the GPU; ends_ns 0: stays */
    uint32_t processes;                       /* slots busy at once, which share its grant */
    uint32_t stopped;                         /* waits but never comes */
};

struct tenant {
    struct drr_tenant drr;
    struct spec spec;
    bool there, granted, contended;
    int64_t sees_at, quiet_since, next_launch, burst_left, arrived, queued, kernel_left;
    uint32_t turn;
    int64_t served, waited_since;
};

struct result { /* of one tenant */
    int64_t served_ns, held_ns, longest_wait_ns, grants;
};

struct outcome { /* of all */
    int64_t idle_wanted_ns; /* the GPU was idle while a tenant had work for it */
    int64_t longest_idle_wanted_ns;
    int64_t early_overlaps; /* grants while another drained, before drain_ns had passed */
    int64_t two_grants;
    int64_t steps;
};

static struct drr_gpu gpu;

static int64_t kernel_of(struct tenant *t) {
    int64_t length = t->spec.kernel_ns[t->turn % KINDS];
    if (length == 0) {
        t->turn = 0;
        length = t->spec.kernel_ns[0];
    }
    t->turn++;
    return length;
}

static bool has_work(const struct tenant *t) { return t->there && (t->spec.burst_ns == 0 || t->burst_left > 0); }

static void launch(struct tenant *t, int64_t now) {
    while (has_work(t) && now >= t->next_launch) {
        uint32_t turn = t->turn;
        int64_t length = kernel_of(t);
        bool room = t->queued == 0 || (t->spec.gap_ns == 0 && t->queued + length <= t->spec.inflight_ns);
        if (!room) {
            t->turn = turn;
            return;
        }
        t->queued += length;
        t->burst_left -= length;
        t->quiet_since = -1;
        t->drr.busy = t->spec.processes;
        if (t->spec.gap_ns != 0)
            t->next_launch = INT64_MAX;
    }
}

/* Returns true if something changed that is reported to the arbiter. */
static bool live(struct tenant *t, int64_t now) {
    uint32_t busy = t->drr.busy, waiting = t->drr.waiting;
    bool ready = has_work(t) && now >= t->next_launch;
    if (t->granted && now >= t->sees_at && t->drr.policy != DRR_NONE && !t->spec.stopped) {
        launch(t, now);
        t->drr.waiting = 0;
    } else if (t->drr.policy == DRR_NONE) {
        launch(t, now);
    } else if (ready) {
        t->drr.waiting = 1;
    }
    if (t->queued == 0 && t->drr.busy != 0) {
        if (t->quiet_since < 0)
            t->quiet_since = now;
        int64_t quiet = now - t->quiet_since;
        if ((!t->granted && quiet >= t->spec.drained_ns) || (t->contended && quiet >= IDLE_NS))
            t->drr.busy = 0;
    }
    return busy != t->drr.busy || waiting != t->drr.waiting;
}

static void served(struct tenant *t, int64_t ns, int64_t now, int64_t *responses, int64_t *count, int64_t room) {
    t->served += ns;
    t->queued -= ns;
    if (t->queued > 0)
        return;
    t->queued = 0;
    if (t->spec.gap_ns != 0)
        t->next_launch = now + t->spec.gap_ns;
    if (t->spec.burst_ns != 0 && t->burst_left <= 0) {
        if (responses != NULL && *count < room)
            responses[(*count)++] = now - t->arrived;
        t->arrived = t->next_launch = now + t->spec.think_ns;
        t->burst_left = t->spec.burst_ns;
    }
}

static void apply(struct drr_action action, struct tenant *all, uint32_t count, int64_t now, struct outcome *out) {
    struct tenant *t = (struct tenant *)action.tenant;
    if (action.verb == DRR_GRANT) {
        for (uint32_t i = 0; i < count; i++) {
            out->two_grants += &all[i] != t && all[i].granted;
            bool busy = all[i].there && all[i].drr.policy != DRR_NONE && all[i].drr.busy != 0;
            out->early_overlaps += &all[i] != t && busy &&
                                   now - (int64_t)all[i].drr.revoked_at < gpu.settings.drain_ns;
        }
        t->granted = true;
        t->sees_at = now + t->spec.wake_ns;
    }
    if (action.verb == DRR_REVOKE) {
        t->granted = false;
        t->drr.busy = t->queued > 0 || t->quiet_since < 0 ? t->drr.busy : 0;
        if (t->drr.busy != 0 && t->quiet_since < 0 && t->queued == 0)
            t->drr.busy = 0; /* nothing was launched */
    }
    t->contended = t->drr.contended;
}

static void come_and_go(struct tenant *t, int64_t now) {
    bool there = now >= t->spec.starts_ns && (t->spec.ends_ns == 0 || now < t->spec.ends_ns);
    if (there == t->there)
        return;
    t->there = there;
    if (there) {
        t->drr.weight_permille = t->spec.weight_permille;
        t->drr.policy = t->spec.policy;
        t->arrived = t->next_launch = now;
        drr_add(&gpu, &t->drr, (uint64_t)now);
    } else {
        drr_remove(&gpu, &t->drr, (uint64_t)now);
        t->queued = 0;
        t->granted = false;
        t->drr.busy = t->drr.waiting = 0;
    }
}

static void note_waits(struct tenant *t, int64_t now, struct result *result) {
    if (t->drr.waiting == 0 || t->granted)
        t->waited_since = now;
    if (now - t->waited_since > result->longest_wait_ns)
        result->longest_wait_ns = now - t->waited_since;
}

/* Serves all that have work with one tick; false: nobody has. */
static bool serve(struct tenant *all, uint32_t count, int64_t now, int64_t *responses, int64_t *responded,
                  int64_t room) {
    int64_t parts = 0;
    for (uint32_t i = 0; i < count; i++)
        parts += all[i].queued > 0 ? all[i].spec.processes : 0;
    for (uint32_t i = 0; i < count && parts > 0; i++)
        if (all[i].queued > 0)
            served(&all[i], TICK * all[i].spec.processes / parts, now + TICK, responses + i * room, &responded[i],
                   room);
    return parts > 0;
}

/* samples: what each tenant was served until each multiple of sample_ns, tenant by tenant. */
__attribute__((visibility("default"))) int simulate(const struct drr_settings *settings, const struct spec *specs,
                                                    uint32_t count, int64_t duration, int64_t sample_ns,
                                                    struct result *results, struct outcome *out, int64_t *samples,
                                                    int64_t *responses, int64_t *responded, int64_t room) {
    struct tenant *all = calloc(count, sizeof *all);
    if (all == NULL)
        return -1;
    drr_init(&gpu, settings);
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < count; i++) {
        all[i].spec = specs[i];
        all[i].quiet_since = 0;
        all[i].burst_left = specs[i].burst_ns;
    }
    int64_t idle = 0, per = duration / sample_ns;
    for (int64_t now = 0; now < duration; now += TICK) {
        bool changed = false, wanted = false;
        for (uint32_t i = 0; i < count; i++) {
            come_and_go(&all[i], now);
            changed |= all[i].there && live(&all[i], now);
        }
        for (struct drr_action a = {DRR_GRANT, NULL};
             a.verb != DRR_NOTHING && (changed || (uint64_t)now >= gpu.wake_ns);) {
            a = drr_step(&gpu, (uint64_t)now);
            out->steps++;
            if (a.verb != DRR_NOTHING)
                apply(a, all, count, now, out);
            changed = a.verb != DRR_NOTHING;
        }
        for (uint32_t i = 0; i < count; i++) {
            note_waits(&all[i], now, &results[i]);
            wanted |= all[i].there && all[i].drr.waiting != 0 && !all[i].spec.stopped && !all[i].drr.resting;
        }
        bool used = serve(all, count, now, responses, responded, room);
        idle = used || !wanted ? 0 : idle + TICK;
        out->idle_wanted_ns += idle > 0 ? TICK : 0;
        if (idle > out->longest_idle_wanted_ns)
            out->longest_idle_wanted_ns = idle;
        if ((now + TICK) % sample_ns == 0)
            for (uint32_t i = 0; i < count; i++)
                samples[i * per + now / sample_ns] = all[i].served;
    }
    for (uint32_t i = 0; i < count; i++) {
        results[i].served_ns = all[i].served;
        results[i].held_ns = (int64_t)all[i].drr.held_ns;
        results[i].grants = (int64_t)all[i].drr.grants;
    }
    drr_free(&gpu);
    free(all);
    return 0;
}
