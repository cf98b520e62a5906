/* Deficit round robin: decides which tenant has a GPU at which time. A state machine without clock and I/O.
 *
 * The caller keeps `waiting`, `busy`, `weight_permille` and `policy` of each tenant up to date, calls drr_step with the
 * time until there is no more to do, carries out each action before it asks for the next (and after DRR_REVOKE reads
 * `busy` again before it asks), and comes back at wake_ns or when something has changed.
 */
#ifndef GPUPOOL_ARBITER_DRR_H
#define GPUPOOL_ARBITER_DRR_H

#include <stdbool.h>
#include <stdint.h>

struct drr_settings { /* times in ns; 0 where the default is wanted */
    int64_t quantum_ns;      /* tenants that want the GPU have it in turn within about twice this (20 ms) */
    int64_t least_quantum_ns; /* shortest quantum, also for a small share (4.5 ms) */
    int64_t least_hold_ns;   /* the holder keeps it this long, even if a tenant with credit wakes (2 ms) */
    int64_t drain_ns;        /* after a revocation the next one waits at most this long (twice the quantum, 50 ms) */
    int64_t absent_ns;       /* an unused grant is given to others after this (10 ms) */
    int64_t longest_debt_ns; /* overruns are charged only up to this wait; a tenant that has
                               waited this long is next in any case (20 s) */
    int64_t patience_ns;     /* longest wait for an idle holder if the next one owes it time (10 ms) */
    int64_t look_every_ns;   /* interval at which a lone tenant is asked whether it still uses the GPU (1 s) */
    int64_t look_ns;         /* duration of that question (5 ms) */
};

enum drr_policy { DRR_NONE = 0, DRR_GUARANTEE = 1, DRR_CAP = 2 }; /* enum gpupool_policy */

enum drr_state {
    DRR_IDLE,    /* has no grant and has drained */
    DRR_GRANTED, /* at most one tenant of a GPU */
    DRR_DRAINING /* its grant was revoked and its work is not known to be over */
};

struct drr_tenant {
    /* Set by the caller. */
    uint32_t weight_permille;
    uint32_t policy;
    uint32_t waiting; /* not 0: wants a grant */
    uint32_t busy;    /* processes whose work may not be over */
    /* Read by the caller. */
    uint32_t state;     /* enum drr_state */
    uint32_t contended; /* by the last action */
    uint64_t held_ns;   /* GPU time received */
    uint64_t grants;
    /* Private. */
    int64_t ahead;     /* time beyond its share divided by its weight, relative to the tenant with the least; < 0: credit */
    int64_t left_ns;   /* of its quantum */
    int64_t tokens_ns; /* DRR_CAP: tokens left */
    uint64_t granted_at, revoked_at, idle_since, turn;
    uint64_t absent_until, wanted_at;
    uint32_t absences;
    uint32_t using; /* parts of the GPU's time since the last step that are its own */
    bool active;    /* wants or has the GPU */
    bool wanting;   /* at the last step */
    bool eager;     /* woke with credit: need not wait for the end of a quantum */
    bool shown;     /* this grant was used */
    bool resting;   /* DRR_CAP: until there are tokens again */
};

struct drr_gpu {
    struct drr_settings settings;
    struct drr_tenant **tenants;
    uint32_t count, room;
    uint64_t now, turns;
    int64_t weight;   /* of all active tenants together */
    uint64_t wake_ns; /* time of the next call at the latest; UINT64_MAX: only when something changes */
};

enum drr_verb {
    DRR_NOTHING,
    DRR_GRANT,      /* a new grant; `contended`: with the flag CONTENDED */
    DRR_REVOKE,
    DRR_CONTENDED,  /* others want what this tenant has */
    DRR_UNCONTENDED
};

struct drr_action {
    enum drr_verb verb;
    struct drr_tenant *tenant;
};

/* Initialises a GPU without tenants; `settings` may be NULL. */
void drr_init(struct drr_gpu *gpu, const struct drr_settings *settings);
void drr_free(struct drr_gpu *gpu);
/* Adds a tenant, filled with zeros except weight and policy. With state DRR_DRAINING it may still have work there.
 * False: out of memory. */
bool drr_add(struct drr_gpu *gpu, struct drr_tenant *tenant, uint64_t now);
/* Removes a tenant in any state; nothing more is charged. */
void drr_remove(struct drr_gpu *gpu, struct drr_tenant *tenant, uint64_t now);
/* Returns the next action at this time; DRR_NOTHING if there is none, and then sets wake_ns. */
struct drr_action drr_step(struct drr_gpu *gpu, uint64_t now);

/* -- drr_account.c: the books of drr.c ----------------------------------------------------------------------------- */

/* Charges the time since the last step to the tenants that had the GPU. */
void drr_account(struct drr_gpu *gpu, uint64_t now);
/* Records which tenants want and which have the GPU from now on. */
void drr_observe(struct drr_gpu *gpu);
/* Returns one quantum of this tenant, among the active tenants. */
int64_t drr_quantum(const struct drr_gpu *gpu, const struct drr_tenant *tenant);
/* Returns true if the policy of this tenant caps it. */
bool drr_capped(const struct drr_tenant *tenant);
/* Returns the nanoseconds until a capped tenant that pauses has enough tokens. */
int64_t drr_rest_ns(const struct drr_gpu *gpu, const struct drr_tenant *tenant);
/* Returns time divided by a tenant's weight, so that tenants can be compared. */
int64_t drr_weighted(const struct drr_tenant *tenant, int64_t ns);
/* Returns the time that a tenant has had more than another, in its own measure. */
int64_t drr_owed(const struct drr_tenant *tenant, const struct drr_tenant *other);
/* Returns the nanoseconds until a holder has used up `ns` at the rate at which it is being charged. */
int64_t drr_until_used(const struct drr_gpu *gpu, const struct drr_tenant *tenant, int64_t ns);

#endif
