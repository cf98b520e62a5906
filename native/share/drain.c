/* Releases the GPU: one thread for each GPU with launches, started at the first claim of a grant.
 *
 * It sleeps while no grant is held, and while no other tenant wants the held one. When the grant is revoked, it waits
 * until no thread is inside a launch and all streams have drained, and reports that (slot.busy = 0). If others wait and
 * this process leaves the GPU idle, it releases the grant early; the next launch claims it again, with the same epoch if
 * the arbiter has not granted it to another tenant.
 *
 * All signals are blocked in this thread. It does not exist in children of fork.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "compute.h"

#define STACK_BYTES (256u << 10) /* stack size that the driver's functions need */
#define POLL_NS UINT64_C(50000)  /* between checks of streams that should drain soon */
#define POLL_MOST_NS UINT64_C(1000000)
#define INSIDE_NS UINT64_C(20000)
#define WATCH_NS UINT64_C(250000) /* between checks for new launches */
#define IDLE_NS UINT64_C(500000)  /* without a launch: the GPU is offered to waiting tenants */
#define EXIT_NS 100000000

struct watch { /* since when the number of launches has been the same */
    uint64_t launches, since_ns;
    uint64_t draining_ns; /* since when the streams should drain; 0: they need not */
};

static uint64_t launches_of(struct gp_compute *compute) {
    uint64_t launches = 0;
    for (uint32_t i = 0; i < GP_GATES; i++)
        launches += atomic_load(&compute->gates[i].word) >> 16;
    return launches;
}

static bool somebody_inside(struct gp_compute *compute) {
    for (uint32_t i = 0; i < GP_GATES; i++)
        if ((atomic_load(&compute->gates[i].word) & GP_GATE_INSIDE) != 0)
            return true;
    return false;
}

void gp_publish(struct gp_compute *compute) {
    struct gpupool_slot *slot = compute->gpu->slot;
    uint64_t all = launches_of(compute), graphs = atomic_load_explicit(&slot->graph_launches, memory_order_relaxed);
    atomic_store_explicit(&slot->launches, all > graphs ? all - graphs : 0, memory_order_relaxed);
}

/* Under the lock. */
static void give_back(struct gp_compute *compute) {
    gp_publish(compute);
    atomic_store(&compute->gpu->slot->busy, 0);
    gp_ring(compute->gpu, GPUPOOL_BELL_LOOK);
}

/* Handles a revoked grant: true when the GPU was released or claimed again. */
static bool release(struct gp_compute *compute) {
    bool over = true;
    pthread_mutex_lock(&compute->lock);
    if (!gp_is_held(compute)) {
        atomic_store(&compute->held, GP_HELD_NONE);
        over = !somebody_inside(compute) && gp_streams_drained(compute);
        if (over)
            give_back(compute);
    }
    pthread_mutex_unlock(&compute->lock);
    return over;
}

/* Streams are polled often at first, then in proportion to the time that it takes anyway. */
static uint64_t poll_ns(const struct watch *watch, uint64_t now) {
    uint64_t ns = (now - watch->draining_ns) / 256;
    return ns < POLL_NS ? POLL_NS : ns > POLL_MOST_NS ? POLL_MOST_NS : ns;
}

static void drain(struct gp_compute *compute, struct watch *watch) {
    uint64_t now = gp_now_ns();
    if (watch->draining_ns == 0)
        watch->draining_ns = now;
    if (release(compute))
        watch->draining_ns = 0;
    else
        gp_sleep_ns(somebody_inside(compute) ? INSIDE_NS : poll_ns(watch, now));
}

/* Releases the GPU if others wait and nothing was launched here for a while; true if it was released. The second check
 * of the streams decides, because no thread can launch then. */
static bool release_early(struct gp_compute *compute) {
    bool over = false;
    pthread_mutex_lock(&compute->lock);
    uint32_t held = atomic_load(&compute->held);
    if (gp_is_held(compute) && gp_streams_drained(compute)) {
        atomic_store(&compute->held, GP_HELD_NONE);
        over = !somebody_inside(compute) && gp_streams_drained(compute);
        if (over)
            give_back(compute);
        else
            atomic_store(&compute->held, held);
    }
    pthread_mutex_unlock(&compute->lock);
    return over;
}

static void watch_idle(struct gp_compute *compute, struct watch *watch, uint32_t grant) {
    uint64_t now = gp_now_ns(), launches = launches_of(compute), sleep = WATCH_NS;
    if (launches != watch->launches || watch->since_ns == 0)
        *watch = (struct watch){.launches = launches, .since_ns = now};
    else if (now - watch->since_ns < IDLE_NS)
        sleep = IDLE_NS - (now - watch->since_ns);
    else if (release_early(compute))
        return;
    else
        sleep = 2 * POLL_NS;
    gp_futex_wait(&compute->gpu->control->grant, grant, sleep, true);
}

static void *helper(void *argument) {
    struct gp_compute *compute = argument;
    struct watch watch = {0};
    prctl(PR_SET_NAME, "gpupool-lease");
    prctl(PR_SET_TIMERSLACK, 1000);
    for (;;) {
        uint32_t work = atomic_load(&compute->work), grant = atomic_load(&compute->gpu->control->grant);
        if (atomic_load(&compute->off))
            break;
        if (atomic_load(&compute->gpu->slot->busy) == 0) {
            watch.since_ns = 0;
            gp_futex_wait(&compute->work, work, UINT64_MAX, false);
        } else if (!gp_is_held(compute)) {
            drain(compute, &watch);
        } else if ((grant & GPUPOOL_GRANT_CONTENDED) != 0) {
            watch_idle(compute, &watch, grant);
        } else {
            watch.since_ns = watch.draining_ns = 0;
            gp_publish(compute);
            gp_futex_wait(&compute->gpu->control->grant, grant, UINT64_MAX, true);
        }
    }
    atomic_store(&compute->helper_done, true);
    return NULL;
}

static bool start(struct gp_compute *compute) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, &attributes, helper, compute) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

void gp_helper_wake(struct gp_compute *compute) {
    atomic_fetch_add(&compute->work, 1);
    if (!compute->helper_started)
        compute->helper_started = start(compute);
    gp_futex_wake(&compute->work, false);
}

/* Wakes the helper until it has noticed the end: it may be about to sleep on a word that will not change. */
static void stop_helper(struct gp_compute *compute) {
    uint64_t end = gp_now_ns() + EXIT_NS;
    while (!atomic_load(&compute->helper_done) && gp_now_ns() < end) {
        atomic_fetch_add(&compute->work, 1);
        gp_futex_wake(&compute->work, false);
        gp_futex_wake(&compute->gpu->control->grant, true);
        gp_sleep_ns(INSIDE_NS);
    }
}

/* The holder of the lock may hang in the driver, but the exit must not wait for it. */
static bool lock_for_exit(struct gp_compute *compute) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += EXIT_NS;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    return pthread_mutex_timedlock(&compute->lock, &end) == 0;
}

/* The queued work ends with the process. */
static void stop(struct gp_compute *compute) {
    atomic_store(&compute->off, true);
    if (atomic_load(&compute->helper_started))
        stop_helper(compute);
    bool locked = lock_for_exit(compute);
    atomic_store(&compute->held, GP_HELD_NONE);
    if (atomic_load(&compute->gpu->slot->busy) != 0)
        give_back(compute);
    if (locked)
        pthread_mutex_unlock(&compute->lock);
}

void gp_compute_at_exit(void) {
    for (uint32_t i = 0; i < GPUPOOL_MAX_GPUS; i++)
        if (gp_compute_at(i) != NULL)
            stop(gp_compute_at(i));
}
