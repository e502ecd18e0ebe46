/* ask.c - the owner of a shard carries out what operators ask of it.
 *
 * From: beat.c, every tick.  To: window.c, sweep.c, and the store; the answer goes into the request's record.
 *
 * A request may be carried out twice, when the store failed in between or the answer could not be written; each is made
 * so that this changes nothing more: what ends tasks is noted in the request first. Only the owner's own settles are
 * used, so a stale owner changes nothing either; nor does it answer: the request stays for the next one. */
#include "work/ask.h"

#include <stdio.h>
#include <string.h>

#include "base/compare.h"
#include "base/mutant.h"
#include "keyline/control.h"
#include "work/inside.h"

enum { PAGE = 64, SETTLE_TRIES = 4, SKIP_TRIES = 4, FIND_TRIES = 4 };

struct ask {
    kl__pump *pump;
    kl__window *window;
    kl_arena arena;
    const char *verb;
    kl_task_id id;
    kl_bytes key;
    uint64_t key_hash;
    bool dead;
    bool begun;   /* it was carried out before, or nearly so, and could not be answered */
    bool refused; /* nothing was done, because that is not to be */
    bool settled; /* what it asks for is durable, whoever owns the shard by now */
    const kl_record *record;
    uint64_t version; /* of that, as last written */
    json_t *request;  /* what it says */
    json_t *answer;
};

/* --- Finding what it is about --- */

static kl_rc fail_ended(void) { return kl__fail(KL_ENOTFOUND, "the task has ended, or there never was one"); }

/* After the mutex was left. */
static kl_rc check_kept(const struct ask *ask, kl_rc rc)
{
    return rc == KL_OK && ask->window->lost ? kl__fail(KL_EBUSY, "the shard is going to another worker; ask again")
                                            : rc;
}

/* The mutex is left meanwhile; the window is pinned by the caller. */
static kl_rc read_one(struct ask *ask, const kl_task_id *id, kl_task *ret_task)
{
    kl_ref ref = {.place = ask->window->place, .id = *id};
    size_t count = 0;
    kl_store *store = ask->window->partition->store;
    kl__pump_leave(ask->pump);
    kl_rc rc = kl_store_read(store, &ref, 1, &ask->arena, ret_task, &count);
    kl__pump_enter(ask->pump);
    rc = check_kept(ask, rc);
    return rc != KL_OK ? rc : ret_task->state == KL_TASK_WAITING ? KL_OK : fail_ended();
}

static kl_rc settle_one(struct ask *ask, const kl_settled *settled)
{
    kl__window *window = ask->window;
    kl_settle batch = {.place = window->place, .epoch = window->epoch, .tasks = settled, .count = 1};
    kl_store *store = window->partition->store;
    kl__pump_leave(ask->pump);
    kl_rc rc = kl_store_settle(store, &batch, 1);
    /* When the answer was lost it may have taken effect, and what is in memory would not know. */
    for (int again = 1; again < SETTLE_TRIES && kl_rc_class(rc) == KL_CLASS_RETRY; again++)
        rc = kl_store_settle(store, &batch, 1);
    kl__pump_enter(ask->pump);
    ask->settled = rc == KL_OK;
    return rc;
}

static bool comes_before(const kl_stub *stub, const kl_task *task)
{
    if (stub->priority != task->entry.priority)
        return stub->priority < task->entry.priority;
    return stub->due_ms != task->entry.due_ms ? stub->due_ms < task->entry.due_ms : stub->position < task->position;
}

/* The first task of the key in one line, that is due by then (of the due line) and comes before another (NULL: any);
 * false: there is none. */
static kl_rc first_in_line(const struct ask *ask, int32_t line, int64_t until_ms, const kl_task *before,
                           kl_stub *ret_stub, bool *ret_found)
{
    kl_stub stubs[256], last;
    kl_store *store = ask->window->partition->store;
    kl_scan scan = {.place = ask->window->place, .line = line, .until_ms = until_ms, .stubs = stubs, .max = 256};
    *ret_found = false;
    do {
        kl_rc rc = kl_store_scan(store, &scan, 1);
        if (rc != KL_OK)
            return rc;
        for (size_t i = 0; i < scan.count; i++) {
            if (stubs[i].key_hash != ask->key_hash || (before && !comes_before(&stubs[i], before)))
                continue;
            *ret_stub = stubs[i];
            *ret_found = true;
            return KL_OK;
        }
        if (scan.count)
            last = stubs[scan.count - 1];
        scan.after = &last;
    } while (scan.count == 256);
    return KL_OK;
}

