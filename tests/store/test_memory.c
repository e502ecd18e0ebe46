/* test_memory.c - the memory engine beyond the contract: every allocation may fail, how much is remembered, and its
 * lines against a model that looks at everything.
 *
 * What all engines promise is proved by the conformance suite. */
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "store/calls.h"

enum { SHARD = 5, KEEP_MS = 1000000 };

#define OPTS(...) (&(kl_store_opts){.size = sizeof(kl_store_opts), .now_ms = read_clock, __VA_ARGS__})

static int64_t clock_ms;

static int64_t read_clock(void *ctx)
{
    (void)ctx;
    return clock_ms;
}

static kl_place place; /* the shard that most tests use */

static kl_store *open_store(const kl_store_opts *opts)
{
    kl_store *store = NULL;
    clock_ms = 1000;
    CHECK_INT(kl_store_open("memory:", opts, &store), KL_OK);
    CHECK_INT(kl_store_partition(store, "orders", 1, &place.partition), KL_OK);
    place.shard = SHARD;
    return store;
}

static kl_task_id id_of(uint32_t number)
{
    kl_layout layout = {1, 1};
    kl_task_id id = {{0}};
    CHECK_INT(kl_id_pack(&layout, &(kl_id_parts){.shard = SHARD, .ms = 1 + number}, &id), KL_OK);
    return id;
}

static kl_entry entry_of(uint32_t number)
{
    return (kl_entry){.place = place, .id = id_of(number), .payload = kl_str("payload")};
}

static void append(kl_store *store, uint32_t number)
{
    kl_entry entry = entry_of(number);
    CHECK_INT(kl_store_append(store, &entry, 1, NULL), KL_OK);
}

/* The task's whereabouts. */
static kl_task read_task(kl_store *store, uint32_t number, kl_arena *arena)
{
    kl_task task = {0};
    kl_task_id id = id_of(number);
    size_t count = 0;
    CHECK_INT(read_some(store, place, &id, 1, arena, &task, &count), KL_OK);
    CHECK_INT(count, 1);
    return task;
}

static kl_task_state state_of(kl_store *store, uint32_t number)
{
    kl_arena arena = {0};
    kl_task_state state = read_task(store, number, &arena).state;
    kl_arena_free(&arena);
    return state;
}

static void settle(kl_store *store, uint32_t number, kl_settled settled)
{
    kl_arena arena = {0};
    settled.id = id_of(number);
    if (settled.position == 0)
        settled.position = read_task(store, number, &arena).position;
    kl_settle batch = {.place = place, .tasks = &settled, .count = 1};
    CHECK_INT(kl_store_settle(store, &batch, 1), KL_OK);
    kl_arena_free(&arena);
}

#define SETTLE(store, number, ...) settle(store, number, (kl_settled){__VA_ARGS__})

static size_t find(kl_store *store, kl_find what, kl_arena *arena, kl_task *ret_tasks)
{
    size_t count = 0;
    what.max = what.max ? what.max : 100;
    CHECK_INT(kl_store_find(store, &what, arena, ret_tasks, &count), KL_OK);
    return count;
}

static size_t found(kl_store *store, const char *words)
{
    static kl_task tasks[100];
    kl_arena arena = {0};
    size_t count = find(store, (kl_find){.words = kl_str(words)}, &arena, tasks);
    kl_arena_free(&arena);
    return count;
}

/* --- Tokens --- */

static uint64_t waiting(kl_store *store)
{
    kl_counts counts;
    CHECK_INT(kl_store_counts(store, (kl_place){place.partition, KL_ALL_SHARDS}, NULL, &counts), KL_OK);
    return counts.ready + counts.due + counts.retry;
}

/* Appends a task under a token that is settled at once; false: the token was known. */
static bool token_is_new(kl_store *store, uint32_t number)
{
    kl_token token = {{0}};
    kl_entry entry = entry_of(number);
    memcpy(token.bytes, &number, sizeof number);
    CHECK_INT(kl_store_append(store, &entry, 1, &token), KL_OK);
    bool stored = state_of(store, number) == KL_TASK_WAITING;
    if (stored)
        SETTLE(store, number, .outcome = KL_DONE);
    CHECK_INT(waiting(store), 0);
    return stored;
}

