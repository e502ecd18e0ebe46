/* test_change.c - the layout of a queue is changed while it is filled and emptied: order per key survives. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "harness.h"
#include "keyline/queue.h"
#include "keyline/worker.h"

enum { KEYS = 200, WAIT_MS = 120000, PRODUCERS = 2 };

struct seen {
    atomic_int running[KEYS];
    atomic_int next[KEYS]; /* number that must come next */
    atomic_bool overlap, disorder;
    atomic_ullong runs;
};

struct load {
    kl_store *store;
    struct seen seen;
    atomic_bool stop;
    int put[KEYS]; /* by its producer alone */
    atomic_ullong total;
};

struct producer {
    struct load *load;
    int number;
};

static void log_line(void *ctx, kl_log_level level, const char *text)
{
    (void)ctx;
    if (level <= KL_LOG_WARN)
        fprintf(stderr, "# %s\n", text);
}

static kl_outcome check_order(kl_work *work, void *ctx)
{
    struct seen *seen = ctx;
    int key = 0, number = 0;
    sscanf(kl_work_payload(work).data, "%d %d", &key, &number);
    if (atomic_fetch_add(&seen->running[key], 1) != 0)
        seen->overlap = true;
    if (number != seen->next[key] && !seen->disorder) {
        seen->disorder = true;
        fprintf(stderr, "# key %d: %d instead of %d\n", key, number, (int)seen->next[key]);
    }
    seen->next[key] = number + 1;
    seen->runs++;
    atomic_fetch_sub(&seen->running[key], 1);
    return KL_DONE;
}

/* Each producer has keys of its own and a handle of its own, so it keeps the layout that it knew for a while. */
static void *produce(void *context)
{
    struct producer *producer = context;
    struct load *load = producer->load;
    kl_queue *queue = NULL;
    kl_put puts[32];
    char payloads[32][32], keys[32][16];
    uint64_t round = 0;
    if (kl_queue_open(load->store, "orders", NULL, &queue) != KL_OK)
        return "cannot open";
    while (!load->stop) {
        for (int i = 0; i < 32; i++) {
            int key = (int)((round * 32 + (uint64_t)i) % (KEYS / PRODUCERS)) * PRODUCERS + producer->number;
            snprintf(payloads[i], sizeof payloads[i], "%d %d", key, load->put[key]++);
            snprintf(keys[i], sizeof keys[i], "key-%d", key);
            puts[i] = (kl_put){.key = kl_str(keys[i]), .payload = kl_str(payloads[i]), .delay_ms = i % 16 == 15 ? 0 : 0};
        }
        if (kl_queue_put(queue, puts, 32, (kl_bytes){0}, NULL) != KL_OK) {
            kl_queue_close(queue);
            return "cannot put";
        }
        load->total += 32;
        round++;
    }
    kl_queue_close(queue);
    return NULL;
}

static void wait_for_runs(struct load *load, uint64_t more)
{
    uint64_t until = load->seen.runs + more;
    int64_t deadline = kl__deadline_ns(WAIT_MS);
    while (load->seen.runs < until && kl__monotonic_ns() < deadline)
        sched_yield();
    CHECK(load->seen.runs >= until);
}

static void alter(kl_queue *queue, int64_t partitions, int64_t shard_prefix_len)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions, .shard_prefix_len = shard_prefix_len};
    kl_rc rc = kl_queue_alter(queue, &opts);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "alter: %s", kl_error_text());
}

static kl_worker *start(kl_queue *queue, struct seen *seen)
{
    kl_handler handler = {.fn = check_order, .ctx = seen};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 3, .log = log_line};
    kl_worker *worker = NULL;
    CHECK_INT(kl_worker_start(&served, 1, &opts, &worker), KL_OK);
    return worker;
}

static void change_under_load(const char *url)
{
    static struct load load;
    static const int64_t layouts[][2] = {{4, 1}, {4, 2}, {2, 2}, {2, 1}, {3, 1}};
    kl_queue *queue = NULL;
    kl_queue_opts two = {.size = sizeof two, .partitions = 2, .lease_ms = 2000};
    struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    load = (struct load){0};
    REQUIRE(kl_store_open(url, NULL, &load.store) == KL_OK);
    REQUIRE(kl_queue_open(load.store, "orders", &two, &queue) == KL_OK);
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){&load, i};
        REQUIRE(pthread_create(&threads[i], NULL, produce, &producers[i]) == 0);
    }
    kl_worker *workers[2] = {start(queue, &load.seen), start(queue, &load.seen)};
    wait_for_runs(&load, 500);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        alter(queue, layouts[i][0], layouts[i][1]);
        wait_for_runs(&load, 2000);
    }
    load.stop = true;
    for (int i = 0; i < PRODUCERS; i++) {
        void *error = NULL;
        pthread_join(threads[i], &error);
        CHECK_STR(error ? (const char *)error : "", "");
    }
    wait_for_runs(&load, load.total - load.seen.runs);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(kl_worker_drain(workers[i], WAIT_MS), KL_OK);
        kl_worker_close(workers[i]);
    }
    CHECK_INT(load.seen.runs, load.total);
    CHECK(!load.seen.overlap);
    CHECK(!load.seen.disorder);
    for (int key = 0; key < KEYS; key++)
        CHECK_INT(load.seen.next[key], load.put[key]);
    kl_queue_close(queue);
    kl_store_close(load.store);
}

TEST(order_per_key_survives_growing_and_shrinking_under_load) { change_under_load("memory:"); }