/* The first task of the key that waits, in memory or not: what was tried, then by priority, then what is delayed. */
static kl_rc first_of_key(struct ask *ask, bool with_due, kl_stub *ret_stub, bool *ret_found)
{
    kl_counts counts;
    kl_store *store = ask->window->partition->store;
    *ret_found = false;
    kl__pump_leave(ask->pump);
    kl_rc rc = kl_store_counts(store, ask->window->place, NULL, &counts);
    if (rc == KL_OK && (counts.retry || counts.at_least))
        rc = first_in_line(ask, KL_LINE_RETRY, KL_ID_MS_MAX, NULL, ret_stub, ret_found);
    for (uint32_t lines = rc == KL_OK ? counts.priorities : 0; lines && rc == KL_OK && !*ret_found; lines &= lines - 1)
        rc = first_in_line(ask, __builtin_ctz(lines) + KL_PRIORITY_MIN, KL_ID_MS_MAX, NULL, ret_stub, ret_found);
    if (rc == KL_OK && with_due && (counts.due || counts.at_least) && !*ret_found)
        rc = first_in_line(ask, KL_LINE_DUE, KL_ID_MS_MAX, NULL, ret_stub, ret_found);
    kl__pump_enter(ask->pump);
    return check_kept(ask, rc);
}

/* One of the key that is due already and would be run before this task when that is due. */
static kl_rc due_before(struct ask *ask, const kl_task *task, kl_stub *ret_stub, bool *ret_found)
{
    int64_t now_ms = ask->pump->now_ms;
    kl__pump_leave(ask->pump);
    kl_rc rc = first_in_line(ask, KL_LINE_DUE, now_ms, task, ret_stub, ret_found);
    kl__pump_enter(ask->pump);
    return check_kept(ask, rc);
}

static kl__held *head_of(struct ask *ask)
{
    kl__lane *lane = kl__window_lane(ask->window, ask->key_hash);
    kl__lane_task *head = lane ? kl__lane_head(lane) : NULL;
    return head ? kl__held_of(head) : NULL;
}

/* --- Ending tasks --- */

/* Before anything is ended for it: whoever carries the request out once more, because it could not be answered, knows
 * by this that what is not there any more was ended for it, and which task was chosen. NULL: it is not about one. */
static kl_rc note_begun(struct ask *ask, const kl_task_id *id)
{
    const kl_record *record = ask->record;
    kl_store *store = ask->window->partition->store;
    if ((id && !kl__json_set_id(ask->request, "id", id)) || !kl__json_set_bool(ask->request, "begun", true))
        return kl__fail_memory();
    kl__pump_leave(ask->pump);
    kl_rc rc = kl__record_write(store, record->name, ask->version, ask->request, record->expires_ms, &ask->version);
    kl__pump_enter(ask->pump);
    return rc;
}

/* A task that waits, and where it is held, or NULL. What has failed and is not settled yet waits from then on. One in
 * memory is found also when its bytes are damaged. */
static kl_rc find_waiting(struct ask *ask, const kl_task_id *id, kl_task *ret_task, kl__held **ret_held)
{
    for (int i = 0; i < FIND_TRIES; i++) {
        *ret_task = (kl_task){.state = KL_TASK_UNKNOWN};
        kl_rc rc = kl__window_send(ask->window);
        if (rc == KL_OK)
            rc = read_one(ask, id, ret_task);
        *ret_held = rc == KL_OK || rc == KL_EDAMAGED ? kl__window_find(ask->window, id, 0) : NULL;
        if (!*ret_held || (*ret_held)->state != KL_HELD_FINISHED)
            return *ret_held ? KL_OK : rc;
    }
    return kl__fail(KL_EBUSY, "what came of the task is just being settled; ask again");
}

static void end_held(struct ask *ask, kl__held *held, int64_t keep_ms)
{
    if (held->made) /* halted: the attempts that were made, not those counted as used */
        held->lane.mark.attempts = held->made;
    kl__window_withdraw(held);
    kl__pump_settle_later(ask->pump, held, KL_CANCELLED, keep_ms);
    kl__window_ready(ask->window);
}

