/* A process of a tenant, or its repairer, on a real status file; an argument may name the step at which it dies.
 *
 * usage: ledger_worker work FILE SLOT LIMIT SEED OPERATIONS DIE_AT
 *        ledger_worker repair FILE SLOT DIE_AT
 *        ledger_worker reset FILE SLOT
 *        ledger_worker threads FILE THREADS OPERATIONS LIMIT    (a slot each; all give everything back)
 *
 * DIE_AT counts the steps of the ledger's code that this process has come through; 0: never. `work` with 0 operations
 * continues until it is killed. It prints what it holds at the end, in units.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void gp_step(void);
#define GP_STEP(n) gp_step()
#include "common/ledger.c"

static _Atomic unsigned long steps;
static unsigned long die_at;

static void gp_step(void) {
    if (die_at != 0 && atomic_fetch_add(&steps, 1) + 1 == die_at)
        raise(SIGKILL);
}

static struct gpupool_status_gpu *map(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *at = mmap(NULL, sizeof(struct gpupool_status_gpu), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        exit(3);
    close(file);
    return at;
}

struct share {
    struct gpupool_status_gpu *page;
    uint32_t slot;
    uint64_t limit;
    unsigned seed;
    long operations;
    bool all_back;
};

/* Takes and gives back at random; exits with 4 when the tenant is seen above the limit. */
static void *work(void *argument) {
    struct share *self = argument;
    int64_t held = 0;
    for (long i = 0; self->operations == 0 || i < self->operations; i++) {
        int64_t delta = 1 + rand_r(&self->seed) % 64;
        if (held >= delta && rand_r(&self->seed) % 2 == 0)
            delta = -delta;
        if (gp_ledger_change(self->page, self->slot, delta, self->limit))
            held += delta;
        if (gp_ledger_total(self->page) > self->limit)
            exit(4);
    }
    if (self->all_back)
        gp_ledger_change(self->page, self->slot, -held, self->limit);
    return (void *)held;
}

static void run_threads(struct gpupool_status_gpu *page, unsigned count, long operations, uint64_t limit) {
    pthread_t threads[GPUPOOL_SLOTS];
    struct share shares[GPUPOOL_SLOTS];
    for (unsigned i = 0; i < count; i++) {
        shares[i] = (struct share){page, i % 4, limit, i + 1, operations, true};
        pthread_create(&threads[i], NULL, work, &shares[i]);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int count, char **arguments) {
    if (count < 4)
        return 2;
    struct gpupool_status_gpu *page = map(arguments[2]);
    uint32_t slot = (uint32_t)atoi(arguments[3]);
    if (strcmp(arguments[1], "work") == 0) {
        struct share self = {page, slot, strtoull(arguments[4], NULL, 10), (unsigned)atoi(arguments[5]),
                             atol(arguments[6]), false};
        die_at = strtoul(arguments[7], NULL, 10);
        uint64_t nobody = 0;
        if (!atomic_compare_exchange_strong(&page->slots[slot].owner, &nobody, (uint64_t)getpid()))
            return 5;
        printf("%ld\n", (long)work(&self));
    } else if (strcmp(arguments[1], "repair") == 0) {
        die_at = strtoul(arguments[4], NULL, 10);
        return gp_ledger_repair_slot(page, slot) ? 0 : 6;
    } else if (strcmp(arguments[1], "reset") == 0) {
        return gp_ledger_reset_slot(page, slot) ? 0 : 6;
    } else {
        run_threads(page, slot, atol(arguments[4]), strtoull(arguments[5], NULL, 10));
    }
    return 0;
}
