/* Keeps a stream's queue short, so that a revoked GPU is free within about inflight_limit_us.
 *
 * Each kernel (function and order of magnitude of its grid) and each executable graph has a cost in GPU time. An unknown
 * one is launched alone between two marks to measure it. After that the costs of launches are added up, and a mark is
 * recorded only after a quarter of the limit. A program that repeats its launches pays for one event in each millisecond
 * of GPU time.
 *
 * The time of a group of launches is exact if the GPU worked all the time between two marks; otherwise the time between
 * the marks is an upper bound. A stream's `scale` corrects the difference between the sum of costs and the measured
 * time, which comes from other arguments and from other streams that run at the same time.
 *
 * Each stream is paced alone: a stream whose kernel waits for another stream's must not delay that one.
 */
#include "compute.h"

#define PATIENCE_NS UINT64_C(10000000000) /* a queue that does not shorten in this time will not shorten by waiting */
#define LEAST_NS 1000.0                   /* minimum cost of a launch */
#define SPINS 16
#define SLEEP_LEAST_NS UINT64_C(20000)
#define SLEEP_MOST_NS UINT64_C(200000)
#define SCALE_MOST 64.0
#define PROBES 16u

/* -- costs --------------------------------------------------------------------------------------------------------------- */

static inline uint32_t cost_place(uint64_t key) { return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 40) % GP_COSTS; }

uint32_t gp_cost(const struct gp_compute *compute, uint64_t key) {
    uint32_t place = cost_place(key);
    for (uint32_t i = 0; i < PROBES; i++) {
        const struct gp_cost *cost = &compute->costs[(place + i) % GP_COSTS];
        uint64_t found = atomic_load_explicit(&cost->key, memory_order_acquire);
        if (found == key)
            return atomic_load_explicit(&cost->ns, memory_order_relaxed);
        if (found == 0)
            return 0;
    }
    return 0;
}

/* Returns the place of this key, or one for it: a free one, else that of another key. */
static struct gp_cost *cost_for(struct gp_compute *compute, uint64_t key) {
    uint32_t place = cost_place(key);
    struct gp_cost *cost = &compute->costs[place];
    for (uint32_t i = 0; i < PROBES; i++) {
        cost = &compute->costs[(place + i) % GP_COSTS];
        uint64_t found = atomic_load(&cost->key);
        if (found == key || found == 0)
            return cost;
    }
    return cost;
}

static void set_cost(struct gp_compute *compute, uint64_t key, double ns) {
    struct gp_cost *cost = cost_for(compute, key);
    atomic_store(&cost->ns, ns < LEAST_NS ? (uint32_t)LEAST_NS : ns < 4e9 ? (uint32_t)ns : 4000000000u);
    atomic_store_explicit(&cost->key, key, memory_order_release);
}

void gp_cost_forget(struct gp_compute *compute, uint64_t key) {
    struct gp_cost *cost = cost_for(compute, key);
    if (atomic_load(&cost->key) == key)
        atomic_store(&cost->ns, 0);
}

/* -- learning ------------------------------------------------------------------------------------------------------------ */

/* Accepts a value that is far too low at once, else a quarter of the difference. */
static double moved(double from, double to) { return to > 2 * from ? to : from + (to - from) / 4; }

static void learn_cost(struct gp_compute *compute, struct gp_stream *stream, const struct gp_mark *mark, double ns) {
    uint32_t known = gp_cost(compute, mark->key);
    double each = ns / mark->launches;
    set_cost(compute, mark->key, known == 0 || !mark->exact ? each : moved(known, each));
    stream->scale = moved(stream->scale, 1);
}

static void learn_scale(struct gp_stream *stream, const struct gp_mark *mark, double ns) {
    double ratio = ns / (double)mark->work_ns;
    stream->scale = mark->exact ? moved(stream->scale, ratio) : ratio;
    if (stream->scale > SCALE_MOST)
        stream->scale = SCALE_MOST;
    if (stream->scale < 1 / SCALE_MOST)
        stream->scale = 1 / SCALE_MOST;
}

void gp_pace_learn(struct gp_compute *compute, struct gp_stream *stream, const struct gp_mark *mark, double elapsed_ns) {
    if (mark->launches == 0 || mark->work_ns == 0)
        return;
    if (mark->key == 0 && mark->work_ns >= GP_COST_UNKNOWN_NS)
        return; /* another thread was between the marks */
    bool pure = mark->key != 0, first = pure && gp_cost(compute, mark->key) == 0;
    double thought = (double)mark->work_ns * (pure ? 1 : stream->scale);
    if (!first && !mark->exact && elapsed_ns >= thought)
        return;
    if (pure)
        learn_cost(compute, stream, mark, elapsed_ns);
    else
        learn_scale(stream, mark, elapsed_ns);
    atomic_store(&stream->quantum_ns, (uint64_t)((double)compute->limit_ns / 4 / stream->scale));
}

