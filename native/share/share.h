/* Internal interfaces of the share library.
 *
 *   proxy.c      finds the real driver, fills the jump table, answers cuGetProcAddress
 *   attach.c     maps the lease's pages, claims this process's slots, survives fork
 *   memory*.c    hooks that reserve before they allocate
 *   contexts.c, context_size.c   hooks of contexts, and how much memory a context takes
 *   gate.c, pace.c, drain.c, graphs.c, streams.c   hooks that wait for GPU time, and the thread that releases it
 *
 * The file carries the SONAME of the driver and is preloaded into every program of a lease, `bash` included: it has no
 * constructor, starts no thread, opens no file and writes nothing before a program calls cuInit.
 *
 * A hook is a function with the driver's own name and type, marked GP_HOOK; that mark is what the generator looks for:
 * every other export of the driver becomes a jump. Hooks hand calls on through REAL(name); what the
 * library calls by itself goes through OWN(name, ...).
 */
#ifndef GPUPOOL_SHARE_H
#define GPUPOOL_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_types.h"      /* the driver's ABI, as far as hooks need it */
#include "generated/index.h" /* enum gp_api { GP_cuInit, ... }: one for each export */
#include "gpupool/pages.h"

#define GP_HOOK __attribute__((visibility("default")))
#define GP_LIKELY(x) __builtin_expect(!!(x), 1)
#define GP_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* -- proxy.c ---------------------------------------------------------------------------------------------------- */

/* Returns the real driver's function; never NULL: for a missing one, a function that answers CUDA_ERROR_NOT_FOUND. */
void *gp_real(enum gp_api which);
#define REAL(name) ((__typeof__(name) *)gp_real(GP_##name))
/* Returns true if the real driver has it. */
bool gp_has(enum gp_api which);

/* -- capture.c: calls that the library adds to those of the program -------------------------------------------------- */

/* Prevents potentially unsafe calls of this thread from breaking captures; returns the argument for gp_strict. */
CUstreamCaptureMode gp_relaxed(void);
void gp_strict(CUstreamCaptureMode mode);

/* Every such call is OWN(name, arguments ...); what may be called so, and how, is in own_calls.def. A call that is
 * unsafe during captures is made in relaxed mode, which NVIDIA allows: the library knows that no capture depends on it.
 * REAL() is for handing on the program's own calls, which must fail and break captures as they do without the library.
 */
enum gp_own_call {
    GP_OWN_SAFE,
    GP_OWN_UNSAFE,
#define OWN_CALL(name, capture, context, where) GP_OWN_##name = GP_OWN_##capture,
#include "own_calls.def"
#undef OWN_CALL
};
#define OWN(name, ...)                                                                                                \
    __extension__({                                                                                                   \
        CUstreamCaptureMode own_mode_ = CU_STREAM_CAPTURE_MODE_GLOBAL;                                                \
        if (GP_OWN_##name == GP_OWN_UNSAFE)                                                                           \
            own_mode_ = gp_relaxed();                                                                                 \
        CUresult own_result_ = REAL(name)(__VA_ARGS__);                                                               \
        if (GP_OWN_##name == GP_OWN_UNSAFE)                                                                           \
            gp_strict(own_mode_);                                                                                     \
        own_result_;                                                                                                  \
    })

/* -- attach.c --------------------------------------------------------------------------------------------------- */

struct gp_gpu { /* one GPU of the lease, as this process sees it */
    uint32_t index; /* in the lease */
    uint32_t slot_index;
    const struct gpupool_control_gpu *control; /* mapped read-only */
    struct gpupool_status_gpu *status;
    struct gpupool_slot *slot; /* this process's own */
};

/* The state of the process with respect to its lease. */
enum gp_state {
    GP_FREE,     /* no lease was given: every call passes through */
    GP_ATTACHED, /* limits hold */
    GP_BROKEN    /* a lease was given but its pages cannot be used: cuInit fails, nothing can be allocated */
};

/* Attaches at the first call; afterwards two loads. Safe from any thread; after fork the child attaches anew. */
enum gp_state gp_attach(void);
uint32_t gp_gpu_count(void);
struct gp_gpu *gp_gpu_at(uint32_t index);
/* Returns the GPU of the lease that is this device; NULL if it is none of them (or GP_FREE). */
struct gp_gpu *gp_gpu_of(CUdevice device);
/* Returns the GPU of the lease that is the only device of this process: then every context and stream is there, and the
 * driver need not be asked. NULL if there are more. */
struct gp_gpu *gp_gpu_of_only_device(void);
#define GP_ONLY_DEVICE 0
/* Returns the GPU of the calling thread's current context; NULL without one. It is a single load if the lease has one
 * GPU and the thread is known to have a context. It never fails for lack of a context if the lease has only one GPU. */
struct gp_gpu *gp_gpu_current(void);
/* Asks the arbiter to read this process's page. Never blocks; a lost bell only costs time. */
void gp_ring(struct gp_gpu *gpu, enum gpupool_bell_kind kind);
/* Run in the child of every fork of an attached process, in this order, before anything else of the library. */
void gp_memory_after_fork(void);
void gp_compute_after_fork(void);
/* Run at exit, before the driver's own handlers: stop helpers, release the grant. */
void gp_compute_at_exit(void);

/* -- memory.c --------------------------------------------------------------------------------------------------- */

enum gp_kind { GP_PLAIN, GP_POOL, GP_VMM, GP_CONTEXT };

/* Takes bytes (rounded up to 512) off the slice; false: refused, and the refusal is counted. Never blocks. */
bool gp_reserve(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind);
/* Gives back the bytes of gp_reserve, with the same size and kind. */
void gp_unreserve(struct gp_gpu *gpu, uint64_t bytes, enum gp_kind kind);
/* Returns the bytes of the slice in use, by all processes of the tenant and by the driver; at most the limit. */
uint64_t gp_used(const struct gp_gpu *gpu);
/* Charges what a graph's memory nodes may reserve; called before the first launch of an executable graph.
 * CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult gp_graph_memory_before(CUgraphExec exec, struct gp_gpu *gpu);
/* Called after each launch and trim: the books follow the driver's memory. */
void gp_graph_memory_after(struct gp_gpu *gpu);

/* -- gate.c and its neighbours ---------------------------------------------------------------------------------- */

/* Forgets the streams and events of a context that is about to be destroyed or reset. NULL: all of this device. */
void gp_compute_context_closing(CUcontext context, CUdevice device);
/* Forgets the cost of an executable graph that is about to be destroyed. Called by the hook of cuGraphExecDestroy. */
void gp_compute_graph_closing(CUgraphExec exec);

#endif
