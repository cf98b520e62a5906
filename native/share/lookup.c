/* cuGetProcAddress: the real driver answers, then its pointer is swapped for the hook of the same function.
 *
 * The driver is asked with the caller's own name, version and flags, so names, versions and per-thread forms need no
 * logic here: each pointer it gives is compared with the addresses of its exports. Three things need care:
 *
 *   - Several exports may share an address (forms that do the same, or bodies that a linker merged). The one whose
 *     base name was asked for counts; where none has it, a hook is preferred.
 *   - A driver may hand out pointers that are not its exports. What the version table says then decides.
 *   - A newer driver may export a form of a guarded function that is not known here. Its parameters are unknown too,
 *     so it is handed out as it is. This and the case above are counted, and the agent notes it at the job.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "attach.h"
#include "proxy.h"

#include "generated/cuda_hooks.h"

struct gp_version {
    int version; /* cuGetProcAddress returns this export from this version on */
    uint8_t flags;
    uint8_t base_length; /* its name begins with the name that programs ask for */
    uint16_t api;
};
#include "generated/versions.h"

#define BUCKETS 4096u /* size of an open hash table of all exports; a power of two, several times GP_COUNT */
_Static_assert(GP_COUNT * 2 < BUCKETS, "table of exports too small");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint16_t buckets[BUCKETS]; /* export + 1; 0: empty */
static void *hook_of[GP_COUNT];

static uint32_t bucket(const void *real) {
    return (uint32_t)(((uint64_t)(uintptr_t)real * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % BUCKETS;
}

static void fill_tables(void) {
    for (unsigned i = 0; i < gp_hook_count; i++)
        hook_of[gp_hooks[i].api] = (void *)(uintptr_t)gp_hooks[i].hook;
    for (uint32_t api = 0; api < GP_COUNT; api++) {
        if (!gp_has((enum gp_api)api))
            continue;
        uint32_t at = bucket(gp_real((enum gp_api)api));
        while (buckets[at] != 0)
            at = (at + 1) % BUCKETS;
        buckets[at] = (uint16_t)(api + 1);
    }
}

/* Returns true if `name` is `base`, or base_v2, base_ptsz, base_v2_ptsz or similar. */
static bool is_form_of(const char *name, const char *base) {
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0)
        return false;
    const char *rest = name + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '1' && rest[2] <= '9')
        rest += 3;
    return *rest == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

/* Returns the newest export that this name means for a program of this version. */
static const struct gp_version *by_version(const char *base, int version, cuuint64_t flags) {
    const struct gp_version *best = NULL;
    size_t length = strlen(base);
    for (size_t i = 0; i < sizeof gp_versions / sizeof *gp_versions; i++) {
        const struct gp_version *row = &gp_versions[i];
        if (row->version > version || (row->flags & ~flags) != 0 || row->base_length != length ||
            memcmp(gp_name(row->api), base, length) != 0)
            continue;
        if (best == NULL || row->flags > best->flags || (row->flags == best->flags && row->version > best->version))
            best = row;
    }
    return best;
}

static bool is_guarded(const char *base) {
    for (uint32_t api = 0; api < GP_COUNT; api++)
        if (hook_of[api] != NULL && is_form_of(gp_name(api), base))
            return true;
    return false;
}

static void count_unhooked(void) {
    struct gp_gpu *gpu = gp_gpu_at(0);
    if (gpu != NULL)
        atomic_fetch_add(&gpu->status->unhooked_count, 1);
}

/* What programs get for an export: its hook, or the driver's own function. If the lease can be suspended, they get the
 * jump to that function, so that their calls are seen. */
static void *handed_out(uint32_t api, void *real) {
    if (hook_of[api] != NULL)
        return hook_of[api];
    void *jump = gp_is_suspendable() ? gp_export(api) : NULL;
    return jump != NULL ? jump : real;
}

/* Handles a pointer that is no export known here. */
static void *guess(void *real, const char *symbol, int version, cuuint64_t flags) {
    if (!is_guarded(symbol))
        return real;
    count_unhooked();
    Dl_info about;
    bool exported = dladdr(real, &about) != 0 && about.dli_saddr == real && about.dli_sname != NULL;
    const struct gp_version *row = exported ? NULL : by_version(symbol, version, flags);
    return row != NULL && hook_of[row->api] != NULL ? hook_of[row->api] : real;
}

static void *swapped(void *real, const char *symbol, int version, cuuint64_t flags) {
    pthread_once(&once, fill_tables);
    bool known = false;
    void *other = NULL;
    for (uint32_t at = bucket(real); buckets[at] != 0; at = (at + 1) % BUCKETS) {
        uint32_t api = buckets[at] - 1u;
        if (gp_real((enum gp_api)api) != real)
            continue;
        if (is_form_of(gp_name(api), symbol))
            return handed_out(api, real);
        known = true;
        other = hook_of[api] != NULL ? hook_of[api] : other;
    }
    if (other != NULL)
        return other;
    return known ? real : guess(real, symbol, version, flags);
}

/* Hooks are found also without a driver, so that cuInit can report that there is none. */
static CUresult find_without_driver(const char *symbol, void **function, int version, cuuint64_t flags) {
    if (symbol == NULL || function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&once, fill_tables);
    const struct gp_version *row = by_version(symbol, version, flags);
    *function = row == NULL ? NULL : hook_of[row->api];
    return *function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

GP_HOOK CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    if (!gp_has(GP_cuGetProcAddress))
        return find_without_driver(symbol, function, version, flags);
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && *function != NULL)
        *function = swapped(*function, symbol, version, flags);
    return result;
}

GP_HOOK CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
    if (gp_has(GP_cuGetProcAddress_v2)) {
        CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
        if (result == CUDA_SUCCESS && *function != NULL)
            *function = swapped(*function, symbol, version, flags);
        return result;
    }
    CUresult result = cuGetProcAddress(symbol, function, version, flags); /* a driver older than the second form */
    if (status != NULL)
        *status = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result;
}
