/* An arbiter in a hurry: grants and takes away as fast as the tenant gives back, at random intervals, and watches that
 * nothing is launched between the moment when it saw all slots idle and its next grant.
 *
 * Usage: gate_rounds <control file> <status file> <report file of gate_sim.c> <slots> <milliseconds>
 * A busy machine gets up to ten times as long, until there were more than LEAST rounds and LEAST_USED of them in use.
 * Prints the number of rounds and of those in which a tenant had the GPU. Late launches are in the report.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gpupool/pages.h"

#define LEAST 300
#define LEAST_USED 100
#define CLOSED 10 /* which word of the report */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *map(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR);
    return fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static void spin(uint64_t ns) {
    for (uint64_t end = now_ns() + ns; now_ns() < end;)
        ;
}

static void write_grant(struct gpupool_control_gpu *control, uint32_t grant) {
    atomic_store(&control->grant, grant);
    atomic_fetch_add(&control->heartbeat, 1);
    syscall(SYS_futex, &control->grant, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool somebody_busy(struct gpupool_status_gpu *status, int slots) {
    bool busy = false;
    for (int i = 0; i < slots; i++)
        busy |= atomic_load(&status->slots[i].busy) != 0;
    return busy;
}

static bool over(uint64_t took, uint64_t span, uint64_t rounds, uint64_t used) {
    return took >= 10 * span || (took >= span && rounds > LEAST && used > LEAST_USED);
}

int main(int count, char **words) {
    if (count != 6)
        return 2;
    char *control_file = map(words[1], 2 * GPUPOOL_PAGE);
    char *status_file = map(words[2], GPUPOOL_PAGE + sizeof(struct gpupool_status_gpu));
    _Atomic uint64_t *closed = map(words[3], 4096);
    if (control_file == MAP_FAILED || status_file == MAP_FAILED || closed == MAP_FAILED)
        return 3;
    struct gpupool_control_gpu *control = (void *)(control_file + GPUPOOL_PAGE);
    struct gpupool_status_gpu *status = (void *)(status_file + GPUPOOL_PAGE);
    closed += CLOSED;
    int slots = atoi(words[4]);
    uint64_t span = strtoull(words[5], NULL, 0) * 1000000, begin = now_ns(), rounds = 0, used = 0;
    unsigned seed = 1;
    for (uint32_t epoch = 1; !over(now_ns() - begin, span, rounds, used); epoch++, rounds++) {
        uint32_t contended = epoch % 2 * GPUPOOL_GRANT_CONTENDED;
        write_grant(control, epoch << GPUPOOL_GRANT_EPOCH_SHIFT | GPUPOOL_GRANT_GRANTED | contended);
        spin(rand_r(&seed) % 8 == 0 ? 1500000 : rand_r(&seed) % 60000);
        used += somebody_busy(status, slots);
        write_grant(control, epoch << GPUPOOL_GRANT_EPOCH_SHIFT | contended);
        while (somebody_busy(status, slots))
            syscall(SYS_sched_yield);
        atomic_store(closed, 1);
        spin(rand_r(&seed) % 30000);
        atomic_store(closed, 0);
    }
    printf("%lu %lu\n", (unsigned long)rounds, (unsigned long)used);
    return 0;
}
