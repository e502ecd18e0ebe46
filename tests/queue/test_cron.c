/* test_cron.c - each tick is fired once: by many workers, across crashes, lost replies and changed layouts. */
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/random.h"
#include "queue/cron.h"
#include "queue/inside.h"
#include "queue/put.h"
#include "queue/support.h"
#include "store/lossy.h"

#define MINUTE_MS INT64_C(60000)
#define HOUR_MS   (60 * MINUTE_MS)
#define DAY_MS    (24 * HOUR_MS)
#define START_MS  INT64_C(1767225600000) /* 2026-01-01T00:00:00Z, a Thursday */

enum { TICKS_MAX = 4096, STUBS_MAX = 2048 };

/* --- What was put --- */

/* The ticks that tasks were put for, in the order in which they were found. */
struct ticks {
    size_t count;
    int64_t at_ms[TICKS_MAX];
};

static kl_bytes header_of(const kl_task_extra *extra, const char *name)
{
    for (size_t i = 0; i < extra->header_count; i++)
        if (extra->headers[i].name.len == strlen(name) && memcmp(extra->headers[i].name.data, name, strlen(name)) == 0)
            return extra->headers[i].value;
    return (kl_bytes){"", 0};
}

static int64_t parse_tick(kl_bytes text)
{
    char copy[40] = "";
    struct tm tm = {0};
    if (text.len < sizeof copy)
        memcpy(copy, text.data, text.len);
    const char *end = strptime(copy, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return end && *end == '\0' ? (int64_t)timegm(&tm) * 1000 : -1;
}

static void add_tick(struct ticks *ticks, const kl_task *task, kl_arena *arena)
{
    kl_task_extra extra = {0};
    CHECK_INT(kl__envelope_decode(task->entry.headers, arena, &extra), KL_OK);
    CHECK(header_of(&extra, "keyline-schedule").len > 0);
    if (ticks->count < TICKS_MAX)
        ticks->at_ms[ticks->count++] = parse_tick(header_of(&extra, "keyline-tick"));
}

/* Tasks of one line; with `settle` they are done afterwards and kept nowhere. */
static void take_line(kl_store *store, kl_place place, bool settle, struct ticks *ticks)
{
    static _Thread_local kl_stub stubs[STUBS_MAX];
    kl_scan scan = {.place = place, .line = 0, .stubs = stubs, .max = STUBS_MAX};
    kl_arena arena = {0};
    CHECK_INT(kl_store_scan(store, &scan, 1), KL_OK);
    for (size_t i = 0; i < scan.count; i++) {
        kl_ref ref = {.place = place, .id = stubs[i].id, .position = stubs[i].position};
        kl_settled done = {.id = stubs[i].id, .position = stubs[i].position, .outcome = KL_DONE, .attempts = 1};
        kl_settle batch = {.place = place, .tasks = &done, .count = 1};
        kl_task task;
        size_t count;
        CHECK_INT(kl_store_read(store, &ref, 1, &arena, &task, &count), KL_OK);
        add_tick(ticks, &task, &arena);
        if (settle)
            CHECK_INT(kl_store_settle(store, &batch, 1), KL_OK);
    }
    kl_arena_free(&arena);
}

static void take_ticks(kl_queue *queue, kl_store *store, bool settle, struct ticks *ticks)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        for (uint32_t partition = 0; partition < layout->layout.partitions; partition++)
            for (uint32_t shard = 0; shard < kl_layout_shards(&layout->layout); shard++)
                take_line(store, (kl_place){layout->numbers[partition], shard}, settle, ticks);
    }
    kl__descriptor_release(descriptor);
}

static size_t count_tick(const struct ticks *ticks, int64_t at_ms)
{
    size_t count = 0;
    for (size_t i = 0; i < ticks->count; i++)
        count += ticks->at_ms[i] == at_ms;
    return count;
}

/* One task for each of these ticks, and no other; NULL: what waits in the queue. */
static void check_ticks(int line, struct rig *rig, kl_queue *queue, const int64_t *expected_ms, size_t count)
{
    static struct ticks ticks;
    ticks.count = 0;
    take_ticks(queue, rig->store, true, &ticks);
    if (ticks.count != count)
        test_fail(__FILE__, line, "%zu tasks were put, expected %zu", ticks.count, count);
    for (size_t i = 0; i < count; i++)
        if (count_tick(&ticks, expected_ms[i]) != 1)
            test_fail(__FILE__, line, "tick %" PRId64 " was fired %zu times", expected_ms[i],
                      count_tick(&ticks, expected_ms[i]));
}

