/* routes.c - from a request to its route's handler, past the guards. See api.h.
 *
 * Order: may this request be here at all (guard.h) -> which route -> who asks (tokens.h) -> may they -> the queue's
 * name within their scope -> the handler, at once or on the pool. */
#include "net/routes.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "net/forward.h"

#define ROUTE(method, path, role, flags, handler, summary)                                                             \
    {KL_METHOD_##method, path, KL_ROLE_##role, flags, kl__api_##handler, #handler, summary},
const kl__route kl__routes[] = {KL__ROUTES(ROUTE)};
#undef ROUTE
const size_t kl__route_count = sizeof kl__routes / sizeof *kl__routes;

/* ---- Which route ---- */

/* NOW_BYTES_MAX: larger bodies are not read on a loop's thread. */
enum { SEGMENTS_MAX = 8, NOW_BYTES_MAX = 256 << 10 };

/* The parts of a path between its slashes. 0: too many, or an empty one. */
static size_t split(const char *path, size_t len, kl_bytes segments[SEGMENTS_MAX])
{
    size_t count = 0, from = 1;
    for (size_t i = 1; i <= len; i++) {
        if (i < len && path[i] != '/')
            continue;
        if (count == SEGMENTS_MAX || (i == from && len > 1))
            return 0;
        segments[count++] = (kl_bytes){path + from, i - from};
        from = i + 1;
    }
    return count;
}

/* The table's paths, split once. */
static struct {
    kl_bytes segments[SEGMENTS_MAX];
    size_t count;
} known[sizeof kl__routes / sizeof *kl__routes];
static pthread_once_t known_once = PTHREAD_ONCE_INIT;

static void split_routes(void)
{
    for (size_t i = 0; i < kl__route_count; i++)
        known[i].count = split(kl__routes[i].path, strlen(kl__routes[i].path), known[i].segments);
}

static bool is_open(kl_bytes segment) { return segment.len && *(const char *)segment.data == '{'; }

static bool same(kl_bytes a, kl_bytes b) { return a.len == b.len && memcmp(a.data, b.data, a.len) == 0; }

/* The last part tells most routes apart, so they are compared from behind. */
static bool matches(size_t route, const kl_bytes *segments, size_t count)
{
    const kl_bytes *wanted = known[route].segments;
    if (known[route].count != count)
        return false;
    while (count-- > 0)
        if (!is_open(wanted[count]) && !same(wanted[count], segments[count]))
            return false;
    return true;
}

/* HEAD is GET without its body, which http.c leaves out. */
static bool has_method(const kl__route *route, kl__method method)
{
    return route->method == method || (method == KL_METHOD_HEAD && route->method == KL_METHOD_GET);
}

/* NULL: none; then *ret_other says whether the path has routes with other methods. */
static const kl__route *find(const kl__head *head, kl_bytes *segments, size_t count, bool *ret_other)
{
    *ret_other = false;
    pthread_once(&known_once, split_routes);
    for (size_t i = 0; count && i < kl__route_count; i++) {
        if (!matches(i, segments, count))
            continue;
        if (has_method(&kl__routes[i], head->method))
            return &kl__routes[i];
        *ret_other = true;
    }
    return NULL;
}

bool kl__route_has_queue(const kl__route *route) { return strncmp(route->path, KL__QUEUE, strlen(KL__QUEUE)) == 0; }

/* ---- What it carries ---- */

/* What stood in place of {queue} and {id}, unescaped. */
static bool take_parts(kl__exchange *exchange, const kl_bytes *segments, size_t count)
{
    const kl_bytes *wanted = known[exchange->route - kl__routes].segments;
    size_t parts = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_open(wanted[i]))
            continue;
        kl_bytes *part = &exchange->parts[parts++];
        if (!kl_arena_copy(exchange->arena, segments[i], part) || !kl__path_unescape(part))
            return false;
        ((char *)part->data)[part->len] = 0;
    }
    return true;
}

static bool take_params(kl__exchange *exchange)
{
    kl_bytes query;
    bool bad = false;
    kl__param param = {.used = false};
    if (!kl_arena_copy(exchange->arena, exchange->request->head.query, &query))
        return false;
    while (exchange->param_count < KL_PARAMS_MAX && kl__query_next(&query, &param.name, &param.value, &bad))
        exchange->params[exchange->param_count++] = param;
    return !bad && query.len == 0;
}

/* ---- Who asks ---- */

static void identify(kl__exchange *exchange)
{
    kl__api *api = exchange->api;
    kl__token token;
    exchange->who = exchange->request->local ? "socket" : "anyone";
    exchange->role = KL_ROLE_ADMIN;
    if (exchange->request->local || !kl__access_any(api->tokens))
        return;
    kl_bytes bearer = kl__guard_bearer(&exchange->request->head);
    exchange->role = KL_ROLE_ANYONE;
    if (bearer.len && kl__forward_is(api, bearer)) {
        exchange->who = "server";
        exchange->role = KL_ROLE_OPERATE;
    } else if (bearer.len && kl__access_check(api->tokens, bearer, &token)) {
        exchange->who = token.name;
        exchange->role = token.role;
        exchange->scope = token.scope;
    }
}

