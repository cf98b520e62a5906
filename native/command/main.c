/* Sends the request if it can, and becomes gpupool-python, which is installed next to this program. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "command.h"

/* SOCKET:BODY:PATH: the descriptors of the connection and of the request's body, and the path of the pool's socket.
 * gpupool.cli.fast.commands reads it. */
#define VARIABLE "GPUPOOL_EARLY_REQUEST"
#define PYTHON "gpupool-python"
#define TIMEOUT_S 10
#define EXIT_POOL_ERROR 125
#define TARGET "/v1/workloads?wait=started&timeout_s=0.4"

static bool has_standard_descriptors(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) == -1)
            return false;
    return true;
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = TIMEOUT_S}; /* holds for connect, too */
    if (strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0 ||
                    connect(fd, (const struct sockaddr *)&address, sizeof address) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool write_all(int fd, const char *data, size_t length, bool is_socket) {
    while (length > 0) {
        ssize_t written = is_socket ? send(fd, data, length, MSG_NOSIGNAL) : write(fd, data, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        data += written;
        length -= (size_t)written;
    }
    return true;
}

static int in_memory(const struct text *body) {
    int fd = (int)syscall(SYS_memfd_create, "gpupool-request", 0);
    if (fd >= 0 && !write_all(fd, body->data, body->length, false)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool send_request(int fd, const struct text *body) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "POST " TARGET " HTTP/1.1\r\nHost: gpupool\r\nConnection: close\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                          body->length);
    struct text request = {0};
    command_append(&request, head, (size_t)length);
    command_append(&request, body->data, body->length);
    return !request.failed && write_all(fd, request.data, request.length, true);
}

/* Leaves the connection and the body open for Python, or nothing. */
static void send_early(char *const *words) {
    struct arguments arguments;
    struct text body = {0};
    char path[PATH_BYTES], handover[PATH_BYTES + 32];
    if (!has_standard_descriptors() || !command_parse(words, &arguments) || !command_find_pool(path) ||
        !command_body(&arguments, &body))
        return;
    int kept = in_memory(&body), fd = kept < 0 ? -1 : connect_to(path);
    snprintf(handover, sizeof handover, "%d:%d:%s", fd, kept, path);
    if (fd >= 0 && send_request(fd, &body) && setenv(VARIABLE, handover, 1) == 0)
        return;
    if (fd >= 0)
        close(fd);
    if (kept >= 0)
        close(kept);
}

static void become_python(char **argv) {
    char path[PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof PYTHON);
    if (length > 0) {
        path[length] = '\0';
        strcpy(strrchr(path, '/') + 1, PYTHON);
        execv(path, argv);
    }
    fprintf(stderr, "gpupool: %s cannot be started: %s.\n  Install gpupool again.\n", length > 0 ? path : PYTHON,
            strerror(errno));
}

int main(int argc, char **argv) {
    unsetenv(VARIABLE);
    if (argc > 2 && strcmp(argv[1], "run") == 0)
        send_early(argv + 2);
    become_python(argv);
    return EXIT_POOL_ERROR;
}
