/* settle.c - send what came of tasks to the store, in batches, under the epochs of their shards.
 *
 * From: pump.c (finished tasks).  To: the store; then the lanes, for tasks that are to be tried again.
 *
 * One settle is under way at a time; what finishes meanwhile goes with the next. So batches grow with the load, a
 * shard's outcomes keep their order (P3), and a task costs a part of one commit. A key goes on as soon as its task is
 * done, before that is durable; but a task that is to be tried again is parked only when that is. */
#include <string.h>
#include <time.h>

#include "base/fetch.h"
#include "base/mutant.h"
#include "work/inside.h"

enum { EVICT_MS = 20 }; /* a key that waits longer leaves its places to others */

struct kl__settles {
    bool under_way;
    kl_store *store;
    kl_settle *batches;
    kl__window **windows; /* of the batches */
    size_t count, room;
    kl_settled *tasks;
    kl__held **held; /* of the tasks */
    size_t task_count, task_room;
    size_t bytes;
};

kl__settles *kl__settles_open(void) { return kl__alloc_zeroed(1, sizeof(kl__settles)); }

void kl__settles_free(kl__settles *settles)
{
    if (!settles)
        return;
    kl__free(settles->batches);
    kl__free(settles->windows);
    kl__free(settles->tasks);
    kl__free(settles->held);
    kl__free(settles);
}

/* Makes room for one more; what was there is copied. */
static bool grow(void **array, size_t used, size_t room, size_t size)
{
    void *bigger = kl__alloc_zeroed(room, size);
    if (!bigger)
        return false;
    if (used)
        memcpy(bigger, *array, used * size);
    kl__free(*array);
    *array = bigger;
    return true;
}

static bool room_for_batch(kl__settles *settles)
{
    if (settles->count < settles->room)
        return true;
    size_t room = settles->room ? settles->room * 2 : 16;
    if (!grow((void **)&settles->batches, settles->count, room, sizeof *settles->batches) ||
        !grow((void **)&settles->windows, settles->count, room, sizeof *settles->windows))
        return false;
    settles->room = room;
    return true;
}

static bool room_for_tasks(kl__settles *settles, size_t count)
{
    if (settles->task_count + count <= settles->task_room)
        return true;
    size_t room = settles->task_room ? settles->task_room * 2 : 64;
    while (room < settles->task_count + count)
        room *= 2;
    if (!grow((void **)&settles->tasks, settles->task_count, room, sizeof *settles->tasks) ||
        !grow((void **)&settles->held, settles->task_count, room, sizeof *settles->held))
        return false;
    settles->task_room = room;
    return true;
}

/* --- Collecting --- */

static kl_settled settled_of(const kl__held *held)
{
    return (kl_settled){
        .id = held->id,
        .position = held->lane.position,
        .outcome = (kl_outcome)held->outcome,
        .attempts = held->lane.mark.attempts,
        .due_ms = held->retry_ms,
        .keep_ms = held->keep_ms,
        .error = held->text ? held->text->error : (kl_bytes){0},
        .result = held->text ? held->text->result : (kl_bytes){0},
    };
}

static size_t text_bytes(const kl__held *held)
{
    return held->text ? held->text->error.len + held->text->result.len : 0;
}

/* It and those that must be in one batch with it. */
static size_t count_together(const kl__held *held)
{
    size_t count = 1;
    for (; held->with_next && held->next; held = held->next)
        count++;
    return count;
}

/* Whether this one goes with the others, and all that must go with it. */
static bool takes_more(kl__settles *settles, const kl__held *held)
{
    bool full = settles->task_count >= KL_SETTLE_MAX ||
                (settles->task_count > 0 && settles->bytes + text_bytes(held) > KL_SETTLE_BYTES);
    return !full && room_for_tasks(settles, count_together(held));
}

static void collect_window(kl__settles *settles, kl__window *window)
{
    if (!window->finished || !room_for_batch(settles))
        return;
    size_t first = settles->task_count;
    bool together = false;
    while (window->finished && (together || takes_more(settles, window->finished))) {
        kl__held *held = window->finished;
        together = held->with_next;
        if (!(window->finished = held->next))
            window->finished_last = NULL;
        held->sending = true;
        window->out++;
        window->pump->finished--;
        settles->bytes += text_bytes(held);
        settles->held[settles->task_count] = held;
        settles->tasks[settles->task_count++] = settled_of(held);
    }
    if (settles->task_count == first)
        return;
    window->settling = true;
    settles->windows[settles->count] = window;
    settles->batches[settles->count++] = (kl_settle){.place = window->place,
                                                     .epoch = KL_MUTANT(stale_settle) ? KL_EPOCH_MAX : window->epoch,
                                                     .count = settles->task_count - first};
}

