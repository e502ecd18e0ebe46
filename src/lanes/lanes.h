/* lanes.h - the per-key scheduler: which task may run next. No threads, no clock, no I/O; lanes.c tells how it works.
 *
 * The caller owns the tasks and embeds a kl__lane_task in each. A kl__lanes is used by one thread at a time. */
#ifndef KL_LANES_H
#define KL_LANES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/tree.h"

enum { KL_LANE_PRIORITY_MIN = -16, KL_LANE_PRIORITY_MAX = 15, KL_LANE_PRIORITIES = 32 };

typedef struct kl__lane kl__lane;
typedef struct kl__lanes kl__lanes;

/* Where a task is. */
typedef enum kl__lane_place {
    KL_PLACE_NONE,    /* not added */
    KL_PLACE_LINE,    /* in its key's line, in order of arrival */
    KL_PLACE_EARLY,   /* in its key's line, ahead of somebody who came before */
    KL_PLACE_LATER,   /* not due */
    KL_PLACE_RUNNING, /* taken */
    KL_PLACE_HELD,    /* ran and is to run again: its key waits for it */
    KL_PLACE_OUT,     /* withdrawn, still counted until it is ended */
    KL_PLACE_FAILED,  /* ran and failed for good, still counted until it is ended */
} kl__lane_place;

/* The small fields of a task, in one word, so that they can be set in one go. */
typedef struct kl__lane_mark {
    alignas(8) int8_t priority;
    uint8_t place; /* kl__lane_place */
    /* The rest is kept here for whoever runs the task; lanes do not look at it. */
    uint8_t kind;
    uint8_t stop_asked;
    uint16_t attempts;
    uint16_t attempts_max;
} kl__lane_mark;

typedef struct kl__lane_task {
    union {
        kl__tree_node node; /* EARLY, LATER */
        struct {
            struct kl__lane_task *prev, *next; /* LINE; next also chains what a drain returns */
        };
    };
    kl__lane *lane;
    int64_t due_ms;    /* not before */
    uint64_t position; /* ties are broken by it; unique in one kl__lanes */
    kl__lane_mark mark;
} kl__lane_task;

_Static_assert(sizeof(kl__lane_task) == 48, "every waiting task pays for this");

/* What a key is doing, and so why its next task is not running. */
typedef enum kl__lane_state {
    KL_LANE_IDLE,
    KL_LANE_READY,
    KL_LANE_RUNNING,
    KL_LANE_RETRYING,
    KL_LANE_DELAYED,
    KL_LANE_PAUSED,
    KL_LANE_HALTED,
    KL_LANE_STATES,
} kl__lane_state;

/* A key with the hash of its bytes, any 32 good bits, always the same for the same key. Length 0: no key. */
typedef struct kl__lane_key {
    kl_bytes bytes;
    uint32_t hash;
} kl__lane_key;

typedef struct kl__lane_info {
    kl_bytes key;
    kl__lane_state state;
    uint64_t tasks;            /* live, the running one included */
    int64_t until_ms;          /* RETRYING, DELAYED: when it is ready; else KL_NEVER */
    const kl__lane_task *head; /* running, held or next in line; NULL when none is due */
} kl__lane_info;

typedef struct kl__lane_counts {
    uint64_t tasks;                /* all that were added and not ended */
    uint64_t running;              /* taken and not settled */
    uint64_t keys[KL_LANE_STATES]; /* by state; tasks without a key count as one key while any waits */
} kl__lane_counts;

kl__lanes *kl__lanes_open(void); /* NULL: no memory */

/* From now on fewer lanes of keys without tasks are kept to be used again: for those who have many kl__lanes. */
void kl__lanes_rest_few(kl__lanes *lanes);

void kl__lanes_close(kl__lanes *lanes); /* tasks are the caller's; NULL is fine */

/* Adds a task, in two steps, so that the key may lie where the task will be: first the key's lane, which is made if
 * there is none (NULL: no memory), then at once the task. The caller has set its due_ms, position and priority. */
kl__lane *kl__lanes_lane(kl__lanes *lanes, kl_bytes key, uint32_t hash);

/* The same for a key whose bytes are allocated, at *far: a lane that is made may keep them, and then *far is NULL. So
 * without memory, too, a key can go on whenever another one is idle, however long it is. */
kl__lane *kl__lanes_lane_giving(kl__lanes *lanes, char **far, size_t len, uint32_t hash);

