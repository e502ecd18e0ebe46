/* support.c - what tests of whole workers share (support.h). */
#include "support.h"

#include <errno.h>
#include <time.h>

#include "base/random.h"

static void log_line(void *ctx, kl_log_level level, const char *text)
{
    (void)ctx;
    if (level <= KL_LOG_WARN)
        fprintf(stderr, "# %s\n", text);
}

/* --- A queue on a store --- */

static int64_t clock_of(void *ctx)
{
    struct rig *rig = ctx;
    return rig->now_ms;
}

bool rig_open(struct rig *rig, rig_kind kind, const kl_queue_opts *opts)
{
    char url[WORKDIR_BYTES + 8] = "memory:";
    kl_store_opts store = {.size = sizeof store};
    *rig = (struct rig){.now_ms = INT64_C(1800000000000)};
    if (kind == RIG_DISK || kind == RIG_DISK_CLOCK) {
        if (!workdir_make(rig->dir))
            return test_fail(__FILE__, __LINE__, "no directory"), false;
        snprintf(url, sizeof url, "disk:%s", rig->dir);
    }
    if (kind == RIG_MEMORY_CLOCK || kind == RIG_DISK_CLOCK) {
        store.now_ms = clock_of;
        store.now_ctx = rig;
    }
    if (kl_store_open(url, &store, &rig->store) == KL_OK &&
        kl_queue_open(rig->store, "orders", opts, &rig->queue) == KL_OK)
        return true;
    test_fail(__FILE__, __LINE__, "%s", kl_error_text());
    rig_close(rig);
    return false;
}

void rig_close(struct rig *rig)
{
    kl_queue_close(rig->queue);
    kl_store_close(rig->store);
    if (rig->dir[0] && !workdir_remove(rig->dir))
        test_fail(__FILE__, __LINE__, "%s stays", rig->dir);
}

uint64_t rig_waiting(struct rig *rig)
{
    kl_arena arena = {0};
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(rig->queue, &arena, &info), KL_OK);
    kl_arena_free(&arena);
    return info.counts.ready + info.counts.due + info.counts.retry;
}

/* --- Putting --- */

kl_task_id put_as(kl_queue *queue, const kl_put *put)
{
    kl_put_result result = {0};
    if (kl_queue_put(queue, put, 1, (kl_bytes){0}, &result) != KL_OK)
        test_fail(__FILE__, __LINE__, "put: %s", kl_error_text());
    return result.id;
}

kl_task_id put_task(kl_queue *queue, const char *key, const char *payload)
{
    kl_put put = {.key = kl_str(key ? key : ""), .payload = kl_str(payload)};
    return put_as(queue, &put);
}

void put_numbers(kl_queue *queue, const char *prefix, int keys, int each)
{
    enum { BATCH = 1000 };
    kl_put *puts = calloc(BATCH, sizeof *puts);
    char(*payloads)[32] = calloc(BATCH, sizeof *payloads), (*names)[32] = calloc(BATCH, sizeof *names);
    int count = 0;
    for (int64_t i = 0; i < (int64_t)keys * each; i++) {
        int key = (int)(i % keys), number = (int)(i / keys);
        snprintf(payloads[count], sizeof payloads[count], "%d %d", key, number);
        snprintf(names[count], sizeof names[count], "%s%d", prefix, key);
        puts[count] = (kl_put){.key = kl_str(names[count]), .payload = kl_str(payloads[count])};
        if (++count < BATCH && i + 1 < (int64_t)keys * each)
            continue;
        if (kl_queue_put(queue, puts, (size_t)count, (kl_bytes){0}, NULL) != KL_OK)
            test_fail(__FILE__, __LINE__, "put: %s", kl_error_text());
        count = 0;
    }
    free(puts);
    free(payloads);
    free(names);
}

/* --- Handlers --- */

