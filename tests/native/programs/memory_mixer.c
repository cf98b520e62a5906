/* A program of a lease that allocates: as much as it gets, or everything in every way with many threads.
 *
 * usage: memory_mixer fill KIND BYTES          "ready", waits for a line, allocates until refused, prints how many it
 *                                              got, waits for the end of its input
 *        memory_mixer mix THREADS OPERATIONS   random calls; 0: without end. Frees everything; prints what is held
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_types.h"

#define BLOCK ((size_t)2 << 20)
#define SLOTS 12

static CUcontext context;

static void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}
#define CHECK(call) check(call, #call)

/* Whether there was memory for it. */
static bool had(CUresult result, const char *what) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        check(result, what);
    return result == CUDA_SUCCESS;
}
#define HAD(call) had(call, #call)

static void begin(void) {
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    while (!HAD(cuDevicePrimaryCtxRetain(&context, device))) /* others have all of the slice */
        usleep(1000);
    CHECK(cuCtxSetCurrent(context));
}

static CUmemAllocationProp on_device(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return properties;
}

/* -- one thing that is held ----------------------------------------------------------------------------------------- */

enum kind { NOTHING, PLAIN, PITCHED, MANAGED, ASYNC, POOLED, CREATED, MAPPED, ARRAY, KINDS };

struct thing {
    enum kind kind;
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    CUarray array;
    size_t bytes;
};

static bool make_pooled(struct thing *thing) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CHECK(cuMemPoolCreate(&thing->pool, &properties));
    bool made = HAD(cuMemAllocFromPoolAsync(&thing->pointer, thing->bytes, thing->pool, NULL));
    CHECK(cuMemPoolDestroy(thing->pool));
    return made;
}

static bool make_mapped(struct thing *thing) {
    CUmemAllocationProp properties = on_device();
    if (!HAD(cuMemCreate(&thing->handle, thing->bytes, &properties, 0)))
        return false;
    CHECK(cuMemAddressReserve(&thing->pointer, thing->bytes, 0, 0, 0));
    CHECK(cuMemMap(thing->pointer, thing->bytes, 0, thing->handle, 0));
    CHECK(cuMemRelease(thing->handle));
    return true;
}

static bool make_array(struct thing *thing) {
    CUDA_ARRAY_DESCRIPTOR shape = {128, thing->bytes / 512, CU_AD_FORMAT_FLOAT, 1};
    return HAD(cuArrayCreate_v2(&thing->array, &shape));
}

static bool make(struct thing *thing, enum kind kind, size_t bytes) {
    CUmemAllocationProp properties = on_device();
    size_t pitch;
    *thing = (struct thing){.kind = kind, .bytes = bytes};
    switch (kind) {
    case PLAIN: return HAD(cuMemAlloc_v2(&thing->pointer, bytes));
    case PITCHED: return HAD(cuMemAllocPitch_v2(&thing->pointer, &pitch, 500, bytes / 512, 4));
    case MANAGED: return HAD(cuMemAllocManaged(&thing->pointer, bytes, CU_MEM_ATTACH_GLOBAL));
    case ASYNC: return HAD(cuMemAllocAsync(&thing->pointer, bytes, NULL));
    case POOLED: return make_pooled(thing);
    case CREATED: return HAD(cuMemCreate(&thing->handle, bytes, &properties, 0));
    case MAPPED: return make_mapped(thing);
    case ARRAY: return make_array(thing);
    default: return false;
    }
}

static void drop(struct thing *thing) {
    switch (thing->kind) {
    case PLAIN:
    case PITCHED:
    case MANAGED: CHECK(cuMemFree_v2(thing->pointer)); break;
    case ASYNC:
    case POOLED: CHECK(cuMemFreeAsync(thing->pointer, NULL)); break;
    case CREATED: CHECK(cuMemRelease(thing->handle)); break;
    case MAPPED:
        CHECK(cuMemUnmap(thing->pointer, thing->bytes));
        CHECK(cuMemAddressFree(thing->pointer, thing->bytes));
        break;
    case ARRAY: CHECK(cuArrayDestroy(thing->array)); break;
    default: break;
    }
    thing->kind = NOTHING;
}

/* -- the two ways to run ------------------------------------------------------------------------------------------------ */

static int fill(enum kind kind, size_t bytes) {
    struct thing thing;
    char line[16];
    long count = 0;
    begin();
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return 1;
    while (make(&thing, kind, bytes))
        count++;
    printf("%ld\n", count);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL)
        ;
    return 0;
}

struct mixer {
    unsigned seed;
    long operations;
};

static void look(void) {
    size_t available, total, device_total;
    CHECK(cuMemGetInfo_v2(&available, &total));
    CHECK(cuDeviceTotalMem_v2(&device_total, 0));
    if (available > total || total != device_total)
        check(CUDA_ERROR_UNKNOWN, "sizes that cannot be");
}

static void *mix(void *argument) {
    struct mixer *self = argument;
    struct thing things[SLOTS] = {{.kind = NOTHING}};
    CHECK(cuCtxSetCurrent(context));
    for (long i = 0; self->operations == 0 || i < self->operations; i++) {
        struct thing *thing = &things[rand_r(&self->seed) % SLOTS];
        int choice = rand_r(&self->seed) % 16;
        if (choice == 0)
            look();
        else if (choice == 1)
            CHECK(cuCtxSynchronize());
        else if (thing->kind != NOTHING)
            drop(thing);
        else if (!make(thing, 1 + (enum kind)(rand_r(&self->seed) % (KINDS - 1)),
                       BLOCK * (1 + (size_t)rand_r(&self->seed) % 8)))
            thing->kind = NOTHING;
    }
    for (int i = 0; i < SLOTS; i++)
        drop(&things[i]);
    return NULL;
}

static int run_threads(int count, long operations) {
    pthread_t threads[64];
    struct mixer mixers[64];
    size_t available, total;
    begin();
    for (int i = 0; i < count && i < 64; i++) {
        mixers[i] = (struct mixer){(unsigned)getpid() * 64u + (unsigned)i, operations};
        pthread_create(&threads[i], NULL, mix, &mixers[i]);
    }
    for (int i = 0; i < count && i < 64; i++)
        pthread_join(threads[i], NULL);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo_v2(&available, &total));
    printf("%zu\n", total - available);
    CHECK(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}

int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[1], "fill") == 0)
        return fill((enum kind)atoi(arguments[2]), strtoull(arguments[3], NULL, 10));
    if (count == 4 && strcmp(arguments[1], "mix") == 0)
        return run_threads(atoi(arguments[2]), atol(arguments[3]));
    return 2;
}
