/* conformance_settle.c - S4: what came of tasks counts once, and tasks that are tried again stand in the retry line. */
#include "store/conformance.h"

static const kl_outcome ends[] = {KL_DONE, KL_DEAD, KL_CANCELLED};
static const kl_task_state end_states[] = {KL_TASK_DONE, KL_TASK_DEAD, KL_TASK_CANCELLED};

CLAIM(a_finished_task_leaves_its_line)
{
    kl_task_id ids[6];
    kl_place place = order_place(t, 4);
    append_many(t, place, ids, COUNT(ids));
    for (int i = 0; i < 3; i++)
        finish(t, place, &ids[i], ends[i], 0, NULL, NULL);
    BOTH_LIVES(t)
    {
        CHECK_LINE(t, place, 0, ids + 3, 3);
        for (int i = 0; i < 3; i++) {
            CHECK_INT(line_of(t, place, &ids[i]), NOWHERE);
            CHECK_INT(state_of(t, place, &ids[i]), KL_TASK_UNKNOWN);
        }
    }
}

CLAIM(a_finished_task_is_kept_when_the_settle_says_so)
{
    kl_task_id ids[3];
    kl_place place = order_place(t, 4);
    append_many(t, place, ids, COUNT(ids));
    for (int i = 0; i < 3; i++)
        finish(t, place, &ids[i], ends[i], KEEP_MS, "why", "what");
    BOTH_LIVES(t)
    for (int i = 0; i < 3; i++) {
        kl_task task = read_one(t, place, &ids[i]);
        CHECK_INT(task.state, end_states[i]);
        CHECK_BYTES(task.error, kl_str("why"));
        CHECK_BYTES(task.result, kl_str("what"));
        CHECK_INT(line_of(t, place, &ids[i]), NOWHERE);
    }
}

CLAIM(tasks_finish_from_every_line)
{
    kl_entry entries[3];
    for (int i = 0; i < 3; i++)
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
    entries[0].priority = 7;
    entries[1].due_ms = START_MS + 10;
    append(t, entries, COUNT(entries));
    kl_settled retry = outcome_of(t, entries[2].place, &entries[2].id, KL_RETRY);
    CHECK_OK(settle(t, entries[2].place, 0, &retry, 1));
    for (int i = 0; i < 3; i++)
        finish(t, entries[i].place, &entries[i].id, KL_DONE, 0, NULL, NULL);
    BOTH_LIVES(t)
    for (int i = 0; i < 3; i++)
        CHECK_INT(line_of(t, entries[i].place, &entries[i].id), NOWHERE);
}

/* ---- The next owner ---- */

static size_t scan_next(kl_store *next, kl_place place, int32_t line, kl_stub *stubs, size_t max)
{
    kl_scan scan = {.place = place, .line = line, .stubs = stubs, .max = max};
    CHECK_OK(kl_store_scan(next, &scan, 1));
    return scan.count;
}

static kl_rc fence_next(kl_store *next, kl_place place, uint64_t epoch)
{
    kl_fence fence = {.place = place, .epoch = epoch};
    return kl_store_fence(next, &fence, 1);
}

/* Those tasks hold their keys: an owner who does not see them at once would run later ones first. It has looked at the
 * shard before, so what it knew of it is old. */
