/* worker_keep.c - the four threads that keep a worker going: one looks for tasks, one sends outcomes, one
 * looks at records and carries out requests, one beats.
 *
 * The scout waits for appends where the store can tell of them and there is one partition to wait for; otherwise it
 * looks again and again, less often the longer nothing comes. Where a store is far away and there is much to do, some
 * time passes between two looks, and between two settles, that follow each other, in proportion to what one takes and
 * to how many workers share the store: so each finds more at a time, and all of them together make about as many calls
 * as one. While looks are full, the scout does not ask to be told of appends: the next look comes by itself. And what
 * was run is then settled as soon as nothing is left to run, because nothing more would go with it. */
#include "base/wait.h"
#include "work/worker_inside.h"

enum {
    POLL_MIN_MS = 1,
    POLL_MAX_MS = 50,
    WAIT_MAX_MS = 20,
    FAILED_MS = 250,
    REST_EACH = 4,     /* times as long as it took, for each other worker, */
    REST_ALONE = 3,    /* or for none, if it had any tasks, */
    REST_PATIENT = 12, /* and many for which nobody waits */
    REST_MAX_NS = 5000000,
    REST_BUSY_NS = 25000000,     /* where calls have many tasks, */
    REST_BUSY_EACH_NS = 8000000, /* or, where many workers share the queue, for each of them, */
    REST_BUSY_MAX_NS = 64000000,
    LOOK_PART = 2, /* a look rests so much less than a settle: tasks wait for looks, and for settles nobody does */
    BUSY_TASKS = 16,
    FULL_TASKS = 64, /* for each so many the rest is longer by as much again, */
    FULL_TIMES = 4   /* and in all so many times as long */
};

/* --- The scout --- */

/* The one partition to wait for; NULL: none, or several. */
static kl__partition *only_partition(kl_worker *worker)
{
    kl__partition *only = worker->served_count == 1 ? worker->served[0].pump->partitions : NULL;
    return only && !only->next && (kl_store_info_of(only->store).can & KL_STORE_WAIT) ? only : NULL;
}

static bool wants_look(kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (kl__pump_wants_look(worker->served[i].pump))
            return true;
    return false;
}

/* False: it failed. */
static bool look(kl_worker *worker, uint64_t *ret_ready)
{
    bool good = true;
    *ret_ready = 0;
    for (size_t i = 0; i < worker->served_count; i++) {
        uint64_t ready = 0;
        if (!kl__pump_wants_look(worker->served[i].pump))
            continue;
        kl_rc rc = kl__pump_look(worker->served[i].pump, &ready);
        if (rc != KL_OK) {
            kl__worker_failed(worker, KL_DOING_LOOK, rc);
            good = false;
        }
        *ret_ready += ready;
    }
    if (good)
        kl__worker_worked(worker, KL_DOING_LOOK);
    kl__worker_wake(worker, *ret_ready);
    return good;
}

/* The last look came past all that it had room for: what it could not see must not wait for the next append. */
static bool is_eager(kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (worker->served[i].pump->eager && kl__pump_wants_look(worker->served[i].pump))
            return true;
    return false;
}

/* Waits until there may be something new. The mutex is held, and left meanwhile. */
static void wait_for_work(kl_worker *worker, int64_t *poll_ms)
{
    kl__partition *only = only_partition(worker);
    if (!only || worker->look_now) {
        kl__worker_wait(worker, &worker->scout, *poll_ms);
        *poll_ms = *poll_ms * 2 < POLL_MAX_MS ? *poll_ms * 2 : POLL_MAX_MS;
        worker->look_now = false;
        return;
    }
    kl_store *store = only->store;
    uint32_t number = only->number;
    uint64_t seen = only->seen;
    pthread_mutex_unlock(&worker->mutex);
    kl_rc rc = kl_store_wait(store, number, WAIT_MAX_MS, &seen);
    pthread_mutex_lock(&worker->mutex);
    if (only_partition(worker) == only)
        only->seen = seen;
    if (rc != KL_OK)
        kl__worker_wait(worker, &worker->scout, FAILED_MS);
}

