/* The bells: a datagram socket in each lease's folder, for its tenant's user only.
 *
 * The kernel adds the sender's pid and user to each message. So a process in another pid namespace can be found, and
 * messages of other users are ignored. A tenant that rings too often is ignored for the rest of a tick; its pages are
 * read every tick anyway.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <fcntl.h>
#include <unistd.h>

#include "arbiter.h"

#define AT_ONCE 16u
#define A_TICK 1024u

static mode_t bell_mode(mode_t status_mode) { return status_mode & 0666; }

/* Uses the descriptor of the folder, because its path may be too long for a socket's address. */
static bool bind_at(int bell, int folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/bell", folder);
    if (unlinkat(folder, "bell", 0) != 0 && errno != ENOENT)
        return false;
    mode_t before = umask(0177);
    bool bound = bind(bell, (const struct sockaddr *)&address, sizeof address) == 0;
    umask(before);
    return bound;
}

static bool hand_over(int folder, uid_t owner, mode_t mode) {
    if (owner != geteuid() && fchownat(folder, "bell", owner, (gid_t)-1, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    return fchmodat(folder, "bell", bell_mode(mode), 0) == 0;
}

int arb_bell_open(int folder, uid_t owner, mode_t mode) {
    int bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int yes = 1;
    if (bell < 0)
        return -1;
    if (setsockopt(bell, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0 && bind_at(bell, folder) &&
        hand_over(folder, owner, mode))
        return bell;
    int error = errno;
    close(bell);
    errno = error;
    return -1;
}

void arb_bell_mode(const struct lease *lease) {
    int folder = open(lease->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    fchmodat(folder, "bell", bell_mode(lease->mode), 0);
    close(folder);
}

static bool is_heard(const struct lease *lease, uid_t uid) {
    return uid == lease->owner || uid == 0 || (lease->mode & S_IWOTH) != 0;
}

/* False: there is no message. */
static bool read_one(struct lease *lease) {
    struct gpupool_bell message = {0};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec part = {&message, sizeof message};
    struct msghdr all = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(lease->bell, &all, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length < 0)
        return false;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&all);
    if (length != sizeof message || header == NULL || header->cmsg_level != SOL_SOCKET ||
        header->cmsg_type != SCM_CREDENTIALS || header->cmsg_len < CMSG_LEN(sizeof(struct ucred)))
        return true;
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(header), sizeof sender);
    if (!is_heard(lease, sender.uid))
        return true;
    lease->rung = true;
    if (message.kind == GPUPOOL_BELL_HELLO || !arb_process_known(lease, message.owner))
        arb_processes_scan(lease);
    arb_process_told(lease, message.owner, sender.pid);
    return true;
}

static void listen_to(const struct lease *lease, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)ARB_BELL << 32 | lease->number};
    epoll_ctl(arb_epoll, EPOLL_CTL_MOD, lease->bell, &event);
}

void arb_bell_read(struct lease *lease) {
    uint32_t read = 0;
    while (read < AT_ONCE && read_one(lease))
        read++;
    lease->bells += read;
    if (lease->rung)
        arb_gpus_stir(lease);
    if (lease->bells >= A_TICK && !lease->muted) {
        lease->muted = true;
        listen_to(lease, 0);
    }
}

void arb_bell_unmute(struct lease *lease) {
    lease->bells = 0;
    if (!lease->muted)
        return;
    lease->muted = false;
    listen_to(lease, EPOLLIN);
}
