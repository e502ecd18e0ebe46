/* conformance_store.c - the store as a whole: its clock, partitions, counts, waiting, watching, and calls that are
 * refused. */
#include <stdlib.h>

#include "base/clock.h"
#include "store/calls.h"
#include "store/conformance.h"

/* ---- S7: the clock ---- */

CLOCK_CLAIM(the_stores_clock_is_the_one_it_was_given)
{
    int64_t now = 0;
    CHECK_OK(kl_store_now(t->store, &now));
    CHECK_INT(now, START_MS);
    atomic_store(&t->clock_ms, START_MS + 1234);
    CHECK_OK(kl_store_now(t->store, &now));
    CHECK_INT(now, START_MS + 1234);
}

CLOCK_CLAIM(the_stores_clock_never_steps_back)
{
    static const int64_t shown[][2] = {{1000, 1000}, {500, 1000}, {-100000, 1000}, {999, 1000}, {1001, 1001}};
    for (size_t i = 0; i < COUNT(shown); i++) {
        int64_t now = 0;
        atomic_store(&t->clock_ms, START_MS + shown[i][0]);
        CHECK_OK(kl_store_now(t->store, &now));
        CHECK_INT(now, START_MS + shown[i][1]);
    }
}

CLOCK_CLAIM(what_has_expired_stays_so_when_the_clock_is_set_back)
{
    kl_write write = {.name = kl_str("lease"), .value = kl_str("mine"), .expires_ms = START_MS + 10};
    CHECK_OK(kl_store_put(t->store, &write, 1));
    atomic_store(&t->clock_ms, START_MS + 11);
    CHECK_INT(get_record(t, "lease").version, 0);
    atomic_store(&t->clock_ms, START_MS);
    CHECK_INT(get_record(t, "lease").version, 0);
    kl_task_id id = append_one(t, order_place(t, 1), "x");
    finish(t, order_place(t, 1), &id, KL_DONE, KEEP_MS, NULL, NULL);
    CHECK(read_one(t, order_place(t, 1), &id).finished_ms >= START_MS + 11);
}

CLAIM_IF(subject.clocked &&subject.reopen, the_clock_does_not_step_back_behind_what_was_written_in_an_earlier_life)
{
    int64_t now = 0;
    atomic_store(&t->clock_ms, START_MS + 5000);
    kl_task_id id = append_one(t, order_place(t, 1), "x");
    finish(t, order_place(t, 1), &id, KL_DONE, KEEP_MS, NULL, NULL);
    int64_t finished_ms = read_one(t, order_place(t, 1), &id).finished_ms;
    atomic_store(&t->clock_ms, START_MS);
    REQUIRE(next_life(t));
    CHECK_OK(kl_store_now(t->store, &now));
    CHECK(now >= finished_ms && finished_ms == START_MS + 5000);
}

CLAIM(a_clock_of_its_own_does_not_step_back_either)
{
    int64_t last = 0, now = 0;
    for (int i = 0; i < 100; i++, last = now) {
        CHECK_OK(kl_store_now(t->store, &now));
        CHECK(now >= last && now > 0);
    }
}

/* ---- Partitions ---- */

CLAIM(a_partition_keeps_its_number)
{
    uint32_t numbers[20];
    for (uint32_t i = 0; i < COUNT(numbers); i++) {
        char name[16];
        snprintf(name, sizeof name, "queue__p%u", i);
        CHECK_OK(kl_store_partition(t->store, name, 1 + i % 4, &numbers[i]));
        CHECK(numbers[i] != t->orders && numbers[i] != t->bills);
        CHECK(numbers[i] >= 1 && numbers[i] <= 2 + COUNT(numbers));
        for (uint32_t j = 0; j < i; j++)
            CHECK(numbers[j] != numbers[i]);
    }
    BOTH_LIVES(t)
    for (uint32_t i = COUNT(numbers); i-- > 0;) {
        char name[16];
        uint32_t number = 0;
        snprintf(name, sizeof name, "queue__p%u", i);
        CHECK_OK(kl_store_partition(t->store, name, 1 + i % 4, &number));
        CHECK_INT(number, numbers[i]);
    }
}

