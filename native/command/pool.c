/* Where the pool of this user listens, as gpupool.client.discovery: only pools of this machine, only absolute paths. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

#define SYSTEM_RUN_DIR "/run/gpupool"

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Writes `$NAME/gpupool/FILE`, with `$HOME/FALLBACK` in place of a variable that is not an absolute path. */
static bool user_file(char path[PATH_BYTES], const char *name, const char *fallback, const char *file) {
    const char *base = variable(name), *home = variable("HOME");
    int length;
    if (base != NULL && base[0] == '/')
        length = snprintf(path, PATH_BYTES, "%s/gpupool%s", base, file);
    else if (home != NULL && home[0] == '/')
        length = snprintf(path, PATH_BYTES, "%s/%s/gpupool%s", home, fallback, file);
    else
        return false;
    return length < PATH_BYTES;
}

static bool user_has(const char *file) {
    char path[PATH_BYTES];
    struct stat found;
    return !user_file(path, "XDG_CONFIG_HOME", ".config", file) || lstat(path, &found) == 0;
}

static bool exists(const char *folder, const char *file) {
    char path[PATH_BYTES];
    struct stat found;
    return snprintf(path, sizeof path, "%s/%s", folder, file) < PATH_BYTES && lstat(path, &found) == 0;
}

/* Returns whether the path is absolute and Python, which names the same folder by its shortest path, leaves it as it is. */
static bool is_normal(const char *path) {
    while (*path == '/') {
        size_t length = strcspn(++path, "/");
        if (length == 0 || strncmp(path, ".", length) == 0 || strncmp(path, "..", length) == 0)
            return false;
        path += length;
    }
    return *path == '\0';
}

bool command_find_pool(char path[PATH_BYTES]) {
    const char *state = variable("GPUPOOL_STATE_DIR"), *run = variable("GPUPOOL_RUN_DIR");
    char folder[PATH_BYTES];
    if (variable("GPUPOOL_URL") != NULL || variable("GPUPOOL_POOL") != NULL)
        return false;
    if (variable("GPUPOOL_PROJECT") == NULL && user_has("/config.json"))
        return false; /* it may name a project */
    if (state == NULL) {
        if (user_has("/logins.json"))
            return false;
        if (exists(SYSTEM_RUN_DIR, "api.sock") || exists(SYSTEM_RUN_DIR, "state.json"))
            run = SYSTEM_RUN_DIR;
        else if (geteuid() == 0 || !user_file(folder, "XDG_STATE_HOME", ".local/state", ""))
            return false; /* no pool runs, or only Python finds it */
        else
            state = folder;
    }
    if (!is_normal(run != NULL ? run : state))
        return false;
    return snprintf(path, PATH_BYTES, "%s%s", run != NULL ? run : state, run != NULL ? "/api.sock" : "/run/api.sock") <
           PATH_BYTES;
}
