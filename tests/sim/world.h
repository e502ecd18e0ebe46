/* world.h - a simulated world: processes, threads, a clock, a network, a store; all decided by one seed.
 *
 *     fiber.c   threads                     store.c    the store as a process sees it: late, lossy, or gone
 *     world.c   clock, scheduler, processes oracle.c   what is true, and what must not happen (I1..I8)
 *     worker.c  worker processes            clients.c  producers, submitters, operators
 *     order.c   the order of a key's tasks (I3)
 *     run.c     one seed from beginning to end          mutants.c  bugs that are switched on
 *     by_hand.c seed 0: what chance comes to too seldom
 *
 * The code under test is the library's own: queues, jobs, schedules, ownership, the pump and the lanes. Only the clock,
 * the randomness, the mutex of a worker and the way to the store are simulated. Every call of the store is a place
 * where the caller may be paused, for a millisecond or for several leases, before the call takes effect or after; where
 * request or reply may be lost; and where the process may end.
 *
 * I1  Nothing acknowledged is lost.
 * I2  An outcome is accepted only from the current owner; what an operator was told to have ended is not run.
 * I3  Starts per key are in order and never overlap while leases hold.
 * I4  A blocked key blocks nobody.
 * I5  Every task ends, or is visibly waiting with a reason.
 * I6  One idempotency key (token, unique, tick of a schedule), one job, one answer.
 * I7  Recovery invents nothing: no task, no outcome and no attempt that was not there.
 * I8  No more tasks of one partition are with a worker than may run there at a time, and no more tasks of the queue run
 *     in all workers whose leases hold than may. */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "base/random.h"
#include "keyline/keyline.h"
#include "sim/fiber.h"
#include "work/inside.h"

enum {
    SIM_KEYS_MAX = 64,
    SIM_PROCESSES_MAX = 4096,
    SIM_FIBERS_MAX = 128,
    SIM_PARTITIONS_MAX = 256,
    SIM_SHARDS_MAX = 256,
    SIM_HANDS_MAX = 4,
    SIM_JOBS_MAX = 256,
    SIM_JOB_TASKS_MAX = 8,
    SIM_CALLS_MAX = 128,
    SIM_CALL_TASKS_MAX = 8,
    SIM_UNIQUES_MAX = 32,
    SIM_EVENTS_MAX = 4096,
    SIM_CRONS = 4, /* schedules */
};

#define SIM_QUEUE     "sim"
#define SIM_BEGIN_MS  INT64_C(1800000000000)
#define SIM_NOBODY    UINT32_MAX
#define SIM_KIND_RARE "rare" /* a kind that only some workers serve */

/* --- What a seed decides --- */

struct sim_plan {
    uint64_t operations;
    uint32_t keys;
    uint32_t workers, producers, submitters, operators;
    int64_t lease_ms;
    uint32_t attempts_max;
    kl_head_policy policy;
    int64_t window_max;
    int64_t per_partition;    /* tasks of one partition in one worker; 0: no limit */
    int64_t concurrency;      /* of the queue; 0: no limit */
    uint32_t lost_per_mille;  /* requests, and as many replies */
    uint32_t stall_per_10000; /* calls that take up to several leases */
    uint32_t slow_per_mille;  /* calls that take up to 100 ms */
    uint32_t crash_per_10000; /* calls */
    bool delays, priorities, groups, bursts, kinds, crons, requests, layouts, pauses, redrives;
    bool ordered;     /* few keys with many priorities and due times */
    bool true_clocks; /* everybody's */
    bool altered;     /* settings are, and the number of digits, while everything goes on */
    bool reruns;      /* jobs are rerun, and single tasks tried now */
    bool restless;    /* layouts are changed, and keys drained, all the time, and half of the tasks are delayed */
    uint32_t poison_max;
};

/* --- Processes --- */

enum sim_role { SIM_WORKER, SIM_PRODUCER, SIM_SUBMITTER, SIM_OPERATOR };

struct world;

