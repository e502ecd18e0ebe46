/* test_server_tasks.c - the data path over HTTP: put, claim, finish and the rest; and several servers on one store. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "keyline/worker.h"
#include "net/forward.h"
#include "net/plain.h"
#include "net/server_rig.h"

#define ORDERS "/v1/queues/orders"

/* Puts with this body and type, and checks the status. */
static struct answer put_as(struct server *server, const char *type, const char *query, const char *body, int status)
{
    char field[128], path[256];
    const char *fields[] = {field, NULL};
    snprintf(field, sizeof field, "Content-Type: %s", type);
    snprintf(path, sizeof path, ORDERS "/tasks%s", query);
    struct answer answer = server_ask(server, "POST", path, body, fields);
    CHECK_INT(answer.status, status);
    return answer;
}

static void put(struct server *server, const char *body)
{
    struct answer answer = put_as(server, "application/json", "", body, 201);
    answer_free(&answer);
}

/* Claims up to `max`; the i-th task's field. */
static struct answer claim(struct server *server, const char *body)
{
    struct answer answer = server_ask(server, "POST", ORDERS "/claim", body, NULL);
    CHECK_INT(answer.status, 200);
    return answer;
}

static size_t claimed(const struct answer *answer) { return json_array_size(json_object_get(answer->json, "items")); }

static const char *task_text(const struct answer *answer, size_t index, const char *field)
{
    const char *text =
        json_string_value(json_object_get(json_array_get(json_object_get(answer->json, "items"), index), field));
    return text ? text : "";
}

static int say_token(struct server *server, const char *route, const char *token, const char *more)
{
    char path[128], body[512];
    snprintf(path, sizeof path, ORDERS "/%s", route);
    snprintf(body, sizeof body, "{\"token\": \"%s\"%s}", token, more);
    struct answer answer = server_ask(server, "POST", path, body, NULL);
    int status = (int)answer.status;
    answer_free(&answer);
    return status;
}

/* The lease_until that is answered, for strcmp: all have the same form. */
static void say_until(struct server *server, const char *route, const char *token, const char *more, char ret_until[40])
{
    char path[128], body[512];
    snprintf(path, sizeof path, ORDERS "/%s", route);
    snprintf(body, sizeof body, "{\"token\": \"%s\"%s}", token, more);
    struct answer answer = server_ask(server, "POST", path, body, NULL);
    CHECK_INT(answer.status, 200);
    snprintf(ret_until, 40, "%s", answer_text(&answer, "lease_until"));
    answer_free(&answer);
}

/* Claims one task, checks its payload, and says this of it. */
static void claim_and(struct server *server, const char *payload, const char *route, const char *more)
{
    struct answer answer = claim(server, "{\"wait_ms\": 10000}");
    CHECK_STR(task_text(&answer, 0, "payload"), payload);
    CHECK_INT(say_token(server, route, task_text(&answer, 0, "token"), more), 200);
    answer_free(&answer);
}

TEST(every_form_of_a_put_stores_the_same_task)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct answer answer = put_as(&server, "application/json", "", "{\"key\": \"k\", \"payload\": \"one\"}", 201);
    CHECK_INT(strlen(answer_text(&answer, "id")), 36);
    answer_free(&answer);
    put(&server,
        "{\"tasks\": [{\"key\": \"k\", \"payload\": \"two\"}, {\"key\": \"k\", \"payload\": \"th\\u0072ee\"}]}");
    answer = put_as(&server, "application/x-ndjson", "",
                    "{\"key\": \"k\", \"payload\": \"four\"}\n\n{\"key\":\"k\",\"payload\":"
                    "\"five\"}\n",
                    201);
    CHECK_INT(json_array_size(json_object_get(answer.json, "items")), 2);
    answer_free(&answer);
    answer = put_as(&server, "application/octet-stream", "?key=k&priority=3", "si\x01x", 201);
    answer_free(&answer);
    static const char *const payloads[] = {"one", "two", "three", "four", "five", "si\x01x"};
    for (size_t i = 0; i < 6; i++)
        claim_and(&server, payloads[i], "finish", "");
    server_close(&server);
}

