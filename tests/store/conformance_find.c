/* conformance_find.c - finished tasks are found by what they were, and kept as long as was said and no longer.
 *
 * Tasks are named by their payload, one letter each, and an answer is compared as the sorted string of its letters. */
#include <stdlib.h>

#include "store/conformance.h"

enum { FOUND_MAX = 64 };

static int by_letter(const void *a, const void *b) { return *(const char *)a - *(const char *)b; }

/* Finds in pages of this many, each behind the last of the one before, and checks that the latest come first. */
static void find_letters(struct trial *t, kl_find find, size_t page, char ret_letters[FOUND_MAX + 1])
{
    kl_task tasks[FOUND_MAX], last;
    size_t found = 0, count;
    int64_t finished_ms = INT64_MAX;
    find.max = page;
    do {
        count = SIZE_MAX;
        CHECK_OK(kl_store_find(t->store, &find, &t->arena, tasks, &count));
        if (count > page || found + count > FOUND_MAX) {
            test_fail(__FILE__, __LINE__, "too many were found");
            break;
        }
        for (size_t i = 0; i < count; i++) {
            CHECK(tasks[i].finished_ms <= finished_ms);
            finished_ms = tasks[i].finished_ms;
            CHECK_INT(tasks[i].entry.payload.len, 1);
            ret_letters[found++] = *(const char *)tasks[i].entry.payload.data;
        }
        if (count) {
            last = tasks[count - 1];
            find.after = &last;
        }
    } while (count);
    ret_letters[found] = '\0';
}

static void check_found(struct trial *t, kl_find find, const char *expected, const char *file, int at)
{
    static const size_t pages[] = {FOUND_MAX, 1, 3};
    for (size_t i = 0; i < COUNT(pages); i++) {
        char letters[FOUND_MAX + 1];
        find_letters(t, find, pages[i], letters);
        qsort(letters, strlen(letters), 1, by_letter);
        if (strcmp(letters, expected) != 0)
            test_fail(file, at, "found \"%s\" in pages of %zu, expected \"%s\"", letters, pages[i], expected);
    }
}

#define CHECK_FOUND(t, expected, ...) check_found(t, (kl_find){__VA_ARGS__}, expected, __FILE__, __LINE__)

struct finished {
    const char *letter;
    uint32_t partition; /* 0: orders, 1: bills */
    uint32_t shard;
    kl_outcome outcome;
    const char *key, *kind;
    bool in_job;
};

static const struct finished cases[] = {
    {"a", 0, 1, KL_DONE, "anna", "mail", false},     {"b", 0, 2, KL_DEAD, "anna", "mail", true},
    {"c", 0, 1, KL_CANCELLED, "bert", "mail", true}, {"d", 0, 3, KL_DONE, "bert", "print", true},
    {"e", 1, 1, KL_DEAD, "anna", "print", true},     {"f", 1, 99, KL_DONE, "ann", "mai", false},
    {"g", 1, 255, KL_DONE, NULL, NULL, false},       {"h", 1, 255, KL_DEAD, "ANNA", "mail", false},
};

static kl_task_id job;

static void finish_cases(struct trial *t, kl_task ret_tasks[COUNT(cases)])
{
    job = make_id(t, order_place(t, 0), kl_str(NULL));
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct finished *c = &cases[i];
        kl_place place = c->partition ? bill_place(t, c->shard) : order_place(t, c->shard);
        kl_entry entry = make_entry(t, place, c->key, c->letter);
        entry.kind = kl_str(c->kind);
        if (c->in_job)
            entry.job = job;
        append(t, &entry, 1);
        atomic_fetch_add(&t->clock_ms, 10);
        finish(t, place, &entry.id, c->outcome, KEEP_MS, "failed", "result");
        ret_tasks[i] = read_one(t, place, &entry.id);
    }
    kl_entry waiting = make_entry(t, order_place(t, 1), "anna", "w");
    append(t, &waiting, 1);
}

CLAIM(finished_tasks_are_found_by_each_of_their_parts)
{
    kl_task tasks[COUNT(cases)];
    finish_cases(t, tasks);
    BOTH_LIVES(t)
    {
        CHECK_FOUND(t, "abcdefgh", .max = 1);
        CHECK_FOUND(t, "abcd", .partition = t->orders);
        CHECK_FOUND(t, "efgh", .partition = t->bills);
        CHECK_FOUND(t, "adfg", .state = KL_TASK_DONE);
        CHECK_FOUND(t, "beh", .state = KL_TASK_DEAD);
        CHECK_FOUND(t, "c", .state = KL_TASK_CANCELLED);
        CHECK_FOUND(t, "abe", .key = kl_str("anna"));
        CHECK_FOUND(t, "f", .key = kl_str("ann"));
        CHECK_FOUND(t, "", .key = kl_str("nobody"));
        CHECK_FOUND(t, "abch", .kind = kl_str("mail"));
        CHECK_FOUND(t, "de", .kind = kl_str("print"));
        CHECK_FOUND(t, "bcde", .job = job);
    }
}

