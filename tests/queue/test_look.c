/* test_look.c - looking at tasks: by id in every layout, and lists that show each task once, page by page. */
#include "base/compare.h"
#include "base/random.h"
#include "queue/tasks.h"

static kl_bytes none(void) { return (kl_bytes){NULL, 0}; }

static void put_many(kl_queue *queue, size_t count, int64_t priority, int64_t due_ms)
{
    for (size_t i = 0; i < count; i++) {
        char key[16], payload[24];
        snprintf(key, sizeof key, "key-%zu", i % 7);
        snprintf(payload, sizeof payload, "%zu", i);
        kl_put task = {.key = kl_str(i % 7 ? key : ""),
                       .payload = kl_str(payload),
                       .priority = priority,
                       .due_ms = due_ms,
                       .group = kl_str("g")};
        CHECK_INT(kl_queue_put(queue, &task, 1, none(), NULL), KL_OK);
    }
}

static void alter(kl_queue *queue, int64_t partitions, int64_t shard_prefix_len)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions, .shard_prefix_len = shard_prefix_len};
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
}

/* --- One task --- */

CLAIM(a_task_is_found_by_its_id_in_every_layout)
{
    static const struct {
        int64_t partitions, shard_prefix_len;
        const char *partition;
    } layouts[] = {{1, 1, "orders"}, {3, 2, "orders__p2"}, {2, 1, "orders__p1"}};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_put_result results[COUNT(layouts)];
    REQUIRE(queue);
    for (size_t i = 0; i < COUNT(layouts); i++) {
        if (i > 0)
            alter(queue, layouts[i].partitions, layouts[i].shard_prefix_len);
        kl_put task = {.key = kl_str("k"), .partition = layouts[i].partition, .group = kl_str("g"), .attempts_max = 3};
        CHECK_INT(kl_queue_put(queue, &task, 1, none(), &results[i]), KL_OK);
    }
    for (size_t i = 0; i < COUNT(layouts); i++) {
        kl_found found;
        REQUIRE(kl_queue_task(queue, &results[i].id, &rig->arena, &found) == KL_OK);
        CHECK_INT(found.task.state, KL_TASK_WAITING);
        CHECK(kl_id_compare(&found.task.entry.id, &results[i].id) == 0);
        CHECK_STR(found.queue, "orders");
        CHECK_STR(found.partition, layouts[i].partition);
        CHECK(same_bytes(found.extra.group, "g") && found.extra.attempts_max == 3);
    }
    CHECK_INT(settle_tasks(queue, KL_DEAD, 1000, "broken"), 3);
    kl_found found;
    CHECK_INT(kl_queue_task(queue, &results[0].id, &rig->arena, &found), KL_OK);
    CHECK(found.task.state == KL_TASK_DEAD && same_bytes(found.task.error, "broken"));
    results[0].id.bytes[15] ^= 1;
    CHECK_FAILS(kl_queue_task(queue, &results[0].id, &rig->arena, &found), KL_ENOTFOUND,
                "the queue orders has no task");
    CHECK_FAILS(kl_queue_task(queue, NULL, &rig->arena, &found), KL_EINVAL, "pass all three");
    CHECK_FAILS(kl_queue_task(NULL, &results[0].id, &rig->arena, &found), KL_EINVAL, "kl_queue_open");
    kl_queue_close(queue);
}

static void find_moved(struct rig *rig, const char *name, const char *key, const int64_t layouts[3][2])
{
    kl_queue *queue = OPEN(rig->store, name, .partitions = layouts[0][0], .shard_prefix_len = layouts[0][1]);
    kl_put task = {.key = kl_str(key), .payload = kl_str("p")};
    kl_put_result result;
    kl_found found;
    REQUIRE(queue);
    CHECK_INT(kl_queue_put(queue, &task, 1, none(), &result), KL_OK);
    for (int i = 1; i < 3 && layouts[i][0] > 0; i++) {
        alter(queue, layouts[i][0], layouts[i][1]);
        move_tasks(queue);
        CHECK_INT(scan_tasks(queue, &rig->arena).count, 1);
        REQUIRE(kl_queue_task(queue, &result.id, &rig->arena, &found) == KL_OK);
        CHECK(same_bytes(found.task.entry.payload, "p") && found.task.state == KL_TASK_WAITING);
    }
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_task_that_moved_to_newer_layouts_is_found_by_its_old_id)
{
    static const int64_t layouts[][3][2] = {
        {{1, 1}, {2, 3}},         {{1, 3}, {2, 1}},         {{1, 1}, {8, 1}},
        {{1, 2}, {2, 1}, {3, 2}}, {{1, 1}, {2, 2}, {3, 1}}, {{1, 3}, {2, 1}, {1, 2}},
    };
    for (size_t i = 0; i < COUNT(layouts); i++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "free-%zu", i);
        snprintf(name[1], sizeof name[1], "keyed-%zu", i);
        find_moved(rig, name[0], "", layouts[i]);
        find_moved(rig, name[1], "customer-7", layouts[i]);
    }
}

