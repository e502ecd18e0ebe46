/* test_history.c - what is kept of finished tasks, how it is found, and when it goes. */
#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

#include "history_support.h"
#include "store/disk/history_inside.h"

/* ---- Keeping ---- */

static void check_entry(const kl_entry *actual, const kl_entry *expected)
{
    CHECK_INT(actual->place.partition, expected->place.partition);
    CHECK_INT(actual->place.shard, expected->place.shard);
    CHECK(memcmp(&actual->id, &expected->id, sizeof actual->id) == 0);
    CHECK(memcmp(&actual->job, &expected->job, sizeof actual->job) == 0);
    CHECK_INT(actual->due_ms, expected->due_ms);
    CHECK_INT(actual->priority, expected->priority);
    CHECK_INT(actual->group, expected->group);
    CHECK_BYTES(actual->key, expected->key);
    CHECK_BYTES(actual->kind, expected->kind);
    CHECK_BYTES(actual->headers, expected->headers);
    CHECK_BYTES(actual->payload, expected->payload);
}

TEST(a_kept_task_reads_back_whole)
{
    struct shelf shelf;
    static char payload[KL_PAYLOAD_BYTES_MAX], result[KL_RESULT_BYTES_MAX], headers[KL_HEADERS_BYTES_MAX];
    memset(payload, 'p', sizeof payload);
    memset(result, 0, sizeof result);
    memset(headers, 0xff, sizeof headers);
    kl_entry entry = {.place = {UINT32_MAX, 65535},
                      .id = shelf_id(7),
                      .job = shelf_id(9),
                      .due_ms = KL_ID_MS_MAX,
                      .priority = KL_PRIORITY_MIN,
                      .group = UINT16_MAX,
                      .key = {"k\0\xff", 3},
                      .kind = kl_str("caf\xc3\xa9"),
                      .headers = {headers, sizeof headers},
                      .payload = {payload, sizeof payload}};
    kl__history_row row = {.entry = &entry,
                           .outcome = KL_CANCELLED,
                           .attempts = KL_ATTEMPTS_MAX,
                           .finished_ms = 5,
                           .expires_ms = INT64_MAX,
                           .error = {"e\0\xfe", 3},
                           .result = {result, sizeof result}};
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    CHECK_OK(kl__history_add(shelf.history, &row, 1, UINT64_MAX));
    for (int life = 0; life < 2; life++) {
        kl_task task = {.state = KL_TASK_UNKNOWN};
        CHECK_OK(read_kept(shelf.history, entry.place, &entry.id, 1, &shelf.arena, &task));
        CHECK_INT(task.state, KL_TASK_CANCELLED);
        check_entry(&task.entry, &entry);
        CHECK_INT(task.attempts, KL_ATTEMPTS_MAX);
        CHECK_INT(task.finished_ms, 5);
        CHECK_BYTES(task.error, row.error);
        CHECK_BYTES(task.result, row.result);
        CHECK(kl__history_position(shelf.history) == UINT64_MAX);
        CHECK_OK(kl__history_check(shelf.history));
        shelf_close(&shelf);
        shelf_open(&shelf);
        REQUIRE(shelf.history);
    }
    shelf_free(&shelf);
}

TEST(an_empty_task_reads_back_empty)
{
    struct shelf shelf;
    kl_entry entry = {.place = {1, 0}, .id = shelf_id(7)};
    kl__history_row row = {.entry = &entry, .outcome = KL_DONE};
    kl_task task = {.state = KL_TASK_UNKNOWN};
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    CHECK_OK(kl__history_add(shelf.history, &row, 1, 1));
    CHECK_OK(read_kept(shelf.history, entry.place, &entry.id, 1, &shelf.arena, &task));
    CHECK_INT(task.state, KL_TASK_DONE);
    check_entry(&task.entry, &entry);
    CHECK_INT(task.error.len, 0);
    CHECK_INT(task.result.len, 0);
    shelf_free(&shelf);
}

