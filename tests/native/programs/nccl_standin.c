/* A stand-in for NCCL that adds up on the CPU. Emulated GPUs do not compute the kernels of the real one.
 * NCCL_STANDIN=wrong changes a sum of rank 1, =broken and =no-start fail, =idle changes nothing.
 * It prints to stdout, as NCCL does if it is configured so. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
extern int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);

enum { MAX_RANKS = 16, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, UINT32 = 3, SUM = 0 };

struct rank {
    uint64_t own, sums;
    int device, started;
};

static struct rank ranks[MAX_RANKS];
static int rank_count, in_group;
static size_t words;

static int is(const char *wanted) {
    const char *chosen = getenv("NCCL_STANDIN");
    return chosen != NULL && strcmp(chosen, wanted) == 0;
}

int ncclGetVersion(int *version) {
    *version = 23203;
    return 0;
}

const char *ncclGetErrorString(int error) { return error == INTERNAL_ERROR ? "internal error" : "invalid argument"; }

const char *ncclGetLastError(void *rank) { return rank == NULL ? "the link is down\n" : NULL; }

int ncclCommInitAll(struct rank **made, int count, const int *devices) {
    printf("NCCL version 2.32.3\n");
    fflush(stdout);
    if (is("no-start")) return INTERNAL_ERROR;
    if (count > MAX_RANKS) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        made[i] = &ranks[i];
        made[i]->device = devices[i];
    }
    rank_count = count;
    return 0;
}

int ncclGroupStart(void) { return in_group++ ? INVALID_ARGUMENT : 0; }

int ncclAllReduce(uint64_t own, uint64_t sums, size_t count, int type, int operation, struct rank *rank, void *stream) {
    if (is("broken")) return INTERNAL_ERROR;
    if (!in_group || stream == NULL || type != UINT32 || operation != SUM) return INVALID_ARGUMENT;
    *rank = (struct rank){own, sums, rank->device, 1};
    words = count;
    return 0;
}

int ncclGroupEnd(void) {
    if (!in_group--) return INVALID_ARGUMENT;
    uint32_t *sums = calloc(words, sizeof *sums), *own = malloc(words * sizeof *own);
    int result = sums == NULL || own == NULL ? INTERNAL_ERROR : 0;
    for (int r = 0; r < rank_count && !result; r++) {
        if (!ranks[r].started || cuMemcpyDtoH_v2(own, ranks[r].own, words * sizeof *own)) result = INVALID_ARGUMENT;
        for (size_t i = 0; i < words && !result; i++) sums[i] += own[i];
    }
    for (int r = 0; r < rank_count && !result && !is("idle"); r++) {
        sums[words / 2] ^= is("wrong") && r == 1;
        if (cuMemcpyHtoD_v2(ranks[r].sums, sums, words * sizeof *sums)) result = INVALID_ARGUMENT;
        sums[words / 2] ^= is("wrong") && r == 1;
        ranks[r].started = 0;
    }
    free(sums), free(own);
    return result;
}

int ncclCommDestroy(struct rank *rank) { return rank == NULL ? INVALID_ARGUMENT : 0; }
