/* dispatch.h - what stands above every engine: checks, counters and traces, written once.
 *
 *     caller -> store.c (each call: check, engine, count) -> the engine
 *                   |-> check.c: is the input valid?
 *                   |-> store_metrics.c: count it, trace it
 *
 * D1  An engine sees valid input only, and an invalid call has had no effect.
 * D2  Every call that reached a store is counted and traced once, whatever came of it.
 * D3  Checking and counting allocate nothing, take no mutex, and look at the clock twice a call.
 * D4  No thread is cancelled in a call: engines hold mutexes over system calls, and lead for others. */
#ifndef KL_STORE_DISPATCH_H
#define KL_STORE_DISPATCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/compare.h"
#include "base/wait.h"
#include "keyline/store.h"

/* Every call that is counted, by the name that traces and metrics show. An asynchronous append is counted when it is
 * handed over; what becomes of it later is told to its caller alone. */
#define KL_CALL_TABLE(X)                                                                                               \
    X(NOW, "now")                                                                                                      \
    X(PARTITION, "partition")                                                                                          \
    X(APPEND, "append")                                                                                                \
    X(APPEND_ASYNC, "append_async")                                                                                    \
    X(SCAN, "scan")                                                                                                    \
    X(READ, "read")                                                                                                    \
    X(SETTLE, "settle")                                                                                                \
    X(FENCE, "fence")                                                                                                  \
    X(COUNTS, "counts")                                                                                                \
    X(WAIT, "wait")                                                                                                    \
    X(RESULTS, "results")                                                                                              \
    X(FIND, "find")                                                                                                    \
    X(FORGET, "forget")                                                                                                \
    X(GET, "get")                                                                                                      \
    X(PUT, "put")                                                                                                      \
    X(LIST, "list")                                                                                                    \
    X(TAKE_IN, "take_in")

typedef enum kl__call {
#define KL_CALL_ENUM(name, text) KL_CALL_##name,
    KL_CALL_TABLE(KL_CALL_ENUM)
#undef KL_CALL_ENUM
        KL_CALLS
} kl__call;

enum { KL_CALL_BUCKETS = 12 };

/* How many result codes there are; they count from 0 down. */
enum {
#define KL_RC_COUNT(code, value, text, class_) KL_COUNTED_##code,
    KL_RC_TABLE(KL_RC_COUNT)
#undef KL_RC_COUNT
        KL_CALL_CODES
};

/* Counters of one kind of call, on cache lines of their own. */
typedef struct kl__call_counters {
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) buckets[KL_CALL_BUCKETS + 1]; /* by duration; the last: any longer */
    _Atomic(uint64_t) sum_ns, items, bytes;
    _Atomic(uint64_t) errors[KL_CALL_CODES + 1]; /* by -rc; [0] stays 0, the last: codes of no table */
} kl__call_counters;

enum { KL_PARTITION_LEVELS = 32, KL_LATE_BYTES = 400 };

typedef _Atomic(uint8_t) kl__prefix_len; /* 0: this handle does not know the partition */

/* A store whose server was away when it was opened; late.c. */
typedef struct kl__late {
    _Atomic(bool) waits;   /* there is no `self` yet */
    pthread_mutex_t mutex; /* holds for what follows */
    char *where;           /* as for the engine's open */
    bool trying;           /* somebody opens it now; */
    int64_t again_ns;      /* nobody before */
    char why[KL_LATE_BYTES];
} kl__late;

struct kl_store {
    const kl_engine *engine;
    void *self; /* the engine's */
    kl_store_opts opts;
    kl__late late;

    /* Partition number -> shard_prefix_len, read on every call without a mutex: level k has numbers 2^k .. 2^(k+1)-1,
     * is made when the first of them is known, and never moves. */
    pthread_mutex_t partition_mutex; /* whoever adds one holds it */
    _Atomic(kl__prefix_len *) partitions[KL_PARTITION_LEVELS];

    kl__call_counters calls[KL_CALLS];

    kl_engine older; /* the engine, when it was built with a header that had fewer functions */
};

