/* api_schedules.c - schedules: a task put at the times that five fields say. See keyline/cron.h. */
#include <string.h>

#include "base/clock.h"
#include "keyline/cron.h"
#include "net/filters.h"
#include "net/routes.h"
#include "queue/cron.h"

/* ---- Shapes ---- */

static const char *catch_up_name(kl_catch_up catch_up)
{
    static const char *const names[] = {"one", "none", "one", "all"};
    return names[catch_up <= KL_CATCH_UP_ALL ? catch_up : 0];
}

static json_t *shape_headers(const kl_put *task)
{
    if (task->header_count == 0)
        return json_null();
    json_t *headers = kl__json_array();
    for (size_t i = 0; headers && i < task->header_count; i++) {
        json_t *header = kl__json_object();
        bool made = kl__json_set_bytes(header, "name", task->headers[i].name) &&
                    kl__json_set_bytes(header, "value", task->headers[i].value);
        if (kl__json_append(headers, header) && made)
            continue;
        json_decref(headers);
        headers = NULL;
    }
    return headers;
}

static json_t *shape_tags(const kl_put *task)
{
    if (task->tag_count == 0)
        return json_null();
    json_t *tags = kl__json_array();
    for (size_t i = 0; tags && i < task->tag_count; i++)
        if (!kl__json_append(tags, kl__json_bytes_value(task->tags[i]))) {
            json_decref(tags);
            tags = NULL;
        }
    return tags;
}

/* The first ten fields are those of `keyline cron ls --json`. */
static json_t *shape_schedule(const kl_cron *cron)
{
    const kl_put *task = &cron->task;
    json_t *to = kl__json_object();
    if (kl__json_set_text(to, "schedule", cron->name) &&
        kl__json_set_text(to, "state", cron->paused ? "paused" : "active") &&
        kl__json_set_text(to, "when", cron->when) &&
        kl__json_set_text(to, "zone", cron->zone && *cron->zone ? cron->zone : "UTC") &&
        kl__json_set(to, "next", kl__shape_time(cron->next_ms)) &&
        kl__json_set(to, "last", kl__shape_time(cron->last_ms)) &&
        kl__json_set(to, "kind", kl__shape_bytes(task->kind)) && kl__json_set(to, "key", kl__shape_bytes(task->key)) &&
        kl__json_set_text(to, "catch_up", catch_up_name(cron->catch_up)) &&
        kl__json_set_bytes(to, "payload", task->payload) && kl__json_set_int(to, "priority", task->priority) &&
        kl__json_set(to, "attempts_max", kl__shape_number(task->attempts_max)) &&
        kl__json_set(to, "timeout_ms", kl__shape_number(task->timeout_ms)) &&
        kl__json_set(to, "group", kl__shape_bytes(task->group)) && kl__json_set(to, "headers", shape_headers(task)) &&
        kl__json_set(to, "tags", shape_tags(task)) &&
        kl__json_set(to, "traceparent", kl__shape_bytes(task->traceparent)))
        return to;
    json_decref(to);
    return NULL;
}

static json_t *shape_schedules(const kl_cron *crons, size_t count)
{
    json_t *items = kl__json_array();
    for (size_t i = 0; items && i < count; i++)
        if (!kl__json_append(items, shape_schedule(&crons[i]))) {
            json_decref(items);
            items = NULL;
        }
    return items;
}

/* {"queue", "schedule", "done"}, and "id" where a task was put. */
static void reply_done(kl__exchange *exchange, const char *done, const kl_task_id *id)
{
    json_t *body = kl__json_object();
    if ((id && !kl__json_set_id(body, "id", id)) || !kl__json_set_text(body, "queue", kl__part_text(exchange, 0)) ||
        !kl__json_set_text(body, "schedule", kl__part_text(exchange, 1)) ||
        (done && !kl__json_set_text(body, "done", done))) {
        json_decref(body);
        body = NULL;
    }
    kl__reply(exchange, 200, body);
}

/* ---- Looking ---- */

