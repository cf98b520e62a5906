/* gpupool-command, installed as `gpupool`: a plain `gpupool run` without Python, whose start takes longer than all else.
 *
 * It sends the request, copies the program's input and output, and ends with its status. With a terminal, for a program
 * that waits or does not end by itself, and after any error, it becomes the Python program, which takes over the
 * connections. Every other command line goes to Python unchanged. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#define PATH_BYTES 4096

enum { COUNT, FRACTION, MEMORY, GPUS, NAME, PROJECT, MAX_TIME, WAIT, VALUES };

/* The options and the program of `gpupool run`. Missing values are NULL. */
struct arguments {
    const char *values[VALUES];
    char *const *program; /* ends with NULL */
};

/* A text that grows. `failed` is set when memory is short or a text is not UTF-8, which JSON requires. */
struct text {
    char *data;
    size_t length, capacity;
    bool failed;
};

/* Reads the words after `run`. Returns false if Python must read them: for help, errors and all other options. */
bool command_parse(char *const *words, struct arguments *arguments);

/* Writes the path of the API socket of this user's pool on this machine. Returns false if Python must find the pool. */
bool command_find_pool(char path[PATH_BYTES]);

/* Writes the body of the request, the same as gpupool.cli.request.request_body. Returns false if Python must do it. */
bool command_body(const struct arguments *arguments, struct text *body);

struct size {
    unsigned short rows, columns;
};

/* Returns the size of the user's terminal, 24 by 80 without one. */
struct size command_terminal_size(void);

/* Returns whether the program gets a terminal. */
bool command_has_terminal(void);

enum attach_end { EXITED, BROKEN, OUTPUT_CLOSED };

/* Blocks the signals that are forwarded to the program, and SIGPIPE; returns a descriptor that reads them, or -1. */
int command_block_signals(sigset_t *before);

/* Copies until the program has ended and its output is written. `exit` gets the report of the end, `error` the error
 * number of an output that was closed. */
enum attach_end command_attach(int fd, int signals, struct text *exit, int *error);

/* Removes the first bytes. */
void command_consume(struct text *text, size_t length);

void command_append(struct text *text, const char *data, size_t length);
