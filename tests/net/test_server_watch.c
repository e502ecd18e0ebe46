/* test_server_watch.c - watching a server: health, metrics, live events, the audit log, systemd. */
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness.h"
#include "keyline/control.h"
#include "net/log.h"
#include "net/metrics.h"
#include "net/notify.h"
#include "server_rig.h"
#include "store/engines.h"

/* ---- Health and what it is ---- */

TEST(a_server_says_that_it_is_well_and_what_it_is)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "GET", "/healthz", NULL, 200);
    server_do(&server, "GET", "/readyz", NULL, 200);
    struct answer info = server_ask(&server, "GET", "/v1", NULL, NULL);
    CHECK_STR(answer_text(&info, "name"), "keyline");
    CHECK_STR(answer_text(&info, "store"), "memory");
    CHECK_STR(answer_text(&info, "who"), "anyone");
    CHECK_STR(answer_text(&info, "role"), "admin");
    answer_free(&info);
    struct answer openapi = server_ask(&server, "GET", "/openapi.json", NULL, NULL);
    CHECK_STR(answer_text(&openapi, "openapi"), "3.1.0");
    answer_free(&openapi);
    kl__api_stop(server.api, 0);
    server_close(&server);
}

/* ---- Metrics ---- */

static bool has_line(const struct answer *metrics, const char *line)
{
    char wanted[256];
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    return metrics->body && strstr(metrics->body, wanted);
}

#define CHECK_LINE(metrics, line)                                                                                      \
    do {                                                                                                               \
        if (!has_line(metrics, line))                                                                                  \
            test_fail(__FILE__, __LINE__, "there is no line %s", line);                                                \
    } while (0)

TEST(a_queue_has_its_series_from_the_start)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\", \"partitions\": 2}", 201);
    struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
    CHECK_INT(metrics.status, 200);
    CHECK(strcasestr(metrics.headers, "application/openmetrics-text; version=1.0.0"));
    CHECK_LINE(&metrics, "keyline_queue_tasks{queue=\"orders\",partition=\"orders\",state=\"ready\"} 0");
    CHECK_LINE(&metrics, "keyline_queue_tasks{queue=\"orders\",partition=\"orders__p1\",state=\"retry\"} 0");
    CHECK_LINE(&metrics, "keyline_queue_kept_tasks{queue=\"orders\",partition=\"orders\",state=\"dead\"} 0");
    CHECK_LINE(&metrics, "keyline_tasks_appended_total{queue=\"orders\",partition=\"orders__p1\"} 0");
    CHECK_LINE(&metrics, "keyline_tasks_settled_total{queue=\"orders\",partition=\"orders__p1\",outcome=\"dead\"} 0");
    CHECK_LINE(&metrics, "keyline_queue_blocked_keys{queue=\"orders\",partition=\"orders__p1\"} 0");
    CHECK_LINE(&metrics, "keyline_leases_expired_total{queue=\"orders\",partition=\"orders\"} 0");
    CHECK_LINE(&metrics, "keyline_stale_finishes_total{queue=\"orders\",partition=\"orders__p1\"} 0");
    CHECK_LINE(&metrics, "keyline_commit_duration_seconds_count{queue=\"orders\",partition=\"orders\"} 0");
    CHECK_LINE(&metrics,
               "keyline_run_duration_seconds_bucket{queue=\"orders\",partition=\"orders__p1\",le=\"+Inf\"} 0");
    answer_free(&metrics);
    server_close(&server);
}

static const char *claimed_token(const struct answer *claim)
{
    const json_t *task = json_array_get(json_object_get(claim->json, "items"), 0);
    const char *token = json_string_value(json_object_get(task, "token"));
    return token ? token : "";
}

/* Puts, claims and finishes one; another one is put and stays; one finish comes too late. */
static void work(struct server *server)
{
    char text[256];
    server_do(server, "POST", "/v1/queues/orders/tasks", "{\"key\": \"a\", \"payload\": \"x\"}", 201);
    server_do(server, "POST", "/v1/queues/orders/tasks", "{\"key\": \"a\", \"payload\": \"y\"}", 201);
    struct answer claim = server_ask(server, "POST", "/v1/queues/orders/claim", "{\"wait_ms\": 30000}", NULL);
    snprintf(text, sizeof text, "{\"token\": \"%s\"}", claimed_token(&claim));
    server_do(server, "POST", "/v1/queues/orders/finish", text, 200);
    server_do(server, "POST", "/v1/queues/orders/finish", text, 409);
    answer_free(&claim);
}

