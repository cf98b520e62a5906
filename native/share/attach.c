/* Attaches this process to its lease, and handles fork and exit.
 *
 * Nothing happens before the first call of gp_attach(), which reads the pages, claims slots and registers handlers. The
 * lock belongs to this process only and is never held while the driver is called.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "attach.h"

#define NOT_YET (-1)

static _Atomic int state = NOT_YET; /* NOT_YET or enum gp_state */
static struct gp_gpu gpus[GPUPOOL_MAX_GPUS];
static uint32_t gpu_count;
static _Atomic(struct gp_gpu *) only; /* the lease's GPU while attached, if it has only one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Atomic bool exit_registered;

static void after_fork_in_child(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    atomic_store(&exit_registered, false);
    for (uint32_t i = 0; i < gpu_count; i++)
        gpus[i].slot = NULL;
    gp_memory_after_fork();
    gp_compute_after_fork();
    gp_forget_devices();
    atomic_store(&only, NULL);
    atomic_store(&state, NOT_YET);
}

static void register_fork(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static void at_exit(void) {
    if (atomic_load(&state) == GP_ATTACHED && !gp_is_suspended())
        gp_compute_at_exit();
}

void gp_attach_initialised(void) {
    if (atomic_load(&state) == GP_ATTACHED && !atomic_exchange(&exit_registered, true))
        atexit(at_exit);
}

static void complain(const struct gp_pages *pages, const char *wrong) {
    fprintf(stderr, "gpupool: the lease in %s %s; CUDA is refused\n", pages->folder, wrong);
}

/* Takes slots for all GPUs of the lease; returns NULL or a part of a sentence that describes the error. */
static const char *claim_slots(const struct gp_lease_files *files) {
    gpu_count = files->control->gpu_count;
    for (uint32_t i = 0; i < gpu_count; i++) {
        gpus[i].index = i;
        gpus[i].control = gp_control_gpu(files->control, i);
        gpus[i].status = gp_status_gpu(files->status, i);
        if (!gp_claim_slot(&gpus[i]))
            return "has no room for another process";
    }
    return NULL;
}

static enum gp_state attach(void) {
    const struct gp_pages *pages = gp_pages();
    if (pages->folder == NULL)
        return GP_FREE;
    const char *wrong = pages->wrong != NULL ? pages->wrong : claim_slots(&pages->files);
    if (wrong == NULL)
        return GP_ATTACHED;
    complain(pages, wrong);
    return GP_BROKEN;
}

static enum gp_state attach_once(void) {
    pthread_once(&fork_once, register_fork); /* before the lock, so that no child finds it held */
    pthread_mutex_lock(&lock);
    int now = atomic_load(&state);
    bool first = now == NOT_YET;
    if (first) {
        now = attach();
        atomic_store(&state, now);
        if (now == GP_ATTACHED && gpu_count == 1)
            atomic_store(&only, &gpus[0]);
    }
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; first && now == GP_ATTACHED && i < gpu_count; i++)
        gp_ring(&gpus[i], GPUPOOL_BELL_HELLO);
    return (enum gp_state)now;
}

enum gp_state gp_attach(void) {
    int now = atomic_load_explicit(&state, memory_order_acquire);
    return GP_LIKELY(now != NOT_YET) ? (enum gp_state)now : attach_once();
}

struct gp_gpu *gp_gpu_current(void) {
    struct gp_gpu *gpu = atomic_load_explicit(&only, memory_order_acquire);
    return GP_LIKELY(gpu != NULL) ? gpu : gp_gpu_of_context();
}

void gp_count_call(void) {
    const struct gp_gpu *gpu = atomic_load_explicit(&only, memory_order_acquire);
    if (gpu != NULL)
        atomic_fetch_add_explicit(&gpu->slot->calls, 1, memory_order_relaxed);
}

uint32_t gp_gpu_count(void) { return gp_attach() == GP_ATTACHED ? gpu_count : 0; }

struct gp_gpu *gp_gpu_at(uint32_t index) { return index < gp_gpu_count() ? &gpus[index] : NULL; }
