/* sweep.c - end waiting tasks that are not to be run: a key is drained, a queue is purged, or a job is removed.
 *
 * All lines of the shard are read once from their first task, because most of what waits is not in memory. Tasks leave
 * their lanes, those that were not in memory come into it, and all are settled in the order of their lines: so they
 * stand among the dead letters. A running task is left alone, but of one whose job is removed nothing will be kept.
 * Each is read before it is ended: its envelope says for how long it is to be kept, and a task of a job is kept as the
 * job says. */
#include <string.h>

#include "work/inside.h"

enum { STUBS = 512, ENDED_MAX = KL_SETTLE_MAX / 2 };

struct sweep {
    kl__window *window;
    uint64_t key_hash;
    const kl_task_id *job; /* or NULL */
    uint64_t head;         /* the position of the task behind which the key is drained; 0: none */
    kl_outcome outcome;
    kl_bytes error;
    uint64_t count;
    kl__held *ended, **ended_link; /* out, and still to be settled */
    size_t ended_count;
    kl_arena arena;
    kl_stub stubs[STUBS];
    bool meant[STUBS];
    int64_t asked_ms[STUBS]; /* how long each is to be kept, by its own word */
    size_t concerned[STUBS];
    kl_ref refs[STUBS];
    kl_task read[STUBS];
};

int64_t kl__task_asked_keep_ms(const kl_task *task, kl_arena *arena)
{
    kl_task_extra extra;
    bool known = task->state == KL_TASK_WAITING && kl__envelope_decode(task->entry.headers, arena, &extra) == KL_OK;
    return known ? extra.keep_ms : 0;
}

/* What is known of a task once it has been read. */
static void note(struct sweep *sweep, size_t i, const kl_task *task)
{
    sweep->asked_ms[i] = kl__task_asked_keep_ms(task, &sweep->arena);
    sweep->meant[i] = !sweep->job || kl_id_compare(&task->entry.job, sweep->job) == 0;
}

/* What cannot be read does not say, and is ended all the same: somebody wants to be rid of it. But it is not known to
 * be of a job. The mutex is not held. */
static kl_rc read_asked(struct sweep *sweep, kl_store *store, size_t count)
{
    size_t wanted = 0, done = 0, read = 0;
    for (size_t i = 0; i < count; i++) {
        const kl_stub *stub = &sweep->stubs[i];
        bool concerned = !sweep->key_hash || stub->key_hash == sweep->key_hash;
        sweep->asked_ms[i] = 0;
        sweep->meant[i] = concerned && !sweep->job;
        if (!concerned)
            continue;
        sweep->refs[wanted] = (kl_ref){sweep->window->place, stub->id, stub->position, true};
        sweep->concerned[wanted++] = i;
    }
    for (; done < wanted; done += read) {
        kl_arena_reset(&sweep->arena);
        read = 0;
        kl_rc rc = kl_store_read(store, sweep->refs + done, wanted - done, &sweep->arena, sweep->read, &read);
        if (rc != KL_OK && rc != KL_EDAMAGED)
            return rc;
        for (size_t i = 0; i < read; i++)
            note(sweep, sweep->concerned[done + i], &sweep->read[i]);
        read += rc == KL_EDAMAGED;
    }
    return KL_OK;
}

/* It is out from now on: whatever becomes of the window, the sweep still has it. */
static void add_ended(struct sweep *sweep, kl__held *held, int64_t keep_ms)
{
    held->state = KL_HELD_FINISHED;
    held->sending = true;
    held->keep_ms = keep_ms;
    held->next = NULL;
    if (held->made)
        held->lane.mark.attempts = held->made;
    sweep->window->out++;
    *sweep->ended_link = held;
    sweep->ended_link = &held->next;
    sweep->ended_count++;
}

/* Its outcome, if it has one that is not on its way yet, leaves no trace either. */
static void leave_alone(const struct sweep *sweep, kl__held *held)
{
    held->traceless |= sweep->job != NULL;
    if (held->state == KL_HELD_FINISHED && held->traceless && !held->sending)
        held->keep_ms = 0;
}

