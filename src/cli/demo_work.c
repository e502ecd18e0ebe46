/* demo_work.c - the demo's work: 50 keys with 40 tasks each on a real executor, measured by the tasks themselves.
 *
 * A task sleeps a little, as tasks that call other services do. The third task of c-13 calls a payment gateway that is
 * down, and asks for a retry until it is back. It comes back when the other keys have done 6 of 10 of their tasks; then
 * the key is resumed, as an operator would do, and does not wait for its back-off.
 *
 * W1  A task that starts while another of its key is running is an overlap.
 * W2  A task that starts when other than its predecessors have ended is an order violation.
 * W3  Every task ends once: done, dead, or given up by a stop. */
#include "base/clock.h"
#include "base/random.h"
#include "cli/cli.h"
#include "cli/demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    THREADS = 8,           /* tasks sleep, so more than cores */
    BACKOFF_MAX_MS = 1000, /* the show is short */
    SLICE_US = 20000,      /* how long a sleeping task may overlook that it should stop */
    RELEASE_PERCENT = 60,  /* of the other keys' tasks */
    SAMPLES = 50,          /* of the throughput, one per look */
    NS_PER_MS = 1000000,
    US_PER_S = 1000000,
};

struct key {
    char name[KL_DEMO_NAME_BYTES];
    kl__demo_watch watch;
    _Atomic int64_t last_end_ns;
};

struct task {
    kl__demo *demo;
    uint32_t key, number;
    int64_t duration_us;
};

struct kl__demo {
    kl_exec *exec;
    int64_t threads;
    int64_t start_ns;
    struct key keys[KL_DEMO_KEYS];
    struct task tasks[KL_DEMO_TOTAL]; /* in the order of submission */

    _Atomic uint32_t done, dead, given_up, retries, failures;
    _Atomic uint32_t others_ended;
    _Atomic bool gateway_back;

    /* The failing key's story. A time of 0 has not come yet; the count beside a time is written before it. */
    _Atomic int64_t failed_ns, released_ns, unblocked_ns, others_over_ns;
    _Atomic uint32_t others_at_failed, others_at_unblocked;
    _Atomic int64_t pause_ns;

    /* The looking thread's own. */
    struct {
        int64_t ns;
        uint32_t ended;
    } samples[SAMPLES];
    unsigned looks;
    uint32_t held_most;
};

/* --- The watch --- */

void kl__demo_watch_enter(kl__demo_watch *watch, uint32_t number)
{
    if (atomic_fetch_add(&watch->inside, 1) != 0)
        atomic_fetch_add(&watch->overlaps, 1);
    if (atomic_load(&watch->ended) != number)
        atomic_fetch_add(&watch->order_violations, 1);
}

void kl__demo_watch_leave(kl__demo_watch *watch) { atomic_fetch_sub(&watch->inside, 1); }

void kl__demo_watch_end(kl__demo_watch *watch) { atomic_fetch_add(&watch->ended, 1); }

/* --- A task --- */

static bool is_bad(const struct task *task) { return task->key == KL_DEMO_BAD_KEY && task->number == KL_DEMO_BAD_TASK; }

/* False: the task was told to stop. */
static bool pass_time(const kl_run *run, int64_t duration_us)
{
    while (duration_us > 0 && !kl_run_cancelled(run)) {
        int64_t slice_us = duration_us < SLICE_US ? duration_us : SLICE_US;
        nanosleep(&(struct timespec){.tv_nsec = slice_us * 1000}, NULL);
        duration_us -= slice_us;
    }
    return !kl_run_cancelled(run);
}

static void note_failure(kl__demo *demo)
{
    if (atomic_fetch_add(&demo->failures, 1) != 0)
        return;
    atomic_store(&demo->others_at_failed, atomic_load(&demo->others_ended));
    atomic_store(&demo->failed_ns, kl__monotonic_ns());
}

