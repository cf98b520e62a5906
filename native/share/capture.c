/* Stream capture: launches into a stream that is being captured are recorded, not run; they are neither gated nor
 * counted, and no event of ours may end up in somebody's graph or spoil it.
 *
 * While no capture is under way nothing is asked. A stream that is about to be captured, by its own call or by waiting
 * for an event of another, gets a mark before: afterwards nothing can be recorded behind what it has been given.
 */
#include "compute.h"

_Atomic uint32_t gp_captures;

bool gp_is_capturing(uintptr_t handle) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)((CUstream)handle, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUstreamCaptureMode gp_relaxed(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

void gp_strict(CUstreamCaptureMode mode) { REAL(cuThreadExchangeStreamCaptureMode)(&mode); }

/* Locks out the helper, which may be about to record an event, until the stream's state has changed. */
static struct gp_compute *lock_and_mark(uintptr_t handle) {
    struct gp_compute *compute = gp_compute_current();
    CUcontext context = NULL;
    if (compute == NULL)
        return NULL;
    if (handle <= (uintptr_t)CU_STREAM_PER_THREAD)
        REAL(cuCtxGetCurrent)(&context);
    CUstreamCaptureMode mode = gp_relaxed();
    pthread_mutex_lock(&compute->lock);
    struct gp_stream *stream = gp_stream_find(compute, handle, context);
    if (stream != NULL && atomic_load(&stream->dirty))
        gp_stream_mark(compute, stream);
    gp_strict(mode);
    return compute;
}

static void unlock(struct gp_compute *compute) {
    if (compute != NULL)
        pthread_mutex_unlock(&compute->lock);
}

#define BEGIN(stream, per_thread, call)                                                                               \
    struct gp_compute *compute = lock_and_mark(gp_handle(stream, per_thread));                                        \
    CUresult result = call;                                                                                           \
    if (result == CUDA_SUCCESS)                                                                                       \
        atomic_fetch_add(&gp_captures, 1);                                                                            \
    unlock(compute);                                                                                                  \
    return result

/* However it ends: what counts is that the stream was being captured before and is not afterwards. */
#define END(stream, per_thread, call)                                                                                 \
    uintptr_t handle = gp_handle(stream, per_thread);                                                                 \
    bool before = gp_is_capturing(handle);                                                                            \
    CUresult result = call;                                                                                           \
    if (before && !gp_is_capturing(handle))                                                                           \
        atomic_fetch_sub(&gp_captures, 1);                                                                            \
    return result

GP_HOOK CUresult cuStreamBeginCapture(CUstream stream) { BEGIN(stream, false, REAL(cuStreamBeginCapture)(stream)); }

GP_HOOK CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    BEGIN(stream, true, REAL(cuStreamBeginCapture_ptsz)(stream));
}

GP_HOOK CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(stream, false, REAL(cuStreamBeginCapture_v2)(stream, mode));
}

GP_HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(stream, true, REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

GP_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    BEGIN(stream, false, REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

GP_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                  const CUgraphEdgeData *edges, size_t count,
                                                  CUstreamCaptureMode mode) {
    BEGIN(stream, true, REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}

GP_HOOK CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    END(stream, false, REAL(cuStreamEndCapture)(stream, graph));
}

GP_HOOK CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    END(stream, true, REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

/* A stream that waits for an event of a captured stream joins the capture. */
#define WAIT(stream, per_thread, call)                                                                                \
    if (GP_LIKELY(atomic_load_explicit(&gp_captures, memory_order_relaxed) == 0))                                     \
        return call;                                                                                                  \
    struct gp_compute *compute = lock_and_mark(gp_handle(stream, per_thread));                                        \
    CUresult result = call;                                                                                           \
    unlock(compute);                                                                                                  \
    return result

GP_HOOK CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    WAIT(stream, false, REAL(cuStreamWaitEvent)(stream, event, flags));
}

GP_HOOK CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
    WAIT(stream, true, REAL(cuStreamWaitEvent_ptsz)(stream, event, flags));
}
