/* A process with memory and work on a simulated GPU, by the shared state alone:
 *     nvml_holder <gpu> <instance or -1> <bytes> <nanoseconds of work>
 * Says "ready" and stays until its input ends. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake/gpus.h"

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    fake_migs_refresh();
    struct fake_device *device = fake_device_open((uint32_t)atoi(argv[1]), atoi(argv[2]));
    if (device == NULL) return 3;
    fake_lock(device);
    int slot = fake_join(device);
    fake_unlock(device);
    if (slot < 0 || !fake_take(device, slot, FAKE_PLAIN, strtoull(argv[3], NULL, 10))) return 4;
    fake_lock(device);
    if (strtoull(argv[4], NULL, 10) > 0) fake_submit(device, slot, strtoull(argv[4], NULL, 10));
    fake_unlock(device);
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
    return 0;
}