TEST(read_fills_only_what_is_unknown_and_kept)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DONE, NULL, NULL);
    shelf_add(&shelf, 2, KL_DONE, NULL, NULL);
    kl_task tasks[3] = {{.state = KL_TASK_WAITING, .attempts = 77}};
    kl_task_id ids[3] = {shelf_id(1), shelf_id(2), shelf_id(3)};
    CHECK_OK(read_kept(shelf.history, (kl_place){1, 2}, ids, 3, &shelf.arena, tasks));
    CHECK_INT(tasks[0].state, KL_TASK_WAITING);
    CHECK_INT(tasks[0].attempts, 77);
    CHECK_INT(tasks[1].state, KL_TASK_DONE);
    CHECK_INT(tasks[2].state, KL_TASK_UNKNOWN);
    kl_task elsewhere = {.state = KL_TASK_UNKNOWN};
    CHECK_OK(read_kept(shelf.history, (kl_place){2, 2}, ids, 1, &shelf.arena, &elsewhere));
    CHECK_INT(elsewhere.state, KL_TASK_UNKNOWN);
    shelf_free(&shelf);
}

TEST(a_row_of_a_task_that_is_kept_replaces_it)
{
    struct shelf shelf;
    uint64_t done = 9, dead = 9, cancelled = 9;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    kl_entry first = shelf_entry(5, "old"), second = shelf_entry(5, "new"), other = shelf_entry(6, "old");
    kl__history_row rows[] = {shelf_row(&first, KL_DEAD, 1, "broken"), shelf_row(&other, KL_DEAD, 1, "broken"),
                              shelf_row(&second, KL_DONE, 2, NULL)};
    CHECK_OK(kl__history_add(shelf.history, rows, 3, 1)); /* in one call */
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 10), "5 6");
    CHECK_STR(shelf_find(&shelf, (kl_find){.key = kl_str("old")}, 10), "6");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("broken")}, 10), "6");
    CHECK_INT(shelf_read(&shelf, 5).state, KL_TASK_DONE);
    CHECK_INT(shelf_read(&shelf, 5).error.len, 0);
    CHECK_OK(kl__history_add(shelf.history, rows, 1, 2)); /* and in another */
    CHECK_STR(shelf_find(&shelf, (kl_find){.state = KL_TASK_DEAD}, 10), "5 6");
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("broken"));
    CHECK_OK(kl__history_counts(shelf.history, 1, NULL, &done, &dead, &cancelled));
    CHECK_INT(done, 0);
    CHECK_INT(dead, 2);
    CHECK_INT(cancelled, 0);
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(the_position_is_that_of_the_last_add_in_the_next_life_too)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    CHECK_INT(kl__history_position(shelf.history), 0);
    shelf_add(&shelf, 5, KL_DONE, NULL, NULL);
    CHECK_INT(kl__history_position(shelf.history), 5);
    CHECK_OK(kl__history_add(shelf.history, NULL, 0, 8)); /* settles of which nothing is kept */
    shelf_close(&shelf);
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    CHECK_INT(kl__history_position(shelf.history), 8);
    kl_task_id id = shelf_id(5);
    CHECK_OK(kl__history_forget(shelf.history, (kl_place){1, 2}, &id, 1));
    CHECK_INT(kl__history_position(shelf.history), 8);
    shelf_free(&shelf);
}

TEST(rows_ahead_of_a_position_that_moves_may_be_added_again)
{
    struct shelf shelf;
    kl_entry four = shelf_entry(4, NULL), five = shelf_entry(5, NULL), six = shelf_entry(6, NULL);
    kl__history_row rows[] = {shelf_row(&four, KL_DEAD, 2, "gamma"), shelf_row(&five, KL_DEAD, 2, "gamma"),
                              shelf_row(&six, KL_DEAD, 2, "gamma"), shelf_row(&six, KL_DEAD, 1, "gamma")};
    rows[1].ahead = true;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_retry(&shelf, 4, 1, "alpha");
    shelf_retry(&shelf, 5, 1, "alpha");
    shelf_retry(&shelf, 6, 1, "alpha");
    CHECK_OK(kl__history_add(shelf.history, rows, 2, 7));
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "5 4");
    rows[1].ahead = false;
    CHECK_OK(kl__history_add(shelf.history, rows, 4, 8)); /* 4 has another life, 5 is the same, 6 has two */
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("gamma")}, 1), "6 5 4");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

