/* Waits for GPU time: the slow path of a launch, and the state of this process for each GPU.
 *
 * Every wait is limited. If the arbiter's heartbeat does not change for a second, the arbiter counts as dead: launches
 * continue in hardware time slices until the heartbeat changes again. A launch that has waited GP_LONGEST_WAIT_MS
 * continues without a grant. Both are counted in slot.ungated.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "compute.h"

#define SLICE_NS UINT64_C(100000000)         /* longest sleep before the next check of the heartbeat */
#define ARBITER_GONE_NS UINT64_C(1000000000) /* after this time without a change the heartbeat counts as stopped */
#define LONGEST_WAIT_NS (GP_LONGEST_WAIT_MS * UINT64_C(1000000))
#define INFLIGHT_NS UINT64_C(4000000)

static _Atomic(struct gp_compute *) computes[GPUPOOL_MAX_GPUS];
static _Atomic uint32_t threads;
static _Thread_local uint32_t gate_number __attribute__((tls_model("initial-exec"))); /* 0: none yet */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

uint64_t gp_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Both by direct system call, because a launch is no cancellation point. */
void gp_sleep_ns(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    syscall(SYS_nanosleep, &time, NULL);
}

void gp_futex_wait(const _Atomic uint32_t *word, uint32_t value, uint64_t ns, bool shared) {
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    int operation = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
    syscall(SYS_futex, word, operation, value, ns == UINT64_MAX ? NULL : &time, NULL, 0);
}

void gp_futex_wake(const _Atomic uint32_t *word, bool shared) {
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static struct gp_compute *make(struct gp_gpu *gpu) {
    pthread_mutex_lock(&making);
    struct gp_compute *compute = atomic_load(&computes[gpu->index]);
    if (compute == NULL) {
        compute = mmap(NULL, sizeof *compute, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (compute == MAP_FAILED)
            compute = NULL;
    }
    if (compute != NULL && compute->gpu == NULL) {
        uint32_t limit_us = gpu->control->inflight_limit_us;
        compute->gpu = gpu;
        compute->held = GP_HELD_NONE;
        compute->limit_ns = limit_us == 0 ? INFLIGHT_NS : limit_us * UINT64_C(1000);
        pthread_mutex_init(&compute->lock, NULL);
        atomic_store(&gpu->slot->busy, 0); /* possibly left by the program before exec */
        atomic_store(&gpu->slot->waiting, 0);
        atomic_store(&computes[gpu->index], compute);
    }
    pthread_mutex_unlock(&making);
    return compute;
}

struct gp_compute *gp_compute_at(uint32_t index) {
    return atomic_load_explicit(&computes[index], memory_order_acquire);
}

struct gp_compute *gp_compute_current(void) {
    struct gp_gpu *gpu = gp_gpu_current();
    if (gpu == NULL || *(const volatile uint32_t *)&gpu->control->policy == GPUPOOL_POLICY_NONE)
        return NULL;
    struct gp_compute *compute = gp_compute_at(gpu->index);
    if (GP_UNLIKELY(compute == NULL))
        compute = make(gpu);
    return compute == NULL || GP_UNLIKELY(atomic_load_explicit(&compute->off, memory_order_relaxed)) ? NULL : compute;
}

struct gp_gate *gp_gate_of(struct gp_compute *compute) {
    if (GP_UNLIKELY(gate_number == 0))
        gate_number = atomic_fetch_add(&threads, 1) % GP_GATES + 1;
    return &compute->gates[gate_number - 1];
}

/* Claims the grant if there is one: writes busy first, then checks the grant again. */
static bool claim(struct gp_compute *compute) {
    const _Atomic uint32_t *word = &compute->gpu->control->grant;
    uint32_t grant = atomic_load(word) & ~GPUPOOL_GRANT_CONTENDED;
    if ((grant & GPUPOOL_GRANT_GRANTED) == 0)
        return false;
    struct gpupool_slot *slot = compute->gpu->slot;
    pthread_mutex_lock(&compute->lock);
    GP_PAUSE();
    uint32_t before = atomic_exchange(&slot->busy, grant);
    bool granted = (atomic_load(word) & ~GPUPOOL_GRANT_CONTENDED) == grant;
    if (granted) {
        atomic_store(&compute->held, grant);
        gp_helper_wake(compute);
    } else {
        atomic_store(&slot->busy, before);
    }
    pthread_mutex_unlock(&compute->lock);
    if (!granted && before == 0)
        gp_ring(compute->gpu, GPUPOOL_BELL_LOOK); /* the arbiter may have seen us busy */
    return granted;
}

static bool arbiter_gone(struct gp_compute *compute) {
    pthread_mutex_lock(&compute->lock);
    uint64_t now = gp_now_ns(); /* not before the time that another thread has stored */
    uint32_t beat = atomic_load(&compute->gpu->control->heartbeat);
    if (compute->beat_ns == 0 || beat != compute->beat) {
        compute->beat = beat;
        compute->beat_ns = now;
    }
    bool gone = now - compute->beat_ns >= ARBITER_GONE_NS;
    pthread_mutex_unlock(&compute->lock);
    return gone;
}

static void sleep_on_grant(struct gp_compute *compute, uint64_t ns) {
    const _Atomic uint32_t *word = &compute->gpu->control->grant;
    uint32_t grant = atomic_load(word);
    if ((grant & GPUPOOL_GRANT_GRANTED) == 0)
        gp_futex_wait(word, grant, ns < SLICE_NS ? ns : SLICE_NS, true);
}

/* True: this process holds the grant. False: continue without it. *since becomes the time when the wait began. */
static bool wait_for_grant(struct gp_compute *compute, uint64_t *since) {
    for (;;) {
        if (atomic_load(&compute->off))
            return false;
        if (claim(compute))
            return true;
        if (arbiter_gone(compute))
            return false;
        uint64_t now = gp_now_ns();
        if (*since == 0) {
            *since = now;
            atomic_fetch_add(&compute->gpu->slot->waiting, 1);
        }
        if (now - *since >= LONGEST_WAIT_NS)
            return false;
        gp_ring(compute->gpu, GPUPOOL_BELL_LOOK);
        sleep_on_grant(compute, LONGEST_WAIT_NS - (now - *since));
    }
}

void gp_gate_wait(struct gp_compute *compute, struct gp_gate *gate) {
    struct gpupool_slot *slot = compute->gpu->slot;
    uint64_t since = 0;
    bool granted;
    do {
        atomic_fetch_sub(&gate->word, GP_GATE_LAUNCH + 1);
        granted = wait_for_grant(compute, &since);
        atomic_fetch_add(&gate->word, GP_GATE_LAUNCH + 1);
    } while (granted && !gp_is_held(compute));
    if (!granted)
        atomic_fetch_add(&slot->ungated, 1);
    if (since != 0) {
        atomic_fetch_sub(&slot->waiting, 1);
        atomic_fetch_add(&slot->waited_ns, gp_now_ns() - since);
    }
}

/* Does not free the parent's tables: caches of other threads may point there, and they cost nothing. */
void gp_compute_after_fork(void) {
    making = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (uint32_t i = 0; i < GPUPOOL_MAX_GPUS; i++)
        atomic_store(&computes[i], NULL);
    atomic_store(&gp_captures, 0);
}
