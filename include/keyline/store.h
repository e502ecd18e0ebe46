/* store.h - where tasks are kept: one narrow contract for every engine.
 *
 *     kl_store *store;
 *     uint32_t orders;
 *     if (kl_store_open("disk:./keyline-data", NULL, &store) != KL_OK ||
 *         kl_store_partition(store, "orders", 1, &orders) != KL_OK ||
 *         kl_store_append(store, entries, count, NULL) != KL_OK)
 *         fprintf(stderr, "%s\n", kl_error_text());
 *
 * Promises of every engine
 *   S1  What append returned KL_OK for is durable, and is shown by scan until it is settled.
 *   S2  Positions inside a shard ascend in the order of appends of one process, and of all processes where the engine
 *       can (KL_STORE_ORDERED); the calls of one thread keep their order, and so do the entries of one call. Scan shows
 *       a line in its order.
 *   S3  After a fence at epoch e returned KL_OK, no settle below e has any effect: its whole batch is refused.
 *   S4  A settle that returned KL_OK is durable: its tasks are never shown by scan again, or (retry) stand in the retry
 *       line.
 *   S5  Every call may be repeated after a lost reply. An append is recognised by its token, a settle and a fence by
 *       what they say, a record's write by its version and value; the repeat returns KL_OK and changes nothing. (Not so
 *       for items of one call that depend on one another, such as two writes of one name: put those into calls of their
 *       own.)
 *   S6  A call that failed has had no effect, or (classes RETRY and FATAL) its effect is unknown and repeating it is
 *       safe.
 *   S7  Times are judged on the store's clock (kl_store_now), which never steps back while the store is open; after a
 *       restart it begins no earlier than the last time that was written.
 *   S8  What a call that returned has changed, every later call shows. (But who reads tasks as their owner, by
 *       kl_ref.owned, asks for what his own scans and settles made of them; that another owner has settled one he
 *       learns when his own settle is refused.)
 *   S9  After a fence with `seal` returned KL_OK, no append stores anything in that shard: every later scan shows what
 *       is there, and no more will come. An append under way meanwhile was stored before the seal, or is refused.
 *
 * All calls are in batches and safe from any thread, except close. None is a cancellation point: a thread that is
 * cancelled (pthread_cancel) meanwhile ends at one of its own behind the call. Nothing is kept of the caller's memory
 * after a call returns. Answers lie in the caller's arrays and arena. The engines are described in docs/stores/. */
#ifndef KEYLINE_STORE_H
#define KEYLINE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/arena.h"
#include "keyline/bytes.h"
#include "keyline/error.h"
#include "keyline/id.h"
#include "keyline/log.h"
#include "keyline/task.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_store kl_store;

/* Errors of every call, beside those that it names: KL_EINVAL: an argument is not valid, and the sentence says which
 * and how it should be; nothing was done. KL_ENOMEM. KL_ESYSTEM: the disk or the server failed, and the sentence says
 * whether the store can still be used. KL_EFULL: a write found no room. KL_EBUSY: not just now; call again. Calls that
 * read may meet what is damaged: KL_EDAMAGED, which names it; other tasks can still be read. */

/* Limits of every call; more is KL_EINVAL. */
#define KL_BATCH_MAX        65536      /* entries, settled tasks, ids, stubs in one call */
#define KL_BATCH_BYTES_MAX  (8u << 20) /* keys, kinds, headers, payloads, errors, results; a put's names and values */
#define KL_RECORD_NAME_MAX  512        /* bytes of a record's name */
#define KL_RECORD_BYTES_MAX (256u << 10)
#define KL_EPOCH_MAX        (UINT64_MAX >> 1)
#define KL_ALL_SHARDS       UINT32_MAX

