/* Declarations for the attach*.c files and proxy.c. */
#ifndef GPUPOOL_SHARE_ATTACH_H
#define GPUPOOL_SHARE_ATTACH_H

#include "lease_files.h"
#include "share.h"

/* attach_pages.c: the pages of the lease, mapped at the first call in the process and inherited by its children. The
 * first call of a process on a lazy lease waits until the lease has GPUs. */
struct gp_pages {
    const char *folder; /* NULL: no lease was given */
    const char *wrong;  /* NULL: they are mapped */
    bool lazy;          /* the lease got its GPUs after the start of its program */
    struct gp_lease_files files;
};
const struct gp_pages *gp_pages(void);
/* The agent may suspend the processes of the lease, and has done so. */
bool gp_is_suspendable(void);
bool gp_is_suspended(void);
/* Asks for GPUs and waits for them while the lease is suspended. */
void gp_wait_while_suspended(void);

/* attach.c: counts a call of the driver in the slot of this process. */
void gp_count_call(void);

/* attach_slot.c: takes a slot of this GPU for this process; false when all are taken or /proc cannot be read. */
bool gp_claim_slot(struct gp_gpu *gpu);

/* attach.c: the real cuInit has returned CUDA_SUCCESS. */
void gp_attach_initialised(void);

/* attach_gpu.c: devices may have other numbers in the child of a fork. */
void gp_forget_devices(void);
/* attach_gpu.c: the slow path of gp_gpu_current(). */
struct gp_gpu *gp_gpu_of_context(void);

#endif
