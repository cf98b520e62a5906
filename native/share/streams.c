/* Follows the streams with work of this process, and the progress of the GPU in them.
 *
 * A stream is followed from its first launch to its destruction. Marks show its progress: events recorded behind
 * launches, by the launching thread for pacing, and by the helper when the GPU must be released. Any answer of the
 * driver other than "not ready" means that nothing is left to wait for: a destroyed context has no work.
 *
 * A stream's place is found without a lock; handles are compared again at each launch, so a place that was given to
 * another stream is noticed. Places are taken and given back under the lock.
 */
#include "compute.h"

#define PER_THREAD ((uintptr_t)CU_STREAM_PER_THREAD)
#define FREED (~(uintptr_t)0)      /* free, but a search continues behind it */
#define ORPHAN (~(uintptr_t)0 - 1) /* the stream or its thread is gone, its work may not be over */

static _Thread_local uint32_t thread_number __attribute__((tls_model("initial-exec")));
static _Thread_local struct {
    const struct gp_compute *compute;
    struct gp_stream *stream;
} last_used __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t threads;
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

/* -- threads with a default stream of their own ----------------------------------------------------------------------- */

static void orphan_of_thread(struct gp_compute *compute, uint32_t number) {
    pthread_mutex_lock(&compute->lock);
    for (uint32_t i = compute->used_count; i-- > 0;) {
        struct gp_stream *stream = &compute->streams[compute->used[i]];
        if (atomic_load(&stream->thread) == number)
            atomic_store(&stream->handle, ORPHAN);
    }
    pthread_mutex_unlock(&compute->lock);
}

static void thread_ends(void *number) {
    for (uint32_t i = 0; i < gp_gpu_count(); i++)
        if (gp_compute_at(i) != NULL)
            orphan_of_thread(gp_compute_at(i), (uint32_t)(uintptr_t)number);
}

static void make_key(void) { pthread_key_create(&thread_key, thread_ends); }

uint32_t gp_thread_number(void) {
    if (GP_UNLIKELY(thread_number == 0)) {
        thread_number = atomic_fetch_add(&threads, 1) + 1;
        pthread_once(&thread_once, make_key);
        pthread_setspecific(thread_key, (void *)(uintptr_t)thread_number);
    }
    return thread_number;
}

/* -- the table --------------------------------------------------------------------------------------------------------- */

static inline bool is(struct gp_stream *stream, uintptr_t handle, CUcontext context, uint32_t thread) {
    if (atomic_load_explicit(&stream->handle, memory_order_acquire) != handle)
        return false;
    return handle > PER_THREAD || (atomic_load_explicit(&stream->context, memory_order_relaxed) == context &&
                                   atomic_load_explicit(&stream->thread, memory_order_relaxed) == thread);
}

static inline uint32_t place_of(uintptr_t handle, CUcontext context, uint32_t thread) {
    uint64_t mixed = handle > PER_THREAD ? handle : handle + (uintptr_t)context + thread * UINT64_C(0x9e3779b1);
    return (uint32_t)(mixed * UINT64_C(0x9e3779b97f4a7c15) >> 40) % GP_STREAMS;
}

static struct gp_stream *search(struct gp_compute *compute, uintptr_t handle, CUcontext context, uint32_t thread) {
    uint32_t place = place_of(handle, context, thread);
    for (uint32_t i = 0; i < GP_STREAMS; i++, place = (place + 1) % GP_STREAMS) {
        struct gp_stream *stream = &compute->streams[place];
        if (is(stream, handle, context, thread))
            return stream;
        if (atomic_load_explicit(&stream->handle, memory_order_relaxed) == 0)
            return NULL;
    }
    return NULL;
}

struct gp_stream *gp_stream_find(struct gp_compute *compute, uintptr_t handle, CUcontext context) {
    uint32_t thread = handle == PER_THREAD ? gp_thread_number() : 0;
    struct gp_stream *stream = last_used.stream;
    if (GP_LIKELY(last_used.compute == compute && is(stream, handle, context, thread)))
        return stream;
    stream = search(compute, handle, context, thread);
    if (stream != NULL) {
        last_used.compute = compute;
        last_used.stream = stream;
    }
    return stream;
}

static void forget_events(struct gp_stream *stream, bool destroy) {
    for (uint32_t i = 0; i < GP_MARKS; i++) {
        if (destroy && stream->marks[i].event != NULL)
            OWN(cuEventDestroy_v2, stream->marks[i].event);
        stream->marks[i].event = NULL;
    }
    if (destroy && stream->last != NULL)
        OWN(cuEventDestroy_v2, stream->last);
    stream->last = NULL;
}

/* A place is free for ever if a search would end behind it anyway. */
static void free_place(struct gp_compute *compute, struct gp_stream *stream) {
    uint32_t place = (uint32_t)(stream - compute->streams);
    atomic_store(&stream->handle, FREED);
    for (uint32_t i = 0; i < compute->used_count; i++) {
        if (compute->used[i] == place) {
            compute->used[i] = compute->used[--compute->used_count];
            break;
        }
    }
    if (atomic_load(&compute->streams[(place + 1) % GP_STREAMS].handle) != 0)
        return;
    for (; atomic_load(&compute->streams[place].handle) == FREED; place = (place + GP_STREAMS - 1) % GP_STREAMS)
        atomic_store(&compute->streams[place].handle, 0);
}