/* What an engine can do beyond the promises. */
enum {
    KL_STORE_DURABLE = 1 << 0,       /* survives the end of the process and loss of power */
    KL_STORE_ATOMIC_APPEND = 1 << 1, /* all of an append's entries, or none; else each entry on its own */
    KL_STORE_KEY_HASH = 1 << 2,      /* stubs carry key_hash */
    KL_STORE_WAIT = 1 << 3,          /* wait is told of new work; else it sleeps, and the caller polls */
    KL_STORE_ASYNC = 1 << 4,         /* append_async returns before the entries are durable; else after */
    KL_STORE_SHARED = 1 << 5,        /* several processes may open it at once; disk: through the one that holds it */
    KL_STORE_SEARCH = 1 << 6,        /* find uses indexes; else it reads through what is kept */
    KL_STORE_ORDERED = 1 << 7,       /* positions ascend in the order of appends of all processes together */
    KL_STORE_GROUP = 1 << 8,         /* stubs carry group */
    KL_STORE_SEAL = 1 << 9,          /* fence can seal a shard; else that is KL_EINVAL */
    KL_STORE_INBOX = 1 << 10,  /* tasks may be left in it by its own means, and are taken in; else none ever are */
    KL_STORE_BILLED = 1 << 11, /* each call costs money: a queue that is made there has a longer lease, unless told */
};

/* ---- Open and close ---- */

/* One call of the store, as it is traced. */
typedef struct kl_store_call {
    const char *name; /* "append", "settle", ... */
    kl_rc rc;
    uint64_t items; /* entries, settled tasks, stubs, ... */
    uint64_t bytes; /* of payloads and values */
    int64_t duration_ns;
} kl_store_call;

typedef void kl_trace_fn(void *ctx, const kl_store_call *call);

/* Zero in a field means its default; start from {.size = sizeof(kl_store_opts)}. */
typedef struct kl_store_opts {
    size_t size;
    kl_log_fn *log; /* what happens inside, from any thread; NULL: nobody is told */
    void *log_ctx;
    kl_trace_fn *trace; /* called after every call, on the caller's thread */
    void *trace_ctx;
    kl_now_ms_fn *now_ms; /* the store's clock where the engine has none of its own; the system's wall clock */
    void *now_ctx;
    int64_t segment_bytes;    /* disk: of a journal file: 64 MiB; 64 KiB to 1 GiB */
    int64_t history_rows_max; /* finished tasks that are kept: 10,000,000; the oldest go first */
    int64_t history_ms_max;   /* no finished task is kept longer: 366 days */
    bool no_socket; /* disk: for this process alone: do not listen, and do not connect to who has it open: KL_EBUSY */
    /* postgres, s3: one of several stores, and the others are not to wait for its server. When that is away, the store
     * is opened all the same, its calls fail with KL_EBUSY without trying for long, and the first that finds the server
     * opens it. A worker of queues in several stores makes them so, but for the opening. */
    bool hasty;
    bool no_make; /* disk: where there is no store, none is made: KL_ENOTFOUND */
} kl_store_opts;

/* Opens the store that the URL names:
 *
 *     memory:         in this process, gone when it is closed
 *     disk:PATH       a directory on this machine, made when it is not there; `disk:` alone is ./keyline-data
 *     postgres://...  a schema of a PostgreSQL database, as libpq understands the URL (docs/stores/postgres.md)
 *     s3://BUCKET/PREFIX?endpoint=...  a bucket, with no server of its own (docs/stores/s3.md)
 *
 * A disk store is held by the first process that opens it; others reach it through a socket in the directory, and when
 * the holder ends, one of them holds it from then on. Calls under way then are completed by the next holder, or fail
 * with KL_EBUSY: make them again.
 *
 * After fork the child has none of the store's threads: it must not use its copy of the handle, not even to close it.
 * Where the holder ends without closing the store, the child keeps the directory held until it ends or execs.
 *
 * KL_EINVAL: no such scheme (the sentence lists them), or an option out of range. KL_EBUSY: another process has it open
 * (the sentence names its pid) and does not listen. KL_ENOTFOUND: there is none, and none is to be made. KL_EDAMAGED:
 * it is damaged; `keyline doctor` explains. KL_ESYSTEM, KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_store_open(const char *url, const kl_store_opts *opts, kl_store **ret_store);

/* Ends the store. What was acknowledged is durable already. Appends under way are completed first; no other call may be
 * under way or follow. NULL is fine. */
KL_API void kl_store_close(kl_store *store);

typedef struct kl_store_info {
    const char *scheme;
    uint32_t can; /* KL_STORE_* */
} kl_store_info;

