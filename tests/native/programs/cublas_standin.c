/* A stand-in for cuBLAS that computes on the CPU; CUBLAS_STANDIN=wrong changes an element, =broken fails. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
extern int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);

static int is(const char *wanted) {
    const char *chosen = getenv("CUBLAS_STANDIN");
    return chosen != NULL && strcmp(chosen, wanted) == 0;
}

int cublasCreate_v2(void **handle) {
    *handle = handle;
    return 0;
}

int cublasGetVersion_v2(void *handle, int *version) {
    *version = 130100;
    return handle == NULL;
}

int cublasSgemm_v2(void *handle, int of_a, int of_b, int m, int n, int k, const float *alpha, uint64_t a, int lda,
                   uint64_t b, int ldb, const float *beta, uint64_t c, int ldc) {
    if (is("broken"))
        return 14;
    if (handle == NULL || of_a || of_b || m != n || n != k || lda != m || ldb != m || ldc != m || *beta != 0)
        return 7;
    size_t count = (size_t)m * (size_t)m, bytes = count * sizeof(float);
    float *x = malloc(bytes), *y = malloc(bytes), *z = calloc(count, sizeof(float));
    if (x == NULL || y == NULL || z == NULL || cuMemcpyDtoH_v2(x, a, bytes) || cuMemcpyDtoH_v2(y, b, bytes))
        return 13;
    for (int column = 0; column < m; column++)
        for (int row = 0; row < m; row++)
            for (int i = 0; i < m; i++)
                z[column * m + row] += *alpha * x[i * m + row] * y[column * m + i];
    z[count / 2] += is("wrong") ? 1 : 0;
    int result = cuMemcpyHtoD_v2(c, z, bytes) ? 13 : 0;
    free(x), free(y), free(z);
    return result;
}
