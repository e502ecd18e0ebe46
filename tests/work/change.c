/* change.c - what tests of layouts that change under load share (change.h). */
#include "change.h"

enum { KEYS = 200, PRODUCERS = 2, AHEAD_MAX = 20000 }; /* the last: what waits, at most, however quick puts are */

struct load {
    kl_store *store;
    struct order order;
    atomic_ullong delayed; /* runs of tasks that were put with a delay: they have no place in the order */
    atomic_bool stop;
    int put[KEYS]; /* by its producer alone */
    atomic_ullong total;
};

struct producer {
    struct load *load;
    int number;
};

/* Some tasks are put with a delay, and carry no number. */
static kl_outcome handle(kl_work *work, void *ctx)
{
    struct load *load = ctx;
    if (kl_work_payload(work).len > 0 && *(const char *)kl_work_payload(work).data == 'l') {
        load->delayed++;
        return KL_DONE;
    }
    return order_handle(work, &load->order);
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
        if (load->total > load->order.done + load->delayed + AHEAD_MAX) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            continue;
        }
        for (int i = 0; i < 32; i++) {
            int key = (int)((round * 32 + (uint64_t)i) % (KEYS / PRODUCERS)) * PRODUCERS + producer->number;
            bool later = i == 31;
            if (later)
                snprintf(payloads[i], sizeof payloads[i], "later");
            else
                snprintf(payloads[i], sizeof payloads[i], "%d %d", key, load->put[key]++);
            snprintf(keys[i], sizeof keys[i], "key-%d", key);
            puts[i] = (kl_put){.key = kl_str(keys[i]),
                               .payload = kl_str(payloads[i]),
                               .delay_ms = later ? (int64_t)(round % 4) * 150 + 1 : 0};
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

struct goal {
    struct load *load;
    uint64_t runs;
};

static bool is_reached(void *ctx)
{
    struct goal *goal = ctx;
    return goal->load->order.done + goal->load->delayed >= goal->runs;
}

static void wait_for_runs(struct load *load, uint64_t runs)
{
    struct goal goal = {load, runs};
    await_condition("so many tasks have run", is_reached, &goal);
}

static void wait_for_more(struct load *load, uint64_t more)
{
    wait_for_runs(load, load->order.done + load->delayed + more);
}

static void alter(kl_queue *queue, int64_t partitions, int64_t shard_prefix_len)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions, .shard_prefix_len = shard_prefix_len};
    kl_rc rc = kl_queue_alter(queue, &opts);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "alter: %s", kl_error_text());
}

void change_under_load(struct rig *rig, int retry_every)
{
    static struct load load;
    static const int64_t layouts[][2] = {{4, 1}, {4, 2}, {2, 2}, {2, 1}, {3, 1}};
    struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    memset(&load, 0, sizeof load);
    load.order.retry_every = retry_every;
    load.order.seed = test_seed();
    load.store = rig->store;
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){&load, i};
        REQUIRE(pthread_create(&threads[i], NULL, produce, &producers[i]) == 0);
    }
    const struct start start = {.fn = handle, .ctx = &load, .concurrency = 3};
    kl_worker *workers[2] = {start_worker(rig->queue, &start), start_worker(rig->queue, &start)};
    wait_for_more(&load, 500);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        alter(rig->queue, layouts[i][0], layouts[i][1]);
        wait_for_more(&load, test_rounds(2000));
    }
    load.stop = true;
    for (int i = 0; i < PRODUCERS; i++) {
        void *error = NULL;
        pthread_join(threads[i], &error);
        CHECK_STR(error ? (const char *)error : "", "");
    }
    wait_for_runs(&load, load.total);
    for (int i = 0; i < 2; i++)
        drain_and_close(workers[i]);
    CHECK_INT(load.order.done + load.delayed, load.total);
    CHECK(!load.order.overlap);
    CHECK(!load.order.disorder);
    for (int key = 0; key < KEYS; key++)
        CHECK_INT(load.order.next[key], load.put[key]);
    CHECK_INT(rig_waiting(rig), 0);
}
