/* memory.h - the data of the memory engine: what every store keeps, in its plainest form.
 *
 *     memory -> partitions by name and number -> shards -> lines of waiting tasks
 *        |                                         |-----> finished tasks by id, and by job
 *        |-> finished tasks, the latest first; by when they expire
 *        |-> records by name; by when they expire
 *        |-> tokens by value; by age
 *
 * This is the model that other engines are measured by, so it takes the plainest way: one mutex around every call, one
 * allocation per task, an ordered tree for every order that is asked for.
 *
 * M1  A waiting task stands in one line of its shard and in one of its `waiting` trees, under the same id only once.
 * M2  A finished task stands in its shard's `finished`, in the store's `finished` and `expiring`, and, if it has a job,
 *     in its shard's `by_job`.
 * M3  Behind kl__memory_enter nothing that has expired is there any more: what is there, counts.
 * M4  A call allocates all it needs before it changes anything. */
#ifndef KL_STORE_MEMORY_H
#define KL_STORE_MEMORY_H

#include <pthread.h>

#include "base/base.h"
#include "base/compare.h"
#include "base/tree.h"
#include "keyline/store.h"
#include "store/engines.h"

enum {
    KL_MEMORY_LINES = KL_LINE_RETRY - KL_PRIORITY_MIN + 1,
    KL_MEMORY_TOKEN_MS = 10 * 60000,
};

/* What an attempt left to be kept: an error, or the last one's error and result. */
typedef struct kl__memory_left {
    struct kl__memory_left *next; /* of the attempt before; or the next that a settle has allocated */
    uint32_t attempts;
    int64_t expires_ms;     /* heeded while the task waits */
    kl_bytes error, result; /* in `bytes` */
    char bytes[];
} kl__memory_left;

/* The first two sorts wait. READY are those of the ready lines, apart because the oldest of them is asked for. */
enum { KL_MEMORY_READY, KL_MEMORY_LATER, KL_MEMORY_WAITING };

typedef struct kl__memory_shard {
    kl_place place;
    uint64_t epoch;
    bool sealed;
    kl__tree_node *lines[KL_MEMORY_LINES];     /* by (order_ms, position) */
    kl__tree_node *waiting[KL_MEMORY_WAITING]; /* by id */
    kl__tree_node *finished;                   /* by id */
    kl__tree_node *by_job;                     /* finished ones that have a job, by (job, id) */
    uint64_t ready, due, retry;
} kl__memory_shard;

typedef struct kl__memory_task {
    kl__tree_node by_id;
    kl__tree_node in_order;       /* of its line; of the store's finished tasks */
    kl__tree_node by_job;         /* finished */
    kl__tree_node by_expiry;      /* finished */
    struct kl__memory_task *next; /* while an append puts its tasks together */
    kl__memory_shard *shard;
    kl_entry entry; /* its bytes are in `bytes` */
    kl_task_state state;
    uint32_t attempts;
    kl__memory_left *left; /* the newest first */

    /* waiting */
    int32_t line;
    uint64_t position;
    uint64_t key_hash;
    int64_t order_ms; /* due line: when it is due; else 0 */
    int64_t not_before_ms;

    /* finished */
    int64_t finished_ms, expires_ms;
    kl_bytes result;

    char bytes[];
} kl__memory_task;

typedef struct kl__memory_partition {
    kl__tree_node by_name;
    uint32_t number;
    uint32_t shard_prefix_len;
    uint64_t appended; /* entries, ever */
    uint64_t done, dead, cancelled;
    kl__memory_shard **shards; /* NULL: nothing was ever there */
    char name[KL_PARTITION_BYTES_MAX + 1];
} kl__memory_partition;

typedef struct kl__memory_record {
    kl__tree_node by_name, by_expiry;
    struct kl__memory_record *next; /* while a put has only allocated it */
    uint64_t version;
    int64_t expires_ms;
    kl_bytes name, value; /* in `bytes` */
    char bytes[];
} kl__memory_record;

typedef struct kl__memory_token {
    kl__tree_node by_value;
    struct kl__memory_token *next; /* the next younger one */
    int64_t since_ms;
    kl_token token;
} kl__memory_token;