struct sim_process {
    struct world *world;
    uint32_t number;
    enum sim_role role;
    bool dead;     /* it has crashed: nothing that it does has an effect */
    bool stopping; /* it is to end by itself */
    bool over;     /* nothing of it is left */
    bool all_kinds;
    bool redriving; /* what it appends has been there before, and is to be */
    bool locked;    /* its mutex */
    uint32_t fibers;
    int64_t skew_ms;
    int32_t drift_ppm;
    int64_t frozen_until_ms;
    int64_t tick_began_ms; /* when the last tick that succeeded was begun */
    kl_task_id worker;
    uint32_t concurrency;
    const struct sim_thread *looker; /* the one that looks just now, or NULL */
    uint64_t look_began, looked;     /* entries stored when that look was begun, and the last that ended well */
    int64_t look_began_ms;           /* when the last one was begun */
    uint32_t lines_asked[SIM_PARTITIONS_MAX]; /* which lines are in use, as far as that look knows, */
    uint32_t lines[SIM_PARTITIONS_MAX];       /* and the last one knew */
    kl_store *store;
    kl_queue *queue;
    kl__pump *pump;
};

/* --- What is true --- */

/* What becomes of a task when it is run. */
enum sim_behaviour { SIM_WELL, SIM_FLAKY, SIM_BAD, SIM_FATAL, SIM_POISON };

struct sim_entry;

/* A task as somebody wants it put. */
struct sim_task {
    uint64_t number;
    uint32_t key; /* 0: none */
    int8_t priority;
    bool delayed, rare, acknowledged, duplicate, cancel_asked;
    bool ended_told; /* an operator was told that it has ended without a run, and it was not put again since */
    enum sim_behaviour behaviour;
    int32_t job, unique; /* -1: none */
    int64_t tick_ms;     /* names a tick of a schedule; 0: none */
    uint32_t lives;      /* 1, and one for each redrive */
    uint32_t real_ends;  /* outcomes that are not moves */
    struct sim_entry *entries;
};

/* A task as the store has it: moves and redrives make new ones. */
struct sim_entry {
    kl_task_id id;
    kl_place place;
    uint64_t layout, sequence;
    struct sim_task *task;
    bool ended, retry_line, due;
    bool moved; /* another entry stands for it */
    int64_t due_ms, stored_ms;
    kl_outcome outcome;
    uint32_t attempts, starts, extra; /* extra: starts that a process wrote down and died before making */
    uint32_t settled_by;
    uint64_t settled_epoch;
    uint32_t taken_by; /* a process, or SIM_NOBODY */
    uint64_t taken_epoch;
    int64_t known_ms; /* the tick by which the taker knew what was cancelled */
    bool running;
    uint32_t finished_by; /* the process that has its outcome in memory, or SIM_NOBODY */
    uint64_t finished_epoch, finished_order;
    bool final, halted, verdict_dead;
    uint32_t drained_by,
        drained_starts; /* a process that drains its key just now, and its starts when that was begun */
    struct sim_entry *next_of_key, *next_of_task, *next_in_bucket, *next;
};

struct sim_key {
    char name[16];
    struct sim_entry *waiting;
    bool paused, steered, skip_asked, drain_asked;
    bool held;            /* paused at the end, while all others come to rest */
    int64_t paused_ms;    /* since when it is */
    uint64_t tried_epoch; /* in which a task of it that had been tried before ended last */
};

/* Of a due line. */
struct sim_reading {
    bool begun, ended;
    uint64_t stored;  /* entries when it was begun */
    int64_t until_ms; /* what was due by then */
};

struct sim_owner {
    uint32_t process; /* or SIM_NOBODY */
    bool unclean;     /* nobody: the last one did not give it back */
    uint64_t epoch;
    int64_t expires_ms;
    uint32_t fenced_by;
    uint64_t taken;                   /* entries stored when the process took it */
    struct sim_reading reading, read; /* under way; and the last whole one */
};

struct sim_partition {
    char name[64];
    kl_layout layout;
    uint64_t layout_number;
    struct sim_owner owners[SIM_SHARDS_MAX]; /* by shard */
};

struct sim_job {
    char key[24];
    struct sim_task *tasks[SIM_JOB_TASKS_MAX];
    size_t count;
    bool answered, cancel_asked;
    bool rerun;           /* somebody asked for that */
    int64_t cancelled_ms; /* when that was acknowledged; 0: it was not */
    kl_job_answer answer;
};