TEST(what_is_put_is_counted_once_and_in_jobs_too)
{
    static const char *const again[] = {"Idempotency-Key: a", NULL};
    struct server server;
    if (!server_open(&server, NULL))
        return;
    for (int i = 0; i < 2; i++) {
        struct answer answer = server_ask(&server, "POST", "/v1/queues/orders/tasks", "{\"key\": \"k\"}", again);
        CHECK_INT(answer.status, 201);
        answer_free(&answer);
        server_do(&server, "POST", "/v1/queues/orders/tasks", "{\"unique\": \"u\"}", 201);
    }
    server_do(&server, "POST", "/v1/queues/orders/jobs", "{\"tasks\": [{}, {}, {}]}", 201);
    struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
    CHECK_LINE(&metrics, "keyline_tasks_appended_total{queue=\"orders\",partition=\"orders\"} 5");
    answer_free(&metrics);
    server_close(&server);
}

static kl_rc count_some(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    kl_rc rc = kl__engine_memory.counts(self, place, job, ret_counts);
    ret_counts->at_least |= rc == KL_OK;
    return rc;
}

/* S3 does not read a long log to its end to count it. */
TEST(a_count_that_is_a_lower_bound_is_marked)
{
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl__metrics *metrics = NULL;
    kl_arena arena = {0};
    for (int i = 0; i < 2; i++) {
        kl_engine engine = kl__engine_memory;
        kl_bytes text = {"", 0};
        engine.counts = i ? count_some : engine.counts;
        CHECK_INT(kl_store_open_engine(&engine, "", NULL, &store), KL_OK);
        CHECK_INT(kl_queue_open(store, "orders", NULL, &queue), KL_OK);
        CHECK_INT(kl__metrics_open(&(kl__metrics_opts){.version = "0"}, &metrics), KL_OK);
        CHECK_INT(kl__metrics_text(metrics, store, NULL, NULL, &arena, &text), KL_OK);
        CHECK_CONTAINS(text.data, i ? "keyline_queue_at_least{queue=\"orders\",partition=\"orders\"} 1\n"
                                    : "keyline_queue_at_least{queue=\"orders\",partition=\"orders\"} 0\n");
        kl__metrics_close(metrics);
        kl_queue_close(queue);
        kl_store_close(store);
    }
    kl_arena_free(&arena);
}

TEST(what_happens_is_counted)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    work(&server);
    struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
    CHECK_LINE(&metrics, "keyline_queue_tasks{queue=\"orders\",partition=\"orders\",state=\"ready\"} 1");
    CHECK_LINE(&metrics, "keyline_tasks_appended_total{queue=\"orders\",partition=\"orders\"} 2");
    CHECK_LINE(&metrics, "keyline_tasks_claimed_total{queue=\"orders\"} 1");
    CHECK_LINE(&metrics, "keyline_tasks_settled_total{queue=\"orders\",partition=\"orders\",outcome=\"done\"} 1");
    CHECK_LINE(&metrics, "keyline_stale_finishes_total{queue=\"orders\",partition=\"orders\"} 1");
    CHECK_LINE(&metrics, "keyline_commit_duration_seconds_count{queue=\"orders\",partition=\"orders\"} 2");
    CHECK_LINE(&metrics, "keyline_claim_duration_seconds_count{queue=\"orders\",partition=\"orders\"} 1");
    CHECK_LINE(&metrics, "keyline_run_duration_seconds_count{queue=\"orders\",partition=\"orders\"} 1");
    CHECK_LINE(&metrics, "keyline_http_requests_total{route=\"put_tasks\",status=\"2xx\"} 2");
    CHECK_LINE(&metrics, "keyline_http_requests_total{route=\"finish_tasks\",status=\"4xx\"} 1");
    CHECK_LINE(&metrics, "keyline_queue_owned_shards{queue=\"orders\"} 16");
    answer_free(&metrics);
    server_close(&server);
}

/* The number of a line that begins so; -1: there is none. */
static long long number_of(const struct answer *metrics, const char *begin)
{
    const char *at = metrics->body ? strstr(metrics->body, begin) : NULL;
    return at ? strtoll(at + strlen(begin), NULL, 10) : -1;
}