CLAIM(numbers_of_partitions_count_from_1)
{
    CHECK_INT(t->orders, 1);
    CHECK_INT(t->bills, 2);
}

CLAIM(a_partition_with_another_shard_prefix_len_is_refused_with_both)
{
    uint32_t number = 77, deep = 0;
    CHECK_OK(kl_store_partition(t->store, "deep", 4, &deep));
    BOTH_LIVES(t)
    {
        CHECK_REFUSED(kl_store_partition(t->store, "deep", 3, &number));
        CHECK_CONTAINS(kl_error_text(), "3");
        CHECK_CONTAINS(kl_error_text(), "4");
        CHECK_INT(number, 77);
        CHECK_OK(kl_store_partition(t->store, "deep", 4, &number));
        CHECK_INT(number, deep);
        number = 77;
    }
}

CLAIM(names_of_partitions_have_limits)
{
    char name[KL_PARTITION_BYTES_MAX + 2];
    uint32_t first = 0, second = 0;
    memset(name, 'p', sizeof name);
    name[KL_PARTITION_BYTES_MAX + 1] = '\0';
    CHECK_REFUSED(kl_store_partition(t->store, name, 1, &first));
    CHECK_REFUSED(kl_store_partition(t->store, "", 1, &first));
    CHECK_REFUSED(kl_store_partition(t->store, "p", 0, &first));
    CHECK_REFUSED(kl_store_partition(t->store, "p", KL_SHARD_PREFIX_LEN_MAX + 1, &first));
    name[KL_PARTITION_BYTES_MAX] = '\0';
    CHECK_OK(kl_store_partition(t->store, name, 1, &first));
    BOTH_LIVES(t)
    {
        CHECK_OK(kl_store_partition(t->store, name, 1, &second));
        CHECK_INT(second, first);
    }
}

CLAIM(partitions_of_every_depth_take_tasks_in_their_last_shard)
{
    static const char *const names[] = {"one", "two", "three", "four"};
    kl_entry entries[4];
    for (uint32_t len = 1; len <= 4; len++) {
        kl_entry *entry = &entries[len - 1];
        kl_layout layout = {1, len};
        kl_id_parts parts = {.shard = kl_layout_shards(&layout) - 1, .ms = START_MS};
        *entry = (kl_entry){.place = {0, parts.shard}, .payload = kl_str(names[len - 1])};
        CHECK_OK(kl_store_partition(t->store, names[len - 1], len, &entry->place.partition));
        CHECK_OK(kl_id_pack(&layout, &parts, &entry->id));
    }
    append(t, entries, COUNT(entries));
    BOTH_LIVES(t)
    for (uint32_t len = 1; len <= 4; len++) {
        uint32_t number;
        CHECK_OK(kl_store_partition(t->store, names[len - 1], len, &number));
        CHECK_LINE(t, entries[len - 1].place, 0, &entries[len - 1].id, 1);
        CHECK_INT(counts_of(t, whole(number)).ready, 1);
    }
}

/* ---- Counts ---- */

static void check_counts(struct trial *t, kl_place place, kl_counts expected, const char *file, int at)
{
    kl_counts counts = counts_of(t, place);
    if (counts.ready != expected.ready || counts.due != expected.due || counts.retry != expected.retry)
        test_fail(file, at, "counts are %" PRIu64 " ready, %" PRIu64 " due, %" PRIu64 " retry", counts.ready,
                  counts.due, counts.retry);
    if (counts.priorities != expected.priorities)
        test_fail(file, at, "priorities are %#x, expected %#x", counts.priorities, expected.priorities);
    if (place.shard == KL_ALL_SHARDS &&
        (counts.done != expected.done || counts.dead != expected.dead || counts.cancelled != expected.cancelled))
        test_fail(file, at, "counts are %" PRIu64 " done, %" PRIu64 " dead, %" PRIu64 " cancelled", counts.done,
                  counts.dead, counts.cancelled);
}