static kl_rc end_unheld(struct ask *ask, const kl_task *task, int64_t keep_ms)
{
    kl_settled settled = {.id = task->entry.id,
                          .position = task->position,
                          .outcome = KL_CANCELLED,
                          .attempts = task->attempts,
                          .keep_ms = keep_ms};
    ask->window->sweeping = true;
    ask->window->swept_key = kl__key_hash(task->entry.key);
    kl_rc rc = settle_one(ask, &settled);
    ask->window->sweeping = false;
    ask->window->due_spoiled |= ask->window->due_asked;
    return rc;
}

static bool is_running(const kl__held *held) { return held && held->state == KL_HELD_RUNNING; }

/* Ends a task that waits, wherever it is. keep: as the task, its job or the queue say; else nothing is kept of it. One
 * that was ended when the request was carried out before is not missed. */
static kl_rc end_task(struct ask *ask, const kl_task_id *id, bool keep, bool *ret_running)
{
    kl_task task;
    kl__held *held;
    kl_rc rc = find_waiting(ask, id, &task, &held);
    if (rc == KL_OK && !ask->begun && !is_running(held)) {
        rc = note_begun(ask, id);
        if (rc == KL_OK)
            rc = find_waiting(ask, id, &task, &held); /* the mutex was left */
    }
    *ret_running = rc == KL_OK && is_running(held);
    if (rc != KL_OK || *ret_running)
        return rc == KL_ENOTFOUND && ask->begun ? KL_OK : rc;
    int64_t asked_ms = kl__task_asked_keep_ms(&task, &ask->arena);
    int64_t keep_ms = keep ? kl__pump_keep_ms(ask->pump, KL_CANCELLED, asked_ms) : 0;
    if (!held)
        return end_unheld(ask, &task, keep_ms);
    end_held(ask, held, keep_ms);
    return KL_OK;
}

static kl_rc tell_running(struct ask *ask, bool running)
{
    return kl__json_set_bool(ask->answer, "running", running) ? KL_OK : kl__fail_memory();
}

static kl_rc cancel(struct ask *ask)
{
    bool running = false;
    kl_rc rc = end_task(ask, &ask->id, true, &running);
    kl__held *held = running ? kl__window_find(ask->window, &ask->id, 0) : NULL;
    if (held)
        atomic_store(&held->cancel, true);
    return rc == KL_OK ? tell_running(ask, running) : rc;
}

static kl_rc end_traceless(struct ask *ask)
{
    bool running = false;
    kl_rc rc = end_task(ask, &ask->id, false, &running);
    return rc == KL_OK ? tell_running(ask, running) : rc;
}

static kl_rc peek(struct ask *ask) { return tell_running(ask, is_running(kl__window_find(ask->window, &ask->id, 0))); }

/* Asking later may help, but that is for the operator to decide. */
static kl_rc refuse(struct ask *ask, const char *why)
{
    ask->refused = true;
    return kl__fail(KL_EBUSY, "%s", why);
}

static kl_rc refuse_running(struct ask *ask)
{
    return refuse(ask, "the key's first task is running; cancel it, or wait for its end");
}

static kl_rc choose_first(struct ask *ask, kl_task_id *ret_id)
{
    kl_stub stub;
    bool found = false;
    kl__held *head = head_of(ask);
    if (!head || head->state == KL_HELD_FINISHED) {
        kl_rc rc = first_of_key(ask, true, &stub, &found);
        if (rc != KL_OK || !found)
            return rc != KL_OK ? rc : kl__fail(KL_ENOTFOUND, "the key has no task that waits");
    }
    if (!found && head->state == KL_HELD_RUNNING)
        return refuse_running(ask);
    *ret_id = found ? stub.id : head->id;
    return KL_OK;
}

static kl_rc skip_first(struct ask *ask, kl_task_id *ret_id)
{
    bool running = false;
    *ret_id = ask->id;
    kl_rc rc = ask->begun ? KL_OK : choose_first(ask, ret_id);
    if (rc == KL_OK)
        rc = end_task(ask, ret_id, true, &running);
    return rc == KL_OK && running ? refuse_running(ask) : rc;
}

/* One that has ended and is not settled yet would be found in the store, and is not the key's first any more. Others
 * may end meanwhile. */
