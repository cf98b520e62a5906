/* Declarations for gate.c, launches.c, graphs.c, streams.c, pace.c, capture.c and drain.c: GPU time in this process.
 *
 * The fast path of a launch takes no lock: it increments the counter of a gate, compares two words and continues.
 * Everything else happens under `lock`, which belongs to one GPU in this process and is never held while a thread waits
 * for the GPU.
 *
 * The order that makes leases exclusive (all sequentially consistent):
 *   a launch       enters the gate, then looks at the grant and at `held`
 *   the helper     sees that the grant is gone (or clears `held`), then reads the gate
 *   a claim        writes slot.busy, then looks at the grant once more
 *   the arbiter    revokes the grant, then reads slot.busy
 * So either the launch sees that it may not, or the helper sees it inside; either the claim sees that it came too
 * late, or the arbiter sees it busy.
 */
#ifndef GPUPOOL_SHARE_COMPUTE_H
#define GPUPOOL_SHARE_COMPUTE_H

#include <pthread.h>

#include "share.h"

#define GP_STREAMS 1024u /* streams followed at a time, on one GPU */
#define GP_MARKS 8u      /* marks of one stream; one of them is the last that was reached */
#define GP_COSTS 4096u   /* kernels and graphs whose cost is stored */
#define GP_HELD_NONE GPUPOOL_GRANT_CONTENDED /* never equal to a grant without CONTENDED */
#define GP_COST_UNKNOWN_NS UINT64_C(1000000000) /* fills the queue completely */
#define GP_GATES 16u
#define GP_GATE_LAUNCH UINT64_C(0x10000)
#define GP_GATE_INSIDE UINT64_C(0xffff)

/* Longest wait of one launch for a grant; tests build with a shorter one. */
#ifndef GP_LONGEST_WAIT_MS
#define GP_LONGEST_WAIT_MS 30000
#endif

/* Tests build with pauses at points where a delayed thread would do harm if the order were wrong. */
#ifdef GP_RACES
#define GP_PAUSE() gp_sleep_ns(gp_now_ns() / 64 % 100000)
#else
#define GP_PAUSE() ((void)0)
#endif

/* A point in a stream's work, observed by an event, with the expected time since the previous mark. */
struct gp_mark {
    CUevent event;
    uint64_t work_ns;  /* by the costs known at that time */
    uint64_t key;      /* of the launches, when all had the same; else 0 */
    uint32_t launches;
    bool exact; /* the previous mark was not reached when this was recorded, so the GPU worked all the time */
};

struct gp_stream {
    /* Read by the fast path; handle 0: never used. */
    _Atomic uintptr_t handle;
    _Atomic(CUcontext) context;
    _Atomic uint32_t thread; /* whose default stream it is; 0: a stream for all threads */
    _Atomic bool dirty;      /* launches came after the last mark */
    _Atomic bool full;       /* the queue is too long: wait before the next launch */
    /* Written by each thread that launches on the stream; an increment lost between two of them is harmless. */
    _Atomic uint64_t since_ns, since_key;
    _Atomic uint32_t since_launches;
    _Atomic uint64_t quantum_ns; /* of since_ns, until the next mark */
    /* Under the lock. */
    uint32_t head, tail; /* marks [head, tail) are recorded and not known to be reached; head - 1 is the last reached */
    double scale;        /* real time of this stream's work in relation to the sum of its costs */
    uint64_t reached_ns; /* when mark head - 1 was seen to be reached */
    bool stuck;          /* a wait was in vain: not paced until a mark is reached */
    bool last_pending;   /* `last` is recorded and not known to be reached */
    CUevent last;        /* default stream of a thread: recorded after each launch, because no other thread can */
    struct gp_mark marks[GP_MARKS];
};

struct gp_cost {
    _Atomic uint64_t key;
    _Atomic uint32_t ns;
};

/* Threads between enter and leave (low 16 bits) and launches so far. There are several, each thread uses one, so that
 * threads do not slow each other down. */
struct gp_gate {
    _Alignas(64) _Atomic uint64_t word;
};

/* One GPU of the lease after the first launch there. */
struct gp_compute {
    struct gp_gate gates[GP_GATES];
    _Alignas(64) _Atomic uint32_t held; /* the grant this process is busy for, without CONTENDED; or GP_HELD_NONE */
    _Atomic bool off;                   /* the process exits: nothing is gated any more */
    _Alignas(64) pthread_mutex_t lock;
    struct gp_gpu *gpu;
    uint64_t limit_ns;
    uint32_t beat; /* the arbiter's heartbeat as last seen, and since when */
    uint64_t beat_ns;
    /* The helper thread: see drain.c. */
    _Atomic bool helper_started;
    _Atomic bool helper_done;
    _Atomic uint32_t work; /* a futex word: changes when there is something to do */
    /* Streams: a hash table; `used` lists the places taken. */
    uint32_t used_count;
    uint16_t used[GP_STREAMS];
    struct gp_cost costs[GP_COSTS];
    struct gp_stream streams[GP_STREAMS];
};