/* As after a crash between two of the adds that carry one settle. */
TEST(rows_ahead_of_the_position_may_be_added_again)
{
    struct shelf shelf;
    kl_task tasks[4];
    kl_task_id job = shelf_id(1000);
    uint64_t done = 9, dead = 9, cancelled = 9;
    size_t count = 0;
    kl_entry entries[4];
    for (uint32_t i = 0; i < 4; i++) {
        entries[i] = shelf_entry(5 + i, "k");
        entries[i].job = job;
    }
    kl__history_row rows[] = {shelf_row(&entries[0], KL_DEAD, 3, "gamma"), shelf_row(&entries[1], KL_DONE, 1, NULL),
                              shelf_row(&entries[2], KL_RETRY, 1, "delta"), shelf_row(&entries[3], KL_DONE, 1, NULL)};
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_retry(&shelf, 5, 1, "alpha");
    shelf_retry(&shelf, 5, 2, "beta");
    for (int life = 0; life < 3; life++) {
        CHECK_OK(kl__history_add(shelf.history, rows, 3, kl__history_position(shelf.history)));
        CHECK_STR(shelf_find(&shelf, (kl_find){0}, 1), "6 5");
        shelf_close(&shelf);
        shelf_open(&shelf);
        REQUIRE(shelf.history);
    }
    CHECK_OK(kl__history_add(shelf.history, rows, 4, 6));
    CHECK_STR(shelf_find(&shelf, (kl_find){.key = kl_str("k")}, 1), "8 6 5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("gamma")}, 1), "5");
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("gamma"));
    CHECK_OK(kl__history_results(shelf.history, (kl_place){1, 2}, &job, NULL, 4, &shelf.arena, tasks, &count));
    CHECK_INT(count, 3);
    CHECK_OK(kl__history_counts(shelf.history, 1, NULL, &done, &dead, &cancelled));
    CHECK_INT(done, 2);
    CHECK_INT(dead, 1);
    CHECK_STR(shelf_sql(&shelf, "select group_concat(attempt || error) from attempts where number > 0"),
              "1alpha,2beta,3gamma");
    CHECK_STR(shelf_sql(&shelf, "select group_concat(attempt || error) from attempts where number = 0"), "1delta");
    CHECK_OK(kl__history_check(shelf.history));

    /* Now the position has moved: another row of the task is of another life, which has no such errors. */
    CHECK_OK(kl__history_add(shelf.history, rows, 1, 6));
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("gamma")}, 1), "5");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(finished_times_never_step_back)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 9, KL_DONE, NULL, NULL);
    shelf_add(&shelf, 4, KL_DONE, NULL, NULL);
    shelf_close(&shelf);
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 5, KL_DONE, NULL, NULL);
    shelf_add(&shelf, 10, KL_DONE, NULL, NULL);
    CHECK_INT(shelf_read(&shelf, 4).finished_ms, SHELF_MS + 9);
    CHECK_INT(shelf_read(&shelf, 5).finished_ms, SHELF_MS + 9);
    CHECK_INT(shelf_read(&shelf, 10).finished_ms, SHELF_MS + 10);
    CHECK_STR(shelf_find(&shelf, (kl_find){.until_ms = SHELF_MS + 10}, 2), "5 4 9");
    CHECK_STR(shelf_find(&shelf, (kl_find){.from_ms = SHELF_MS + 9}, 2), "10 5 4 9");
    shelf_free(&shelf);
}

