/* test_server_roles.c - who may do what: every route with every role, made from the route table. */
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "net/tokens.h"
#include "server_rig.h"

struct place {
    char dir[64], path[96];
    char tokens[KL_ROLE_ADMIN + 1][KL_TOKEN_BYTES]; /* by role; of "anyone" none */
    char scoped[KL_TOKEN_BYTES];                    /* admin of the queue mail and all that begin with it */
};

static bool make_place(struct place *place)
{
    *place = (struct place){.dir = "/tmp/keyline-roles-XXXXXX"};
    bool made = mkdtemp(place->dir) != NULL;
    snprintf(place->path, sizeof place->path, "%s/tokens", place->dir);
    for (kl__role role = KL_ROLE_READ; made && role <= KL_ROLE_ADMIN; role++)
        made = kl__access_add(place->path, &(kl__token){kl__role_name(role), role, "*"}, place->tokens[role]) == KL_OK;
    made = made && kl__access_add(place->path, &(kl__token){"scoped", KL_ROLE_ADMIN, "mail*"}, place->scoped) == KL_OK;
    if (!made)
        test_fail(__FILE__, __LINE__, "no tokens for the test: %s", kl_error_text());
    return made;
}

static void leave_place(const struct place *place)
{
    unlink(place->path);
    rmdir(place->dir);
}

static const char *method_name(kl__method method)
{
    static const char *const names[] = {[KL_METHOD_GET] = "GET",
                                        [KL_METHOD_POST] = "POST",
                                        [KL_METHOD_PUT] = "PUT",
                                        [KL_METHOD_PATCH] = "PATCH",
                                        [KL_METHOD_DELETE] = "DELETE"};
    return names[method];
}

/* The route's path with something in place of its parts. */
static void fill_path(const char *route, const char *queue, char *path, size_t size)
{
    size_t len = 0;
    for (const char *at = route; *at && len + 1 < size; at++) {
        if (*at != '{') {
            path[len++] = *at;
            continue;
        }
        const char *part = strncmp(at, "{queue}", 7) == 0 ? queue
                           : strncmp(at, "{id}", 4) == 0  ? "01000000-0000-8000-8000-000000000000"
                                                          : "nobody";
        len += (size_t)snprintf(path + len, size - len, "%s", part);
        at = strchr(at, '}');
    }
    path[len < size ? len : size - 1] = 0;
}

static long ask(struct server *server, const kl__route *route, const char *queue, const char *token)
{
    char path[512], field[128];
    const char *fields[] = {field, NULL};
    fill_path(route->path, queue, path, sizeof path);
    snprintf(field, sizeof field, "Authorization: Bearer %s", token);
    struct answer answer = server_ask(server, method_name(route->method), path,
                                      route->method == KL_METHOD_GET ? NULL : "{}", *token ? fields : NULL);
    long status = answer.status;
    if ((status == 401 || status == 403) && !strstr(answer.headers, "application/problem+json"))
        test_fail(__FILE__, __LINE__, "%s is refused without a problem", route->name);
    answer_free(&answer);
    return status;
}

TEST(every_route_lets_in_the_roles_of_the_table_and_no_others)
{
    struct place place;
    struct server server;
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    for (size_t i = 0; i < kl__route_count; i++)
        for (kl__role role = KL_ROLE_ANYONE; role <= KL_ROLE_ADMIN; role++) {
            const kl__route *route = &kl__routes[i];
            long status = ask(&server, route, "orders", place.tokens[role]);
            bool refused = status == 401 || status == 403;
            long expected = role >= route->role ? 0 : role == KL_ROLE_ANYONE ? 401 : 403;
            if (expected ? status != expected : refused)
                test_fail(__FILE__, __LINE__, "%s %s (%s) as %s: %ld", method_name(route->method), route->path,
                          route->name, kl__role_name(role), status);
        }
    server_close(&server);
    leave_place(&place);
}

