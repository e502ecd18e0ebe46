/* api_tasks.c - tasks one by one, and lists of them. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "keyline/control.h"
#include "net/filters.h"
#include "net/routes.h"

/* ---- Lists ---- */

/* As the choices of `state` are numbered, from 1. */
#define STATES "waiting|ready|due|retry|done|dead|cancelled|finished"
enum { WAITING = 1, READY, DUE, RETRY, DONE, DEAD, CANCELLED, FINISHED };

kl_finished kl__params_finished(kl__exchange *exchange)
{
    return (kl_finished){
        .key = kl__param_text(exchange, "key"),
        .kind = kl__param_text(exchange, "kind"),
        .words = kl__param_text(exchange, "words"),
        .job = kl__param_id(exchange, "job"),
        .from_ms = kl__param_time(exchange, "from"),
        .until_ms = kl__param_time(exchange, "until"),
        .max = (size_t)kl__param_int(exchange, "max", 1, KL_PAGE_MAX, KL_PAGE_STANDARD),
        .cursor = kl__param_text(exchange, "cursor"),
    };
}

/* A list's times are part of what its cursor is signed for, so they must not move with the clock. */
static bool is_relative(kl__exchange *exchange, const char *name)
{
    const char *text = kl__param_text(exchange, name).data;
    return *text == '-' || *text == '+';
}

void kl__reply_finished(kl__exchange *exchange, const kl_finished *which)
{
    kl_bytes cursor = {0};
    size_t count = 0;
    if (which->cursor.len && (is_relative(exchange, "from") || is_relative(exchange, "until"))) {
        kl__reply_problem(
            exchange, 400, "bad-request",
            "from and until count from now, which moves between pages; write them as times to use a cursor");
        return;
    }
    kl_found *found = kl_arena_alloc(exchange->arena, which->max * sizeof *found);
    kl_rc rc =
        found ? kl_queue_finished(exchange->queue, which, exchange->arena, found, &count, &cursor) : kl__fail_memory();
    if (rc == KL_OK)
        kl__reply(exchange, 200, kl__shape_tasks(found, count, cursor));
    else
        kl__reply_rc(exchange, rc);
}

static void reply_waiting(kl__exchange *exchange, int state, const kl_finished *asked)
{
    static const kl_task_id none;
    kl_waiting which = {.key = asked->key,
                        .due = state == DUE,
                        .retry = state == RETRY,
                        .ready = state == READY,
                        .max = asked->max,
                        .cursor = asked->cursor};
    kl_bytes cursor = {0};
    size_t count = 0;
    if (asked->kind.len || asked->words.len || asked->from_ms || asked->until_ms ||
        memcmp(&asked->job, &none, sizeof none) != 0) {
        kl__reply_problem(
            exchange, 400, "bad-request",
            "waiting tasks are chosen by key alone; add state=done, dead, cancelled or finished to use the "
            "rest");
        return;
    }
    kl_found *found = kl_arena_alloc(exchange->arena, which.max * sizeof *found);
    kl_rc rc =
        found ? kl_queue_waiting(exchange->queue, &which, exchange->arena, found, &count, &cursor) : kl__fail_memory();
    if (rc == KL_OK)
        kl__reply(exchange, 200, kl__shape_tasks(found, count, cursor));
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_list_tasks(kl__exchange *exchange)
{
    int state = kl__param_choice(exchange, "state", STATES);
    kl_finished which = kl__params_finished(exchange);
    if (kl__params_refused(exchange))
        return;
    if (state < DONE) {
        reply_waiting(exchange, state, &which);
        return;
    }
    which.state = state == DONE        ? KL_TASK_DONE
                  : state == DEAD      ? KL_TASK_DEAD
                  : state == CANCELLED ? KL_TASK_CANCELLED
                                       : KL_TASK_UNKNOWN;
    kl__reply_finished(exchange, &which);
}

/* ---- One ---- */

/* False: it has answered. */
static bool read_task(kl__exchange *exchange, kl_found *ret_found)
{
    kl_task_id id;
    if (kl__params_refused(exchange) || !kl__part_id(exchange, 1, &id))
        return false;
    kl_rc rc = kl_queue_task(exchange->queue, &id, exchange->arena, ret_found);
    if (rc != KL_OK)
        kl__reply_rc(exchange, rc);
    return rc == KL_OK;
}

void kl__api_read_task(kl__exchange *exchange)
{
    kl_found found;
    if (read_task(exchange, &found))
        kl__reply(exchange, 200, kl__shape_task(&found));
}

void kl__api_read_payload(kl__exchange *exchange)
{
    kl_found found;
    if (read_task(exchange, &found))
        kl__reply_bytes(exchange, 200, "application/octet-stream", found.task.entry.payload);
}

void kl__api_read_result(kl__exchange *exchange)
{
    kl_found found;
    if (!read_task(exchange, &found))
        return;
    if (found.task.state == KL_TASK_WAITING)
        kl__reply_problem(exchange, 404, "not-found",
                          "the task is not finished, so it has no result yet; ask again later");
    else
        kl__reply_bytes(exchange, 200, "application/octet-stream", found.task.result);
}

/* ---- Steering ---- */

static void reply_done(kl__exchange *exchange, const kl_task_id *id, const char *done, const kl_task_id *new_id)
{
    static const kl_task_id none;
    json_t *object = kl__json_object();
    const kl_task_id *other = new_id && memcmp(new_id, id, sizeof *id) != 0 ? new_id : &none;
    if (!kl__json_set_id(object, "id", id) || !kl__json_set_text(object, "queue", kl__part_text(exchange, 0)) ||
        !kl__json_set_text(object, "done", done) || !kl__json_set(object, "new_id", kl__shape_id(other))) {
        json_decref(object);
        object = NULL;
    }
    kl__reply(exchange, 200, object);
}

void kl__api_cancel_task(kl__exchange *exchange)
{
    kl_task_id id;
    bool running = false;
    if (!kl__body_none(exchange) || !kl__part_id(exchange, 1, &id))
        return;
    kl_rc rc = kl_task_cancel(exchange->queue, &id, &running);
    if (rc == KL_OK)
        reply_done(exchange, &id, running ? "asked to stop" : "cancelled", NULL);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_retry_task(kl__exchange *exchange)
{
    kl_task_id id, new_id;
    if (!kl__body_none(exchange) || !kl__part_id(exchange, 1, &id))
        return;
    new_id = id;
    kl_rc rc = kl_task_retry(exchange->queue, &id, &new_id);
    if (rc == KL_OK)
        reply_done(exchange, &id, memcmp(&new_id, &id, sizeof id) == 0 ? "due now" : "put again", &new_id);
    else
        kl__reply_rc(exchange, rc);
}

void kl__api_move_task(kl__exchange *exchange)
{
    static const char *const fields[] = {"to", NULL};
    char done[KL_QUEUE_NAME_MAX + 16];
    kl_task_id id, new_id;
    kl_queue *to;
    kl__json body;
    if (kl__params_refused(exchange) || !kl__part_id(exchange, 1, &id) || !kl__body_json(exchange, fields, &body))
        return;
    const char *name = kl__json_text(&body, "to", exchange->arena);
    if (kl__body_refused(exchange, &body) || !kl__exchange_may(exchange, name))
        return;
    kl_rc rc = kl__exchange_queue(exchange, name, &to);
    if (rc == KL_OK)
        rc = kl_task_move(exchange->queue, &id, to, &new_id);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    snprintf(done, sizeof done, "moved to %s", name);
    reply_done(exchange, &id, done, &new_id);
}
