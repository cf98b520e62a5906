/* Physical memory (cuMemCreate): charged until its last handle is released and its last mapping is gone.
 *
 * Releasing the handle of mapped memory frees nothing: programs create, map and release, and unmap at the end
 * (PyTorch's expandable segments do). Address ranges cost nothing. The GPU is that of the request's location, for
 * threads that do this often have no context; memory on the host is not charged.
 *
 * Mapping, releasing and unmapping race only with each other: a mapping is counted before the driver makes it and
 * forgotten after the driver has undone it. Mappings of what is not ours (imported, multicast) are remembered too, so
 * that one cuMemUnmap can be followed over all that it covers.
 *
 * Exported memory stays alive in the importing process after the exporter has released it and is no longer charged. The
 * driver's figure then reaches the limit as a correction.
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

struct physical {
    struct gp_entry entry; /* key: handle */
    struct gp_gpu *gpu;
    uint64_t bytes;
    uint32_t references, mappings;
    bool listed; /* in the table: the driver may reuse a handle while the old memory is still mapped */
};

struct mapping {
    struct gp_entry entry; /* key: address */
    uint64_t bytes;
    struct physical *physical; /* NULL: not charged */
};

struct tile { /* mapped into a sparse array */
    struct tile *next;
    CUarrayMapInfo where;
    struct physical *physical;
};

static struct gp_table physicals, mappings;
static struct tile *tiles;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gp_vmm_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    gp_table_forget(&physicals);
    gp_table_forget(&mappings);
    tiles = NULL;
}

/* Under the lock. */
static struct physical *find(CUmemGenericAllocationHandle handle) {
    return (struct physical *)gp_table_find(&physicals, handle);
}

/* Under the lock: releases the charge when nothing holds the memory any more. */
static void let_go(struct physical *physical) {
    if (physical == NULL || physical->references != 0 || physical->mappings != 0)
        return;
    if (physical->listed)
        gp_table_take(&physicals, physical->entry.key);
    gp_unreserve(physical->gpu, physical->bytes, GP_VMM);
    free(physical);
}

static void add(struct physical *physical, CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct physical *old = (struct physical *)gp_table_take(&physicals, handle);
    if (old != NULL)
        old->listed = false;
    physical->entry.key = handle;
    physical->listed = true;
    gp_table_put(&physicals, &physical->entry);
    pthread_mutex_unlock(&lock);
}

static CUresult create(struct gp_gpu *gpu, CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags) {
    struct physical *physical = malloc(sizeof *physical);
    if (physical == NULL || !gp_reserve(gpu, bytes, GP_VMM)) {
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *physical = (struct physical){.gpu = gpu, .bytes = bytes, .references = 1};
    CUresult result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result == CUDA_SUCCESS) {
        add(physical, *handle);
    } else {
        gp_unreserve(gpu, bytes, GP_VMM);
        free(physical);
    }
    return result;
}