TEST(a_token_is_remembered_through_the_next_65536_and_then_forgotten)
{
    kl_store *store = open_store(OPTS(.log = NULL));
    for (uint32_t i = 0; i <= 65536; i++)
        REQUIRE(token_is_new(store, i));
    CHECK(!token_is_new(store, 0));
    CHECK(token_is_new(store, 65537));
    CHECK(token_is_new(store, 0)); /* memory has an end */
    CHECK(!token_is_new(store, 65000));
    kl_store_close(store);
}

TEST(a_token_is_remembered_for_ten_minutes_and_then_forgotten)
{
    kl_store *store = open_store(OPTS(.log = NULL));
    CHECK(token_is_new(store, 1));
    clock_ms += 10 * 60000;
    CHECK(!token_is_new(store, 1));
    CHECK(token_is_new(store, 2));
    clock_ms += 1;
    CHECK(token_is_new(store, 1));
    CHECK(!token_is_new(store, 2));
    kl_store_close(store);
}

/* --- What is kept --- */

TEST(an_id_that_is_finished_may_wait_again_and_its_last_end_is_kept)
{
    kl_task tasks[100];
    kl_arena arena = {0};
    kl_store *store = open_store(OPTS(.log = NULL));
    append(store, 1);
    uint64_t first = read_task(store, 1, &arena).position;
    SETTLE(store, 1, .outcome = KL_DEAD, .keep_ms = KEEP_MS, .error = kl_str("first end"));
    append(store, 1);
    CHECK_INT(state_of(store, 1), KL_TASK_WAITING);
    CHECK_INT(found(store, "first"), 1);
    SETTLE(store, 1, .position = first, .outcome = KL_DONE); /* a late repeat speaks of the one that has ended */
    CHECK_INT(state_of(store, 1), KL_TASK_WAITING);
    SETTLE(store, 1, .outcome = KL_DONE, .keep_ms = KEEP_MS, .result = kl_str("second end"));
    CHECK_INT(find(store, (kl_find){0}, &arena, tasks), 1);
    CHECK_INT(tasks[0].state, KL_TASK_DONE);
    CHECK_STR(tasks[0].result.data, "second end");
    CHECK_INT(tasks[0].error.len, 0);
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(errors_of_earlier_attempts_are_found_by_their_words)
{
    kl_arena arena = {0};
    kl_store *store = open_store(OPTS(.log = NULL));
    append(store, 1);
    SETTLE(store, 1, .outcome = KL_RETRY, .attempts = 1, .keep_ms = KEEP_MS, .error = kl_str("Disk full on node-7"));
    SETTLE(store, 1, .outcome = KL_RETRY, .attempts = 2, .error = kl_str("never kept"));
    SETTLE(store, 1, .outcome = KL_RETRY, .attempts = 3, .keep_ms = KEEP_MS,
           .error = kl_str("gr\xc3\xbc\xc3\x9f"
                           "e"));
    CHECK_INT(found(store, "disk"), 0); /* it is not finished */
    SETTLE(store, 1, .outcome = KL_DONE, .attempts = 4, .keep_ms = KEEP_MS);
    CHECK_INT(found(store, "full, DISK!"), 1);
    CHECK_INT(found(store, "node 7"), 1);
    CHECK_INT(found(store, "gr\xc3\xbc\xc3\x9f"
                           "e"),
              1);
    CHECK_INT(found(store, "dis"), 0); /* words are whole */
    CHECK_INT(found(store, "disk gr\xc3\xbc\xc3\x9f"
                           "e"),
              0); /* and stand in one error */
    CHECK_INT(found(store, "kept"), 0);
    CHECK_STR(read_task(store, 1, &arena).error.data, "gr\xc3\xbc\xc3\x9f"
                                                      "e"); /* of the last that left one */
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(a_retry_that_is_settled_again_leaves_its_error_once)
{
    kl_store *store = open_store(OPTS(.log = NULL));
    append(store, 1);
    SETTLE(store, 1, .outcome = KL_RETRY, .keep_ms = KEEP_MS, .error = kl_str("before"));
    SETTLE(store, 1, .outcome = KL_RETRY, .keep_ms = KEEP_MS, .error = kl_str("again"));
    SETTLE(store, 1, .outcome = KL_CANCELLED, .keep_ms = KEEP_MS, .error = kl_str("no attempt of its own"));
    CHECK_INT(found(store, "before"), 0);
    CHECK_INT(found(store, "again"), 1);
    CHECK_INT(found(store, "attempt own"), 1);
    kl_store_close(store);
}

TEST(an_attempts_error_is_dropped_when_its_time_is_over_before_the_task_ends)
{
    kl_store *store = open_store(OPTS(.history_ms_max = 500));
    append(store, 1);
    SETTLE(store, 1, .outcome = KL_RETRY, .attempts = 1, .keep_ms = 100, .error = kl_str("early"));
    SETTLE(store, 1, .outcome = KL_RETRY, .attempts = 2, .keep_ms = KEEP_MS, .error = kl_str("long"));
    clock_ms += 100;
    SETTLE(store, 1, .outcome = KL_RETRY, .attempts = 3, .keep_ms = KEEP_MS, .error = kl_str("late"));
    clock_ms += 400; /* the store keeps nothing for longer than 500 */
    SETTLE(store, 1, .outcome = KL_DEAD, .attempts = 4, .keep_ms = 200);
    CHECK_INT(found(store, "early"), 0);
    CHECK_INT(found(store, "long"), 0);
    CHECK_INT(found(store, "late"), 1);
    clock_ms += 150;
    CHECK_INT(found(store, "late"), 1); /* as long as its task, from then on */
    clock_ms += 50;
    CHECK_INT(found(store, "late"), 0);
    kl_store_close(store);
}

TEST(the_oldest_finished_task_of_all_partitions_goes_first)
{
    enum { KEPT = 3 };
    kl_task tasks[100];
    kl_arena arena = {0};
    kl_counts counts;
    kl_store *store = open_store(OPTS(.history_rows_max = KEPT));
    uint32_t orders = place.partition, bills;
    REQUIRE(kl_store_partition(store, "bills", 1, &bills) == KL_OK);
    for (uint32_t i = 0; i < 6; i++) {
        place.partition = i % 2 ? bills : orders;
        append(store, i);
        SETTLE(store, i, .outcome = KL_DONE, .keep_ms = KEEP_MS);
        clock_ms++;
    }
    REQUIRE(find(store, (kl_find){0}, &arena, tasks) == KEPT);
    for (uint32_t i = 0; i < KEPT; i++)
        CHECK_INT(tasks[i].finished_ms, 1005 - i);
    REQUIRE(kl_store_counts(store, (kl_place){orders, KL_ALL_SHARDS}, NULL, &counts) == KL_OK);
    CHECK_INT(counts.done, 1);
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(time_that_is_past_all_ids_does_not_overflow)
{
    kl_store *store = open_store(OPTS(.history_ms_max = KL_ID_MS_MAX));
    int64_t ms;
    clock_ms = INT64_MAX;
    CHECK_INT(kl_store_now(store, &ms), KL_OK);
    CHECK_INT(ms, KL_ID_MS_MAX);
    CHECK(token_is_new(store, 1));
    append(store, 2);
    SETTLE(store, 2, .outcome = KL_DONE, .keep_ms = KL_ID_MS_MAX);
    CHECK_INT(state_of(store, 2), KL_TASK_DONE);
    kl_store_close(store);
}

TEST(a_partition_that_is_known_with_another_layout_is_refused_with_both)
{
    uint32_t number = 0;
    kl_store *store = open_store(OPTS(.log = NULL));
    CHECK_INT(kl_store_partition(store, "orders", 3, &number), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "'orders' has shard_prefix_len 1, and 3 was asked for");
    for (uint32_t i = 2; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%u", i);
        CHECK_INT(kl_store_partition(store, name, 1, &number), KL_OK);
        CHECK_INT(number, i);
    }
    CHECK_INT(kl_store_partition(store, "p17", 1, &number), KL_OK);
    CHECK_INT(number, 17);
    kl_store_close(store);
}

/* --- Every allocation may fail --- */

/* All that a store shows, as text. */
static char *picture_of(kl_store *store)
{
    static kl_stub stubs[64];
    static kl_task tasks[64];
    static kl_record records[64];
    kl_arena arena = {0};
    kl_counts counts;
    size_t count = 0, size = 1 << 16;
    char *text = malloc(size);
    FILE *out = text ? fmemopen(text, size, "w") : NULL;
    if (!out)
        abort();
    for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++) {
        kl_scan scan = {.place = place, .line = line, .until_ms = INT64_MAX, .max = 64};
        CHECK_INT(scan_one(store, &scan, stubs, &count), KL_OK);
        for (size_t i = 0; i < count; i++)
            fprintf(out, "line %d: %u at %lld, %u tries\n", line, stubs[i].id.bytes[5], (long long)stubs[i].due_ms,
                    stubs[i].attempts);
    }
    CHECK_INT(kl_store_counts(store, (kl_place){place.partition, KL_ALL_SHARDS}, NULL, &counts), KL_OK);
    fprintf(out, "%d %d %d %x %d %d %d\n", (int)counts.ready, (int)counts.due, (int)counts.retry, counts.priorities,
            (int)counts.done, (int)counts.dead, (int)counts.cancelled);
    count = find(store, (kl_find){.max = 64}, &arena, tasks);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "finished: %u, %d, '%s' '%s' '%s'\n", tasks[i].entry.id.bytes[5], (int)tasks[i].state,
                (const char *)tasks[i].error.data, (const char *)tasks[i].result.data,
                (const char *)tasks[i].entry.payload.data);
    CHECK_INT(kl_store_list(store, kl_str(""), kl_str(""), 64, &arena, records, &count), KL_OK);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "record: %s = %s, %lld\n", (const char *)records[i].name.data, (const char *)records[i].value.data,
                (long long)records[i].expires_ms);
    fclose(out);
    kl_arena_free(&arena);
    return text;
}

