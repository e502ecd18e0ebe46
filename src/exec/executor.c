/* executor.c - opening an executor and submitting tasks to it: the start of the data path.
 *
 *      submit:  check -> hash the key -> shard -> claim a place -> fill in the task -> publish -> wake a thread
 *
 * A submit takes no mutex unless it must wait for room or its key may be blocked, and allocates nothing unless the key is long or the task has a
 * delay, a deadline or a report of its own. What it may need is allocated before a place is claimed, so that a claimed
 * place is always published. */
#include "exec/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/text.h"
#include "base/wait.h"
#include "exec/hand.h"

enum { BATCH_CHUNK = 64, LOG_LINE_BYTES = 512 };
enum { DEAR_NS_MIN = 500000, DEAR_NS_MAX = 3000000, DEAR_PLACE_NS = 100 };
enum { REFUSED_MAX = 64 }; /* keys of a batch that may be refused before it is cut short */

_Thread_local const kl_exec *kl__inside;
static _Thread_local int64_t dear_until_ns; /* for kl__yield */

/* A task that is ready to be written into a place. */
struct order {
    const kl_exec_task *task;
    kl__shard *shard;
    uint64_t hash;
    bool urgent; /* not to wait in the inbox while others are taken: it may belong before them, or has a time to keep */
    bool careful; /* its key may be blocked, or it is delayed: it must be admitted before it may claim a place */
    bool refused; /* it was not */
    kl__lane_mark mark;
    int64_t timeout_ms;
    kl__task_extra *extra; /* ours until the place is claimed */
    char *far_key;         /* likewise */
};