/* Each key's task counts where the key lies; tasks without a key are of any partition until they are claimed. */
TEST(what_happens_is_counted_by_partition)
{
    enum { TASKS = 16 };
    struct server server;
    char body[4096] = "{\"items\": [", text[128];
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\", \"partitions\": 2}", 201);
    server_do(&server, "POST", "/v1/queues/orders/tasks", "{\"payload\": \"no key\"}", 201);
    for (int i = 1; i < TASKS; i++) {
        snprintf(text, sizeof text, "{\"key\": \"k%d\"}", i);
        server_do(&server, "POST", "/v1/queues/orders/tasks", text, 201);
    }
    for (size_t count = 0; count < TASKS && !test_failed();) {
        struct answer claim = server_ask(&server, "POST", "/v1/queues/orders/claim", "{\"wait_ms\": 30000}", NULL);
        snprintf(text, sizeof text, "%s{\"token\": \"%s\"}", count++ ? ", " : "", claimed_token(&claim));
        strcat(body, text);
        answer_free(&claim);
    }
    server_do(&server, "POST", "/v1/queues/orders/finish", strcat(body, "]}"), 200);
    struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
#define OF(name) "\n" name "{queue=\"orders\",partition=\"orders"
    long long put[] = {number_of(&metrics, OF("keyline_tasks_appended_total") "\"} "),
                       number_of(&metrics, OF("keyline_tasks_appended_total") "__p1\"} ")};
    long long done[] = {number_of(&metrics, OF("keyline_tasks_settled_total") "\",outcome=\"done\"} "),
                        number_of(&metrics, OF("keyline_tasks_settled_total") "__p1\",outcome=\"done\"} ")};
    long long ran[] = {number_of(&metrics, OF("keyline_run_duration_seconds_count") "\"} "),
                       number_of(&metrics, OF("keyline_run_duration_seconds_count") "__p1\"} ")};
    CHECK_LINE(&metrics, "keyline_tasks_appended_total{queue=\"orders\",partition=\"any\"} 1");
    CHECK_INT(put[0] + put[1], TASKS - 1);
    CHECK(put[0] > 0 && put[1] > 0);
    CHECK_INT(done[0] + done[1], TASKS);
    CHECK(done[0] >= put[0] && done[1] >= put[1]);
    CHECK(ran[0] == done[0] && ran[1] == done[1]);
    CHECK_INT(number_of(&metrics, OF("keyline_settle_duration_seconds_count") "\"} "), 1); /* one batch */
    answer_free(&metrics);
    server_close(&server);
}

/* One lease of the second partition runs out (its next claim waits for that), its token comes too late, and the key of
 * the task, which failed, is blocked. What is no token has no partition. */
TEST(leases_stale_tokens_and_blocked_keys_are_counted_by_partition)
{
    static const char waits[] = "{\"wait_ms\": 30000, \"lease_ms\": 1000}";
    struct server server;
    char late[256], text[256];
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\", \"partitions\": 2, \"backoff_ms\": 1}", 201);
    server_do(&server, "POST", "/v1/queues/orders/tasks", "{\"key\": \"a\", \"partition\": \"orders__p1\"}", 201);
    struct answer first = server_ask(&server, "POST", "/v1/queues/orders/claim", waits, NULL);
    struct answer second = server_ask(&server, "POST", "/v1/queues/orders/claim", "{\"wait_ms\": 30000}", NULL);
    snprintf(late, sizeof late, "{\"token\": \"%s\"}", claimed_token(&first));
    snprintf(text, sizeof text, "{\"token\": \"%s\", \"retry_after_ms\": 3600000}", claimed_token(&second));
    server_do(&server, "POST", "/v1/queues/orders/finish", late, 409);
    server_do(&server, "POST", "/v1/queues/orders/finish", "{\"token\": \"none\"}", 409);
    server_do(&server, "POST", "/v1/queues/orders/fail", text, 200);
    struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
    CHECK_LINE(&metrics, "keyline_leases_expired_total{queue=\"orders\",partition=\"orders\"} 0");
    CHECK_LINE(&metrics, "keyline_leases_expired_total{queue=\"orders\",partition=\"orders__p1\"} 1");
    CHECK_LINE(&metrics, "keyline_stale_finishes_total{queue=\"orders\",partition=\"orders\"} 0");
    CHECK_LINE(&metrics, "keyline_stale_finishes_total{queue=\"orders\",partition=\"orders__p1\"} 1");
    CHECK_LINE(&metrics, "keyline_stale_finishes_total{queue=\"orders\",partition=\"any\"} 1");
    CHECK_LINE(&metrics, "keyline_queue_blocked_keys{queue=\"orders\",partition=\"orders\"} 0");
    CHECK_LINE(&metrics, "keyline_queue_blocked_keys{queue=\"orders\",partition=\"orders__p1\"} 1");
    answer_free(&metrics);
    answer_free(&second);
    answer_free(&first);
    server_close(&server);
}

/* Between two scrapes within a second nothing is asked of the store's partitions. They may be slow once, so it is tried
 * until they are not. */
