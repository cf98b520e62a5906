/* Plain memory freed with cuMemFreeAsync: allowed, rare, and free only once the stream has come that far.
 *
 * It stays charged until an event recorded behind the call is reached. Events are looked at before anything is refused
 * and whenever pools are settled. Where no event can be had the charge goes at once: the driver keeps the memory for as
 * long as work queued before runs, no longer.
 */
#include <stdlib.h>

#include "memory.h"

static struct gp_charge *late; /* key: the event */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gp_late_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    late = NULL;
}

static void add(struct gp_charge *charge) {
    pthread_mutex_lock(&lock);
    charge->entry.next = (struct gp_entry *)late;
    late = charge;
    pthread_mutex_unlock(&lock);
}

static bool record(CUevent *event, CUstream stream, bool per_thread) {
    if (REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    CUresult result = per_thread ? REAL(cuEventRecord_ptsz)(*event, stream) : REAL(cuEventRecord)(*event, stream);
    if (result != CUDA_SUCCESS)
        REAL(cuEventDestroy_v2)(*event);
    return result == CUDA_SUCCESS;
}

void gp_late_add(struct gp_charge *charge, CUstream stream, bool per_thread) {
    CUevent event;
    if (gp_memory_context() != charge->context || !record(&event, stream, per_thread)) {
        gp_charge_drop(charge);
        return;
    }
    charge->entry.key = (uint64_t)(uintptr_t)event;
    add(charge);
}

static struct gp_charge *take_all(void) {
    pthread_mutex_lock(&lock);
    struct gp_charge *list = late;
    late = NULL;
    pthread_mutex_unlock(&lock);
    return list;
}

/* What is late of a context goes with it: back into the book, under a key that is no pointer of anything else. */
void gp_late_closing(CUcontext context) {
    for (struct gp_charge *charge = take_all(), *next; charge != NULL; charge = next) {
        next = (struct gp_charge *)charge->entry.next;
        if (charge->context != context) {
            add(charge);
            continue;
        }
        REAL(cuEventDestroy_v2)((CUevent)(uintptr_t)charge->entry.key);
        gp_charge_keep(charge, (uint64_t)(uintptr_t)charge);
    }
}

void gp_late_settle(void) {
    for (struct gp_charge *charge = take_all(), *next; charge != NULL; charge = next) {
        next = (struct gp_charge *)charge->entry.next;
        CUevent event = (CUevent)(uintptr_t)charge->entry.key;
        if (REAL(cuEventQuery)(event) != CUDA_ERROR_NOT_READY) {
            REAL(cuEventDestroy_v2)(event);
            gp_charge_drop(charge);
            continue;
        }
        add(charge);
    }
}