TEST(a_token_that_is_not_known_lets_nobody_in)
{
    struct place place;
    struct server server;
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    for (size_t i = 0; i < kl__route_count; i++)
        if (kl__routes[i].role > KL_ROLE_ANYONE)
            CHECK_INT(ask(&server, &kl__routes[i], "orders", "kl_0000000000000000000000000000000000000000000"), 401);
    server_close(&server);
    leave_place(&place);
}

TEST(a_scoped_token_is_refused_on_every_route_of_another_queue)
{
    struct place place;
    struct server server;
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    for (size_t i = 0; i < kl__route_count; i++) {
        if (!kl__route_has_queue(&kl__routes[i]))
            continue;
        long other = ask(&server, &kl__routes[i], "orders", place.scoped);
        long own = ask(&server, &kl__routes[i], "mail-eu", place.scoped);
        if (other != 403 || own == 401 || own == 403)
            test_fail(__FILE__, __LINE__, "%s: %ld on another queue, %ld on its own", kl__routes[i].name, other, own);
    }
    server_close(&server);
    leave_place(&place);
}

static long ask_scoped(struct server *server, const struct place *place, const char *method, const char *path,
                       const char *body)
{
    char field[128];
    const char *fields[] = {field, NULL};
    snprintf(field, sizeof field, "Authorization: Bearer %s", place->scoped);
    struct answer answer = server_ask(server, method, path, body, fields);
    long status = answer.status;
    answer_free(&answer);
    return status;
}

TEST(a_scoped_token_is_refused_when_a_body_or_parameter_names_another_queue)
{
    struct place place;
    struct server server;
    kl_queue *queue = NULL;
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    REQUIRE(kl_queue_open(server.store, "mail-eu", NULL, &queue) == KL_OK);
    kl_queue_close(queue);
    CHECK_INT(ask_scoped(&server, &place, "POST", "/v1/queues/mail-eu/tasks/00000000-0000-8000-8000-000000000000/move",
                         "{\"to\": \"orders\"}"),
              403);
    CHECK_INT(ask_scoped(&server, &place, "POST", "/v1/queues/mail-eu/dead/move", "{\"to\": \"orders\"}"), 403);
    CHECK_INT(ask_scoped(&server, &place, "GET", "/v1/events?queue=orders", NULL), 403);
    CHECK_INT(ask_scoped(&server, &place, "GET", "/v1/events?queue=mail-us", NULL), 404);
    CHECK_INT(ask_scoped(&server, &place, "GET", "/v1/events?queue=mail-eu", NULL), 200);
    server_close(&server);
    leave_place(&place);
}

TEST(without_tokens_everybody_on_this_machine_is_admin)
{
    struct server server;
    if (!server_open(&server, NULL))
        return;
    for (size_t i = 0; i < kl__route_count; i++) {
        long status = ask(&server, &kl__routes[i], "orders", "");
        if (status == 401 || status == 403)
            test_fail(__FILE__, __LINE__, "%s: %ld", kl__routes[i].name, status);
    }
    server_close(&server);
}

TEST(a_token_that_was_removed_is_refused_after_a_reload)
{
    struct place place;
    struct server server;
    kl__route route = {.method = KL_METHOD_GET, .path = "/v1", .name = "info"};
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    CHECK_INT(ask(&server, &route, "", place.tokens[KL_ROLE_READ]), 200);
    CHECK_INT(kl__access_remove(place.path, "read"), KL_OK);
    CHECK_INT(kl__api_reload(server.api), KL_OK);
    CHECK_INT(ask(&server, &route, "", place.tokens[KL_ROLE_READ]), 401);
    CHECK_INT(ask(&server, &route, "", place.tokens[KL_ROLE_ADMIN]), 200);
    server_close(&server);
    leave_place(&place);
}