KL_API kl_store_info kl_store_info_of(const kl_store *store);

/* The store's clock: milliseconds since 1970, never stepping back. */
KL_API KL_MUST_USE kl_rc kl_store_now(kl_store *store, int64_t *ret_ms);

/* The number of the partition of this name, made when there is none. Numbers are small, count from 1, and stay the same
 * for the life of the store; each process asks for a partition once before it uses its number. KL_EINVAL: an empty or
 * too long name; or the partition exists with another shard_prefix_len, and the sentence names both. */
KL_API KL_MUST_USE kl_rc kl_store_partition(kl_store *store, const char *name, uint32_t shard_prefix_len,
                                            uint32_t *ret_partition);

/* ---- Tasks ---- */

/* Names an append so that its repeat is recognised: 16 random bytes, or a task's id. It is remembered for at least ten
 * minutes or the next 65,536 tokens, whichever ends first, across restarts where the engine is durable. */
typedef struct kl_token {
    uint8_t bytes[16];
} kl_token;

/* Called once when an asynchronous append has ended, on a thread of the store; when it ends at once, on the caller's;
 * and when it repeats an append that another thread waits for, on that one: so it takes no mutex that anybody holds
 * while he calls the store. It must be quick and must not wait for the store; kl_store_append_async is allowed. `error`
 * is the sentence, "" on KL_OK. */
typedef void kl_appended_fn(void *ctx, kl_rc rc, const char *error);

/* Appends entries of any partitions and shards; durable when it returns KL_OK. token NULL: a repeat is stored again
 * once the task is finished; while a task of the same partition and id waits, it is passed over, whatever it says.
 * KL_EINVAL: a limit, an unknown partition or shard, an id that does not begin with its shard: nothing was stored, and
 * the sentence names the entry. KL_ESEALED: an entry's shard is sealed (kl_fence), and nothing was stored; read the
 * queue's layout again and append where it says. (Without KL_STORE_ATOMIC_APPEND and with a token, other shards may
 * have their entries, from this try or an earlier one: append each shard's by themselves, with the same token, to
 * know.) A repeat whose token is known is KL_OK all the same. KL_EFULL: there is no room; what waits must be settled
 * first, or space made. KL_ESYSTEM: the disk failed. */
KL_API KL_MUST_USE kl_rc kl_store_append(kl_store *store, const kl_entry *entries, size_t count, const kl_token *token);

/* The same without waiting. KL_OK: `done` has been or will be called, exactly once; the entries were copied. Anything
 * else: refused, and `done` is not called. */
KL_API KL_MUST_USE kl_rc kl_store_append_async(kl_store *store, const kl_entry *entries, size_t count,
                                               const kl_token *token, kl_appended_fn *done, void *ctx);

/* Which part of a line to show, and the answer. */
typedef struct kl_scan {
    kl_place place;
    int32_t line;         /* a priority, KL_LINE_DUE or KL_LINE_RETRY */
    int64_t until_ms;     /* due line: nothing due later than this; else ignored */
    const kl_stub *after; /* go on behind this stub of the same line, which may be gone by now; NULL: from the first */
    kl_stub *stubs;       /* room for max; `after` may lie in it */
    size_t max;           /* 1..KL_BATCH_MAX */
    size_t count;         /* set by the call: how many there are; fewer than max only when the line ends */
} kl_scan;

/* Shows parts of several lines, of any partitions and shards: one round trip, where there is one. Tasks that are
 * appended while a line is read in pieces are shown by a later piece, or by the next reading from the first. */
KL_API KL_MUST_USE kl_rc kl_store_scan(kl_store *store, kl_scan *scans, size_t count);

/* Reads tasks of any partitions and shards in whatever state they are; ret_tasks[i].state is KL_TASK_UNKNOWN for those
 * that are not known. Stops early, and says so in *ret_count, when the arena would take more than KL_BATCH_BYTES_MAX;
 * at least one is read. KL_EDAMAGED: a task's bytes are damaged; the sentence names it, and *ret_count says how many
 * before it were read. KL_EFULL, KL_EBUSY: what is finished cannot be told just now, as history cannot be written;
 * nothing was read, and after any failure but KL_EDAMAGED *ret_count is as it was. */
