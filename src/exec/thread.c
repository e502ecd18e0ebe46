/* thread.c - the executor's threads: find a shard with work, run its tasks, settle them, sleep when there is none.
 *
 * From: shard.c (take).  To: shard.c (end) or the lanes (retry).
 *
 * A thread visits the shards in turn and stays with one for a bounded number of tasks or a millisecond, so that no
 * shard starves whatever the others hold. It holds the shard's mutex only to settle a hand of tasks and to take the
 * next; while it runs them, any other thread may take the next ready keys of the same shard. Hands are of one task
 * unless tasks have proved to be short, and others recall them: a thread that finds nothing else to do at once, one
 * that is busy when they are older than NEGLECTED_NS, after which it looks between two visits. So a task that blocks
 * keeps its own key and one thread, and for longer than that nothing else.
 *
 * Sleeping and waking. A thread that finds no work registers as idle, looks once more, and sleeps until it is woken or
 * something is due. Whoever makes work visible (claims a place, publishes hints, fills a hand) passes a full barrier
 * before looking at the idle threads, and registering is one too; so one of the two sees the other.
 *
 * Waking a thread is a system call and costs far more than a short task. A thread whose tasks are short is called
 * brisk: while one is awake it sees new work within microseconds, and others are woken only for a backlog. Should its
 * next task block after all, somebody must notice: as long as a thread is brisk, one of those asleep keeps watch and
 * looks up every WATCH_NS. */
#include "exec/internal.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "base/wait.h"
#include "exec/hand.h"

enum {
    VISIT_TASKS = 512,
    VISIT_NS = 1000000,
    NEGLECTED_NS = 2000000,
    SHORT_HAND_NS = 10000,
    WATCH_NS = 2000000,
    BACKLOG = 256,
    STEAL_AFTER = 6,
    NAP_NS = 50000,
    REPLACE_WAIT_NS = 10000000,
    GATHER_NS = 10000, /* at most, */
    GATHER_PART = 4,   /* if a quarter of enough comes in that */
};

/* --- Waking and sleeping --- */

static void pop_idle(kl_exec *exec)
{
    kl__exec_thread *thread = exec->idle;
    exec->idle = thread->next_idle;
    thread->idle = false;
    atomic_fetch_sub(&exec->idle_count, 1);
    pthread_cond_signal(&thread->wake);
}

void kl__exec_wake_one(kl_exec *exec)
{
    pthread_mutex_lock(&exec->park_mutex);
    if (exec->idle)
        pop_idle(exec);
    pthread_mutex_unlock(&exec->park_mutex);
}

void kl__exec_wake_all(kl_exec *exec)
{
    pthread_mutex_lock(&exec->park_mutex);
    while (exec->idle)
        pop_idle(exec);
    pthread_mutex_unlock(&exec->park_mutex);
}

/* Wakes a thread for tasks that wait, unless a brisk one will see them soon anyway. */
void kl__exec_announce(kl_exec *exec, int64_t waiting)
{
    bool soon = atomic_load(&exec->brisk_count) > 0 && atomic_load(&exec->watched);
    if (!soon || waiting >= BACKLOG)
        kl__exec_wake_one(exec);
}

static void set_brisk(kl__exec_thread *thread, bool brisk)
{
    kl_exec *exec = thread->exec;
    if (KL_LIKELY(thread->brisk == brisk))
        return;
    thread->brisk = brisk;
    atomic_fetch_add(&exec->brisk_count, brisk ? 1 : -1u);
    if (brisk && atomic_load(&exec->idle_count) > 0 && !atomic_load(&exec->watched))
        kl__exec_wake_one(exec); /* to keep watch */
}

static void remove_idle(kl_exec *exec, kl__exec_thread *thread)
{
    kl__exec_thread **link = &exec->idle;
    while (*link != thread)
        link = &(*link)->next_idle;
    *link = thread->next_idle;
    thread->idle = false;
    atomic_fetch_sub(&exec->idle_count, 1);
}

static bool any_work(kl_exec *exec)
{
    int64_t now_ms = kl__exec_now_ms(exec);
    for (uint32_t i = 0; i < exec->shard_count; i++)
        if (kl__shard_has_work(&exec->shards[i], now_ms))
            return true;
    for (uint32_t i = 0; i < exec->thread_count; i++)
        if (kl__hand_recallable(&exec->threads[i].hand))
            return true;
    return false;
}