TEST(results_of_a_job_are_those_of_its_shard_by_id)
{
    struct shelf shelf;
    kl_entry entries[6];
    kl__history_row rows[6];
    kl_task tasks[6];
    static const uint32_t numbers[6] = {30, 10, 50, 20, 40, 60};
    kl_task_id job = shelf_id(1000), after = shelf_id(20);
    size_t count = 0;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (int i = 0; i < 6; i++) {
        entries[i] = shelf_entry(numbers[i], NULL);
        entries[i].job = numbers[i] == 50 ? shelf_id(1001) : job;
        entries[i].place.shard += numbers[i] == 60;
        rows[i] = shelf_row(&entries[i], KL_DONE, 1, NULL);
    }
    CHECK_OK(kl__history_add(shelf.history, rows, 6, 6));
    CHECK_OK(kl__history_results(shelf.history, (kl_place){1, 2}, &job, NULL, 3, &shelf.arena, tasks, &count));
    REQUIRE(count == 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_INT(shelf_number(&tasks[i]), 10 * (i + 1));
    CHECK_OK(kl__history_results(shelf.history, (kl_place){1, 2}, &job, &after, 6, &shelf.arena, tasks, &count));
    REQUIRE(count == 2);
    CHECK_INT(shelf_number(&tasks[0]), 30);
    CHECK_INT(shelf_number(&tasks[1]), 40);
    CHECK_OK(kl__history_results(shelf.history, (kl_place){2, 2}, &job, NULL, 6, &shelf.arena, tasks, &count));
    CHECK_INT(count, 0);
    shelf_free(&shelf);
}

static void check_job(struct shelf *shelf, uint32_t partition, kl_task_id job, const uint64_t expected[3])
{
    uint64_t shown[3] = {9, 9, 9};
    CHECK_OK(kl__history_counts(shelf->history, partition, &job, &shown[0], &shown[1], &shown[2]));
    for (int i = 0; i < 3; i++)
        CHECK_INT(shown[i], expected[i]);
}

TEST(counts_of_a_job_follow_what_is_added_replaced_forgotten_and_trimmed)
{
    struct shelf shelf;
    kl_entry entries[8];
    kl__history_row rows[8];
    static const kl_outcome outcomes[8] = {KL_DONE, KL_DONE, KL_DEAD, KL_CANCELLED, KL_DONE, KL_DEAD, KL_DONE, KL_DONE};
    kl_task_id job = shelf_id(1000), other = shelf_id(1001), none = shelf_id(1002), gone = shelf_id(2);
    size_t trimmed = 0;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t i = 0; i < 8; i++) {
        entries[i] = shelf_entry(i + 1, NULL);
        entries[i].job = i < 5 ? job : i == 5 ? other : (kl_task_id){{0}};
        entries[i].place.shard = i % 3;
        rows[i] = shelf_row(&entries[i], outcomes[i], 1, NULL);
    }
    entries[7].job = job;
    entries[7].place.partition = 2;
    CHECK_OK(kl__history_add(shelf.history, rows, 8, 8));
    check_job(&shelf, 1, job, (const uint64_t[]){3, 1, 1});
    check_job(&shelf, 1, other, (const uint64_t[]){0, 1, 0});
    check_job(&shelf, 1, none, (const uint64_t[]){0, 0, 0});
    check_job(&shelf, 2, job, (const uint64_t[]){1, 0, 0});
    check_job(&shelf, 2, other, (const uint64_t[]){0, 0, 0});
    rows[0].outcome = KL_DEAD; /* finished again, in another way */
    CHECK_OK(kl__history_add(shelf.history, rows, 1, 9));
    check_job(&shelf, 1, job, (const uint64_t[]){2, 2, 1});
    CHECK_OK(kl__history_forget(shelf.history, entries[1].place, &gone, 1));
    shelf_close(&shelf);
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    check_job(&shelf, 1, job, (const uint64_t[]){1, 2, 1});
    CHECK_OK(kl__history_trim(shelf.history, rows[3].expires_ms, 100, false, &trimmed));
    CHECK_INT(trimmed, 3); /* tasks 1, 3 and 4 */
    check_job(&shelf, 1, job, (const uint64_t[]){1, 0, 0});
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

/* What SQLite plans to do for one of our statements, its first step. */
static void plan_of(struct shelf *shelf, kl__sql which, char *ret_plan, size_t size)
{
    static const char *const texts[] = {
#define SQL_TEXT(name, text) text,
        KL_HISTORY_SQL(SQL_TEXT)
#undef SQL_TEXT
    };
    char sql[1000];
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    snprintf(sql, sizeof sql, "EXPLAIN QUERY PLAN %s", texts[which]);
    snprintf(ret_plan, size, "none");
    if (sqlite3_open(shelf->path, &db) == SQLITE_OK && sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        snprintf(ret_plan, size, "%s", (const char *)sqlite3_column_text(statement, 3));
    sqlite3_finalize(statement);
    sqlite3_close(db);
}

/* So it takes time in proportion to the job, not to what is kept. */
TEST(a_jobs_tasks_are_counted_in_the_index_and_not_read)
{
    struct shelf shelf;
    char plan[200];
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    plan_of(&shelf, KL_SQL_COUNT_JOB, plan, sizeof plan);
    CHECK_CONTAINS(plan, "USING COVERING INDEX tasks_by_job (job=? AND partition=?)");
    shelf_free(&shelf);
}

/* ---- Errors of attempts ---- */

TEST(errors_of_retries_are_found_with_their_task_once_it_is_finished)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_retry(&shelf, 5, 1, "alpha one");
    shelf_retry(&shelf, 5, 2, "beta");
    shelf_retry(&shelf, 6, 1, "alpha two");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 10), "");
    CHECK_INT(shelf_read(&shelf, 5).state, KL_TASK_UNKNOWN);
    kl_entry five = shelf_entry(5, "k"), six = shelf_entry(6, "k");
    kl__history_row rows[] = {shelf_row(&five, KL_DEAD, 3, "gamma"), shelf_row(&six, KL_DONE, 2, NULL)};
    CHECK_OK(kl__history_add(shelf.history, rows, 2, 6));
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "6 5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.key = kl_str("k")}, 1), "6 5"); /* each once */
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("gamma")}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("beta"), .state = KL_TASK_DEAD}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha beta")}, 1), ""); /* not in one error */
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("gamma"));
    CHECK_BYTES(shelf_read(&shelf, 6).error, kl_str("alpha two")); /* the last that was left */
    CHECK_STR(shelf_sql(&shelf, "select group_concat(attempt || error, ',') from attempts where hex(id) like '%05'"),
              "1alpha one,2beta,3gamma");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(the_last_error_does_not_cover_an_earlier_one_of_the_same_attempt)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_retry(&shelf, 5, 1, "alpha");
    shelf_add(&shelf, 5, KL_CANCELLED, NULL, "beta"); /* attempts is still 1 */
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("beta")}, 1), "5");
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("beta"));
    shelf_free(&shelf);
}