void kl__lanes_add(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task, int64_t now_ms);

/* The same as adding and then taking the task, but shorter. False: it would not have been the one to be taken, or not
 * at once, or it has a priority, and others may come in before it; nothing has happened. It must be due. */
bool kl__lanes_start(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task);

/* The same for a task that has started before, in another process: it holds its key until it ends, and is ready when
 * its due_ms has come. If another task holds the key already, it stands in line like any other. */
void kl__lanes_hold(kl__lanes *lanes, kl__lane *lane, kl__lane_task *task, int64_t now_ms);

/* Takes everything that waits out of the key's line for good, chained by `next`, but leaves what runs or holds the
 * key. */
kl__lane_task *kl__lanes_evict(kl__lanes *lanes, kl__lane *lane);

/* The task that runs or holds the key; NULL: none. And all of its tasks, that one included. */
kl__lane_task *kl__lane_head(const kl__lane *lane);
uint64_t kl__lane_tasks(const kl__lane *lane);

/* Whether tasks wait in the lane that may run after this one; and whether it runs before another one of its key. */
bool kl__lane_has_after(const kl__lane *lane, const kl__lane_task *task);
bool kl__lane_task_before(const kl__lane_task *task, const kl__lane_task *other);

/* The lane of a key, or NULL: it has none. */
kl__lane *kl__lanes_find(const kl__lanes *lanes, const kl__lane_key *key);

/* Tells the processor to fetch what looking for a key of this hash will touch: its place in the table, and, when that
 * has come, the first lane there. */
void kl__lanes_prefetch(const kl__lanes *lanes, uint32_t hash);
void kl__lanes_prefetch_lane(const kl__lanes *lanes, uint32_t hash);
kl__lane_state kl__lane_state_of(const kl__lane *lane);

/* Waits for the end of all tasks that a key has now: `reached` is called from the call that ends the last of them. */
typedef struct kl__lane_barrier {
    struct kl__lane_barrier *next;
    uint64_t position; /* tasks with a lower one are waited for */
    uint64_t waits;    /* for so many */
    void (*reached)(struct kl__lane_barrier *barrier);
} kl__lane_barrier;

/* False: the key has no tasks, there is nothing to wait for. The barrier is the caller's and must stay until it has
 * been reached or forgotten; forgetting one that has been reached is fine. */
bool kl__lanes_await(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier);
void kl__lanes_forget(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier);

/* Time has come to now_ms: what is due by then is ready. Also part of every take. */
void kl__lanes_advance(kl__lanes *lanes, int64_t now_ms);

/* Takes up to `most` tasks that may run now, each of another key (or of none), and says how many. Each is followed by
 * exactly one of end, retry, halt and untake. */
uint32_t kl__lanes_take(kl__lanes *lanes, kl__lane_task **ret_tasks, uint32_t most, int64_t now_ms);

void kl__lanes_end(kl__lanes *lanes, kl__lane_task *task, int64_t now_ms); /* also after withdraw and fail */
void kl__lanes_fail(kl__lane_task *task); /* it will not end well: its key stays as blocked as it is */
void kl__lanes_retry(kl__lanes *lanes, kl__lane_task *task, int64_t due_ms,
                     int64_t now_ms);                                       /* holds the key until due */
void kl__lanes_halt(kl__lanes *lanes, kl__lane_task *task, int64_t now_ms); /* holds the key until somebody acts */

/* The task was taken and not run after all: its key is the first whose turn it is. If it has started before, it still
 * holds its key. */
void kl__lanes_untake(kl__lanes *lanes, kl__lane_task *task, bool started, int64_t now_ms);

/* Takes a task that is not running out of its line; its key and its count stay until kl__lanes_end, and if it has run
 * it holds its key until then. */
void kl__lanes_withdraw(kl__lanes *lanes, kl__lane_task *task, int64_t now_ms);

/* One key. Pause keeps it from starting tasks (KL_ENOMEM); resume undoes pause and halt and ends the wait for a retry.
 * Skip withdraws its first task: NULL with *ret_running set tells that the first is running, else that there is none.
 * Drain withdraws all that are not running, in order, chained by `next`. */
