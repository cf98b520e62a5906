/* Prints the nanoseconds of one allocation with its release, by kind and round: allocation DRIVER ROUNDS COUNT.
 *
 * Kinds: plain (cuMemAlloc), pool (cuMemAllocAsync from the default pool, which keeps its memory). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SIZE ((size_t)2 << 20)

static void *driver;

static void *function(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL)
        exit(2);
    return found;
}

static void check(int result) {
    if (result != 0)
        exit(3);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int count, char **words) {
    if (count != 4 || (driver = dlopen(words[1], RTLD_NOW)) == NULL)
        return 1;
    int (*init)(unsigned) = function("cuInit"), (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
    int (*use)(void *) = function("cuCtxSetCurrent"), (*pool_of)(void **, int) = function("cuDeviceGetDefaultMemPool");
    int (*set)(void *, int, void *) = function("cuMemPoolSetAttribute");
    int (*take)(uint64_t *, size_t) = function("cuMemAlloc_v2"), (*give)(uint64_t) = function("cuMemFree_v2");
    int (*take_async)(uint64_t *, size_t, void *) = function("cuMemAllocAsync");
    int (*give_async)(uint64_t, void *) = function("cuMemFreeAsync");
    int (*wait)(void *) = function("cuStreamSynchronize"), (*make)(void **, unsigned) = function("cuStreamCreate");
    void *context, *pool, *stream;
    uint64_t at, keep = UINT64_MAX;
    check(init(0)), check(retain(&context, 0)), check(use(context)), check(make(&stream, 1));
    check(pool_of(&pool, 0)), check(set(pool, 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */, &keep));
    int rounds = atoi(words[2]), each = atoi(words[3]);
    for (int round = 0; round < rounds; round++) {
        uint64_t before = now_ns();
        for (int i = 0; i < each; i++)
            check(take(&at, SIZE)), check(give(at));
        uint64_t plain = now_ns() - before;
        before = now_ns();
        for (int i = 0; i < each; i++)
            check(take_async(&at, SIZE, stream)), check(give_async(at, stream));
        check(wait(stream));
        printf("%.1f %.1f\n", (double)plain / each, (double)(now_ns() - before) / each);
    }
    return 0;
}