DURABLE_CLAIM(whoever_fences_a_shard_sees_at_once_what_owners_before_have_tried)
{
    kl_place place = order_place(t, 4);
    kl_task_id ids[3];
    kl_stub stubs[4];
    kl_store *next = NULL;
    uint32_t orders = 0;
    if (!can(t, KL_STORE_SHARED))
        return;
    CHECK_OK(subject.reopen(t->place, &t->opts, &next));
    if (!next)
        return;
    CHECK_OK(kl_store_partition(next, "orders", 1, &orders));
    CHECK_INT(orders, t->orders);
    CHECK_OK(fence_next(next, place, 1));
    CHECK_INT(scan_next(next, place, 0, stubs, COUNT(stubs)), 0);
    CHECK_OK(fence(t, place, 2));
    append_many(t, place, ids, COUNT(ids));
    kl_settled tried[2] = {outcome_of(t, place, &ids[0], KL_RETRY), outcome_of(t, place, &ids[1], KL_RETRY)};
    CHECK_OK(settle(t, place, 2, tried, COUNT(tried)));
    CHECK_OK(fence_next(next, place, 3));
    CHECK_INT(scan_next(next, place, KL_LINE_RETRY, stubs, COUNT(stubs)), 2);
    CHECK_ID(stubs[0].id, ids[0]);
    CHECK_ID(stubs[1].id, ids[1]);
    AWAIT(scan_next(next, place, 0, stubs, COUNT(stubs)) == 1); /* nobody has begun it: it may be seen a little later */
    CHECK_RC(settle(t, place, 2, tried, 1), KL_ESTALE);
    kl_store_close(next);
}

/* ---- The retry line ---- */

/* Retries the task once, and checks where it stands then. */
static void check_retry(struct trial *t, const kl_entry *entry)
{
    kl_stub before = stub_of(t, entry->place, &entry->id), after;
    kl_settled retry = next_attempt(&before, KL_RETRY);
    retry.attempts = 3;
    retry.due_ms = START_MS + 777;
    CHECK_OK(settle(t, entry->place, 0, &retry, 1));
    BOTH_LIVES(t)
    {
        after = (kl_stub){0};
        CHECK_INT(find_stub(t, entry->place, &entry->id, &after), KL_LINE_RETRY);
        CHECK(after.position == before.position && after.key_hash == before.key_hash);
        CHECK_INT(after.due_ms, START_MS + 777);
        CHECK_INT(after.attempts, 3);
        CHECK_INT(after.bytes, before.bytes);
        CHECK_INT(after.priority, entry->priority);
    }
}

CLAIM(a_task_to_be_tried_again_leaves_its_ready_line_for_the_retry_line)
{
    kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
    append(t, &entry, 1);
    check_retry(t, &entry);
}

CLAIM(a_task_with_a_priority_leaves_its_line_for_the_retry_line)
{
    kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
    entry.priority = -16;
    append(t, &entry, 1);
    check_retry(t, &entry);
}

CLAIM(a_delayed_task_to_be_tried_again_leaves_the_due_line_for_the_retry_line)
{
    kl_entry entry = make_entry(t, bill_place(t, 4), "k", "x");
    entry.priority = 5;
    entry.due_ms = START_MS + 5;
    append(t, &entry, 1);
    check_retry(t, &entry);
    CHECK_INT(read_one(t, entry.place, &entry.id).entry.due_ms, START_MS + 5);
}

CLAIM(a_retry_sets_attempts_and_time_and_adds_nothing)
{
    static const struct {
        uint32_t attempts;
        int64_t due_ms;
    } said[] = {{1, 0}, {5, START_MS + 9}, {5, START_MS + 9}, {2, START_MS + 1}, {KL_ATTEMPTS_MAX, 0}, {0, 0}};
    kl_place place = order_place(t, 4);
    kl_task_id id = append_one(t, place, "again and again");
    for (size_t i = 0; i < COUNT(said); i++) {
        kl_settled retry = outcome_of(t, place, &id, KL_RETRY);
        retry.attempts = said[i].attempts;
        retry.due_ms = said[i].due_ms;
        CHECK_OK(settle(t, place, 0, &retry, 1));
        kl_stub stub = stub_of(t, place, &id);
        CHECK_INT(stub.attempts, said[i].attempts);
        CHECK_INT(stub.due_ms, said[i].due_ms);
        CHECK_INT(line_of(t, place, &id), KL_LINE_RETRY);
    }
}

