/* Launches of executable graphs: gated like a kernel, paced by the measured cost of the same graph.
 *
 * An updated graph keeps its cost until the next measurement, because updates usually change arguments and not the
 * amount of work. A destroyed graph loses its cost, because its handle may be reused.
 */
#include "compute.h"

static void launched(struct gp_launch *launch, CUresult result) {
    atomic_fetch_add_explicit(&launch->compute->gpu->slot->graph_launches, 1, memory_order_relaxed);
    gp_launch_end(launch, result);
}

void gp_compute_graph_closing(CUgraphExec exec) {
    for (uint32_t i = 0; i < GPUPOOL_MAX_GPUS; i++) {
        struct gp_compute *compute = gp_compute_at(i);
        if (compute == NULL)
            continue;
        pthread_mutex_lock(&compute->lock);
        gp_cost_forget(compute, gp_graph_key(exec));
        pthread_mutex_unlock(&compute->lock);
    }
}

#define GRAPH(exec, stream, per_thread, call)                                                                         \
    struct gp_gpu *gpu = gp_gpu_current();                                                                            \
    CUresult refused = gpu == NULL ? CUDA_SUCCESS : gp_graph_memory_before(exec, gpu);                                \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    struct gp_launch launch;                                                                                          \
    bool gated = gp_launch_begin(&launch, stream, per_thread, gp_graph_key(exec));                                    \
    CUresult result = call;                                                                                           \
    if (gated)                                                                                                        \
        launched(&launch, result);                                                                                    \
    if (gpu != NULL)                                                                                                  \
        gp_graph_memory_after(gpu);                                                                                   \
    return result

GP_HOOK CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    GRAPH(exec, stream, false, REAL(cuGraphLaunch)(exec, stream));
}

GP_HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    GRAPH(exec, stream, true, REAL(cuGraphLaunch_ptsz)(exec, stream));
}
