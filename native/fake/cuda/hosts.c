/* Host functions, and the one thread that calls them. It is started when first needed, sleeps until the next moment
 * that matters to it, and calls without the lock: a host function may take its time, and other threads continue. */
#include <stdlib.h>
#include <time.h>

#include "fake.h"

#define LATER_NS UINT64_C(10000000)

static struct op *ready, **ready_end = &ready;
static pthread_t helper;
static bool helper_runs;

/* Returns when the helper is next needed if nothing happens before; 0: not by itself. */
static uint64_t next_moment(void) {
    uint64_t now = fake_now(), moment = 0;
    for (uint32_t i = 0; i < fake_device_count(); i++) {
        struct gpu *gpu = fake_gpu((CUdevice)i);
        for (CUstream stream = gpu->streams; stream != NULL; stream = stream->next) {
            struct op *op = stream->head;
            while (op != NULL && !op->host && fake_first_blocked() == NULL) op = op->next;
            if (op == NULL) continue;
            fake_lock(gpu->shared);
            fake_advance(gpu->shared, now);
            uint64_t end = fake_projected(gpu->shared, op->finish, now);
            fake_unlock(gpu->shared);
            if (moment == 0 || end < moment) moment = end;
        }
    }
    return moment > now + LATER_NS ? now + LATER_NS : moment;
}

static void call(struct op *op) {
    void (*run)(void *) = op->run;
    void *data = op->data;
    pthread_mutex_unlock(&fake_mutex);
    fake_in_callback = true;
    run(data);
    fake_in_callback = false;
    pthread_mutex_lock(&fake_mutex);
    op->done_ns = fake_now();
    fake_finish_op(op);
    fake_unblock();
    pthread_cond_broadcast(&fake_progress);
}

static void *help(void *nothing) {
    pthread_mutex_lock(&fake_mutex);
    for (;;) {
        fake_settle();
        if (ready != NULL) {
            struct op *op = ready;
            ready = op->next;
            op->next = NULL;
            if (ready == NULL) ready_end = &ready;
            call(op);
            continue;
        }
        uint64_t moment = next_moment();
        struct timespec until = {.tv_sec = (time_t)(moment / 1000000000), .tv_nsec = (long)(moment % 1000000000)};
        if (moment == 0) pthread_cond_wait(&fake_progress, &fake_mutex);
        else pthread_cond_timedwait(&fake_progress, &fake_mutex, &until);
    }
    return nothing;
}

void fake_need_helper(void) {
    if (!helper_runs) {
        helper_runs = pthread_create(&helper, NULL, help, NULL) == 0;
        if (helper_runs) pthread_detach(helper);
    }
    pthread_cond_broadcast(&fake_progress);
}

void fake_host_ready(struct op *op) {
    *ready_end = op;
    ready_end = &op->next;
    fake_need_helper();
}

struct callback { /* of cuStreamAddCallback, which wants more than a host function */
    CUstreamCallback function;
    CUstream stream;
    void *data;
};

static void run_callback(void *data) {
    struct callback *callback = data;
    callback->function(callback->stream, CUDA_SUCCESS, callback->data);
}

struct host_call {
    CUhostFn function;
    void *data;
};

static void run_host(void *data) {
    struct host_call *host = data;
    host->function(host->data);
}

void fake_issue_host(CUstream stream, CUhostFn function, void *data) {
    struct host_call *host = malloc(sizeof *host);
    if (host == NULL) abort();
    *host = (struct host_call){function, data};
    fake_issue(stream, &(struct work){.host = true, .run = run_host, .data = host});
}

API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    bool captured;
    ENTER;
    CUstream stream;
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (captured) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_HOST, &(CUDA_HOST_NODE_PARAMS){function, data});
    fake_issue_host(stream, function, data);
    return CUDA_SUCCESS;
}

API CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned int mode) {
    (void)mode;
    return cuLaunchHostFunc(stream, function, data);
}

API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data, unsigned int flags) {
    bool captured;
    ENTER;
    CUstream stream;
    if (function == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (captured) {
        fake_capture_break(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct callback *callback = malloc(sizeof *callback);
    if (callback == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *callback = (struct callback){function, handle, data};
    fake_issue(stream, &(struct work){.host = true, .run = run_callback, .data = callback});
    return CUDA_SUCCESS;
}
