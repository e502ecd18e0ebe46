/* api_dead.c - dead letters: listed, put back, moved, forgotten.
 *
 * Acting on many takes as long as it takes, and a request should not: after ACT_MS the answer says how far it came and
 * that there are more, and the same request made again goes on. */
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "net/filters.h"
#include "net/routes.h"
#include "net/server.h"

enum { ACT_MS = 20000, RATE_MAX = 1000000 };

void kl__api_list_dead(kl__exchange *exchange)
{
    kl_finished which = kl__params_finished(exchange);
    which.state = KL_TASK_DEAD;
    if (!kl__params_refused(exchange))
        kl__reply_finished(exchange, &which);
}

/* ---- Which ---- */

#define FILTER "key", "kind", "words", "job", "from", "until"
static const char *const fields[] = {FILTER, "id", "max", "rate", NULL};
static const char *const move_fields[] = {FILTER, "id", "max", "rate", "to", NULL};
static const char *const purge_fields[] = {FILTER, "id", "max", "rate", "all", NULL};

/* An empty one would choose all of them. */
static kl_bytes read_choice(kl__json *body, const char *field, kl_arena *arena)
{
    kl_bytes choice = kl__json_bytes_or(body, field, arena, (kl_bytes){"", 0});
    if (choice.len == 0 && kl__json_has(body, field))
        kl__json_damaged(body, field, "is empty, which would mean any");
    return choice;
}

static kl_redrive read_redrive(kl__json *body, kl_arena *arena)
{
    const kl_task_id none = {{0}};
    return (kl_redrive){
        .which = {.key = read_choice(body, "key", arena),
                  .kind = read_choice(body, "kind", arena),
                  .words = read_choice(body, "words", arena),
                  .job = kl__json_id_or(body, "job", none),
                  .from_ms = kl__body_time(body, "from"),
                  .until_ms = kl__body_time(body, "until")},
        .id = kl__json_id_or(body, "id", none),
        .max = (uint64_t)kl__json_int_or(body, "max", 1, INT64_MAX, 0),
        .rate = kl__json_int_or(body, "rate", 1, RATE_MAX, 0),
    };
}

/* ---- Acting ---- */

struct acting {
    const kl__api *api;
    int64_t until_ns;
    bool stopped;
};

static bool go_on(void *context, const kl_account *account)
{
    struct acting *acting = context;
    (void)account;
    acting->stopped = kl__monotonic_ns() > acting->until_ns || atomic_load(&acting->api->stopping);
    return !acting->stopped;
}

typedef kl_rc redrive_fn(kl_queue *queue, const kl_redrive *which, kl_account *ret_account);

static void act(kl__exchange *exchange, redrive_fn *redrive, kl_redrive which)
{
    struct acting acting = {.api = exchange->api, .until_ns = kl__deadline_ns(ACT_MS)};
    kl_account account;
    which.told = go_on;
    which.told_ctx = &acting;
    kl_rc rc = redrive(exchange->queue, &which, &account);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    json_t *object = kl__shape_account(&account);
    if (!kl__json_set_text(object, "queue", kl__part_text(exchange, 0)) ||
        !kl__json_set_bool(object, "more", acting.stopped)) {
        json_decref(object);
        object = NULL;
    }
    kl__reply(exchange, 200, object);
}

void kl__api_retry_dead(kl__exchange *exchange)
{
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, fields, &body))
        return;
    kl_redrive which = read_redrive(&body, exchange->arena);
    if (!kl__body_refused(exchange, &body))
        act(exchange, kl_dead_retry, which);
}

void kl__api_move_dead(kl__exchange *exchange)
{
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, move_fields, &body))
        return;
    kl_redrive which = read_redrive(&body, exchange->arena);
    const char *to = kl__json_text(&body, "to", exchange->arena);
    if (kl__body_refused(exchange, &body) || !kl__exchange_may(exchange, to))
        return;
    kl_rc rc = kl__exchange_queue(exchange, to, &which.to);
    if (rc == KL_OK)
        act(exchange, kl_dead_move, which);
    else
        kl__reply_rc(exchange, rc);
}

/* What is forgotten is gone, so nobody forgets everything by leaving something out. */
static bool names_some(const kl_redrive *which)
{
    const kl_task_id none = {{0}};
    const kl_finished *filter = &which->which;
    return filter->key.len || filter->kind.len || filter->words.len || filter->from_ms || filter->until_ms ||
           memcmp(&filter->job, &none, sizeof none) != 0 || memcmp(&which->id, &none, sizeof none) != 0;
}

void kl__api_purge_dead(kl__exchange *exchange)
{
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, purge_fields, &body))
        return;
    kl_redrive which = read_redrive(&body, exchange->arena);
    bool some = kl__json_bool_or(&body, "all", false) || names_some(&which);
    if (kl__body_refused(exchange, &body))
        return;
    if (some)
        act(exchange, kl_dead_purge, which);
    else
        kl__reply_problem(exchange, 400, "bad-request",
                          "a purge forgets for good; say which with id, key and others, or \"all\": true");
}
