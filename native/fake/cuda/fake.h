/* Internal interfaces of the fake driver, a libcuda.so.1 with simulated GPUs (see ../gpus.h).
 *
 * One lock guards everything of this process; what is shared with other processes lies under each GPU's own lock,
 * which is only ever taken inside that one. Work is an `op`: it is issued to a stream, gets its place in the GPU's
 * time as soon as all it depends on has one, and has its effect (bytes moved, a demo kernel run, a host function
 * called) when a thread looks and virtual time has passed its end. All work is done in the callers' threads, except that
 * one thread is started with the first host function, or the first op that must wait for another GPU.
 *
 *   init.c devices.c attributes.c      the driver and its devices     errors.c procaddress.c exports.c   names
 *   contexts.c current.c ctxinfo.c     contexts                       streams.c events.c hosts.c         order
 *   ops.c settle.c wait.c              simulated time                 space.c ranges.c                   addresses
 *   memory.c hostmem.c pointers.c      plain memory                   copies.c transfers.c memset.c      moving bytes
 *   pools.c poolapi.c vmm.c arrays.c   memory of other kinds          graphs.c nodes.c exec.c graphmem.c graphs
 *   modules.c functions.c kernels.c launch.c occupancy.c  kernels     capture.c                          stream capture
 *   tables.c integrity.c               what the CUDA runtime asks for
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_types.h"
#include "gpus.h"

#define API __attribute__((visibility("default")))
#define ALIGN_UP(value, to) (((value) + ((to) - 1)) / (to) * (to))
#define PAGE_BYTES UINT64_C(4096)
#define UNIT_BYTES UINT64_C(512)      /* plain allocations are counted in these */
#define BLOCK_BYTES (UINT64_C(2) << 20) /* granularity of everything mapped */

struct op;
struct pool;
struct capture;
struct kernel;

/* Handles are checked by these: memory that was a handle is never used for anything but handles. */
enum magic {
    MAGIC_CONTEXT = 0x63747831,
    MAGIC_STREAM = 0x73747231,
    MAGIC_EVENT = 0x65766531,
    MAGIC_POOL = 0x706f6f31,
    MAGIC_MODULE = 0x6d6f6431,
    MAGIC_KERNEL = 0x6b657231,
    MAGIC_ARRAY = 0x61727231,
    MAGIC_GRAPH = 0x67726131,
    MAGIC_NODE = 0x6e6f6431,
    MAGIC_EXEC = 0x65786531,
    MAGIC_PHYSICAL = 0x70687931
};

struct space { /* an address range allocated in pieces: first fit, neighbours joined again */
    uint64_t base, bytes;
    struct gap {
        uint64_t at, bytes;
    } *gaps;
    size_t count, room;
};

struct gpu { /* a device of this process */
    CUdevice ordinal;
    struct fake_device *shared;
    int slot; /* of this process in the shared state; negative: not yet */
    CUcontext primary;
    uint32_t primary_count, primary_flags, context_count;
    uint64_t context_bytes; /* taken for contexts and modules */
    struct gp_CUstream *streams; /* streams of every context */
    uint64_t pending;            /* ops that have their place in time and are not complete */
    uint64_t launches_pending;   /* kernels and graphs among them */
    uint64_t issued;             /* for an occasional check */
    struct pool *pools, *default_pool, *current_pool;
    uint64_t pooled_on_card;
    struct { uint64_t reserved, used, reserved_high, used_high, spare; } graph;
    struct space physical;       /* offsets in `backing` */
    int backing;                 /* memory file behind cuMemCreate; -1: not yet */
};

typedef void stored_end(CUcontext context, void *key, void *value);

struct stored { /* a value that the CUDA runtime keeps with a context */
    void *key, *value;
    stored_end *end; /* called when the context ends */
    struct stored *next;
};

struct gp_CUcontext {
    enum magic magic;
    struct gpu *gpu;
    bool primary, alive;
    uint32_t flags, version;
    uint64_t id;
    CUresult error; /* sticky */
    struct gp_CUstream *legacy;
    size_t limits[16];
    struct stored *stored;
};

struct gp_CUstream {
    enum magic magic;
    CUcontext context;
    uint32_t flags;
    int priority;
    bool legacy, per_thread, dead; /* dead: destroyed, but with work that is not over */
    uint64_t id;
    struct op *head, *last; /* ops with a place in time, in order */
    struct op *tail;        /* the last op issued; counted */
    struct capture *capture;
    CUgraphNode *after;     /* the next captured node depends on these */
    size_t after_count;
    struct gp_CUstream *next;
};

struct gp_CUevent {
    enum magic magic;
    CUcontext context;
    uint32_t flags;
    bool recorded;
    struct op *op; /* the last recording; counted */
    struct capture *capture; /* recorded in a capture: which ... */
    CUgraphNode *nodes;      /* ... and behind which nodes */
    size_t node_count;
    struct gp_CUevent *next;
};