void runs_init(struct runs *runs)
{
    pthread_condattr_t attributes;
    memset(runs, 0, sizeof *runs);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&runs->mutex, NULL);
    pthread_cond_init(&runs->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void runs_free(struct runs *runs)
{
    free(runs->list);
    pthread_cond_destroy(&runs->changed);
    pthread_mutex_destroy(&runs->mutex);
}

static void copy(char *to, kl_bytes from)
{
    snprintf(to, RUN_TEXT_BYTES, "%.*s", (int)from.len, from.len ? (const char *)from.data : "");
}

/* False: the deadline has passed. The mutex is held. */
static bool wait_change(struct runs *runs, int64_t deadline_ns)
{
    struct timespec until = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    return pthread_cond_timedwait(&runs->changed, &runs->mutex, &until) != ETIMEDOUT;
}

static void add_run(struct runs *runs, kl_work *work)
{
    if (runs->count == runs->room) {
        runs->room = runs->room ? runs->room * 2 : 64;
        runs->list = realloc(runs->list, runs->room * sizeof *runs->list);
    }
    struct run *run = &runs->list[runs->count++];
    copy(run->key, kl_work_key(work));
    copy(run->payload, kl_work_payload(work));
    copy(run->kind, kl_work_kind(work));
    run->id = kl_work_id(work);
    run->attempt = kl_work_attempt(work);
    runs->running++;
    runs->most = runs->running > runs->most ? runs->running : runs->most;
}

/* Looks every few milliseconds whether it is cancelled: of that handlers are not told. */
static kl_outcome hold(struct runs *runs, kl_work *work, bool ends)
{
    enum { LOOK_MS = 2 };
    for (;;) {
        if (kl_work_cancelled(work))
            return KL_RETRY;
        if (ends && (runs->open || runs->tickets)) {
            runs->tickets -= runs->tickets > 0;
            return KL_DONE;
        }
        wait_change(runs, kl__deadline_ns(LOOK_MS));
    }
}

static kl_outcome as_told(struct runs *runs, kl_work *work, const char *verb)
{
    if (strncmp(verb, "hold", 4) == 0 || strncmp(verb, "stuck", 5) == 0)
        return hold(runs, work, verb[0] == 'h');
    if (strncmp(verb, "finish", 6) == 0)
        return hold(runs, work, false) == KL_RETRY ? KL_DONE : KL_DEAD;
    if (strncmp(verb, "retry", 5) == 0 || strncmp(verb, "fail", 4) == 0) {
        kl_work_error(work, "failed as told: %s", verb);
        if (verb[0] == 'r')
            kl_work_retry_after(work, 1);
        return KL_RETRY;
    }
    if (strncmp(verb, "dead", 4) == 0) {
        kl_work_error(work, "dead as told: %s", verb);
        return KL_DEAD;
    }
    if (strncmp(verb, "result", 6) == 0 && kl_work_result(work, kl_str(verb)) != KL_OK)
        return KL_DEAD;
    return KL_DONE;
}

kl_outcome runs_handle(kl_work *work, void *ctx)
{
    struct runs *runs = ctx;
    char verb[RUN_TEXT_BYTES];
    copy(verb, kl_work_payload(work));
    pthread_mutex_lock(&runs->mutex);
    add_run(runs, work);
    pthread_cond_broadcast(&runs->changed);
    kl_outcome outcome = as_told(runs, work, verb);
    runs->running--;
    runs->ended++;
    pthread_cond_broadcast(&runs->changed);
    pthread_mutex_unlock(&runs->mutex);
    return outcome;
}

void runs_open(struct runs *runs, bool open)
{
    pthread_mutex_lock(&runs->mutex);
    runs->open = open;
    pthread_cond_broadcast(&runs->changed);
    pthread_mutex_unlock(&runs->mutex);
}

void runs_let_one(struct runs *runs)
{
    pthread_mutex_lock(&runs->mutex);
    runs->tickets++;
    pthread_cond_broadcast(&runs->changed);
    pthread_mutex_unlock(&runs->mutex);
}

size_t runs_count(struct runs *runs)
{
    pthread_mutex_lock(&runs->mutex);
    size_t count = runs->count;
    pthread_mutex_unlock(&runs->mutex);
    return count;
}

static size_t times(const struct runs *runs, const char *payload)
{
    size_t count = 0;
    for (size_t i = 0; i < runs->count; i++)
        count += strcmp(runs->list[i].payload, payload) == 0;
    return count;
}

size_t runs_of(struct runs *runs, const char *payload)
{
    pthread_mutex_lock(&runs->mutex);
    size_t count = times(runs, payload);
    pthread_mutex_unlock(&runs->mutex);
    return count;
}

int runs_first(struct runs *runs, const char *payload)
{
    int first = -1;
    pthread_mutex_lock(&runs->mutex);
    for (size_t i = 0; i < runs->count && first < 0; i++)
        if (strcmp(runs->list[i].payload, payload) == 0)
            first = (int)i;
    pthread_mutex_unlock(&runs->mutex);
    return first;
}

bool runs_wait(struct runs *runs, size_t count)
{
    int64_t deadline_ns = kl__deadline_ns(WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&runs->mutex);
    while (runs->count < count && in_time)
        in_time = wait_change(runs, deadline_ns);
    if (runs->count < count)
        test_fail(__FILE__, __LINE__, "%zu runs instead of %zu", runs->count, count);
    pthread_mutex_unlock(&runs->mutex);
    return in_time;
}

bool runs_wait_for(struct runs *runs, const char *payload, size_t often)
{
    int64_t deadline_ns = kl__deadline_ns(WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&runs->mutex);
    while (times(runs, payload) < often && in_time)
        in_time = wait_change(runs, deadline_ns);
    if (times(runs, payload) < often)
        test_fail(__FILE__, __LINE__, "'%s' ran %zu times instead of %zu", payload, times(runs, payload), often);
    pthread_mutex_unlock(&runs->mutex);
    return in_time;
}

kl_outcome order_handle(kl_work *work, void *ctx)
{
    struct order *order = ctx;
    char payload[RUN_TEXT_BYTES];
    int key = 0, number = 0;
    copy(payload, kl_work_payload(work));
    sscanf(payload, "%d %d", &key, &number);
    if (atomic_fetch_add(&order->running[key], 1) != 0)
        order->overlap = true;
    if (number != order->next[key] && !atomic_exchange(&order->disorder, true))
        fprintf(stderr, "# key %d: %d instead of %d\n", key, number, (int)order->next[key]);
    uint64_t random = order->seed ^ ++order->runs;
    bool again =
        order->retry_every && kl__random_below(&random, (uint64_t)order->retry_every) == 0 && kl_work_attempt(work) < 5;
    if (again)
        kl_work_retry_after(work, (int64_t)kl__random_below(&random, 3));
    else
        order->next[key] = number + 1;
    order->done += !again;
    atomic_fetch_sub(&order->running[key], 1);
    return again ? KL_RETRY : KL_DONE;
}

void order_check(const struct order *order, int keys, int each)
{
    for (int key = 0; key < keys; key++)
        CHECK_INT(order->next[key], each);
    CHECK(!order->overlap);
    CHECK(!order->disorder);
}

/* --- Workers --- */

static kl_worker *start_serving(kl_queue *const *queues, size_t count, const struct start *start)
{
    kl_handler handler = {.kind = start->kind, .fn = start->fn, .ctx = start->ctx};
    kl_worker_queue served[2];
    for (size_t i = 0; i < count; i++)
        served[i] = (kl_worker_queue){.queue = queues[i],
                                      .handlers = &handler,
                                      .handler_count = 1,
                                      .shards = start->shards,
                                      .slice = start->slice,
                                      .slices = start->slices,
                                      .per_partition = start->per_partition};
    kl_worker_opts opts = {.size = sizeof opts,
                           .name = start->name,
                           .concurrency = start->concurrency ? start->concurrency : 4,
                           .window_max = start->window_max,
                           .stop_ms = start->stop_ms,
                           .until_empty = start->until_empty,
                           .log = log_line};
    kl_worker *worker = NULL;
    if (kl_worker_start(served, count, &opts, &worker) != KL_OK)
        test_fail(__FILE__, __LINE__, "%s", kl_error_text());
    return worker;
}

kl_worker *start_worker(kl_queue *queue, const struct start *start) { return start_serving(&queue, 1, start); }

kl_worker *start_worker_of_two(kl_queue *first, kl_queue *second, const struct start *start)
{
    return start_serving((kl_queue *[]){first, second}, 2, start);
}

void drain_and_close(kl_worker *worker)
{
    if (worker && kl_worker_drain(worker, WAIT_MS) != KL_OK)
        test_fail(__FILE__, __LINE__, "%s", kl_error_text());
    kl_worker_close(worker);
}

bool await_condition(const char *what, condition_fn *holds, void *ctx)
{
    struct timespec pause = {.tv_nsec = 1000000};
    int64_t deadline_ns = kl__deadline_ns(WAIT_MS);
    while (!holds(ctx)) {
        if (kl__monotonic_ns() >= deadline_ns) {
            test_fail(__FILE__, __LINE__, "never: %s", what);
            return false;
        }
        nanosleep(&pause, NULL); /* between two looks */
    }
    return true;
}

struct worker_wish {
    kl_worker *worker;
    uint64_t count;
};

static bool has_shards(void *ctx)
{
    struct worker_wish *wish = ctx;
    return kl_worker_show(wish->worker).shards == wish->count;
}

bool await_shards(kl_worker *worker, uint64_t count)
{
    struct worker_wish wish = {worker, count};
    bool good = await_condition("the worker has its shards", has_shards, &wish);
    if (!good)
        fprintf(stderr, "# %" PRIu64 " shards instead of %" PRIu64 "\n", kl_worker_show(worker).shards, count);
    return good;
}

static bool has_done(void *ctx)
{
    struct worker_wish *wish = ctx;
    return kl_worker_show(wish->worker).done >= wish->count;
}

bool await_done(kl_worker *worker, uint64_t count)
{
    struct worker_wish wish = {worker, count};
    return await_condition("the worker has done its tasks", has_done, &wish);
}

static bool has_held(void *ctx)
{
    struct worker_wish *wish = ctx;
    return kl_worker_show(wish->worker).held == wish->count;
}

bool await_held(kl_worker *worker, uint64_t count)
{
    struct worker_wish wish = {worker, count};
    bool good = await_condition("the worker holds so many tasks", has_held, &wish);
    if (!good)
        fprintf(stderr, "# %" PRIu64 " held instead of %" PRIu64 "\n", kl_worker_show(worker).held, count);
    return good;
}

struct rig_wish {
    struct rig *rig;
    uint64_t waiting;
    const char *key;
    kl_why why, last;
};

static bool has_waiting(void *ctx)
{
    struct rig_wish *wish = ctx;
    return rig_waiting(wish->rig) == wish->waiting;
}

bool await_waiting(struct rig *rig, uint64_t count)
{
    struct rig_wish wish = {.rig = rig, .waiting = count};
    bool good = await_condition("so many tasks wait", has_waiting, &wish);
    if (!good)
        fprintf(stderr, "# %" PRIu64 " tasks wait instead of %" PRIu64 "\n", rig_waiting(rig), count);
    return good;
}

static bool has_why(void *ctx)
{
    struct rig_wish *wish = ctx;
    kl_arena arena = {0};
    kl_key_status status = {0};
    if (kl_key_show(wish->rig->queue, kl_str(wish->key), &arena, &status) == KL_OK)
        wish->last = status.why;
    kl_arena_free(&arena);
    return wish->last == wish->why;
}

bool await_why(struct rig *rig, const char *key, kl_why why)
{
    struct rig_wish wish = {.rig = rig, .key = key, .why = why, .last = (kl_why)-1};
    bool good = await_condition("the key waits for that reason", has_why, &wish);
    if (!good)
        fprintf(stderr, "# %s: reason %d instead of %d\n", key, (int)wish.last, (int)why);
    return good;
}

struct state_wish {
    kl_queue *queue;
    const kl_task_id *id;
    kl_task_state state;
};

static bool has_state(void *ctx)
{
    struct state_wish *wish = ctx;
    kl_arena arena = {0};
    kl_found found;
    kl_rc rc = kl_queue_task(wish->queue, wish->id, &arena, &found);
    kl_task_state state = rc == KL_OK ? found.task.state : rc == KL_ENOTFOUND ? KL_TASK_UNKNOWN : (kl_task_state)-1;
    kl_arena_free(&arena);
    return state == wish->state;
}

bool await_state(kl_queue *queue, const kl_task_id *id, kl_task_state state)
{
    struct state_wish wish = {queue, id, state};
    return await_condition("the task is in that state", has_state, &wish);
}