void kl__exec_log(const kl_exec *exec, kl_log_level level, const char *format, ...)
{
    if (!exec->opts.log)
        return;
    char line[LOG_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' '; /* keys and error texts may hold anything; a line stays a line */
    exec->opts.log(exec->opts.log_ctx, level, line);
}

/* --- Opening --- */

static uint32_t bits_for(uint32_t count)
{
    uint32_t bits = 0;
    while ((UINT64_C(1) << bits) < count)
        bits++;
    return bits;
}

static kl_rc start_threads(kl_exec *exec)
{
    for (uint32_t i = 0; i < exec->thread_count; i++) {
        kl__exec_thread *thread = &exec->threads[i];
        thread->exec = exec;
        thread->hand_size = 1;
        uint64_t shards = exec->shard_count, threads = exec->thread_count;
        thread->home = (uint32_t)(i * shards / threads);
        thread->homes = (uint32_t)((i + 1) * shards / threads) - thread->home;
        kl__cond_init(&thread->wake);
        int error = pthread_create(&thread->id, NULL, kl__thread_main, thread);
        if (error) {
            pthread_cond_destroy(&thread->wake);
            return kl__fail(KL_ESYSTEM, "thread %u of %lld could not be started (%s); ask for fewer threads", i + 1,
                            (long long)exec->opts.threads, strerror(error));
        }
        exec->started++;
    }
    return KL_OK;
}

static kl_rc build(kl_exec *exec, const kl__clock *clock)
{
    exec->clock = clock ? *clock : (kl__clock){NULL, NULL};
    exec->opened_ms = kl__exec_now_ms(exec);
    atomic_init(&exec->hand_most, kl__hand_most());
    exec->mark = (kl__lane_mark){.attempts_max = (uint16_t)exec->opts.attempts_max};
    int64_t turn_ns = DEAR_NS_MIN + DEAR_PLACE_NS * exec->opts.shards * exec->opts.shard_capacity;
    exec->dear_ns = turn_ns < DEAR_NS_MAX ? turn_ns : DEAR_NS_MAX;
    exec->shard_bits = bits_for((uint32_t)exec->opts.shards);
    atomic_init(&exec->random, kl__random_seed());
    pthread_mutex_init(&exec->park_mutex, NULL);
    kl__cond_init(&exec->all_ended);
    exec->shards = kl__alloc_aligned(KL_CACHE_LINE, (size_t)exec->opts.shards, sizeof *exec->shards);
    exec->threads = kl__alloc_aligned(KL_CACHE_LINE, (size_t)exec->opts.threads, sizeof *exec->threads);
    if (!exec->shards || !exec->threads)
        return kl__fail_memory();
    for (; exec->shard_count < (uint32_t)exec->opts.shards; exec->shard_count++) {
        kl_rc rc = kl__shard_open(&exec->shards[exec->shard_count], exec, exec->shard_count);
        if (rc != KL_OK)
            return rc;
    }
    exec->index_bits = bits_for(exec->shards[0].task_count + 1);
    exec->thread_count = (uint32_t)exec->opts.threads;
    return start_threads(exec);
}

kl_rc kl__exec_open_with(const kl_exec_opts *opts, const kl__clock *clock, kl_exec **ret_exec)
{
    kl_exec_opts complete;
    kl_rc rc = kl__exec_opts_complete(opts, &complete);
    if (rc != KL_OK)
        return rc;
    kl_exec *exec = kl__alloc_aligned(KL_CACHE_LINE, 1, sizeof *exec);
    if (!exec)
        return kl__fail_memory();
    exec->opts = complete;
    rc = build(exec, clock);
    if (rc != KL_OK) {
        kl_exec_close(exec);
        return rc;
    }
    *ret_exec = exec;
    return KL_OK;
}

kl_rc kl_exec_open(const kl_exec_opts *opts, kl_exec **ret_exec)
{
    if (!ret_exec)
        return kl__exec_fail_null("kl_exec_open", "ret_exec");
    return kl__exec_open_with(opts, NULL, ret_exec);
}

void kl_exec_close(kl_exec *exec)
{
    if (!exec)
        return;
    KL_ASSERT(kl__inside != exec);
    if (exec->started > 0)
        kl_exec_abort(exec);
    for (uint32_t i = 0; i < exec->started; i++) {
        pthread_mutex_lock(&exec->park_mutex);
        while (exec->threads[i].replacing)
            kl__cond_wait(&exec->all_ended, &exec->park_mutex, KL_NEVER);
        pthread_t id = exec->threads[i].id;
        pthread_mutex_unlock(&exec->park_mutex);
        pthread_join(id, NULL);
        pthread_cond_destroy(&exec->threads[i].wake);
    }
    for (uint32_t i = 0; i < exec->shard_count; i++)
        kl__shard_close(&exec->shards[i]);
    pthread_cond_destroy(&exec->all_ended);
    pthread_mutex_destroy(&exec->park_mutex);
    kl__free(exec->threads);
    kl__free(exec->shards);
    kl__free(exec);
}

/* --- Checking and routing --- */

kl_rc kl__exec_fail_null(const char *call, const char *argument)
{
    return kl__fail(KL_EINVAL, "%s: %s is NULL; pass %s", call, argument,
                    strcmp(argument, "exec") == 0 ? "an executor that kl_exec_open has opened"
                                                  : "the address of what is to be read or set");
}

kl_rc kl__exec_check_key(kl_bytes key)
{
    if (key.len > 0 && !key.data)
        return kl__fail(KL_EINVAL, "the key has a length of %zu but no bytes; pass both, or neither for no key",
                        key.len);
    if (KL_LIKELY(key.len <= KL_KEY_BYTES_MAX))
        return KL_OK;
    return kl__fail(KL_EINVAL, "the key has %zu bytes and may have %d; use a hash of it, or a shorter name", key.len,
                    KL_KEY_BYTES_MAX);
}

/* For a task without a key: each in turn. */
static kl__shard *next_shard(kl_exec *exec)
{
    uint32_t turn = atomic_fetch_add_explicit(&exec->next_shard, 1, memory_order_relaxed);
    return &exec->shards[turn % exec->shard_count];
}

static kl_rc add_extra(kl_exec *exec, struct order *order, const kl_exec_task_opts *opts)
{
    kl__task_extra *extra = kl__alloc_zeroed(1, sizeof *extra);
    if (!extra)
        return kl__fail_memory();
    int64_t now = opts->delay_ms || opts->deadline_ms ? kl__exec_now_ms(exec) : 0;
    extra->delayed = opts->delay_ms > 0;
    extra->due_ms = now + opts->delay_ms;
    extra->deadline_ms = opts->deadline_ms ? now + opts->deadline_ms : KL_NEVER;
    extra->end = opts->end;
    extra->end_ctx = opts->end_ctx;
    extra->ctx = order->task->ctx;
    order->mark.kind |= KL_KIND_EXTRA;
    order->extra = extra;
    return KL_OK;
}

static bool is_delayed(const struct order *order) { return order->extra && order->extra->delayed; }

static void drop_order(struct order *order)
{
    if (is_delayed(order))
        atomic_fetch_sub(&order->shard->delayed, 1);
    kl__free(order->extra);
    kl__free(order->far_key);
}

/* A task without options whose key can travel inside it: nearly every one. */
static inline bool is_plain(const kl_exec_task *task)
{
    return task->fn && !task->opts && task->key.data && task->key.len <= KL_TASK_KEY_INLINE;
}

/* Apart, because all of XXH3 in it would keep what calls it from being inlined. */
static __attribute__((noinline)) uint64_t hash_of(kl_bytes key) { return kl__hash_local(key); }

static inline void make_order(kl_exec *exec, const kl_exec_task *task, struct order *ret_order)
{
    uint64_t hash = KL_LIKELY(task->key.len > 0) ? hash_of(task->key) : 0;
    kl__shard *shard = KL_LIKELY(task->key.len > 0) ? kl__exec_shard_at(exec, hash) : next_shard(exec);
    *ret_order = (struct order){.task = task,
                                .shard = shard,
                                .hash = hash,
                                .careful = kl__lane_signs_say(shard->signs, (uint32_t)hash),
                                .mark = exec->mark,
                                .timeout_ms = exec->opts.submit_timeout_ms};
}

static kl_rc apply_options(kl_exec *exec, struct order *order)
{
    kl_exec_task_opts opts;
    kl_rc rc = kl__exec_task_opts_check(order->task->opts, &opts);
    if (rc != KL_OK)
        return rc;
    order->mark.priority = (int8_t)opts.priority;
    if (opts.attempts_max)
        order->mark.attempts_max = (uint16_t)opts.attempts_max;
    if (opts.submit_timeout_ms)
        order->timeout_ms = opts.submit_timeout_ms;
    if ((opts.delay_ms || opts.deadline_ms || opts.end) && (rc = add_extra(exec, order, &opts)) != KL_OK)
        return rc;
    order->urgent = order->mark.priority != 0 || order->extra;
    return KL_OK;
}

static kl_rc prepare_special(kl_exec *exec, const kl_exec_task *task, struct order *ret_order)
{
    kl_rc rc = task->fn ? kl__exec_check_key(task->key)
                        : kl__fail(KL_EINVAL, "the task has no function; pass the function that does its work");
    if (rc != KL_OK)
        return rc;
    struct order order;
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

static inline kl_rc prepare(kl_exec *exec, const kl_exec_task *task, struct order *ret_order)
{
    if (KL_UNLIKELY(!is_plain(task)))
        return prepare_special(exec, task, ret_order);
    make_order(exec, task, ret_order);
    return KL_OK;
}

/* --- Handing over --- */

/* memcpy for the lengths that most keys have, without the call. */
static inline void copy_key(char *to, kl_bytes key)
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
static inline void write_mark(kl__exec_task *task, kl__lane_mark mark)
{
    __atomic_store(&task->lane.mark, &mark, __ATOMIC_RELAXED);
}

/* Writes a task into its place and publishes it.
 *
 * A task that is delayed takes its place among those that were submitted before and after it was due, so while there is
 * one, the time of each submit is needed; it travels in the slot instead of the hash, which can be worked out again. */
static inline kl_exec_id fill(const struct order *order, uint64_t number)
{
    kl__shard *shard = order->shard;
    uint32_t index = kl__inbox_free_task(&shard->inbox, number);
    kl__exec_task *task = &shard->tasks[index];
    kl__fetch_to_write(&shard->tasks[kl__inbox_free_task(&shard->inbox, number + KL_INBOX_AHEAD)]);
    kl__fetch_to_write(kl__inbox_slot(&shard->inbox, number + KL_INBOX_SLOTS_AHEAD));
    task->fn = order->task->fn;
    task->ctx = order->task->ctx;
    uint32_t hash = (uint32_t)order->hash;
    write_mark(task, order->mark);
    if (KL_UNLIKELY(order->extra != NULL)) {
        task->extra = order->extra;
        order->extra->task = task;
    }
    if (KL_UNLIKELY(atomic_load_explicit(&shard->delayed, memory_order_relaxed) > 0)) {
        kl__lane_mark mark = order->mark;
        mark.kind |= KL_KIND_STAMPED;
        write_mark(task, mark);
        hash = (uint32_t)(kl__exec_now_ms(shard->exec) - shard->exec->opened_ms);
    }
    task->key.len = (uint16_t)order->task->key.len;
    if (KL_UNLIKELY(order->far_key != NULL))
        task->key.far = order->far_key;
    else
        copy_key(task->key.near, order->task->key);
    kl__inbox_publish(&shard->inbox, number, index, hash);
    return kl__exec_id(shard, task, number);
}

/* After publishing task `number`: see that a thread looks at it. */
static inline void announce(kl__shard *shard, uint64_t number, bool urgent)
{
    if (KL_UNLIKELY(urgent))
        atomic_fetch_add(&shard->urgent, 1);
    if (KL_UNLIKELY(atomic_load(&shard->exec->idle_count) > 0))
        kl__exec_announce(shard->exec, number + 1 - atomic_load_explicit(&shard->inbox.drained, memory_order_relaxed));
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
    /* Room is often a few microseconds away: let the threads that make it run before going to sleep for it. Half of it is
     * worth waiting for: taking each place as it comes free would have the cores tear at the same cache lines. */
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

/* When to give up waiting for room, in real time (a test's clock does not end waits); 0: do not wait. */
static int64_t wait_until(const kl_exec *exec, int64_t timeout_ms)
{
    if (timeout_ms <= 0 || kl__inside == exec)
        return 0;
    return kl__deadline_ns(timeout_ms);
}

/* The next shard, for a task without a key. */
static void go_elsewhere(kl_exec *exec, struct order *order)
{
    kl__shard *from = order->shard;
    order->shard = &exec->shards[(from->index + 1) % exec->shard_count];
    if (is_delayed(order)) {
        atomic_fetch_add(&order->shard->delayed, 1);
        atomic_fetch_sub(&from->delayed, 1);
    }
}

/* A task without a key may go to any shard that has room, and if it is delayed, room for such. */
static kl_rc claim_anywhere(kl_exec *exec, struct order *order, uint64_t *ret_number)
{
    uint64_t count;
    bool blocked;
    kl_rc rc = KL_EFULL;
    for (uint32_t i = 1; i < exec->shard_count && rc == KL_EFULL; i++) {
        go_elsewhere(exec, order);
        rc = is_delayed(order) ? kl__shard_admit(order->shard, &(kl__applicant){.delayed = true}, &blocked) : KL_OK;
        if (rc == KL_OK)
            rc = kl__inbox_claim(&order->shard->inbox, 1, ret_number, &count);
    }
    return rc;
}

/* Before the shard is called full to somebody who does not wait: if no thread has been there for a while, looks closely. */
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

/* Waits for a place: one with a key at its shard, one without wherever there is one first. */
static kl_rc claim_patiently(kl_exec *exec, struct order *order, uint64_t *ret_number)
{
    uint64_t count;
    bool keyless = order->task->key.len == 0;
    kl_rc rc = keyless ? claim_anywhere(exec, order, ret_number) : KL_EFULL;
    int64_t until_ns = wait_until(exec, order->timeout_ms), now_ns = kl__monotonic_ns();
    while (rc == KL_EFULL && now_ns < until_ns) {
        int64_t turn_ns = keyless && now_ns + KL_EXEC_LOOK_NS < until_ns ? now_ns + KL_EXEC_LOOK_NS : until_ns;
        rc = claim_waiting(order->shard, 1, turn_ns, ret_number, &count);
        if (rc == KL_EFULL && keyless)
            rc = claim_anywhere(exec, order, ret_number);
        now_ns = kl__monotonic_ns();
    }
    return rc == KL_EFULL && !keyless && until_ns == 0 ? claim_closely(order->shard, ret_number) : rc;
}

/* Asks whether an order that needs care may come in; one without a key may at any shard. Waiting would hold up the
 * caller's other keys, so only who has said to wait for ever does. Records the sentence if it may not. */
static kl_rc admit(kl_exec *exec, struct order *order)
{
    kl__applicant who = {.key = order->task->key, .hash = order->hash, .delayed = is_delayed(order)};
    bool waits = order->timeout_ms == KL_FOREVER && kl__inside != exec, blocked = false;
    uint32_t shards = who.key.len > 0 ? 1 : exec->shard_count;
    kl_rc rc = KL_EFULL;
    for (uint32_t i = 1; rc == KL_EFULL && i <= shards; i++) {
        who.patient = waits && i == shards;
        rc = kl__shard_admit(order->shard, &who, &blocked);
        if (rc == KL_EFULL && i < shards)
            go_elsewhere(exec, order);
    }
    order->refused = rc == KL_EFULL;
    if (rc == KL_EFULL)
        return kl__shard_fail_refused(order->shard, who.key, blocked);
    return rc == KL_OK ? KL_OK : fail_closed();
}

static inline void hand_over(const struct order *order, uint64_t number, kl_exec_id *ret_id)
{
    kl_exec_id id = fill(order, number);
    if (ret_id)
        *ret_id = id;
    announce(order->shard, number, order->urgent);
}

/* An order that must be admitted first, or wait for a place. */
static kl_rc submit_order(kl_exec *exec, struct order *order, kl_exec_id *ret_id)
{
    uint64_t number, count;
    kl_rc rc = order->careful ? admit(exec, order) : KL_OK;
    if (rc != KL_OK) {
        drop_order(order);
        return rc;
    }
    rc = kl__inbox_claim(&order->shard->inbox, 1, &number, &count);
    if (rc == KL_EFULL)
        rc = claim_patiently(exec, order, &number);
    if (rc != KL_OK) {
        drop_order(order);
        return rc == KL_EFULL ? kl__shard_fail_full(order->shard) : fail_closed();
    }
    hand_over(order, number, ret_id);
    return KL_OK;
}

/* These two are apart so that an order of the common kind can stay in registers. */
static __attribute__((noinline)) kl_rc submit_special(kl_exec *exec, const kl_exec_task *task, kl_exec_id *ret_id)
{
    struct order order;
    kl_rc rc = prepare_special(exec, task, &order);
    return rc == KL_OK ? submit_order(exec, &order, ret_id) : rc;
}

static __attribute__((noinline)) kl_rc submit_with_care(kl_exec *exec, struct order order, kl_exec_id *ret_id)
{
    return submit_order(exec, &order, ret_id);
}

kl_rc kl_exec_submit(kl_exec *exec, kl_bytes key, kl_task_fn *fn, void *ctx, const kl_exec_task_opts *opts,
                     kl_exec_id *ret_id)
{
    if (KL_UNLIKELY(!exec))
        return kl__exec_fail_null("kl_exec_submit", "exec");
    kl_exec_task task = {key, fn, ctx, opts};
    if (KL_UNLIKELY(!is_plain(&task)))
        return submit_special(exec, &task, ret_id);
    struct order order;
    make_order(exec, &task, &order);
    uint64_t number, count;
    if (KL_UNLIKELY(order.careful || kl__inbox_claim(&order.shard->inbox, 1, &number, &count) != KL_OK))
        return submit_with_care(exec, order, ret_id);
    hand_over(&order, number, ret_id);
    return KL_OK;
}

/* --- Batches: the same, but one claim and one wake-up per shard of each chunk --- */

/* The places that a chunk has in one shard. */
struct share {
    uint32_t wanted, taken; /* how many of the chunk's tasks go there, and how many of them have a place */
    uint64_t next;          /* number of the next one */
    bool urgent;
    bool is_over; /* one found no place: no other may */
};

/* A batch on its way. Keys that were refused get no more of it, for then they would not have its first tasks. */
struct batch {
    kl_exec *exec;
    kl_rc rc;     /* why not all was taken */
    bool is_over; /* no chunk follows */
    bool careful; /* some order needs care */
    uint32_t refused_count;
    struct order_key {
        const kl__shard *shard;
        uint64_t hash;
    } refused[REFUSED_MAX];
};

static bool has_key(const struct order *order, struct order_key key)
{
    return order->hash == key.hash && order->shard == key.shard && order->task->key.len > 0;
}

static bool was_refused(const struct batch *batch, const struct order *order)
{
    for (uint32_t i = 0; i < batch->refused_count; i++)
        if (has_key(order, batch->refused[i]))
            return true;
    return false;
}

/* An order that another of the same key before it in the chunk must not be overtaken by. */
static bool needs_care(const struct batch *batch, const struct order *orders, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (orders[i].careful && has_key(&orders[at], (struct order_key){orders[i].shard, orders[i].hash}))
            return true;
    return orders[at].careful || was_refused(batch, &orders[at]);
}

/* After an order was not taken: true if nothing more may go to its shard. */
static bool note_failure(struct batch *batch, const struct order *order, kl_rc rc)
{
    batch->rc = rc;
    if (order->refused && order->task->key.len == 0)
        return false;
    if (order->refused && batch->refused_count < REFUSED_MAX) {
        batch->refused[batch->refused_count++] = (struct order_key){order->shard, order->hash};
        return false;
    }
    batch->is_over = true;
    return true;
}

/* Submits all that finds a place at once, but not what needs care, nor to shards that take no more. Returns how many. */
static size_t submit_free(kl_exec *exec, struct order *orders, size_t count, kl_exec_id *ids, struct share *shares)
{
    size_t taken = 0;
    for (uint32_t i = 0; i < exec->shard_count; i++)
        shares[i] = (struct share){.is_over = shares[i].is_over};
    for (size_t i = 0; i < count; i++)
        shares[orders[i].shard->index].wanted += ids[i] == 0 && !orders[i].careful;
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        uint64_t places = 0;
        if (shares[i].wanted && !shares[i].is_over &&
            kl__inbox_claim(&exec->shards[i].inbox, shares[i].wanted, &shares[i].next, &places) == KL_OK)
            shares[i].taken = (uint32_t)places;
        taken += places;
    }
    for (size_t i = 0; i < count; i++) {
        struct share *share = &shares[orders[i].shard->index];
        if (KL_UNLIKELY(share->taken == 0 || orders[i].careful || ids[i] != 0))
            continue;
        share->taken--;
        share->urgent |= orders[i].urgent;
        ids[i] = fill(&orders[i], share->next++);
    }
    for (uint32_t i = 0; i < exec->shard_count; i++)
        if (shares[i].next)
            announce(&exec->shards[i], shares[i].next - 1, shares[i].urgent);
    return taken;
}

/* Keys may have become blocked while another order waited for its place. Whether they are may change at any moment, so what
 * follows an order of the same key is as careful as that: it must not be taken before it. */
static void look_again(struct order *orders, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (KL_LIKELY(!orders[i].careful && !kl__lane_signs_say(orders[i].shard->signs, (uint32_t)orders[i].hash)))
            continue;
        orders[i].careful = true;
        for (size_t j = i + 1; j < count; j++)
            if (has_key(&orders[j], (struct order_key){orders[i].shard, orders[i].hash}))
                orders[j].careful = true;
    }
}

/* Submits the first that found no place, waiting for one, then all that finds one now, and so on: in order, for once one
 * finds none, its shard takes no more of the chunk. Returns how many were taken. */
static size_t submit_rest(struct batch *batch, struct order *orders, size_t count, kl_exec_id *ids,
                          struct share *shares)
{
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t shard = orders[i].shard->index;
        if (ids[i] != 0)
            continue;
        if (shares[shard].is_over || was_refused(batch, &orders[i])) {
            drop_order(&orders[i]);
            continue;
        }
        look_again(orders + i, count - i);
        bool careful = orders[i].careful;
        kl_rc rc = submit_order(batch->exec, &orders[i], &ids[i]);
        if (rc != KL_OK) {
            shares[shard].is_over = note_failure(batch, &orders[i], rc);
            continue;
        }
        taken++;
        if (careful)
            continue;
        look_again(orders + i + 1, count - i - 1);
        taken += submit_free(batch->exec, orders + i + 1, count - i - 1, ids + i + 1, shares);
    }
    return taken;
}