/* Tasks that are appended again with the id they had start over at attempt 1. */
TEST(errors_of_a_later_life_leave_the_finished_one_alone_until_it_is_finished_too)
{
    struct shelf shelf;
    kl_task_id id = shelf_id(5);
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 5, KL_DEAD, "k", "alpha");
    shelf_retry(&shelf, 5, 1, "beta");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("beta")}, 1), "");
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("alpha"));
    CHECK_STR(shelf_sql(&shelf, "select error from tasks_view"), "alpha");
    CHECK_OK(kl__history_check(shelf.history));

    kl_entry entry = shelf_entry(5, "k");
    kl__history_row row = shelf_row(&entry, KL_DEAD, 2, "gamma");
    CHECK_OK(kl__history_add(shelf.history, &row, 1, 7));
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("alpha")}, 1), "");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("beta")}, 1), "5");
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 1), "5");
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("gamma"));
    CHECK_STR(shelf_sql(&shelf, "select group_concat(attempt || error) from attempts"), "1beta,2gamma");
    CHECK_OK(kl__history_check(shelf.history));

    shelf_retry(&shelf, 5, 2, "delta"); /* a third life, which is not kept when the second is forgotten */
    CHECK_OK(kl__history_forget(shelf.history, (kl_place){1, 2}, &id, 1));
    CHECK_STR(shelf_sql(&shelf, "select group_concat(attempt || error) from attempts"), "2delta");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(words_are_runs_of_letters_digits_and_high_bytes_in_any_case)
{
    static const struct {
        const char *words, *found;
    } cases[] = {
        {"Timeout", "1"}, {"TIMEOUT host7", "1"}, {"host", ""},           {"7", ""},        {"caf\xc3\xa9", "2"},
        {"caf", ""},      {"a b", "3"},           {"\"a\" AND (b*)", ""}, {"a* b", "3"},    {"-a", "3"},
        {"error:a", ""},  {"NEAR(a b)", ""},      {"' OR 1=1 --", ""},    {"...", "3 2 1"},
    };
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DEAD, NULL, "timeOut:host7/x");
    shelf_add(&shelf, 2, KL_DEAD, NULL, "un caf\xc3\xa9");
    shelf_add(&shelf, 3, KL_DEAD, NULL, "a,b");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str(cases[i].words)}, 10), cases[i].found);
    shelf_free(&shelf);
}

TEST(a_word_may_stand_in_an_error_many_times)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DEAD, NULL, "no, No and NO");
    shelf_add(&shelf, 2, KL_DEAD, NULL, "yes");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("no no")}, 10), "1");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("and")}, 10), "1");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(a_search_for_too_many_words_says_so)
{
    struct shelf shelf;
    char words[2 * (KL_HISTORY_WORDS_MAX + 1) + 1] = "";
    kl_task task;
    size_t count;
    for (int i = 0; i < KL_HISTORY_WORDS_MAX; i++)
        strcat(words, "w ");
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DEAD, "key", "w");
    kl_find find = {.partition = 1,
                    .state = KL_TASK_DEAD,
                    .key = kl_str("key"),
                    .kind = kl_str("kind"),
                    .job = shelf_id(1),
                    .words = kl_str(words),
                    .max = 1};
    CHECK_OK(kl__history_find(shelf.history, &find, &shelf.arena, &task, &count));
    strcat(words, "w");
    find = (kl_find){.words = kl_str(words), .max = 1};
    CHECK_INT(kl__history_find(shelf.history, &find, &shelf.arena, &task, &count), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "at most 59 words");
    shelf_free(&shelf);
}

/* ---- Pages ---- */