enum op_state { OP_BLOCKED, OP_QUEUED, OP_DONE };

struct op {
    enum op_state state;
    uint32_t references;
    struct gpu *gpu;
    struct gp_CUstream *stream; /* whose queue it is in */
    uint64_t sequence, cost_ns, finish, issued_ns, done_ns;
    uint32_t kernels; /* to be counted at its end */
    bool launch, host; /* host: `run` is called by the helper, without the lock, and takes its own time */
    void (*run)(void *data);
    void *data; /* freed after run */
    struct op **needs; /* obstacles to its place; counted */
    size_t need_count;
    uint64_t after; /* virtual time of the end of what it depends on and already has its place */
    struct op *next;
};

/* The needs of one op besides its stream. */
struct work {
    uint64_t cost_ns;
    uint32_t kernels;
    bool launch, host;
    void (*run)(void *data);
    void *data;
};

enum range_kind { RANGE_DEVICE, RANGE_MANAGED, RANGE_POOL, RANGE_GRAPH, RANGE_ARRAY, RANGE_MAPPED, RANGE_HOST,
                 RANGE_REGISTERED };

struct range { /* memory that the driver knows */
    uint64_t base, bytes, charged;
    enum range_kind kind;
    struct gpu *gpu; /* NULL for host memory */
    CUcontext context;
    uint64_t id;
    void *owner; /* pool, graph node, array or physical memory */
    uint32_t flags;
};

/* -- init.c: every entry begins with one of these ------------------------------------------------------------------ */

CUresult fake_enter(void); /* takes the lock unless it returns an error */
void fake_exit(const CUresult *entered);
#define ENTER                                                                                                         \
    CUresult entered_ __attribute__((cleanup(fake_exit))) = fake_enter();                                            \
    if (entered_ != CUDA_SUCCESS) return entered_
#define ENTER_CONTEXT(name)                                                                                           \
    ENTER;                                                                                                            \
    CUcontext name = NULL;                                                                                            \
    do {                                                                                                              \
        CUresult current_ = fake_current(&name);                                                                      \
        if (current_ != CUDA_SUCCESS) return current_;                                                                \
    } while (0)
extern pthread_mutex_t fake_mutex;
extern pthread_cond_t fake_progress; /* signals progress that a waiting thread may need */
extern __thread int fake_per_thread; /* the caller used a per-thread default stream entry */
extern __thread bool fake_in_callback;
int fake_driver_version(void);
uint32_t fake_device_count(void);
struct gpu *fake_gpu(CUdevice ordinal); /* NULL: no such device */
bool fake_is_locked(void); /* this process, by cuCheckpointProcessLock */
void fake_publish_calls(uint32_t count);

/* -- contexts.c, current.c ----------------------------------------------------------------------------------------- */

CUresult fake_current(CUcontext *context); /* INVALID_CONTEXT, CONTEXT_IS_DESTROYED or its sticky error */
CUresult fake_current_device(struct gpu **gpu);
CUcontext fake_top(void); /* the top of the thread's stack */
CUresult fake_context_open(struct gpu *gpu, bool primary, uint32_t flags, uint32_t version, CUcontext *context);
CUcontext fake_primary_context(struct gpu *gpu);
void fake_context_close(CUcontext context);
CUresult fake_context_grow(struct gpu *gpu); /* a module was loaded */
bool fake_is_context(CUcontext context);
bool fake_may_be_current(CUcontext context);
bool fake_joined(struct gpu *gpu); /* this process has its slot in the GPU's shared state */
uint64_t fake_next_id(void);

/* -- ops.c, settle.c, wait.c --------------------------------------------------------------------------------------- */

/* Issues work to a stream, behind all that CUDA's rules say it comes after, and behind `also`. The op is counted. */
struct op *fake_issue_held(CUstream stream, const struct work *work, struct op *const *also, size_t also_count);
void fake_issue(CUstream stream, const struct work *work);
void fake_issue_host(CUstream stream, CUhostFn function, void *data);
struct op *fake_first_blocked(void);
struct op *fake_hold(struct op *op); /* counts; NULL passes */
void fake_release(struct op *op);
bool fake_is_over(struct op *op); /* NULL is; looks at the clock */
void fake_commit(struct op *op);  /* gives it its place if there is no obstacle, else it blocks */
void fake_unblock(void);          /* gives places to all ops that can have one */
void fake_settle(void);           /* applies the effects of all work whose time has come, on all GPUs */
void fake_finish_op(struct op *op);
void fake_host_ready(struct op *op);
void fake_need_helper(void);
void fake_wait(struct op *op); /* waits until it is complete; releases the lock meanwhile */
void fake_wait_stream(CUstream stream);
void fake_wait_gpu(struct gpu *gpu, CUcontext context); /* NULL: of every context */
void fake_wait_launches(struct gpu *gpu); /* until few enough are pending */

