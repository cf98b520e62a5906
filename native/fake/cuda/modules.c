/* Modules and libraries. Any image will do and has any kernel that is asked for: nothing here reads machine code.
 * A global variable that is asked for is 256 bytes of device memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define GLOBAL_BYTES 256u

static struct module *new_module(CUcontext context, bool library) {
    struct module *module = calloc(1, sizeof *module);
    if (module == NULL) return NULL;
    module->magic = MAGIC_MODULE;
    module->context = context;
    module->library = library;
    return module;
}

static CUresult load(CUmodule *loaded, const void *image) {
    CUcontext context;
    CUresult result = fake_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (loaded == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    result = fake_context_grow(context->gpu);
    if (result != CUDA_SUCCESS) return result;
    *loaded = (CUmodule)new_module(context, false);
    return *loaded != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER;
    return load(module, image);
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                void **values) {
    ENTER;
    (void)count;
    (void)options;
    (void)values;
    return load(module, image);
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    ENTER;
    return load(module, image);
}

static bool readable(const char *path) {
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    if (file != NULL) fclose(file);
    return file != NULL;
}

API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    ENTER;
    return readable(path) ? load(module, path) : CUDA_ERROR_FILE_NOT_FOUND;
}

static bool is_module(const void *handle, bool library) {
    const struct module *module = handle;
    return module != NULL && module->magic == MAGIC_MODULE && module->library == library;
}

/* Its memory stays, so that old handles are recognised. */
static void unload(struct module *module) {
    for (struct kernel *kernel = module->kernels; kernel != NULL; kernel = kernel->next) kernel->magic = 0;
    for (struct global *global = module->globals; global != NULL; global = global->next) {
        struct range *range = fake_range_find(global->address);
        if (range != NULL && range->id == global->id) fake_deallocate(range, FAKE_PLAIN);
    }
    module->magic = 0;
}

API CUresult cuModuleUnload(CUmodule module) {
    ENTER_CONTEXT(context);
    if (!is_module(module, false)) return CUDA_ERROR_INVALID_HANDLE;
    unload((struct module *)module);
    return context->error;
}

static char *copy_of(const char *name) {
    char *copy = strdup(name);
    if (copy == NULL) abort();
    return copy;
}

static CUresult get_kernel(struct module *module, const char *name, struct kernel **found) {
    if (name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    for (*found = module->kernels; *found != NULL; *found = (*found)->next) {
        if (strcmp((*found)->name, name) == 0) return CUDA_SUCCESS;
    }
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kernel = (struct kernel){.magic = MAGIC_KERNEL, .module = module, .name = copy_of(name),
                              .known = fake_known_kernel(name), .duration_ns = fake_named_duration(name), .next = module->kernels};
    module->kernels = kernel;
    *found = kernel;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct kernel *kernel;
    ENTER_CONTEXT(context);
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(module, false)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = get_kernel((struct module *)module, name, &kernel);
    if (result == CUDA_SUCCESS) *function = (CUfunction)kernel;
    return result != CUDA_SUCCESS ? result : context->error;
}

static CUresult get_global(struct module *module, CUcontext context, const char *name, CUdeviceptr *address,
                           size_t *bytes) {
    if (name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    struct global *global = module->globals;
    while (global != NULL && (strcmp(global->name, name) != 0 || global->context != context)) global = global->next;
    if (global == NULL) {
        struct range *range = fake_allocate(context->gpu, GLOBAL_BYTES, UNIT_BYTES, RANGE_DEVICE, FAKE_PLAIN);
        global = range != NULL ? calloc(1, sizeof *global) : NULL;
        if (global == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        range->context = context;
        *global = (struct global){.address = range->base, .id = range->id, .context = context, .name = copy_of(name),
                                   .next = module->globals};
        module->globals = global;
    }
    if (address != NULL) *address = global->address;
    if (bytes != NULL) *bytes = GLOBAL_BYTES;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    ENTER_CONTEXT(context);
    if (!is_module(module, false)) return CUDA_ERROR_INVALID_HANDLE;
    return get_global((struct module *)module, context, name, address, bytes);
}

API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    ENTER;
    if (mode == NULL) return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

static CUresult load_library(CUlibrary *library, const void *image) {
    if (library == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    *library = (CUlibrary)new_module(NULL, true);
    return *library != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit, void **jit_values,
                               unsigned int jit_count,
                               CUlibraryOption *options, void **values, unsigned int count) {
    ENTER;
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return load_library(library, image);
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                                   unsigned int jit_count,
                                   CUlibraryOption *options, void **values, unsigned int count) {
    if (!readable(path)) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLibraryLoadData(library, path, jit, jit_values, jit_count, options, values, count);
}

API CUresult cuLibraryUnload(CUlibrary library) {
    ENTER;
    if (!is_module(library, true)) return CUDA_ERROR_INVALID_HANDLE;
    unload((struct module *)library);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *found, CUlibrary library, const char *name) {
    struct kernel *kernel;
    ENTER;
    if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(library, true)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = get_kernel((struct module *)library, name, &kernel);
    if (result == CUDA_SUCCESS) *found = (CUkernel)kernel;
    return result;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
    ENTER_CONTEXT(context);
    if (!is_module(library, true)) return CUDA_ERROR_INVALID_HANDLE;
    return get_global((struct module *)library, context, name, address, bytes);
}

/* Returns a library's module in the current context: a separate module with the same kernels. */
API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    ENTER_CONTEXT(context);
    if (module == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(library, true)) return CUDA_ERROR_INVALID_HANDLE;
    *module = (CUmodule)new_module(context, false);
    return *module != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult count_kernels(const void *handle, bool library, unsigned int *count) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(handle, library)) return CUDA_ERROR_INVALID_HANDLE;
    *count = 0;
    const struct kernel *kernel = ((const struct module *)handle)->kernels;
    for (; kernel != NULL; kernel = kernel->next) ++*count;
    return CUDA_SUCCESS;
}

/* Lists the kernels that were requested: others are not known. */
API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    ENTER;
    return count_kernels(library, true, count);
}

API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    ENTER;
    return count_kernels(module, false, count);
}
