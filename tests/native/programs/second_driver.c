/* Attaches through the share library, then launches kernels of 1 ms without end through another copy of the driver.
 *
 * The argument is the path of that copy. Two kernels are queued at any time, so the GPU always has work. */
#include <dlfcn.h>
#include <stdio.h>

static void *function(void *driver, const char *name) { return dlsym(driver, name); }

static int begin(void *driver) {
    int (*init)(unsigned) = function(driver, "cuInit");
    int (*retain)(void **, int) = function(driver, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = function(driver, "cuCtxSetCurrent");
    void *context = NULL;
    return init(0) != 0 || retain(&context, 0) != 0 || use(context) != 0;
}

int main(int count, char **words) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *copy = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL || begin(library) != 0)
        return 1;
    void *driver = copy != NULL ? copy : library;
    if (driver == copy && begin(copy) != 0)
        return 2;
    int (*load)(void **, const char *) = function(driver, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = function(driver, "cuModuleGetFunction");
    int (*make)(void **, unsigned) = function(driver, "cuStreamCreate");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        function(driver, "cuLaunchKernel");
    int (*wait)(void *) = function(driver, "cuStreamSynchronize");
    void *module = NULL, *kernel = NULL, *streams[2];
    if (load(&module, "any image") != 0 || get(&kernel, module, "spin_1ms") != 0)
        return 3;
    for (int i = 0; i < 2; i++)
        if (make(&streams[i], 1) != 0)
            return 4;
    puts("working");
    fflush(stdout);
    for (unsigned long turn = 0;; turn++)
        if (wait(streams[turn % 2]) != 0 || launch(kernel, 1, 1, 1, 1, 1, 1, 0, streams[turn % 2], NULL, NULL) != 0)
            return 5;
}