#define CHECK_TICKS(rig, queue, ...)                                                                                   \
    do {                                                                                                               \
        const int64_t ticks_[] = {__VA_ARGS__};                                                                        \
        check_ticks(__LINE__, rig, queue, ticks_, COUNT(ticks_));                                                      \
    } while (0)
#define CHECK_NO_TICKS(rig, queue) check_ticks(__LINE__, rig, queue, NULL, 0)

/* --- Schedules --- */

#define ADD(queue, ...) CHECK_INT(kl_cron_add(queue, &(kl_cron){.size = sizeof(kl_cron), __VA_ARGS__}), KL_OK)

static void set_clock(struct rig *rig, int64_t at_ms) { atomic_store(&rig->clock_ms, at_ms); }

static int64_t fire(kl_queue *queue)
{
    int64_t next_ms = -1;
    kl_rc rc = kl__cron_fire(queue, &next_ms);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", kl_rc_name(rc), kl_error_text());
    return next_ms;
}

static int64_t fire_at(struct rig *rig, kl_queue *queue, int64_t at_ms)
{
    set_clock(rig, at_ms);
    return fire(queue);
}

static kl_cron show(struct rig *rig, kl_queue *queue)
{
    kl_cron crons[2] = {{.size = 0}};
    size_t count = 0;
    CHECK_INT(kl_cron_list(queue, NULL, 2, &rig->arena, crons, &count), KL_OK);
    CHECK_INT(count, 1);
    return crons[0];
}

CLAIM(a_schedule_fires_at_its_times)
{
    set_clock(rig, START_MS + 5);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    CHECK_INT(fire(queue), KL_NEVER);
    ADD(queue, .name = "hourly", .when = "30 * * * *", .task = {.payload = kl_str("report")});
    CHECK_INT(fire(queue), START_MS + 30 * MINUTE_MS);
    CHECK_INT(fire_at(rig, queue, START_MS + 30 * MINUTE_MS - 1), START_MS + 30 * MINUTE_MS);
    CHECK_NO_TICKS(rig, queue);
    CHECK_INT(fire_at(rig, queue, START_MS + 30 * MINUTE_MS), START_MS + 90 * MINUTE_MS);
    CHECK_INT(fire(queue), START_MS + 90 * MINUTE_MS);
    CHECK_TICKS(rig, queue, START_MS + 30 * MINUTE_MS);
    CHECK_INT(fire_at(rig, queue, START_MS + 90 * MINUTE_MS + 700), START_MS + 150 * MINUTE_MS);
    CHECK_TICKS(rig, queue, START_MS + 90 * MINUTE_MS);
    kl_queue_close(queue);
}

CLAIM(a_schedule_keeps_the_time_of_its_zone)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    ADD(queue, .name = "nightly", .when = "0 3 * * *", .zone = "Asia/Kolkata");
    CHECK_INT(fire(queue), START_MS + 21 * HOUR_MS + 30 * MINUTE_MS);
    CHECK_STR(show(rig, queue).zone, "Asia/Kolkata");
    kl_queue_close(queue);
}

/* Everything that a task can say, with bytes that are no text. */
CLAIM(a_task_is_put_as_its_schedule_says)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    REQUIRE(queue);
    kl_header header = {kl_str("accept"), kl_str("text")};
    kl_bytes tags[2] = {kl_str("red"), {"\xff\0x", 3}};
    ADD(queue, .name = "full", .when = "@hourly",
        .task = {.key = kl_str("customer-7"),
                 .kind = kl_str("report"),
                 .payload = {"\0\x01\xfe", 3},
                 .attempts_max = 3,
                 .timeout_ms = 5000,
                 .group = kl_str("gold"),
                 .traceparent = kl_str("00-1-2-01"),
                 .headers = &header,
                 .header_count = 1,
                 .tags = tags,
                 .tag_count = 2});
    (void)fire_at(rig, queue, START_MS + HOUR_MS);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    uint32_t partition = kl_partition_of(&layout->layout, kl_str("customer-7"));
    kl_stub stub;
    kl_scan scan = {.place = {layout->numbers[partition], kl_shard_of(&layout->layout, kl_str("customer-7"))},
                    .stubs = &stub,
                    .max = 1};
    CHECK_INT(kl_store_scan(rig->store, &scan, 1), KL_OK);
    CHECK_INT(scan.count, 1);
    CHECK_INT(kl_id_ms(&layout->layout, &stub.id), START_MS + HOUR_MS);
    CHECK_INT(kl_id_lane(&stub.id), kl_lane_of(kl_str("customer-7")));
    kl__descriptor_release(descriptor);
    kl_ref ref = {.place = scan.place, .id = stub.id};
    kl_task task = {.state = KL_TASK_UNKNOWN};
    kl_task_extra extra = {0};
    size_t count;
    CHECK_INT(kl_store_read(rig->store, &ref, 1, &rig->arena, &task, &count), KL_OK);
    REQUIRE(task.state == KL_TASK_WAITING);
    CHECK_INT(kl__envelope_decode(task.entry.headers, &rig->arena, &extra), KL_OK);
    CHECK(task.entry.key.len == 10 && task.entry.kind.len == 6);
    CHECK(task.entry.payload.len == 3 && memcmp(task.entry.payload.data, "\0\x01\xfe", 3) == 0);
    CHECK_INT(task.entry.group, kl__group_hash(kl_str("gold")));
    CHECK(extra.attempts_max == 3 && extra.timeout_ms == 5000);
    CHECK(extra.group.len == 4 && extra.traceparent.len == 9);
    REQUIRE(extra.header_count == 3 && extra.tag_count == 2);
    CHECK(header_of(&extra, "accept").len == 4 && header_of(&extra, "keyline-schedule").len == 4);
    CHECK_INT(parse_tick(header_of(&extra, "keyline-tick")), START_MS + HOUR_MS);
    CHECK(extra.tags[1].len == 3 && memcmp(extra.tags[1].data, "\xff\0x", 3) == 0);
    kl_queue_close(queue);
}