TEST(a_page_goes_on_behind_a_task_that_is_gone)
{
    struct shelf shelf;
    kl_task tasks[3];
    size_t count = 0;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    kl_entry entries[8];
    kl__history_row rows[8];
    for (uint32_t i = 0; i < 8; i++) {
        entries[i] = shelf_entry(i + 1, NULL);
        rows[i] = shelf_row(&entries[i], KL_DONE, 1, NULL);
        rows[i].finished_ms = SHELF_MS; /* all in one millisecond */
    }
    CHECK_OK(kl__history_add(shelf.history, rows, 8, 8));
    kl_find find = {.max = 3};
    CHECK_OK(kl__history_find(shelf.history, &find, &shelf.arena, tasks, &count));
    REQUIRE(count == 3);
    kl_task last = tasks[2];
    CHECK_OK(kl__history_forget(shelf.history, (kl_place){1, 2}, &last.entry.id, 1));
    find.after = &last;
    CHECK_STR(shelf_find(&shelf, find, 3), "5 4 3 2 1");
    last.position = 0; /* one who knows only id and time may see some again, and misses none */
    CHECK_STR(shelf_find(&shelf, find, 3), "8 7 5 4 3 2 1");
    last.position = 1000;
    CHECK_STR(shelf_find(&shelf, find, 3), "8 7 5 4 3 2 1");
    shelf_free(&shelf);
}

TEST(a_page_goes_on_behind_a_task_that_was_finished_anew)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t i = 1; i <= 6; i++)
        shelf_add(&shelf, i, KL_DONE, NULL, NULL);
    kl_task last = shelf_read(&shelf, 4);
    kl_entry entry = shelf_entry(4, NULL);
    kl__history_row row = shelf_row(&entry, KL_DONE, 2, NULL);
    row.finished_ms = SHELF_MS + 100;
    CHECK_OK(kl__history_add(shelf.history, &row, 1, 7));
    CHECK_STR(shelf_find(&shelf, (kl_find){.after = &last}, 3), "3 2 1");
    shelf_free(&shelf);
}

/* ---- Forgetting ---- */

TEST(forgotten_tasks_are_gone_from_everywhere)
{
    struct shelf shelf;
    uint64_t done = 9, dead = 9, cancelled = 9;
    kl_task_id ids[] = {shelf_id(2), shelf_id(77), shelf_id(3)};
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DONE, "k", NULL);
    shelf_retry(&shelf, 2, 1, "word");
    shelf_add(&shelf, 2, KL_DEAD, "k", "word");
    shelf_add(&shelf, 3, KL_CANCELLED, "k", "word");
    CHECK_OK(kl__history_forget(shelf.history, (kl_place){1, 2}, ids, 3));
    CHECK_STR(shelf_find(&shelf, (kl_find){.key = kl_str("k")}, 10), "1");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("word")}, 10), "");
    CHECK_INT(shelf_read(&shelf, 2).state, KL_TASK_UNKNOWN);
    CHECK_OK(kl__history_counts(shelf.history, 1, NULL, &done, &dead, &cancelled));
    CHECK_INT(done, 1);
    CHECK_INT(dead, 0);
    CHECK_INT(cancelled, 0);
    CHECK_STR(shelf_sql(&shelf, "select count(*) from attempts"), "0");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(trim_forgets_what_has_expired_in_steps)
{
    struct shelf shelf;
    size_t trimmed = 99;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t i = 1; i <= 20; i++) /* each expires a second after it was finished */
        shelf_add(&shelf, i, KL_DONE, NULL, i % 2 ? "odd" : NULL);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 1000, 5, false, &trimmed));
    CHECK_INT(trimmed, 0);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 1008, 5, false, &trimmed));
    CHECK_INT(trimmed, 5);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 1008, 5, false, &trimmed));
    CHECK_INT(trimmed, 3);
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("odd")}, 10), "19 17 15 13 11 9");
    CHECK_STR(shelf_sql(&shelf, "select count(*) from attempts"), "6");
    CHECK_OK(kl__history_trim(shelf.history, INT64_MAX, 100, false, &trimmed));
    CHECK_INT(trimmed, 12);
    CHECK_STR(shelf_sql(&shelf, "select (select count(*) from segments) || (select count(*) from blocks)"), "00");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(trim_forgets_the_earliest_of_what_is_too_many)
{
    struct shelf shelf;
    size_t trimmed = 99;
    shelf_new(&shelf);
    shelf_close(&shelf);
    shelf.rows_max = 5;
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t i = 1; i <= 12; i++)
        shelf_add(&shelf, i, KL_DONE, NULL, NULL);
    CHECK_OK(kl__history_trim(shelf.history, 0, 4, false, &trimmed));
    CHECK_INT(trimmed, 4);
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 10), "12 11 10 9 8 7 6 5");
    CHECK_OK(kl__history_trim(shelf.history, 0, 100, false, &trimmed));
    CHECK_INT(trimmed, 3);
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 10), "12 11 10 9 8");
    shelf_free(&shelf);
}

