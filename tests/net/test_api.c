/* test_api.c - queues, tasks, dead letters and keys by HTTP: what each route does, and what it refuses. */
#include <stdlib.h>

#include "harness.h"
#include "net/problems.h"
#include "net/server_rig.h"

#define ORDERS "/v1/queues/orders"

static const char nobody[] = "5f1f1a32-0b7c-8d00-8a2b-3c4d5e6f7a8b"; /* an id that no task has */

static bool open_orders(struct asking *rig)
{
    if (!asking_open(rig, NULL))
        return false;
    CHECK_INT(asking_say(rig, "POST", "/v1/queues", "{\"queue\": \"orders\", \"keep_done_ms\": 3600000}"), 201);
    return true;
}

/* Puts a task and returns its id, in `ret_id`. */
static void put(struct asking *rig, const char *task, char ret_id[40])
{
    CHECK_INT(asking_say(rig, "POST", ORDERS "/tasks", task), 201);
    snprintf(ret_id, 40, "%s", asking_field(rig, "id"));
}

static long ask_task(struct asking *rig, const char *method, const char *id, const char *rest, const char *body)
{
    char path[256];
    snprintf(path, sizeof path, ORDERS "/tasks/%s%s", id, rest);
    return asking_say(rig, method, path, body);
}

static size_t items(const struct asking *rig) { return json_array_size(json_object_get(rig->answer.json, "items")); }

/* ---- Queues ---- */

TEST(a_queue_is_made_shown_altered_and_removed)
{
    struct asking rig;
    if (!asking_open(&rig, NULL))
        return;
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues",
                         "{\"queue\": \"orders\", \"partitions\": 2, \"rate\": 50, \"head_policy\": \"halt\"}"),
              201);
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 200);
    CHECK_STR(asking_field(&rig, "queue"), "orders");
    CHECK_STR(asking_field(&rig, "state"), "active");
    CHECK_STR(asking_field(&rig, "partitions"), "2");
    CHECK_STR(asking_field(&rig, "rate"), "50");
    CHECK_STR(asking_field(&rig, "burst"), "50");
    CHECK_STR(asking_field(&rig, "timeout_ms"), "null");
    CHECK_STR(asking_field(&rig, "attempts"), "8");
    CHECK_STR(asking_field(&rig, "head_policy"), "halt");
    CHECK_INT(asking_say(&rig, "PATCH", ORDERS, "{\"rate\": null, \"attempts\": 3, \"head_policy\": \"drain\"}"), 200);
    CHECK_STR(asking_field(&rig, "rate"), "null");
    CHECK_STR(asking_field(&rig, "attempts"), "3");
    CHECK_STR(asking_field(&rig, "head_policy"), "drain");
    CHECK_INT(asking_say(&rig, "PATCH", ORDERS, "{\"partitions\": 3}"), 200);
    CHECK_STR(asking_field(&rig, "layout_number"), "2");
    CHECK_INT(asking_say(&rig, "DELETE", ORDERS, NULL), 200);
    CHECK_STR(asking_field(&rig, "done"), "removed");
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 404);
    CHECK_PROBLEM(&rig, "not-found", "orders");
    asking_close(&rig);
}

TEST(settings_that_are_shown_may_be_sent_back)
{
    static const char *const told[] = {
        "queue",     "state",    "ready",  "due",           "retry",       "done",           "dead",
        "cancelled", "at_least", "oldest", "oldest_age_ms", "created",     "layout_number",  "layouts_draining",
        "rates",     "running",  "away",   "refused",       "refused_why", "finished_behind"};
    struct asking rig;
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 200);
    json_t *settings = json_deep_copy(rig.answer.json);
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        json_object_del(settings, told[i]);
    CHECK_INT(json_object_size(settings), 13);
    char *text = json_dumps(settings, 0);
    CHECK_INT(asking_say(&rig, "PATCH", ORDERS, text), 200);
    json_t *value;
    const char *field;
    json_object_foreach(settings, field, value)
    {
        if (!json_equal(json_object_get(rig.answer.json, field), value))
            test_fail(__FILE__, __LINE__, "%s has changed", field);
    }
    free(text);
    json_decref(settings);
    asking_close(&rig);
}

TEST(a_queue_that_exists_is_not_made_again_unless_that_is_said)
{
    struct asking rig;
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"orders\"}"), 409);
    CHECK_PROBLEM(&rig, "exists", "PATCH");
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"orders\", \"if_missing\": true}"), 200);
    CHECK_INT(
        asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"orders\", \"if_missing\": true, \"partitions\": 9}"),
        422);
    CHECK_PROBLEM(&rig, "mismatch", "1 partition");
    asking_close(&rig);
}