CLAIM(finished_tasks_are_found_by_several_parts_at_once)
{
    kl_task tasks[COUNT(cases)];
    finish_cases(t, tasks);
    BOTH_LIVES(t)
    {
        CHECK_FOUND(t, "b", .state = KL_TASK_DEAD, .key = kl_str("anna"), .kind = kl_str("mail"));
        CHECK_FOUND(t, "e", .partition = t->bills, .job = job);
        CHECK_FOUND(t, "", .partition = t->bills, .state = KL_TASK_CANCELLED);
        CHECK_FOUND(t, "be", .state = KL_TASK_DEAD, .key = kl_str("anna"), .words = kl_str("failed"));
        CHECK_FOUND(t, "", .state = KL_TASK_DEAD, .words = kl_str("succeeded"));
        CHECK_FOUND(t, "b", .partition = t->orders, .state = KL_TASK_DEAD, .key = kl_str("anna"),
                    .kind = kl_str("mail"), .job = job, .from_ms = 1, .until_ms = KL_ID_MS_MAX,
                    .words = kl_str("FAILED"));
    }
}

CLOCK_CLAIM(finished_tasks_are_found_by_when_they_were_finished)
{
    kl_task tasks[COUNT(cases)];
    finish_cases(t, tasks);
    BOTH_LIVES(t)
    {
        CHECK_FOUND(t, "defgh", .from_ms = tasks[3].finished_ms);
        CHECK_FOUND(t, "efgh", .from_ms = tasks[3].finished_ms + 1);
        CHECK_FOUND(t, "abc", .until_ms = tasks[3].finished_ms);
        CHECK_FOUND(t, "cde", .from_ms = tasks[2].finished_ms, .until_ms = tasks[5].finished_ms);
        CHECK_FOUND(t, "e", .from_ms = tasks[2].finished_ms, .until_ms = tasks[5].finished_ms, .partition = t->bills);
        CHECK_FOUND(t, "", .from_ms = tasks[7].finished_ms + 1);
    }
}

CLOCK_CLAIM(the_latest_is_found_first)
{
    kl_task tasks[COUNT(cases)];
    char letters[FOUND_MAX + 1];
    finish_cases(t, tasks);
    BOTH_LIVES(t)
    {
        find_letters(t, (kl_find){0}, 3, letters);
        CHECK_STR(letters, "hgfedcba");
        find_letters(t, (kl_find){.state = KL_TASK_DONE}, 2, letters);
        CHECK_STR(letters, "gfda");
    }
}

CLAIM(a_found_task_is_given_whole)
{
    kl_task tasks[COUNT(cases)], found[FOUND_MAX];
    size_t count = 0;
    finish_cases(t, tasks);
    BOTH_LIVES(t)
    for (size_t i = 0; i < COUNT(cases); i++) {
        kl_find find = {.partition = tasks[i].entry.place.partition,
                        .state = tasks[i].state,
                        .key = tasks[i].entry.key,
                        .kind = tasks[i].entry.kind,
                        .max = FOUND_MAX};
        CHECK_OK(kl_store_find(t->store, &find, &t->arena, found, &count));
        size_t at = 0;
        while (at < count && !same_id(&found[at].entry.id, &tasks[i].entry.id))
            at++;
        REQUIRE(at < count);
        CHECK_ENTRY(&found[at].entry, &tasks[i].entry);
        CHECK_INT(found[at].attempts, 1);
        CHECK_INT(found[at].state, tasks[i].state);
        CHECK_INT(found[at].finished_ms, tasks[i].finished_ms);
        CHECK_BYTES(found[at].error, kl_str("failed"));
        CHECK_BYTES(found[at].result, kl_str("result"));
    }
}

