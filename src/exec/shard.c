/* shard.c - one shard: the inbox is drained into the lanes, tasks are taken from them and ended.
 *
 * From: submit.c, batch.c (published tasks).  To: thread.c (which runs what is taken).
 *
 * Everything here happens under the shard's mutex, except the reports to the caller's functions: a task that is to be
 * reported is first withdrawn from its line, then reported without the mutex, then ended. Until it is ended it counts,
 * so that a drain or a barrier returns after the report and not before.
 *
 * The inbox is drained in small helpings, when nothing is ready or a millisecond has passed: what waits in the ring is
 * in order and compact, and a task that finds its key idle and nothing ready starts at once, without standing in line.
 * Only priorities and delays can tell the difference, for by them a task may belong before or behind one that it has
 * not met yet; so while any task with one is about, everything is drained before each take.
 *
 * A task that cannot run, because its key is blocked or it is not due, keeps its memory, but as long as there are spare
 * tasks, a quarter as many as places but at least one, it takes nobody's place: one is lent to producers in its stead.
 * When there are fewer such tasks than are lent, those that end are kept as spare ones until it is even again. So a
 * shard never holds more than its capacity and a quarter, and more than its capacity only while some cannot run, or
 * just could not. */
#include "exec/internal.h"

#include "base/text.h"
#include "base/wait.h"
#include "exec/hand.h"

enum { HELPING = 256, LOOK_EVERY_NS = 1000000, QUOTED_BYTES = 160 };

static uint32_t count_tasks(uint32_t capacity)
{
    uint32_t spare = capacity < KL_EXEC_SPARE_SHARE ? 1 : capacity / KL_EXEC_SPARE_SHARE,
             left = KL_EXEC_SHARD_CAPACITY_MAX - capacity;
    return capacity + (spare < left ? spare : left); /* more than that have no number in a slot */
}

static void keep_spare(kl__shard *shard, kl__exec_task *task)
{
    task->lane.next = shard->spare;
    shard->spare = &task->lane;
}

/* How many places were given back for tasks that have not ended. */
static uint64_t lent(kl__inbox *inbox)
{
    return atomic_load_explicit(&inbox->freed, memory_order_relaxed) -
           atomic_load_explicit(&inbox->ended, memory_order_relaxed);
}

kl_rc kl__shard_open(kl__shard *shard, kl_exec *exec, uint32_t index)
{
    uint32_t capacity = (uint32_t)exec->opts.shard_capacity;
    shard->exec = exec;
    shard->index = index;
    kl_rc rc = kl__inbox_open(&shard->inbox, capacity);
    if (rc != KL_OK)
        return rc;
    shard->task_count = count_tasks(capacity);
    shard->tasks = kl__alloc_aligned(KL_CACHE_LINE, shard->task_count, sizeof *shard->tasks);
    shard->lanes = kl__lanes_open();
    if (!shard->tasks || !shard->lanes || kl__answers_open(&shard->answers, capacity) != KL_OK) {
        kl__inbox_close(&shard->inbox);
        kl__free(shard->tasks);
        kl__lanes_close(shard->lanes);
        return kl__fail_memory();
    }
    shard->signs = kl__lanes_signs(shard->lanes);
    for (uint32_t i = capacity; i < shard->task_count; i++)
        keep_spare(shard, &shard->tasks[i]);
    pthread_mutex_init(&shard->mutex, NULL);
    kl__cond_init(&shard->room);
    atomic_init(&shard->next_due, KL_NEVER);
    return KL_OK;
}

void kl__shard_close(kl__shard *shard)
{
    KL_ASSERT(kl__inbox_length(&shard->inbox) == 0 && lent(&shard->inbox) == 0);
    pthread_cond_destroy(&shard->room);
    pthread_mutex_destroy(&shard->mutex);
    kl__lanes_close(shard->lanes);
    kl__free(shard->tasks);
    kl__free(shard->answers.buckets);
    kl__inbox_close(&shard->inbox);
}

/* --- Deadlines --- */

