/* The driver as a whole: its lock, its start, and which devices this process sees. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define DRIVER_VERSION 13000
#define VERSION_VARIABLE "GPUPOOL_FAKE_DRIVER_VERSION" /* for tests */

pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_progress;
__thread int fake_per_thread;
__thread bool fake_in_callback;

static bool initialized, ended;
static bool forked; /* child of a process that used the driver: it cannot use it */
static pid_t owner;
static struct gpu gpus[FAKE_GPUS];
static uint32_t gpu_count;
static uint32_t calls; /* that have begun and not ended */

int fake_driver_version(void) {
    const char *text = getenv(VERSION_VARIABLE);
    int version = text != NULL ? atoi(text) : 0;
    return version > 0 ? version : DRIVER_VERSION;
}

uint32_t fake_device_count(void) { return gpu_count; }

struct gpu *fake_gpu(CUdevice ordinal) {
    return ordinal >= 0 && (uint32_t)ordinal < gpu_count ? &gpus[ordinal] : NULL;
}

/* A call of a locked process waits. It counts itself before it looks, and cuCheckpointProcessLock looks at the count
 * after it has locked: no call is missed by both. */
CUresult fake_enter(void) {
    if (fake_in_callback) return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_mutex);
    while (initialized && !forked && !ended) {
        fake_publish_calls(++calls);
        if (!fake_is_locked()) return CUDA_SUCCESS;
        fake_publish_calls(--calls);
        pthread_mutex_unlock(&fake_mutex);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&fake_mutex);
    }
    pthread_mutex_unlock(&fake_mutex);
    return ended ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

void fake_exit(const CUresult *entered) {
    if (*entered != CUDA_SUCCESS) return;
    fake_publish_calls(--calls);
    pthread_mutex_unlock(&fake_mutex);
}

static bool add_device(uint32_t index, int mig) {
    const struct fake_gpu *gpu = fake_gpu_at(index);
    for (uint32_t k = 0; mig < 0 && k < gpu->mig_count; k++) {
        if (gpu->migs[k].usable) mig = (int)k; /* a partitioned card shows its first instance */
    }
    if (mig < 0 && gpu->mig_mode) return false;
    struct fake_device *device = fake_device_open(index, mig);
    if (device == NULL || gpu_count == FAKE_GPUS) return false;
    for (uint32_t i = 0; i < gpu_count; i++) {
        if (gpus[i].shared == device) return false; /* named twice: the list ends here */
    }
    gpus[gpu_count] = (struct gpu){.ordinal = (CUdevice)gpu_count, .shared = device, .slot = -1, .backing = -1};
    gpu_count++;
    return true;
}

/* Parses one entry of CUDA_VISIBLE_DEVICES: an index, a UUID, or its beginning. */
static bool add_named(const char *entry, size_t length) {
    char *end;
    long index = strtol(entry, &end, 10);
    if (end == entry + length && length > 0) {
        return index >= 0 && index < fake_gpu_count() && add_device((uint32_t)index, -1);
    }
    for (int i = 0; length > 4 && i < fake_gpu_count(); i++) {
        const struct fake_gpu *gpu = fake_gpu_at((uint32_t)i);
        if (strncmp(gpu->uuid, entry, length) == 0) return add_device((uint32_t)i, -1);
        for (uint32_t k = 0; k < gpu->mig_count; k++) {
            bool named = gpu->migs[k].usable && strncmp(gpu->migs[k].uuid, entry, length) == 0;
            if (named) return add_device((uint32_t)i, (int)k);
        }
    }
    return false;
}

/* Parsed like in the real driver: the list ends at the first invalid entry. */
static void find_devices(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    fake_migs_refresh();
    if (visible == NULL) {
        for (int i = 0; i < fake_gpu_count(); i++) add_device((uint32_t)i, -1);
        return;
    }
    while (*visible != '\0') {
        visible += strspn(visible, " ");
        size_t length = strcspn(visible, ", ");
        if (!add_named(visible, length)) return;
        visible += length;
        visible += strspn(visible, " ");
        if (*visible == ',') visible++;
    }
}

static void after_fork(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&fake_mutex, &fresh, sizeof fresh);
    calls = 0;
    forked = initialized;
}

static void start(void) {
    static bool started;
    if (started) return;
    started = true;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&fake_progress, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_atfork(NULL, NULL, after_fork);
    owner = getpid();
    find_devices();
}

API CUresult cuInit(unsigned int flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_mutex);
    if (forked) {
        pthread_mutex_unlock(&fake_mutex);
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!initialized) start();
    initialized = gpu_count > 0;
    pthread_mutex_unlock(&fake_mutex);
    return gpu_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API CUresult cuDriverGetVersion(int *version) {
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = fake_driver_version();
    return CUDA_SUCCESS;
}

/* Leaves at the end, so that the counters are final at once; other processes notice a death without this call. */
static __attribute__((destructor)) void leave(void) {
    if (!initialized || forked || getpid() != owner || pthread_mutex_trylock(&fake_mutex) != 0) return;
    fake_settle();
    ended = true;
    for (uint32_t i = 0; i < gpu_count; i++) {
        if (gpus[i].slot < 0) continue;
        fake_lock(gpus[i].shared);
        fake_leave(gpus[i].shared, gpus[i].slot);
        fake_unlock(gpus[i].shared);
    }
    pthread_mutex_unlock(&fake_mutex);
}
