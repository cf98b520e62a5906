/* Runs the ledger's own code through every interleaving of a few small processes, with deaths at every step.
 *
 * usage: ledger_model LIMIT FIRST_SEQ DEATHS REPAIRER_DEATHS REBIRTHS SCRIPT...
 *
 * Each SCRIPT ("+3-1") is a process and its operations in units. A process is a coroutine that yields at each GP_STEP,
 * that is between any two accesses to shared words; the whole world (words and stacks) is small enough to be copied, so
 * that the search goes back and takes the next turn instead of starting over. Worlds that were seen are not entered
 * again. Deaths: a process may vanish at any step, at most DEATHS times in one history; then a repairer comes to be, who
 * may vanish REPAIRER_DEATHS times and be replaced. A repaired slot may be taken by a new process REBIRTHS times.
 *
 * Prints one line of JSON: {"worlds": n, "turns": n, "ends": n} or {"violation": "..."} and exits with 1.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static void gp_step(int step);
#define GP_STEP(n) gp_step(n)
#define pthread_mutex_lock(m) ((void)(m)) /* these are processes, not threads: each would have its own lock */
#define pthread_mutex_unlock(m) ((void)(m))
#include "common/ledger.c"

enum { MOST = 3, REPAIRER = MOST, STACK = 1024, SCRIPT = 16, DEPTH = 400, TABLE = 1 << 24 };
enum life { ABSENT, ALIVE, OVER, DEAD };

struct actor {
    int life;
    int at; /* next operation, or for the repairer the slot it repairs */
    int64_t sum;
    uint64_t most; /* largest total of the tenant since the operation began */
    ucontext_t context;
    _Alignas(64) char stack[STACK];
};

struct world {
    uint64_t tenant;
    uint64_t words[MOST][4]; /* owner, intent, ledger, applied */
    int deaths, repairer_deaths, rebirths;
    struct actor actors[MOST + 1];
};

static struct gpupool_status_gpu page;
static struct world now;
static ucontext_t scheduler;
static int running, processes;
static uint64_t limit;
static char scripts[MOST][SCRIPT * 3];
static int operations[MOST];
static int64_t deltas[MOST][SCRIPT];
static uint64_t *seen;
static unsigned long worlds, turns, ends;

static void violated(const char *what) {
    printf("{\"violation\": \"%s\", \"worlds\": %lu, \"tenant\": %lu}\n", what, worlds,
           (unsigned long)gp_ledger_total(&page));
    exit(1);
}

static void gp_step(int step) {
    (void)step;
    swapcontext(&now.actors[running].context, &scheduler);
}

static void live(void) {
    struct actor *self = &now.actors[running];
    int me = running;
    while (self->at < operations[me]) {
        int64_t delta = deltas[me][self->at];
        if (self->sum + delta < 0) { /* what it would give back was refused */
            self->at++;
            continue;
        }
        self->most = gp_ledger_total(&page);
        if (gp_ledger_change(&page, (uint32_t)me, delta, limit))
            self->sum += delta;
        else if (delta < 0 || self->most + (uint64_t)delta <= limit)
            violated("refused what fitted all along");
        self->at++;
    }
    self->life = OVER;
    swapcontext(&self->context, &scheduler);
}

static void repair(void) {
    struct actor *self = &now.actors[REPAIRER];
    if (!gp_ledger_repair_slot(&page, (uint32_t)self->at))
        violated("the repairer gave up");
    now.actors[self->at].life = ABSENT;
    self->life = ABSENT;
    swapcontext(&self->context, &scheduler);
}

static void born(int who, void (*body)(void)) {
    struct actor *actor = &now.actors[who];
    int at = actor->at;
    memset(actor, 0, sizeof *actor);
    actor->at = who == REPAIRER ? at : 0;
    actor->life = ALIVE;
    getcontext(&actor->context);
    actor->context.uc_stack.ss_sp = actor->stack;
    actor->context.uc_stack.ss_size = STACK;
    makecontext(&actor->context, body, 0);
    if (who != REPAIRER)
        atomic_store(&page.slots[who].owner, (uint64_t)who + 1);
}

/* -- the world as a value ----------------------------------------------------------------------------------------- */

static void read_page(void) {
    now.tenant = page.tenant;
    for (int i = 0; i < processes; i++) {
        uint64_t words[4] = {page.slots[i].owner, page.slots[i].intent, page.slots[i].ledger, page.slots[i].applied};
        memcpy(now.words[i], words, sizeof words);
    }
}

static void write_page(void) {
    page.tenant = now.tenant;
    for (int i = 0; i < processes; i++) {
        page.slots[i].owner = now.words[i][0];
        page.slots[i].intent = now.words[i][1];
        page.slots[i].ledger = now.words[i][2];
        page.slots[i].applied = now.words[i][3];
    }
}

/* What lies below a stack's end is of the past, not of the state. */
static void wipe_below(struct actor *actor) {
#if defined(__x86_64__)
    char *end = (char *)actor->context.uc_mcontext.gregs[REG_RSP];
    if (end < actor->stack + 256)
        violated("the test's stacks are too small");
    memset(actor->stack, 0, (size_t)(end - actor->stack));
#else
    (void)actor; /* fewer worlds are recognised: slower, not wrong */
#endif
}

