/* Internal interfaces of the arbiter: one process for each node, one thread, no blocking calls.
 *
 *   main.c       waits for the next event
 *   commands.c   commands of the agent on standard input
 *   report.c     reports to the agent on standard output
 *   leases.c     opens, checks, maps and closes lease folders
 *   guard.c      survives a tenant that truncates its mapped status file
 *   bells.c      datagrams of tenants
 *   processes.c  finds the process of each slot and repairs the slot when it dies; procfs.c reads /proc
 *   gpus.c       the tenants of each GPU: reads their requests, applies the decisions of drr.c
 *
 * Each word of a status page is read once, atomically, and may affect only the page's own tenant.
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
#define ARB_PROCESSES 512u /* of one lease, on all its GPUs: further ones are ignored */
#define ARB_TICK_NS UINT64_C(64000000)     /* heartbeat of leases with processes; at least ten a second are promised */
#define ARB_SECOND_NS UINT64_C(1000000000) /* heartbeat of the others; reports */
#define ARB_NEVER UINT64_MAX

struct process { /* of a lease */
    uint64_t owner, pid_ns;
    uint32_t host_pid; /* 0: not known */
    int pidfd;         /* -1: none */
    uint32_t missed;   /* unsuccessful searches */
    bool dead, seen;
};

struct gpu { /* a GPU that leases name */
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
    struct drr_tenant drr; /* first member: actions point to it */
    struct lease *lease;
    struct gpu *gpu; /* NULL: it no longer takes part */
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
    volatile sig_atomic_t cut; /* an access faulted and the pages were replaced */
    bool tampered;             /* the fault was reported and handled */
    bool rung, full_look, muted;
    uint32_t bells; /* since the last tick */
    struct process *processes;
    uint32_t process_count;
    uint32_t gpu_count;
    struct seat seats[];
};

extern struct lease *arb_leases[ARB_LEASES];
extern uint32_t arb_lease_end; /* slots from here on were never used */
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
/* Writes as much as fits into the pipe. */
void arb_flush(void);

/* -- leases.c ------------------------------------------------------------------------------------------------------ */
void arb_lease_add(const char *path);
void arb_lease_remove(const char *path);
struct lease *arb_lease_at(const char *path);
struct lease *arb_lease_of(uint32_t number);
/* Checks once a second whether the status file was truncated or opened to other users. */
void arb_lease_inspect(struct lease *lease);
/* Reports that the lease's pages cannot be trusted, revokes its grants and ignores it from now on. */
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
/* Resets the limit of rings for each bell, once a tick. */
void arb_bell_unmute(struct lease *lease);

/* -- processes.c --------------------------------------------------------------------------------------------------- */
/* Reads all slots and finds the processes in them. */
void arb_processes_scan(struct lease *lease);
/* Records that, by the kernel's credentials, `pid` sent a message for this owner. */
void arb_process_told(struct lease *lease, uint64_t owner, pid_t pid);
/* Finds dead processes and repairs their slots. `all`: also checks processes with a pidfd; `search`: also searches /proc
 * for processes that no look-up by pid finds. */
void arb_processes_check(struct lease *lease, bool all, bool search);
void arb_processes_forget(struct lease *lease);
bool arb_process_known(const struct lease *lease, uint64_t owner);
const struct process *arb_process_of(const struct lease *lease, uint64_t owner, uint64_t pid_ns);

/* -- procfs.c ------------------------------------------------------------------------------------------------------ */
enum arb_life { ARB_GONE, ARB_ALIVE, ARB_UNKNOWN };
/* Returns true if the process `pid` that started at `start` (clock ticks since boot) lives. */
enum arb_life arb_life(pid_t pid, uint64_t start);
/* Returns the process with this pid in its own namespace and this start time; 0: none is visible. */
pid_t arb_search(uint32_t pid, uint64_t start);
uint64_t arb_own_pid_namespace(void);

/* -- gpus.c -------------------------------------------------------------------------------------------------------- */
bool arb_gpus_join(struct seat *seat);
void arb_gpus_leave(struct seat *seat);
void arb_gpus_stir(struct lease *lease);
/* Applies all decisions for all GPUs until now; returns the time of the next call. */
uint64_t arb_gpus_run(uint64_t now);

#endif
