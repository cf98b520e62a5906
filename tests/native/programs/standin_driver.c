/* A driver with every export that does nothing, for tests of how the share library finds and swaps functions.
 *
 * standin_exports.h is made by the test: an EXPORT for each name, which answers 1000 + its number, and a ROW for each
 * line of generated/cuda_versions.txt. STANDIN_MODE changes what cuGetProcAddress gives for cuMemAlloc:
 *   private   a function that is no export     newer   an export that the share library has never heard of
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))
#define INVALID_VALUE 1
#define NOT_FOUND 500

#define EXPORT(name, number) PUBLIC int name(void) { return 1000 + number; }
#define ROW(base, version, flag, name)
#include "standin_exports.h"
#undef EXPORT
#undef ROW

static int inits;
PUBLIC int cuInit(unsigned flags) {
    inits++;
    return flags == 0 ? 0 : INVALID_VALUE;
}
/* The same address as cuInit's under another name, as where a linker has merged two bodies. */
PUBLIC int cuProfilerStart(void) __attribute__((alias("cuInit")));
PUBLIC int cuDriverGetVersion(int *version) {
    *version = 13050;
    return 0;
}
PUBLIC int cuDeviceGetUuid_v2(char *uuid, int device) {
    memset(uuid, 0, 16);
    uuid[15] = (char)(device + 1);
    return inits > 0 ? 0 : 3;
}
PUBLIC int cuTexRefSetMipmapLevelClamp(void *reference, float low, float high) {
    return reference == (void *)7 && low == 1.5f && high == 2.25f ? 0 : INVALID_VALUE;
}
PUBLIC int cuTensorMapEncodeTiled(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
                                  uint64_t h, uint64_t i, uint64_t j, uint64_t k, uint64_t l) {
    uint64_t sum = a | b << 4 | c << 8 | d << 12 | e << 16 | f << 20 | g << 24 | h << 28 | i << 32 | j << 36 | k << 40 | l << 44;
    return sum == UINT64_C(0xcba987654321) ? 0 : INVALID_VALUE;
}
PUBLIC int cuFutureThing(int x) { return x + 1; }
PUBLIC int cuMemAlloc_v9(void) { return 9; }
static int private_alloc(void) { return 8; }

PUBLIC int cuGetProcAddress(const char *, void **, int, uint64_t);
PUBLIC int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuMemAlloc_v2(void);

static const struct row {
    const char *base;
    int version;
    unsigned flag;
    void *function;
} rows[] = {
#define EXPORT(name, number)
#define ROW(base, version, flag, name) {#base, version, flag, (void *)&name},
#include "standin_exports.h"
    {"cuFutureThing", 13050, 0, (void *)&cuFutureThing},
};

static void *found(const char *symbol, int version, uint64_t flags) {
    const struct row *best = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].base, symbol) == 0 && rows[i].version <= version && (rows[i].flag & ~flags) == 0 &&
            (best == NULL || rows[i].flag > best->flag || (rows[i].flag == best->flag && rows[i].version > best->version)))
            best = &rows[i];
    const char *mode = getenv("STANDIN_MODE");
    if (best != NULL && mode != NULL && strcmp(symbol, "cuMemAlloc") == 0)
        return strcmp(mode, "newer") == 0 ? (void *)&cuMemAlloc_v9 : (void *)&private_alloc;
    return best == NULL ? NULL : best->function;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    *function = found(symbol, version, flags);
    return *function == NULL ? NOT_FOUND : 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    *function = found(symbol, version, flags);
    if (status != NULL)
        *status = *function == NULL ? 1 : 0;
    return *function == NULL ? NOT_FOUND : 0;
}