TEST(queues_are_listed_page_by_page)
{
    struct asking rig;
    char body[64], path[128];
    if (!asking_open(&rig, NULL))
        return;
    for (int i = 0; i < 5; i++) {
        snprintf(body, sizeof body, "{\"queue\": \"q%d\"}", i);
        CHECK_INT(asking_say(&rig, "POST", "/v1/queues", body), 201);
    }
    CHECK_INT(asking_say(&rig, "GET", "/v1/queues?max=3", NULL), 200);
    CHECK_INT(items(&rig), 3);
    CHECK_STR(asking_field(&rig, "items.2.queue"), "q2");
    snprintf(path, sizeof path, "/v1/queues?max=3&cursor=%s", asking_field(&rig, "cursor"));
    CHECK_INT(asking_say(&rig, "GET", path, NULL), 200);
    CHECK_INT(items(&rig), 2);
    CHECK_STR(asking_field(&rig, "items.0.queue"), "q3");
    CHECK_STR(asking_field(&rig, "cursor"), "null");
    CHECK_INT(asking_say(&rig, "GET", "/v1/queues?cursor=other", NULL), 400);
    CHECK_PROBLEM(&rig, "bad-request", "no cursor of this list");
    asking_close(&rig);
}

TEST(a_queue_is_paused_resumed_and_emptied)
{
    struct asking rig;
    char id[40], header[16];
    if (!open_orders(&rig))
        return;
    put(&rig, "{\"key\": \"a\", \"payload\": \"1\"}", id);
    put(&rig, "{\"key\": \"a\", \"payload\": \"2\", \"in\": \"1h\"}", id);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/pause", NULL), 200);
    CHECK_STR(asking_field(&rig, "done"), "paused");
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 200);
    CHECK_STR(asking_field(&rig, "state"), "paused");
    CHECK_STR(asking_field(&rig, "ready"), "1");
    CHECK_STR(asking_field(&rig, "due"), "1");
    CHECK(strcmp(asking_field(&rig, "oldest"), "null") != 0);
    CHECK_INT(asking_say(&rig, "DELETE", ORDERS, NULL), 409);
    CHECK_PROBLEM(&rig, "busy", "2");
    CHECK_STR(answer_header(&rig.answer, "Retry-After", header, sizeof header), "1");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/resume", NULL), 200);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/purge", NULL), 200);
    CHECK_STR(asking_field(&rig, "cancelled"), "2");
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 200);
    CHECK_STR(asking_field(&rig, "state"), "active");
    CHECK_STR(asking_field(&rig, "ready"), "0");
    CHECK_STR(asking_field(&rig, "cancelled"), "2");
    asking_close(&rig);
}

TEST(workers_are_listed_with_the_shards_that_they_own)
{
    struct asking rig;
    char id[40];
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/workers", NULL), 200);
    CHECK_INT(items(&rig), 0);
    CHECK_STR(asking_field(&rig, "owners.0.shards"), "0-f");
    CHECK_STR(asking_field(&rig, "owners.0.worker"), "null");
    put(&rig, "{\"payload\": \"1\"}", id);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/claim", "{\"wait_ms\": 60000}"), 200); /* now the server is a worker */
    CHECK_STR(asking_field(&rig, "items.0.id"), id);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/workers", NULL), 200);
    CHECK_INT(items(&rig), 1);
    CHECK_STR(asking_field(&rig, "items.0.shards"), "16");
    CHECK_STR(asking_field(&rig, "items.0.queue"), "orders");
    CHECK_STR(asking_field(&rig, "owners.0.partition"), "orders");
    CHECK_STR(asking_field(&rig, "owners.0.layout"), "1");
    CHECK_STR(asking_field(&rig, "owners.0.shards"), "0-f");
    CHECK(strcmp(asking_field(&rig, "owners.0.worker"), "null") != 0);
    asking_close(&rig);
}

/* ---- Tasks ---- */

TEST(a_task_is_read_with_everything_that_it_carries)
{
    struct asking rig;
    char id[40];
    if (!open_orders(&rig))
        return;
    put(&rig,
        "{\"key\": \"customer-7\", \"kind\": \"charge\", \"payload\": \"charge 12.00\", \"priority\": -2, "
        "\"attempts\": 3, "
        "\"timeout\": \"5s\", \"group\": \"g\", \"headers\": {\"a\": \"b\"}, \"tags\": [\"t\"], \"unique\": \"u\"}",
        id);
    CHECK_INT(ask_task(&rig, "GET", id, "", NULL), 200);
    CHECK_STR(asking_field(&rig, "id"), id);
    CHECK_STR(asking_field(&rig, "queue"), "orders");
    CHECK_STR(asking_field(&rig, "state"), "ready");
    CHECK_STR(asking_field(&rig, "key"), "customer-7");
    CHECK_STR(asking_field(&rig, "kind"), "charge");
    CHECK_STR(asking_field(&rig, "priority"), "-2");
    CHECK_STR(asking_field(&rig, "attempts"), "0");
    CHECK_STR(asking_field(&rig, "attempts_max"), "3");
    CHECK_STR(asking_field(&rig, "timeout_ms"), "5000");
    CHECK_STR(asking_field(&rig, "headers.0.name"), "a");
    CHECK_STR(asking_field(&rig, "headers.0.value"), "b");
    CHECK_STR(asking_field(&rig, "tags.0"), "t");
    CHECK_STR(asking_field(&rig, "unique"), "u");
    CHECK_STR(asking_field(&rig, "group"), "g");
    CHECK_STR(asking_field(&rig, "job"), "null");
    CHECK_STR(asking_field(&rig, "finished"), "null");
    CHECK_STR(asking_field(&rig, "payload"), "charge 12.00");
    CHECK_CONTAINS(asking_field(&rig, "made"), "T");
    asking_close(&rig);
}

