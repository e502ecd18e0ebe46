/* inside.h - what the files of a worker share: held tasks, windows, the pump.
 *
 *            beat.c                look.c              room.c            worker.c           settle.c
 *      own shards (owners.c) -> scan into windows -> ready tasks -> threads run them -> outcomes, in batches
 *      watch the record         (window.c, lanes)    fair by group                      under the shard's epoch
 *
 * Reading order: pump.h (what a worker's threads call) -> look.c -> window.c -> before.c -> skips.h -> room.c -> pump.c
 * (take, finish) -> load.c -> settle.c -> beat.c -> gate.c.
 *
 * A window holds a part of one owned shard's lines, so memory stays bounded however many tasks wait. Three things keep
 * what is held from hiding what is not:
 *
 *   - A key gets at most key_max places. What stands behind is skipped: the key is entered in the window's skips with
 *     the position of the first task left out, and a side look from there brings more when its line has become short.
 *   - A key that cannot run (its first task waits for a retry, or somebody, or a kind of worker) keeps only that first
 *     task and others that were tried, which do not count as held: so memory grows with the number of such keys, but
 *     not with their lines, and what cannot run never takes the room of what can.
 *   - Once groups have been seen, a full window goes on being read: each group gets at least group_min places. All
 *     groups together so get no more than a second window, or one place each.
 *   - A task without a key of a kind that the worker does not run is let go again: its line is not read a second time.
 *
 * P1  Every task between the start of a ready line and the window's cursor is held, finished, skipped under its key's
 *     entry, passed because nobody here runs it, or gone.
 * P2  A key that has an entry in the skips, or among what is left out of the due line, admits nothing that comes behind
 *     the entry by (priority, due, position), and keeps nothing of it that waits. Nor is a task with a key admitted
 *     before the due line was read once, and before more urgent lines have been to their ends, as that look shows them.
 * P3  A task's outcome is sent after those of its key that finished before it: outcomes of a shard are sent in one
 *     settle at a time, in the order in which they came. So what is settled of a key is always its first tasks.
 * P4  Nothing is taken from a window whose owner's lease may be over.
 * P5  A task that may have ended the process before (suspect) is run only after its start has been made durable.
 * P6  Of those whose start was made durable and that ended with their process (accused) one is started at a time, the
 *     next when it has ended or has run for a lease: so those that ran beside the guilty one are charged with it once,
 *     and not until they are dead. Not where tasks are given out: there they end nobody's process. */
#ifndef KL_WORK_INSIDE_H
#define KL_WORK_INSIDE_H

#include "base/base.h"
#include "base/clock.h"
#include "keyline/control.h"
#include "keyline/worker.h"
#include "lanes/lanes.h"
#include "queue/inside.h"
#include "queue/job.h"
#include "work/owners.h"
#include "work/pump.h"
#include "work/skips.h"

enum {
    KL_WINDOW_MIN = 64,    /* tasks of one shard, however many shards share window_max */
    KL_KEY_MAX = 1024,     /* tasks of one key in a window; a quarter of the window where that is less */
    KL_GROUP_MIN = 64,     /* tasks of a group that are held even if the window is full; where there are many groups,
                                * its part of the window, and at least one */
    KL_LOOK_STUBS = 8192,  /* stubs read in one look: 448 KiB; */
    KL_LOOK_NEAR = 2048,   /* where that is no journey: so few are still in the caches when they are run */
    KL_LOOK_EVERY_MS = 20, /* also while enough is ready, or memory is full: something urgent may have come */
    KL_SETTLE_MAX = 8192,  /* outcomes in one settle */
    KL_SETTLE_BYTES = 4 << 20, /* and bytes of errors and results, below KL_BATCH_BYTES_MAX */
    KL_LOAD_MAX = 64,          /* tasks loaded at once */
    KL_SHELF_MAX = 256,        /* tasks of one kind that wait for somebody who wants it */
    KL_SHELVES_MAX = 1024,     /* kinds for which there is a shelf */
    KL_UNSERVED_MAX = 8,       /* kinds that are not run here and that a window remembers by name */
    KL_LINES = KL_LINE_RETRY - KL_PRIORITY_MIN + 1,
};