static kl_rc step_partition(kl_store *store)
{
    uint32_t number;
    kl_rc rc = KL_OK;
    for (int i = 0; rc == KL_OK && i < 9; i++) /* past the room that the first ones made */
        rc = kl_store_partition(store, &"abcdefghi"[i], 2, &number);
    return rc;
}

static kl_rc step_append(kl_store *store)
{
    kl_entry entries[6];
    for (uint32_t i = 0; i < 6; i++) {
        entries[i] = entry_of(i);
        entries[i].job = id_of(100);
        entries[i].priority = (int32_t)i % 2;
        entries[i].due_ms = i == 4 ? 5000 : 0;
    }
    entries[5].id = entries[0].id; /* passed over */
    return kl_store_append(store, entries, 6, &(kl_token){{1}});
}

static kl_rc step_repeat(kl_store *store) { return step_append(store); }

static void ignore_end(void *ctx, kl_rc rc, const char *error)
{
    (void)error;
    CHECK_INT(rc, KL_OK);
    ++*(int *)ctx;
}

static kl_rc step_append_async(kl_store *store)
{
    int ends = 0;
    kl_entry entry = entry_of(9);
    kl_rc rc = kl_store_append_async(store, &entry, 1, &(kl_token){{2}}, ignore_end, &ends);
    CHECK_INT(ends, rc == KL_OK);
    return rc;
}

