/* load.c - read taken tasks from the store, and decide which of them are run.
 *
 * From: pump.c (taken tasks).  To: worker_thread.c or claims_give.c, which run them or give them out.
 *
 *      load
 *    -------> to be run, its start made durable where it is suspect (P5)
 *       |---> settled at once: cancelled, or no attempts left; forgotten: gone from the store
 *       |---> put back: the store failed, or the lease may be over meanwhile (P4)
 *       +---> its key waits: nobody here runs its kind, or wants it now, or it cannot be read */
#include "work/inside.h"

#include <string.h>

#include "base/compare.h"
#include "base/mutant.h"

static const kl_handler *handler_for(const kl__pump *pump, kl_bytes kind)
{
    const kl_handler *any = NULL;
    for (size_t i = 0; i < pump->opts.handler_count; i++) {
        const kl_handler *handler = &pump->opts.handlers[i];
        if (!handler->kind)
            any = handler;
        else if (strlen(handler->kind) == kind.len && memcmp(handler->kind, kind.data, kind.len) == 0)
            return handler;
    }
    return any;
}

/* What a mark says of the task's job, if it says that this task is not to be started; else NULL. */
static const kl__cancelled *job_mark(const kl__pump *pump, const kl_task *task, const kl_task_extra *extra)
{
    if (pump->cancelled.count == 0 || kl__id_is_none(&task->entry.job) || KL_MUTANT(cancel_ignored))
        return NULL;
    const kl__cancelled *mark = kl__cancelled_find(&pump->cancelled, &task->entry.job);
    return mark && (mark->removed || extra->job_run <= mark->run) ? mark : NULL;
}

/* A worker's kinds never change, so what it does not run it need not remember, where it does not meet it again: the due
 * and the retry line are read from their beginnings. */
static bool is_read_once(const kl__pump *pump, const kl__held *held)
{
    return !pump->opts.wanted && !held->retry_line && !held->marked && held->lane.mark.kind != KL_HELD_FROM_DUE;
}

/* A task that is with nobody, and taken from its lane: its key waits, and so does it. */
static void put_aside(kl__pump *pump, kl__held *held, kl__blocked why)
{
    kl__window *window = held->window;
    if (held->key_hash) {
        int64_t due_ms = held->lane.due_ms;
        held->state = KL_HELD_LINE;
        kl__lanes_halt(window->lanes, &held->lane, pump->now_ms);
        held->lane.due_ms = due_ms; /* it was not tried: what stands behind it must not pass it */
        kl__window_block(window, held, why);
        return;
    }
    kl__lanes_end(window->lanes, &held->lane, pump->now_ms);
    if (why == KL_BLOCKED_KIND && is_read_once(pump, held)) {
        kl__window_pass(held);
        return;
    }
    held->state = KL_HELD_ASIDE;
    held->prev = NULL;
    held->next = window->aside;
    if (window->aside)
        window->aside->prev = held;
    window->aside = held;
    kl__window_block(window, held, why);
}

/* Nobody here can run it. */
static void set_aside(kl__pump *pump, kl__held *held, kl__blocked why)
{
    if (kl__pump_come_back_unrun(pump, held))
        put_aside(pump, held, why);
}

/* Another worker may run it, and is told of every kind: for the one that comes first there may be none. */
static void note_unserved(kl__pump *pump, kl__held *held, uint16_t kind)
{
    kl__window *window = held->window;
    pump->counts.unserved++;
    held->kind = kind;
    for (uint8_t i = 0; i < window->unserved_count; i++)
        if (window->unserved[i] == kind)
            return;
    pump->beat_now |= !window->unserved_more;
    if (window->unserved_count < KL_UNSERVED_MAX)
        window->unserved[window->unserved_count++] = kind;
    else
        window->unserved_more = true;
}

static void forget_unserved(kl__window *window, uint16_t kind)
{
    uint8_t kept = 0;
    for (uint8_t i = 0; i < window->unserved_count; i++)
        if (kind != 0 && window->unserved[i] != kind)
            window->unserved[kept++] = window->unserved[i];
    window->unserved_count = kept;
    window->unserved_more &= kind != 0;
}