static bool finished(kl_exec *exec) { return atomic_load(&exec->phase) != KL_EXEC_OPEN && kl__exec_all_ended(exec); }

/* When the next key or deadline comes up, on the monotonic clock. A test's clock says nothing about that: the test
 * wakes the threads itself. */
static int64_t next_due_ns(kl_exec *exec)
{
    int64_t due_ms = KL_NEVER;
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        int64_t shard_due = atomic_load(&exec->shards[i].next_due);
        if (shard_due < due_ms)
            due_ms = shard_due;
    }
    return due_ms == KL_NEVER || exec->clock.now_ns ? KL_NEVER : due_ms * 1000000;
}

/* Sleeps until woken (true), something is due, or until_ns. What is due next is asked again after each signal: one that
 * does not wake is for that. */
static bool doze(kl__exec_thread *thread, int64_t until_ns)
{
    bool in_time = true;
    while (thread->idle && in_time) {
        int64_t due_ns = next_due_ns(thread->exec);
        in_time = kl__cond_wait(&thread->wake, &thread->exec->park_mutex, due_ns < until_ns ? due_ns : until_ns);
    }
    return !thread->idle;
}

static uint64_t count_ended(kl_exec *exec)
{
    uint64_t ended = 0;
    for (uint32_t i = 0; i < exec->shard_count; i++)
        ended += atomic_load_explicit(&exec->shards[i].inbox.ended, memory_order_relaxed);
    return ended;
}

/* While a thread is brisk, one of the sleepers watches. When it gets up it wakes another in its place: what was
 * announced to a watched executor may be more than one thread can look after. It stops watching when nothing has ended
 * since its last look: then nobody is brisk but in name, and whoever announces work finds it unwatched and wakes a
 * thread. */
static void keep_watch(kl__exec_thread *thread)
{
    kl_exec *exec = thread->exec;
    uint64_t ended = count_ended(exec), before;
    bool get_up = false;
    atomic_store(&exec->watched, true);
    do {
        before = ended;
        get_up = doze(thread, kl__monotonic_ns() + WATCH_NS) || any_work(exec);
        ended = count_ended(exec);
    } while (!get_up && ended != before && atomic_load(&exec->brisk_count) > 0);
    atomic_store(&exec->watched, false);
    if (!get_up && (any_work(exec) || finished(exec)))
        get_up = true;
    if (!get_up) {
        doze(thread, KL_NEVER);
        return;
    }
    if (thread->idle)
        remove_idle(exec, thread);
    if (exec->idle)
        pop_idle(exec);
}

/* False: there is work, so it did not sleep. But perhaps nobody can have it yet, until a thread that was interrupted
 * goes on. */
static bool sleep_until_work(kl__exec_thread *thread)
{
    kl_exec *exec = thread->exec;
    set_brisk(thread, false);
    pthread_mutex_lock(&exec->park_mutex);
    thread->idle = true;
    thread->next_idle = exec->idle;
    exec->idle = thread;
    atomic_fetch_add(&exec->idle_count, 1);
    bool sleeps = !any_work(exec) && !finished(exec);
    if (sleeps) {
        if (atomic_load(&exec->brisk_count) > 0 && !atomic_load(&exec->watched))
            keep_watch(thread);
        else
            doze(thread, KL_NEVER);
    }
    if (thread->idle)
        remove_idle(exec, thread);
    if (exec->idle && next_due_ns(exec) != KL_NEVER)
        pthread_cond_signal(&exec->idle->wake); /* perhaps only we had an eye on the clock */
    pthread_mutex_unlock(&exec->park_mutex);
    return sleeps;
}

/* --- Settling --- */

static const int64_t bucket_bounds_ns[KL_RUN_BUCKETS] = {SHORT_HAND_NS, 100000,     1000000,     5000000,
                                                         10000000,      50000000,   100000000,   500000000,
                                                         1000000000,    5000000000, 10000000000, 60000000000};

static void record_run(kl__shard *shard, int64_t ns)
{
    int bucket = 0;
    while (bucket < KL_RUN_BUCKETS && ns > bucket_bounds_ns[bucket])
        bucket++;
    shard->runs.count[bucket]++;
    shard->runs.sum_ns += ns;
}

