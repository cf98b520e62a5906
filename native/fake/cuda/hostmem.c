/* Host memory that the driver knows: allocated by it, or registered with it. Not counted: it is the machine's. */
#include <sys/mman.h>

#include "fake.h"

#define HOST_FLAGS 7u      /* portable, mapped, write-combined */
#define REGISTER_FLAGS 15u /* portable, mapped, io, read-only */

static CUresult allocate(CUcontext context, void **address, size_t bytes, uint32_t flags) {
    if (address == NULL || bytes == 0 || flags > HOST_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    void *at = mmap(NULL, ALIGN_UP(bytes, PAGE_BYTES), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    struct range *range = fake_range_add((uint64_t)at, bytes, RANGE_HOST);
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    range->context = context;
    range->flags = flags;
    *address = at;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) {
    ENTER_CONTEXT(context);
    return allocate(context, address, bytes, flags);
}

API CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
    ENTER_CONTEXT(context);
    return allocate(context, address, bytes, 0);
}

static struct range *known(void *address, enum range_kind kind) {
    struct range *range = fake_range_find((uint64_t)address);
    return range != NULL && range->base == (uint64_t)address && range->kind == kind ? range : NULL;
}

API CUresult cuMemFreeHost(void *address) {
    ENTER;
    if (known(address, RANGE_HOST) == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    for (uint32_t i = 0; i < fake_device_count(); i++) fake_wait_gpu(fake_gpu((CUdevice)i), NULL);
    struct range *range = known(address, RANGE_HOST);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    munmap(address, ALIGN_UP(range->bytes, PAGE_BYTES));
    fake_range_remove(range);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags) {
    ENTER_CONTEXT(context);
    if (address == NULL || bytes == 0 || flags > REGISTER_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    if (fake_range_find((uint64_t)address) != NULL || fake_range_find((uint64_t)address + bytes - 1) != NULL) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    struct range *range = fake_range_add((uint64_t)address, bytes, RANGE_REGISTERED);
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    range->context = context;
    range->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister(void *address, size_t bytes, unsigned int flags) {
    return cuMemHostRegister_v2(address, bytes, flags);
}

API CUresult cuMemHostUnregister(void *address) {
    ENTER;
    struct range *range = known(address, RANGE_REGISTERED);
    if (range == NULL) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    fake_range_remove(range);
    return CUDA_SUCCESS;
}

/* One address space: the card reaches host memory under its own address. */
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned int flags) {
    ENTER;
    struct range *range = fake_range_find((uint64_t)host);
    if (device == NULL || flags != 0 || range == NULL || range->gpu != NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *host) {
    ENTER;
    struct range *range = fake_range_find((uint64_t)host);
    if (flags == NULL || range == NULL || range->kind != RANGE_HOST) return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}
