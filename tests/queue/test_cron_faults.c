/* test_cron_faults.c - each tick is fired once: by many workers, across crashes, lost replies and changed layouts. */
#include <pthread.h>

#include "base/random.h"
#include "queue/put.h"
#include "queue/ticks.h"
#include "store/lossy.h"

/* --- A store that fails --- */

/* Everything fails from some call on, as when a worker has died. Calls are counted behind the store's checks. */
struct mortal {
    struct lossy lossy;
    kl_store *first, *store;
    uint64_t calls, lists;
    uint64_t dies_after; /* so many calls */
};

static void count_call(void *ctx, const kl_store_call *call)
{
    struct mortal *mortal = ctx;
    mortal->lists += strcmp(call->name, "list") == 0;
    if (++mortal->calls >= mortal->dies_after)
        mortal->lossy.requests_lost = 100;
}

static void no_sleep(int64_t ms) { (void)ms; }

static kl_queue *mortal_open(struct mortal *mortal, struct rig *rig, const char *name)
{
    kl_store_opts opts = {.size = sizeof opts, .trace = count_call, .trace_ctx = mortal};
    *mortal = (struct mortal){.dies_after = UINT64_MAX};
    CHECK_INT(lossy_open(&mortal->lossy, rig->store, 1, &mortal->first), KL_OK);
    mortal->lossy.requests_lost = mortal->lossy.replies_lost = 0;
    CHECK_INT(kl_store_open_engine(&mortal->lossy.engine, "", &opts, &mortal->store), KL_OK);
    kl_queue *queue = NULL;
    CHECK_INT(kl_queue_find(mortal->store, name, &queue), KL_OK);
    kl__queue_sleep_by(no_sleep);
    return queue;
}

static void mortal_close(struct mortal *mortal, kl_queue *queue)
{
    kl__queue_sleep_by(NULL);
    kl_queue_close(queue);
    kl_store_close(mortal->store);
    kl_store_close(mortal->first);
}

/* A worker makes `calls` calls and dies over three ticks; another one does the rest. False: it lived. */
static bool die_and_go_on(struct rig *rig, kl_queue *queue, uint64_t calls, bool settle)
{
    static struct ticks ticks;
    struct mortal mortal;
    kl_queue *dying = mortal_open(&mortal, rig, "orders");
    int64_t from = (atomic_load(&rig->clock_ms) / HOUR_MS + 1) * HOUR_MS, next_ms;
    set_clock(rig, from);
    ADD(queue, .name = "a", .when = "@hourly", .catch_up = KL_CATCH_UP_ALL);
    set_clock(rig, from + 3 * HOUR_MS);
    mortal.calls = 0;
    mortal.dies_after = calls;
    kl_rc rc = kl__cron_fire(dying, &next_ms);
    ticks.count = 0;
    if (settle)
        take_ticks(queue, rig->store, true, &ticks);
    set_clock(rig, from + 3 * HOUR_MS + KL_CRON_HELP_MS);
    CHECK_INT(fire(queue), from + 4 * HOUR_MS);
    take_ticks(queue, rig->store, true, &ticks);
    CHECK_INT(ticks.count, 3);
    for (int64_t i = 1; i <= 3; i++)
        CHECK_INT(count_tick(&ticks, from + i * HOUR_MS), 1);
    CHECK_INT(kl_cron_remove(queue, "a"), KL_OK);
    mortal_close(&mortal, dying);
    return rc != KL_OK;
}

static void die_everywhere(struct rig *rig, bool settle)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    uint64_t calls = 1;
    REQUIRE(queue);
    while (calls < 100 && !test_failed() && die_and_go_on(rig, queue, calls, settle))
        calls++;
    CHECK(calls >= 9 && calls < 20); /* the clock, a list, a read, and two for each tick */
    kl_queue_close(queue);
}

CLAIM(a_worker_that_dies_at_any_call_leaves_one_task_per_tick) { die_everywhere(rig, false); }

/* What it has put is run before anybody looks: the store remembers the token. */
CLAIM(a_task_that_was_run_meanwhile_is_not_put_again) { die_everywhere(rig, true); }

