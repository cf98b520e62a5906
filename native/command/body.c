/* The body of the request in JSON. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "command.h"

#define ID_BYTES 16
#define ROWS 24
#define COLUMNS 80

extern char **environ;

/* Access to the pool itself: never passed to a program. */
static const char *const SECRETS[] = {"GPUPOOL_TOKEN", "GPUPOOL_URL", "GPUPOOL_CA"};

void command_append(struct text *text, const char *data, size_t length) {
    if (text->length + length + 1 > text->capacity) {
        size_t capacity = 2 * (text->length + length + 1);
        char *grown = realloc(text->data, capacity);
        if (grown == NULL) {
            text->failed = true;
            return;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = '\0';
}

static void append(struct text *text, const char *data) {
    command_append(text, data, strlen(data));
}

/* Returns the length of the UTF-8 character at `at`, or 0 if it is not one: RFC 3629, section 4. */
static size_t character(const unsigned char *at) {
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : at[0] < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    bool is_overlong = (at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xF0 && at[1] < 0x90);
    bool is_surrogate = at[0] == 0xED && at[1] > 0x9F;
    bool is_beyond = at[0] == 0xF4 && at[1] > 0x8F;
    return is_overlong || is_surrogate || is_beyond ? 0 : length;
}

static bool is_text(const char *data) {
    const unsigned char *at = (const unsigned char *)data;
    while (*at != 0) {
        size_t length = character(at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}

static void quote(struct text *text, const char *data, size_t length) {
    append(text, "\"");
    for (const char *end = data + length; data < end; data++) {
        char escaped[8];
        if (*data == '"' || *data == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", *data);
        else if ((unsigned char)*data < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*data);
        else
            snprintf(escaped, sizeof escaped, "%c", *data);
        append(text, escaped);
    }
    append(text, "\"");
}

static void quote_text(struct text *text, const char *data) {
    if (is_text(data))
        quote(text, data, strlen(data));
    else
        text->failed = true; /* Python says that it is not UTF-8 */
}

static void field(struct text *text, const char *name, const char *value) {
    if (value == NULL)
        return;
    append(text, ",\"");
    append(text, name);
    append(text, "\":");
    quote_text(text, value);
}

static void gpus(struct text *text, const char *const *values) {
    const char *count = values[COUNT], *fraction = NULL;
    char number[64];
    if (values[GPUS] != NULL) {
        fraction = strchr(values[GPUS], '.') != NULL ? values[GPUS] : NULL;
        count = fraction != NULL ? "1" : values[GPUS];
    }
    if (count == NULL && values[FRACTION] == NULL && values[MEMORY] == NULL)
        return;
    append(text, ",\"gpus\":{");
    if (count != NULL) {
        snprintf(number, sizeof number, "\"count\":%d", atoi(count));
        append(text, number);
    }
    if (fraction != NULL) {
        append(text, ",\"fraction\":");
        append(text, fraction);
    }
    const char *name = values[FRACTION] != NULL ? "fraction" : "memory_mib";
    const char *value = values[FRACTION] != NULL ? values[FRACTION] : values[MEMORY];
    if (value != NULL) {
        append(text, count != NULL ? ",\"" : "\"");
        append(text, name);
        append(text, "\":");
        quote_text(text, value);
    }
    append(text, "}");
}

static bool is_secret(const char *entry, size_t name_length) {
    for (size_t i = 0; i < sizeof SECRETS / sizeof *SECRETS; i++)
        if (strlen(SECRETS[i]) == name_length && strncmp(entry, SECRETS[i], name_length) == 0)
            return true;
    return false;
}

/* Returns whether an earlier entry has the same name: the first one counts, as in Python. */
static bool is_repeated(char **entry, size_t name_length) {
    for (char **earlier = environ; earlier < entry; earlier++)
        if (strncmp(*earlier, *entry, name_length + 1) == 0)
            return true;
    return false;
}

/* Variables that are not UTF-8 are left out: JSON cannot carry them. */
static void environment(struct text *text) {
    const char *separator = "";
    append(text, ",\"env\":{");
    for (char **entry = environ; *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');
        if (equals == NULL || !is_text(*entry))
            continue;
        size_t length = (size_t)(equals - *entry);
        if (is_secret(*entry, length) || is_repeated(entry, length))
            continue;
        append(text, separator);
        quote(text, *entry, length);
        append(text, ":");
        quote(text, equals + 1, strlen(equals + 1));
        separator = ",";
    }
    append(text, "}");
}

static void program(struct text *text, char *const *words) {
    append(text, ",\"command\":[");
    for (char *const *word = words; *word != NULL; word++) {
        append(text, word == words ? "" : ",");
        quote_text(text, *word);
    }
    append(text, "]");
}

struct size command_terminal_size(void) {
    static const int ORDER[] = {1, 0, 2};
    struct winsize size;
    for (int i = 0; i < 3; i++)
        if (ioctl(ORDER[i], TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
            return (struct size){size.ws_row, size.ws_col};
    return (struct size){ROWS, COLUMNS};
}

/* As gpupool.cli.terminal: without a terminal, or in the background of a shell, the program gets pipes. */
bool command_has_terminal(void) {
    pid_t foreground = isatty(0) && isatty(1) ? tcgetpgrp(0) : 0;
    return foreground == -1 || foreground == getpgrp();
}

static void terminal(struct text *text) {
    bool tty = command_has_terminal();
    struct size size = command_terminal_size();
    char fields[128];
    snprintf(fields, sizeof fields, ",\"tty\":%s,\"stdin\":%s,\"rows\":%u,\"columns\":%u", tty ? "true" : "false",
             tty ? "false" : "true", size.rows, size.columns);
    append(text, fields);
}

static bool request_id(char id[2 * ID_BYTES + 1]) {
    unsigned char bytes[ID_BYTES];
    if (syscall(SYS_getrandom, bytes, sizeof bytes, 0) != sizeof bytes)
        return false;
    for (int i = 0; i < ID_BYTES; i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

bool command_body(const struct arguments *arguments, struct text *body) {
    const char *const *values = arguments->values;
    const char *project = values[PROJECT] != NULL ? values[PROJECT] : getenv("GPUPOOL_PROJECT");
    char folder[PATH_BYTES], id[2 * ID_BYTES + 1], mask[8];
    mode_t umask_now = umask(077);
    umask(umask_now);
    if (getcwd(folder, sizeof folder) == NULL || folder[0] != '/' || !request_id(id))
        return false;
    snprintf(mask, sizeof mask, "%03o", (unsigned)umask_now & 0777);
    append(body, "{\"kind\":\"run\",\"client_bound\":true");
    gpus(body, values);
    program(body, arguments->program);
    environment(body);
    terminal(body);
    field(body, "name", values[NAME]);
    field(body, "project", values[PROJECT] != NULL || (project != NULL && project[0] != '\0') ? project : NULL);
    field(body, "max_time", values[MAX_TIME]);
    field(body, "wait", values[WAIT]);
    field(body, "workdir", folder);
    field(body, "umask", mask);
    field(body, "request_id", id);
    append(body, "}");
    return !body->failed;
}
