/* control_task.c - steering single tasks (control.h).
 *
 * From: the application or the program.  To: ask_send.c, for one that waits; dead.c, for one that is finished. */
#include <stdio.h>
#include <string.h>

#include "base/compare.h"
#include "keyline/control.h"
#include "queue/look.h"
#include "queue/put.h"
#include "work/ask.h"
#include "work/inside.h"

static kl_rc check_given(const kl_queue *queue, const kl_task_id *id)
{
    return queue && id ? KL_OK : kl__fail(KL_EINVAL, "an argument is NULL; pass the queue and the task's id");
}

/* Asks the owner of the task's shard. Finished tasks are KL_ENOTFOUND here. */
static kl_rc ask_once(kl_queue *queue, const kl_task_id *id, const char *verb, kl_arena *arena, kl__json *ret_answer)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_task task;
    kl__source source;
    kl_rc rc = kl__look_task(queue, descriptor, id, arena, &task, &source);
    if (rc == KL_OK && task.state != KL_TASK_WAITING)
        rc = kl__fail(KL_ENOTFOUND, "the task is finished already");
    if (rc == KL_OK) {
        json_t *ask = kl__ask_for(verb);
        if (ask && !kl__json_set_id(ask, "id", &task.entry.id)) {
            json_decref(ask);
            ask = NULL;
        }
        rc = kl__ask_send(queue, source, task.entry.place.shard, ask, arena, ret_answer);
    }
    kl__descriptor_release(descriptor);
    return rc;
}

/* One that its owner does not find may have been moved to a newer layout right then. */
static kl_rc ask_about(kl_queue *queue, const kl_task_id *id, const char *verb, kl_arena *arena, kl__json *ret_answer)
{
    kl_rc rc = ask_once(queue, id, verb, arena, ret_answer);
    if (rc != KL_ENOTFOUND)
        return rc;
    rc = kl__queue_refresh(queue);
    return rc == KL_OK ? ask_once(queue, id, verb, arena, ret_answer) : rc;
}

