/* put.h - what put.c and unique.c share: a call of kl_queue_put on its way into the stores.
 *
 * A call is prepared (checked, envelopes made), routed (places and ids chosen) and appended. The last two work on a
 * range of its tasks, so that a task with a unique can go ahead of the others on its own.
 *
 * P1  Nothing is stored before every task of the call was checked.
 * P2  Entries stand in the order of the call, and ids of one shard ascend in it.
 * P3  A task that is stored stays as it is: routing and appending pass it over. */
#ifndef KL_QUEUE_PUT_H
#define KL_QUEUE_PUT_H

#include "base/clock.h"
#include "queue/inside.h"

enum {
    KL_PUT_FEW = 16,         /* tasks for which a call takes no memory */
    KL_PUT_LAYOUT_TRIES = 8, /* layouts that may be opened one after the other while a call looks for its place */
    KL_PUT_LONG_MS = 2000,   /* of such calls altogether: none is made after that */
    KL_PUT_STORE_TRIES = 8,  /* calls of a store that says: not just now */
};

#define KL_DELAY_MS_MAX (KL_ID_MS_MAX / 2) /* 278 years: added to any clock of these centuries it fits into an id */

/* Whatever can be told from the task itself. KL_EINVAL: a sentence without its subject, "its key has 600 bytes; ..." */
kl_rc kl__put_check(const kl_put *task);

/* It has nothing of what only some tasks have: no envelope. */
static inline bool kl__put_is_plain(const kl_put *task)
{
    return (task->unique.len | task->group.len | task->traceparent.len | task->header_count | task->tag_count) == 0 &&
           (task->attempts_max | task->timeout_ms | task->unique_ms | task->keep_ms | task->job_run) == 0;
}

/* Whatever kl_queue_put checks before it stores anything, with its sentences. */
kl_rc kl__put_check_call(kl_queue *queue, const kl_put *tasks, size_t count, kl_bytes token);

/* A queue that tasks of the call go to. */
typedef struct kl__put_route {
    kl_queue *queue;
    kl__descriptor *descriptor;     /* as it was when the call took it */
    const kl__queue_layout *layout; /* that the next tasks are placed in */
    uint32_t partition, shard;      /* where the next task without a key goes, */
    uint32_t run_left;              /* and how many more after it */
    bool spreads;                   /* those three are set */
    const char *named;              /* the last partition that a task named, */
    uint32_t named_number;          /* and which it is */
    bool by_name;                   /* a task of a key goes to another partition than the key says */
} kl__put_route;

/* A store that tasks of the call go to. */
typedef struct kl__put_store {
    kl_store *store;
    int64_t now_ms; /* 0: not asked */
} kl__put_store;

/* Where one task of the call goes, and what became of it. */
typedef struct kl__put_way {
    uint32_t route;
    uint32_t store;
    bool stored;
    bool seen;      /* stored, because the store was seen to have it */
    bool duplicate; /* by somebody else, under the entry's id */
} kl__put_way;

/* The fields behind `arena` are not set to zero when a call begins. */
typedef struct kl__put_call {
    kl_queue *queue;
    const kl_put *tasks;
    size_t count;
    kl_entry *entries;  /* one per task */
    kl__put_way *ways;  /* one per task */
    kl_entry *gathered; /* room for those of one store; NULL until it is needed */
    kl__put_route *routes;
    size_t route_count, route_room;
    kl__put_store *stores;
    size_t store_count, store_room;
    size_t uniques;          /* tasks that have one */
    const kl_handed *handed; /* each waited as this in a store's inbox (take_in.c); NULL: they did not */
    bool marks_later;        /* that a layout is by_name is not written while places are chosen, */
    bool unmarked;           /* and has to be written */
    kl_arena arena;
    kl__put_route one_route;
    kl__put_store one_store;
    kl__put_way few_ways[KL_PUT_FEW];
    kl_entry few_entries[KL_PUT_FEW];
} kl__put_call;

/* Tasks [from, to) of a call. */
typedef struct kl__put_range {
    size_t from, to;
} kl__put_range;

