/* Runs a program to its end and prints how many instructions it executed, by single steps: exact and the same every
 * time, where a clock would be noisy. Usage: count_instructions <program> [argument ...] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        /* Preloaded into the program only, not into this one. */
        const char *preload = getenv("COUNTED_PRELOAD");
        if (preload != NULL)
            setenv("LD_PRELOAD", preload, 1);
        execv(arguments[1], arguments + 1);
        _exit(127);
    }
    unsigned long steps = 0;
    int status;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        steps++;
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0)
            return 1;
    }
    printf("%lu\n", steps);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