/* Where a held task is. */
typedef enum kl__held_state {
    KL_HELD_LINE,     /* in its lane, waiting or parked there */
    KL_HELD_ROOM,     /* taken from its lane, waiting for a thread */
    KL_HELD_RUNNING,  /* with a thread */
    KL_HELD_FINISHED, /* has an outcome that is not settled yet */
    KL_HELD_ASIDE,    /* has no key and cannot be run here */
} kl__held_state;

typedef struct kl__window kl__window;
typedef struct kl__group kl__group;
typedef struct kl__partition kl__partition;
typedef struct kl__settles kl__settles;
typedef struct kl__room kl__room;
typedef struct kl__capacity kl__capacity;

struct kl__held {
    kl__lane_task lane; /* position is the stub's; mark.attempts: made so far */
    kl_task_id id;
    uint64_t key_hash;
    kl__window *window;
    kl__group *group;
    kl__held *prev, *next;  /* in the room, among the finished, or aside */
    int64_t keep_ms;        /* FINISHED; before, of one that is drained: by its own word */
    int64_t retry_ms;       /* FINISHED as RETRY: not before; 0: at once */
    kl__verdict_text *text; /* FINISHED: error and result, or NULL */
    uint8_t state;          /* kl__held_state */
    uint8_t outcome;        /* FINISHED: kl_outcome */
    uint8_t blocked;        /* kl__blocked: why its key cannot go on */
    bool suspect;           /* may have ended its worker: P5 */
    bool accused;           /* likewise: its start was written down, and no outcome: P6 */
    bool untold;            /* likewise, also if its attempts are used up by that; else the store has its error */
    bool marked;            /* its start is durable: attempts includes this one */
    bool retry_line;        /* in the store it stands in the retry line */
    bool halted;            /* FINISHED as RETRY: then hold the key until somebody acts, */
    bool draining;          /* or until the rest of its line is dead too */
    bool reconsider;        /* or not at all: the settings by which it is held have changed since */
    bool sending;           /* FINISHED: a settle under way has it */
    bool with_next;         /* FINISHED: the batch that has it has the next one, too */
    bool traceless;         /* its job is removed: nothing is kept of it */
    _Atomic(bool) cancel;   /* somebody asked */
    int64_t started_ms;     /* RUNNING: on the store's clock */
    kl__progress *progress; /* RUNNING: what the handler told, or NULL */
    kl__shelf *shelf;       /* ROOM: where it waits by its kind; NULL: in line with all others */
    void *waiter;           /* FINISHED: to be told when it is settled; NULL: nobody */
    uint16_t kind;          /* blocked for its kind: that, by kl__owners_kind */
    uint16_t made; /* halted or draining, and failed here: the attempts that were made, not those counted as used */
};

enum { KL_HELD_FROM_DUE = 1 }; /* lane.mark.kind: it stands in the due line */

typedef enum kl__blocked {
    KL_BLOCKED_NOT,
    KL_BLOCKED_RETRY,   /* waits for its next attempt */
    KL_BLOCKED_HALTED,  /* failed for good */
    KL_BLOCKED_KIND,    /* nobody here runs its kind */
    KL_BLOCKED_PAUSED,  /* somebody paused the key */
    KL_BLOCKED_DAMAGED, /* its bytes cannot be read */
    KL_BLOCKED_BEHIND,  /* stands behind such a task, and could not leave the window */
} kl__blocked;

struct kl__verdict_text {
    kl_bytes error, result;
    char bytes[];
};

/* A place in a window's table. Most positions that are looked for are not there, and strangers on the way to that are
 * passed without looking at their tasks. */
typedef struct kl__held_place {
    uint64_t position;
    kl__held *held; /* NULL: free */
} kl__held_place;

/* One line of a window. */
typedef struct kl__cursor {
    kl_stub last;  /* the last stub read */
    bool any;      /* one was */
    bool ended;    /* the last read came to the end of the line */
    uint64_t old;  /* tasks up to this position were there when the end was reached first; 0: it was not yet */
    int64_t floor; /* the latest time of a task read so far: gives tasks a due time that ascends along the line */
    kl__skips skips;
    bool siding;      /* a side look is under way, */
    kl_stub side;     /* behind this stub */
    uint64_t wanting; /* keys of the skips that it is for */
    bool side_wanted; /* the line of one of these keys has become short */
    int64_t side_ms;  /* without that, the skips are not searched for keys that it could be for before this time */
    uint64_t side_rest_ms;
} kl__cursor;

