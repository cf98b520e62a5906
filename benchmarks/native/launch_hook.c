/* Launches an empty kernel again and again and prints the nanoseconds of one launch, a line for each round.
 * Usage: launch_hook <libcuda> <stream> <threads> <rounds> <launches>; stream 0 is the default one. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_types.h"

static __typeof__(cuLaunchKernel) *launch;
static CUstream stream;
static unsigned long launches;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *round_of(void *offset) {
    CUstream own = stream == NULL ? NULL : (CUstream)((uintptr_t)stream + (uintptr_t)offset);
    for (unsigned long i = 0; i < launches; i++)
        launch((CUfunction)0x4000, 64, 1, 1, 256, 1, 1, 0, own, NULL, NULL);
    return NULL;
}

static void run_threads(unsigned count) {
    pthread_t threads[16];
    for (unsigned i = 1; i < count; i++)
        pthread_create(&threads[i], NULL, round_of, (void *)(uintptr_t)(i * 64));
    round_of(NULL);
    for (unsigned i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int count, char **words) {
    void *library = count == 6 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (library == NULL)
        return 2;
    __typeof__(cuInit) *init = (__typeof__(cuInit) *)dlsym(library, "cuInit");
    launch = (__typeof__(cuLaunchKernel) *)dlsym(library, "cuLaunchKernel");
    stream = (CUstream)strtoul(words[2], NULL, 0);
    if (init == NULL || launch == NULL || init(0) != CUDA_SUCCESS)
        return 3;
    for (long i = 0; i < atol(words[4]); i++) {
        launches = strtoul(words[5], NULL, 0);
        double begun = now_ns();
        run_threads((unsigned)atoi(words[3]));
        printf("%.2f\n", (now_ns() - begun) / (double)launches);
    }
    return 0;
}
