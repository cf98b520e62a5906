/* A program of the CUDA runtime: prints what it finds as one JSON object.
 *
 * It calls only functions whose form is the same in CUDA 12.9 and 13, so that the same source links with either. Its
 * kernel is PTX, loaded through the runtime: `vector_add_f32` computes on a simulated GPU, too.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 50000
#define STEP ((size_t)64 << 20)

static const char ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry vector_add_f32(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {\n"
    ".reg .pred %p; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %d<8>;\n"
    "ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u32 %r1, [n];\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "setp.ge.s32 %p, %r5, %r1; @%p bra end;\n"
    "mul.wide.s32 %d4, %r5, 4; add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;\n"
    "ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6]; add.f32 %f3, %f1, %f2; st.global.f32 [%d7], %f3;\n"
    "end: ret;\n}\n";

static void check(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check(call, #call)

static float host[COUNT];
static float *a, *b, *c;

static void add(cudaKernel_t kernel, float *to, cudaStream_t stream) {
    int count = COUNT;
    void *parameters[] = {&a, &b, &to, &count};
    dim3 grid = {(COUNT + 255) / 256, 1, 1}, block = {256, 1, 1};
    CHECK(cudaLaunchKernel((const void *)kernel, grid, block, parameters, 0, stream));
}

static int wrong(const float *from, float factor) {
    int count = 0;
    CHECK(cudaMemcpy(host, from, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++) count += host[i] != factor * (float)i;
    return count;
}

static void kernels(void) {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cudaLibraryGetKernel(&kernel, library, "vector_add_f32"));
    CHECK(cudaMalloc((void **)&a, sizeof host));
    CHECK(cudaMalloc((void **)&b, sizeof host));
    CHECK(cudaMalloc((void **)&c, sizeof host));
    for (int i = 0; i < COUNT; i++) host[i] = (float)i;
    CHECK(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, a, sizeof host, cudaMemcpyDeviceToDevice));
    add(kernel, c, NULL);
    CHECK(cudaDeviceSynchronize());
    printf("\"wrong\": %d, ", wrong(c, 2));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add(kernel, a, stream); /* a = a + b */
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("\"wrong_after_graph\": %d, ", wrong(a, 4));
}

static void events(void) {
    cudaEvent_t first, second;
    float milliseconds = -1;
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&second));
    CHECK(cudaEventRecord(first, NULL));
    CHECK(cudaMemset(c, 0, sizeof host));
    CHECK(cudaEventRecord(second, NULL));
    CHECK(cudaEventSynchronize(second));
    CHECK(cudaEventElapsedTime(&milliseconds, first, second));
    printf("\"timed\": %s, ", milliseconds >= 0 ? "true" : "false");
}

/* Allocates until the runtime refuses, by cudaMalloc or from its pool, and frees everything. */
static void fill(const char *name, int from_pool) {
    static void *taken[4096];
    size_t count = 0;
    cudaError_t error = cudaSuccess;
    while (error == cudaSuccess && count < sizeof taken / sizeof *taken) {
        error = from_pool ? cudaMallocAsync(&taken[count], STEP, NULL) : cudaMalloc(&taken[count], STEP);
        if (error == cudaSuccess) count++;
    }
    printf("\"%s\": {\"mib\": %zu, \"error\": \"%s\"}, ", name, count * (STEP >> 20), cudaGetErrorName(error));
    (void)cudaGetLastError(); /* not sticky */
    for (size_t i = 0; i < count; i++) CHECK(from_pool ? cudaFreeAsync(taken[i], NULL) : cudaFree(taken[i]));
    CHECK(cudaDeviceSynchronize());
    if (from_pool) {
        cudaMemPool_t pool;
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMemPoolTrimTo(pool, 0));
    }
}

/* CUDA cannot be used after fork: the child gets an error and the parent continues. */
static void forked(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *memory;
        _exit(cudaMalloc(&memory, 4096) == cudaSuccess ? 0 : 7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(cudaDeviceSynchronize());
    printf("\"child\": %d, ", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(void) {
    int runtime = 0, devices = 0;
    size_t free_bytes = 0, total = 0;
    CHECK(cudaRuntimeGetVersion(&runtime));
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    printf("{\"runtime\": %d, \"devices\": %d, \"total_mib\": %zu, ", runtime, devices, total >> 20);
    kernels();
    events();
    fill("plain", 0);
    fill("pool", 1);
    forked();
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    printf("\"free_mib\": %zu, ", free_bytes >> 20);
    CHECK(cudaDeviceReset());
    CHECK(cudaMalloc((void **)&a, 4096));
    printf("\"after_reset\": true}\n");
    return 0;
}