/* For verbs whose owner says whether the task is running. */
static kl_rc ask_running(kl_queue *queue, const kl_task_id *id, const char *verb, bool *ret_running)
{
    kl_arena arena = {0};
    kl__json answer = {0};
    kl_rc rc = ask_about(queue, id, verb, &arena, &answer);
    if (rc == KL_OK)
        *ret_running = kl__json_bool_or(&answer, "running", false);
    kl__json_free(&answer);
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl_task_cancel(kl_queue *queue, const kl_task_id *id, bool *ret_running)
{
    bool running = false;
    kl_rc rc = check_given(queue, id);
    if (rc == KL_OK)
        rc = ask_running(queue, id, "cancel", &running);
    if (rc == KL_OK && ret_running)
        *ret_running = running;
    return rc;
}

/* A finished task is put again: into the queue it came from, or another. */
static kl_rc put_finished(kl_queue *queue, kl_queue *to, const kl_task *task, kl_task_id *ret_id)
{
    kl_redrive which = {.id = task->entry.id, .to = to, .which = {.state = task->state}};
    kl_account account;
    kl_rc rc = to ? kl_dead_move(queue, &which, &account) : kl_dead_retry(queue, &which, &account);
    if (rc == KL_OK && account.done == 0)
        rc = account.failed
                 ? kl__fail(KL_EBUSY, "%s", account.error)
                 : kl__fail(KL_ENOTFOUND, "the task is no longer kept; it was put again or forgotten meanwhile");
    if (rc == KL_OK && ret_id)
        *ret_id = account.last;
    return rc;
}

static kl_rc look(kl_queue *queue, const kl_task_id *id, kl_arena *arena, kl_task *ret_task)
{
    kl_found found;
    kl_rc rc = kl_queue_task(queue, id, arena, &found);
    if (rc == KL_OK)
        *ret_task = found.task;
    return rc;
}

static kl_rc retry_waiting(kl_queue *queue, const kl_task *task, kl_task_id *ret_id)
{
    bool running = false;
    kl_rc rc = ask_running(queue, &task->entry.id, "again", &running);
    if (rc == KL_OK && running)
        rc = kl__fail(KL_EBUSY, "the task is running already; wait for its end, or cancel it");
    if (rc == KL_OK && ret_id)
        *ret_id = task->entry.id;
    return rc;
}

static kl_rc retry_found(kl_queue *queue, const kl_task *task, kl_task_id *ret_id)
{
    return task->state == KL_TASK_WAITING ? retry_waiting(queue, task, ret_id)
                                          : put_finished(queue, NULL, task, ret_id);
}

/* One that waited may have ended before its owner was asked: then it is a finished one, if it is kept. */
kl_rc kl_task_retry(kl_queue *queue, const kl_task_id *id, kl_task_id *ret_id)
{
    kl_arena arena = {0};
    kl_task task;
    bool waited = false;
    kl_rc rc = check_given(queue, id);
    if (rc == KL_OK)
        rc = look(queue, id, &arena, &task);
    if (rc == KL_OK) {
        waited = task.state == KL_TASK_WAITING;
        rc = retry_found(queue, &task, ret_id);
    }
    if (rc == KL_ENOTFOUND && waited) {
        rc = look(queue, id, &arena, &task);
        if (rc == KL_OK)
            rc = retry_found(queue, &task, ret_id);
    }
    kl_arena_free(&arena);
    return rc;
}

/* --- Moving one that waits ---
 *
 * It is put there first and ended here then, so that it is somewhere whatever fails. Should it be called again in
 * between, the token knows the copy. That is taken back only when the owner has said that it did not end the task,
 * which runs or has ended otherwise: of any other failure nobody can say what is still carried out. */

static kl_rc put_copy(kl_queue *to, const kl_found *found, kl_bytes token, kl_put_result *ret_copy)
{
    const kl_entry *entry = &found->task.entry;
    const kl_task_extra *extra = &found->extra;
    bool in_job = !kl__id_is_none(&entry->job);
    int64_t now_ms;
    kl_rc rc;
    KL_ASK(rc, kl_store_now(to->store, &now_ms));
    if (rc != KL_OK)
        return rc;
    kl_put put = {.key = entry->key,
                  .kind = entry->kind,
                  .payload = entry->payload,
                  .priority = entry->priority,
                  .due_ms = entry->due_ms > now_ms ? entry->due_ms : 0, /* or it would pass others of its key */
                  .attempts_max = extra->attempts_max,
                  .timeout_ms = extra->timeout_ms,
                  .group = extra->group,
                  .traceparent = extra->traceparent,
                  .headers = extra->headers,
                  .header_count = extra->header_count,
                  .tags = extra->tags,
                  .tag_count = extra->tag_count,
                  .keep_ms = in_job ? 0 : extra->keep_ms}; /* a job's is the job's to say */
    rc = kl_queue_put(to, &put, 1, token, ret_copy);
    if (rc != KL_EMISMATCH || put.due_ms == entry->due_ms)
        return rc;
    put.due_ms = entry->due_ms; /* it was not due yet when an earlier call put it */
    return kl_queue_put(to, &put, 1, token, ret_copy);
}

static kl_rc fail_running(void) { return kl__fail(KL_EBUSY, "the task is running; wait for its end, or cancel it"); }

/* First the token: with it, the next call would take the copy for one that is there. */
static kl_rc take_back(kl_queue *to, const kl_put_result *copy, kl_bytes token)
{
    bool running = false;
    if (copy->duplicate) /* and what that one asked for may still be carried out */
        return kl__fail(KL_EBUSY, "an earlier call has put it there");
    kl_rc rc = kl__put_forget(to, token);
    if (rc == KL_OK)
        rc = kl_task_cancel(to, &copy->id, &running);
    return rc == KL_OK && running ? kl__fail(KL_EBUSY, "it runs there, and is asked to stop") : rc;
}

/* KL_EBUSY: it runs. KL_ENOTFOUND: it has ended. */
static kl_rc leave_here(kl_queue *to, const kl_put_result *copy, kl_bytes token, kl_rc rc)
{
    char why[256], text[KL_ID_TEXT_BYTES];
    bool runs = rc == KL_EBUSY;
    if (take_back(to, copy, token) == KL_OK)
        return runs ? fail_running() : kl__fail(rc, "the task has ended while it was moved, and stays where it is");
    snprintf(why, sizeof why, "%s", kl_error_text());
    kl_id_print(&copy->id, text);
    return kl__fail(rc, "the task %s while it was moved, and its copy in %s, %s, was not taken back: %s",
                    runs ? "began to run" : "has ended", to->name, text, why);
}

static kl_rc fail_in_both(const kl_queue *to, const kl_task_id *copy, kl_rc rc)
{
    char why[256], text[KL_ID_TEXT_BYTES];
    snprintf(why, sizeof why, "%s", kl_error_text());
    kl_id_print(copy, text);
    return kl__fail(rc, "the task is in %s as %s, and may be here too, or end here later; move it again if it is: %s",
                    to->name, text, why);
}

static kl_rc move_waiting(kl_queue *queue, kl_queue *to, const kl_found *found, kl_task_id *ret_id)
{
    const kl_entry *entry = &found->task.entry;
    char token[KL_ID_TEXT_BYTES + 8] = "move ";
    kl_put_result copy;
    bool running = false;
    kl_id_print(&entry->id, token + 5);
    kl_rc rc = ask_running(queue, &entry->id, "peek", &running);
    if (rc == KL_OK)
        rc = running ? fail_running() : put_copy(to, found, kl_str(token), &copy);
    if (rc != KL_OK)
        return rc;
    rc = ask_running(queue, &entry->id, "end", &running);
    if (rc == KL_ENOTFOUND || (rc == KL_OK && running))
        return leave_here(to, &copy, kl_str(token), rc == KL_OK ? KL_EBUSY : rc);
    if (rc != KL_OK)
        return fail_in_both(to, &copy.id, rc);
    if (!kl__id_is_none(&entry->job))
        rc = kl__job_leave(queue, &entry->job, 1);
    if (rc == KL_OK && ret_id)
        *ret_id = copy.id;
    return rc;
}

kl_rc kl_task_move(kl_queue *queue, const kl_task_id *id, kl_queue *to, kl_task_id *ret_id)
{
    kl_arena arena = {0};
    kl_found found;
    kl_rc rc = check_given(queue, id);
    if (rc != KL_OK)
        return rc;
    if (!to)
        return kl__fail(KL_EINVAL, "there is no queue to move to; pass `to`");
    if (to->store == queue->store && strcmp(to->name, queue->name) == 0)
        return kl__fail(KL_EINVAL, "the task is in the queue %s already; name another", queue->name);
    rc = kl_queue_task(queue, id, &arena, &found);
    if (rc == KL_OK && found.task.state == KL_TASK_WAITING)
        rc = move_waiting(queue, to, &found, ret_id);
    else if (rc == KL_OK)
        rc = put_finished(queue, to, &found.task, ret_id);
    kl_arena_free(&arena);
    return rc;
}
