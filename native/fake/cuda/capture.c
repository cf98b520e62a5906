/* Stream capture: work issued to a capturing stream becomes nodes of a graph.
 *
 * Calls that could spoil a capture are forbidden during a capture, depending on the capture's mode and the
 * calling thread's; a forbidden call fails and breaks the capture, and its end says so. These are the calls that begin
 * with fake_unsafe_call(): what allocates or frees at once, what waits for or asks about work, and what reads or changes
 * memory pools or graph memory. NVIDIA documents the rule (cuThreadExchangeStreamCaptureMode) but no list of the calls;
 * of attributes of pools it is known that they break captures, and that a thread in relaxed mode may use them.
 */
#include <stdlib.h>
#include <string.h>

#include "graphs.h"

static struct capture *captures; /* current ones */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void fake_capture_break(struct capture *capture) { capture->broken = true; }

CUresult fake_unsafe_call(void) {
    CUresult result = CUDA_SUCCESS;
    if (captures == NULL || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self()) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool everywhere = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
            thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!own && !everywhere) continue;
        capture->broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

/* Work on the legacy stream would have to wait for every blocking stream, also for those under capture. */
static CUresult implicit(CUstream stream, bool spoil) {
    CUresult result = CUDA_SUCCESS;
    for (CUstream other = captures != NULL ? stream->context->gpu->streams : NULL; other != NULL; other = other->next) {
        if (other->capture == NULL || other->context != stream->context ||
            (other->flags & CU_STREAM_NON_BLOCKING) != 0) {
            continue;
        }
        if (spoil) other->capture->broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return result;
}

CUresult fake_capturing(CUstream stream, bool *captured) {
    *captured = stream->capture != NULL;
    if (*captured) return stream->capture->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    return stream->legacy ? implicit(stream, true) : CUDA_SUCCESS;
}

static void set_after(CUstream stream, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *copy = count > 0 ? malloc(count * sizeof *copy) : NULL;
    if (count > 0 && copy == NULL) abort();
    if (count > 0) memcpy(copy, nodes, count * sizeof *copy);
    free(stream->after);
    stream->after = copy;
    stream->after_count = count;
}

static void add_after(CUstream stream, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *all = malloc((stream->after_count + count) * sizeof *all + 1);
    if (all == NULL) abort();
    size_t total = stream->after_count;
    if (total > 0) memcpy(all, stream->after, total * sizeof *all);
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < total && all[k] != nodes[i]) k++;
        if (k == total) all[total++] = nodes[i];
    }
    free(stream->after);
    stream->after = all;
    stream->after_count = total;
}

static CUresult add_node(CUstream stream, CUgraphNodeType type, const union node_work *work) {
    CUgraphNode node;
    CUresult result = fake_node_add(stream->capture->graph, type, work, stream->after, stream->after_count, &node);
    if (result == CUDA_SUCCESS) set_after(stream, &node, 1);
    return result;
}

CUresult fake_capture_node(CUstream stream, CUgraphNodeType type, const void *parameters) {
    union node_work work;
    fake_graph_work_of(type, parameters, &work);
    return add_node(stream, type, &work);
}

CUresult fake_capture_allocation(CUstream stream, uint64_t bytes, CUdeviceptr *address) {
    union node_work work = {.memory = fake_graph_memory_new(bytes)};
    if (work.memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = work.memory->at;
    return add_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &work);
}

void fake_capture_forget(CUevent event) {
    free(event->nodes);
    event->nodes = NULL;
    event->node_count = 0;
    event->capture = NULL;
}

CUresult fake_capture_record(CUevent event, CUstream stream) {
    fake_capture_forget(event);
    event->capture = stream->capture;
    event->node_count = stream->after_count;
    event->nodes = malloc(stream->after_count * sizeof *event->nodes + 1);
    if (event->nodes == NULL) abort();
    if (stream->after_count > 0) memcpy(event->nodes, stream->after, stream->after_count * sizeof *event->nodes);
    return CUDA_SUCCESS;
}