static kl_rc step_fence(kl_store *store)
{
    kl_fence fences[] = {{.place = place, .epoch = 3}, {.place = {place.partition, 1}, .epoch = 2}};
    kl_rc rc = kl_store_fence(store, fences, 2);
    CHECK(fences[0].rc == rc && fences[1].rc == rc);
    return rc;
}

static kl_rc step_settle(kl_store *store)
{
    kl_stub stubs[8];
    size_t count;
    CHECK_INT(scan_one(store, &(kl_scan){.place = place, .line = 0, .max = 8}, stubs, &count), KL_OK);
    CHECK_INT(count, 3);
    kl_settled tasks[] = {
        {.id = stubs[0].id,
         .position = stubs[0].position,
         .attempts = 1,
         .outcome = KL_DONE,
         .keep_ms = KEEP_MS,
         .result = kl_str("42")},
        {.id = stubs[1].id,
         .position = stubs[1].position,
         .attempts = 1,
         .outcome = KL_RETRY,
         .keep_ms = KEEP_MS,
         .due_ms = 7000,
         .error = kl_str("busy")},
        {.id = id_of(77), .position = 1, .outcome = KL_DEAD, .keep_ms = KEEP_MS, .error = kl_str("of nobody")},
    };
    kl_settle batches[] = {{.place = place, .epoch = 3, .tasks = tasks, .count = 3},
                           {.place = {place.partition, 9}, .epoch = 3}};
    kl_rc rc = kl_store_settle(store, batches, 2);
    CHECK(batches[0].rc == rc && batches[1].rc == rc);
    return rc;
}

static kl_rc step_put(kl_store *store)
{
    kl_write writes[] = {{.name = kl_str("a"), .value = kl_str("1")},
                         {.name = kl_str("gone"), .remove = true},
                         {.name = kl_str("b"), .value = kl_str("2"), .expires_ms = 9000}};
    kl_rc rc = kl_store_put(store, writes, 3);
    CHECK(writes[0].rc == rc && writes[2].rc == rc);
    return rc;
}

