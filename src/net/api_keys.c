/* api_keys.c - keys: their lines, why each of them waits, and what to do about it. */
#include "base/base.h"
#include "keyline/control.h"
#include "net/filters.h"
#include "net/routes.h"
#include "work/why.h"

enum { PLACES_MAX = 64 /* of one key that are told */ };

/* ---- Showing ---- */

/* `listed`: only the store was asked, and what owners alone know is left out. */
static json_t *shape_key(const kl_key_status *key, bool listed)
{
    json_t *object = kl__json_object();
    bool running = key->why == KL_WHY_RUNNING;
    bool made =
        kl__json_set_bytes(object, "key", key->key) && kl__json_set_int(object, "waiting", (int64_t)key->waiting) &&
        kl__json_set_bool(object, "at_least", key->at_least) &&
        kl__json_set_text(object, "state", listed ? kl__why_listed(key->why) : kl__why_name(key->why)) &&
        kl__json_set(object, "until", kl__shape_time(key->until_ms)) &&
        kl__json_set_int(object, "attempts", key->attempts) && kl__json_set(object, "head", kl__shape_id(&key->head));
    if (!listed)
        made = made && kl__json_set(object, "partition", kl__shape_text(key->partition)) &&
               kl__json_set_int(object, "layout", (int64_t)key->layout);
    if (listed)
        made = made && kl__json_set(object, "oldest", kl__shape_time(key->oldest_ms));
    else
        made =
            made && kl__json_set(object, "reason", kl__shape_text(key->reason)) &&
            kl__json_set(object, "error", kl__shape_text(key->error)) &&
            kl__json_set(object, "worker", kl__shape_text(key->owner)) &&
            kl__json_set(object, "running_ms", running ? json_integer(key->running_ms) : json_null()) &&
            kl__json_set(object, "percent", running && key->percent >= 0 ? json_integer(key->percent) : json_null()) &&
            kl__json_set(object, "progress", running ? kl__shape_text(key->progress) : json_null());
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *shape_keys(const kl_key_status *keys, size_t count, bool listed)
{
    json_t *items = kl__json_array();
    for (size_t i = 0; items && i < count; i++)
        if (!kl__json_append(items, shape_key(&keys[i], listed))) {
            json_decref(items);
            return NULL;
        }
    return items;
}

/* There is no cursor: who comes first changes with every task. */
void kl__api_list_keys(kl__exchange *exchange)
{
    kl_key_order order = (kl_key_order)kl__param_choice(exchange, "by", "depth|age|state");
    size_t count = 0, max = (size_t)kl__param_int(exchange, "max", 1, KL_PAGE_MAX, KL_PAGE_STANDARD);
    if (kl__params_refused(exchange))
        return;
    kl_key_status *keys = kl_arena_alloc(exchange->arena, max * sizeof *keys);
    kl_rc rc = keys ? kl_key_list(exchange->queue, order, 0, max, exchange->arena, keys, &count) : kl__fail_memory();
    if (rc == KL_OK)
        kl__reply(exchange, 200, kl__shape_page(shape_keys(keys, count, true), (kl_bytes){0}));
    else
        kl__reply_rc(exchange, rc);
}

/* NULL: all that have tasks of the key. */
static const char *take_partition(kl__exchange *exchange)
{
    kl_bytes given = kl__param_text(exchange, "partition");
    return given.len > 0 ? given.data : NULL;
}

/* The first place, and all of them. */
static json_t *shape_places(const kl_key_status *places, size_t count)
{
    json_t *object = shape_key(&places[0], false);
    if (kl__json_set(object, "places", shape_keys(places, count, false)))
        return object;
    json_decref(object);
    return NULL;
}

void kl__api_show_key(kl__exchange *exchange)
{
    kl_key_status places[PLACES_MAX];
    size_t count;
    const char *partition = take_partition(exchange);
    if (kl__params_refused(exchange))
        return;
    kl_rc rc =
        kl_key_places(exchange->queue, exchange->parts[1], partition, PLACES_MAX, exchange->arena, places, &count);
    if (rc == KL_OK)
        kl__reply(exchange, 200, shape_places(places, count));
    else
        kl__reply_rc(exchange, rc);
}

/* ---- Acting ---- */

static void reply_done(kl__exchange *exchange, const char *done, json_t *task, json_t *tasks)
{
    json_t *object = kl__json_object();
    bool made = kl__json_set_text(object, "queue", kl__part_text(exchange, 0)) &&
                kl__json_set_bytes(object, "key", exchange->parts[1]) && kl__json_set_text(object, "done", done);
    made = kl__json_set(object, "task", task) && made;
    made = kl__json_set(object, "tasks", tasks) && made;
    if (!made) {
        json_decref(object);
        object = NULL;
    }
    kl__reply(exchange, 200, object);
}

static void reply_acted(kl__exchange *exchange, kl_rc rc, const char *done)
{
    if (rc == KL_OK)
        reply_done(exchange, done, json_null(), json_null());
    else
        kl__reply_rc(exchange, rc);
}

static void act(kl__exchange *exchange, kl_rc (*action)(kl_queue *queue, kl_bytes key), const char *done)
{
    if (kl__body_none(exchange))
        reply_acted(exchange, action(exchange->queue, exchange->parts[1]), done);
}

void kl__api_pause_key(kl__exchange *exchange) { act(exchange, kl_key_pause, "paused"); }
void kl__api_resume_key(kl__exchange *exchange) { act(exchange, kl_key_resume, "resumed"); }

void kl__api_retry_key(kl__exchange *exchange)
{
    const char *partition = take_partition(exchange);
    if (kl__body_none(exchange))
        reply_acted(exchange, kl_key_retry(exchange->queue, exchange->parts[1], partition), "tried now");
}

void kl__api_skip_key(kl__exchange *exchange)
{
    kl_task_id id;
    const char *partition = take_partition(exchange);
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = kl_key_skip(exchange->queue, exchange->parts[1], partition, &id);
    if (rc == KL_OK)
        reply_done(exchange, "skips its first task", kl__shape_id(&id), json_null());
    else
        kl__reply_rc(exchange, rc);
}

static void drain(kl__exchange *exchange, bool dead)
{
    uint64_t count;
    const char *partition = take_partition(exchange);
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = kl_key_drain(exchange->queue, exchange->parts[1], partition, dead, &count);
    if (rc == KL_OK)
        reply_done(exchange, "drained", json_null(), json_integer((int64_t)count));
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_drain_key(kl__exchange *exchange) { drain(exchange, false); }
void kl__api_bury_key(kl__exchange *exchange) { drain(exchange, true); }
