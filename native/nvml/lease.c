/* The lease's pages, read only, and which device is which GPU of the lease.
 *
 * Devices are distinguished by their UUIDs: handles may change when NVML is shut down and started again.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>

#include "lease_files.h"
#include "view.h"

#define UUID_ROOM NVML_DEVICE_UUID_V2_BUFFER_SIZE

static struct gp_lease_files files;
static bool leased;
static _Atomic bool mapped; /* false: never tried, or the lease is lazy and has no GPUs yet */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void map_pages(void) {
    const char *folder = gp_lease_folder();
    leased = folder != NULL;
    if (leased && gp_lease_is_waiting(folder)) return;
    if (leased && gp_lease_files_map(folder, true, &files) != NULL) files.control = NULL;
    atomic_store(&mapped, true);
}

bool gp_leased(void) {
    if (atomic_load(&mapped)) return leased;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&mapped)) map_pages();
    pthread_mutex_unlock(&lock);
    return leased;
}

bool gp_waits(void) { return gp_leased() && !atomic_load(&mapped); }

uint32_t gp_gpu_count(void) { return gp_leased() && files.control != NULL ? files.control->gpu_count : 0; }
const struct gpupool_control_gpu *gp_control(uint32_t index) { return gp_control_gpu(files.control, index); }
const struct gpupool_status_gpu *gp_status(uint32_t index) { return gp_status_gpu(files.status, index); }
const char *gp_nvml_path(void) { return gp_gpu_count() > 0 ? files.control->nvml_driver : NULL; }

nvmlReturn_t gp_handle_of(uint32_t index, nvmlDevice_t *device) {
    char uuid[UUID_ROOM + 1] = "";
    memcpy(uuid, gp_control(index)->uuid_text, UUID_ROOM);
    return REAL(nvmlDeviceGetHandleByUUID)(uuid, device);
}

static bool uuid_of(nvmlDevice_t device, char uuid[UUID_ROOM]) {
    return REAL(nvmlDeviceGetUUID)(device, uuid, UUID_ROOM) == NVML_SUCCESS;
}

static bool is_gpu(uint32_t index, const char *uuid) {
    return strncasecmp(gp_control(index)->uuid_text, uuid, UUID_ROOM) == 0;
}

int gp_index_of(nvmlDevice_t device) {
    char uuid[UUID_ROOM];
    if (gp_gpu_count() == 0 || !uuid_of(device, uuid)) return -1;
    for (uint32_t i = 0; i < gp_gpu_count(); i++) {
        if (is_gpu(i, uuid)) return (int)i;
    }
    return -1;
}

/* Returns true if a GPU of the lease is a MIG instance on this card. */
static bool carries_an_instance(nvmlDevice_t card) {
    char uuid[UUID_ROOM], other[UUID_ROOM];
    if (!uuid_of(card, uuid)) return false;
    for (uint32_t i = 0; i < gp_gpu_count(); i++) {
        nvmlDevice_t instance, parent;
        if (gp_handle_of(i, &instance) == NVML_SUCCESS &&
            REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(instance, &parent) == NVML_SUCCESS &&
            uuid_of(parent, other) && strcasecmp(uuid, other) == 0) {
            return true;
        }
    }
    return false;
}

bool gp_belongs(nvmlDevice_t device) {
    nvmlDevice_t card;
    if (gp_index_of(device) >= 0 || carries_an_instance(device)) return true;
    return REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(device, &card) == NVML_SUCCESS &&
           gp_index_of(card) >= 0;
}
