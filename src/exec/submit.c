/* submit.c - submitting a task: the start of the data path.
 *
 *      submit:  check -> hash the key -> shard -> claim a place -> fill in the task -> publish -> wake a thread
 *
 * A submit takes no mutex unless it must wait for room or its key may be blocked, and allocates nothing unless the key
 * is long or the task has a delay, a deadline or a report of its own. What it may need is allocated before a place is
 * claimed, so that a claimed place is always published. */
#include "exec/submit.h"

#include "base/wait.h"
#include "exec/hand.h"

static _Thread_local int64_t dear_until_ns; /* for kl__yield */

/* --- Checking and routing --- */

/* For a task without a key: each in turn. */
static kl__shard *next_shard(kl_exec *exec)
{
    uint32_t turn = atomic_fetch_add_explicit(&exec->next_shard, 1, memory_order_relaxed);
    return &exec->shards[turn % exec->shard_count];
}

static kl_rc add_extra(kl_exec *exec, kl__order *order, const kl_exec_task_opts *opts)
{
    kl__task_extra *extra = kl__alloc_zeroed(1, sizeof *extra);
    if (!extra)
        return kl__fail_memory();
    int64_t now_ns = opts->delay_ms || opts->deadline_ms ? kl__exec_now_ns(exec) : 0;
    extra->delayed = opts->delay_ms > 0;
    extra->due_ms = kl__ms_after(now_ns, opts->delay_ms);
    extra->deadline_ms = opts->deadline_ms ? kl__ms_after(now_ns, opts->deadline_ms) : KL_NEVER;
    extra->end = opts->end;
    extra->end_ctx = opts->end_ctx;
    extra->ctx = order->task->ctx;
    order->mark.kind |= KL_KIND_EXTRA;
    order->extra = extra;
    return KL_OK;
}

static bool is_delayed(const kl__order *order) { return order->extra && order->extra->delayed; }

void kl__order_drop(kl__order *order)
{
    if (is_delayed(order))
        atomic_fetch_sub(&order->shard->delayed, 1);
    kl__free(order->extra);
    kl__free(order->far_key);
}

/* A key's shard; without a key, any. */
static inline kl__shard *route(kl_exec *exec, kl_bytes key, uint64_t *ret_hash)
{
    *ret_hash = KL_LIKELY(key.len > 0) ? kl__hash_local(key) : 0;
    return KL_LIKELY(key.len > 0) ? kl__exec_shard_at(exec, *ret_hash) : next_shard(exec);
}

static void make_order(kl_exec *exec, const kl_exec_task *task, kl__order *ret_order)
{
    uint64_t hash;
    kl__shard *shard = route(exec, task->key, &hash);
    *ret_order = (kl__order){.task = task,
                             .shard = shard,
                             .hash = hash,
                             .careful = kl__exec_may_be_blocked(shard, task->key, hash),
                             .patient = exec->opts.submit_timeout_ms == KL_FOREVER,
                             .mark = exec->mark,
                             .timeout_ms = exec->opts.submit_timeout_ms};
}

static kl_rc apply_options(kl_exec *exec, kl__order *order)
{
    kl_exec_task_opts opts;
    kl_rc rc = kl__exec_task_opts_check(order->task->opts, &opts);
    if (rc != KL_OK)
        return rc;
    order->mark.priority = (int8_t)opts.priority;
    if (opts.attempts_max)
        order->mark.attempts_max = (uint16_t)opts.attempts_max;
    if (opts.submit_timeout_ms) {
        order->timeout_ms = opts.submit_timeout_ms;
        order->patient = true;
    }
    if ((opts.delay_ms || opts.deadline_ms || opts.end) && (rc = add_extra(exec, order, &opts)) != KL_OK)
        return rc;
    order->urgent = order->mark.priority != 0 || order->extra;
    return KL_OK;
}

