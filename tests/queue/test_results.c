/* test_results.c - a job's results: in order, each once, and for about as many rows read as are returned. */
#include <stdlib.h>

#include "queue/job_support.h"

/* What a full listing came to. */
struct listing {
    uint64_t rows, read, pages;
    kl_task_id last;
    bool ordered;
};

static struct listing list_all(kl_queue *queue, const kl_task_id *job, size_t max, uint32_t *seen, size_t count)
{
    static kl_found found[KL_JOB_PAGE_MAX];
    char cursor[KL_JOB_CURSOR_MAX];
    kl_bytes from = {"", 0};
    struct listing listing = {.ordered = true};
    do {
        kl_arena arena = {0};
        size_t got = 0;
        uint64_t read = 0;
        kl_rc rc = kl_job_results(queue, job, from, max, &arena, found, &got, &from, &read);
        CHECK_INT(rc, KL_OK);
        for (size_t i = 0; rc == KL_OK && i < got; i++) {
            const kl_task_id *id = &found[i].task.entry.id;
            listing.ordered &= listing.rows == 0 || kl_id_compare(&listing.last, id) < 0;
            listing.last = *id;
            CHECK(found[i].made_ms > 0);
            listing.rows++;
            size_t index = index_of(&found[i].task);
            if (index < count)
                seen[index]++;
        }
        listing.read += read;
        listing.pages++;
        CHECK(from.len <= sizeof cursor);
        memcpy(cursor, from.data, from.len);
        from.data = cursor;
        kl_arena_free(&arena);
        if (rc != KL_OK)
            break;
    } while (from.len > 0);
    return listing;
}

/* Lists a job of so many finished tasks and checks order, completeness and what it cost. */
static void check_cost(struct rig *rig, int64_t partitions, size_t count, size_t keys, size_t max)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = partitions);
    REQUIRE(queue);
    uint32_t *seen = calloc(count, sizeof *seen);
    kl_task_id job = submit_job(queue, make_puts(rig, count, keys, 0), count);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), count);
    struct listing listing = list_all(queue, &job, max, seen, count);
    for (size_t i = 0; i < count && !test_failed(); i++)
        CHECK_INT(seen[i], 1);
    CHECK(listing.ordered);
    CHECK_INT(listing.rows, count);
    printf("# %lld partitions, pages of %zu: %.3f rows read per row returned\n", (long long)partitions, max,
           (double)listing.read / (double)listing.rows);
    CHECK(listing.read >= listing.rows && listing.read * 10 <= listing.rows * 12);
    free(seen);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_full_listing_of_16_shards_reads_each_row_about_once)
{
    check_cost(rig, 1, test_ops(20000), 1000, 100);
}

CLAIM_IN_MEMORY(four_partitions_cost_little_more) { check_cost(rig, 4, test_ops(20000), 1000, 100); }

CLAIM_IN_MEMORY(tasks_without_keys_cost_no_more) { check_cost(rig, 4, test_ops(20000), 0, 100); }

CLAIM(a_listing_on_any_store_reads_each_row_about_once) { check_cost(rig, 4, 3000, 500, 100); }

/* Few results in 65,536 shards: counted by the calls that the store sees. */
static void count_call(void *ctx, const kl_store_call *call)
{
    (void)call;
    ++*(uint64_t *)ctx;
}

TEST(few_results_in_many_shards_take_few_calls)
{
    struct rig rig = {.disk = false};
    uint64_t calls = 0;
    uint32_t seen[20] = {0};
    kl_store_opts opts = {.size = sizeof opts, .trace = count_call, .trace_ctx = &calls};
    CHECK_INT(kl_store_open("memory:", &opts, &rig.store), KL_OK);
    kl_queue *queue = OPEN(rig.store, "orders", .partitions = 2, .shard_prefix_len = 4);
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(&rig, 20, 0, 0), 20);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 20);
    for (size_t max = 7; max <= 100; max += 93) {
        memset(seen, 0, sizeof seen);
        calls = 0;
        struct listing listing = list_all(queue, &job, max, seen, 20);
        CHECK_INT(listing.rows, 20);
        CHECK(listing.ordered);
        for (size_t i = 0; i < 20; i++)
            CHECK_INT(seen[i], 1);
        printf("# pages of %zu: %llu calls\n", max, (unsigned long long)calls);
        CHECK(calls < listing.pages * 130);
    }
    kl_queue_close(queue);
    kl_store_close(rig.store);
    kl_arena_free(&rig.arena);
}

CLAIM(results_of_two_layouts_are_one_list)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 900, 70, 0);
    kl_task_id job = submit_job(queue, tasks, 300);
    kl_queue_opts wider = {.size = sizeof wider, .shard_prefix_len = 2, .partitions = 3};
    CHECK_INT(kl_queue_alter(queue, &wider), KL_OK);
    CHECK_INT(kl_job_add(queue, &job, tasks + 300, 600, (kl_bytes){0}, NULL), KL_OK);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 900);
    for (size_t max = 1; max <= 1000; max *= 10) {
        uint32_t seen[900] = {0};
        struct listing listing = list_all(queue, &job, max, seen, 900);
        CHECK(listing.ordered);
        CHECK_INT(listing.rows, 900);
        for (size_t i = 0; i < 900; i++)
            CHECK_INT(seen[i], 1);
    }
    kl_queue_close(queue);
}

