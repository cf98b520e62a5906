/* Finds the process of each slot, and repairs the slot when the process dies.
 *
 * A process in the arbiter's own pid namespace is found by the pid in its slot. A process in another namespace is found
 * by the credentials that the kernel adds to its bell, or, if the arbiter did not run then, by a search through /proc.
 * After that a pidfd reports its death at once; without pidfd its pid and start time are checked every tick.
 *
 * A slot whose owner cannot be found is repaired only if /proc shows the lease's processes and several searches, a
 * second apart, found nothing: releasing memory that is still in use would break the guarantee of other tenants.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arbiter.h"
#include "ledger.h"

#define SEARCHES 3u

const struct process *arb_process_of(const struct lease *lease, uint64_t owner, uint64_t pid_ns) {
    for (uint32_t i = 0; i < lease->process_count; i++)
        if (lease->processes[i].owner == owner && (lease->processes[i].pid_ns == pid_ns || pid_ns == 0))
            return &lease->processes[i];
    return NULL;
}

bool arb_process_known(const struct lease *lease, uint64_t owner) { return arb_process_of(lease, owner, 0) != NULL; }

/* -- scanning ------------------------------------------------------------------------------------------------------ */

static void note(struct lease *lease, uint64_t owner, uint64_t pid_ns) {
    for (uint32_t i = 0; i < lease->process_count; i++) {
        struct process *known = &lease->processes[i];
        if (known->owner != owner || (known->pid_ns != pid_ns && known->pid_ns != 0 && pid_ns != 0))
            continue;
        known->pid_ns = pid_ns != 0 ? pid_ns : known->pid_ns;
        known->seen = true;
        return;
    }
    if (lease->process_count == ARB_PROCESSES)
        return;
    struct process *all = realloc(lease->processes, (lease->process_count + 1) * sizeof *all);
    if (all == NULL)
        return;
    lease->processes = all;
    all[lease->process_count++] = (struct process){.owner = owner, .pid_ns = pid_ns, .pidfd = -1, .seen = true};
}

static void scan(struct seat *seat) {
    seat->live_count = 0;
    for (uint32_t i = 0; i < GPUPOOL_SLOTS; i++) {
        struct gpupool_slot *slot = &seat->status->slots[i];
        uint64_t owner = atomic_load(&slot->owner);
        if (owner == 0)
            continue;
        uint64_t pid_ns = atomic_load(&slot->pid_ns);
        note(seat->lease, owner, pid_ns);
        seat->live[seat->live_count++] = (uint8_t)i;
        const struct process *process = arb_process_of(seat->lease, owner, pid_ns);
        if (process != NULL && process->host_pid != 0 && atomic_load(&slot->host_pid) != process->host_pid)
            atomic_store(&slot->host_pid, process->host_pid);
    }
}

static void drop(struct lease *lease, uint32_t index) {
    if (lease->processes[index].pidfd >= 0)
        close(lease->processes[index].pidfd); /* this also removes it from the list of polled descriptors */
    lease->processes[index] = lease->processes[--lease->process_count];
}

void arb_processes_scan(struct lease *lease) {
    for (uint32_t i = 0; i < lease->process_count; i++)
        lease->processes[i].seen = false;
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        scan(&lease->seats[i]);
    for (uint32_t i = lease->process_count; i-- > 0;)
        if (!lease->processes[i].seen)
            drop(lease, i);
    lease->full_look = false;
}

void arb_processes_forget(struct lease *lease) {
    while (lease->process_count > 0)
        drop(lease, lease->process_count - 1);
    free(lease->processes);
    lease->processes = NULL;
}

/* -- finding ------------------------------------------------------------------------------------------------------- */

static void watch(struct lease *lease, struct process *process, pid_t pid) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0 && arb_life(pid, gpupool_owner_start(process->owner)) == ARB_GONE) {
        close(fd); /* another process by now */
        return;
    }
    if (fd >= 0 && !arb_poll_add(fd, ARB_DEATH, lease->number)) {
        close(fd);
        fd = -1;
    }
    process->pidfd = fd;
    process->host_pid = (uint32_t)pid;
    lease->full_look = true; /* to write the pid into its slots */
}