/* The store whose turn it is: behind the last one, so that a store that fails does not hold up the others. */
static kl_store *next_store(const kl__pump *pump, const kl_store *last)
{
    kl_store *first = NULL;
    bool behind = false;
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        const kl__window *window = partition->windows;
        while (window && !window->finished)
            window = window->next;
        if (window && behind && partition->store != last)
            return partition->store;
        first = window && !first ? partition->store : first;
        behind |= partition->store == last;
    }
    return first;
}

/* Outcomes of one store; those of others go with the next call. */
static void collect(kl__pump *pump, kl__settles *settles)
{
    settles->store = next_store(pump, settles->store);
    settles->count = settles->task_count = settles->bytes = 0;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        for (kl__window *window = partition->windows; window; window = window->next) {
            if (window->finished && settles->store == partition->store)
                collect_window(settles, window);
        }
    }
    size_t first = 0;
    for (size_t i = 0; i < settles->count; i++) { /* the array may have moved while it grew */
        settles->batches[i].tasks = settles->tasks + first;
        first += settles->batches[i].count;
    }
}

/* --- Afterwards --- */

/* One whose line is drained is counted when it is dead. */
static void count(const kl__window *window, kl_outcome outcome, bool halted, bool draining)
{
    kl__pump *pump = window->pump;
    if (pump->opts.ended && !halted)
        pump->opts.ended(pump->opts.giver, window->partition->index, outcome);
    switch (outcome) {
    case KL_DONE:
        pump->counts.done++;
        break;
    case KL_RETRY:
        pump->counts.retried += !halted;
        pump->counts.halted += halted && !draining;
        break;
    case KL_DEAD:
        pump->counts.dead++;
        break;
    case KL_CANCELLED:
        pump->counts.cancelled++;
        break;
    }
}

/* What went wrong stays with it, for those who ask why the key waits. */
static void clear_outcome(kl__held *held)
{
    held->state = KL_HELD_LINE;
    held->marked = false;
    held->retry_line = true;
}

/* The attempt has failed, and that is durable: the task waits for the next one, and its key with it. */
static void park(kl__window *window, kl__held *held)
{
    kl__pump *pump = window->pump;
    bool halted = held->halted;
    int64_t due_ms = held->retry_ms;
    clear_outcome(held);
    held->halted = false;
    window->draining |= held->draining;
    if (halted) {
        kl__lanes_halt(window->lanes, &held->lane, pump->now_ms);
        kl__window_block(window, held, KL_BLOCKED_HALTED);
        if (held->reconsider)
            kl__window_serve(window, held);
        held->reconsider = false;
        return;
    }
    if (KL_MUTANT(retry_frees_key))
        kl__lanes_untake(window->lanes, &held->lane, false, pump->now_ms);
    else
        kl__lanes_retry(window->lanes, &held->lane, due_ms, pump->now_ms);
    if (due_ms > pump->now_ms + EVICT_MS)
        kl__window_block(window, held, KL_BLOCKED_RETRY);
}

static void tell(kl__pump *pump, kl__held *held, kl_rc rc)
{
    if (held->waiter && pump->opts.settled(pump->opts.giver, held->waiter, rc))
        held->waiter = NULL;
}

static void applied(kl__window *window, kl__held *held)
{
    tell(window->pump, held, KL_OK);
    window->pump->ended_ms = window->pump->now_ms;
    count(window, (kl_outcome)held->outcome, held->halted, held->draining);
    held->sending = false;
    window->out--;
    if (held->lane.mark.kind == KL_HELD_FROM_DUE)
        kl__window_due_ended(window, held->lane.position);
    if (window->lost) {
        kl__held_delete(window->pump, held);
    } else if (held->outcome == KL_RETRY) {
        park(window, held);
    } else {
        kl__window_release(held);
    }
}

/* They are sent again, before those that finished later. */
static void put_back(kl__window *window, kl__held **held, size_t count, kl_rc rc)
{
    for (size_t i = count; i-- > 0;) {
        tell(window->pump, held[i], rc);
        held[i]->sending = false;
        window->out--;
        if (window->lost) {
            kl__held_delete(window->pump, held[i]);
            continue;
        }
        if (KL_MUTANT(outcomes_turned) && window->finished) {
            held[i]->next = NULL;
            window->finished_last = window->finished_last->next = held[i];
            window->pump->finished++;
            continue;
        }
        held[i]->next = window->finished;
        window->finished = held[i];
        if (!window->finished_last)
            window->finished_last = held[i];
        window->pump->finished++;
    }
}

