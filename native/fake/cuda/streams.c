/* Streams: the default ones (legacy, per thread) and those that programs make. */
#include <stdlib.h>

#include "fake.h"

#define THREAD_STREAMS 16

static struct gp_CUstream *unused;
static __thread struct { /* this thread's own default streams; a stream's id tells whether it is still that one */
    CUstream stream;
    uint64_t id;
} mine[THREAD_STREAMS];

/* Streams that were destroyed with work that is over by now. */
static void reap(struct gpu *gpu) {
    for (struct gp_CUstream **at = &gpu->streams; *at != NULL;) {
        CUstream stream = *at;
        if (!stream->dead || stream->head != NULL || stream->tail != NULL) {
            at = &stream->next;
            continue;
        }
        *at = stream->next;
        stream->next = unused;
        unused = stream;
    }
}

CUstream fake_stream_new(CUcontext context, uint32_t flags, int priority) {
    reap(context->gpu);
    CUstream stream = unused;
    if (stream != NULL) unused = stream->next;
    else stream = malloc(sizeof *stream);
    if (stream == NULL) abort();
    *stream = (struct gp_CUstream){.magic = MAGIC_STREAM, .context = context, .flags = flags, .priority = priority,
                                   .id = fake_next_id(), .next = context->gpu->streams};
    context->gpu->streams = stream;
    return stream;
}

void fake_stream_retire(CUstream stream) {
    if (stream->capture != NULL) fake_capture_leave(stream);
    free(stream->after);
    stream->after = NULL;
    stream->after_count = 0;
    stream->magic = 0;
    stream->dead = true;
}

static bool is_mine(size_t i, CUcontext context) {
    CUstream stream = mine[i].stream;
    return stream != NULL && stream->magic == MAGIC_STREAM && stream->id == mine[i].id && stream->context == context;
}

static CUstream thread_stream(CUcontext context) {
    size_t spare = 0;
    for (size_t i = 0; i < THREAD_STREAMS; i++) {
        if (is_mine(i, context)) return mine[i].stream;
        if (mine[i].stream == NULL) spare = i;
    }
    CUstream stream = fake_stream_new(context, CU_STREAM_DEFAULT, 0);
    stream->per_thread = true;
    mine[spare].stream = stream;
    mine[spare].id = stream->id;
    return stream;
}

CUresult fake_stream(CUstream handle, CUstream *stream) {
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        CUcontext context;
        CUresult result = fake_current(&context);
        if (result != CUDA_SUCCESS) return result;
        bool per_thread = handle == CU_STREAM_PER_THREAD || (handle == NULL && fake_per_thread > 0);
        *stream = per_thread ? thread_stream(context) : context->legacy;
        return CUDA_SUCCESS;
    }
    if (handle->magic != MAGIC_STREAM) return CUDA_ERROR_INVALID_HANDLE;
    *stream = handle;
    return handle->context->error;
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    ENTER_CONTEXT(context);
    if (stream == NULL || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
    *stream = fake_stream_new(context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER;
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->magic != MAGIC_STREAM || stream->legacy || stream->per_thread) return CUDA_ERROR_INVALID_HANDLE;
    fake_stream_retire(stream);
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

#define ENTER_STREAM(name, handle)                                                                                    \
    ENTER;                                                                                                            \
    CUstream name;                                                                                                    \
    CUresult found_ = fake_stream(handle, &name);                                                                     \
    if (found_ != CUDA_SUCCESS) return found_

/* Waiting for a stream that is being captured breaks the capture. */
static CUresult may_wait(CUstream stream) {
    if (stream->capture != NULL) {
        fake_capture_break(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return fake_unsafe_call();
}

API CUresult cuStreamSynchronize(CUstream handle) {
    ENTER_STREAM(stream, handle);
    CUresult result = may_wait(stream);
    if (result != CUDA_SUCCESS) return result;
    CUcontext context = stream->context;
    fake_wait_stream(stream);
    fake_pools_after_sync(context->gpu);
    return context->error;
}

API CUresult cuStreamQuery(CUstream handle) {
    ENTER_STREAM(stream, handle);
    CUresult result = may_wait(stream);
    if (result != CUDA_SUCCESS) return result;
    fake_settle();
    bool over = stream->tail == NULL;
    for (CUstream other = stream->context->gpu->streams; stream->legacy && over && other != NULL; other = other->next) {
        bool blocking = (other->flags & CU_STREAM_NON_BLOCKING) == 0 && other->context == stream->context;
        over = !blocking || other->tail == NULL;
    }
    return over ? stream->context->error : CUDA_ERROR_NOT_READY;
}

API CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    ENTER_STREAM(stream, handle);
    if (priority == NULL) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags) {
    ENTER_STREAM(stream, handle);
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    ENTER_STREAM(stream, handle);
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    ENTER_STREAM(stream, handle);
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
    if (green != NULL) *green = NULL;
    return cuStreamGetCtx(handle, context);
}

API CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green) {
    ENTER_STREAM(stream, handle);
    if (green == NULL) return CUDA_ERROR_INVALID_VALUE;
    (void)stream;
    *green = NULL; /* there are none */
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
    ENTER_STREAM(stream, handle);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = stream->context->gpu->ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length, unsigned int flags) {
    ENTER_STREAM(stream, handle);
    (void)length;
    (void)flags;
    struct range *range = fake_range_find(address);
    return range != NULL && range->kind == RANGE_MANAGED ? stream->context->error : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
    ENTER_STREAM(stream, to);
    CUstream source;
    CUresult result = fake_stream(from, &source);
    if (result == CUDA_SUCCESS) stream->priority = source->priority;
    return result;
}

API CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value) {
    ENTER_STREAM(stream, handle);
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    *value = (CUstreamAttrValue){.pad = {0}};
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue *value) {
    ENTER_STREAM(stream, handle);
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) stream->priority = value->priority;
    return CUDA_SUCCESS;
}
