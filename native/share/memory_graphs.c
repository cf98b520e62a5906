/* Memory of graphs. Nodes take no memory; launches of executable graphs do.
 *
 * The maximum of a graph is known from its allocation nodes when it is instantiated: the sum of their sizes, each
 * rounded up to 2 MiB, because all of them may live at the same time. Before the first launch (or upload) this amount
 * is reserved, or the launch is refused. Afterwards the driver reports its total for graphs on the device
 * (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), and the charge follows that after every launch. The driver keeps the memory
 * until cuDeviceGraphMemTrim, so later launches of the same graph need none; after a trim each launch is a first one.
 *
 * Limit: two graphs that were always launched in order may share memory, and the driver may need more when they are
 * first launched concurrently. That is charged after the driver has taken it.
 */
#include <stdlib.h>

#include "memory.h"

struct exec_memory {
    struct gp_entry entry; /* key: executable graph */
    uint64_t bytes[GPUPOOL_MAX_GPUS], trims[GPUPOOL_MAX_GPUS];
};

struct held {
    bool used;
    CUdevice device;
    uint64_t charged;
    uint64_t trims; /* until now, plus 1 */
};

static struct gp_table execs; /* graphs that allocate */
static struct held held[GPUPOOL_MAX_GPUS];
static _Atomic bool any;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread uint64_t pending[GPUPOOL_MAX_GPUS]; /* reserved by this thread between before and after */
static __thread uint64_t launching;                 /* for this executable graph */

void gp_graphs_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    gp_table_forget(&execs);
    for (uint32_t i = 0; i < GPUPOOL_MAX_GPUS; i++) {
        held[i] = (struct held){.used = false};
        pending[i] = 0;
    }
    atomic_store(&any, false);
}

/* -- what an executable graph may hold ------------------------------------------------------------------------------ */