CLAIM(tasks_finished_in_the_same_moment_are_each_found_once)
{
    enum { MANY = 26 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    char payloads[MANY][2];
    kl_settled tasks[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        payloads[i][0] = letters[i];
        payloads[i][1] = '\0';
        kl_task_id id = append_one(t, order_place(t, 5), payloads[i]);
        tasks[i] = outcome_of(t, order_place(t, 5), &id, KL_DONE);
        tasks[i].keep_ms = KEEP_MS;
    }
    CHECK_OK(settle(t, order_place(t, 5), 0, tasks, MANY));
    BOTH_LIVES(t)
    CHECK_FOUND(t, letters, .max = 1);
}

CLAIM(finding_goes_on_behind_a_task_that_was_forgotten)
{
    kl_task tasks[COUNT(cases)], found[FOUND_MAX];
    size_t first = 0, rest = 0;
    finish_cases(t, tasks);
    kl_find find = {.max = 4};
    CHECK_OK(kl_store_find(t->store, &find, &t->arena, found, &first));
    REQUIRE(first == 4);
    kl_task last = found[3];
    CHECK_OK(kl_store_forget(t->store, last.entry.place, &last.entry.id, 1));
    find.after = &last;
    find.max = FOUND_MAX;
    CHECK_OK(kl_store_find(t->store, &find, &t->arena, found, &rest));
    CHECK_INT(rest, COUNT(cases) - 4);
}

/* ---- Words ---- */

static void fail_with(struct trial *t, const char *letter, const char *error)
{
    kl_task_id id = append_one(t, order_place(t, 2), letter);
    finish(t, order_place(t, 2), &id, KL_DEAD, KEEP_MS, error, "words in results do not count");
}

/* Fails once with one error, which is kept, and for good with another. */
static void fail_twice(struct trial *t, const char *letter, const char *first, const char *second)
{
    kl_task_id id = append_one(t, order_place(t, 2), letter);
    kl_settled retry = outcome_of(t, order_place(t, 2), &id, KL_RETRY);
    retry.keep_ms = KEEP_MS;
    retry.error = kl_str(first);
    CHECK_OK(settle(t, order_place(t, 2), 0, &retry, 1));
    finish(t, order_place(t, 2), &id, KL_DEAD, KEEP_MS, second, NULL);
}

CLAIM(words_are_found_in_errors)
{
    static const struct {
        const char *words, *found;
    } queries[] = {
        {"connection", "abc"},
        {"CONNECTION Refused", "a"},
        {"refused connection", "a"},
        {"refused timed", ""},
        {"time", ""}, /* whole words only */
        {"imed", ""},
        {"timed", "b"},
        {"10", "a"},
        {"5432 7", "a"},
        {" connection, timed! ", "b"},
        {"reset", "c"},
        {"TimeOut", "c"},
        {"caf\xc3\xa9", "d"},
        {"caf", ""},
        {"cafe", ""},
        {"na", ""},
        {"disk disk", "ef"},
        {"quota", "f"},
        {"DISK", "ef"},
        {"alpha beta", "g"},
        {"beta", "g"},
        {"gamma", "g"},
        {"alpha gamma", ""}, /* not in one error */
        {"words", ""},
        {"\"disk\" AND full*", ""}, /* no language of its own: `and` is a word like others */
        {"\"disk\" full*", "e"},
    };
    fail_with(t, "a", "Connection refused by 10.0.0.7:5432");
    fail_with(t, "b", "connection timed out");
    fail_with(t, "c", "TIMEOUT: connection-reset");
    fail_with(t, "d", "na\xc3\xafve caf\xc3\xa9");
    fail_with(t, "e", "disk full, disk slow");
    fail_with(t, "f", "disk_quota");
    fail_twice(t, "g", "alpha beta", "gamma");
    fail_with(t, "h", NULL);
    BOTH_LIVES(t)
    for (size_t i = 0; i < COUNT(queries); i++) {
        CHECK_FOUND(t, queries[i].found, .words = kl_str(queries[i].words));
        if (test_failed()) {
            test_fail(__FILE__, __LINE__, "looking for \"%s\"", queries[i].words);
            return;
        }
    }
}

CLAIM(an_error_that_was_not_kept_is_not_found)
{
    kl_task_id id = append_one(t, order_place(t, 2), "a");
    kl_settled retry = outcome_of(t, order_place(t, 2), &id, KL_RETRY);
    retry.error = kl_str("fleeting");
    CHECK_OK(settle(t, order_place(t, 2), 0, &retry, 1));
    finish(t, order_place(t, 2), &id, KL_DEAD, KEEP_MS, "lasting", NULL);
    BOTH_LIVES(t)
    {
        CHECK_FOUND(t, "a", .words = kl_str("lasting"));
        CHECK_FOUND(t, "", .words = kl_str("fleeting"));
    }
}

CLAIM(an_error_of_a_task_that_still_waits_is_not_found)
{
    kl_task_id id = append_one(t, order_place(t, 2), "a");
    kl_settled retry = outcome_of(t, order_place(t, 2), &id, KL_RETRY);
    retry.keep_ms = KEEP_MS;
    retry.error = kl_str("early");
    CHECK_OK(settle(t, order_place(t, 2), 0, &retry, 1));
    BOTH_LIVES(t)
    CHECK_FOUND(t, "", .words = kl_str("early"));
    finish(t, order_place(t, 2), &id, KL_DONE, KEEP_MS, NULL, NULL);
    BOTH_LIVES(t)
    CHECK_FOUND(t, "a", .words = kl_str("early"));
}

/* ---- How long ---- */

/* Engines may clear away when there is something to do: this gives them something. */
static bool nudge(struct trial *t)
{
    kl_task_id id = append_one(t, bill_place(t, 0), "n");
    finish(t, bill_place(t, 0), &id, KL_DONE, 0, NULL, NULL);
    return true;
}

static bool all_gone(struct trial *t, const kl_task *task)
{
    kl_task found[FOUND_MAX];
    size_t count = 1;
    nudge(t);
    if (state_of(t, task->entry.place, &task->entry.id) != KL_TASK_UNKNOWN)
        return false;
    kl_find find = {.key = task->entry.key, .max = FOUND_MAX};
    CHECK_OK(kl_store_find(t->store, &find, &t->arena, found, &count));
    return count == 0 && counts_of(t, whole(task->entry.place.partition)).done == 0;
}

CLOCK_CLAIM(a_finished_task_is_kept_as_long_as_was_said_and_no_longer)
{
    kl_place place = order_place(t, 2);
    kl_entry entry = make_entry(t, place, "short", "s"), longer = make_entry(t, place, "long", "l");
    entry.job = longer.job = make_id(t, place, kl_str(NULL));
    append(t, &entry, 1);
    append(t, &longer, 1);
    finish(t, place, &entry.id, KL_DONE, 1000, "e", NULL);
    finish(t, place, &longer.id, KL_DEAD, 5000, "e", NULL);
    kl_task task = read_one(t, place, &entry.id);
    atomic_store(&t->clock_ms, task.finished_ms + 999);
    BOTH_LIVES(t)
    {
        nudge(t);
        CHECK_INT(state_of(t, place, &entry.id), KL_TASK_DONE);
        CHECK_FOUND(t, "ls", .max = 1);
    }
    atomic_store(&t->clock_ms, task.finished_ms + 1001);
    AWAIT(all_gone(t, &task));
    BOTH_LIVES(t)
    {
        CHECK(all_gone(t, &task));
        CHECK_FOUND(t, "l", .max = 1);
        kl_task results[2];
        size_t count = 0;
        CHECK_OK(kl_store_results(t->store, place, &entry.job, NULL, 2, &t->arena, results, &count));
        CHECK_INT(count, 1);
        CHECK_INT(counts_of(t, whole(t->orders)).dead, 1);
    }
}

static bool done_are(struct trial *t, uint64_t number)
{
    nudge(t);
    return counts_of(t, whole(t->orders)).done == number;
}

CLAIM_IF(subject.trims &&subject.clocked, only_so_many_finished_tasks_are_kept_and_the_oldest_go_first)
{
    enum { FINISHED = 26, KEPT = 10 };
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz";
    t->opts.history_rows_max = KEPT;
    REQUIRE(start_over(t));
    for (int i = 0; i < FINISHED; i++) {
        char payload[2] = {alphabet[i], '\0'};
        kl_task_id id = append_one(t, order_place(t, (uint32_t)i % 16), payload);
        atomic_fetch_add(&t->clock_ms, 10);
        finish(t, order_place(t, (uint32_t)i % 16), &id, KL_DONE, KEEP_MS, NULL, NULL);
    }
    AWAIT(done_are(t, KEPT));
    BOTH_LIVES(t)
    {
        CHECK(done_are(t, KEPT));
        CHECK_FOUND(t, alphabet + FINISHED - KEPT, .max = 1);
    }
}

CLAIM_IF(subject.trims &&subject.clocked, no_finished_task_is_kept_longer_than_the_store_allows)
{
    t->opts.history_ms_max = 5000;
    REQUIRE(start_over(t));
    kl_task_id id = append_one(t, order_place(t, 2), "a");
    finish(t, order_place(t, 2), &id, KL_DONE, KEEP_MS, NULL, NULL);
    kl_task task = read_one(t, order_place(t, 2), &id);
    CHECK_INT(task.state, KL_TASK_DONE);
    atomic_store(&t->clock_ms, task.finished_ms + 4999);
    nudge(t);
    CHECK_INT(state_of(t, order_place(t, 2), &id), KL_TASK_DONE);
    atomic_store(&t->clock_ms, task.finished_ms + 5001);
    AWAIT(all_gone(t, &task));
}
