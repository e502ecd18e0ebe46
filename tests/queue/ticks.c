/* ticks.c - see ticks.h. */
#include "queue/ticks.h"

#include <time.h>

enum { STUBS_MAX = 2048 };

/* --- What was put --- */

kl_bytes header_of(const kl_task_extra *extra, const char *name)
{
    for (size_t i = 0; i < extra->header_count; i++)
        if (extra->headers[i].name.len == strlen(name) && memcmp(extra->headers[i].name.data, name, strlen(name)) == 0)
            return extra->headers[i].value;
    return (kl_bytes){"", 0};
}

int64_t parse_tick(kl_bytes text)
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

void take_ticks(kl_queue *queue, kl_store *store, bool settle, struct ticks *ticks)
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

size_t count_tick(const struct ticks *ticks, int64_t at_ms)
{
    size_t count = 0;
    for (size_t i = 0; i < ticks->count; i++)
        count += ticks->at_ms[i] == at_ms;
    return count;
}

void check_ticks(const char *file, int line, struct rig *rig, kl_queue *queue, const int64_t *expected_ms, size_t count)
{
    static struct ticks ticks;
    ticks.count = 0;
    take_ticks(queue, rig->store, true, &ticks);
    if (ticks.count != count)
        test_fail(file, line, "%zu tasks were put, expected %zu", ticks.count, count);
    for (size_t i = 0; i < count; i++)
        if (count_tick(&ticks, expected_ms[i]) != 1)
            test_fail(file, line, "tick %" PRId64 " was fired %zu times", expected_ms[i],
                      count_tick(&ticks, expected_ms[i]));
}

/* --- Schedules --- */

int64_t fire(kl_queue *queue)
{
    int64_t next_ms = -1;
    kl_rc rc = kl__cron_fire(queue, &next_ms);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", kl_rc_name(rc), kl_error_text());
    return next_ms;
}

int64_t fire_at(struct rig *rig, kl_queue *queue, int64_t at_ms)
{
    set_clock(rig, at_ms);
    return fire(queue);
}

kl_cron show_cron(struct rig *rig, kl_queue *queue)
{
    kl_cron crons[2] = {{.size = 0}};
    size_t count = 0;
    CHECK_INT(kl_cron_list(queue, NULL, 2, &rig->arena, crons, &count), KL_OK);
    CHECK_INT(count, 1);
    return crons[0];
}