static bool deadline_less(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__task_extra *x = KL_CONTAINER(a, kl__task_extra, by_deadline);
    const kl__task_extra *y = KL_CONTAINER(b, kl__task_extra, by_deadline);
    return x->deadline_ms != y->deadline_ms ? x->deadline_ms < y->deadline_ms : x < y;
}

static kl__task_extra *first_deadline(const kl__shard *shard)
{
    kl__tree_node *node = kl__tree_first(shard->deadlines);
    return node ? KL_CONTAINER(node, kl__task_extra, by_deadline) : NULL;
}

static void drop_deadline(kl__shard *shard, kl__task_extra *extra)
{
    if (extra->in_deadlines)
        kl__tree_remove(&shard->deadlines, &extra->by_deadline, deadline_less);
    extra->in_deadlines = false;
}

void kl__shard_keep_deadline(kl__shard *shard, kl__exec_task *task)
{
    kl__task_extra *extra = kl__extra_of(task);
    if (KL_LIKELY(!extra || extra->deadline_ms == KL_NEVER || extra->in_deadlines))
        return;
    kl__tree_insert(&shard->deadlines, &extra->by_deadline, deadline_less);
    extra->in_deadlines = true;
}

static bool is_waiting(const kl__exec_task *task)
{
    return task->lane.mark.place != KL_PLACE_RUNNING && task->lane.mark.place != KL_PLACE_OUT;
}

/* Takes out what waits and is overdue, and asks what runs and is to stop. */
static kl__lane_task *withdraw_overdue(kl__shard *shard, int64_t now_ms)
{
    kl__task_extra *extra;
    kl__lane_task *chain = NULL, **end = &chain;
    while ((extra = first_deadline(shard)) && extra->deadline_ms <= now_ms) {
        kl__exec_task *task = extra->task;
        drop_deadline(shard, extra);
        if (!is_waiting(task)) {
            if (kl__stop_asked(task) == KL_STOP_NONE)
                kl__ask_stop(task, KL_STOP_DEADLINE);
            continue;
        }
        kl__lanes_withdraw(shard->lanes, &task->lane, now_ms);
        *end = &task->lane;
        end = &task->lane.next;
    }
    return chain;
}

/* While those are reported without the mutex, others may bring in more, and time passes. */
int64_t kl__shard_expire(kl__shard *shard, int64_t now_ns)
{
    kl__lane_task *chain;
    while ((chain = withdraw_overdue(shard, kl__ns_to_ms(now_ns)))) {
        kl__shard_end_chain(shard, chain, KL_DEAD, KL_ETIMEDOUT);
        now_ns = kl__exec_now_ns(shard->exec);
    }
    return now_ns;
}

/* --- In --- */

/* When a task that does not wait for its time was submitted, as far as that is known: at the time in its stamp, or else
 * not before the last one of which we know. That is all that order needs: without delayed tasks about, nothing is
 * stamped and position decides. */
static int64_t submit_time(kl__shard *shard, bool stamped, uint32_t stamp, int64_t now_ms)
{
    if (KL_UNLIKELY(stamped)) {
        uint32_t now = (uint32_t)(now_ms - shard->exec->opened_ms);
        int32_t ago = (int32_t)(now - stamp);
        int64_t time_ms = now_ms - ago; /* our own look at the clock may be the older one */
        if (time_ms > shard->submitted_ms)
            shard->submitted_ms = time_ms;
    }
    return shard->submitted_ms;
}

static void add(kl__shard *shard, kl__exec_task *task, kl__lane *lane, int64_t now_ms)
{
    kl__task_extra *extra = kl__extra_of(task);
    if (KL_UNLIKELY(extra && extra->delayed))
        task->lane.due_ms = extra->due_ms;
    kl__lanes_add(shard->lanes, lane, &task->lane, now_ms);
    if (KL_UNLIKELY(extra))
        kl__shard_keep_deadline(shard, task);
}