static kl_rc prepare_special(kl_exec *exec, const kl_exec_task *task, kl__order *ret_order)
{
    kl_rc rc = task->fn ? kl__exec_check_key(task->key)
                        : kl__fail(KL_EINVAL, "the task has no function; pass the function that does its work");
    if (rc != KL_OK)
        return rc;
    kl__order order;
    make_order(exec, task, &order);
    if (task->opts && (rc = apply_options(exec, &order)) != KL_OK)
        return rc;
    if (task->key.len > KL_TASK_KEY_INLINE) {
        if (!(order.far_key = kl__alloc(task->key.len))) {
            kl__free(order.extra);
            return kl__fail_memory();
        }
        memcpy(order.far_key, task->key.data, task->key.len);
    }
    if (is_delayed(&order)) {
        order.careful = true;
        atomic_fetch_add(&order.shard->delayed, 1); /* before it is handed over: those after it are stamped */
    }
    *ret_order = order;
    return KL_OK;
}

kl_rc kl__order_prepare(kl_exec *exec, const kl_exec_task *task, kl__order *ret_order)
{
    if (KL_UNLIKELY(!kl__task_is_plain(task)))
        return prepare_special(exec, task, ret_order);
    make_order(exec, task, ret_order);
    return KL_OK;
}

/* --- Handing over --- */

/* A task that is delayed takes its place among those that were submitted before and after it was due, so while there is
 * one, the time of each submit is needed; it travels in the slot instead of the hash, which can be worked out again. */
uint32_t kl__place_stamp(const kl_exec *exec, kl__exec_task *task)
{
    kl__lane_mark mark = task->lane.mark;
    mark.kind |= KL_KIND_STAMPED;
    kl__mark_write(task, mark);
    return (uint32_t)(kl__exec_now_ms(exec) - exec->opened_ms);
}

static kl_rc fail_closed(void)
{
    return kl__fail(KL_ECLOSED, "the executor has been stopped and takes no more tasks; open a new one");
}

/* What is done and still in the hand of a thread whose next task takes long gives its place back. Under the mutex. */
static void recall_hands(kl__shard *shard)
{
    kl__hand_recall_all(shard, kl__exec_now_ns(shard->exec));
    kl__shard_offer(shard);
}

/* Claims at least one place, waiting for room until `until_ns`. */
static kl_rc claim_waiting(kl__shard *shard, uint64_t wanted, int64_t until_ns, uint64_t *ret_first,
                           uint64_t *ret_count)
{
    kl_rc rc;
    /* Room is often a few microseconds away: let the threads that make it run before going to sleep for it. Half of it
     * is worth waiting for: taking each place as it comes free would have the cores tear at the same cache lines. */
    for (int i = 0; i < KL_EXEC_YIELDS; i++) {
        if (kl__monotonic_ns() >= until_ns || !kl__yield(shard->exec->dear_ns, &dear_until_ns))
            break;
        if (kl__inbox_length(&shard->inbox) > shard->inbox.capacity / 2)
            continue;
        if ((rc = kl__inbox_claim(&shard->inbox, wanted, ret_first, ret_count)) != KL_EFULL)
            return rc;
    }
    pthread_mutex_lock(&shard->mutex);
    shard->waiting++;
    bool in_time = true;
    while ((rc = kl__inbox_claim(&shard->inbox, wanted, ret_first, ret_count)) == KL_EFULL && in_time) {
        /* We are called when a good part is free; a place here and there we find ourselves. */
        int64_t look_ns = kl__monotonic_ns() + KL_EXEC_LOOK_NS;
        if (!kl__cond_wait(&shard->room, &shard->mutex, until_ns < look_ns ? until_ns : look_ns)) {
            in_time = until_ns > look_ns;
            recall_hands(shard);
        }
    }
    shard->waiting--;
    pthread_mutex_unlock(&shard->mutex);
    return rc;
}

/* When to give up waiting, first for the key and then for room, in real time (a test's clock does not end waits); 0: do
 * not wait. */
static int64_t wait_until(const kl_exec *exec, kl__order *order)
{
    if (order->until_ns == 0 && order->timeout_ms > 0 && !kl__is_inside(exec))
        order->until_ns = kl__deadline_ns(order->timeout_ms);
    return order->until_ns;
}

