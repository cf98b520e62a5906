/* Hooks of everything that launches a kernel, in all forms that the driver exports.
 *
 * A launch that is not gated (no lease, policy none, a stream that is being captured) costs a few loads. A gated one
 * that holds the grant costs two atomic additions, a look at the grant, and a look at what the kernel takes (pace.c).
 * Copies and memsets are not gated: they take part in hardware time slices.
 */
#include "compute.h"

#define PER_THREAD ((uintptr_t)CU_STREAM_PER_THREAD)

/* Launches of the same function with a similar size are assumed to take a similar time. */
static inline uint64_t kernel_key(CUfunction function, uint64_t blocks, uint64_t threads) {
    uint64_t size = blocks * threads;
    uint32_t magnitude = size == 0 ? 0 : 64 - (uint32_t)__builtin_clzll(size);
    return (uintptr_t)function + ((uint64_t)magnitude << 56);
}

static inline uint64_t volume(unsigned x, unsigned y, unsigned z) { return (uint64_t)x * y * z; }

bool gp_launch_begin(struct gp_launch *launch, CUstream stream, bool per_thread, uint64_t key) {
    struct gp_compute *compute = gp_compute_current();
    if (compute == NULL)
        return false;
    *launch = (struct gp_launch){.compute = compute, .handle = gp_handle(stream, per_thread), .key = key};
    if (GP_UNLIKELY(atomic_load_explicit(&gp_captures, memory_order_relaxed) != 0) && gp_is_capturing(launch->handle))
        return false;
    if (launch->handle <= PER_THREAD && OWN(cuCtxGetCurrent, &launch->context) != CUDA_SUCCESS)
        return false;
    launch->stream = gp_stream_find(compute, launch->handle, launch->context);
    launch->cost_ns = gp_cost(compute, key);
    if (launch->stream != NULL && GP_UNLIKELY(launch->cost_ns == 0 || atomic_load_explicit(&launch->stream->full,
                                                                                           memory_order_relaxed)))
        gp_pace_before(launch);
    launch->gate = gp_gate_of(compute);
    atomic_fetch_add(&launch->gate->word, GP_GATE_LAUNCH + 1);
    if (GP_UNLIKELY(!gp_is_held(compute)))
        gp_gate_wait(compute, launch->gate);
    GP_PAUSE();
    return true;
}

/* Adds a launch to the work of the stream since the last mark. True: it is time for a mark. */
static bool note(struct gp_launch *launch) {
    struct gp_stream *stream = launch->stream;
    uint64_t cost = launch->cost_ns != 0 ? launch->cost_ns : GP_COST_UNKNOWN_NS;
    uint64_t sum = atomic_load_explicit(&stream->since_ns, memory_order_relaxed) + cost;
    uint32_t launches = atomic_load_explicit(&stream->since_launches, memory_order_relaxed);
    if (launches == 0)
        atomic_store_explicit(&stream->since_key, launch->key, memory_order_relaxed);
    else if (atomic_load_explicit(&stream->since_key, memory_order_relaxed) != launch->key)
        atomic_store_explicit(&stream->since_key, 0, memory_order_relaxed);
    atomic_store_explicit(&stream->since_launches, launches + 1, memory_order_relaxed);
    atomic_store_explicit(&stream->since_ns, sum, memory_order_relaxed);
    atomic_store_explicit(&stream->dirty, true, memory_order_release);
    return launch->cost_ns == 0 || sum >= atomic_load_explicit(&stream->quantum_ns, memory_order_relaxed);
}