/* Twice as many as before; but after a hand that was cut short as many as were left: more would be taken in vain. */
static uint32_t next_size(const kl__exec_thread *thread, uint32_t count)
{
    uint32_t most = atomic_load_explicit(&thread->exec->hand_most, memory_order_relaxed);
    uint32_t size = thread->hand.cut_short ? count : thread->hand_size * 2;
    return size < most ? size : most;
}

/* Tasks of a hand are timed together. When that is short, so was every one of them. Otherwise all but one are taken to
 * have run for as long as those before, which were short, and the rest of the time is put down to the one. */
static void record_runs(kl__exec_thread *thread, kl__shard *shard, int64_t now_ns)
{
    uint32_t count = thread->ran - thread->recorded;
    int64_t ns = now_ns - thread->began_ns;
    thread->recorded = thread->ran;
    if (count == 0)
        return;
    if (KL_LIKELY(ns <= SHORT_HAND_NS)) {
        shard->runs.count[0] += count;
        shard->runs.sum_ns += ns;
        thread->mean_ns = ns / count;
        set_brisk(thread, true);
        thread->hand_size = next_size(thread, count);
        return;
    }
    int64_t usual_ns = thread->mean_ns < ns / count ? thread->mean_ns : ns / count;
    for (uint32_t i = 1; i < count; i++)
        record_run(shard, usual_ns);
    record_run(shard, ns - usual_ns * (count - 1));
    set_brisk(thread, false);
    thread->hand_size = 1;
}

int64_t kl__run_bucket_ns(int bucket) { return bucket_bounds_ns[bucket]; }

/* Doubles from the base, up to the maximum, and then picks between half of it and all of it, so that keys that failed
 * together do not come back together. */
static int64_t back_off(const kl_exec_opts *opts, uint32_t attempt, uint64_t random)
{
    int64_t delay = opts->backoff_base_ms;
    for (uint32_t i = 1; i < attempt && delay < opts->backoff_max_ms; i++)
        delay *= 2;
    if (delay > opts->backoff_max_ms)
        delay = opts->backoff_max_ms;
    return delay - (int64_t)kl__random_below(&random, (uint64_t)(delay / 2 + 1));
}

static int64_t retry_delay(kl_run *run)
{
    kl_exec *exec = run->exec;
    if (run->retry_after_ms >= 0)
        return run->retry_after_ms;
    uint64_t state = atomic_fetch_add_explicit(&exec->random, 0x9e3779b97f4a7c15u, memory_order_relaxed);
    uint64_t random = kl__random_next(&state);
    uint32_t attempt = run->task->lane.mark.attempts;
    if (exec->opts.retry)
        return exec->opts.retry(exec->opts.retry_ctx, attempt, random);
    return back_off(&exec->opts, attempt, random);
}

/* The deadline is looked at here, too: all threads may be busy, and then nobody asks. */
static bool is_overdue(const kl_exec *exec, const kl__exec_task *task)
{
    const kl__task_extra *extra = kl__extra_of(task);
    return extra && extra->deadline_ms != KL_NEVER && extra->deadline_ms <= kl__exec_now_ms(exec);
}

/* What follows a failed attempt: KL_OK when the task is to run again, else why it is over. */
static kl_rc judge_failure(kl_run *run, kl_outcome outcome, int64_t due_ms)
{
    const kl__exec_task *task = run->task;
    uint8_t stop = kl__stop_asked(task);
    if (stop == KL_STOP_CANCEL)
        return KL_ECANCELLED;
    if (stop == KL_STOP_DEADLINE || is_overdue(run->exec, task))
        return KL_ETIMEDOUT;
    if (outcome != KL_RETRY || task->lane.mark.attempts >= task->lane.mark.attempts_max || due_ms == KL_NEVER)
        return KL_EDEAD;
    if (atomic_load(&run->exec->phase) == KL_EXEC_ABORTING)
        return KL_ECLOSED;
    const kl__task_extra *extra = kl__extra_of(task);
    return extra && extra->deadline_ms <= due_ms ? KL_ETIMEDOUT : KL_OK;
}

/* Keeps the attempt's error text for a report that may come from elsewhere. Without memory the text is lost, the task
 * is not. */
