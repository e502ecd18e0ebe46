/* api_queues.c - queues: listed, made, shown, changed, paused, emptied, removed; and who works on them.
 *
 * A queue's settings are written and read under the same names, so what GET shows may be sent back with PATCH. null is
 * "no limit", or "not at all". */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "keyline/control.h"
#include "net/filters.h"
#include "net/routes.h"
#include "net/server.h"
#include "net/tokens.h"
#include "queue/inside.h"
#include "work/owners.h"

/* LIST_PIECE: names that are read at once. */
enum { WORKERS_MAX = 1000, RANGES_MAX = 10000, LIST_PIECE = 64 };

/* ---- Settings ---- */

struct setting {
    const char *name;
    size_t offset;
};

#define SETTING(name, field)                                                                                           \
    {                                                                                                                  \
        name, offsetof(kl_queue_opts, field)                                                                           \
    }

static const struct setting settings[] = {
    SETTING("partitions", partitions),
    SETTING("shard_prefix_len", shard_prefix_len),
    SETTING("attempts", attempts_max),
    SETTING("backoff_ms", backoff_base_ms),
    SETTING("backoff_max_ms", backoff_max_ms),
    SETTING("timeout_ms", timeout_ms),
    SETTING("lease_ms", lease_ms),
    SETTING("keep_done_ms", keep_done_ms),
    SETTING("keep_dead_ms", keep_dead_ms),
    SETTING("rate", rate),
    SETTING("burst", burst),
    SETTING("concurrency", concurrency),
};

enum { SETTINGS = sizeof settings / sizeof *settings };

#define SETTING_FIELDS                                                                                                 \
    "partitions", "shard_prefix_len", "attempts", "backoff_ms", "backoff_max_ms", "timeout_ms", "lease_ms",            \
        "keep_done_ms", "keep_dead_ms", "rate", "burst", "concurrency", "head_policy", "partition_stores"

static int64_t *value_in(kl_queue_opts *opts, const struct setting *setting)
{
    return (int64_t *)(void *)((char *)opts + setting->offset);
}

static bool set_settings(json_t *object, const kl_queue_opts *opts)
{
    kl_queue_opts copy = *opts;
    bool made = kl__json_set_text(object, "head_policy", kl__policy_name(opts->head_policy));
    for (size_t i = 0; made && i < SETTINGS; i++) {
        int64_t value = *value_in(&copy, &settings[i]);
        bool none = value == KL_FOREVER || value <= 0;
        made = kl__json_set(object, settings[i].name, none ? json_null() : json_integer(value));
    }
    return made;
}

static void read_setting(kl__json *body, const struct setting *setting, kl_queue_opts *opts)
{
    const json_t *value = json_object_get(body->object, setting->name);
    int64_t min, max, none, number = json_integer_value(value);
    char reason[128];
    if (!value)
        return;
    KL_ASSERT(kl__settings_range(setting->offset, &min, &max, &none));
    if (json_is_integer(value) && number >= min && number <= max) {
        *value_in(opts, setting) = number;
    } else if (json_is_null(value) && none != 0) {
        *value_in(opts, setting) = none;
    } else {
        snprintf(reason, sizeof reason, "must be a whole number from %lld to %lld%s", (long long)min, (long long)max,
                 none ? ", or null for none" : "");
        kl__json_damaged(body, setting->name, reason);
    }
}

static void read_policy(kl__json *body, kl_queue_opts *opts, kl_arena *arena)
{
    if (!kl__json_has(body, "head_policy"))
        return;
    opts->head_policy = kl__policy_parse(kl__json_text(body, "head_policy", arena));
    if (opts->head_policy == KL_HEAD_UNSET)
        kl__json_damaged(body, "head_policy", "must be continue, halt or drain");
}

