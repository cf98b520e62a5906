/* Many threads make their first calls at once: `first_calls threads`. Or children are forked while other threads make
 * their first calls: `first_calls forks`. Both print what went wrong and end with 0 when nothing did. */
#include <dlfcn.h>
#include <pthread.h>
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
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            calls();
            _exit(wrong);
        }
        int status = 1;
        waitpid(child, &status, 0);
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