static void keep_error(kl_run *run)
{
    kl__exec_task *task = run->task;
    kl__task_extra *extra = kl__extra_of(task);
    if (!run->error[0] && !(extra && extra->error))
        return;
    if (!extra) {
        if (!(extra = kl__alloc(sizeof *extra)))
            return;
        *extra = (kl__task_extra){.deadline_ms = KL_NEVER, .ctx = task->ctx, .task = task};
        task->extra = extra;
        task->lane.mark.kind |= KL_KIND_EXTRA;
    }
    size_t size = strlen(run->error) + 1;
    kl__free(extra->error);
    extra->error = kl__alloc(size);
    if (extra->error)
        memcpy(extra->error, run->error, size);
}

static kl__exec_thread *thread_of(kl_run *run) { return KL_CONTAINER(run, kl__exec_thread, run); }

/* A task that has started holds its key: when others of it were submitted does not matter to it any more. */
static void forget_delay(kl_run *run)
{
    kl__task_extra *extra = kl__extra_of(run->task);
    if (!extra || !extra->delayed)
        return;
    extra->delayed = false;
    atomic_fetch_sub(&run->shard->delayed, 1);
}

/* Settles an attempt that was not done. Returns with the shard's mutex held. */
static void settle_failure(kl_run *run, kl_outcome outcome, int64_t now_ns)
{
    kl__shard *shard = run->shard;
    kl__exec_task *task = run->task;
    if (outcome != KL_RETRY && outcome != KL_DEAD && outcome != KL_CANCELLED && !run->error[0])
        kl_run_error(run, "the task returned %d, which is no outcome: taken as KL_DEAD", (int)outcome);
    int64_t delay_ms =
        outcome == KL_RETRY && task->lane.mark.attempts < task->lane.mark.attempts_max ? retry_delay(run) : -1;
    if (delay_ms > KL_EXEC_WAIT_MS_MAX)
        delay_ms = KL_EXEC_WAIT_MS_MAX;
    int64_t due_ms = delay_ms < 0 ? KL_NEVER : delay_ms == 0 ? kl__ns_to_ms(now_ns) : kl__ms_after(now_ns, delay_ms);
    pthread_mutex_lock(&shard->mutex);
    record_runs(thread_of(run), shard, now_ns);
    kl_rc rc = judge_failure(run, outcome, due_ms);
    if (rc == KL_OK) {
        keep_error(run);
        forget_delay(run);
        shard->retries++;
        kl__lanes_retry(shard->lanes, &task->lane, due_ms, kl__ns_to_ms(now_ns));
        (void)kl__shard_publish_hints(shard);
        kl__exec_wake_one(run->exec); /* whoever sleeps may have to get up earlier now */
        return;
    }
    kl__ask_stop(task, KL_STOP_OVER); /* it is decided: whoever cancels it now comes too late */
    pthread_mutex_unlock(&shard->mutex);
    bool cancelled = rc == KL_ECANCELLED || rc == KL_ECLOSED;
    kl__exec_report(shard, task, cancelled ? KL_CANCELLED : KL_DEAD, rc, run->error);
    pthread_mutex_lock(&shard->mutex);
    shard->dead += !cancelled;
    shard->cancelled += cancelled;
    if (rc == KL_ECLOSED)
        atomic_fetch_add(&run->exec->given_up, 1);
    kl__lane_task *over = &task->lane;
    kl__lanes_fail(over);
    kl__shard_end(shard, &over, 1, now_ns);
}

/* --- Running --- */

/* What tasks and reports have changed of how the thread is cancelled must not reach the next hand. Within one it is
 * left: two calls for each task made short ones slower by a tenth, and a thread that is ended between two loses
 * neither. The type first, or what is pending would end it here. */
static void restore_cancelability(void)
{
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
}

/* From here on nobody ends the thread. The type first: where it is asynchronous, one who has just seen that the state
 * allows it ends the thread a moment later whatever the state. */
static void forbid_cancellation(void)
{
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
}

/* Reports the task, or lets it be retried, and ends it. What that takes is not the task's time. Nobody ends the thread
 * here: once its task has ended, the executor may be closed. */
static void settle_alone(kl_run *run, kl__lane_task *taken, kl_outcome outcome)
{
    kl__exec_thread *thread = thread_of(run);
    kl__shard *shard = run->shard;
    forbid_cancellation();
    int64_t now_ns = kl__exec_now_ns(run->exec);
    if (outcome == KL_DONE) {
        kl__exec_report(shard, run->task, KL_DONE, KL_OK, run->error);
        pthread_mutex_lock(&shard->mutex);
        record_runs(thread, shard, now_ns);
        kl__shard_end(shard, &taken, 1, now_ns);
    } else {
        settle_failure(run, outcome, now_ns);
    }
    pthread_mutex_unlock(&shard->mutex);
    run->task = NULL;
    thread->began_ns = kl__exec_now_ns(run->exec);
    restore_cancelability();
}

