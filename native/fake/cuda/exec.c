/* Executable graphs: made of a graph once, launched often. The nodes run one after another, in an order that their
 * dependencies allow; kernels in a row that compute nothing are one piece of work. */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

CUgraphExec fake_execs; /* not destroyed */

static bool is_exec(CUgraphExec exec) { return exec != NULL && exec->magic == MAGIC_EXEC; }

static uint64_t allocation_bytes(CUgraph graph) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < graph->count; i++) {
        if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            bytes += ALIGN_UP(graph->nodes[i]->work.memory->bytes, BLOCK_BYTES);
        }
    }
    return bytes;
}

/* Copies all nodes in an order in which they can run; NULL if there is none. */
static CUgraph runnable(CUgraph graph) {
    if (!fake_graph_sort(graph)) return NULL;
    for (size_t i = 0; i < graph->count; i++) {
        if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_GRAPH && !fake_graph_sort(graph->nodes[i]->work.child)) {
            return NULL;
        }
    }
    CUgraph copy = fake_graph_new();
    fake_graph_copy(copy, graph, true);
    return copy;
}

static CUresult instantiate(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    CUcontext context;
    CUresult result = fake_current(&context);
    if (made == NULL || !fake_is_graph(graph) || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return result;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    CUgraph nodes = runnable(graph);
    CUgraphExec exec = nodes != NULL ? calloc(1, sizeof *exec) : NULL;
    if (exec == NULL) return CUDA_ERROR_INVALID_VALUE;
    *exec = (struct gp_CUgraphExec){.magic = MAGIC_EXEC, .id = fake_next_id(), .flags = flags,
                                    .gpu = context->gpu, .graph = nodes,
                                    .bytes = allocation_bytes(nodes), .next = fake_execs};
    fake_execs = exec;
    *made = exec;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER;
    return instantiate(exec, graph, flags);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t length) {
    ENTER;
    if (failed != NULL) *failed = NULL;
    if (log != NULL && length > 0) *log = '\0';
    return instantiate(exec, graph, 0);
}

API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t length) {
    return cuGraphInstantiate_v2(exec, graph, failed, log, length);
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    ENTER;
    if (parameters == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, parameters->flags);
    if (result == CUDA_SUCCESS && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        result = fake_exec_back(*exec);
    }
    parameters->hErrNode_out = NULL;
    parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER;
    if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
    fake_wait(exec->last);
    for (CUgraphExec *at = &fake_execs; *at != NULL; at = &(*at)->next) {
        if (*at != exec) continue;
        *at = exec->next;
        break;
    }
    exec->magic = 0; /* its memory stays: an old handle is recognised */
    fake_release(exec->last);
    exec->last = NULL;
    fake_exec_ended(exec);
    fake_graph_delete(exec->graph);
    free(exec->graph);
    exec->graph = NULL;
    return CUDA_SUCCESS;
}

/* Returns true for kernels that can be one piece of work with their neighbours. */
struct batch {
    CUstream stream;
    uint64_t cost_ns;
    uint32_t kernels;
};

static void flush(struct batch *batch) {
    if (batch->kernels == 0) return;
    fake_issue(batch->stream, &(struct work){.cost_ns = batch->cost_ns, .kernels = batch->kernels, .launch = true});
    batch->cost_ns = 0;
    batch->kernels = 0;
}

static void *copy_bytes(const void *from, size_t bytes) {
    void *copy = malloc(bytes);
    if (copy == NULL) abort();
    return memcpy(copy, from, bytes);
}

static void issue_kernel(const struct launch *launch, struct batch *batch) {
    struct work work = {.cost_ns = fake_kernel_cost(launch, batch->stream->context->gpu), .kernels = 1, .launch = true};
    if (fake_kernel_effect(launch, batch->stream->context, &work.run, &work.data)) {
        flush(batch);
        fake_issue(batch->stream, &work);
        return;
    }
    batch->cost_ns += work.cost_ns;
    batch->kernels++;
}

static void issue_wait(CUstream stream, CUevent event) {
    if (!fake_is_event(event) || event->op == NULL) return;
    fake_release(fake_issue_held(stream, &(struct work){.cost_ns = 0}, &event->op, 1));
}

static void issue_copy(CUstream stream, const struct copy *copy) {
    uint64_t bytes = copy->width * copy->height * copy->depth;
    fake_issue(stream, &(struct work){.cost_ns = fake_copy_cost(bytes, fake_copy_on_card(copy)), .run = fake_run_copy,
                                      .data = copy_bytes(copy, sizeof *copy)});
}

static void issue_fill(CUstream stream, const struct fill *fill) {
    uint64_t bytes = fill->width * fill->size * fill->height;
    fake_issue(stream, &(struct work){.cost_ns = fake_copy_cost(bytes, true), .run = fake_run_fill,
                                      .data = copy_bytes(fill, sizeof *fill)});
}

static CUresult issue_node(CUgraphExec exec, CUgraphNode node, struct batch *batch) {
    CUstream stream = batch->stream;
    if (!node->enabled) return CUDA_SUCCESS;
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        issue_kernel(&node->work.kernel, batch);
        return CUDA_SUCCESS;
    }
    flush(batch);
    struct range *range;
    switch ((int)node->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: issue_copy(stream, &node->work.copy); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: issue_fill(stream, &node->work.fill); break;
    case CU_GRAPH_NODE_TYPE_HOST: fake_issue_host(stream, node->work.host.fn, node->work.host.userData); break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: fake_record(node->work.event, stream); break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: issue_wait(stream, node->work.event); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return fake_exec_allocate(exec, node->work.memory);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        range = fake_range_find(node->work.freed);
        return range != NULL && range->kind == RANGE_GRAPH ? fake_graph_free(range, stream) : CUDA_ERROR_INVALID_VALUE;
    default: break;
    }
    return CUDA_SUCCESS;
}