CLAIM(a_fresh_firing_is_left_to_who_began_it)
{
    struct mortal mortal;
    int64_t next_ms;
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders"), *dying = queue ? mortal_open(&mortal, rig, "orders") : NULL;
    REQUIRE(queue && dying);
    ADD(queue, .name = "a", .when = "@hourly");
    set_clock(rig, START_MS + HOUR_MS);
    mortal.calls = 0;
    mortal.dies_after = 4; /* the record is written, and no task is put */
    CHECK_INT(kl__cron_fire(dying, &next_ms), LOSSY_RC);
    CHECK_CONTAINS(record_text(rig, "cron/orders/a"), "\"firing\"");
    CHECK_INT(fire(queue), START_MS + HOUR_MS + KL_CRON_HELP_MS);
    CHECK_NO_TICKS(rig, queue);
    CHECK_INT(fire_at(rig, queue, START_MS + HOUR_MS + KL_CRON_HELP_MS), START_MS + 2 * HOUR_MS);
    CHECK_TICKS(rig, queue, START_MS + HOUR_MS);
    mortal_close(&mortal, dying);
    kl_queue_close(queue);
}

/* Whoever changes or removes a schedule first finishes what is being fired. */
CLAIM(a_change_finishes_what_was_being_fired)
{
    for (int way = 0; way < 3; way++) {
        struct mortal mortal;
        int64_t next_ms, from = START_MS + way * DAY_MS;
        set_clock(rig, from);
        kl_queue *queue = OPEN(rig->store, "orders"), *dying = queue ? mortal_open(&mortal, rig, "orders") : NULL;
        REQUIRE(queue && dying);
        ADD(queue, .name = "a", .when = "@hourly");
        set_clock(rig, from + HOUR_MS);
        mortal.calls = 0;
        mortal.dies_after = 4;
        CHECK_INT(kl__cron_fire(dying, &next_ms), LOSSY_RC);
        if (way == 0)
            ADD(queue, .name = "a", .when = "@daily");
        else if (way == 1)
            CHECK_INT(kl_cron_pause(queue, "a", true), KL_OK);
        if (way < 2)
            CHECK_INT(show_cron(rig, queue).last_ms, from + HOUR_MS);
        CHECK_INT(kl_cron_remove(queue, "a"), KL_OK);
        CHECK_TICKS(rig, queue, from + HOUR_MS);
        mortal_close(&mortal, dying);
        kl_queue_close(queue);
    }
}

/* The worker dies before or after its append; then the queue gets another layout. */
CLAIM(a_tick_survives_a_change_of_the_layout)
{
    static const char *const keys[] = {"", "customer-7"};
    for (uint64_t n = 0; n < 4; n++) {
        struct mortal mortal;
        int64_t next_ms, from = START_MS + (int64_t)n * DAY_MS;
        set_clock(rig, from);
        kl_queue *queue = OPEN(rig->store, "orders"), *dying = queue ? mortal_open(&mortal, rig, "orders") : NULL;
        REQUIRE(queue && dying);
        ADD(queue, .name = "a", .when = "@hourly", .task = {.key = kl_str(keys[n / 2])});
        set_clock(rig, from + HOUR_MS);
        mortal.calls = 0;
        mortal.dies_after = 4 + n % 2;
        CHECK_INT(kl__cron_fire(dying, &next_ms), LOSSY_RC);
        kl_queue_opts opts = {
            .size = sizeof opts, .partitions = 2 + (int64_t)n, .shard_prefix_len = 1 + (int64_t)n % 2};
        CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
        CHECK_INT(kl__queue_seal(queue), KL_OK);
        CHECK_INT(fire_at(rig, queue, from + HOUR_MS + 20 * MINUTE_MS), from + 2 * HOUR_MS); /* no token is known now */
        CHECK_TICKS(rig, queue, from + HOUR_MS);
        CHECK_INT(kl_cron_remove(queue, "a"), KL_OK);
        mortal_close(&mortal, dying);
        kl_queue_close(queue);
    }
}

static kl_rc die_firing(struct rig *rig, const char *name, uint64_t calls)
{
    struct mortal mortal;
    int64_t next_ms;
    kl_queue *dying = mortal_open(&mortal, rig, name);
    mortal.calls = 0;
    mortal.dies_after = calls;
    kl_rc rc = kl__cron_fire(dying, &next_ms);
    mortal_close(&mortal, dying);
    return rc;
}

static void add_partitions(kl_queue *queue, int64_t partitions)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions};
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
    CHECK_INT(kl__queue_seal(queue), KL_OK);
}

