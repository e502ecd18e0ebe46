/* owners.h - one worker's part in one partition: which shards it owns, until when, and how many tasks it may run.
 *
 *     kl__owners_open -> kl__owners_beat, every third of lease_ms or so, and at once when shards were left
 *                     -> kl__owners_beat with report.leaving until nothing is owned -> kl__owners_close
 *
 * Workers of a partition meet in one record, `owners/PARTITION`, which is changed by compare-and-set only: who is alive
 * (expiry on the store's clock), who owns which shard and under which epoch. A beat reads it, refreshes this worker,
 * drops the dead, takes and gives shards towards an even load, and writes it back.
 *
 * O1  A shard has at most one owner in the record, and the epochs under which it is taken only grow.
 * O2  Nothing is taken from a worker whose lease holds, except what it gives back.
 * O3  A shard is reported as taken only after its fence is in the store.
 * O4  A worker that leaves with everything idle is gone, and its shards are free, after one beat.
 * O5  A shard whose owner did not give it back is taken unclean; and so it is given back, unless nothing waits any more
 *     that this owner may have begun.
 * O6  The permits that the record grants to all workers together do not exceed the limit, unless it was lowered, or a
 *     worker whose lease had lapsed still runs something: then no new ones are granted until they do not.
 * O7  A worker whose fences fail, beat after beat, leaves its shards to others, if any may take one, and tries again
 *     ever more seldom: what it owns and cannot use nobody runs.
 *
 * At four digits shards are owned in groups of 16 neighbours: a group is taken by whoever may take its first shard, and
 * is given back when all of it was left. Other layouts have groups of one.
 *
 * Threads: one at a time, except kl__owners_holds, which any thread may call at any time between open and close. No
 * clock and no randomness but what is passed in. */
#ifndef KL_WORK_OWNERS_H
#define KL_WORK_OWNERS_H

#include "keyline/queue.h"
#include "keyline/shards.h"
#include "keyline/store.h"

enum {
    KL_OWNERS_WORKERS_MAX = 512,      /* of one partition; 64 fit whatever they are like, more as long as they fit */
    KL_OWNERS_KINDS_MAX = 256,        /* of one worker */
    KL_OWNERS_RANGES_BYTES = 1024,    /* of the text of one worker's shards */
    KL_OWNERS_NAME_BYTES = 64,        /* of a worker's name; the rest is cut off */
    KL_OWNERS_LEASE_MS_MAX = 3600000, /* an hour */
};

typedef struct kl__owners kl__owners;

typedef struct kl__owners_opts {
    kl_store *store;
    uint32_t partition; /* as kl_store_partition said */
    const char *name;   /* of the partition */
    kl_layout layout;
    kl_shards allowed;       /* what this worker may take */
    kl_task_id worker;       /* 16 random bytes; a new process has new ones */
    const char *worker_name; /* for people: host and pid; what is not printable ASCII is shown as '?' */
    int64_t lease_ms;        /* 1..KL_OWNERS_LEASE_MS_MAX */
    uint64_t seed;
    const char *const *kinds; /* that it serves */
    size_t kind_count;        /* 0: every kind */
    uint64_t concurrency;
} kl__owners_opts;

/* Copies what it needs; the store must outlive it. Calls nothing of the store. KL_EINVAL: a setting is out of range, or
 * none of the allowed shards is the first of its group. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__owners_open(const kl__owners_opts *opts, kl__owners **ret_owners);
void kl__owners_close(kl__owners *owners); /* leaves the record alone: what is owned expires; NULL is fine */

/* A number for a kind, never 0: by these workers tell one another what they serve. */
uint16_t kl__owners_kind(kl_bytes kind);

/* What this worker tells with a beat. `left` is taken in even when the beat fails; telling it again does no harm. */
typedef struct kl__owners_report {
    int64_t local_now_ms; /* this process's even clock, read before the call */
    int64_t lease_ms;     /* from this beat on; 0: as it was */
    uint64_t running;     /* tasks */
    bool leaving;         /* for good: takes nothing, is asked for everything, is gone when all is left */
    bool stays; /* not yet gone then: it runs tasks of other partitions, and its permits for them stand here */
    const uint32_t *left;  /* owned shards that are idle, settled and dropped: given back */
    const bool *unsettled; /* for each: what its owner before may have begun waits still (O5); NULL: nowhere */
    size_t left_count;
    const uint32_t *unserved; /* owned shards with tasks of kinds that it has no handler for, once for each kind */
    const uint16_t *unserved_kinds; /* that kind, by kl__owners_kind; 0 or no array: not known */
    size_t unserved_count;
    uint64_t permits_wanted; /* tasks that run or could run now */
    uint64_t permits_max;    /* the queue's limit on tasks running at a time; UINT64_MAX: none */
    uint64_t permits_most;   /* that this worker may be granted here, because another record grants no more */
    bool full;               /* tasks wait because so many of the partition run as may at a time */
} kl__owners_report;