static void read_stores(kl__json *body, kl_queue_opts *opts, kl_arena *arena)
{
    json_t *urls =
        kl__json_has(body, "partition_stores") ? kl__json_array_of(body, "partition_stores", KL_PARTITIONS_MAX) : NULL;
    size_t count = json_array_size(urls);
    const char **stores = kl_arena_alloc(arena, (count + 1) * sizeof *stores);
    for (size_t i = 0; stores && i < count; i++) {
        kl_bytes url = kl__json_bytes_of(body, json_array_get(urls, i), "partition_stores", arena);
        if (url.len && memchr(url.data, 0, url.len))
            kl__json_damaged(body, "partition_stores", "has a zero byte in it");
        stores[i] = url.data;
    }
    if (!stores && body->rc == KL_OK)
        body->rc = kl__fail_memory();
    opts->stores = stores;
    opts->store_count = count;
}

static kl_queue_opts read_settings(kl__json *body, kl_arena *arena)
{
    kl_queue_opts opts = {.size = sizeof opts, .origin = "the API"};
    for (size_t i = 0; i < SETTINGS; i++)
        read_setting(body, &settings[i], &opts);
    read_policy(body, &opts, arena);
    read_stores(body, &opts, arena);
    return opts;
}

/* ---- Showing ---- */

static bool set_counts(json_t *object, const kl_counts *counts, int64_t now_ms)
{
    int64_t oldest_ms = counts->oldest_id_ms;
    int64_t age_ms = oldest_ms && now_ms > oldest_ms ? now_ms - oldest_ms : 0;
    return kl__json_set_int(object, "ready", (int64_t)counts->ready) &&
           kl__json_set_int(object, "due", (int64_t)counts->due) &&
           kl__json_set_int(object, "retry", (int64_t)counts->retry) &&
           kl__json_set_int(object, "done", (int64_t)counts->done) &&
           kl__json_set_int(object, "dead", (int64_t)counts->dead) &&
           kl__json_set_int(object, "cancelled", (int64_t)counts->cancelled) &&
           kl__json_set_bool(object, "at_least", counts->at_least) &&
           kl__json_set_bool(object, "finished_behind", counts->finished_behind) &&
           kl__json_set(object, "oldest", kl__shape_time(oldest_ms)) &&
           kl__json_set(object, "oldest_age_ms", oldest_ms ? json_integer(age_ms) : json_null());
}

/* Tasks a second, to three digits. */
static json_t *shape_rate(double rate) { return json_real((double)(int64_t)(rate * 1000 + 0.5) / 1000); }

