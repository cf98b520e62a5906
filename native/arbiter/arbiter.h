/* The arbiter from the inside: one process for a node, one thread, nothing that blocks.
 *
 *   main.c       waits for whatever happens next
 *   commands.c   what the agent says on standard input
 *   report.c     what the agent is told on standard output
 *   leases.c     folders: opened, checked, mapped, let go of
 *   guard.c      a tenant that cuts its status file short does not take the arbiter with it
 *   bells.c      datagrams of tenants
 *   processes.c  who is behind each slot, and what is done when he dies; procfs.c asks the system
 *   gpus.c       the tenants of each GPU: reads what they want, carries out what drr.c decides
 *
 * Everything in a status page is read once, as one atomic word, and believed only as far as it concerns its own tenant.
 */
#ifndef GPUPOOL_ARBITER_H
#define GPUPOOL_ARBITER_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "drr.h"
#include "gpupool/pages.h"

#define ARB_LEASES 4096u
#define ARB_PATH 4000u
#define ARB_PROCESSES 512u /* of one lease, on all its GPUs: more are not looked after */
#define ARB_TICK_NS UINT64_C(64000000)     /* heartbeat of leases with processes; at least ten a second are promised */
#define ARB_SECOND_NS UINT64_C(1000000000) /* heartbeat of the others; reports */
#define ARB_NEVER UINT64_MAX

struct process { /* of a lease */
    uint64_t owner, pid_ns;
    uint32_t host_pid; /* 0: not known */
    int pidfd;         /* -1: none */
    uint32_t missed;   /* searches in vain */
    bool dead, seen;
};

struct gpu { /* one that leases name */
    char uuid[96];
    uint8_t uuid_bytes[16];
    struct drr_gpu drr;
    uint64_t wake_ns;
    bool stirred; /* something may have changed */
    struct gpu *next;
};

struct counts { /* of processes that are gone */
    uint64_t launches, graph_launches, waited_ns, paced_ns, ungated;
};

struct seat { /* one GPU of a lease */
    struct drr_tenant drr; /* first: actions name it */
    struct lease *lease;
    struct gpu *gpu; /* NULL: it has left the round */
    struct gpupool_control_gpu *control;
    struct gpupool_status_gpu *status;
    uint32_t index;
    uint32_t live_count;
    uint8_t live[GPUPOOL_SLOTS]; /* slots that are taken */
    struct counts gone;
    uint64_t reported; /* a digest of the last report */
};

struct lease {
    uint32_t number; /* never used twice */
    char *path;
    int bell, status_fd;
    uid_t owner;
    mode_t mode; /* of the status file */
    struct gpupool_control_header *control;
    struct gpupool_status_header *status;
    size_t control_size, status_size;
    volatile sig_atomic_t cut; /* a fault was met and the pages have been replaced */
    bool tampered;             /* ... and that has been said and dealt with */
    bool rung, full_look, muted;
    uint32_t bells; /* since the last tick */
    struct process *processes;
    uint32_t process_count;
    uint32_t gpu_count;
    struct seat seats[];
};

extern struct lease *arb_leases[ARB_LEASES];
extern uint32_t arb_lease_end; /* places beyond have never been used */
extern int arb_epoll;

enum arb_kind { ARB_INPUT = 1, ARB_OUTPUT, ARB_TIMER, ARB_BELL, ARB_DEATH };

/* -- main.c -------------------------------------------------------------------------------------------------------- */
uint64_t arb_now(void);
bool arb_poll_add(int fd, enum arb_kind kind, uint32_t number);

/* -- commands.c: false at the end of input ------------------------------------------------------------------------- */
bool arb_read_commands(int fd);

/* -- report.c ------------------------------------------------------------------------------------------------------ */
void arb_report_to(int fd);
void arb_warn(const struct lease *lease, const char *path, const char *sentence);
void arb_report_usage(struct lease *lease);
/* Writes what there is room for. */
void arb_flush(void);

/* -- leases.c ------------------------------------------------------------------------------------------------------ */
void arb_lease_add(const char *path);
void arb_lease_remove(const char *path);
struct lease *arb_lease_at(const char *path);
struct lease *arb_lease_of(uint32_t number);
/* Once a second: has its file been cut short, or opened to others? */
void arb_lease_inspect(struct lease *lease);
/* Says that the lease's pages cannot be trusted, takes its grants and leaves it out from now on. */
void arb_lease_distrust(struct lease *lease);

/* -- guard.c ------------------------------------------------------------------------------------------------------- */
bool arb_guard_start(void);
/* Puts empty memory in place of a lease's status page. */
void arb_guard_replace(struct lease *lease);

/* -- bells.c ------------------------------------------------------------------------------------------------------- */
/* Binds <folder>/bell; the folder is open as `folder`. -1 with errno. */
int arb_bell_open(int folder, uid_t owner, mode_t mode);
void arb_bell_mode(const struct lease *lease);
void arb_bell_read(struct lease *lease);
/* Once a tick: a bell that was rung too often may be heard again. */
void arb_bell_unmute(struct lease *lease);

/* -- processes.c --------------------------------------------------------------------------------------------------- */
/* Looks through all slots: who is there? */
void arb_processes_scan(struct lease *lease);
/* The kernel says that `pid` sent a message for this owner. */
void arb_process_told(struct lease *lease, uint64_t owner, pid_t pid);
/* Looks who has died, and repairs what they left. `all`: also among those whose death the kernel tells; `search`: also
 * for those that no look-up by pid finds. */
void arb_processes_check(struct lease *lease, bool all, bool search);
void arb_processes_forget(struct lease *lease);
bool arb_process_known(const struct lease *lease, uint64_t owner);
const struct process *arb_process_of(const struct lease *lease, uint64_t owner, uint64_t pid_ns);

/* -- procfs.c ------------------------------------------------------------------------------------------------------ */
enum arb_life { ARB_GONE, ARB_ALIVE, ARB_UNKNOWN };
/* Whether the process `pid` that started at `start` (clock ticks since boot) lives. */
enum arb_life arb_life(pid_t pid, uint64_t start);
/* The process with this pid in its own namespace and this start; 0: there is none to be seen. */
pid_t arb_search(uint32_t pid, uint64_t start);
uint64_t arb_own_pid_namespace(void);

/* -- gpus.c -------------------------------------------------------------------------------------------------------- */
bool arb_gpus_join(struct seat *seat);
void arb_gpus_leave(struct seat *seat);
void arb_gpus_stir(struct lease *lease);
/* Carries out what is to be done on all GPUs by now; the time to come back. */
uint64_t arb_gpus_run(uint64_t now);

#endif