/* Runs one attempt. True: it is done and only has to be ended; else it has been settled. */
static bool run_task(kl_run *run, kl__lane_task *taken)
{
    kl__exec_task *task = kl__exec_task_of(taken);
    run->task = task;
    run->retry_after_ms = -1;
    run->error[0] = '\0';
    kl_outcome outcome = task->fn(run, kl__ctx_of(task));
    if (KL_UNLIKELY(outcome != KL_DONE || task->lane.mark.kind)) {
        settle_alone(run, taken, outcome);
        return false;
    }
    run->task = NULL;
    return true;
}

/* Runs the hand's tasks until none is left, it is recalled, or a task has come that may belong before the rest. A
 * thread can be cancelled here only: in a task, or before the next one, which then has not ended, so that the executor
 * is there. */
static void run_hand(kl__exec_thread *thread)
{
    kl_run *run = &thread->run;
    kl__hand *hand = &thread->hand;
    kl__lane_task *task;
    if (hand->count == 1) {
        task = hand->tasks[0];
    } else {
        atomic_thread_fence(memory_order_seq_cst); /* the hand can be seen, and then we look at who sleeps */
        if (KL_UNLIKELY(atomic_load(&thread->exec->idle_count) > 0))
            kl__exec_announce(thread->exec, hand->count);
        task = kl__hand_claim(hand, 0);
    }
    thread->ran = 0;
    restore_cancelability();
    for (; task; task = kl__hand_claim(hand, thread->ran)) {
        pthread_testcancel(); /* and not in somebody else's task */
        uint32_t index = thread->ran++;
        if (!run_task(run, task))
            hand->tasks[index] = NULL;
        if (KL_UNLIKELY(atomic_load_explicit(&run->shard->urgent, memory_order_relaxed) != thread->urgent))
            break;
    }
    forbid_cancellation();
}

/* Settles the hand that has been run. Under the shard's mutex. */
static void settle_hand(kl__exec_thread *thread, kl__shard *shard, int64_t now_ns)
{
    kl__hand_settle(&thread->hand, shard, thread->ran, now_ns);
    record_runs(thread, shard, now_ns);
}

/* Runs tasks of one shard until it has no more for us, or others deserve a visit. Returns how many. */
static uint32_t visit(kl__exec_thread *thread, kl__shard *shard)
{
    kl_exec *exec = thread->exec;
    uint32_t ran = 0;
    if (pthread_mutex_trylock(&shard->mutex) != 0)
        return 0; /* somebody else is there */
    int64_t start_ns = kl__exec_now_ns(exec), now_ns = start_ns;
    thread->run.shard = shard;
    while (ran < VISIT_TASKS && now_ns - start_ns < VISIT_NS) {
        if (KL_UNLIKELY(atomic_load(&exec->phase) == KL_EXEC_ABORTING)) {
            kl__shard_give_up(shard);
            break;
        }
        if (kl__hand_fill(&thread->hand, shard, thread->hand_size, &now_ns) == 0)
            break;
        kl__shard_offer(shard);
        thread->urgent = shard->seen_urgent;
        pthread_mutex_unlock(&shard->mutex);
        thread->began_ns = now_ns;
        thread->recorded = 0;
        run_hand(thread);
        now_ns = kl__exec_now_ns(exec);
        pthread_mutex_lock(&shard->mutex);
        settle_hand(thread, shard, now_ns);
        ran += thread->ran;
    }
    kl__shard_offer(shard);
    atomic_store_explicit(&shard->visited_ns, now_ns, memory_order_relaxed);
    pthread_mutex_unlock(&shard->mutex);
    return ran;
}

/* Whether the shard should be visited: at home if it has work, elsewhere only if it is neglected or we have nothing
 * else to do. Its tasks, its lanes and what its tasks work on are in the cache of the core that serves it. */