/* What this server has counted, as it was last refreshed. */
static json_t *shape_rates(kl__exchange *exchange, const char *name)
{
    kl__queue_rates rates = kl__metrics_rates(kl__metrics_queue(exchange->api->metrics, name));
    json_t *object = kl__json_object();
    if (kl__json_set(object, "put", shape_rate(rates.put)) &&
        kl__json_set(object, "claimed", shape_rate(rates.claimed)) &&
        kl__json_set(object, "settled", shape_rate(rates.settled)) &&
        kl__json_set(object, "failed", shape_rate(rates.failed)) && kl__json_set_int(object, "over_ms", rates.over_ms))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *shape_text(const char *text) { return *text ? kl__json_bytes_value(kl_str(text)) : json_null(); }

static json_t *shape_queue(kl__exchange *exchange, const kl_queue_info *info, uint64_t running, int64_t now_ms)
{
    json_t *object = kl__json_object();
    if (kl__json_set_text(object, "queue", info->name) &&
        kl__json_set_text(object, "state", info->paused ? "paused" : "active") &&
        set_counts(object, &info->counts, now_ms) && kl__json_set_int(object, "running", (int64_t)running) &&
        kl__json_set(object, "rates", shape_rates(exchange, info->name)) &&
        kl__json_set(object, "created", kl__shape_time(info->created_ms)) &&
        kl__json_set_int(object, "layout_number", (int64_t)info->layout_number) &&
        kl__json_set_int(object, "layouts_draining", (int64_t)info->layouts_draining) &&
        kl__json_set(object, "away", shape_text(info->away)) &&
        kl__json_set_int(object, "refused", (int64_t)info->refused) &&
        kl__json_set(object, "refused_why", shape_text(info->refused_why)) && set_settings(object, &info->settings))
        return object;
    json_decref(object);
    return NULL;
}

/* What workers and servers told with their last heartbeat. */
static kl_rc count_running(kl__exchange *exchange, kl_queue *queue, uint64_t *ret_running)
{
    size_t count = 0;
    kl_worker_status *workers = kl_arena_alloc(exchange->arena, WORKERS_MAX * sizeof *workers);
    kl_rc rc = workers ? kl_queue_workers(queue, WORKERS_MAX, exchange->arena, workers, &count) : kl__fail_memory();
    *ret_running = 0;
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        *ret_running += workers[i].running;
    return rc;
}

static kl_rc look_at(kl__exchange *exchange, kl_queue *queue, json_t **ret_shape)
{
    kl_queue_info info;
    int64_t now_ms;
    uint64_t running = 0;
    kl_rc rc = kl_queue_show(queue, exchange->arena, &info);
    if (rc == KL_OK)
        rc = kl_store_now(exchange->store, &now_ms);
    if (rc == KL_OK)
        rc = count_running(exchange, queue, &running);
    if (rc == KL_OK)
        *ret_shape = shape_queue(exchange, &info, running, now_ms);
    return rc;
}

static void reply_queue(kl__exchange *exchange, int status, kl_queue *queue)
{
    json_t *shape = NULL;
    kl__metrics_refresh(exchange->api->metrics);
    kl_rc rc = look_at(exchange, queue, &shape);
    if (rc == KL_OK)
        kl__reply(exchange, status, shape);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_show_queue(kl__exchange *exchange)
{
    if (!kl__params_refused(exchange))
        reply_queue(exchange, 200, exchange->queue);
}

/* ---- Listing ---- */

/* Queues that are not open are looked at and closed again: a list of thousands must not keep them all. */
static kl_rc list_one(kl__exchange *exchange, const char *name, json_t *items)
{
    kl__open_queue *open = kl__queues_known(exchange->api, name);
    kl_queue *queue = open ? open->queue : NULL;
    json_t *shape = NULL;
    kl_rc rc = open ? KL_OK : kl_queue_find(exchange->store, name, &queue);
    if (rc == KL_OK)
        rc = look_at(exchange, queue, &shape);
    if (rc == KL_OK && !kl__json_append(items, shape))
        rc = kl__fail_memory();
    if (!open)
        kl_queue_close(queue);
    kl__queues_leave(open);
    return rc == KL_ENOTFOUND ? KL_OK : rc; /* removed meanwhile */
}

/* Goes on until the page is full or the list ends, so that a cursor is never the name of a queue that the token may not
 * know of. */
static kl_rc list(kl__exchange *exchange, const char *after, size_t max, json_t *items, kl_bytes *ret_cursor)
{
    const char **names = kl_arena_alloc(exchange->arena, LIST_PIECE * sizeof *names);
    size_t count = LIST_PIECE, shown = 0;
    kl_rc rc = names && items ? KL_OK : kl__fail_memory();
    while (rc == KL_OK && count == LIST_PIECE && shown < max) {
        rc = kl_queue_list(exchange->store, after, LIST_PIECE, exchange->arena, names, &count);
        for (size_t i = 0; rc == KL_OK && i < count && shown < max; i++) {
            after = names[i];
            if (!kl__token_may(exchange->scope, after))
                continue;
            rc = list_one(exchange, after, items);
            shown++;
        }
    }
    if (rc == KL_OK && shown == max)
        *ret_cursor = kl_str(after);
    return rc;
}

/* The cursor is a name behind its version. */
#define CURSOR "q1-"

void kl__api_list_queues(kl__exchange *exchange)
{
    size_t max = (size_t)kl__param_int(exchange, "max", 1, KL_PAGE_MAX, KL_PAGE_STANDARD);
    kl_bytes given = kl__param_text(exchange, "cursor"), last = {0};
    char cursor[KL_QUEUE_NAME_MAX + sizeof CURSOR] = "";
    if (kl__params_refused(exchange))
        return;
    const char *after = given.data;
    if (given.len) {
        if (given.len >= sizeof cursor || strncmp(after, CURSOR, strlen(CURSOR)) != 0) {
            kl__reply_problem(exchange, 400, "bad-request",
                              "this is no cursor of this list; send what the last page had, or none to begin anew");
            return;
        }
        after += strlen(CURSOR);
    }
    json_t *items = kl__json_array();
    kl__metrics_refresh(exchange->api->metrics);
    kl_rc rc = list(exchange, after, max, items, &last);
    if (rc != KL_OK) {
        json_decref(items);
        kl__reply_rc(exchange, rc);
        return;
    }
    if (last.len)
        snprintf(cursor, sizeof cursor, CURSOR "%s", (const char *)last.data);
    kl__reply(exchange, 200, kl__shape_page(items, kl_str(cursor)));
}

/* ---- Making and changing ---- */

/* False: it has answered. */
static bool read_create(kl__exchange *exchange, const char **ret_name, bool *ret_if_missing, kl_queue_opts *ret_opts)
{
    static const char *const fields[] = {"queue", "if_missing", SETTING_FIELDS, NULL};
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, fields, &body))
        return false;
    *ret_name = kl__json_text(&body, "queue", exchange->arena);
    *ret_if_missing = kl__json_bool_or(&body, "if_missing", false);
    *ret_opts = read_settings(&body, exchange->arena);
    if (kl__body_refused(exchange, &body))
        return false;
    if (kl__token_may(exchange->scope, *ret_name))
        return true;
    kl__reply_problem(exchange, 403, "forbidden", "the token '%s' is not for the queue '%s'", exchange->who, *ret_name);
    return false;
}