/* What a stranger says is not read, however much it is said to be: the answer comes while the body is still missing. */
TEST(a_body_without_a_token_is_not_waited_for)
{
    struct place place;
    struct server server;
    char text[512];
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    const struct {
        const char *queue, *token, *status;
    } rows[] = {{"orders", "", "HTTP/1.1 401 "},
                {"orders", "kl_wrong", "HTTP/1.1 401 "},
                {"orders", place.tokens[KL_ROLE_READ], "HTTP/1.1 403 "},
                {"orders", place.scoped, "HTTP/1.1 403 "}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text,
                 "POST /v1/queues/%s/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
                 "Content-Type: application/json\r\nContent-Length: 60000000\r\n\r\n{\"payload\": \"",
                 rows[i].queue, rows[i].token);
        char *heard = server_say(&server, text, false);
        REQUIRE(heard != NULL);
        CHECK_CONTAINS(heard, rows[i].status);
        CHECK_CONTAINS(heard, "application/problem+json");
        free(heard);
    }
    server_close(&server);
    leave_place(&place);
}

struct revoking {
    struct server *server;
    const char *path, *name;
    bool done;
};

/* When the stream's first bytes are there, its token goes. */
static bool take_away(void *context, const char *body)
{
    struct revoking *revoking = context;
    (void)body;
    if (!revoking->done) {
        CHECK_INT(kl__access_remove(revoking->path, revoking->name), KL_OK);
        CHECK_INT(kl__api_reload(revoking->server->api), KL_OK);
    }
    revoking->done = true;
    return true;
}

TEST(who_watches_with_a_token_that_is_taken_away_hears_no_more)
{
    struct place place;
    struct server server;
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    char field[128];
    const char *fields[] = {field, NULL};
    snprintf(field, sizeof field, "Authorization: Bearer %s", place.tokens[KL_ROLE_READ]);
    struct revoking revoking = {.server = &server, .path = place.path, .name = kl__role_name(KL_ROLE_READ)};
    struct answer stream =
        server_follow(&server, "/v1/events", fields, take_away, &revoking); /* returns when it has ended */
    CHECK_INT(stream.status, 200);
    CHECK(revoking.done);
    answer_free(&stream);
    server_close(&server);
    leave_place(&place);
}