static void count_node(CUgraphNode node, struct exec_memory *memory, bool *found) {
    CUDA_MEM_ALLOC_NODE_PARAMS about;
    if (OWN(cuGraphMemAllocNodeGetParams, node, &about) != CUDA_SUCCESS ||
        about.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    CUdevice device = about.poolProps.location.id;
    struct gp_gpu *gpu = gp_gpu_of(device);
    if (gpu == NULL)
        return;
    memory->bytes[gpu->index] += gp_round_up(about.bytesize, GP_BLOCK_BYTES);
    *found = true;
    pthread_mutex_lock(&lock);
    if (!held[gpu->index].used)
        held[gpu->index] = (struct held){.used = true, .device = device, .trims = 1};
    pthread_mutex_unlock(&lock);
}

static void count_graph(CUgraph graph, struct exec_memory *memory, bool *found) {
    size_t count = 0;
    if (OWN(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes == NULL || OWN(cuGraphGetNodes, graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CUgraph child;
        if (OWN(cuGraphNodeGetType, nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            count_node(nodes[i], memory, found);
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH && OWN(cuGraphChildGraphNodeGetGraph, nodes[i], &child) == CUDA_SUCCESS)
            count_graph(child, memory, found);
    }
    free(nodes);
}

static CUresult instantiated(const CUgraphExec *exec, CUgraph graph, CUresult result) {
    struct exec_memory *memory = result == CUDA_SUCCESS ? calloc(1, sizeof *memory) : NULL;
    if (memory == NULL)
        return result;
    bool found = false;
    count_graph(graph, memory, &found);
    if (!found) {
        free(memory);
        return result;
    }
    memory->entry.key = (uint64_t)(uintptr_t)*exec;
    pthread_mutex_lock(&lock);
    free(gp_table_take(&execs, memory->entry.key));
    gp_table_put(&execs, &memory->entry);
    pthread_mutex_unlock(&lock);
    atomic_store(&any, true);
    for (uint32_t i = 0; i < gp_gpu_count(); i++)
        gp_graph_memory_after(gp_gpu_at(i));
    return result;
}

/* -- what they hold -------------------------------------------------------------------------------------------------- */

/* Under the lock. `reserved`: bytes reserved before; the needed part is kept, the rest is released. */
static void settle(struct gp_gpu *gpu, uint64_t reserved) {
    struct held *now = &held[gpu->index];
    cuuint64_t holds = now->charged;
    if (now->used)
        OWN(cuDeviceGetGraphMemAttribute, now->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &holds);
    uint64_t has = now->charged + reserved;
    if (holds > has)
        gp_take_anyway(gpu, holds - has, GP_POOL);
    else if (holds < has)
        gp_unreserve(gpu, has - holds, GP_POOL);
    now->charged = holds;
}

void gp_graphs_settle(struct gp_gpu *gpu) {
    if (!atomic_load(&any))
        return;
    pthread_mutex_lock(&lock);
    settle(gpu, 0);
    pthread_mutex_unlock(&lock);
}

void gp_graphs_trim(struct gp_gpu *gpu) {
    if (!atomic_load(&any))
        return;
    pthread_mutex_lock(&lock);
    if (held[gpu->index].charged != 0) {
        OWN(cuDeviceGraphMemTrim, held[gpu->index].device);
        held[gpu->index].trims++;
        settle(gpu, 0);
    }
    pthread_mutex_unlock(&lock);
}

/* Reserves for one GPU what the launch may add there. */
static bool reserve(struct exec_memory *memory, struct gp_gpu *gpu) {
    uint32_t at = gpu->index;
    pthread_mutex_lock(&lock);
    bool first = memory->bytes[at] != 0 && memory->trims[at] != held[at].trims;
    pthread_mutex_unlock(&lock);
    if (!first)
        return true;
    if (!gp_reserve(gpu, memory->bytes[at], GP_POOL))
        return false;
    pending[at] += memory->bytes[at];
    pthread_mutex_lock(&lock);
    memory->trims[at] = held[at].trims;
    pthread_mutex_unlock(&lock);
    return true;
}

CUresult gp_graph_memory_before(CUgraphExec exec, struct gp_gpu *gpu) {
    (void)gpu; /* nodes have the device of their allocation */
    if (GP_LIKELY(!atomic_load_explicit(&any, memory_order_relaxed)))
        return CUDA_SUCCESS;
    launching = (uint64_t)(uintptr_t)exec;
    pthread_mutex_lock(&lock);
    struct exec_memory *memory = (struct exec_memory *)gp_table_find(&execs, launching);
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; memory != NULL && i < gp_gpu_count(); i++) {
        if (reserve(memory, gp_gpu_at(i)))
            continue;
        gp_graph_memory_after(gp_gpu_at(0));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* If the driver holds less than the graph needs, the launch has failed: the next one counts as the first again. */
void gp_graph_memory_after(struct gp_gpu *gpu) {
    (void)gpu;
    if (GP_LIKELY(!atomic_load_explicit(&any, memory_order_relaxed)))
        return;
    pthread_mutex_lock(&lock);
    struct exec_memory *memory = (struct exec_memory *)gp_table_find(&execs, launching);
    for (uint32_t i = 0; i < gp_gpu_count(); i++) {
        if (held[i].used)
            settle(gp_gpu_at(i), pending[i]);
        pending[i] = 0;
        if (memory != NULL && held[i].charged < memory->bytes[i])
            memory->trims[i] = 0;
    }
    pthread_mutex_unlock(&lock);
}

/* -- hooks ------------------------------------------------------------------------------------------------------------ */

GP_HOOK CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes) {
    GP_ATTACHED_OR(REAL(cuGraphInstantiate)(exec, graph, node, log, bytes));
    return instantiated(exec, graph, REAL(cuGraphInstantiate)(exec, graph, node, log, bytes));
}

GP_HOOK CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes) {
    GP_ATTACHED_OR(REAL(cuGraphInstantiate_v2)(exec, graph, node, log, bytes));
    return instantiated(exec, graph, REAL(cuGraphInstantiate_v2)(exec, graph, node, log, bytes));
}

GP_HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    GP_ATTACHED_OR(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
    return instantiated(exec, graph, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

GP_HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *how) {
    GP_ATTACHED_OR(REAL(cuGraphInstantiateWithParams)(exec, graph, how));
    return instantiated(exec, graph, REAL(cuGraphInstantiateWithParams)(exec, graph, how));
}

GP_HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *how) {
    GP_ATTACHED_OR(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, how));
    return instantiated(exec, graph, REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, how));
}

GP_HOOK CUresult cuGraphExecDestroy(CUgraphExec exec) {
    GP_CHARGED_OR(REAL(cuGraphExecDestroy)(exec));
    gp_compute_graph_closing(exec);
    pthread_mutex_lock(&lock);
    struct gp_entry *memory = gp_table_take(&execs, (uint64_t)(uintptr_t)exec);
    pthread_mutex_unlock(&lock);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (memory != NULL && result != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        gp_table_put(&execs, memory);
        pthread_mutex_unlock(&lock);
    } else if (memory != NULL) {
        free(memory);
        gp_graph_memory_after(NULL);
    }
    return result;
}

static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread) {
    CUresult result = gp_graph_memory_before(exec, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    result = per_thread ? REAL(cuGraphUpload_ptsz)(exec, stream) : REAL(cuGraphUpload)(exec, stream);
    gp_graph_memory_after(NULL);
    return result;
}

GP_HOOK CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuGraphUpload)(exec, stream));
    return upload(exec, stream, false);
}

GP_HOOK CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuGraphUpload_ptsz)(exec, stream));
    return upload(exec, stream, true);
}

GP_HOOK CUresult cuDeviceGraphMemTrim(CUdevice device) {
    GP_CHARGED_OR(REAL(cuDeviceGraphMemTrim)(device));
    struct gp_gpu *gpu = gp_gpu_of(device);
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (gpu == NULL || result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    held[gpu->index].trims++;
    settle(gpu, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