GP_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                             unsigned long long flags) {
    GP_ATTACHED_OR(REAL(cuMemCreate)(handle, bytes, properties, flags));
    struct gp_gpu *gpu = NULL;
    if (properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        gpu = gp_gpu_of(properties->location.id);
    if (gpu == NULL || handle == NULL || bytes == 0)
        return REAL(cuMemCreate)(handle, bytes, properties, flags);
    return create(gpu, handle, bytes, properties, flags);
}

/* The driver is called first: memory that it refuses to release stays charged. */
GP_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    GP_CHARGED_OR(REAL(cuMemRelease)(handle));
    pthread_mutex_lock(&lock); /* held during the call, because the handle could be reused before it is looked up */
    CUresult result = REAL(cuMemRelease)(handle);
    struct physical *physical = find(handle);
    if (result == CUDA_SUCCESS && physical != NULL && physical->references > 0) {
        physical->references--;
        let_go(physical);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The handle is the one that was given to cuMemMap, also if all its references were released. */
GP_HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    GP_CHARGED_OR(REAL(cuMemRetainAllocationHandle)(handle, address));
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct physical *physical = result == CUDA_SUCCESS ? find(*handle) : NULL;
    if (physical != NULL)
        physical->references++;
    pthread_mutex_unlock(&lock);
    return result;
}

/* -- mappings ----------------------------------------------------------------------------------------------------------- */

static void count_mapping(struct physical *physical, int change) {
    if (physical == NULL)
        return;
    physical->mappings += (uint32_t)change;
    let_go(physical);
}

GP_HOOK CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    GP_ATTACHED_OR(REAL(cuMemMap)(address, bytes, offset, handle, flags));
    struct mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *mapping = (struct mapping){.entry.key = address, .bytes = bytes, .physical = find(handle)};
    count_mapping(mapping->physical, 1);
    pthread_mutex_unlock(&lock);
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    pthread_mutex_lock(&lock);
    if (result == CUDA_SUCCESS) {
        gp_table_put(&mappings, &mapping->entry);
    } else {
        count_mapping(mapping->physical, -1);
        free(mapping);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

struct range {
    uint64_t from, to;
};

static bool lies_in(const struct gp_entry *entry, const void *data) {
    const struct range *range = data;
    return entry->key >= range->from && entry->key < range->to;
}

/* Under the lock: removes the mappings in the range; they are adjacent if the driver is to unmap it. */
static struct gp_entry *take_range(uint64_t address, uint64_t bytes) {
    struct gp_entry *list = NULL;
    uint64_t at = address;
    while (at < address + bytes) {
        struct mapping *mapping = (struct mapping *)gp_table_take(&mappings, at);
        if (mapping == NULL)
            break;
        at += mapping->bytes;
        mapping->entry.next = list;
        list = &mapping->entry;
    }
    if (at < address + bytes) { /* an unknown mapping: check everything */
        struct gp_entry *rest = gp_table_take_all(&mappings, lies_in, &(struct range){at, address + bytes});
        while (rest != NULL) {
            struct gp_entry *next = rest->next;
            rest->next = list;
            list = rest;
            rest = next;
        }
    }
    return list;
}

GP_HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    GP_CHARGED_OR(REAL(cuMemUnmap)(address, bytes));
    pthread_mutex_lock(&lock);
    struct gp_entry *list = take_range(address, bytes);
    pthread_mutex_unlock(&lock);
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    pthread_mutex_lock(&lock);
    for (struct gp_entry *entry = list, *next; entry != NULL; entry = next) {
        next = entry->next;
        if (result != CUDA_SUCCESS) {
            gp_table_put(&mappings, entry);
            continue;
        }
        count_mapping(((struct mapping *)entry)->physical, -1);
        free(entry);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* -- tiles of sparse arrays: in a stream's order, so a tile that is taken away is given back a little early -------------- */

static bool same_place(const CUarrayMapInfo *one, const CUarrayMapInfo *other) {
    return one->resourceType == other->resourceType && one->resource.array == other->resource.array &&
           one->subresourceType == other->subresourceType &&
           memcmp(&one->subresource, &other->subresource,
                  one->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL
                      ? sizeof one->subresource.miptail
                      : sizeof one->subresource.sparseLevel) == 0;
}

static void drop_tile(struct tile **at) {
    struct tile *tile = *at;
    *at = tile->next;
    count_mapping(tile->physical, -1);
    free(tile);
}

/* Under the lock. Memory that is mapped into an array again, at another extent, stays charged until the array is
 * destroyed. */
static void note_tile(const CUarrayMapInfo *where) {
    bool maps = where->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    struct physical *physical = maps ? find(where->memHandle.memHandle) : NULL;
    struct tile *tile = physical == NULL ? NULL : malloc(sizeof *tile);
    if (tile != NULL) {
        *tile = (struct tile){.next = NULL, .where = *where, .physical = physical};
        count_mapping(physical, 1);
    } else if (physical != NULL) {
        physical->mappings++; /* permanently: better charged than lost */
    }
    for (struct tile **at = &tiles; *at != NULL;) {
        if (same_place(&(*at)->where, where))
            drop_tile(at);
        else
            at = &(*at)->next;
    }
    if (tile != NULL) {
        tile->next = tiles;
        tiles = tile;
    }
}

void gp_vmm_array_gone(uint64_t handle) {
    pthread_mutex_lock(&lock);
    for (struct tile **at = &tiles; *at != NULL;) {
        if ((uint64_t)(uintptr_t)(*at)->where.resource.array == handle)
            drop_tile(at);
        else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&lock);
}

static CUresult note_tiles(const CUarrayMapInfo *list, unsigned int count, CUresult result) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
        note_tile(&list[i]);
    pthread_mutex_unlock(&lock);
    return result;
}

GP_HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuMemMapArrayAsync)(list, count, stream));
    return note_tiles(list, count, REAL(cuMemMapArrayAsync)(list, count, stream));
}

GP_HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    GP_ATTACHED_OR(REAL(cuMemMapArrayAsync_ptsz)(list, count, stream));
    return note_tiles(list, count, REAL(cuMemMapArrayAsync_ptsz)(list, count, stream));
}