/* One launch in progress. */
struct gp_launch {
    struct gp_compute *compute;
    struct gp_gate *gate;
    struct gp_stream *stream; /* NULL: not followed yet */
    uintptr_t handle;
    CUcontext context; /* of a default stream; else NULL */
    uint64_t key;
    uint32_t cost_ns; /* 0: not known */
};

/* -- launches.c: a launch calls begin, the driver's function, and end if begin said so ------------------------------ */

/* False: this launch is not gated; call the driver and nothing else. */
bool gp_launch_begin(struct gp_launch *launch, CUstream stream, bool per_thread, uint64_t key);
void gp_launch_end(struct gp_launch *launch, CUresult result);
/* Returns the stream in the form of the driver's functions without a suffix. */
static inline uintptr_t gp_handle(CUstream stream, bool per_thread) {
    return (uintptr_t)(stream != NULL ? stream : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY);
}
/* Returns the key under which the cost of an executable graph is stored. */
static inline uint64_t gp_graph_key(CUgraphExec exec) { return (uintptr_t)exec | UINT64_C(1) << 63; }

/* -- gate.c ---------------------------------------------------------------------------------------------------------- */

/* Returns the GPU of the calling thread if its launches are gated; else NULL. */
struct gp_compute *gp_compute_current(void);
struct gp_compute *gp_compute_at(uint32_t index); /* NULL: nothing was launched there */
/* Returns the calling thread's gate. */
struct gp_gate *gp_gate_of(struct gp_compute *compute);
/* Leaves the gate, waits for a grant and enters again; or enters without a grant, which is counted. */
void gp_gate_wait(struct gp_compute *compute, struct gp_gate *gate);
uint64_t gp_now_ns(void); /* CLOCK_MONOTONIC */
void gp_sleep_ns(uint64_t ns);
/* Returns at a wake-up, after ns (UINT64_MAX: never), at a signal, or at once when the word is not `value`. */
void gp_futex_wait(const _Atomic uint32_t *word, uint32_t value, uint64_t ns, bool shared);
void gp_futex_wake(const _Atomic uint32_t *word, bool shared);

static inline bool gp_is_held(const struct gp_compute *compute) {
    uint32_t grant = atomic_load(&compute->gpu->control->grant) & ~GPUPOOL_GRANT_CONTENDED;
    return grant == atomic_load(&compute->held);
}

/* -- drain.c --------------------------------------------------------------------------------------------------------- */

/* Starts the helper if there is none, and wakes it. Under the lock. */
void gp_helper_wake(struct gp_compute *compute);
/* Brings slot.launches up to date. */
void gp_publish(struct gp_compute *compute);

/* -- streams.c: everything but find under the lock ------------------------------------------------------------------- */

struct gp_stream *gp_stream_find(struct gp_compute *compute, uintptr_t handle, CUcontext context);
/* Follows a stream from now on; NULL if there is no room. */
struct gp_stream *gp_stream_add(struct gp_compute *compute, uintptr_t handle, CUcontext context);
/* Stops following a stream whose work is over, if its stream or thread is gone. */
void gp_stream_let_go(struct gp_compute *compute, struct gp_stream *stream);
/* Records a mark behind all launches, in the stream's context. False: the stream is being captured. */
bool gp_stream_mark(struct gp_compute *compute, struct gp_stream *stream);
/* Marks all dirty streams of the current context. */
void gp_streams_mark(struct gp_compute *compute);
/* Finds the marks that were reached and updates costs from them. True: none is left. */
bool gp_stream_collect(struct gp_compute *compute, struct gp_stream *stream);
/* Marks all dirty streams and checks whether all marks were reached; for threads without a context of their own. */
bool gp_streams_drained(struct gp_compute *compute);
/* Returns the calling thread's number; only threads with a default stream of their own need one. */
uint32_t gp_thread_number(void);

/* -- pace.c ---------------------------------------------------------------------------------------------------------- */

/* Returns the known cost of a launch; 0: unknown. */
uint32_t gp_cost(const struct gp_compute *compute, uint64_t key);
void gp_cost_forget(struct gp_compute *compute, uint64_t key);
/* Records that a mark was reached, this long after the previous mark. Under the lock. */
void gp_pace_learn(struct gp_compute *compute, struct gp_stream *stream, const struct gp_mark *mark, double elapsed_ns);
/* Called after a mark is recorded: checks whether the stream is full. Under the lock. */
void gp_pace_marked(struct gp_compute *compute, struct gp_stream *stream);
/* Waits while the queue is too long; then closes the group before a launch of unknown cost. Without the lock. */
void gp_pace_before(struct gp_launch *launch);

/* -- capture.c ------------------------------------------------------------------------------------------------------- */

/* Number of captures in this process; at zero no stream has to be checked. */
extern _Atomic uint32_t gp_captures;
/* Returns true if launches on this stream are recorded and not run (or refused because others are captured). */
bool gp_is_capturing(uintptr_t handle);

#endif