TEST(payloads_and_results_are_read_as_bytes)
{
    struct asking rig;
    char id[40], body[256], header[64];
    if (!open_orders(&rig))
        return;
    put(&rig, "{\"payload\": {\"base64\": \"AP8=\"}}", id);
    CHECK_INT(ask_task(&rig, "GET", id, "", NULL), 200);
    CHECK_STR(asking_field(&rig, "payload.base64"), "AP8=");
    CHECK_INT(ask_task(&rig, "GET", id, "/payload", NULL), 200);
    CHECK_STR(answer_header(&rig.answer, "Content-Type", header, sizeof header), "application/octet-stream");
    CHECK(rig.answer.len == 2 && memcmp(rig.answer.body, "\0\377", 2) == 0);
    CHECK_INT(ask_task(&rig, "GET", id, "/result", NULL), 404);
    CHECK_PROBLEM(&rig, "not-found", "not finished");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/claim", "{\"wait_ms\": 60000}"), 200);
    snprintf(body, sizeof body, "{\"items\": [{\"token\": \"%s\", \"result\": {\"base64\": \"AAE=\"}}]}",
             asking_field(&rig, "items.0.token"));
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/finish", body), 200);
    CHECK_INT(ask_task(&rig, "GET", id, "/result", NULL), 200);
    CHECK(rig.answer.len == 2 && memcmp(rig.answer.body, "\0\1", 2) == 0);
    CHECK_INT(ask_task(&rig, "GET", id, "", NULL), 200);
    CHECK_STR(asking_field(&rig, "state"), "done");
    CHECK_STR(asking_field(&rig, "result.base64"), "AAE=");
    asking_close(&rig);
}

static void check_list(struct asking *rig, const char *query, size_t count, const char *state)
{
    char path[256];
    snprintf(path, sizeof path, ORDERS "/tasks?%s", query);
    CHECK_INT(asking_say(rig, "GET", path, NULL), 200);
    if (items(rig) != count)
        test_fail(__FILE__, __LINE__, "%s lists %zu, expected %zu", query, items(rig), count);
    for (size_t i = 0; *state && i < items(rig); i++) {
        snprintf(path, sizeof path, "items.%zu.state", i);
        CHECK_STR(asking_field(rig, path), state);
    }
}

TEST(tasks_are_listed_by_state_and_key)
{
    struct asking rig;
    char id[40];
    if (!open_orders(&rig))
        return;
    put(&rig, "{\"key\": \"a\", \"kind\": \"x\", \"payload\": \"1\"}", id);
    put(&rig, "{\"key\": \"a\", \"payload\": \"2\", \"in\": \"1h\"}", id);
    put(&rig, "{\"key\": \"b&c\", \"payload\": \"3\"}", id);
    check_list(&rig, "", 3, "");
    check_list(&rig, "state=waiting", 3, "");
    check_list(&rig, "state=ready", 2, "ready");
    check_list(&rig, "state=due", 1, "due");
    check_list(&rig, "state=retry", 0, "");
    check_list(&rig, "key=a", 2, "");
    check_list(&rig, "key=b%26c", 1, "");
    CHECK_INT(ask_task(&rig, "POST", id, "/cancel", NULL), 200);
    check_list(&rig, "", 2, "");
    check_list(&rig, "state=cancelled", 1, "cancelled");
    check_list(&rig, "state=finished&from=-1h", 1, "");
    check_list(&rig, "state=finished&until=2001-01-01T00:00:00Z", 0, "");
    check_list(&rig, "state=done", 0, "");
    check_list(&rig, "state=finished&key=b%26c", 1, "");
    check_list(&rig, "state=finished&kind=x", 0, "");
    asking_close(&rig);
}

