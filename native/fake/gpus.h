/* The simulated GPUs: what they are (gpus.conf) and what happens on them (one shared state file each).
 *
 * Shared by the fake driver (fake/cuda) and the fake NVML (fake/nvml). The variable GPUPOOL_FAKE_GPUS names a folder:
 *
 *   gpus.conf          a line for each GPU; `#` starts a comment:
 *                          <uuid> <memory bytes> <multiprocessors> <major>.<minor> <context bytes> <name ...>
 *                      followed, where MIG mode is on, by a line for each of its MIG instances, or by `mig on`:
 *                          mig <uuid> <memory bytes> <multiprocessors> <profile>
 *   mig.conf           the MIG instances of all cards after the first change through NVML, see mig.c
 *   mig.lock           its lock
 *   gpu-<i>.state      struct fake_state of GPU i, mapped by every process; made when first needed
 *   gpu-<i>.<k>.state  the same of MIG instance k of GPU i
 *   faults.conf        faults to simulate, see faults.c; usually absent
 *   *.alive            next to each state file: process slot s is alive while a lock is held on byte s
 *
 * For tests, variables of a program override the context size of gpus.conf (cuda/contexts.c):
 * GPUPOOL_FAKE_CONTEXT_MIB at the first context, GPUPOOL_FAKE_CONTEXT_GROWTH_MIB more with each module that is loaded.
 *
 * A simulated GPU may use one robust process-shared mutex, unlike the real arbiter. A process killed at any instruction
 * leaves a state that the next process can continue with: words are written singly or behind one index, and sums are
 * computed and never stored.
 *
 * Time: `virtual` time runs at 1/n of real time while n processes have work that is not done (n = 0: it stands still),
 * so each of them is served equally, as with equal time slices. A process's work is done
 * when virtual time reaches its `finish`. The curve remembers where the slope changed, so that the moment at which any
 * piece of work ended is known afterwards. There is no driver thread: the first reader advances the clock.
 */
#ifndef FAKE_GPUS_H
#define FAKE_GPUS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_FOLDER "GPUPOOL_FAKE_GPUS"

/* The folder that this variable named first, or the one that the agent shows to all programs of a slice. */
const char *fake_folder(void);
#define FAKE_GPUS 64u
#define FAKE_MIGS 8u
#define FAKE_PROCESSES 512u
#define FAKE_CURVE 8192u
#define FAKE_MAGIC UINT64_C(0x3165746174736670) /* "pfstate1" */
#define FAKE_ABI 1u

/* An instance: its place in `migs` is also that of its state file. Only an absent one is ever replaced. */
struct fake_mig {
    bool exists; /* the GPU instance */
    bool usable; /* its compute instance: only then is it a device */
    uint32_t id; /* of the GPU instance */
    uint32_t profile_id;
    int32_t start; /* its first memory slice; negative: the description leaves no place for it */
    uint32_t size; /* in memory slices */
    char uuid[96]; /* as NVML prints it */
    uint8_t uuid_bytes[16];
    uint64_t memory_bytes;
    uint32_t multiprocessors;
    char profile[32]; /* such as 1g.10gb */
};

struct fake_gpu {
    uint32_t index;
    char uuid[96]; /* as NVML prints it, GPU-... or GPU-EMULATED-... */
    uint8_t uuid_bytes[16];
    uint64_t memory_bytes;
    uint32_t multiprocessors;
    uint32_t major, minor;
    uint64_t context_bytes; /* taken by each process that has a context */
    char name[96];
    bool mig_mode; /* on: programs use the instances */
    uint32_t mig_count; /* places in `migs` that have been used */
    struct fake_mig migs[FAKE_MIGS];
};

/* What a process's memory is used for. */
enum fake_kind {
    FAKE_CONTEXT, /* contexts and their overhead */
    FAKE_PLAIN,   /* cuMemAlloc and its kin, managed memory */
    FAKE_POOL,    /* reserved by memory pools */
    FAKE_VMM,     /* cuMemCreate */
    FAKE_ARRAY,   /* arrays and mipmapped arrays */
    FAKE_GRAPH,   /* reserved for memory nodes of graphs */
    FAKE_KINDS
};

