/* MIG instances of simulated cards: their profiles and places, and the file mig.conf with those that exist now.
 *
 * Profiles and places are those of the A100 and H100, as NVIDIA's MIG user guide lists them ("Supported MIG Profiles",
 * and `nvidia-smi mig -lgip`, `-lgipp`): seven slices of the processors, eight of the memory. A place is one of memory
 * slices; two instances may not overlap.
 *
 * gpus.conf describes the instances until the first change through NVML. From then on mig.conf has those of all cards,
 * one in each line:
 *
 *     <card> <place in migs> <id> <profile id> <start> <size> <0 or 1: compute instance> <memory bytes> \
 *         <multiprocessors> <uuid> <profile>
 *
 * It is replaced as a whole under a lock on mig.lock. Each process reads it again when it has changed.
 */
#include "gpus.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMORY_SLICES = 8, COMPUTE_SLICES = 7 };

static const struct fake_profile profiles[] = {
    {.number = 0, .id = 19, .slices = 1, .memory_slices = 1, .count = 7, .starts = {0, 1, 2, 3, 4, 5, 6}},
    {.number = 1, .id = 14, .slices = 2, .memory_slices = 2, .count = 3, .starts = {0, 2, 4}},
    {.number = 2, .id = 9, .slices = 3, .memory_slices = 4, .count = 2, .starts = {0, 4}},
    {.number = 3, .id = 5, .slices = 4, .memory_slices = 4, .count = 1, .starts = {0}},
    {.number = 4, .id = 0, .slices = 7, .memory_slices = 8, .count = 1, .starts = {0}},
    {.number = 7, .id = 20, .slices = 1, .memory_slices = 1, .media = true, .count = 7,
     .starts = {0, 1, 2, 3, 4, 5, 6}},
    {.number = 9, .id = 15, .slices = 1, .memory_slices = 2, .count = 4, .starts = {0, 2, 4, 6}},
};
enum { PROFILES = sizeof profiles / sizeof *profiles };

static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static struct stat last; /* all zero: no file */

const struct fake_profile *fake_profile_numbered(uint32_t number) {
    for (int i = 0; i < PROFILES; i++) {
        if (profiles[i].number == number) return &profiles[i];
    }
    return NULL;
}

const struct fake_profile *fake_profile_of_id(uint32_t id) {
    for (int i = 0; i < PROFILES; i++) {
        if (profiles[i].id == id) return &profiles[i];
    }
    return NULL;
}

void fake_profile_name(const struct fake_profile *profile, const struct fake_gpu *gpu, char name[32]) {
    uint64_t mib = (gpu->memory_bytes >> 20) * profile->memory_slices / MEMORY_SLICES;
    snprintf(name, 32, "%ug.%" PRIu64 "gb%s", profile->slices, (mib + 512) / 1024, profile->media ? "+me" : "");
}

/* Returns a bit for each memory slice from `start`. */
static uint32_t mask(int32_t start, uint32_t size) { return ((UINT32_C(1) << size) - 1) << start; }

uint32_t fake_profile_room(const struct fake_profile *profile, const struct fake_gpu *gpu, int32_t *start) {
    uint32_t taken = 0, fit = 0;
    for (uint32_t k = 0; k < gpu->mig_count; k++) {
        const struct fake_mig *mig = &gpu->migs[k];
        if (!mig->exists) continue;
        if (mig->start < 0) return 0; /* the description has more than fits */
        const struct fake_profile *other = fake_profile_of_id(mig->profile_id);
        if (profile->media && other != NULL && other->media) return 0;
        taken |= mask(mig->start, mig->size);
    }
    for (uint32_t i = 0; i < profile->count; i++) {
        uint32_t place = mask((int32_t)profile->starts[i], profile->memory_slices);
        if ((taken & place) != 0) continue;
        if (fit++ == 0 && start != NULL) *start = (int32_t)profile->starts[i];
        taken |= place;
    }
    return profile->media && fit > 1 ? 1 : fit;
}

