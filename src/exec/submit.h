/* submit.h - how a task is written into its place: what single submits and batches share. */
#ifndef KL_EXEC_SUBMIT_H
#define KL_EXEC_SUBMIT_H

#include <string.h>

#include "exec/internal.h"

/* A task without options whose key can travel inside it: nearly every one. */
static inline bool kl__task_is_plain(const kl_exec_task *task)
{
    return task->fn && !task->opts && task->key.data && task->key.len <= KL_TASK_KEY_INLINE;
}

/* Whether the key of a task may be blocked. A task without a key has none that could be. */
static inline bool kl__exec_may_be_blocked(const kl__shard *shard, kl_bytes key, uint64_t hash)
{
    return kl__lane_has_signs(shard->signs, (uint32_t)hash) && key.len > 0;
}

/* Whether a plain task of a key with this hash would be refused, as its key was before. Where submits wait for ever it
 * is not, but waits. */
static inline bool kl__exec_refuses(const kl_exec *exec, const kl__shard *shard, uint64_t hash)
{
    return exec->opts.submit_timeout_ms != KL_FOREVER && kl__shard_refuses(shard, hash);
}

/* A task that is ready to be written into a place. */
typedef struct kl__order {
    const kl_exec_task *task;
    kl__shard *shard;
    uint64_t hash;
    bool urgent; /* not to wait in the inbox while others are taken: it may belong before them, or has a time to keep */
    bool careful; /* its key may be blocked, or it is delayed: it must be admitted before it may claim a place */
    bool refused; /* it was not */
    bool patient; /* it is to wait for a blocked key, too */
    kl__lane_mark mark;
    int64_t timeout_ms;
    int64_t until_ns;      /* when that is over; 0: it has not waited yet, or is not to */
    kl__task_extra *extra; /* ours until the place is claimed */
    char *far_key;         /* likewise */
    kl_exec_id *id;        /* of a batch: 0 while it is not taken */
} kl__order;

/* --- Places --- */

/* memcpy for the lengths that most keys have, without the call. */
static inline void kl__key_copy(char *to, kl_bytes key)
{
    if (KL_UNLIKELY(key.len < 8 || key.len > 16)) {
        if (key.len > 0)
            memcpy(to, key.data, key.len);
        return;
    }
    uint64_t start, end;
    memcpy(&start, key.data, 8);
    memcpy(&end, (const char *)key.data + key.len - 8, 8);
    memcpy(to, &start, 8);
    memcpy(to + key.len - 8, &end, 8);
}

/* Atomic for find_task(), which may look whether a task lives in this memory. */
static inline void kl__mark_write(kl__exec_task *task, kl__lane_mark mark)
{
    __atomic_store(&task->lane.mark, &mark, __ATOMIC_RELAXED);
}

/* While a task of the shard is delayed: notes the time of the submit. Returns what belongs into the slot. Apart, or
 * else every task's mark would be taken to pieces for its sake. */
__attribute__((noinline, cold)) uint32_t kl__place_stamp(const kl_exec *exec, kl__exec_task *task);

/* Writes a task into its place and publishes it. `order` is NULL for one that is plain. */
static inline __attribute__((always_inline)) kl_exec_id kl__place_fill(kl__shard *shard, const kl_exec_task *from,
                                                                       kl__lane_mark mark, uint32_t hash,
                                                                       uint64_t number, const kl__order *order)
{
    uint32_t index = kl__inbox_free_task(&shard->inbox, number);
    kl__exec_task *task = &shard->tasks[index];
    kl__fetch_to_write(&shard->tasks[kl__inbox_free_task(&shard->inbox, number + KL_INBOX_AHEAD)]);
    kl__fetch_to_write(kl__inbox_slot(&shard->inbox, number + KL_INBOX_SLOTS_AHEAD));
    task->fn = from->fn;
    task->ctx = from->ctx;
    kl__mark_write(task, mark);
    if (KL_UNLIKELY(atomic_load_explicit(&shard->delayed, memory_order_relaxed) > 0))
        hash = kl__place_stamp(shard->exec, task);
    task->key.len = (uint16_t)from->key.len;
    if (order && order->far_key)
        task->key.far = order->far_key;
    else
        kl__key_copy(task->key.near, from->key);
    if (order && order->extra) {
        task->extra = order->extra;
        order->extra->task = task;
    }
    kl__inbox_publish(&shard->inbox, number, index, hash);
    return kl__exec_id_at(shard, index, number);
}

static inline kl_exec_id kl__order_fill(const kl__order *order, uint64_t number)
{
    return kl__place_fill(order->shard, order->task, order->mark, (uint32_t)order->hash, number, order);
}

/* After publishing task `number`: see that a thread looks at it. */
static inline void kl__place_announce(kl__shard *shard, uint64_t number, bool urgent)
{
    if (KL_UNLIKELY(urgent))
        atomic_fetch_add(&shard->urgent, 1);
    if (KL_UNLIKELY(atomic_load(&shard->exec->idle_count) > 0)) /* by now more than that may be drained */
        kl__exec_announce(shard->exec, (int64_t)(number + 1 - kl__inbox_drained(&shard->inbox)));
}

/* --- Orders: submit.c --- */

/* Checks a task and gets what its options need. KL_EINVAL, KL_ENOMEM, with a sentence; then there is no order. */
KL_MUST_USE kl_rc kl__order_prepare(kl_exec *exec, const kl_exec_task *task, kl__order *ret_order);
void kl__order_drop(kl__order *order);

/* Admits the order if it needs that, and waits for a place if it may. It is dropped if it is not taken. */
KL_MUST_USE kl_rc kl__order_submit(kl_exec *exec, kl__order *order, kl_exec_id *ret_id);

#endif
