/* Copies between the descriptors of this process and a program's shepherd: gpupool.cli.fast.attach_io without a terminal.
 *
 * One loop that never blocks. A slow program stops it from reading the input, a slow reader stops it from reading the
 * program, and signals are always forwarded. The frames are those of gpupool.domain.protocol.frames. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

#define HEADER_BYTES 5
#define MAX_PAYLOAD_BYTES (1 << 20)
#define READ_BYTES (1 << 16)
#define MAX_PENDING_BYTES (1 << 18)

enum { STDIN = 1, STDIN_EOF = 2, SIGNAL = 4, HELLO = 6, STDOUT = 65, STDERR = 66, EXIT = 68, NOTE = 69 };

static const int FORWARDED[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

struct sink {
    int fd;
    bool is_regular, closed;
    int error; /* why it is closed */
    struct text pending;
};

struct attachment {
    int fd, signals;
    bool input_open, hung_up, has_exit;
    struct text outgoing, incoming;
    struct sink sinks[2];
    struct text *exit;
};

void command_consume(struct text *text, size_t length) {
    text->length -= length;
    memmove(text->data, text->data + length, text->length);
}

int command_block_signals(sigset_t *before) {
    sigset_t wanted, blocked;
    struct sigaction action;
    sigemptyset(&wanted);
    for (size_t i = 0; i < sizeof FORWARDED / sizeof *FORWARDED; i++)
        if (sigaction(FORWARDED[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&wanted, FORWARDED[i]); /* an ignored signal (nohup) stays ignored */
    blocked = wanted;
    sigaddset(&blocked, SIGPIPE);
    int fd = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd >= 0)
        sigprocmask(SIG_BLOCK, &blocked, before);
    return fd;
}

static void frame(struct attachment *at, uint8_t kind, const void *payload, size_t length) {
    char header[HEADER_BYTES] = {(char)kind};
    uint32_t size = htonl((uint32_t)length);
    memcpy(header + 1, &size, sizeof size);
    command_append(&at->outgoing, header, sizeof header);
    command_append(&at->outgoing, payload, length);
}

static void take_signals(struct attachment *at) {
    struct signalfd_siginfo found;
    while (read(at->signals, &found, sizeof found) == sizeof found)
        frame(at, SIGNAL, &(uint8_t){(uint8_t)found.ssi_signo}, 1);
}

static void flush(struct attachment *at) {
    ssize_t sent = send(at->fd, at->outgoing.data, at->outgoing.length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0)
        command_consume(&at->outgoing, (size_t)sent);
    else if (errno != EAGAIN && errno != EINTR)
        at->outgoing.length = 0; /* the peer closed the connection; its last frames may still be readable */
}

static void take_frame(struct attachment *at, uint8_t kind, const char *payload, size_t length) {
    struct sink *sink = &at->sinks[kind == STDOUT ? 0 : 1];
    if (kind == EXIT) {
        command_append(at->exit, payload, length);
        at->has_exit = true;
        at->input_open = false;
    } else if (!sink->closed && (kind == STDOUT || kind == STDERR)) {
        command_append(&sink->pending, payload, length);
    } else if (!sink->closed && kind == NOTE) {
        while (length > 0 && strchr(" \t\r\n", payload[length - 1]) != NULL)
            length--;
        command_append(&sink->pending, "gpupool: ", strlen("gpupool: "));
        command_append(&sink->pending, payload, length);
        command_append(&sink->pending, "\n", 1);
    }
}

static void receive(struct attachment *at) {
    static char data[READ_BYTES];
    ssize_t received = recv(at->fd, data, sizeof data, MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    at->hung_up = received <= 0;
    if (received > 0)
        command_append(&at->incoming, data, (size_t)received);
    size_t start = 0;
    while (at->incoming.length - start >= HEADER_BYTES) {
        const char *head = at->incoming.data + start;
        uint32_t length;
        memcpy(&length, head + 1, sizeof length);
        length = ntohl(length);
        if (length > MAX_PAYLOAD_BYTES) {
            at->hung_up = true;
            break;
        }
        if (at->incoming.length - start < HEADER_BYTES + length)
            break;
        take_frame(at, (uint8_t)head[0], head + HEADER_BYTES, length);
        start += HEADER_BYTES + length;
    }
    command_consume(&at->incoming, start);
}

static void read_input(struct attachment *at) {
    static char data[READ_BYTES];
    ssize_t got = read(0, data, sizeof data);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    at->input_open = got > 0;
    frame(at, got > 0 ? STDIN : STDIN_EOF, data, got > 0 ? (size_t)got : 0);
}

/* A descriptor that polls as writable accepts PIPE_BUF bytes without blocking. */
static void write_sink(struct sink *sink) {
    while (sink->pending.length > 0) {
        size_t length = sink->pending.length;
        ssize_t written = write(sink->fd, sink->pending.data, sink->is_regular || length < PIPE_BUF ? length : PIPE_BUF);
        if (written < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (written < 0) {
            sink->closed = true;
            sink->error = errno;
            sink->pending.length = 0;
            return;
        }
        command_consume(&sink->pending, (size_t)written);
        if (!sink->is_regular)
            return;
    }
}

static bool is_over(const struct attachment *at) {
    bool pending = at->sinks[0].pending.length > 0 || at->sinks[1].pending.length > 0;
    return at->sinks[0].closed || ((at->hung_up || at->has_exit) && !pending);
}

static bool out_of_memory(const struct attachment *at) {
    return at->outgoing.failed || at->incoming.failed || at->sinks[0].pending.failed || at->sinks[1].pending.failed ||
           at->exit->failed;
}

static void turn(struct attachment *at) {
    size_t pending = at->sinks[0].pending.length + at->sinks[1].pending.length;
    short wanted = (short)((pending < MAX_PENDING_BYTES ? POLLIN : 0) | (at->outgoing.length > 0 ? POLLOUT : 0));
    bool takes_input = at->input_open && at->outgoing.length < MAX_PENDING_BYTES;
    struct pollfd polled[] = {
        {.fd = at->signals, .events = POLLIN},
        {.fd = at->hung_up || wanted == 0 ? -1 : at->fd, .events = wanted},
        {.fd = takes_input ? 0 : -1, .events = POLLIN},
        {.fd = at->sinks[0].pending.length > 0 ? 1 : -1, .events = POLLOUT},
        {.fd = at->sinks[1].pending.length > 0 ? 2 : -1, .events = POLLOUT},
    };
    if (poll(polled, sizeof polled / sizeof *polled, -1) < 0)
        return;
    if (polled[0].revents != 0)
        take_signals(at);
    if (polled[1].revents & POLLOUT)
        flush(at);
    if (polled[1].revents & ~POLLOUT)
        receive(at);
    if (polled[2].revents != 0)
        read_input(at);
    for (int i = 0; i < 2; i++)
        if (polled[3 + i].revents != 0)
            write_sink(&at->sinks[i]);
}

enum attach_end command_attach(int fd, int signals, struct text *exit, int *error) {
    struct attachment at = {.fd = fd, .signals = signals, .input_open = true, .exit = exit};
    struct stat status;
    char hello[128];
    for (int i = 0; i < 2; i++) {
        at.sinks[i].fd = i + 1;
        at.sinks[i].is_regular = fstat(i + 1, &status) == 0 && S_ISREG(status.st_mode);
    }
    struct size size = command_terminal_size();
    int length = snprintf(hello, sizeof hello, "{\"version\":1,\"rows\":%u,\"columns\":%u,\"stdin\":true}", size.rows,
                          size.columns);
    frame(&at, HELLO, hello, (size_t)length);
    while (!is_over(&at) && !out_of_memory(&at))
        turn(&at);
    if (at.sinks[0].closed) {
        frame(&at, SIGNAL, &(uint8_t){SIGPIPE}, 1);
        flush(&at);
        *error = at.sinks[0].error;
        return OUTPUT_CLOSED;
    }
    return at.has_exit && !out_of_memory(&at) ? EXITED : BROKEN;
}
