/* worker_thread.c - take tasks, run them, hand in what came of them.
 *
 * From: pump.c (ready tasks of the queue whose turn it is).  To: the application's handlers, and settle.c.
 *
 * A thread takes a hand of tasks, one where they take long and up to 64 where they are quick, and claims them one by
 * one. What is ready is spread over all threads, but a hand should take longer to run than it takes to load: where
 * tasks do nearly nothing, or the store is far away, few threads with full hands do more than many that wait for each
 * other. When one turns out to take long, a thread with nothing to do, or one between two hands, takes back those
 * behind it and hands in what was run before it, so nobody waits for a task of another key. Outcomes are sent by a
 * thread of their own, so that running goes on while they become durable. */
#include "base/base.h"
#include "work/worker_inside.h"

enum { QUICK_NS = 20000, SHORT_NS = 200000, SHORT_HAND = 4, WAIT_MS = 1000 };

/* --- Whose turn --- */

/* Threads that must stay free for other queues' minimums. */
static uint64_t kept_for_others(const kl_worker *worker, const kl__served *served)
{
    uint64_t kept = 0;
    for (size_t i = 0; i < worker->served_count; i++) {
        const kl__served *other = &worker->served[i];
        if (other != served && other->busy < (uint64_t)other->min)
            kept += (uint64_t)other->min - other->busy;
    }
    return kept;
}

static bool may_take(const kl_worker *worker, const kl__served *served)
{
    uint64_t busy = 0;
    if (worker->served_count == 1 || served->busy < (uint64_t)served->min)
        return true;
    for (size_t i = 0; i < worker->served_count; i++)
        busy += worker->served[i].busy;
    return worker->thread_count - busy > kept_for_others(worker, served);
}

/* A queue that had nothing to run must not make up for it at once; but a hand of tasks, because they come in pieces. */
static void catch_up(const kl_worker *worker, kl__served *served)
{
    double least = worker->passed - (double)KL_HAND_SIZE_MAX / (double)served->weight;
    if (served->passed < least)
        served->passed = least;
}

/* Of the queues with ready tasks the one that has had least for its weight. */
static kl__served *choose(kl_worker *worker)
{
    kl__served *best = NULL;
    for (size_t i = 0; i < worker->served_count; i++) {
        kl__served *served = &worker->served[i];
        bool waits = kl__pump_ready(served->pump) && may_take(worker, served);
        if (waits && !served->waited)
            catch_up(worker, served);
        served->waited = waits;
        if (waits && (!best || served->passed < best->passed))
            best = served;
    }
    if (best && best->passed > worker->passed)
        worker->passed = best->passed;
    return best;
}

/* --- A hand --- */

/* With a limit for each partition tasks that are ready may be let on when others end; idle threads do not know of
 * it. */
static void wake_others(kl_worker *worker, const kl__served *served)
{
    if (worker->idle && served->pump->capacities)
        kl__worker_wake(worker, kl__pump_ready(served->pump));
}

static size_t take(kl__thread *thread)
{
    kl_worker *worker = thread->worker;
    kl__served *served = choose(worker);
    if (!served)
        return 0;
    size_t share = kl__pump_ready(served->pump) / worker->thread_count + 1;
    size_t wanted = share > worker->worth ? share : worker->worth;
    size_t count = kl__pump_take(served->pump, thread->held, wanted < thread->hand_size ? wanted : thread->hand_size);
    if (count == 0)
        return 0;
    thread->served = served;
    served->busy++;
    served->passed += (double)count / (double)served->weight;
    wake_others(worker, served);
    return count;
}

static kl_rc load(kl__thread *thread, size_t count, size_t *ret_run)
{
    int64_t began_ns = kl__monotonic_ns();
    *ret_run = 0;
    kl_arena_reset(&thread->arena);
    kl_rc rc = kl__pump_load(thread->served->pump, thread->held, count, &thread->arena, thread->tasks, thread->extras,
                             thread->handlers, ret_run);
    if (rc != KL_OK)
        kl__worker_failed(thread->worker, KL_DOING_LOAD, rc);
    else
        kl__worker_worked(thread->worker, KL_DOING_LOAD);
    thread->load_ns = kl__monotonic_ns() - began_ns;
    return rc;
}

