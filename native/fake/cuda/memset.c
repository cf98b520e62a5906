/* The interface's forms of filling memory: each is one `struct fill`. */
#include "fake.h"

#define FILL(name, type, bytes)                                                                                       \
    API CUresult cuMemset##name##_v2(CUdeviceptr to, type value, size_t count) {                                      \
        ENTER_CONTEXT(context);                                                                                       \
        CUresult result = fake_fill(&(struct fill){to, 0, count, 1, value, bytes}, NULL, false);                      \
        return result != CUDA_SUCCESS ? result : context->error;                                                      \
    }                                                                                                                 \
    API CUresult cuMemset##name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {                   \
        ENTER_CONTEXT(context);                                                                                       \
        CUresult result = fake_fill(&(struct fill){to, 0, count, 1, value, bytes}, stream, false);                    \
        return result != CUDA_SUCCESS ? result : context->error;                                                      \
    }

#define FILL_ROWS(name, type, bytes)                                                                                  \
    API CUresult cuMemset##name##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) {         \
        ENTER_CONTEXT(context);                                                                                       \
        CUresult result = fake_fill(&(struct fill){to, pitch, width, height, value, bytes}, NULL, false);             \
        return result != CUDA_SUCCESS ? result : context->error;                                                      \
    }                                                                                                                 \
    API CUresult cuMemset##name##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,         \
                                       CUstream stream) {                                                             \
        ENTER_CONTEXT(context);                                                                                       \
        CUresult result = fake_fill(&(struct fill){to, pitch, width, height, value, bytes}, stream, false);           \
        return result != CUDA_SUCCESS ? result : context->error;                                                      \
    }

FILL(D8, unsigned char, 1)
FILL(D16, unsigned short, 2)
FILL(D32, unsigned int, 4)
FILL_ROWS(D2D8, unsigned char, 1)
FILL_ROWS(D2D16, unsigned short, 2)
FILL_ROWS(D2D32, unsigned int, 4)
