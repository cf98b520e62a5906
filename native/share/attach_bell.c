/* Rings the arbiter's bell.
 *
 * Each ring opens and closes a socket: programs that close all unknown descriptors would close, or reuse, a descriptor
 * that stays open. The three microseconds that this takes do not matter, because bells are rare.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "attach.h"

/* Sends to a path that may be too long for a socket's address; then it uses a descriptor of the folder. */
static void send_to(int bell, const char *folder, const struct gpupool_bell *message) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int way = -1;
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/bell", folder);
    if (length < 0)
        return;
    if ((size_t)length >= sizeof address.sun_path) {
        way = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (way < 0)
            return;
        snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/bell", way);
    }
    sendto(bell, message, sizeof *message, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&address, sizeof address);
    if (way >= 0)
        close(way);
}

void gp_ring(struct gp_gpu *gpu, enum gpupool_bell_kind kind) {
    if (gpu == NULL || gpu->slot == NULL)
        return;
    struct gpupool_bell message = {.kind = kind, .gpu = gpu->index, .owner = atomic_load(&gpu->slot->owner)};
    int bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bell < 0)
        return;
    send_to(bell, gp_pages()->folder, &message);
    close(bell);
}