TEST(a_shorter_age_holds_for_what_is_kept_already)
{
    struct shelf shelf;
    size_t trimmed = 99;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t i = 1; i <= 12; i++) /* each expires a second after it was finished */
        shelf_add(&shelf, i, KL_DONE, NULL, i % 2 ? "odd" : NULL);
    shelf_retry(&shelf, 13, 1, "retried");
    shelf_retry(&shelf, 20, 1, "retried");
    shelf_close(&shelf);
    shelf.ms_max = 100;
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 100, 5, false, &trimmed));
    CHECK_INT(trimmed, 0);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 108, 5, false, &trimmed));
    CHECK_INT(trimmed, 5);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 108, 5, false, &trimmed));
    CHECK_INT(trimmed, 3);
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 10), "12 11 10 9");
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 113, 100, false, &trimmed));
    CHECK_INT(trimmed, 5); /* with the error of one that is not finished */
    CHECK_STR(shelf_sql(&shelf, "select group_concat(expires_ms - finished_ms) from attempts"), "100");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(errors_of_a_task_that_was_not_kept_go_when_they_expire)
{
    struct shelf shelf;
    size_t trimmed = 99;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_retry(&shelf, 1, 1, "alpha");
    shelf_retry(&shelf, 2, 1, "beta");
    shelf_retry(&shelf, 2, 2, "beta");
    kl_entry entry = shelf_entry(2, NULL);
    kl__history_row row = shelf_row(&entry, KL_DONE, 3, NULL);
    row.expires_ms = INT64_MAX;
    CHECK_OK(kl__history_add(shelf.history, &row, 1, 3));
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 1002, 10, false, &trimmed));
    CHECK_INT(trimmed, 1);
    CHECK_STR(shelf_sql(&shelf, "select count(*) from attempts"), "2"); /* these go with their task */
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("beta")}, 10), "2");
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 1002, 10, false, &trimmed));
    CHECK_INT(trimmed, 0);
    shelf_free(&shelf);
}

TEST(trim_that_finds_nothing_writes_nothing)
{
    struct shelf shelf;
    size_t trimmed = 99;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DONE, NULL, NULL);
    char wal[96];
    snprintf(wal, sizeof wal, "%s-wal", shelf.path);
    FILE *file = fopen(wal, "rb");
    REQUIRE(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    CHECK_OK(kl__history_trim(shelf.history, SHELF_MS, 10, false, &trimmed));
    CHECK_INT(trimmed, 0);
    fseek(file, 0, SEEK_END);
    CHECK_INT(ftell(file), size);
    fclose(file);
    shelf_free(&shelf);
}

/* ---- The file ---- */

TEST(other_programs_see_names_uuids_and_dates)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    CHECK_OK(kl__history_name(shelf.history, 1, "orders"));
    shelf_retry(&shelf, 500, 1, "first");
    shelf_add(&shelf, 500, KL_DEAD, "customer", "second");
    CHECK_STR(shelf_sql(&shelf, "select partition || '|' || id || '|' || state || '|' || finished || '|' || key || '|'"
                                " || error || '|' || coalesce(job, 'none') from tasks_view"),
              "orders|12340000-0000-0000-0000-0000000001f4|dead|2023-11-14 22:13:20.500|customer|second|none");
    CHECK_STR(shelf_sql(&shelf, "select group_concat(partition || attempt || error) from attempts_view"),
              "orders1first,orders2second");
    CHECK_STR(shelf_sql(&shelf, "select typeof(key) || typeof(payload) from tasks"), "textblob");
    CHECK_STR(shelf_sql(&shelf, "pragma integrity_check"), "ok");
    CHECK_STR(shelf_sql(&shelf, "pragma journal_mode"), "wal");
    shelf_free(&shelf);
}