struct kl__window {
    kl__pump *pump;
    kl__partition *partition;
    kl_place place;
    uint64_t epoch;
    uint64_t opened;       /* after so many refreshes of the pump had been begun */
    kl__lanes *lanes;      /* NULL while nothing is held */
    kl__held_place *table; /* every held task by position, for what is read twice */
    uint32_t table_capacity, table_count;
    uint64_t held;       /* that count */
    int8_t least_urgent; /* the highest priority value among what filled it */
    uint64_t blocked;    /* tasks of keys that cannot run */
    uint64_t due_held;   /* tasks of the due line that have a key */
    uint64_t out;        /* RUNNING, or finished and in a settle under way */
    kl__held *finished, *finished_last;
    uint64_t finished_count;
    kl__held *aside;
    uint64_t passed;    /* tasks of kinds that are not run here, and that are not held */
    bool suspect;       /* taken over from an owner that did not give it back */
    bool retry_read;    /* the retry line has been read to its end: only then may others be */
    bool leaving;       /* is to be given back, and is not looked at */
    bool unlooked;      /* was leaving, or its last look was spoiled: nothing is started before the next one */
    _Atomic(bool) lost; /* belongs to somebody else */
    bool settling;
    bool sweeping; /* tasks of this key (0: all) are being ended, and must not come into memory meanwhile */
    uint64_t swept_key;
    bool lapsed;                        /* its lease may be over: nothing is taken until a beat has renewed it */
    uint16_t unserved[KL_UNSERVED_MAX]; /* kinds that are not run here and of which it met tasks, by kl__owners_kind, */
    uint8_t unserved_count;
    bool unserved_more;    /* and others */
    bool draining;         /* holds a first task whose line is to follow it to the dead letters */
    int64_t due_looked_ms; /* when the due line was last begun, */
    int64_t due_again_ms;  /* and when it is to be begun again */
    uint32_t lines_read;   /* ready lines that the look under way reads on, or the last one did, as in kl_counts */
    bool behind;           /* in the look under way, lines are to be read on before it ends, */
    bool went_on;          /* and it came further, */
    bool due_read;         /* it was read to its end once: only then may ready lines be */
    bool due_clear;        /* when last begun it held nothing that was due */
    bool due_under_way;    /* it is being read in pieces, behind this stub */
    kl_stub due_last;
    bool due_partly;               /* what was shown last is only a part of it */
    bool due_asked;                /* a look at the due line is under way; it may show what was settled meanwhile: */
    kl__keyset *due_ended;         /* these positions, */
    bool due_spoiled;              /* or some that are not known */
    kl__skips due_left;            /* keys of which it has tasks that are due and not held: the first of each, */
    kl__skips due_leaving;         /* and so far in the reading that is under way */
    kl__cursor *cursors[KL_LINES]; /* by line, less KL_PRIORITY_MIN; NULL: never had anything. The due line has none */
    kl__window *next, **link;      /* in its partition; and what points to it there */
};

/* Somebody who reads records from time to time, if they may have changed (kl__pump_has_news). */
typedef struct kl__reader {
    uint64_t news;   /* as it was when they were last read, */
    int64_t read_ms; /* and when that was, on the local clock; 0: never */
    bool again;      /* they had changed: what was written may be readable only now */
} kl__reader;