TEST(a_put_that_is_not_valid_stores_nothing_and_harms_no_other)
{
    static const char *const bad[] = {
        "",
        "{\"tasks\": {}}",
        "{\"tasks\": []}",
        "{\"tasks\": [{\"payload\": \"a\"}], \"more\": 1}",
        "{\"tasks\": [{\"payload\": \"a\"}, {\"priority\": 99}]}",
        "{\"payload\": \"a\", \"colour\": \"red\"}",
        "{\"payload\": \"a\", \"payload\": \"b\"}",
        "{\"payload\": \"a\"",
        "{\"payload\": \"a\"} x",
        "{\"priority\": \"high\"}",
        "[]",
        "{\"key\": 7}",
    };
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"payload\": \"good\"}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct answer answer = put_as(&server, "application/json", "", bad[i], 400);
        CHECK(strlen(answer_text(&answer, "detail")) > 10);
        answer_free(&answer);
    }
    struct answer answer = server_ask(&server, "GET", ORDERS, NULL, NULL);
    CHECK_INT(answer_number(&answer, "ready"), 1);
    answer_free(&answer);
    server_close(&server);
}

TEST(what_is_refused_makes_no_queue)
{
    static const struct {
        const char *method, *route, *wrong;
    } rows[] = {{"POST", "tasks", "{\"priority\": 99}"},
                {"POST", "claim", NULL},
                {"POST", "jobs", "{\"tasks\": [{\"priority\": 99}]}"},
                {"PUT", "schedules/nightly", "{\"when\": \"0 3 * *\"}"}};
    struct server server;
    char path[128];
    if (!server_open(&server, NULL))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(path, sizeof path, "/v1/queues/q%zu/%s", i, rows[i].route);
        server_do(&server, rows[i].method, path, "{\"nonsense\": 1", 400);
        server_do(&server, rows[i].method, path, "{\"nonsense\": 1}", 400);
        if (rows[i].wrong)
            server_do(&server, rows[i].method, path, rows[i].wrong, 400);
        snprintf(path, sizeof path, "/v1/queues/q%zu", i);
        server_do(&server, "GET", path, NULL, 404);
    }
    server_do(&server, "POST", "/v1/queues/q0/tasks", "{\"payload\": \"x\"}", 201);
    server_do(&server, "GET", "/v1/queues/q0", NULL, 200);
    server_close(&server);
}

TEST(a_stale_token_is_refused_and_changes_nothing)
{
    struct server server;
    char token[128];
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"key\": \"k\", \"payload\": \"x\"}");
    struct answer answer = claim(&server, "{\"wait_ms\": 10000}");
    snprintf(token, sizeof token, "%s", task_text(&answer, 0, "token"));
    answer_free(&answer);
    CHECK_INT(say_token(&server, "release", token, ""), 200);
    static const char *const routes[] = {"finish", "fail", "extend", "release", "progress"};
    for (size_t i = 0; i < 5; i++) {
        CHECK_INT(say_token(&server, routes[i], token, ""), 409);
        CHECK_INT(say_token(&server, routes[i], "no-such-token", ""), 409);
    }
    answer = claim(&server, "{\"wait_ms\": 10000}"); /* it is still there, and its attempt was not counted */
    CHECK_STR(task_text(&answer, 0, "payload"), "x");
    json_t *first = json_array_get(json_object_get(answer.json, "items"), 0);
    CHECK_INT(json_integer_value(json_object_get(first, "attempt")), 1);
    answer_free(&answer);
    server_close(&server);
}

