/* Reports to the agent: one JSON object a line.
 *
 *   {"usage": {"lease": FOLDER, "gpu": INDEX, "uuid": NAME, ...}}
 *       about once a second for each GPU of each lease that has processes, and when something changed. Bytes: used
 *       (what tenants' ledgers say), limit, correction, peak. Sums since the lease began: held_ns (GPU time that it
 *       had), waited_ns and paced_ns (of its threads), grants, launches, graph_launches, ungated, oom_count,
 *       unhooked_count. "processes": pid (on this host; 0: not known), owner_pid (as it sees itself), start (clock
 *       ticks since boot), bytes, context_bytes.
 *   {"warning": SENTENCE, "lease": FOLDER}
 *
 * An agent that does not read cannot block the arbiter: lines are dropped while the pipe is full.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arbiter.h"
#include "ledger.h"

#define ROOM (1u << 20)
#define LINE (64u << 10)

static char buffer[ROOM];
static size_t filled;
static char line[LINE];
static size_t length;
static int output = -1;

/* Sets only a pipe or socket to non-blocking: a terminal or file is shared with other processes. */
void arb_report_to(int fd) {
    struct stat about;
    output = fd;
    if (fstat(fd, &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode)))
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void arb_flush(void) {
    size_t done = 0;
    while (done < filled) {
        ssize_t now = write(output, buffer + done, filled - done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0 && errno != EAGAIN)
            done = filled; /* there is no reader any more: the end of input will follow */
        if (now <= 0)
            break;
        done += (size_t)now;
    }
    memmove(buffer, buffer + done, filled - done);
    filled -= done;
}

static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(line + length, LINE - length, format, arguments);
    va_end(arguments);
    length = wrote < 0 || (size_t)wrote >= LINE - length ? LINE : length + (size_t)wrote;
}

static void put_text(const char *text) {
    put("\"");
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\' || byte < 0x20 || byte == 0x7f)
            put("\\u%04x", byte);
        else
            put("%c", byte);
    }
    put("\"");
}

/* Drops a line that is too long or for which the pipe has no room now. */
static void end_line(void) {
    put("\n");
    if (filled + length > ROOM)
        arb_flush();
    if (length < LINE && filled + length <= ROOM) {
        memcpy(buffer + filled, line, length);
        filled += length;
    }
    length = 0;
}

void arb_warn(const struct lease *lease, const char *path, const char *sentence) {
    put("{\"warning\":");
    put_text(sentence);
    put(",\"lease\":");
    put_text(lease != NULL ? lease->path : path);
    put("}");
    end_line();
}

static struct counts all_counts(const struct seat *seat) {
    struct counts sum = seat->gone;
    for (uint32_t i = 0; i < seat->live_count; i++) {
        const struct gpupool_slot *slot = &seat->status->slots[seat->live[i]];
        sum.launches += atomic_load(&slot->launches);
        sum.graph_launches += atomic_load(&slot->graph_launches);
        sum.waited_ns += atomic_load(&slot->waited_ns);
        sum.paced_ns += atomic_load(&slot->paced_ns);
        sum.ungated += atomic_load(&slot->ungated);
    }
    return sum;
}

static void put_number(const char *name, uint64_t value) { put(",\"%s\":%" PRIu64, name, value); }

static void put_processes(const struct seat *seat) {
    put(",\"processes\":[");
    bool first = true;
    for (uint32_t i = 0; i < seat->live_count; i++) {
        const struct gpupool_slot *slot = &seat->status->slots[seat->live[i]];
        uint64_t owner = atomic_load(&slot->owner), pid_ns = atomic_load(&slot->pid_ns);
        const struct process *process = arb_process_of(seat->lease, owner, pid_ns);
        if (owner == 0)
            continue;
        put("%s{\"pid\":%u", first ? "" : ",", process == NULL ? 0 : process->host_pid);
        put_number("owner_pid", gpupool_owner_pid(owner));
        put_number("start", gpupool_owner_start(owner));
        put_number("bytes", gpupool_word_units(atomic_load(&slot->ledger)) << GPUPOOL_UNIT_SHIFT);
        put_number("context_bytes", atomic_load(&slot->context_bytes));
        put("}");
        first = false;
    }
    put("]");
}

static void put_usage(const struct seat *seat) {
    struct counts sum = all_counts(seat);
    put("{\"usage\":{\"lease\":");
    put_text(seat->lease->path);
    put(",\"gpu\":%u,\"uuid\":", seat->index);
    put_text(seat->control->uuid_text);
    put_number("used_bytes", gp_ledger_total(seat->status) << GPUPOOL_UNIT_SHIFT);
    put_number("limit_bytes", seat->control->memory_limit_bytes);
    put(",\"correction_bytes\":%" PRId64, atomic_load(&seat->control->correction_bytes));
    put_number("peak_bytes", atomic_load(&seat->status->peak_bytes));
    put_number("oom_count", atomic_load(&seat->status->oom_count));
    put_number("unhooked_count", atomic_load(&seat->status->unhooked_count));
    put_number("held_ns", seat->drr.held_ns);
    put_number("grants", seat->drr.grants);
    put_number("waited_ns", sum.waited_ns);
    put_number("paced_ns", sum.paced_ns);
    put_number("launches", sum.launches);
    put_number("graph_launches", sum.graph_launches);
    put_number("ungated", sum.ungated);
    put_processes(seat);
    put("}}");
}

static uint64_t digest(void) {
    uint64_t sum = UINT64_C(14695981039346656037); /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ (unsigned char)line[i]) * UINT64_C(1099511628211);
    return sum;
}

void arb_report_usage(struct lease *lease) {
    for (uint32_t i = 0; i < lease->gpu_count; i++) {
        struct seat *seat = &lease->seats[i];
        length = 0;
        put_usage(seat);
        uint64_t now = digest();
        if (seat->live_count > 0 || now != seat->reported)
            end_line();
        seat->reported = now;
        length = 0;
    }
}