/* A partition of one layout, and this worker's part in it. */
struct kl__partition {
    kl__pump *pump;
    kl_store *store;
    uint32_t number, index; /* in its store, in its layout */
    kl_layout layout;
    uint64_t layout_number;
    char name[KL_PARTITION_NAME_BYTES];  /* in its store and in names of records, with "@n" for layout n > 1 */
    char plain[KL_PARTITION_NAME_BYTES]; /* as everybody else is told, without */
    kl__owners *owners;
    kl__window *windows;
    kl__window **by_shard; /* the same, NULL: none */
    uint32_t window_count;
    uint32_t windows_alive; /* dropped ones with something out included */
    uint32_t allowed_count; /* shards that this worker may take */
    bool grants;            /* its record shares out the queue's concurrency, */
    uint64_t permits;       /* and its last beat granted so much: tasks of the queue that may run here at a time */
    uint32_t priorities;    /* lines known to be in use, as in kl_counts */
    int64_t counted_ms;     /* when that was asked; */
    int64_t count_rest_ms;  /* and how long it is not done again: 20 times as long as it took */
    kl_counts counts;       /* the answer, */
    bool counts_known;      /* if more than the lines in use was asked */
    uint64_t seen;          /* of kl_store_wait */
    kl__gate *gate;         /* NULL: no older layout holds anything */
    kl__room *room;         /* where its ready tasks wait: the pump's, or */
    kl__capacity *capacity; /* this one's; NULL: there is no limit */
    uint64_t *unopened; /* a bit for each shard that is owned and for whose window there was no memory: to be left */
    bool unfenced;      /* shards of it are owned and cannot be used yet */
    kl_rc unfenced_rc;  /* why those that were taken last could not; KL_OK: they could */
    char unfenced_why[256]; /* the sentence */
    bool unowned;           /* some shards had no owner when last looked, */
    int64_t unowned_ms;     /* since then at least; */
    bool unowned_told;      /* and that was told */
    uint64_t watched;       /* who owned what when last looked, as a hash, */
    kl__reader watch;       /* for that; */
    kl__reader asks;        /* and for requests */
    bool ending;            /* its layout is drained: to be left */
    bool gone;              /* and has been */
    kl__partition *next;
};

/* --- room.c: ready tasks, in the order in which threads get them --- */

kl__room *kl__room_open(void);
void kl__room_close(kl__room *room);
kl__group *kl__room_group(kl__room *room, uint16_t group);            /* NULL: no memory */
uint64_t kl__group_min(const kl__pump *pump, const kl__group *group); /* its places even if the window is full */
void kl__room_put(kl__held *held);      /* into its group's room, behind all others of its priority and group */
void kl__room_put_back(kl__held *held); /* before them */
void kl__room_remove(kl__held *held);
kl__held *kl__room_take(kl__room *room);       /* lowest priority first, then one of each group in turn; NULL: empty */
uint64_t kl__room_count(const kl__room *room); /* without shelves */
int kl__room_urgency(const kl__room *room);    /* of what is taken next; the lowest comes first */

/* Tasks whose kind was read and that nobody wanted then. */
struct kl__shelf {
    kl__held *first, *last;
    uint64_t count;
    uint16_t hash;    /* of the kind, by kl__owners_kind */
    bool over;        /* more of this kind have been set aside */
    int64_t asked_ns; /* when somebody last wanted it; the giver's */
    kl__shelf *next;
    size_t kind_len;
    char kind[];
};

kl__shelf *kl__room_shelves(const kl__room *room);                   /* the first */
kl__shelf *kl__room_shelf(kl__room *room, kl_bytes kind, bool make); /* NULL: there is none, or no room for it */
void kl__room_shelve(kl__shelf *shelf, kl__held *held);              /* one that is in no line */
size_t kl__room_unshelve(kl__shelf *shelf, size_t max);              /* up to max go before all others */

struct kl__group {
    kl__room *room;
    uint16_t number;
    uint64_t held; /* tasks in windows */
    struct kl__group_line {
        kl__held *first, *last;
        kl__group *next_active;
        bool active;
    } lines[KL_LANE_PRIORITIES];
    kl__group *next; /* in its bucket */
};

/* --- capacity.c: at most so many tasks of a partition at a time --- */

struct kl__capacity {
    uint32_t index; /* of the partition, in its layouts */
    uint32_t users; /* layouts that have it */
    kl__room *room;
    uint64_t running, held; /* as in the pump, of this partition */
    kl__capacity *next;     /* in turn */
};

kl__capacity *kl__capacity_join(kl__pump *pump, uint32_t index);               /* NULL: no memory */
void kl__capacity_leave(kl__pump *pump, kl__capacity *capacity);               /* NULL is fine */
bool kl__capacity_used_up(const kl__pump *pump, const kl__capacity *capacity); /* NULL: no */
uint64_t kl__pump_startable(const kl__pump *pump); /* of the ready tasks, those that partitions' limits let start */

