/* The interface's many forms of copies: each is one `struct copy`. */
#include "fake.h"

#define HERE(address, bytes) fake_range_holds(address, bytes)

static CUresult linear(uint64_t to, uint64_t from, size_t bytes, CUstream stream, bool wait) {
    const struct copy copy = {.from = from, .to = to, .width = bytes, .height = 1, .depth = 1};
    if (wait) {
        CUresult result = fake_unsafe_call();
        if (result != CUDA_SUCCESS) return result;
    }
    return fake_copy(&copy, stream, wait);
}

/* Performs one linear copy; `checks`: the addresses that the driver must know. */
#define LINEAR(name, parameters, to, from, checks, stream, wait)                                                      \
    API CUresult name parameters {                                                                                    \
        ENTER_CONTEXT(context);                                                                                       \
        if (bytes > 0 && !(checks)) return CUDA_ERROR_INVALID_VALUE;                                                  \
        if (bytes > 0 && ((uint64_t)(to) == 0 || (uint64_t)(from) == 0)) return CUDA_ERROR_INVALID_VALUE;             \
        CUresult result = linear((uint64_t)(to), (uint64_t)(from), bytes, stream, wait);                              \
        return result != CUDA_SUCCESS ? result : context->error;                                                      \
    }

LINEAR(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), to, from, HERE(to, bytes), NULL, true)
LINEAR(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), to, from, HERE(from, bytes), NULL, true)
LINEAR(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, HERE(to, bytes) &&
       HERE(from, bytes), NULL, false)
LINEAR(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, true, NULL, true)
LINEAR(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, from,
       HERE(to, bytes), stream, false)
LINEAR(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, HERE(from, bytes),
       stream, false)
LINEAR(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from,
       HERE(to, bytes) && HERE(from, bytes), stream, false)
LINEAR(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, true, stream, false)

LINEAR(cuMemcpyPeer, (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes), to, from,
       fake_is_context(there) && fake_is_context(here) && HERE(to, bytes) && HERE(from, bytes), NULL, true)
LINEAR(cuMemcpyPeerAsync,
       (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream), to, from,
       fake_is_context(there) && fake_is_context(here) && HERE(to, bytes) && HERE(from, bytes), stream, false)

/* Copies to and from arrays, at an offset in bytes into their consecutive rows. */
static bool in_array(CUarray array, size_t offset, size_t bytes, uint64_t *at) {
    uint64_t pitch, slice, size, base = fake_array_base(array, &pitch, &slice, &size);
    *at = base + offset;
    return base != 0 && offset <= size && bytes <= size - offset;
}

#define WITH_ARRAY(name, parameters, to, from, array, offset, checks, stream, wait)                                   \
    API CUresult name parameters {                                                                                    \
        uint64_t at;                                                                                                  \
        ENTER_CONTEXT(context);                                                                                       \
        if (!in_array(array, offset, bytes, &at) || !(checks)) return CUDA_ERROR_INVALID_VALUE;                       \
        CUresult result = linear((uint64_t)(to), (uint64_t)(from), bytes, stream, wait);                              \
        return result != CUDA_SUCCESS ? result : context->error;                                                      \
    }

WITH_ARRAY(cuMemcpyHtoA_v2, (CUarray array, size_t offset, const void *from, size_t bytes), at, from, array, offset,
           from != NULL, NULL, true)
WITH_ARRAY(cuMemcpyAtoH_v2, (void *to, CUarray array, size_t offset, size_t bytes), to, at, array, offset, to != NULL,
           NULL, true)
WITH_ARRAY(cuMemcpyDtoA_v2, (CUarray array, size_t offset, CUdeviceptr from, size_t bytes), at, from, array, offset,
           HERE(from, bytes), NULL, false)
WITH_ARRAY(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray array, size_t offset, size_t bytes), to, at, array, offset,
           HERE(to, bytes), NULL, false)
WITH_ARRAY(cuMemcpyHtoAAsync_v2, (CUarray array, size_t offset, const void *from, size_t bytes, CUstream stream), at,
           from, array, offset, from != NULL, stream, false)
WITH_ARRAY(cuMemcpyAtoHAsync_v2, (void *to, CUarray array, size_t offset, size_t bytes, CUstream stream), to, at,
           array, offset, to != NULL, stream, false)

API CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
    uint64_t there, here;
    ENTER_CONTEXT(context);
    if (!in_array(to, to_offset, bytes, &there) || !in_array(from, from_offset, bytes, &here)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = linear(there, here, bytes, NULL, false);
    return result != CUDA_SUCCESS ? result : context->error;
}

static CUresult in_three(const CUDA_MEMCPY3D *asked, CUstream stream, bool wait) {
    struct copy copy;
    CUcontext context;
    CUresult result = fake_current(&context);
    if (result == CUDA_SUCCESS && wait) result = fake_unsafe_call();
    if (result == CUDA_SUCCESS) result = fake_copy_of(asked, &copy);
    return result == CUDA_SUCCESS ? fake_copy(&copy, stream, wait) : result;
}

static CUresult in_two(const CUDA_MEMCPY2D *asked, CUstream stream, bool wait) {
    if (asked == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D same = {
        .srcXInBytes = asked->srcXInBytes, .srcY = asked->srcY, .srcMemoryType = asked->srcMemoryType,
        .srcHost = asked->srcHost, .srcDevice = asked->srcDevice, .srcArray = asked->srcArray,
            .srcPitch = asked->srcPitch,
        .dstXInBytes = asked->dstXInBytes, .dstY = asked->dstY, .dstMemoryType = asked->dstMemoryType,
        .dstHost = asked->dstHost, .dstDevice = asked->dstDevice, .dstArray = asked->dstArray,
            .dstPitch = asked->dstPitch,
        .WidthInBytes = asked->WidthInBytes, .Height = asked->Height, .Depth = 1};
    return in_three(&same, stream, wait);
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *asked) {
    ENTER;
    return in_two(asked, NULL, true);
}

API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *asked) {
    ENTER;
    return in_two(asked, NULL, true);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *asked, CUstream stream) {
    ENTER;
    return in_two(asked, stream, false);
}

API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *asked) {
    ENTER;
    return asked != NULL ? in_three(asked, NULL, true) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *asked, CUstream stream) {
    ENTER;
    return asked != NULL ? in_three(asked, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

/* The form between cards has contexts where the other has reserved words. */
_Static_assert(sizeof(CUDA_MEMCPY3D_PEER) == sizeof(CUDA_MEMCPY3D), "layout");

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *asked) { return cuMemcpy3D_v2((const CUDA_MEMCPY3D *)asked); }

API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *asked, CUstream stream) {
    return cuMemcpy3DAsync_v2((const CUDA_MEMCPY3D *)asked, stream);
}

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                   CUmemcpyAttributes *attributes,
                                   size_t *attribute_at, size_t attribute_count, CUstream stream) {
    ENTER_CONTEXT(context);
    (void)attributes;
    (void)attribute_at;
    (void)attribute_count;
    if (to == NULL || from == NULL || bytes == NULL || count == 0 || stream == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult result = linear(to[i], from[i], bytes[i], stream, false);
        if (result != CUDA_SUCCESS) return result;
    }
    return context->error;
}

API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                CUmemcpyAttributes *attributes,
                                size_t *attribute_at, size_t attribute_count, size_t *failed, CUstream stream) {
    if (failed != NULL) *failed = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, attribute_at, attribute_count, stream);
}
