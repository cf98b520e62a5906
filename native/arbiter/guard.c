/* A status file belongs to its tenant, who may cut it short while it is mapped here; touching what is gone raises
 * SIGBUS. The handler puts empty memory there and the access is tried again: it finds zeros, which mean "nobody".
 * What the page said is of no importance any more; the lease is dealt with when the event at hand is over.
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

/* The control file is the agent's; but where tenants run as the same user they can cut that short as well. */
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
