/* An address range allocated in pieces: first fit, in gaps kept in order of their addresses. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

void fake_space_init(struct space *space, uint64_t base, uint64_t bytes) {
    space->base = base;
    space->bytes = bytes;
    space->gaps = malloc(sizeof *space->gaps);
    space->room = space->gaps != NULL ? 1 : 0;
    space->count = 0;
    if (space->room > 0) space->gaps[space->count++] = (struct gap){base, bytes};
}

static bool insert(struct space *space, size_t at, struct gap gap) {
    if (space->count == space->room) {
        size_t room = space->room > 0 ? space->room * 2 : 8;
        struct gap *gaps = realloc(space->gaps, room * sizeof *gaps);
        if (gaps == NULL) return false;
        space->gaps = gaps;
        space->room = room;
    }
    memmove(space->gaps + at + 1, space->gaps + at, (space->count - at) * sizeof gap);
    space->gaps[at] = gap;
    space->count++;
    return true;
}

static void drop(struct space *space, size_t at) {
    space->count--;
    memmove(space->gaps + at, space->gaps + at + 1, (space->count - at) * sizeof *space->gaps);
}

/* Cuts [at, at + bytes) out of gap i, which holds it. */
static bool cut(struct space *space, size_t i, uint64_t at, uint64_t bytes) {
    struct gap *gap = &space->gaps[i];
    struct gap behind = {at + bytes, gap->at + gap->bytes - at - bytes};
    uint64_t before = at - gap->at;
    if (before > 0 && behind.bytes > 0) {
        gap->bytes = before;
        return insert(space, i + 1, behind);
    }
    if (before > 0) gap->bytes = before;
    else if (behind.bytes > 0) *gap = behind;
    else drop(space, i);
    return true;
}

bool fake_space_take(struct space *space, uint64_t bytes, uint64_t align, uint64_t *at) {
    for (size_t i = 0; i < space->count; i++) {
        uint64_t start = ALIGN_UP(space->gaps[i].at, align), end = space->gaps[i].at + space->gaps[i].bytes;
        if (start >= end || end - start < bytes) continue;
        *at = start;
        return cut(space, i, start, bytes);
    }
    return false;
}

/* Returns the first gap that ends behind an address. */
static size_t gap_at(const struct space *space, uint64_t at) {
    size_t low = 0, high = space->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (space->gaps[middle].at + space->gaps[middle].bytes > at) high = middle;
        else low = middle + 1;
    }
    return low;
}

bool fake_space_take_at(struct space *space, uint64_t at, uint64_t bytes) {
    size_t i = gap_at(space, at);
    if (i == space->count || space->gaps[i].at > at || space->gaps[i].at + space->gaps[i].bytes - at < bytes) {
        return false;
    }
    return cut(space, i, at, bytes);
}

void fake_space_give(struct space *space, uint64_t at, uint64_t bytes) {
    size_t i = gap_at(space, at);
    bool joins_left = i > 0 && space->gaps[i - 1].at + space->gaps[i - 1].bytes == at;
    bool joins_right = i < space->count && at + bytes == space->gaps[i].at;
    if (joins_left && joins_right) {
        space->gaps[i - 1].bytes += bytes + space->gaps[i].bytes;
        drop(space, i);
    } else if (joins_left) {
        space->gaps[i - 1].bytes += bytes;
    } else if (joins_right) {
        space->gaps[i].at = at;
        space->gaps[i].bytes += bytes;
    } else {
        insert(space, i, (struct gap){at, bytes});
    }
}
