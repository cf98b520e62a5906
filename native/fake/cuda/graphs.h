/* Graphs and captures inside the fake driver. */
#ifndef FAKE_GRAPHS_H
#define FAKE_GRAPHS_H

#include "kernels.h"

struct graph_memory { /* of an allocation node, its copies and its frees */
    uint64_t at, bytes;
    uint32_t holders; /* nodes */
    uint32_t live;    /* launches that allocated it and whose freeing is not over */
    bool open;        /* allocated by a launch, and no freeing issued since */
    CUgraphExec exec; /* by whose launch */
};

union node_work {
    struct launch kernel;
    struct copy copy;
    struct fill fill;
    CUDA_HOST_NODE_PARAMS host;
    CUevent event;
    struct graph_memory *memory; /* of allocations */
    CUdeviceptr freed;
    CUgraph child;
};

struct gp_CUgraphNode {
    enum magic magic;
    CUgraph graph;
    CUgraphNodeType type;
    CUgraphNode *needs;
    size_t need_count;
    union node_work work;
    bool enabled, placed;
    uint64_t id;
    CUgraphNode original; /* of a copy */
};

struct gp_CUgraph {
    enum magic magic;
    uint64_t id;
    CUgraphNode *nodes;
    size_t count, room;
};

struct gp_CUgraphExec {
    enum magic magic;
    uint64_t id, flags;
    struct gpu *gpu;
    CUgraph graph;      /* copies of the nodes, in an order in which they can run */
    uint64_t bytes;     /* of all its allocations */
    bool backed;        /* the card's memory is reserved for them */
    uint32_t live;      /* of its allocations */
    struct op *last;    /* of its last launch; counted */
    CUgraphExec next;
};

struct capture {
    uint64_t id;
    CUgraph graph;
    bool own_graph, broken, ended;
    CUstreamCaptureMode mode;
    CUstream origin;
    pthread_t thread;
    struct capture *next;
};

bool fake_is_graph(CUgraph graph);
bool fake_is_node(CUgraphNode node);
CUgraph fake_graph_new(void);
void fake_graph_delete(CUgraph graph);
void fake_node_delete(CUgraphNode node);
CUresult fake_node_add(CUgraph graph, CUgraphNodeType type, const union node_work *work, const CUgraphNode *needs,
                       size_t count,
                       CUgraphNode *made);
bool fake_node_needs(CUgraphNode node, CUgraphNode other);
/* Appends copies of a graph's nodes to another, child graphs' nodes in their place where `flat`. */
CUresult fake_graph_copy(CUgraph to, CUgraph from, bool flat);
bool fake_graph_sort(CUgraph graph); /* false: it has a cycle */
struct graph_memory *fake_graph_memory_new(uint64_t bytes);
void fake_graph_memory_drop(struct graph_memory *memory);
CUresult fake_exec_back(CUgraphExec exec);
void fake_exec_ended(CUgraphExec exec); /* destroyed and without live allocations */
CUresult fake_exec_allocate(CUgraphExec exec, struct graph_memory *memory);
CUresult fake_exec_launch(CUgraphExec exec, CUstream stream);
void fake_graph_work_of(CUgraphNodeType type, const void *parameters, union node_work *work);
bool fake_kernel_work(const CUDA_KERNEL_NODE_PARAMS_v1 *p, CUkernel kernel, union node_work *work, CUresult *result);
extern CUgraphExec fake_execs;

#endif