KL_API KL_MUST_USE kl_rc kl_store_read(kl_store *store, const kl_ref *refs, size_t count, kl_arena *arena,
                                       kl_task *ret_tasks, size_t *ret_count);

/* What came of tasks of one shard. */
typedef struct kl_settle {
    kl_place place;
    uint64_t epoch;
    const kl_settled *tasks;
    size_t count;
    kl_rc rc; /* set by the call: KL_OK, or KL_ESTALE: fenced above this epoch, and nothing of this batch counts */
} kl_settle;

/* Settles one batch for each of several shards. Each batch is applied whole or not at all; its `rc` says which. Returns
 * KL_OK when every batch was, else the first rc that is not. Tasks that are not waiting are passed over. */
KL_API KL_MUST_USE kl_rc kl_store_settle(kl_store *store, kl_settle *batches, size_t count);

typedef struct kl_fence {
    kl_place place;
    uint64_t epoch; /* 1..KL_EPOCH_MAX; with seal also 0: leaves the epoch as it is */
    bool seal;      /* and from now on no append to this shard, whatever its epoch */
    kl_rc rc;       /* set by the call: KL_OK, or (without seal) KL_ESTALE: it is fenced above this epoch already */
} kl_fence;

/* From now on settles of these shards below `epoch` are refused. Shards begin at epoch 0.
 *
 * With `seal`, appends to the shard are refused as well, for ever: nothing takes a seal back, and sealing again changes
 * nothing. It is not a matter of who owns the shard, so it takes effect also where the shard is fenced above `epoch`;
 * then the epoch stays as it is, and rc is KL_OK all the same. What waits in a sealed shard is scanned, read and
 * settled as ever. KL_EINVAL: the engine cannot seal (KL_STORE_SEAL). */
KL_API KL_MUST_USE kl_rc kl_store_fence(kl_store *store, kl_fence *fences, size_t count);

/* What waits in a shard, or in all of a partition. */
typedef struct kl_counts {
    uint64_t ready;
    uint64_t due;
    uint64_t retry;
    uint32_t priorities;  /* bit (p - KL_PRIORITY_MIN) is set when ready line p is not empty */
    int64_t oldest_id_ms; /* when the oldest task of the ready lines was made, by its id; 0: none, or not known */
    uint64_t done, dead, cancelled; /* kept */
    bool at_least;                  /* there may be more: counting further would have cost too much */
    bool finished_behind; /* done, dead and cancelled are of a while ago: what keeps them cannot be written just now, or
                           * has much to forget */
} kl_counts;

/* shard KL_ALL_SHARDS: the whole partition. Finished tasks are counted for partitions only. With a job (NULL: all),
 * which is asked of a whole partition only, done, dead and cancelled are those of that job that are kept, and nothing
 * else is counted. What waits is told also while the history cannot be written: finished_behind. With a job, that is
 * KL_EFULL or KL_EBUSY. */
KL_API KL_MUST_USE kl_rc kl_store_counts(kl_store *store, kl_place place, const kl_task_id *job, kl_counts *ret_counts);

/* Waits until something has been appended to the partition since *seen was set by an earlier call (0: ever), or until
 * wait_ms have passed, and sets *seen. Both are KL_OK: look and see. */
KL_API KL_MUST_USE kl_rc kl_store_wait(kl_store *store, uint32_t partition, int64_t wait_ms, uint64_t *seen);

/* ---- Tasks that were left in the store by its own means ----
 *
 * A store that applications reach by themselves, such as a database, has an inbox (KL_STORE_INBOX): what they leave
 * there in a transaction of their own is a task once that has ended. It has no id and no place yet, because those are
 * matters of the queue, whose library takes it in. */

typedef struct kl_handed {
    uint64_t number; /* ascends in the order in which a queue's tasks were left */
    kl_bytes key, kind, payload;
    kl_bytes options; /* a JSON object; empty: none */
} kl_handed;

/* What becomes of `count` of those that were shown; the others stay. Entries and texts stay the callback's, until it is
 * called again or kl_store_take_in returns. */