TEST(every_task_of_a_list_comes_once_whatever_the_pages)
{
    enum { TASKS = 23 };
    struct asking rig;
    char path[512], id[40];
    json_t *seen = json_object();
    if (!open_orders(&rig))
        return;
    for (int i = 0; i < TASKS; i++)
        put(&rig, "{\"payload\": \"x\"}", id);
    snprintf(path, sizeof path, ORDERS "/tasks?max=5");
    for (int pages = 0; pages < 2 * TASKS && *path; pages++) {
        CHECK_INT(asking_say(&rig, "GET", path, NULL), 200);
        for (size_t i = 0; i < items(&rig); i++) {
            snprintf(id, sizeof id, "items.%zu.id", i);
            CHECK(!json_object_get(seen, asking_field(&rig, id)));
            json_object_set_new(seen, asking_field(&rig, id), json_true());
        }
        const char *cursor = asking_field(&rig, "cursor");
        if (strcmp(cursor, "null") == 0)
            *path = '\0';
        else
            snprintf(path, sizeof path, ORDERS "/tasks?max=5&cursor=%s", cursor);
    }
    CHECK_INT(json_object_size(seen), TASKS);
    json_decref(seen);
    asking_close(&rig);
}

TEST(a_task_is_cancelled_retried_and_moved)
{
    struct asking rig;
    char id[40], moved[40];
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"slow\"}"), 201);
    put(&rig, "{\"key\": \"a\", \"payload\": \"1\", \"in\": \"1h\"}", id);
    CHECK_INT(ask_task(&rig, "POST", id, "/retry", NULL), 200);
    CHECK_STR(asking_field(&rig, "done"), "due now");
    CHECK_STR(asking_field(&rig, "new_id"), "null");
    CHECK_INT(ask_task(&rig, "POST", id, "/move", "{\"to\": \"slow\"}"), 200);
    CHECK_STR(asking_field(&rig, "id"), id);
    CHECK_STR(asking_field(&rig, "done"), "moved to slow");
    snprintf(moved, sizeof moved, "%s", asking_field(&rig, "new_id"));
    CHECK_INT(asking_say(&rig, "GET", "/v1/queues/slow/tasks", NULL), 200);
    CHECK_STR(asking_field(&rig, "items.0.id"), moved);
    put(&rig, "{\"key\": \"a\", \"payload\": \"2\"}", id);
    CHECK_INT(ask_task(&rig, "POST", id, "/cancel", NULL), 200);
    CHECK_STR(asking_field(&rig, "done"), "cancelled");
    CHECK_INT(ask_task(&rig, "POST", id, "/cancel", NULL), 404);
    CHECK_INT(ask_task(&rig, "POST", id, "/retry", NULL), 200);
    CHECK_STR(asking_field(&rig, "done"), "put again");
    CHECK(strcmp(asking_field(&rig, "new_id"), "null") != 0);
    CHECK_INT(ask_task(&rig, "POST", id, "/move", "{\"to\": \"nowhere\"}"), 404);
    CHECK_PROBLEM(&rig, "not-found", "nowhere");
    asking_close(&rig);
}

/* ---- Keys ---- */

TEST(keys_are_listed_shown_and_steered)
{
    struct asking rig;
    char id[40], first[40];
    if (!open_orders(&rig))
        return;
    put(&rig, "{\"key\": \"a/b\", \"payload\": \"1\"}", first);
    put(&rig, "{\"key\": \"a/b\", \"payload\": \"2\"}", id);
    put(&rig, "{\"key\": \"c\", \"payload\": \"3\"}", id);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys", NULL), 200);
    CHECK_INT(items(&rig), 2);
    CHECK_STR(asking_field(&rig, "items.0.key"), "a/b");
    CHECK_STR(asking_field(&rig, "items.0.waiting"), "2");
    CHECK_STR(asking_field(&rig, "items.0.state"), "no worker");
    CHECK_STR(asking_field(&rig, "items.0.head"), first);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys/a%2Fb", NULL), 200);
    CHECK_STR(asking_field(&rig, "key"), "a/b");
    CHECK_STR(asking_field(&rig, "state"), "no worker");
    CHECK_STR(asking_field(&rig, "head"), first);
    CHECK_CONTAINS(asking_field(&rig, "reason"), "no worker owns its shard");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/c/pause", NULL), 200);
    CHECK_STR(asking_field(&rig, "done"), "paused");
    CHECK_STR(asking_field(&rig, "key"), "c");
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys?by=state&max=1", NULL), 200);
    CHECK_INT(items(&rig), 1);
    CHECK_STR(asking_field(&rig, "items.0.key"), "c");
    CHECK_STR(asking_field(&rig, "items.0.state"), "paused");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/c/resume", NULL), 200);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/a%2Fb/skip", NULL), 200);
    CHECK_STR(asking_field(&rig, "task"), first);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/a%2Fb/retry", NULL), 200);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/a%2Fb/drain", NULL), 200);
    CHECK_STR(asking_field(&rig, "tasks"), "1");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/a%2Fb/skip", NULL), 404);
    CHECK_PROBLEM(&rig, "not-found", "");
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys?by=age", NULL), 200);
    CHECK_INT(items(&rig), 1);
    asking_close(&rig);
}