static kl_rc skip(struct ask *ask)
{
    kl_task_id id = {{0}};
    kl_rc rc = KL_ENOTFOUND;
    for (int i = 0; i < SKIP_TRIES && rc == KL_ENOTFOUND; i++) {
        id = (kl_task_id){{0}};
        rc = kl__window_send(ask->window);
        if (rc == KL_OK)
            rc = skip_first(ask, &id);
        if (kl__id_is_none(&id))
            break;
    }
    return rc != KL_OK ? rc : kl__json_set_id(ask->answer, "id", &id) ? KL_OK : kl__fail_memory();
}

/* What has failed, or was given back unrun, and is not settled yet waits from then on, and is swept. */
static kl_rc sweep(struct ask *ask, kl__sweep_of of, kl_outcome outcome, const char *error)
{
    uint64_t count = 0;
    kl_rc rc = kl__window_send(ask->window);
    if (rc == KL_OK)
        rc = kl__window_sweep(ask->window, of, outcome, error, &count);
    return rc != KL_OK ? rc : kl__json_set_int(ask->answer, "count", (int64_t)count) ? KL_OK : kl__fail_memory();
}

static kl_rc drain(struct ask *ask)
{
    kl_rc rc = ask->begun ? KL_OK : note_begun(ask, NULL);
    if (rc == KL_OK)
        rc = sweep(ask, (kl__sweep_of){.key_hash = ask->key_hash}, ask->dead ? KL_DEAD : KL_CANCELLED,
                   "its key was drained");
    return rc != KL_OK ? rc : kl__json_set_bool(ask->answer, "begun", ask->begun) ? KL_OK : kl__fail_memory();
}

static kl_rc purge(struct ask *ask) { return sweep(ask, (kl__sweep_of){0}, KL_CANCELLED, "its queue was purged"); }
static kl_rc forget(struct ask *ask) { return sweep(ask, (kl__sweep_of){.job = &ask->id}, KL_CANCELLED, ""); }

/* --- Trying again --- */

/* Then nothing is changed: it is running, or what came of it is being settled. */
static bool is_being_tried(const kl__held *held)
{
    return held && (held->state == KL_HELD_RUNNING || held->state == KL_HELD_FINISHED);
}

/* One that was tried is the first of its key. One that is delayed would become it, before what stood in line already,
 * or has become due. */
static kl_rc check_turn(struct ask *ask, const kl_task *task)
{
    kl_stub stub = {0};
    bool found = false;
    if (task->attempts > 0 || task->entry.key.len == 0)
        return KL_OK;
    ask->key_hash = kl__key_hash(task->entry.key);
    kl_rc rc = first_of_key(ask, false, &stub, &found);
    found &=
        kl_id_compare(&stub.id, &task->entry.id) != 0 && (stub.attempts > 0 || stub.priority <= task->entry.priority);
    if (rc == KL_OK && !found && task->not_before_ms > ask->pump->now_ms)
        rc = due_before(ask, task, &stub, &found);
    if (rc == KL_OK && found)
        return refuse(ask, "other tasks of its key come before it; try it when they are done, or leave it to its time");
    return rc;
}

/* Gives a waiting task all its attempts again and makes it due: in the store, then in memory. */
static kl_rc try_now(struct ask *ask, const kl_task_id *id)
{
    kl_task task;
    kl_rc rc = read_one(ask, id, &task);
    if (rc != KL_OK)
        return rc;
    kl__held *held = kl__window_find(ask->window, id, task.position);
    if (is_being_tried(held))
        return tell_running(ask, true);
    if (task.attempts == 0 && task.not_before_ms <= ask->pump->now_ms &&
        (!held || held->blocked == KL_BLOCKED_NOT || held->blocked == KL_BLOCKED_BEHIND ||
         held->blocked == KL_BLOCKED_PAUSED))
        return KL_OK; /* it waits for nothing but those before it, and the end of the pause */
    if ((rc = check_turn(ask, &task)) != KL_OK)
        return rc;
    kl_settled again = {.id = *id, .position = task.position, .outcome = KL_RETRY};
    if ((rc = settle_one(ask, &again)) != KL_OK || ask->window->lost)
        return rc;
    uint64_t key_hash = kl__key_hash(task.entry.key);
    kl__lane_key key = kl__lane_key_of(&key_hash);
    held = kl__window_find(ask->window, id, task.position);
    if (is_being_tried(held))
        return tell_running(ask, true);
    if (held && !key_hash) { /* there is no line that could be let go on: it comes in anew */
        kl__window_remove(ask->window, held);
        held = NULL;
    }
    if (held) {
        held->lane.mark.attempts = held->made = 0;
        held->retry_line = true;
        held->draining = false;
        if (key_hash && !kl__keyset_has(ask->pump->paused, key_hash))
            kl__lanes_resume(ask->window->lanes, &key, ask->pump->now_ms);
    } else {
        kl_stub stub = {.id = *id,
                        .position = task.position,
                        .key_hash = key_hash,
                        .priority = (int8_t)task.entry.priority,
                        .group = task.entry.group};
        if (!kl__window_admit(ask->window, KL_LINE_RETRY, &stub, false))
            return kl__fail_memory();
    }
    kl__window_ready(ask->window);
    return KL_OK;
}