TEST(a_name_that_is_there_already_needs_no_transaction)
{
    struct shelf shelf;
    sqlite3 *db = NULL;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    CHECK_OK(kl__history_name(shelf.history, 1, "orders"));
    REQUIRE(sqlite3_open(shelf.path, &db) == SQLITE_OK);
    CHECK_INT(sqlite3_exec(db, "begin immediate", NULL, NULL, NULL), SQLITE_OK); /* no other can write */
    CHECK_OK(kl__history_name(shelf.history, 1, "orders"));
    sqlite3_close(db);
    CHECK_OK(kl__history_name(shelf.history, 2, "orders"));
    CHECK_OK(kl__history_name(shelf.history, 1, "order"));
    CHECK_STR(shelf_sql(&shelf, "select group_concat(number || name) from partitions"), "1order,2orders");
    shelf_free(&shelf);
}

TEST(a_program_that_reads_for_long_holds_nobody_up)
{
    struct shelf shelf;
    sqlite3 *db = NULL;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DONE, NULL, NULL);
    REQUIRE(sqlite3_open(shelf.path, &db) == SQLITE_OK);
    CHECK_INT(sqlite3_exec(db, "begin; select * from tasks", NULL, NULL, NULL), SQLITE_OK);
    shelf_add(&shelf, 2, KL_DONE, NULL, NULL);
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 10), "2 1");
    sqlite3_close(db);
    shelf_free(&shelf);
}

static void check_refused(struct shelf *shelf, const char *why)
{
    kl__history *history = NULL;
    CHECK_INT(kl__history_open(shelf->path, NULL, 1, INT64_MAX, &history), KL_EDAMAGED);
    CHECK(!history);
    CHECK_CONTAINS(kl_error_text(), why);
    CHECK_CONTAINS(kl_error_text(), shelf->path);
}

TEST(a_file_that_is_not_ours_is_refused_and_left_alone)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DONE, NULL, NULL);
    shelf_close(&shelf);
    shelf_sql(&shelf, "pragma user_version = 2");
    check_refused(&shelf, "a newer Keyline");
    shelf_sql(&shelf, "pragma user_version = 0");
    check_refused(&shelf, "keyline doctor");
    shelf_sql(&shelf, "pragma user_version = 1");
    shelf_sql(&shelf, "pragma application_id = 17");
    check_refused(&shelf, "of another program (application_id 17");
    shelf_sql(&shelf, "pragma application_id = 1263298665");
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    CHECK_STR(shelf_find(&shelf, (kl_find){0}, 10), "1");
    shelf_free(&shelf);
}

TEST(a_table_that_was_altered_is_noticed_and_one_that_was_added_is_no_harm)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DONE, "k", NULL);
    shelf_close(&shelf);
    shelf_sql(&shelf, "create index mine on tasks(kind)");
    shelf_sql(&shelf, "create table notes(text)");
    shelf_sql(&shelf, "analyze");
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 2, KL_DONE, "k", NULL);
    CHECK_STR(shelf_find(&shelf, (kl_find){.key = kl_str("k")}, 10), "2 1");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_close(&shelf);
    shelf_sql(&shelf, "alter table tasks add column remark");
    check_refused(&shelf, "not as this version makes it");
    shelf_free(&shelf);
}

TEST(a_file_that_is_no_database_is_damaged)
{
    struct shelf shelf;
    shelf_new(&shelf);
    shelf_close(&shelf);
    FILE *file = fopen(shelf.path, "wb");
    REQUIRE(file);
    for (int i = 0; i < 1000; i++)
        fputs("this is not a database\n", file);
    fclose(file);
    check_refused(&shelf, "keyline doctor");
    shelf_free(&shelf);
}

TEST(a_directory_that_is_not_there_is_an_error_of_the_system)
{
    kl__history *history = NULL;
    CHECK_INT(kl__history_open("/nowhere/at/all/history.db", NULL, 1, INT64_MAX, &history), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "/nowhere/at/all/history.db");
    CHECK_CONTAINS(kl_error_text(), "No such file");
    CHECK(!history);
}

TEST(a_path_is_not_taken_for_a_uri)
{
    char back[256];
    struct shelf shelf;
    shelf_new(&shelf);
    shelf_close(&shelf);
    REQUIRE(getcwd(back, sizeof back) && chdir(shelf.dir) == 0);
    CHECK_OK(kl__history_open("file:history.db?mode=memory", NULL, 1, INT64_MAX, &shelf.history));
    CHECK_INT(access("file:history.db?mode=memory", R_OK), 0);
    shelf_close(&shelf);
    unlink("file:history.db?mode=memory");
    REQUIRE(chdir(back) == 0);
    shelf_free(&shelf);
}