static inline uint32_t kl__partition_level(uint32_t partition) { return 31 - (uint32_t)__builtin_clz(partition); }

/* 0: the partition is not known. */
static inline uint32_t kl__partition_prefix_len(kl_store *store, uint32_t partition)
{
    if (partition == 0)
        return 0;
    uint32_t level = kl__partition_level(partition);
    kl__prefix_len *lens = atomic_load_explicit(&store->partitions[level], memory_order_acquire);
    return lens ? atomic_load_explicit(&lens[partition - (UINT32_C(1) << level)], memory_order_relaxed) : 0;
}

/* Copies what the caller's header knows, fills in defaults, checks ranges. */
kl_rc kl__store_opts_complete(const kl_store_opts *given, kl_store_opts *ret_opts);

/* --- late.c --- */

bool kl__late_may_wait(const kl_store *store);
kl_rc kl__late_wait(kl_store *store, const char *where, int64_t began_ns); /* opening it failed, just now */
kl_rc kl__late_ready(kl_store *store);                                     /* KL_EBUSY: not yet */
kl_rc kl__late_refuse(kl_store *store);                                    /* that, with the reason */

/* Before a call that names no partition: who knows one has an open store. */
static inline kl_rc kl__store_ready(kl_store *store)
{
    bool waits = atomic_load_explicit(&store->late.waits, memory_order_acquire);
    return KL_LIKELY(!waits) ? KL_OK : kl__late_ready(store);
}

/* --- check.c: KL_EINVAL with a sentence that names the item and both numbers --- */

kl_rc kl__check_engine(const kl_engine *engine);
kl_rc kl__check_partition(const char *name, uint32_t shard_prefix_len, const uint32_t *ret_partition);
kl_rc kl__check_append(kl_store *store, const kl_entry *entries, size_t count, size_t *ret_bytes);
kl_rc kl__check_scan(kl_store *store, const kl_scan *scans, size_t count);
kl_rc kl__check_read(kl_store *store, const kl_ref *refs, size_t count, const kl_arena *arena, const kl_task *ret_tasks,
                     const size_t *ret_count);
kl_rc kl__check_settle(kl_store *store, const kl_settle *batches, size_t count, uint64_t *ret_tasks,
                       uint64_t *ret_bytes);
kl_rc kl__check_fence(kl_store *store, const kl_fence *fences, size_t count);
kl_rc kl__check_counts(kl_store *store, kl_place place, const kl_task_id *job, const kl_counts *ret_counts);
kl_rc kl__check_wait(kl_store *store, uint32_t partition, const uint64_t *seen);
kl_rc kl__check_results(kl_store *store, kl_place place, const kl_task_id *job, size_t max, const kl_arena *arena,
                        const kl_task *ret_tasks, const size_t *ret_count);
kl_rc kl__check_find(kl_store *store, const kl_find *find, const kl_arena *arena, const kl_task *ret_tasks,
                     const size_t *ret_count);
kl_rc kl__check_forget(kl_store *store, kl_place place, const kl_task_id *ids, size_t count);
kl_rc kl__check_get(const kl_bytes *names, size_t count, const kl_arena *arena, const kl_record *ret_records);
kl_rc kl__check_put(const kl_write *writes, size_t count);
kl_rc kl__check_list(kl_bytes prefix, kl_bytes after, size_t max, const kl_arena *arena, const kl_record *ret_records,
                     const size_t *ret_count);

kl_rc kl__check_take_in(const kl_store *store, const char *queue, size_t max, kl_take_fn *take,
                        const size_t *ret_count);

/* --- store_metrics.c --- */

/* A call that is under way, and not to be cancelled. */
typedef struct kl__begun {
    int64_t ns;
    int cancel_state;
} kl__begun;

static inline kl__begun kl__store_begin(void) { return (kl__begun){kl__monotonic_ns(), kl__cancel_off()}; }

/* Ends the call: counts it, tells the trace, and returns rc. Items and bytes are what was taken in or given out:
 * nothing of what was refused. */
kl_rc kl__store_end(kl_store *store, kl__call call, kl__begun begun, kl_rc rc, uint64_t items, uint64_t bytes);

#endif