TEST(a_task_that_fails_is_tried_again_and_then_dead)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"payload\": \"x\", \"attempts\": 2}");
    claim_and(&server, "x", "fail", ", \"error\": \"first\", \"retry_after_ms\": 0");
    claim_and(&server, "x", "fail", ", \"error\": \"second\", \"retry_after_ms\": 0");
    put(&server, "{\"payload\": \"y\"}");
    claim_and(&server, "y", "fail", ", \"error\": \"never\", \"dead\": true");
    struct answer answer = server_ask(&server, "GET", ORDERS "/dead", NULL, NULL);
    CHECK_INT(json_array_size(json_object_get(answer.json, "items")), 2);
    CHECK(strstr(answer.body, "second") && strstr(answer.body, "never"));
    answer_free(&answer);
    server_close(&server);
}

/* What a fail is answered with is what became of the task, which the queue's policy decides as well. */
TEST(a_fail_says_what_became_of_the_task)
{
    static const struct {
        const char *policy, *attempts, *outcome;
    } rows[] = {{"continue", "2", "retry"}, {"continue", "1", "dead"}, {"halt", "1", "halted"}, {"drain", "1", "dead"}};
    struct asking rig;
    if (!asking_open(&rig, NULL))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256], queue[32], path[64];
        snprintf(queue, sizeof queue, "/v1/queues/q%zu", i);
        snprintf(body, sizeof body, "{\"queue\": \"q%zu\", \"head_policy\": \"%s\", \"attempts\": %s}", i,
                 rows[i].policy, rows[i].attempts);
        CHECK_INT(asking_say(&rig, "POST", "/v1/queues", body), 201);
        snprintf(path, sizeof path, "%s/tasks", queue);
        CHECK_INT(asking_say(&rig, "POST", path, "{\"key\": \"k\"}"), 201);
        snprintf(path, sizeof path, "%s/claim", queue);
        CHECK_INT(asking_say(&rig, "POST", path, "{\"wait_ms\": 30000}"), 200);
        snprintf(body, sizeof body, "{\"token\": \"%s\"}", asking_field(&rig, "items.0.token"));
        snprintf(path, sizeof path, "%s/fail", queue);
        CHECK_INT(asking_say(&rig, "POST", path, body), 200);
        CHECK_STR(asking_field(&rig, "outcome"), rows[i].outcome);
    }
    asking_close(&rig);
}

TEST(a_claim_and_a_finish_may_be_raw)
{
    static const char *const raw[] = {"Accept: application/octet-stream", NULL};
    char token[160];
    const char *finish[] = {"Content-Type: application/octet-stream", token, NULL};
    struct server server;
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\", \"keep_done_ms\": 3600000}", 201);
    struct answer answer = server_ask(&server, "POST", ORDERS "/claim", "{}", raw);
    CHECK_INT(answer.status, 204);
    answer_free(&answer);
    answer = put_as(&server, "application/octet-stream", "?key=a%20b&kind=c", "raw bytes", 201);
    answer_free(&answer);
    answer = server_ask(&server, "POST", ORDERS "/claim", "{\"wait_ms\": 10000}", raw);
    REQUIRE(answer.status == 200 && answer.body != NULL);
    CHECK_STR(answer.body, "raw bytes");
    CHECK_CONTAINS(answer.headers, "keyline-key: a%20b\r\n");
    const char *at = strstr(answer.headers, "keyline-token: ");
    REQUIRE(at != NULL);
    snprintf(token, sizeof token, "%.*s", (int)strcspn(at, "\r"), at);
    answer_free(&answer);
    answer = server_ask(&server, "POST", ORDERS "/finish", "the result", finish);
    CHECK_INT(answer.status, 200);
    answer_free(&answer);
    answer = server_ask(&server, "GET", ORDERS "/tasks?state=done", NULL, NULL);
    CHECK_CONTAINS(answer.body, "\"result\":\"the result\"");
    answer_free(&answer);
    server_close(&server);
}

