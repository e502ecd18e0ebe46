/* test_server_jobs.c - jobs and schedules by HTTP: submits that are repeated, progress, results, times. */
#include "harness.h"
#include "server_rig.h"

static const char jobs[] = "/v1/queues/invoices/jobs";
static const char body[] =
    "{\"name\": \"november\", \"tasks\": [{\"key\": \"a\", \"payload\": \"1\"}, {\"payload\": {\"n\": 2}}]}";

static struct answer submit(struct server *server, const char *text, const char *key)
{
    char field[600];
    const char *fields[] = {field, NULL};
    snprintf(field, sizeof field, "Idempotency-Key: %s", key ? key : "");
    return server_ask(server, "POST", jobs, text, key ? fields : NULL);
}

TEST(a_submit_that_is_repeated_gets_the_same_bytes_and_stores_nothing)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct answer first = submit(&server, body, "k-1"), again = submit(&server, body, "\"k-1\"");
    CHECK_INT(first.status, 201);
    CHECK_INT(answer_number(&first, "tasks"), 2);
    CHECK_STR(answer_text(&first, "queue"), "invoices");
    CHECK(!strcasestr(first.headers, "idempotent-replayed"));
    CHECK_INT(again.status, 201);
    CHECK_STR(again.body, first.body);
    CHECK(strcasestr(again.headers, "idempotent-replayed: true\r\n"));
    struct answer list = server_ask(&server, "GET", jobs, NULL, NULL);
    CHECK_INT(json_array_size(json_object_get(list.json, "items")), 1);
    answer_free(&list);
    answer_free(&first);
    answer_free(&again);
    server_close(&server);
}

TEST(an_idempotency_key_with_another_body_is_refused_with_422)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct answer first = submit(&server, body, "k"), other = submit(&server, "{\"tasks\": []}", "k");
    /* the same JSON in other bytes is another body: what is compared is what was sent */
    struct answer spaced = submit(&server, " {\"name\": \"november\", \"tasks\": []}", "k");
    CHECK_INT(first.status, 201);
    CHECK_INT(other.status, 422);
    CHECK_STR(answer_text(&other, "type"), "/problems/mismatch");
    CHECK_INT(spaced.status, 422);
    answer_free(&first);
    answer_free(&other);
    answer_free(&spaced);
    server_close(&server);
}

/* Makes the kept answer of the one submit that there was look as if it were still under way. */
static bool make_unfinished(kl_store *store)
{
    kl_arena arena = {0};
    kl_record record;
    size_t count = 0;
    int64_t now_ms = 0;
    kl_bytes text;
    if (kl_store_list(store, kl_str("idempotency/"), kl_str(""), 1, &arena, &record, &count) != KL_OK || count != 1 ||
        kl_store_now(store, &now_ms) != KL_OK)
        return false;
    json_t *claim = json_loadb(record.value.data, record.value.len, 0, NULL);
    json_object_set_new(claim, "state", json_string("claimed"));
    json_object_set_new(claim, "until_ms", json_integer(now_ms + 30000));
    bool made = kl__json_print(claim, &arena, &text) == KL_OK;
    kl_write write = {.name = record.name, .version = record.version, .value = text, .expires_ms = record.expires_ms};
    made = made && kl_store_put(store, &write, 1) == KL_OK;
    json_decref(claim);
    kl_arena_free(&arena);
    return made;
}

TEST(a_submit_that_is_under_way_is_409_with_retry_after)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct answer first = submit(&server, body, "k");
    CHECK_INT(first.status, 201);
    CHECK(make_unfinished(server.store));
    struct answer again = submit(&server, body, "k");
    CHECK_INT(again.status, 409);
    CHECK_STR(answer_text(&again, "type"), "/problems/in-flight");
    CHECK(strcasestr(again.headers, "retry-after: 1\r\n"));
    answer_free(&first);
    answer_free(&again);
    server_close(&server);
}

TEST(submits_without_a_key_are_each_a_job)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct answer first = submit(&server, body, NULL), second = submit(&server, body, NULL);
    CHECK_INT(first.status, 201);
    CHECK_INT(second.status, 201);
    CHECK(strcmp(answer_text(&first, "job"), answer_text(&second, "job")) != 0);
    answer_free(&first);
    answer_free(&second);
    server_close(&server);
}

