/* Graphs: nodes and their dependencies. */
#include "graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fake_is_graph(CUgraph graph) { return graph != NULL && graph->magic == MAGIC_GRAPH; }
bool fake_is_node(CUgraphNode node) { return node != NULL && node->magic == MAGIC_NODE; }

CUgraph fake_graph_new(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph == NULL) abort();
    graph->magic = MAGIC_GRAPH;
    graph->id = fake_next_id();
    return graph;
}

static void append(CUgraph graph, CUgraphNode node) {
    if (graph->count == graph->room) {
        graph->room = graph->room > 0 ? graph->room * 2 : 16;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
        if (graph->nodes == NULL) abort();
    }
    graph->nodes[graph->count++] = node;
}

static bool add_need(CUgraphNode node, CUgraphNode need) {
    CUgraphNode *needs = realloc(node->needs, (node->need_count + 1) * sizeof *needs);
    if (needs == NULL) return false;
    node->needs = needs;
    needs[node->need_count++] = need;
    return true;
}

CUresult fake_node_add(CUgraph graph, CUgraphNodeType type, const union node_work *work, const CUgraphNode *needs,
                       size_t count,
                       CUgraphNode *made) {
    if (!fake_is_graph(graph) || (count > 0 && needs == NULL)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!fake_is_node(needs[i]) || needs[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *node = (struct gp_CUgraphNode){.magic = MAGIC_NODE, .graph = graph, .type = type, .work = *work,
                                     .enabled = true, .id = fake_next_id()};
    for (size_t i = 0; i < count; i++) {
        if (!add_need(node, needs[i])) abort();
    }
    append(graph, node);
    if (made != NULL) *made = node;
    return CUDA_SUCCESS;
}

/* Its memory stays where a program may still have the handle; that of executable graphs' copies goes too. */
void fake_node_delete(CUgraphNode node) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) fake_graph_memory_drop(node->work.memory);
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && fake_is_graph(node->work.child)) fake_graph_delete(node->work.child);
    free(node->needs);
    node->needs = NULL;
    node->need_count = 0;
    node->magic = 0;
    if (node->original != NULL) free(node);
}

void fake_graph_delete(CUgraph graph) {
    for (size_t i = 0; i < graph->count; i++) fake_node_delete(graph->nodes[i]);
    free(graph->nodes);
    graph->nodes = NULL;
    graph->count = 0;
    graph->magic = 0;
}

/* Returns true if `node` is `other` or comes after it. Dependencies are older than their dependents in nearly all
 * graphs. */
bool fake_node_needs(CUgraphNode node, CUgraphNode other) {
    if (node == other) return true;
    for (size_t i = 0; i < node->need_count; i++) {
        if (node->needs[i] == other || (node->needs[i]->id > other->id && fake_node_needs(node->needs[i], other))) {
            return true;
        }
    }
    return false;
}

static CUgraphNode copy_of(CUgraph graph, CUgraphNode original) {
    for (size_t i = graph->count; i-- > 0;) {
        if (graph->nodes[i]->original == original) return graph->nodes[i];
    }
    return NULL;
}

CUresult fake_graph_copy(CUgraph to, CUgraph from, bool flat) {
    for (size_t i = 0; i < from->count; i++) {
        CUgraphNode node = from->nodes[i], copy;
        if (flat && node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUresult result = fake_graph_copy(to, node->work.child, true);
            if (result != CUDA_SUCCESS) return result;
            continue;
        }
        union node_work work = node->work;
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) work.memory->holders++;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
            work.child = fake_graph_new();
            fake_graph_copy(work.child, node->work.child, false);
        }
        CUresult result = fake_node_add(to, node->type, &work, NULL, 0, &copy);
        if (result != CUDA_SUCCESS) return result;
        copy->original = node;
        copy->enabled = node->enabled;
        for (size_t k = 0; k < node->need_count && !flat; k++) {
            CUgraphNode need = copy_of(to, node->needs[k]);
            if (need != NULL) add_need(copy, need);
        }
    }
    for (size_t i = 0; i < to->count && !flat; i++) to->nodes[i]->original = NULL;
    return CUDA_SUCCESS;
}

static bool ready(CUgraphNode node) {
    for (size_t i = 0; i < node->need_count; i++) {
        if (!node->needs[i]->placed) return false;
    }
    return true;
}

