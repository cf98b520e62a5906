/* Waiting for simulated time: asleep until shortly before the projected end, then looking, never longer than a moment.
 *
 * When others ask for GPU time meanwhile, the end moves away and the waiter sleeps again. When others die it comes
 * nearer: that is noticed at the latest after LONGEST_NS.
 */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "fake.h"

#define SPIN_NS UINT64_C(70000) /* a sleeping thread wakes about 50 us late */
#define LONGEST_NS UINT64_C(20000000)
#define UNKNOWN_NS UINT64_C(1000000)
#define LAUNCHES 1024u /* pending at most, as in the queues of real GPUs */
#define LAUNCHES_AT_ONCE 32u

static uint64_t projected(struct op *op, uint64_t now) {
    if (op->state != OP_QUEUED || op->host) return now + UNKNOWN_NS;
    fake_lock(op->gpu->shared);
    fake_advance(op->gpu->shared, now);
    uint64_t end = fake_projected(op->gpu->shared, op->finish, now);
    fake_unlock(op->gpu->shared);
    return end;
}

/* Waits until a time, or until an event. */
static void pause_until(uint64_t moment) {
    struct timespec until = {.tv_sec = (time_t)(moment / 1000000000), .tv_nsec = (long)(moment % 1000000000)};
    pthread_cond_timedwait(&fake_progress, &fake_mutex, &until);
}

static void spin_until(uint64_t moment) {
    pthread_mutex_unlock(&fake_mutex);
    while (fake_now() < moment) sched_yield();
    pthread_mutex_lock(&fake_mutex);
}

/* Returns what a blocked op waits for; the chain ends at an op with a place, or at a host function. */
static struct op *root(struct op *op) {
    while (op->state == OP_BLOCKED && op->need_count > 0) op = op->needs[0];
    return op;
}

void fake_wait(struct op *op) {
    if (op == NULL) return;
    fake_hold(op);
    while (!fake_is_over(op)) {
        uint64_t now = fake_now(), end = projected(root(op), now);
        if (end > now + LONGEST_NS) end = now + LONGEST_NS;
        if (end > now + 2 * SPIN_NS) pause_until(end - SPIN_NS);
        else spin_until(end);
    }
    fake_release(op);
}

/* Waits for the present work of the streams, not for work that others issue meanwhile. */
static void wait_all(struct gpu *gpu, CUcontext context) {
    size_t count = 0, room = 0;
    struct op **tails = NULL;
    for (CUstream stream = gpu->streams; stream != NULL; stream = stream->next) {
        if (stream->tail == NULL || (context != NULL && stream->context != context)) continue;
        if (count == room) {
            room = room > 0 ? room * 2 : 16;
            tails = realloc(tails, room * sizeof *tails);
            if (tails == NULL) abort();
        }
        tails[count++] = fake_hold(stream->tail);
    }
    for (size_t i = 0; i < count; i++) {
        fake_wait(tails[i]);
        fake_release(tails[i]);
    }
    free(tails);
}

void fake_wait_gpu(struct gpu *gpu, CUcontext context) { wait_all(gpu, context); }

void fake_wait_stream(CUstream stream) {
    if (stream->legacy) wait_all(stream->context->gpu, stream->context);
    else fake_wait(stream->tail);
}

void fake_wait_launches(struct gpu *gpu) {
    while (gpu->launches_pending >= LAUNCHES) {
        struct op *op = NULL;
        for (CUstream stream = gpu->streams; stream != NULL; stream = stream->next) {
            if (stream->head != NULL && (op == NULL || stream->head->finish < op->finish)) op = stream->head;
        }
        for (uint32_t i = 0; i < LAUNCHES_AT_ONCE && op != NULL && op->next != NULL; i++) op = op->next;
        if (op == NULL) return;
        fake_wait(op);
    }
}