CLAIM(the_retry_line_stands_by_position_whatever_was_tried_first)
{
    static const int order[] = {3, 0, 4, 1, 2};
    kl_entry entries[5];
    kl_task_id ids[5];
    for (int i = 0; i < 5; i++) {
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
        entries[i].priority = i == 1 ? -3 : 0;
        entries[i].due_ms = i == 2 ? START_MS + 50 : 0;
        ids[i] = entries[i].id;
    }
    append(t, entries, COUNT(entries));
    for (int i = 0; i < 5; i++) {
        kl_settled retry = outcome_of(t, order_place(t, 4), &ids[order[i]], KL_RETRY);
        retry.due_ms = START_MS + 100 - i; /* the time does not count either */
        CHECK_OK(settle(t, order_place(t, 4), 0, &retry, 1));
    }
    BOTH_LIVES(t)
    {
        CHECK_LINE(t, order_place(t, 4), KL_LINE_RETRY, ids, 5);
        CHECK_LINE(t, order_place(t, 4), KL_LINE_DUE, NULL, 0);
        CHECK_LINE(t, order_place(t, 4), 0, NULL, 0);
        CHECK_LINE(t, order_place(t, 4), -3, NULL, 0);
    }
}

CLAIM(a_tried_task_finishes_with_the_attempts_it_took)
{
    kl_place place = order_place(t, 4);
    kl_task_id id = append_one(t, place, "third time");
    for (uint32_t attempts = 1; attempts <= 3; attempts++) {
        kl_settled settled = outcome_of(t, place, &id, attempts < 3 ? KL_RETRY : KL_DONE);
        settled.attempts = attempts;
        settled.keep_ms = attempts < 3 ? 0 : KEEP_MS;
        CHECK_OK(settle(t, place, 0, &settled, 1));
    }
    BOTH_LIVES(t)
    {
        kl_task task = read_one(t, place, &id);
        CHECK_INT(task.state, KL_TASK_DONE);
        CHECK_INT(task.attempts, 3);
        CHECK_INT(line_of(t, place, &id), NOWHERE);
    }
}

/* ---- Repeats, and tasks that do not wait ---- */

CLAIM(a_settle_that_is_repeated_changes_nothing)
{
    kl_task_id ids[4];
    kl_settled tasks[4];
    kl_place place = order_place(t, 4);
    append_many(t, place, ids, COUNT(ids));
    for (int i = 0; i < 4; i++) {
        tasks[i] = outcome_of(t, place, &ids[i], i < 3 ? ends[i] : KL_RETRY);
        tasks[i].keep_ms = KEEP_MS;
        tasks[i].error = kl_str("once");
    }
    for (int repeat = 0; repeat < 3; repeat++) {
        CHECK_OK(settle(t, place, 0, tasks, COUNT(tasks)));
        if (repeat == 1)
            (void)next_life(t);
        kl_counts counts = counts_of(t, whole(t->orders));
        CHECK(counts.done == 1 && counts.dead == 1 && counts.cancelled == 1);
        CHECK(counts.ready == 0 && counts.retry == 1);
        CHECK_INT(stub_of(t, place, &ids[3]).attempts, 1);
    }
}

CLAIM(an_outcome_for_a_finished_task_is_passed_over)
{
    kl_place place = order_place(t, 4);
    kl_task_id id = append_one(t, place, "finished once");
    kl_settled done = outcome_of(t, place, &id, KL_DONE), later = done;
    done.keep_ms = KEEP_MS;
    done.result = kl_str("first");
    CHECK_OK(settle(t, place, 0, &done, 1));
    later.keep_ms = KEEP_MS;
    later.attempts = 9;
    later.result = kl_str("second");
    static const kl_outcome others[] = {KL_DEAD, KL_RETRY, KL_CANCELLED, KL_DONE};
    for (size_t i = 0; i < COUNT(others); i++) {
        later.outcome = others[i];
        CHECK_OK(settle(t, place, 0, &later, 1));
        kl_task task = read_one(t, place, &id);
        CHECK_INT(task.state, KL_TASK_DONE);
        CHECK_INT(task.attempts, 1);
        CHECK_BYTES(task.result, kl_str("first"));
        CHECK_INT(line_of(t, place, &id), NOWHERE);
    }
}

