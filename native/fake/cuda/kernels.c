/* What kernels do and how long they take. A simulated GPU runs no code:
 *
 *   spin_<n>ns, spin_<n>us, spin_<n>ms   take that long
 *   spin_ns(uint64 ns)                   takes as long as its parameter says
 *   vector_add_f32(float *a, float *b, float *c, int32 n)      c = a + b      these compute, on the processor,
 *   saxpy_f32(float a, float *x, float *y, int32 n)            y = a * x + y  when their time is over, so that
 *   fill_u32(uint32 *to, uint32 value, int32 n)                               demonstrations and checks of cards
 *   fill_pattern_u32(uint32 *to, uint32 seed, uint32 step, int32 n)           show true results
 *   compare_pattern_u32(uint32 *at, uint32 seed, uint32 step, int32 n, uint32 *result)
 *   matmul_f32(float *a, float *b, float *c, int32 n)                         c = a * b, n rows of n
 *   any other                            computes nothing; the first in a process is reported on stderr
 *
 * All but the first two take 2 us and, for each round of blocks that the multiprocessors cannot hold at once (2,048
 * threads each), another 2 us: an estimate that grows with the grid, no more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define LEAST_NS UINT64_C(2000)
#define ROUND_NS UINT64_C(2000)
#define THREADS UINT64_C(2048)
#define LARGE_WORDS 65536 /* a region of 256 KiB */
#define LONGEST_NS UINT64_C(3600000000000)

struct vectors {
    CUcontext context;
    uint64_t from[2], to;
    float factor;
    uint32_t value, step;
    uint64_t result;
    int32_t count;
};

static bool reachable(const struct vectors *v, uint32_t inputs) {
    uint64_t bytes = v->count > 0 ? (uint64_t)v->count * 4 : 0;
    bool all = fake_range_holds(v->to, bytes);
    for (uint32_t i = 0; i < inputs; i++) all = all && fake_range_holds(v->from[i], bytes);
    if (!all) v->context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
    return all;
}

static void run_vector_add(void *data) {
    const struct vectors *v = data;
    if (!reachable(v, 2)) return;
    const float *a = (const float *)v->from[0], *b = (const float *)v->from[1];
    float *c = (float *)v->to;
    for (int32_t i = 0; i < v->count; i++) c[i] = a[i] + b[i];
}

static void run_saxpy(void *data) {
    const struct vectors *v = data;
    if (!reachable(v, 1)) return;
    const float *x = (const float *)v->from[0];
    float *y = (float *)v->to;
    for (int32_t i = 0; i < v->count; i++) y[i] += v->factor * x[i];
}

static void run_fill(void *data) {
    const struct vectors *v = data;
    uint32_t *to = (uint32_t *)v->to;
    if (!reachable(v, 0)) return;
    for (int32_t i = 0; i < v->count; i++) to[i] = v->value;
}

/* Simulates a card with a faulty memory cell: one bit of a large filled region is wrong. */
static void flip_bit(const struct vectors *v) {
    if (v->count < LARGE_WORDS || !fake_faults_of(v->context->gpu->shared->gpu->index).flip) return;
    ((uint32_t *)v->to)[v->count / 2] ^= UINT32_C(1) << 5;
}

/* Word i of the pattern is seed + i * step. */
static void run_fill_pattern(void *data) {
    const struct vectors *v = data;
    uint32_t *to = (uint32_t *)v->to;
    if (!reachable(v, 0)) return;
    for (int32_t i = 0; i < v->count; i++) to[i] = v->value + (uint32_t)i * v->step;
    flip_bit(v);
}

/* Adds to result: [0] words that differ; [1] the least index of one; [2] all bits that differ. */
static void run_compare_pattern(void *data) {
    const struct vectors *v = data;
    const uint32_t *at = (const uint32_t *)v->to;
    if (!reachable(v, 0)) return;
    if (!fake_range_holds(v->result, 3 * sizeof(uint32_t))) {
        v->context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
        return;
    }
    uint32_t *result = (uint32_t *)v->result;
    for (int32_t i = 0; i < v->count; i++) {
        uint32_t wrong = at[i] ^ (v->value + (uint32_t)i * v->step);
        if (wrong == 0) continue;
        result[0]++;
        if ((uint32_t)i < result[1]) result[1] = (uint32_t)i;
        result[2] |= wrong;
    }
}