static kl_rc take(struct sweep *sweep, const kl_stub *stub, int64_t asked_ms)
{
    kl__window *window = sweep->window;
    kl__held *held = kl__held_at(window, stub->position);
    if (held && stub->position == sweep->head)
        held->keep_ms = asked_ms; /* for when it is ended itself */
    bool out = held && (held->state == KL_HELD_RUNNING || held->state == KL_HELD_FINISHED);
    if (out)
        leave_alone(sweep, held);
    if (out || stub->position == sweep->head)
        return KL_OK;
    if (held)
        kl__window_withdraw(held);
    else if (!(held = kl__window_hold(window, stub)))
        return kl__fail_memory();
    int64_t keep_ms = sweep->job ? 0 : kl__pump_keep_ms(window->pump, sweep->outcome, asked_ms);
    bool failed = stub->attempts > 0; /* then its own error says more, and stays */
    kl__held_keep_text(held, keep_ms && !failed ? sweep->error : (kl_bytes){0}, (kl_bytes){0});
    add_ended(sweep, held, keep_ms);
    sweep->count++;
    return KL_OK;
}

/* Hands over what has ended, to be settled with the next; `together`: in one batch. */
static void hand_over(struct sweep *sweep, bool together)
{
    kl__window *window = sweep->window;
    for (kl__held *held = sweep->ended, *next; held; held = next) {
        next = held->next;
        held->sending = false;
        held->with_next = together && next;
        window->out--;
        if (window->lost)
            kl__held_delete(window->pump, held);
        else
            kl__pump_settle_later(window->pump, held, sweep->outcome, held->keep_ms);
    }
    sweep->ended = NULL;
    sweep->ended_link = &sweep->ended;
    sweep->ended_count = 0;
}

/* What stands behind a head is settled together with it, if it is not too much. */
static kl_rc settle_some(struct sweep *sweep)
{
    if (sweep->head && sweep->ended_count < ENDED_MAX)
        return KL_OK;
    hand_over(sweep, false);
    return kl__window_send(sweep->window);
}

static kl_rc sweep_line(struct sweep *sweep, int32_t line)
{
    kl__window *window = sweep->window;
    kl_stub last;
    kl_scan scan = {
        .place = window->place, .line = line, .until_ms = KL_ID_MS_MAX, .stubs = sweep->stubs, .max = STUBS};
    do {
        kl_store *store = window->partition->store;
        kl__pump_leave(window->pump);
        kl_rc rc = kl_store_scan(store, &scan, 1);
        if (rc == KL_OK)
            rc = read_asked(sweep, store, scan.count);
        kl__pump_enter(window->pump);
        if (rc == KL_OK && window->lost)
            rc = kl__fail(KL_ESTALE, "the shard went to another worker meanwhile; call again");
        if (rc != KL_OK)
            return rc;
        for (size_t i = 0; i < scan.count && rc == KL_OK; i++)
            rc = sweep->meant[i] ? take(sweep, &sweep->stubs[i], sweep->asked_ms[i]) : KL_OK;
        if (scan.count)
            last = sweep->stubs[scan.count - 1];
        scan.after = &last;
        if (rc != KL_OK || (rc = settle_some(sweep)) != KL_OK)
            return rc;
    } while (scan.count == STUBS && !window->lost);
    return KL_OK;
}

static kl_rc sweep_lines(struct sweep *sweep)
{
    kl__window *window = sweep->window;
    kl_counts counts;
    kl_store *store = window->partition->store;
    kl__pump_leave(window->pump);
    kl_rc rc = kl_store_counts(store, window->place, NULL, &counts);
    kl__pump_enter(window->pump);
    if (rc == KL_OK && (counts.retry || counts.at_least))
        rc = sweep_line(sweep, KL_LINE_RETRY);
    for (uint32_t lines = rc == KL_OK ? counts.priorities : 0; lines && rc == KL_OK; lines &= lines - 1)
        rc = sweep_line(sweep, __builtin_ctz(lines) + KL_PRIORITY_MIN);
    if (rc == KL_OK && (counts.due || counts.at_least))
        rc = sweep_line(sweep, KL_LINE_DUE);
    return rc;
}

