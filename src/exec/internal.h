/* internal.h - what the files of the executor share: task, shard, thread, executor.
 *
 * Reading order: submit.c, batch.c -> admit.c (blocked keys) -> inbox.h -> shard.c (drain, take, settle) -> hand.c ->
 * thread.c (run). stop.c ends it, control.c looks at it and steers it. */
#ifndef KL_EXEC_INTERNAL_H
#define KL_EXEC_INTERNAL_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/tree.h"
#include "exec/inbox.h"
#include "keyline/exec.h"
#include "lanes/lanes.h"

enum { KL_TASK_KEY_INLINE = 38, KL_RUN_BUCKETS = 12, KL_HAND_MAX = 64, KL_FULL_COUNTS = 8 };

/* A shard has one spare task for so many places, to be lent for one that cannot run. */
enum { KL_EXEC_SPARE_SHARE = 4 };

/* How often to yield before sleeping, and how often to look up while waiting for room. */
enum { KL_EXEC_YIELDS = 16, KL_EXEC_LOOK_NS = 2000000 };

/* What few tasks have: allocated only for them. */
typedef struct kl__task_extra {
    kl__tree_node by_deadline; /* in the shard's deadlines, if it has one */
    int64_t deadline_ms;       /* KL_NEVER: none */
    bool in_deadlines;
    bool delayed; /* due_ms counts, and it is counted in the shard's `delayed` */
    int64_t due_ms;
    kl_end_fn *end;
    void *end_ctx;
    void *ctx; /* the task's own */
    struct kl__exec_task *task;
    char *error; /* of the last attempt, or NULL */
} kl__task_extra;

/* On the way through the inbox the key stands where the lane's links will be. */
typedef union kl__task_key {
    struct {
        char near[KL_TASK_KEY_INLINE];
        uint16_t len;
    };
    char *far; /* the bytes of a longer one, allocated */
} kl__task_key;

/* One cache line: it goes from the producer's core to that of the thread which runs it, and back. */
typedef struct kl__exec_task {
    union {
        kl__lane_task lane;
        kl__task_key key;
    };
    kl_task_fn *fn;
    union {
        void *ctx;
        kl__task_extra *extra; /* if the kind says so */
    };
} kl__exec_task;

_Static_assert(sizeof(kl__exec_task) == KL_CACHE_LINE, "a task is one cache line");
_Static_assert(
    sizeof(kl__exec_task) * (KL_EXEC_SPARE_SHARE + 1) / KL_EXEC_SPARE_SHARE + 2 * sizeof(uint64_t) <= 96,
    "a place, its share of the spare tasks, and its slots in a ring of up to twice as many: at most 96 bytes");
_Static_assert(sizeof(kl__task_key) <= offsetof(kl__lane_task, mark), "the key must leave the other fields alone");

/* Bits of kl__lane_mark.kind. STAMPED: in the inbox, the slot has the time of the submit where the hash would be. */
enum { KL_KIND_EXTRA = 1, KL_KIND_STAMPED = 2 };

static inline kl__exec_task *kl__exec_task_of(kl__lane_task *task) { return KL_CONTAINER(task, kl__exec_task, lane); }

static inline kl__task_extra *kl__extra_of(const kl__exec_task *task)
{
    return KL_UNLIKELY(task->lane.mark.kind & KL_KIND_EXTRA) ? task->extra : NULL;
}

static inline void *kl__ctx_of(const kl__exec_task *task)
{
    return KL_UNLIKELY(task->lane.mark.kind & KL_KIND_EXTRA) ? task->extra->ctx : task->ctx;
}

/* The key of a task that is published, and its hash. */
static inline kl_bytes kl__slot_key(const kl__exec_task *task, uint64_t slot, uint32_t *ret_hash)
{
    bool is_far = task->key.len > KL_TASK_KEY_INLINE;
    kl_bytes bytes = {KL_UNLIKELY(is_far) ? task->key.far : task->key.near, task->key.len};
    *ret_hash = KL_UNLIKELY(task->lane.mark.kind & KL_KIND_STAMPED) ? (uint32_t)kl__hash_local(bytes)
                                                                    : (uint32_t)(slot >> KL_INBOX_INDEX_BITS);
    return bytes;
}

/* kl__lane_mark.stop_asked: written under the shard's mutex, read by the task itself. OVER is written by who reports
 * the task, before he does, of one that failed when that is decided, and stays. */
enum { KL_STOP_NONE, KL_STOP_CANCEL, KL_STOP_DEADLINE, KL_STOP_OVER };