/* Where tasks are given out, and nobody wants this one now. False: there is no room for it, and the kind is
 * unserved. */
static bool shelve(kl__pump *pump, kl__held *held, kl_bytes kind)
{
    kl__shelf *shelf = kl__room_shelf(pump->room, kind, true);
    if (!shelf || shelf->count >= KL_SHELF_MAX) {
        *(shelf ? &shelf->over : &pump->strays) = true;
        return false;
    }
    if (kl__pump_come_back_unrun(pump, held))
        kl__room_shelve(shelf, held);
    return true;
}

void kl__pump_unserve(kl__pump *pump, kl__shelf *shelf)
{
    while (shelf->first) {
        kl__held *held = shelf->first;
        kl__room_remove(held);
        note_unserved(pump, held, shelf->hash);
        put_aside(pump, held, KL_BLOCKED_KIND);
        shelf->over = true;
    }
}

static size_t serve_window(kl__window *window, uint16_t kind, size_t max)
{
    size_t count = 0;
    for (uint32_t i = 0; i < window->table_capacity && count < max; i++) {
        kl__held *held = window->table[i].held;
        if (held && held->blocked == KL_BLOCKED_KIND && (kind == 0 || held->kind == kind))
            count += kl__window_serve(window, held);
    }
    forget_unserved(window, kind);
    if (count)
        kl__window_ready(window);
    return count;
}

size_t kl__pump_serve(kl__pump *pump, uint16_t kind, size_t max)
{
    size_t count = 0;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        for (kl__window *window = partition->windows; window && count < max; window = window->next)
            count += pump->unserved ? serve_window(window, kind, max - count) : 0;
    return count;
}

/* Settled behind this worker's back, by a request that was carried out: it is over. */
static void forget_gone(kl__pump *pump, kl__held *held)
{
    kl__window *window = held->window;
    if (!kl__pump_come_back_unrun(pump, held))
        return;
    kl__lanes_end(window->lanes, &held->lane, pump->now_ms);
    kl__window_release(held);
    kl__window_ready(window);
}

static void end_unrun(kl__pump *pump, kl__held *held, kl_outcome outcome, const kl_task_extra *extra, bool keep,
                      const char *error)
{
    if (!kl__pump_come_back_unrun(pump, held))
        return;
    bool told = outcome == KL_DEAD && !held->untold; /* its own error, which says more */
    if (told && held->key_hash && pump->descriptor->settings.head_policy == KL_HEAD_HALT) {
        put_aside(pump, held, KL_BLOCKED_HALTED); /* it was halted before, here or by an earlier owner */
        return;
    }
    if (!told)
        kl__held_keep_text(held, kl_str(error), (kl_bytes){0});
    uint32_t max = extra->attempts_max ? extra->attempts_max : (uint32_t)pump->descriptor->settings.attempts_max;
    if (outcome == KL_DEAD) {
        kl__pump_end_dead(pump, held, max, extra->keep_ms);
        return;
    }
    kl__lanes_end(held->window->lanes, &held->lane, pump->now_ms);
    kl__pump_settle_later(pump, held, outcome, keep ? kl__pump_keep_ms(pump, outcome, extra->keep_ms) : 0);
}

