/* Opens and checks the pages of a lease.
 *
 * The folder's name may come from the environment and is not trusted: links are not followed, the files must be regular
 * and have exactly the size for their number of GPUs, and paths in them must be absolute and terminated. Mappings stay
 * for the life of the process; descriptors are closed at once, because programs close descriptors that they do not know.
 */
#include "lease_files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SILENT_MS 1000 /* a shorter wait for a GPU is not worth a message */
#define MAX_PAUSE_MS 200
#define MISFIT "has a file that is not of this version of gpupool"

const char *gp_lease_folder(void) {
    static const char bound[] = GPUPOOL_SLICE_FOLDER "/lease";
    if (access(bound, F_OK) == 0)
        return bound;
    const char *folder = secure_getenv(GPUPOOL_LEASE_DIR);
    return folder != NULL && folder[0] != '\0' ? folder : NULL;
}

static int open_entry(const char *folder, const char *entry, int flags) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", folder, entry);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    return open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

static bool has_entry(const char *folder, const char *entry) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", folder, entry);
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

bool gp_lease_is_lazy(const char *folder) { return has_entry(folder, GPUPOOL_WAITING); }

bool gp_lease_is_waiting(const char *folder) { return gp_lease_is_lazy(folder) && !has_entry(folder, "control"); }

/* Writes one byte unless there is one: the agent reads the size, and the time of the first write. */
static void ask_for_gpus(const char *folder) {
    int fd = open_entry(folder, GPUPOOL_WAITING, O_WRONLY);
    struct stat about;
    if (fd < 0)
        return;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0) {
        ssize_t written = write(fd, "1", 1); /* repeated until it succeeds */
        (void)written;
    }
    close(fd);
}

static bool has_no_gpus(const char *folder, const _Atomic uint32_t *suspended) {
    if (suspended == NULL)
        return gp_lease_is_waiting(folder);
    return atomic_load(suspended) != 0 && has_entry(folder, "control");
}

void gp_lease_wait(const char *folder, const _Atomic uint32_t *suspended) {
    long waited_ms = 0, pause_ms = 10;
    bool said = false;
    while (has_no_gpus(folder, suspended)) {
        ask_for_gpus(folder);
        if (!said && waited_ms >= SILENT_MS) {
            fprintf(stderr, "gpupool: waiting for a GPU; `gpupool why` says for what\n");
            said = true;
        }
        const struct timespec pause = {.tv_nsec = pause_ms * 1000000L};
        nanosleep(&pause, NULL);
        waited_ms += pause_ms;
        pause_ms = pause_ms * 2 > MAX_PAUSE_MS ? MAX_PAUSE_MS : pause_ms * 2;
    }
    if (said)
        fprintf(stderr, "gpupool: got a GPU after %ld s\n", waited_ms / 1000);
}

/* Maps a whole regular file of a plausible size; MAP_FAILED if it is not one. */
static void *map_file(int fd, int protection, size_t at_least, size_t at_most, size_t *size) {
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < (off_t)at_least ||
        about.st_size > (off_t)at_most)
        return MAP_FAILED;
    *size = (size_t)about.st_size;
    return mmap(NULL, *size, protection, MAP_SHARED, fd, 0);
}

static bool is_path(const char *text, size_t room) {
    return memchr(text, '\0', room) != NULL && (text[0] == '/' || text[0] == '\0');
}

static bool control_is_sound(const struct gpupool_control_header *control, size_t size) {
    return control->magic == GPUPOOL_PAGES_MAGIC && control->abi == GPUPOOL_PAGES_ABI && control->gpu_count >= 1 &&
           control->gpu_count <= GPUPOOL_MAX_GPUS &&
           size == sizeof *control + control->gpu_count * sizeof(struct gpupool_control_gpu) &&
           is_path(control->cuda_driver, sizeof control->cuda_driver) &&
           is_path(control->nvml_driver, sizeof control->nvml_driver) &&
           memchr(control->lease, '\0', sizeof control->lease) != NULL;
}

static bool status_is_sound(const struct gpupool_status_header *status, size_t size, uint32_t gpu_count) {
    return status->magic == GPUPOOL_PAGES_MAGIC && status->abi == GPUPOOL_PAGES_ABI && status->gpu_count == gpu_count &&
           size == sizeof *status + gpu_count * sizeof(struct gpupool_status_gpu);
}

static const char *map_control(const char *folder, struct gp_lease_files *files) {
    int fd = open_entry(folder, "control", O_RDONLY);
    if (fd < 0)
        return "cannot be read";
    size_t size = 0;
    size_t most = sizeof *files->control + GPUPOOL_MAX_GPUS * sizeof(struct gpupool_control_gpu);
    void *at = map_file(fd, PROT_READ, sizeof *files->control, most, &size);
    close(fd);
    if (at == MAP_FAILED)
        return MISFIT;
    files->control = at;
    if (control_is_sound(files->control, size))
        return NULL;
    munmap(at, size);
    files->control = NULL;
    return MISFIT;
}

static const char *map_status(const char *folder, struct gp_lease_files *files) {
    int fd = open_entry(folder, "status", O_RDWR);
    if (fd < 0)
        return "cannot be written";
    size_t size = 0;
    size_t most = sizeof *files->status + GPUPOOL_MAX_GPUS * sizeof(struct gpupool_status_gpu);
    void *at = map_file(fd, PROT_READ | PROT_WRITE, sizeof *files->status, most, &size);
    close(fd);
    if (at == MAP_FAILED)
        return MISFIT;
    files->status = at;
    if (status_is_sound(files->status, size, files->control->gpu_count))
        return NULL;
    munmap(at, size);
    files->status = NULL;
    return MISFIT;
}

const char *gp_lease_files_map(const char *folder, bool with_status, struct gp_lease_files *files) {
    memset(files, 0, sizeof *files);
    const char *wrong = map_control(folder, files);
    if (wrong == NULL && with_status)
        wrong = map_status(folder, files);
    return wrong;
}