static inline uint8_t kl__stop_asked(const kl__exec_task *task)
{
    return __atomic_load_n(&task->lane.mark.stop_asked, __ATOMIC_SEQ_CST);
}

static inline void kl__ask_stop(kl__exec_task *task, uint8_t stop)
{
    uint8_t before = kl__stop_asked(task);
    while (before != KL_STOP_OVER && !__atomic_compare_exchange_n(&task->lane.mark.stop_asked, &before, stop, false,
                                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

typedef struct kl__run_histogram {
    uint64_t count[KL_RUN_BUCKETS + 1];
    int64_t sum_ns;
} kl__run_histogram;

/* What producers were told about blocked keys, and whether that still holds, is in one word for each: admit.c. */
enum { KL_ANSWERS = KL_CACHE_LINE / sizeof(uint64_t) };

typedef struct kl__answers {
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) marks[KL_ANSWERS];
    _Atomic(uint32_t) tasks[KL_ANSWERS]; /* so many has the key, or a few more; of one that was not refused */
    uint32_t next;                       /* which is overwritten next; under the shard's mutex */
} kl__answers;

typedef struct kl__answer_table {
    kl__answers *buckets;
    uint64_t mask; /* of their number */
} kl__answer_table;

typedef struct kl__shard {
    /* This line hardly ever changes. */
    alignas(KL_CACHE_LINE) struct kl_exec *exec;
    kl__lanes *lanes;
    kl__exec_task *tasks; /* `task_count` of them: one for each place, and the spare ones */
    uint32_t task_count;
    uint32_t index;
    const kl__lane_signs *signs; /* of the lanes: which keys may be blocked */
    kl__answer_table answers;
    kl__inbox inbox;
    alignas(KL_CACHE_LINE) pthread_mutex_t mutex; /* guards what follows and the lanes; its holder owns the inbox */
    kl__tree_node *deadlines;
    kl__lane_task *spare; /* tasks that are not lent, chained by next */
    uint32_t waiting;     /* producers waiting for room */
    uint32_t seen_urgent; /* of `urgent`: so many are in the lanes */
    pthread_cond_t room;
    int64_t looked_ns;    /* when the inbox was last drained */
    int64_t submitted_ms; /* when the last task that is known to was submitted */
    uint64_t retries, dead, cancelled;
    kl__run_histogram runs;
    uint32_t told_urgent; /* so many of `urgent` are in the lanes when `drained` has come to this number: */
    uint64_t told_claimed;
    /* Hints for threads that look for work without the mutex. */
    alignas(KL_CACHE_LINE) _Atomic(bool) ready;
    _Atomic(int64_t) visited_ns; /* when a thread was last here */
    _Atomic(uint32_t) urgent;    /* counts tasks that may belong before those that wait: look into the inbox */
    _Atomic(int64_t) next_due;
    alignas(KL_CACHE_LINE) _Atomic(uint32_t)
        delayed; /* live tasks with a delay: while there are any, the others' times matter */
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) admitted; /* tasks of blocked keys, or a few more: admit.c */
    _Atomic(uint32_t) told_length;                     /* places that were taken when a key was last refused */
    struct {
        alignas(KL_CACHE_LINE) _Atomic(uint64_t) count;
    } full[KL_FULL_COUNTS]; /* submits that got no place, by thread; the first is for all that have none of their own */
} kl__shard;

struct kl_run {
    struct kl_exec *exec;
    kl__shard *shard;
    kl__exec_task *task; /* NULL: nothing runs */
    int64_t retry_after_ms;
    char error[KL_EXEC_ERROR_BYTES];
};

/* The tasks that a thread has taken: hand.h. */
typedef struct kl__hand {
    _Atomic(uint32_t) next;
    _Atomic(bool) recalled;
    uint32_t count;
    bool cut_short;             /* there were more, but a task that is taken alone was among them */
    _Atomic(kl__shard *) shard; /* whose tasks they are, or NULL; this and the next are written under its mutex */
    _Atomic(int64_t) filled_ns; /* when they were taken */
    kl__lane_task *tasks[KL_HAND_MAX];
} kl__hand;

typedef struct kl__inside {
    const struct kl_exec *exec;
    const struct kl__inside *outer;
} kl__inside;

typedef struct kl__exec_thread {
    alignas(KL_CACHE_LINE) kl__hand hand;
    struct kl_exec *exec;
    pthread_t id;
    bool replacing;       /* a task has ended it and another is to be started; under park_mutex */
    bool gone;            /* and none was, because everything has ended: there is nothing to join */
    uint32_t home, homes; /* the shards that it serves first: the first of them, and how many */
    uint32_t hand_size;   /* how many tasks to take at once */
    uint32_t ran;         /* tasks of the hand that were started, */
    uint32_t recorded;    /* and those whose time has been recorded */
    uint32_t urgent;      /* the shard's seen_urgent when it was filled */
    int64_t began_ns;     /* when the first that is not was started */
    bool brisk;           /* its last hand was short: counted in brisk_count */
    int64_t mean_ns;      /* of a task in the last hand */
    int64_t round_ns;     /* when its last round that ran tasks ended */
    int64_t cared_ns;     /* when it last looked after the others' hands */
    kl_run run;
    kl__inside inside;
    /* Sleeping, under exec->park_mutex. */
    pthread_cond_t wake;
    struct kl__exec_thread *next_idle;
    bool idle;
} kl__exec_thread;

typedef enum kl__exec_phase { KL_EXEC_OPEN, KL_EXEC_DRAINING, KL_EXEC_ABORTING } kl__exec_phase;

struct kl_exec {
    kl_exec_opts opts; /* complete */
    kl__shard *shards;
    kl__exec_thread *threads;
    uint32_t shard_count, thread_count;
    _Atomic(uint32_t) hand_most;     /* the largest hand there can be */
    uint32_t started;                /* threads to be joined; all of them once it is open */
    uint32_t index_bits, shard_bits; /* of an id */
    kl__clock clock;
    kl__lane_mark mark; /* of a task without options */
    int64_t opened_ms;
    int64_t gather_tasks; /* so many are worth waiting some microseconds for: thread.c */
    int64_t dear_ns;      /* a yield that takes longer than to fill and empty all places is no help: kl__yield */
    _Atomic(int) phase;
    _Atomic(uint64_t) given_up; /* tasks that a stop has ended */
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) random;
    _Atomic(uint32_t) next_shard;                        /* for tasks without a key */
    alignas(KL_CACHE_LINE) _Atomic(uint32_t) idle_count; /* threads asleep; written under park_mutex */
    _Atomic(uint32_t) brisk_count;                       /* threads awake whose tasks are short */
    _Atomic(bool) watched;                               /* one of those asleep looks up from time to time */
    alignas(KL_CACHE_LINE) pthread_mutex_t park_mutex;
    kl__exec_thread *idle;
    pthread_cond_t all_ended;
    sigset_t signals; /* the threads' mask, which was that of who opened it */
};