static bool claim(kl__thread *thread, size_t *ret_index)
{
    uint64_t claimed = atomic_load(&thread->claim);
    do {
        if (claimed >> 32 >= (uint32_t)claimed)
            return false;
    } while (!atomic_compare_exchange_weak(&thread->claim, &claimed, claimed + (UINT64_C(1) << 32)));
    *ret_index = (size_t)(claimed >> 32);
    return true;
}

/* Hands in what has been run, up to number `to`. The mutex is held. */
static void hand_in(kl__thread *thread, size_t to)
{
    kl__pump *pump = thread->served->pump;
    for (; thread->handed_in < to; thread->handed_in++) {
        size_t i = thread->handed_in;
        if (thread->stopped[i])
            kl__pump_give_up(pump, thread->held[i], thread->extras[i].keep_ms);
        else
            kl__pump_finish(pump, thread->held[i], &thread->verdicts[i]);
    }
}

/* Returns how many were taken back or handed in. All that were claimed, but for the last, have been run. */
static size_t take_back(kl__thread *thread)
{
    uint64_t claimed = atomic_load(&thread->claim), next, count;
    size_t before = thread->handed_in;
    do {
        next = claimed >> 32;
        count = (uint32_t)claimed;
    } while (next < count && !atomic_compare_exchange_weak(&thread->claim, &claimed, next << 32 | next));
    if (next > 0)
        hand_in(thread, next - 1);
    for (uint64_t i = count; i-- > next;)
        kl__pump_give_up(thread->served->pump, thread->held[i], thread->extras[i].keep_ms);
    return thread->handed_in - before + (size_t)(count - next);
}

void kl__worker_take_back(kl_worker *worker, bool all)
{
    int64_t now_ns = kl__monotonic_ns();
    size_t count = 0;
    for (size_t t = 0; t < worker->thread_count; t++) {
        kl__thread *thread = &worker->threads[t];
        if (thread->served && (all || now_ns - atomic_load(&thread->began_ns) >= KL_STEAL_NS))
            count += take_back(thread);
    }
    if (count == 0)
        return;
    worker->worth = 1; /* they are not as quick as they were */
    kl__worker_wake(worker, count);
    pthread_cond_signal(&worker->outcomes);
}

/* --- A run --- */

static int64_t timeout_of(const kl__thread *thread, size_t index)
{
    int64_t timeout_ms = thread->extras[index].timeout_ms;
    return timeout_ms ? timeout_ms : thread->timeout_ms;
}

static void begin(kl__thread *thread, size_t index, int64_t now_ns)
{
    int64_t timeout_ms = timeout_of(thread, index);
    kl_work *work = &thread->work;
    work->worker = thread->worker;
    work->served = thread->served;
    work->held = thread->held[index];
    work->task = &thread->tasks[index];
    work->extra = &thread->extras[index];
    work->attempt = thread->held[index]->lane.mark.attempts + (thread->held[index]->marked ? 0u : 1u);
    work->deadline_ns =
        timeout_ms == KL_FOREVER || timeout_ms > KL_EXEC_WAIT_MS_MAX ? KL_NEVER : now_ns + timeout_ms * 1000000;
    work->retry_after_ms = -1;
    work->progress.percent = -1;
    work->error_len = 0;
    atomic_store(&thread->began_ns, now_ns);
}

/* The handler's texts move into the hand's arena, where they stay until the outcomes are handed in. */
static kl_bytes keep(kl__thread *thread, const char *bytes, size_t length)
{
    kl_bytes copy = {0};
    if (length && !kl_arena_copy(&thread->arena, (kl_bytes){bytes, length}, &copy))
        return (kl_bytes){0};
    return copy;
}

/* The next task of the hand uses the same place for its progress. */
static void stop_telling(kl_work *work)
{
    pthread_mutex_lock(&work->worker->mutex);
    kl__pump_tell(work->served->pump, work->held, NULL);
    work->told = false;
    pthread_mutex_unlock(&work->worker->mutex);
}

