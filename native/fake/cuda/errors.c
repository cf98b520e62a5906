/* Names of results; the texts are derived from the names. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

struct result {
    int code;
    const char *name;
};

#define X(name, code) {code, #name},
static const struct result results[] = {
#include "results.def"
};
#undef X

static char texts[sizeof results / sizeof *results][64];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_texts(void) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        const char *from = results[i].name + strlen("CUDA_");
        if (strncmp(from, "ERROR_", 6) == 0) from += 6;
        for (size_t k = 0; from[k] != '\0' && k < sizeof texts[i] - 1; k++) {
            texts[i][k] = from[k] == '_' ? ' ' : (char)tolower((unsigned char)from[k]);
        }
    }
}

static int find(CUresult code) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].code == (int)code) return (int)i;
    }
    return -1;
}

API CUresult cuGetErrorName(CUresult error, const char **name) {
    int at = find(error);
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    *name = at >= 0 ? results[at].name : NULL;
    return at >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    int at = find(error);
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&once, make_texts);
    *text = at >= 0 ? texts[at] : NULL;
    return at >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