TEST(scrapes_that_follow_one_another_do_not_ask_the_store_again)
{
    static const char asked[] = "\nkeyline_store_calls_total{engine=\"memory\",call=\"counts\"} ";
    struct server server;
    long long before = -1, now = -2;
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\", \"partitions\": 4}", 201);
    for (int i = 0; i < 100 && now != before; i++) {
        struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
        before = now;
        now = number_of(&metrics, asked);
        answer_free(&metrics);
    }
    CHECK(now >= 4);
    CHECK_INT(now, before);
    server_close(&server);
}

TEST(a_queue_shows_how_much_happens)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    work(&server);
    struct answer shown = server_ask(&server, "GET", "/v1/queues/orders", NULL, NULL);
    const json_t *rates = json_object_get(shown.json, "rates");
    double put = json_number_value(json_object_get(rates, "put"));
    double settled = json_number_value(json_object_get(rates, "settled"));
    CHECK(put > 0 && settled > 0);
    CHECK(put > settled * 1.9 && put < settled * 2.1); /* two were put, and one of them is done */
    CHECK(json_number_value(json_object_get(rates, "claimed")) > 0);
    CHECK(json_number_value(json_object_get(rates, "failed")) == 0);
    CHECK(json_integer_value(json_object_get(rates, "over_ms")) >= 0);
    answer_free(&shown);
    server_close(&server);
}

/* Lines are "# TYPE|UNIT|HELP name text", or "name{labels} number"; a family's lines stand together. True: one
 * begins. */
static bool check_line(const char *line, char family[128])
{
    char name[128] = "", rest[400] = "", what[8] = "";
    if (*line == '#') {
        if (sscanf(line, "# %7s %127s %399[^\n]", what, name, rest) != 3)
            test_fail(__FILE__, __LINE__, "no proper comment: %s", line);
        bool begins = strcmp(name, family) != 0;
        snprintf(family, 128, "%s", name);
        if (strcmp(what, "TYPE") == 0 && strcmp(rest, "counter") == 0 && strstr(name, "_total"))
            test_fail(__FILE__, __LINE__, "a counter's family has no _total: %s", name);
        return begins;
    }
    size_t len = strcspn(line, "{ ");
    if (strncmp(line, family, strlen(family)) != 0 || len < strlen(family))
        test_fail(__FILE__, __LINE__, "%s stands under %s", line, family);
    const char *value = strrchr(line, ' ');
    char *end = NULL;
    if (!value || (strtod(value + 1, &end), *end))
        test_fail(__FILE__, __LINE__, "no number at the end: %s", line);
    return false;
}

TEST(metrics_are_openmetrics)
{
    enum { FAMILIES_MAX = 200 };
    struct server server;
    char family[128] = "", seen[FAMILIES_MAX][128];
    size_t families = 0;
    if (!server_open(&server, NULL))
        return;
    work(&server);
    struct answer metrics = server_ask(&server, "GET", "/metrics", NULL, NULL);
    REQUIRE(metrics.body);
    CHECK(metrics.len > 6 && strcmp(metrics.body + metrics.len - 6, "# EOF\n") == 0);
    metrics.body[metrics.len - 6] = 0;
    for (char *rest = metrics.body, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        bool begins = check_line(line, family);
        for (size_t i = 0; begins && i < families; i++)
            if (strcmp(seen[i], family) == 0)
                test_fail(__FILE__, __LINE__, "the family %s stands twice", family);
        if (begins && families < FAMILIES_MAX)
            snprintf(seen[families++], 128, "%s", family);
        if (strstr(line, "key=\""))
            test_fail(__FILE__, __LINE__, "a key has become a label: %s", line);
    }
    CHECK(families > 20 && families < FAMILIES_MAX);
    answer_free(&metrics);
    server_close(&server);
}

/* ---- Live events ---- */

struct watching {
    struct server *server;
    int stage;
};

/* As soon as the stream is there, something is done that it tells of; then what it tells is waited for. */
static bool watch(void *context, const char *text)
{
    struct watching *watching = context;
    if (watching->stage == 0) {
        watching->stage = 1;
        server_do(watching->server, "POST", "/v1/queues/orders/pause", NULL, 200);
    } else if (watching->stage == 1 && strstr(text, "event: changed")) { /* counted from now on at the latest */
        watching->stage = 2;
        server_do(watching->server, "POST", "/v1/queues/orders/tasks", "{\"payload\": \"x\"}", 201);
    }
    return !strstr(text, "event: tasks") || !strstr(text, "event: changed");
}