/* Of the partition whose turn it is; NULL: none has ready tasks and may start one. */
kl__room *kl__capacity_next(kl__pump *pump);

/* Whether a look could bring more, in view of what is ready and in memory. */
bool kl__pump_has_space(const kl__pump *pump, uint64_t enough);

struct kl__pump {
    kl__pump_opts opts;
    kl_queue *queue;
    kl__descriptor *descriptor;
    kl__partition *partitions;
    kl__room *room;
    kl__held *accused;         /* that runs (P6), */
    kl__shelf *accused_others; /* and those that are ready beside it */
    kl__capacity *capacities;  /* with a limit for each partition: theirs; else NULL */
    uint64_t capacity_count;
    kl__held *free_held; /* for reuse */
    struct held_block *held_blocks;
    kl_stub *stubs;          /* of a look: KL_LOOK_STUBS */
    struct looks *looks;     /* and its scans */
    kl_shards *given;        /* the shards that may be taken, of the layout they were named for; NULL: all */
    kl__gate *gates;         /* of layouts that have older ones with tasks */
    int64_t clock_offset_ms; /* the store's clock less the local one, */
    bool clock_set;          /* which is not known before the first beat, */
    int64_t clock_ms;        /* and was last asked for then, on the local clock */
    uint64_t refreshes;      /* of the descriptor, that were begun, */
    uint64_t refreshed;      /* and the number of the last one that succeeded */
    int64_t now_ms;          /* the store's clock, as far as it is known; never steps back */
    uint64_t random;
    uint64_t held, blocked, running, finished;
    uint64_t unserved;                /* of the blocked: for want of a handler */
    uint64_t shard_count, all_shards; /* owned here; and of the layouts that are served, altogether */
    uint64_t permits;                 /* tasks that may run here at a time, */
    uint64_t wants_told;              /* and those that could, as the last beat told */
    uint64_t left_out;                /* entries in skips */
    bool side_wanted;                 /* the line of a key of which some were left out has become short */
    uint64_t side_credit;             /* stubs' worth of work that may go into finding keys for side looks */
    bool counts_wanted;               /* somebody asks whether it is empty */
    bool prioritized;                 /* tasks of several priorities wait */
    bool grouped;                     /* a task with a group has been seen */
    bool looking;                     /* a look is under way, */
    int64_t looked_ms; /* or the last was begun then, on the local clock: the store's may stand still here */
    bool ticking;
    bool beating;
    bool informed; /* the queue's records have been read once, whatever else of a tick failed */
    bool stopping; /* nothing is started any more */
    bool limited;  /* the queue's rate or concurrency let nothing start when last asked */
    bool strays;   /* tasks of kinds that have no shelf have been set aside */
    bool more;     /* the last look did not come to the end of all lines, */
    bool eager;    /* and went as far as it could: the next should follow at once */
    double tokens; /* of the rate */
    int64_t tokens_ms;
    kl__keyset *paused;          /* paused keys */
    kl__cancelled_set cancelled; /* jobs */
    kl__settles *settles;        /* what is being sent */
    uint64_t news;               /* how far records of the queue's store had changed when last asked; 0: not told */
    kl__reader records;          /* of settings, pauses and cancelled jobs */
    int64_t owners_ms;           /* when owners were last asked, on the local clock */
    int64_t unsettled_ms;        /* likewise, since when every settle failed; 0: the last one did not */
    int64_t watch_ms;            /* when it was last looked what others do there */
    int64_t tick_ms;             /* when everything else was */
    int64_t ended_ms;            /* when an outcome was last durable, on the store's clock */
    int64_t cron_ms;             /* when schedules are to be looked at, on the store's clock */
    bool beat_now;               /* something is to be given back or taken */
    uint64_t elsewhere;          /* tasks in partitions that are not all owned here, */
    int64_t elsewhere_ms;        /* and since when so many */
    uint64_t away;               /* partitions whose stores have not answered yet: they are not among these */
    bool away_told;              /* that some are, and not yet that all are back */
    kl__pump_counts counts;
};

/* --- held.c --- */