TEST(batches_say_of_each_task_what_became_of_it)
{
    struct server server;
    char body[1024];
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"tasks\": [{\"payload\": \"a\"}, {\"payload\": \"b\"}]}");
    struct answer answer = claim(&server, "{\"max\": 10, \"wait_ms\": 10000}");
    REQUIRE(claimed(&answer) == 2);
    snprintf(body, sizeof body,
             "{\"items\": [{\"token\": \"%s\"}, {\"token\": \"stale\"}, {\"token\": \"%s\", \"result\": \"r\"}]}",
             task_text(&answer, 0, "token"), task_text(&answer, 1, "token"));
    struct answer said = server_ask(&server, "POST", ORDERS "/finish", body, NULL);
    CHECK_INT(said.status, 200);
    json_t *items = json_object_get(said.json, "items");
    CHECK_STR(json_string_value(json_object_get(json_array_get(items, 0), "outcome")), "done");
    CHECK_STR(json_string_value(json_object_get(json_array_get(items, 1), "outcome")), "stale");
    CHECK_STR(json_string_value(json_object_get(json_array_get(items, 2), "outcome")), "done");
    answer_free(&said);
    said = server_ask(&server, "POST", ORDERS "/finish", body, NULL);
    CHECK_INT(said.status, 409); /* none of them counts any more */
    answer_free(&said);
    answer_free(&answer);
    server_close(&server);
}

TEST(a_batch_with_a_field_that_is_not_known_does_nothing)
{
    static const char *const bad[] = {
        ", \"resutl\": \"lost\"}]",
        "}], \"token\": \"b\"",
        ", \"items\": []}]",
        ", \"error\": \"of a fail\"}]",
    };
    struct server server;
    char body[512];
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\", \"keep_done_ms\": 3600000}", 201);
    put(&server, "{\"payload\": \"a\"}");
    struct answer given = claim(&server, "{\"wait_ms\": 60000}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(body, sizeof body, "{\"items\": [{\"token\": \"%s\"%s}", task_text(&given, 0, "token"), bad[i]);
        struct answer answer = server_ask(&server, "POST", ORDERS "/finish", body, NULL);
        CHECK_INT(answer.status, 400);
        if (i == 0)
            CHECK_CONTAINS(answer_text(&answer, "detail"),
                           "item 1 of the body: \"resutl\" is no field here; did you mean \"result\"?");
        answer_free(&answer);
    }
    CHECK_INT(say_token(&server, "finish", task_text(&given, 0, "token"), ", \"result\": {\"a\": [1, null]}"), 200);
    snprintf(body, sizeof body, ORDERS "/tasks/%s/result", task_text(&given, 0, "id"));
    struct answer result = server_ask(&server, "GET", body, NULL, NULL);
    CHECK_STR(result.body, "{\"a\":[1,null]}");
    answer_free(&result);
    answer_free(&given);
    server_close(&server);
}

TEST(a_parameter_of_a_raw_put_that_is_there_twice_is_refused)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct answer answer = put_as(&server, "application/octet-stream", "?key=a&key=b", "x", 400);
    CHECK_CONTAINS(answer_text(&answer, "detail"), "key is there twice");
    answer_free(&answer);
    server_close(&server);
}

/* The middle one is of a server that has ended, and the others of this one: they are told apart, and answered
 * together. */
