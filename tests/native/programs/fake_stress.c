/* Uses the fake driver from several threads at once: fake_stress <threads> <rounds>. Prints what is left allocated
 * beyond the context at its end, which must be nothing. With rounds 0: continues until it is killed. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_types.h"

static CUcontext context;
static CUfunction spin, fill;
static CUevent shared_event;
static long rounds;

#define OK(call)                                                                                                      \
    do {                                                                                                              \
        CUresult result_ = (call);                                                                                    \
        if (result_ != CUDA_SUCCESS) {                                                                                \
            fprintf(stderr, "%s: %d\n", #call, (int)result_);                                                         \
            abort();                                                                                                  \
        }                                                                                                             \
    } while (0)

static void count(void *counter) { __atomic_fetch_add((long *)counter, 1, __ATOMIC_RELAXED); }

static void work(CUstream stream, long *called) {
    CUdeviceptr plain, pooled;
    CUevent event;
    unsigned int value = 7, got = 0;
    int n = 16;
    OK(cuMemAlloc_v2(&plain, 4096));
    OK(cuMemAllocAsync(&pooled, 1 << 20, stream));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    void *parameters[] = {&plain, &value, &n};
    OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuEventRecord(event, stream));
    OK(cuEventRecord(shared_event, stream));
    OK(cuStreamWaitEvent(stream, shared_event, 0));
    OK(cuLaunchHostFunc(stream, count, called));
    OK(cuMemFreeAsync(pooled, stream));
    OK(cuMemcpyDtoHAsync_v2(&got, plain, sizeof got, stream));
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(stream));
    if (got != 7) abort();
    OK(cuEventDestroy_v2(event));
    OK(cuMemFree_v2(plain));
}

static void replay(CUstream stream) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(stream, mode));
    for (int i = 0; i < 5; i++) OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void *run(void *nothing) {
    CUstream stream;
    long called = 0;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (long i = 0; rounds == 0 || i < rounds; i++) {
        work(stream, &called);
        if (i % 4 == 0) replay(stream);
    }
    OK(cuStreamDestroy_v2(stream));
    if (__atomic_load_n(&called, __ATOMIC_RELAXED) != rounds) abort();
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t threads[64];
    CUmodule module;
    size_t before, after, total;
    int number = argc > 1 ? atoi(argv[1]) : 4;
    rounds = argc > 2 ? atol(argv[2]) : 50;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, "any"));
    OK(cuModuleGetFunction(&spin, module, "spin_20us"));
    OK(cuModuleGetFunction(&fill, module, "fill_u32"));
    OK(cuEventCreate(&shared_event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemGetInfo_v2(&before, &total));
    for (int i = 0; i < number; i++) pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < number; i++) pthread_join(threads[i], NULL);
    OK(cuCtxSynchronize());
    OK(cuMemGetInfo_v2(&after, &total));
    printf("%ld\n", (long)(before - after));
    return 0;
}
