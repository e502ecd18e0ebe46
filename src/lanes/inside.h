/* inside.h - what lanes are made of, what lanes.c and find.c share, and the questions that change nothing. lanes.c
 * explains it. */
#ifndef KL_LANES_INSIDE_H
#define KL_LANES_INSIDE_H

#include "lanes/keytable.h"
#include "lanes/lanes.h"

enum { KEY_INLINE_BYTES = 40, RESTING_MAX = 1024, RESTING_FEW = 256, SPARE_MAX = 256 };

/* The first cache line is all that a key with at most 24 bytes needs while its tasks come and go one by one. */
struct kl__lane {
    kl__keytable_entry entry; /* first: the table's entries are lanes */
    uint16_t key_len;
    uint8_t state;         /* kl__lane_state */
    uint8_t odd;           /* bits below; 0: just a line, and nothing that a short way could forget */
    int8_t ready_priority; /* READY: whose list it is on */
    bool resting;          /* on that list */
    kl__lane_task *head;   /* running or held; never of the crowd */
    kl__lane_task *first;  /* the line */
    union {
        char key[KEY_INLINE_BYTES];
        char *key_far; /* longer ones */
    };
    kl__lane_task *last;
    struct kl__lane *prev, *next; /* READY: that list */
    struct kl__lane *next_resting;
    kl__tree_node *early;
    kl__tree_node *later;
    kl__lane_barrier *barriers;
    kl__tree_node timer;
    int64_t wake_ms;
    uint32_t out;         /* withdrawn tasks that are not ended yet */
    uint32_t later_count; /* tasks in `later` */
    uint32_t stuck;       /* tasks that cannot run, as counted in the lanes' `stuck` */
};

_Static_assert(offsetof(struct kl__lane, key) <= 40 && sizeof(struct kl__lane) <= (size_t)3 * KL_CACHE_LINE,
               "see above");

enum {
    ODD_PAUSED = 1,
    ODD_HALTED = 2,
    ODD_CROWD = 4, /* the lane of tasks without a key */
    ODD_EARLY = 8, /* something is or was in `early`, in `later`, among the barriers */
    ODD_LATER = 16,
    ODD_BARRIER = 32,
    ODD_OUT = 64, /* a task is withdrawn and not ended yet */
    ODD_BLOCKED = 128,
};

struct lane_list {
    kl__lane *first, *last;
};

struct kl__lanes {
    int64_t now_ms;
    int64_t next_due;
    uint32_t ready_bits; /* bit n: list n is not empty */
    uint32_t resting_count, resting_max;
    kl__tree_node *timers;
    uint64_t tasks, running; /* as in kl__lane_counts */
    uint64_t ready_keys, crowd_running;
    uint64_t stuck, blocked;                /* tasks that cannot run, and those of them whose key is blocked: L8 */
    uint64_t waiting_keys[KL_LANE_STATES];  /* RETRYING to HALTED; the others are not kept here */
    kl__lane *first_resting, *last_resting; /* in the order in which they fell idle; some may be busy again */
    bool visiting;                          /* all lanes are being visited: free none */
    kl__lane *spare;                        /* to be used again, chained by next_resting */
    uint32_t spare_count;
    struct lane_list ready[KL_LANE_PRIORITIES];
    uint32_t blocked_by_sign[KL_LANE_SIGNS];     /* blocked keys by their hash */
    alignas(KL_CACHE_LINE) kl__lane_signs signs; /* which of them are not 0 */
    kl__lane crowd;
    kl__keytable table;
};

static inline kl_bytes key_of(const kl__lane *lane)
{
    return (kl_bytes){lane->key_len > KEY_INLINE_BYTES ? lane->key_far : lane->key, lane->key_len};
}

static inline kl__lane_task *task_of(kl__tree_node *node) { return KL_CONTAINER(node, kl__lane_task, node); }
static inline const kl__lane_task *task_at(const kl__tree_node *node)
{
    return KL_CONTAINER(node, kl__lane_task, node);
}
static inline kl__lane *lane_of(kl__tree_node *node) { return KL_CONTAINER(node, kl__lane, timer); }

/* --- Lanes that come and go: find.c --- */

/* Makes the lane of a key that has none; NULL: no memory. If the key's bytes were allocated, for `*far`, and the lane
 * keeps them, *far is set to NULL; far may be NULL itself. */