static void run_matmul(void *data) {
    struct vectors all = *(const struct vectors *)data; /* as one row of n * n */
    int32_t n = all.count;
    if (n <= 0 || n > 32768) return;
    all.count = n * n;
    if (!reachable(&all, 2)) return;
    const float *a = (const float *)all.from[0], *b = (const float *)all.from[1];
    float *c = (float *)all.to;
    for (int32_t row = 0; row < n; row++) {
        for (int32_t column = 0; column < n; column++) {
            float sum = 0;
            for (int32_t k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
            c[row * n + column] = sum;
        }
    }
}

static void take_vector_add(const uint8_t *p, struct vectors *v) {
    memcpy(&v->from[0], p, 8);
    memcpy(&v->from[1], p + 8, 8);
    memcpy(&v->to, p + 16, 8);
    memcpy(&v->count, p + 24, 4);
}

static void take_saxpy(const uint8_t *p, struct vectors *v) {
    memcpy(&v->factor, p, 4);
    memcpy(&v->from[0], p + 8, 8);
    memcpy(&v->to, p + 16, 8);
    memcpy(&v->count, p + 24, 4);
}

static void take_fill(const uint8_t *p, struct vectors *v) {
    memcpy(&v->to, p, 8);
    memcpy(&v->value, p + 8, 4);
    memcpy(&v->count, p + 12, 4);
}

static void take_pattern(const uint8_t *p, struct vectors *v) {
    memcpy(&v->to, p, 8);
    memcpy(&v->value, p + 8, 4);
    memcpy(&v->step, p + 12, 4);
    memcpy(&v->count, p + 16, 4);
    memcpy(&v->result, p + 24, 8);
}

static const struct known known[] = {
    {"spin_ns", 1, {{0, 8}}, NULL, NULL},
    {"vector_add_f32", 4, {{0, 8}, {8, 8}, {16, 8}, {24, 4}}, run_vector_add, take_vector_add},
    {"saxpy_f32", 4, {{0, 4}, {8, 8}, {16, 8}, {24, 4}}, run_saxpy, take_saxpy},
    {"fill_u32", 3, {{0, 8}, {8, 4}, {12, 4}}, run_fill, take_fill},
    {"fill_pattern_u32", 4, {{0, 8}, {8, 4}, {12, 4}, {16, 4}}, run_fill_pattern, take_pattern},
    {"compare_pattern_u32", 5, {{0, 8}, {8, 4}, {12, 4}, {16, 4}, {24, 8}}, run_compare_pattern, take_pattern},
    {"matmul_f32", 4, {{0, 8}, {8, 8}, {16, 8}, {24, 4}}, run_matmul, take_vector_add},
};

const struct known *fake_known_kernel(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) return &known[i];
    }
    return NULL;
}

/* Returns the time of spin_<n><unit>; 0 for other names. */
uint64_t fake_named_duration(const char *name) {
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
    char *end;
    if (strncmp(name, "spin_", 5) != 0 || name[5] < '0' || name[5] > '9') return 0;
    unsigned long long count = strtoull(name + 5, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) == 0) return count < LONGEST_NS / units[i].ns ? count * units[i].ns : LONGEST_NS;
    }
    return 0;
}

static uint64_t estimate(const struct launch *launch, const struct gpu *gpu) {
    const struct fake_device *shared = gpu->shared;
    uint64_t holds = THREADS * (shared->mig != NULL ? shared->mig->multiprocessors : shared->gpu->multiprocessors);
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t rounds = blocks / (holds / ALIGN_UP(threads, 32));
    return LEAST_NS + (rounds < LONGEST_NS / ROUND_NS ? rounds * ROUND_NS : LONGEST_NS);
}

uint64_t fake_kernel_cost(const struct launch *launch, const struct gpu *gpu) {
    uint64_t ns = launch->kernel->duration_ns;
    if (launch->kernel->known != NULL && launch->kernel->known->run == NULL) {
        memcpy(&ns, launch->parameters, sizeof ns);
        return ns == 0 ? 1 : ns < LONGEST_NS ? ns : LONGEST_NS;
    }
    return ns > 0 ? ns : estimate(launch, gpu);
}

/* Called once per process, for readers of the results. */
static void report_emulated(const struct kernel *kernel) {
    static bool reported;
    if (reported) return;
    reported = true;
    fprintf(stderr,
            "gpupool: this GPU is emulated: its kernels take time but compute nothing, except a few for demonstrations "
            "(the first that does not compute is %.80s)\n",
            kernel->name);
}

bool fake_kernel_effect(const struct launch *launch, CUcontext context, void (**run)(void *data), void **data) {
    const struct known *kernel = launch->kernel->known;
    if (kernel == NULL && launch->kernel->duration_ns == 0) report_emulated(launch->kernel);
    if (kernel == NULL || kernel->run == NULL) return false;
    struct vectors *vectors = calloc(1, sizeof *vectors);
    if (vectors == NULL) abort();
    vectors->context = context;
    kernel->take(launch->parameters, vectors);
    *run = kernel->run;
    *data = vectors;
    return true;
}

CUresult fake_read_parameters(struct launch *launch, void **parameters, void **extra) {
    const struct known *kernel = launch->kernel->known;
    memset(launch->parameters, 0, sizeof launch->parameters);
    if (parameters != NULL && extra != NULL) return CUDA_ERROR_INVALID_VALUE;
    if (kernel == NULL) return CUDA_SUCCESS;
    if (parameters != NULL) {
        for (uint32_t i = 0; i < kernel->count; i++) {
            memcpy(launch->parameters + kernel->parameters[i].offset, parameters[i], kernel->parameters[i].size);
        }
        return CUDA_SUCCESS;
    }
    const void *buffer = NULL;
    size_t size = 0;
    for (; extra != NULL && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
        if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(const size_t *)extra[1];
    }
    if (buffer == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(launch->parameters, buffer, size < sizeof launch->parameters ? size : sizeof launch->parameters);
    return CUDA_SUCCESS;
}