/* Whether a task that has been read is to be run; otherwise it has been dealt with. */
static bool is_to_run(kl__pump *pump, kl__held *held, const kl_task *task, kl_task_extra *extra, kl_arena *arena,
                      const kl_handler **ret_handler)
{
    if (task->state != KL_TASK_WAITING) {
        forget_gone(pump, held);
        return false;
    }
    if (kl__envelope_decode(task->entry.headers, arena, extra) != KL_OK) {
        kl__pump_log(pump, KL_LOG_ERROR, "a task's headers cannot be read: %s", kl_error_text());
        set_aside(pump, held, KL_BLOCKED_DAMAGED);
        return false;
    }
    const kl__cancelled *mark = job_mark(pump, task, extra);
    if (atomic_load(&held->cancel) || mark) {
        end_unrun(pump, held, KL_CANCELLED, extra, !mark || !mark->removed, mark ? "its job was cancelled" : "");
        return false;
    }
    uint32_t max = extra->attempts_max ? extra->attempts_max : (uint32_t)pump->descriptor->settings.attempts_max;
    if (held->lane.mark.attempts >= max) {
        end_unrun(pump, held, KL_DEAD, extra, true, "its attempts are used up; the last ended its worker");
        return false;
    }
    held->made = 0; /* if it was halted, more attempts are allowed since */
    *ret_handler = handler_for(pump, task->entry.kind);
    bool gives = *ret_handler && pump->opts.wanted;
    if (gives ? pump->opts.wanted(pump->opts.giver, held, task->entry.kind) : *ret_handler != NULL)
        return true;
    if (gives && shelve(pump, held, task->entry.kind))
        return false;
    note_unserved(pump, held, kl__owners_kind(task->entry.kind));
    set_aside(pump, held, KL_BLOCKED_KIND);
    return false;
}

/* Reads the tasks, in as many calls as their size takes. *ret_read: how many; the one behind is damaged if rc says so.
 * The mutex is not held. */
static kl_rc read_tasks(kl_store *store, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *tasks,
                        size_t *ret_read)
{
    kl_rc rc = KL_OK;
    *ret_read = 0;
    while (*ret_read < count && rc == KL_OK) {
        size_t read = 0;
        rc = kl_store_read(store, refs + *ret_read, count - *ret_read, arena, tasks + *ret_read, &read);
        if (rc == KL_OK || rc == KL_EDAMAGED)
            *ret_read += read;
    }
    return rc;
}

static size_t same_store(kl__held **held, size_t count)
{
    size_t same = 1;
    while (same < count && held[same]->window->partition->store == held[0]->window->partition->store)
        same++;
    return same;
}

/* The starts of these tasks of one store, all suspect: one settle, a batch for each, so that each is refused alone. */
static kl_rc send_starts(kl__pump *pump, kl__held **held, size_t count)
{
    kl_settled starts[KL_LOAD_MAX];
    kl_settle batches[KL_LOAD_MAX];
    for (size_t i = 0; i < count; i++) {
        starts[i] = (kl_settled){.id = held[i]->id,
                                 .position = held[i]->lane.position,
                                 .outcome = KL_RETRY,
                                 .attempts = held[i]->lane.mark.attempts + 1u};
        batches[i] = (kl_settle){.place = held[i]->window->place,
                                 .epoch = held[i]->window->epoch,
                                 .tasks = &starts[i],
                                 .count = 1,
                                 .rc = KL_EBUSY};
    }
    kl_store *store = held[0]->window->partition->store;
    kl__pump_leave(pump);
    kl_rc rc = kl_store_settle(store, batches, count);
    kl__pump_enter(pump);
    bool undecided = false;
    for (size_t i = 0; i < count; i++) {
        bool stale = rc != KL_OK && batches[i].rc == KL_ESTALE;
        undecided |= rc == KL_ESTALE && !stale && batches[i].rc != KL_OK;
        if (!stale) { /* also when the reply is lost: then it may be written, and untake takes it back */
            held[i]->marked = held[i]->retry_line = true;
            held[i]->lane.mark.attempts++;
        } else if (!held[i]->window->lost) {
            kl__window_drop(held[i]->window);
        }
    }
    if (undecided)
        return kl__fail(KL_EBUSY, "not every start of a suspect task could be written; again later");
    return rc == KL_ESTALE ? KL_OK : rc;
}

/* What stood before it in its key and is done becomes durable first: its start puts it at the head of its key (P3). */
static kl_rc send_before(const kl__held *held)
{
    kl__window *window = held->window;
    bool must_send = held->key_hash && kl__window_key_unsettled(window, held->key_hash);
    kl_rc rc = must_send ? kl__window_send(window) : KL_OK;
    return rc == KL_ESTALE ? KL_OK : rc; /* it is lost, and not run */
}