static kl_rc again(struct ask *ask) { return try_now(ask, &ask->id); }

static kl_rc wake(struct ask *ask)
{
    kl_stub stub;
    bool found = false;
    kl__held *head = head_of(ask);
    kl_task_id id = head ? head->id : (kl_task_id){{0}}; /* a copy: the mutex is left before it is used */
    if (head)
        return is_being_tried(head) ? tell_running(ask, true) : try_now(ask, &id);
    kl_rc rc = first_of_key(ask, false, &stub, &found);
    if (rc == KL_OK && !found)
        return kl__fail(KL_ENOTFOUND, "the key has no task that waits for anything but its time");
    return rc != KL_OK ? rc : try_now(ask, &stub.id);
}

/* --- Why does it wait? --- */

/* Whoever only stands in has not read the task, and goes by the queue's settings. */
static bool is_used_up(const struct ask *ask, const kl__held *head)
{
    const kl_queue_opts *settings = &ask->pump->descriptor->settings;
    return ask->pump->opts.handler_count == 0 && settings->head_policy == KL_HEAD_HALT && head->retry_line &&
           head->lane.due_ms <= ask->pump->now_ms && head->lane.mark.attempts >= settings->attempts_max;
}

static kl_why why(const struct ask *ask, const kl__held *head, const kl__lane *lane, bool elsewhere)
{
    const kl__pump *pump = ask->pump;
    if (head && (head->state == KL_HELD_RUNNING || head->state == KL_HELD_FINISHED))
        return KL_WHY_RUNNING;
    if (kl__keyset_has(pump->paused, ask->key_hash))
        return KL_WHY_PAUSED;
    if (head && (head->blocked == KL_BLOCKED_HALTED || is_used_up(ask, head)))
        return KL_WHY_HALTED;
    if (head && (head->blocked == KL_BLOCKED_KIND || head->blocked == KL_BLOCKED_DAMAGED))
        return head->blocked == KL_BLOCKED_KIND ? KL_WHY_KIND : KL_WHY_HALTED;
    if (head && head->lane.due_ms > pump->now_ms)
        return KL_WHY_RETRYING;
    if (kl__gate_closed(ask->window->partition->gate, ask->key_hash))
        return KL_WHY_LAYOUT;
    if (!lane && !elsewhere)
        return KL_WHY_IDLE;
    if (pump->descriptor->paused)
        return KL_WHY_QUEUE_PAUSED;
    if (pump->opts.handler_count == 0)
        return KL_WHY_NO_WORKER;
    if (kl__capacity_used_up(pump, ask->window->partition->capacity))
        return KL_WHY_PARTITION;
    return pump->limited ? KL_WHY_RATE : KL_WHY_READY;
}

/* What a waiting task's earlier owner has stored of it stores show only when it has ended. */
static kl_bytes error_of(const kl__held *head, kl_why reason)
{
    if (head->text)
        return head->text->error;
    bool is_stored = reason == KL_WHY_HALTED && head->blocked != KL_BLOCKED_DAMAGED && !head->made;
    return kl_str(is_stored ? "it failed before this worker had it; its error is told when the task has ended" : "");
}