typedef struct kl_taken {
    size_t count;            /* they leave the inbox; 0: all stay */
    const kl_entry *entries; /* and these are appended */
    size_t entry_count;      /* 0..count */
    const char *refused;     /* not NULL: they stay, set aside with this sentence for people to see; no entries */
    const size_t *which;     /* their places among those that were shown, ascending; NULL: they are the first */
} kl_taken;

typedef kl_rc kl_take_fn(void *ctx, const kl_handed *handed, size_t count, kl_taken *ret_taken);

/* Waits up to wait_ms for tasks that were left for the queue, shows up to max of them to `take` in their order, and
 * does what it says: appending and taking out are one, they happen both or not at all. *ret_count: how many were shown;
 * 0 also where somebody else takes them in just now. `take` is called on the caller's thread, and again when the
 * connection was lost; what it returns but KL_OK is returned, and nothing is done. KL_ESEALED: as from append; nothing
 * was done. KL_EINVAL: also where there is no inbox. */
KL_API KL_MUST_USE kl_rc kl_store_take_in(kl_store *store, const char *queue, int64_t wait_ms, size_t max,
                                          kl_take_fn *take, void *ctx, size_t *ret_count);

/* ---- What is finished and kept ----
 *
 * Answers are as large as what is kept: ask for few at a time where results or payloads are large. */

/* The finished tasks of a job in one shard, by id, behind `after` (NULL: from the first). */
KL_API KL_MUST_USE kl_rc kl_store_results(kl_store *store, kl_place place, const kl_task_id *job,
                                          const kl_task_id *after, size_t max, kl_arena *arena, kl_task *ret_tasks,
                                          size_t *ret_count);

/* What to look for; zero in a field means any. */
typedef struct kl_find {
    uint32_t partition;
    kl_task_state state; /* DONE, DEAD or CANCELLED */
    kl_bytes key;
    kl_bytes kind;
    kl_task_id job;
    int64_t from_ms, until_ms; /* finished in [from, until) */
    kl_bytes words;            /* whole words that all stand in one error of the task; a to z in either case */
    const kl_task *after;      /* go on behind this one */
    size_t max;
} kl_find;

/* Finished tasks, the latest first. */
KL_API KL_MUST_USE kl_rc kl_store_find(kl_store *store, const kl_find *find, kl_arena *arena, kl_task *ret_tasks,
                                       size_t *ret_count);

/* Forgets finished tasks; those that are not known are passed over. */
KL_API KL_MUST_USE kl_rc kl_store_forget(kl_store *store, kl_place place, const kl_task_id *ids, size_t count);

/* ---- Records: small values with a version ---- */

typedef struct kl_record {
    kl_bytes name;
    kl_bytes value;
    uint64_t version;   /* never 0, never used again */
    int64_t expires_ms; /* gone when the store's clock shows this; 0: never */
} kl_record;

/* ret_records[i].version is 0 when there is none of that name, or it has expired. */
KL_API KL_MUST_USE kl_rc kl_store_get(kl_store *store, const kl_bytes *names, size_t count, kl_arena *arena,
                                      kl_record *ret_records);

typedef struct kl_write {
    kl_bytes name;
    uint64_t version; /* what is there now; 0: nothing, or something expired */
    bool remove;
    kl_bytes value;
    int64_t expires_ms;
    kl_rc rc;             /* set by the call: KL_OK, or KL_ECONFLICT: another version is there */
    uint64_t new_version; /* set on KL_OK; 0 after a remove */
    bool quiet;           /* those who read records when some have changed (kl_engine.pulse) need not be told */
} kl_write;

/* Writes each record whose version is still the one given; each on its own, in order. A put that finds its own value
 * and expires_ms already there under a later version is taken as its repeat, so values that must be told apart carry
 * something unique. A remove of what is not there is KL_OK. Returns KL_OK when every write was made, else the first rc
 * that is not. */
KL_API KL_MUST_USE kl_rc kl_store_put(kl_store *store, kl_write *writes, size_t count);

/* Records whose names begin with `prefix`, by name, behind `after` (empty: from the first); expired ones are left out.
 * */
KL_API KL_MUST_USE kl_rc kl_store_list(kl_store *store, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena,
                                       kl_record *ret_records, size_t *ret_count);

/* ---- Watching ---- */

