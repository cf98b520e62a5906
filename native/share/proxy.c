/* Replaces the driver's library: finds the real driver and passes calls on to it.
 *
 * gp_table holds the real function of every export, 0 until it was asked for. Exports that are not hooks jump through
 * it (see gpupool/jump.h), hooks call through REAL(). The real driver is opened at the first of these calls, by the
 * path in the lease's control page, as a separate object. Then exports that it does not have are hidden here, too.
 *
 * If the lease can be suspended, gp_table stays empty: then every call passes gp_resolve, which counts it and waits while
 * the lease is suspended.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach.h"
#include "hide_exports.h"
#include "proxy.h"
#include "real_library.h"

#include "generated/cuda_names.h"

#define DRIVER_VARIABLE "GPUPOOL_CUDA_DRIVER"

_Atomic(void *) gp_table[GP_COUNT];
static _Atomic(void *) watched[GP_COUNT]; /* the same for a suspendable lease */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *driver;

/* Used for every function that the real driver does not have. */
static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }

/* Shows the driver only the lease's GPUs in a program whose environment does not name them: it was cleared (the program
 * found its lease without GPUPOOL_LEASE_DIR), or the lease is lazy and got its GPUs later. */
static void show_own_gpus(const struct gp_pages *pages) {
    const struct gpupool_control_header *control = pages->files.control;
    if (control == NULL || getenv("CUDA_VISIBLE_DEVICES") != NULL ||
        (!pages->lazy && access(GPUPOOL_SLICE_FOLDER "/lease", F_OK) != 0))
        return;
    char uuids[GPUPOOL_MAX_GPUS * (sizeof gp_control_gpu(control, 0)->uuid_text + 1)] = "";
    for (uint32_t i = 0; i < control->gpu_count; i++) {
        strcat(uuids, i > 0 ? "," : "");
        strncat(uuids, gp_control_gpu(control, i)->uuid_text, sizeof gp_control_gpu(control, i)->uuid_text);
    }
    setenv("CUDA_VISIBLE_DEVICES", uuids, 0);
}

static void open_driver(void) {
    const struct gp_pages *pages = gp_pages();
    show_own_gpus(pages);
    const char *path = pages->files.control != NULL ? pages->files.control->cuda_driver : NULL;
    driver = gp_open_real_library(path, DRIVER_VARIABLE, "libcuda.so.1", "cuInit", (const void *)(uintptr_t)&cuInit);
    if (driver != NULL)
        gp_hide_exports((const void *)(uintptr_t)&cuInit, driver);
}

const char *gp_name(uint32_t which) { return gp_cuda_names + gp_cuda_name_at[which]; }

static void *find(_Atomic(void *) *table, uint32_t which) {
    void *real = atomic_load_explicit(&table[which], memory_order_acquire);
    if (real != NULL)
        return real;
    real = driver == NULL ? NULL : dlsym(driver, gp_name(which));
    if (real == NULL)
        real = (void *)(uintptr_t)&missing;
    atomic_store_explicit(&table[which], real, memory_order_release);
    return real;
}

void *gp_export(uint32_t which) {
    Dl_info about;
    void *own = dladdr((const void *)(uintptr_t)&cuInit, &about) != 0 ? dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (own == NULL)
        return NULL;
    void *found = dlsym(own, gp_name(which));
    dlclose(own);
    return found;
}

void *gp_resolve(uint32_t which) {
    pthread_once(&once, open_driver);
    if (!gp_is_suspendable())
        return find(gp_table, which);
    gp_count_call();
    gp_wait_while_suspended();
    return find(watched, which);
}

void *gp_real(enum gp_api which) {
    void *real = atomic_load_explicit(&gp_table[which], memory_order_acquire);
    return GP_LIKELY(real != NULL) ? real : gp_resolve(which);
}

bool gp_has(enum gp_api which) { return gp_real(which) != (void *)(uintptr_t)&missing; }

GP_HOOK CUresult cuInit(unsigned int flags) {
    if (gp_attach() == GP_BROKEN)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (!gp_has(GP_cuInit))
        return gp_attach() == GP_FREE ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS)
        gp_attach_initialised();
    return result;
}
