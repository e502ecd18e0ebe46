/* inside.h - what the files of a queue share: its descriptor, its layouts, the names of its records.
 *
 * Reading order: queue.c (open, alter) -> descriptor.c (the record) -> settings.c -> layouts.c (names, stores, sealing)
 * -> put.c (producers) -> envelope.c (what a task carries) -> look.c (tasks, lists) -> dead.c -> job*.c -> cron*.c.
 *
 * A queue's layouts are numbered from 1. Tasks are put into the first that is not sealed. When a newer one is opened,
 * the older ones are sealed: from then on their shards take no task, so that what they hold only becomes less. A key's
 * tasks in a newer layout are started once no older layout holds one of that key. That is how order per key survives
 * the change.
 *
 * Q1  Every process computes the same place for a key in a given layout, and the layout stands in the queue's record.
 * Q2  A layout is run only when all older ones are sealed.
 * Q3  A layout that is drained stays drained: it is sealed and holds nothing.
 * Q4  In a layout that is not marked `by_name` every task with a key lies in the partition that its key says.
 *
 * Records of a queue (values are JSON):
 *
 *     queue/NAME                      the descriptor
 *     gone/NAME                       the last layout number of a queue that was removed: its next one goes on there
 *     owners/PARTITION                who owns its shards (work/owners.c); PARTITION by kl__layout_partition_name
 *     ask/PARTITION/SHARD/NONCE       a request to the shard's owner, then its answer (work/ask.c)
 *     pause/NAME/KEYHASH              a paused key
 *     unique/NAME/HASH, token/NAME/HASH   put.c
 *     job/NAME/ID, cancel/NAME/ID, idempotency/NAME/HASH   job.c
 *     cron/NAME/SCHEDULE              cron.c */
#ifndef KL_QUEUE_INSIDE_H
#define KL_QUEUE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/hash.h"
#include "keyline/queue.h"
#include "queue/record.h"
#include "store/quick.h"

enum {
    KL_LAYOUTS_MAX = 16, /* of one queue; drained ones of which nothing is kept are forgotten */
    KL_PARTITION_NAME_BYTES = KL_PARTITION_BYTES_MAX + 1,
};

/* What a process needs to use a layout, made once and shared by the descriptors that have it (layouts.c). */
typedef struct kl__layout_parts kl__layout_parts;

typedef _Atomic(uint32_t) kl__number; /* KL_PARTITION_AWAY: not known yet */

/* One layout of a queue. */
typedef struct kl__queue_layout {
    uint64_t number;
    kl_layout layout;
    bool sealed;
    bool drained;
    bool by_name;       /* tasks were put into other partitions than their keys say: a key may have some in any */
    const char *origin; /* who stated it; "": nobody said. And of its numbers, which may be older, or the defaults: */
    const char *partitions_origin, *prefix_origin;
    const char *const *urls; /* of the store of each partition, "" for the queue's own; NULL: all there */
    kl__layout_parts *parts; /* what the three below belong to */
    kl__number *numbers;     /* of its partitions in their stores: kl__layout_number */
    kl_store **stores;       /* where its partitions are */
    kl_idgen *idgen;         /* every descriptor that has this layout shares it */
} kl__queue_layout;

/* What the record says; never changed once it is made. */
typedef struct kl__descriptor {
    _Atomic(uint32_t) references;
    uint64_t version;       /* of the record */
    kl_queue_opts settings; /* complete: every field set, stores and origin being its own */
    bool paused;
    int64_t created_ms;
    kl_arena arena;      /* its texts */
    size_t layout_count; /* 1..KL_LAYOUTS_MAX; ascending numbers; tasks are put into the first that is not sealed */
    kl__queue_layout layouts[KL_LAYOUTS_MAX];
} kl__descriptor;

struct kl_queue {
    kl_store *store;
    char name[KL_QUEUE_NAME_MAX + 1];
    pthread_mutex_t refresh_mutex; /* one reads the record at a time; taken before the other */
    pthread_mutex_t mutex;         /* guards what follows */
    kl__descriptor *descriptor;    /* the latest that is known; NULL only while the queue is opened */
};