/* Whether it is there is asked first: create says what a queue shall be like, and must not pass over that it is not. */
void kl__api_create_queue(kl__exchange *exchange)
{
    kl_queue_opts opts;
    kl_queue *queue;
    const char *name;
    bool if_missing, there;
    if (!read_create(exchange, &name, &if_missing, &opts))
        return;
    kl_rc rc = kl_queue_find(exchange->store, name, &queue);
    there = rc == KL_OK;
    if (there)
        kl_queue_close(queue);
    if (there && !if_missing) {
        kl__reply_problem(exchange, 409, "exists", "queue %s exists already; change it with PATCH, or send if_missing",
                          name);
        return;
    }
    if (there || rc == KL_ENOTFOUND)
        rc = kl_queue_open(exchange->store, name, &opts, &queue);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    json_t *shape = NULL;
    rc = look_at(exchange, queue, &shape);
    kl_queue_close(queue);
    if (rc == KL_OK)
        kl__reply(exchange, there ? 200 : 201, shape);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_alter_queue(kl__exchange *exchange)
{
    static const char *const fields[] = {SETTING_FIELDS, NULL};
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, fields, &body))
        return;
    bool stated = json_object_size(body.object) > 0;
    kl_queue_opts opts = read_settings(&body, exchange->arena);
    if (kl__body_refused(exchange, &body))
        return;
    if (!stated) {
        kl__reply_problem(exchange, 400, "bad-request",
                          "nothing is to be changed; send settings, such as {\"rate\": 10}");
        return;
    }
    kl_rc rc = kl_queue_alter(exchange->queue, &opts);
    if (rc == KL_OK)
        reply_queue(exchange, 200, exchange->queue);
    else
        kl__reply_rc(exchange, rc);
}

/* ---- Pausing, emptying, removing ---- */

static void reply_done(kl__exchange *exchange, const char *done)
{
    json_t *object = kl__json_object();
    if (!kl__json_set_text(object, "queue", kl__part_text(exchange, 0)) || !kl__json_set_text(object, "done", done)) {
        json_decref(object);
        object = NULL;
    }
    kl__reply(exchange, 200, object);
}

