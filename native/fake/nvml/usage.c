/* The use of a simulated GPU: memory, processes and utilisation, as the shared state tells. A process that was
 * killed is gone from here at the next look. A card that is cut into MIG instances shows the sum of them. */
#include <string.h>
#include <time.h>

#include "fake_nvml.h"

#define WINDOW_NS UINT64_C(1000000000) /* utilisation is that of the last second */
enum { BAR1_BYTES = 256 << 20 };

struct usage {
    unsigned int pid;
    unsigned int instance; /* MIG: its number, else NVML_NO_INSTANCE */
    uint64_t bytes, served_ns, joined_ns;
};

/* Returns the state files behind a device: its own, or those of all instances of a partitioned card. */
static int first_part(nvmlDevice_t device) { return device->mig < 0 && device->gpu->mig_mode ? 0 : device->mig; }
static int last_part(nvmlDevice_t device) {
    return device->mig < 0 && device->gpu->mig_mode ? (int)device->gpu->mig_count - 1 : device->mig;
}
static bool is_part(nvmlDevice_t device, int part) { return part < 0 || device->gpu->migs[part].usable; }

/* Opens and locks one of them, with the clock advanced; NULL if that fails. */
static struct fake_device *look(nvmlDevice_t device, int part) {
    struct fake_device *opened = fake_device_open(device->gpu->index, part);
    if (opened == NULL) return NULL;
    fake_lock(opened);
    fake_sweep(opened);
    fake_advance(opened, fake_now());
    return opened;
}

static uint64_t memory_of(nvmlDevice_t device) {
    return device->mig < 0 ? device->gpu->memory_bytes : fake_mig_of(device)->memory_bytes;
}