#define CHECK_COUNTS(t, place, ...) check_counts(t, place, (kl_counts){__VA_ARGS__}, __FILE__, __LINE__)
#define PRIORITY_BIT(p)             (UINT32_C(1) << ((p)-KL_PRIORITY_MIN))

CLAIM(counts_follow_tasks_through_their_states)
{
    kl_place place = order_place(t, 8);
    kl_entry entries[8];
    for (int i = 0; i < 8; i++)
        entries[i] = make_entry(t, place, "k", "x");
    entries[5].due_ms = START_MS + 1;
    entries[6].due_ms = START_MS + 2;
    CHECK_COUNTS(t, place, .ready = 0);
    CHECK_COUNTS(t, whole(t->orders), .ready = 0);
    append(t, entries, COUNT(entries));
    CHECK_COUNTS(t, place, .ready = 6, .due = 2, .priorities = PRIORITY_BIT(0));
    kl_settled retries[2] = {outcome_of(t, place, &entries[0].id, KL_RETRY),
                             outcome_of(t, place, &entries[5].id, KL_RETRY)};
    CHECK_OK(settle(t, place, 0, retries, 2));
    CHECK_COUNTS(t, place, .ready = 5, .due = 1, .retry = 2, .priorities = PRIORITY_BIT(0));
    finish(t, place, &entries[0].id, KL_DONE, KEEP_MS, NULL, NULL);
    finish(t, place, &entries[1].id, KL_DONE, KEEP_MS, NULL, NULL);
    finish(t, place, &entries[2].id, KL_DEAD, KEEP_MS, NULL, NULL);
    finish(t, place, &entries[3].id, KL_CANCELLED, KEEP_MS, NULL, NULL);
    finish(t, place, &entries[4].id, KL_DONE, 0, NULL, NULL);
    finish(t, place, &entries[6].id, KL_DONE, KEEP_MS, NULL, NULL);
    BOTH_LIVES(t)
    {
        CHECK_COUNTS(t, place, .ready = 1, .retry = 1, .priorities = PRIORITY_BIT(0));
        CHECK_COUNTS(t, whole(t->orders), .ready = 1, .retry = 1, .priorities = PRIORITY_BIT(0), .done = 3, .dead = 1,
                     .cancelled = 1);
        CHECK_COUNTS(t, order_place(t, 9), .ready = 0);
        CHECK_COUNTS(t, whole(t->bills), .ready = 0);
    }
}

CLAIM(counts_of_a_partition_add_up_its_shards)
{
    uint64_t sum = 0;
    for (uint32_t shard = 0; shard < 256; shard += 5)
        for (uint32_t i = 0; i <= shard % 3; i++, sum++)
            append_one(t, bill_place(t, shard), "x");
    BOTH_LIVES(t)
    {
        CHECK_COUNTS(t, whole(t->bills), .ready = sum, .priorities = PRIORITY_BIT(0));
        for (uint32_t shard = 0; shard < 256; shard++)
            CHECK_INT(counts_of(t, bill_place(t, shard)).ready, shard % 5 ? 0 : shard % 3 + 1);
    }
}

