/* Opens, checks and maps the folders of leases that the agent adds, and releases them when it removes the lease.
 *
 * The folder belongs to the agent, the status file in it to the tenant. Links are not followed, and a mapped file must
 * have exactly the size for its number of GPUs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arbiter.h"

struct lease *arb_leases[ARB_LEASES];
uint32_t arb_lease_end;

struct lease *arb_lease_at(const char *path) {
    for (uint32_t i = 0; i < arb_lease_end; i++)
        if (arb_leases[i] != NULL && strcmp(arb_leases[i]->path, path) == 0)
            return arb_leases[i];
    return NULL;
}

struct lease *arb_lease_of(uint32_t number) {
    struct lease *lease = arb_leases[number % ARB_LEASES];
    return lease != NULL && lease->number == number ? lease : NULL;
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

struct opened { /* content of a folder, before it is a lease */
    int folder, status_fd, bell;
    struct stat status_about;
    struct gpupool_control_header *control;
    struct gpupool_status_header *status;
    size_t control_size, status_size;
};

static void *map(int folder, const char *name, size_t *size, int *fd, struct stat *about) {
    *fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return NULL;
    size_t most = GPUPOOL_PAGE + GPUPOOL_MAX_GPUS * sizeof(struct gpupool_status_gpu);
    if (fstat(*fd, about) == 0 && S_ISREG(about->st_mode) && about->st_size >= (off_t)(2 * GPUPOOL_PAGE) &&
        about->st_size <= (off_t)most) {
        *size = (size_t)about->st_size;
        void *at = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        if (at != MAP_FAILED)
            return at;
    }
    close(*fd);
    *fd = -1;
    return NULL;
}

/* Copies the file with read(), which cannot fault: the tenant may have truncated it since its size was checked. */
static bool status_is_sound(const struct opened *opened, uint32_t gpu_count) {
    struct gpupool_status_header header;
    return pread(opened->status_fd, &header, 16, 0) == 16 && header.magic == GPUPOOL_PAGES_MAGIC &&
           header.abi == GPUPOOL_PAGES_ABI && header.gpu_count == gpu_count &&
           opened->status_size == sizeof header + gpu_count * sizeof(struct gpupool_status_gpu);
}

static bool control_is_sound(const struct opened *opened) {
    const struct gpupool_control_header *control = opened->control;
    return control->magic == GPUPOOL_PAGES_MAGIC && control->abi == GPUPOOL_PAGES_ABI && control->gpu_count >= 1 &&
           control->gpu_count <= GPUPOOL_MAX_GPUS &&
           opened->control_size == sizeof *control + control->gpu_count * sizeof(struct gpupool_control_gpu);
}

static void close_all(struct opened *opened) {
    if (opened->control != NULL)
        munmap(opened->control, opened->control_size);
    if (opened->status != NULL)
        munmap(opened->status, opened->status_size);
    if (opened->status_fd >= 0)
        close(opened->status_fd);
    if (opened->bell >= 0)
        close(opened->bell);
    if (opened->folder >= 0)
        close(opened->folder);
}

/* Returns NULL, or a sentence that describes the error. */
static const char *open_folder(const char *path, struct opened *opened) {
    struct stat about;
    int control_fd = -1;
    *opened = (struct opened){.folder = -1, .status_fd = -1, .bell = -1};
    opened->folder = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (opened->folder < 0)
        return "The lease's folder cannot be opened.";
    opened->control = map(opened->folder, "control", &opened->control_size, &control_fd, &about);
    if (control_fd >= 0)
        close(control_fd);
    if (opened->control == NULL || !control_is_sound(opened))
        return "The lease's control file is not of this version of gpupool.";
    opened->status =
        map(opened->folder, "status", &opened->status_size, &opened->status_fd, &opened->status_about);
    if (opened->status == NULL || !status_is_sound(opened, opened->control->gpu_count))
        return "The lease's status file is not of this version of gpupool.";
    opened->bell = arb_bell_open(opened->folder, opened->status_about.st_uid, opened->status_about.st_mode);
    return opened->bell < 0 ? "The lease's bell cannot be made." : NULL;
}

/* -- adding -------------------------------------------------------------------------------------------------------- */

