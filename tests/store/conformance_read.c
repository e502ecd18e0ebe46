/* conformance_read.c - tasks read back whole in every state, results of a job, and forgetting. */
#include <stdlib.h>

#include "store/calls.h"
#include "store/conformance.h"

static char big[KL_PAYLOAD_BYTES_MAX];

/* An entry in which every field is set, with every byte value in its headers and payload. */
static kl_entry make_full(struct trial *t, kl_place place)
{
    static char binary[512];
    for (size_t i = 0; i < sizeof binary; i++)
        binary[i] = (char)i;
    kl_entry entry = make_entry(t, place, "key\xff", NULL);
    entry.kind = kl_str("invoice.print");
    entry.headers = (kl_bytes){binary, sizeof binary};
    entry.payload = (kl_bytes){binary + 1, sizeof binary - 1};
    entry.priority = -2;
    entry.job = make_id(t, place, kl_str(NULL));
    return entry;
}

CLAIM(a_waiting_task_is_read_back_whole)
{
    kl_entry entries[4] = {make_full(t, order_place(t, 6)), make_full(t, order_place(t, 6)),
                           make_entry(t, order_place(t, 6), NULL, NULL), make_full(t, bill_place(t, 6))};
    entries[1].due_ms = START_MS + 60000;
    memset(big, 'b', sizeof big);
    entries[3].payload = (kl_bytes){big, sizeof big};
    append(t, entries, COUNT(entries));
    BOTH_LIVES(t)
    for (size_t i = 0; i < COUNT(entries); i++) {
        kl_task task = read_one(t, entries[i].place, &entries[i].id);
        CHECK_INT(task.state, KL_TASK_WAITING);
        CHECK_ENTRY(&task.entry, &entries[i]);
        CHECK_INT(task.attempts, 0);
        CHECK(task.position == stub_of(t, entries[i].place, &entries[i].id).position);
        CHECK_INT(task.not_before_ms, entries[i].due_ms);
    }
}

CLAIM(every_part_may_be_as_long_as_its_limit)
{
    memset(big, 'B', sizeof big);
    kl_entry entry = make_entry(t, order_place(t, 6), NULL, NULL);
    entry.key = (kl_bytes){big, KL_KEY_BYTES_MAX};
    entry.kind = (kl_bytes){big, KL_KIND_BYTES_MAX};
    entry.headers = (kl_bytes){big, KL_HEADERS_BYTES_MAX};
    entry.payload = (kl_bytes){big, KL_PAYLOAD_BYTES_MAX};
    append(t, &entry, 1);
    kl_settled done = outcome_of(t, entry.place, &entry.id, KL_DONE);
    done.keep_ms = KEEP_MS;
    done.error = (kl_bytes){big, KL_ERROR_BYTES_MAX};
    done.result = (kl_bytes){big, KL_RESULT_BYTES_MAX};
    BOTH_LIVES(t)
    {
        kl_task task = read_one(t, entry.place, &entry.id);
        CHECK_ENTRY(&task.entry, &entry);
    }
    CHECK_OK(settle(t, entry.place, 0, &done, 1));
    BOTH_LIVES(t)
    {
        kl_task task = read_one(t, entry.place, &entry.id);
        CHECK_INT(task.state, KL_TASK_DONE);
        CHECK_ENTRY(&task.entry, &entry);
        CHECK_BYTES(task.error, done.error);
        CHECK_BYTES(task.result, done.result);
    }
}

CLAIM(a_tried_task_is_read_with_its_attempts_and_its_time)
{
    kl_entry entry = make_full(t, order_place(t, 6));
    entry.due_ms = START_MS + 1000;
    append(t, &entry, 1);
    kl_settled retry = outcome_of(t, entry.place, &entry.id, KL_RETRY);
    retry.attempts = 4;
    retry.due_ms = START_MS + 5000;
    CHECK_OK(settle(t, entry.place, 0, &retry, 1));
    BOTH_LIVES(t)
    {
        kl_task task = read_one(t, entry.place, &entry.id);
        CHECK_INT(task.state, KL_TASK_WAITING);
        CHECK_ENTRY(&task.entry, &entry);
        CHECK_INT(task.attempts, 4);
        CHECK_INT(task.not_before_ms, START_MS + 5000);
        CHECK(task.position == retry.position);
    }
}

