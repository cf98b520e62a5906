/* A tenant's program that keeps a GPU busy in one of several ways, for measurements of shares.
 *
 *   shares_client queue US...        launches kernels of these lengths in turn without end
 *   shares_client persistent US...   the same with one kernel and one grid: its parameter decides how long it takes
 *   shares_client sync US...         waits for each kernel before it launches the next
 *   shares_client graph US...        launches a graph of these kernels without end
 *   shares_client burst BURST THINK US
 *                                    launches kernels of US that make up BURST microseconds, waits for them, writes how
 *                                    long that took in microseconds, sleeps THINK microseconds; without end
 *
 * Says "ready" when its context is there, and begins at a line on standard input.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_types.h"

#define MOST 16

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);

static CUfunction kernels[MOST];
static int kernel_count;
static CUstream stream;

static void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", what, (int)result);
    exit(1);
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void launch(int index) {
    check(cuLaunchKernel(kernels[index % kernel_count], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "launch");
}

static void queue(void) {
    for (int i = 0;; i = (i + 1) % kernel_count)
        launch(i);
}

static void persistent(char **lengths) {
    for (int i = 0;; i = (i + 1) % kernel_count) {
        uint64_t ns = strtoull(lengths[i], NULL, 10) * 1000;
        void *parameters[] = {&ns};
        check(cuLaunchKernel(kernels[0], 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "launch");
    }
}

static void synced(void) {
    for (int i = 0;; i = (i + 1) % kernel_count) {
        launch(i);
        check(cuStreamSynchronize(stream), "synchronise");
    }
}

static void graphs(void) {
    CUgraph graph;
    CUgraphExec exec;
    check(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
    for (int i = 0; i < kernel_count; i++)
        launch(i);
    check(cuStreamEndCapture(stream, &graph), "end of capture");
    check(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    for (;;)
        check(cuGraphLaunch(exec, stream), "graph launch");
}

static void bursts(uint64_t burst_us, uint64_t think_us, uint64_t kernel_us) {
    for (;;) {
        uint64_t begun = now_us();
        for (uint64_t done = 0; done < burst_us; done += kernel_us)
            launch(0);
        check(cuStreamSynchronize(stream), "synchronise");
        printf("%lu\n", (unsigned long)(now_us() - begun));
        fflush(stdout);
        struct timespec think = {(time_t)(think_us / 1000000), (long)(think_us % 1000000 * 1000)};
        nanosleep(&think, NULL);
    }
}

static void prepare(char **lengths, int count, const char *name_of_all) {
    CUcontext context;
    CUmodule module;
    check(cuInit(0), "init");
    check(cuCtxCreate_v2(&context, 0, 0), "context");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    check(cuModuleLoadData(&module, ".version 8.0"), "module");
    for (kernel_count = 0; kernel_count < count && kernel_count < MOST; kernel_count++) {
        char name[32];
        snprintf(name, sizeof name, "spin_%dus", atoi(lengths[kernel_count]));
        if (name_of_all != NULL)
            snprintf(name, sizeof name, "%s", name_of_all);
        check(cuModuleGetFunction(&kernels[kernel_count], module, name), "function");
    }
}

int main(int count, char **arguments) {
    char line[16];
    const char *kind = count > 2 ? arguments[1] : "";
    int first = strcmp(kind, "burst") == 0 ? 4 : 2;
    if (count <= first)
        return 2;
    bool same = strcmp(kind, "persistent") == 0;
    prepare(arguments + first, count - first, same ? "spin_ns" : NULL);
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return 0;
    if (strcmp(kind, "queue") == 0)
        queue();
    if (same)
        persistent(arguments + first);
    if (strcmp(kind, "sync") == 0)
        synced();
    if (strcmp(kind, "graph") == 0)
        graphs();
    bursts(strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10), strtoull(arguments[4], NULL, 10));
    return 0;
}
