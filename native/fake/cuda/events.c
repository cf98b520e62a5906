/* Events: marks in streams, with the moment at which simulated time passed them. */
#include <stdlib.h>

#include "fake.h"

static struct gp_CUevent *unused;

bool fake_is_event(CUevent event) { return event != NULL && event->magic == MAGIC_EVENT; }

API CUresult cuEventCreate(CUevent *made, unsigned int flags) {
    ENTER_CONTEXT(context);
    if (made == NULL || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    CUevent event = unused;
    if (event != NULL) unused = event->next;
    else event = malloc(sizeof *event);
    if (event == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *event = (struct gp_CUevent){.magic = MAGIC_EVENT, .context = context, .flags = flags};
    *made = event;
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER;
    if (!fake_is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    fake_capture_forget(event);
    fake_release(event->op);
    event->magic = 0;
    event->next = unused;
    unused = event;
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

void fake_record(CUevent event, CUstream stream) {
    struct op *op = fake_issue_held(stream, &(struct work){0}, NULL, 0);
    fake_capture_forget(event);
    fake_release(event->op);
    event->op = op;
    event->recorded = true;
}

static CUresult record(CUevent event, CUstream handle, bool external) {
    bool captured;
    CUstream stream;
    if (!fake_is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS && event->context != stream->context) result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (captured && external) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &event);
    if (captured) return fake_capture_record(event, stream);
    fake_record(event, stream);
    return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER;
    return record(event, stream, false);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    ENTER;
    return flags <= 1 ? record(event, stream, flags == 1) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult may_ask(CUevent event) {
    if (!fake_is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture != NULL) {
        fake_capture_break(event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return fake_unsafe_call();
}

API CUresult cuEventQuery(CUevent event) {
    ENTER;
    CUresult result = may_ask(event);
    if (result != CUDA_SUCCESS) return result;
    return fake_is_over(event->op) ? event->context->error : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent event) {
    ENTER;
    CUresult result = may_ask(event);
    if (result != CUDA_SUCCESS) return result;
    CUcontext context = event->context;
    fake_wait(event->op);
    fake_pools_after_sync(context->gpu);
    return context->error;
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    ENTER_CONTEXT(context);
    (void)context;
    if (!fake_is_event(from) || !fake_is_event(to)) return CUDA_ERROR_INVALID_HANDLE;
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!from->recorded || !to->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
    if (!fake_is_over(from->op) || !fake_is_over(to->op)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(to->op->done_ns - from->op->done_ns) / 1e6);
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    bool captured;
    ENTER;
    CUstream stream;
    if (!fake_is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (event->capture != NULL || (stream->capture != NULL && flags == 0)) return fake_capture_wait(stream, event);
    result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (captured) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &event);
    if (event->op == NULL || event->op->state == OP_DONE) return CUDA_SUCCESS;
    fake_release(fake_issue_held(stream, &(struct work){0}, &event->op, 1));
    return CUDA_SUCCESS;
}