TEST(answers_of_a_batch_stand_in_the_order_of_its_items)
{
    static const char nobodys[] = "nobody00nobody-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"tasks\": [{\"key\": \"a\"}, {\"key\": \"b\"}]}");
    struct answer given = claim(&server, "{\"max\": 2, \"wait_ms\": 60000}");
    REQUIRE(claimed(&given) == 2);
    const char *tokens[] = {nobodys, task_text(&given, 0, "token"), nobodys, task_text(&given, 1, "token")};
    char body[1024], server_name[24];
    CHECK(kl__claim_token_server(kl_str(nobodys), server_name));
    snprintf(body, sizeof body,
             "{\"items\": [{\"token\": \"%s\"}, {\"token\": \"%s\"}, {\"token\": \"%s\"}, {\"token\": \"%s\"}]}",
             tokens[0], tokens[1], tokens[2], tokens[3]);
    struct answer answer = server_ask(&server, "POST", ORDERS "/finish", body, NULL);
    CHECK_INT(answer.status, 200);
    json_t *items = json_object_get(answer.json, "items");
    REQUIRE(json_array_size(items) == 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *item = json_array_get(items, i);
        CHECK_STR(json_string_value(json_object_get(item, "token")), tokens[i]);
        CHECK_STR(json_string_value(json_object_get(item, "outcome")), i % 2 ? "done" : "stale");
    }
    answer_free(&answer);
    answer_free(&given);
    server_close(&server);
}

/* Nobody has claimed of the queue yet, so that its claims have to be started first. */
TEST(a_client_that_has_gone_gets_no_task_of_the_first_claim)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"payload\": \"x\"}");
    char *heard = server_say(&server,
                             "POST " ORDERS "/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                             "Content-Length: 18\r\n\r\n{\"wait_ms\": 60000}",
                             true);
    REQUIRE(heard != NULL);
    CHECK_CONTAINS(heard, "{\"items\":[],\"cursor\":null}");
    free(heard);
    struct answer given = claim(&server, "{\"wait_ms\": 60000}");
    CHECK_INT(claimed(&given), 1);
    answer_free(&given);
    server_close(&server);
}

struct claimer {
    struct server *server;
    pthread_t thread;
    size_t count;
};

static void *claim_one(void *context)
{
    struct claimer *claimer = context;
    struct answer given = claim(claimer->server, "{\"wait_ms\": 60000}");
    claimer->count = claimed(&given);
    answer_free(&given);
    return NULL;
}

/* More than the pool has threads, while the queue's claims are just being started. */
TEST(all_who_are_the_first_to_claim_of_a_queue_are_served)
{
    enum { CLIENTS = 24 };
    struct claimer claimers[CLIENTS];
    struct server server;
    if (!server_open(&server, NULL))
        return;
    for (int i = 0; i < CLIENTS; i++)
        put(&server, "{\"payload\": \"x\"}");
    for (int i = 0; i < CLIENTS; i++) {
        claimers[i] = (struct claimer){.server = &server};
        CHECK_INT(pthread_create(&claimers[i].thread, NULL, claim_one, &claimers[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(claimers[i].thread, NULL);
        CHECK_INT(claimers[i].count, 1);
    }
    server_close(&server);
}

TEST(the_trace_of_a_put_is_kept_with_tasks_that_have_none)
{
    static const char trace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    static const char *const headers[][3] = {
        {"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", NULL, NULL},
        {"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Idempotency-Key: a", NULL},
        {"traceparent: nonsense", NULL, NULL}};
    static const char *const bodies[] = {"{}", "{\"traceparent\": \"own\"}"};
    const char *const kept[][2] = {{trace, "own"}, {"", "own"}, {"", "own"}};
    struct server server;
    if (!server_open(&server, NULL))
        return;
    for (int i = 0; i < 3; i++)
        for (int b = 0; b < (i == 1 ? 1 : 2); b++) {
            struct answer answer = server_ask(&server, "POST", ORDERS "/tasks", bodies[b], headers[i]);
            CHECK_INT(answer.status, 201);
            answer_free(&answer);
            answer = claim(&server, "{\"wait_ms\": 10000}");
            CHECK_STR(task_text(&answer, 0, "traceparent"), kept[i][b]);
            CHECK_INT(say_token(&server, "finish", task_text(&answer, 0, "token"), ""), 200);
            answer_free(&answer);
        }
    server_close(&server);
}

/* Puts of several requests are joined only where a call is stored whole. */
TEST(a_queue_that_gets_stores_of_its_own_is_put_to_apart_from_then_on)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"payload\": \"x\"}");
    kl__open_queue *open = kl__queues_known(server.api, "orders");
    REQUIRE(open != NULL);
    CHECK(!kl__queues_apart(open));
    server_do(&server, "PATCH", ORDERS, "{\"partitions\": 2, \"partition_stores\": [\"\", \"memory:\"]}", 200);
    CHECK(kl__queues_apart(open));
    kl__queues_leave(open);
    put(&server, "{\"payload\": \"y\"}");
    server_close(&server);
}

TEST(progress_extends_and_is_shown)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"key\": \"k\", \"payload\": \"x\"}");
    struct answer answer = claim(&server, "{\"wait_ms\": 10000, \"lease_ms\": 60000}");
    CHECK_INT(say_token(&server, "progress", task_text(&answer, 0, "token"),
                        ", \"percent\": 40, \"text\": \"half of it\", \"lease_ms\": 120000"),
              200);
    struct answer key = server_ask(&server, "GET", ORDERS "/keys/k", NULL, NULL);
    CHECK_CONTAINS(key.body, "half of it");
    answer_free(&key);
    CHECK_INT(say_token(&server, "extend", task_text(&answer, 0, "token"), ""), 200);
    CHECK_INT(say_token(&server, "finish", task_text(&answer, 0, "token"), ""), 200);
    answer_free(&answer);
    server_close(&server);
}

