/* state.h - what the journal adds up to: waiting tasks in their lines, fences, records, tokens; and what is still
 * needed of each segment.
 *
 * From: journal.c, one record after another once they are durable; recover.c, the same records read again.
 * To:   disk.c (scan, counts, get, list), compact.c (what is live), keep.c (what is to be kept).
 *
 * Records are facts: whatever could be refused was refused before it was written (disk.c). So they can be applied again
 * from any segment on, whatever stood before it.
 *
 * T1  A waiting task is in the table of ids, in exactly one line of its shard, and its record's bytes count as live in
 *     the segment that its slot names.
 * T2  So do the latest TOKEN and WRITE of each token and record.
 * T3  A task that is settled and to be kept counts as live, and pins the segment of its SETTLE, until history has it.
 *     A retry whose error is to be kept pins the segments of its SETTLE and of its task.
 * T4  live == 0 and pins == 0: nothing in the segment is needed.
 *
 * Everything here is called with `mutex` held, except open and close. */
#ifndef KL_STORE_STATE_H
#define KL_STORE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "keyline/store.h"
#include "store/disk/format.h"
#include "store/disk/line.h"
#include "store/disk/recent.h"
#include "store/disk/records.h"
#include "store/disk/stubs.h"
#include "store/disk/tokens.h"
#include "store/disk/vfs.h"

enum { KL_PART_BYTES = 64 << 10 };
enum { KL_STATE_LINES = KL_LINE_RETRY - KL_PRIORITY_MIN + 1, KL_DISK_PARTITIONS_MAX = 4096 };

typedef struct kl__segment {
    uint64_t number;
    kl__file *file;
    uint64_t bytes;        /* of the file */
    _Atomic(uint64_t) end; /* behind its last frame; readers of blocks look at it without a mutex */
    uint64_t live;         /* bytes of records that are needed, */
    uint32_t *part_live;   /* and of those, tokens apart, that begin in each KL_PART_BYTES of the file */
    uint64_t pins;         /* settled tasks in it that history has yet to take over */
    uint32_t readers;
    bool is_damaged; /* something in it cannot be read: when nothing in it is needed, the file is kept aside */
} kl__segment;

typedef struct kl__shard_state {
    kl__line *lines[KL_STATE_LINES]; /* NULL: never used */
    uint64_t epoch;
} kl__shard_state;

typedef struct kl__partition_state {
    char name[KL_PARTITION_BYTES_MAX + 1];
    uint32_t number, shard_prefix_len;
    uint64_t appended;        /* tasks ever, for wait */
    _Atomic(uint64_t) *seals; /* a bit for each shard that takes no more appends; read without the mutex */
    kl__shard_state **shards; /* 16 ^ shard_prefix_len; NULL: never used */
} kl__partition_state;

/* A settled task that history has yet to take over. */
typedef struct kl__kept {
    uint64_t sequence; /* of its SETTLE */
    kl__where settle;
    kl__where entry;
    uint32_t settle_bytes; /* of the whole records */
    uint32_t entry_bytes;  /* 0: a retry, of which only the error is kept */
    uint32_t item;         /* where in the SETTLE it stands */
    int64_t now_ms;        /* when it was settled */
} kl__kept;

typedef struct kl__state {
    pthread_mutex_t mutex;
    kl__stubs *stubs;
    kl__partition_state *partitions[KL_DISK_PARTITIONS_MAX + 1]; /* by number; [0] is NULL */
    uint32_t partition_count;
    uint32_t fenced;          /* shards that have an epoch or a seal */
    _Atomic(uint32_t) sealed; /* those that have a seal */
    kl__records records;
    kl__tokens *tokens;
    kl__recent *recent;

    kl__segment **segments; /* by number, without gaps: segments[i] is number first_segment + i */
    size_t segment_count, segment_capacity;
    uint64_t first_segment;
    uint64_t described; /* the last with records that were applied: behind its first frame, which names partitions */

    kl__kept *kept; /* a ring, in order of sequence */
    size_t kept_first, kept_count, kept_capacity;
    uint64_t kept_sequence;            /* history has taken over everything up to here */
    _Atomic(uint64_t) history_commits; /* transactions that history has made */
    uint64_t history_needed;           /* those by which it took over what the journal may drop now */
    uint64_t history_noted;            /* those that the journal knows of */
    uint64_t first_noted; /* the first segment that is needed, as far as the journal knows; 0: it does not */

    uint64_t live;         /* bytes of all segments together */
    uint64_t closed_bytes; /* of the files of all segments but the last, which is being written */

    uint32_t waiters; /* threads that wait for something to be appended */
    pthread_cond_t appended;
    pthread_cond_t kept_changed; /* something is to be kept, or was taken over, or could not be */
} kl__state;

