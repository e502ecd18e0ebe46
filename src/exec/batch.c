/* batch.c - submitting many tasks at once: one claim and one wake-up for each shard of a chunk.
 *
 * Nearly always all of a chunk is plain, no key of it is blocked, and each shard has room: then it is sorted by shard
 * and written into its places (submit_plain). Tasks whose keys may be blocked are set aside, with all that follow them
 * in the batch and may be of the same key; of those whose keys are refused again that is said at once. The others, what
 * found no place, and a chunk of another kind are made into orders, which are submitted like single ones, in order for
 * each key. */
#include "exec/submit.h"

#include <stdio.h>

enum { BATCH_CHUNK = 64, ASIDE_BITS = 1024 };
enum { REFUSED_MAX = 64 }; /* keys of a batch that may be refused before it is cut short */

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
    size_t taken;
    kl_rc rc;                        /* why not all was taken */
    bool is_over;                    /* no chunk follows */
    int64_t waits_ns;                /* when the first began to wait for a place; 0: none has */
    bool careful;                    /* some order needs care */
    bool is_parted;                  /* some key may have been set aside: then `aside` has a value */
    uint64_t aside[ASIDE_BITS / 64]; /* by their hash: keys of which nothing more is submitted as plain */
    uint32_t refused_count;
    struct order_key {
        const kl__shard *shard;
        uint64_t hash;
    } refused[REFUSED_MAX];
};

static struct order_key key_of(const kl__order *order) { return (struct order_key){order->shard, order->hash}; }

static bool has_key(const kl__order *order, struct order_key key)
{
    return order->hash == key.hash && order->shard == key.shard && order->task->key.len > 0;
}

static bool was_key_refused(const struct batch *batch, struct order_key key)
{
    for (uint32_t i = 0; i < batch->refused_count; i++)
        if (batch->refused[i].hash == key.hash && batch->refused[i].shard == key.shard)
            return true;
    return false;
}

static bool was_refused(const struct batch *batch, const kl__order *order)
{
    return order->task->key.len > 0 && was_key_refused(batch, key_of(order));
}

/* Its key may be blocked or was refused, or it must not overtake one of the same key that needs care. */
static bool needs_care(const struct batch *batch, const kl__order *orders, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (orders[i].careful && has_key(&orders[at], key_of(&orders[i])))
            return true;
    return orders[at].careful || was_refused(batch, &orders[at]);
}

static uint64_t aside_bit(uint64_t hash) { return UINT64_C(1) << hash % 64; }
static uint64_t *aside_word(struct batch *batch, uint64_t hash) { return &batch->aside[hash % ASIDE_BITS / 64]; }

static bool is_aside(struct batch *batch, uint64_t hash) { return *aside_word(batch, hash) & aside_bit(hash); }

static void begin_parting(struct batch *batch)
{
    if (!batch->is_parted)
        memset(batch->aside, 0, sizeof batch->aside);
    batch->is_parted = true;
}

/* No more of the key is plain. */
static void set_aside(struct batch *batch, uint64_t hash)
{
    begin_parting(batch);
    *aside_word(batch, hash) |= aside_bit(hash);
}

static void note_refused(struct batch *batch, struct order_key key)
{
    batch->refused[batch->refused_count++] = key;
    set_aside(batch, key.hash);
}

/* After an order was not taken: true if nothing more may go to its shard. */
static bool note_failure(struct batch *batch, const kl__order *order, kl_rc rc)
{
    batch->rc = rc;
    if (order->refused && order->task->key.len == 0)
        return false;
    if (order->refused && batch->refused_count < REFUSED_MAX) {
        note_refused(batch, key_of(order));
        return false;
    }
    batch->is_over = true;
    return true;
}

/* Submits all that finds a place at once, but not what needs care, nor to shards that take no more. Returns how
 * many. */
