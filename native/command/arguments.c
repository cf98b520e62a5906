/* The options of `gpupool run` that need no help of Python: its GPUs and a few texts. */
#include <string.h>

#include "command.h"

#define DIGITS "0123456789"
#define COUNT_DIGITS 3 /* of a plain number: gpupool.cli.request.request_body.plain_amount */
#define FRACTION_BYTES 5

static const struct {
    const char *flag;
    int value;
} FLAGS[] = {
    {"-n", COUNT},         {"--num-gpus", COUNT},    {"--num_gpus", COUNT}, {"-p", FRACTION},
    {"--partial", FRACTION}, {"-m", MEMORY},         {"--gpu-memory", MEMORY}, {"-g", GPUS},
    {"--gpu", GPUS},       {"--name", NAME},         {"--project", PROJECT}, {"--max-time", MAX_TIME},
    {"--wait", WAIT},      {"--timeout", WAIT},
};

/* Returns the option that the word names, or -1. `attached` is the value in the same word: -g1, --gpu=1. */
static int option_of(const char *word, const char **attached) {
    bool is_long = word[1] == '-';
    size_t length = is_long ? strcspn(word, "=") : 2;
    *attached = word[length] == '\0' ? NULL : word + length + (is_long ? 1 : 0);
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++)
        if (strlen(FLAGS[i].flag) == length && strncmp(word, FLAGS[i].flag, length) == 0)
            return FLAGS[i].value;
    return -1;
}

static bool is_count(const char *text) {
    size_t length = strlen(text);
    return length >= 1 && length <= COUNT_DIGITS && strspn(text, DIGITS) == length;
}

static bool is_fraction(const char *text) {
    size_t length = strlen(text);
    return length > 2 && length <= FRACTION_BYTES && strncmp(text, "0.", 2) == 0 &&
           strspn(text + 2, DIGITS) == length - 2 && strspn(text + 2, "0") < length - 2;
}

/* Returns whether the GPU options have a plain form and do not contradict each other. */
static bool is_plain(const char *const *values) {
    if (values[GPUS] != NULL && (values[COUNT] != NULL || values[FRACTION] != NULL || values[MEMORY] != NULL))
        return false;
    if (values[GPUS] != NULL && !is_count(values[GPUS]) && !is_fraction(values[GPUS]))
        return false;
    if (values[FRACTION] != NULL && values[MEMORY] != NULL)
        return false;
    return values[COUNT] == NULL || is_count(values[COUNT]);
}

bool command_parse(char *const *words, struct arguments *arguments) {
    *arguments = (struct arguments){0};
    for (; *words != NULL && (*words)[0] == '-' && (*words)[1] != '\0'; words++) {
        const char *attached;
        if (strcmp(*words, "--") == 0) {
            words++;
            break;
        }
        if (strcmp(*words, "-q") == 0 || strcmp(*words, "--quiet") == 0)
            continue; /* it changes nothing in the request */
        int option = option_of(*words, &attached);
        if (option < 0 || arguments->values[option] != NULL)
            return false;
        if (attached == NULL && *++words == NULL)
            return false;
        arguments->values[option] = attached != NULL ? attached : *words;
    }
    arguments->program = words;
    bool is_split = words[0] != NULL && words[1] == NULL && strchr(words[0], ' ') != NULL;
    return words[0] != NULL && !is_split && is_plain(arguments->values);
}