static kl_outcome work(kl_run *run, void *ctx)
{
    struct task *task = ctx;
    kl__demo *demo = task->demo;
    kl__demo_watch *watch = &demo->keys[task->key].watch;
    kl__demo_watch_enter(watch, task->number);
    if (kl_run_attempt(run) > 1)
        atomic_fetch_add(&demo->retries, 1);
    kl_outcome outcome = pass_time(run, task->duration_us) ? KL_DONE : KL_RETRY;
    if (outcome == KL_DONE && is_bad(task) && !atomic_load(&demo->gateway_back)) {
        kl_run_error(run, "%s", KL_DEMO_ERROR);
        note_failure(demo);
        outcome = KL_RETRY;
    }
    kl__demo_watch_leave(watch);
    return outcome;
}

/* While c-13 is blocked, remembers the longest that another key went without a task ending. */
static void note_pause(kl__demo *demo, int64_t pause_ns)
{
    int64_t longest = atomic_load(&demo->pause_ns);
    if (!atomic_load(&demo->failed_ns) || atomic_load(&demo->unblocked_ns))
        return;
    while (pause_ns > longest && !atomic_compare_exchange_weak(&demo->pause_ns, &longest, pause_ns))
        continue;
}

static void note_end(void *ctx, const kl_exec_end *end)
{
    struct task *task = ctx;
    kl__demo *demo = task->demo;
    struct key *key = &demo->keys[task->key];
    int64_t now = kl__monotonic_ns();
    if (is_bad(task)) {
        atomic_store(&demo->others_at_unblocked, atomic_load(&demo->others_ended));
        atomic_store(&demo->unblocked_ns, now);
    }
    if (task->key != KL_DEMO_BAD_KEY) {
        note_pause(demo, now - atomic_exchange(&key->last_end_ns, now));
        if (atomic_fetch_add(&demo->others_ended, 1) + 1 == KL_DEMO_OTHERS * KL_DEMO_TASKS)
            atomic_store(&demo->others_over_ns, now);
    }
    atomic_fetch_add(end->rc == KL_OK ? &demo->done : end->rc == KL_ECLOSED ? &demo->given_up : &demo->dead, 1);
    kl__demo_watch_end(&key->watch);
}

/* --- Start and stop --- */

/* From a quarter to seven quarters of a mean that fills the time. With many threads the time cannot be filled: c-13 has
 * to do its tasks one by one after its release, so a task takes at most a hundredth of it. */
static void prepare(kl__demo *demo, const kl__demo_opts *opts)
{
    uint64_t random = (uint64_t)opts->seed;
    int64_t mean_us = opts->seconds * US_PER_S / KL_DEMO_TOTAL * demo->threads * 9 / 10;
    if (mean_us > opts->seconds * US_PER_S / 100)
        mean_us = opts->seconds * US_PER_S / 100;
    demo->start_ns = kl__monotonic_ns();
    for (uint32_t i = 0; i < KL_DEMO_KEYS; i++) {
        snprintf(demo->keys[i].name, KL_DEMO_NAME_BYTES, "c-%02u", (unsigned)(i + 1) % 100);
        demo->keys[i].last_end_ns = demo->start_ns;
    }
    for (uint32_t i = 0; i < KL_DEMO_TOTAL; i++) {
        int64_t duration_us = mean_us / 4 + (int64_t)kl__random_below(&random, (uint64_t)(mean_us * 3 / 2));
        demo->tasks[i] = (struct task){demo, i % KL_DEMO_KEYS, i / KL_DEMO_KEYS, duration_us};
    }
}