TEST(a_key_is_shown_and_steered_in_each_partition_or_in_one)
{
    struct asking rig;
    char first[40], id[40];
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "PATCH", ORDERS, "{\"partitions\": 2}"), 200);
    put(&rig, "{\"key\": \"k\", \"partition\": \"orders\"}", first);
    put(&rig, "{\"key\": \"k\", \"partition\": \"orders__p1\"}", id);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys/k", NULL), 200);
    CHECK_STR(asking_field(&rig, "head"), first);
    CHECK_STR(asking_field(&rig, "partition"), "orders");
    CHECK_STR(asking_field(&rig, "places.0.head"), first);
    CHECK_STR(asking_field(&rig, "places.1.head"), id);
    CHECK_STR(asking_field(&rig, "places.1.partition"), "orders__p1");
    CHECK_STR(asking_field(&rig, "places.1.layout"), "2");
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys/k?partition=orders__p1", NULL), 200);
    CHECK_STR(asking_field(&rig, "head"), id);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys/k?partition=orders__p2", NULL), 400);
    CHECK_PROBLEM(&rig, "bad-request", "it has orders and orders__p1");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/k/skip", NULL), 400);
    CHECK_PROBLEM(&rig, "bad-request", "name the partition");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/k/skip?partition=orders__p1", NULL), 200);
    CHECK_STR(asking_field(&rig, "task"), id);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/k/retry?partition=orders__p1", NULL), 404);
    put(&rig, "{\"key\": \"k\", \"partition\": \"orders__p1\"}", id);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/k/retry", NULL), 200);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/k/dead?partition=orders", NULL), 200);
    CHECK_STR(asking_field(&rig, "tasks"), "1");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/keys/k/drain", NULL), 200);
    CHECK_STR(asking_field(&rig, "tasks"), "1");
    asking_close(&rig);
}

TEST(a_key_may_be_any_bytes)
{
    struct asking rig;
    char id[40];
    if (!open_orders(&rig))
        return;
    put(&rig, "{\"key\": {\"base64\": \"AP8v\"}, \"payload\": \"1\"}", id);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/keys/%00%ff%2f", NULL), 200);
    CHECK_STR(asking_field(&rig, "key.base64"), "AP8v");
    CHECK_STR(asking_field(&rig, "waiting"), "1");
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/tasks?key=%00%ff%2f", NULL), 200);
    CHECK_INT(items(&rig), 1);
    asking_close(&rig);
}

/* ---- Dead letters ---- */

/* Makes `count` dead letters of a key. */
static void bury(struct asking *rig, const char *key, int count)
{
    char task[128], path[128], id[40];
    snprintf(task, sizeof task, "{\"key\": \"%s\", \"payload\": \"x\"}", key);
    snprintf(path, sizeof path, ORDERS "/keys/%s/dead", key);
    for (int i = 0; i < count; i++)
        put(rig, task, id);
    CHECK_INT(asking_say(rig, "POST", path, NULL), 200);
    CHECK_INT(atoi(asking_field(rig, "tasks")), count);
}

TEST(dead_letters_are_listed_put_back_moved_and_forgotten)
{
    struct asking rig;
    char body[128];
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"slow\"}"), 201);
    bury(&rig, "a", 2);
    bury(&rig, "b", 3);
    bury(&rig, "c", 1);
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/dead?max=4", NULL), 200);
    CHECK_INT(items(&rig), 4);
    CHECK_STR(asking_field(&rig, "items.0.state"), "dead");
    CHECK_INT(asking_say(&rig, "GET", ORDERS "/dead?key=c", NULL), 200);
    CHECK_INT(items(&rig), 1);
    snprintf(body, sizeof body, "{\"id\": \"%s\"}", asking_field(&rig, "items.0.id"));
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/retry", body), 200);
    CHECK_STR(asking_field(&rig, "done"), "1");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/retry", "{\"key\": \"a\"}"), 200);
    CHECK_STR(asking_field(&rig, "seen"), "2");
    CHECK_STR(asking_field(&rig, "done"), "2");
    CHECK_STR(asking_field(&rig, "failed"), "0");
    CHECK_STR(asking_field(&rig, "more"), "false");
    CHECK_STR(asking_field(&rig, "queue"), "orders");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/move", "{\"to\": \"slow\", \"max\": 1}"), 200);
    CHECK_STR(asking_field(&rig, "done"), "1");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/purge", "{}"), 400);
    CHECK_PROBLEM(&rig, "bad-request", "all");
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/purge", "{\"key\": \"\"}"), 400);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/purge", "{\"until\": 0}"), 400);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/retry", "{\"words\": \"\"}"), 400);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/dead/purge", "{\"all\": true}"), 200);
    CHECK_STR(asking_field(&rig, "done"), "2");
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 200);
    CHECK_STR(asking_field(&rig, "dead"), "0");
    CHECK_STR(asking_field(&rig, "ready"), "3");
    CHECK_INT(asking_say(&rig, "GET", "/v1/queues/slow", NULL), 200);
    CHECK_STR(asking_field(&rig, "ready"), "1");
    asking_close(&rig);
}

