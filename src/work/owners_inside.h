/* owners_inside.h - what the files of ownership share: the record in memory, the worker's own view, the plan.
 *
 * Reading order: owners.h -> owners.c (a beat) -> owners_plan.c (who should own what) -> owners_permits.c ->
 * owners_record.c (the record's bytes). */
#ifndef KL_WORK_OWNERS_INSIDE_H
#define KL_WORK_OWNERS_INSIDE_H

#include <stdatomic.h>

#include "base/base.h"
#include "work/owners.h"

enum {
    KL_GROUPS_MAX = 4096, /* shards are owned in groups of neighbours: one shard, or 16 at four digits */
    KL_GROUP_WORDS = KL_GROUPS_MAX / 64,
    KL_WISHES_MAX = 256,
    KL_KIND_UNKNOWN = UINT16_MAX, /* the number of no kind */
    KL_OWNERS_RECORD_NAME_BYTES = sizeof "owners/" + KL_PARTITION_BYTES_MAX,
};

/* A set of groups. */
typedef struct kl__groups {
    uint64_t bits[KL_GROUP_WORDS];
} kl__groups;

static inline bool kl__groups_has(const kl__groups *set, uint32_t group)
{
    return set->bits[group / 64] >> (group % 64) & 1;
}

static inline void kl__groups_add(kl__groups *set, uint32_t group)
{
    set->bits[group / 64] |= UINT64_C(1) << (group % 64);
}

static inline void kl__groups_remove(kl__groups *set, uint32_t group)
{
    set->bits[group / 64] &= ~(UINT64_C(1) << (group % 64));
}

/* --- The record --- */

typedef struct kl__record_worker {
    kl_task_id id;
    const char *name;
    uint64_t beat; /* counts its writes, so no two values are alike */
    int64_t seen_ms, expires_ms;
    uint64_t running, concurrency;
    uint64_t permits; /* at most so many of its tasks run */
    uint64_t wants;   /* so many could */
    bool leaving;
    bool full;          /* some wait because it runs as many of this partition as it may */
    const char *shards; /* text of `allowed` */
    const char *kinds;  /* four hex digits each; "": every kind */
    kl__groups allowed;
    uint32_t held; /* groups */
} kl__record_worker;

typedef struct kl__record_group {
    int16_t owner;  /* index of a worker; -1: none */
    bool unclean;   /* none: the last owner did not give it back; else: it was taken like that */
    uint64_t epoch; /* of the owner; 0: none */
} kl__record_group;

/* A group that was given back for this worker alone to take. */
typedef struct kl__record_wish {
    uint32_t group;
    uint32_t worker; /* index */
    int64_t until_ms;
} kl__record_wish;

typedef struct kl__owners_record {
    uint64_t version;           /* of the store; 0: there is none */
    uint64_t epoch;             /* the last that was given out */
    kl__record_worker *workers; /* room for one more */
    size_t worker_count;
    kl__record_group *groups;
    uint32_t group_count;
    kl__record_wish wishes[KL_WISHES_MAX];
    size_t wish_count;
} kl__owners_record;

/* --- owners_record.c --- */

static inline uint32_t kl__group_shards(const kl_layout *layout) { return layout->shard_prefix_len == 4 ? 16 : 1; }

/* The layout whose shards are the groups of this one. */
static inline kl_layout kl__group_layout(const kl_layout *layout)
{
    uint32_t len = layout->shard_prefix_len;
    return (kl_layout){1, len < 4 ? len : 3};
}

/* "owners/PARTITION". KL_EINVAL: no name, or one that is too long. */
kl_rc kl__owners_record_name(const char *partition, char ret_name[KL_OWNERS_RECORD_NAME_BYTES]);

/* Everything lies in the arena. No record: no workers, every group free and clean. */
kl_rc kl__owners_record_read(kl_store *store, const char *name, const kl_layout *layout, kl_arena *arena,
                             kl__owners_record *ret_record);