CLAIM(a_finished_task_that_was_not_kept_does_not_come_back)
{
    kl_place place = order_place(t, 4);
    kl_task_id id = append_one(t, place, "gone");
    kl_settled done = outcome_of(t, place, &id, KL_DONE);
    CHECK_OK(settle(t, place, 0, &done, 1));
    done.outcome = KL_RETRY;
    CHECK_OK(settle(t, place, 0, &done, 1));
    done.outcome = KL_DEAD;
    done.keep_ms = KEEP_MS;
    CHECK_OK(settle(t, place, 0, &done, 1));
    BOTH_LIVES(t)
    {
        CHECK_INT(line_of(t, place, &id), NOWHERE);
        CHECK_INT(state_of(t, place, &id), KL_TASK_UNKNOWN);
        CHECK_INT(counts_of(t, whole(t->orders)).dead, 0);
    }
}

CLAIM(a_settle_that_is_repeated_leaves_a_task_that_was_appended_again)
{
    kl_place place = order_place(t, 4);
    kl_entry entry = make_entry(t, place, "k", "first");
    append(t, &entry, 1);
    kl_settled tasks[4];
    for (int i = 0; i < 4; i++) {
        tasks[i] = outcome_of(t, place, &entry.id, i < 3 ? ends[i] : KL_RETRY);
        tasks[i].keep_ms = i % 2 ? KEEP_MS : 0;
    }
    CHECK_OK(settle(t, place, 0, tasks, 1));
    entry.payload = kl_str("second");
    append(t, &entry, 1);
    for (int i = 0; i < 4; i++)
        CHECK_OK(settle(t, place, 0, &tasks[i], 1));
    BOTH_LIVES(t)
    {
        CHECK_LINE(t, place, 0, &entry.id, 1);
        CHECK_INT(stub_of(t, place, &entry.id).attempts, 0);
        CHECK_BYTES(read_one(t, place, &entry.id).entry.payload, kl_str("second"));
    }
    finish(t, place, &entry.id, KL_DONE, 0, NULL, NULL);
    CHECK_LINE(t, place, 0, NULL, 0);
}

/* Where an engine compares tokens and not ids, both copies wait; else one does. */
CLAIM(an_id_that_waits_twice_is_read_once_and_settled_in_one_call)
{
    kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
    kl_settled both[4];
    for (int round = 0; round < 2; round++) { /* as a scan has shown them; and one of them tried before */
        size_t count = 0;
        for (int i = 0; i < 2; i++) {
            kl_token token = make_token();
            CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
        }
        kl_stub *stubs = scan_line(t, entry.place, 0, &count);
        REQUIRE(count == 1 || count == 2);
        CHECK_INT(read_one(t, entry.place, &entry.id).state, KL_TASK_WAITING);
        if (round == 1) {
            both[0] = next_attempt(&stubs[0], KL_RETRY);
            CHECK_OK(settle(t, entry.place, 0, both, 1));
        }
        for (size_t i = 0; i < count; i++) {
            both[i] = next_attempt(&stubs[i], KL_DONE);
            both[i].keep_ms = KEEP_MS;
            both[i].result = kl_str(i + 1 < count ? "first" : "last");
        }
        CHECK_OK(settle(t, entry.place, 0, both, count));
        CHECK_LINE(t, entry.place, 0, NULL, 0);
        kl_task task = read_one(t, entry.place, &entry.id);
        CHECK_INT(task.state, KL_TASK_DONE);
        CHECK_BYTES(task.result, kl_str("last"));
    }
}

CLAIM(unknown_tasks_are_passed_over_and_the_others_count)
{
    kl_place place = order_place(t, 4);
    kl_task_id ids[2];
    append_many(t, place, ids, COUNT(ids));
    kl_settled tasks[4] = {outcome_of(t, place, &ids[0], KL_DONE), outcome_of(t, place, &ids[0], KL_DONE),
                           outcome_of(t, place, &ids[1], KL_DONE), outcome_of(t, place, &ids[1], KL_DONE)};
    CHECK_OK(settle(t, place, 0, &tasks[2], 1)); /* now tasks[2] is settled already */
    tasks[0].id = make_id(t, place, kl_str("key"));
    tasks[0].position = UINT64_MAX;
    CHECK_OK(settle(t, place, 0, tasks, COUNT(tasks)));
    BOTH_LIVES(t)
    CHECK_LINE(t, place, 0, NULL, 0);
}