enum fake_process_state { FAKE_FREE = 0, FAKE_LIVE = 1, FAKE_GONE = 2 /* dead; its counters are kept for a while */ };

struct fake_process { /* 256 bytes; offsets are part of the interface: tests read them */
    _Atomic uint32_t state;              /*   0 enum fake_process_state */
    _Atomic uint32_t pid;                /*   4 as the process sees itself */
    _Atomic uint64_t start;              /*   8 its start time in clock ticks since boot */
    _Atomic uint64_t served_ns;          /*  16 GPU time received; brought up to date by each reader */
    _Atomic uint64_t kernels;            /*  24 kernels completed, as far as the process has noticed */
    _Atomic uint64_t submitted_ns;       /*  32 GPU time asked for */
    _Atomic uint64_t finish;             /*  40 virtual time at which all of that will be done */
    _Atomic uint64_t memory[FAKE_KINDS]; /*  48 bytes, by enum fake_kind */
    _Atomic uint64_t peak_bytes;         /*  96 */
    _Atomic uint64_t launches;           /* 104 kernels and graphs launched */
    _Atomic uint64_t joined_ns;          /* 112 CLOCK_MONOTONIC */
    _Atomic uint64_t gone_ns;            /* 120 when its death was noticed */
    _Atomic uint64_t pool_maps;          /* 128 times that a memory pool took memory of the card ... */
    _Atomic uint64_t pool_unmaps;        /* 136 ... and gave some back */
    _Atomic uint32_t checkpoint;         /* 144 CUprocessState, see cuda/checkpoint.c */
    _Atomic uint32_t calls;              /* 148 calls of the driver that have begun and not ended */
    _Atomic uint64_t saved[FAKE_KINDS];  /* 152 bytes of a checkpointed process, by enum fake_kind */
    uint8_t pad[56];
};

struct fake_point { /* virtual time and the real time (CLOCK_MONOTONIC, ns) at which it was reached */
    _Atomic uint64_t ns, virtual_ns;
};

struct fake_clock {
    _Atomic uint64_t ns, virtual_ns, busy_ns;
};

struct fake_state {
    _Atomic uint64_t magic; /* written last */
    _Atomic uint32_t abi;
    uint32_t reserved;
    char boot[40]; /* boot id: after a reboot the state starts anew */
    uint64_t memory_bytes;
    _Atomic uint64_t busy_ns; /* time during which any process had work; for utilisation */
    _Alignas(64) pthread_mutex_t lock;
    _Alignas(64) _Atomic uint64_t live[FAKE_PROCESSES / 64]; /* bit s: slot s is FAKE_LIVE */
    struct fake_clock now[2];      /* the clock's last reading ... */
    _Atomic uint32_t now_at;       /* ... and which of the two it is */
    _Atomic uint32_t sharing;      /* processes that had work then */
    _Atomic uint64_t curve_count;  /* points ever written: point i is curve[i % FAKE_CURVE] */
    _Atomic uint64_t swept_ns;     /* when a process last looked for dead ones */
    _Alignas(4096) struct fake_process processes[FAKE_PROCESSES]; /* at byte 4096 */
    struct fake_point curve[FAKE_CURVE];
};

_Static_assert(sizeof(struct fake_process) == 256, "layout");
_Static_assert(offsetof(struct fake_state, processes) == 4096, "layout");

/* A device of this process's view: a GPU or one MIG instance of it. */
struct fake_device {
    const struct fake_gpu *gpu;
    const struct fake_mig *mig; /* NULL: the whole GPU */
    struct fake_state *state;
    int alive; /* descriptor of the .alive file; never closed, or the process would be taken for dead */
};

/* -- gpus.c ------------------------------------------------------------------------------------------------------ */

/* Returns the number of GPUs described, read once; 0 without a description, negative for an invalid one. */
int fake_gpu_count(void);
const struct fake_gpu *fake_gpu_at(uint32_t index);
/* 32 hex digits behind "GPU-", "GPU-EMULATED-" or "MIG-", dashes apart. */
bool fake_uuid_bytes(const char *text, uint8_t bytes[16]);

