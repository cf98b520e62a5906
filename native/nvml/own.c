/* Finds the lease's processes: those with a slot in the lease's status page, and this process.
 *
 * The driver uses pids of the host. In a container the arbiter has written the host's pid next to the pid inside the
 * container. Programs are shown the pid inside, so that they find themselves.
 */
#include "own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_ROOM = 64, MOST_ROOM = 1 << 16 };

static uint64_t own_namespace(void) {
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 ? (uint64_t)about.st_ino : 0;
}

static void add(struct own *own, unsigned int driver_pid, unsigned int pid) {
    if (driver_pid == 0 || own->count == OWN_ROOM) return;
    own->processes[own->count].driver_pid = driver_pid;
    own->processes[own->count++].pid = pid;
}

static void add_slot(struct own *own, const struct gpupool_slot *slot, uint64_t namespace) {
    uint64_t owner = atomic_load(&slot->owner);
    if (owner == 0) return;
    bool same = atomic_load(&slot->pid_ns) == namespace;
    unsigned int host = atomic_load(&slot->host_pid), pid = gpupool_owner_pid(owner);
    if (host != 0) add(own, host, same ? pid : host);
    else if (same) add(own, pid, pid);
}

void gp_read_own(struct own *own) {
    uint64_t namespace = own_namespace();
    own->count = 0;
    for (uint32_t gpu = 0; gpu < gp_gpu_count(); gpu++) {
        for (uint32_t slot = 0; slot < GPUPOOL_SLOTS; slot++) add_slot(own, &gp_status(gpu)->slots[slot], namespace);
    }
    add(own, (unsigned int)getpid(), (unsigned int)getpid());
}

static unsigned int known_as(const struct own *own, unsigned int driver_pid) {
    for (unsigned int i = 0; i < own->count; i++) {
        if (own->processes[i].driver_pid == driver_pid) return own->processes[i].pid;
    }
    return 0;
}

unsigned int gp_keep_own(const struct own *own, void *array, unsigned int count, size_t size, size_t pid_at) {
    char *elements = array;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++) {
        unsigned int pid;
        memcpy(&pid, elements + i * size + pid_at, sizeof pid);
        pid = known_as(own, pid);
        if (pid == 0) continue;
        memmove(elements + kept * size, elements + i * size, size);
        memcpy(elements + kept++ * size + pid_at, &pid, sizeof pid);
    }
    return kept;
}

nvmlReturn_t gp_read_list(gp_lister *lister, void *context, size_t size, void **array, unsigned int *count) {
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    *array = NULL;
    for (unsigned int room = FIRST_ROOM; result == NVML_ERROR_INSUFFICIENT_SIZE && room <= MOST_ROOM; room *= 4) {
        free(*array);
        *array = calloc(room, size);
        if (*array == NULL) return NVML_ERROR_MEMORY;
        *count = room;
        result = lister(context, count, *array);
    }
    return result;
}

nvmlReturn_t gp_hand_over(const void *array, unsigned int count, size_t size, void *to, unsigned int *room) {
    unsigned int there = *room;
    *room = count;
    if (count > there || (count > 0 && to == NULL)) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (count > 0) memcpy(to, array, count * size);
    return NVML_SUCCESS;
}