/* The lane of a task whose key has no room in it. The bytes are the lane's then, or freed. */
static __attribute__((noinline, cold)) kl__lane *find_far_lane(kl__shard *shard, const kl__exec_task *task,
                                                               uint32_t hash)
{
    char *far = task->key.far;
    kl__lane *lane = kl__lanes_lane_giving(shard->lanes, &far, task->key.len, hash);
    if (lane)
        kl__free(far);
    return lane;
}

enum entry { WAITS, STARTED, NO_MEMORY };

/* Moves one published task into the lanes, or starts it if it may and need not wait. NO_MEMORY: it stays where it is.
 * The key's bytes lie where the lane's links will be, so the lane is found first. */
static inline enum entry enter(kl__shard *shard, uint64_t number, uint64_t slot, int64_t now_ms, bool may_start)
{
    kl__exec_task *task = &shard->tasks[slot & KL_INBOX_INDEX_MASK];
    uint32_t hash, stamp = (uint32_t)(slot >> KL_INBOX_INDEX_BITS);
    bool stamped = task->lane.mark.kind & KL_KIND_STAMPED;
    kl_bytes bytes = kl__slot_key(task, slot, &hash);
    bool is_far = bytes.len > KL_TASK_KEY_INLINE;
    kl__lane *lane = KL_UNLIKELY(is_far) ? find_far_lane(shard, task, hash) : kl__lanes_lane(shard->lanes, bytes, hash);
    if (KL_UNLIKELY(!lane))
        return NO_MEMORY;
    task->lane.mark.kind &= (uint8_t)~KL_KIND_STAMPED;
    task->lane.due_ms = submit_time(shard, stamped, stamp, now_ms);
    now_ms = task->lane.due_ms > now_ms ? task->lane.due_ms : now_ms; /* what was due by then is */
    task->lane.position = number;
    bool started = may_start && !task->lane.mark.kind && kl__lanes_start(shard->lanes, lane, &task->lane);
    if (!started)
        add(shard, task, lane, now_ms);
    return started ? STARTED : WAITS;
}

kl_rc kl__shard_drain_inbox(kl__shard *shard, uint64_t most, int64_t now_ns)
{
    kl__inbox *inbox = &shard->inbox;
    uint64_t number = kl__inbox_drained(inbox), slot;
    kl_rc rc = KL_OK;
    shard->looked_ns = now_ns;
    for (; most > 0 && (slot = kl__inbox_peek(inbox, number)); most--, number++)
        if (enter(shard, number, slot, kl__ns_to_ms(now_ns), false) == NO_MEMORY) {
            rc = KL_ENOMEM;
            break;
        }
    kl__inbox_pop(inbox, number);
    return rc;
}

/* A helping of the inbox of which up to `most` tasks are started and the others wait. Returns how many were started. */
static __attribute__((noinline)) uint32_t start_some(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most,
                                                     int64_t now_ns)
{
    kl__inbox *inbox = &shard->inbox;
    uint64_t number = kl__inbox_drained(inbox), end = number + HELPING, slot;
    uint32_t count = 0;
    int64_t now_ms = kl__ns_to_ms(now_ns);
    for (; number < end && count < most && (slot = kl__inbox_peek(inbox, number)); number++) {
        kl__fetch_to_write(&shard->tasks[kl__inbox_ahead(inbox, number)]);
        enum entry entry = enter(shard, number, slot, now_ms, true);
        if (entry == STARTED)
            ret_tasks[count++] = &shard->tasks[slot & KL_INBOX_INDEX_MASK].lane;
        else if (KL_UNLIKELY(entry == NO_MEMORY))
            break; /* the rest waits in the inbox until there is some */
    }
    kl__inbox_pop(inbox, number);
    return count;
}

/* --- Out --- */

/* Whether everything in the inbox must be seen before the next take: something that is ready may belong behind it. */
static bool must_look(kl__shard *shard, int64_t now_ms)
{
    kl__lanes_advance(shard->lanes, now_ms);
    return atomic_load_explicit(&shard->urgent, memory_order_relaxed) != shard->seen_urgent ||
           kl__lanes_prioritized(shard->lanes) || atomic_load_explicit(&shard->delayed, memory_order_relaxed) > 0;
}