/* False: it has answered. */
static bool admit(kl__exchange *exchange)
{
    identify(exchange);
    if (exchange->role >= exchange->route->role)
        return true;
    static const kl__field scheme = {{"WWW-Authenticate", 16}, {"Bearer", 6}};
    kl_bytes bearer = kl__guard_bearer(&exchange->request->head);
    if (exchange->role == KL_ROLE_ANYONE)
        kl__reply_problem_with(
            exchange, 401, "unauthorized", &scheme,
            bearer.len ? "the token is not known; send Authorization: Bearer TOKEN (`keyline token add` makes one)"
                       : "a token is needed; send Authorization: Bearer TOKEN (`keyline token add` makes one)");
    else
        kl__reply_problem(exchange, 403, "forbidden",
                          "the token '%s' has the role %s, and this needs %s; use another token (`keyline token add`)",
                          exchange->who, kl__role_name(exchange->role), kl__role_name(exchange->route->role));
    return false;
}

bool kl__exchange_may(kl__exchange *exchange, const char *queue)
{
    if (kl__token_may(exchange->scope, queue))
        return true;
    kl__reply_problem(exchange, 403, "forbidden",
                      "the token '%s' is not for the queue '%.64s'; use one that is (`keyline token add --queues`)",
                      exchange->who, queue);
    return false;
}

/* ---- The way ---- */

static void go(kl__exchange *exchange)
{
    kl__api *api = exchange->api;
    if (kl__route_has_queue(exchange->route)) {
        const char *name = kl__part_text(exchange, 0);
        if (!kl__exchange_may(exchange, name))
            return;
        exchange->open = kl__queues_known(api, name);
        exchange->queue = exchange->open ? exchange->open->queue : NULL;
    }
    if (exchange->request->unread) { /* kl__route_admits saw other tokens */
        kl__reply_problem(exchange, 503, "not-ready", "the tokens were changed just now; send it again");
        return;
    }
    bool small = exchange->request->body.len <= NOW_BYTES_MAX;
    bool can = exchange->open || exchange->route->flags & KL_ROUTE_OPENS || !kl__route_has_queue(exchange->route);
    if (exchange->route->flags & KL_ROUTE_NOW && small && can)
        exchange->route->handler(exchange);
    else
        kl__pool_push(exchange->route->flags & KL_ROUTE_LONG ? api->long_pool : api->pool, exchange,
                      exchange->route->handler);
}

/* In the order of kl__method. */
static const char *const method_names[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "?"};

static void refuse_method(kl__exchange *exchange, const kl_bytes *segments, size_t count)
{
    char allowed[64] = "", detail[160];
    for (size_t i = 0; i < kl__route_count; i++)
        if (matches(i, segments, count)) {
            size_t len = strlen(allowed);
            bool get = kl__routes[i].method == KL_METHOD_GET;
            snprintf(allowed + len, sizeof allowed - len, "%s%s%s", len ? ", " : "", method_names[kl__routes[i].method],
                     get ? ", HEAD" : "");
        }
    const kl__field field = {{"Allow", 5}, kl_str(allowed)};
    snprintf(detail, sizeof detail, "this path has the methods %s; /openapi.json says what they do", allowed);
    kl__reply_problem_with(exchange, 405, "method-not-allowed", &field, detail);
}

static void refuse_route(kl__exchange *exchange)
{
    const kl__head *head = &exchange->request->head;
    if (head->method == KL_METHOD_OTHER)
        kl__reply_problem(exchange, 501, "not-implemented", "this method is not known; /openapi.json lists the routes");
    else
        kl__reply_problem(exchange, 404, "no-route", "there is nothing at this path; /openapi.json lists the routes");
}

/* NULL: nothing. Web pages may not, whatever they know. */
static const char *guard(kl__api *api, const kl__request *request)
{
    bool trusted = request->local || kl__forward_is(api, kl__guard_bearer(&request->head));
    return trusted ? NULL : kl__guard_check(&api->guard, &request->head);
}

bool kl__route_admits(void *context, kl__request *request)
{
    kl__exchange exchange = {.api = context, .request = request, .arena = request->arena};
    kl_bytes segments[SEGMENTS_MAX];
    bool other = false;
    size_t count = split(request->head.path.data, request->head.path.len, segments);
    exchange.route = find(&request->head, segments, count, &other);
    if (!exchange.route || guard(context, request))
        return false;
    identify(&exchange);
    if (exchange.role < exchange.route->role)
        return false;
    return !kl__route_has_queue(exchange.route) || !take_parts(&exchange, segments, count) ||
           kl__token_may(exchange.scope, kl__part_text(&exchange, 0));
}