/* It died first, so it comes first in the last batch, and not in an earlier one: should this worker end in between, the
 * next one finds the head with no attempts left and goes on. Unless an operator has ended it, or tries it again. */
static void end_head(struct sweep *sweep, const kl_task_id *id)
{
    kl__window *window = sweep->window;
    kl__held *head = window->lost ? NULL : kl__window_find(window, id, sweep->head);
    if (!head || head->state != KL_HELD_LINE)
        return;
    kl__held *behind = sweep->ended;
    kl__held **link = behind ? sweep->ended_link : NULL;
    head->draining = false;
    kl__window_withdraw(head);
    sweep->ended_link = &sweep->ended;
    add_ended(sweep, head, kl__pump_keep_ms(window->pump, KL_DEAD, head->keep_ms));
    head->next = behind;
    sweep->ended_link = link ? link : sweep->ended_link;
}

kl_rc kl__window_sweep(kl__window *window, kl__sweep_of of, kl_outcome outcome, const char *error, uint64_t *ret_count)
{
    struct sweep *sweep = kl__alloc_zeroed(1, sizeof *sweep);
    if (!sweep)
        return kl__fail_memory();
    kl_task_id id = of.head ? of.head->id : (kl_task_id){{0}};
    sweep->window = window;
    sweep->key_hash = of.key_hash;
    sweep->job = of.job;
    sweep->head = of.head ? of.head->lane.position : 0;
    sweep->outcome = outcome;
    sweep->error = kl_str(error);
    sweep->ended_link = &sweep->ended;
    window->out++; /* stays while the mutex is left */
    window->sweeping = true;
    window->swept_key = of.key_hash;
    kl_rc rc = sweep_lines(sweep);
    if (rc == KL_OK && of.head)
        end_head(sweep, &id);
    hand_over(sweep, of.head != NULL);
    window->sweeping = false;
    window->due_spoiled |= window->due_asked;
    window->out--;
    *ret_count = sweep->count;
    kl_arena_free(&sweep->arena);
    kl__free(sweep);
    if (window->lost)
        kl__window_free_if_done(window);
    else
        kl__window_ready(window);
    return rc;
}

/* --- The policy `drain` --- */

static kl__held *next_draining(kl__window *window)
{
    for (uint32_t i = 0; i < window->table_capacity; i++) {
        kl__held *held = window->table[i].held;
        if (held && held->draining && held->state == KL_HELD_LINE)
            return held;
    }
    return NULL;
}

static kl_rc drain_window(kl__window *window)
{
    kl__held *head;
    while (!window->lost && (head = next_draining(window))) {
        uint64_t count = 0, position = head->lane.position;
        kl_task_id id = head->id;
        if (!kl__window_clear_due(window))
            return KL_OK; /* the next tick tries again */
        if (!(head = kl__window_find(window, &id, position)) || head->state != KL_HELD_LINE)
            continue; /* an operator has ended it, or tries it again */
        kl__sweep_of rest = {.key_hash = head->key_hash, .head = head};
        kl_rc rc = kl__window_sweep(window, rest, KL_DEAD, "the task before it failed for good", &count);
        if (rc != KL_OK)
            return rc;
    }
    window->draining = false;
    return KL_OK;
}

/* Up to the first window that fails, or is lost. */
static kl_rc drain_partition(kl__partition *partition)
{
    kl_rc rc = KL_OK;
    bool lost = false;
    for (kl__window *window = partition->windows; window && rc == KL_OK; window = lost ? NULL : window->next) {
        if (!window->draining)
            continue;
        window->out++;
        rc = drain_window(window);
        window->out--;
        lost = window->lost;
        kl__window_free_if_done(window);
    }
    return rc == KL_ESTALE ? KL_OK : rc;
}

kl_rc kl__pump_drain_keys(kl__pump *pump)
{
    kl_rc first = KL_OK;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        kl_rc rc = drain_partition(partition);
        first = first != KL_OK ? first : rc;
    }
    return first;
}
