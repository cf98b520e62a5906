/* cuGetExportTable: tables of functions without names that the CUDA runtime asks the driver for at its start.
 *
 * NVIDIA does not document them. Their identifiers, positions and parameters are published by open-source replacements
 * of the driver (ZLUDA, dark_api/src/lib.rs); which of them libcudart 12 and 13 and CUPTI call was found by running
 * these. Any other table is NOT_FOUND and any other function NOT_SUPPORTED, which they accept or report.
 */
#include <stdlib.h>
#include <string.h>

#include "tables.h"

CUresult fake_not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* -- what the runtime does with devices and modules ---------------------------------------------------------------- */

/* The primary context of a device: an address to compare others with; it becomes active when it is retained. */
static CUresult primary_context(CUcontext *context, CUdevice device) {
    ENTER;
    struct gpu *gpu = fake_gpu(device);
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *context = fake_primary_context(gpu);
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult module_of_wrapper(CUmodule *module, const void *wrapper) { return cuModuleLoadData(module, wrapper); }

static CUresult module_of_fat_binary(const void *image, CUmodule *module, void *a, void *b, unsigned c) {
    (void)a;
    (void)b;
    (void)c;
    return cuModuleLoadFatBinary(module, image);
}

static void do_nothing(size_t a) { (void)a; }

static CUresult load_compilers(void) { return CUDA_SUCCESS; }

const table_entry fake_runtime_table[] = {
    TABLE_SIZE(13),
    (table_entry)module_of_wrapper,
    (table_entry)primary_context,
    (table_entry)fake_not_supported,
    (table_entry)fake_not_supported,
    (table_entry)fake_not_supported,
    (table_entry)module_of_wrapper,
    (table_entry)do_nothing,
    (table_entry)module_of_fat_binary,
    (table_entry)fake_not_supported,
    (table_entry)fake_not_supported,
    (table_entry)fake_not_supported,
    (table_entry)load_compilers,
};

/* -- hooks of profilers: two buffers where these enable callbacks; nothing is enabled ------------------------------ */

static uint32_t callbacks[1024], more_callbacks[14];

static void callback_buffer(void **buffer, size_t *count) {
    *buffer = callbacks;
    *count = sizeof callbacks / sizeof *callbacks;
}

static void second_callback_buffer(void **buffer, size_t *count) {
    *buffer = more_callbacks;
    *count = sizeof more_callbacks / sizeof *more_callbacks;
}

static const table_entry profiler_hooks[] = {
    TABLE_SIZE(7),
    (table_entry)fake_not_supported,
    (table_entry)callback_buffer,
    (table_entry)fake_not_supported,
    (table_entry)fake_not_supported,
    (table_entry)fake_not_supported,
    (table_entry)second_callback_buffer,
};

static const table_entry profiler_thread[] = {
    TABLE_SIZE(4),
    (table_entry)fake_not_supported,
    (table_entry)cuCtxGetCurrent,
    (table_entry)fake_not_supported,
};

#define CONTEXT_FUNCTIONS 95 /* of the driver of CUDA 13; libcudart 13.5 needs the table and calls none of it */

static table_entry profiler_context[CONTEXT_FUNCTIONS] = {
    [0] = TABLE_SIZE(CONTEXT_FUNCTIONS),
    [4] = (table_entry)cuCtxGetId,
};

#define PROFILER_FUNCTIONS 200 /* more than CUPTI 13.5 looks for */

/* Without this table no function of CUPTI works, and JAX refuses to start. With it CUPTI reports its version, and that
 * it cannot profile. */
static table_entry profiler[PROFILER_FUNCTIONS] = {[0] = TABLE_SIZE(PROFILER_FUNCTIONS)};

static void fill(table_entry *table, size_t count) {
    for (size_t i = 1; i < count; i++) {
        if (table[i] == NULL) table[i] = (table_entry)fake_not_supported;
    }
}

__attribute__((constructor)) static void fill_tables(void) {
    fill(profiler_context, CONTEXT_FUNCTIONS);
    fill(profiler, PROFILER_FUNCTIONS);
}

/* -- values that the runtime keeps with a context ------------------------------------------------------------------ */

static CUresult context_of(CUcontext given, CUcontext *context) {
    if (given == NULL) return fake_current(context);
    if (given->magic != MAGIC_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
    *context = given;
    return CUDA_SUCCESS;
}

static struct stored **find_value(CUcontext context, const void *key) {
    struct stored **at = &context->stored;
    while (*at != NULL && (*at)->key != key) at = &(*at)->next;
    return at;
}

static CUresult put_value(CUcontext given, void *key, void *value, stored_end *end) {
    ENTER;
    CUcontext context;
    CUresult result = context_of(given, &context);
    if (result != CUDA_SUCCESS) return result;
    struct stored **at = find_value(context, key);
    if (*at == NULL) *at = calloc(1, sizeof **at);
    if (*at == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    **at = (struct stored){.key = key, .value = value, .end = end, .next = (*at)->next};
    return CUDA_SUCCESS;
}

static CUresult remove_value(CUcontext given, void *key) {
    ENTER;
    CUcontext context;
    CUresult result = context_of(given, &context);
    if (result != CUDA_SUCCESS) return result;
    struct stored **at = find_value(context, key), *found = *at;
    if (found == NULL) return CUDA_ERROR_INVALID_HANDLE;
    *at = found->next;
    free(found);
    return CUDA_SUCCESS;
}

static CUresult get_value(void **value, CUcontext given, void *key) {
    ENTER;
    CUcontext context;
    CUresult result = context_of(given, &context);
    if (result != CUDA_SUCCESS) return result;
    const struct stored *found = *find_value(context, key);
    if (found == NULL) return CUDA_ERROR_INVALID_HANDLE;
    *value = found->value;
    return CUDA_SUCCESS;
}

static const table_entry context_storage[] = {
    (table_entry)put_value,
    (table_entry)remove_value,
    (table_entry)get_value,
    (table_entry)fake_not_supported,
};

/* -- checks -------------------------------------------------------------------------------------------------------- */

static CUresult context_check(CUcontext context, uint32_t *finding, const void **more) {
    (void)context;
    (void)more;
    if (finding != NULL) *finding = 0;
    return CUDA_SUCCESS;
}

static uint32_t no_finding(void) { return 0; }

static const table_entry context_checks[] = {
    TABLE_SIZE(4),
    (table_entry)fake_not_supported,
    (table_entry)context_check,
    (table_entry)no_finding,
};

static const struct {
    CUuuid id;
    const table_entry *table;
} tables[] = {
    {{"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"}, fake_runtime_table},
    {{"\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66"}, profiler_hooks},
    {{"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc"}, profiler_thread},
    {{"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93"}, context_storage},
    {{"\x21\x31\x8c\x60\x97\x14\x32\x48\x8c\xa6\x41\xff\x73\x24\xc8\xf2"}, profiler_context},
    {{"\x26\x3e\x88\x60\x7c\xd2\x61\x43\x92\xf6\xbb\xd5\x00\x6d\xfa\x7e"}, context_checks},
    {{"\x7c\xb6\x3f\x9b\x9c\xa4\x8e\x42\xa4\x84\xbe\xb6\x6e\x6a\xed\x7f"}, profiler},
    {{"\xd4\x08\x20\x55\xbd\xe6\x70\x4b\x8d\x34\xba\x12\x3c\x66\xe1\xf2"}, fake_integrity_table},
};

API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    if (table == NULL || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (memcmp(&tables[i].id, id, sizeof *id) == 0) {
            *table = tables[i].table;
            return CUDA_SUCCESS;
        }
    }
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