/* A handler may return anything, an errno for instance; the store would refuse it, and what finished beside it. */
static kl_outcome outcome_of(kl_work *work, kl_outcome said)
{
    if (said == KL_DONE || said == KL_RETRY || said == KL_DEAD || said == KL_CANCELLED)
        return said;
    kl_work_error(work, "its handler returned %d, which is no outcome", (int)said);
    return KL_RETRY;
}

/* It ended because the worker does: it costs no attempt. What it says of the task itself, that it is done or dead,
 * counts, and so does a request to cancel it. */
static bool is_given_up(const kl__thread *thread, size_t index, kl_outcome outcome)
{
    return (outcome == KL_RETRY || outcome == KL_CANCELLED) && atomic_load(&thread->worker->abandoning) &&
           !atomic_load(&thread->held[index]->cancel);
}

/* Returns when it ended, which is when the next one begins. */
static int64_t run(kl__thread *thread, size_t index, int64_t now_ns)
{
    kl_work *work = &thread->work;
    kl__verdict *verdict = &thread->verdicts[index];
    thread->stopped[index] = !kl__pump_may_start(thread->held[index], now_ns / 1000000);
    if (thread->stopped[index])
        return now_ns;
    begin(thread, index, now_ns);
    kl_outcome outcome = outcome_of(work, thread->handlers[index]->fn(work, thread->handlers[index]->ctx));
    if (work->told)
        stop_telling(work);
    int64_t ended_ns = kl__monotonic_ns();
    bool timed_out = work->deadline_ns != KL_NEVER && ended_ns >= work->deadline_ns;
    if (outcome != KL_DONE && timed_out && work->error_len == 0)
        kl_work_error(work, "it ran longer than %lld ms", (long long)timeout_of(thread, index));
    thread->stopped[index] = is_given_up(thread, index, outcome);
    *verdict = (kl__verdict){.outcome = outcome,
                             .retry_after_ms = work->retry_after_ms,
                             .error = keep(thread, work->error, work->error_len),
                             .result = keep(thread, work->result, work->result_len),
                             .attempts_max = work->extra->attempts_max,
                             .keep_ms = work->extra->keep_ms};
    kl__free(work->result);
    work->result = NULL;
    work->result_len = 0;
    return ended_ns;
}

static void adapt(kl__thread *thread, size_t count, int64_t took_ns)
{
    int64_t mean_ns = took_ns / (int64_t)count;
    size_t wider = thread->hand_size * 2;
    thread->hand_size = mean_ns < QUICK_NS   ? (wider < KL_HAND_SIZE_MAX ? wider : KL_HAND_SIZE_MAX)
                        : mean_ns < SHORT_NS ? SHORT_HAND
                                             : 1;
    size_t worth = (size_t)(thread->load_ns / (mean_ns + 1)) + 1;
    thread->worker->worth = worth < KL_HAND_SIZE_MAX ? worth : KL_HAND_SIZE_MAX;
}

/* Runs what was loaded and hands it in: all at the end, or in pieces when it takes long. The mutex is held, and left
 * while tasks run. */
static void run_hand(kl__thread *thread, size_t count)
{
    kl_worker *worker = thread->worker;
    size_t index = 0, done = 0;
    int64_t began_ns = kl__monotonic_ns(), handed_ns = began_ns, now_ns = began_ns;
    thread->handed_in = 0;
    thread->timeout_ms = thread->served->pump->descriptor->settings.timeout_ms;
    atomic_store(&thread->began_ns, began_ns);
    atomic_store(&thread->claim, count);
    pthread_mutex_unlock(&worker->mutex);
    while (claim(thread, &index)) {
        now_ns = run(thread, index, now_ns);
        done = index + 1;
        if (now_ns - handed_ns < KL_STEAL_NS)
            continue;
        pthread_mutex_lock(&worker->mutex);
        hand_in(thread, done);
        wake_others(worker, thread->served);
        pthread_cond_signal(&worker->outcomes);
        pthread_mutex_unlock(&worker->mutex);
        handed_ns = now_ns = kl__monotonic_ns();
    }
    pthread_mutex_lock(&worker->mutex);
    hand_in(thread, done);
    if (done)
        adapt(thread, done, now_ns - began_ns);
}

