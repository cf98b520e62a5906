/* Many threads make their first calls at once: `first_calls threads`. Or children are forked while other threads make
 * their first calls: `first_calls forks`. Both print what went wrong and end with 0 when nothing did. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 8
#define FORKS 40

int cuInit(unsigned flags);
int cuMemcpy(void);
int cuMemcpy_ptds(void);
int cuDriverGetVersion(int *version);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static pthread_barrier_t barrier;
static int wrong;

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "wrong in %d: %s\n", (int)getpid(), what);
        __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
    }
}

static void calls(void) {
    int version = 0;
    void *function = NULL;
    check(cuGetProcAddress_v2("cuInit", &function, 2000, 0, NULL) == 0 && function == dlsym(RTLD_DEFAULT, "cuInit"), "lookup");
    check(cuDriverGetVersion(&version) == 0 && version == 13050, "cuDriverGetVersion");
    check(cuInit(0) == 0, "cuInit");
    check(cuMemcpy() >= 1000 && cuMemcpy_ptds() > cuMemcpy(), "jumps");
}

static void *thread(void *argument) {
    pthread_barrier_wait(&barrier);
    calls();
    return argument;
}

static void fork_children(void) {
    int crashed = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            wrong = 0;
            calls();
            _exit(wrong);
        }
        int status = 1;
        waitpid(child, &status, 0);
        int loader_crashed = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
        int loader_gave_up = WIFEXITED(status) && WEXITSTATUS(status) == 127; /* "Inconsistency detected by ld.so" */
        if ((loader_crashed || loader_gave_up) && !crashed) {
            crashed = 1; /* the C library's own: forked while another thread was inside dlopen() */
            i--;
            continue;
        }
        if (status != 0)
            fprintf(stderr, "child %d of fork ended with wait status 0x%x\n", i, status);
        check(status == 0, "a child of fork");
    }
}

int main(int count, char **arguments) {
    int forks = count > 1 && strcmp(arguments[1], "forks") == 0;
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, thread, NULL);
    pthread_barrier_wait(&barrier);
    if (forks)
        fork_children();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return wrong;
}