/* -- mig.c ------------------------------------------------------------------------------------------------------- */

struct fake_profile { /* of GPU instances */
    uint32_t number; /* NVML_GPU_INSTANCE_PROFILE_... */
    uint32_t id;
    uint32_t slices, memory_slices; /* sevenths of the processors, eighths of the memory */
    bool media;                     /* at most one such instance on a card */
    uint32_t count;                 /* of places */
    uint32_t starts[FAKE_MIGS];
};
/* Returns a profile by its number or id; NULL if there is none. */
const struct fake_profile *fake_profile_numbered(uint32_t number);
const struct fake_profile *fake_profile_of_id(uint32_t id);
/* Writes its name on a card, such as 3g.40gb. */
void fake_profile_name(const struct fake_profile *profile, const struct fake_gpu *gpu, char name[32]);
/* Returns how many more instances of a profile fit on a card, and the start of the first. */
uint32_t fake_profile_room(const struct fake_profile *profile, const struct fake_gpu *gpu, int32_t *start);
/* Gives the instances of gpus.conf their places. */
void fake_migs_placed(struct fake_gpu *gpu);
/* Reads mig.conf if it has changed. */
void fake_migs_refresh(void);
/* Begins a change by one process at a time: the table is fresh. A negative result: not permitted. */
int fake_migs_begin(void);
/* Writes the table, if `write`, and ends the change. Returns whether that worked. */
bool fake_migs_end(int lock, bool write);
struct fake_gpu *fake_gpu_changed(uint32_t index);

/* -- faults.c ---------------------------------------------------------------------------------------------------- */

struct fake_faults { /* of one card; all false, 0 and 1 on a healthy one */
    bool flip, no_peer, vanished, throttle, no_compute_instance, mig_denied;
    uint32_t slow_link; /* how many times as long copies take */
    uint32_t xid;
    uint32_t slow_instance_ms;
};
struct fake_faults fake_faults_of(uint32_t gpu);

/* -- state.c ----------------------------------------------------------------------------------------------------- */

/* Maps the state of a GPU (mig negative) or of an instance; the same object every time, NULL if that fails. */
struct fake_device *fake_device_open(uint32_t gpu, int mig);
void fake_lock(struct fake_device *device);
void fake_unlock(struct fake_device *device);
/* Releases the memory and time of dead processes. Under the lock. */
void fake_sweep(struct fake_device *device);
/* Returns the slot of this process, claimed if it has none; negative if all are taken. Under the lock. */
int fake_join(struct fake_device *device);
/* Releases the slot: nothing is held any more. Under the lock. */
void fake_leave(struct fake_device *device, int slot);
/* Returns the bytes in use by all live processes, and by one. Under the lock for an exact sum. */
uint64_t fake_used(const struct fake_device *device);
uint64_t fake_process_used(const struct fake_process *process);
/* Takes bytes if they are free, if necessary after a sweep. Takes the lock. */
bool fake_take(struct fake_device *device, int slot, enum fake_kind kind, uint64_t bytes);
void fake_give(struct fake_device *device, int slot, enum fake_kind kind, uint64_t bytes);

/* -- timeline.c: all under the lock ------------------------------------------------------------------------------- */

uint64_t fake_now(void); /* CLOCK_MONOTONIC in ns */
/* Advances the clock to now; returns the virtual time. */
uint64_t fake_advance(struct fake_device *device, uint64_t now_ns);
/* Requests ns of GPU time behind all earlier requests of the process; returns the virtual time of its end. */
uint64_t fake_submit(struct fake_device *device, int slot, uint64_t ns);
/* Returns when virtual time reached `virtual_ns`, which is in the past. */
uint64_t fake_reached_at(const struct fake_device *device, uint64_t virtual_ns);
/* Returns when it will be reached if no process requests more and none dies. */
uint64_t fake_projected(const struct fake_device *device, uint64_t virtual_ns, uint64_t now_ns);
/* Drops the requested GPU time of a process that it has not received. */
void fake_drop(struct fake_device *device, int slot);

#endif
