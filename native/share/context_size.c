/* Measures the memory that the driver takes for the first context of this process on a GPU.
 *
 * NVML reports the memory of each process. The measurement is the value for this process after the context was created,
 * minus the value before. The figures contain no memory of other processes, so other tenants do not disturb them.
 *
 * NVML uses pids of the host, or of the caller's pid namespace, depending on the driver. So the search uses both the pid
 * that the arbiter wrote into the slot, and the process's own. If NVML is missing, or does not show this process or its
 * memory, nothing is measured; the estimate stays until the agent corrects it.
 *
 * NVML counts its initialisations. It is initialised only for the two readings, so that a program that shuts it down
 * finds it shut down.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "attach.h"
#include "memory.h"
#include "real_library.h"

#define MAX_PROCESSES 4096u
#define MIN_CONTEXT_BYTES (UINT64_C(1) << 20) /* a smaller value is not a context but another process with our number */

typedef nvmlReturn_t plain_function(void);
typedef nvmlReturn_t find_function(const char *uuid, nvmlDevice_t *device);
typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static plain_function *start, *stop;
static find_function *find;
static list_function *list;

static void *function(void *library, const char *name) { return library == NULL ? NULL : dlsym(library, name); }

static void open_nvml(void) {
    const char *path = gp_pages()->files.control->nvml_driver;
    if (path[0] == '\0')
        return;
    void *library = gp_open_real_library(path, "", "", "nvmlInit_v2", NULL);
    start = (plain_function *)(uintptr_t)function(library, "nvmlInit_v2");
    stop = (plain_function *)(uintptr_t)function(library, "nvmlShutdown");
    find = (find_function *)(uintptr_t)function(library, "nvmlDeviceGetHandleByUUID");
    list = (list_function *)(uintptr_t)function(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (list == NULL) /* drivers before 510; the elements have the same layout */
        list = (list_function *)(uintptr_t)function(library, "nvmlDeviceGetComputeRunningProcesses_v2");
}

/* Returns the memory of this process in a list, by the host's number for it if that is known and listed, else by its
 * own. */
static uint64_t own_bytes(const struct gp_gpu *gpu, const nvmlProcessInfo_t *infos, unsigned int count) {
    unsigned int host = atomic_load(&gpu->slot->host_pid), own = (unsigned int)getpid();
    uint64_t by_own = 0;
    for (unsigned int i = 0; i < count; i++) {
        if (infos[i].usedGpuMemory == UINT64_MAX) /* NVML_VALUE_NOT_AVAILABLE */
            continue;
        if (infos[i].pid == host)
            return infos[i].usedGpuMemory;
        if (infos[i].pid == own)
            by_own = infos[i].usedGpuMemory;
    }
    return by_own;
}

static bool look(struct gp_context_size *size, const struct gp_gpu *gpu, uint64_t *bytes) {
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int room = 64; result == NVML_ERROR_INSUFFICIENT_SIZE && room <= MAX_PROCESSES; room *= 4) {
        nvmlProcessInfo_t *infos = calloc(room, sizeof *infos);
        unsigned int count = room;
        result = infos == NULL ? NVML_ERROR_MEMORY : list(size->device, &count, infos);
        if (result == NVML_SUCCESS)
            *bytes = own_bytes(gpu, infos, count);
        free(infos);
    }
    return result == NVML_SUCCESS;
}

void gp_context_size_begin(struct gp_context_size *size, const struct gp_gpu *gpu) {
    *size = (struct gp_context_size){.usable = false};
    pthread_once(&once, open_nvml);
    if (start == NULL || stop == NULL || find == NULL || list == NULL || start() != NVML_SUCCESS)
        return;
    size->started = true;
    size->usable = find(gpu->control->uuid_text, &size->device) == NVML_SUCCESS && look(size, gpu, &size->before);
}

uint64_t gp_context_size_end(struct gp_context_size *size, const struct gp_gpu *gpu) {
    uint64_t after = 0;
    bool known = size->usable && look(size, gpu, &after) && after >= size->before + MIN_CONTEXT_BYTES;
    if (size->started)
        stop();
    return known ? after - size->before : 0;
}
