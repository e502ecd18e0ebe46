/* task.h - the task: what it is, where it stands, and how it can end.
 *
 *        append                             settle
 *      ---------> waiting -------------------------------> done | dead | cancelled
 *                   |  ^                                     kept for a while, or not at all
 *                   +--+ retry: waits again, in the retry line
 *
 * In a store, a waiting task stands in exactly one of its shard's lines:
 *
 *      ready line p   never tried, no due time; one line for each priority p; in order of position
 *      due line       never tried, has a due time; in order of (due time, position)
 *      retry line     tried and not finished; in order of position
 *
 * A worker that takes a shard over reads the retry line first, because those tasks hold their keys; then the ready
 * lines from the lowest priority value up, and of the due line only what is due soon. */
#ifndef KEYLINE_TASK_H
#define KEYLINE_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/id.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How long something may take or wait. 0 in an options struct means the default, so "not at all" has a value of its
 * own. */
#define KL_NO_WAIT (-1)
#define KL_FOREVER INT64_MAX

/* Priorities work like nice values: lower runs first, 0 is normal. Between keys of one shard they are strict: while a
 * key with a lower value is ready, keys with higher ones wait. */
#define KL_PRIORITY_MIN (-16)
#define KL_PRIORITY_MAX 15

/* How a run of a task ends. */
typedef enum kl_outcome {
    KL_DONE,
    KL_RETRY,     /* run me again later; as often as attempts and deadline allow */
    KL_DEAD,      /* failed for good: do not retry */
    KL_CANCELLED, /* not for tasks to return: it is taken as KL_DEAD */
} kl_outcome;

/* Limits of every store. */
#define KL_PARTITION_BYTES_MAX 128
#define KL_KIND_BYTES_MAX      255
#define KL_HEADERS_BYTES_MAX   65535
#define KL_PAYLOAD_BYTES_MAX   (1u << 20)
#define KL_ERROR_BYTES_MAX     4096
#define KL_RESULT_BYTES_MAX    (1u << 20)
#define KL_ATTEMPTS_MAX        65535

/* Where a task goes: a partition's number in its store (kl_store_partition), and one of its shards. */
typedef struct kl_place {
    uint32_t partition;
    uint32_t shard;
} kl_place;

/* What a producer hands over. The id is the caller's, and begins with the shard's digits (docs/routing.md). It is never
 * used for another task of the partition, not even after this one is finished. Headers and payload are opaque to
 * stores. */
typedef struct kl_entry {
    kl_place place;
    kl_task_id id;
    kl_task_id job;   /* all zero: none */
    int64_t due_ms;   /* 0: at once; else not before this time of the store's clock, up to KL_ID_MS_MAX */
    int32_t priority; /* KL_PRIORITY_MIN..KL_PRIORITY_MAX */
    uint16_t group;   /* whom it is for, as 16 bits of a hash; 0: nobody in particular */
    kl_bytes key;     /* empty: no order asked */
    kl_bytes kind;
    kl_bytes headers;
    kl_bytes payload;
} kl_entry;

/* A task that is known by its id. Where its position is known too, an engine may find it sooner. */
typedef struct kl_ref {
    kl_place place;
    kl_task_id id;
    uint64_t position; /* as scanned; 0: not known */
    bool owned; /* the caller owns its shard, and a scan of this handle showed it: it may be read as it was then */
} kl_ref;

/* The lines of a shard: ready line p is numbered p, and these two follow. */
enum { KL_LINE_DUE = KL_PRIORITY_MAX + 1, KL_LINE_RETRY };

/* What a scan shows of a waiting task: enough to put it in line, not its payload. */
typedef struct kl_stub {
    kl_task_id id;
    uint64_t position; /* not 0; unique in the shard, ascending in the order of appends */
    uint64_t key_hash; /* XXH64 of the key with the lane's seed (docs/routing.md), 0 taken as 1; 0: no key, or not
                        * known (KL_STORE_KEY_HASH) */
    int64_t due_ms;    /* due line: when it is due; retry line: not before; else 0 */
    uint32_t bytes;    /* of its key, kind, headers and payload */
    uint16_t attempts; /* made so far */
    uint16_t group;    /* the entry's; 0: nobody in particular, or not known (KL_STORE_GROUP) */
    int8_t priority;
} kl_stub;

/* One task's part in a settle. */
typedef struct kl_settled {
    kl_task_id id;
    uint64_t position; /* as scanned */
    kl_outcome outcome;
    uint32_t attempts; /* made so far, this one included, up to KL_ATTEMPTS_MAX: it is set, not added */
    int64_t due_ms;    /* RETRY: not before, 0: at once */
    int64_t keep_ms;   /* how long to keep the finished task with its outcome, or (RETRY) this attempt's error; 0: not
                        * at all */
    kl_bytes error;    /* what went wrong, for people; empty: nothing. Not stored unless keep_ms is set. */
    kl_bytes result;   /* what the run returned; likewise */
} kl_settled;

typedef enum kl_task_state {
    KL_TASK_UNKNOWN, /* never appended, or finished and no longer kept */
    KL_TASK_WAITING, /* in a line, or running: stores do not know which */
    KL_TASK_DONE,
    KL_TASK_DEAD, /* a dead letter */
    KL_TASK_CANCELLED,
} kl_task_state;

/* Everything a store knows of one task. Bytes lie in the arena of the call that read it. */
typedef struct kl_task {
    kl_entry entry;
    kl_task_state state;
    uint32_t attempts;
    uint64_t position;     /* WAITING; else the store's own, by which kl_find.after finds its place again */
    int64_t not_before_ms; /* WAITING: entry.due_ms, or what the last retry said */
    int64_t finished_ms;   /* otherwise: when it was settled, on the store's clock */
    kl_bytes error;        /* of the last attempt that left one and was kept; a WAITING task's is not given */
    kl_bytes result;
} kl_task;

#ifdef __cplusplus
}
#endif
#endif
