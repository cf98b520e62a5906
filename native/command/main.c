/* Runs a plain `gpupool run`, or becomes gpupool-python, which is installed next to this program. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "command.h"

/* SOCKET:BODY:ANSWER:EXIT:PATH: descriptors of the connection, of files with the request's body, with what arrived of
 * the answer and with the report of the program's end (-1: never attached), and the path of the pool's socket.
 * gpupool.cli.fast.commands reads it. */
#define VARIABLE "GPUPOOL_EARLY_REQUEST"
#define PYTHON "gpupool-python"
#define TIMEOUT_S 10
#define ANSWER_TIMEOUT_MS 2000
#define MAX_ANSWER_BYTES (1 << 20)
#define EXIT_POOL_ERROR 125
#define EXIT_PIPE 141 /* 128 + PIPE, as for a program whose reader closed the pipe */
#define TARGET "/v1/workloads?wait=started&timeout_s=0.4"
#define ATTACH "gpupool-attach:"

/* A request that was sent, and what arrived of its answer. */
struct request {
    int fd;
    char path[PATH_BYTES];
    struct text body, answer;
};

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

/* Returns a file in memory, for Python, or -1. */
static int in_memory(const struct text *text) {
    int fd = (int)syscall(SYS_memfd_create, "gpupool-request", 0);
    if (fd >= 0 && !write_all(fd, text->data, text->length, false)) {
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
    struct text sent = {0};
    command_append(&sent, head, (size_t)length);
    command_append(&sent, body->data, body->length);
    return !sent.failed && write_all(fd, sent.data, sent.length, true);
}

/* Returns whether the request was sent. */
static bool submit(char *const *words, struct request *request) {
    struct arguments arguments;
    if (!has_standard_descriptors() || !command_parse(words, &arguments) || !command_find_pool(request->path) ||
        !command_body(&arguments, &request->body))
        return false;
    request->fd = connect_to(request->path);
    if (request->fd >= 0 && send_request(request->fd, &request->body))
        return true;
    if (request->fd >= 0)
        close(request->fd);
    return false;
}

/* Reads the answer until the pool closes the connection. Returns false if it is late, or too long. */
static bool read_answer(struct request *request) {
    struct pollfd polled = {.fd = request->fd, .events = POLLIN};
    char data[1 << 14];
    while (!request->answer.failed && request->answer.length < MAX_ANSWER_BYTES) {
        ssize_t received = poll(&polled, 1, ANSWER_TIMEOUT_MS) == 1 ? recv(request->fd, data, sizeof data, 0) : -1;
        if (received <= 0)
            return received == 0;
        command_append(&request->answer, data, (size_t)received);
    }
    return false;
}

/* Connects to the program that the answer names; returns -1 if it names none, or the connection fails. */
static int connect_to_program(const struct text *answer) {
    char path[PATH_BYTES];
    const char *line = answer->data == NULL ? NULL : strstr(answer->data, "\r\n");
    while (line != NULL && line[2] != '\r' && strncasecmp(line + 2, ATTACH, strlen(ATTACH)) != 0)
        line = strstr(line + 2, "\r\n");
    if (line == NULL || line[2] == '\r')
        return -1;
    line += 2 + strlen(ATTACH);
    line += strspn(line, " ");
    size_t length = strcspn(line, "\r");
    if (length == 0 || length >= sizeof path)
        return -1;
    memcpy(path, line, length);
    path[length] = '\0';
    return connect_to(path);
}

/* Returns the status of a program that ended by itself; -1 if Python must say why it ended. In JSON a quote in a text is
 * preceded by a backslash, so these words are fields of the report. */
static int plain_status(const struct text *exit_report) {
    const char *status = exit_report->data == NULL ? NULL : strstr(exit_report->data, "\"status\": ");
    bool plain = status != NULL && strstr(exit_report->data, "\"reason\": \"exited\"") != NULL &&
                 strstr(exit_report->data, "\"signal\": null") != NULL &&
                 strstr(exit_report->data, "\"message\": \"\"") != NULL;
    return plain ? atoi(status + strlen("\"status\": ")) : -1;
}

/* Lets Python take over the request, and the end of the program if `exit_report` is not NULL. */
static void hand_over(const struct request *request, const struct text *exit_report) {
    char handover[PATH_BYTES + 64];
    int body = in_memory(&request->body), answer = in_memory(&request->answer);
    int end = exit_report == NULL ? -1 : in_memory(exit_report);
    snprintf(handover, sizeof handover, "%d:%d:%d:%d:%s", request->fd, body, answer, end, request->path);
    if (body < 0 || answer < 0 || (exit_report != NULL && end < 0) || setenv(VARIABLE, handover, 1) != 0) {
        fprintf(stderr, "gpupool: the request cannot be handed over: %s.\n  Free memory, and run it again.\n",
                strerror(errno));
        exit(EXIT_POOL_ERROR);
    }
}

/* Runs the program, or returns when Python must do it. */
static void run(char *const *words) {
    struct request request = {0};
    struct text report = {0};
    sigset_t before;
    int error = 0;
    if (!submit(words, &request))
        return;
    if (isatty(0) || !read_answer(&request)) {
        hand_over(&request, NULL);
        return;
    }
    int fd = connect_to_program(&request.answer);
    int signals = fd < 0 ? -1 : command_block_signals(&before);
    if (signals < 0) {
        if (fd >= 0)
            close(fd);
        hand_over(&request, NULL);
        return;
    }
    enum attach_end end = command_attach(fd, signals, &report, &error);
    int status = end == EXITED ? plain_status(&report) : -1;
    if (end == OUTPUT_CLOSED && error != EPIPE)
        fprintf(stderr, "gpupool: the output cannot be written (%s); the program gets the signal PIPE\n", strerror(error));
    if (end == OUTPUT_CLOSED || status >= 0)
        exit(end == OUTPUT_CLOSED ? EXIT_PIPE : status);
    close(fd);
    hand_over(&request, &report);
    sigprocmask(SIG_SETMASK, &before, NULL);
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
        run(argv + 2);
    become_python(argv);
    return EXIT_POOL_ERROR;
}