/* KL_EFULL: it would not fit into a record. */
kl_rc kl__owners_record_print(const kl__owners_record *record, const kl_layout *layout, kl_arena *arena,
                              kl_bytes *ret_value);

/* Frees a group. */
void kl__record_free_group(kl__owners_record *record, uint32_t group, bool unclean);

/* Takes a worker out: its groups become free and are marked, its wishes are forgotten, later workers move up. */
void kl__record_drop_worker(kl__owners_record *record, size_t worker);

/* Drops the workers, and forgets the wishes, whose time has passed. */
void kl__record_expire(kl__owners_record *record, int64_t now_ms);

int kl__record_find(const kl__owners_record *record, const kl_task_id *id);                 /* -1: not there */
const kl__record_wish *kl__record_wish_of(const kl__owners_record *record, uint32_t group); /* NULL: none */

/* Whether a worker with these kinds serves this one. */
bool kl__kinds_serve(const char *kinds, uint16_t kind);

/* --- The worker's own view --- */

typedef enum kl__group_state {
    KL_GROUP_NONE,
    KL_GROUP_UNFENCED, /* ours in the record, not reported yet */
    KL_GROUP_STALE,    /* the same, but its fence was refused: to be freed */
    KL_GROUP_HELD,     /* reported as taken */
    KL_GROUP_LEFT,     /* was held; every shard of it was left: to be given back */
    KL_GROUP_LOST,     /* was held: to be reported as lost */
} kl__group_state;

typedef struct kl__own_group {
    uint64_t epoch;
    uint16_t left;    /* shards of it that were left, by bit */
    uint16_t handing; /* the kind for whose sake it is handed over; 0: it is not */
    uint8_t state;    /* kl__group_state */
    bool clean;
    bool unsettled; /* one of those left was */
    bool wanted;
} kl__own_group;

struct kl__owners {
    kl_store *store;
    uint32_t partition;
    kl_layout layout;
    kl_task_id worker;
    int64_t lease_ms;  /* that beats ask for, */
    int64_t leased_ms; /* and that the last good one told */
    uint64_t random;
    uint64_t concurrency;
    char record_name[KL_OWNERS_RECORD_NAME_BYTES];
    char worker_name[KL_OWNERS_NAME_BYTES + 1];
    char shards[KL_OWNERS_RANGES_BYTES + 1];
    char kinds[KL_OWNERS_KINDS_MAX * 4 + 1];
    kl__groups allowed;
    _Atomic(int64_t) holds_until_ms; /* local clock */
    int64_t until_ms;                /* what the last good beat makes of it */
    uint64_t beat;
    uint64_t told; /* permits that the last good beat reported */
    uint64_t skip; /* epochs to pass over, since fences were refused */
    bool fence_refused;
    kl_rc unfenced_rc;         /* KL_OK: the fences of the last beat that had any came to the store */
    char unfenced_why[256];    /* else why not */
    uint32_t unfenced_beats;   /* that failed so, one after the other */
    uint32_t rest, rest_beats; /* beats to be left to others, and how many those were at first */
    uint32_t group_count, group_shards;
    kl__own_group *groups;
    kl_fence *fences;
    uint32_t fence_max;
    kl__owned *taken;
    uint32_t *lost, *wanted;
    kl_arena arena; /* of one try of a beat */
};

/* --- owners_plan.c --- */

/* Who should own each group in the end; -1: nobody may. In the arena. NULL: out of memory. */
const int16_t *kl__owners_plan(kl__owners *owners, const kl__owners_record *record, uint32_t me);

/* The worker with the lightest load that could take this group for the sake of a kind; -1: none. KL_KIND_UNKNOWN:
 * one that serves any kind that `me` does not. */
int kl__owners_able(const kl__owners_record *record, uint32_t me, uint32_t group, uint16_t kind);

/* --- owners_permits.c --- */

/* What a worker should have of `max` permits: by the groups that it owns, and no more than it wants while others want
 * more; what is left over goes round with `turn`. */
uint64_t kl__owners_permits(const kl__owners_record *record, uint32_t me, uint64_t max, uint64_t turn);

#endif