/* ---- What is refused ---- */

struct refusal {
    const char *method, *path, *body;
    int status;
    const char *problem, *part;
};

static const struct refusal refusals[] = {
    /* parameters */
    {"GET", "/v1/queues?max=0", NULL, 400, "bad-request", "max is '0'; give it a whole number from 1 to 1000"},
    {"GET", "/v1/queues?max=1001", NULL, 400, "bad-request", "from 1 to 1000"},
    {"GET", "/v1/queues?max=", NULL, 400, "bad-request", "max is ''"},
    {"GET", "/v1/queues?max=1x", NULL, 400, "bad-request", "max is '1x'"},
    {"GET", "/v1/queues?max=%201", NULL, 400, "bad-request", "max is ' 1'"},
    {"GET", "/v1/queues?max=1&max=2", NULL, 400, "bad-request", "max is there twice"},
    {"GET", "/v1/queues?other=1", NULL, 400, "bad-request", "no parameter 'other'"},
    {"GET", ORDERS "?x", NULL, 400, "bad-request", "no parameter 'x'"},
    {"GET", ORDERS "/tasks?state=lost", NULL, 400, "bad-request", "state is 'lost'; give it one of waiting|"},
    {"GET", ORDERS "/tasks?state=", NULL, 400, "bad-request", "one of"},
    {"GET", ORDERS "/tasks?state=dead&from=yesterday", NULL, 400, "bad-request", "from is 'yesterday'"},
    {"GET", ORDERS "/tasks?state=dead&job=7", NULL, 400, "bad-request", "job is '7', which is no id"},
    {"GET", ORDERS "/tasks?kind=x", NULL, 400, "bad-request", "chosen by key alone"},
    {"GET", ORDERS "/tasks?cursor=w1-1", NULL, 400, "bad-request", "no cursor of this list"},
    {"GET", ORDERS "/tasks?state=dead&cursor=%ff", NULL, 400, "bad-request", "no cursor of this list"},
    {"GET", ORDERS "/tasks?state=dead&from=-1h&cursor=x", NULL, 400, "bad-request", "count from now"},
    {"GET", ORDERS "/keys?by=name", NULL, 400, "bad-request", "one of depth|age|state"},
    {"GET", ORDERS "/tasks?key=%zz", NULL, 400, "bad-request", "escape"},
    /* parts of the path */
    {"GET", ORDERS "/tasks/7", NULL, 400, "bad-request", "'7' is no id"},
    {"GET", ORDERS "/tasks/%ff%00", NULL, 400, "bad-request", "is no id"},
    {"GET", ORDERS "/tasks/5f1f1a32-0b7c-8d00-8a2b-3c4d5e6f7a8b", NULL, 404, "not-found", "has no task"},
    {"GET", ORDERS "/tasks/5f1f1a32-0b7c-8d00-8a2b-3c4d5e6f7a8b/payload", NULL, 404, "not-found", "has no task"},
    {"POST", ORDERS "/tasks/5f1f1a32-0b7c-8d00-8a2b-3c4d5e6f7a8b/cancel", NULL, 404, "not-found", ""},
    {"GET", "/v1/queues/nobody", NULL, 404, "not-found", "nobody"},
    {"POST", "/v1/queues/nobody/pause", NULL, 404, "not-found", "nobody"},
    {"GET", "/v1/queues/a%20b", NULL, 400, "bad-request", ""},
    {"GET", "/v1/other", NULL, 404, "no-route", "openapi.json"},
    {"PUT", "/v1/queues", NULL, 405, "method-not-allowed", ""},
    /* bodies */
    {"POST", "/v1/queues", "{", 400, "bad-request", "the body is no JSON"},
    {"POST", "/v1/queues", "[]", 400, "bad-request", "not one JSON object"},
    {"POST", "/v1/queues", "{\"queue\": \"x\", \"queue\": \"y\"}", 400, "bad-request", "duplicate"},
    {"POST", "/v1/queues", NULL, 400, "bad-request", "\"queue\" is missing"},
    {"POST", "/v1/queues", "{\"queue\": 7}", 400, "bad-request", "\"queue\" is no text"},
    {"POST", "/v1/queues", "{\"queue\": \"a\\u0000b\"}", 400, "bad-request", "zero byte"},
    {"POST", "/v1/queues", "{\"queue\": \"a b\"}", 400, "bad-request", "a b"},
    {"POST", "/v1/queues", "{\"queue\": \"x\", \"atempts\": 1}", 400, "bad-request", "did you mean \"attempts\""},
    {"POST", "/v1/queues", "{\"queue\": \"x\", \"if_missing\": 1}", 400, "bad-request", "neither true nor false"},
    {"PATCH", ORDERS, NULL, 400, "bad-request", "nothing is to be changed"},
    {"PATCH", ORDERS, "{\"attempts\": 0}", 400, "bad-request", "\"attempts\" must be a whole number from 1 to 65535"},
    {"PATCH", ORDERS, "{\"attempts\": null}", 400, "bad-request", "\"attempts\" must be"},
    {"PATCH", ORDERS, "{\"rate\": 1.5}", 400, "bad-request", "or null for none"},
    {"PATCH", ORDERS, "{\"head_policy\": \"stop\"}", 400, "bad-request", "continue, halt or drain"},
    {"PATCH", ORDERS, "{\"partition_stores\": [7]}", 400, "bad-request", "\"partition_stores\" is no text"},
    {"POST", ORDERS "/tasks", "{\"in\": \"9999999d\"}", 400, "bad-request", "\"in\" is longer than 100000d"},
    {"POST", ORDERS "/tasks", "{\"at\": \"9999-01-01T00:00:00Z\"}", 400, "bad-request",
     "\"at\" is after the year 2527"},
    {"POST", ORDERS "/tasks", "{\"in\": \"1s\", \"at\": 1}", 400, "bad-request", "both say when"},
    {"POST", ORDERS "/tasks", "{\"unique_for\": \"1s\"}", 400, "bad-request", "there is no \"unique\""},
    {"POST", ORDERS "/tasks", "{\"headers\": {\"a\": 1}}", 400, "bad-request",
     "\"headers\" has values that are no texts"},
    {"POST", ORDERS "/tasks", "{\"tasks\": []}", 400, "bad-request", "send 1 to 10000"},
    {"POST", ORDERS "/finish", "{\"items\": []}", 400, "bad-request", "\"items\" is empty; send 1 to 10000"},
    {"POST", ORDERS "/jobs", "{\"in\": \"9999999d\"}", 400, "bad-request", "\"in\" is longer than 100000d"},
    {"GET", ORDERS "/jobs/7", NULL, 400, "bad-request", "'7' is no id; write its 36 characters"},
    {"GET", ORDERS "/schedules/none", NULL, 404, "not-found", "list its schedules"},
    {"POST", ORDERS "/pause", "{\"why\": 1}", 400, "bad-request", "\"why\" is no field here; send no body"},
    {"POST", ORDERS "/dead/retry", "{\"job\": \"x\"}", 400, "bad-request", "\"job\" is no id"},
    {"POST", ORDERS "/dead/retry", "{\"max\": 0}", 400, "bad-request", "\"max\" is 0"},
    {"POST", ORDERS "/dead/retry", "{\"from\": \"soon\"}", 400, "bad-request", "\"from\" is no time"},
    {"POST", ORDERS "/dead/retry", "{\"to\": \"x\"}", 400, "bad-request", "\"to\" is no field"},
    {"POST", ORDERS "/dead/move", "{}", 400, "bad-request", "\"to\" is missing"},
    {"POST", ORDERS "/dead/move", "{\"to\": \"orders\"}", 400, "bad-request", ""},
    {"POST", ORDERS "/dead/move", "{\"to\": \"nobody\"}", 404, "not-found", "nobody"},
    {"POST", ORDERS "/dead/retry", "{\"id\": \"5f1f1a32-0b7c-8d00-8a2b-3c4d5e6f7a8b\"}", 404, "not-found", ""},
    {"POST", ORDERS "/keys/nobody/skip", NULL, 404, "not-found", ""},
};

