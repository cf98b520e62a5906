/* The shared state of a simulated GPU: mapping it, claiming a slot, and cleaning up after dead processes.
 *
 * A process is alive while it holds a lock on its byte of the .alive file: the kernel gives that up in the moment of
 * death, also of one that nobody has waited for and also where process ids of namespaces differ. The descriptor is
 * never closed, because closing any descriptor of a file gives up a process's locks on it.
 */
#include "gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fake_device devices[FAKE_GPUS][FAKE_MIGS + 1];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void read_boot(char boot[40]) {
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    memset(boot, 0, 40);
    if (file < 0) return;
    if (read(file, boot, 36) < 0) boot[0] = '\0';
    close(file);
}

static uint64_t start_ticks(void) {
    char text[1024];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = '\0';
    char *field = strrchr(text, ')');
    for (int i = 2; field != NULL && i < 22; i++) field = strchr(field + 1, ' ');
    return field != NULL ? strtoull(field, NULL, 10) : 0;
}

static int open_shared(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0 && fchmod(file, 0666) != 0 && errno != EPERM) return file; /* another user's: as it is */
    return file;
}

/* Under the file's lock, which ends with its holder: an incomplete file is created again. */
static void begin(struct fake_state *state, uint64_t memory_bytes) {
    char boot[40];
    read_boot(boot);
    if (state->magic == FAKE_MAGIC && state->abi == FAKE_ABI && memcmp(state->boot, boot, sizeof boot) == 0) return;
    state->magic = 0;
    memset(&state->boot, 0, sizeof *state - offsetof(struct fake_state, boot));
    memcpy(state->boot, boot, sizeof boot);
    state->memory_bytes = memory_bytes;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state->abi = FAKE_ABI;
    state->magic = FAKE_MAGIC;
}

static struct fake_state *map_state(const char *path, uint64_t memory_bytes) {
    int file = open_shared(path);
    if (file < 0) return NULL;
    struct fake_state *state = NULL;
    if (flock(file, LOCK_EX) == 0 && ftruncate(file, sizeof *state) == 0) {
        void *at = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) {
            state = at;
            begin(state, memory_bytes);
        }
    }
    flock(file, LOCK_UN); /* directly: the mapping keeps the file open */
    close(file);
    return state;
}

static bool open_device(struct fake_device *device, const struct fake_gpu *gpu, int mig) {
    char path[4096], alive[4128], part[16] = "";
    const char *folder = fake_folder();
    if (mig >= 0) snprintf(part, sizeof part, ".%d", mig);
    int length = snprintf(path, sizeof path, "%s/gpu-%u%s.state", folder, gpu->index, part);
    if (length >= (int)sizeof path) return false;
    snprintf(alive, sizeof alive, "%.*s.alive", length - (int)strlen(".state"), path);
    device->gpu = gpu;
    device->mig = mig >= 0 ? &gpu->migs[mig] : NULL;
    device->alive = open_shared(alive);
    if (device->alive < 0) return false;
    device->state = map_state(path, mig >= 0 ? device->mig->memory_bytes : gpu->memory_bytes);
    return device->state != NULL;
}

struct fake_device *fake_device_open(uint32_t index, int mig) {
    const struct fake_gpu *gpu = fake_gpu_at(index);
    if (gpu == NULL || mig >= (int)gpu->mig_count) return NULL;
    struct fake_device *device = &devices[index][mig + 1];
    pthread_mutex_lock(&opening);
    bool usable = (mig < 0 || gpu->migs[mig].usable) && (device->state != NULL || open_device(device, gpu, mig));
    pthread_mutex_unlock(&opening);
    return usable ? device : NULL;
}

/* The lock's last holder died with it: only the set of live slots may be inconsistent. */
static void repair(struct fake_state *state) {
    uint64_t live[FAKE_PROCESSES / 64] = {0};
    for (uint32_t slot = 0; slot < FAKE_PROCESSES; slot++) {
        if (state->processes[slot].state == FAKE_LIVE) live[slot / 64] |= UINT64_C(1) << slot % 64;
    }
    for (uint32_t i = 0; i < FAKE_PROCESSES / 64; i++) state->live[i] = live[i];
    state->swept_ns = 0;
}

