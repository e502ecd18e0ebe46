/* disk.h - the disk engine: one machine's directory. docs/stores/disk.md describes it, format.h its files.
 *
 *      append.c  settle.c  values.c            tasks.c  disk.c (scan, counts, wait)
 *            │ decide, encode                        ▲ read
 *            ▼                                       │
 *        journal.c ── durable ──► state.c  ──────────┤
 *            │                       ▲  │            │
 *        segments.c ◄── compact.c ───┘  └► keep.c ─► history.c
 *
 * Mutexes, in the order in which they may be taken: the journal's lead, the state's, the segments'. */
#ifndef KL_STORE_DISK_H
#define KL_STORE_DISK_H

#include "base/base.h"
#include "keyline/store.h"
#include "store/disk/blocks.h"
#include "store/disk/history.h"
#include "store/disk/journal.h"
#include "store/disk/reach.h"
#include "store/disk/recover.h"
#include "store/disk/segments.h"
#include "store/disk/state.h"

enum { KL_CLAIM_WORDS = 4, KL_FLIGHTS = 256, KL_GATES = 16, KL_KEEP_ERROR_BYTES = 256 };

/* A group is written whole or not at all, so what a full disk accepts (G3 of segments.h) is refused with tasks that
 * stand in its group and do not fit. It is tried again: with the second group from then on no tasks are accepted any
 * more. */
enum { KL_FULL_TRIES = 2 };

/* Things that calls under way are about to change, as a set of hashes: 256 bits. Two things may share a bit; then one
 * waits for the other without need. */
typedef struct kl__claims {
    uint64_t bits[KL_CLAIM_WORDS];
} kl__claims;

typedef struct kl__flight kl__flight; /* append.c */

/* How many appends stand between their look at the seals and their place in the journal; a cache line each. */
typedef struct kl__gate {
    alignas(KL_CACHE_LINE) _Atomic(uint32_t) inside;
} kl__gate;

typedef struct kl__disk {
    kl__vfs *vfs;
    char path[KL_PATH_BYTES]; /* of the directory, from the root (kl__disk_path) */
    kl__file *lock;
    kl__state state;
    kl__segments segments;
    kl__journal *journal;
    kl__history *history;
    kl__blocks *blocks;

    kl_now_ms_fn *now_ms;
    void *now_ctx;
    _Atomic(int64_t) clock_ms; /* what it showed last: it never steps back */

    kl__claims claimed_values; /* with the state's mutex, like the next two: records */
    kl__claims claimed_fences;
    kl__flight *flights[KL_FLIGHTS]; /* appends with a token that are under way */
    pthread_cond_t unclaimed;        /* one of the three has changed, or `sealing` */
    kl__gate gates[KL_GATES];        /* of the threads, in turn */
    _Atomic(uint32_t) sealing;       /* seals under way: no append passes a gate */
    pthread_mutex_t partition_mutex; /* one is made at a time */

    pthread_t upkeep;
    bool has_upkeep;
    kl__reach reached;      /* what the file of that name says; of upkeep, and of open and close */
    int64_t looked_ns;      /* when it was last seen that the directory is still there */
    uint64_t compacted;     /* the last segment whose live records were copied */
    uint64_t copied;        /* bytes, since something was gained by it, less what callers wrote */
    uint64_t rolled;        /* their segments by then */
    uint64_t copied_live;   /* what was live then, */
    uint64_t copied_needed; /* and the bytes of full segments */
    int64_t failed_ns;      /* when it last failed; 0: it never did */
    bool is_patient;        /* the first segment is to be copied, but not yet: */
    uint64_t watched;       /* its number, */
    uint64_t watched_live;  /* what was live in it when it was last looked at, */
    int64_t watched_ns;     /* since when it is to be copied, */
    int64_t quiet_ns;       /* and since when that has not changed */

    pthread_t keeper;
    bool has_keeper;
    bool keeper_stops; /* with the state's mutex, like the next two */
    kl_rc keeper_rc;   /* how the last try ended */
    char keeper_error[KL_KEEP_ERROR_BYTES];
    _Atomic(bool) keeper_trims; /* more has expired than is forgotten at once */
    int64_t history_ms_max;
    bool history_had_log; /* of SQLite's, when the store was opened; one that is refused leaves it as it is */
} kl__disk;