/* --- Lists --- */

struct seen {
    kl_task_id ids[4000];
    kl_found last;
    size_t count, pages;
};

static bool was_seen(const struct seen *seen, const kl_task_id *id)
{
    for (size_t i = 0; i < seen->count; i++)
        if (kl_id_compare(&seen->ids[i], id) == 0)
            return true;
    return false;
}

/* Reads a list to its end; each task must be shown once. */
static void list_waiting(struct rig *rig, kl_queue *queue, kl_waiting which, struct seen *seen)
{
    static kl_found found[1000];
    size_t count;
    seen->count = seen->pages = 0;
    do {
        kl_rc rc = kl_queue_waiting(queue, &which, &rig->arena, found, &count, &which.cursor);
        CHECK_INT(rc, KL_OK);
        REQUIRE(rc == KL_OK && count <= which.max && seen->count + count <= COUNT(seen->ids));
        for (size_t i = 0; i < count; i++) {
            CHECK(!was_seen(seen, &found[i].task.entry.id));
            CHECK(which.key.len == 0 || kl__bytes_equal(which.key, found[i].task.entry.key));
            CHECK(same_bytes(found[i].extra.group, "g"));
            seen->ids[seen->count++] = found[i].task.entry.id;
        }
        seen->pages++;
    } while (which.cursor.len > 0 && seen->pages < 5000);
}