bool fake_graph_sort(CUgraph graph) {
    CUgraphNode *sorted = malloc(graph->count * sizeof *sorted + 1);
    size_t count = 0, before;
    if (sorted == NULL) abort();
    for (size_t i = 0; i < graph->count; i++) graph->nodes[i]->placed = false;
    do {
        before = count;
        for (size_t i = 0; i < graph->count; i++) {
            CUgraphNode node = graph->nodes[i];
            if (node->placed || !ready(node)) continue;
            node->placed = true;
            sorted[count++] = node;
        }
    } while (count > before && count < graph->count);
    bool whole = count == graph->count;
    if (whole && count > 0) memcpy(graph->nodes, sorted, count * sizeof *sorted);
    free(sorted);
    return whole;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    ENTER;
    if (graph == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = fake_graph_new();
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER;
    if (!fake_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    fake_graph_delete(graph);
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    ENTER;
    if (clone == NULL || !fake_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNodeType type = graph->nodes[i]->type;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    *clone = fake_graph_new();
    return fake_graph_copy(*clone, graph, false);
}

API CUresult cuGraphDestroyNode(CUgraphNode node) {
    ENTER;
    if (!fake_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    CUgraph graph = node->graph;
    size_t left = 0;
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode other = graph->nodes[i];
        size_t needs = 0;
        for (size_t k = 0; k < other->need_count; k++) {
            if (other->needs[k] != node) other->needs[needs++] = other->needs[k];
        }
        other->need_count = needs;
        if (other != node) graph->nodes[left++] = other;
    }
    graph->count = left;
    fake_node_delete(node);
    return CUDA_SUCCESS;
}

static CUresult connect(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count, bool add) {
    if (!fake_is_graph(graph) || (count > 0 && (from == NULL || to == NULL))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!fake_is_node(from[i]) || !fake_is_node(to[i]) || from[i]->graph != graph || to[i]->graph != graph ||
            from[i] == to[i]) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        size_t k = 0;
        while (k < to[i]->need_count && to[i]->needs[k] != from[i]) k++;
        bool there = k < to[i]->need_count;
        if (there == add) return CUDA_ERROR_INVALID_VALUE;
        if (add && !add_need(to[i], from[i])) return CUDA_ERROR_OUT_OF_MEMORY;
        if (!add) to[i]->needs[k] = to[i]->needs[--to[i]->need_count];
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *edges, size_t count) {
    ENTER;
    (void)edges;
    return connect(graph, from, to, count, true);
}

API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *edges, size_t count) {
    ENTER;
    (void)edges;
    return connect(graph, from, to, count, false);
}

API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

/* Returns a list as the interface does: the number of elements, or as many elements as fit. */
static CUresult give_list(const CUgraphNode *list, size_t there, CUgraphNode *out, size_t *count) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; out != NULL && i < *count; i++) out[i] = i < there ? list[i] : NULL;
    if (out == NULL || *count > there) *count = there;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER;
    return fake_is_graph(graph) ? give_list(graph->nodes, graph->count, nodes, count) : CUDA_ERROR_INVALID_VALUE;
}

/* Lists the graph's nodes that have a property. */
static CUresult give_some(CUgraph graph, bool (*has)(CUgraphNode node, CUgraphNode asked), CUgraphNode asked,
                          CUgraphNode *out, size_t *count) {
    CUgraphNode *some = malloc(graph->count * sizeof *some + 1);
    size_t there = 0;
    if (some == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < graph->count; i++) {
        if (has(graph->nodes[i], asked)) some[there++] = graph->nodes[i];
    }
    CUresult result = give_list(some, there, out, count);
    free(some);
    return result;
}

static bool is_root(CUgraphNode node, CUgraphNode asked) { return asked == NULL && node->need_count == 0; }

static bool needs_directly(CUgraphNode node, CUgraphNode asked) {
    for (size_t i = 0; i < node->need_count; i++) {
        if (node->needs[i] == asked) return true;
    }
    return false;
}

API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER;
    return fake_is_graph(graph) ? give_some(graph, is_root, NULL, nodes, count) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
                                           size_t *count) {
    ENTER;
    if (!fake_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    if (edges != NULL && count != NULL) memset(edges, 0, *count * sizeof *edges);
    return give_list(node->needs, node->need_count, nodes, count);
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
                                             size_t *count) {
    ENTER;
    if (!fake_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    if (edges != NULL && count != NULL) memset(edges, 0, *count * sizeof *edges);
    return give_some(node->graph, needs_directly, node, nodes, count);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count);
}

API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                                size_t *count) {
    size_t there = 0;
    ENTER;
    if (!fake_is_graph(graph) || count == NULL || (from == NULL) != (to == NULL)) return CUDA_ERROR_INVALID_VALUE;
    if (edges != NULL) memset(edges, 0, *count * sizeof *edges);
    for (size_t i = 0; i < graph->count; i++) {
        for (size_t k = 0; k < graph->nodes[i]->need_count; k++, there++) {
            if (from == NULL || there >= *count) continue;
            from[there] = graph->nodes[i]->needs[k];
            to[there] = graph->nodes[i];
        }
    }
    if (from == NULL || *count > there) *count = there;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

API CUresult cuGraphGetId(CUgraph graph, unsigned int *id) {
    ENTER;
    if (!fake_is_graph(graph) || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned int)graph->id;
    return CUDA_SUCCESS;
}

API CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags) {
    ENTER;
    (void)flags;
    FILE *file = fake_is_graph(graph) && path != NULL ? fopen(path, "we") : NULL;
    if (file == NULL) return CUDA_ERROR_INVALID_VALUE;
    fprintf(file, "digraph g%llu {\n", (unsigned long long)graph->id);
    for (size_t i = 0; i < graph->count; i++) {
        const struct gp_CUgraphNode *node = graph->nodes[i];
        fprintf(file, "  n%llu [label=\"%d\"];\n", (unsigned long long)node->id, (int)node->type);
        for (size_t k = 0; k < node->need_count; k++) {
            fprintf(file, "  n%llu -> n%llu;\n", (unsigned long long)node->needs[k]->id, (unsigned long long)node->id);
        }
    }
    fprintf(file, "}\n");
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