CLAIM(schedules_are_listed_changed_and_removed)
{
    char name[16];
    kl_cron crons[300];
    size_t count = 0;
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders"), *other = OPEN(rig->store, "orders2");
    REQUIRE(queue && other);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "s%03d", i);
        ADD(queue, .name = name, .when = "0 0 * * *", .paused = i == 1);
    }
    ADD(other, .name = "not-mine", .when = "0 0 * * *");
    CHECK_INT(kl_cron_list(queue, "s009", 5, &rig->arena, crons, &count), KL_OK);
    CHECK_INT(count, 5);
    CHECK_STR(crons[0].name, "s010");
    CHECK_INT(kl_cron_list(queue, "", 300, &rig->arena, crons, &count), KL_OK);
    CHECK_INT(count, 300);
    CHECK(crons[1].paused && !crons[2].paused);
    CHECK_INT(fire_at(rig, queue, START_MS + DAY_MS), START_MS + DAY_MS); /* 256 at a time */
    CHECK_INT(fire(queue), START_MS + 2 * DAY_MS);
    static struct ticks ticks;
    ticks.count = 0;
    take_ticks(queue, rig->store, true, &ticks);
    CHECK_INT(ticks.count, 299);
    CHECK_INT(kl_cron_remove(queue, "s005"), KL_OK);
    CHECK_FAILS(kl_cron_remove(queue, "s005"), KL_ENOTFOUND, "has no schedule s005");
    CHECK_FAILS(kl_cron_pause(queue, "s005", true), KL_ENOTFOUND, "has no schedule s005");
    CHECK_FAILS(kl_cron_run(queue, "s005", NULL), KL_ENOTFOUND, "has no schedule s005");
    CHECK_INT(kl_cron_list(queue, "s004", 1, &rig->arena, crons, &count), KL_OK);
    CHECK_STR(crons[0].name, "s006");
    CHECK_INT(crons[0].last_ms, START_MS + DAY_MS);
    CHECK_INT(crons[0].next_ms, START_MS + 2 * DAY_MS);
    kl_queue_close(queue);
    kl_queue_close(other);
}

