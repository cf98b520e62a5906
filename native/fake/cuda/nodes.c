/* Nodes of graphs in the forms of the interface. */
#include "graphs.h"

#include <string.h>

void fake_graph_work_of(CUgraphNodeType type, const void *parameters, union node_work *work) {
    memset(work, 0, sizeof *work);
    switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: work->kernel = *(const struct launch *)parameters; break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: work->copy = *(const struct copy *)parameters; break;
    case CU_GRAPH_NODE_TYPE_MEMSET: work->fill = *(const struct fill *)parameters; break;
    case CU_GRAPH_NODE_TYPE_HOST: work->host = *(const CUDA_HOST_NODE_PARAMS *)parameters; break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: work->event = *(const CUevent *)parameters; break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: work->freed = *(const CUdeviceptr *)parameters; break;
    default: break;
    }
}

bool fake_kernel_work(const CUDA_KERNEL_NODE_PARAMS_v1 *p, CUkernel kernel, union node_work *work, CUresult *result) {
    memset(work, 0, sizeof *work);
    struct launch *launch = &work->kernel;
    *launch = (struct launch){.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                              .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                              .shared_bytes = p->sharedMemBytes};
    *result = fake_kernel_of(p->func != NULL ? p->func : (CUfunction)kernel, &launch->kernel);
    if (*result == CUDA_SUCCESS) *result = fake_check_launch(launch);
    if (*result == CUDA_SUCCESS) *result = fake_read_parameters(launch, p->kernelParams, p->extra);
    return *result == CUDA_SUCCESS;
}

static bool fill_of(const CUDA_MEMSET_NODE_PARAMS *p, union node_work *work) {
    memset(work, 0, sizeof *work);
    if (p == NULL || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4)) return false;
    work->fill = (struct fill){p->dst, p->pitch, p->width, p->height, p->value, p->elementSize};
    uint64_t span = p->height > 0 ? (p->height - 1) * p->pitch + p->width * p->elementSize : 0;
    return fake_range_holds(p->dst, span);
}

#define ADD(type) fake_node_add(graph, CU_GRAPH_NODE_TYPE_##type, &work, needs, count, node)

API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                  const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    union node_work work;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    ENTER;
    return p != NULL && fake_kernel_work(p, NULL, &work, &result) ? ADD(KERNEL) : result;
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS *p) {
    union node_work work;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    ENTER;
    return p != NULL && fake_kernel_work((const CUDA_KERNEL_NODE_PARAMS_v1 *)p, p->kern, &work, &result)
               ? ADD(KERNEL)
               : result;
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                  const CUDA_MEMCPY3D *p, CUcontext context) {
    union node_work work = {.freed = 0};
    ENTER;
    if (p == NULL || !fake_is_context(context)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_copy_of(p, &work.copy);
    return result == CUDA_SUCCESS ? ADD(MEMCPY) : result;
}

API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                  const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context) {
    union node_work work;
    ENTER;
    if (!fake_is_context(context) || !fill_of(p, &work)) return CUDA_ERROR_INVALID_VALUE;
    return ADD(MEMSET);
}

API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                const CUDA_HOST_NODE_PARAMS *p) {
    ENTER;
    if (p == NULL || p->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    union node_work work = {.host = *p};
    return ADD(HOST);
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count) {
    union node_work work = {.freed = 0};
    ENTER;
    return ADD(EMPTY);
}

API CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                       CUevent event) {
    union node_work work = {.event = event};
    ENTER;
    return fake_is_event(event) ? ADD(EVENT_RECORD) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                     CUevent event) {
    union node_work work = {.event = event};
    ENTER;
    return fake_is_event(event) ? ADD(WAIT_EVENT) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                      CUgraph child) {
    ENTER;
    if (!fake_is_graph(child) || !fake_is_graph(graph) || child == graph) return CUDA_ERROR_INVALID_VALUE;
    union node_work work = {.child = fake_graph_new()};
    fake_graph_copy(work.child, child, false);
    return ADD(GRAPH);
}