static bool wants_visit(kl__shard *shard, bool home, int64_t now_ns)
{
    return kl__shard_has_work(shard, kl__ns_to_ms(now_ns)) &&
           (home || now_ns - atomic_load_explicit(&shard->visited_ns, memory_order_relaxed) > NEGLECTED_NS);
}

/* Takes back what other threads have had in hand since `since_ns` or longer: they may be stuck. False: there was
 * nothing. */
static bool recall_others(kl_exec *exec, int64_t since_ns)
{
    bool recalled = false;
    for (uint32_t i = 0; i < exec->thread_count; i++) {
        kl__hand *hand = &exec->threads[i].hand;
        kl__shard *shard = atomic_load_explicit(&hand->shard, memory_order_relaxed);
        if (!shard || !kl__hand_recallable(hand) ||
            atomic_load_explicit(&hand->filled_ns, memory_order_relaxed) > since_ns)
            continue;
        pthread_mutex_lock(&shard->mutex);
        kl__hand_recall(hand, shard, kl__exec_now_ns(exec));
        kl__shard_offer(shard);
        pthread_mutex_unlock(&shard->mutex);
        recalled = true;
    }
    return recalled;
}

/* For a thread that has enough to do, and would never come to look otherwise. */
static void look_after_others(kl__exec_thread *thread, int64_t now_ns)
{
    if (KL_LIKELY(now_ns - thread->cared_ns < NEGLECTED_NS))
        return;
    thread->cared_ns = now_ns;
    (void)recall_others(thread->exec, now_ns - NEGLECTED_NS);
}

/* One round over the shards. While a thread runs nothing, it may be `stealing`: then every shard is home. Returns how
 * many tasks were run. */
static uint32_t visit_all(kl__exec_thread *thread, bool stealing)
{
    kl_exec *exec = thread->exec;
    uint32_t ran = 0;
    int64_t now_ns = kl__exec_now_ns(exec);
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        kl__shard *shard = &exec->shards[(thread->home + i) % exec->shard_count];
        bool home = i < thread->homes || (stealing && ran == 0);
        if (!wants_visit(shard, home, now_ns))
            continue;
        ran += visit(thread, shard);
        now_ns = kl__exec_now_ns(exec);
        look_after_others(thread, now_ns);
    }
    return ran;
}

/* After a round of few tasks that came quickly, lets some gather: a thread that is right behind the producers takes
 * from them, for a handful of tasks each time, the cache lines that they are about to write, and each waits for the
 * other's. Not where too few would come in time. */
static void let_gather(kl__exec_thread *thread, int64_t ran)
{
    int64_t enough = thread->exec->gather_tasks, now_ns = kl__monotonic_ns(), took_ns = now_ns - thread->round_ns;
    thread->round_ns = now_ns;
    if (ran >= enough || !thread->brisk || took_ns > GATHER_PART * GATHER_NS ||
        took_ns * enough > ran * GATHER_PART * GATHER_NS)
        return;
    int64_t wait_ns = took_ns * enough / ran, until_ns = now_ns + (wait_ns < GATHER_NS ? wait_ns : GATHER_NS);
    while (kl__monotonic_ns() < until_ns)
        kl__relax();
}

/* A round without a task is followed by a yield: producers may just be getting at it. After STEAL_AFTER of them a
 * thread looks at the shards of others, too, which usually come back to them sooner and have all they need in their
 * caches; after KL_EXEC_YIELDS, or while yields are dear, it sleeps, and then what it is woken for may be anywhere. */
static void work(kl__exec_thread *thread)
{
    kl_exec *exec = thread->exec;
    int quiet = 0;
    int64_t dear_until_ns = 0;
    while (!finished(exec)) {
        uint32_t ran = visit_all(thread, quiet >= STEAL_AFTER);
        if (ran > 0) {
            quiet = 0;
            let_gather(thread, ran);
        } else if (++quiet >= KL_EXEC_YIELDS || !kl__yield(exec->dear_ns, &dear_until_ns)) {
            if (!recall_others(exec, INT64_MAX) && !sleep_until_work(thread))
                kl__nap(NAP_NS);
            quiet = STEAL_AFTER;
        }
    }
    set_brisk(thread, false);
    kl__exec_note_end(exec);
}

static void drop_from_hand(kl__hand *hand, const kl__exec_task *task)
{
    for (uint32_t i = 0; i < hand->count; i++)
        if (hand->tasks[i] == &task->lane)
            hand->tasks[i] = NULL;
}