CLAIM(what_is_wrong_with_a_schedule_is_said_at_once)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    static char payload[300 << 10];
    memset(payload, 'x', sizeof payload);
    kl_header empty = {{"", 0}, {"", 0}};
    static const char name[KL_CRON_NAME_MAX + 2] = {[0 ... KL_CRON_NAME_MAX] = 'a'};
    const struct {
        kl_cron cron;
        const char *part;
    } cases[] = {
        {{.name = "a", .when = "* * * *"}, "five fields"},
        {{.name = "a", .when = "0 25 * * *"}, "the hour field"},
        {{.name = "a", .when = NULL}, "no schedule"},
        {{.name = "a", .when = "0 0 30 2 *"}, "would never fire"},
        {{.name = "a", .when = "@daily", .zone = "Mars"}, "no time zone \"Mars\""},
        {{.name = NULL, .when = "@daily"}, "no name for a schedule"},
        {{.name = "", .when = "@daily"}, "no name for a schedule"},
        {{.name = "a/b", .when = "@daily"}, "no name for a schedule"},
        {{.name = "-a", .when = "@daily"}, "no name for a schedule"},
        {{.name = name, .when = "@daily"}, "no name for a schedule"},
        {{.name = "a", .when = "@daily", .catch_up = 9}, "catch_up is 9"},
        {{.name = "a", .when = "@daily", .task = {.priority = 16}}, "priority is 16; write -16 to 15"},
        {{.name = "a", .when = "@daily", .task = {.attempts_max = -1}}, "attempts_max"},
        {{.name = "a", .when = "@daily", .task = {.key = {payload, 513}}}, "its key has 513 bytes"},
        {{.name = "a", .when = "@daily", .task = {.headers = &empty, .header_count = 1}}, "header's name has 0"},
        {{.name = "a", .when = "@daily", .task = {.headers = &empty, .header_count = 63}}, "header_count is 63"},
        {{.name = "a", .when = "@daily", .task = {.tag_count = 1}}, "tag_count is 1"},
        {{.name = "a", .when = "@daily", .task = {.payload = {payload, sizeof payload}}}, "too large"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        kl_cron cron = cases[i].cron;
        cron.size = sizeof cron;
        CHECK_FAILS(kl_cron_add(queue, &cron), KL_EINVAL, cases[i].part);
    }
    CHECK_FAILS(kl_cron_add(queue, &(kl_cron){.name = "a", .when = "@daily"}), KL_EINVAL, "sizeof(kl_cron)");
    CHECK(!record_text(rig, "cron/orders/a"));
    ADD(queue, .name = "a", .when = "@daily", .task = {.payload = {payload, 250 << 10}}); /* as large as can be */
    set_clock(rig, START_MS + 400 * DAY_MS);
    (void)fire(queue);
    CHECK_TICKS(rig, queue, START_MS + 400 * DAY_MS);
    kl_queue_close(queue);
}

/* --- Times that were missed --- */

CLAIM(without_catching_up_missed_times_are_passed_over)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    ADD(queue, .name = "a", .when = "@hourly", .catch_up = KL_CATCH_UP_NONE);
    CHECK_INT(fire_at(rig, queue, START_MS + 3 * HOUR_MS + MINUTE_MS), START_MS + 4 * HOUR_MS);
    CHECK_NO_TICKS(rig, queue);
    (void)fire_at(rig, queue, START_MS + 5 * HOUR_MS + MINUTE_MS - 1); /* nearly a minute late is in time */
    CHECK_TICKS(rig, queue, START_MS + 5 * HOUR_MS);
    kl_queue_close(queue);
}

CLAIM(one_task_makes_up_for_all_missed_times)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    ADD(queue, .name = "a", .when = "@hourly");
    CHECK_INT(fire_at(rig, queue, START_MS + 20 * DAY_MS + MINUTE_MS), START_MS + 20 * DAY_MS + HOUR_MS);
    CHECK_TICKS(rig, queue, START_MS + 20 * DAY_MS);
    CHECK_INT(show(rig, queue).last_ms, START_MS + 20 * DAY_MS);
    kl_queue_close(queue);
}

CLAIM(all_missed_times_are_made_up_for_up_to_a_thousand)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    ADD(queue, .name = "a", .when = "@hourly", .catch_up = KL_CATCH_UP_ALL);
    int64_t now = START_MS + 1500 * HOUR_MS, next = fire_at(rig, queue, now), calls = 1;
    for (; next <= now && calls < 100; calls++)
        next = fire(queue);
    CHECK_INT(calls, 4); /* 256 each */
    CHECK_INT(next, now + HOUR_MS);
    static struct ticks ticks;
    ticks.count = 0;
    take_ticks(queue, rig->store, true, &ticks);
    CHECK_INT(ticks.count, KL_CRON_CATCH_UP_MAX);
    for (int64_t i = 1; i <= KL_CRON_CATCH_UP_MAX; i++)
        CHECK_INT(count_tick(&ticks, START_MS + i * HOUR_MS), 1);
    (void)fire_at(rig, queue, now + 2 * HOUR_MS); /* and then as many again, if need be */
    CHECK_TICKS(rig, queue, now + HOUR_MS, now + 2 * HOUR_MS);
    kl_queue_close(queue);
}