static kl_rc step_read(kl_store *store)
{
    kl_task_id ids[] = {id_of(0), id_of(1), id_of(50)}, job = id_of(100);
    kl_bytes names[] = {kl_str("a"), kl_str("c")};
    kl_task tasks[8];
    kl_record records[8];
    kl_bytes text;
    size_t count;
    kl_arena arena = {0};
    kl_rc rc = read_some(store, place, ids, 3, &arena, tasks, &count);
    kl_arena_free(&arena); /* so that the next call allocates again */
    if (rc == KL_OK)
        rc = kl_store_results(store, place, &job, NULL, 8, &arena, tasks, &count);
    kl_arena_free(&arena);
    if (rc == KL_OK)
        rc = kl_store_find(store, &(kl_find){.max = 8}, &arena, tasks, &count);
    kl_arena_free(&arena);
    if (rc == KL_OK)
        rc = kl_store_get(store, names, 2, &arena, records);
    kl_arena_free(&arena);
    if (rc == KL_OK)
        rc = kl_store_list(store, kl_str("a"), kl_str(""), 8, &arena, records, &count);
    kl_arena_free(&arena);
    if (rc == KL_OK)
        rc = kl_store_metrics(store, &arena, &text);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc step_quiet(kl_store *store)
{
    uint64_t seen = 0;
    int64_t ms;
    kl_task_id id = id_of(0);
    kl_rc rc = kl_store_now(store, &ms);
    if (rc == KL_OK)
        rc = kl_store_wait(store, place.partition, 0, &seen);
    return rc == KL_OK ? kl_store_forget(store, place, &id, 1) : rc;
}

/* In order: each leaves the next something to do. `allocates` says whether any run of it could fail. */
static const struct {
    kl_rc (*run)(kl_store *store);
    bool allocates;
} steps[] = {{step_partition, true},    {step_append, true}, {step_repeat, false},
             {step_append_async, true}, {step_fence, true},  {step_settle, true},
             {step_put, true},          {step_read, true},   {step_quiet, false}};

enum { STEPS = sizeof steps / sizeof steps[0] };

/* A store that has seen the steps before this one. */
static kl_store *open_at(int step)
{
    kl_store *store = open_store(OPTS(.log = NULL));
    for (int i = 0; i < step; i++)
        CHECK_INT(steps[i].run(store), KL_OK);
    return store;
}

/* Runs the step with its n-th allocation refused. False: it has not so many. */
static bool step_survives(int step, uint64_t n)
{
    kl_store *store = open_at(step);
    char *before = picture_of(store);
    kl__alloc_fail_at(n);
    kl_rc rc = steps[step].run(store);
    kl__alloc_fail_at(0);
    if (rc != KL_OK) {
        CHECK_INT(rc, KL_ENOMEM);
        char *after = picture_of(store);
        CHECK_STR(after, before);
        free(after);
        CHECK_INT(steps[step].run(store), KL_OK);
    }
    kl_store *other = open_at(step + 1);
    char *reached = picture_of(store), *expected = picture_of(other);
    CHECK_STR(reached, expected);
    free(before);
    free(reached);
    free(expected);
    kl_store_close(store);
    kl_store_close(other);
    return rc != KL_OK;
}

TEST(a_call_that_finds_no_memory_changes_nothing_and_may_be_repeated)
{
    for (int step = 0; step < STEPS; step++) {
        uint64_t n = 1;
        while (n < 100 && step_survives(step, n) && !test_failed())
            n++;
        if ((n > 1) != steps[step].allocates)
            test_fail(__FILE__, __LINE__, "step %d: %" PRIu64 " allocations", step, n - 1);
    }
}

TEST(a_store_is_opened_whole_or_not_at_all)
{
    kl_store *store = NULL;
    uint64_t n = 0;
    do {
        kl__alloc_fail_at(++n);
    } while (n < 100 && kl_store_open("memory:", NULL, &store) == KL_ENOMEM && !store);
    kl__alloc_fail_at(0);
    CHECK_INT(n, 3);
    kl_store_close(store);
}

/* --- Lines against a model --- */

enum { TASKS = 60 };

struct model_task {
    bool waits;
    int32_t line;
    uint32_t since; /* order of appends */
    uint32_t attempts;
    int64_t not_before_ms;
    kl_entry entry;
};

static bool stands_before(const struct model_task *a, const struct model_task *b)
{
    if (a->line == KL_LINE_DUE && a->entry.due_ms != b->entry.due_ms)
        return a->entry.due_ms < b->entry.due_ms;
    return a->since < b->since;
}

/* The line as the model has it, found by looking at all tasks again and again. */
static size_t line_of(const struct model_task *tasks, int32_t line, int64_t until_ms, uint32_t *ret_numbers)
{
    bool taken[TASKS] = {false};
    size_t count = 0;
    for (;;) {
        int best = -1;
        for (int i = 0; i < TASKS; i++) {
            bool shown = tasks[i].waits && tasks[i].line == line && !taken[i] &&
                         (line != KL_LINE_DUE || tasks[i].entry.due_ms <= until_ms);
            if (shown && (best < 0 || stands_before(&tasks[i], &tasks[best])))
                best = i;
        }
        if (best < 0)
            return count;
        taken[best] = true;
        ret_numbers[count++] = (uint32_t)best;
    }
}

static void check_line(kl_store *store, const struct model_task *tasks, int32_t line, int64_t until_ms, size_t piece)
{
    uint32_t numbers[TASKS];
    kl_stub stubs[TASKS], last;
    size_t expected = line_of(tasks, line, until_ms, numbers), seen = 0, count;
    do {
        kl_scan scan = {.place = place, .line = line, .until_ms = until_ms, .after = seen ? &last : NULL, .max = piece};
        REQUIRE(scan_one(store, &scan, stubs, &count) == KL_OK);
        REQUIRE(seen + count <= expected);
        for (size_t i = 0; i < count; i++, seen++) {
            const struct model_task *task = &tasks[numbers[seen]];
            REQUIRE(kl_id_compare(&stubs[i].id, &task->entry.id) == 0);
            CHECK_INT(stubs[i].attempts, task->attempts);
            CHECK_INT(stubs[i].due_ms, task->not_before_ms);
            last = stubs[i];
        }
    } while (count == piece);
    CHECK_INT(seen, expected);
}

static void append_random(kl_store *store, struct model_task *tasks, uint32_t number, uint64_t *random)
{
    static uint32_t appends;
    kl_entry entry = entry_of(number);
    entry.priority = (int32_t)kl__random_below(random, 2);
    entry.due_ms = kl__random_below(random, 3) == 0 ? (int64_t)kl__random_below(random, 8) : 0;
    REQUIRE(kl_store_append(store, &entry, 1, NULL) == KL_OK);
    if (!tasks[number].waits)
        tasks[number] = (struct model_task){.waits = true,
                                            .line = entry.due_ms ? KL_LINE_DUE : entry.priority,
                                            .since = ++appends,
                                            .not_before_ms = entry.due_ms,
                                            .entry = entry};
}

static void settle_random(kl_store *store, struct model_task *tasks, uint32_t number, uint64_t *random)
{
    struct model_task *task = &tasks[number];
    kl_outcome outcome = (kl_outcome)kl__random_below(random, 4);
    uint32_t attempts = (uint32_t)kl__random_below(random, 9);
    int64_t due_ms = (int64_t)kl__random_below(random, 9);
    SETTLE(store, number, .outcome = outcome, .attempts = attempts, .due_ms = due_ms);
    if (outcome != KL_RETRY) {
        task->waits = false;
    } else if (task->waits) {
        task->line = KL_LINE_RETRY;
        task->attempts = attempts;
        task->not_before_ms = due_ms;
    }
}

TEST(lines_are_those_of_a_model_that_looks_at_every_task)
{
    static struct model_task tasks[TASKS];
    uint64_t random = test_seed();
    kl_store *store = open_store(OPTS(.log = NULL));
    memset(tasks, 0, sizeof tasks);
    for (uint64_t i = 0, ops = test_ops(4000); i < ops && !test_failed(); i++) {
        uint32_t number = (uint32_t)kl__random_below(&random, TASKS);
        if (kl__random_below(&random, 2) == 0)
            append_random(store, tasks, number, &random);
        else
            settle_random(store, tasks, number, &random);
        static const int32_t lines[] = {0, 1, KL_LINE_DUE, KL_LINE_RETRY};
        check_line(store, tasks, lines[i % 4], (int64_t)kl__random_below(&random, 9),
                   1 + (size_t)kl__random_below(&random, TASKS));
    }
    kl_store_close(store);
}
