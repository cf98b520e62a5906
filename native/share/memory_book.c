/* The charge of each pointer and array of this process, so that a free releases what the allocation took.
 *
 * A charge is removed before the driver frees and is restored if the driver refuses: as soon as the driver has freed,
 * another thread may get the same pointer. Calls for memory that is not in the book (opened from another process, from a
 * pool, or older than this library) are passed on unchanged.
 */
#include <stdlib.h>

#include "memory.h"

static struct gp_table book;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gp_book_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    gp_table_forget(&book);
}

struct gp_charge *gp_charge_reserve(struct gp_gpu *gpu, uint64_t bytes) {
    struct gp_charge *charge = malloc(sizeof *charge);
    if (charge == NULL || !gp_reserve(gpu, bytes, GP_PLAIN)) {
        free(charge);
        return NULL;
    }
    *charge = (struct gp_charge){.gpu = gpu, .bytes = bytes, .context = gp_memory_context()};
    return charge;
}

static void put(struct gp_charge *charge) {
    pthread_mutex_lock(&lock);
    gp_table_put(&book, &charge->entry);
    pthread_mutex_unlock(&lock);
}

void gp_charge_keep(struct gp_charge *charge, uint64_t key) {
    charge->entry.key = key;
    put(charge);
}

void gp_charge_drop(struct gp_charge *charge) {
    gp_unreserve(charge->gpu, charge->bytes, GP_PLAIN);
    free(charge);
}

struct gp_charge *gp_charge_find(uint64_t key) {
    pthread_mutex_lock(&lock);
    struct gp_entry *entry = gp_table_take(&book, key);
    pthread_mutex_unlock(&lock);
    return (struct gp_charge *)entry;
}

static bool is_of(const struct gp_entry *entry, const void *context) {
    return ((const struct gp_charge *)entry)->context == (CUcontext)(uintptr_t)context;
}

struct gp_charge *gp_charges_of(CUcontext context) {
    pthread_mutex_lock(&lock);
    struct gp_entry *list = context == NULL ? NULL : gp_table_take_all(&book, is_of, context);
    pthread_mutex_unlock(&lock);
    return (struct gp_charge *)list;
}

void gp_charges_end(struct gp_charge *list, bool destroyed) {
    while (list != NULL) {
        struct gp_charge *next = (struct gp_charge *)list->entry.next;
        if (destroyed)
            gp_charge_drop(list);
        else
            put(list);
        list = next;
    }
}
