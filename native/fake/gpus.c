/* Reads gpus.conf: the GPUs of this machine that are simulated. Read once for each process; only mig.c changes them. */
#include "gpus.h"

#include "gpupool/pages.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fake_gpu gpus[FAKE_GPUS];
static int count;
static pthread_once_t once = PTHREAD_ONCE_INIT, naming = PTHREAD_ONCE_INIT;
static char named_folder[3800];

bool fake_uuid_bytes(const char *text, uint8_t bytes[16]) {
    static const char *const prefixes[] = {"GPU-EMULATED-", "MIG-EMULATED-", "GPU-", "MIG-"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) {
            text += strlen(prefixes[i]);
            break;
        }
    }
    int digits = 0;
    memset(bytes, 0, 16);
    for (; *text != '\0' && digits < 32; text++) {
        if (*text == '-') continue;
        if (!isxdigit((unsigned char)*text)) return false;
        int value = isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
        bytes[digits / 2] = (uint8_t)(bytes[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32 && *text == '\0';
}

static bool read_mig(const char *line, struct fake_gpu *gpu) {
    if (gpu == NULL || gpu->mig_count == FAKE_MIGS) return false;
    gpu->mig_mode = true;
    if (strncmp(line, "mig on", 6) == 0) return true;
    struct fake_mig *mig = &gpu->migs[gpu->mig_count];
    if (sscanf(line, "mig %95s %" SCNu64 " %" SCNu32 " %31s", mig->uuid, &mig->memory_bytes, &mig->multiprocessors,
               mig->profile) != 4) {
        return false;
    }
    gpu->mig_count++;
    return fake_uuid_bytes(mig->uuid, mig->uuid_bytes);
}

static bool read_gpu(const char *line, struct fake_gpu *gpu) {
    int fields = sscanf(line, "%95s %" SCNu64 " %" SCNu32 " %" SCNu32 ".%" SCNu32 " %" SCNu64 " %95[^\n]", gpu->uuid,
                        &gpu->memory_bytes, &gpu->multiprocessors, &gpu->major, &gpu->minor, &gpu->context_bytes,
                        gpu->name);
    size_t length = strlen(gpu->name);
    while (length > 0 && isspace((unsigned char)gpu->name[length - 1])) gpu->name[--length] = '\0';
    return fields == 7 && gpu->multiprocessors > 0 && fake_uuid_bytes(gpu->uuid, gpu->uuid_bytes);
}

/* Parses one line; false if it is invalid. */
static bool read_line(char *line) {
    line[strcspn(line, "#\n")] = '\0';
    line += strspn(line, " \t");
    if (*line == '\0') return true;
    if (strncmp(line, "mig ", 4) == 0) return read_mig(line, count > 0 ? &gpus[count - 1] : NULL);
    if (count == (int)FAKE_GPUS) return false;
    gpus[count].index = (uint32_t)count;
    if (!read_gpu(line, &gpus[count])) return false;
    count++;
    return true;
}

static void name_folder(void) {
    const char *named = getenv(FAKE_FOLDER);
    bool there = named != NULL && *named != '\0';
    snprintf(named_folder, sizeof named_folder, "%s", there ? named : GPUPOOL_SLICE_FOLDER "/gpus");
}

/* Kept, because the agent sets the variable only while it loads the library. */
const char *fake_folder(void) {
    pthread_once(&naming, name_folder);
    return named_folder;
}

static void read_all(void) {
    const char *folder = fake_folder();
    char path[4096], line[1024];
    snprintf(path, sizeof path, "%s/gpus.conf", folder);
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    while (count >= 0 && fgets(line, sizeof line, file) != NULL) {
        if (!read_line(line)) {
            fprintf(stderr, "gpupool fake driver: %s: this line is not understood: %s\n", path, line);
            count = -1;
        }
    }
    fclose(file);
    for (int i = 0; i < count; i++) fake_migs_placed(&gpus[i]);
}

int fake_gpu_count(void) {
    pthread_once(&once, read_all);
    return count;
}

const struct fake_gpu *fake_gpu_at(uint32_t index) {
    return (int)index < fake_gpu_count() ? &gpus[index] : NULL;
}

struct fake_gpu *fake_gpu_changed(uint32_t index) { return &gpus[index]; }
