/* Device attributes: numbers of the card's architecture, as the compute capability tells them. */
#include "fake.h"

struct architecture { /* from NVIDIA's published tables of compute capabilities and the cards' data sheets */
    uint32_t capability; /* 10 * major + minor: this and later, up to the next row */
    int threads_per_multiprocessor, blocks_per_multiprocessor, shared_kib, shared_optin_kib;
    int clock_khz, memory_clock_khz, bus_bits, l2_mib, async_engines;
};

static const struct architecture architectures[] = {
    {60, 2048, 32, 64, 48, 1328500, 715000, 4096, 4, 2},    /* P100 */
    {61, 2048, 32, 96, 48, 1531000, 3615000, 384, 3, 2},    /* P4, P40, GTX 10 */
    {70, 2048, 32, 96, 96, 1530000, 877000, 4096, 6, 7},    /* V100 */
    {75, 1024, 16, 64, 64, 1590000, 5001000, 256, 4, 3},    /* T4, RTX 20 */
    {80, 2048, 32, 164, 163, 1410000, 1593000, 5120, 40, 5}, /* A100, A30 */
    {86, 1536, 16, 100, 99, 1695000, 9501000, 384, 6, 2},   /* A10, A40, RTX 30 */
    {89, 1536, 24, 100, 99, 2520000, 9001000, 384, 72, 2},  /* L4, L40, RTX 40 */
    {90, 2048, 32, 228, 227, 1980000, 2619000, 5120, 50, 3}, /* H100, H200 */
    {100, 2048, 32, 228, 227, 1965000, 3996000, 8192, 126, 4}, /* B200 */
    {120, 1536, 24, 100, 99, 2407000, 14001000, 512, 96, 2}, /* RTX 50 */
};

static const struct architecture *architecture_of(const struct gpu *gpu) {
    uint32_t capability = 10 * gpu->shared->gpu->major + gpu->shared->gpu->minor;
    const struct architecture *found = architectures;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        if (architectures[i].capability <= capability) found = &architectures[i];
    }
    return found;
}

/* Returns attributes that depend on the card, by number as the interface defines them; false: not one of them. */
static bool of_card(int attribute, const struct gpu *gpu, int *value) {
    const struct architecture *a = architecture_of(gpu);
    const struct fake_device *shared = gpu->shared;
    int major = (int)shared->gpu->major, minor = (int)shared->gpu->minor;
    switch (attribute) {
    case 13: *value = a->clock_khz; return true;
    case 16:
        *value = (int)(shared->mig != NULL ? shared->mig->multiprocessors : shared->gpu->multiprocessors);
        return true;
    case 33: *value = (int)shared->gpu->index + 1; return true;
    case 36: *value = a->memory_clock_khz; return true;
    case 37: *value = a->bus_bits; return true;
    case 38: *value = a->l2_mib << 20; return true;
    case 39: *value = a->threads_per_multiprocessor; return true;
    case 40: *value = a->async_engines; return true;
    case 75: *value = major; return true;
    case 76: *value = minor; return true;
    case 81: *value = a->shared_kib << 10; return true;
    case 85: *value = (int)shared->gpu->index; return true;
    case 97: *value = a->shared_optin_kib << 10; return true;
    case 106: *value = a->blocks_per_multiprocessor; return true;
    case 108: *value = major >= 8 ? a->l2_mib << 19 : 0; return true;
    case 111: *value = major >= 8 ? 1024 : 0; return true;
    case 120: *value = major >= 9; return true;
    default: return false;
    }
}

static const struct {
    int attribute, value;
} fixed[] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32},
    {11, 2147483647}, {12, 65536}, {14, 512}, {15, 1}, {17, 0}, {18, 0}, {19, 1}, {20, 0},
    {21, 131072}, {22, 131072}, {23, 65536}, {24, 16384}, {25, 16384}, {26, 16384}, {27, 32768}, {28, 32768},
    {29, 2048},
    {30, 512}, {31, 1}, {32, 0}, {34, 0}, {35, 0}, {41, 1}, {42, 32768}, {43, 2048}, {44, 1}, {45, 32768}, {46, 32768},
    {47, 8192}, {48, 8192}, {49, 32768}, {50, 0}, {51, 32}, {52, 32768}, {53, 32768}, {54, 2046}, {55, 32768},
    {56, 131072}, {57, 65536}, {58, 16384}, {59, 16384}, {60, 16384}, {61, 32768}, {62, 2048}, {63, 32768}, {64, 32768},
    {65, 2048}, {66, 32768}, {67, 32768}, {68, 2046}, {69, 268435456}, {70, 131072}, {71, 65000}, {72, 2097120},
    {73, 32768}, {74, 32768}, {77, 32768}, {78, 1}, {79, 1}, {80, 1}, {82, 65536}, {83, 1}, {84, 0}, {86, 0}, {87, 32},
    {88, 0}, {89, 0}, {90, 1}, {91, 1}, {92, 0}, {93, 0}, {94, 0}, {95, 1}, {96, 1}, {98, 0}, {99, 1}, {100, 0},
    {101, 0}, {102, 1}, {103, 0}, {107, 0}, {109, 0}, {110, 0}, {112, 0}, {113, 0}, {114, 0}, {115, 1}, {116, 0},
    {117, 0}, {118, 0}, {119, 0}, {121, 1}, {122, 0}, {123, 0}, {124, 0}, {125, 0}, {126, 1}, {127, 0}, {128, 0},
    {129, 0}, {130, 0}, {131, -1}, {132, 0}, {133, 0}, {134, -1},
};

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER;
    const struct gpu *gpu = fake_gpu(device);
    if (value == NULL || (int)attribute <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (of_card((int)attribute, gpu, value)) return CUDA_SUCCESS;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (fixed[i].attribute != (int)attribute) continue;
        *value = fixed[i].value;
        return CUDA_SUCCESS;
    }
    *value = 0; /* newer than this driver: a missing feature */
    return (int)attribute <= 200 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device) {
    ENTER;
    const struct gpu *gpu = fake_gpu(device);
    if (properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (gpu == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *properties = (CUdevprop){1024, {1024, 1024, 64}, {2147483647, 65535, 65535}, 49152, 65536, 32, 2147483647, 65536,
                              architecture_of(gpu)->clock_khz, 512};
    return CUDA_SUCCESS;
}