TEST(an_extend_without_a_time_extends_by_what_was_last_asked_for)
{
    struct server server;
    char given[40], progressed[40], asked[40], again[40];
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"payload\": \"x\"}");
    struct answer answer = claim(&server, "{\"wait_ms\": 10000, \"lease_ms\": 3600000}");
    const char *token = task_text(&answer, 0, "token");
    say_until(&server, "extend", token, "", given);
    say_until(&server, "progress", token, ", \"percent\": 1", progressed);
    say_until(&server, "extend", token, ", \"lease_ms\": 600000", asked);
    say_until(&server, "extend", token, "", again);
    CHECK_INT(strlen(given), strlen(asked));
    CHECK(strcmp(given, asked) > 0 && strcmp(progressed, asked) > 0); /* an hour, and ten minutes */
    CHECK(strcmp(again, given) < 0 && strcmp(again, progressed) < 0);
    answer_free(&answer);
    server_close(&server);
}

/* ---- The plain reader ---- */

static bool count_fields(void *context, const kl__plain_field *fields, size_t count)
{
    (void)fields;
    *(size_t *)context += count;
    return true;
}

TEST(a_plain_body_is_told_from_every_other)
{
    static const struct {
        const char *body;
        bool plain, many;
    } bodies[] = {
        {"{}", true, false},
        {" { \"key\" : \"a\" , \"priority\" : -3 } ", true, false},
        {"{\"tasks\":[{\"key\":\"a\"},{}]}", true, true},
        {"{\"key\":\"\xc3\xa9\"}", true, false},
        {"{\"dead\":true,\"x\":false}", true, false},
        {"{\"tasks\":[]}", false, true},
        {"{\"key\":\"a\\n\"}", false, false},
        {"{\"key\":\"a\nb\"}", false, false},
        {"{\"key\":\"\xc3\"}", false, false},
        {"{\"key\":\"a\",\"key\":\"b\"}", false, false},
        {"{\"key\":01}", false, false},
        {"{\"key\":1.5}", false, false},
        {"{\"key\":1e3}", false, false},
        {"{\"key\":1234567890123456}", false, false},
        {"{\"key\":null}", false, false},
        {"{\"key\":{}}", false, false},
        {"{\"key\":\"a\",}", false, false},
        {"{\"key\" \"a\"}", false, false},
        {"{\"tasks\":[{}],\"more\":1}", false, true},
        {"{\"key\":\"a\"}}", false, false},
        {"{\"key\":\"a\"", false, false},
        {"", false, false},
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        size_t fields = 0;
        bool many = false;
        CHECK_INT(kl__plain_read(kl_str(bodies[i].body), "tasks", count_fields, &fields, &many), bodies[i].plain);
        CHECK_INT(many, bodies[i].many);
    }
}