void gp_stream_let_go(struct gp_compute *compute, struct gp_stream *stream) {
    bool over = stream->head == stream->tail && !stream->last_pending && !atomic_load(&stream->dirty);
    if (!over || atomic_load(&stream->handle) != ORPHAN)
        return;
    forget_events(stream, true);
    free_place(compute, stream);
}

static struct gp_stream *take_place(struct gp_compute *compute, uint32_t place) {
    for (uint32_t i = 0; i < GP_STREAMS; i++, place = (place + 1) % GP_STREAMS) {
        uintptr_t handle = atomic_load(&compute->streams[place].handle);
        if (handle == 0 || handle == FREED) {
            compute->used[compute->used_count++] = (uint16_t)place;
            return &compute->streams[place];
        }
    }
    return NULL;
}

static void begin(struct gp_compute *compute, struct gp_stream *stream, CUcontext context, uint32_t thread) {
    stream->head = stream->tail = 0;
    stream->scale = 1;
    stream->reached_ns = 0;
    stream->stuck = stream->last_pending = false;
    atomic_store(&stream->context, context);
    atomic_store(&stream->thread, thread);
    atomic_store(&stream->dirty, false);
    atomic_store(&stream->full, false);
    atomic_store(&stream->since_ns, 0);
    atomic_store(&stream->since_launches, 0);
    atomic_store(&stream->quantum_ns, compute->limit_ns / 4);
}

struct gp_stream *gp_stream_add(struct gp_compute *compute, uintptr_t handle, CUcontext context) {
    uint32_t thread = handle == PER_THREAD ? gp_thread_number() : 0;
    if (handle > PER_THREAD && OWN(cuStreamGetCtx, (CUstream)handle, &context) != CUDA_SUCCESS)
        OWN(cuCtxGetCurrent, &context);
    struct gp_stream *stream = search(compute, handle, context, thread); /* another thread may have been faster */
    if (stream != NULL)
        return stream;
    for (uint32_t i = compute->used_count; compute->used_count > GP_STREAMS / 2 && i-- > 0;) {
        stream = &compute->streams[compute->used[i]];
        gp_stream_collect(compute, stream);
        gp_stream_let_go(compute, stream);
    }
    stream = take_place(compute, place_of(handle, context, thread));
    if (stream == NULL)
        return NULL;
    begin(compute, stream, context, thread);
    atomic_store_explicit(&stream->handle, handle, memory_order_release);
    return stream;
}

/* -- marks ------------------------------------------------------------------------------------------------------------- */

static bool ready(CUevent event) { return OWN(cuEventQuery, event) != CUDA_ERROR_NOT_READY; }

