/* Faults of simulated GPUs, for tests of what finds them. The file faults.conf next to gpus.conf has a line for each:
 *
 *   <index> flip               one bit of a large region is wrong after a program fills it
 *   <index> slow-link <times>  copies between host and card take this factor longer; the link shows fewer lanes
 *   <index> no-peer            no other card can access its memory, and it cannot access theirs
 *   <index> xid <number>       each process that registers for events gets this XID once
 *   <index> vanished           NVML reports it as lost, and no context can be created
 *   <index> throttle           the clock is halved because the card is too hot
 *   <index> mig-denied         this user may not create or destroy MIG instances
 *   <index> no-compute-instance  no compute instance can be created
 *   <index> slow-instance <ms> creating a compute instance takes this much longer
 *
 * `#` starts a comment. A change of the file is noticed within LOOK_NS, also by programs that run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gpus.h"

#define LOOK_NS UINT64_C(20000000)

static struct fake_faults faults[FAKE_GPUS];
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static struct stat last; /* all zero: no file */
static uint64_t looked_ns;

static void read_line(char *line) {
    uint32_t gpu, value = 0;
    char name[32];
    line[strcspn(line, "#\n")] = '\0';
    int fields = sscanf(line, "%" SCNu32 " %31s %" SCNu32, &gpu, name, &value);
    if (fields < 2 || gpu >= FAKE_GPUS) return;
    struct fake_faults *fault = &faults[gpu];
    if (strcmp(name, "flip") == 0) fault->flip = true;
    else if (strcmp(name, "slow-link") == 0 && value > 0) fault->slow_link = value;
    else if (strcmp(name, "no-peer") == 0) fault->no_peer = true;
    else if (strcmp(name, "xid") == 0) fault->xid = value;
    else if (strcmp(name, "vanished") == 0) fault->vanished = true;
    else if (strcmp(name, "throttle") == 0) fault->throttle = true;
    else if (strcmp(name, "mig-denied") == 0) fault->mig_denied = true;
    else if (strcmp(name, "no-compute-instance") == 0) fault->no_compute_instance = true;
    else if (strcmp(name, "slow-instance") == 0) fault->slow_instance_ms = value;
    else fprintf(stderr, "gpupool fake driver: faults.conf: unknown fault %s\n", name);
}

static void look(void) {
    char path[4096], line[256];
    struct stat now;
    snprintf(path, sizeof path, "%s/faults.conf", fake_folder());
    if (stat(path, &now) != 0) memset(&now, 0, sizeof now);
    bool same = now.st_ino == last.st_ino && now.st_size == last.st_size && now.st_mtim.tv_sec == last.st_mtim.tv_sec &&
                now.st_mtim.tv_nsec == last.st_mtim.tv_nsec;
    if (same) return;
    last = now;
    for (uint32_t i = 0; i < FAKE_GPUS; i++) faults[i] = (struct fake_faults){.slow_link = 1};
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) read_line(line);
    if (file != NULL) fclose(file);
}

struct fake_faults fake_faults_of(uint32_t gpu) {
    pthread_mutex_lock(&reading);
    uint64_t now = fake_now();
    if (looked_ns == 0 || now - looked_ns > LOOK_NS) {
        look();
        looked_ns = now;
    }
    struct fake_faults found = faults[gpu];
    pthread_mutex_unlock(&reading);
    if (found.slow_link == 0) found.slow_link = 1;
    return found;
}