CLAIM(waiting_tasks_are_listed_once_each_in_the_order_of_their_lines)
{
    static struct seen seen;
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    put_many(queue, 100, 0, 0);
    CHECK_INT(settle_tasks(queue, KL_RETRY, 0, NULL), 100);
    alter(queue, 1, 2);
    put_many(queue, 300, 0, 0);
    put_many(queue, 50, -16, 0);
    put_many(queue, 50, 15, 0);
    put_many(queue, 60, 0, 5000);
    static const size_t sizes[] = {1, 7, 1000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        list_waiting(rig, queue, (kl_waiting){.max = sizes[i]}, &seen);
        CHECK_INT(seen.count, 560);
        struct tasks tasks = scan_tasks(queue, &rig->arena);
        for (size_t j = 0; j < 100; j++) /* those of the old layout come first, in order */
            CHECK(kl_id_compare(&seen.ids[j], &tasks.tasks[j].entry.id) == 0);
    }
    list_waiting(rig, queue, (kl_waiting){.max = 7, .retry = true}, &seen);
    CHECK_INT(seen.count, 100);
    list_waiting(rig, queue, (kl_waiting){.max = 7, .due = true}, &seen);
    CHECK_INT(seen.count, 60);
    list_waiting(rig, queue, (kl_waiting){.max = 7, .ready = true, .due = true}, &seen);
    CHECK_INT(seen.count, 460);
    list_waiting(rig, queue, (kl_waiting){.max = 7, .key = kl_str("key-3")}, &seen);
    CHECK_INT(seen.count, 14 + 43 + 7 + 7 + 9);
    list_waiting(rig, queue, (kl_waiting){.max = 1000, .look_max = 10, .key = kl_str("key-3")}, &seen);
    CHECK_INT(seen.count, 14 + 43 + 7 + 7 + 9);
    CHECK(seen.pages > 8);
    list_waiting(rig, queue, (kl_waiting){.max = 7, .key = kl_str("no such key")}, &seen);
    CHECK_INT(seen.count, 0);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(tasks_that_are_settled_between_two_pages_make_no_gap)
{
    static kl_found found[10];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_waiting which = {.max = 10, .key = kl_str("k")};
    size_t count, seen = 0;
    REQUIRE(queue);
    for (int i = 0; i < 100; i++)
        CHECK_INT(kl_queue_put(queue, &(kl_put){.key = kl_str("k")}, 1, none(), NULL), KL_OK);
    do {
        REQUIRE(kl_queue_waiting(queue, &which, &rig->arena, found, &count, &which.cursor) == KL_OK);
        seen += count;
        for (size_t i = 0; i < count; i++) {
            kl_settled settled = {.id = found[i].task.entry.id, .position = found[i].task.position};
            kl_settle batch = {.place = found[i].task.entry.place, .tasks = &settled, .count = 1};
            CHECK_INT(kl_store_settle(rig->store, &batch, 1), KL_OK);
        }
    } while (which.cursor.len > 0);
    CHECK_INT(seen, 100);
    kl_queue_close(queue);
}

/* Each in a shard of its own, so that no single read comes to the limit. */
CLAIM_IN_MEMORY(a_page_of_waiting_tasks_has_a_limit_of_bytes)
{
    enum { TASKS = 30, EACH = 1 << 20 };
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_waiting which = {.max = 1000};
    kl_found *found = kl_arena_alloc(&rig->arena, which.max * sizeof *found);
    char *payload = kl_arena_alloc(&rig->arena, EACH), key[16];
    size_t count, seen = 0;
    REQUIRE(queue && found && payload);
    memset(payload, 'x', EACH);
    for (int i = 0; i < TASKS; i++) {
        snprintf(key, sizeof key, "%c%d", 'a' + i % 26, i);
        kl_put task = {.key = kl_str(key), .payload = {payload, EACH}};
        CHECK_INT(kl_queue_put(queue, &task, 1, none(), NULL), KL_OK);
    }
    do {
        REQUIRE(kl_queue_waiting(queue, &which, &rig->arena, found, &count, &which.cursor) == KL_OK);
        CHECK(count <= 2 * KL_BATCH_BYTES_MAX / EACH);
        seen += count;
    } while (which.cursor.len > 0);
    CHECK_INT(seen, TASKS);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_cursor_of_another_list_is_refused)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1), *mail = OPEN(rig->store, "mail", .partitions = 1);
    kl_found found[2];
    size_t count;
    kl_bytes cursor, waiting_cursor, other;
    char broken[256];
    REQUIRE(queue && mail);
    put_many(queue, 10, 0, 0);
    kl_waiting waiting = {.max = 1};
    REQUIRE(kl_queue_waiting(queue, &waiting, &rig->arena, found, &count, &waiting_cursor) == KL_OK);
    CHECK_INT(settle_tasks(queue, KL_DEAD, 1000, "e"), 10);
    kl_finished finished = {.max = 1};
    REQUIRE(kl_queue_finished(queue, &finished, &rig->arena, found, &count, &cursor) == KL_OK && cursor.len > 0);
    finished.cursor = cursor;
    CHECK_INT(kl_queue_finished(queue, &finished, &rig->arena, found, &count, &other), KL_OK);
    CHECK_FAILS(kl_queue_finished(mail, &finished, &rig->arena, found, &count, &other), KL_EINVAL, "no cursor");
    finished.kind = kl_str("other");
    CHECK_FAILS(kl_queue_finished(queue, &finished, &rig->arena, found, &count, &other), KL_EINVAL, "no cursor");
    finished.kind = none();
    for (size_t i = 0; i < cursor.len; i++) {
        memcpy(broken, cursor.data, cursor.len);
        broken[i] ^= 1;
        finished.cursor = (kl_bytes){broken, cursor.len};
        CHECK_INT(kl_queue_finished(queue, &finished, &rig->arena, found, &count, &other), KL_EINVAL);
        finished.cursor = (kl_bytes){cursor.data, i};
        CHECK(i == 0 || kl_queue_finished(queue, &finished, &rig->arena, found, &count, &other) == KL_EINVAL);
    }
    finished.cursor = waiting_cursor;
    CHECK_INT(kl_queue_finished(queue, &finished, &rig->arena, found, &count, &other), KL_EINVAL);
    waiting.cursor = cursor;
    CHECK_INT(kl_queue_waiting(queue, &waiting, &rig->arena, found, &count, &other), KL_EINVAL);
    waiting = (kl_waiting){.max = 1001};
    CHECK_FAILS(kl_queue_waiting(queue, &waiting, &rig->arena, found, &count, &other), KL_EINVAL, "1 to 1000");
    kl_queue_close(queue);
    kl_queue_close(mail);
}