/* One worker dies over a tick, another at any call while it moves that to a new layout, which then is no longer new. */
CLAIM(a_tick_that_moves_between_layouts_is_put_once)
{
    kl_rc rc = KL_ENOMEM;
    uint64_t calls = 1;
    for (; rc != KL_OK && calls < 100 && !test_failed(); calls++) {
        char name[16];
        snprintf(name, sizeof name, "q%d", (int)calls);
        int64_t from = START_MS + (int64_t)calls * DAY_MS;
        set_clock(rig, from);
        kl_queue *queue = OPEN(rig->store, name);
        REQUIRE(queue);
        ADD(queue, .name = "a", .when = "@hourly");
        set_clock(rig, from + HOUR_MS);
        CHECK_INT(die_firing(rig, name, 4), LOSSY_RC);
        add_partitions(queue, 3);
        set_clock(rig, from + HOUR_MS + 15 * MINUTE_MS);
        rc = die_firing(rig, name, calls);
        add_partitions(queue, 5);
        CHECK_INT(fire_at(rig, queue, from + HOUR_MS + 30 * MINUTE_MS), from + 2 * HOUR_MS);
        CHECK_TICKS(rig, queue, from + HOUR_MS);
        kl_queue_close(queue);
    }
    CHECK(calls > 8 && calls < 30);
}

CLAIM(when_nothing_is_due_a_page_costs_one_list)
{
    struct mortal mortal;
    char name[16];
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders"), *counted = queue ? mortal_open(&mortal, rig, "orders") : NULL;
    REQUIRE(queue && counted);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "s%03d", i);
        ADD(queue, .name = name, .when = "0 0 * * *");
    }
    mortal.calls = mortal.lists = 0;
    CHECK_INT(fire(counted), START_MS + DAY_MS);
    CHECK_INT(mortal.lists, 3);
    CHECK_INT(mortal.calls, 4); /* and the clock */
    mortal_close(&mortal, counted);
    kl_queue_close(queue);
}

CLAIM(lost_replies_make_no_second_task)
{
    static struct ticks ticks;
    struct lossy lossy;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders"), *worker = NULL;
    REQUIRE(queue);
    CHECK_INT(lossy_open(&lossy, rig->store, test_seed(), &store), KL_OK);
    kl__queue_sleep_by(no_sleep);
    for (int tries = 0; !worker && tries < 1000; tries++)
        if (kl_queue_find(store, "orders", &worker) != KL_OK)
            worker = NULL;
    REQUIRE(worker);
    set_clock(rig, START_MS);
    ADD(queue, .name = "a", .when = "* * * * *", .catch_up = KL_CATCH_UP_ALL);
    int64_t count = (int64_t)test_ops(200) + 10;
    ticks.count = 0;
    for (int64_t now = START_MS; now < START_MS + count * MINUTE_MS + HOUR_MS; now += KL_CRON_HELP_MS) {
        int64_t next_ms;
        set_clock(rig, now);
        (void)!kl__cron_fire(worker, &next_ms);
        if (now >= START_MS + count * MINUTE_MS)
            (void)!kl_cron_pause(queue, "a", true);
        take_ticks(queue, rig->store, true, &ticks);
    }
    CHECK(lossy.lost_replies > 0 && lossy.lost_requests > 0);
    CHECK(ticks.count >= (size_t)count - 1 && ticks.count <= (size_t)count);
    for (size_t i = 0; i < ticks.count; i++)
        CHECK_INT(ticks.at_ms[i], START_MS + (int64_t)(i + 1) * MINUTE_MS);
    kl__queue_sleep_by(NULL);
    kl_queue_close(worker);
    kl_store_close(store);
    kl_queue_close(queue);
}

/* --- Many workers --- */

enum { WORKERS = 8 };

struct race {
    struct rig *rig;
    int64_t end_ms;
    atomic_bool over;
    struct ticks *ticks;
    _Atomic int64_t began_ms[WORKERS]; /* the clock when each began its round; INT64_MAX: it is not in one */
};

struct racer {
    struct race *race;
    int number;
};

/* A store knows a token for ten minutes, and no longer may a worker stand still in the middle of a round. So the clock
 * waits for those that the scheduler keeps from running. */
static void set_clock_on(struct race *race, int64_t now_ms)
{
    for (int i = 0; i < WORKERS; i++)
        if (now_ms + MINUTE_MS - atomic_load(&race->began_ms[i]) >= 10 * MINUTE_MS)
            return;
    atomic_compare_exchange_strong(&race->rig->clock_ms, &now_ms, now_ms + MINUTE_MS);
}