TEST(what_is_wrong_with_a_submit_is_named_and_nothing_is_stored)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"[]", "object"},
        {"{\"task\": []}", "tasks"},
        {"{\"tasks\": [{}, {\"prioritiy\": 1}]}", "task 2"},
        {"{\"tasks\": 7}", "tasks"},
        {"{\"in\": \"5\"}", "in"},
        {"{\"in\": \"5s\", \"at\": \"2030-01-01T00:00:00Z\"}", "keep one of the two"},
        {"{\"keep\": \"-1s\"}", "keep"},
        {"{\"at\": \"soon\"}", "at"},
    };
    struct server server;
    if (!server_open(&server, NULL))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct answer answer = submit(&server, rows[i].text, "same");
        if (answer.status != 400)
            test_fail(__FILE__, __LINE__, "%s is answered with %ld", rows[i].text, answer.status);
        CHECK_CONTAINS(answer_text(&answer, "detail"), rows[i].part);
        answer_free(&answer);
    }
    struct answer empty = submit(&server, body, ""), list = server_ask(&server, "GET", jobs, NULL, NULL);
    CHECK_INT(json_array_size(json_object_get(list.json, "items")), empty.status == 201);
    answer_free(&empty);
    answer_free(&list);
    server_close(&server);
}

TEST(a_key_that_is_too_long_is_refused)
{
    struct server server;
    char key[300];
    if (!server_open(&server, NULL))
        return;
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    struct answer answer = submit(&server, body, key);
    CHECK_INT(answer.status, 400);
    CHECK_CONTAINS(answer_text(&answer, "detail"), "Idempotency-Key");
    answer_free(&answer);
    server_close(&server);
}

/* Claims one task and finishes it. */
static void finish_one(struct server *server)
{
    char text[256];
    struct answer claim = server_ask(server, "POST", "/v1/queues/invoices/claim", "{\"wait_ms\": 30000}", NULL);
    const json_t *task = json_array_get(json_object_get(claim.json, "items"), 0);
    const char *token = json_string_value(json_object_get(task, "token"));
    snprintf(text, sizeof text, "{\"token\": \"%s\", \"result\": \"fine\"}", token ? token : "");
    server_do(server, "POST", "/v1/queues/invoices/finish", text, 200);
    answer_free(&claim);
}

TEST(a_job_is_followed_to_its_end_and_run_again)
{
    struct server server;
    char path[128], results[160];
    if (!server_open(&server, NULL))
        return;
    struct answer made = submit(&server, body, NULL);
    snprintf(path, sizeof path, "%s/%s", jobs, answer_text(&made, "job"));
    snprintf(results, sizeof results, "%s/results?max=1", path);
    struct answer job = server_ask(&server, "GET", path, NULL, NULL);
    CHECK_STR(answer_text(&job, "state"), "running");
    CHECK_STR(answer_text(&job, "name"), "november");
    CHECK_INT(answer_number(&job, "waiting"), 2);
    answer_free(&job);
    finish_one(&server);
    finish_one(&server);
    job = server_ask(&server, "GET", path, NULL, NULL);
    CHECK_STR(answer_text(&job, "state"), "finished");
    CHECK_INT(answer_number(&job, "done"), 2);
    answer_free(&job);

    struct answer page = server_ask(&server, "GET", results, NULL, NULL);
    const json_t *first = json_array_get(json_object_get(page.json, "items"), 0);
    CHECK_INT(json_array_size(json_object_get(page.json, "items")), 1);
    CHECK_STR(json_string_value(json_object_get(first, "result")), "fine");
    CHECK(*answer_text(&page, "cursor") != 0);
    snprintf(results, sizeof results, "%s/results?cursor=%s", path, answer_text(&page, "cursor"));
    answer_free(&page);
    page = server_ask(&server, "GET", results, NULL, NULL);
    CHECK_INT(json_array_size(json_object_get(page.json, "items")), 1);
    CHECK(json_is_null(json_object_get(page.json, "cursor")));
    answer_free(&page);

    snprintf(results, sizeof results, "%s/rerun", path);
    struct answer again = server_ask(&server, "POST", results, "{}", NULL);
    CHECK_INT(again.status, 200);
    CHECK_INT(answer_number(&again, "tasks"), 2);
    answer_free(&again);
    snprintf(results, sizeof results, "%s/tasks", path);
    server_do(&server, "POST", results, "{\"tasks\": [{\"payload\": \"3\"}]}", 201);
    snprintf(results, sizeof results, "%s/cancel", path);
    server_do(&server, "POST", results, NULL, 200);
    snprintf(results, sizeof results, "%s/tasks", path);
    server_do(&server, "POST", results, "{\"tasks\": [{\"payload\": \"4\"}]}", 409);
    server_do(&server, "DELETE", path, NULL, 200);
    server_do(&server, "GET", path, NULL, 404);
    answer_free(&made);
    server_close(&server);
}