/* The executors of which this thread runs or reports a task, the innermost first: it must not wait for tasks of theirs.
 * A task of one may cancel a task of another, so there may be several. */
extern _Thread_local const kl__inside *kl__innermost;

static inline bool kl__is_inside(const struct kl_exec *exec)
{
    for (const kl__inside *inside = kl__innermost; inside; inside = inside->outer)
        if (inside->exec == exec)
            return true;
    return false;
}

static inline int64_t kl__exec_now_ns(const kl_exec *exec)
{
    return KL_LIKELY(!exec->clock.now_ns) ? kl__monotonic_ns() : exec->clock.now_ns(exec->clock.ctx);
}

static inline int64_t kl__ns_to_ms(int64_t ns) { return ns / 1000000; }

/* So many milliseconds after this moment, or up to one more: what has come when a clock of whole ones shows it has
 * come. */
static inline int64_t kl__ms_after(int64_t ns, int64_t ms) { return (ns + 999999) / 1000000 + ms; }
static inline int64_t kl__exec_now_ms(const kl_exec *exec) { return kl__ns_to_ms(kl__exec_now_ns(exec)); }

/* executor.c. With a test's clock, time passes when the test says so and then calls kl__exec_wake_all. */
KL_MUST_USE kl_rc kl__exec_open_with(const kl_exec_opts *opts, const kl__clock *clock, kl_exec **ret_exec);
KL_MUST_USE kl_rc kl__exec_check_key(kl_bytes key);
kl_rc kl__exec_fail_null(const char *call, const char *argument); /* KL_EINVAL */

static inline kl__shard *kl__exec_shard_at(kl_exec *exec, uint64_t hash)
{
    return &exec->shards[kl__hash_scale(hash, exec->shard_count)];
}

/* A key's shard. Its order is nobody else's business, so this hash needs to be fast, not portable. */
static inline kl__shard *kl__exec_shard_of(kl_exec *exec, kl_bytes key, uint64_t *ret_hash)
{
    *ret_hash = kl__hash_local(key);
    return kl__exec_shard_at(exec, *ret_hash);
}

/* An id is a task's number in its shard, the shard, and which of the shard's tasks it is, counted from 1, so that no id
 * is 0. The number's upper bits are lost in it: with the default settings after 2^54 tasks, whatever they are not
 * before 2^36. */
