/* Claims a slot of the status page for this process.
 *
 * A process is identified by its pid, start time and pid namespace. All three stay the same over exec, but the GPU memory
 * of the former program is released. So if a program attaches for the first time and already has a slot, the slot was
 * left by the former program: its total is released and the slot is reused. (A child of fork or vfork has another pid
 * and never finds its parent's slot.)
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "ledger.h"

#define START_TIME_FIELD 22
/* Called when all slots are taken: some may belong to processes that have just died, which the arbiter clears within a
 * second. */
#define PATIENCE_TRIES 40
#define PATIENCE_STEP_NS 50000000L

/* Returns field 22 of /proc/self/stat; 0 if it cannot be read. The second field, the program's name, may contain
 * anything, so fields are counted from its last bracket. */
static uint64_t start_time(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < START_TIME_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

static uint64_t pid_namespace(void) {
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 && about.st_ino != 0 ? (uint64_t)about.st_ino : 1;
}

/* Returns a slot left by the program that this process ran before exec. */
static bool take_over(struct gpupool_status_gpu *status, uint64_t owner, uint64_t space, uint32_t *index) {
    for (uint32_t i = 0; i < GPUPOOL_SLOTS; i++) {
        struct gpupool_slot *slot = &status->slots[i];
        if (atomic_load(&slot->owner) == owner && atomic_load(&slot->pid_ns) == space) {
            *index = i;
            return gp_ledger_reset_slot(status, i);
        }
    }
    return false;
}

static bool take_free(struct gpupool_status_gpu *status, uint64_t owner, uint64_t space, uint32_t *index) {
    for (uint32_t i = 0; i < GPUPOOL_SLOTS; i++) {
        uint64_t free_slot = 0;
        if (atomic_compare_exchange_strong(&status->slots[i].owner, &free_slot, owner)) {
            atomic_store(&status->slots[i].pid_ns, space);
            *index = i;
            return true;
        }
    }
    return false;
}

static bool take(struct gpupool_status_gpu *status, uint64_t owner, uint64_t space, uint32_t *index) {
    if (take_over(status, owner, space, index))
        return true;
    const struct timespec step = {.tv_nsec = PATIENCE_STEP_NS};
    for (int tries = 0; tries < PATIENCE_TRIES; tries++) {
        if (take_free(status, owner, space, index))
            return true;
        nanosleep(&step, NULL);
    }
    return false;
}

bool gp_claim_slot(struct gp_gpu *gpu) {
    uint64_t start = start_time();
    if (start == 0)
        return false;
    uint64_t owner = gpupool_owner((uint32_t)getpid(), start);
    if (!take(gpu->status, owner, pid_namespace(), &gpu->slot_index))
        return false;
    gpu->slot = &gpu->status->slots[gpu->slot_index];
    return true;
}