/* -- streams.c ----------------------------------------------------------------------------------------------------- */

/* Returns the stream that a handle means for this caller; its context must be usable. */
CUresult fake_stream(CUstream handle, CUstream *stream);
CUstream fake_stream_new(CUcontext context, uint32_t flags, int priority);
void fake_stream_retire(CUstream stream);
bool fake_is_event(CUevent event);
void fake_record(CUevent event, CUstream stream);

/* -- space.c, ranges.c --------------------------------------------------------------------------------------------- */

void fake_space_init(struct space *space, uint64_t base, uint64_t bytes);
bool fake_space_take(struct space *space, uint64_t bytes, uint64_t align, uint64_t *at);
bool fake_space_take_at(struct space *space, uint64_t at, uint64_t bytes);
void fake_space_give(struct space *space, uint64_t at, uint64_t bytes);
struct space *fake_addresses(void); /* addresses of the simulated GPUs; NULL without room */
void fake_forget(uint64_t at, uint64_t bytes); /* returns the machine's memory behind addresses */
struct range *fake_range_add(uint64_t base, uint64_t bytes, enum range_kind kind);
struct range *fake_range_find(uint64_t address); /* the range that contains it */
bool fake_range_holds(uint64_t address, uint64_t bytes);
void fake_range_remove(struct range *range);
void fake_ranges_each(bool (*remove)(struct range *range, void *data), void *data);
/* Returns address space of `bytes`, charged to the card; NULL if the card (or the address space) is full. */
struct range *fake_allocate(struct gpu *gpu, uint64_t bytes, uint64_t align, enum range_kind kind, enum fake_kind pays);
void fake_deallocate(struct range *range, enum fake_kind pays);

/* -- memory of other kinds ----------------------------------------------------------------------------------------- */

void fake_pools_after_sync(struct gpu *gpu); /* returns memory above the release thresholds */
void fake_pools_close(struct gpu *gpu);
void fake_pools_trim_unused(struct gpu *gpu); /* before an allocation fails */
CUresult fake_pool_free(struct range *range, CUstream stream); /* of cuMemFree (stream NULL) and cuMemFreeAsync */
void fake_graphs_close(struct gpu *gpu);
CUresult fake_graph_free(struct range *range, CUstream stream);
uint64_t fake_array_base(CUarray array, uint64_t *pitch, uint64_t *slice, uint64_t *bytes);

/* -- copies.c ------------------------------------------------------------------------------------------------------ */

struct copy { /* three-dimensional, in bytes; everything else is a case of it */
    uint64_t from, to, from_pitch, from_slice, to_pitch, to_slice, width, height, depth;
};
struct fill {
    uint64_t to, pitch, width, height; /* width in elements */
    uint32_t value, size;
};
uint64_t fake_copy_cost(uint64_t bytes, bool on_card);
void fake_run_copy(void *copy);
void fake_run_fill(void *fill);
bool fake_copy_on_card(const struct copy *copy);
CUresult fake_copy_of(const CUDA_MEMCPY3D *asked, struct copy *copy);
CUresult fake_copy(const struct copy *copy, CUstream stream, bool wait);
CUresult fake_fill(const struct fill *fill, CUstream stream, bool wait);

/* -- kernels ------------------------------------------------------------------------------------------------------- */

struct launch { /* one launch: the kernel, its size, and the parameters of a known kernel */
    struct kernel *kernel;
    uint32_t grid[3], block[3], shared_bytes;
    uint8_t parameters[64];
};
uint64_t fake_kernel_cost(const struct launch *launch, const struct gpu *gpu);
/* Returns the effect of a known kernel as `run` and a fresh `data`; false: it computes nothing. */
bool fake_kernel_effect(const struct launch *launch, CUcontext context, void (**run)(void *data), void **data);
CUresult fake_read_parameters(struct launch *launch, void **parameters, void **extra);
CUresult fake_check_launch(const struct launch *launch);
CUresult fake_kernel_of(CUfunction function, struct kernel **kernel);
CUresult fake_launch(const struct launch *launch, CUstream stream);

/* -- capture.c, graphs.c ------------------------------------------------------------------------------------------- */

/* Returns CUDA_SUCCESS, or the error of a call that a current capture forbids, which it also breaks. */
CUresult fake_unsafe_call(void);
/* Returns true if work for this stream is to be captured; an error if it must not be issued. */
CUresult fake_capturing(CUstream stream, bool *captured);
CUresult fake_capture_node(CUstream stream, CUgraphNodeType type, const void *parameters);
CUresult fake_capture_allocation(CUstream stream, uint64_t bytes, CUdeviceptr *address);
CUresult fake_capture_record(CUevent event, CUstream stream);
CUresult fake_capture_wait(CUstream stream, CUevent event);
void fake_capture_forget(CUevent event);
void fake_capture_break(struct capture *capture);
void fake_capture_leave(CUstream stream);

#endif