/* The layout that ids were made with. */
typedef struct kl__put_made {
    uint64_t number;
    kl_layout layout; /* of it the shard_prefix_len counts */
} kl__put_made;

/* Begins a call: its tasks are checked and their entries made, without places and ids. To be ended, also after a
 * failure; the entries lie in the call. */
kl_rc kl__put_begin(kl__put_call *call, kl_queue *queue, const kl_put *tasks, size_t count);
void kl__put_end(kl__put_call *call);

/* The same for tasks that have waited in an inbox. A partition that one names may be gone since: then its key says
 * where it goes. Without a key its number does, which says the same to everybody who takes it in. */
kl_rc kl__put_begin_handed(kl__put_call *call, kl_queue *queue, const kl_handed *handed, const kl_put *tasks,
                           size_t count);

/* As kl_queue_put of such a task, under a token. Whatever became of the layout since, it is the same call. */
kl_rc kl__queue_put_handed(kl_queue *queue, const kl_handed *handed, const kl_put *task, kl_bytes token);

/* Chooses places in the newest layouts that are known, and ids, for what is not stored. With `claimed`, the partition
 * of a task without a key follows from its id, so that whoever knows the id finds it. */
kl_rc kl__put_route_tasks(kl__put_call *call, kl__put_range range, bool claimed);

/* Writes what `unmarked` says. */
kl_rc kl__put_mark(kl__put_call *call);

/* Places for tasks whose ids are known, in the layouts that made[route] names. KL_ESEALED: one is no more. */
kl_rc kl__put_place_tasks(kl__put_call *call, kl__put_range range, const kl__put_made *made);

/* Gives what is not stored the ids that it has in the newest layouts, and says so in made[route]. */
kl_rc kl__put_move_tasks(kl__put_call *call, kl__put_range range, kl__put_made *made);

/* One append for each store of what is not stored, and marks it. With `claimed` its token names these tasks and those
 * that were seen in the store, else the call. KL_ESEALED: kl__put_refresh, and choose places anew. */
kl_rc kl__put_append(kl__put_call *call, kl__put_range range, bool claimed);

/* Reads the queues' records again. */
kl_rc kl__put_refresh(kl__put_call *call);

/* Whether a store's call is to be made once more, after a little wait; `tries` counts from 0. */
bool kl__put_again(kl_rc rc, uint32_t tries);

/* Whether calls of a store that were begun then have taken long by now: it has been patient itself. */
bool kl__put_took_long(int64_t began_ns);

/* Makes a store's call, several times when it says soon: not just now. */
#define KL_ASK(rc, call)                                                                                               \
    do {                                                                                                               \
        uint32_t tries_ = 0;                                                                                           \
        int64_t began_ns_ = kl__monotonic_ns();                                                                        \
        do                                                                                                             \
            (rc) = (call);                                                                                             \
        while ((rc) == KL_EBUSY && !kl__put_took_long(began_ns_) && kl__put_again(rc, tries_++));                      \
    } while (0)

/* Waits, in tests by their own means: NULL makes the thread sleep again. */
typedef void kl__sleep_fn(int64_t ms);
void kl__queue_sleep(int64_t ms);
void kl__queue_sleep_by(kl__sleep_fn *sleep);

/* --- unique.c --- */

enum { KL_PUT_TOKEN_MS = 3600 * 1000 }; /* how long a token is known, and a unique that says nothing */

/* Puts the range's tasks once for all who bring the same bytes; those who come later get the ids of the first
 * (ways[].duplicate). kind, of the record: "unique" (one task, for its unique_ms) or "token" (the call, for an hour).
 * made: ids are chosen already, with these layouts by route; NULL: they are not. KL_EBUSY: the first is still at it. */
kl_rc kl__put_once(kl__put_call *call, kl__put_range range, const char *kind, kl_bytes bytes, const kl__put_made *made);

/* Forgets the call that was made with this token: made again, it puts its tasks again. */
kl_rc kl__put_forget(kl_queue *queue, kl_bytes token);

#endif