/* What is ready and has a priority is taken one by one: what comes while the first runs may belong before the second.
 * What cannot run holds up nobody, whatever its priority. */
static uint32_t limit(kl__shard *shard, uint32_t most, int64_t now_ms)
{
    kl__lanes_advance(shard->lanes, now_ms);
    return kl__lanes_prioritized(shard->lanes) ? 1 : most;
}

/* Drains all there is. An urgent task may stand behind one that is not published yet: then it has not been seen. */
static void look(kl__shard *shard, int64_t now_ns)
{
    uint32_t urgent = atomic_load(&shard->urgent);
    if (urgent != shard->told_urgent) {
        shard->told_urgent = urgent;
        shard->told_claimed = kl__inbox_claimed(&shard->inbox);
    }
    kl__shard_drain_inbox(shard, UINT64_MAX, now_ns);
    if (KL_LIKELY(kl__inbox_drained(&shard->inbox) >= shard->told_claimed))
        shard->seen_urgent = shard->told_urgent;
}

/* Takes up to `most` tasks that stand ready in the lanes, each of another key. */
uint32_t kl__shard_take(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns)
{
    if (KL_UNLIKELY(must_look(shard, kl__ns_to_ms(*now_ns)))) {
        look(shard, *now_ns);
    } else if (*now_ns - shard->looked_ns > LOOK_EVERY_NS) {
        kl__shard_drain_inbox(shard, HELPING, *now_ns);
    }
    if (KL_UNLIKELY(shard->deadlines != NULL))
        *now_ns = kl__shard_expire(shard, *now_ns);
    int64_t now_ms = kl__ns_to_ms(*now_ns);
    return kl__lanes_take(shard->lanes, ret_tasks, limit(shard, most, now_ms), now_ms);
}

/* Takes up to `most` tasks straight from the inbox, when nothing is ready in the lanes. */
uint32_t kl__shard_start(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns)
{
    uint32_t count = 0;
    while (count == 0 && kl__inbox_has_next(&shard->inbox)) {
        uint64_t before = kl__inbox_drained(&shard->inbox);
        count = start_some(shard, ret_tasks, most, *now_ns);
        if (count == 0) { /* what came in may have made something ready, unless nothing could come in */
            if (KL_UNLIKELY(shard->deadlines != NULL))
                *now_ns = kl__shard_expire(shard, *now_ns);
            int64_t now_ms = kl__ns_to_ms(*now_ns);
            count = kl__lanes_take(shard->lanes, ret_tasks, limit(shard, most, now_ms), now_ms);
        }
        if (kl__inbox_drained(&shard->inbox) == before)
            break;
    }
    return count;
}

/* Waiting producers are let in when half of the shard is free, so that they come in bulk; but when nothing is left to
 * run, there is no reason to let them wait. */
static void let_in(kl__shard *shard)
{
    bool more = kl__lanes_ready(shard->lanes) || kl__inbox_has_next(&shard->inbox);
    if (!more || kl__inbox_length(&shard->inbox) <= shard->inbox.capacity / 2)
        pthread_cond_broadcast(&shard->room);
}

/* Lends as many places as there are tasks that cannot run, or as it has. */
static void lend(kl__shard *shard)
{
    uint64_t freed = atomic_load_explicit(&shard->inbox.freed, memory_order_relaxed);
    uint64_t ended = atomic_load_explicit(&shard->inbox.ended, memory_order_relaxed);
    uint64_t stuck = kl__lanes_stuck(shard->lanes);
    if (KL_LIKELY(freed - ended >= stuck || !shard->spare))
        return;
    for (kl__lane_task *spare; (spare = shard->spare) && freed - ended < stuck; freed++) {
        shard->spare = spare->next;
        kl__inbox_give_back(&shard->inbox, freed, (uint32_t)(kl__exec_task_of(spare) - shard->tasks));
    }
    atomic_store_explicit(&shard->inbox.freed, freed, memory_order_release);
    if (shard->waiting > 0)
        let_in(shard);
}