TEST(who_watches_hears_of_changes_and_of_tasks)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\"}", 201);
    struct watching watching = {&server, 0};
    struct answer answer = server_follow(&server, "/v1/events", NULL, watch, &watching);
    CHECK_INT(answer.status, 200);
    REQUIRE(answer.body);
    CHECK_CONTAINS(answer.body, "event: changed\ndata: {\"what\":\"pause_queue\",\"queue\":\"orders\"}\n\n");
    CHECK_CONTAINS(answer.body, "event: tasks\ndata: {\"queue\":\"orders\",\"put\":1,");
    answer_free(&answer);
    server_close(&server);
}

static bool watch_other(void *context, const char *text)
{
    struct watching *watching = context;
    if (watching->stage++ == 0) {
        server_do(watching->server, "POST", "/v1/queues/orders/pause", NULL, 200);
        server_do(watching->server, "POST", "/v1/queues/mail/pause", NULL, 200);
    }
    return !strstr(text, "\"mail\"");
}

TEST(who_watches_one_queue_hears_of_no_other)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\"}", 201);
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"mail\"}", 201);
    struct watching watching = {&server, 0};
    struct answer answer = server_follow(&server, "/v1/events?queue=mail", NULL, watch_other, &watching);
    REQUIRE(answer.body);
    CHECK(!strstr(answer.body, "orders"));
    answer_free(&answer);
    server_close(&server);
}

static bool stop_server(void *context, const char *text)
{
    struct watching *watching = context;
    (void)text;
    if (watching->stage++ == 0)
        kl__events_stop(watching->server->api->events);
    return true;
}

TEST(one_stream_too_many_is_told_what_to_do)
{
    static int fds[KL_EVENTS_CLIENTS_MAX];
    struct server server;
    char byte;
    if (!server_open(&server, NULL))
        return;
    for (int i = 0; i < KL_EVENTS_CLIENTS_MAX; i++) {
        fds[i] = server_dial(&server, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        CHECK_INT(recv(fds[i], &byte, 1, 0), 1); /* it has its place */
    }
    struct answer answer = server_ask(&server, "GET", "/v1/events", NULL, NULL);
    CHECK_INT(answer.status, 503);
    CHECK_STR(answer_text(&answer, "type"), "/problems/too-many-streams");
    CHECK_CONTAINS(answer_text(&answer, "detail"), "close one, or try again in a moment");
    answer_free(&answer);
    for (int i = 0; i < KL_EVENTS_CLIENTS_MAX; i++)
        close(fds[i]);
    server_close(&server);
}

TEST(streams_end_when_the_server_does_and_no_new_ones_begin)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    struct watching watching = {&server, 0};
    struct answer answer = server_follow(&server, "/v1/events", NULL, stop_server, &watching);
    CHECK_INT(answer.status, 200);
    answer_free(&answer);
    server_do(&server, "GET", "/v1/events", NULL, 503);
    server_close(&server);
}

/* ---- The audit log ---- */

TEST(changes_are_written_to_the_audit_log_and_payloads_are_not)
{
    struct server server;
    char path[] = "/tmp/keyline-audit-XXXXXX", text[4096] = "";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    if (!server_open(&server, &(kl__api_opts){.audit = path}))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\"}", 201);
    server_do(&server, "POST", "/v1/queues/orders/keys/a%22b/pause", NULL, 200);
    server_do(&server, "PUT", "/v1/queues/orders/schedules/s", "{\"when\": \"@daily\", \"payload\": \"secret\"}", 200);
    server_do(&server, "POST", "/v1/queues/orders/schedules/none/run", NULL, 404);
    server_do(&server, "GET", "/v1/queues/orders", NULL, 200);
    server_close(&server);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    static const char *const routes[] = {"create_queue", "pause_key", "put_schedule", "run_schedule"};
    static const char *const targets[] = {"", "a\"b", "s", "none"};
    static const int statuses[] = {201, 200, 200, 404};
    char *rest = text, *line;
    size_t count = 0;
    for (; (line = strtok_r(rest, "\n", &rest)) != NULL; count++) {
        json_t *json = json_loads(line, 0, NULL);
        REQUIRE(json && count < 4);
        const char *target = json_string_value(json_object_get(json, "target"));
        CHECK_STR(json_string_value(json_object_get(json, "route")), routes[count]);
        CHECK_STR(json_string_value(json_object_get(json, "queue")), "orders");
        CHECK_STR(target ? target : "", targets[count]);
        CHECK_STR(json_string_value(json_object_get(json, "who")), "anyone");
        CHECK_INT(json_integer_value(json_object_get(json, "status")), statuses[count]);
        CHECK(strncmp(json_string_value(json_object_get(json, "peer")), "127.0.0.1:", 10) == 0);
        CHECK(json_string_value(json_object_get(json, "time")) != NULL);
        json_decref(json);
    }
    CHECK_INT(count, 4);
    CHECK(!strstr(text, "secret"));
    close(fd);
    unlink(path);
}

