// A program as nvcc makes it: its kernel is in the program, registered with the runtime and started by <<<>>>.
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" __global__ void vector_add_f32(const float *a, const float *b, float *c, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) c[i] = a[i] + b[i];
}

static void check(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check(call, #call)

int main() {
    const int count = 50000;
    const size_t bytes = count * sizeof(float);
    std::vector<float> x(count), y(count), z(count);
    for (int i = 0; i < count; i++) {
        x[i] = (float)i;
        y[i] = 2.0f * (float)i;
    }
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    float *a, *b, *c;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMalloc(&c, bytes));
    CHECK(cudaMemcpy(a, x.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, y.data(), bytes, cudaMemcpyHostToDevice));
    vector_add_f32<<<(count + 255) / 256, 256>>>(a, b, c, count);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(z.data(), c, bytes, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < count; i++) wrong += z[i] != x[i] + y[i];
    printf("{\"total_mib\": %zu, \"wrong\": %d}\n", properties.totalGlobalMem >> 20, wrong);
}