/* For fields that are only read but cannot be const in a public struct. */
static inline void *kl__unconst(const void *pointer)
{
    union {
        const void *given;
        void *taken;
    } both = {.given = pointer};
    return both.taken;
}

/* --- queue.c --- */

/* KL_EINVAL: no queue can be called so. */
kl_rc kl__queue_check_name(const char *name);

/* --- settings.c: what can be stated of a queue, from one table --- */

/* Copies what is stated, each checked for its range; texts stay the caller's. NULL: nothing is stated. */
kl_rc kl__settings_take(const kl_queue_opts *given, kl_queue_opts *ret_stated);

/* What a setting may be, by its offset in kl_queue_opts; *ret_none: what "none" is, 0: it may not be none. False: no
 * such setting. */
bool kl__settings_range(size_t offset, int64_t *ret_min, int64_t *ret_max, int64_t *ret_none);

/* "continue", "halt", "drain"; KL_HEAD_UNSET is "", and what any other text is. */
const char *kl__policy_name(kl_head_policy policy);
kl_head_policy kl__policy_parse(const char *text);

/* All defaults; no texts. */
kl_queue_opts kl__settings_defaults(void);

/* Overwrites what is stated, the layout and texts excepted, and checks what it comes to. */
kl_rc kl__settings_merge(kl_queue_opts *settings, const kl_queue_opts *stated);

/* As JSON, without the layout. */
json_t *kl__settings_write(json_t *over, const kl_queue_opts *settings); /* takes `over` over; NULL: out of memory */
void kl__settings_read(kl__json *from, kl_queue_opts *ret_settings);

/* --- stores.c: other stores, opened once in a process however many queues have partitions there --- */

/* may_make: where there is none, it is made; else KL_ENOTFOUND. */
kl_rc kl__store_share(const char *url, bool may_make, kl_store **ret_store);
void kl__store_unshare(kl_store *store);

/* Makes relative paths in the URLs absolute, in the arena: the queue's record outlives this process's directory.
 * KL_ESYSTEM, KL_ENOMEM. */
kl_rc kl__stores_absolute(kl_queue_opts *stated, kl_arena *arena);

/* --- descriptor.c --- */

/* The latest that is known, to be released. Never NULL. */
kl__descriptor *kl__queue_descriptor(kl_queue *queue);
void kl__descriptor_release(kl__descriptor *descriptor); /* NULL is fine */

/* Reads the record again. KL_ENOTFOUND: the queue was removed. */
kl_rc kl__queue_refresh(kl_queue *queue);

/* Changes the record: `change` edits the draft and may be called again after a conflict. Afterwards the queue knows the
 * new descriptor. */
typedef kl_rc kl__descriptor_change_fn(kl__descriptor *draft, void *ctx);
kl_rc kl__queue_change(kl_queue *queue, kl__descriptor_change_fn *change, void *ctx);

/* Writes the record of a new queue: settings and texts of `settings`, which become its layout 1, or a later one where a
 * queue of that name was removed; `stated`: which of them somebody stated. KL_ECONFLICT: there is one already. */
kl_rc kl__queue_make(kl_queue *queue, const kl_queue_opts *settings, const kl_queue_opts *stated);

/* Adds a layout to a draft, or says why not; texts are copied. Stores NULL: all in the queue's own. A number that stays
 * what it was keeps its origin. */
kl_rc kl__draft_layout(kl__descriptor *draft, kl_layout layout, const char *const *urls, const char *origin);

static inline const kl__queue_layout *kl__newest_layout(const kl__descriptor *descriptor)
{
    return &descriptor->layouts[descriptor->layout_count - 1];
}

/* The layout that tasks are put into: the first that is not sealed. That is the newest, except for the moment between
 * its opening and the sealing of the one before: were tasks put into both then, a later one of a key could run
 * first. */
static inline const kl__queue_layout *kl__put_layout(const kl__descriptor *descriptor)
{
    const kl__queue_layout *layout = descriptor->layouts;
    while (layout->sealed && layout != kl__newest_layout(descriptor))
        layout++;
    return layout;
}