/* There is no room to follow this stream, so its work must end before the next launch. */
static void wait_it_out(struct gp_launch *launch) {
    CUevent event;
    if (OWN(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return;
    uint64_t end = gp_now_ns() + UINT64_C(10000000000);
    if (OWN(cuEventRecord, event, (CUstream)launch->handle) == CUDA_SUCCESS)
        while (OWN(cuEventQuery, event) == CUDA_ERROR_NOT_READY && gp_now_ns() < end)
            gp_sleep_ns(50000);
    OWN(cuEventDestroy_v2, event);
}

static void note_slowly(struct gp_launch *launch) {
    pthread_mutex_lock(&launch->compute->lock);
    if (launch->stream == NULL) {
        launch->stream = gp_stream_add(launch->compute, launch->handle, launch->context);
        if (launch->stream != NULL)
            note(launch);
    }
    if (launch->stream != NULL)
        gp_stream_mark(launch->compute, launch->stream);
    pthread_mutex_unlock(&launch->compute->lock);
    if (launch->stream == NULL)
        wait_it_out(launch);
}

/* No other thread can record a mark behind this thread's launch. */
static void record_last(struct gp_launch *launch) {
    pthread_mutex_lock(&launch->compute->lock);
    struct gp_stream *stream = launch->stream;
    if (stream->last == NULL && OWN(cuEventCreate, &stream->last, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        stream->last = NULL;
    stream->last_pending = stream->last != NULL && OWN(cuEventRecord, stream->last, CU_STREAM_PER_THREAD) == CUDA_SUCCESS;
    atomic_store(&stream->dirty, false);
    pthread_mutex_unlock(&launch->compute->lock);
}

void gp_launch_end(struct gp_launch *launch, CUresult result) {
    if (launch->stream == NULL ? result == CUDA_SUCCESS : note(launch))
        note_slowly(launch);
    else if (GP_UNLIKELY(launch->handle == PER_THREAD) && launch->stream != NULL)
        record_last(launch);
    atomic_fetch_sub(&launch->gate->word, 1);
}

#define GATED(stream, per_thread, key, call)                                                                          \
    struct gp_launch launch;                                                                                          \
    if (!gp_launch_begin(&launch, stream, per_thread, key))                                                           \
        return call;                                                                                                  \
    CUresult result = call;                                                                                           \
    gp_launch_end(&launch, result);                                                                                   \
    return result

GP_HOOK CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    GATED(stream, false, kernel_key(f, volume(gx, gy, gz), volume(bx, by, bz)),
          REAL(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

GP_HOOK CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                     unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    GATED(stream, true, kernel_key(f, volume(gx, gy, gz), volume(bx, by, bz)),
          REAL(cuLaunchKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

/* The driver reports the error of a launch without a configuration. */
static const CUlaunchConfig no_config;

static uint64_t config_key(const CUlaunchConfig *config, CUfunction f) {
    return kernel_key(f, volume(config->gridDimX, config->gridDimY, config->gridDimZ),
                      volume(config->blockDimX, config->blockDimY, config->blockDimZ));
}

GP_HOOK CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    const CUlaunchConfig *known = config != NULL ? config : &no_config;
    GATED(known->hStream, false, config_key(known, f), REAL(cuLaunchKernelEx)(config, f, params, extra));
}

GP_HOOK CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    const CUlaunchConfig *known = config != NULL ? config : &no_config;
    GATED(known->hStream, true, config_key(known, f), REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra));
}

GP_HOOK CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                           unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params) {
    GATED(stream, false, kernel_key(f, volume(gx, gy, gz), volume(bx, by, bz)),
          REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

GP_HOOK CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                                unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                                void **params) {
    GATED(stream, true, kernel_key(f, volume(gx, gy, gz), volume(bx, by, bz)),
          REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

/* The first stream is paced; the others are followed, so that the drain waits for their work. */
GP_HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags) {
    struct gp_launch launch;
    if (list == NULL || count == 0 || !gp_launch_begin(&launch, list[0].hStream, false, (uintptr_t)list[0].function))
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 1; i < count && result == CUDA_SUCCESS; i++) {
        struct gp_launch other = {.compute = launch.compute, .handle = gp_handle(list[i].hStream, false)};
        other.stream = gp_stream_find(other.compute, other.handle, NULL);
        if (other.handle > PER_THREAD)
            note_slowly(&other);
    }
    gp_launch_end(&launch, result);
    return result;
}

GP_HOOK CUresult cuLaunch(CUfunction f) { GATED(NULL, false, kernel_key(f, 1, 1), REAL(cuLaunch)(f)); }

GP_HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    GATED(NULL, false, kernel_key(f, (unsigned)width, (unsigned)height), REAL(cuLaunchGrid)(f, width, height));
}

GP_HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    GATED(stream, false, kernel_key(f, (unsigned)width, (unsigned)height),
          REAL(cuLaunchGridAsync)(f, width, height, stream));
}