/* A put with a token, which anybody may repeat. */
struct sim_call {
    char token[24];
    struct sim_task *tasks[SIM_CALL_TASKS_MAX];
    size_t count;
    bool answered;
    kl_put_result results[SIM_CALL_TASKS_MAX];
};

/* --- The world --- */

struct sim_event {
    int64_t at_ms;
    uint32_t process;
    uint64_t task; /* 0: none */
    uint32_t key;
    char text[96];
};

struct sim_thread {
    struct fiber *fiber;
    struct sim_process *process;
    void (*run)(struct sim_process *process);
    int64_t wake_ms;
    bool waits_for_lock;
};

struct world {
    uint64_t seed;
    uint64_t random, library_random;
    struct sim_plan plan;
    int64_t now_ms;
    uint64_t operations, steps;
    bool quiet;  /* no more faults, no more tasks */
    bool ending; /* everything is to stop */
    bool trace;
    kl_store *inner;

    struct sim_process *processes[SIM_PROCESSES_MAX];
    uint32_t process_count;
    struct sim_thread threads[SIM_FIBERS_MAX];
    uint32_t thread_count;
    struct sim_thread *current;

    struct sim_task **tasks; /* by number, from 1 */
    uint64_t task_count, task_room;
    struct sim_entry *entries, **buckets;
    uint64_t entry_count, waiting, bucket_count;
    struct sim_key keys[SIM_KEYS_MAX]; /* 0: tasks without one */
    struct sim_partition *partitions[SIM_PARTITIONS_MAX];
    struct {
        kl_task_id id;
        uint32_t process;
    } workers[SIM_PROCESSES_MAX]; /* who is whom in the records of owners */
    uint32_t worker_count;
    struct sim_job jobs[SIM_JOBS_MAX];
    uint32_t job_count;
    struct sim_call calls[SIM_CALLS_MAX];
    uint32_t call_count;
    struct sim_task *uniques[SIM_UNIQUES_MAX]; /* the one that was stored */
    bool queue_paused, queue_steered, purge_asked;
    int64_t queue_paused_ms;
    uint32_t poisons, jumps;
    uint64_t crashes, takeovers, stalls, losses, layouts, starts, finishes;

    struct sim_event events[SIM_EVENTS_MAX];
    uint64_t event_count;
    const char *broken; /* "I3"; NULL: all is well */
    uint64_t broken_task;
    uint32_t broken_key;
    char why[512];
};

/* --- world.c --- */

uint64_t sim_below(struct world *world, uint64_t bound);
bool sim_chance(struct world *world, uint64_t of, uint64_t in);
int64_t sim_between(struct world *world, int64_t least, int64_t most);

void sim_note(struct world *world, const struct sim_process *process, const struct sim_task *task, const char *format,
              ...) KL_PRINTF(4, 5);
void sim_break(struct world *world, const char *invariant, const struct sim_task *task, const char *format, ...)
    KL_PRINTF(4, 5);

struct sim_process *sim_process_new(struct world *world, enum sim_role role, void (*run)(struct sim_process *process));
void sim_thread_new(struct sim_process *process, void (*run)(struct sim_process *process));
void sim_crash(struct sim_process *process, const char *why);
kl_rc sim_open(struct sim_process *process); /* its store and queue */
uint32_t sim_alive(const struct world *world, enum sim_role role);

/* In a thread. Times are of the store's clock. */
void sim_sleep(struct sim_process *process, int64_t ms);
void sim_enter(void *process);
void sim_leave(void *process);
int64_t sim_local_ms(void *process);

/* Outside of threads: one of those that can go on does, or time passes until one can. False: there are none. */
bool sim_step(struct world *world);
void sim_world_free(struct world *world);

/* --- store.c --- */

const kl_engine *sim_engine(void);

/* The world whose processes open stores. */
void sim_store_world(struct world *world);

/* --- oracle.c --- */