TEST(jobs_are_listed_page_by_page)
{
    struct server server;
    char path[256];
    size_t seen = 0;
    if (!server_open(&server, NULL))
        return;
    for (int i = 0; i < 5; i++)
        server_do(&server, "POST", jobs, "{\"tasks\": []}", 201);
    snprintf(path, sizeof path, "%s?max=2", jobs);
    for (int pages = 0; *path && pages < 5; pages++) {
        struct answer page = server_ask(&server, "GET", path, NULL, NULL);
        CHECK_INT(page.status, 200);
        seen += json_array_size(json_object_get(page.json, "items"));
        if (*answer_text(&page, "cursor"))
            snprintf(path, sizeof path, "%s?max=2&cursor=%s", jobs, answer_text(&page, "cursor"));
        else
            *path = 0;
        answer_free(&page);
    }
    CHECK_INT(seen, 5);
    CHECK_STR(path, "");
    server_do(&server, "GET", "/v1/queues/invoices/jobs?cursor=x", NULL, 400);
    server_do(&server, "GET", "/v1/queues/invoices/jobs?limit=2", NULL, 400);
    server_close(&server);
}

/* ---- Schedules ---- */

static const char nightly[] = "/v1/queues/reports/schedules/nightly";

TEST(a_schedule_is_put_listed_paused_run_and_removed)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    server_do(
        &server, "PUT", nightly,
        "{\"when\": \"0 3 * * *\", \"zone\": \"Europe/Zurich\", \"kind\": \"report\", \"payload\": {\"all\": true}, "
        "\"priority\": -2, \"tags\": [\"x\"], \"headers\": {\"a\": \"b\"}, \"catch_up\": \"all\"}",
        200);
    server_do(&server, "POST", "/v1/queues/reports/schedules/nightly/pause", NULL, 200);
    struct answer list = server_ask(&server, "GET", "/v1/queues/reports/schedules", NULL, NULL);
    const json_t *one = json_array_get(json_object_get(list.json, "items"), 0);
    CHECK_STR(json_string_value(json_object_get(one, "schedule")), "nightly");
    CHECK_STR(json_string_value(json_object_get(one, "state")), "paused");
    CHECK_STR(json_string_value(json_object_get(one, "zone")), "Europe/Zurich");
    CHECK_STR(json_string_value(json_object_get(one, "catch_up")), "all");
    CHECK_STR(json_string_value(json_object_get(one, "payload")), "{\"all\":true}");
    CHECK_INT(json_integer_value(json_object_get(one, "priority")), -2);
    CHECK_INT(json_array_size(json_object_get(one, "tags")), 1);
    CHECK(json_is_null(json_object_get(one, "last")));
    struct answer shown = server_ask(&server, "GET", nightly, NULL, NULL);
    CHECK_INT(shown.status, 200);
    CHECK(json_equal(shown.json, one));
    answer_free(&shown);
    answer_free(&list);
    server_do(&server, "POST", "/v1/queues/reports/schedules/nightly/resume", NULL, 200);
    struct answer run = server_ask(&server, "POST", "/v1/queues/reports/schedules/nightly/run", NULL, NULL);
    char path[128];
    snprintf(path, sizeof path, "/v1/queues/reports/tasks/%s", answer_text(&run, "id"));
    server_do(&server, "GET", path, NULL, 200);
    answer_free(&run);
    server_do(&server, "DELETE", nightly, NULL, 200);
    server_do(&server, "DELETE", nightly, NULL, 404);
    server_do(&server, "GET", nightly, NULL, 404);
    server_close(&server);
}

TEST(what_is_wrong_with_a_schedule_is_named)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"{}", "when"},
        {"{\"when\": \"61 * * * *\"}", "61"},
        {"{\"when\": \"@daily\", \"zone\": \"Nowhere/Else\"}", "Nowhere/Else"},
        {"{\"when\": \"@daily\", \"catch_up\": \"some\"}", "catch_up"},
        {"{\"when\": \"@daily\", \"in\": \"5s\"}", "in"},
        {"{\"when\": \"@daily\", \"priority\": 99}", "priority"},
        {"{\"when\": 5}", "when"},
    };
    struct server server;
    if (!server_open(&server, NULL))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct answer answer = server_ask(&server, "PUT", nightly, rows[i].text, NULL);
        if (answer.status != 400)
            test_fail(__FILE__, __LINE__, "%s is answered with %ld", rows[i].text, answer.status);
        CHECK_CONTAINS(answer_text(&answer, "detail"), rows[i].part);
        answer_free(&answer);
    }
    server_do(&server, "PUT", "/v1/queues/reports/schedules/not%2Fthat", "{\"when\": \"@daily\"}", 400);
    server_do(&server, "POST", "/v1/queues/reports/schedules/none/run", NULL, 404);
    server_close(&server);
}