/* Until when to wait at one shard: who has no key looks at the others from time to time. */
static int64_t turn_until(const kl__order *order, int64_t until_ns)
{
    int64_t turn_ns = kl__monotonic_ns() + KL_EXEC_LOOK_NS;
    return order->task->key.len == 0 && turn_ns < until_ns ? turn_ns : until_ns;
}

/* The next shard, for a task without a key. */
static void go_elsewhere(kl_exec *exec, kl__order *order)
{
    kl__shard *from = order->shard;
    order->shard = &exec->shards[(from->index + 1) % exec->shard_count];
    if (is_delayed(order)) {
        atomic_fetch_add(&order->shard->delayed, 1);
        atomic_fetch_sub(&from->delayed, 1);
    }
}

/* Before the shard is called full to somebody who does not wait: if no thread has been there for a while, looks
 * closely. */
static kl_rc claim_closely(kl__shard *shard, uint64_t *ret_number)
{
    uint64_t count;
    if (kl__exec_now_ns(shard->exec) - atomic_load_explicit(&shard->visited_ns, memory_order_relaxed) < KL_EXEC_LOOK_NS)
        return KL_EFULL;
    pthread_mutex_lock(&shard->mutex);
    recall_hands(shard);
    pthread_mutex_unlock(&shard->mutex);
    return kl__inbox_claim(&shard->inbox, 1, ret_number, &count);
}

/* Whether a task without a key may claim a place in the shard to which it has come: not if it is delayed, and there are
 * enough of such. */
static kl_rc admit_here(const kl__order *order, int64_t until_ns)
{
    bool blocked;
    kl__applicant who = {.delayed = true, .until_ns = until_ns};
    return is_delayed(order) ? kl__shard_admit(order->shard, &who, &blocked) : KL_OK;
}

/* A task without a key may go to any shard that has room, and if it is delayed, room for such. Closely: looks so at all
 * of them, and else at the others. */
static kl_rc claim_anywhere(kl_exec *exec, kl__order *order, bool closely, uint64_t *ret_number)
{
    uint64_t count;
    kl_rc rc = KL_EFULL;
    for (uint32_t i = closely ? 0 : 1; i < exec->shard_count && rc == KL_EFULL; i++) {
        go_elsewhere(exec, order);
        rc = admit_here(order, 0);
        if (rc == KL_OK)
            rc = closely ? claim_closely(order->shard, ret_number)
                         : kl__inbox_claim(&order->shard->inbox, 1, ret_number, &count);
    }
    return rc;
}

/* Waits for a place: one with a key at its shard, one without wherever there is one first. */
static kl_rc claim_patiently(kl_exec *exec, kl__order *order, uint64_t *ret_number)
{
    uint64_t count;
    bool keyless = order->task->key.len == 0;
    kl_rc rc = keyless ? claim_anywhere(exec, order, false, ret_number) : KL_EFULL;
    int64_t until_ns = wait_until(exec, order);
    while (rc == KL_EFULL && kl__monotonic_ns() < until_ns) {
        int64_t turn_ns = turn_until(order, until_ns);
        rc = keyless ? admit_here(order, turn_ns) : KL_OK;
        if (rc == KL_OK)
            rc = claim_waiting(order->shard, 1, turn_ns, ret_number, &count);
        if (rc == KL_EFULL && keyless)
            rc = claim_anywhere(exec, order, false, ret_number);
    }
    if (rc != KL_EFULL || until_ns != 0)
        return rc;
    return keyless ? claim_anywhere(exec, order, true, ret_number) : claim_closely(order->shard, ret_number);
}

/* An order with a key asks at its shard, one without at all of them, and it is at the last that it waits. */
static kl_rc admit_somewhere(kl_exec *exec, kl__order *order, int64_t until_ns, bool *ret_blocked)
{
    kl__applicant who = {.key = order->task->key, .hash = order->hash, .delayed = is_delayed(order)};
    uint32_t shards = who.key.len > 0 ? 1 : exec->shard_count;
    kl_rc rc = KL_EFULL;
    for (uint32_t i = 1; rc == KL_EFULL && i <= shards; i++) {
        who.until_ns = i == shards ? until_ns : 0;
        rc = kl__shard_admit(order->shard, &who, ret_blocked);
        if (rc == KL_EFULL && i < shards)
            go_elsewhere(exec, order);
    }
    return rc;
}