/* ---- Stopping, and several servers ---- */

TEST(a_stop_releases_what_is_claimed_and_it_costs_no_attempt)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    put(&server, "{\"key\": \"k\", \"payload\": \"x\"}");
    struct answer answer = claim(&server, "{\"wait_ms\": 10000}");
    kl__api_stop(server.api, 0);
    kl__api_close(server.api);
    const char *listen[] = {"127.0.0.1:0"};
    kl__api_opts opts = {.store = server.store, .store_url = "memory:", .listen = listen, .listen_count = 1};
    CHECK_INT(kl__api_open(&opts, &server.api), KL_OK);
    snprintf(server.url, sizeof server.url, "http://127.0.0.1:%d", kl__api_port(server.api, 0));
    struct answer again = claim(&server, "{\"wait_ms\": 10000}");
    CHECK_STR(task_text(&again, 0, "id"), task_text(&answer, 0, "id"));
    json_t *first = json_array_get(json_object_get(again.json, "items"), 0);
    CHECK_INT(json_integer_value(json_object_get(first, "attempt")), 1);
    CHECK_INT(say_token(&server, "finish", task_text(&answer, 0, "token"), ""), 409);
    CHECK_INT(say_token(&server, "finish", task_text(&again, 0, "token"), ""), 200);
    answer_free(&answer);
    answer_free(&again);
    server_close(&server);
}

/* A second server on the store of the first. */
static bool open_second(const struct server *first, struct server *ret_second)
{
    const char *listen[] = {"127.0.0.1:0"};
    kl__api_opts opts = {.store = first->store, .store_url = "memory:", .listen = listen, .listen_count = 1};
    ret_second->store = first->store;
    if (kl__api_open(&opts, &ret_second->api) != KL_OK)
        return false;
    snprintf(ret_second->url, sizeof ret_second->url, "http://127.0.0.1:%d", kl__api_port(ret_second->api, 0));
    return true;
}

TEST(what_is_said_to_another_server_reaches_the_one_that_gave_the_task_out)
{
    struct server first, second;
    if (!server_open(&first, NULL))
        return;
    REQUIRE(open_second(&first, &second));
    CHECK_INT(kl__forward_renew(first.api), KL_OK); /* its keeper may not have come to it yet */
    put(&second, "{\"payload\": \"x\"}");
    struct answer answer = claim(&first, "{\"wait_ms\": 10000}");
    REQUIRE(claimed(&answer) == 1);
    CHECK_INT(say_token(&second, "progress", task_text(&answer, 0, "token"), ", \"percent\": 5"), 200);
    CHECK_INT(say_token(&second, "finish", task_text(&answer, 0, "token"), ""), 200);
    CHECK_INT(say_token(&second, "finish", task_text(&answer, 0, "token"), ""), 409);
    answer_free(&answer);
    put(&second, "{\"payload\": \"y\"}");
    answer = claim(&first, "{\"wait_ms\": 10000}");
    REQUIRE(claimed(&answer) == 1);
    kl__api_stop(first.api, 0);
    kl__api_close(first.api);
    CHECK_INT(say_token(&second, "finish", task_text(&answer, 0, "token"), ""), 409); /* its server has ended */
    struct answer again = claim(&second, "{\"wait_ms\": 10000}");
    CHECK_STR(task_text(&again, 0, "payload"), "y");
    CHECK_INT(say_token(&second, "finish", task_text(&again, 0, "token"), ""), 200);
    answer_free(&answer);
    answer_free(&again);
    first.api = NULL;
    kl__api_close(second.api);
    server_close(&first);
}

