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
#include <unistd.h>

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