/* Tells threads that look for work what they would find, and producers what has become free. A full barrier follows
 * what has changed: whoever publishes then looks at who is idle, and whoever falls idle then looks at what is
 * published. True: something is due earlier than was told, so whoever sleeps may have to get up earlier. */
bool kl__shard_publish_hints(kl__shard *shard)
{
    kl__task_extra *deadline = first_deadline(shard);
    int64_t next_due = kl__lanes_next_due(shard->lanes);
    lend(shard);
    bool ready = kl__lanes_ready(shard->lanes);
    if (deadline && deadline->deadline_ms < next_due)
        next_due = deadline->deadline_ms;
    if (atomic_load_explicit(&shard->ready, memory_order_relaxed) != ready)
        atomic_store(&shard->ready, ready);
    int64_t told_due = atomic_load_explicit(&shard->next_due, memory_order_relaxed);
    if (told_due != next_due)
        atomic_store(&shard->next_due, next_due);
    return next_due < told_due;
}

/* Publishes what there is to do, and sees that somebody does it: for those who leave the shard, or its mutex for
 * long. */
void kl__shard_offer(kl__shard *shard)
{
    bool earlier = kl__shard_publish_hints(shard);
    if ((earlier || kl__lanes_ready(shard->lanes) || kl__inbox_has_next(&shard->inbox)) &&
        atomic_load(&shard->exec->idle_count) > 0)
        kl__exec_announce(shard->exec, 1);
}

/* A claimed place counts although its task may not be published yet: see kl__place_announce(). */
bool kl__shard_has_work(kl__shard *shard, int64_t now_ms)
{
    return atomic_load(&shard->ready) || kl__inbox_waiting(&shard->inbox) || atomic_load(&shard->next_due) <= now_ms;
}

static void drop_extra(kl__shard *shard, kl__task_extra *extra)
{
    drop_deadline(shard, extra);
    if (extra->delayed)
        atomic_fetch_sub(&shard->delayed, 1);
    kl__free(extra->error);
    kl__free(extra);
}

/* The tasks are over: they leave the lanes and their memory goes back to the inbox, or to the spare ones. */
void kl__shard_end(kl__shard *shard, kl__lane_task **tasks, uint32_t count, int64_t now_ns)
{
    int64_t now_ms = kl__ns_to_ms(now_ns);
    uint64_t ended = atomic_load_explicit(&shard->inbox.ended, memory_order_relaxed);
    uint64_t freed = atomic_load_explicit(&shard->inbox.freed, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        if (KL_UNLIKELY(!tasks[i]))
            continue;
        kl__exec_task *task = kl__exec_task_of(tasks[i]);
        kl__lanes_end(shard->lanes, &task->lane, now_ms);
        if (KL_UNLIKELY(task->lane.mark.kind & KL_KIND_EXTRA))
            drop_extra(shard, task->extra);
        task->lane.mark.place = KL_PLACE_NONE;
        if (KL_UNLIKELY(freed != ended && freed - ended > kl__lanes_stuck(shard->lanes)))
            keep_spare(shard, task);
        else
            kl__inbox_give_back(&shard->inbox, freed++, (uint32_t)(task - shard->tasks));
        ended++;
    }
    atomic_store_explicit(&shard->inbox.freed, freed, memory_order_release);
    /* While stopping, a full barrier between our end and our look at the other shards': of two threads that end the
     * last tasks of two shards, one must see both. */
    bool stopping = atomic_load_explicit(&shard->exec->phase, memory_order_relaxed) != KL_EXEC_OPEN;
    if (KL_UNLIKELY(stopping))
        atomic_store(&shard->inbox.ended, ended);
    else
        atomic_store_explicit(&shard->inbox.ended, ended, memory_order_release);
    if (KL_UNLIKELY(shard->waiting > 0))
        let_in(shard);
    if (KL_UNLIKELY(stopping))
        kl__exec_note_end(shard->exec);
}

/* --- Reports --- */