CLAIM(a_listing_goes_on_behind_its_cursor_when_the_layout_changes)
{
    kl_found found[10];
    kl_bytes cursor;
    size_t count;
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, 40, 9, 0), 40);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 40);
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, 10, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    CHECK_INT(count, 10);
    kl_task_id last = found[9].task.entry.id;
    kl_queue_opts wider = {.size = sizeof wider, .shard_prefix_len = 3};
    CHECK_INT(kl_queue_alter(queue, &wider), KL_OK);
    size_t rest = 0;
    while (cursor.len > 0) {
        CHECK_INT(kl_job_results(queue, &job, cursor, 10, &rig->arena, found, &count, &cursor, NULL), KL_OK);
        CHECK(count == 0 || kl_id_compare(&last, &found[0].task.entry.id) < 0);
        rest += count;
        if (count > 0)
            last = found[count - 1].task.entry.id;
    }
    CHECK_INT(rest, 30);
    kl_queue_close(queue);
}

CLAIM(a_tasks_id_is_a_cursor_too)
{
    kl_found all[20], some[20];
    kl_bytes cursor;
    size_t count;
    char text[KL_ID_TEXT_BYTES];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, 20, 6, 0), 20);
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), 20);
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, 20, &rig->arena, all, &count, &cursor, NULL), KL_OK);
    REQUIRE(count == 20);
    kl_id_print(&all[12].task.entry.id, text);
    CHECK_INT(kl_job_results(queue, &job, kl_str(text), 20, &rig->arena, some, &count, &cursor, NULL), KL_OK);
    REQUIRE(count == 7);
    CHECK(kl_id_compare(&some[0].task.entry.id, &all[13].task.entry.id) == 0);
    CHECK_INT(some[0].task.state, KL_TASK_DEAD);
    CHECK_STR(some[0].queue, "orders");
    kl_queue_close(queue);
}

CLAIM(what_is_no_cursor_of_the_job_is_refused)
{
    kl_found found[5];
    kl_bytes cursor, other, bad;
    size_t count;
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, 20, 6, 0), 20),
               second = submit_job(queue, make_puts(rig, 20, 6, 0), 20);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 40);
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, 5, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    CHECK(cursor.len > 0 && cursor.len <= KL_JOB_CURSOR_MAX);
#define REFUSED(text, part)                                                                                            \
    CHECK_FAILS(kl_job_results(queue, &job, text, 5, &rig->arena, found, &count, &bad, NULL), KL_EINVAL, part)
    CHECK_INT(kl_job_results(queue, &second, (kl_bytes){0}, 5, &rig->arena, found, &count, &other, NULL), KL_OK);
    REFUSED(other, "another one");
    REFUSED(kl_str("17"), "another length");
    REFUSED(kl_str("zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz"), "task id");
    char changed[64];
    for (size_t i = 0; i < cursor.len; i++) {
        memcpy(changed, cursor.data, cursor.len);
        changed[i] = changed[i] == 'B' ? 'C' : 'B';
        REFUSED(((kl_bytes){changed, cursor.len}), "cursor");
    }
    changed[3] = '!';
    REFUSED(((kl_bytes){changed, cursor.len}), "a character");
    CHECK_INT(kl_job_results(queue, &job, cursor, 0, &rig->arena, found, &count, &bad, NULL), KL_EINVAL);
    CHECK_INT(kl_job_results(queue, &job, cursor, KL_JOB_PAGE_MAX + 1, &rig->arena, found, &count, &bad, NULL),
              KL_EINVAL);
    kl_task_id nobody = found[0].task.entry.id;
    CHECK_INT(kl_job_results(queue, &nobody, (kl_bytes){0}, 5, &rig->arena, found, &count, &bad, NULL), KL_ENOTFOUND);
    kl_queue_close(queue);
#undef REFUSED
}

CLAIM_IN_MEMORY(a_page_of_large_results_ends_early_and_goes_on)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    uint32_t seen[40] = {0};
    kl_task_id job = submit_job(queue, make_puts(rig, 40, 8, 900000), 40);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 40);
    struct listing listing = list_all(queue, &job, 40, seen, 40);
    CHECK(listing.ordered && listing.pages > 3);
    CHECK_INT(listing.rows, 40);
    kl_queue_close(queue);
}

CLAIM(a_page_that_holds_the_last_result_has_no_cursor)
{
    enum { TASKS = 13 };
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_found found[TASKS];
    kl_bytes cursor;
    size_t count;
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, TASKS, 0, 0), TASKS);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), TASKS);
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, TASKS, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    CHECK(count == TASKS && cursor.len == 0);
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, TASKS - 1, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    CHECK(count == TASKS - 1 && cursor.len > 0);
    CHECK_INT(kl_job_results(queue, &job, cursor, 1, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    CHECK(count == 1 && cursor.len == 0);
    kl_queue_close(queue);
}