KL_MUST_USE kl_rc kl__lanes_pause(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms);
void kl__lanes_resume(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms);
kl__lane_task *kl__lanes_skip(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms, bool *ret_running);
kl__lane_task *kl__lanes_drain(kl__lanes *lanes, const kl__lane_key *key, int64_t now_ms);

/* The same for every key at once. */
void kl__lanes_resume_all(kl__lanes *lanes, int64_t now_ms);
kl__lane_task *kl__lanes_drain_all(kl__lanes *lanes, int64_t now_ms);

/* Why is this key waiting? And for every key that is not idle; `visit` must change nothing. */
kl__lane_info kl__lanes_show(const kl__lanes *lanes, const kl__lane_key *key);
void kl__lanes_each(const kl__lanes *lanes, void (*visit)(void *ctx, const kl__lane_info *info), void *ctx);

/* What cannot run. A key is blocked from when it has to wait for a retry, a resume or somebody who acts until one of
 * its tasks ends well, or none is left: a task that fails again and again is blocked while it runs, too. Of a blocked
 * key all tasks count, of others those that were not due when the key was last looked at. */
uint64_t kl__lanes_stuck(const kl__lanes *lanes);
uint64_t kl__lanes_blocked(const kl__lanes *lanes); /* of these, the tasks of blocked keys */
uint64_t kl__lane_stuck(const kl__lane *lane);
bool kl__lane_blocked(const kl__lane *lane);

/* Whether its tasks are not to be settled together with others', because each end matters to somebody at once: the key
 * is blocked, or has a barrier. */
bool kl__lane_goes_alone(const kl__lane *lane);

/* For other threads, at any time, without any mutex: whether a key with this hash may be blocked. Nearly always right,
 * and if not, for the answer that costs more: false means that none is, or that one has just become it. */
enum { KL_LANE_SIGNS = 2048, KL_LANE_SIGNS_EACH = 3 };

typedef struct kl__lane_signs {
    _Atomic(uint64_t) bits[KL_LANE_SIGNS / 64];
    _Atomic(uint32_t) blocked_keys;
    alignas(KL_CACHE_LINE) _Atomic(uint64_t)
        changes; /* counts how often a key became blocked, or is not any more, or less stuck */
} kl__lane_signs;

const kl__lane_signs *kl__lanes_signs(const kl__lanes *lanes);

static inline bool kl__lane_sign_is_set(const kl__lane_signs *signs, uint32_t sign)
{
    return atomic_load_explicit(&signs->bits[sign / 64], memory_order_relaxed) >> sign % 64 & 1;
}

/* A key's signs are bits of one word, so one look tells: with 25 of 250 keys blocked, one in 3,700 others has them all
 * by chance. */
static inline uint32_t kl__lane_sign_word(uint32_t hash) { return hash >> 18 & (KL_LANE_SIGNS / 64 - 1); }

static inline uint32_t kl__lane_sign(uint32_t hash, int which)
{
    return kl__lane_sign_word(hash) * 64 + (hash >> 6 * which) % 64;
}

static inline bool kl__lane_has_signs(const kl__lane_signs *signs, uint32_t hash)
{
    uint64_t all = UINT64_C(1) << hash % 64 | UINT64_C(1) << (hash >> 6) % 64 | UINT64_C(1) << (hash >> 12) % 64;
    return !(all & ~atomic_load_explicit(&signs->bits[kl__lane_sign_word(hash)], memory_order_relaxed));
}

_Static_assert(KL_LANE_SIGNS_EACH == 3 && KL_LANE_SIGNS / 64 <= 1 << (32 - 18), "the hash has bits for all of it");

static inline bool kl__lane_signs_any(const kl__lane_signs *signs)
{
    return atomic_load_explicit(&signs->blocked_keys, memory_order_relaxed) > 0;
}

/* When something becomes ready by itself (KL_NEVER: nothing will), whether something is ready now, whether anything
 * that is has a priority, and how many there are of each. */
int64_t kl__lanes_next_due(const kl__lanes *lanes);
bool kl__lanes_ready(const kl__lanes *lanes);
bool kl__lanes_prioritized(const kl__lanes *lanes);
kl__lane_counts kl__lanes_counts(const kl__lanes *lanes);

/* The key of a live task; lasts until the task is ended. */
kl_bytes kl__lane_task_key(const kl__lane_task *task);

/* Checks every invariant, at a cost of everything there is: for tests. */
bool kl__lanes_valid(const kl__lanes *lanes);

#endif
