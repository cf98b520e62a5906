/* gpupool-command, installed as `gpupool`: sends the request of a plain `gpupool run` and becomes the Python program.
 *
 * Python needs ten milliseconds and more before it can send a request. This program sends it in less than one, and the
 * pool places and starts the workload while Python starts. Every other command line goes to Python unchanged. */
#pragma once

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

void command_append(struct text *text, const char *data, size_t length);