CLAIM(a_finished_task_is_read_back_whole)
{
    static const kl_outcome outcomes[] = {KL_DONE, KL_DEAD, KL_CANCELLED};
    static const kl_task_state states[] = {KL_TASK_DONE, KL_TASK_DEAD, KL_TASK_CANCELLED};
    kl_entry entries[3];
    int64_t before = 0, after = 0;
    CHECK_OK(kl_store_now(t->store, &before));
    for (int i = 0; i < 3; i++) {
        entries[i] = make_full(t, bill_place(t, 6));
        append(t, &entries[i], 1);
        kl_settled end = outcome_of(t, entries[i].place, &entries[i].id, outcomes[i]);
        end.attempts = 7;
        end.keep_ms = KEEP_MS;
        end.error = kl_str("it broke \xff\x01");
        end.result = (kl_bytes){"\0\1\2", 3};
        CHECK_OK(settle(t, entries[i].place, 0, &end, 1));
    }
    CHECK_OK(kl_store_now(t->store, &after));
    BOTH_LIVES(t)
    for (int i = 0; i < 3; i++) {
        kl_task task = read_one(t, entries[i].place, &entries[i].id);
        CHECK_INT(task.state, states[i]);
        CHECK_ENTRY(&task.entry, &entries[i]);
        CHECK_INT(task.attempts, 7);
        CHECK(task.finished_ms >= before && task.finished_ms <= after);
        CHECK_BYTES(task.error, kl_str("it broke \xff\x01"));
        CHECK_BYTES(task.result, ((kl_bytes){"\0\1\2", 3}));
    }
}

CLAIM(a_finished_task_shows_the_last_error_that_was_kept)
{
    static const struct {
        const char *error;
        int64_t keep_ms;
    } attempts[] = {{"first", KEEP_MS}, {"second", KEEP_MS}, {"third, not kept", 0}, {NULL, KEEP_MS}};
    kl_place place = order_place(t, 6);
    kl_task_id id = append_one(t, place, "x");
    for (uint32_t i = 0; i < COUNT(attempts); i++) {
        kl_settled settled = outcome_of(t, place, &id, i < 3 ? KL_RETRY : KL_DONE);
        settled.attempts = i + 1;
        settled.error = kl_str(attempts[i].error);
        settled.keep_ms = attempts[i].keep_ms;
        CHECK_OK(settle(t, place, 0, &settled, 1));
    }
    BOTH_LIVES(t)
    {
        kl_task task = read_one(t, place, &id);
        CHECK_INT(task.state, KL_TASK_DONE);
        CHECK_INT(task.attempts, 4);
        CHECK_BYTES(task.error, kl_str("second"));
    }
}

CLAIM(unknown_tasks_are_read_as_unknown)
{
    kl_task_id id = make_id(t, order_place(t, 6), kl_str("k"));
    CHECK_INT(state_of(t, order_place(t, 6), &id), KL_TASK_UNKNOWN);
    kl_task_id other = append_one(t, order_place(t, 6), "x");
    (void)other;
    CHECK_INT(state_of(t, order_place(t, 6), &id), KL_TASK_UNKNOWN);
}

