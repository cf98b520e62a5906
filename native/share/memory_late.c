/* Plain memory freed with cuMemFreeAsync. This is allowed but rare, and the memory is free only when the stream has
 * reached the call.
 *
 * The charge stays until an event recorded behind the call is reached. Events are checked before any refusal and
 * whenever pools are settled. If no event can be recorded, the charge is released at once: the driver keeps the memory
 * only while earlier work runs.
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
    if (OWN(cuEventCreate, event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    CUresult result = per_thread ? OWN(cuEventRecord_ptsz, *event, stream) : OWN(cuEventRecord, *event, stream);
    if (result != CUDA_SUCCESS)
        OWN(cuEventDestroy_v2, *event);
    return result == CUDA_SUCCESS;
}

void gp_late_add(struct gp_charge *charge, CUstream stream, bool per_thread) {
    CUevent event;
    if (gp_stream_is_capturing(stream, per_thread)) { /* a node of a graph: frees when it runs */
        gp_charge_keep(charge, charge->entry.key);
        return;
    }
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

/* Late frees of a context end with it: they return to the book, under a key that is no pointer of another one. */
void gp_late_closing(CUcontext context) {
    for (struct gp_charge *charge = take_all(), *next; charge != NULL; charge = next) {
        next = (struct gp_charge *)charge->entry.next;
        if (charge->context != context) {
            add(charge);
            continue;
        }
        OWN(cuEventDestroy_v2, (CUevent)(uintptr_t)charge->entry.key);
        gp_charge_keep(charge, (uint64_t)(uintptr_t)charge);
    }
}

void gp_late_settle(void) {
    for (struct gp_charge *charge = take_all(), *next; charge != NULL; charge = next) {
        next = (struct gp_charge *)charge->entry.next;
        CUevent event = (CUevent)(uintptr_t)charge->entry.key;
        if (OWN(cuEventQuery, event) != CUDA_ERROR_NOT_READY) {
            OWN(cuEventDestroy_v2, event);
            gp_charge_drop(charge);
            continue;
        }
        add(charge);
    }
}