/* Submits up to BATCH_CHUNK prepared orders. What is not taken gets id 0. Returns how many were taken. */
static size_t submit_chunk(struct batch *batch, struct order *orders, size_t count, kl_exec_id *ids)
{
    struct share shares[KL_EXEC_SHARDS_MAX];
    for (uint32_t i = 0; i < batch->exec->shard_count; i++)
        shares[i].is_over = false;
    for (size_t i = 0; i < count; i++)
        ids[i] = 0;
    for (size_t i = 0; KL_UNLIKELY(batch->careful || batch->refused_count > 0) && i < count; i++)
        orders[i].careful = needs_care(batch, orders, i);
    size_t taken = submit_free(batch->exec, orders, count, ids, shares);
    return KL_LIKELY(taken == count) ? taken : taken + submit_rest(batch, orders, count, ids, shares);
}

/* The sentence of what is wrong, with the task before it. */
static kl_rc name_task(size_t i, size_t count, kl_rc rc)
{
    char why[400];
    snprintf(why, sizeof why, "%s", kl_error_text());
    return kl__fail(rc, "task %zu of %zu: %s", i + 1, count, why);
}

static kl_rc check_batch(const kl_exec_task *tasks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (KL_LIKELY(tasks[i].fn && !tasks[i].opts && tasks[i].key.data && tasks[i].key.len <= KL_KEY_BYTES_MAX))
            continue;
        kl_exec_task_opts opts;
        kl_rc rc = tasks[i].fn ? kl__exec_check_key(tasks[i].key)
                               : kl__fail(KL_EINVAL, "it has no function; pass the function that does its work");
        if (rc == KL_OK && tasks[i].opts)
            rc = kl__exec_task_opts_check(tasks[i].opts, &opts);
        if (rc != KL_OK)
            return name_task(i, count, rc);
    }
    return KL_OK;
}