static bool make_event(CUevent *event, CUcontext context, unsigned flags) {
    CUcontext popped;
    if (*event != NULL)
        return true;
    if (OWN(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
        return false;
    if (OWN(cuEventCreate, event, flags) != CUDA_SUCCESS)
        *event = NULL;
    OWN(cuCtxPopCurrent_v2, &popped);
    return *event != NULL;
}

/* Returns the next mark of the ring. If all are in use, the youngest is recorded again: it then stands for more. */
static struct gp_mark *next_mark(struct gp_stream *stream) {
    if (stream->tail - stream->head < GP_MARKS - 1) {
        struct gp_mark *mark = &stream->marks[stream->tail++ % GP_MARKS];
        const struct gp_mark *before = &stream->marks[(stream->tail - 2) % GP_MARKS];
        mark->work_ns = mark->launches = 0;
        mark->exact = stream->tail >= 2 && before->event != NULL && !ready(before->event);
        return mark;
    }
    struct gp_mark *youngest = &stream->marks[(stream->tail - 1) % GP_MARKS];
    youngest->exact = false;
    return youngest;
}

bool gp_stream_mark(struct gp_compute *compute, struct gp_stream *stream) {
    CUstream handle = (CUstream)atomic_load(&stream->handle);
    if (atomic_load(&gp_captures) != 0 && gp_is_capturing((uintptr_t)handle))
        return false;
    gp_stream_collect(compute, stream);
    struct gp_mark *mark = next_mark(stream);
    atomic_store(&stream->dirty, false);
    mark->key = mark->launches == 0 ? atomic_load(&stream->since_key) : 0;
    mark->work_ns += atomic_exchange(&stream->since_ns, 0);
    mark->launches += atomic_exchange(&stream->since_launches, 0);
    if (!make_event(&mark->event, atomic_load(&stream->context), CU_EVENT_DEFAULT) ||
        OWN(cuEventRecord, mark->event, handle) != CUDA_SUCCESS) {
        stream->head = stream->tail;
        return true; /* the stream cannot be queried, so there is nothing to wait for */
    }
    stream->last_pending = false;
    gp_pace_marked(compute, stream);
    gp_publish(compute);
    return true;
}

void gp_streams_mark(struct gp_compute *compute) {
    CUcontext current = NULL;
    OWN(cuCtxGetCurrent, &current);
    for (uint32_t i = 0; i < compute->used_count; i++) {
        struct gp_stream *stream = &compute->streams[compute->used[i]];
        if (atomic_load(&stream->dirty) && atomic_load(&stream->context) == current &&
            (atomic_load(&stream->thread) == 0 || atomic_load(&stream->thread) == gp_thread_number()))
            gp_stream_mark(compute, stream);
    }
}

static void reached(struct gp_compute *compute, struct gp_stream *stream, bool known) {
    const struct gp_mark *mark = &stream->marks[stream->head % GP_MARKS];
    const struct gp_mark *before = &stream->marks[(stream->head - 1) % GP_MARKS];
    float ms = 0;
    if (known && stream->head > 0 && before->event != NULL &&
        OWN(cuEventElapsedTime, &ms, before->event, mark->event) == CUDA_SUCCESS)
        gp_pace_learn(compute, stream, mark, (double)ms * 1e6);
    stream->head++;
    stream->stuck = false;
    stream->reached_ns = gp_now_ns();
}

bool gp_stream_collect(struct gp_compute *compute, struct gp_stream *stream) {
    while (stream->head != stream->tail) {
        CUresult result = OWN(cuEventQuery, stream->marks[stream->head % GP_MARKS].event);
        if (result == CUDA_ERROR_NOT_READY)
            return false;
        reached(compute, stream, result == CUDA_SUCCESS);
    }
    if (stream->last_pending && ready(stream->last))
        stream->last_pending = false;
    return !stream->last_pending;
}

/* Marks a stream with launches since the last mark; false: try again later. */
static bool mark_dirty(struct gp_compute *compute, struct gp_stream *stream, bool in_context) {
    uintptr_t handle = atomic_load(&stream->handle);
    if (handle == PER_THREAD)
        return false; /* its thread is about to record */
    if (handle != ORPHAN && in_context)
        return gp_stream_mark(compute, stream);
    atomic_store(&stream->dirty, false);
    return true;
}

/* The helper has no context of its own: default streams belong to the current context, and queries of event times need
 * a context, too. A context that cannot be made current is gone, with its work. */
static bool drained(struct gp_compute *compute, struct gp_stream *stream) {
    CUcontext popped;
    bool in_context = OWN(cuCtxPushCurrent_v2, atomic_load(&stream->context)) == CUDA_SUCCESS;
    bool marked = !atomic_load(&stream->dirty) || mark_dirty(compute, stream, in_context);
    bool done = marked && gp_stream_collect(compute, stream);
    if (in_context)
        OWN(cuCtxPopCurrent_v2, &popped);
    return done;
}

bool gp_streams_drained(struct gp_compute *compute) {
    bool all = true;
    for (uint32_t i = compute->used_count; i-- > 0;) {
        struct gp_stream *stream = &compute->streams[compute->used[i]];
        all &= drained(compute, stream);
        gp_stream_let_go(compute, stream);
    }
    return all;
}

/* -- streams and contexts that go away --------------------------------------------------------------------------------- */

/* Leaves a mark to wait for, because launched work continues without the stream. */
static void stream_closing(struct gp_compute *compute, CUstream handle) {
    pthread_mutex_lock(&compute->lock);
    struct gp_stream *stream = search(compute, (uintptr_t)handle, NULL, 0);
    if (stream != NULL) {
        if (atomic_load(&stream->dirty) && !gp_stream_mark(compute, stream))
            atomic_store(&stream->dirty, false);
        atomic_store(&stream->handle, ORPHAN);
        gp_stream_collect(compute, stream);
        gp_stream_let_go(compute, stream);
    }
    pthread_mutex_unlock(&compute->lock);
}

static void closing(CUstream stream) {
    for (uint32_t i = 0; (uintptr_t)stream > PER_THREAD && i < GPUPOOL_MAX_GPUS; i++)
        if (gp_compute_at(i) != NULL)
            stream_closing(gp_compute_at(i), stream);
}

GP_HOOK CUresult cuStreamDestroy(CUstream stream) {
    closing(stream);
    return REAL(cuStreamDestroy)(stream);
}

GP_HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
    closing(stream);
    return REAL(cuStreamDestroy_v2)(stream);
}

/* Events are destroyed with their context. */
static void context_closing(struct gp_compute *compute, CUcontext context) {
    pthread_mutex_lock(&compute->lock);
    for (uint32_t i = compute->used_count; i-- > 0;) {
        struct gp_stream *stream = &compute->streams[compute->used[i]];
        if (context == NULL || atomic_load(&stream->context) == context) {
            forget_events(stream, false);
            free_place(compute, stream);
        }
    }
    pthread_mutex_unlock(&compute->lock);
}

void gp_compute_context_closing(CUcontext context, CUdevice device) {
    struct gp_gpu *gpu = context == NULL ? gp_gpu_of(device) : NULL;
    for (uint32_t i = 0; i < GPUPOOL_MAX_GPUS; i++)
        if (gp_compute_at(i) != NULL && (context != NULL || gpu == gp_compute_at(i)->gpu))
            context_closing(gp_compute_at(i), context);
}