void fake_lock(struct fake_device *device) {
    if (pthread_mutex_lock(&device->state->lock) == EOWNERDEAD) {
        repair(device->state);
        pthread_mutex_consistent(&device->state->lock);
    }
}

void fake_unlock(struct fake_device *device) { pthread_mutex_unlock(&device->state->lock); }

static bool alive(const struct fake_device *device, int slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(device->alive, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void set_live(struct fake_state *state, int slot, bool live) {
    uint64_t bit = UINT64_C(1) << slot % 64;
    state->processes[slot].state = live ? FAKE_LIVE : FAKE_GONE;
    if (live) state->live[slot / 64] |= bit;
    else state->live[slot / 64] &= ~bit;
}

static void bury(struct fake_device *device, int slot) {
    struct fake_process *process = &device->state->processes[slot];
    fake_drop(device, slot);
    for (int kind = 0; kind < FAKE_KINDS; kind++) process->memory[kind] = 0;
    process->gone_ns = fake_now();
    set_live(device->state, slot, false);
}

void fake_sweep(struct fake_device *device) {
    device->state->swept_ns = fake_now();
    for (uint32_t word = 0; word < FAKE_PROCESSES / 64; word++) {
        for (uint64_t bits = device->state->live[word]; bits != 0; bits &= bits - 1) {
            int slot = (int)word * 64 + __builtin_ctzll(bits);
            if (!alive(device, slot)) bury(device, slot);
        }
    }
}

/* Returns a free slot, or that of the process that ended first. */
static int choose_slot(const struct fake_state *state) {
    int oldest = -1;
    for (int slot = 0; slot < (int)FAKE_PROCESSES; slot++) {
        const struct fake_process *process = &state->processes[slot];
        if (process->state == FAKE_FREE) return slot;
        if (process->state == FAKE_LIVE) continue;
        if (oldest < 0 || process->gone_ns < state->processes[oldest].gone_ns) oldest = slot;
    }
    return oldest;
}

int fake_join(struct fake_device *device) {
    fake_sweep(device);
    int slot = choose_slot(device->state);
    if (slot < 0) return -1;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(device->alive, F_SETLK, &lock) != 0) return -1;
    struct fake_process *process = &device->state->processes[slot];
    memset(process, 0, sizeof *process);
    process->pid = (uint32_t)getpid();
    process->start = start_ticks();
    process->joined_ns = fake_now();
    set_live(device->state, slot, true);
    return slot;
}

void fake_leave(struct fake_device *device, int slot) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    bury(device, slot);
    fcntl(device->alive, F_SETLK, &lock);
}

uint64_t fake_process_used(const struct fake_process *process) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < FAKE_KINDS; kind++) bytes += process->memory[kind];
    return bytes;
}

uint64_t fake_used(const struct fake_device *device) {
    uint64_t bytes = 0;
    for (uint32_t word = 0; word < FAKE_PROCESSES / 64; word++) {
        for (uint64_t bits = device->state->live[word]; bits != 0; bits &= bits - 1) {
            bytes += fake_process_used(&device->state->processes[word * 64 + (uint32_t)__builtin_ctzll(bits)]);
        }
    }
    return bytes;
}

static bool fits(const struct fake_device *device, uint64_t bytes) {
    uint64_t used = fake_used(device), all = device->state->memory_bytes;
    return used <= all && bytes <= all - used;
}

bool fake_take(struct fake_device *device, int slot, enum fake_kind kind, uint64_t bytes) {
    fake_lock(device);
    bool there = fits(device, bytes);
    if (!there) {
        fake_sweep(device);
        there = fits(device, bytes);
    }
    if (there) {
        struct fake_process *process = &device->state->processes[slot];
        process->memory[kind] += bytes;
        uint64_t used = fake_process_used(process);
        if (used > process->peak_bytes) process->peak_bytes = used;
    }
    fake_unlock(device);
    return there;
}

void fake_give(struct fake_device *device, int slot, enum fake_kind kind, uint64_t bytes) {
    fake_lock(device);
    device->state->processes[slot].memory[kind] -= bytes;
    fake_unlock(device);
}