static void set_replacing(kl__exec_thread *thread, bool replacing)
{
    thread->replacing = replacing;
    pthread_cond_broadcast(&thread->exec->all_ended);
}

/* Without the park mutex meanwhile: the caller's function may call anything. */
static void tell_no_thread(kl_exec *exec, int error)
{
    pthread_mutex_unlock(&exec->park_mutex);
    kl__exec_log(exec, KL_LOG_ERROR,
                 "no thread can be started in its place (%s), so there is one less until it can; raise the limit of "
                 "threads",
                 strerror(error));
    pthread_mutex_lock(&exec->park_mutex);
}

/* Starts another thread in this one's place, unless nothing is left to do. Under the park mutex. */
static void replace(kl__exec_thread *thread)
{
    kl_exec *exec = thread->exec;
    pthread_t id;
    int error = 0, told = 0;
    pthread_sigmask(SIG_SETMASK, &exec->signals, NULL); /* which the other gets; the task may have had its own */
    while (!(thread->gone = finished(exec)) && (error = pthread_create(&id, NULL, kl__thread_main, thread)) != 0) {
        if (!told)
            tell_no_thread(exec, told = error);
        kl__cond_wait(&thread->wake, &exec->park_mutex, kl__monotonic_ns() + REPLACE_WAIT_NS); /* nothing else helps */
    }
    if (!thread->gone)
        thread->id = id;
}

/* A task has ended its thread. The attempt counts as failed, and another thread takes this one's place. */
static void thread_ended(void *argument)
{
    kl__exec_thread *thread = argument;
    kl_exec *exec = thread->exec;
    pthread_mutex_lock(&exec->park_mutex);
    set_replacing(thread, true); /* before its task ends, for then the executor may be closed */
    pthread_mutex_unlock(&exec->park_mutex);
    if (thread->hand.count > 0) {
        kl__shard *shard = thread->run.shard;
        kl__exec_task *task = thread->run.task; /* NULL: between two tasks */
        int64_t now_ns = kl__exec_now_ns(exec);
        if (task) {
            kl_run_error(&thread->run, "the task ended its thread");
            settle_failure(&thread->run, KL_RETRY, now_ns); /* takes the mutex */
            drop_from_hand(&thread->hand, task);
        } else {
            pthread_mutex_lock(&shard->mutex);
        }
        settle_hand(thread, shard, now_ns);
        kl__shard_offer(shard);
        pthread_mutex_unlock(&shard->mutex);
    }
    set_brisk(thread, false);
    kl__exec_log(exec, KL_LOG_ERROR, "a task ended its thread; another takes its place");
    pthread_detach(pthread_self());
    pthread_mutex_lock(&exec->park_mutex);
    replace(thread);
    kl__innermost = NULL; /* what it points to may be freed before this thread's destructors have run */
    set_replacing(thread, false);
    pthread_mutex_unlock(&exec->park_mutex);
}

void *kl__thread_main(void *argument)
{
    kl__exec_thread *thread = argument;
    thread->run = (kl_run){.exec = thread->exec, .retry_after_ms = -1};
    thread->inside = (kl__inside){.exec = thread->exec};
    kl__innermost = &thread->inside;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cleanup_push(thread_ended, thread);
    work(thread);
    pthread_cleanup_pop(0);
    return NULL;
}

/* --- What a task can ask and say --- */

kl_exec_id kl_run_id(const kl_run *run) { return kl__exec_id(run->shard, run->task, run->task->lane.position); }
kl_bytes kl_run_key(const kl_run *run) { return kl__lane_task_key(&run->task->lane); }
uint32_t kl_run_attempt(const kl_run *run) { return run->task->lane.mark.attempts; }

bool kl__task_stopping(const kl_exec *exec, const kl__exec_task *task)
{
    return kl__stop_asked(task) != KL_STOP_NONE || atomic_load(&exec->phase) == KL_EXEC_ABORTING ||
           is_overdue(exec, task);
}

bool kl_run_cancelled(const kl_run *run) { return kl__task_stopping(run->exec, run->task); }

void kl_run_error(kl_run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->error, sizeof run->error, format, arguments);
    va_end(arguments);
}

void kl_run_retry_after(kl_run *run, int64_t delay_ms) { run->retry_after_ms = delay_ms < 0 ? 0 : delay_ms; }