static size_t submit_free(kl_exec *exec, kl__order *orders, size_t count, struct share *shares)
{
    size_t taken = 0;
    for (uint32_t i = 0; i < exec->shard_count; i++)
        shares[i] = (struct share){.is_over = shares[i].is_over};
    for (size_t i = 0; i < count; i++)
        shares[orders[i].shard->index].wanted += *orders[i].id == 0 && !orders[i].careful;
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        uint64_t places = 0;
        if (shares[i].wanted && !shares[i].is_over &&
            kl__inbox_claim(&exec->shards[i].inbox, shares[i].wanted, &shares[i].next, &places) == KL_OK)
            shares[i].taken = (uint32_t)places;
        taken += places;
    }
    for (size_t i = 0; i < count; i++) {
        struct share *share = &shares[orders[i].shard->index];
        if (KL_UNLIKELY(share->taken == 0 || orders[i].careful || *orders[i].id != 0))
            continue;
        share->taken--;
        share->urgent |= orders[i].urgent;
        *orders[i].id = kl__order_fill(&orders[i], share->next++);
    }
    for (uint32_t i = 0; i < exec->shard_count; i++)
        if (shares[i].next)
            kl__place_announce(&exec->shards[i], shares[i].next - 1, shares[i].urgent);
    return taken;
}

/* Keys may have become blocked while another order waited for its place. Whether they are may change at any moment, so
 * what follows an order of the same key is as careful as that: it must not be taken before it. */
static void look_again(kl__order *orders, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const kl__order *order = &orders[i];
        if (KL_LIKELY(!order->careful && !kl__exec_may_be_blocked(order->shard, order->task->key, order->hash)))
            continue;
        orders[i].careful = true;
        for (size_t j = i + 1; j < count; j++)
            if (has_key(&orders[j], key_of(&orders[i])))
                orders[j].careful = true;
    }
}

/* Orders that wait one after the other have waited all the time. */
static void wait_shorter(struct batch *batch, kl__order *order)
{
    if (order->timeout_ms <= 0 || order->timeout_ms == KL_FOREVER)
        return;
    int64_t now_ns = kl__monotonic_ns();
    if (!batch->waits_ns)
        batch->waits_ns = now_ns;
    int64_t waited_ms = kl__ns_to_ms(now_ns - batch->waits_ns);
    order->timeout_ms = order->timeout_ms > waited_ms ? order->timeout_ms - waited_ms : 0;
}

/* Submits the first that found no place, waiting for one, then all that finds one now, and so on: in order, for once
 * one finds none, its shard takes no more of the chunk. Returns how many were taken. */
static size_t submit_rest(struct batch *batch, kl__order *orders, size_t count, struct share *shares)
{
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t shard = orders[i].shard->index;
        if (*orders[i].id != 0)
            continue;
        if (shares[shard].is_over || was_refused(batch, &orders[i])) {
            kl__order_drop(&orders[i]);
            continue;
        }
        look_again(orders + i, count - i);
        bool careful = orders[i].careful;
        wait_shorter(batch, &orders[i]);
        kl_rc rc = kl__order_submit(batch->exec, &orders[i], orders[i].id);
        if (rc != KL_OK) {
            shares[shard].is_over = note_failure(batch, &orders[i], rc);
            continue;
        }
        taken++;
        if (careful)
            continue;
        look_again(orders + i + 1, count - i - 1);
        taken += submit_free(batch->exec, orders + i + 1, count - i - 1, shares);
    }
    return taken;
}

/* Submits up to BATCH_CHUNK prepared orders, and gives ids to those that are taken. Returns how many were. */
static size_t submit_prepared(struct batch *batch, kl__order *orders, size_t count)
{
    struct share shares[KL_EXEC_SHARDS_MAX];
    for (uint32_t i = 0; i < batch->exec->shard_count; i++)
        shares[i].is_over = false;
    for (size_t i = 0; KL_UNLIKELY(batch->careful || batch->refused_count > 0) && i < count; i++)
        orders[i].careful = needs_care(batch, orders, i);
    size_t taken = submit_free(batch->exec, orders, count, shares);
    return taken + submit_rest(batch, orders, count, shares);
}

/* The tasks of a chunk that go to one shard, in order. */
struct line {
    uint32_t count;
    uint8_t tasks[BATCH_CHUNK];
};

/* Where the tasks of a chunk go. */
struct routes {
    uint64_t hash[BATCH_CHUNK]; /* of their keys */
    struct line lines[KL_EXEC_SHARDS_MAX];
};