CLAIM(counts_of_a_job_are_of_its_finished_tasks_that_are_kept)
{
    enum { TASKS = 60 };
    static const kl_outcome ends[] = {KL_DONE, KL_DONE, KL_DEAD, KL_CANCELLED};
    kl_task_id jobs[2] = {make_id(t, order_place(t, 0), kl_str(NULL)), make_id(t, order_place(t, 0), kl_str(NULL))};
    kl_task_id nobody = make_id(t, order_place(t, 0), kl_str(NULL)), forgotten = {{0}};
    for (int i = 0; i < TASKS; i++) {
        kl_entry entry = make_entry(t, order_place(t, (uint32_t)i % 7), "k", "x");
        if (i % 3 < 2)
            entry.job = jobs[i % 3];
        append(t, &entry, 1);
        if (i % 5 < 4) /* of the others, one waits and one is not kept */
            finish(t, entry.place, &entry.id, ends[i / 3 % 4], KEEP_MS, "e", "r");
        else if (i % 2)
            finish(t, entry.place, &entry.id, KL_DONE, 0, NULL, NULL);
        if (i == 0)
            forgotten = entry.id;
    }
    kl_entry elsewhere = make_entry(t, bill_place(t, 200), "k", "x");
    elsewhere.job = jobs[0];
    append(t, &elsewhere, 1);
    finish(t, elsewhere.place, &elsewhere.id, KL_DEAD, KEEP_MS, NULL, NULL);
    for (int life = 0; life < 2; life++) {
        kl_counts expected[2] = {{0}};
        for (int i = life; i < TASKS; i++) {
            kl_counts *its = &expected[i % 3 < 2 ? i % 3 : 0];
            bool counts = i % 3 < 2 && i % 5 < 4;
            its->done += counts && ends[i / 3 % 4] == KL_DONE;
            its->dead += counts && ends[i / 3 % 4] == KL_DEAD;
            its->cancelled += counts && ends[i / 3 % 4] == KL_CANCELLED;
        }
        for (int i = 0; i < 2; i++) {
            kl_counts shown = job_counts_of(t, t->orders, &jobs[i]);
            CHECK_INT(shown.done, expected[i].done);
            CHECK_INT(shown.dead, expected[i].dead);
            CHECK_INT(shown.cancelled, expected[i].cancelled);
        }
        if (life == 0) {
            CHECK_OK(kl_store_forget(t->store, order_place(t, 0), &forgotten, 1));
            (void)next_life(t);
        }
    }
    kl_counts there = job_counts_of(t, t->bills, &jobs[0]), none = job_counts_of(t, t->orders, &nobody);
    CHECK(there.done == 0 && there.dead == 1 && there.cancelled == 0);
    CHECK(none.done == 0 && none.dead == 0 && none.cancelled == 0);
}

CLAIM(counts_of_a_job_are_refused_for_one_shard_and_for_no_job)
{
    kl_task_id job = make_id(t, order_place(t, 0), kl_str(NULL)), none = {{0}};
    kl_counts counts;
    CHECK_REFUSED(kl_store_counts(t->store, order_place(t, 0), &job, &counts));
    CHECK_REFUSED(kl_store_counts(t->store, whole(t->orders), &none, &counts));
    CHECK_REFUSED(kl_store_counts(t->store, whole(99), &job, &counts));
}

CLAIM(counts_tell_which_ready_lines_are_not_empty)
{
    static const int32_t priorities[] = {KL_PRIORITY_MIN, -3, 0, 7, KL_PRIORITY_MAX};
    kl_entry entries[COUNT(priorities)];
    uint32_t expected = 0;
    for (size_t i = 0; i < COUNT(priorities); i++) {
        entries[i] = make_entry(t, order_place(t, i % 2), "k", "x");
        entries[i].priority = priorities[i];
        expected |= PRIORITY_BIT(priorities[i]);
        append(t, &entries[i], 1);
        CHECK_INT(counts_of(t, whole(t->orders)).priorities, expected);
    }
    BOTH_LIVES(t)
    {
        CHECK_INT(counts_of(t, order_place(t, 1)).priorities, PRIORITY_BIT(-3) | PRIORITY_BIT(7));
        CHECK_INT(counts_of(t, whole(t->orders)).priorities, expected);
    }
    for (size_t i = 0; i < COUNT(priorities); i++) {
        kl_settled retry = outcome_of(t, entries[i].place, &entries[i].id, i % 2 ? KL_RETRY : KL_DONE);
        CHECK_OK(settle(t, entries[i].place, 0, &retry, 1));
        expected &= ~PRIORITY_BIT(priorities[i]);
        CHECK_INT(counts_of(t, whole(t->orders)).priorities, expected);
    }
}

