/* journal.h - makes records durable, many calls at a time.
 *
 * From: disk.c and compact.c.  To: segments.c (files), state.c (what it adds up to).
 *
 *      reserve ──► write the records into the group's buffer ──► publish ──► wait
 *                                                                             │ the last of those who come leads:
 *                            frame header, write, fdatasync, apply to the state, wake the others
 *
 * Two groups take turns: while one is written and synced, the other collects the calls that arrive. A call's place in
 * its group is one compare-and-swap, its records are written and checksummed by the caller itself, and nobody holds a
 * mutex for it: appends do not queue up behind one another.
 *
 * J1  A call returns KL_OK only after its frame was synced and applied.
 * J2  Frames are written one at a time: the next only after the last was synced.
 * J3  Sequence numbers ascend in the order of places, from group to group.
 * J4  After a write or sync has failed (but for want of room) nothing more is written: the store is broken until it is
 *     opened again. A failed sync is never repeated, for the kernel may have thrown the data away and report success.
 *     */
#ifndef KL_STORE_JOURNAL_H
#define KL_STORE_JOURNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "keyline/store.h"
#include "store/disk/put.h"
#include "store/disk/segments.h"
#include "store/disk/state.h"

enum { KL_GROUP_CALLS_MAX = 4096, KL_CALL_ERROR_BYTES = 256 };
#define KL_GROUP_BYTES ((size_t)16 << 20)

/* The largest call: KL_BATCH_MAX tasks, with all that may stand in their records beside KL_BATCH_BYTES_MAX. */
_Static_assert(KL_FRAME_HEADER + KL_BATCH_BYTES_MAX + (size_t)KL_BATCH_MAX * (sizeof(kl__entry_record) + 8 + 16 + 8) <
                   KL_GROUP_BYTES,
               "it fits into a group");

typedef struct kl__journal kl__journal;
typedef struct kl__group kl__group;

/* A call on its way. Kept by the caller until it has been told, on its stack or, when asynchronous, on the heap. */
typedef struct kl__commit {
    char *bytes;       /* where its records go; a multiple of 8 */
    uint64_t sequence; /* of its first record */
    kl__group *group;
    uint32_t generation;
    kl_rc rc;
    char error[KL_CALL_ERROR_BYTES];
    kl_appended_fn *done; /* NULL: somebody waits */
    void *ctx;
    struct kl__commit *next; /* ended, and its `done` is to be called */
} kl__commit;

/* The state, the segments, and where to go on, are as recover.c found them. */
kl_rc kl__journal_open(kl__state *state, kl__segments *segments, kl_now_ms_fn *now_ms, void *now_ctx,
                       uint64_t last_frame, uint64_t last_sequence, kl__journal **ret_journal);

/* Ends what is under way and notes that the end was orderly. NULL is fine. */
void kl__journal_close(kl__journal *journal);

/* A place for `bytes` (a multiple of 8) of `records` records. KL_ESYSTEM: broken. Whoever has a place must publish it
 * without waiting for anything. */
kl_rc kl__journal_reserve(kl__journal *journal, size_t bytes, size_t records, kl__commit *call);

/* The same without waiting, so that a mutex may be held. KL_EBUSY: there is no room just now; let go of the mutex, make
 * room, and try again. For an append, also KL_EFULL: the disk is full. */
kl_rc kl__journal_try_reserve(kl__journal *journal, size_t bytes, size_t records, kl__commit *call);
kl_rc kl__journal_try_append(kl__journal *journal, size_t bytes, size_t records, kl__commit *call);
void kl__journal_make_room(kl__journal *journal);

/* The records are written; `sum` is that of their CRCs. */
void kl__journal_publish(kl__journal *journal, kl__commit *call, uint64_t sum);

/* Until the call is durable and applied, or has failed. Not for calls with a `done`. */
kl_rc kl__journal_wait(kl__journal *journal, kl__commit *call);

/* Calls fill while nothing else is on its way, that is, with everything that has a lower sequence number applied; what
 * fill writes is durable and applied on return, and stands before everything else that is written later. `bytes` is the
 * most it will write. Fill returns how many records it wrote. */
typedef size_t kl__fill_fn(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum);
kl_rc kl__journal_exclusive(kl__journal *journal, kl__fill_fn *fill, void *ctx);

/* Nothing more is written from now on, for this reason (J4). */
void kl__journal_break(kl__journal *journal, const char *why);

/* KL_ESYSTEM: broken (J4). */
kl_rc kl__journal_check(const kl__journal *journal);

#endif
