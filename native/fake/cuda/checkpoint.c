/* cuCheckpointProcess*: stop another process, take its memory from the GPUs, and give it back.
 *
 * RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING; a step from any other state is
 * ILLEGAL_STATE. Calls of a locked process wait. A lock waits for calls that have begun, a checkpoint for work of the
 * GPU. What the process stored stays in the machine's memory, where the simulated GPUs have it anyway.
 *
 * A process is known by its id, as itself sees it, once it has a context. The state is kept for each GPU that it uses.
 * Remapping to other GPUs and custom storage are NOT_SUPPORTED.
 */
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2 }; /* CUprocessState */

#define LOOK_NS 500000
#define MAX_PLACES (FAKE_GPUS * (FAKE_MIGS + 1))

/* A process on one GPU. */
struct place {
    struct fake_device *device;
    int slot;
};

static struct fake_process *process_at(const struct place *place) {
    return &place->device->state->processes[place->slot];
}

static bool find_on(struct fake_device *device, uint32_t pid, struct place *place) {
    bool found = false;
    fake_lock(device);
    fake_sweep(device);
    for (int slot = 0; slot < (int)FAKE_PROCESSES && !found; slot++) {
        const struct fake_process *process = &device->state->processes[slot];
        found = process->state == FAKE_LIVE && process->pid == pid;
        if (found) *place = (struct place){device, slot};
    }
    fake_unlock(device);
    return found;
}

/* All GPUs of a process, also those that this process does not see; their number. */
static size_t find_places(int pid, struct place places[MAX_PLACES]) {
    size_t count = 0;
    fake_migs_refresh();
    for (uint32_t i = 0; pid > 0 && i < (uint32_t)fake_gpu_count(); i++) {
        const struct fake_gpu *gpu = fake_gpu_at(i);
        for (int mig = -1; mig < (int)gpu->mig_count; mig++) {
            struct fake_device *device = fake_device_open(i, mig);
            if (device != NULL && find_on(device, (uint32_t)pid, &places[count])) count++;
        }
    }
    return count;
}

/* Success, with the places of the process, if it is in this state on all of them. */
static CUresult expect(int pid, uint32_t state, struct place places[MAX_PLACES], size_t *count) {
    if (fake_device_count() == 0) return CUDA_ERROR_NOT_INITIALIZED;
    *count = find_places(pid, places);
    if (*count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < *count; i++) {
        if (process_at(&places[i])->checkpoint != state) return CUDA_ERROR_ILLEGAL_STATE;
    }
    return CUDA_SUCCESS;
}

static void set_all(const struct place *places, size_t count, uint32_t state) {
    for (size_t i = 0; i < count; i++) process_at(&places[i])->checkpoint = state;
}

static void pause_ns(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

/* -- the other side: this process --------------------------------------------------------------------------------- */

static struct fake_process *own(const struct gpu *gpu) {
    return gpu->slot >= 0 ? &gpu->shared->state->processes[gpu->slot] : NULL;
}

bool fake_is_locked(void) {
    for (CUdevice i = 0; i < (CUdevice)fake_device_count(); i++) {
        const struct fake_process *process = own(fake_gpu(i));
        if (process != NULL && process->checkpoint != RUNNING) return true;
    }
    return false;
}

void fake_publish_calls(uint32_t count) {
    for (CUdevice i = 0; i < (CUdevice)fake_device_count(); i++) {
        struct fake_process *process = own(fake_gpu(i));
        if (process != NULL) process->calls = count;
    }
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

API CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    struct place places[MAX_PLACES];
    if (state == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (fake_device_count() == 0) return CUDA_ERROR_NOT_INITIALIZED;
    if (find_places(pid, places) == 0) return CUDA_ERROR_INVALID_VALUE;
    *state = (CUprocessState)process_at(&places[0])->checkpoint;
    return CUDA_SUCCESS;
}

/* The thread that carries on after a restore is the first one. */
API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    CUprocessState state;
    if (thread == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuCheckpointProcessGetState(pid, &state);
    if (result == CUDA_SUCCESS) *thread = pid;
    return result;
}

static bool has_calls(const struct place *places, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct fake_process *process = process_at(&places[i]);
        if (process->state == FAKE_LIVE && process->calls > 0) return true;
    }
    return false;
}

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    struct place places[MAX_PLACES];
    size_t count;
    if (pid == getpid()) return CUDA_ERROR_INVALID_VALUE; /* nobody could unlock it */
    CUresult result = expect(pid, RUNNING, places, &count);
    if (result != CUDA_SUCCESS) return result;
    uint64_t limit = args != NULL && args->timeoutMs > 0 ? fake_now() + args->timeoutMs * UINT64_C(1000000) : 0;
    set_all(places, count, LOCKED);
    while (has_calls(places, count)) {
        if (limit > 0 && fake_now() > limit) {
            set_all(places, count, RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        pause_ns(LOOK_NS);
        for (size_t i = 0; i < count; i++) {
            fake_lock(places[i].device);
            fake_sweep(places[i].device); /* it may have died in a call */
            fake_unlock(places[i].device);
        }
    }
    return CUDA_SUCCESS;
}

static void wait_for_work(const struct place *place) {
    bool over = false;
    while (!over) {
        fake_lock(place->device);
        over = process_at(place)->finish <= fake_advance(place->device, fake_now()) ||
               process_at(place)->state != FAKE_LIVE;
        fake_unlock(place->device);
        if (!over) pause_ns(LOOK_NS);
    }
}

API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    struct place places[MAX_PLACES];
    size_t count;
    if (args != NULL && args->customStorageInfo_out != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = expect(pid, LOCKED, places, &count);
    if (result != CUDA_SUCCESS) return result;
    for (size_t i = 0; i < count; i++) {
        wait_for_work(&places[i]);
        struct fake_process *process = process_at(&places[i]);
        fake_lock(places[i].device);
        for (int kind = 0; kind < FAKE_KINDS; kind++) {
            process->saved[kind] = process->memory[kind];
            process->memory[kind] = 0;
        }
        fake_unlock(places[i].device);
    }
    set_all(places, count, CHECKPOINTED);
    return CUDA_SUCCESS;
}

/* Takes what was saved, or as much of it as there is room for: then all of it is given back. */
static bool take_back(const struct place *place) {
    struct fake_process *process = process_at(place);
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        if (fake_take(place->device, place->slot, (enum fake_kind)kind, process->saved[kind])) continue;
        while (--kind >= 0) fake_give(place->device, place->slot, (enum fake_kind)kind, process->saved[kind]);
        return false;
    }
    return true;
}

API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    struct place places[MAX_PLACES];
    size_t count;
    if (args != NULL && (args->customStorageInfo_out != NULL || args->gpuPairsCount > 0)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = expect(pid, CHECKPOINTED, places, &count);
    if (result != CUDA_SUCCESS) return result;
    for (size_t i = 0; i < count; i++) {
        if (take_back(&places[i])) continue;
        while (i-- > 0) {
            for (int kind = 0; kind < FAKE_KINDS; kind++) {
                fake_give(places[i].device, places[i].slot, (enum fake_kind)kind, process_at(&places[i])->saved[kind]);
            }
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    set_all(places, count, LOCKED);
    return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    struct place places[MAX_PLACES];
    size_t count;
    (void)args;
    CUresult result = expect(pid, LOCKED, places, &count);
    if (result == CUDA_SUCCESS) set_all(places, count, RUNNING);
    return result;
}
