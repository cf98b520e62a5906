/* Handles truncated status files. A status file belongs to its tenant, who may truncate it while it is mapped here;
 * reading the missing part raises SIGBUS. The handler maps empty memory there, and the access is repeated: it reads
 * zeros, which mean "no process". The content of the page no longer matters; the lease is handled after the current
 * event.
 */
#include <sys/mman.h>

#include "arbiter.h"

static bool holds(const void *start, size_t size, const void *address) {
    const char *at = address, *from = start;
    return from != NULL && at >= from && at < from + size;
}

static bool replace(void *start, size_t size) {
    return mmap(start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start;
}

/* The control file belongs to the agent, but tenants that run as the same user can truncate it as well. */
static void on_fault(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    for (uint32_t i = 0; i < arb_lease_end; i++) {
        struct lease *lease = arb_leases[i];
        bool status = lease != NULL && holds(lease->status, lease->status_size, info->si_addr);
        bool control = lease != NULL && holds(lease->control, lease->control_size, info->si_addr);
        if (!status && !control)
            continue;
        lease->cut = 1;
        if (status ? replace(lease->status, lease->status_size) : replace(lease->control, lease->control_size))
            return;
    }
    signal(signal_number, SIG_DFL); /* not ours: the access is tried again and ends the process */
}

bool arb_guard_start(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) == 0;
}

void arb_guard_replace(struct lease *lease) { replace(lease->status, lease->status_size); }