TEST(who_opens_the_store_and_who_is_refused_is_in_the_audit_log)
{
    struct server server;
    char path[] = "/tmp/keyline-audit-XXXXXX", tokens[] = "/tmp/keyline-tokens-XXXXXX", text[4096] = "";
    char secret[KL_TOKEN_BYTES], request[256], kept[64];
    int fd = mkstemp(path), tokens_fd = mkstemp(tokens);
    REQUIRE(fd >= 0 && tokens_fd >= 0);
    REQUIRE(kl__access_add(tokens, &(kl__token){"boss", KL_ROLE_ADMIN, "*"}, secret) == KL_OK);
    if (!server_open(&server, &(kl__api_opts){.audit = path, .tokens = tokens}))
        return;
    struct answer answer = server_ask(&server, "DELETE", "/v1/queues/orders", NULL, NULL);
    CHECK_INT(answer.status, 401);
    CHECK_STR(answer_header(&answer, "WWW-Authenticate", kept, sizeof kept), "Bearer");
    answer_free(&answer);
    snprintf(request, sizeof request,
             "GET /v1/store HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: keyline-store\r\n"
             "Authorization: Bearer %s\r\n\r\n",
             secret);
    char *said = server_say(&server, request, true);
    CHECK_CONTAINS(said ? said : "", "HTTP/1.1 101 ");
    free(said);
    server_close(&server);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    CHECK_CONTAINS(text, "\"route\":\"remove_queue\",\"queue\":null,\"target\":null,\"status\":401}\n");
    CHECK_CONTAINS(text, "\"route\":\"store\",\"queue\":null,\"target\":null,\"status\":101}\n");
    CHECK_CONTAINS(text, "\"who\":\"boss\",\"route\":\"store_closed\"}\n");
    close(fd);
    close(tokens_fd);
    unlink(path);
    unlink(tokens);
}

/* As `keyline --store http://...` does it: a queue is made and paused, a task put; then all is taken back. */
static void change_through_the_store(const char *url)
{
    kl_store *store;
    kl_queue *queue;
    kl_put_result result;
    bool running;
    REQUIRE(kl_store_open(url, NULL, &store) == KL_OK);
    CHECK_INT(kl_queue_open(store, "orders", NULL, &queue), KL_OK);
    kl_put task = {.key = kl_str("the-key"), .payload = kl_str("secret")};
    CHECK_INT(kl_queue_put(queue, &task, 1, kl_str("token"), &result), KL_OK);
    CHECK_INT(kl_queue_pause(queue), KL_OK);
    CHECK_INT(kl_task_cancel(queue, &result.id, &running), KL_OK);
    CHECK_INT(kl_queue_remove(queue), KL_OK);
    kl_queue_close(queue);
    kl_store_close(store);
}

TEST(every_change_through_the_store_is_in_the_audit_log)
{
    struct server server;
    char path[] = "/tmp/keyline-audit-XXXXXX", text[16384] = "";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    if (!server_open(&server, &(kl__api_opts){.audit = path}))
        return;
    change_through_the_store(server.url);
    server_close(&server);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    static const char *const lines[] = {
        "{\"target\":\"orders\",\"route\":\"store_append\",\"count\":1}",
        "{\"target\":\"orders\",\"route\":\"store_settle\",\"count\":1}",
        "{\"target\":\"queue/orders\",\"route\":\"store_record\"}",
        "{\"target\":\"queue/orders\",\"route\":\"store_record_removed\"}",
    };
    bool seen[sizeof lines / sizeof *lines] = {false};
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        json_t *json = json_loads(line, 0, NULL);
        REQUIRE(json);
        CHECK_STR(json_string_value(json_object_get(json, "who")), "anyone");
        if (strstr(line, "owners/") || strstr(line, "secret") || strstr(line, "the-key"))
            test_fail(__FILE__, __LINE__, "this does not belong there: %s", line);
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            json_t *part = json_loads(lines[i], 0, NULL), *whole = json_deep_copy(json);
            json_object_update(whole, part);
            seen[i] |= json_equal(whole, json) && json_integer_value(json_object_get(json, "status")) == 200;
            json_decref(whole);
            json_decref(part);
        }
        json_decref(json);
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!seen[i])
            test_fail(__FILE__, __LINE__, "there is no line with %s", lines[i]);
    close(fd);
    unlink(path);
}