/* How many workers share a queue in a store that is far; 0: none is far. */
static uint64_t sharers(const kl_worker *worker)
{
    uint64_t most = 0;
    for (size_t i = 0; i < worker->served_count; i++) {
        const kl__pump *pump = worker->served[i].pump;
        bool far = false;
        for (const kl__partition *each = pump->partitions; each; each = each->next)
            far |= kl__store_is_far(each->store);
        uint64_t count = kl__pump_sharers(pump);
        most = far && count > most ? count : most;
    }
    return most;
}

static uint64_t busy_rest_ns(uint64_t others)
{
    uint64_t all_ns = others * REST_BUSY_EACH_NS;
    return all_ns < REST_BUSY_NS ? REST_BUSY_NS : all_ns < REST_BUSY_MAX_NS ? all_ns : REST_BUSY_MAX_NS;
}

/* A call to the store that has ended just now. */
struct call {
    int64_t began_ns, ended_ns;
    uint64_t tasks;
    bool settles;
};

/* How long to rest before the next call. patient: nobody waits for what that one brings. */
static int64_t rest_ns(uint64_t others, const struct call *call, bool patient)
{
    uint64_t alone = others > 0 && call->tasks > 0 ? REST_ALONE : 0;
    uint64_t full = call->tasks / FULL_TASKS + 1;
    bool busy = call->tasks >= BUSY_TASKS && (others > 1 || (others > 0 && patient));
    uint64_t times = others > 1 ? (others - 1) * REST_EACH * (full < FULL_TIMES ? full : FULL_TIMES)
                     : busy     ? REST_PATIENT
                                : alone;
    uint64_t most_ns = !busy ? REST_MAX_NS : call->settles ? busy_rest_ns(others) : busy_rest_ns(others) / LOOK_PART;
    uint64_t took_ns = (uint64_t)(call->ended_ns - call->began_ns + 1);
    uint64_t times_max = most_ns / took_ns;
    return (int64_t)(took_ns * (times < times_max ? times : times_max));
}

/* Nothing is run here before the next look, which is some time away. */
bool kl__worker_has_run_all(const kl_worker *worker)
{
    return worker->resting && worker->idle == worker->thread_count && worker->thread_count > 0;
}

/* Before the next call. The mutex is held, and left meanwhile. */
static void rest(kl_worker *worker, const struct call *call, bool patient)
{
    int64_t until_ns = call->ended_ns + rest_ns(sharers(worker), call, patient);
    while (!worker->stopping && !worker->closing && kl__monotonic_ns() < until_ns &&
           !(call->settles && kl__worker_has_run_all(worker) && kl__worker_has_outcomes(worker)))
        kl__cond_wait(call->settles ? &worker->all_run : &worker->changed, &worker->mutex, until_ns);
}

/* Until it is time for the next look. */
static void await_look(kl_worker *worker, const struct call *call, int64_t *poll_ms)
{
    worker->resting = sharers(worker) > 1 && call->tasks >= FULL_TASKS;
    if (!worker->resting)
        wait_for_work(worker, poll_ms);
    rest(worker, call, false);
    worker->resting = false;
}