/* ---- Batches ---- */

CLAIM(one_call_settles_batches_of_many_shards)
{
    kl_task_id ids[32];
    kl_settled tasks[32];
    kl_settle batches[32];
    for (uint32_t i = 0; i < 32; i++) {
        kl_place place = i < 16 ? order_place(t, i) : bill_place(t, 8 * i);
        ids[i] = append_one(t, place, "x");
        tasks[i] = outcome_of(t, place, &ids[i], i % 2 ? KL_DONE : KL_RETRY);
        batches[i] = (kl_settle){.place = place, .tasks = &tasks[i], .count = 1, .rc = KL_EDEAD};
    }
    CHECK_OK(kl_store_settle(t->store, batches, COUNT(batches)));
    BOTH_LIVES(t)
    for (uint32_t i = 0; i < 32; i++) {
        CHECK_INT(batches[i].rc, KL_OK);
        CHECK_INT(line_of(t, batches[i].place, &ids[i]), i % 2 ? NOWHERE : KL_LINE_RETRY);
    }
}

CLAIM(a_batch_settles_thousands_of_tasks)
{
    static kl_entry entries[5000];
    static kl_settled tasks[5000];
    kl_place place = bill_place(t, 200);
    for (size_t i = 0; i < COUNT(entries); i++)
        entries[i] = make_entry(t, place, "k", "one of thousands");
    append(t, entries, COUNT(entries));
    size_t count;
    kl_stub *stubs = scan_line(t, place, 0, &count);
    REQUIRE(count == COUNT(entries));
    size_t settled = 0;
    kl_task_id left[500];
    for (size_t i = 0; i < count; i++) {
        if (i % 10 == 3)
            left[i / 10] = stubs[i].id;
        else
            tasks[settled++] = next_attempt(&stubs[i], KL_DONE);
    }
    CHECK_OK(settle(t, place, 0, tasks, settled));
    BOTH_LIVES(t)
    {
        CHECK_LINE(t, place, 0, left, COUNT(left));
        CHECK_INT(counts_of(t, place).ready, COUNT(left));
    }
}

/* ---- S3: fences ---- */

CLAIM(shards_begin_at_epoch_0)
{
    kl_task_id id = append_one(t, order_place(t, 4), "x");
    kl_settled done = outcome_of(t, order_place(t, 4), &id, KL_DONE);
    CHECK_OK(settle(t, order_place(t, 4), 0, &done, 1));
    CHECK_INT(line_of(t, order_place(t, 4), &id), NOWHERE);
}

CLAIM(a_batch_below_the_fence_is_refused_whole)
{
    kl_task_id ids[4];
    kl_settled tasks[4];
    kl_place place = order_place(t, 4);
    append_many(t, place, ids, COUNT(ids));
    for (int i = 0; i < 4; i++) {
        tasks[i] = outcome_of(t, place, &ids[i], i < 3 ? ends[i] : KL_RETRY);
        tasks[i].keep_ms = KEEP_MS;
    }
    CHECK_OK(fence(t, place, 5));
    BOTH_LIVES(t)
    {
        static const uint64_t stale[] = {0, 1, 4};
        for (size_t i = 0; i < COUNT(stale); i++)
            CHECK_RC(settle(t, place, stale[i], tasks, COUNT(tasks)), KL_ESTALE);
        CHECK_LINE(t, place, 0, ids, COUNT(ids));
        CHECK_LINE(t, place, KL_LINE_RETRY, NULL, 0);
        CHECK_INT(counts_of(t, whole(t->orders)).done, 0);
        CHECK_INT(state_of(t, place, &ids[0]), KL_TASK_WAITING);
    }
}

