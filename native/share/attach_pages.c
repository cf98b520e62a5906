/* Maps the pages of the lease once in the life of a process; children of fork find them mapped.
 *
 * Mapping is apart from attaching because the real driver's path stands in the control page: programs look up the
 * driver's functions before cuInit, often in a parent that will only fork.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "attach.h"

static struct gp_pages pages;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void map_pages(void) {
    const char *folder = gp_lease_folder();
    if (folder == NULL)
        return;
    pages.folder = strdup(folder);
    if (pages.folder == NULL)
        pages.folder = "";
    pages.lazy = gp_lease_is_lazy(pages.folder);
    gp_lease_wait(pages.folder, NULL);
    pages.wrong = gp_lease_files_map(pages.folder, true, &pages.files);
}

const struct gp_pages *gp_pages(void) {
    pthread_once(&once, map_pages);
    return &pages;
}

bool gp_is_suspendable(void) {
    const struct gpupool_control_header *control = gp_pages()->files.control;
    return control != NULL && control->suspendable != 0;
}

bool gp_is_suspended(void) { return gp_is_suspendable() && atomic_load(&pages.files.control->suspended) != 0; }

void gp_wait_while_suspended(void) {
    if (GP_UNLIKELY(gp_is_suspended()))
        gp_lease_wait(pages.folder, &pages.files.control->suspended);
}
