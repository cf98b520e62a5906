/* Work, from the moment it is issued until it has its place in the GPU's time.
 *
 * The GPU serves all work of a process one after another. So an op has its place as soon as everything it depends on
 * has one: behind all that was placed before. It has none (it is blocked) while it depends on a host function that has
 * not returned, on work of another GPU that is not over, or on work that is itself blocked.
 *
 * An op that costs nothing (an event, a wait) is over when what it depends on is over, not when the whole GPU is idle.
 */
#include <stdlib.h>

#include "fake.h"

static struct op *unused;
static struct op *blocked, **blocked_end = &blocked; /* in the order they were issued */
static uint64_t sequence;

static struct op *new_op(void) {
    struct op *op = unused;
    if (op != NULL) unused = op->next;
    else op = malloc(sizeof *op);
    if (op == NULL) abort();
    *op = (struct op){.references = 1, .sequence = ++sequence};
    return op;
}

struct op *fake_hold(struct op *op) {
    if (op != NULL) op->references++;
    return op;
}

void fake_release(struct op *op) {
    if (op == NULL || --op->references > 0) return;
    free(op->needs);
    op->next = unused;
    unused = op;
}

/* Returns true if `op` can have its place although it depends on `other`. */
static bool agrees_with(struct op *op, const struct op *other) {
    if (other->state == OP_DONE) return true;
    if (other->state == OP_BLOCKED || other->host || other->gpu != op->gpu) return false;
    if (other->finish > op->after) op->after = other->finish;
    return true;
}

static void depend(struct op *op, struct op *other) {
    if (other == NULL || other == op || agrees_with(op, other)) return;
    struct op **needs = realloc(op->needs, (op->need_count + 1) * sizeof *needs);
    if (needs == NULL) abort();
    op->needs = needs;
    needs[op->need_count++] = fake_hold(other);
}

/* Adds the dependencies of CUDA: the stream's own work, and the rules of default streams. */
static void depend_on_streams(struct op *op, CUstream stream) {
    depend(op, stream->tail);
    if (stream->legacy) {
        for (CUstream other = op->gpu->streams; other != NULL; other = other->next) {
            bool blocking = (other->flags & CU_STREAM_NON_BLOCKING) == 0;
            if (blocking && other->context == stream->context) depend(op, other->tail);
        }
    } else if ((stream->flags & CU_STREAM_NON_BLOCKING) == 0) {
        depend(op, stream->context->legacy->tail);
    }
}

static void enqueue(struct op *op) {
    op->state = OP_QUEUED;
    op->gpu->pending++;
    op->gpu->launches_pending += op->launch;
    if (op->stream->last != NULL) op->stream->last->next = op;
    else op->stream->head = op;
    op->stream->last = op;
}

static void place(struct op *op) {
    op->issued_ns = fake_now();
    if (op->cost_ns > 0) {
        fake_lock(op->gpu->shared);
        op->finish = fake_submit(op->gpu->shared, op->gpu->slot, op->cost_ns);
        fake_unlock(op->gpu->shared);
        enqueue(op);
    } else if (op->after > 0) {
        op->finish = op->after;
        enqueue(op);
        if (op->host) fake_need_helper();
    } else if (op->host) {
        op->state = OP_QUEUED;
        fake_host_ready(op);
    } else {
        op->done_ns = op->issued_ns;
        fake_finish_op(op);
    }
}

static bool can_be_placed(struct op *op) {
    size_t left = 0;
    for (size_t i = 0; i < op->need_count; i++) {
        if (agrees_with(op, op->needs[i])) fake_release(op->needs[i]);
        else op->needs[left++] = op->needs[i];
    }
    op->need_count = left;
    return left == 0;
}

void fake_commit(struct op *op) {
    if (can_be_placed(op)) {
        place(op);
        return;
    }
    op->state = OP_BLOCKED;
    *blocked_end = op;
    blocked_end = &op->next;
    fake_need_helper();
}

void fake_unblock(void) {
    for (struct op **at = &blocked; *at != NULL;) {
        struct op *op = *at;
        if (!can_be_placed(op)) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        if (blocked_end == &op->next) blocked_end = at;
        op->next = NULL;
        place(op);
    }
}

struct op *fake_first_blocked(void) { return blocked; }

struct op *fake_issue_held(CUstream stream, const struct work *work, struct op *const *also, size_t also_count) {
    struct op *op = fake_hold(new_op());
    op->gpu = stream->context->gpu;
    op->stream = stream;
    op->cost_ns = work->cost_ns;
    op->kernels = work->kernels;
    op->launch = work->launch;
    op->host = work->host;
    op->run = work->run;
    op->data = work->data;
    depend_on_streams(op, stream);
    for (size_t i = 0; i < also_count; i++) depend(op, also[i]);
    fake_release(stream->tail);
    stream->tail = fake_hold(op);
    if (op->launch && (++op->gpu->issued & 31) == 0) fake_settle();
    fake_commit(op);
    return op;
}

void fake_issue(CUstream stream, const struct work *work) { fake_release(fake_issue_held(stream, work, NULL, 0)); }