struct sim_task *oracle_task(struct world *world, uint32_t key);
struct sim_entry *oracle_find(const struct world *world, uint32_t partition, const kl_task_id *id);
struct sim_owner *oracle_owner(const struct world *world, kl_place place);
bool oracle_may_be_cancelled(const struct world *world, const struct sim_task *task); /* somebody has asked for that */
bool oracle_halted(const struct world *world, uint32_t key);
bool oracle_at_rest(const struct world *world, const struct sim_entry **ret_stuck);
void oracle_end(struct world *world);
void oracle_free(struct world *world);

/* What the store has done. */
void oracle_partition(struct world *world, uint32_t number, const char *name, uint32_t shard_prefix_len);
void oracle_appended(struct sim_process *process, const kl_entry *entries, size_t count);
void oracle_settled(struct sim_process *process, const kl_settle *batches, size_t count);
void oracle_fenced(struct sim_process *process, const kl_fence *fences, size_t count);
void oracle_written(struct sim_process *process, const kl_write *writes, size_t count);

/* What a client was told. */
void oracle_acknowledged(struct sim_process *process, struct sim_task **tasks, const kl_put_result *results,
                         size_t count);
void oracle_answered(struct sim_process *process, struct sim_job *job, const kl_job_answer *answer);

/* What a worker does. */
struct sim_entry *oracle_taken(struct sim_process *process, const kl__held *held);
void oracle_untaken(struct sim_process *process, struct sim_entry *entry, uint64_t epoch);
void oracle_dealt(struct sim_process *process, struct sim_entry *entry, uint64_t epoch);
void oracle_runs(struct sim_process *process, struct sim_entry *entry, const kl__window *window);
void oracle_finished(struct sim_process *process, struct sim_entry *entry, const kl__held *held); /* NULL: lost */

/* --- order.c --- */

void order_look_begins(struct sim_process *process);
void order_counted(struct sim_process *process, uint32_t partition, uint32_t priorities);
void order_scanned(struct sim_process *process, const kl_scan *scans, size_t count);
void order_look_ends(struct sim_process *process, kl_rc rc);
void order_taken_over(const struct sim_process *process, struct sim_owner *owner);
bool order_ends_unrun(const struct world *world, const struct sim_entry *entry);
void order_check(struct sim_process *process, const struct sim_entry *entry, const kl__held *held);

/* --- worker.c, clients.c --- */

void sim_worker(struct sim_process *process);
void sim_producer(struct sim_process *process);
void sim_submitter(struct sim_process *process);
void sim_operator(struct sim_process *process);
kl_rc sim_schedule(struct sim_process *process); /* adds the schedules */

/* --- run.c --- */

struct sim_result {
    const char *broken; /* the invariant, or NULL */
    uint64_t operations, tasks, starts, crashes, takeovers, stalls, losses, layouts;
    int64_t simulated_ms;
    char why[512];
};

/* The same in a process of its own: what the library keeps for the life of a process begins anew, and one that crashes
 * or does not come to an end is found too. */
struct sim_result sim_run_apart(uint64_t seed, uint64_t operations, const char *mutant, void *out);

/* --- mutants.c --- */

struct sim_mutant {
    const char *name, *bug, *seen;
};

extern const struct sim_mutant sim_mutants[]; /* ends with a name of NULL */

/* Switches one on; NULL: none, and "none": none, in the same worlds. False: there is no such mutant. */
bool sim_mutate(const char *name);
bool sim_is_mutated(void); /* also by "none" */

/* Runs seed 0 and so many more until one catches it that is well without it, *ret_seed. False: none did. */
bool sim_catch(const char *mutant, uint64_t seeds, uint64_t operations, struct sim_result *ret_result,
               uint64_t *ret_seed);

/* Whether number `number` is caught: by the seed that is known to, or else by one of so many. */
bool sim_catch_again(size_t number, uint64_t seeds, uint64_t operations);

/* --- by_hand.c: seed 0 --- */

struct sim_result sim_by_hand(void *out);

/* One seed. Where something breaks and `out` is not NULL, it tells how to reproduce it, and what happened before. */
struct sim_result sim_run(uint64_t seed, uint64_t operations, bool trace, void *out);

#endif