CLAIM(times_that_pass_while_paused_are_treated_as_missed)
{
    set_clock(rig, START_MS);
    for (int catch_up = KL_CATCH_UP_NONE; catch_up <= KL_CATCH_UP_ALL; catch_up++) {
        char name[2] = {(char)('a' + catch_up), '\0'};
        kl_queue *queue = OPEN(rig->store, name);
        REQUIRE(queue);
        int64_t from = (atomic_load(&rig->clock_ms) / HOUR_MS + 1) * HOUR_MS;
        set_clock(rig, from);
        ADD(queue, .name = name, .when = "@hourly", .catch_up = (kl_catch_up)catch_up);
        CHECK_INT(kl_cron_pause(queue, name, true), KL_OK);
        CHECK_INT(fire_at(rig, queue, from + 3 * HOUR_MS), KL_NEVER);
        CHECK_NO_TICKS(rig, queue);
        CHECK(show(rig, queue).paused);
        ADD(queue, .name = name, .when = "@hourly", .catch_up = (kl_catch_up)catch_up); /* does not resume it */
        CHECK(show(rig, queue).paused);
        CHECK_INT(kl_cron_pause(queue, name, false), KL_OK);
        CHECK_INT(kl_cron_pause(queue, name, false), KL_OK);
        CHECK_INT(fire(queue), from + 4 * HOUR_MS);
        if (catch_up == KL_CATCH_UP_NONE)
            CHECK_NO_TICKS(rig, queue);
        else if (catch_up == KL_CATCH_UP_ONE)
            CHECK_TICKS(rig, queue, from + 3 * HOUR_MS);
        else
            CHECK_TICKS(rig, queue, from + HOUR_MS, from + 2 * HOUR_MS, from + 3 * HOUR_MS);
        kl_queue_close(queue);
    }
}

CLAIM(adding_a_schedule_again_forgets_no_missed_time)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    ADD(queue, .name = "a", .when = "@hourly", .task = {.payload = kl_str("one")});
    set_clock(rig, START_MS + HOUR_MS + 1);
    ADD(queue, .name = "a", .when = "@hourly", .task = {.payload = kl_str("two")});
    (void)fire(queue);
    CHECK_TICKS(rig, queue, START_MS + HOUR_MS);
    CHECK_INT(show(rig, queue).task.payload.len, 3);
    set_clock(rig, START_MS + 2 * HOUR_MS + 1);
    ADD(queue, .name = "a", .when = "30 * * * *"); /* other times begin now */
    CHECK_INT(fire(queue), START_MS + 2 * HOUR_MS + 30 * MINUTE_MS);
    CHECK_NO_TICKS(rig, queue);
    CHECK_INT(show(rig, queue).last_ms, START_MS + HOUR_MS);
    kl_queue_close(queue);
}

CLAIM(run_puts_a_task_beside_the_times)
{
    set_clock(rig, START_MS + 5000);
    kl_queue *queue = OPEN(rig->store, "orders");
    kl_task_id first, second;
    REQUIRE(queue);
    ADD(queue, .name = "a", .when = "@hourly", .paused = true);
    CHECK_INT(kl_cron_run(queue, "a", &first), KL_OK);
    set_clock(rig, START_MS + 6000);
    CHECK_INT(kl_cron_run(queue, "a", &second), KL_OK);
    CHECK(memcmp(&first, &second, sizeof first) != 0);
    CHECK_TICKS(rig, queue, START_MS + 5000, START_MS + 6000);
    CHECK_INT(show(rig, queue).last_ms, 0);
    kl_queue_close(queue);
}

CLAIM(a_record_that_is_no_schedule_stops_no_other)
{
    set_clock(rig, START_MS);
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    int64_t next_ms = 0;
    kl_cron crons[3];
    size_t count;
    ADD(queue, .name = "c", .when = "@hourly");
    set_record(rig, "cron/orders/a", "{}");
    set_record(rig, "cron/orders/b", "nonsense");
    set_clock(rig, START_MS + HOUR_MS);
    CHECK_FAILS(kl__cron_fire(queue, &next_ms), KL_EDAMAGED, "cron/orders/a");
    CHECK_INT(next_ms, START_MS + HOUR_MS + KL_CRON_LOOK_AGAIN_MS);
    CHECK_TICKS(rig, queue, START_MS + HOUR_MS);
    CHECK_FAILS(kl_cron_list(queue, NULL, 3, &rig->arena, crons, &count), KL_EDAMAGED, "cron/orders/a");
    kl_queue_close(queue);
}

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
            CHECK_INT(show(rig, queue).last_ms, from + HOUR_MS);
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
    int64_t count = (int64_t)test_ops(500) + 10;
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

enum { WORKERS = 8, RACE_TICKS = 1000 };

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

CLAIM_IN_MEMORY(eight_workers_fire_each_of_a_thousand_ticks_once) { race(rig, RACE_TICKS); }

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
