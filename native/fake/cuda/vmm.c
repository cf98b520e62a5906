/* Virtual memory management: address ranges, physical memory, and mappings of the one into the other.
 *
 * Physical memory is a piece of one memory file for each GPU, so that one piece can be seen at two addresses. It is
 * charged from cuMemCreate until there is neither a handle nor a mapping of it.
 */
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake.h"

#define SPREAD 64u /* offsets for this multiple of the GPU's memory, so that holes never matter */

struct physical {
    enum magic magic;
    struct gpu *gpu;
    uint64_t offset, bytes;
    uint32_t handles, mappings;
    CUmemAllocationProp properties;
};

struct reservation {
    uint64_t at, bytes;
    struct reservation *next;
};
static struct reservation *reservations;

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct physical *physical = (struct physical *)handle;
    return physical != NULL && physical->magic == MAGIC_PHYSICAL ? physical : NULL;
}

static bool open_backing(struct gpu *gpu) {
    if (gpu->backing >= 0) return true;
    uint64_t bytes = ALIGN_UP(gpu->shared->state->memory_bytes, BLOCK_BYTES) * SPREAD;
    gpu->backing = (int)syscall(SYS_memfd_create, "gpupool-fake-gpu", MFD_CLOEXEC); /* glibc 2.27 has a function */
    if (gpu->backing < 0 || ftruncate(gpu->backing, (off_t)bytes) != 0) return false;
    fake_space_init(&gpu->physical, 0, bytes);
    return true;
}