/* The environment goes first; what it leaves open is set as suits a short show. */
static int choose_settings(kl_exec_opts *opts)
{
    if (kl_exec_opts_from_env(opts) != KL_OK) {
        kl__complain("%s", kl_error_text());
        return KL_EXIT_USAGE;
    }
    if (!opts->threads)
        opts->threads = THREADS;
    if (!opts->attempts_max)
        opts->attempts_max = KL_EXEC_ATTEMPTS_MAX;
    if (!opts->backoff_max_ms)
        opts->backoff_max_ms = opts->backoff_base_ms > BACKOFF_MAX_MS ? opts->backoff_base_ms : BACKOFF_MAX_MS;
    if (!opts->shard_capacity)
        opts->shard_capacity = KL_DEMO_TOTAL;
    if (opts->shard_capacity < KL_DEMO_TOTAL) {
        kl__complain(
            "KEYLINE_EXEC_SHARD_CAPACITY is %lld, and the demo hands over %d tasks at once; unset it, or set it "
            "to %d or more",
            (long long)opts->shard_capacity, KL_DEMO_TOTAL, KL_DEMO_TOTAL);
        return KL_EXIT_USAGE;
    }
    return KL_EXIT_OK;
}

static kl_rc submit_all(kl__demo *demo)
{
    kl_rc rc = KL_OK;
    for (int i = 0; i < KL_DEMO_TOTAL && rc == KL_OK; i++) {
        struct task *task = &demo->tasks[i];
        kl_exec_task_opts opts = {.size = sizeof opts, .end = note_end, .end_ctx = task};
        rc = kl_exec_submit(demo->exec, kl_str(demo->keys[task->key].name), work, task, &opts, NULL);
    }
    return rc;
}

int kl__demo_start(const kl__demo_opts *opts, kl__demo **ret_demo)
{
    kl_exec_opts settings = {.size = sizeof settings};
    int status = choose_settings(&settings);
    if (status != KL_EXIT_OK)
        return status;
    kl__demo *demo = calloc(1, sizeof *demo);
    if (!demo) {
        kl__complain("out of memory; the demo needs a few megabytes: close something and try again");
        return KL_EXIT_FAILURE;
    }
    demo->threads = settings.threads;
    prepare(demo, opts);
    kl_rc rc = kl_exec_open(&settings, &demo->exec);
    if (rc == KL_OK)
        rc = submit_all(demo);
    if (rc != KL_OK) {
        kl__complain("%s", kl_error_text());
        kl__demo_close(demo);
        return rc == KL_EINVAL ? KL_EXIT_USAGE : KL_EXIT_FAILURE;
    }
    *ret_demo = demo;
    return KL_EXIT_OK;
}

int64_t kl__demo_threads(const kl__demo *demo) { return demo->threads; }

const char *kl__demo_name(const kl__demo *demo, int key) { return demo->keys[key].name; }

kl_rc kl__demo_drain(kl__demo *demo) { return kl_exec_drain(demo->exec, KL_FOREVER); }

void kl__demo_abort(kl__demo *demo) { (void)kl_exec_abort(demo->exec); }

void kl__demo_close(kl__demo *demo)
{
    if (demo)
        kl_exec_close(demo->exec);
    free(demo);
}

/* --- Looking --- */

static double rate(uint32_t count, int64_t duration_ns)
{
    return duration_ns > 0 ? (double)count * 1000 * NS_PER_MS / (double)duration_ns : 0;
}

static kl__demo_cell look_at_key(kl__demo *demo, int index, kl_key_info *ret_info)
{
    struct key *key = &demo->keys[index];
    kl__demo_cell cell = {KL_DEMO_WAITING, atomic_load(&key->watch.ended)};
    *ret_info = (kl_key_info){0};
    if (kl_exec_key_show(demo->exec, kl_str(key->name), ret_info) != KL_OK)
        return cell;
    if (cell.ended == KL_DEMO_TASKS)
        cell.state = KL_DEMO_DONE;
    else if (ret_info->state == KL_KEY_RUNNING)
        cell.state = KL_DEMO_RUNNING;
    else if (ret_info->state == KL_KEY_RETRYING)
        cell.state = KL_DEMO_RETRYING;
    return cell;
}