CLAIM(counts_tell_how_old_the_oldest_ready_task_is_or_nothing)
{
    kl_layout layout = {1, 1};
    kl_place place = order_place(t, 8);
    kl_entry delayed = make_entry(t, place, "k", "delayed");
    delayed.due_ms = START_MS;
    append(t, &delayed, 1);
    CHECK_INT(counts_of(t, place).oldest_id_ms, 0);
    for (int i = 0; i < 600; i++)
        (void)make_id(t, place, kl_str(NULL)); /* so that milliseconds pass between ids */
    kl_task_id first = append_one(t, place, "first");
    for (int i = 0; i < 600; i++)
        (void)make_id(t, place, kl_str(NULL));
    kl_task_id second = append_one(t, place, "second");
    BOTH_LIVES(t)
    {
        int64_t oldest = counts_of(t, place).oldest_id_ms;
        CHECK(oldest == 0 || oldest == kl_id_ms(&layout, &first));
    }
    finish(t, place, &first, KL_DONE, 0, NULL, NULL);
    BOTH_LIVES(t)
    {
        int64_t oldest = counts_of(t, place).oldest_id_ms;
        CHECK(oldest == 0 || oldest == kl_id_ms(&layout, &second));
    }
    finish(t, place, &second, KL_DONE, 0, NULL, NULL);
    CHECK_INT(counts_of(t, place).oldest_id_ms, 0);
}

/* ---- Waiting ---- */

enum { LONG_MS = 3600 * 1000 }; /* the harness ends a test that waits so long */

CLAIM(waiting_ends_when_its_time_has_passed)
{
    uint64_t seen = 0;
    int64_t start_ns = kl__monotonic_ns();
    CHECK_OK(kl_store_wait(t->store, t->orders, 20, &seen));
    CHECK(kl__monotonic_ns() - start_ns >= 20 * INT64_C(1000000));
    CHECK_OK(kl_store_wait(t->store, t->orders, 0, &seen));
}

CLAIM(waiting_ends_at_once_when_something_was_appended_before)
{
    uint64_t seen = 0;
    append_one(t, order_place(t, 3), "x");
    if (!can(t, KL_STORE_WAIT))
        return;
    CHECK_OK(kl_store_wait(t->store, t->orders, LONG_MS, &seen)); /* 0: ever */
    for (uint32_t i = 0; i < 16; i++) {
        append_one(t, order_place(t, i), "x");
        CHECK_OK(kl_store_wait(t->store, t->orders, LONG_MS, &seen));
    }
}

CLAIM(what_was_seen_is_not_told_again)
{
    uint64_t seen = 0;
    append_one(t, order_place(t, 3), "x");
    CHECK_OK(kl_store_wait(t->store, t->orders, 0, &seen));
    append_one(t, bill_place(t, 3), "another partition's");
    int64_t start_ns = kl__monotonic_ns();
    CHECK_OK(kl_store_wait(t->store, t->orders, 20, &seen));
    CHECK(kl__monotonic_ns() - start_ns >= 20 * INT64_C(1000000));
}

/* One thread waits, looks, and tells that it has seen; the other appends the next only then. */
struct waiter {
    struct trial *t;
    struct tally waits, seen;
};

enum { WAIT_ROUNDS = 200 };

static void *wait_and_look(void *ctx)
{
    struct waiter *waiter = ctx;
    uint64_t seen = 0, found = 0;
    while (found < WAIT_ROUNDS) {
        tally_add(&waiter->waits, 1);
        CHECK_OK(kl_store_wait(waiter->t->store, waiter->t->orders, LONG_MS, &seen));
        uint64_t ready = counts_of(waiter->t, order_place(waiter->t, 3)).ready;
        tally_add(&waiter->seen, (int64_t)(ready - found));
        found = ready;
    }
    return NULL;
}

CLAIM(whoever_waits_is_told_of_appends)
{
    struct waiter waiter = {t, TALLY, TALLY};
    pthread_t thread;
    if (!can(t, KL_STORE_WAIT))
        return;
    REQUIRE(pthread_create(&thread, NULL, wait_and_look, &waiter) == 0);
    for (int i = 0; i < WAIT_ROUNDS; i++) {
        tally_await(&waiter.waits, i + 1); /* it waits, or is about to */
        append_one(t, order_place(t, 3), "x");
        tally_await(&waiter.seen, i + 1);
    }
    pthread_join(thread, NULL);
    CHECK_INT(tally_read(&waiter.seen), WAIT_ROUNDS);
}