kl_rc kl__state_open(kl__state *state); /* KL_ENOMEM */
void kl__state_close(kl__state *state); /* also what is half open; does not close segments' files */

/* Could this record have been written to this journal? KL_EINVAL: it names a partition or shard that there is not. */
kl_rc kl__state_check(const kl__state *state, const kl__record_header *record);

/* Applies a record that is durable. KL_ENOMEM: memory and journal are at odds now, and the store must stop. */
kl_rc kl__state_apply(kl__state *state, const kl__record_header *record, kl__where where, int64_t now_ms);

/* Applies those of a frame, of which the first stands at `where`. In doubt: each is checked first. */
kl_rc kl__state_apply_all(kl__state *state, const kl__record_header *record, size_t records, kl__where where,
                          int64_t now_ms, bool is_in_doubt);

/* Tells the processor to fetch what applying the record will touch; and, when that has come, its task's slot. */
void kl__state_prefetch(const kl__state *state, const kl__record_header *record);
void kl__state_prefetch_slot(const kl__state *state, const kl__record_header *record);

/* Is this record, at this place, the one that is needed? An entry that is settled and waits for history is not. */
bool kl__state_is_live(kl__state *state, const kl__record_header *record, kl__where where, int64_t now_ms);

/* Makes a copy of a live record that says all that is known by now. Takes up to record->bytes + KL_MOVED_MORE bytes of
 * `out`, without CRC. */
enum { KL_MOVED_MORE = 16 };
void kl__state_copy(kl__state *state, const kl__record_header *record, kl__record_header *out);

/* Forgets up to `max` records that have expired. False: there are no more of them. */
bool kl__state_sweep(kl__state *state, int64_t now_ms, size_t max);

kl__partition_state *kl__state_partition(const kl__state *state, uint32_t number);
kl__shard_state *kl__state_shard(const kl__state *state, kl_place place); /* NULL: nothing was ever put there */

/* Does the shard, which there is, take no more appends? Also without the mutex. */
static inline bool kl__partition_is_sealed(const kl__partition_state *partition, uint32_t shard)
{
    return atomic_load_explicit(&partition->seals[shard / 64], memory_order_acquire) >> shard % 64 & 1;
}

/* Has the shard an epoch or a seal, so that each segment must name it? */
bool kl__state_is_fenced(const kl__partition_state *partition, uint32_t shard);

/* Fills scan->stubs and scan->count. */
void kl__state_scan(kl__state *state, kl_scan *scan);

kl__segment *kl__state_segment(const kl__state *state, uint64_t number); /* NULL: there is none */

/* The next number, of so many bytes as it will have; false: out of memory. */
bool kl__state_add_segment(kl__state *state, kl__segment *segment);
kl__segment *kl__state_drop_segment(kl__state *state); /* the first */
void kl__segment_free(kl__segment *segment);           /* NULL is fine; its file is closed, or was never opened */

/* Is anything but tokens live that begins between these places of the segment? */
bool kl__segment_has_live(const kl__segment *segment, uint64_t from, uint64_t to);

/* How many segments, from the first on, are not needed, with a durable frame behind them that names partitions and
 * fences? May the first be dropped, now that the journal knows that, and what history has taken over? Is more of the
 * journal not needed than may be, `slack` bytes more (G2 of segments.h)? */
size_t kl__state_droppable(const kl__state *state);
bool kl__state_may_drop(const kl__state *state);
uint64_t kl__state_first_needed(const kl__state *state, uint64_t described); /* the first that cannot be; 0: none */
uint64_t kl__state_needed_bytes(const kl__state *state); /* of all segments but those that can be, and the last */
bool kl__state_must_compact(const kl__state *state, uint64_t slack);

/* The journal knows that by now. */
void kl__state_noted(kl__state *state, uint64_t history_commits, uint64_t first_needed);

/* History has taken over the first `count` kept tasks, which end with `sequence`. */
void kl__state_kept_done(kl__state *state, size_t count, uint64_t sequence);

/* Where a waiting task's record is. */
kl__where kl__slot_where(const kl__state *state, const kl__slot *slot);
uint32_t kl__slot_record_bytes(const kl__slot *slot);

#endif
