/* Stream capture. Launches into a captured stream are recorded, not run; they are neither gated nor counted, and the
 * library's events must not become part of a program's graph or break the capture.
 *
 * Without a capture in the process, the driver is not asked. Before the capture of a stream begins (by its own call, or
 * because it waits for an event of a captured stream), all streams get their marks: afterwards no event can be recorded
 * behind the work of that stream, nor on the legacy default stream, which waits for it.
 */
#include "compute.h"

_Atomic uint32_t gp_captures;

bool gp_is_capturing(uintptr_t handle) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return OWN(cuStreamIsCapturing, (CUstream)handle, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUstreamCaptureMode gp_relaxed(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OWN(cuThreadExchangeStreamCaptureMode, &mode);
    return mode;
}

void gp_strict(CUstreamCaptureMode mode) { OWN(cuThreadExchangeStreamCaptureMode, &mode); }

/* Locks out the helper, which may be about to record an event, until the stream's state has changed. */
static struct gp_compute *lock_and_mark(void) {
    struct gp_compute *compute = gp_compute_current();
    if (compute == NULL)
        return NULL;
    pthread_mutex_lock(&compute->lock);
    gp_streams_mark(compute);
    return compute;
}

static void unlock(struct gp_compute *compute) {
    if (compute != NULL)
        pthread_mutex_unlock(&compute->lock);
}

#define BEGIN(call)                                                                                                   \
    struct gp_compute *compute = lock_and_mark();                                                                     \
    CUresult result = call;                                                                                           \
    if (result == CUDA_SUCCESS)                                                                                       \
        atomic_fetch_add(&gp_captures, 1);                                                                            \
    unlock(compute);                                                                                                  \
    return result

/* Counts the end of a capture, also a failed one: the stream was captured before the call and is not afterwards. */
#define END(stream, per_thread, call)                                                                                 \
    uintptr_t handle = gp_handle(stream, per_thread);                                                                 \
    bool before = gp_is_capturing(handle);                                                                            \
    CUresult result = call;                                                                                           \
    if (before && !gp_is_capturing(handle))                                                                           \
        atomic_fetch_sub(&gp_captures, 1);                                                                            \
    return result

GP_HOOK CUresult cuStreamBeginCapture(CUstream stream) { BEGIN(REAL(cuStreamBeginCapture)(stream)); }

GP_HOOK CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    BEGIN(REAL(cuStreamBeginCapture_ptsz)(stream));
}

GP_HOOK CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCapture_v2)(stream, mode));
}

GP_HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

GP_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

GP_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                  const CUgraphEdgeData *edges, size_t count,
                                                  CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}

#if CUDA_VERSION >= 13050 /* always true, except when this is compiled against an older header to check it */
GP_HOOK CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                               CUgraphRecaptureCallback callback, void *data) {
    BEGIN(REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

GP_HOOK CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                    CUgraphRecaptureCallback callback, void *data) {
    BEGIN(REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data));
}
#endif

GP_HOOK CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    END(stream, false, REAL(cuStreamEndCapture)(stream, graph));
}

GP_HOOK CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    END(stream, true, REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

/* A stream that waits for an event of a captured stream joins the capture. */
#define WAIT(call)                                                                                                    \
    if (GP_LIKELY(atomic_load_explicit(&gp_captures, memory_order_relaxed) == 0))                                     \
        return call;                                                                                                  \
    struct gp_compute *compute = lock_and_mark();                                                                     \
    CUresult result = call;                                                                                           \
    unlock(compute);                                                                                                  \
    return result

GP_HOOK CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    WAIT(REAL(cuStreamWaitEvent)(stream, event, flags));
}

GP_HOOK CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
    WAIT(REAL(cuStreamWaitEvent_ptsz)(stream, event, flags));
}