static nvmlReturn_t used_of(nvmlDevice_t device, uint64_t *used) {
    *used = 0;
    for (int part = first_part(device); part <= last_part(device); part++) {
        struct fake_device *opened = is_part(device, part) ? look(device, part) : NULL;
        if (opened == NULL && !is_part(device, part)) continue;
        if (opened == NULL) return NVML_ERROR_UNKNOWN;
        *used += fake_used(opened);
        fake_unlock(opened);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (memory == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != NVML_VERSION_OF(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t used;
    nvmlReturn_t result = used_of(device, &used);
    if (result != NVML_SUCCESS) return result;
    memory->total = memory_of(device);
    memory->reserved = 0;
    memory->used = used;
    memory->free = memory->total - used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlMemory_v2_t info = {.version = NVML_VERSION_OF(nvmlMemory_v2_t, 2)};
    if (memory == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &info);
    if (result == NVML_SUCCESS) *memory = (nvmlMemory_t){info.total, info.free, info.used};
    return result;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (memory == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlBAR1Memory_t){BAR1_BYTES, BAR1_BYTES, 0};
    return NVML_SUCCESS;
}

/* Appends the processes that hold memory on one part to the `count` already found. */
static unsigned int users(struct fake_device *opened, int part, struct usage *found, unsigned int count) {
    for (uint32_t slot = 0; slot < FAKE_PROCESSES; slot++) {
        const struct fake_process *process = &opened->state->processes[slot];
        uint64_t bytes = process->state == FAKE_LIVE ? fake_process_used(process) : 0;
        if (bytes == 0 || count == FAKE_PROCESSES) continue;
        unsigned int instance = part < 0 ? NVML_NO_INSTANCE : (unsigned int)part + 1;
        found[count++] = (struct usage){process->pid, instance, bytes, process->served_ns, process->joined_ns};
    }
    return count;
}

static nvmlReturn_t users_of(nvmlDevice_t device, struct usage found[FAKE_PROCESSES], unsigned int *count) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int part = first_part(device); part <= last_part(device); part++) {
        struct fake_device *opened = is_part(device, part) ? look(device, part) : NULL;
        if (opened == NULL && !is_part(device, part)) continue;
        if (opened == NULL) return NVML_ERROR_UNKNOWN;
        *count = users(opened, part, found, *count);
        fake_unlock(opened);
    }
    return NVML_SUCCESS;
}

/* -- processes -------------------------------------------------------------------------------------------------- */

/* `found`: the processes that use the device, if there is room for all of them; `count`: their number. */
static nvmlReturn_t list_users(nvmlDevice_t device, unsigned int *count, const void *infos, struct usage *found) {
    unsigned int room = count != NULL ? *count : 0, there;
    nvmlReturn_t result = count == NULL ? NVML_ERROR_INVALID_ARGUMENT : users_of(device, found, &there);
    if (result != NVML_SUCCESS) return result;
    *count = there;
    if (there > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    return there > 0 && infos == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_t *infos) {
    struct usage found[FAKE_PROCESSES];
    nvmlReturn_t result = list_users(device, count, infos, found);
    if (result != NVML_SUCCESS) return result;
    for (unsigned int i = 0; i < *count; i++) {
        unsigned int compute = found[i].instance == NVML_NO_INSTANCE ? NVML_NO_INSTANCE : 0;
        infos[i] = (nvmlProcessInfo_t){found[i].pid, found[i].bytes, found[i].instance, compute};
    }
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v2_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v1_t *infos) {
    struct usage found[FAKE_PROCESSES];
    nvmlReturn_t result = list_users(device, count, infos, found);
    if (result != NVML_SUCCESS) return result;
    for (unsigned int i = 0; i < *count; i++) infos[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].bytes};
    return NVML_SUCCESS;
}

/* A simulated card has no graphics processes and no MPS. */
#define NOBODY(name)                                                                                                   \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos) {                                     \
        (void)infos;                                                                                                   \
        nvmlReturn_t checked = fake_check(device);                                                                     \
        if (checked != NVML_SUCCESS) return checked;                                                                   \
        if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;                                                         \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* -- utilisation ------------------------------------------------------------------------------------------------ */

/* Returns the time of the last second in which any process was served: where virtual time grows. Under the lock. */
static uint64_t busy_ns(const struct fake_state *state, uint64_t now) {
    const struct fake_clock *clock = &state->now[state->now_at & 1];
    uint64_t from = now > WINDOW_NS ? now - WINDOW_NS : 0, busy = 0, later_ns = clock->ns, later = clock->virtual_ns;
    for (uint64_t i = state->curve_count; i > 0 && state->curve_count - i < FAKE_CURVE && later_ns > from; i--) {
        const struct fake_point *point = &state->curve[(i - 1) % FAKE_CURVE];
        uint64_t since = point->ns > from ? point->ns : from;
        if (later > point->virtual_ns && later_ns > since) busy += later_ns - since;
        later_ns = point->ns;
        later = point->virtual_ns;
    }
    return busy;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    nvmlReturn_t checked = fake_check(device);
    if (checked != NVML_SUCCESS) return checked;
    if (utilization == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED; /* as real cards in MIG mode */
    struct fake_device *opened = look(device, -1);
    if (opened == NULL) return NVML_ERROR_UNKNOWN;
    uint64_t now = fake_now(), busy = busy_ns(opened->state, now);
    fake_unlock(opened);
    unsigned int percent = (unsigned int)(busy * 100 / WINDOW_NS);
    *utilization = (nvmlUtilization_t){percent > 100 ? 100 : percent, percent / 2};
    return NVML_SUCCESS;
}

/* Returns the GPU time of a process since its start or in the time since the last query, whichever is shorter. */
struct last_look {
    unsigned int pid;
    uint64_t joined_ns, served_ns, at_ns;
};
static struct last_look looks[FAKE_GPUS][FAKE_PROCESSES];
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;

static unsigned int share_of(nvmlDevice_t device, unsigned int at, const struct usage *user, uint64_t now) {
    struct last_look *last = &looks[device->gpu->index][at];
    bool same = last->pid == user->pid && last->joined_ns == user->joined_ns;
    uint64_t since = same ? last->at_ns : user->joined_ns, before = same ? last->served_ns : 0;
    uint64_t percent = now > since ? (user->served_ns - before) * 100 / (now - since) : 0;
    *last = (struct last_look){user->pid, user->joined_ns, user->served_ns, now};
    return percent > 100 ? 100 : (unsigned int)percent;
}

static uint64_t microseconds_since_the_epoch(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                 unsigned int *count, unsigned long long last_seen) {
    struct usage found[FAKE_PROCESSES];
    (void)last_seen;
    unsigned int room = count != NULL ? *count : 0, there;
    nvmlReturn_t result = count == NULL ? NVML_ERROR_INVALID_ARGUMENT : users_of(device, found, &there);
    if (result != NVML_SUCCESS) return result;
    *count = there;
    if (there == 0) return NVML_ERROR_NOT_FOUND;
    if (samples == NULL || there > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    uint64_t now = fake_now(), stamp = microseconds_since_the_epoch();
    pthread_mutex_lock(&looking);
    for (unsigned int i = 0; i < there; i++) {
        unsigned int sm = share_of(device, i, &found[i], now);
        samples[i] = (nvmlProcessUtilizationSample_t){found[i].pid, stamp, sm, sm / 2, 0, 0};
    }
    pthread_mutex_unlock(&looking);
    return NVML_SUCCESS;
}