TEST(strangers_make_the_audit_log_grow_by_some_lines_only)
{
    enum { TRIES = KL_AUDIT_STRANGERS_MAX + 7 };
    struct server server;
    char path[] = "/tmp/keyline-audit-XXXXXX", tokens[] = "/tmp/keyline-tokens-XXXXXX", text[32768] = "";
    char secret[KL_TOKEN_BYTES];
    int fd = mkstemp(path), tokens_fd = mkstemp(tokens);
    REQUIRE(fd >= 0 && tokens_fd >= 0);
    REQUIRE(kl__access_add(tokens, &(kl__token){"boss", KL_ROLE_ADMIN, "*"}, secret) == KL_OK);
    if (!server_open(&server, &(kl__api_opts){.audit = path, .tokens = tokens}))
        return;
    for (int i = 0; i < TRIES; i++)
        server_do(&server, "DELETE", "/v1/queues/orders", NULL, 401);
    server_close(&server);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    size_t count = 0;
    json_int_t left_out = 0;
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        json_t *json = json_loads(line, 0, NULL);
        const char *route = json_string_value(json_object_get(json, "route"));
        count += route && strcmp(route, "remove_queue") == 0;
        left_out += json_integer_value(json_object_get(json, "count"));
        json_decref(json);
    }
    CHECK(count >= KL_AUDIT_STRANGERS_MAX); /* more, should a minute have ended meanwhile */
    CHECK_INT((json_int_t)count + left_out, TRIES);
    close(fd);
    close(tokens_fd);
    unlink(path);
    unlink(tokens);
}

TEST(a_method_that_a_path_does_not_have_is_answered_with_those_it_has)
{
    struct server server;
    char kept[64];
    if (!server_open(&server, NULL))
        return;
    struct answer answer = server_ask(&server, "PUT", "/v1/queues/orders", "{}", NULL);
    CHECK_INT(answer.status, 405);
    CHECK_STR(answer_header(&answer, "Allow", kept, sizeof kept), "GET, HEAD, PATCH, DELETE");
    answer_free(&answer);
    server_close(&server);
}

