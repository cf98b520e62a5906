/* The processes of the lease. */
#ifndef GPUPOOL_NVML_OWN_H
#define GPUPOOL_NVML_OWN_H

#include "view.h"

enum { OWN_ROOM = GPUPOOL_MAX_GPUS * GPUPOOL_SLOTS + 1 };

/* The processes of the lease: as the driver numbers them and as this process does. */
struct own {
    unsigned int count;
    struct {
        unsigned int driver_pid, pid;
    } processes[OWN_ROOM];
};

/* Reads the slots of all GPUs of the lease; this process is always included. */
void gp_read_own(struct own *own);

/* Keeps in an array of `count` elements of `size` bytes, with a pid at `pid_at`, only the elements of the lease, with
 * their pids as this process knows them; returns their number. */
unsigned int gp_keep_own(const struct own *own, void *array, unsigned int count, size_t size, size_t pid_at);

/* Reads one of the driver's lists into an array of *count elements. Like NVML's own functions it returns
 * NVML_ERROR_INSUFFICIENT_SIZE and the needed count if there is no room. */
typedef nvmlReturn_t gp_lister(void *context, unsigned int *count, void *array);

/* Reads a whole list of any length. The caller frees *array. */
nvmlReturn_t gp_read_list(gp_lister *lister, void *context, size_t size, void **array, unsigned int *count);

/* Copies a list to a caller with room for *room elements, by NVML's rules. */
nvmlReturn_t gp_hand_over(const void *array, unsigned int count, size_t size, void *to, unsigned int *room);

#endif