void arb_process_told(struct lease *lease, uint64_t owner, pid_t pid) {
    struct process *process = (struct process *)arb_process_of(lease, owner, 0);
    if (process == NULL || process->host_pid != 0 || process->dead || pid <= 0)
        return;
    if (arb_life(pid, gpupool_owner_start(owner)) == ARB_ALIVE)
        watch(lease, process, pid);
}

static void find(struct lease *lease, struct process *process, bool search) {
    uint32_t pid = gpupool_owner_pid(process->owner);
    uint64_t start = gpupool_owner_start(process->owner);
    static uint64_t own;
    if (own == 0)
        own = arb_own_pid_namespace();
    bool ours = process->pid_ns == own;
    if (ours || process->pid_ns == 0) {
        enum arb_life life = pid == 0 ? ARB_GONE : arb_life((pid_t)pid, start);
        if (life == ARB_ALIVE)
            watch(lease, process, (pid_t)pid);
        else if (ours && life == ARB_GONE)
            process->dead = true;
    }
    if (ours || !search || process->host_pid != 0)
        return;
    pid_t host = arb_search(pid, start);
    if (host != 0)
        watch(lease, process, host);
    else if (geteuid() == 0 || geteuid() == lease->owner)
        process->dead = ++process->missed >= SEARCHES;
}

/* Processes with a pidfd are checked only after the kernel reported a death, and once a second. */
static bool has_ended(const struct process *process, bool all) {
    if (process->pidfd >= 0 && !all)
        return false;
    if (process->pidfd < 0)
        return arb_life((pid_t)process->host_pid, gpupool_owner_start(process->owner)) == ARB_GONE;
    struct pollfd waits = {.fd = process->pidfd, .events = POLLIN};
    return poll(&waits, 1, 0) == 1;
}

/* -- repairing ----------------------------------------------------------------------------------------------------- */

static void keep_counts(struct seat *seat, const struct gpupool_slot *slot) {
    seat->gone.launches += atomic_load(&slot->launches);
    seat->gone.graph_launches += atomic_load(&slot->graph_launches);
    seat->gone.waited_ns += atomic_load(&slot->waited_ns);
    seat->gone.paced_ns += atomic_load(&slot->paced_ns);
    seat->gone.ungated += atomic_load(&slot->ungated);
}

static bool repair(struct seat *seat, const struct process *process) {
    bool done = true;
    for (uint32_t i = 0; i < GPUPOOL_SLOTS; i++) {
        struct gpupool_slot *slot = &seat->status->slots[i];
        uint64_t pid_ns = atomic_load(&slot->pid_ns); /* 0: killed before it was written */
        if (atomic_load(&slot->owner) != process->owner || (pid_ns != process->pid_ns && pid_ns != 0))
            continue;
        struct counts before = seat->gone;
        keep_counts(seat, slot);
        if (gp_ledger_repair_slot(seat->status, i))
            continue;
        seat->gone = before;
        done = false;
    }
    return done;
}

void arb_processes_check(struct lease *lease, bool all, bool search) {
    bool changed = false;
    for (uint32_t i = lease->process_count; i-- > 0;) {
        struct process *process = &lease->processes[i];
        if (process->host_pid == 0 && !process->dead)
            find(lease, process, search);
        else if (!process->dead)
            process->dead = has_ended(process, all);
        if (!process->dead)
            continue;
        if (process->pidfd >= 0)
            close(process->pidfd); /* otherwise it would be reported for ever */
        process->pidfd = -1;
        bool done = true;
        for (uint32_t gpu = 0; gpu < lease->gpu_count; gpu++)
            done &= repair(&lease->seats[gpu], process);
        changed = true;
        if (done)
            drop(lease, i);
    }
    if (changed || lease->full_look) {
        arb_processes_scan(lease);
        arb_gpus_stir(lease);
    }
}