void fake_migs_placed(struct fake_gpu *gpu) {
    for (uint32_t k = 0; k < gpu->mig_count; k++) {
        struct fake_mig *mig = &gpu->migs[k];
        mig->id = k + 1;
        mig->start = -1;
        for (int i = 0; i < PROFILES && mig->start < 0; i++) {
            char name[32];
            fake_profile_name(&profiles[i], gpu, name);
            if (strcmp(name, mig->profile) != 0) continue;
            mig->profile_id = profiles[i].id;
            mig->size = profiles[i].memory_slices;
            fake_profile_room(&profiles[i], gpu, &mig->start);
        }
        mig->exists = mig->usable = true;
    }
}

static void path_of(char path[4096], const char *name) { snprintf(path, 4096, "%s/%s", fake_folder(), name); }

/* Replaces an instance. Its fields are only written while it is absent. */
static void take(struct fake_gpu *gpu, uint32_t place, const struct fake_mig *found) {
    struct fake_mig *mig = &gpu->migs[place];
    if (mig->exists && found->exists && strcmp(mig->uuid, found->uuid) == 0) {
        mig->usable = found->usable;
        return;
    }
    mig->exists = mig->usable = false;
    if (!found->exists) return;
    *mig = *found;
    if (place >= gpu->mig_count) gpu->mig_count = place + 1;
}

static void read_table(FILE *file) {
    static struct fake_mig table[FAKE_GPUS][FAKE_MIGS];
    char line[1024];
    memset(table, 0, sizeof table);
    while (fgets(line, sizeof line, file) != NULL) {
        struct fake_mig mig = {.exists = true};
        uint32_t card, place, usable;
        int fields = sscanf(line,
                            "%" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNd32 " %" SCNu32 " %" SCNu32
                            " %" SCNu64 " %" SCNu32 " %95s %31s",
                            &card, &place, &mig.id, &mig.profile_id, &mig.start, &mig.size, &usable, &mig.memory_bytes,
                            &mig.multiprocessors, mig.uuid, mig.profile);
        if (fields != 11 || (int)card >= fake_gpu_count() || place >= FAKE_MIGS) continue;
        mig.usable = usable != 0;
        if (fake_uuid_bytes(mig.uuid, mig.uuid_bytes)) table[card][place] = mig;
    }
    for (uint32_t i = 0; (int)i < fake_gpu_count(); i++) {
        for (uint32_t k = 0; k < FAKE_MIGS; k++) take(fake_gpu_changed(i), k, &table[i][k]);
    }
}

void fake_migs_refresh(void) {
    char path[4096];
    struct stat now;
    path_of(path, "mig.conf");
    if (stat(path, &now) != 0) return;
    pthread_mutex_lock(&reading);
    bool same = now.st_ino == last.st_ino && now.st_size == last.st_size && now.st_mtim.tv_sec == last.st_mtim.tv_sec &&
                now.st_mtim.tv_nsec == last.st_mtim.tv_nsec;
    FILE *file = same ? NULL : fopen(path, "re");
    if (file != NULL) {
        fstat(fileno(file), &last);
        read_table(file);
        fclose(file);
    }
    pthread_mutex_unlock(&reading);
}

int fake_migs_begin(void) {
    char path[4096];
    path_of(path, "mig.lock");
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock >= 0) flock(lock, LOCK_EX);
    fake_migs_refresh();
    return lock;
}

static bool write_table(FILE *file) {
    for (uint32_t i = 0; (int)i < fake_gpu_count(); i++) {
        const struct fake_gpu *gpu = fake_gpu_at(i);
        for (uint32_t k = 0; k < gpu->mig_count; k++) {
            const struct fake_mig *mig = &gpu->migs[k];
            if (!mig->exists) continue;
            fprintf(file, "%u %u %u %u %d %u %d %" PRIu64 " %u %s %s\n", i, k, mig->id, mig->profile_id, mig->start,
                    mig->size, mig->usable, mig->memory_bytes, mig->multiprocessors, mig->uuid, mig->profile);
        }
    }
    return fflush(file) == 0;
}

bool fake_migs_end(int lock, bool write) {
    char path[4096], temporary[4096];
    bool done = !write;
    path_of(path, "mig.conf");
    path_of(temporary, ".mig.conf");
    FILE *file = write ? fopen(temporary, "we") : NULL;
    if (file != NULL) {
        fchmod(fileno(file), 0644);
        done = write_table(file);
        fclose(file);
        done = done && rename(temporary, path) == 0;
    }
    close(lock);
    return done;
}