TEST(an_audit_log_that_was_moved_away_is_made_anew)
{
    char dir[] = "/tmp/keyline-audit-XXXXXX", path[64], moved[64];
    kl__audit *audit;
    REQUIRE(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/log", dir);
    snprintf(moved, sizeof moved, "%s/log.1", dir);
    REQUIRE(kl__audit_open(path, &audit) == KL_OK);
    CHECK_INT(rename(path, moved), 0);
    CHECK_INT(kl__audit_reopen(audit), KL_OK);
    CHECK_INT(access(path, W_OK), 0);
    kl__audit_close(audit);
    CHECK_INT(kl__audit_open("/nowhere/at/all", &audit), KL_ESYSTEM);
    unlink(path);
    unlink(moved);
    rmdir(dir);
}

/* ---- The log ---- */

static void read_line(kl__log *log, kl_log_level level, const char *text, char *line, size_t size)
{
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    log->fd = ends[1];
    kl__log_line(log, level, text);
    close(ends[1]);
    ssize_t len = read(ends[0], line, size - 1);
    line[len > 0 ? len : 0] = 0;
    close(ends[0]);
}

TEST(a_log_line_is_one_line_whatever_is_in_it)
{
    kl__log log = {.most = KL_LOG_WARN};
    char line[4096], longer[3000];
    read_line(&log, KL_LOG_WARN, "two\nlines \"quoted\"", line, sizeof line);
    CHECK_CONTAINS(line, "Z warn two lines \"quoted\"\n");
    CHECK(strchr(line, '\n') == line + strlen(line) - 1);
    read_line(&log, KL_LOG_INFO, "too much", line, sizeof line);
    CHECK_STR(line, "");
    log.json = true;
    memset(longer, '"', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *const texts[] = {"two\nlines \"quoted\" \\ \xff", longer};
    for (size_t i = 0; i < 2; i++) {
        read_line(&log, KL_LOG_ERROR, texts[i], line, sizeof line);
        json_t *json = json_loads(line, 0, NULL);
        CHECK(json && strchr(line, '\n') == line + strlen(line) - 1);
        CHECK_STR(json ? json_string_value(json_object_get(json, "level")) : "", "error");
        json_decref(json);
    }
}

struct heard {
    pthread_mutex_t mutex;
    size_t len;
    char text[8192];
};

static void hear(void *context, kl_log_level level, const char *text)
{
    struct heard *heard = context;
    pthread_mutex_lock(&heard->mutex);
    heard->len +=
        (size_t)snprintf(heard->text + heard->len, sizeof heard->text - heard->len, "%d %s\n", (int)level, text);
    if (heard->len >= sizeof heard->text)
        heard->len = sizeof heard->text - 1;
    pthread_mutex_unlock(&heard->mutex);
}

static long refused(struct server *server, const char *method, const char *path, const char *body)
{
    struct answer answer = server_ask(server, method, path, body, NULL);
    long status = answer.status;
    answer_free(&answer);
    return status;
}

TEST(what_is_refused_and_what_happens_to_the_server_is_logged)
{
    struct heard heard = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct server server;
    if (!server_open(&server, &(kl__api_opts){.log = hear, .log_ctx = &heard}))
        return;
    server_do(&server, "POST", "/v1/queues", "{\"queue\": \"orders\"}", 201);
    CHECK_INT(refused(&server, "GET", "/v1/queues/orders/keys/secret-key/nothing", NULL), 404);
    CHECK_INT(refused(&server, "POST", "/v1/queues/orders/tasks", "{\"secret-payload\": 1}"), 400);
    CHECK_INT(refused(&server, "POST", "/v1/queues/orders/finish", "{\"token\": \"secret-token\"}"), 409);
    char *answer = server_say(&server, "GET / HTTP/1.1\nHost: a\r\n\r\n", false);
    free(answer);
    CHECK_INT(kl__api_reload(server.api), KL_OK);
    kl__api_stop(server.api, 0);
    server_close(&server);
    CHECK_CONTAINS(heard.text, "3 answered 404 to GET (no route) by anyone at 127.0.0.1:");
    CHECK_CONTAINS(heard.text, "3 answered 400 to POST put_tasks of the queue orders by anyone at 127.0.0.1:");
    CHECK_CONTAINS(heard.text, "2 queue orders: 1 of 1 tokens of finish_tasks (anyone, 127.0.0.1:");
    CHECK_CONTAINS(heard.text, "3 answered 400 to 127.0.0.1:");
    CHECK_CONTAINS(heard.text, "2 tokens and certificate were read again");
    CHECK_CONTAINS(heard.text, "2 a stop begins");
    CHECK_CONTAINS(heard.text, "2 stopped");
    CHECK(!strstr(heard.text, "secret"));
}

/* ---- systemd ---- */

/* A socket as systemd has it; what was sent last is in `text`. */
static int open_manager(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name) + (*name == '/'));
    memcpy(address.sun_path, name, strlen(name));
    if (*name == '@')
        address.sun_path[0] = 0;
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0)
        test_fail(__FILE__, __LINE__, "no socket for the test");
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static const char *heard(int fd, char *text, size_t size)
{
    ssize_t len = recv(fd, text, size - 1, MSG_DONTWAIT);
    text[len > 0 ? len : 0] = 0;
    return text;
}

TEST(systemd_is_told_through_its_socket)
{
    char name[64], text[256];
    for (int abstract = 0; abstract < 2; abstract++) {
        snprintf(name, sizeof name, "%s/tmp/keyline-notify-%d", abstract ? "@" : "", (int)getpid());
        int fd = open_manager(name);
        kl__notify("READY=1");
        CHECK_STR(heard(fd, text, sizeof text), "READY=1");
        kl__notify("RELOADING=1");
        CHECK(strncmp(heard(fd, text, sizeof text), "RELOADING=1\nMONOTONIC_USEC=", 27) == 0 && isdigit(text[27]));
        kl__notify("STOPPING=1");
        CHECK_STR(heard(fd, text, sizeof text), "STOPPING=1");
        close(fd);
        if (!abstract)
            unlink(name);
    }
    kl__notify("READY=1"); /* nobody listens any more */
    setenv("NOTIFY_SOCKET", "relative", 1);
    kl__notify("READY=1");
    unsetenv("NOTIFY_SOCKET");
    kl__notify("READY=1");
}

TEST(the_watchdog_is_fed_twice_as_often_as_it_must)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    unsetenv("WATCHDOG_PID");
    unsetenv("WATCHDOG_USEC");
    CHECK_INT(kl__notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    CHECK_INT(kl__notify_watchdog_ms(), 15000);
    setenv("WATCHDOG_PID", pid, 1);
    CHECK_INT(kl__notify_watchdog_ms(), 15000);
    setenv("WATCHDOG_PID", "1", 1);
    CHECK_INT(kl__notify_watchdog_ms(), 0);
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "soon", 1);
    CHECK_INT(kl__notify_watchdog_ms(), 0);
    unsetenv("WATCHDOG_USEC");
}