/* As two hosts that both say 127.0.0.1: the second one asks itself, and must not call the first one's token stale. */
TEST(what_reaches_another_server_than_the_one_meant_is_not_heard)
{
    struct server first, second;
    if (!server_open(&first, NULL))
        return;
    REQUIRE(open_second(&first, &second));
    put(&second, "{\"payload\": \"x\"}");
    struct answer answer = claim(&first, "{\"wait_ms\": 10000}");
    REQUIRE(claimed(&answer) == 1);
    kl__api_stop(first.api, 0); /* its keeper renews no more */
    kl__forward_reachable(first.api, second.url);
    CHECK_INT(kl__forward_renew(first.api), KL_OK);
    CHECK_INT(say_token(&second, "finish", task_text(&answer, 0, "token"), ""), 503);
    char items[256];
    snprintf(items, sizeof items, "{\"items\": [{\"token\": \"%s\"}]}", task_text(&answer, 0, "token"));
    struct answer many = server_ask(&second, "POST", ORDERS "/extend", items, NULL);
    CHECK_INT(many.status, 200);
    CHECK_STR(task_text(&many, 0, "outcome"), "unknown");
    answer_free(&many);
    static const char *const meant[] = {"Keyline-Forwarded: nobody", NULL};
    many = server_ask(&second, "POST", ORDERS "/extend", items, meant);
    CHECK_INT(many.status, 421);
    answer_free(&many);
    answer_free(&answer);
    kl__api_close(second.api);
    server_close(&first);
}

/* ---- The store itself, by http:// ---- */

TEST(a_servers_store_is_a_store)
{
    struct server server;
    kl_store *store;
    kl_queue *queue;
    kl_put_result result;
    kl_arena arena = {0};
    kl_found found;
    if (!server_open(&server, NULL))
        return;
    CHECK_INT(kl_store_open(server.url, NULL, &store), KL_OK);
    CHECK_INT(kl_queue_open(store, "orders", NULL, &queue), KL_OK);
    kl_put task = {.key = kl_str("k"), .payload = kl_str("over the wire")};
    CHECK_INT(kl_queue_put(queue, &task, 1, (kl_bytes){0}, &result), KL_OK);
    CHECK_INT(kl_queue_task(queue, &result.id, &arena, &found), KL_OK);
    CHECK_INT(found.task.entry.payload.len, 13);
    claim_and(&server, "over the wire", "finish", "");
    kl_queue_close(queue);
    kl_store_close(store);
    kl_arena_free(&arena);
    server_close(&server);
}

TEST(what_is_no_server_is_refused_with_a_sentence)
{
    kl_store *store;
    CHECK_INT(kl_store_open("http:", NULL, &store), KL_EINVAL);
    CHECK_INT(kl_store_open("http://127.0.0.1:1/path", NULL, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "http://HOST:PORT");
    CHECK_INT(kl_store_open("http://127.0.0.1:1", NULL, &store), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "cannot be reached");
}

/* ---- A worker that reaches its store over HTTP ---- */

static kl_outcome run_nothing(kl_work *work, void *ctx)
{
    (void)work, (void)ctx;
    return KL_DONE;
}

/* When the lease is over, others take the shards by themselves. */
TEST(a_worker_whose_server_is_away_ends_when_its_lease_is_over)
{
    struct server server;
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_worker *worker = NULL;
    if (!server_open(&server, NULL))
        return;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    kl_handler handler = {.fn = run_nothing};
    CHECK_INT(kl_store_open(server.url, NULL, &store), KL_OK);
    CHECK_INT(store ? kl_queue_open(store, "remote", &opts, &queue) : KL_EDEAD, KL_OK);
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    CHECK_INT(queue ? kl_worker_start(&served, 1, NULL, &worker) : KL_EDEAD, KL_OK);
    server_close(&server);
    if (worker)
        CHECK_INT(kl_worker_drain(worker, 60000), KL_OK);
    kl_worker_close(worker);
    kl_queue_close(queue);
    kl_store_close(store);
}
