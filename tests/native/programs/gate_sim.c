/* A driver for tests of launch gating: one process, one GPU, streams whose kernels take the time that is asked for.
 *
 * A function's handle is its kernel's duration in microseconds (0: nothing happens at all), an executable graph's
 * likewise. Kernels run one after another, in the order of their launches, each not before its stream's last one.
 * What must not happen is counted in the file named by GATE_SIM_REPORT (struct report, read by test_gate.py).
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda_types.h"

#define API __attribute__((visibility("default")))

struct report {
    _Atomic uint64_t kernels;          /* launched and not captured */
    _Atomic uint64_t finish_ns;        /* CLOCK_MONOTONIC at which all that was launched is over */
    _Atomic uint64_t most_queued_ns;   /* the most work that was queued at a launch, that launch included */
    _Atomic uint64_t records, queries; /* of events */
    _Atomic uint64_t spoilt;           /* captures that event calls of others have invalidated */
    _Atomic uint64_t dead;             /* uses of handles whose context or self is gone */
    _Atomic uint64_t idle_ns;          /* between the first and the last launch: the GPU had nothing to do */
    _Atomic uint64_t first_ns;
    _Atomic uint64_t late;   /* launches while ... */
    _Atomic uint64_t closed; /* ... an arbiter that saw the GPU idle has not granted it again */
};

struct gp_CUcontext {
    bool alive;
    CUstream legacy;
};
struct gp_CUstream {
    CUcontext context;
    bool alive, capturing, blocking;
    CUstreamCaptureMode mode;
    uint64_t finish_ns;
};
struct gp_CUevent {
    CUcontext context;
    bool captured;
    uint64_t at_ns;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct report own, *report = &own;
static uint64_t busy_until;
static struct gp_CUstream *capturing_globally;
static _Thread_local CUcontext stack[16];
static _Thread_local int depth;
static _Thread_local CUstream own_stream;
static _Thread_local CUstreamCaptureMode thread_mode;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void open_report(void) {
    const char *path = getenv("GATE_SIM_REPORT");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || report != &own)
        return;
    report = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}

static CUstream new_stream(CUcontext context, bool blocking) {
    CUstream stream = calloc(1, sizeof *stream);
    *stream = (struct gp_CUstream){.context = context, .alive = true, .blocking = blocking};
    return stream;
}

static CUstream capturing_blocking;

static CUcontext current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

static CUstream stream_of(CUstream handle, bool per_thread) {
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread)) {
        if (own_stream == NULL || own_stream->context != current())
            own_stream = new_stream(current(), true);
        return own_stream;
    }
    return handle == NULL || handle == CU_STREAM_LEGACY ? current()->legacy : handle;
}

static bool usable(CUstream stream) {
    if (stream != NULL && stream->alive && stream->context->alive)
        return true;
    report->dead++;
    return false;
}

/* A call that is not allowed to threads in strict mode during a capture in global mode. */
static void unsafe_call(void) {
    if (capturing_globally != NULL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
        capturing_globally->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        report->spoilt++;
    }
}

static CUresult run(CUstream stream, uint64_t ns) {
    if (ns == 0)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    bool good = usable(stream);
    if (good && !stream->capturing) {
        uint64_t now = now_ns(), begin = busy_until > now ? busy_until : now;
        if (report->first_ns == 0)
            report->first_ns = now;
        else if (now > busy_until)
            report->idle_ns += now - busy_until;
        stream->finish_ns = busy_until = begin + ns;
        if (busy_until - now > report->most_queued_ns)
            report->most_queued_ns = busy_until - now;
        report->finish_ns = busy_until;
        report->kernels++;
        report->late += report->closed;
    }
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuInit(unsigned flags) {
    (void)flags;
    open_report();
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    (void)device;
    memset(uuid, 7, sizeof *uuid);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags, (void)device;
    *context = calloc(1, sizeof **context);
    **context = (struct gp_CUcontext){.alive = true};
    (*context)->legacy = new_stream(*context, true);
    stack[depth++] = *context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxDestroy_v2(CUcontext context) {
    pthread_mutex_lock(&lock);
    context->alive = false; /* never freed, so that a later use is seen */
    if (current() == context)
        depth--;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current();
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    depth = 1;
    stack[0] = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    pthread_mutex_lock(&lock);
    bool good = context != NULL && context->alive;
    if (good)
        stack[depth++] = context;
    else
        report->dead++;
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    *context = stack[--depth];
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return current() != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    *stream = new_stream(current(), flags != CU_STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}
API CUresult cuStreamDestroy_v2(CUstream stream) {
    pthread_mutex_lock(&lock);
    stream->alive = false;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    *context = stream->context;
    return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream handle) {
    CUstream stream = stream_of(handle, false);
    while (now_ns() < stream->finish_ns)
        usleep(50);
    return CUDA_SUCCESS;
}
API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    unsafe_call();
    *event = calloc(1, sizeof **event);
    (*event)->context = current();
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream handle) {
    pthread_mutex_lock(&lock);
    CUstream stream = stream_of(handle, false);
    bool good = usable(stream) && event->context == stream->context;
    if (good) {
        event->captured = stream->capturing;
        event->at_ns = stream->finish_ns > now_ns() ? stream->finish_ns : now_ns();
        report->records++;
        report->spoilt += capturing_blocking != NULL && stream == stream->context->legacy;
    }
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuEventQuery(CUevent event) {
    pthread_mutex_lock(&lock);
    unsafe_call();
    CUresult result = now_ns() < event->at_ns ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    if (event->captured) {
        report->spoilt++;
        result = CUDA_ERROR_CAPTURED_EVENT;
    }
    if (!event->context->alive) {
        report->dead++;
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    report->queries++;
    pthread_mutex_unlock(&lock);
    return result;
}
API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    pthread_mutex_lock(&lock);
    *ms = (float)((double)to->at_ns - (double)from->at_ns) / 1e6f;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void **params, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params, (void)extra;
    return f == NULL ? CUDA_SUCCESS : run(stream_of(stream, false), (uint64_t)(uintptr_t)f * 1000);
}
API CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params, (void)extra;
    return run(stream_of(stream, true), (uint64_t)(uintptr_t)f * 1000);
}
API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return run(stream_of(stream, false), (uint64_t)(uintptr_t)exec * 1000);
}
API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    pthread_mutex_lock(&lock);
    stream->capturing = true;
    if (stream->blocking)
        capturing_blocking = stream;
    stream->mode = mode;
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        capturing_globally = stream;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    pthread_mutex_lock(&lock);
    stream->capturing = false;
    capturing_globally = capturing_blocking = NULL;
    *graph = NULL;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    pthread_mutex_lock(&lock);
    CUstream stream = stream_of(handle, false);
    bool implied = capturing_blocking != NULL && stream == stream->context->legacy;
    *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    pthread_mutex_unlock(&lock);
    return implied ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
