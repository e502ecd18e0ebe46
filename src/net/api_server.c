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

/* A queue's record is read to see that the store answers: its clock may be this machine's. */
void kl__api_readyz(kl__exchange *exchange)
{
    const char *name;
    size_t count;
    if (atomic_load(&exchange->api->stopping)) {
        kl__reply_problem(exchange, 503, "stopping", "the server is stopping; ask another one");
        return;
    }
    kl_rc rc = kl_queue_list(exchange->store, NULL, 1, exchange->arena, &name, &count);
    if (rc == KL_OK)
        kl__reply_bytes(exchange, 200, "text/plain", kl_str("ready\n"));
    else
        kl__reply_problem(exchange, 503, "not-ready", "the store does not answer: %s", kl_error_text());
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