TEST(a_store_that_was_opened_with_a_token_is_closed_when_that_is_taken_away)
{
    struct place place;
    struct server server;
    kl_store *mine = NULL, *others = NULL;
    int64_t now_ms;
    char token[KL_TOKEN_BYTES];
    if (!make_place(&place))
        return;
    REQUIRE(kl__access_add(place.path, &(kl__token){"mine", KL_ROLE_ADMIN, "*"}, token) == KL_OK);
    if (!server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    setenv("KEYLINE_TOKEN", token, 1);
    CHECK_INT(kl_store_open(server.url, NULL, &mine), KL_OK);
    setenv("KEYLINE_TOKEN", place.tokens[KL_ROLE_ADMIN], 1);
    CHECK_INT(kl_store_open(server.url, NULL, &others), KL_OK);
    REQUIRE(mine && others);
    CHECK_INT(kl_store_now(mine, &now_ms), KL_OK);
    CHECK_INT(kl__access_remove(place.path, "mine"), KL_OK);
    CHECK_INT(kl__api_reload(server.api), KL_OK);
    CHECK(kl_store_now(mine, &now_ms) != KL_OK);
    CHECK_INT(kl_store_now(others, &now_ms), KL_OK);
    kl_store_close(mine);
    kl_store_close(others);
    unsetenv("KEYLINE_TOKEN");
    server_close(&server);
    leave_place(&place);
}

TEST(a_reload_takes_what_it_can_and_says_what_it_cannot)
{
    struct place place;
    struct server server;
    char audit[128];
    if (!make_place(&place))
        return;
    snprintf(audit, sizeof audit, "%s/audit", place.dir);
    if (!server_open(&server, &(kl__api_opts){.tokens = place.path, .audit = audit}))
        return;
    CHECK_INT(unlink(audit), 0);
    CHECK_INT(unlink(place.path), 0);
    CHECK(kl__api_reload(server.api) != KL_OK);
    CHECK_CONTAINS(kl_error_text(), "tokens");
    CHECK_INT(unlink(audit), 0); /* it was made anew all the same */
    server_close(&server);
    leave_place(&place);
}

/* Pages of one, as the token sees them: what is shown, and no cursor tells of another queue. */
TEST(a_list_of_queues_tells_nothing_of_those_that_a_token_may_not_know)
{
    static const char *const queues[] = {"aaa", "mail", "mail-eu", "orders", "zzz"};
    struct place place;
    struct server server;
    char path[128], field[128], cursor[64] = "", shown[128] = "";
    const char *const fields[] = {field, NULL};
    int pages = 0;
    if (!make_place(&place) || !server_open(&server, &(kl__api_opts){.tokens = place.path}))
        return;
    for (size_t i = 0; i < sizeof queues / sizeof *queues; i++) {
        kl_queue *queue;
        REQUIRE(kl_queue_open(server.store, queues[i], NULL, &queue) == KL_OK);
        kl_queue_close(queue);
    }
    snprintf(field, sizeof field, "Authorization: Bearer %s", place.scoped);
    do {
        snprintf(path, sizeof path, "/v1/queues?max=1%s%s", *cursor ? "&cursor=" : "", cursor);
        struct answer answer = server_ask(&server, "GET", path, NULL, fields);
        CHECK_INT(answer.status, 200);
        json_t *first = json_array_get(json_object_get(answer.json, "items"), 0);
        const char *name = json_string_value(json_object_get(first, "queue"));
        snprintf(cursor, sizeof cursor, "%s", answer_text(&answer, "cursor"));
        strncat(shown, name ? name : "-", 20);
        CHECK(!*cursor || strstr(cursor, "mail"));
        answer_free(&answer);
    } while (*cursor && ++pages < 10);
    CHECK_STR(shown, "mailmail-eu-");
    server_close(&server);
    leave_place(&place);
}

/* Says this with the admin's token. */
static struct answer ask_as_admin(struct server *server, const struct place *place, const char *path, const char *body)
{
    char field[128];
    const char *const fields[] = {field, NULL};
    snprintf(field, sizeof field, "Authorization: Bearer %s", place->tokens[KL_ROLE_ADMIN]);
    return server_ask(server, "POST", path, body, fields);
}

TEST(servers_admit_each_other_where_everybody_needs_a_token)
{
    static const char *const listen[] = {"127.0.0.1:0"};
    struct place place;
    struct server first, second;
    char body[256];
    if (!make_place(&place) || !server_open(&first, &(kl__api_opts){.tokens = place.path}))
        return;
    kl__api_opts opts = {.store = first.store, .store_url = "memory:", .listen = listen, .listen_count = 1};
    opts.tokens = place.path;
    REQUIRE(kl__api_open(&opts, &second.api) == KL_OK);
    snprintf(second.url, sizeof second.url, "http://127.0.0.1:%d", kl__api_port(second.api, 0));
    struct answer answer = ask_as_admin(&first, &place, "/v1/queues/orders/tasks", "{}");
    CHECK_INT(answer.status, 201);
    answer_free(&answer);
    answer = ask_as_admin(&first, &place, "/v1/queues/orders/claim", "{\"wait_ms\": 10000}");
    json_t *task = json_array_get(json_object_get(answer.json, "items"), 0);
    const char *token = json_string_value(json_object_get(task, "token"));
    snprintf(body, sizeof body, "{\"token\": \"%s\"}", token ? token : "");
    answer_free(&answer);
    answer = ask_as_admin(&second, &place, "/v1/queues/orders/finish", body);
    CHECK_INT(answer.status, 200);
    CHECK_STR(answer_text(&answer, "outcome"), "done");
    answer_free(&answer);
    kl__api_close(second.api);
    server_close(&first);
    leave_place(&place);
}