TEST(what_is_wrong_is_refused_by_name_and_nothing_is_done)
{
    struct asking rig;
    if (!open_orders(&rig))
        return;
    bury(&rig, "a", 1);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *refusal = &refusals[i];
        if (asking_say(&rig, refusal->method, refusal->path, refusal->body) != refusal->status)
            test_fail(__FILE__, __LINE__, "%s %s %s: %ld", refusal->method, refusal->path,
                      refusal->body ? refusal->body : "", rig.answer.status);
        CHECK_PROBLEM(&rig, refusal->problem, refusal->part);
    }
    CHECK_INT(asking_say(&rig, "GET", ORDERS, NULL), 200);
    CHECK_STR(asking_field(&rig, "attempts"), "8");
    CHECK_STR(asking_field(&rig, "state"), "active");
    CHECK_STR(asking_field(&rig, "dead"), "1");
    CHECK_INT(asking_say(&rig, "GET", "/v1/queues", NULL), 200);
    CHECK_INT(items(&rig), 1);
    asking_close(&rig);
}

/* What is shown as null may be put as null, and a query of nothing is none. */
TEST(null_is_as_if_the_field_were_not_there)
{
    struct asking rig;
    if (!open_orders(&rig))
        return;
    CHECK_INT(
        asking_say(&rig, "POST", ORDERS "/tasks",
                   "{\"key\": null, \"kind\": null, \"at\": null, \"in\": null, \"timeout\": null, \"tags\": null, "
                   "\"headers\": null, \"priority\": null, \"unique_for\": null, \"payload\": \"x\"}"),
        201);
    CHECK_INT(asking_say(&rig, "POST", ORDERS "/claim", "{\"wait_ms\": 30000}"), 200);
    CHECK_STR(asking_field(&rig, "items.0.key"), "null");
    CHECK_STR(asking_field(&rig, "items.0.kind"), "null");
    CHECK_STR(asking_field(&rig, "items.0.payload"), "x");
    CHECK_INT(asking_say(&rig, "GET", "/v1/queues?&&", NULL), 200);
    asking_close(&rig);
}