void kl__api_list_schedules(kl__exchange *exchange)
{
    size_t count = 0, max = (size_t)kl__param_int(exchange, "max", 1, KL_PAGE_MAX, KL_PAGE_STANDARD);
    kl_bytes after = kl__param_text(exchange, "cursor");
    if (kl__params_refused(exchange))
        return;
    kl_cron *crons = kl_arena_alloc(exchange->arena, max * sizeof *crons);
    kl_rc rc =
        crons ? kl_cron_list(exchange->queue, after.data, max, exchange->arena, crons, &count) : kl__fail_memory();
    if (rc == KL_OK)
        kl__reply(exchange, 200,
                  kl__shape_page(shape_schedules(crons, count), kl_str(count == max ? crons[count - 1].name : "")));
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_show_schedule(kl__exchange *exchange)
{
    kl_cron cron;
    if (kl__params_refused(exchange))
        return;
    kl_rc rc = kl__cron_read(exchange->queue, kl__part_text(exchange, 1), exchange->arena, &cron);
    if (rc == KL_OK)
        kl__reply(exchange, 200, shape_schedule(&cron));
    else
        kl__reply_rc(exchange, rc);
}

/* ---- Changing ---- */

static const char *const own_fields[] = {"when", "zone", "catch_up", "paused", NULL};

static kl_catch_up read_catch_up(kl__json *body, kl_arena *arena)
{
    static const kl_catch_up all[] = {KL_CATCH_UP_NONE, KL_CATCH_UP_ONE, KL_CATCH_UP_ALL};
    const char *text = kl__json_text_or(body, "catch_up", arena, "one");
    for (size_t i = 0; i < 3; i++)
        if (strcmp(text, catch_up_name(all[i])) == 0)
            return all[i];
    kl__json_damaged(body, "catch_up", "must be none, one or all");
    return KL_CATCH_UP_ONE;
}

/* What is not the schedule's own is its task's. False: it has answered; the body is freed in any case. */
static bool read_schedule(kl__exchange *exchange, kl__json *body, kl_cron *cron)
{
    char complaint[256];
    cron->when = kl__json_text(body, "when", exchange->arena);
    cron->zone = kl__json_text_or(body, "zone", exchange->arena, NULL);
    cron->catch_up = read_catch_up(body, exchange->arena);
    cron->paused = kl__json_bool_or(body, "paused", false);
    if (body->rc != KL_OK)
        return !kl__body_refused(exchange, body);
    for (const char *const *field = own_fields; *field; field++)
        json_object_del(body->object, *field);
    bool read = kl__shape_put(body->object, kl__wall_ms(), exchange->arena, &cron->task, complaint, sizeof complaint);
    kl__json_free(body);
    if (!read)
        kl__reply_problem(exchange, 400, "bad-request", "%s", complaint);
    return read;
}

void kl__api_put_schedule(kl__exchange *exchange)
{
    static const char *const fields[] = {"when",  "zone",    "catch_up", "paused",      "key",
                                         "kind",  "payload", "priority", "attempts",    "timeout",
                                         "group", "headers", "tags",     "traceparent", NULL};
    kl_cron cron = {.size = sizeof cron, .name = kl__part_text(exchange, 1)};
    kl__json body;
    if (kl__params_refused(exchange) || !kl__body_json(exchange, fields, &body) ||
        !read_schedule(exchange, &body, &cron))
        return;
    kl__cron_fields times;
    kl_rc rc = kl__cron_check(&cron);
    if (rc == KL_OK)
        rc = kl__cron_parse(cron.when, &times); /* before its queue is made */
    if (rc == KL_OK)
        rc = kl__exchange_open(exchange);
    if (rc == KL_OK)
        rc = kl_cron_add(exchange->queue, &cron);
    if (rc == KL_OK)
        reply_done(exchange, "added", NULL);
    else
        kl__reply_rc(exchange, rc);
}

static void set_paused(kl__exchange *exchange, bool paused)
{
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = kl_cron_pause(exchange->queue, kl__part_text(exchange, 1), paused);
    if (rc == KL_OK)
        reply_done(exchange, paused ? "paused" : "resumed", NULL);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_pause_schedule(kl__exchange *exchange) { set_paused(exchange, true); }
void kl__api_resume_schedule(kl__exchange *exchange) { set_paused(exchange, false); }

void kl__api_run_schedule(kl__exchange *exchange)
{
    kl_task_id id;
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = kl_cron_run(exchange->queue, kl__part_text(exchange, 1), &id);
    if (rc == KL_OK)
        reply_done(exchange, NULL, &id);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_remove_schedule(kl__exchange *exchange)
{
    if (!kl__body_none(exchange))
        return;
    kl_rc rc = kl_cron_remove(exchange->queue, kl__part_text(exchange, 1));
    if (rc == KL_OK)
        reply_done(exchange, "removed", NULL);
    else
        kl__reply_rc(exchange, rc);
}