/* False: not all of them are plain and have a key. */
static bool route_all(kl_exec *exec, const kl_exec_task *tasks, size_t count, struct routes *routes)
{
    for (uint32_t i = 0; i < exec->shard_count; i++)
        routes->lines[i].count = 0;
    for (size_t i = 0; i < count; i++) {
        if (KL_UNLIKELY(!kl__task_is_plain(&tasks[i]) || tasks[i].key.len == 0))
            return false;
        uint64_t hash = kl__hash_local(tasks[i].key);
        struct line *line = &routes->lines[kl__hash_scale(hash, exec->shard_count)];
        routes->hash[i] = hash;
        line->tasks[line->count++] = (uint8_t)i;
    }
    return true;
}

/* Whether the key was refused, in this batch or before it, and still would be: then that has been said. */
static bool is_refused_again(struct batch *batch, kl__shard *shard, uint64_t hash, kl_bytes bytes)
{
    struct order_key key = {shard, hash};
    if (is_aside(batch, hash) && was_key_refused(batch, key))
        return true;
    if (batch->refused_count == REFUSED_MAX || !kl__exec_refuses(batch->exec, shard, hash))
        return false;
    note_refused(batch, key);
    batch->rc = kl__shard_fail_refused(shard, bytes, true);
    return true;
}

/* Whether a task of the line may be of a blocked key. */
static bool has_suspects(const struct routes *routes, const struct line *line, const kl__shard *shard)
{
    bool any = false;
    for (uint32_t n = 0; n < line->count; n++)
        any |= kl__lane_has_signs(shard->signs, (uint32_t)routes->hash[line->tasks[n]]);
    return any;
}

/* Sets aside what may be of a blocked key, and all that follows it in the batch and may be of the same key, for whether
 * that is blocked may change at any moment: it gets id 0. Counts what was refused again; the rest stays in the line. */
static void part_line(struct batch *batch, const kl_exec_task *tasks, struct routes *routes, struct line *line,
                      kl__shard *shard, kl_exec_id *ids, size_t *io_refused)
{
    uint32_t rest = 0;
    begin_parting(batch);
    for (uint32_t n = 0; n < line->count; n++) {
        uint8_t i = line->tasks[n];
        uint64_t hash = routes->hash[i];
        line->tasks[rest] = i;
        if (KL_LIKELY(!is_aside(batch, hash) && !kl__lane_has_signs(shard->signs, (uint32_t)hash))) {
            rest++;
            continue;
        }
        *io_refused += is_refused_again(batch, shard, hash, tasks[i].key);
        set_aside(batch, hash);
        ids[i] = 0;
    }
    line->count = rest;
}

/* Submits what finds a place at once; what does not gets id 0. Returns how many do. */
static size_t submit_line(kl__shard *shard, const kl_exec_task *tasks, const struct routes *routes,
                          const struct line *line, kl_exec_id *ids)
{
    uint64_t number = 0, places = 0;
    if (kl__inbox_claim(&shard->inbox, line->count, &number, &places) != KL_OK)
        places = 0;
    for (uint64_t n = 0; n < places; n++) {
        uint8_t i = line->tasks[n];
        ids[i] = kl__place_fill(shard, &tasks[i], shard->exec->mark, (uint32_t)routes->hash[i], number + n, NULL);
    }
    if (places > 0)
        kl__place_announce(shard, number + places - 1, false);
    for (uint64_t n = places; n < line->count; n++)
        ids[line->tasks[n]] = 0;
    return places;
}

/* The common case of a chunk: tasks without options whose keys are short. Submits those that need not be set aside and
 * find a place at once; the others get id 0. Says how many those are that are left, not being refused. False: it is not
 * that case, and nothing has happened. */
static bool submit_plain(struct batch *batch, const kl_exec_task *tasks, size_t count, kl_exec_id *ids,
                         size_t *ret_left)
{
    kl_exec *exec = batch->exec;
    struct routes routes;
    size_t taken = 0, refused = 0;
    bool was_parted = batch->is_parted; /* what other lines of the chunk have aside is of other keys */
    if (!route_all(exec, tasks, count, &routes))
        return false;
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        kl__shard *shard = &exec->shards[i];
        struct line *line = &routes.lines[i];
        if (KL_UNLIKELY(was_parted || (kl__lane_signs_any(shard->signs) && has_suspects(&routes, line, shard))))
            part_line(batch, tasks, &routes, line, shard, ids, &refused);
        if (line->count > 0)
            taken += submit_line(shard, tasks, &routes, line, ids);
    }
    batch->taken += taken;
    *ret_left = count - taken - refused;
    return true;
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