/* --- layouts.c --- */

/* Gives every layout that has no parts those of `known` (or NULL), or makes them: the stores are opened, and one that
 * is away is opened later, unless the layout is new. Only then a store is made where there is none: of any other layout
 * it is gone, and its tasks with it. The rest, which makes partitions in the stores, is done by complete. */
kl_rc kl__layouts_attach(kl_queue *queue, kl__descriptor *descriptor, const kl__descriptor *known, bool is_new);
kl_rc kl__layouts_complete(kl_queue *queue, kl__descriptor *descriptor);
void kl__layout_parts_release(kl__layout_parts *parts); /* NULL is fine */

/* A partition's number in its store, as kl_store_partition said. KL_PARTITION_AWAY: its store is away, and has not
 * said. */
uint32_t kl__layout_find_number(const kl__queue_layout *layout, uint32_t partition);

static inline uint32_t kl__layout_number(const kl__queue_layout *layout, uint32_t partition)
{
    uint32_t number = atomic_load_explicit(&layout->numbers[partition], memory_order_acquire);
    return KL_LIKELY(number != KL_PARTITION_AWAY) ? number : kl__layout_find_number(layout, partition);
}

/* What people call a partition: by the same name in every layout in which it lies in the same store, so that what they
 * are told is true of the one that they know; one of an older layout that does not as "orders__p1 of layout 1". */
enum { KL_TOLD_PARTITION_BYTES = KL_PARTITION_NAME_BYTES + 32 };
kl_rc kl__layout_tell_partition(const kl_queue *queue, const kl__descriptor *descriptor, const kl__queue_layout *layout,
                                uint32_t partition, char ret_name[KL_TOLD_PARTITION_BYTES]);

/* What waits and is kept in all partitions of a layout together; added to what is there. */
kl_rc kl__layout_count(const kl__queue_layout *layout, kl_counts *counts);
kl_rc kl__layout_count_one(const kl__queue_layout *layout, uint32_t partition, kl_counts *counts);

/* Whether nothing waits in any shard. They are asked one by one, until one has something, and each for all that it has:
 * of several an engine may count but what is at hand, and say "at least". One that says so by itself is not empty. */
kl_rc kl__layout_is_empty(const kl__queue_layout *layout, bool *ret_empty);

/* Whether anything is kept of tasks that finished there. */
kl_rc kl__layout_keeps(const kl__queue_layout *layout, bool *ret_keeps);

static inline uint64_t kl__counts_waiting(const kl_counts *counts)
{
    return counts->ready + counts->due + counts->retry;
}

/* The name of a partition in its store: kl_partition_name, and for layout n > 1 "@n" behind it. */
kl_rc kl__layout_partition_name(const kl_queue *queue, const kl__queue_layout *layout, uint32_t partition,
                                char ret_name[KL_PARTITION_NAME_BYTES]);

/* Which partition of the layout is called so (without "@n"). Names are made and compared, never taken apart. KL_EINVAL:
 * none, and the sentence says which there are. */
kl_rc kl__layout_partition_find(const kl_queue *queue, const kl_layout *layout, const char *name,
                                uint32_t *ret_partition);

/* Writes into the record, unless it is known to say so, that the layout is `by_name` from now on. Done before the first
 * such task is appended, so that who has read the record misses none. */
kl_rc kl__queue_mark_by_name(kl_queue *queue, const kl__queue_layout *layout);

/* KL_EINVAL: a store of the layout cannot seal. */
kl_rc kl__layout_check_seal(const kl_queue *queue, const kl__queue_layout *layout);
kl_rc kl__layout_seal(const kl_queue *queue, const kl__queue_layout *layout); /* nothing more is stored there */

/* Reads the record again, seals every shard of all layouts but the newest, and writes into the record that they are.
 * Anybody may call it, any number of times; whoever opens a layout does, every worker that finds one not sealed, and
 * every producer that was told KL_ESEALED. */
kl_rc kl__queue_seal(kl_queue *queue);