kl__held *kl__held_new(kl__pump *pump); /* all zero; NULL: no memory */
void kl__held_delete(kl__pump *pump, kl__held *held);
void kl__held_free_blocks(kl__pump *pump);
bool kl__held_enter(kl__window *window, kl__held *held); /* into the table; false: no memory */
void kl__held_forget(kl__window *window, kl__held *held);
kl__held *kl__held_at(const kl__window *window, uint64_t position); /* NULL: not held */
void kl__held_prefetch(const kl__window *window,
                       uint64_t position); /* what entering, finding or forgetting it touches */

/* --- window.c --- */

kl__window *kl__window_open(kl__partition *partition, uint32_t shard, uint64_t epoch, bool clean); /* NULL: no memory */
bool kl__window_is_suspect(const kl__window *window); /* something suspect (P5) may wait that was not run here */
void kl__window_drop(kl__window *window); /* lost or left: forgets what it holds; freed once nothing is out */
void kl__window_free_if_done(kl__window *window);

/* A stub of a line: admitted, skipped, or neither because there is no room (false: stop reading this line before
 * it). */
bool kl__window_admit(kl__window *window, int32_t line, const kl_stub *stub, bool side);
kl__cursor *kl__window_cursor(kl__window *window, int32_t line); /* NULL: no memory */

/* A line could not be read on to its end: less urgent tasks with a key leave, to be read again later. */
void kl__window_yield(kl__window *window);

/* Due tasks leave likewise that come behind what was not read of a line of their own priority. */
void kl__window_yield_due(kl__window *window);

/* A task that was taken and not run goes back into its line, or leaves with those that come behind one that is not
 * held. */
void kl__window_put_back(kl__held *held);

/* Moves ready tasks into the room. */
void kl__window_ready(kl__window *window);

/* A task of the key has ended: if its line is short now and more of it was left out, a side look is wanted. */
void kl__window_shorter(kl__window *window, uint64_t key_hash, int32_t priority);

/* The key of this task cannot go on: its other tasks leave the window, to be read again later. */
void kl__window_block(kl__window *window, kl__held *held, kl__blocked why);

/* Tasks of the lane that wait leave the window, to be read again later; what runs or holds the key stays. */
void kl__window_evict(kl__window *window, kl__lane *lane);

/* Takes a held task out of wherever it is and frees it; its lane goes on. */
void kl__window_remove(kl__window *window, kl__held *held);
void kl__window_clear_room(kl__window *window); /* tasks that wait for a thread go back into their lanes */

/* A task that was blocked for want of somebody who runs its kind goes on; false: no memory, it stays. */
bool kl__window_serve(kl__window *window, kl__held *held);

/* In two steps: out of lane, room or aside; and freed, once it is in none. */
void kl__window_withdraw(kl__held *held);
kl__held *kl__window_hold(kl__window *window, const kl_stub *stub); /* in no lane, to be ended; NULL: no memory */
void kl__window_release(kl__held *held);
void kl__window_pass(kl__held *held);                             /* likewise, and it is counted as not served */
void kl__window_due_ended(kl__window *window, uint64_t position); /* a task of the due line was settled */
void kl__window_end_due_look(kl__window *window);
kl__held *kl__window_find(kl__window *window, const kl_task_id *id, uint64_t position);
kl__lane *kl__window_lane(kl__window *window, uint64_t key_hash); /* NULL: none */

bool kl__window_full(const kl__window *window, int32_t line); /* for tasks of this priority */
uint64_t kl__window_max(const kl__pump *pump);                /* tasks of one shard */
uint64_t kl__key_max(const kl__pump *pump);                   /* tasks of one key */

/* --- before.c: what comes before a task of its key, and is not in memory --- */

uint32_t kl__window_lines(const kl__window *window); /* ready lines known to be in use, as in kl_counts */
bool kl__window_unread_before(const kl__window *window, int32_t line); /* there are such lines before this one */
bool kl__window_left_out_before(const kl__window *window, int32_t line, uint64_t key);

/* A task that is due and left out comes before one of this key, line, time and position. */
bool kl__window_due_before(const kl__window *window, uint64_t key_hash, int32_t line, int64_t ms, uint64_t position);
bool kl__window_unread_due(const kl__window *window, const kl_stub *stub); /* the stub is of the due line */
bool kl__window_is_passed(const kl__held *held); /* a task that was taken, and comes back unrun */