static void refused(kl__window *window, kl__held **held, size_t count)
{
    window->pump->counts.refused += count;
    for (size_t i = 0; i < count; i++) {
        held[i]->sending = false;
        window->out--;
        if (window->lost)
            kl__held_delete(window->pump, held[i]);
    }
    if (!window->lost) {
        for (size_t i = 0; i < count; i++)
            kl__window_release(held[i]);
        kl__window_drop(window);
        return;
    }
    kl__window_free_if_done(window);
}

static void apply_batch(kl__window *window, const kl_settle *batch, kl__held **held)
{
    enum { AHEAD = 8 };
    for (size_t i = 0; i < batch->count; i++) {
        if (i + AHEAD < batch->count) {
            kl__held_prefetch(window, batch->tasks[i + AHEAD].position);
            kl__fetch_to_write(held[i + AHEAD]);
        }
        applied(window, held[i]);
    }
}

/* A shard that was taken over, or is damaged, is that batch's alone. */
static void apply(kl__settles *settles, kl_rc rc)
{
    bool each = rc == KL_ESTALE || rc == KL_EDAMAGED;
    size_t first = 0;
    for (size_t b = 0; b < settles->count; b++) {
        kl_settle *batch = &settles->batches[b];
        kl__window *window = settles->windows[b];
        kl__held **held = settles->held + first;
        first += batch->count;
        window->settling = false;
        if (rc != KL_OK && batch->rc == KL_ESTALE) {
            refused(window, held, batch->count);
            continue;
        }
        if (rc != KL_OK && (!each || batch->rc != KL_OK) && !KL_MUTANT(outcomes_dropped)) {
            put_back(window, held, batch->count, each ? batch->rc : rc);
        } else {
            apply_batch(window, batch, held);
        }
        if (window->lost)
            kl__window_free_if_done(window);
        else
            kl__window_ready(window);
    }
}

static void note_settle(kl__pump *pump, kl_rc rc)
{
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx);
    if (rc == KL_OK || rc == KL_ESTALE)
        pump->unsettled_ms = 0;
    else if (pump->unsettled_ms == 0)
        pump->unsettled_ms = local_ms ? local_ms : 1;
}

bool kl__pump_has_finished(const kl__pump *pump) { return pump->finished > 0; }

kl_rc kl__pump_settle(kl__pump *pump, uint64_t *ret_sent)
{
    kl__settles *settles = pump->settles;
    *ret_sent = 0;
    if (settles->under_way || pump->finished == 0)
        return KL_OK;
    collect(pump, settles);
    if (settles->count == 0)
        return kl__fail_memory();
    settles->under_way = true;
    for (size_t i = 0; i < settles->count; i++)
        settles->batches[i].rc = KL_EBUSY; /* until the store says otherwise */
    kl__pump_leave(pump);
    kl_rc rc = kl_store_settle(settles->store, settles->batches, settles->count);
    kl__pump_enter(pump);
    kl__pump_now(pump);
    *ret_sent = settles->task_count;
    apply(settles, rc);
    note_settle(pump, rc);
    settles->under_way = false;
    return rc == KL_ESTALE ? KL_OK : rc;
}

bool kl__pump_settling(const kl__pump *pump) { return pump->settles->under_way; }

/* Another thread may be sending, this window's outcomes or only those of others. */
static void wait_for_settle(kl__pump *pump)
{
    struct timespec while_ms = {.tv_nsec = 1000000};
    kl__pump_leave(pump);
    nanosleep(&while_ms, NULL);
    kl__pump_enter(pump);
}

bool kl__window_key_unsettled(const kl__window *window, uint64_t key_hash)
{
    const kl__settles *settles = window->pump->settles;
    for (const kl__held *held = window->finished; held; held = held->next)
        if (held->key_hash == key_hash)
            return true;
    for (size_t i = 0; window->settling && i < settles->task_count; i++)
        if (settles->held[i]->window == window && settles->held[i]->key_hash == key_hash)
            return true;
    return false;
}

/* What a window that is lost had finished may be refused, or have been dropped: nobody can say that it is durable. */
kl_rc kl__window_send(kl__window *window)
{
    enum { TRIES = 5000 };
    kl__pump *pump = window->pump;
    for (int i = 0; !window->lost && (window->finished || window->settling); i++) {
        uint64_t sent = 0;
        if (i == TRIES)
            return kl__fail(KL_EBUSY, "outcomes that were to be sent before take long; ask again");
        if (pump->settles->under_way) {
            wait_for_settle(pump);
            continue;
        }
        kl_rc rc = kl__pump_settle(pump, &sent);
        if (rc != KL_OK && pump->settles->store == window->partition->store) /* of another it is that one's matter */
            return rc;
    }
    return window->lost ? kl__fail(KL_ESTALE, "the shard went to another worker meanwhile; call again") : KL_OK;
}