/* Writes into the record that this sealed layout holds no task any more. */
kl_rc kl__queue_drained(kl_queue *queue, uint64_t layout_number);

/* The same of every sealed layout that is known here and holds none. */
kl_rc kl__queue_retire(kl_queue *queue);

/* The id that a task has after it was moved from one layout to another: the new shard, the same time and lane, and of
 * sequence and random bits as much as has room. Moving it twice makes the same id. Ids of one generator stay different,
 * and those of one lane keep their order. */
kl_task_id kl__id_moved(const kl_layout *from, const kl_layout *to, uint32_t shard, const kl_task_id *id);

/* --- put.c --- */

/* Appends tasks as they are (entry.place, id and bytes set by the caller, layout chosen), or says KL_ESEALED. The
 * append's token is a hash of their places and ids: a task that was moved may have its old id, and its move must not be
 * taken for a repeat of its put. Used by whoever moves tasks. */
kl_rc kl__queue_append(kl_store *store, const kl_entry *entries, size_t count);
kl_token kl__queue_token(const kl_entry *entries, size_t count); /* that token */

/* parts.c. What was appended under the token and told KL_ESEALED: stored[i] is set for each entry that is there all the
 * same, or now. KL_OK: all are. KL_ESEALED: the others are not, and are to be put elsewhere. Any other error: it is not
 * known. */
kl_rc kl__append_parts(kl_store *store, const kl_entry *entries, size_t count, const kl_token *token, bool *stored);

/* The shard of a task that moves from one layout to another: its key's, or one with the first digits of its old one. */
uint32_t kl__move_shard(const kl_layout *from, const kl_layout *to, const kl_entry *entry);

/* Likewise its partition, once it has the id that it has there. A partition that it was put into by name is
 * forgotten. */
uint32_t kl__move_partition(const kl_layout *to, const kl_entry *entry);

/* The id that a task of layout number `from`, which is this one, has in layout number `to`, moved through each layout
 * between that is known: so its copies, of moves that were broken off and layouts that were changed meanwhile, all come
 * to the same id. A key that is not known makes no difference but for the shard. */
kl_task_id kl__id_on_its_way(const kl__descriptor *descriptor, uint64_t from, uint64_t to, const kl_layout *layout,
                             const kl_entry *entry);

/* The same task in the newest layout, and the store that it goes to. */
kl_entry kl__entry_moved(const kl__descriptor *descriptor, uint64_t from, const kl_layout *layout,
                         const kl_entry *entry, kl_store **ret_store);

/* The 16-bit group that stubs carry: 0 for no group, never 0 otherwise. */
uint16_t kl__group_hash(kl_bytes group);

/* --- look.c --- */

/* "ready", "due", "retry", "done", "dead", "cancelled": what people and programs are told. */
const char *kl__task_state_name(const kl_task *task);

/* --- take_in.c --- */

/* Takes in tasks that were left for the queue in its store by other means (KL_STORE_INBOX), after waiting up to wait_ms
 * for some. Sets how many there were; 0: none, or somebody else is at it. A log is told of those that are refused. */
kl_rc kl__queue_take_in(kl_queue *queue, int64_t wait_ms, kl_log_fn *log, void *log_ctx, size_t *ret_count);

/* All that was left, for who wants to end or steer tasks and must find them in their lines. KL_ETIMEDOUT: not all
 * within wait_ms. */
kl_rc kl__queue_take_in_all(kl_queue *queue, int64_t wait_ms);

/* --- envelope.c: what a task carries beside its entry, in entry.headers --- */

/* Bytes in the arena; empty when there is nothing to carry. KL_EINVAL: over KL_HEADERS_BYTES_MAX. */
kl_rc kl__envelope_encode(const kl_task_extra *extra, kl_arena *arena, kl_bytes *ret_bytes);

/* KL_EDAMAGED: no envelope. Fields of unknown numbers are passed over. What is returned lies in arena and bytes. */
kl_rc kl__envelope_decode(kl_bytes bytes, kl_arena *arena, kl_task_extra *ret_extra);

#endif