static void log_failure(const kl_exec *exec, const kl_exec_end *end)
{
    char key[QUOTED_BYTES], error[2 * QUOTED_BYTES];
    if (!exec->opts.log)
        return;
    kl__text_quote(end->key, key, sizeof key);
    kl__text_quote(kl_str(end->error), error, sizeof error);
    kl__exec_log(exec, KL_LOG_WARN, "a task of %s%s%s ended (%s) after %u %s: %s", end->key.len ? "key '" : "no key",
                 key, end->key.len ? "'" : "", kl_rc_name(end->rc), end->attempts,
                 end->attempts == 1 ? "attempt" : "attempts", *error ? error : "no error text");
}

/* Tells the task's owner how it ended. Not under the mutex: the owner may call anything. A thread that is cancelled
 * ends in its next task, not here, where it would leave the task neither reported nor ended. */
void kl__exec_report(kl__shard *shard, kl__exec_task *task, kl_outcome outcome, kl_rc rc, const char *error)
{
    const kl_exec_opts *opts = &shard->exec->opts;
    const kl__task_extra *extra = kl__extra_of(task);
    if (!(extra && extra->end) && outcome == KL_DONE)
        return;
    kl_exec_end end = {.id = kl__exec_id(shard, task, task->lane.position),
                       .key = kl__lane_task_key(&task->lane),
                       .fn = task->fn,
                       .ctx = kl__ctx_of(task),
                       .outcome = outcome,
                       .rc = rc,
                       .attempts = task->lane.mark.attempts,
                       .shard = shard->index,
                       .error = error                   ? error
                                : extra && extra->error ? extra->error
                                                        : ""};
    kl__inside inside = {shard->exec, kl__innermost};
    kl__ask_stop(task, KL_STOP_OVER);
    int state = kl__cancel_off();
    kl__innermost = &inside;
    if (extra && extra->end)
        extra->end(extra->end_ctx, &end);
    if (outcome != KL_DONE) {
        if (opts->on_failure)
            opts->on_failure(opts->on_failure_ctx, &end);
        log_failure(shard->exec, &end);
    }
    kl__innermost = inside.outer;
    kl__cancel_again(state);
}

/* Reports and ends withdrawn tasks, in order. Leaves the mutex for the reports and holds it again on return. A report
 * may take long, so what is ready by then is offered before each. */
void kl__shard_end_chain(kl__shard *shard, kl__lane_task *chain, kl_outcome outcome, kl_rc rc)
{
    while (KL_UNLIKELY(chain != NULL)) {
        kl__lane_task *next = chain->next;
        kl__exec_task *task = kl__exec_task_of(chain);
        kl__shard_offer(shard);
        pthread_mutex_unlock(&shard->mutex);
        kl__exec_report(shard, task, outcome, rc, NULL);
        pthread_mutex_lock(&shard->mutex);
        shard->dead += outcome == KL_DEAD;
        shard->cancelled += outcome == KL_CANCELLED;
        if (rc == KL_ECLOSED)
            atomic_fetch_add(&shard->exec->given_up, 1);
        kl__shard_end(shard, &chain, 1, kl__exec_now_ns(shard->exec));
        chain = next;
    }
}

/* Ends everything that is not running: the executor is being aborted. What runs is told when its deadline comes, which
 * would be due for ever otherwise. */
void kl__shard_give_up(kl__shard *shard)
{
    int64_t now_ns = kl__exec_now_ns(shard->exec);
    kl__lane_task *chain;
    kl_rc rc;
    kl__hand_recall_all(shard, now_ns);
    do { /* without memory a few at a time, as lanes become free */
        rc = kl__shard_drain_inbox(shard, UINT64_MAX, now_ns);
        chain = kl__lanes_drain_all(shard->lanes, kl__ns_to_ms(now_ns));
        kl__shard_end_chain(shard, chain, KL_CANCELLED, KL_ECLOSED);
    } while (rc != KL_OK && chain);
    (void)kl__shard_expire(shard, kl__exec_now_ns(shard->exec));
}