/* ---- Watching ---- */

static const kl_store_call *last_call;
static int calls;

static void note_call(void *ctx, const kl_store_call *call)
{
    static kl_store_call copy;
    (void)ctx;
    copy = *call;
    last_call = &copy;
    calls++;
}

CLAIM(every_call_is_traced_once)
{
    t->opts.trace = note_call;
    REQUIRE(start_over(t));
    calls = 0;
    kl_entry entries[3] = {make_entry(t, order_place(t, 3), NULL, "four"),
                           make_entry(t, order_place(t, 3), NULL, "four"),
                           make_entry(t, order_place(t, 3), NULL, "four")};
    append(t, entries, 3);
    REQUIRE(calls == 1);
    CHECK_STR(last_call->name, "append");
    CHECK(last_call->rc == KL_OK && last_call->items == 3 && last_call->bytes == 12 && last_call->duration_ns >= 0);
    entries[0].priority = 99;
    CHECK_REFUSED(kl_store_append(t->store, entries, 3, NULL));
    REQUIRE(calls == 2);
    CHECK_INT(last_call->rc, KL_EINVAL);
    CHECK_OK(fence(t, order_place(t, 3), 2));
    kl_settled done = {.id = entries[0].id, .position = 1, .attempts = 1};
    CHECK_RC(settle(t, order_place(t, 3), 1, &done, 1), KL_ESTALE);
    REQUIRE(calls == 4);
    CHECK_STR(last_call->name, "settle");
    CHECK_INT(last_call->rc, KL_ESTALE);
    (void)counts_of(t, order_place(t, 3));
    (void)get_record(t, "x");
    CHECK_INT(calls, 6);
    t->opts.trace = NULL;
}

CLAIM(metrics_are_text_that_ends_in_a_zero_byte)
{
    kl_bytes text = {0};
    append_one(t, order_place(t, 3), "x");
    CHECK_OK(kl_store_metrics(t->store, &t->arena, &text));
    REQUIRE(text.len > 0);
    const char *start = text.data;
    CHECK(start[text.len] == '\0' && strlen(start) == text.len && start[text.len - 1] == '\n');
    CHECK_CONTAINS(start, "# TYPE ");
}

CLAIM(the_store_says_what_it_is)
{
    kl_store_info info = kl_store_info_of(t->store);
    CHECK_STR(info.scheme, subject.name);
    CHECK(((info.can & KL_STORE_DURABLE) != 0) == (subject.reopen != NULL));
}

/* ---- What is refused ---- */

CLAIM(a_url_of_no_store_is_refused_with_those_that_there_are)
{
    kl_store *store = NULL;
    CHECK_REFUSED(kl_store_open("granite:somewhere", NULL, &store));
    CHECK_CONTAINS(kl_error_text(), "memory:");
    CHECK_CONTAINS(kl_error_text(), "disk:");
    CHECK(!store);
    (void)t;
}

CLAIM(closing_no_store_is_fine)
{
    kl_store_close(NULL);
    (void)t;
}

CLAIM(places_that_do_not_exist_are_refused_by_every_call)
{
    const kl_place places[] = {{0, 0}, {99, 0}, {t->orders, 16}, {t->bills, 256}};
    kl_task_id id = make_id(t, order_place(t, 0), kl_str(NULL)), job = id;
    kl_settled done = {.id = id, .position = 1, .attempts = 1};
    kl_stub stub;
    kl_task task;
    kl_counts counts;
    size_t count;
    for (size_t i = 0; i < COUNT(places); i++) {
        kl_scan scan = {.place = places[i], .max = 1};
        kl_settle batch = {.place = places[i], .tasks = &done, .count = 1};
        kl_fence one = {.place = places[i], .epoch = 1};
        CHECK_REFUSED(scan_one(t->store, &scan, &stub, &count));
        CHECK_REFUSED(read_some(t->store, places[i], &id, 1, &t->arena, &task, &count));
        CHECK_REFUSED(kl_store_settle(t->store, &batch, 1));
        CHECK_REFUSED(kl_store_fence(t->store, &one, 1));
        CHECK_REFUSED(kl_store_counts(t->store, places[i], NULL, &counts));
        CHECK_REFUSED(kl_store_results(t->store, places[i], &job, NULL, 1, &t->arena, &task, &count));
        CHECK_REFUSED(kl_store_forget(t->store, places[i], &id, 1));
    }
    uint64_t seen = 0;
    CHECK_REFUSED(kl_store_wait(t->store, 99, 0, &seen));
    CHECK_REFUSED(kl_store_counts(t->store, whole(99), NULL, &counts));
    CHECK_REFUSED(kl_store_find(t->store, &(kl_find){.partition = 99, .max = 1}, &t->arena, &task, &count));
}