/* While there are always ready tasks nobody is idle, and what waits behind a long task must not wait for that. */
static void look_after_others(kl_worker *worker)
{
    int64_t now_ns = kl__monotonic_ns();
    if (now_ns - worker->cared_ns < KL_STEAL_NS)
        return;
    worker->cared_ns = now_ns;
    kl__worker_take_back(worker, false);
}

static void release(kl__thread *thread)
{
    thread->served->busy--;
    thread->served = NULL;
}

/* --- More work --- */

static bool look(kl_worker *worker)
{
    uint64_t ready = 0;
    for (size_t i = 0; i < worker->served_count; i++) {
        kl__pump *pump = worker->served[i].pump;
        uint64_t here = 0;
        if ((!pump->more && !pump->side_wanted) || !kl__pump_wants_look(pump))
            continue;
        if (kl__pump_look(pump, &here) != KL_OK)
            return false; /* the scout looks again, and says what is wrong */
        ready += here;
    }
    if (ready > 1)
        kl__worker_wake(worker, ready - 1);
    return ready > 0;
}

static int64_t until_due_ms(kl_worker *worker)
{
    int64_t wait_ms = WAIT_MS;
    for (size_t i = 0; i < worker->served_count; i++) {
        kl__pump *pump = worker->served[i].pump;
        int64_t due = kl__pump_next_due(pump);
        if (due != KL_NEVER && due - pump->now_ms < wait_ms)
            wait_ms = due - pump->now_ms > 0 ? due - pump->now_ms : 1;
    }
    return wait_ms;
}

/* The last look did not see everything, or left out something that could be held now. */
static bool has_more(const kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (worker->served[i].pump->more || worker->served[i].pump->side_wanted)
            return true;
    return false;
}

static bool has_ready(kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (kl__pump_ready(worker->served[i].pump) && may_take(worker, &worker->served[i]))
            return true;
    return false;
}

/* Nothing to run: what waits behind a long task is taken back, more is read, or it waits. */
static void idle(kl_worker *worker)
{
    enum { LEASE_WAIT_MS = 5 };
    if (has_ready(worker)) { /* and nothing was given out: the lease is over, and the beat must get the mutex */
        kl__worker_wait(worker, &worker->ready, LEASE_WAIT_MS);
        return;
    }
    kl__worker_take_back(worker, false);
    if (has_ready(worker))
        return;
    if (look(worker))
        return;
    worker->look_now |= has_more(worker);
    pthread_cond_signal(&worker->scout);
    worker->idle++;
    if (kl__worker_has_run_all(worker) && kl__worker_has_outcomes(worker))
        pthread_cond_signal(&worker->all_run);
    int64_t wait_ms = until_due_ms(worker), steal_ms = (int64_t)KL_STEAL_NS / 1000000 * 5;
    bool others_run = worker->idle < worker->thread_count;
    kl__worker_wait(worker, &worker->ready, others_run && wait_ms > steal_ms ? steal_ms : wait_ms);
    worker->idle--;
}

void *kl__worker_thread(void *context)
{
    kl__thread *thread = context;
    kl_worker *worker = thread->worker;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->closing) {
        size_t run = 0, count = worker->stopping ? 0 : take(thread);
        if (count > 0) {
            if (load(thread, count, &run) != KL_OK)
                kl__worker_wait(worker, &worker->changed, KL_RETRY_MS);
            if (worker->stopping) { /* a drain has begun meanwhile */
                for (; run > 0; run--)
                    kl__pump_give_up(thread->served->pump, thread->held[run - 1], thread->extras[run - 1].keep_ms);
            }
            if (run < count)
                wake_others(worker, thread->served);
            if (run > 0)
                run_hand(thread, run);
            release(thread);
            look_after_others(worker);
        }
        if (kl__worker_has_outcomes(worker))
            pthread_cond_signal(&worker->outcomes);
        if (count == 0)
            idle(worker);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}
