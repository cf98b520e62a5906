/* The shared memory through which the share library, the arbiter and the node agent communicate.
 *
 * Each lease has a folder with three entries, made by the agent:
 *
 *   control   written by the arbiter only, read by every process of the tenant: limits, policy, grants
 *   status    written by the tenant's processes: what they use and want; repaired by the arbiter
 *   bell      a datagram socket of the arbiter's: "look at my status page"; the kernel adds the sender's true pid
 *
 * A lazy lease has no GPUs at first. Its folder then has the file `waiting` only. A process that needs the pages writes
 * a byte to it and waits; the agent gets the GPUs and creates `status`, then `control`. A lease that can be suspended has
 * the file too: while its processes are suspended, each of their calls does the same.
 *
 * There is no lock in these pages. A word has one writer, except `slot.owner` (claimed by compare-and-swap) and
 * `tenant` (changed by compare-and-swap as described below). A process that dies leaves words that show its progress.
 *
 * A tenant that overwrites its own status page can falsify only its own figures: time is charged by the arbiter's
 * observation, and memory is compared with the driver's figures.
 *
 * All integers are native-endian and naturally aligned. Sizes and offsets are checked by tests; a change of the layout
 * is a new GPUPOOL_PAGES_ABI.
 */
#ifndef GPUPOOL_PAGES_H
#define GPUPOOL_PAGES_H

#include <stdatomic.h>
#include <stdint.h>

#define GPUPOOL_PAGES_MAGIC UINT64_C(0x316567617070756e) /* "nuppage1" */
#define GPUPOOL_PAGES_ABI 1u
#define GPUPOOL_MAX_GPUS 16u  /* of one lease */
#define GPUPOOL_SLOTS 128u    /* processes of one lease on one GPU */
#define GPUPOOL_PAGE 4096u
#define GPUPOOL_UNIT_SHIFT 9u /* memory is counted in units of 512 bytes, rounded up */

/* The variable that tells the library where its lease's folder is. Without it the library only passes calls on. */
#define GPUPOOL_LEASE_DIR "GPUPOOL_LEASE_DIR"

/* Where the agent has replaced the driver's files by the share libraries, this folder has what they need without any
 * variable: the lease's folder, and the driver's own files by their names. */
#define GPUPOOL_SLICE_FOLDER "/run/gpupool-slice"

#define GPUPOOL_WAITING "waiting"

enum gpupool_policy {
    GPUPOOL_POLICY_NONE = 0,      /* compute is not gated: memory only */
    GPUPOOL_POLICY_GUARANTEE = 1, /* the share when others want the GPU, all of it otherwise */
    GPUPOOL_POLICY_CAP = 2        /* never more than the share */
};

/* control.grant: the permission to launch. A futex word. */
#define GPUPOOL_GRANT_GRANTED 1u   /* this tenant may launch */
#define GPUPOOL_GRANT_CONTENDED 2u /* others want the GPU: give it back early when idle */
#define GPUPOOL_GRANT_EPOCH_SHIFT 2u /* the rest counts grants; it changes with every grant, never with a revocation */

struct gpupool_control_header { /* GPUPOOL_PAGE bytes */
    uint64_t magic;
    uint32_t abi;
    uint32_t gpu_count;
    char lease[128];        /* for messages */
    char cuda_driver[1024]; /* absolute path of the real (or fake) libcuda.so.1 */
    char nvml_driver[1024]; /* likewise of libnvidia-ml.so.1; empty: none */
    uint32_t suspendable;   /* not 0: the agent may suspend the lease; each call of the driver is watched */
    /* The agent's word. Not 0: the GPUs are taken away, what was in their memory is in the host's; calls wait. */
    _Atomic uint32_t suspended;
    uint8_t pad[GPUPOOL_PAGE - 16 - 128 - 2048 - 8];
};

struct gpupool_control_gpu { /* GPUPOOL_PAGE bytes, one after another behind the header */
    uint8_t uuid[16];    /* as cuDeviceGetUuid gives it */
    char uuid_text[96];  /* as NVML prints it, "GPU-..." or "MIG-..." */
    uint64_t memory_limit_bytes;
    uint64_t context_bytes; /* assumed size of a context until it exists and can be measured */
    uint32_t weight_permille;
    uint32_t policy;           /* enum gpupool_policy */
    uint32_t inflight_limit_us; /* at most this much work of a process is queued on the GPU (0: 4000) */
    uint32_t reserved;
    /* the driver's count of the tenant's memory beyond its ledgers, in bytes; may be negative */
    _Alignas(64) _Atomic int64_t correction_bytes;
    _Alignas(64) _Atomic uint32_t grant;
    _Atomic uint32_t heartbeat; /* changes at least ten times a second while the arbiter lives */
    uint8_t pad[GPUPOOL_PAGE - 256 - 8];
};

/* slot.flags */
#define GPUPOOL_SLOT_MEASURED 1u /* context_bytes was measured when the context was made; else it is an estimate */