/* All counters in Prometheus text, in the arena, with a zero byte behind. */
KL_API KL_MUST_USE kl_rc kl_store_metrics(kl_store *store, kl_arena *arena, kl_bytes *ret_text);

/* ---- Writing an engine ---- */

/* An append as engines see it. `done` NULL: wait until it is durable. */
typedef struct kl_append {
    const kl_entry *entries;
    size_t count;
    size_t bytes; /* of their keys, kinds, headers and payloads */
    const kl_token *token;
    kl_appended_fn *done;
    void *ctx;
} kl_append;

/* The dispatcher has checked every argument against the limits above, and partitions and shards against what
 * `partition` returned; an engine sees valid input only. It sets rc fields itself and returns as the public call does.
 * */
typedef struct kl_engine {
    size_t size;        /* sizeof(kl_engine): functions are only ever appended, and those behind it are NULL */
    const char *scheme; /* "disk" */
    const char *usage;  /* "disk:PATH", for the list of known schemes */
    uint32_t can;
    kl_rc (*open)(const char *where, const kl_store_opts *opts,
                  void **ret_self); /* the URL behind its colon; opts complete */
    void (*close)(void *self);
    kl_rc (*now)(void *self, int64_t *ret_ms);
    kl_rc (*partition)(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition);
    kl_rc (*append)(void *self, const kl_append *append);
    kl_rc (*scan)(void *self, kl_scan *scans, size_t count);
    kl_rc (*read)(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
    kl_rc (*settle)(void *self, kl_settle *batches, size_t count);
    kl_rc (*fence)(void *self, kl_fence *fences, size_t count);
    kl_rc (*counts)(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts); /* job may be NULL */
    kl_rc (*wait)(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen);
    kl_rc (*results)(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
    kl_rc (*find)(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
    kl_rc (*forget)(void *self, kl_place place, const kl_task_id *ids, size_t count);
    kl_rc (*get)(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records);
    kl_rc (*put)(void *self, kl_write *writes, size_t count);
    kl_rc (*list)(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count);
    kl_rc (*take_in)(void *self, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                     size_t *ret_count); /* NULL: no inbox, whatever `can` says */
    /* Which ready lines of the partition may have tasks, as kl_counts.priorities, where that is told more quickly than
     * everything is counted. A line that has become empty may be among them. NULL: counts tells. */
    kl_rc (*lines)(void *self, uint32_t partition, uint32_t *ret_priorities);
    /* How many tasks of the queue lie in the inbox and can be taken in. NULL: there is no inbox. */
    kl_rc (*left)(void *self, const char *queue, uint64_t *ret_count);
    /* The clock, and a number that is another one when a record was written or removed since, and not quietly; it may
     * change a moment before that can be read. NULL: `now` tells the clock, and nothing the other. */
    kl_rc (*pulse)(void *self, int64_t *ret_ms, uint64_t *ret_news);
    /* The server does not answer, and the log of opts was told so and will be told of the end, so that nobody else need
     * do it. NULL: it never tells. */
    bool (*is_away)(void *self);
    /* How many tasks of the queue in the inbox were refused, and of the first one why and what to do, in the arena.
     * NULL: none ever are. */
    kl_rc (*refused)(void *self, const char *queue, kl_arena *arena, uint64_t *ret_count, const char **ret_why);
    /* Somebody ends, and does not wait for a server that is silent: calls under way that have waited for an answer for
     * wait_ms fail as when the connection is lost. Any thread. NULL: no call waits for long. */
    void (*cut)(void *self, int64_t wait_ms);
    /* From now on the store is as one that was opened with kl_store_opts.hasty, until it is closed. Any thread.
     * KL_ESYSTEM: no thread is to be had for that. NULL: `hasty` means nothing here. */
    kl_rc (*hasten)(void *self);
} kl_engine;

/* A store over an engine that is not among the built-in ones; opts and errors as for kl_store_open. The engine must
 * outlive it. */
KL_API KL_MUST_USE kl_rc kl_store_open_engine(const kl_engine *engine, const char *where, const kl_store_opts *opts,
                                              kl_store **ret_store);

#ifdef __cplusplus
}
#endif
#endif