/* Makes the starts of suspect tasks durable (P5): they count as tried from now on. */
static kl_rc mark_starts(kl__pump *pump, kl__held **held, size_t count)
{
    kl__held *suspects[KL_LOAD_MAX];
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        if (!held[i]->suspect || held[i]->window->lost || KL_MUTANT(start_not_marked))
            continue;
        kl_rc rc = send_before(held[i]);
        if (rc != KL_OK)
            return rc;
        if (!held[i]->window->lost)
            suspects[found++] = held[i];
    }
    for (size_t i = 0; i < found;) {
        size_t same = same_store(suspects + i, found - i);
        kl_rc rc = send_starts(pump, suspects + i, same);
        if (rc != KL_OK)
            return rc;
        i += same;
    }
    return KL_OK;
}

/* Tasks of one store. */
static kl_rc load_some(kl__pump *pump, kl__held **held, size_t count, kl_arena *arena, kl_task *tasks, size_t *ret_read)
{
    kl_ref refs[KL_LOAD_MAX];
    kl_store *store = held[0]->window->partition->store;
    for (size_t i = 0; i < count; i++)
        refs[i] = (kl_ref){held[i]->window->place, held[i]->id, held[i]->lane.position, true};
    kl__pump_leave(pump);
    kl_rc rc = read_tasks(store, refs, count, arena, tasks, ret_read);
    kl__pump_enter(pump);
    return rc;
}

static void untake_all(kl__pump *pump, kl__held **held, size_t count)
{
    for (size_t i = count; i-- > 0;)
        kl__pump_untake(pump, held[i]);
}

/* Time has passed since they were taken: what is no longer owned, or not for sure, is not started (P4). */
static size_t drop_unowned(kl__pump *pump, kl__held **held, size_t count, kl_task *tasks, kl_task_extra *extras,
                           const kl_handler **handlers)
{
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (held[i]->window->lost || !kl__held_lease_holds(held[i], local_ms)) {
            kl__pump_untake(pump, held[i]);
            continue;
        }
        if (kept == i) {
            kept++;
            continue;
        }
        tasks[kept] = tasks[i];
        extras[kept] = extras[i];
        handlers[kept] = handlers[i];
        held[kept++] = held[i];
    }
    return kept;
}

kl_rc kl__pump_load(kl__pump *pump, kl__held **held, size_t count, kl_arena *arena, kl_task *ret_tasks,
                    kl_task_extra *ret_extras, const kl_handler **ret_handlers, size_t *ret_run)
{
    size_t run = 0, done = 0;
    kl_rc rc = KL_OK;
    KL_ASSERT(count <= KL_LOAD_MAX);
    while (done < count && rc == KL_OK) {
        size_t some = same_store(held + done, count - done), read = 0;
        kl_task *tasks = kl_arena_alloc(arena, some * sizeof *tasks);
        rc = tasks ? load_some(pump, held + done, some, arena, tasks, &read) : kl__fail_memory();
        for (size_t i = 0; i < read; i++) {
            kl__held *each = held[done + i];
            if (!is_to_run(pump, each, &tasks[i], &ret_extras[run], arena, &ret_handlers[run]))
                continue;
            ret_tasks[run] = tasks[i];
            held[run++] = each;
        }
        done += read;
        if (rc == KL_EDAMAGED) {
            kl__pump_log(pump, KL_LOG_ERROR, "a task cannot be read, and its key waits: %s", kl_error_text());
            set_aside(pump, held[done++], KL_BLOCKED_DAMAGED);
            rc = KL_OK;
        }
    }
    if (rc == KL_OK)
        rc = mark_starts(pump, held, run);
    if (rc != KL_OK) {
        untake_all(pump, held + done, count - done);
        untake_all(pump, held, run);
        return rc;
    }
    run = drop_unowned(pump, held, run, ret_tasks, ret_extras, ret_handlers);
    pump->counts.started += run;
    *ret_run = run;
    return KL_OK;
}