static inline kl_exec_id kl__exec_id_at(const kl__shard *shard, uint64_t index, uint64_t number)
{
    const struct kl_exec *exec = shard->exec;
    return ((number << exec->shard_bits | shard->index) << exec->index_bits) | (index + 1);
}

static inline kl_exec_id kl__exec_id(const kl__shard *shard, const kl__exec_task *task, uint64_t number)
{
    return kl__exec_id_at(shard, (uint64_t)(task - shard->tasks), number);
}

/* options.c */
KL_MUST_USE kl_rc kl__exec_opts_complete(const kl_exec_opts *given, kl_exec_opts *ret_opts);
KL_MUST_USE kl_rc kl__exec_check_wait(const char *call, int64_t wait_ms);
KL_MUST_USE kl_rc kl__exec_task_opts_check(const kl_exec_task_opts *given, kl_exec_task_opts *ret_opts);

/* control.c. With the shard's mutex held: brings every task that is not in fact running, and whose submit has returned,
 * into the lanes, as of now. KL_ENOMEM: not all of them. */
kl_rc kl__shard_look_closely(kl__shard *shard);

/* shard.c. All but open, close, has_work and report are called with the shard's mutex held. */
KL_MUST_USE kl_rc kl__shard_open(kl__shard *shard, kl_exec *exec, uint32_t index);
void kl__shard_close(kl__shard *shard);
kl_rc kl__shard_drain_inbox(kl__shard *shard, uint64_t most, int64_t now_ns);
uint32_t kl__shard_take(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns);
uint32_t kl__shard_start(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns);
bool kl__shard_publish_hints(kl__shard *shard);
void kl__shard_offer(kl__shard *shard);
void kl__shard_end(kl__shard *shard, kl__lane_task **tasks, uint32_t count, int64_t now_ns); /* NULLs are passed over */
void kl__shard_end_chain(kl__shard *shard, kl__lane_task *chain, kl_outcome outcome,
                         kl_rc rc); /* leaves the mutex meanwhile */
void kl__shard_give_up(kl__shard *shard);
int64_t kl__shard_expire(kl__shard *shard, int64_t now_ns);          /* returns the time by then */
void kl__shard_keep_deadline(kl__shard *shard, kl__exec_task *task); /* of a task that waits (again), if it has one */
void kl__exec_report(kl__shard *shard, kl__exec_task *task, kl_outcome outcome, kl_rc rc, const char *error);
bool kl__shard_has_work(kl__shard *shard, int64_t now_ms);

/* admit.c. May a task whose key may be blocked, or that is delayed, have a place? KL_EFULL: not now (patient: waits
 * instead), and *ret_blocked tells whether because of its key. KL_ECLOSED: nor ever. Neither records a sentence. */
typedef struct kl__applicant {
    kl_bytes key;
    uint64_t hash;
    bool delayed;
    int64_t until_ns; /* waits until then; 0: does not */
} kl__applicant;

kl_rc kl__shard_admit(kl__shard *shard, const kl__applicant *who, bool *ret_blocked);

/* Whether a key with this hash was refused a place and still would be. Without the mutex. */
bool kl__shard_refuses(const kl__shard *shard, uint64_t hash);

/* KL_EFULL, with its sentence and for kl_exec_last_full(): there is no place, or none for more of what cannot run. */
kl_rc kl__shard_fail_full(kl__shard *shard);
kl_rc kl__shard_fail_refused(kl__shard *shard, kl_bytes key, bool blocked);
uint64_t kl__shard_full_count(kl__shard *shard); /* how often */

void kl__answers_forget(kl__shard *shard);
KL_MUST_USE kl_rc kl__answers_open(kl__answer_table *table, uint32_t capacity); /* KL_ENOMEM, without a sentence */

/* thread.c */
void *kl__thread_main(void *thread);
void kl__exec_wake_one(kl_exec *exec);
void kl__exec_announce(kl_exec *exec, int64_t waiting); /* so many tasks wait: wake a thread if need be */
void kl__exec_wake_all(kl_exec *exec);

bool kl__task_stopping(const kl_exec *exec, const kl__exec_task *task); /* it has been asked to stop */
int64_t kl__run_bucket_ns(int bucket); /* the upper bound of a bucket of the run histogram */

/* stop.c */
bool kl__exec_all_ended(kl_exec *exec);
void kl__exec_note_end(kl_exec *exec); /* after a task has ended while the executor is stopping */

void kl__exec_log(const kl_exec *exec, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);

#endif