typedef struct kl__owned {
    uint32_t shard;
    uint64_t epoch;
    bool clean; /* the owner before gave it back, or there was none */
} kl__owned;

/* The arrays belong to the kl__owners until its next beat. No shard is in two of them. A shard that was left may be
 * among the taken of the same beat, with a new epoch. */
typedef struct kl__owners_change {
    const kl__owned *taken;
    size_t taken_count;
    const uint32_t *lost; /* somebody else has them, or the lease was missed: to be dropped at once */
    size_t lost_count;
    const uint32_t *wanted; /* all that are to be given back when they are idle; what is not among them may be kept */
    size_t wanted_count;
    uint64_t permits;         /* tasks that may run at a time, those that run included; UINT64_MAX: no limit */
    uint64_t workers;         /* alive, with this one unless it is gone */
    bool gone;                /* left for good: nothing of this worker is in the record any more */
    bool unfenced;            /* it owns some that it cannot use: their fence failed, and is tried again */
    kl_rc unfenced_rc;        /* why the last that was tried failed, also while others try; KL_OK: it did not */
    const char *unfenced_why; /* the sentence */
} kl__owners_change;

/* One beat. On failure the lease is not extended, nothing is reported, and what was won or lost meanwhile is reported
 * by the next beat. KL_EBUSY: others kept changing the record, or the store was busy: again soon. KL_EDAMAGED: the
 * record is damaged; the sentence names the field. KL_EINVAL: it is of another layout. KL_EFULL: too many workers, or
 * the store has no room. KL_ENOMEM and others as from the store. */
KL_MUST_USE kl_rc kl__owners_beat(kl__owners *owners, const kl__owners_report *report, kl__owners_change *ret_change);

/* Whether the lease holds at this time of the local clock: until the start of the last good beat plus nine tenths of
 * the lease that it told; the tenth is for clocks that run at different speeds. Once it does not, nothing may be
 * started or settled any more, and the next good beat reports everything as lost. A beat that makes the lease shorter
 * does so when it begins: when it fails it may have been written all the same. */
bool kl__owners_holds(const kl__owners *owners, int64_t local_now_ms);

/* What the last good beat told, or open: the next one is to come by this, whatever the queue's record says by now. */
int64_t kl__owners_lease_ms(const kl__owners *owners);

/* What the last beat reported as lost has been dropped. Until then that beat does not extend the lease: another thread
 * would go on with what is lost. After a beat that reported nothing as lost it changes nothing. */
void kl__owners_renew(kl__owners *owners);

/* ---- For people ---- */

typedef struct kl__owner {
    kl_task_id id;
    const char *name;
    const char *kinds; /* that it serves, four hex digits each; "": every kind */
    uint64_t shards, running, concurrency;
    uint64_t permits, wants; /* at most so many of its tasks run; so many could */
    int64_t seen_ms, expires_ms;
    bool leaving;
    bool full; /* tasks wait because it runs as many of this partition as it may */
} kl__owner;

typedef struct kl__ownership {
    const kl__owner *workers; /* alive; in the arena */
    size_t count;
    const int16_t *groups; /* the owner of each group of shards, -1: none; in the arena */
    uint32_t group_shards;
} kl__ownership;

/* Who owns what now. No record: no workers. Errors as from a beat. */
KL_MUST_USE kl_rc kl__owners_read(kl_store *store, const char *name, const kl_layout *layout, kl_arena *arena,
                                  kl__ownership *ret_ownership);

/* Whether one of the workers has a handler for this kind (kl__owners_kind). */
bool kl__ownership_serves(const kl__ownership *ownership, uint16_t kind);

/* The owner of a shard of the layout, or NULL. */
const kl__owner *kl__ownership_of(const kl__ownership *ownership, uint32_t shard);

/* Shows who owns what in each partition of each layout of a queue that may hold tasks, the oldest layout first. What is
 * shown lies in the arena; anything but KL_OK from `show` ends it. Errors as from kl__owners_read. (control.c) */
typedef kl_rc kl__ownership_fn(void *ctx, const char *partition, uint64_t layout_number, const kl_layout *layout,
                               const kl__ownership *ownership);
KL_MUST_USE kl_rc kl__queue_owners(kl_queue *queue, kl_arena *arena, kl__ownership_fn *show, void *ctx);

#endif