/* Remembers that a task of the due line is left out; false: no room for that. And the line has been read to its end. */
bool kl__window_note_due(kl__window *window, uint64_t key_hash, const kl__lane_task *task);
void kl__window_end_due(kl__window *window);

/* --- look.c --- */

/* Counts what waits where that takes long; elsewhere looks do. */
kl_rc kl__pump_count(kl__pump *pump);
struct looks *kl__looks_open(void); /* NULL: no memory */

/* Whether tasks that were left out could be held now. Looks at every key of which some were. */
bool kl__window_wants_side(kl__window *window);

/* --- gate.c: keys of older layouts --- */

kl_rc kl__gates_refresh(kl__pump *pump); /* makes, renews and removes the gates of all layouts */
kl_rc kl__gates_add(kl__pump *pump);     /* a shut one for each layout that has older ones and has none yet */
void kl__gates_free(kl__pump *pump);
bool kl__gate_closed(const kl__gate *gate, uint64_t key_hash); /* tasks of this key must wait; NULL gate: no */
bool kl__gate_moves(const kl__gate *gate,
                    const kl_task_id *id); /* so must this due one, without a key: it is on the move */
bool kl__gate_shut(const kl__gate *gate);  /* so must all */
bool kl__gate_looked(const kl__gate *gate,
                     int64_t since_ms); /* it goes by a look that was begun later; NULL gate: yes */
kl__gate *kl__gate_of(const kl__pump *pump, uint64_t layout_number); /* NULL: there is none */

/* --- keyset.c --- */
kl__keyset *kl__keyset_open(void);
void kl__keyset_free(kl__keyset *set);
bool kl__keyset_add(kl__keyset *set, uint64_t key_hash);       /* false: no memory */
bool kl__keyset_has(const kl__keyset *set, uint64_t key_hash); /* NULL set: no */
uint64_t kl__keyset_count(const kl__keyset *set);
uint64_t kl__keyset_at(const kl__keyset *set, uint64_t index); /* for visiting, index < capacity; 0: nothing there */
uint64_t kl__keyset_capacity(const kl__keyset *set);
kl_rc kl__keyset_read_paused(kl__keyset *set, const kl_queue *queue,
                             kl_arena *arena); /* adds the queue's paused keys */

/* --- task_why.c --- */

/* What keeps a task from being started, but for its partition's owners; READY: nothing of this. */
kl_why kl__found_why(const kl_found *found, const kl__descriptor *descriptor, const kl__keyset *paused, int64_t now_ms);

/* --- settle.c --- */

kl__settles *kl__settles_open(void);
void kl__settles_free(kl__settles *settles);
bool kl__pump_settling(const kl__pump *pump);
/* Whether a task of the key has finished in it whose outcome is not durable. */
bool kl__window_key_unsettled(const kl__window *window, uint64_t key_hash);

/* Until all that has finished in it is durable; the caller has pinned it. KL_ESTALE: it is lost, and not all is. */
kl_rc kl__window_send(kl__window *window);

/* --- pump.c --- */

void kl__pump_log(const kl__pump *pump, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);

/* Gives a task that is in no lane, or holds its lane, its outcome, to be sent with the next settle. */
void kl__pump_settle_later(kl__pump *pump, kl__held *held, kl_outcome outcome, int64_t keep_ms);
void kl__held_keep_text(kl__held *held, kl_bytes error, kl_bytes result);

/* It has failed for good: dead, or its key is held until somebody acts, as the queue's policy says. */
void kl__pump_end_dead(kl__pump *pump, kl__held *held, uint32_t attempts_max, int64_t asked_ms);

/* A taken task that was not run is no longer with a thread. False: its window is lost, and it is gone. */
bool kl__pump_come_back_unrun(kl__pump *pump, kl__held *held);
bool kl__held_lease_holds(const kl__held *held, int64_t local_ms); /* P4 */
int64_t kl__pump_keep_ms(const kl__pump *pump, kl_outcome outcome, int64_t asked_ms);

/* --- partitions.c: which partitions there are, and which shards of them are owned --- */