/* -- waiting ------------------------------------------------------------------------------------------------------------- */

/* Returns the remaining time of the queue, less the time that the oldest group must have had since it began. */
static double queued_ns(const struct gp_stream *stream) {
    double work = 0;
    for (uint32_t i = stream->head; i != stream->tail; i++)
        work += (double)stream->marks[i % GP_MARKS].work_ns;
    work = (work + (double)atomic_load(&stream->since_ns)) * stream->scale;
    if (stream->head == stream->tail || stream->reached_ns == 0)
        return work;
    double oldest = (double)stream->marks[stream->head % GP_MARKS].work_ns * stream->scale;
    double served = (double)(gp_now_ns() - stream->reached_ns);
    return work - (served < oldest ? served : oldest);
}

/* Returns true if another quarter fits behind this. */
static double enough_ns(const struct gp_compute *compute) { return (double)compute->limit_ns * 3 / 4; }

void gp_pace_marked(struct gp_compute *compute, struct gp_stream *stream) {
    if (stream->tail - stream->head == 1)
        stream->reached_ns = gp_now_ns(); /* begins about now */
    bool full = queued_ns(stream) > enough_ns(compute) || stream->tail - stream->head == GP_MARKS - 1;
    atomic_store(&stream->full, full && !stream->stuck);
}

static bool one_that_fits(const struct gp_compute *compute, const struct gp_stream *stream) {
    const struct gp_mark *mark = &stream->marks[stream->head % GP_MARKS];
    bool one = stream->tail - stream->head == 1 && mark->launches == 1 && atomic_load(&stream->since_launches) == 0;
    return one && (double)mark->work_ns * stream->scale < (double)compute->limit_ns;
}

/* Returns the longest time to sleep; 0: launch now. The wait never lets the GPU become idle: the next launch may start at
 * three quarters of the limit, and one launch may always follow another that fits. */
static uint64_t still_full(struct gp_compute *compute, struct gp_stream *stream) {
    double enough = enough_ns(compute);
    bool idle = gp_stream_collect(compute, stream) || stream->head == stream->tail;
    double queued = queued_ns(stream);
    bool room = stream->tail - stream->head < GP_MARKS - 1;
    if (idle || (room && (queued <= enough || one_that_fits(compute, stream))))
        return 0;
    double sleep = (queued - enough) / 2;
    return sleep > (double)SLEEP_MOST_NS ? SLEEP_MOST_NS : sleep < (double)SLEEP_LEAST_NS ? SLEEP_LEAST_NS : (uint64_t)sleep;
}

static uint64_t shorter(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void wait_for_room(struct gp_compute *compute, struct gp_stream *stream) {
    uint64_t begun = gp_now_ns(), sleep, now = begun;
    for (uint32_t turn = 0;; turn++) {
        pthread_mutex_lock(&compute->lock);
        sleep = still_full(compute, stream);
        stream->stuck |= now - begun > PATIENCE_NS;
        if (sleep == 0 || stream->stuck || atomic_load(&compute->off))
            break;
        pthread_mutex_unlock(&compute->lock);
        if (turn >= SPINS || sleep > SLEEP_LEAST_NS)
            gp_sleep_ns(shorter(sleep, SLEEP_LEAST_NS + (now - begun) / 2)); /* the estimate may be far too high */
        now = gp_now_ns();
    }
    atomic_store(&stream->full, false);
    pthread_mutex_unlock(&compute->lock);
    atomic_fetch_add(&compute->gpu->slot->paced_ns, now - begun);
}

void gp_pace_before(struct gp_launch *launch) {
    struct gp_compute *compute = launch->compute;
    if (atomic_load(&launch->stream->full))
        wait_for_room(compute, launch->stream);
    pthread_mutex_lock(&compute->lock);
    if (launch->cost_ns == 0)
        launch->cost_ns = gp_cost(compute, launch->key); /* it may have been learned just now */
    if (launch->cost_ns == 0) /* even without a launch since the last mark, which may be long ago */
        gp_stream_mark(compute, launch->stream);
    pthread_mutex_unlock(&compute->lock);
}
