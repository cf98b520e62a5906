/* Finds a real library by absolute path, never by its bare name: that name is the proxy's own.
 *
 * Where the agent has bound the proxy over the driver's paths, the real library is in GPUPOOL_SLICE_FOLDER. */
#include "real_library.h"

#include "bind_to_itself.h"
#include "gpupool/pages.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const folders[] = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
#endif
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
};

static void *open_other_than(const char *path, const char *own_name, const void *own) {
    if (path[0] != '/')
        return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL && dlsym(library, own_name) == own) {
        dlclose(library);
        return NULL;
    }
    if (library != NULL)
        gp_bind_to_itself(library, strncmp(own_name, "nvml", 4) == 0 ? "nvml" : "cu");
    return library;
}

void *gp_open_real_library(const char *path, const char *variable, const char *soname, const char *own_name,
                           const void *own) {
    char bound[256];
    snprintf(bound, sizeof bound, GPUPOOL_SLICE_FOLDER "/%s",
             strncmp(own_name, "nvml", 4) == 0 ? "libnvidia-ml.so.1" : "libcuda.so.1");
    if (access(bound, F_OK) == 0)
        return open_other_than(bound, own_name, own);
    if (path != NULL && path[0] != '\0')
        return open_other_than(path, own_name, own);
    const char *named = secure_getenv(variable);
    if (named != NULL && named[0] != '\0')
        return open_other_than(named, own_name, own);
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof folders / sizeof *folders; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s/%s", folders[i], soname);
        library = open_other_than(full, own_name, own);
    }
    return library;
}