void kl__route_serve(void *context, kl__request *request)
{
    kl__api *api = context;
    kl_bytes segments[SEGMENTS_MAX];
    bool other = false;
    kl__exchange *exchange = kl_arena_alloc(request->arena, sizeof *exchange);
    atomic_fetch_add(&api->exchanges, 1); /* first: whoever sees none after `closing` was set needs wait for none */
    if (!exchange || atomic_load(&api->closing)) {
        atomic_fetch_sub(&api->exchanges, 1);
        kl__http_answer(request, &(kl__answer){.status = 503, .close = true});
        return;
    }
    memset(exchange, 0, sizeof *exchange);
    exchange->api = api;
    exchange->store = api->store;
    exchange->request = request;
    exchange->arena = request->arena;
    exchange->who = "anyone";
    const char *wrong = guard(api, request);
    if (wrong) {
        kl__reply_problem(exchange, 403, "forbidden", "%s", wrong);
        return;
    }
    size_t count = split(request->head.path.data, request->head.path.len, segments);
    exchange->route = find(&request->head, segments, count, &other);
    if (!exchange->route && other)
        refuse_method(exchange, segments, count);
    else if (!exchange->route)
        refuse_route(exchange);
    else if (!admit(exchange))
        return;
    else if (!take_parts(exchange, segments, count))
        kl__reply_problem(exchange, 400, "bad-request", "the path has a wrong escape; write bytes as %%2F");
    else if (!take_params(exchange))
        kl__reply_problem(exchange, 400, "bad-request",
                          "the query has a wrong escape (bytes are written as %%2F), or more than %d parameters",
                          KL_PARAMS_MAX);
    else
        go(exchange);
}

/* ---- The end ---- */

/* Routes instead of paths: those may have keys in them. */
static void log_refused(const kl__exchange *exchange, int status)
{
    const kl__request *request = exchange->request;
    const kl__route *route = exchange->route;
    kl_bytes queue = route && kl__route_has_queue(route) ? exchange->parts[0] : (kl_bytes){"", 0};
    kl_log_level level = status >= 500 && status != 503   ? KL_LOG_WARN
                         : status == 401 || status == 403 ? KL_LOG_INFO
                                                          : KL_LOG_DEBUG;
    kl__api_log(exchange->api, level, "answered %d to %s %s%s%.*s by %s at %s", status,
                method_names[request->head.method], route ? route->name : "(no route)",
                queue.len ? " of the queue " : "", (int)(queue.len < KL_QUEUE_NAME_MAX ? queue.len : KL_QUEUE_NAME_MAX),
                (const char *)queue.data, exchange->who, request->peer);
}

static void leave(kl__exchange *exchange, int status)
{
    if (status >= 400)
        log_refused(exchange, status);
    int64_t took_ns = kl__monotonic_ns() - exchange->request->began_ns;
    kl__metrics_request(exchange->api->metrics, exchange->route, status, took_ns);
    if (exchange->route && exchange->route->flags & (KL_ROUTE_CHANGES | KL_ROUTE_AUDITED))
        kl__audit_note(exchange->api->audit, exchange, status);
    if (exchange->route && exchange->route->flags & KL_ROUTE_CHANGES && status < 300)
        kl__events_note(exchange->api->events, exchange->route->name,
                        kl__route_has_queue(exchange->route) ? kl__part_text(exchange, 0) : NULL);
    kl__queues_leave(exchange->open);
    for (size_t i = 0; i < KL_ROUTE_PARTS_MAX; i++)
        kl__queues_leave(exchange->others[i]);
}

void kl__exchange_over(kl__exchange *exchange, int status)
{
    leave(exchange, status);
    atomic_fetch_sub(&exchange->api->exchanges, 1);
}

void kl__exchange_answer(kl__exchange *exchange, const kl__answer *answer)
{
    kl__api *api = exchange->api;
    leave(exchange, answer->status);
    kl__http_answer(exchange->request, answer); /* with which the exchange's memory goes */
    atomic_fetch_sub(&api->exchanges, 1);
}

kl_rc kl__exchange_queue(kl__exchange *exchange, const char *name, kl_queue **ret_queue)
{
    kl__open_queue *open;
    size_t at = 0;
    while (at < KL_ROUTE_PARTS_MAX && exchange->others[at])
        at++;
    KL_ASSERT(at < KL_ROUTE_PARTS_MAX);
    KL_ASSERT(kl__token_may(exchange->scope, name));
    kl_rc rc = kl__queues_open(exchange->api, name, false, &open);
    if (rc != KL_OK)
        return rc;
    exchange->others[at] = open;
    *ret_queue = open->queue;
    return KL_OK;
}