CLAIM(scans_and_searches_out_of_range_are_refused)
{
    kl_stub stub;
    kl_task task;
    size_t count;
    kl_task_id job = make_id(t, order_place(t, 0), kl_str(NULL));
    kl_scan scans[] = {{.max = 0},
                       {.max = KL_BATCH_MAX + 1},
                       {.line = KL_PRIORITY_MIN - 1, .max = 1},
                       {.line = KL_LINE_RETRY + 1, .max = 1}};
    for (size_t i = 0; i < COUNT(scans); i++) {
        scans[i].place = order_place(t, 0);
        CHECK_REFUSED(scan_one(t->store, &scans[i], &stub, &count));
    }
    const kl_find finds[] = {{.max = 0}, {.max = KL_BATCH_MAX + 1}, {.state = KL_TASK_WAITING, .max = 1}};
    for (size_t i = 0; i < COUNT(finds); i++)
        CHECK_REFUSED(kl_store_find(t->store, &finds[i], &t->arena, &task, &count));
    static const size_t sizes[] = {0, KL_BATCH_MAX + 1};
    for (size_t i = 0; i < COUNT(sizes); i++)
        CHECK_REFUSED(kl_store_results(t->store, order_place(t, 0), &job, NULL, sizes[i], &t->arena, &task, &count));
}

CLAIM(a_settle_out_of_range_is_refused_and_settles_nothing)
{
    static char text[KL_RESULT_BYTES_MAX + 1];
    kl_place place = order_place(t, 2);
    kl_task_id ids[2];
    append_many(t, place, ids, 2);
    kl_settled good[2] = {outcome_of(t, place, &ids[0], KL_DONE), outcome_of(t, place, &ids[1], KL_DONE)};
    kl_settled bad[8][2];
    for (int i = 0; i < 8; i++)
        memcpy(bad[i], good, sizeof good);
    bad[0][1].attempts = KL_ATTEMPTS_MAX + 1;
    bad[1][1].outcome = (kl_outcome)(KL_CANCELLED + 1);
    bad[2][1].due_ms = -1;
    bad[3][1].due_ms = KL_ID_MS_MAX + 1;
    bad[4][1].keep_ms = -1;
    bad[5][1].error = (kl_bytes){text, KL_ERROR_BYTES_MAX + 1};
    bad[6][1].result = (kl_bytes){text, KL_RESULT_BYTES_MAX + 1};
    bad[7][1].id = make_id(t, order_place(t, 3), kl_str(NULL));
    for (int i = 0; i < 8; i++)
        CHECK_REFUSED(settle(t, place, 0, bad[i], 2));
    CHECK_REFUSED(settle(t, place, KL_EPOCH_MAX + 1, good, 2));
    CHECK_REFUSED(settle(t, place, 0, good, KL_BATCH_MAX + 1));
    CHECK_LINE(t, place, 0, ids, 2);
}

CLAIM(a_fence_out_of_range_is_refused_and_fences_nothing)
{
    kl_fence fences[2] = {{.place = order_place(t, 1), .epoch = 9}, {.place = order_place(t, 2), .epoch = 0}};
    CHECK_REFUSED(kl_store_fence(t->store, fences, 2));
    fences[1].epoch = KL_EPOCH_MAX + 1;
    CHECK_REFUSED(kl_store_fence(t->store, fences, 2));
    CHECK_OK(fence(t, order_place(t, 1), 1));
}