/* Opens a store in the directory `path` of another file system than the machine's, for tests. */
kl_rc kl__disk_open_on(kl__vfs *vfs, const char *path, const kl_store_opts *opts, kl_store **ret_store);

int64_t kl__disk_now(void *disk); /* a kl_now_ms_fn */

/* ---- Deciding (settle.c): with the state's mutex held ---- */

void kl__claim_add(kl__claims *claims, uint64_t hash);
bool kl__claims_meet(const kl__claims *a, const kl__claims *b);

/* Waits until none of `wanted` is claimed, and claims it. */
void kl__claim(kl__disk *disk, kl__claims *claimed, const kl__claims *wanted);
void kl__unclaim(kl__disk *disk, kl__claims *claimed, const kl__claims *wanted); /* takes the mutex itself */

/* ---- Seals (append.c) ----
 *
 * Lets no append take a place in the journal from now on, and waits until those that have looked at the seals have
 * theirs: what is written next stands behind them. Open lets them go on, to look again; the caller then wakes those
 * that wait for `unclaimed`. */
void kl__gates_shut(kl__disk *disk);
void kl__gates_open(kl__disk *disk);

/* ---- Upkeep (compact.c) and history (keep.c) ---- */

kl_rc kl__upkeep_start(kl__disk *disk);
void kl__upkeep_stop(kl__disk *disk);

/* Writes down how far the journal has come, when a segment has come into use since; always: when a frame has. And takes
 * the reserve again, where it was given. */
void kl__disk_note_reach(kl__disk *disk, bool always);
void kl__disk_take_reserve(kl__disk *disk, bool is_closed);

kl_rc kl__keeper_start(kl__disk *disk);
void kl__keeper_stop(kl__disk *disk); /* when everything is taken over, or cannot be */

/* Lets the journal know how many transactions history has made, when it does not: before what history has taken over is
 * dropped, and after something was forgotten. A history.db that has lost some is then noticed. Always: also
 * when it does know. And which segment is the first that is needed: one that is gone without that is noticed, too. */
kl_rc kl__keeper_note(kl__disk *disk, bool always);

/* With the state's mutex held: waits while history is far behind, so that what it has yet to take over stays bounded.
 * KL_EFULL: it cannot be written. */
kl_rc kl__keeper_make_room(kl__disk *disk);

/* Until history shows everything that was settled before the call, and nothing that has expired. KL_ESYSTEM, KL_EFULL:
 * it cannot be written; the sentence says why. */
kl_rc kl__keeper_catch_up(kl__disk *disk);

/* The same, for who can do without: true when history cannot be written, another program has it just now, or it has much
 * to forget. */
bool kl__keeper_is_behind(kl__disk *disk);

/* ---- The calls of the engine ---- */

kl_rc kl__disk_append(void *self, const kl_append *append);
kl_rc kl__disk_settle(void *self, kl_settle *batches, size_t count);
kl_rc kl__disk_fence(void *self, kl_fence *fences, size_t count);
kl_rc kl__disk_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                    size_t *ret_count);
kl_rc kl__disk_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                       kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__disk_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__disk_forget(void *self, kl_place place, const kl_task_id *ids, size_t count);
kl_rc kl__disk_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records);
kl_rc kl__disk_put(void *self, kl_write *writes, size_t count);
kl_rc kl__disk_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                    size_t *ret_count);

/* A task's record read back from the journal, checked, in the arena. The segment has a reader or a pin. KL_EDAMAGED: it
 * is not what was written, and the segment is marked so. */
kl_rc kl__disk_read_record(kl__disk *disk, kl__segment *segment, uint64_t offset, uint32_t bytes, kl_arena *arena,
                           const kl__record_header **ret_record);
void kl__entry_decode(const kl__entry_record *record, kl_entry *ret_entry);

#endif