/* A stream that waits for an event of a capture becomes part of it. */
CUresult fake_capture_wait(CUstream stream, CUevent event) {
    struct capture *capture = event->capture;
    if (capture == NULL) {
        stream->capture->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (capture->ended || capture->broken) {
        return capture->ended ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream->legacy || (stream->capture != NULL && stream->capture != capture)) {
        capture->broken = true;
        if (stream->capture != NULL) stream->capture->broken = true;
        return stream->legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->capture == NULL) {
        stream->capture = capture;
        set_after(stream, event->nodes, event->node_count);
    } else {
        add_after(stream, event->nodes, event->node_count);
    }
    return CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, CUgraph graph, const CUgraphNode *after, size_t count,
                      CUstreamCaptureMode mode) {
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if ((int)mode < 0 || (int)mode > 2 || (count > 0 && after == NULL)) return CUDA_ERROR_INVALID_VALUE;
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL) return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = calloc(1, sizeof *capture); /* never freed: events remember it */
    if (capture == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *capture = (struct capture){.id = fake_next_id(), .graph = graph != NULL ? graph : fake_graph_new(),
                                .own_graph = graph == NULL,
                                .mode = mode, .origin = stream, .thread = pthread_self(), .next = captures};
    captures = capture;
    stream->capture = capture;
    set_after(stream, after, count);
    return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    ENTER;
    return begin(stream, NULL, NULL, 0, mode);
}

API CUresult cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                         const CUgraphEdgeData *edges,
                                         size_t count, CUstreamCaptureMode mode) {
    ENTER;
    (void)edges;
    return fake_is_graph(graph) ? begin(stream, graph, after, count, mode) : CUDA_ERROR_INVALID_VALUE;
}

/* Returns true if everything that the other streams captured comes before the origin's last captured node. */
static bool joined(const struct capture *capture) {
    for (CUstream stream = capture->origin->context->gpu->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != capture || stream == capture->origin) continue;
        for (size_t i = 0; i < stream->after_count; i++) {
            bool before = false;
            for (size_t k = 0; k < capture->origin->after_count && !before; k++) {
                before = fake_node_needs(capture->origin->after[k], stream->after[i]);
            }
            if (!before) return false;
        }
    }
    return true;
}

static void end(struct capture *capture) {
    for (struct capture **at = &captures; *at != NULL; at = &(*at)->next) {
        if (*at != capture) continue;
        *at = capture->next;
        break;
    }
    for (CUstream stream = capture->origin->context->gpu->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != capture) continue;
        stream->capture = NULL;
        set_after(stream, NULL, 0);
    }
    capture->ended = true;
}

/* The stream is being destroyed. */
void fake_capture_leave(CUstream stream) {
    struct capture *capture = stream->capture;
    capture->broken = true;
    if (capture->origin != stream) return;
    end(capture);
    if (capture->own_graph) fake_graph_delete(capture->graph);
}

API CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    ENTER;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    struct capture *capture = stream->capture;
    if (capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    result = capture->broken    ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : joined(capture) ? CUDA_SUCCESS
                               : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    end(capture);
    if (result != CUDA_SUCCESS && capture->own_graph) fake_graph_delete(capture->graph);
    if (graph != NULL) *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    return result;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (mode == NULL || (int)*mode < 0 || (int)*mode > 2) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUstreamCaptureStatus status_of(CUstream stream) {
    if (stream->capture == NULL) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    ENTER;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS && status == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && stream->legacy) result = implicit(stream, false);
    if (result == CUDA_SUCCESS) *status = status_of(stream);
    return result;
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                       const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count) {
    ENTER;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS && status == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && stream->legacy) result = implicit(stream, false);
    if (result != CUDA_SUCCESS) return result;
    *status = status_of(stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id != NULL) *id = stream->capture->id;
    if (graph != NULL) *graph = stream->capture->graph;
    if (after != NULL) *after = stream->after;
    if (edges != NULL) *edges = NULL;
    if (count != NULL) *count = stream->after_count;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                       const CUgraphNode **after, size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, after, NULL, count);
}

API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                                  size_t count,
                                                  unsigned int flags) {
    ENTER;
    (void)edges;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (flags > 1 || (count > 0 && nodes == NULL)) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags == 1) set_after(stream, nodes, count);
    else add_after(stream, nodes, count);
    return CUDA_SUCCESS;
}

API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies_v2(stream, nodes, NULL, count, flags);
}