/* Reads a list of finished tasks to its end: each once, the latest first. */
static void list_finished(struct rig *rig, kl_queue *queue, kl_finished which, struct seen *seen)
{
    static kl_found found[1000];
    size_t count;
    int64_t last_ms = INT64_MAX;
    seen->count = seen->pages = 0;
    do {
        kl_rc rc = kl_queue_finished(queue, &which, &rig->arena, found, &count, &which.cursor);
        CHECK_INT(rc, KL_OK);
        REQUIRE(rc == KL_OK && count <= which.max && seen->count + count <= COUNT(seen->ids));
        for (size_t i = 0; i < count; i++) {
            CHECK(!was_seen(seen, &found[i].task.entry.id));
            CHECK(found[i].task.finished_ms <= last_ms);
            CHECK(same_bytes(found[i].extra.group, "g") && found[i].task.entry.payload.len > 0);
            last_ms = found[i].task.finished_ms;
            seen->ids[seen->count++] = found[i].task.entry.id;
        }
        seen->pages++;
    } while (which.cursor.len > 0 && seen->pages < 5000);
}

CLAIM(finished_tasks_of_all_partitions_and_layouts_are_one_list)
{
    static struct seen seen, whole;
    uint64_t random = test_seed();
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    size_t dead = 0;
    REQUIRE(queue);
    for (int i = 0; i < 24; i++) {
        if (i == 12)
            alter(queue, 5, 1);
        put_many(queue, 1 + kl__random_below(&random, 12), 0, 0);
        bool dies = kl__random_below(&random, 2);
        size_t settled = settle_tasks(queue, dies ? KL_DEAD : KL_DONE, INT64_C(1) << 40, dies ? "disk on fire" : NULL);
        dead += dies ? settled : 0;
        atomic_fetch_add(&rig->clock_ms, (int64_t)kl__random_below(&random, 3));
    }
    list_finished(rig, queue, (kl_finished){.max = 1000}, &whole);
    CHECK(whole.count >= 24);
    for (size_t max = 1; max < 60; max = max * 2 + 1) {
        list_finished(rig, queue, (kl_finished){.max = max}, &seen);
        CHECK_INT(seen.count, whole.count);
        CHECK(memcmp(seen.ids, whole.ids, whole.count * sizeof whole.ids[0]) == 0);
    }
    list_finished(rig, queue, (kl_finished){.max = 5, .state = KL_TASK_DEAD, .words = kl_str("fire")}, &seen);
    CHECK_INT(seen.count, dead);
    list_finished(rig, queue, (kl_finished){.max = 5, .until_ms = 1700000000000}, &seen);
    CHECK_INT(seen.count, 0);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(looking_without_memory_says_so)
{
    static kl_found found[100];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    kl_waiting waiting = {.max = 100};
    kl_finished finished = {.max = 100};
    size_t count, failed = 0;
    kl_bytes cursor;
    REQUIRE(queue);
    put_many(queue, 20, 0, 0);
    CHECK_INT(settle_tasks(queue, KL_DONE, 1000, NULL), 20);
    put_many(queue, 20, 0, 0);
    for (uint64_t n = 1, calm = 0; calm < 2 && n < 2000; n++) {
        kl_arena arena = {0};
        kl__alloc_fail_at(n);
        kl_rc rc = n % 2 ? kl_queue_waiting(queue, &waiting, &arena, found, &count, &cursor)
                         : kl_queue_finished(queue, &finished, &arena, found, &count, &cursor);
        calm = kl__alloc_fail_at(0) >= n ? 0 : calm + 1;
        CHECK(rc == (calm ? KL_OK : KL_ENOMEM));
        failed += rc == KL_ENOMEM;
        kl_arena_free(&arena);
    }
    CHECK(failed > 5);
    kl_queue_close(queue);
}
