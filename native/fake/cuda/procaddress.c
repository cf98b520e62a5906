/* cuGetProcAddress: a base name, a CUDA version and a stream flag mean one export. */
#include <string.h>

#include "exports.h"
#include "fake.h"
#include "generated/index.h"

struct gp_version {
    int version, flags;
    unsigned base_length, api;
};
#include "generated/cuda_names.h"
#include "generated/versions.h"

static const char *export_name(unsigned api) { return gp_cuda_names + gp_cuda_name_at[api]; }

/* Returns the newest form of a name that is not newer than `version`. *known: there is some form of that name. */
static void *look_up(const char *symbol, int version, bool per_thread, bool *known) {
    size_t length = strlen(symbol);
    const struct gp_version *best = NULL;
    *known = false;
    for (size_t i = 0; i < sizeof gp_versions / sizeof *gp_versions; i++) {
        const struct gp_version *row = &gp_versions[i];
        if (row->base_length != length || strncmp(export_name(row->api), symbol, length) != 0) continue;
        if (row->version > fake_driver_version()) continue; /* an older driver does not have it */
        *known = true;
        if (row->version > version || (row->flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && !per_thread)) {
            continue;
        }
        if (best == NULL || row->flags > best->flags || (row->flags == best->flags && row->version > best->version)) {
            best = row;
        }
    }
    return best != NULL ? fake_address(best->api) : NULL;
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status) {
    bool known;
    if (symbol == NULL || function == NULL || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = NULL;
    if (version > fake_driver_version()) return CUDA_ERROR_INVALID_VALUE;
    *function = look_up(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
    if (status != NULL) {
        *status = *function != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known           ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

/* The first form had no status to report that nothing was found. */
API CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, NULL);
    return result == CUDA_SUCCESS && *function == NULL ? CUDA_ERROR_NOT_FOUND : result;
}