CLAIM(several_tasks_are_read_at_once_whatever_their_states)
{
    kl_place place = order_place(t, 6);
    kl_task_id ids[5], asked[6];
    append_many(t, place, ids, COUNT(ids));
    finish(t, place, &ids[0], KL_DEAD, KEEP_MS, "dead", NULL);
    finish(t, place, &ids[1], KL_DONE, 0, NULL, NULL);
    kl_settled retry = outcome_of(t, place, &ids[2], KL_RETRY);
    CHECK_OK(settle(t, place, 0, &retry, 1));
    finish(t, place, &ids[3], KL_CANCELLED, KEEP_MS, NULL, NULL);
    static const int order[] = {4, 1, 0, 3, 2, 0}; /* one of them twice */
    static const kl_task_state states[] = {KL_TASK_WAITING,   KL_TASK_UNKNOWN, KL_TASK_DEAD,
                                           KL_TASK_CANCELLED, KL_TASK_WAITING, KL_TASK_DEAD};
    for (int i = 0; i < 6; i++)
        asked[i] = ids[order[i]];
    BOTH_LIVES(t)
    {
        kl_task tasks[6];
        size_t count = 0;
        CHECK_OK(read_some(t->store, place, asked, 6, &t->arena, tasks, &count));
        REQUIRE(count == 6);
        for (int i = 0; i < 6; i++) {
            CHECK_INT(tasks[i].state, states[i]);
            if (states[i] != KL_TASK_UNKNOWN)
                CHECK_ID(tasks[i].entry.id, asked[i]);
        }
    }
}

/* Eight of them are well below the limit, and nine above it. */
CLAIM(reading_stops_before_the_answer_grows_too_big)
{
    enum { BYTES = 1040000, FIT = KL_BATCH_BYTES_MAX / (BYTES + 1) };
    kl_task_id ids[20];
    kl_task tasks[20];
    kl_place place = order_place(t, 6);
    memset(big, 's', sizeof big);
    for (int i = 0; i < 20; i++) {
        kl_entry entry = make_entry(t, place, "k", NULL);
        big[0] = (char)i;
        entry.payload = (kl_bytes){big, BYTES};
        ids[i] = entry.id;
        append(t, &entry, 1);
    }
    for (size_t at = 0, count = 0; at < 20; at += count) {
        kl_arena arena = {0};
        CHECK_OK(read_some(t->store, place, ids + at, 20 - at, &arena, tasks + at, &count));
        bool fits = count >= 1 && count <= FIT && count <= 20 - at;
        CHECK(fits);
        for (size_t i = at; fits && i < at + count; i++)
            CHECK(tasks[i].entry.payload.len == BYTES && *(const char *)tasks[i].entry.payload.data == (char)i);
        kl_arena_free(&arena);
        REQUIRE(fits);
    }
}

/* ---- Results of a job ---- */

CLAIM(results_of_a_job_are_listed_by_id_in_each_shard)
{
    kl_place places[2] = {order_place(t, 6), order_place(t, 7)};
    kl_task_id job = make_id(t, places[0], kl_str(NULL)), other = make_id(t, places[0], kl_str(NULL));
    kl_entry entries[60];
    for (int i = 0; i < 60; i++) {
        entries[i] = make_entry(t, places[i % 2], "k", "part of a job");
        entries[i].job = i % 6 < 4 ? job : other; /* ids 0-3, 6-9, ... are the job's */
    }
    for (int i = 59; i >= 0; i--) /* appended and finished in another order than that of ids */
        append(t, &entries[i], 1);
    for (int i = 0; i < 60; i++) {
        int at = (i * 7) % 60;
        if (at < 50) /* the last ones still wait */
            finish(t, entries[at].place, &entries[at].id, at % 3 ? KL_DONE : KL_DEAD, KEEP_MS, "e", "r");
    }
    BOTH_LIVES(t)
    for (int shard = 0; shard < 2; shard++) {
        kl_task tasks[7];
        kl_task_id after = {{0}};
        size_t count = 0, expected = 0, seen = 0;
        for (int i = shard; i < 50; i += 2)
            expected += i % 6 < 4;
        int at = shard;
        do {
            const kl_task_id *behind = seen ? &after : NULL;
            CHECK_OK(kl_store_results(t->store, places[shard], &job, behind, COUNT(tasks), &t->arena, tasks, &count));
            REQUIRE(count <= COUNT(tasks));
            for (size_t i = 0; i < count; i++, at += 2) {
                while (at % 6 >= 4)
                    at += 2;
                REQUIRE(at < 50);
                CHECK_ENTRY(&tasks[i].entry, &entries[at]);
                CHECK_INT(tasks[i].state, at % 3 ? KL_TASK_DONE : KL_TASK_DEAD);
                CHECK_BYTES(tasks[i].result, kl_str("r"));
                CHECK_BYTES(tasks[i].error, kl_str("e"));
            }
            if (count)
                after = tasks[count - 1].entry.id;
            seen += count;
        } while (count);
        CHECK_INT(seen, expected);
    }
}