typedef struct kl__memory {
    pthread_mutex_t mutex;
    pthread_cond_t appended; /* something was, anywhere */
    kl_store_opts opts;
    int64_t now_ms; /* the latest that the clock has shown, up to KL_ID_MS_MAX, so that sums of times do not overflow */

    kl__tree_node *partitions; /* by name */
    kl__memory_partition **by_number;
    uint32_t partition_count, partition_room;
    uint64_t position; /* of the last append, in any shard */

    kl__tree_node *tokens;
    kl__memory_token *oldest_token, *newest_token;
    uint32_t token_count;

    kl__tree_node *finished; /* the latest first */
    kl__tree_node *expiring; /* finished tasks */
    uint64_t finished_count;

    kl__tree_node *records, *expiring_records;
    uint64_t version; /* of the last write of any record: none is used again */
} kl__memory;

/* --- Trees: tree.h, and looking things up --- */

/* The first node that is not less than the probe; the first that is greater. A probe need not be in the tree. */
kl__tree_node *kl__memory_from(kl__tree_node *root, const kl__tree_node *probe, kl__tree_less *less);
kl__tree_node *kl__memory_after(kl__tree_node *root, const kl__tree_node *probe, kl__tree_less *less);

/* The node that equals the probe, or NULL. */
kl__tree_node *kl__memory_find_node(kl__tree_node *root, const kl__tree_node *probe, kl__tree_less *less);

/* --- memory.c --- */

/* Takes the mutex, looks at the clock, drops what has expired (M3), and returns the time. */
int64_t kl__memory_enter(kl__memory *memory);
void kl__memory_leave(kl__memory *memory);

static inline kl__memory_partition *kl__memory_partition_of(kl__memory *memory, uint32_t number)
{
    KL_ASSERT(number >= 1 && number <= memory->partition_count);
    return memory->by_number[number - 1];
}

/* NULL: nothing was ever there. */
static inline kl__memory_shard *kl__memory_shard_of(kl__memory *memory, kl_place place)
{
    return kl__memory_partition_of(memory, place.partition)->shards[place.shard];
}

/* Makes the shard if there is none: that shows nowhere. NULL: out of memory. */
kl__memory_shard *kl__memory_shard_make(kl__memory *memory, kl_place place);

/* --- tasks.c: what waits --- */

void kl__memory_task_free(kl__memory_task *task);
kl__memory_task *kl__memory_waiting(kl__memory_shard *shard, const kl_task_id *id);
void kl__memory_take_out(kl__memory_task *task); /* out of its line */
void kl__memory_put_in_line(kl__memory_task *task, int32_t line);
size_t kl__memory_task_bytes(const kl_entry *entry);
kl__memory_task *kl__memory_task_make(kl__memory_shard *shard, const kl_entry *entry); /* in no line; NULL: no memory */
kl_bytes kl__memory_copy_to(char **to, kl_bytes bytes);                                /* and steps behind the copy */
void kl__memory_tokens_drop(kl__memory *memory, int64_t now_ms); /* those that need not be remembered */

kl_rc kl__memory_append(void *self, const kl_append *append);
kl_rc kl__memory_scan(void *self, kl_scan *scans, size_t count);
kl_rc kl__memory_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts);
kl_rc kl__memory_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen);

/* --- settle.c: how tasks end --- */

kl_rc kl__memory_settle(void *self, kl_settle *batches, size_t count);
kl_rc kl__memory_fence(void *self, kl_fence *fences, size_t count);

/* --- finished.c: what is kept --- */

/* The task, which is in no tree, is finished from now on; an earlier one of its id is replaced. */
void kl__memory_keep(kl__memory *memory, kl__memory_task *task);
void kl__memory_drop(kl__memory *memory, kl__memory_task *task);                                    /* a finished one */
void kl__memory_count_job(const kl__memory_shard *shard, const kl_task_id *job, kl_counts *counts); /* adds to it */
void kl__memory_finished_drop(kl__memory *memory, int64_t now_ms); /* what has expired, or is one too many */

kl_rc kl__memory_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                      size_t *ret_count);
kl_rc kl__memory_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                         kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__memory_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__memory_forget(void *self, kl_place place, const kl_task_id *ids, size_t count);

/* --- records.c --- */

void kl__memory_record_drop(kl__memory *memory, kl__memory_record *record);
void kl__memory_records_drop(kl__memory *memory, int64_t now_ms); /* what has expired */

kl_rc kl__memory_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records);
kl_rc kl__memory_put(void *self, kl_write *writes, size_t count);
kl_rc kl__memory_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                      size_t *ret_count);

#endif