static void look_at_keys(kl__demo *demo, kl__demo_look *look)
{
    for (int i = 0; i < KL_DEMO_KEYS; i++) {
        kl_key_info info;
        look->cells[i] = look_at_key(demo, i, &info);
        look->order_violations += atomic_load(&demo->keys[i].watch.order_violations);
        look->overlaps += atomic_load(&demo->keys[i].watch.overlaps);
        if (i == KL_DEMO_BAD_KEY)
            look->due_in_ms = info.due_in_ms;
        else if (info.state != KL_KEY_IDLE && info.state != KL_KEY_RUNNING && info.state != KL_KEY_READY)
            look->held++;
    }
    if (look->held > demo->held_most)
        demo->held_most = look->held;
    look->held_most = demo->held_most;
}

static void look_at_story(kl__demo *demo, kl__demo_look *look, int64_t now)
{
    int64_t failed_ns = atomic_load(&demo->failed_ns), released_ns = atomic_load(&demo->released_ns);
    int64_t unblocked_ns = atomic_load(&demo->unblocked_ns), over_ns = atomic_load(&demo->others_over_ns);
    uint32_t others = atomic_load(&demo->others_ended);
    if (!failed_ns)
        return;
    look->phase = unblocked_ns ? KL_DEMO_FLOWING : released_ns ? KL_DEMO_RELEASED : KL_DEMO_BLOCKED;
    look->released_ms = released_ns ? (released_ns - demo->start_ns) / NS_PER_MS : 0;
    uint32_t others_then = unblocked_ns ? atomic_load(&demo->others_at_unblocked) : others;
    int64_t blocked_ns = (unblocked_ns ? unblocked_ns : now) - failed_ns;
    look->blocked_ms = blocked_ns / NS_PER_MS;
    look->others_then = others_then - atomic_load(&demo->others_at_failed);
    look->rate_then = rate(look->others_then, blocked_ns);
    look->pause_ms = atomic_load(&demo->pause_ns) / NS_PER_MS;
    if (unblocked_ns)
        look->rate_later = rate(others - others_then, (over_ns ? over_ns : now) - unblocked_ns);
}

static void steer(kl__demo *demo, const kl__demo_look *look)
{
    if (look->phase == KL_DEMO_BLOCKED &&
        atomic_load(&demo->others_ended) >= KL_DEMO_OTHERS * KL_DEMO_TASKS * RELEASE_PERCENT / 100) {
        atomic_store(&demo->gateway_back, true);
        atomic_store(&demo->released_ns, kl__monotonic_ns());
    }
    /* At each look, because an attempt that was under way may yet fail. */
    if (atomic_load(&demo->gateway_back) && look->cells[KL_DEMO_BAD_KEY].state == KL_DEMO_RETRYING)
        (void)!kl_exec_key_resume(demo->exec, kl_str(demo->keys[KL_DEMO_BAD_KEY].name));
}

void kl__demo_look_at(kl__demo *demo, kl__demo_look *ret_look)
{
    int64_t now = kl__monotonic_ns();
    kl__demo_look look = {.elapsed_ms = (now - demo->start_ns) / NS_PER_MS,
                          .failures = atomic_load(&demo->failures),
                          .done = atomic_load(&demo->done),
                          .dead = atomic_load(&demo->dead),
                          .given_up = atomic_load(&demo->given_up),
                          .retries = atomic_load(&demo->retries)};
    uint32_t ended = look.done + look.dead + look.given_up;
    unsigned oldest = demo->looks < SAMPLES ? 0 : demo->looks % SAMPLES; /* about a second old */
    if (demo->looks > 0)
        look.per_second = (uint32_t)rate(ended - demo->samples[oldest].ended, now - demo->samples[oldest].ns);
    demo->samples[demo->looks % SAMPLES].ns = now;
    demo->samples[demo->looks++ % SAMPLES].ended = ended;
    look.over = ended == KL_DEMO_TOTAL;
    look_at_keys(demo, &look);
    look_at_story(demo, &look, now);
    steer(demo, &look);
    *ret_look = look;
}