TEST(a_body_of_another_type_is_refused)
{
    struct asking rig;
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_send(&rig, "PATCH", ORDERS, "text/plain", kl_str("{\"rate\": 1}")), 415);
    CHECK_PROBLEM(&rig, "unsupported-type", "application/json");
    CHECK_INT(asking_send(&rig, "PATCH", ORDERS, "application/jsonx", kl_str("{\"rate\": 1}")), 415);
    CHECK_INT(asking_send(&rig, "PATCH", ORDERS, "", kl_str("{\"rate\": 1}")), 200);
    CHECK_INT(asking_send(&rig, "PATCH", ORDERS, "Application/JSON; charset=utf-8", kl_str("{\"rate\": 2}")), 200);
    CHECK_STR(asking_field(&rig, "rate"), "2");
    asking_close(&rig);
}

TEST(bodies_are_bounded_in_depth_and_size)
{
    struct asking rig;
    char deep[128] = "{\"rate\": ";
    if (!asking_open(&rig, &(kl__api_opts){.body_bytes_max = 4096}))
        return;
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"orders\"}"), 201);
    memset(deep + strlen(deep), '[', KL_BODY_DEPTH_MAX);
    CHECK_INT(asking_say(&rig, "PATCH", ORDERS, deep), 400);
    CHECK_PROBLEM(&rig, "bad-request", "more than 32 objects and arrays inside each other");
    char *large = calloc(1, 5000);
    REQUIRE(large);
    memset(large, ' ', 4999);
    CHECK_INT(asking_say(&rig, "PATCH", ORDERS, large), 413);
    CHECK_PROBLEM(&rig, "content-too-large", "");
    free(large);
    asking_close(&rig);
}

/* All of a file of the tree, to be freed; NULL: a failure is recorded. */
static char *read_all(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = calloc(1, 1 << 20);
    if (!file || !text || fread(text, 1, (1 << 20) - 1, file) == 0)
        test_fail(__FILE__, __LINE__, "%s cannot be read", path);
    if (file)
        fclose(file);
    return text;
}

TEST(every_problem_stands_in_the_documentation)
{
    char row[64], *page = read_all(SOURCE_ROOT "/docs/http.md");
    REQUIRE(page);
    for (size_t i = 0; i < kl__problem_count; i++) {
        snprintf(row, sizeof row, "`%s`", kl__problems[i].name);
        if (!strstr(page, row))
            test_fail(__FILE__, __LINE__, "docs/http.md does not have %s", row);
    }
    free(page);
}

TEST(names_of_problems_are_listed_once)
{
    for (size_t i = 0; i < kl__problem_count; i++) {
        CHECK(kl__problems[i].status >= 400 && *kl__problems[i].title);
        for (size_t j = 0; j < i; j++)
            CHECK(strcmp(kl__problems[i].name, kl__problems[j].name) != 0);
    }
}

TEST(a_task_that_nobody_has_is_not_moved)
{
    struct asking rig;
    if (!open_orders(&rig))
        return;
    CHECK_INT(asking_say(&rig, "POST", "/v1/queues", "{\"queue\": \"slow\"}"), 201);
    CHECK_INT(ask_task(&rig, "POST", nobody, "/move", "{\"to\": \"slow\"}"), 404);
    CHECK_INT(ask_task(&rig, "POST", nobody, "/move", "{}"), 400);
    CHECK_PROBLEM(&rig, "bad-request", "\"to\" is missing");
    asking_close(&rig);
}
