/* What the driver knows about addresses: every allocation, in order, found by any address within.
 *
 * The memory of the simulated GPUs is one reservation of address space that costs nothing until it is touched, at a
 * place where programs rarely have anything, so that such addresses are recognised when read in a trace.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define PLACE ((void *)UINT64_C(0x300000000000))
#define LARGEST (UINT64_C(16) << 40)
#define SMALLEST (UINT64_C(1) << 32)

static struct space addresses;
static struct range **ranges; /* in order of their addresses */
static size_t count, room;

struct space *fake_addresses(void) {
    for (uint64_t bytes = LARGEST; addresses.room == 0 && bytes >= SMALLEST; bytes /= 2) {
        void *at = mmap(PLACE, bytes + BLOCK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) continue;
        madvise(at, bytes + BLOCK_BYTES, MADV_NOHUGEPAGE);
        madvise(at, bytes + BLOCK_BYTES, MADV_DONTFORK);
        madvise(at, bytes + BLOCK_BYTES, MADV_DONTDUMP);
        fake_space_init(&addresses, ALIGN_UP((uint64_t)at, BLOCK_BYTES), bytes);
    }
    return addresses.room > 0 ? &addresses : NULL;
}

void fake_forget(uint64_t at, uint64_t bytes) {
    uint64_t first = ALIGN_UP(at, PAGE_BYTES), end = (at + bytes) / PAGE_BYTES * PAGE_BYTES;
    if (end > first) madvise((void *)first, end - first, MADV_DONTNEED);
}

/* Returns the first range that begins behind an address. */
static size_t behind(uint64_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle]->base > address) high = middle;
        else low = middle + 1;
    }
    return low;
}

struct range *fake_range_find(uint64_t address) {
    size_t i = behind(address);
    if (i == 0 || address - ranges[i - 1]->base >= ranges[i - 1]->bytes) return NULL;
    return ranges[i - 1];
}

/* Several adjacent ranges are accepted: neighbours in one reserved range are one piece of memory. */
bool fake_range_holds(uint64_t address, uint64_t bytes) {
    while (bytes > 0) {
        struct range *range = fake_range_find(address);
        if (range == NULL) return false;
        uint64_t here = range->base + range->bytes - address;
        if (here >= bytes) return true;
        address += here;
        bytes -= here;
    }
    return true;
}

struct range *fake_range_add(uint64_t base, uint64_t bytes, enum range_kind kind) {
    if (count == room) {
        size_t more = room > 0 ? room * 2 : 256;
        struct range **larger = realloc(ranges, more * sizeof *larger);
        if (larger == NULL) return NULL;
        ranges = larger;
        room = more;
    }
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL) return NULL;
    *range = (struct range){.base = base, .bytes = bytes, .kind = kind, .id = fake_next_id()};
    size_t i = behind(base);
    memmove(ranges + i + 1, ranges + i, (count - i) * sizeof *ranges);
    ranges[i] = range;
    count++;
    return range;
}

void fake_range_remove(struct range *range) {
    size_t i = behind(range->base) - 1;
    count--;
    memmove(ranges + i, ranges + i + 1, (count - i) * sizeof *ranges);
    free(range);
}

void fake_ranges_each(bool (*remove)(struct range *range, void *data), void *data) {
    for (size_t i = count; i-- > 0;) {
        if (remove(ranges[i], data)) fake_range_remove(ranges[i]);
    }
}

struct range *fake_allocate(struct gpu *gpu, uint64_t bytes, uint64_t align, enum range_kind kind,
                            enum fake_kind pays) {
    struct space *space = fake_addresses();
    uint64_t size = ALIGN_UP(bytes, UNIT_BYTES), at;
    if (space == NULL || size < bytes || !fake_take(gpu->shared, gpu->slot, pays, size)) return NULL;
    struct range *range = NULL;
    if (fake_space_take(space, size, align, &at)) {
        range = fake_range_add(at, bytes, kind);
        if (range == NULL) fake_space_give(space, at, size);
    }
    if (range == NULL) {
        fake_give(gpu->shared, gpu->slot, pays, size);
        return NULL;
    }
    range->gpu = gpu;
    range->charged = size;
    return range;
}

void fake_deallocate(struct range *range, enum fake_kind pays) {
    fake_give(range->gpu->shared, range->gpu->slot, pays, range->charged);
    fake_space_give(fake_addresses(), range->base, ALIGN_UP(range->bytes, UNIT_BYTES));
    fake_forget(range->base, range->bytes);
    fake_range_remove(range);
}