static CUresult add_allocation(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                               CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    if (p == NULL || p->bytesize == 0 || !fake_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    if (p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || fake_gpu(p->poolProps.location.id) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    union node_work work = {.memory = fake_graph_memory_new(p->bytesize)};
    if (work.memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    p->dptr = work.memory->at;
    return ADD(MEM_ALLOC);
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                    CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    ENTER;
    return add_allocation(node, graph, needs, count, p);
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                   CUdeviceptr address) {
    union node_work work = {.freed = address};
    ENTER;
    struct range *range = fake_range_find(address);
    bool known = range != NULL && range->kind == RANGE_GRAPH && range->base == address;
    return known ? ADD(MEM_FREE) : CUDA_ERROR_INVALID_VALUE;
}

/* The form with one structure for all kinds: those kinds that are simulated. */
API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                            CUgraphNodeParams *p) {
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS *kernel = (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel;
    const CUDA_MEMSET_NODE_PARAMS *fill = (const CUDA_MEMSET_NODE_PARAMS *)&p->memset;
    const CUDA_HOST_NODE_PARAMS *host = (const void *)p->reserved1;
    CUcontext here = fake_top(), copies = p->memcpy.copyCtx, fills = p->memset.ctx;
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphAddKernelNode_v2(node, graph, needs, count, kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(node, graph, needs, count, &p->memcpy.copyParams, copies != NULL ? copies : here);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(node, graph, needs, count, fill, fills != NULL ? fills : here);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphAddHostNode(node, graph, needs, count, host);
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphAddChildGraphNode(node, graph, needs, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(node, graph, needs, count);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, needs, count, (CUDA_MEM_ALLOC_NODE_PARAMS *)&p->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(node, graph, needs, count, p->free.dptr);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                               const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *p) {
    (void)edges;
    return cuGraphAddNode(node, graph, needs, count, p);
}

API CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                               const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *p) {
    (void)edges;
    return cuGraphAddNode(node, graph, needs, count, p);
}

#define ENTER_NODE(node, kind)                                                                                        \
    ENTER;                                                                                                            \
    if (!fake_is_node(node) || (node)->type != CU_GRAPH_NODE_TYPE_##kind) return CUDA_ERROR_INVALID_VALUE

API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    ENTER;
    if (!fake_is_node(node) || type == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph) {
    ENTER;
    if (!fake_is_node(node) || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->graph;
    return CUDA_SUCCESS;
}

/* Returns no values of parameters, because they are not stored in their original form. */
API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    ENTER_NODE(node, KERNEL);
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    const struct launch *l = &node->work.kernel;
    *p = (CUDA_KERNEL_NODE_PARAMS_v1){(CUfunction)l->kernel, l->grid[0], l->grid[1], l->grid[2],
                                      l->block[0], l->block[1], l->block[2],
                                      l->shared_bytes, NULL, NULL};
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p) {
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    p->kern = NULL;
    p->ctx = NULL;
    return cuGraphKernelNodeGetParams(node, (CUDA_KERNEL_NODE_PARAMS_v1 *)p);
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    union node_work work;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    ENTER_NODE(node, KERNEL);
    if (p != NULL && fake_kernel_work(p, NULL, &work, &result)) node->work = work;
    return result;
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    return cuGraphKernelNodeSetParams(node, (const CUDA_KERNEL_NODE_PARAMS_v1 *)p);
}

API CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *p) {
    ENTER_NODE(node, MEMSET);
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    const struct fill *f = &node->work.fill;
    *p = (CUDA_MEMSET_NODE_PARAMS){f->to, f->pitch, f->value, f->size, f->width, f->height};
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p) {
    union node_work work;
    ENTER_NODE(node, MEMSET);
    if (!fill_of(p, &work)) return CUDA_ERROR_INVALID_VALUE;
    node->work = work;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *p) {
    struct copy copy;
    ENTER_NODE(node, MEMCPY);
    if (p == NULL || fake_copy_of(p, &copy) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    node->work.copy = copy;
    return CUDA_SUCCESS;
}

API CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *p) {
    ENTER_NODE(node, HOST);
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    *p = node->work.host;
    return CUDA_SUCCESS;
}

API CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
    ENTER_NODE(node, HOST);
    if (p == NULL || p->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    node->work.host = *p;
    return CUDA_SUCCESS;
}

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    ENTER_NODE(node, GRAPH);
    if (graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->work.child;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    ENTER_NODE(node, MEM_ALLOC);
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    memset(p, 0, sizeof *p);
    p->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p->bytesize = node->work.memory->bytes;
    p->dptr = node->work.memory->at;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
    ENTER_NODE(node, MEM_FREE);
    if (address == NULL) return CUDA_ERROR_INVALID_VALUE;
    *address = node->work.freed;
    return CUDA_SUCCESS;
}
