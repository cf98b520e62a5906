/* A lease's folder as the processes of the tenant see it: the control page and, where wanted, the status page. */
#ifndef GPUPOOL_LEASE_FILES_H
#define GPUPOOL_LEASE_FILES_H

#include <stdbool.h>

#include "gpupool/pages.h"

struct gp_lease_files {
    const struct gpupool_control_header *control; /* mapped read-only */
    struct gpupool_status_header *status;         /* mapped for writing; NULL when not asked for */
};

/* Returns the lease in GPUPOOL_SLICE_FOLDER, or else the folder named by GPUPOOL_LEASE_DIR; NULL if there is none. */
const char *gp_lease_folder(void);

/* Returns true if the folder is that of a lazy lease: it gets its pages when a program first needs them. */
bool gp_lease_is_lazy(const char *folder);
/* Returns true if a lazy lease has no GPUs yet, and therefore no pages. */
bool gp_lease_is_waiting(const char *folder);
/* Asks for the GPUs of a lease without any and waits until it has them, or until the lease is gone. `suspended` is the
 * word of its control page; NULL: it has no pages yet. */
void gp_lease_wait(const char *folder, const _Atomic uint32_t *suspended);

/* Checks and maps the files of a folder. No descriptor stays open. Returns NULL, or a part of a sentence that describes
 * the error. */
const char *gp_lease_files_map(const char *folder, bool with_status, struct gp_lease_files *files);

static inline const struct gpupool_control_gpu *gp_control_gpu(const struct gpupool_control_header *control,
                                                               uint32_t index) {
    return (const struct gpupool_control_gpu *)(const void *)(control + 1) + index;
}
static inline struct gpupool_status_gpu *gp_status_gpu(struct gpupool_status_header *status, uint32_t index) {
    return (struct gpupool_status_gpu *)(void *)(status + 1) + index;
}

#endif
