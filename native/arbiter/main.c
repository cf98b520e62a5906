/* gpupool-arbiter: grants the time of a node's GPUs to leases in turn, and repairs what killed processes leave.
 *
 * It sleeps until a command, a bell, the death of a process or the time of the next decision. While a lease has
 * processes, it also wakes about sixteen times a second to change the heartbeat, which shows them that it lives. Leases
 * without processes get a heartbeat once a second. Without leases it sleeps until a command.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "arbiter.h"

#define EVENTS 64
#define NICE (-10)

int arb_epoll = -1;
static int timer = -1;
static uint64_t next_tick, next_second;

uint64_t arb_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

bool arb_poll_add(int fd, enum arb_kind kind, uint32_t number) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | number};
    return epoll_ctl(arb_epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void wake_up_at(uint64_t when) {
    struct itimerspec at = {0};
    if (when != ARB_NEVER) {
        when = when == 0 ? 1 : when;
        at.it_value = (struct timespec){(time_t)(when / 1000000000), (long)(when % 1000000000)};
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* -- periodic work ------------------------------------------------------------------------------------------------- */

static bool has_processes(const struct lease *lease) {
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        if (lease->seats[i].live_count > 0)
            return true;
    return lease->tampered;
}

static void beat(struct lease *lease) {
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        atomic_fetch_add(&lease->seats[i].control->heartbeat, 1);
}

static void every_tick(struct lease *lease) {
    beat(lease);
    arb_bell_unmute(lease);
    arb_processes_scan(lease);
    arb_processes_check(lease, false, false);
    arb_gpus_stir(lease);
}

static void every_second(struct lease *lease) {
    arb_lease_inspect(lease);
    if (!has_processes(lease)) {
        beat(lease);
        arb_bell_unmute(lease);
        arb_processes_scan(lease);
    }
    arb_processes_check(lease, true, true);
    arb_report_usage(lease);
}

/* Returns the time of the next of these events. */
static uint64_t do_regularly(uint64_t now) {
    bool tick = now >= next_tick, second = now >= next_second;
    bool leases = false, processes = false;
    next_tick = tick ? now + ARB_TICK_NS : next_tick;
    next_second = second ? now + ARB_SECOND_NS : next_second;
    for (uint32_t i = 0; i < arb_lease_end; i++) {
        struct lease *lease = arb_leases[i];
        if (lease == NULL)
            continue;
        if (tick && has_processes(lease))
            every_tick(lease);
        if (second)
            every_second(lease);
        if (lease->cut)
            arb_lease_distrust(lease);
        leases = true;
        processes |= has_processes(lease);
    }
    return !leases ? ARB_NEVER : processes && next_tick < next_second ? next_tick : next_second;
}

/* -- events -------------------------------------------------------------------------------------------------------- */

static void on_lease(enum arb_kind kind, uint32_t number) {
    struct lease *lease = arb_lease_of(number); /* it may have ended since */
    if (lease == NULL)
        return;
    if (kind == ARB_BELL)
        arb_bell_read(lease);
    else
        arb_processes_check(lease, true, false);
}

/* Returns false when the agent has ended. */
static bool on_event(const struct epoll_event *event) {
    enum arb_kind kind = (enum arb_kind)(event->data.u64 >> 32);
    uint64_t expirations;
    if (kind == ARB_INPUT)
        return arb_read_commands(STDIN_FILENO);
    if (kind == ARB_TIMER)
        return read(timer, &expirations, sizeof expirations) >= 0 || errno == EAGAIN;
    on_lease(kind, (uint32_t)event->data.u64);
    return true;
}

static int serve(void) {
    struct epoll_event events[EVENTS];
    for (;;) {
        uint64_t regular = do_regularly(arb_now());
        uint64_t granting = arb_gpus_run(arb_now());
        arb_flush();
        wake_up_at(regular < granting ? regular : granting);
        int count = epoll_wait(arb_epoll, events, EVENTS, -1);
        if (count < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < count; i++)
            if (!on_event(&events[i]))
                return 0;
    }
}

/* -- beginning ----------------------------------------------------------------------------------------------------- */

static void help(void) {
    puts("gpupool-arbiter: shares the time of a node's GPUs between leases.\n"
         "\n"
         "Started by the node's agent; not of use by itself. Reads orders on standard input\n"
         "(add FOLDER, remove FOLDER, correct FOLDER GPU BYTES), writes one JSON object a line\n"
         "on standard output, and ends with its input.");
}

/* Raises the limit of descriptors (one for each bell and process) and the priority, where allowed. */
static void prepare(void) {
    struct rlimit files;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    setpriority(PRIO_PROCESS, 0, NICE);
}

int main(int count, char **arguments) {
    if (count > 1) {
        help();
        return strcmp(arguments[1], "--help") == 0 ? 0 : 2;
    }
    prepare();
    arb_report_to(STDOUT_FILENO);
    arb_epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (arb_epoll < 0 || timer < 0 || !arb_guard_start() || !arb_poll_add(STDIN_FILENO, ARB_INPUT, 0) ||
        !arb_poll_add(timer, ARB_TIMER, 0)) {
        fprintf(stderr, "gpupool-arbiter: cannot begin: %s\n", strerror(errno));
        return 1;
    }
    return serve();
}