struct gpupool_slot { /* 256 bytes: one process of the tenant on one GPU */
    _Atomic uint64_t owner;   /* 0: free; else gpupool_owner(pid, start) as the process sees itself */
    _Atomic uint64_t pid_ns;  /* inode of its pid namespace; 0: not written yet */
    _Atomic uint32_t host_pid; /* written by the arbiter, from the credentials of its first ring */
    _Atomic uint32_t flags;
    /* Memory: see gpupool_word. Written by the owner, or by the arbiter after the owner's death. */
    _Atomic uint64_t intent;  /* total and sequence number after the unfinished operation */
    _Atomic uint64_t ledger;  /* total and sequence number after the last finished operation */
    _Atomic uint64_t applied; /* highest sequence number known to be in `tenant`; written by helpers too */
    /* Parts of the ledger's total. context_bytes is the driver's own memory; the rest was requested. */
    _Atomic uint64_t vmm_bytes, pool_bytes, context_bytes;
    _Alignas(64) _Atomic uint32_t busy; /* not 0: work launched under a grant may not be over */
    _Atomic uint32_t waiting;           /* threads that wait for a grant */
    _Atomic uint64_t launches, graph_launches;
    _Atomic uint64_t waited_ns;  /* thread time spent waiting for grants */
    _Atomic uint64_t paced_ns;   /* thread time spent waiting for one's own queue to shorten */
    _Atomic uint64_t ungated;    /* launches without a grant: the arbiter was gone, or the longest wait was over */
    _Alignas(64) _Atomic uint64_t calls; /* of the driver, if the lease is suspendable: shows whether it is used */
    uint8_t pad[56];
};

struct gpupool_status_gpu { /* one after another behind the status header */
    _Atomic uint64_t tenant; /* gpupool_word: the units in use, and the operation that wrote them */
    _Atomic uint64_t peak_bytes;
    _Atomic uint64_t oom_count;      /* allocations refused because of the limit */
    _Atomic uint64_t unhooked_count; /* returned entry points of a guarded function that were not known */
    uint8_t pad[GPUPOOL_PAGE - 32];
    struct gpupool_slot slots[GPUPOOL_SLOTS];
};

struct gpupool_status_header { /* GPUPOOL_PAGE bytes */
    uint64_t magic;
    uint32_t abi;
    uint32_t gpu_count;
    uint8_t pad[GPUPOOL_PAGE - 16];
};

_Static_assert(sizeof(struct gpupool_control_header) == GPUPOOL_PAGE, "layout");
_Static_assert(sizeof(struct gpupool_control_gpu) == GPUPOOL_PAGE, "layout");
_Static_assert(sizeof(struct gpupool_slot) == 256, "layout");
_Static_assert(sizeof(struct gpupool_status_header) == GPUPOOL_PAGE, "layout");
_Static_assert(sizeof(struct gpupool_status_gpu) == GPUPOOL_PAGE + 256 * GPUPOOL_SLOTS, "layout");

/* A process: its start time in clock ticks since boot (field 22 of /proc/PID/stat) and its pid (at most 2^22). */
static inline uint64_t gpupool_owner(uint32_t pid, uint64_t start) { return start << 22 | (pid & 0x3fffff); }
static inline uint32_t gpupool_owner_pid(uint64_t owner) { return (uint32_t)(owner & 0x3fffff); }
static inline uint64_t gpupool_owner_start(uint64_t owner) { return owner >> 22; }

/* A memory word: units of 512 bytes (34 bits: 8 TiB), slot (7 bits), sequence number of that slot (23 bits).
 *
 * An operation of slot s changes the tenant's total from T to T' and the slot's own from L to L':
 *   1. intent = (L', seq+1)
 *   2. compare-and-swap tenant: (T, t, q) -> (T', s, seq+1). The process has first stored q into
 *      slots[t].applied, so that no sequence number vanishes from `tenant` without a trace. The limit is checked against
 *      T' here: no overshoot, and a request that is too large does not disturb a smaller one.
 *   3. ledger = intent
 * Killed between 1 and 2 or between 2 and 3, a slot says so: intent and ledger differ, and tenant or `applied` tells
 * whether 2 happened. The repairer finishes the operation on paper and gives back the slot's total as one more
 * operation of that slot, which can in turn be repaired. The slot number in intent and ledger is the slot's own.
 */
static inline uint64_t gpupool_word(uint64_t units, uint32_t slot, uint32_t seq) {
    return units << 30 | (uint64_t)(slot & 0x7f) << 23 | (seq & 0x7fffff);
}
static inline uint64_t gpupool_word_units(uint64_t word) { return word >> 30; }
static inline uint32_t gpupool_word_slot(uint64_t word) { return (uint32_t)(word >> 23) & 0x7f; }
static inline uint32_t gpupool_word_seq(uint64_t word) { return (uint32_t)word & 0x7fffff; }

static inline uint64_t gpupool_units(uint64_t bytes) {
    return (bytes >> GPUPOOL_UNIT_SHIFT) + ((bytes & ((1u << GPUPOOL_UNIT_SHIFT) - 1)) != 0);
}

/* Bells: one datagram with one of these. The arbiter reads the whole page after each bell; HELLO also tells it whose
 * slots these are: SCM_CREDENTIALS gives the sender's pid in the arbiter's namespace. */
struct gpupool_bell {
    uint32_t kind; /* enum gpupool_bell_kind */
    uint32_t gpu;  /* index in the lease */
    uint64_t owner;
};
enum gpupool_bell_kind { GPUPOOL_BELL_HELLO = 1, GPUPOOL_BELL_LOOK = 2 };

#endif
