/* Every name that the driver exports. Simulated functions are defined in other files and replace the weak names here;
 * the rest answers CUDA_ERROR_NOT_SUPPORTED. A form for per-thread default streams calls the plain form and says so.
 *
 * This file knows no types on purpose: it needs the functions' addresses and the number of their parameters only, all
 * of which are integers or pointers.
 */
#include <stdint.h>

#include "exports.h"

#define API __attribute__((visibility("default")))
#define NOT_SUPPORTED 801

extern __thread int fake_per_thread;

typedef uint64_t any;
#define TAKES_1 any a
#define TAKES_2 TAKES_1, any b
#define TAKES_3 TAKES_2, any c
#define TAKES_4 TAKES_3, any d
#define TAKES_5 TAKES_4, any e
#define TAKES_6 TAKES_5, any f
#define TAKES_7 TAKES_6, any g
#define TAKES_8 TAKES_7, any h
#define TAKES_9 TAKES_8, any i
#define TAKES_10 TAKES_9, any j
#define TAKES_11 TAKES_10, any k
#define GIVES_1 a
#define GIVES_2 GIVES_1, b
#define GIVES_3 GIVES_2, c
#define GIVES_4 GIVES_3, d
#define GIVES_5 GIVES_4, e
#define GIVES_6 GIVES_5, f
#define GIVES_7 GIVES_6, g
#define GIVES_8 GIVES_7, h
#define GIVES_9 GIVES_8, i
#define GIVES_10 GIVES_9, j
#define GIVES_11 GIVES_10, k

#if __has_attribute(noipa)
#define APART weak, noipa
#else
#define APART weak /* clang does not merge functions */
#endif

/* Each a function of its own: programs tell functions apart by their addresses. */
#define GP_EXPORT(name)                                                                                               \
    API __attribute__((APART)) int name(void);                                                                        \
    int name(void) { return NOT_SUPPORTED; }
#define GP_STREAM_EXPORT(name, base, count)                                                                           \
    API int name(TAKES_##count);                                                                                      \
    int name(TAKES_##count) {                                                                                         \
        void *plain = (void *)base;                                                                                   \
        __asm__("" : "+r"(plain)); /* declared without parameters above: the compiler need not know */                \
        fake_per_thread++;                                                                                            \
        int result = ((int (*)(TAKES_##count))plain)(GIVES_##count);                                                  \
        fake_per_thread--;                                                                                            \
        return result;                                                                                                \
    }
#include "generated/cuda_exports.h"
#undef GP_EXPORT
#undef GP_STREAM_EXPORT

#define GP_EXPORT(name) (void *)name,
#define GP_STREAM_EXPORT(name, base, count) (void *)name,
static void *const addresses[] = {
#include "generated/cuda_exports.h"
};

void *fake_address(unsigned api) { return addresses[api]; }
