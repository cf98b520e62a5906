/* Opens the driver by the path in its first argument; prints the memory that it shows, and how much it gives. */
#include <dlfcn.h>
#include <stdio.h>

#define STEP ((size_t)64 << 20)

int main(int count, char **words) {
    void *driver = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (driver == NULL) {
        printf("no driver: %s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*devices)(int *) = dlsym(driver, "cuDeviceGetCount");
    int (*total)(size_t *, int) = dlsym(driver, "cuDeviceTotalMem_v2");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*take)(unsigned long long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    size_t shown = 0, got = 0;
    int gpus = 0;
    void *context = NULL;
    unsigned long long memory = 0;
    if (init(0) != 0 || devices(&gpus) != 0 || total(&shown, 0) != 0 || retain(&context, 0) != 0 || use(context) != 0)
        return 1;
    while (take(&memory, STEP) == 0)
        got += STEP;
    printf("gpus %d shown %zu got %zu\n", gpus, shown >> 20, got >> 20);
    return 0;
}