/* Fires, and sets the clock on as soon as one sees nothing left to do, though others may be in the middle of it. */
static void *race_worker(void *ctx)
{
    const struct racer *racer = ctx;
    struct race *race = racer->race;
    kl_queue *queue = NULL;
    CHECK_INT(kl_queue_find(race->rig->store, "orders", &queue), KL_OK);
    for (bool over = !queue; !over && !test_failed();) {
        int64_t now_ms = atomic_load(&race->rig->clock_ms), next_ms = 0;
        atomic_store(&race->began_ms[racer->number], now_ms);
        CHECK_INT(kl__cron_fire(queue, &next_ms), KL_OK);
        atomic_store(&race->began_ms[racer->number], INT64_MAX);
        over = now_ms >= race->end_ms && next_ms > now_ms;
        if (now_ms < race->end_ms && next_ms > now_ms)
            set_clock_on(race, now_ms);
    }
    kl_queue_close(queue);
    return NULL;
}

/* Runs the tasks at once, so that the store forgets their ids. */
static void *race_runner(void *ctx)
{
    struct race *race = ctx;
    kl_queue *queue = NULL;
    CHECK_INT(kl_queue_find(race->rig->store, "orders", &queue), KL_OK);
    while (queue && !atomic_load(&race->over))
        take_ticks(queue, race->rig->store, true, race->ticks);
    kl_queue_close(queue);
    return NULL;
}

static void race(struct rig *rig, int64_t count)
{
    static struct ticks ticks;
    pthread_t workers[WORKERS], runner;
    struct racer racers[WORKERS];
    struct race race = {.rig = rig, .end_ms = START_MS + count * MINUTE_MS, .ticks = &ticks};
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    ADD(queue, .name = "a", .when = "* * * * *", .catch_up = KL_CATCH_UP_ALL);
    ticks.count = 0;
    pthread_create(&runner, NULL, race_runner, &race);
    for (int i = 0; i < WORKERS; i++)
        atomic_store(&race.began_ms[i], INT64_MAX);
    for (int i = 0; i < WORKERS; i++) {
        racers[i] = (struct racer){&race, i};
        pthread_create(&workers[i], NULL, race_worker, &racers[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&race.over, true);
    pthread_join(runner, NULL);
    take_ticks(queue, rig->store, true, &ticks);
    CHECK_INT(ticks.count, count);
    for (int64_t i = 1; i <= count; i++)
        CHECK_INT(count_tick(&ticks, START_MS + i * MINUTE_MS), 1);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(eight_workers_fire_each_tick_once) { race(rig, (int64_t)test_rounds(300)); }

/* --- Memory --- */

CLAIM_IN_MEMORY(schedules_survive_a_lack_of_memory_anywhere)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    int64_t now_ms = START_MS, next_ms;
    kl_rc rc = KL_ENOMEM;
    uint64_t n = 1;
    kl_header header = {kl_str("a"), kl_str("b")};
    kl_bytes tag = kl_str("t");
    for (; rc != KL_OK && n < 1000; n++) {
        set_clock(rig, now_ms);
        kl_cron cron = {.size = sizeof cron, .name = "a", .when = "@hourly", .zone = "Europe/Zurich"};
        cron.task = (kl_put){.headers = &header, .header_count = 1, .tags = &tag, .tag_count = 1};
        kl__alloc_fail_at(n);
        rc = kl_cron_add(queue, &cron);
        kl__alloc_fail_at(0);
        CHECK(rc == KL_OK || rc == KL_ENOMEM);
    }
    CHECK(rc == KL_OK && n > 10);
    for (rc = KL_ENOMEM, n = 1; rc != KL_OK && n < 1000; n++) {
        now_ms += HOUR_MS;
        set_clock(rig, now_ms);
        kl__alloc_fail_at(n);
        rc = kl__cron_fire(queue, &next_ms);
        kl__alloc_fail_at(0);
        CHECK(rc == KL_OK || rc == KL_ENOMEM);
        (void)fire_at(rig, queue, now_ms + KL_CRON_HELP_MS);
        CHECK_TICKS(rig, queue, now_ms);
    }
    CHECK(rc == KL_OK && n > 10);
    kl_queue_close(queue);
}