/* Whether part_line has refused the task, or would now. */
static bool is_task_refused(struct batch *batch, const kl_exec_task *task)
{
    if (!batch->is_parted || !kl__task_is_plain(task) || task->key.len == 0)
        return false;
    uint64_t hash;
    kl__shard *shard = kl__exec_shard_of(batch->exec, task->key, &hash);
    return is_refused_again(batch, shard, hash, task->key);
}

/* Makes what is left of a chunk into orders. One that cannot be prepared ends the batch before it. Returns how many of
 * the tasks, from the first, it has dealt with. */
static size_t prepare_chunk(struct batch *batch, const kl_exec_task *tasks, size_t count, kl_exec_id *ids,
                            kl__order *orders, size_t *ret_size)
{
    size_t at = 0, size = 0;
    for (; at < count; at++) {
        if (ids[at] != 0 || is_task_refused(batch, &tasks[at]))
            continue;
        kl_rc rc = kl__order_prepare(batch->exec, &tasks[at], &orders[size]);
        if (KL_UNLIKELY(rc != KL_OK)) {
            batch->rc = rc;
            batch->is_over = true;
            break;
        }
        orders[size].id = &ids[at];
        batch->careful |= orders[size++].careful;
    }
    *ret_size = size;
    return at;
}

/* What submit_plain has left of a chunk: those of its tasks that have id 0. Returns how many of the tasks, from the
 * first, it has dealt with. */
static __attribute__((noinline)) size_t submit_orders(struct batch *batch, const kl_exec_task *tasks, size_t count,
                                                      kl_exec_id *ids)
{
    kl__order orders[BATCH_CHUNK];
    size_t size, at = prepare_chunk(batch, tasks, count, ids, orders, &size);
    if (size > 0)
        batch->taken += submit_prepared(batch, orders, size);
    return at;
}

/* A single chunk is checked here: of one that is plain there is nothing to check. */
static size_t submit_chunk(struct batch *batch, const kl_exec_task *tasks, size_t count, bool is_checked,
                           kl_exec_id *ids)
{
    size_t left;
    if (KL_LIKELY(submit_plain(batch, tasks, count, ids, &left))) {
        if (KL_LIKELY(left == 0))
            return count;
    } else {
        memset(ids, 0, count * sizeof ids[0]);
        if (!is_checked && (batch->rc = check_batch(tasks, count)) != KL_OK) {
            batch->is_over = true;
            return 0;
        }
    }
    return submit_orders(batch, tasks, count, ids);
}

/* The sentence that goes with it is of one task. */
static __attribute__((noinline, cold)) kl_rc fail_partly(size_t taken, size_t count)
{
    return kl__fail(KL_ENOMEM, "out of memory; %zu of %zu tasks were taken", taken, count);
}

kl_rc kl_exec_submit_batch(kl_exec *exec, const kl_exec_task *tasks, size_t count, kl_exec_id *ret_ids,
                           size_t *ret_taken)
{
    if (!exec || (!tasks && count > 0))
        return kl__exec_fail_null("kl_exec_submit_batch", exec ? "tasks" : "exec");
    bool is_long = count > BATCH_CHUNK;
    struct batch batch;
    batch.exec = exec;
    batch.taken = 0;
    batch.rc = is_long ? check_batch(tasks, count) : KL_OK;
    batch.is_over = batch.rc != KL_OK;
    batch.waits_ns = 0;
    batch.careful = false;
    batch.is_parted = false; /* `aside` needs no value before, */
    batch.refused_count = 0; /* nor `refused`, and they are large */
    size_t at = 0;
    while (at < count && !batch.is_over) {
        kl_exec_id own[BATCH_CHUNK], *ids = ret_ids ? ret_ids + at : own;
        size_t size = count - at < BATCH_CHUNK ? count - at : BATCH_CHUNK;
        at += submit_chunk(&batch, tasks + at, size, is_long, ids);
    }
    if (ret_ids && at < count)
        memset(ret_ids + at, 0, (count - at) * sizeof ret_ids[0]);
    if (ret_taken)
        *ret_taken = batch.taken;
    if (KL_UNLIKELY(batch.rc == KL_ENOMEM && batch.taken > 0))
        return fail_partly(batch.taken, count);
    return batch.rc;
}