kl__lane *kl__lanes_make(kl__lanes *lanes, const kl__lane_key *key, char **far);

/* One of the resting lanes, of which there must be one, does so no more: it is freed if it is idle. */
void kl__lanes_make_room(kl__lanes *lanes);

/* A lane that has no more tasks rests. It stays among the resting while it comes and goes, and only when there are too
 * many is the first of them looked at: freed if it is idle, else left to come back when it is. */
static inline void rest(kl__lanes *lanes, kl__lane *lane)
{
    lane->state = KL_LANE_IDLE;
    if (KL_LIKELY(lane->resting))
        return;
    lane->resting = true;
    lane->next_resting = NULL;
    *(lanes->first_resting ? &lanes->last_resting->next_resting : &lanes->first_resting) = lane;
    lanes->last_resting = lane;
    if (++lanes->resting_count > lanes->resting_max && !lanes->visiting)
        kl__lanes_make_room(lanes);
}

/* --- Orders --- */

static inline bool runs_before(const kl__lane_task *a, const kl__lane_task *b)
{
    if (a->mark.priority != b->mark.priority)
        return a->mark.priority < b->mark.priority;
    if (a->due_ms != b->due_ms)
        return a->due_ms < b->due_ms;
    return a->position < b->position;
}

static inline bool early_less(const kl__tree_node *a, const kl__tree_node *b)
{
    return runs_before(task_at(a), task_at(b));
}

static inline bool later_less(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__lane_task *x = task_at(a), *y = task_at(b);
    return x->due_ms != y->due_ms ? x->due_ms < y->due_ms : x->position < y->position;
}

static inline bool timer_less(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__lane *x = KL_CONTAINER(a, kl__lane, timer), *y = KL_CONTAINER(b, kl__lane, timer);
    if (x->wake_ms != y->wake_ms)
        return x->wake_ms < y->wake_ms;
    return x->entry.hash != y->entry.hash ? x->entry.hash < y->entry.hash : x < y; /* the same order in every process */
}

static inline kl__lane_task *first_in_line(const kl__lane *lane)
{
    kl__lane_task *first = lane->first;
    if (KL_LIKELY(!lane->early))
        return first;
    kl__lane_task *early = task_of(kl__tree_first(lane->early));
    return !first || runs_before(early, first) ? early : first;
}

static inline int64_t later_due(const kl__lane *lane)
{
    return KL_LIKELY(!lane->later) ? KL_NEVER : task_of(kl__tree_first(lane->later))->due_ms;
}

/* What state the lane's tasks and marks put it in; *ret_first is the task that would run, if READY. */
static inline kl__lane_state judge(const kl__lane *lane, int64_t now_ms, kl__lane_task **ret_first)
{
    if (lane->head && lane->head->mark.place != KL_PLACE_HELD)
        return KL_LANE_RUNNING; /* or has run and is just being reported */
    if (KL_UNLIKELY(lane->odd & ODD_HALTED))
        return KL_LANE_HALTED;
    if (KL_UNLIKELY(lane->odd & ODD_PAUSED))
        return KL_LANE_PAUSED;
    if (KL_UNLIKELY(lane->head != NULL)) {
        *ret_first = lane->head;
        return lane->head->due_ms <= now_ms ? KL_LANE_READY : KL_LANE_RETRYING;
    }
    if ((*ret_first = first_in_line(lane)) != NULL)
        return KL_LANE_READY;
    return lane->later ? KL_LANE_DELAYED : KL_LANE_IDLE;
}

static inline bool is_blocking(kl__lane_state state)
{
    return state == KL_LANE_RETRYING || state == KL_LANE_PAUSED || state == KL_LANE_HALTED;
}

/* How many of the lane's tasks cannot run. */
static inline uint32_t count_stuck(const kl__lane *lane)
{
    return lane->odd & ODD_BLOCKED ? lane->entry.tasks : lane->later_count;
}

static inline int64_t wake_time(const kl__lane *lane, kl__lane_state state)
{
    switch (state) {
    case KL_LANE_RETRYING:
        return lane->head->due_ms;
    case KL_LANE_READY:
    case KL_LANE_DELAYED:
        return later_due(lane);
    default:
        return KL_NEVER;
    }
}

#endif
