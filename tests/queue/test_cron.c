/* test_cron.c - schedules: when they fire, what they put, and what they make up for. (test_cron_faults.c: what goes
 * wrong.) */
#include "queue/ticks.h"

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
    CHECK_STR(show_cron(rig, queue).zone, "Asia/Kolkata");
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
    kl_header empty = {{"", 0}, {"", 0}}, many[63];
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = (kl_header){kl_str("a"), kl_str("b")};
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
        {{.name = "a", .when = "@daily", .task = {.headers = &empty, .header_count = 1}}, "header 1 has no name"},
        {{.name = "a", .when = "@daily", .task = {.headers = many, .header_count = 63}}, "header_count is 63"},
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
    CHECK_INT(show_cron(rig, queue).last_ms, START_MS + 20 * DAY_MS);
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
        CHECK(show_cron(rig, queue).paused);
        ADD(queue, .name = name, .when = "@hourly", .catch_up = (kl_catch_up)catch_up); /* does not resume it */
        CHECK(show_cron(rig, queue).paused);
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
    CHECK_INT(show_cron(rig, queue).task.payload.len, 3);
    set_clock(rig, START_MS + 2 * HOUR_MS + 1);
    ADD(queue, .name = "a", .when = "30 * * * *"); /* other times begin now */
    CHECK_INT(fire(queue), START_MS + 2 * HOUR_MS + 30 * MINUTE_MS);
    CHECK_NO_TICKS(rig, queue);
    CHECK_INT(show_cron(rig, queue).last_ms, START_MS + HOUR_MS);
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
    CHECK_INT(show_cron(rig, queue).last_ms, 0);
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