CLAIM(a_settle_at_or_above_the_fence_counts_and_does_not_move_it)
{
    kl_task_id ids[3];
    kl_place place = order_place(t, 4);
    append_many(t, place, ids, COUNT(ids));
    CHECK_OK(fence(t, place, 5));
    static const uint64_t epochs[] = {5, 9, 5};
    for (int i = 0; i < 3; i++) {
        kl_settled done = outcome_of(t, place, &ids[i], KL_DONE);
        CHECK_OK(settle(t, place, epochs[i], &done, 1));
    }
    CHECK_LINE(t, place, 0, NULL, 0);
}

CLAIM(a_refused_batch_leaves_the_others_of_its_call)
{
    kl_task_id ids[3];
    kl_settled tasks[3];
    kl_settle batches[3];
    for (uint32_t i = 0; i < 3; i++) {
        ids[i] = append_one(t, order_place(t, i), "x");
        tasks[i] = outcome_of(t, order_place(t, i), &ids[i], KL_DONE);
        batches[i] = (kl_settle){order_place(t, i), 2, &tasks[i], 1, KL_EDEAD};
    }
    CHECK_OK(fence(t, order_place(t, 1), 3));
    CHECK_RC(kl_store_settle(t->store, batches, COUNT(batches)), KL_ESTALE);
    CHECK_INT(batches[0].rc, KL_OK);
    CHECK_INT(batches[1].rc, KL_ESTALE);
    CHECK_INT(batches[2].rc, KL_OK);
    BOTH_LIVES(t)
    {
        CHECK_INT(line_of(t, order_place(t, 0), &ids[0]), NOWHERE);
        CHECK_INT(line_of(t, order_place(t, 1), &ids[1]), 0);
        CHECK_INT(line_of(t, order_place(t, 2), &ids[2]), NOWHERE);
    }
}

CLAIM(a_fence_is_only_ever_raised)
{
    kl_place place = order_place(t, 4);
    kl_task_id id = append_one(t, place, "x");
    kl_settled retry = outcome_of(t, place, &id, KL_RETRY);
    CHECK_OK(fence(t, place, 5));
    BOTH_LIVES(t)
    {
        CHECK_OK(fence(t, place, 5));
        CHECK_RC(fence(t, place, 4), KL_ESTALE);
        CHECK_RC(fence(t, place, 1), KL_ESTALE);
        CHECK_RC(settle(t, place, 4, &retry, 1), KL_ESTALE);
        CHECK_OK(settle(t, place, 5, &retry, 1));
    }
    CHECK_OK(fence(t, place, KL_EPOCH_MAX));
    BOTH_LIVES(t)
    {
        CHECK_RC(settle(t, place, KL_EPOCH_MAX - 1, &retry, 1), KL_ESTALE);
        CHECK_OK(settle(t, place, KL_EPOCH_MAX, &retry, 1));
    }
}

CLAIM(one_call_fences_many_shards_each_for_itself)
{
    kl_fence fences[16];
    for (uint32_t i = 0; i < 16; i++)
        fences[i] = (kl_fence){.place = order_place(t, i), .epoch = 10 + i, .rc = KL_EDEAD};
    CHECK_OK(fence(t, order_place(t, 3), 100));
    CHECK_RC(kl_store_fence(t->store, fences, COUNT(fences)), KL_ESTALE);
    BOTH_LIVES(t)
    for (uint32_t i = 0; i < 16; i++) {
        CHECK_INT(fences[i].rc, i == 3 ? KL_ESTALE : KL_OK);
        uint64_t epoch = i == 3 ? 100 : 10 + i;
        CHECK_RC(fence(t, order_place(t, i), epoch - 1), KL_ESTALE);
        CHECK_OK(fence(t, order_place(t, i), epoch));
    }
    CHECK_OK(fence(t, bill_place(t, 3), 1)); /* the other partition has fences of its own */
}

CLAIM(a_fence_holds_up_no_append)
{
    CHECK_OK(fence(t, order_place(t, 4), 5));
    kl_task_id id = append_one(t, order_place(t, 4), "x");
    CHECK_LINE(t, order_place(t, 4), 0, &id, 1);
}
