/* A tenant's program for tests of launch gating: does what it reads, one line each, and answers with a line:
 * the driver's result and how long it took, in microseconds. Kernels are the handles of gate_sim.c, or with GATE_FAKE
 * set the fake driver's.
 *
 *   launch STREAM US N     graph STREAM US N     mixed STREAM N
 *                                                stream 0: legacy, p: the thread's own, 1..9: created (9 blocking)
 *   create STREAM          destroy STREAM        sync STREAM
 *   begin STREAM           end STREAM            (stream capture in global mode)
 *   context                uncontext             (another context, made current; the current one destroyed)
 *   thread COMMAND         join                  (answers when started; waits for all)
 *   fork COMMAND           exec                  (in a child, which exits by itself; this program again)
 *   exit                   kill
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_types.h"

static CUcontext context;
static CUstream streams[10];
static pthread_t threads[64];
static int thread_count;

/* Kernels and graphs of the fake driver, by duration; made at their first use. */
static struct known {
    unsigned long us;
    CUfunction function;
    CUgraphExec graph;
} known[32];

static CUresult make_graph(struct known *one) {
    CUstream stream;
    CUgraph graph;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    cuLaunchKernel(one->function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    cuStreamEndCapture(stream, &graph);
    cuStreamDestroy_v2(stream);
    return cuGraphInstantiateWithFlags(&one->graph, graph, 0);
}

static struct known *lasting(unsigned long us, bool graph) {
    struct known *one = known;
    CUmodule module;
    char name[32];
    while (one->us != us && one->us != 0)
        one++;
    if (one->us == 0) {
        snprintf(name, sizeof name, "spin_%luus", us);
        cuModuleLoadData(&module, name);
        cuModuleGetFunction(&one->function, module, name);
        one->us = us;
    }
    if (graph && one->graph == NULL)
        make_graph(one);
    return one;
}

static CUfunction kernel(unsigned long us) {
    return getenv("GATE_FAKE") == NULL ? (CUfunction)us : lasting(us, false)->function;
}

static CUgraphExec graph_of(unsigned long us) {
    return getenv("GATE_FAKE") == NULL ? (CUgraphExec)us : lasting(us, true)->graph;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static CUstream stream_of(char name) { return name > '0' && name <= '9' ? streams[name - '0'] : NULL; }

static CUresult launch(char stream, unsigned long us, unsigned long count) {
    CUresult result = CUDA_SUCCESS;
    CUfunction function = kernel(us);
    __typeof__(cuLaunchKernel) *call = stream == 'p' ? cuLaunchKernel_ptsz : cuLaunchKernel;
    for (unsigned long i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = call(function, 1, 1, 1, 1, 1, 1, 0, stream_of(stream), NULL, NULL);
    return result;
}

/* Kernels of 50 us, every tenth of 5 ms. */
static CUresult mixed(char stream, unsigned long count) {
    CUresult result = CUDA_SUCCESS;
    for (unsigned long i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = launch(stream, i % 10 == 9 ? 5000 : 50, 1);
    return result;
}

static CUresult graphs(char stream, unsigned long us, unsigned long count) {
    CUresult result = CUDA_SUCCESS;
    CUgraphExec graph = graph_of(us);
    for (unsigned long i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuGraphLaunch(graph, stream_of(stream));
    return result;
}

static CUresult run(const char *line);

static void *in_thread(void *line) {
    cuCtxSetCurrent(context);
    run(line);
    free(line);
    return NULL;
}

static CUresult start_thread(const char *line) {
    return (CUresult)pthread_create(&threads[thread_count++], NULL, in_thread, strdup(line));
}

static CUresult join(void) {
    while (thread_count > 0)
        pthread_join(threads[--thread_count], NULL);
    return CUDA_SUCCESS;
}

static CUresult in_child(const char *line) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        memset(known, 0, sizeof known);
        cuInit(0);
        cuCtxCreate_v2(&context, 0, 0);
        exit((int)run(line));
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? (CUresult)WEXITSTATUS(status) : CUDA_ERROR_UNKNOWN;
}

static CUresult on_stream(const char *word, char stream, unsigned long us, unsigned long count) {
    CUgraph graph;
    if (strcmp(word, "launch") == 0)
        return launch(stream, us, count);
    if (strcmp(word, "graph") == 0)
        return graphs(stream, us, count);
    if (strcmp(word, "mixed") == 0)
        return mixed(stream, us);
    if (strcmp(word, "create") == 0)
        return cuStreamCreate(&streams[stream - '0'], stream == '9' ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
    if (strcmp(word, "destroy") == 0)
        return cuStreamDestroy_v2(stream_of(stream));
    if (strcmp(word, "begin") == 0)
        return cuStreamBeginCapture_v2(stream_of(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (strcmp(word, "end") == 0)
        return cuStreamEndCapture(stream_of(stream), &graph);
    return cuStreamSynchronize(stream_of(stream));
}

static CUresult run(const char *line) {
    char word[16] = "", stream = '0';
    unsigned long us = 0, count = 0;
    sscanf(line, "%15s %c %lu %lu", word, &stream, &us, &count);
    if (strcmp(word, "thread") == 0)
        return start_thread(line + 7);
    if (strcmp(word, "fork") == 0)
        return in_child(line + 5);
    if (strcmp(word, "join") == 0)
        return join();
    if (strcmp(word, "context") == 0)
        return cuCtxCreate_v2(&context, 0, 0);
    if (strcmp(word, "uncontext") == 0)
        return memset(known, 0, sizeof known), cuCtxDestroy_v2(context);
    if (strcmp(word, "exec") == 0)
        return (CUresult)execl("/proc/self/exe", "gate_client", NULL);
    if (strcmp(word, "exit") == 0)
        exit(0);
    if (strcmp(word, "kill") == 0)
        kill(getpid(), SIGKILL);
    return on_stream(word, stream, us, count);
}

int main(void) {
    char line[256];
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS)
        return 1;
    printf("ready 0\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint64_t begun = now_ns();
        CUresult result = run(line);
        printf("%d %lu\n", (int)result, (unsigned long)((now_ns() - begun) / 1000));
        fflush(stdout);
    }
    return 0;
}