static void seat_at(struct lease *lease, uint32_t index) {
    struct seat *seat = &lease->seats[index];
    seat->lease = lease;
    seat->index = index;
    seat->control = (struct gpupool_control_gpu *)(void *)(lease->control + 1) + index;
    seat->status = (struct gpupool_status_gpu *)(void *)(lease->status + 1) + index;
    seat->control->uuid_text[sizeof seat->control->uuid_text - 1] = '\0';
}

static struct lease *make(const char *path, const struct opened *opened, uint32_t place) {
    static uint32_t generation;
    uint32_t count = opened->control->gpu_count;
    struct lease *lease = calloc(1, sizeof *lease + count * sizeof(struct seat));
    char *copy = strdup(path);
    if (lease == NULL || copy == NULL) {
        free(lease);
        free(copy);
        return NULL;
    }
    *lease = (struct lease){.path = copy, .bell = opened->bell, .status_fd = opened->status_fd, .gpu_count = count};
    lease->number = ++generation * ARB_LEASES + place;
    lease->owner = opened->status_about.st_uid;
    lease->mode = opened->status_about.st_mode;
    lease->control = opened->control;
    lease->status = opened->status;
    lease->control_size = opened->control_size;
    lease->status_size = opened->status_size;
    for (uint32_t i = 0; i < count; i++)
        seat_at(lease, i);
    return lease;
}

static uint32_t free_place(void) {
    for (uint32_t i = 0; i < ARB_LEASES; i++)
        if (arb_leases[i] == NULL)
            return i;
    return ARB_LEASES;
}

static void begin(struct lease *lease) {
    arb_processes_scan(lease);
    arb_processes_check(lease, true, false);
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        if (!arb_gpus_join(&lease->seats[i]))
            arb_warn(lease, lease->path, "Two GPUs of the lease are the same, or memory is short: one is not shared.");
    arb_gpus_stir(lease);
    arb_report_usage(lease);
}

void arb_lease_add(const char *path) {
    arb_lease_remove(path);
    struct opened opened;
    uint32_t place = free_place();
    const char *wrong = place == ARB_LEASES ? "There are too many leases on this node." : open_folder(path, &opened);
    struct lease *lease = wrong != NULL ? NULL : make(path, &opened, place);
    if (place == ARB_LEASES || lease == NULL || !arb_poll_add(lease->bell, ARB_BELL, lease->number)) {
        arb_warn(NULL, path, wrong != NULL ? wrong : "There is no memory or no descriptor left for the lease.");
        if (place < ARB_LEASES)
            close_all(&opened);
        if (lease != NULL)
            free(lease->path);
        free(lease);
        return;
    }
    close(opened.folder);
    arb_leases[place] = lease;
    if (place >= arb_lease_end)
        arb_lease_end = place + 1;
    begin(lease);
}

/* -- removing ------------------------------------------------------------------------------------------------------ */

void arb_lease_remove(const char *path) {
    struct lease *lease = arb_lease_at(path);
    if (lease == NULL)
        return;
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        arb_gpus_leave(&lease->seats[i]);
    arb_processes_forget(lease);
    close(lease->bell);
    close(lease->status_fd);
    arb_leases[lease->number % ARB_LEASES] = NULL; /* before the pages are unmapped: the fault handler searches this table */
    munmap(lease->control, lease->control_size);
    munmap(lease->status, lease->status_size);
    free(lease->path);
    free(lease);
}

void arb_lease_distrust(struct lease *lease) {
    if (lease->tampered)
        return;
    lease->tampered = true;
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        arb_gpus_leave(&lease->seats[i]);
    arb_guard_replace(lease);
    arb_processes_scan(lease);
    arb_warn(lease, lease->path,
             "A program changed the size or the head of its lease's status page: it gets no more GPU time.");
}

void arb_lease_inspect(struct lease *lease) {
    struct stat about;
    bool whole = !lease->cut && fstat(lease->status_fd, &about) == 0 && about.st_size >= (off_t)lease->status_size;
    if (!whole || lease->status->magic != GPUPOOL_PAGES_MAGIC || lease->status->abi != GPUPOOL_PAGES_ABI) {
        arb_lease_distrust(lease);
        return;
    }
    if (about.st_mode == lease->mode)
        return;
    lease->mode = about.st_mode;
    arb_bell_mode(lease);
}
