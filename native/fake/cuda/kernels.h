/* Modules, libraries and kernels inside the fake driver. A kernel is one object, whether a program asked for it as a
 * CUfunction of a module or as a CUkernel of a library. */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H

#include "fake.h"

struct vectors;

struct known { /* a kernel with known parameters */
    const char *name;
    uint32_t count;
    struct {
        uint32_t offset, size;
    } parameters[8];
    void (*run)(void *vectors);
    void (*take)(const uint8_t *parameters, struct vectors *vectors);
};

struct kernel {
    enum magic magic;
    struct module *module;
    char *name;
    uint64_t duration_ns; /* 0: not in its name */
    const struct known *known;
    int dynamic_shared_bytes;
    uint32_t block[3]; /* as set by the oldest way to launch */
    uint8_t parameters[64];
    struct kernel *next;
};

struct module { /* or library */
    enum magic magic;
    bool library;
    CUcontext context; /* NULL: a library's */
    struct kernel *kernels;
    struct global {
        char *name;
        CUcontext context;
        CUdeviceptr address;
        uint64_t id; /* of its range */
        struct global *next;
    } *globals;
};

const struct known *fake_known_kernel(const char *name);
uint64_t fake_named_duration(const char *name);

#endif