/* As many orders as fit into a chunk. One that cannot be prepared ends the batch before it. */
static size_t prepare_chunk(struct batch *batch, const kl_exec_task *tasks, size_t count, struct order *orders)
{
    size_t size = 0;
    for (; size < BATCH_CHUNK && size < count; size++) {
        kl_rc rc = prepare(batch->exec, &tasks[size], &orders[size]);
        if (KL_UNLIKELY(rc != KL_OK)) {
            batch->rc = rc;
            batch->is_over = true;
            break;
        }
        batch->careful |= orders[size].careful;
    }
    return size;
}

kl_rc kl_exec_submit_batch(kl_exec *exec, const kl_exec_task *tasks, size_t count, kl_exec_id *ret_ids,
                           size_t *ret_taken)
{
    size_t taken = 0, at = 0;
    if (!exec || (!tasks && count > 0))
        return kl__exec_fail_null("kl_exec_submit_batch", exec ? "tasks" : "exec");
    struct batch batch;
    batch.exec = exec;
    batch.rc = check_batch(tasks, count);
    batch.is_over = batch.rc != KL_OK;
    batch.careful = false;
    batch.refused_count = 0; /* `refused` needs no value, and is large */
    while (at < count && !batch.is_over) {
        struct order orders[BATCH_CHUNK];
        kl_exec_id ids[BATCH_CHUNK];
        size_t size = prepare_chunk(&batch, tasks + at, count - at, orders);
        taken += submit_chunk(&batch, orders, size, ids);
        if (ret_ids)
            memcpy(ret_ids + at, ids, size * sizeof ids[0]);
        at += size;
    }
    if (ret_ids && at < count)
        memset(ret_ids + at, 0, (count - at) * sizeof ret_ids[0]);
    if (ret_taken)
        *ret_taken = taken;
    return batch.rc;
}