/* Asks whether an order that needs care may come in; one without a key may at any shard. Waiting would hold up the
 * caller's other keys, so only a task does that says itself how long, or all if they wait for ever. Records the
 * sentence if it may not. */
static kl_rc admit(kl_exec *exec, kl__order *order)
{
    bool keyless = order->task->key.len == 0, blocked = false;
    int64_t until_ns = order->patient ? wait_until(exec, order) : 0;
    kl_rc rc = admit_somewhere(exec, order, turn_until(order, until_ns), &blocked);
    while (rc == KL_EFULL && keyless && kl__monotonic_ns() < until_ns)
        rc = admit_somewhere(exec, order, turn_until(order, until_ns), &blocked);
    order->refused = rc == KL_EFULL;
    if (rc == KL_EFULL)
        return kl__shard_fail_refused(order->shard, order->task->key, blocked);
    return rc == KL_OK ? KL_OK : fail_closed();
}

static void hand_over(const kl__order *order, uint64_t number, kl_exec_id *ret_id)
{
    kl_exec_id id = kl__order_fill(order, number);
    if (ret_id)
        *ret_id = id;
    kl__place_announce(order->shard, number, order->urgent);
}

/* An order that must be admitted first, or wait for a place. */
kl_rc kl__order_submit(kl_exec *exec, kl__order *order, kl_exec_id *ret_id)
{
    uint64_t number, count;
    kl_rc rc = order->careful ? admit(exec, order) : KL_OK;
    if (rc != KL_OK) {
        kl__order_drop(order);
        return rc;
    }
    rc = kl__inbox_claim(&order->shard->inbox, 1, &number, &count);
    if (rc == KL_EFULL)
        rc = claim_patiently(exec, order, &number);
    if (rc != KL_OK) {
        kl__order_drop(order);
        return rc == KL_EFULL ? kl__shard_fail_full(order->shard) : fail_closed();
    }
    hand_over(order, number, ret_id);
    return KL_OK;
}

static __attribute__((noinline)) kl_rc submit_special(kl_exec *exec, const kl_exec_task *task, kl_exec_id *ret_id)
{
    kl__order order;
    kl_rc rc = kl__order_prepare(exec, task, &order);
    return rc == KL_OK ? kl__order_submit(exec, &order, ret_id) : rc;
}

/* A plain task whose key may be blocked. Whoever is refused again shall hear it soon: he may have tasks of other
 * keys. */
static __attribute__((noinline)) kl_rc submit_to_blocked(kl_exec *exec, const kl_exec_task *task, kl__shard *shard,
                                                         uint64_t hash, kl_exec_id *ret_id)
{
    if (kl__exec_refuses(exec, shard, hash))
        return kl__shard_fail_refused(shard, task->key, true);
    return submit_special(exec, task, ret_id);
}

kl_rc kl_exec_submit(kl_exec *exec, kl_bytes key, kl_task_fn *fn, void *ctx, const kl_exec_task_opts *opts,
                     kl_exec_id *ret_id)
{
    if (KL_UNLIKELY(!exec))
        return kl__exec_fail_null("kl_exec_submit", "exec");
    kl_exec_task task = {key, fn, ctx, opts};
    if (KL_UNLIKELY(!kl__task_is_plain(&task)))
        return submit_special(exec, &task, ret_id);
    uint64_t hash, number, count;
    kl__shard *shard = route(exec, key, &hash);
    if (KL_UNLIKELY(kl__exec_may_be_blocked(shard, key, hash)))
        return submit_to_blocked(exec, &task, shard, hash, ret_id);
    if (KL_UNLIKELY(kl__inbox_claim(&shard->inbox, 1, &number, &count) != KL_OK))
        return submit_special(exec, &task, ret_id);
    kl_exec_id id = kl__place_fill(shard, &task, exec->mark, (uint32_t)hash, number, NULL);
    if (ret_id)
        *ret_id = id;
    kl__place_announce(shard, number, false);
    return KL_OK;
}
