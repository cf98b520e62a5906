/* The end of work: each call applies the effects of all work whose time has come, in the order of its end. */
#include <stdlib.h>

#include "fake.h"

void fake_finish_op(struct op *op) {
    CUstream stream = op->stream;
    op->state = OP_DONE;
    if (op->kernels > 0) op->gpu->shared->state->processes[op->gpu->slot].kernels += op->kernels;
    if (op->run != NULL && !op->host) op->run(op->data);
    free(op->data);
    op->data = NULL;
    if (stream->tail == op) {
        stream->tail = NULL;
        fake_release(op);
    }
    fake_release(op);
}

/* Returns the op that was complete first, of the complete first ops of all streams. */
static struct op *first_over(const struct gpu *gpu, uint64_t virtual_ns) {
    struct op *first = NULL;
    for (CUstream stream = gpu->streams; stream != NULL; stream = stream->next) {
        struct op *op = stream->head;
        if (op == NULL || op->finish > virtual_ns) continue;
        if (first == NULL || op->finish < first->finish ||
            (op->finish == first->finish && op->sequence < first->sequence)) {
            first = op;
        }
    }
    return first;
}

static void dequeue(struct op *op) {
    op->stream->head = op->next;
    if (op->next == NULL) op->stream->last = NULL;
    op->next = NULL;
    op->gpu->pending--;
    op->gpu->launches_pending -= op->launch;
}

/* Removes complete ops from their queues, with the times of their ends. */
static struct op *take_over(struct gpu *gpu) {
    struct op *list = NULL, **end = &list, *op;
    fake_lock(gpu->shared);
    uint64_t virtual_ns = fake_advance(gpu->shared, fake_now());
    while ((op = first_over(gpu, virtual_ns)) != NULL) {
        dequeue(op);
        if (op->cost_ns == 0) {
            uint64_t reached = fake_reached_at(gpu->shared, op->finish);
            op->done_ns = reached > op->issued_ns ? reached : op->issued_ns;
        }
        *end = op;
        end = &op->next;
    }
    fake_unlock(gpu->shared);
    return list;
}

void fake_settle(void) {
    bool some = false;
    for (uint32_t i = 0; i < fake_device_count(); i++) {
        struct gpu *gpu = fake_gpu((CUdevice)i);
        if (gpu->pending == 0) continue;
        for (struct op *op = take_over(gpu), *next; op != NULL; op = next) {
            next = op->next;
            op->next = NULL;
            some = true;
            if (op->host) fake_host_ready(op);
            else fake_finish_op(op);
        }
    }
    if (!some) return;
    fake_unblock();
    pthread_cond_broadcast(&fake_progress);
}

bool fake_is_over(struct op *op) {
    if (op == NULL || op->state == OP_DONE) return true;
    fake_settle();
    return op->state == OP_DONE;
}
