/* api_server.c - the server itself: whether it is well, what it counts, what it is, what happens. */
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/openapi.h"
#include "net/routes.h"
#include "net/server.h"
#include "net/tokens.h"

void kl__api_healthz(kl__exchange *exchange) { kl__reply_bytes(exchange, 200, "text/plain", kl_str("ok\n")); }

/* READY_NS: so long what is known of the store is told to whoever asks. HANGS_NS: a store that has not answered for so
 * long does not. */
static const int64_t READY_NS = 1000000000, HANGS_NS = 2000000000;

/* A queue's record is read to see that the store answers: its clock may be this machine's. Why it does not is for the
 * log: strangers are not told where the store is. */
static void ask_store(kl__exchange *exchange)
{
    kl__api *api = exchange->api;
    const char *name;
    size_t count;
    bool failed = kl_queue_list(exchange->store, NULL, 1, exchange->arena, &name, &count) != KL_OK;
    if (failed && !atomic_exchange(&api->unready, failed))
        kl__api_log(api, KL_LOG_WARN, "the server is not ready: %s", kl_error_text());
    atomic_store(&api->unready, failed);
    atomic_store(&api->asked_ns, kl__monotonic_ns());
    atomic_store(&api->asking_ns, 0);
}

/* One asks the store, once a second at most: anybody may come here. */
static bool is_ready(kl__exchange *exchange)
{
    kl__api *api = exchange->api;
    int64_t now_ns = kl__monotonic_ns(), asking_ns = 0;
    if (now_ns - atomic_load(&api->asked_ns) >= READY_NS &&
        atomic_compare_exchange_strong(&api->asking_ns, &asking_ns, now_ns))
        ask_store(exchange);
    return !atomic_load(&api->unready) && (asking_ns == 0 || now_ns - asking_ns < HANGS_NS);
}

void kl__api_readyz(kl__exchange *exchange)
{
    if (atomic_load(&exchange->api->stopping)) {
        kl__reply_problem(exchange, 503, "stopping", "the server is stopping; ask another one");
        return;
    }
    if (is_ready(exchange))
        kl__reply_bytes(exchange, 200, "text/plain", kl_str("ready\n"));
    else
        kl__reply_problem(exchange, 503, "not-ready", "the store does not answer; the server's log says why");
}

void kl__api_metrics(kl__exchange *exchange)
{
    kl_bytes text;
    kl__api *api = exchange->api;
    if (kl__params_refused(exchange))
        return;
    kl_rc rc = kl__metrics_text(api->metrics, exchange->store, api->http, exchange->scope, exchange->arena, &text);
    if (rc == KL_OK)
        kl__reply_bytes(exchange, 200, "application/openmetrics-text; version=1.0.0; charset=utf-8", text);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_openapi(kl__exchange *exchange)
{
    if (!kl__params_refused(exchange))
        kl__reply(exchange, 200, kl__openapi());
}

/* What is said of the store: its scheme; the rest of its URL may hold a password. */
void kl__api_info(kl__exchange *exchange)
{
    const kl__api *api = exchange->api;
    kl_store_info store = kl_store_info_of(exchange->store);
    int64_t store_ms;
    if (kl__params_refused(exchange))
        return;
    kl_rc rc = kl_store_now(exchange->store, &store_ms);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    json_t *body = kl__json_object();
    if (!kl__json_set_text(body, "name", "keyline") || !kl__json_set_text(body, "version", KEYLINE_VERSION) ||
        !kl__json_set_text(body, "server", api->name) || !kl__json_set_text(body, "worker", api->worker_name) ||
        !kl__json_set_int(body, "pid", getpid()) || !kl__json_set_text(body, "store", store.scheme) ||
        !kl__json_set_bool(body, "durable", store.can & KL_STORE_DURABLE) ||
        !kl__json_set(body, "time", kl__shape_time(store_ms)) ||
        !kl__json_set(body, "started", kl__shape_time(api->began_ms)) ||
        !kl__json_set_bool(body, "stopping", atomic_load(&api->stopping)) ||
        !kl__json_set_text(body, "who", exchange->who) ||
        !kl__json_set_text(body, "role", kl__role_name(exchange->role)) ||
        !kl__json_set_text(body, "queues", exchange->scope ? exchange->scope : "*")) {
        json_decref(body);
        body = NULL;
    }
    kl__reply(exchange, 200, body);
}

/* A queue that is not there would be silent for ever. To see that may block. */
static void follow_queue(kl__exchange *exchange)
{
    kl_queue *queue;
    const char *name = exchange->serving;
    kl_rc rc = kl__exchange_queue(exchange, name, &queue);
    if (rc == KL_OK)
        kl__events_follow(exchange->api->events, exchange, name);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_events(kl__exchange *exchange)
{
    kl_bytes queue = kl__param_text(exchange, "queue");
    if (kl__params_refused(exchange))
        return;
    exchange->serving = (void *)queue.data;
    if (queue.len == 0)
        kl__events_follow(exchange->api->events, exchange, NULL);
    else if (kl__exchange_may(exchange, queue.data))
        kl__pool_push(exchange->api->pool, exchange, follow_queue);
}