kl_rc kl__partitions_sync(kl__pump *pump); /* as the descriptor says */
kl_rc kl__partitions_beat(kl__pump *pump);
kl_rc kl__partitions_fenced(const kl__pump *pump);     /* or why shards that are owned cannot be used */
int64_t kl__partitions_lease_ms(const kl__pump *pump); /* the shortest that was told, or is to be */
kl_rc kl__partitions_watch(kl__pump *pump);            /* asks for a beat when others came, went, took or gave back */
uint64_t kl__partitions_permits(const kl__pump *pump); /* of the queue's concurrency, as of now */
bool kl__partitions_starve(const kl__pump *pump); /* it wants more permits than it has, and the others do not know */
void kl__partitions_close(kl__pump *pump);

/* Nothing of it can be run: its store, which is not the queue's own, does not answer. Nor can partitions that were
 * never opened for this reason (pump->away). */
bool kl__partition_is_away(const kl__partition *partition);

/* --- sweep.c: tasks that are ended without being run --- */

/* Which tasks of a shard are meant: those of a key, of a job, or all. */
typedef struct kl__sweep_of {
    uint64_t key_hash;     /* 0: of every key */
    const kl__held *head;  /* or NULL; behind it the key is drained, and it is ended last */
    const kl_task_id *job; /* or NULL; nothing is kept of its tasks */
} kl__sweep_of;

/* Ends all these tasks that wait and are not running, those not in memory included, in the order of their lines.
 * *ret_count: how many, but for the head. */
kl_rc kl__window_sweep(kl__window *window, kl__sweep_of of, kl_outcome outcome, const char *error, uint64_t *ret_count);

/* How long a waiting task is to be kept by its own word, or its job's; 0: it does not say. */
int64_t kl__task_asked_keep_ms(const kl_task *task, kl_arena *arena);

/* First tasks whose queue's policy is to drain: the rest of their lines follow them. */
kl_rc kl__pump_drain_keys(kl__pump *pump);

/* --- older.c: what older layouts still hold --- */

bool kl__older_undrained(const kl__descriptor *descriptor);
kl_rc kl__older_layouts(kl__pump *pump); /* seals them, moves what is not due, says when they are drained */

/* Whether tasks of the due line are run and ended here, and not moved. */
bool kl__window_keeps_due(const kl__window *window);

/* Before anything that waits in the store is ended or tried: where the due line is not kept, it is moved first. The
 * caller has pinned the window. False: not now, because it cannot be told whether some of it is elsewhere too. */
bool kl__window_clear_due(kl__window *window);

/* Times: the store's clock as the worker knows it. */
int64_t kl__pump_now(kl__pump *pump);

/* beat.c: whether records of the store may have changed since the reader asked last; then it is to read them. What it
 * could not read it must read again: it sets itself to zero. */
bool kl__pump_has_news(kl__pump *pump, const kl_store *store, kl__reader *reader);

/* How many workers share the queue, if all own as much of it as this one. */
static inline uint64_t kl__pump_sharers(const kl__pump *pump)
{
    return pump->shard_count ? pump->all_shards / pump->shard_count : 1;
}

/* Whether each call of the store is a journey. */
static inline bool kl__store_is_far(kl_store *store)
{
    uint32_t can = kl_store_info_of(store).can;
    return (can & KL_STORE_SHARED) && !(can & KL_STORE_ASYNC);
}

/* Leaves and enters the worker's mutex around a store call. */
static inline void kl__pump_leave(kl__pump *pump)
{
    if (pump->opts.leave)
        pump->opts.leave(pump->opts.mutex_ctx);
}

static inline void kl__pump_enter(kl__pump *pump)
{
    if (pump->opts.enter)
        pump->opts.enter(pump->opts.mutex_ctx);
}

/* Lanes know a key by its hash, which must outlive the use of this; 0: no key. */
static inline kl__lane_key kl__lane_key_of(const uint64_t *key_hash)
{
    return (kl__lane_key){{key_hash, *key_hash ? sizeof *key_hash : 0}, (uint32_t)*key_hash};
}

/* The clock that runs evenly, for pumps in the real world. */
static inline int64_t kl__local_ms(void *ctx)
{
    (void)ctx;
    return kl__monotonic_ns() / 1000000;
}

static inline kl__held *kl__held_of(kl__lane_task *task) { return KL_CONTAINER(task, kl__held, lane); }

#endif
