/* Memory of graphs' allocation nodes. An allocation has its address from the moment its node is made; the card's memory
 * is reserved when an executable graph is launched (or uploaded) for the first time, for all its allocations together,
 * and stays reserved for later launches, of any graph, until it is trimmed. */
#include "graphs.h"

#include <stdlib.h>

struct graph_memory *fake_graph_memory_new(uint64_t bytes) {
    struct space *space = fake_addresses();
    struct graph_memory *memory = calloc(1, sizeof *memory);
    uint64_t size = ALIGN_UP(bytes, BLOCK_BYTES), at;
    if (memory == NULL || space == NULL || size < bytes || !fake_space_take(space, size, BLOCK_BYTES, &at)) {
        free(memory);
        return NULL;
    }
    struct range *range = fake_range_add(at, bytes, RANGE_GRAPH);
    if (range == NULL) abort();
    *memory = (struct graph_memory){.at = at, .bytes = bytes, .holders = 1};
    range->owner = memory;
    range->gpu = fake_top() != NULL ? fake_top()->gpu : fake_gpu(0);
    range->context = fake_top();
    return memory;
}

static void forget(struct graph_memory *memory) {
    struct range *range = fake_range_find(memory->at);
    if (range != NULL) fake_range_remove(range);
    fake_forget(memory->at, memory->bytes);
    fake_space_give(fake_addresses(), memory->at, ALIGN_UP(memory->bytes, BLOCK_BYTES));
    free(memory);
}

void fake_graph_memory_drop(struct graph_memory *memory) {
    if (--memory->holders == 0 && memory->live == 0) forget(memory);
}

/* Reserves the memory of an executable graph's allocations, unless that was done before. */
CUresult fake_exec_back(CUgraphExec exec) {
    struct gpu *gpu = exec->gpu;
    if (exec->backed || exec->bytes == 0) return CUDA_SUCCESS;
    uint64_t spare = gpu->graph.spare < exec->bytes ? gpu->graph.spare : exec->bytes, more = exec->bytes - spare;
    if (more > 0 && !fake_take(gpu->shared, gpu->slot, FAKE_GRAPH, more)) {
        fake_settle();
        fake_pools_trim_unused(gpu);
        if (!fake_take(gpu->shared, gpu->slot, FAKE_GRAPH, more)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    gpu->graph.spare -= spare;
    gpu->graph.reserved += more;
    if (gpu->graph.reserved > gpu->graph.reserved_high) gpu->graph.reserved_high = gpu->graph.reserved;
    exec->backed = true;
    return CUDA_SUCCESS;
}

CUresult fake_exec_allocate(CUgraphExec exec, struct graph_memory *memory) {
    struct gpu *gpu = exec->gpu;
    if (memory->open && (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (memory->open) return CUDA_SUCCESS; /* freed and allocated again */
    memory->open = true;
    memory->exec = exec;
    if (memory->live++ > 0) return CUDA_SUCCESS; /* an earlier launch will be complete before this one needs it */
    exec->live++;
    gpu->graph.used += ALIGN_UP(memory->bytes, BLOCK_BYTES);
    if (gpu->graph.used > gpu->graph.used_high) gpu->graph.used_high = gpu->graph.used;
    return CUDA_SUCCESS;
}

void fake_exec_ended(CUgraphExec exec) {
    if (exec->magic == MAGIC_EXEC || exec->live > 0 || !exec->backed) return;
    exec->gpu->graph.spare += exec->bytes;
    exec->backed = false;
}

static void end_live(void *data) {
    struct graph_memory *memory = *(struct graph_memory **)data;
    if (memory->live == 0 || --memory->live > 0) return;
    memory->exec->gpu->graph.used -= ALIGN_UP(memory->bytes, BLOCK_BYTES);
    memory->exec->live--;
    fake_exec_ended(memory->exec);
    if (memory->holders == 0) forget(memory);
}

/* Frees memory by a free node, cuMemFreeAsync, or cuMemFree (stream NULL). */
CUresult fake_graph_free(struct range *range, CUstream stream) {
    if (stream == NULL && !fake_is_context(fake_top())) return CUDA_ERROR_INVALID_CONTEXT;
    struct graph_memory *memory = range->owner, **data = malloc(sizeof *data);
    if (data == NULL || !memory->open) {
        free(data);
        return data == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    *data = memory;
    memory->open = false;
    bool wait = stream == NULL;
    if (wait) stream = fake_top()->legacy;
    struct op *op = fake_issue_held(stream, &(struct work){.run = end_live, .data = data}, NULL, 0);
    if (wait) fake_wait(op);
    fake_release(op);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || (int)attribute < 0 || (int)attribute > 3) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    fake_settle();
    const uint64_t all[] = {gpu->graph.used, gpu->graph.used_high, gpu->graph.reserved, gpu->graph.reserved_high};
    *(cuuint64_t *)value = all[attribute];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || *(cuuint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) gpu->graph.used_high = gpu->graph.used;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) gpu->graph.reserved_high = gpu->graph.reserved;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Returns memory that no running graph and no live allocation needs. */
API CUresult cuDeviceGraphMemTrim(CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    fake_settle();
    for (CUgraphExec exec = fake_execs; exec != NULL; exec = exec->next) {
        if (exec->gpu != gpu || !exec->backed || exec->live > 0 ||
            (exec->last != NULL && exec->last->state != OP_DONE)) {
            continue;
        }
        exec->backed = false;
        gpu->graph.spare += exec->bytes;
    }
    if (gpu->graph.spare > 0) fake_give(gpu->shared, gpu->slot, FAKE_GRAPH, gpu->graph.spare);
    gpu->graph.reserved -= gpu->graph.spare;
    gpu->graph.spare = 0;
    return CUDA_SUCCESS;
}

/* The last context of the process is gone: nothing is reserved any more. */
void fake_graphs_close(struct gpu *gpu) {
    for (CUgraphExec exec = fake_execs; exec != NULL; exec = exec->next) {
        if (exec->gpu == gpu) exec->backed = false;
    }
    if (gpu->graph.reserved > 0) fake_give(gpu->shared, gpu->slot, FAKE_GRAPH, gpu->graph.reserved);
    gpu->graph.reserved = 0;
    gpu->graph.spare = 0;
}
