/* Reads /proc about processes. A process is identified by its pid and start time, so that a recycled pid is not
 * mistaken for it.
 *
 * With hidepid a process that is not visible may still exist: then kill() decides.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arbiter.h"

#define SEARCH_MOST 65536u

static bool read_file(pid_t pid, const char *name, char *text, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, room - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

struct stat_line {
    char state;
    uint64_t threads, start;
};

/* Fields 3, 20 and 22. The second, the program's name, may hold anything: fields are counted from its last bracket. */
static bool read_stat(pid_t pid, struct stat_line *line) {
    char text[1024];
    if (!read_file(pid, "stat", text, sizeof text))
        return false;
    const char *at = strrchr(text, ')');
    for (int field = 3; at != NULL && field <= 22; field++) {
        at = strchr(at + 1, ' ');
        if (at == NULL)
            return false;
        if (field == 3)
            line->state = at[1];
        if (field == 20)
            line->threads = strtoull(at + 1, NULL, 10);
        if (field == 22)
            line->start = strtoull(at + 1, NULL, 10);
    }
    return at != NULL;
}

/* True for a zombie. A main thread that has ended while others run looks the same except for the number of threads. */
static bool is_over(const struct stat_line *line) {
    return (line->state == 'Z' && line->threads <= 1) || line->state == 'X';
}

enum arb_life arb_life(pid_t pid, uint64_t start) {
    struct stat_line line = {0};
    if (read_stat(pid, &line))
        return line.start == start && !is_over(&line) ? ARB_ALIVE : ARB_GONE;
    return kill(pid, 0) != 0 && errno == ESRCH ? ARB_GONE : ARB_UNKNOWN;
}

/* The last number of the line NSpid: the pid in the innermost namespace. */
static uint32_t innermost_pid(pid_t pid) {
    char text[4096];
    if (!read_file(pid, "status", text, sizeof text))
        return 0;
    char *line = strstr(text, "\nNSpid:");
    if (line == NULL)
        return 0;
    char *end = strchr(line + 1, '\n');
    if (end != NULL)
        *end = '\0';
    const char *last = strrchr(line, '\t');
    return last == NULL ? 0 : (uint32_t)strtoul(last + 1, NULL, 10);
}

pid_t arb_search(uint32_t pid, uint64_t start) {
    DIR *proc = opendir("/proc");
    pid_t found = 0;
    const struct dirent *entry;
    for (uint32_t looked = 0; proc != NULL && found == 0 && looked < SEARCH_MOST && (entry = readdir(proc)) != NULL;) {
        pid_t host = (pid_t)strtol(entry->d_name, NULL, 10);
        if (host <= 0)
            continue;
        looked++;
        struct stat_line line = {0};
        if (read_stat(host, &line) && line.start == start && innermost_pid(host) == pid)
            found = host;
    }
    if (proc != NULL)
        closedir(proc);
    return found;
}

uint64_t arb_own_pid_namespace(void) {
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 ? (uint64_t)about.st_ino : 0;
}