static void act(kl__exchange *exchange, kl_rc (*action)(kl_queue *queue), const char *done)
{
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = action(exchange->queue);
    if (rc == KL_OK)
        reply_done(exchange, done);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_pause_queue(kl__exchange *exchange) { act(exchange, kl_queue_pause, "paused"); }
void kl__api_resume_queue(kl__exchange *exchange) { act(exchange, kl_queue_resume, "resumed"); }

void kl__api_purge_queue(kl__exchange *exchange)
{
    uint64_t count;
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = kl_queue_purge(exchange->queue, &count);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    json_t *object = kl__json_object();
    if (!kl__json_set_text(object, "queue", kl__part_text(exchange, 0)) ||
        !kl__json_set_int(object, "cancelled", (int64_t)count)) {
        json_decref(object);
        object = NULL;
    }
    kl__reply(exchange, 200, object);
}

/* By a handle of its own: the one that is open may be in use by others, who find it gone. */
void kl__api_remove_queue(kl__exchange *exchange)
{
    kl_queue *queue;
    if (!kl__body_none(exchange))
        return;
    kl__queues_release(exchange->open); /* nobody may work on it, this server neither */
    kl_rc rc = kl_queue_find(exchange->store, kl__part_text(exchange, 0), &queue);
    if (rc == KL_OK) {
        rc = kl_queue_remove(queue);
        kl_queue_close(queue);
    }
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    kl__queues_forget(exchange->open);
    reply_done(exchange, "removed");
}

/* ---- Workers ---- */

static json_t *shape_worker(const char *queue, const kl_worker_status *worker)
{
    json_t *object = kl__json_object();
    if (kl__json_set_text(object, "worker", worker->name) && kl__json_set_text(object, "queue", queue) &&
        kl__json_set_int(object, "shards", (int64_t)worker->shards) &&
        kl__json_set_int(object, "running", (int64_t)worker->running) &&
        kl__json_set_int(object, "concurrency", (int64_t)worker->concurrency) &&
        kl__json_set(object, "seen", kl__shape_time(worker->seen_ms)))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *shape_range(const char *partition, uint64_t layout, int digits, uint32_t from, uint32_t to,
                           const kl__owner *owner)
{
    char shards[16];
    json_t *object = kl__json_object();
    snprintf(shards, sizeof shards, from == to ? "%0*x" : "%0*x-%0*x", digits, from, digits, to);
    if (kl__json_set_text(object, "partition", partition) && kl__json_set_int(object, "layout", (int64_t)layout) &&
        kl__json_set_text(object, "shards", shards) &&
        kl__json_set(object, "worker", kl__shape_text(owner ? owner->name : "")))
        return object;
    json_decref(object);
    return NULL;
}

/* Neighbours of one owner are one range. */
static kl_rc show_owners(void *context, const char *partition, uint64_t number, const kl_layout *layout,
                         const kl__ownership *ownership)
{
    json_t *ranges = context;
    uint32_t shards = kl_layout_shards(layout), from = 0;
    for (uint32_t shard = 1; shard <= shards && json_array_size(ranges) < RANGES_MAX; shard++) {
        const kl__owner *owner = kl__ownership_of(ownership, from);
        if (shard < shards && kl__ownership_of(ownership, shard) == owner)
            continue;
        int digits = (int)layout->shard_prefix_len;
        if (!kl__json_append(ranges, shape_range(partition, number, digits, from, shard - 1, owner)))
            return kl__fail_memory();
        from = shard;
    }
    return KL_OK;
}

void kl__api_list_workers(kl__exchange *exchange)
{
    size_t count = 0;
    if (kl__params_refused(exchange))
        return;
    kl_worker_status *workers = kl_arena_alloc(exchange->arena, WORKERS_MAX * sizeof *workers);
    json_t *items = kl__json_array(), *owners = kl__json_array();
    bool made = workers && items && owners;
    kl_rc rc =
        made ? kl_queue_workers(exchange->queue, WORKERS_MAX, exchange->arena, workers, &count) : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl__queue_owners(exchange->queue, exchange->arena, show_owners, owners);
    for (size_t i = 0; made && i < count; i++)
        made = kl__json_append(items, shape_worker(kl__part_text(exchange, 0), &workers[i]));
    json_t *page = kl__shape_page(items, (kl_bytes){0});
    bool more = json_array_size(owners) >= RANGES_MAX;
    made = kl__json_set(page, "owners", owners) && kl__json_set_bool(page, "more", more) && made;
    if (rc == KL_OK && made) {
        kl__reply(exchange, 200, page);
        return;
    }
    json_decref(page);
    kl__reply_rc(exchange, rc == KL_OK ? kl__fail_memory() : rc);
}
