/* Replaces NVML: opens the real library at the first call that needs it, and passes calls on to its functions.
 *
 * gp_table holds the real function of every export, 0 until it was asked for; exports that are not hooks jump through
 * it (see gpupool/jump.h). Exports that the real NVML does not have are hidden from dlsym() once it is open.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "hide_exports.h"
#include "real_library.h"
#include "view.h"

#include "generated/nvml_names.h"

#define NVML_VARIABLE "GPUPOOL_NVML_DRIVER"

_Atomic(void *) gp_table[GP_NVML_COUNT];
void *gp_resolve(uint32_t which);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;

/* Used for functions that the real NVML does not have, and for all functions if there is no real NVML. */
static nvmlReturn_t missing(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
static nvmlReturn_t no_library(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }

static void open_library(void) {
    const void *own = (const void *)(uintptr_t)&nvmlDeviceGetCount_v2;
    const char *path = gp_nvml_path();
    if (path != NULL && path[0] == '\0') return; /* the lease says that there is none */
    library = gp_open_real_library(path, NVML_VARIABLE, "libnvidia-ml.so.1", "nvmlDeviceGetCount_v2", own);
    if (library != NULL) gp_hide_exports(own, library);
}

static void *symbol(const char *name) {
    pthread_once(&once, open_library);
    return library != NULL ? dlsym(library, name) : NULL;
}

void *gp_resolve(uint32_t which) {
    void *real = symbol(gp_nvml_names + gp_nvml_name_at[which]);
    if (real == NULL) real = library != NULL ? (void *)(uintptr_t)&missing : (void *)(uintptr_t)&no_library;
    atomic_store_explicit(&gp_table[which], real, memory_order_release);
    return real;
}

void *gp_real(enum gp_nvml_api which) {
    void *real = atomic_load_explicit(&gp_table[which], memory_order_acquire);
    return real != NULL ? real : gp_resolve(which);
}

/* Two exports that are not in the tables: they do not return a code, or are in no header. */

const char *nvmlErrorString(nvmlReturn_t result);
GP_HOOK const char *nvmlErrorString(nvmlReturn_t result) {
    if (gp_waits()) return "the session holds no GPU yet"; /* the real NVML is found later, by the lease's pages */
    const char *(*real)(nvmlReturn_t) = (const char *(*)(nvmlReturn_t))(uintptr_t)symbol("nvmlErrorString");
    return real != NULL ? real(result) : "NVML Shared Library Not Found";
}

/* nvidia-smi asks for private tables of the driver; they are not filtered. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
GP_HOOK nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id) {
    nvmlReturn_t (*real)(const void **, const void *) =
        (nvmlReturn_t(*)(const void **, const void *))(uintptr_t)symbol("nvmlInternalGetExportTable");
    return real != NULL ? real(table, id) : NVML_ERROR_FUNCTION_NOT_FOUND;
}