/* An allocation of an earlier launch that was not freed forbids another launch, unless the graph frees by itself. */
static bool leaks(CUgraphExec exec) {
    for (size_t i = 0; exec->bytes > 0 && i < exec->graph->count; i++) {
        CUgraphNode node = exec->graph->nodes[i];
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->work.memory->open) return true;
    }
    return false;
}

CUresult fake_exec_launch(CUgraphExec exec, CUstream stream) {
    if (exec->gpu != stream->context->gpu) return CUDA_ERROR_INVALID_VALUE;
    if ((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0 && leaks(exec)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = fake_exec_back(exec);
    if (result != CUDA_SUCCESS) return result;
    fake_wait_launches(exec->gpu);
    if (exec->last != NULL && exec->last->state != OP_DONE) {
        fake_release(fake_issue_held(stream, &(struct work){.cost_ns = 0}, &exec->last, 1));
    }
    struct batch batch = {.stream = stream};
    for (size_t i = 0; i < exec->graph->count && result == CUDA_SUCCESS; i++) {
        result = issue_node(exec, exec->graph->nodes[i], &batch);
    }
    flush(&batch);
    exec->gpu->shared->state->processes[exec->gpu->slot].launches++;
    fake_release(exec->last);
    exec->last = fake_hold(stream->tail);
    return result;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    bool captured;
    ENTER;
    CUstream stream;
    if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = fake_capturing(stream, &captured);
    if (result != CUDA_SUCCESS) return result;
    if (!captured) return fake_exec_launch(exec, stream);
    fake_capture_break(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
    ENTER;
    CUstream stream;
    if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_stream(handle, &stream);
    return result == CUDA_SUCCESS ? fake_exec_back(exec) : result;
}

API CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
    ENTER;
    if (!is_exec(exec) || flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetId(CUgraphExec exec, unsigned int *id) {
    ENTER;
    if (!is_exec(exec) || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned int)exec->id;
    return CUDA_SUCCESS;
}

static CUgraphNode copy_in(CUgraphExec exec, CUgraphNode original) {
    for (size_t i = 0; is_exec(exec) && i < exec->graph->count; i++) {
        if (exec->graph->nodes[i]->original == original) return exec->graph->nodes[i];
    }
    return NULL;
}

static CUresult set_work(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, const union node_work *work) {
    CUgraphNode copy = copy_in(exec, node);
    if (copy == NULL || copy->type != type) return CUDA_ERROR_INVALID_VALUE;
    copy->work = *work;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    union node_work work;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    ENTER;
    if (p == NULL || !fake_kernel_work((const CUDA_KERNEL_NODE_PARAMS_v1 *)p, p->kern, &work, &result)) return result;
    return set_work(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, &work);
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    union node_work work;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    ENTER;
    if (p == NULL || !fake_kernel_work(p, NULL, &work, &result)) return result;
    return set_work(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, &work);
}

API CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
    ENTER;
    if (p == NULL || p->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    return set_work(exec, node, CU_GRAPH_NODE_TYPE_HOST, &(union node_work){.host = *p});
}

API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *p,
                                            CUcontext context) {
    union node_work work = {.freed = 0};
    ENTER;
    if (p == NULL || !fake_is_context(context) || fake_copy_of(p, &work.copy) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return set_work(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, &work);
}

API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p,
                                            CUcontext context) {
    ENTER;
    if (p == NULL || !fake_is_context(context)) return CUDA_ERROR_INVALID_VALUE;
    const struct fill fill = {p->dst, p->pitch, p->width, p->height, p->value, p->elementSize};
    return set_work(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, &(union node_work){.fill = fill});
}

API CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    ENTER;
    CUgraphNode copy = copy_in(exec, node);
    if (copy == NULL || copy->type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
    copy->enabled = enabled != 0;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled) {
    ENTER;
    CUgraphNode copy = copy_in(exec, node);
    if (copy == NULL || enabled == NULL) return CUDA_ERROR_INVALID_VALUE;
    *enabled = copy->enabled;
    return CUDA_SUCCESS;
}

/* Updates the nodes with other parameters, in the same order. Memory nodes cannot be updated, as in real drivers. */
static CUgraphNode mismatch(CUgraphExec exec, CUgraph nodes, bool *whole) {
    *whole = nodes->count == exec->graph->count;
    for (size_t i = 0; i < nodes->count && i < exec->graph->count; i++) {
        CUgraphNodeType type = nodes->nodes[i]->type;
        bool memory = type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
        if (type != exec->graph->nodes[i]->type || memory) return nodes->nodes[i]->original;
    }
    return NULL;
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    bool whole;
    ENTER;
    if (!is_exec(exec) || !fake_is_graph(graph) || info == NULL) return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    CUgraph nodes = runnable(graph);
    CUgraphNode other = nodes != NULL ? mismatch(exec, nodes, &whole) : NULL;
    if (nodes != NULL && other == NULL && whole) {
        CUgraph before = exec->graph;
        for (size_t i = 0; i < nodes->count; i++) nodes->nodes[i]->original = before->nodes[i]->original;
        exec->graph = nodes;
        nodes = before;
    } else {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        info->errorNode = other;
    }
    if (nodes != NULL) {
        fake_graph_delete(nodes);
        free(nodes);
    }
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *failed, CUgraphExecUpdateResult *result) {
    CUgraphExecUpdateResultInfo info;
    CUresult updated = cuGraphExecUpdate_v2(exec, graph, &info);
    if (failed != NULL) *failed = updated == CUDA_SUCCESS ? NULL : info.errorNode;
    if (result != NULL) *result = info.result;
    return updated;
}
