/* The clock of a simulated GPU: see gpus.h for what virtual time is. Everything here runs under the state's lock.
 *
 * The clock is two words behind one index, so that a process killed while it advances the clock has either done so or
 * not. Points of the curve are added before the clock moves past them; one that is added twice does no harm.
 */
#include "gpus.h"

#include <time.h>

#define SWEEP_NS UINT64_C(1000000) /* longest time during which the dead can take time from the living */

uint64_t fake_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

struct reading { /* the clock as a value */
    uint64_t ns, virtual_ns, busy_ns;
};

static struct reading read_clock(const struct fake_state *state) {
    const struct fake_clock *now = &state->now[state->now_at & 1];
    return (struct reading){now->ns, now->virtual_ns, now->busy_ns};
}

static void write_clock(struct fake_state *state, struct reading reading) {
    uint32_t other = (state->now_at & 1) ^ 1;
    state->now[other].ns = reading.ns;
    state->now[other].virtual_ns = reading.virtual_ns;
    state->now[other].busy_ns = reading.busy_ns;
    state->now_at = other;
    state->busy_ns = reading.busy_ns;
}

static void add_point(struct fake_state *state, uint64_t ns, uint64_t virtual_ns) {
    uint64_t count = state->curve_count;
    if (count > 0) {
        const struct fake_point *last = &state->curve[(count - 1) % FAKE_CURVE];
        if (last->ns >= ns && last->virtual_ns >= virtual_ns) return;
    }
    state->curve[count % FAKE_CURVE].ns = ns;
    state->curve[count % FAKE_CURVE].virtual_ns = virtual_ns;
    state->curve_count = count + 1;
}

/* Returns how many processes have work beyond this virtual time, and where the first of them will be complete. */
static uint32_t sharing(const struct fake_state *state, uint64_t virtual_ns, uint64_t *first) {
    uint32_t count = 0;
    *first = UINT64_MAX;
    for (uint32_t word = 0; word < FAKE_PROCESSES / 64; word++) {
        for (uint64_t bits = state->live[word]; bits != 0; bits &= bits - 1) {
            uint64_t finish = state->processes[word * 64 + (uint32_t)__builtin_ctzll(bits)].finish;
            if (finish <= virtual_ns) continue;
            count++;
            if (finish < *first) *first = finish;
        }
    }
    return count;
}

static void note_served(struct fake_process *process, uint64_t virtual_ns) {
    uint64_t finish = process->finish, submitted = process->submitted_ns;
    uint64_t left = finish > virtual_ns ? finish - virtual_ns : 0;
    if (submitted >= left && submitted - left > process->served_ns) process->served_ns = submitted - left;
}

static void note_all_served(struct fake_state *state, uint64_t before, uint64_t virtual_ns) {
    for (uint32_t word = 0; word < FAKE_PROCESSES / 64; word++) {
        for (uint64_t bits = state->live[word]; bits != 0; bits &= bits - 1) {
            struct fake_process *process = &state->processes[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            if (process->finish > before) note_served(process, virtual_ns);
        }
    }
}

/* Serves all processes with work until `now_ns`; the remainder of a division stays on the clock for the next time. */
static void serve(struct fake_state *state, uint64_t now_ns) {
    struct reading clock = read_clock(state);
    uint64_t before = clock.virtual_ns;
    if (clock.ns == 0 || clock.ns > now_ns) clock.ns = now_ns;
    while (clock.ns < now_ns) {
        uint64_t first;
        uint32_t n = sharing(state, clock.virtual_ns, &first);
        state->sharing = n;
        if (n == 0) {
            clock.ns = now_ns;
            break;
        }
        uint64_t step = (now_ns - clock.ns) / n;
        bool ends = first - clock.virtual_ns <= step;
        if (ends) step = first - clock.virtual_ns;
        clock.virtual_ns += step;
        clock.ns += step * n;
        clock.busy_ns += step * n;
        if (!ends) break;
        add_point(state, clock.ns, clock.virtual_ns);
    }
    if (clock.virtual_ns != before) note_all_served(state, before, clock.virtual_ns);
    write_clock(state, clock);
}

uint64_t fake_advance(struct fake_device *device, uint64_t now_ns) {
    struct fake_state *state = device->state;
    serve(state, now_ns);
    if (state->sharing > 1 && now_ns > state->swept_ns + SWEEP_NS) fake_sweep(device);
    return read_clock(state).virtual_ns;
}

uint64_t fake_submit(struct fake_device *device, int slot, uint64_t ns) {
    struct fake_state *state = device->state;
    struct fake_process *process = &state->processes[slot];
    uint64_t virtual_ns = fake_advance(device, fake_now()), finish = process->finish;
    if (finish <= virtual_ns) {
        add_point(state, read_clock(state).ns, virtual_ns);
        finish = virtual_ns;
    }
    process->finish = finish + ns;
    process->submitted_ns += ns;
    return finish + ns;
}

static struct reading point_at(const struct fake_state *state, uint64_t index, uint64_t count) {
    if (index >= count) return read_clock(state);
    const struct fake_point *point = &state->curve[index % FAKE_CURVE];
    return (struct reading){point->ns, point->virtual_ns, 0};
}

uint64_t fake_reached_at(const struct fake_device *device, uint64_t virtual_ns) {
    const struct fake_state *state = device->state;
    uint64_t count = state->curve_count, oldest = count > FAKE_CURVE ? count - FAKE_CURVE : 0;
    uint64_t low = oldest, high = count; /* the first point at or beyond virtual_ns; `count` is the clock itself */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (point_at(state, middle, count).virtual_ns >= virtual_ns) high = middle;
        else low = middle + 1;
    }
    struct reading after = point_at(state, low, count);
    if (low == oldest || after.virtual_ns <= virtual_ns) return after.ns;
    struct reading from = point_at(state, low - 1, count);
    __extension__ typedef unsigned __int128 wide;
    wide part = (wide)(virtual_ns - from.virtual_ns) * (after.ns - from.ns);
    return from.ns + (uint64_t)(part / (after.virtual_ns - from.virtual_ns));
}

uint64_t fake_projected(const struct fake_device *device, uint64_t virtual_ns, uint64_t now_ns) {
    struct reading clock = read_clock(device->state);
    while (clock.virtual_ns < virtual_ns) {
        uint64_t first;
        uint32_t n = sharing(device->state, clock.virtual_ns, &first);
        if (n == 0) break;
        if (first > virtual_ns) first = virtual_ns;
        clock.ns += (first - clock.virtual_ns) * n;
        clock.virtual_ns = first;
    }
    return clock.ns > now_ns ? clock.ns : now_ns;
}

void fake_drop(struct fake_device *device, int slot) {
    struct fake_process *process = &device->state->processes[slot];
    serve(device->state, fake_now());
    struct reading clock = read_clock(device->state);
    note_served(process, clock.virtual_ns);
    if (process->finish > clock.virtual_ns) {
        add_point(device->state, clock.ns, clock.virtual_ns);
        process->finish = clock.virtual_ns;
    }
}