static bool is_new(void) {
    const uint64_t *word = (const uint64_t *)&now;
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < sizeof now / 8; i++) {
        hash = (hash ^ word[i]) * 0xff51afd7ed558ccd;
        hash ^= hash >> 32;
    }
    hash |= 1;
    size_t at = hash >> 40;
    while (seen[at] != 0 && seen[at] != hash)
        at = (at + 1) % TABLE;
    if (seen[at] == hash)
        return false;
    seen[at] = hash;
    if (++worlds > TABLE / 2)
        violated("too many worlds for this test");
    return true;
}

/* -- what may happen next ----------------------------------------------------------------------------------------- */

static void run(int who) {
    running = who;
    swapcontext(&scheduler, &now.actors[who].context);
    struct actor *actor = &now.actors[who];
    if (actor->life == ALIVE)
        wipe_below(actor);
    else {
        memset(&actor->context, 0, sizeof actor->context);
        memset(actor->stack, 0, STACK);
    }
}

static void vanish(int who) {
    struct actor *actor = &now.actors[who];
    memset(&actor->context, 0, sizeof actor->context);
    memset(actor->stack, 0, STACK);
    if (who == REPAIRER) {
        actor->life = ABSENT;
        now.repairer_deaths--;
    } else {
        actor->life = DEAD;
        actor->sum = 0;
        now.deaths--;
    }
}

/* Takes turn number `turn` of those that are possible; false when there is no such turn. */
static bool take(int turn) {
    for (int i = 0; i <= REPAIRER; i++)
        if (now.actors[i].life == ALIVE && turn-- == 0)
            return run(i), true;
    for (int i = 0; i < processes; i++)
        if (now.actors[i].life == ALIVE && now.deaths > 0 && turn-- == 0)
            return vanish(i), true;
    if (now.actors[REPAIRER].life == ALIVE && now.repairer_deaths > 0 && turn-- == 0)
        return vanish(REPAIRER), true;
    for (int i = 0; i < processes; i++) {
        if (now.actors[i].life == DEAD && now.actors[REPAIRER].life == ABSENT && turn-- == 0) {
            now.actors[REPAIRER].at = i;
            return born(REPAIRER, repair), true;
        }
        if (now.actors[i].life == ABSENT && now.rebirths > 0 && turn-- == 0) {
            now.rebirths--;
            return born(i, live), true;
        }
    }
    return false;
}

/* -- what must hold ------------------------------------------------------------------------------------------------ */

static void check_world(void) {
    uint64_t total = gp_ledger_total(&page);
    if (total > limit)
        violated("above the limit");
    for (int i = 0; i < processes; i++)
        if (now.actors[i].most < total)
            now.actors[i].most = total;
}

static void check_end(void) {
    uint64_t sum = 0;
    ends++;
    for (int i = 0; i < processes; i++) {
        struct actor *actor = &now.actors[i];
        uint64_t has = gpupool_word_units(page.slots[i].ledger);
        if (actor->life == ALIVE || actor->life == DEAD)
            return; /* only a turn that the budgets forbid is missing */
        if (page.slots[i].intent != page.slots[i].ledger)
            violated("an operation is half done although nobody is at it");
        if (actor->life == OVER && has != (uint64_t)actor->sum)
            violated("a living process's ledger differs from its answer");
        if (actor->life == ABSENT && (has != 0 || page.slots[i].owner != 0))
            violated("a repaired slot is not empty");
        sum += has;
    }
    if (gp_ledger_total(&page) != sum)
        violated("the tenant's total is not the sum of its processes'");
}

static void explore(int depth) {
    if (depth >= DEPTH)
        violated("a history without end");
    struct world *before = malloc(sizeof *before);
    read_page();
    *before = now;
    bool went = false;
    for (int turn = 0;; turn++) {
        if (!take(turn))
            break;
        went = true;
        turns++;
        check_world();
        read_page();
        if (is_new())
            explore(depth + 1);
        now = *before;
        write_page();
    }
    if (!went || now.rebirths > 0)
        check_end();
    free(before);
}

static void parse(int who, const char *script) {
    strncpy(scripts[who], script, sizeof scripts[who] - 1);
    for (char *at = scripts[who]; *at != 0 && operations[who] < SCRIPT;)
        deltas[who][operations[who]++] = strtol(at, &at, 10);
}

int main(int count, char **arguments) {
    if (count < 7 || count > 6 + MOST)
        return 2;
    limit = strtoull(arguments[1], NULL, 10);
    uint32_t seq = (uint32_t)strtoul(arguments[2], NULL, 10);
    now.deaths = atoi(arguments[3]);
    now.repairer_deaths = atoi(arguments[4]);
    now.rebirths = atoi(arguments[5]);
    processes = count - 6;
    seen = calloc(TABLE, sizeof *seen);
    for (int i = 0; i < processes; i++) {
        parse(i, arguments[6 + i]);
        page.slots[i].intent = page.slots[i].ledger = gpupool_word(0, (uint32_t)i, seq);
        page.slots[i].applied = seq;
        born(i, live);
    }
    page.tenant = gpupool_word(0, 0, seq);
    explore(0);
    printf("{\"worlds\": %lu, \"turns\": %lu, \"ends\": %lu}\n", worlds, turns, ends);
    return 0;
}
