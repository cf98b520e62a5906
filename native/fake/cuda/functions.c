/* Attributes of kernels. */
#include "kernels.h"

static struct kernel *kernel_of(const void *handle) {
    struct kernel *kernel = (struct kernel *)handle;
    return kernel != NULL && kernel->magic == MAGIC_KERNEL ? kernel : NULL;
}

CUresult fake_kernel_of(CUfunction function, struct kernel **kernel) {
    *kernel = kernel_of(function);
    return *kernel != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

#define ENTER_KERNEL(name, handle)                                                                                    \
    ENTER;                                                                                                            \
    struct kernel *name = kernel_of(handle);                                                                          \
    if (name == NULL) return CUDA_ERROR_INVALID_HANDLE

enum { MAX_THREADS, SHARED_BYTES, CONST_BYTES, LOCAL_BYTES, REGISTERS, PTX, BINARY, CACHE, DYNAMIC_SHARED_BYTES,
      ATTRIBUTES = 18 };

static CUresult get(const struct kernel *kernel, int attribute, int *value) {
    if (value == NULL || attribute < 0 || attribute >= ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == MAX_THREADS              ? 1024
             : attribute == REGISTERS              ? 32
             : attribute == PTX                    ? 75
             : attribute == BINARY                 ? 75
             : attribute == DYNAMIC_SHARED_BYTES   ? kernel->dynamic_shared_bytes
                                                   : 0;
    return CUDA_SUCCESS;
}

static CUresult set(struct kernel *kernel, int attribute, int value) {
    if (attribute < DYNAMIC_SHARED_BYTES || attribute >= ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == DYNAMIC_SHARED_BYTES) {
        if (value < 0 || value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
        kernel->dynamic_shared_bytes = value;
    }
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    ENTER_KERNEL(kernel, function);
    return get(kernel, (int)attribute, value);
}

API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device) {
    ENTER_KERNEL(kernel, handle);
    return fake_gpu(device) != NULL ? get(kernel, (int)attribute, value) : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    ENTER_KERNEL(kernel, function);
    return set(kernel, (int)attribute, value);
}

API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device) {
    ENTER_KERNEL(kernel, handle);
    return fake_gpu(device) != NULL ? set(kernel, (int)attribute, value) : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    ENTER_KERNEL(kernel, function);
    (void)config;
    return kernel->magic == MAGIC_KERNEL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device) {
    (void)device;
    return cuFuncSetCacheConfig((CUfunction)handle, config);
}

API CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
    return cuFuncSetCacheConfig(function, (CUfunc_cache)config);
}

static CUresult name_of(const struct kernel *kernel, const char **name) {
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetName(const char **name, CUfunction function) {
    ENTER_KERNEL(kernel, function);
    return name_of(kernel, name);
}

API CUresult cuKernelGetName(const char **name, CUkernel handle) {
    ENTER_KERNEL(kernel, handle);
    return name_of(kernel, name);
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    ENTER_KERNEL(kernel, function);
    if (module == NULL) return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)kernel->module;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel handle) {
    ENTER_KERNEL(kernel, handle);
    if (library == NULL) return CUDA_ERROR_INVALID_VALUE;
    *library = (CUlibrary)kernel->module;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel handle) {
    ENTER_KERNEL(kernel, handle);
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    ENTER_KERNEL(kernel, function);
    if (state == NULL) return CUDA_ERROR_INVALID_VALUE;
    *state = kernel->magic == MAGIC_KERNEL;
    return CUDA_SUCCESS;
}

API CUresult cuFuncLoad(CUfunction function) {
    ENTER_KERNEL(kernel, function);
    return kernel->magic == MAGIC_KERNEL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Of kernels that are known; others are taken to have none. */
static CUresult parameter(const struct kernel *kernel, size_t index, size_t *offset, size_t *size) {
    if (offset == NULL || kernel->known == NULL || index >= kernel->known->count) return CUDA_ERROR_INVALID_VALUE;
    *offset = kernel->known->parameters[index].offset;
    if (size != NULL) *size = kernel->known->parameters[index].size;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    ENTER_KERNEL(kernel, function);
    return parameter(kernel, index, offset, size);
}

API CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size) {
    ENTER_KERNEL(kernel, handle);
    return parameter(kernel, index, offset, size);
}

static CUresult parameters(const struct kernel *kernel, size_t *count) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = kernel->known != NULL ? kernel->known->count : 0;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamCount(CUfunction function, size_t *count) {
    ENTER_KERNEL(kernel, function);
    return parameters(kernel, count);
}

API CUresult cuKernelGetParamCount(CUkernel handle, size_t *count) {
    ENTER_KERNEL(kernel, handle);
    return parameters(kernel, count);
}