void *kl__worker_scout(void *context)
{
    kl_worker *worker = context;
    int64_t poll_ms = POLL_MIN_MS;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->closing) {
        uint64_t ready = 0;
        kl__worker_take_back(worker, false);
        if (worker->stopping) {
            kl__worker_wait(worker, &worker->scout, POLL_MAX_MS);
            continue;
        }
        if (!wants_look(worker)) {
            kl__worker_wait(worker, &worker->scout, KL_LOOK_EVERY_MS);
            continue;
        }
        int64_t began_ns = kl__monotonic_ns();
        if (!look(worker, &ready)) {
            kl__worker_wait(worker, &worker->scout, FAILED_MS);
            continue;
        }
        struct call call = {began_ns, kl__monotonic_ns(), ready, false};
        if (ready)
            poll_ms = POLL_MIN_MS;
        if (!is_eager(worker))
            await_look(worker, &call, &poll_ms);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

/* --- The settler --- */

bool kl__worker_has_outcomes(const kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (kl__pump_has_finished(worker->served[i].pump) && !kl__pump_settling(worker->served[i].pump))
            return true;
    return false;
}

/* Outcomes that could not be sent are kept, and sent again after a while. Without a giver nobody waits for them: a key
 * goes on when its task has been run. */
static void settle(kl_worker *worker)
{
    struct call call = {.began_ns = kl__monotonic_ns(), .settles = true};
    bool good = true;
    for (size_t i = 0; i < worker->served_count; i++) {
        uint64_t sent = 0;
        kl_rc rc = kl__pump_settle(worker->served[i].pump, &sent);
        if (rc != KL_OK) {
            kl__worker_failed(worker, KL_DOING_SETTLE, rc);
            good = false;
            kl__worker_wait(worker, &worker->changed, KL_RETRY_MS);
        }
        call.tasks += sent;
        kl__worker_wake(worker, kl__pump_ready(worker->served[i].pump));
    }
    if (good)
        kl__worker_worked(worker, KL_DOING_SETTLE);
    kl__worker_tell_giver(worker);
    if (worker->stopping)
        pthread_cond_broadcast(&worker->changed);
    call.ended_ns = kl__monotonic_ns();
    rest(worker, &call, !worker->giver.settled);
}

void *kl__worker_settler(void *context)
{
    kl_worker *worker = context;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->closing) {
        if (kl__worker_has_outcomes(worker))
            settle(worker);
        else
            kl__worker_wait(worker, &worker->outcomes, FAILED_MS);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

/* --- The beat --- */

static bool all_gone(const kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (!kl__pump_gone(worker->served[i].pump))
            return false;
    return true;
}

static bool all_empty(kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (!kl__pump_empty(worker->served[i].pump))
            return false;
    return true;
}

static void check_stop(kl_worker *worker)
{
    if (worker->stopping && !worker->ended) {
        int64_t waited_ms = (kl__monotonic_ns() - worker->stopping_ns) / 1000000;
        if (waited_ms >= worker->opts.stop_ms)
            atomic_store(&worker->abandoning, true);
        worker->ended = all_gone(worker);
        pthread_cond_broadcast(&worker->changed);
    }
}

static int64_t beat_ms(const kl_worker *worker)
{
    int64_t least_ms = FAILED_MS;
    for (size_t i = 0; i < worker->served_count; i++) {
        int64_t ms = kl__pump_beat_ms(worker->served[i].pump);
        least_ms = ms < least_ms ? ms : least_ms;
    }
    return least_ms;
}

static void each_served(kl_worker *worker, kl__doing doing, kl_rc (*step)(kl__pump *pump))
{
    bool good = true;
    for (size_t i = 0; i < worker->served_count; i++) {
        kl_rc rc = step(worker->served[i].pump);
        if (rc == KL_OK)
            continue;
        kl__worker_failed(worker, doing, rc);
        good = false;
    }
    if (good)
        kl__worker_worked(worker, doing);
}

/* What may take long has a thread of its own, so that the lease is renewed meanwhile. */
void *kl__worker_tick(void *context)
{
    kl_worker *worker = context;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->closing && !worker->ended) {
        each_served(worker, KL_DOING_TICK, kl__pump_tick);
        kl__worker_tell_giver(worker); /* a request may have sent outcomes */
        if (!worker->ended && !worker->closing)
            kl__worker_wait(worker, &worker->changed, beat_ms(worker));
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

void *kl__worker_beat(void *context)
{
    kl_worker *worker = context;
    int empty = 0; /* in a row */
    pthread_mutex_lock(&worker->mutex);
    while (!worker->closing && !worker->ended) {
        each_served(worker, KL_DOING_BEAT, kl__pump_keep);
        for (size_t i = 0; i < worker->served_count; i++) /* it may have been let on: resumed, permitted */
            kl__worker_wake(worker, kl__pump_ready(worker->served[i].pump));
        kl__worker_tell_giver(worker); /* shards may have been lost */
        check_stop(worker);
        empty = worker->opts.until_empty && !worker->stopping && all_empty(worker) ? empty + 1 : 0;
        if (empty >= 3)
            kl__worker_stop(worker);
        if (!worker->ended && !worker->closing)
            kl__worker_wait(worker, &worker->changed, beat_ms(worker));
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}