static CUresult check(const CUmemAllocationProp *properties, struct gpu **gpu) {
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if ((properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *gpu = fake_gpu(properties->location.id);
    return *gpu != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                           CUmemAllocationGranularity_flags option) {
    struct gpu *gpu;
    ENTER;
    if (bytes == NULL || (int)option < 0 || (int)option > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(properties, &gpu);
    if (result == CUDA_SUCCESS) *bytes = BLOCK_BYTES;
    return result;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                         unsigned long long flags) {
    struct gpu *gpu;
    ENTER;
    if (handle == NULL || flags != 0 || bytes == 0 || bytes % BLOCK_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(properties, &gpu);
    if (result != CUDA_SUCCESS) return result;
    if (!fake_joined(gpu) || !open_backing(gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!fake_take(gpu->shared, gpu->slot, FAKE_VMM, bytes)) {
        fake_settle();
        fake_pools_trim_unused(gpu);
        if (!fake_take(gpu->shared, gpu->slot, FAKE_VMM, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical *physical = calloc(1, sizeof *physical);
    if (physical == NULL || !fake_space_take(&gpu->physical, bytes, BLOCK_BYTES, &physical->offset)) {
        fake_give(gpu->shared, gpu->slot, FAKE_VMM, bytes);
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->magic = MAGIC_PHYSICAL;
    physical->gpu = gpu;
    physical->bytes = bytes;
    physical->handles = 1;
    physical->properties = *properties;
    *handle = (CUmemGenericAllocationHandle)physical;
    return CUDA_SUCCESS;
}

/* Returns the memory to the card when nothing refers to it. The handle's memory stays: an old handle is recognised. */
static void drop_unused(struct physical *physical) {
    if (physical->handles > 0 || physical->mappings > 0) return;
    struct gpu *gpu = physical->gpu;
    physical->magic = 0;
    fallocate(gpu->backing, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->offset,
              (off_t)physical->bytes);
    fake_space_give(&gpu->physical, physical->offset, physical->bytes);
    fake_give(gpu->shared, gpu->slot, FAKE_VMM, physical->bytes);
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER;
    struct physical *physical = physical_of(handle);
    if (physical == NULL || physical->handles == 0) return CUDA_ERROR_INVALID_VALUE;
    physical->handles--;
    drop_unused(physical);
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    ENTER;
    struct range *range = fake_range_find((uint64_t)address);
    if (handle == NULL || range == NULL || range->kind != RANGE_MAPPED) return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = range->owner;
    physical->handles++;
    *handle = (CUmemGenericAllocationHandle)physical;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                    CUmemGenericAllocationHandle handle) {
    ENTER;
    struct physical *physical = physical_of(handle);
    if (properties == NULL || physical == NULL) return CUDA_ERROR_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t align, CUdeviceptr wanted,
                                 unsigned long long flags) {
    uint64_t at;
    ENTER;
    if (address == NULL || bytes == 0 || bytes % BLOCK_BYTES != 0 || flags != 0 || (align & (align - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct space *space = fake_addresses();
    struct reservation *reservation = calloc(1, sizeof *reservation);
    if (space == NULL || reservation == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    bool there = wanted != 0 && wanted % BLOCK_BYTES == 0 && fake_space_take_at(space, wanted, bytes);
    if (there) at = wanted;
    else if (!fake_space_take(space, bytes, align > BLOCK_BYTES ? align : BLOCK_BYTES, &at)) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *reservation = (struct reservation){at, bytes, reservations};
    reservations = reservation;
    *address = at;
    return CUDA_SUCCESS;
}

/* Returns true if nothing is mapped in [at, at + bytes). */
static bool unmapped(uint64_t at, uint64_t bytes) {
    for (uint64_t i = at; i < at + bytes; i += BLOCK_BYTES) {
        if (fake_range_find(i) != NULL) return false;
    }
    return true;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    ENTER;
    for (struct reservation **at = &reservations; *at != NULL; at = &(*at)->next) {
        struct reservation *reservation = *at;
        if (reservation->at != address || reservation->bytes != bytes) continue;
        if (!unmapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        *at = reservation->next;
        fake_space_give(fake_addresses(), address, bytes);
        free(reservation);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static bool reserved(uint64_t at, uint64_t bytes) {
    for (const struct reservation *r = reservations; r != NULL; r = r->next) {
        if (at >= r->at && at - r->at < r->bytes && bytes <= r->bytes - (at - r->at)) return true;
    }
    return false;
}

API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
    ENTER;
    struct physical *physical = physical_of(handle);
    if (physical == NULL || flags != 0 || bytes == 0 || (address | bytes | offset) % BLOCK_BYTES != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (offset > physical->bytes || bytes > physical->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    if (!reserved(address, bytes) || !unmapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    void *at = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                    physical->gpu->backing,
                    (off_t)(physical->offset + offset));
    struct range *range = at != MAP_FAILED ? fake_range_add(address, bytes, RANGE_MAPPED) : NULL;
    if (range == NULL) return CUDA_ERROR_MAP_FAILED;
    range->gpu = physical->gpu;
    range->owner = physical;
    physical->mappings++;
    return CUDA_SUCCESS;
}

/* Returns true if whole mappings, and nothing else, fill [at, at + bytes). */
static bool whole(uint64_t at, uint64_t bytes) {
    for (uint64_t i = at; i < at + bytes;) {
        struct range *range = fake_range_find(i);
        if (range == NULL || range->kind != RANGE_MAPPED || range->base != i || range->bytes > at + bytes - i) {
            return false;
        }
        i += range->bytes;
    }
    return bytes > 0;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    ENTER;
    if (!whole(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < fake_device_count(); i++) fake_wait_gpu(fake_gpu((CUdevice)i), NULL);
    if (!whole(address, bytes)) return CUDA_ERROR_INVALID_VALUE; /* others had the lock meanwhile */
    for (uint64_t end = address + bytes; address < end;) {
        struct range *range = fake_range_find(address);
        struct physical *physical = range->owner;
        address += range->bytes;
        mmap((void *)range->base, range->bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        fake_range_remove(range);
        physical->mappings--;
        drop_unused(physical);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *list, size_t count) {
    ENTER;
    if (list == NULL || count == 0 || !whole(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || fake_gpu(list[i].location.id) == NULL) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    for (uint64_t at = address; at < address + bytes;) {
        struct range *range = fake_range_find(at);
        range->flags = (uint32_t)list[0].flags;
        at += range->bytes;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    ENTER;
    struct range *range = fake_range_find(address);
    if (flags == NULL || location == NULL || range == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = range->kind == RANGE_MAPPED ? range->flags : (unsigned long long)CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