CLAIM(results_that_were_not_kept_are_not_listed)
{
    kl_entry entry = make_full(t, order_place(t, 6));
    kl_task task;
    size_t count = 1;
    append(t, &entry, 1);
    CHECK_OK(kl_store_results(t->store, entry.place, &entry.job, NULL, 1, &t->arena, &task, &count));
    CHECK_INT(count, 0);
    finish(t, entry.place, &entry.id, KL_DONE, 0, NULL, "r");
    count = 1;
    CHECK_OK(kl_store_results(t->store, entry.place, &entry.job, NULL, 1, &t->arena, &task, &count));
    CHECK_INT(count, 0);
}

CLAIM(results_go_on_behind_one_that_was_forgotten)
{
    kl_place place = order_place(t, 6);
    kl_task_id job = make_id(t, place, kl_str(NULL));
    kl_entry entries[4];
    for (int i = 0; i < 4; i++) {
        entries[i] = make_entry(t, place, "k", "x");
        entries[i].job = job;
        append(t, &entries[i], 1);
        finish(t, place, &entries[i].id, KL_DONE, KEEP_MS, NULL, NULL);
    }
    CHECK_OK(kl_store_forget(t->store, place, &entries[1].id, 1));
    kl_task tasks[4];
    size_t count = 0;
    CHECK_OK(kl_store_results(t->store, place, &job, &entries[1].id, 4, &t->arena, tasks, &count));
    REQUIRE(count == 2);
    CHECK_ID(tasks[0].entry.id, entries[2].id);
    CHECK_ID(tasks[1].entry.id, entries[3].id);
}

/* ---- Forgetting ---- */

CLAIM(a_forgotten_task_is_unknown)
{
    kl_place place = order_place(t, 6);
    kl_task_id ids[4];
    append_many(t, place, ids, COUNT(ids));
    for (int i = 0; i < 3; i++)
        finish(t, place, &ids[i], i ? KL_DONE : KL_DEAD, KEEP_MS, "why", NULL);
    kl_task_id asked[3] = {ids[0], make_id(t, place, kl_str("k")), ids[2]};
    for (int repeat = 0; repeat < 2; repeat++)
        CHECK_OK(kl_store_forget(t->store, place, asked, COUNT(asked)));
    BOTH_LIVES(t)
    {
        CHECK_INT(state_of(t, place, &ids[0]), KL_TASK_UNKNOWN);
        CHECK_INT(state_of(t, place, &ids[1]), KL_TASK_DONE);
        CHECK_INT(state_of(t, place, &ids[2]), KL_TASK_UNKNOWN);
        kl_counts counts = counts_of(t, whole(t->orders));
        CHECK(counts.done == 1 && counts.dead == 0 && counts.ready == 1);
        kl_task found[4];
        size_t count = 0;
        CHECK_OK(kl_store_find(t->store, &(kl_find){.max = 4}, &t->arena, found, &count));
        CHECK_INT(count, 1);
    }
}

CLAIM(a_waiting_task_is_not_forgotten)
{
    kl_place place = order_place(t, 6);
    kl_task_id id = append_one(t, place, "x");
    CHECK_OK(kl_store_forget(t->store, place, &id, 1));
    BOTH_LIVES(t)
    {
        CHECK_LINE(t, place, 0, &id, 1);
        CHECK_INT(state_of(t, place, &id), KL_TASK_WAITING);
    }
}
