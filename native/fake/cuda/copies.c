/* Copies and fills: checked when issued, done when their time has come.
 *
 * Host memory that the driver does not know may be used again as soon as the call returns: a small source is copied,
 * and for anything else of that kind the call waits.
 */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define START_NS UINT64_C(1500)
#define LINK_BYTES_PER_US UINT64_C(12000)   /* PCIe 3 x16 */
#define CARD_BYTES_PER_US UINT64_C(300000)
#define STAGED_BYTES UINT64_C(65536)

uint64_t fake_copy_cost(uint64_t bytes, bool on_card) {
    return START_NS + bytes / (on_card ? CARD_BYTES_PER_US : LINK_BYTES_PER_US) * 1000;
}

static bool on_card(uint64_t address) {
    struct range *range = fake_range_find(address);
    return range != NULL && range->gpu != NULL;
}

/* The time of a copy, longer over the slow link of a card (faults.c). */
static uint64_t copy_cost(const struct copy *copy, const struct gpu *gpu) {
    bool inside = fake_copy_on_card(copy);
    uint64_t ns = fake_copy_cost(copy->width * copy->height * copy->depth, inside);
    return inside ? ns : ns * fake_faults_of(gpu->shared->gpu->index).slow_link;
}

bool fake_copy_on_card(const struct copy *copy) { return on_card(copy->from) && on_card(copy->to); }

void fake_run_copy(void *data) {
    const struct copy *copy = data;
    for (uint64_t z = 0; z < copy->depth; z++) {
        for (uint64_t y = 0; y < copy->height; y++) {
            uint64_t to = copy->to + z * copy->to_slice + y * copy->to_pitch;
            uint64_t from = copy->from + z * copy->from_slice + y * copy->from_pitch;
            memmove((void *)to, (const void *)from, copy->width);
        }
    }
}

void fake_run_fill(void *data) {
    const struct fill *fill = data;
    for (uint64_t y = 0; y < fill->height; y++) {
        uint8_t *row = (uint8_t *)(fill->to + y * fill->pitch);
        if (fill->size == 1) memset(row, (int)fill->value, fill->width);
        for (uint64_t x = 0; fill->size > 1 && x < fill->width; x++) {
            memcpy(row + x * fill->size, &fill->value, fill->size);
        }
    }
}

struct staged {
    struct copy copy;
    uint8_t bytes[];
};

/* Makes a copy the data of an op, with the source stored behind it if necessary. */
static struct copy *keep(const struct copy *copy, bool stage) {
    struct staged *staged = malloc(sizeof *staged + (stage ? copy->width : 0));
    if (staged == NULL) return NULL;
    staged->copy = *copy;
    if (stage) {
        memcpy(staged->bytes, (const void *)copy->from, copy->width);
        staged->copy.from = (uint64_t)staged->bytes;
    }
    return &staged->copy;
}

CUresult fake_copy(const struct copy *copy, CUstream handle, bool wait) {
    bool captured;
    CUstream stream;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    uint64_t bytes = copy->width * copy->height * copy->depth;
    if (bytes == 0) return CUDA_SUCCESS;
    if (captured) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_MEMCPY, copy);
    bool from_pages = fake_range_find(copy->from) == NULL, to_pages = fake_range_find(copy->to) == NULL;
    bool stage = from_pages && !to_pages && bytes <= STAGED_BYTES && copy->height == 1 && copy->depth == 1;
    struct copy *kept = keep(copy, stage);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    struct work work = {.cost_ns = copy_cost(copy, stream->context->gpu), .run = fake_run_copy, .data = kept};
    CUcontext context = stream->context;
    struct op *op = fake_issue_held(stream, &work, NULL, 0);
    if (wait || to_pages || (from_pages && !stage)) fake_wait(op);
    fake_release(op);
    return context->error;
}

CUresult fake_fill(const struct fill *fill, CUstream handle, bool wait) {
    bool captured;
    CUstream stream;
    uint64_t bytes = fill->width * fill->size;
    if (fill->to % fill->size != 0 || (fill->height > 1 && fill->pitch < bytes)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS || bytes == 0 || fill->height == 0) return result;
    uint64_t span = (fill->height - 1) * fill->pitch + bytes;
    if (!fake_range_holds(fill->to, span)) return CUDA_ERROR_INVALID_VALUE;
    if (captured) return fake_capture_node(stream, CU_GRAPH_NODE_TYPE_MEMSET, fill);
    struct fill *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *fill;
    struct work work = {.cost_ns = fake_copy_cost(bytes * fill->height, true), .run = fake_run_fill, .data = kept};
    struct op *op = fake_issue_held(stream, &work, NULL, 0);
    if (wait) fake_wait(op);
    fake_release(op);
    return CUDA_SUCCESS;
}

struct side { /* of a copy of the interface's form */
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch, height, x, y, z;
};

/* Returns the start of a side; false if there is no such memory. */
static bool resolve(const struct side *side, const struct copy *copy, uint64_t *at, uint64_t *pitch, uint64_t *slice) {
    uint64_t base, bytes = 0;
    *pitch = side->pitch != 0 ? side->pitch : copy->width + side->x;
    *slice = *pitch * (side->height != 0 ? side->height : copy->height + side->y);
    if (side->type == CU_MEMORYTYPE_HOST) base = (uint64_t)side->host;
    else if (side->type == CU_MEMORYTYPE_ARRAY) base = fake_array_base(side->array, pitch, slice, &bytes);
    else if (side->type == CU_MEMORYTYPE_DEVICE || side->type == CU_MEMORYTYPE_UNIFIED) base = side->device;
    else return false;
    if (base == 0 || copy->height == 0 || copy->depth == 0) return base != 0;
    uint64_t offset = side->z * *slice + side->y * *pitch + side->x;
    uint64_t span = (copy->depth - 1) * *slice + (copy->height - 1) * *pitch + copy->width;
    *at = base + offset;
    if (side->type == CU_MEMORYTYPE_ARRAY) return offset + span <= bytes;
    return side->type != CU_MEMORYTYPE_DEVICE || fake_range_holds(*at, span);
}

CUresult fake_copy_of(const CUDA_MEMCPY3D *asked, struct copy *copy) {
    const struct side from = {asked->srcMemoryType, asked->srcHost, asked->srcDevice, asked->srcArray, asked->srcPitch,
                              asked->srcHeight, asked->srcXInBytes, asked->srcY, asked->srcZ};
    const struct side to = {asked->dstMemoryType, asked->dstHost, asked->dstDevice, asked->dstArray, asked->dstPitch,
                            asked->dstHeight, asked->dstXInBytes, asked->dstY, asked->dstZ};
    *copy = (struct copy){.width = asked->WidthInBytes, .height = asked->Height, .depth = asked->Depth};
    if ((from.pitch != 0 && from.pitch < from.x + copy->width && from.type != CU_MEMORYTYPE_ARRAY) ||
        (to.pitch != 0 && to.pitch < to.x + copy->width && to.type != CU_MEMORYTYPE_ARRAY)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool both = resolve(&from, copy, &copy->from, &copy->from_pitch, &copy->from_slice) &&
                resolve(&to, copy, &copy->to, &copy->to_pitch, &copy->to_slice);
    return both ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
