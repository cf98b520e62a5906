/* Commands of the agent, one line each:
 *
 *   add FOLDER                   serve this lease (repeated: read its control page again)
 *   remove FOLDER                forget it
 *   correct FOLDER GPU BYTES     memory beyond the ledgers that the driver counts for it on GPU number GPU
 *
 * A folder is an absolute path with any characters except a newline. The arbiter exits at the end of input.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arbiter.h"

#define LINE (ARB_PATH + 64u)

static char line[LINE];
static size_t length;
static bool too_long;

static const char *after(const char *word) {
    size_t size = strlen(word);
    return strncmp(line, word, size) == 0 && line[size] == '/' ? line + size : NULL;
}

/* Cuts the last number off a text. */
static bool take_number(char *text, long long *number) {
    char *space = strrchr(text, ' '), *end = NULL;
    if (space == NULL || space[1] == '\0')
        return false;
    errno = 0;
    *number = strtoll(space + 1, &end, 10);
    *space = '\0';
    return errno == 0 && *end == '\0';
}

static bool correct(char *text) {
    long long bytes, gpu;
    if (!take_number(text, &bytes) || !take_number(text, &gpu))
        return false;
    struct lease *lease = arb_lease_at(text);
    if (lease == NULL)
        return true; /* the lease may have been removed */
    if (gpu < 0 || gpu >= (long long)lease->gpu_count)
        return false;
    atomic_store(&lease->seats[gpu].control->correction_bytes, bytes);
    return true;
}

static void obey(void) {
    const char *path;
    bool understood = !too_long && strlen(line) == length;
    if (!understood)
        ;
    else if ((path = after("add ")) != NULL)
        arb_lease_add(path);
    else if ((path = after("remove ")) != NULL)
        arb_lease_remove(path);
    else if ((path = after("correct ")) != NULL)
        understood = correct((char *)path);
    else
        understood = length == 0;
    if (!understood)
        arb_warn(NULL, "", "The arbiter received an unknown command.");
}

static void take(char byte) {
    if (byte != '\n') {
        too_long |= length == LINE - 1;
        if (!too_long)
            line[length++] = byte;
        return;
    }
    line[length] = '\0';
    obey();
    length = 0;
    too_long = false;
}

bool arb_read_commands(int fd) {
    char bytes[4096];
    ssize_t count = read(fd, bytes, sizeof bytes);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR;
    for (ssize_t i = 0; i < count; i++)
        take(bytes[i]);
    return count > 0;
}