static bool tell_head(struct ask *ask, const kl__held *head, kl_why reason)
{
    json_t *answer = ask->answer;
    if (!head)
        return true;
    const kl__progress *progress = head->progress;
    return kl__json_set_id(answer, "head", &head->id) &&
           kl__json_set_int(answer, "attempts", head->made ? head->made : head->lane.mark.attempts) &&
           kl__json_set_bytes(answer, "head_error", error_of(head, reason)) &&
           kl__json_set_int(answer, "running_ms",
                            head->state == KL_HELD_RUNNING ? ask->pump->now_ms - head->started_ms : 0) &&
           kl__json_set_int(answer, "percent", progress ? progress->percent : -1) &&
           kl__json_set_text(answer, "progress", progress ? progress->text : "");
}

static kl_rc show(struct ask *ask)
{
    kl_stub stub = {0};
    bool found = false;
    kl__lane *lane = kl__window_lane(ask->window, ask->key_hash);
    if (!lane || kl__lane_tasks(lane) == 0) {
        kl_rc rc = first_of_key(ask, true, &stub, &found);
        if (rc != KL_OK)
            return rc;
        lane = kl__window_lane(ask->window, ask->key_hash);
    }
    if (lane && kl__lane_tasks(lane) == 0)
        lane = NULL;
    kl__held *head = head_of(ask);
    kl_why reason = why(ask, head, lane, found);
    bool free =
        reason == KL_WHY_READY || reason == KL_WHY_RATE || reason == KL_WHY_NO_WORKER || reason == KL_WHY_PARTITION;
    if (free && found && !lane && stub.due_ms > ask->pump->now_ms)
        reason = KL_WHY_DELAYED;
    int64_t until_ms = reason == KL_WHY_DELAYED ? stub.due_ms : 0;
    if (head && reason == KL_WHY_RETRYING)
        until_ms = head->lane.due_ms;
    bool good = kl__json_set_int(ask->answer, "why", reason) && kl__json_set_int(ask->answer, "until", until_ms) &&
                tell_head(ask, head, reason);
    if (good && !head && found)
        good =
            kl__json_set_id(ask->answer, "head", &stub.id) && kl__json_set_int(ask->answer, "attempts", stub.attempts);
    return good ? KL_OK : kl__fail_memory();
}

/* --- Requests --- */

static const struct verb {
    const char *name;
    kl_rc (*carry_out)(struct ask *ask);
    bool of_key;
    bool looks; /* and changes nothing */
} verbs[] = {{"cancel", cancel, false, false}, {"again", again, false, false}, {"end", end_traceless, false, false},
             {"peek", peek, false, true},      {"skip", skip, true, false},    {"wake", wake, true, false},
             {"drain", drain, true, false},    {"purge", purge, false, false}, {"forget", forget, false, false},
             {"show", show, true, true}};

static kl_rc carry_out(struct ask *ask)
{
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(ask->verb, verbs[i].name) != 0)
            continue;
        if (verbs[i].of_key && ask->key.len == 0)
            return kl__fail(KL_EINVAL, "the request '%s' names no key", ask->verb);
        return verbs[i].carry_out(ask);
    }
    return kl__fail(KL_EINVAL, "this worker does not know the request '%s'; run the same version everywhere",
                    ask->verb);
}

/* False: it is not for this worker, or answered already. */
static bool understand(struct ask *ask, kl__json *from)
{
    if (kl__json_bool_or(from, "answered", false))
        return false;
    ask->verb = kl__json_text_or(from, "verb", &ask->arena, "");
    ask->id = kl__json_id_or(from, "id", (kl_task_id){{0}});
    ask->key = kl__json_bytes_or(from, "key", &ask->arena, (kl_bytes){0});
    ask->dead = kl__json_bool_or(from, "dead", false);
    ask->begun = kl__json_bool_or(from, "begun", false);
    ask->key_hash = kl__key_hash(ask->key);
    return from->rc == KL_OK;
}

static kl_rc answer(struct ask *ask, kl_rc said)
{
    const kl_record *record = ask->record;
    char error[256] = "";
    if (said != KL_OK)
        snprintf(error, sizeof error, "%s", kl_error_text());
    if (!kl__json_set_bool(ask->answer, "answered", true) || !kl__json_set_int(ask->answer, "rc", said) ||
        !kl__json_set_text(ask->answer, "error", error))
        return kl__fail_memory();
    kl_store *store = ask->window->partition->store;
    kl__pump_leave(ask->pump);
    kl_rc rc = kl__record_write(store, record->name, ask->version, ask->answer, record->expires_ms, NULL);
    kl__pump_enter(ask->pump);
    return rc == KL_ECONFLICT ? KL_OK : rc; /* it was withdrawn */
}

/* Else it is left for the next tick: what is known here of a shard whose lease may be over may be old. */
static bool is_time(const struct ask *ask)
{
    int64_t local_ms = ask->pump->opts.local_ms(ask->pump->opts.local_ctx);
    if (!kl__owners_holds(ask->window->partition->owners, local_ms) && !KL_MUTANT(stale_answer))
        return false;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (verbs[i].looks && strcmp(ask->verb, verbs[i].name) == 0)
            return true;
    return kl__window_clear_due(ask->window);
}

static kl_rc carry_out_and_answer(struct ask *ask)
{
    ask->answer = kl__json_object();
    if (!ask->answer)
        return kl__fail_memory();
    kl_rc said = carry_out(ask);
    if (said == KL_OK && !ask->settled)
        said = kl__window_send(ask->window); /* what was asked for is durable before it is answered */
    if (KL_MUTANT(stale_answer) && said == KL_ESTALE)
        said = KL_OK;
    else if (!ask->settled && (ask->window->lost || said == KL_ESTALE))
        return KL_OK; /* the next owner answers */
    if (kl_rc_class(said) == KL_CLASS_RETRY && !ask->refused)
        return said == KL_ECONFLICT ? KL_OK : said; /* nobody can say what comes of it yet: the next tick tries again */
    return answer(ask, said);
}

static kl_rc handle(kl__pump *pump, kl__window *window, const kl_record *record)
{
    struct ask ask = {.pump = pump, .window = window, .record = record, .version = record->version};
    kl__json from = {0};
    kl_rc rc = kl__json_parse(record->value, "a request", &from);
    ask.request = from.object;
    if (rc == KL_OK && understand(&ask, &from)) {
        window->out++;
        if (is_time(&ask))
            rc = carry_out_and_answer(&ask);
        window->out--;
        kl__window_free_if_done(window);
    }
    json_decref(ask.answer);
    kl__json_free(&from);
    kl_arena_free(&ask.arena);
    return rc == KL_EDAMAGED ? KL_OK : rc; /* not for us: it expires */
}

/* Also one that is to be given back: as long as something runs in it, nobody else can answer. */
static kl__window *asked_window(kl__partition *partition, kl_bytes name, size_t prefix_len)
{
    const char *rest = (const char *)name.data + prefix_len;
    const char *slash = memchr(rest, '/', name.len - prefix_len);
    uint32_t shard;
    if (!slash || kl_shard_parse(&partition->layout, (kl_bytes){rest, (size_t)(slash - rest)}, &shard) != KL_OK)
        return NULL;
    return partition->by_shard[shard];
}

static kl_rc carry_out_page(kl__pump *pump, kl__partition *partition, kl_bytes prefix, kl_arena *arena, kl_bytes *after)
{
    kl_record records[PAGE];
    size_t count = 0;
    kl_store *store = partition->store;
    kl__pump_leave(pump);
    kl_rc rc = kl_store_list(store, prefix, *after, PAGE, arena, records, &count);
    kl__pump_enter(pump);
    for (size_t i = 0; i < count && rc == KL_OK; i++) {
        kl__window *window = asked_window(partition, records[i].name, prefix.len);
        if (window)
            rc = handle(pump, window, &records[i]);
    }
    if (rc != KL_OK || count > 0) /* one that is there may have to wait for its time, or for its shard to be taken */
        partition->asks = (kl__reader){0};
    *after = count == PAGE ? records[count - 1].name : (kl_bytes){0};
    return rc;
}

static kl_rc carry_out_partition(kl__pump *pump, kl__partition *partition)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_arena arena = {0};
    kl_bytes after = {0}, prefix = kl__record_name(name, sizeof name, "ask", partition->name, "");
    kl_rc rc;
    do
        rc = carry_out_page(pump, partition, prefix, &arena, &after);
    while (rc == KL_OK && after.len > 0);
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl__asks_carry_out(kl__pump *pump)
{
    kl_rc first = KL_OK;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        bool looks = partition->windows && kl__pump_has_news(pump, partition->store, &partition->asks);
        kl_rc rc = looks ? carry_out_partition(pump, partition) : KL_OK;
        first = first != KL_OK ? first : rc; /* one whose store is away does not keep the others waiting */
    }
    return first;
}
