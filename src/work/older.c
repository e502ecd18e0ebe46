/* older.c - what older layouts of the queue still hold: seal them, move the due line, and say when they are drained.
 *
 * From: beat.c.  To: the queue's record, and the newest layout.
 *
 * Tasks without a due time are run where they are. Those that have one would hold up their keys in the newer layout
 * until it comes, so the owner of their shard puts them into the newest layout and ends them here. Their new ids and
 * tokens follow from the old ids, so doing that twice puts nothing twice, as long as the store knows the token
 * (kl_token); later some stores see that the id waits, and others have the task twice. Nothing more of the due line is
 * taken into memory here, also not when it is due: of a move that was broken off between its two steps, only the other
 * copy is run. For the same reason nobody ends or tries such a task here: it is moved first.
 *
 * A tick moves some and leaves the rest to the next: gates, requests and schedules wait for its end. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "base/random.h"
#include "base/wait.h"
#include "work/inside.h"

enum {
    MOVE_MAX = 256, /* tasks at once, */
    MOVE_FAR = 32,  /* where each is a journey; */
    MOVE_MS = 100,  /* and again, for so long in one tick, */
    FAR_MS = 1000,  /* or so: there the other steps of a tick take long, too */
    PROBES = 64,    /* shards that are asked at once whether they have any */
};

/* What one tick does. */
struct turn {
    int64_t until_ms; /* on the local clock */
    size_t moved;
    bool more; /* time was up before all of the last shard were moved */
};

struct mover;

/* A task on its way. */
struct moving {
    struct mover *mover;
    kl_rc rc;
    char error[128];
};

struct mover {
    kl__window *window;
    kl__descriptor *descriptor;
    kl_arena arena;
    pthread_mutex_t mutex; /* of what is on its way */
    pthread_cond_t landed;
    size_t flying;
    struct moving moving[MOVE_MAX];
    size_t count;
    kl_stub stubs[MOVE_MAX];
    kl_stub last; /* behind which the next page begins */
    bool any;     /* there is one */
    kl_ref refs[MOVE_MAX];
    size_t chosen[MOVE_MAX]; /* the stub of each */
    size_t done;             /* stubs of the page that need not be looked at again */
    char damaged[128];       /* the sentence of the first task that cannot be read; "": there is none */
    kl_task tasks[MOVE_MAX];
    kl_settled settled[MOVE_MAX];
};

/* The same task in the newest layout. */
static kl_entry moved(const struct mover *mover, const kl_task *task, kl_store **ret_store)
{
    const kl__partition *from = mover->window->partition;
    kl_entry entry = kl__entry_moved(mover->descriptor, from->layout_number, &from->layout, &task->entry, ret_store);
    if (KL_MUTANT(due_other_id))
        entry.id.bytes[15] ^= (uint8_t)kl__random_next(&mover->window->pump->random);
    return entry;
}

static void note(struct moving *moving, kl_rc rc, const char *error)
{
    moving->rc = rc;
    snprintf(moving->error, sizeof moving->error, "%s", error);
}

static void land(void *ctx, kl_rc rc, const char *error)
{
    struct moving *moving = ctx;
    struct mover *mover = moving->mover;
    pthread_mutex_lock(&mover->mutex);
    note(moving, rc, error);
    mover->flying--;
    pthread_cond_signal(&mover->landed);
    pthread_mutex_unlock(&mover->mutex);
}

/* Puts one where it goes, partition stores being what they may. Each has a token of its own: whoever repeats this may
 * have others beside it. */
static kl_rc launch(struct mover *mover, size_t index)
{
    kl_store *there;
    kl_entry entry = moved(mover, &mover->tasks[index], &there);
    kl_token token = kl__queue_token(&entry, 1);
    struct moving *moving = &mover->moving[index];
    *moving = (struct moving){.mover = mover};
    if (KL_MUTANT(due_not_moved))
        return KL_OK;
    pthread_mutex_lock(&mover->mutex);
    mover->flying++;
    pthread_mutex_unlock(&mover->mutex);
    kl_rc rc = kl_store_append_async(there, &entry, 1, &token, land, moving);
    if (rc != KL_OK)
        land(moving, rc, kl_error_text());
    return rc;
}

static void await_all(struct mover *mover)
{
    pthread_mutex_lock(&mover->mutex);
    while (mover->flying > 0)
        kl__cond_wait(&mover->landed, &mover->mutex, KL_NEVER);
    pthread_mutex_unlock(&mover->mutex);
}

/* All at once, so that a store makes one write of many, up to the first that is refused: they keep their order. Those
 * that got there are listed. */
static kl_rc put_there(struct mover *mover, size_t count, size_t *ret_put)
{
    size_t launched = 0;
    kl_rc rc = KL_OK;
    *ret_put = 0;
    while (launched < count && rc == KL_OK) {
        if (mover->tasks[launched].state == KL_TASK_WAITING)
            rc = launch(mover, launched);
        launched++;
    }
    await_all(mover);
    rc = KL_OK;
    for (size_t i = 0; i < launched; i++) {
        const kl_task *task = &mover->tasks[i];
        if (task->state != KL_TASK_WAITING)
            continue;
        if (mover->moving[i].rc == KL_OK)
            mover->settled[(*ret_put)++] = (kl_settled){
                .id = task->entry.id, .position = task->position, .outcome = KL_DONE, .attempts = task->attempts};
        else if (rc == KL_OK)
            rc = kl__fail(mover->moving[i].rc, "%s", mover->moving[i].error);
    }
    return rc;
}

/* Puts them where they go, and then ends them here: as many as one call reads, and up to one that is damaged, which
 * stays and holds up no other. The mutex is not held. */
static kl_rc move(struct mover *mover, kl_store *store, kl_settle *batch)
{
    size_t read = 0;
    kl_rc rc = kl_store_read(store, mover->refs, mover->count, &mover->arena, mover->tasks, &read);
    bool damaged = rc == KL_EDAMAGED;
    if (rc != KL_OK && !damaged)
        return rc;
    if (damaged && !*mover->damaged)
        snprintf(mover->damaged, sizeof mover->damaged, "%s", kl_error_text());
    if (read < mover->count)
        mover->done = mover->chosen[read] + damaged;
    rc = put_there(mover, read, &batch->count);
    if (batch->count == 0)
        return rc;
    batch->tasks = mover->settled; /* also when not all could be put: the next try may go to another layout */
    kl_rc settled = kl_store_settle(store, batch, 1);
    return rc != KL_OK ? rc : settled;
}

/* Those of a page of the due line that are not in memory: what is may stay there for long, if nobody runs it. */
static void choose(struct mover *mover, const kl_scan *scan, size_t most)
{
    kl__window *window = mover->window;
    mover->count = mover->done = 0;
    for (; mover->done < scan->count && mover->count < most; mover->done++) {
        const kl_stub *stub = &scan->stubs[mover->done];
        if (kl__held_at(window, stub->position))
            continue;
        mover->chosen[mover->count] = mover->done;
        mover->refs[mover->count++] = (kl_ref){window->place, stub->id, stub->position, true};
    }
}

static kl_rc move_page(struct mover *mover, bool *ret_more)
{
    kl__window *window = mover->window;
    kl__pump *pump = window->pump;
    kl_store *store = window->partition->store;
    kl_scan scan = {.place = window->place,
                    .line = KL_LINE_DUE,
                    .until_ms = KL_ID_MS_MAX,
                    .after = mover->any ? &mover->last : NULL,
                    .stubs = mover->stubs,
                    .max = MOVE_MAX};
    kl_settle batch = {.place = window->place, .epoch = window->epoch};
    kl__pump_leave(pump);
    kl_rc rc = kl_store_scan(store, &scan, 1);
    kl__pump_enter(pump);
    if (rc != KL_OK)
        return rc;
    choose(mover, &scan, kl__store_is_far(store) ? MOVE_FAR : MOVE_MAX);
    kl__pump_leave(pump);
    rc = mover->count ? move(mover, store, &batch) : KL_OK;
    kl__pump_enter(pump);
    *ret_more = scan.count == scan.max || mover->done < scan.count;
    if (mover->done > 0) {
        mover->last = mover->stubs[mover->done - 1];
        mover->any = true;
    }
    kl_arena_reset(&mover->arena);
    return rc;
}

static int64_t local_ms(const kl__pump *pump) { return pump->opts.local_ms(pump->opts.local_ctx); }

static struct turn begin_turn(const kl__pump *pump)
{
    return (struct turn){.until_ms = local_ms(pump) + (kl__store_is_far(pump->queue->store) ? FAR_MS : MOVE_MS)};
}

static kl_rc move_window(kl__pump *pump, kl__window *window, struct turn *turn)
{
    struct mover *mover = kl__alloc_zeroed(1, sizeof *mover);
    kl_rc rc = KL_OK;
    if (!mover)
        return kl__fail_memory();
    pthread_mutex_init(&mover->mutex, NULL);
    pthread_cond_init(&mover->landed, NULL);
    mover->window = window;
    mover->descriptor = pump->descriptor;
    atomic_fetch_add(&mover->descriptor->references, 1);
    do {
        rc = move_page(mover, &turn->more);
        turn->moved += mover->count;
    } while (turn->more && rc == KL_OK && !window->lost && local_ms(pump) < turn->until_ms);
    if (rc == KL_OK && !turn->more && *mover->damaged)
        rc = kl__fail(KL_EDAMAGED, "%s", mover->damaged);
    kl__descriptor_release(mover->descriptor);
    pthread_cond_destroy(&mover->landed);
    pthread_mutex_destroy(&mover->mutex);
    kl_arena_free(&mover->arena);
    kl__free(mover);
    return rc;
}

/* A lease that holds now, when the newer layout is known, lets this worker move tasks, however late its appends arrive:
 * whoever owns the shard next has taken it later, so the first record that it reads then knows that layout too, and it
 * runs none of the due line (window.c, admit_due). Without a lease the next owner may be running them already. */
static bool is_owned_now(const kl__window *window)
{
    const kl__pump *pump = window->pump;
    return KL_MUTANT(stale_move) || kl__owners_holds(window->partition->owners, local_ms(pump));
}

static bool is_over(const kl__pump *pump, const struct turn *turn)
{
    return turn->moved > 0 && local_ms(pump) >= turn->until_ms;
}

/* Windows of a partition, and which of them have something to be moved. */
struct probe {
    kl__window *windows[PROBES];
    kl_stub stubs[PROBES];
    kl_scan scans[PROBES];
    size_t count;
};

/* From `window` on; they are out from then on. Most have nothing, and are told so by one call. */
static kl_rc probe_some(kl__pump *pump, kl__window *window, struct probe *probe)
{
    kl_rc rc = KL_OK;
    probe->count = 0;
    for (; window && probe->count < PROBES; window = window->next) {
        size_t i = probe->count;
        if (window->leaving || !is_owned_now(window))
            continue;
        window->out++;
        probe->windows[i] = window;
        probe->scans[i] = (kl_scan){
            .place = window->place, .line = KL_LINE_DUE, .until_ms = KL_ID_MS_MAX, .stubs = &probe->stubs[i], .max = 1};
        probe->count++;
    }
    if (probe->count == 0)
        return KL_OK;
    kl_store *store = probe->windows[0]->partition->store;
    kl__pump_leave(pump);
    rc = kl_store_scan(store, probe->scans, probe->count);
    kl__pump_enter(pump);
    return rc;
}

/* What one shard keeps for itself, another may move. */
static bool is_refusal(kl_rc rc)
{
    return rc == KL_EINVAL || rc == KL_EFULL || rc == KL_EDAMAGED || rc == KL_EMISMATCH;
}

/* Moves what the probe has found. *ret_next: the window to go on with; NULL: no further. */
static kl_rc move_probed(kl__pump *pump, const struct probe *probe, kl_rc rc, struct turn *turn, kl__window **ret_next)
{
    kl_rc first = rc;
    bool on = rc == KL_OK;
    for (size_t i = 0; i < probe->count; i++) {
        kl__window *window = probe->windows[i];
        on &= !window->lost && !is_over(pump, turn);
        if (on && probe->scans[i].count > 0 && !window->leaving && is_owned_now(window)) {
            rc = move_window(pump, window, turn);
            first = first != KL_OK ? first : rc;
            on = (rc == KL_OK || is_refusal(rc)) && !window->lost;
        }
        window->out--;
        *ret_next = on ? window->next : NULL;
        kl__window_free_if_done(window);
    }
    return first;
}

/* Up to the first window that is lost, or whose store is away. */
static kl_rc move_partition(kl__pump *pump, kl__partition *partition, struct turn *turn)
{
    struct probe *probe = kl__alloc(sizeof *probe);
    kl__window *window = partition->windows;
    kl_rc first = probe ? KL_OK : kl__fail_memory();
    while (probe && window && !is_over(pump, turn)) {
        kl_rc rc = probe_some(pump, window, probe);
        window = NULL;
        rc = move_probed(pump, probe, rc, turn, &window);
        first = first != KL_OK ? first : rc;
    }
    kl__free(probe);
    return first;
}

/* One partition whose store is away does not keep the others waiting. */
static kl_rc move_some(kl__pump *pump, uint64_t newest)
{
    struct turn turn = begin_turn(pump);
    kl_rc first = KL_OK;
    for (kl__partition *partition = pump->partitions; partition && !is_over(pump, &turn); partition = partition->next) {
        bool older = partition->layout_number != newest && !partition->ending;
        kl_rc rc = older ? move_partition(pump, partition, &turn) : KL_OK;
        if (rc == KL_ESTALE || rc == KL_ESEALED)
            return first; /* another owner, or a still newer layout: the next beat knows */
        first = first != KL_OK ? first : rc;
    }
    return first;
}

/* The layout is the one that tasks are put into, and the record that says so was read after the shard was taken: the
 * owner before may have known of a newer one, and have moved the task there. */
bool kl__window_keeps_due(const kl__window *window)
{
    const kl__pump *pump = window->pump;
    return window->partition->layout_number == kl__put_layout(pump->descriptor)->number &&
           (KL_MUTANT(record_early) || window->opened < pump->refreshed);
}

static bool all_sealed(const kl__descriptor *descriptor)
{
    for (size_t i = 0; i + 1 < descriptor->layout_count; i++)
        if (!descriptor->layouts[i].sealed)
            return false;
    return true;
}

/* What is refused there is only here, and somebody may want to be rid of it. */
bool kl__window_clear_due(kl__window *window)
{
    kl__pump *pump = window->pump;
    if (kl__window_keeps_due(window) || KL_MUTANT(copy_left))
        return true;
    if (window->opened >= pump->refreshed || !all_sealed(pump->descriptor) || !is_owned_now(window))
        return false;
    struct turn turn = begin_turn(pump);
    kl_rc rc = move_window(pump, window, &turn);
    return !window->lost && (rc == KL_OK ? !turn.more : is_refusal(rc));
}

static kl_rc tell_drained(kl__pump *pump)
{
    kl__pump_leave(pump);
    kl_rc rc = kl__queue_retire(pump->queue);
    kl__pump_enter(pump);
    return rc;
}

bool kl__older_undrained(const kl__descriptor *descriptor)
{
    for (size_t i = 0; i + 1 < descriptor->layout_count; i++)
        if (!descriptor->layouts[i].drained)
            return true;
    return false;
}

kl_rc kl__older_layouts(kl__pump *pump)
{
    kl__descriptor *descriptor = pump->descriptor;
    bool unsealed = !all_sealed(descriptor);
    if (!kl__older_undrained(descriptor))
        return KL_OK;
    atomic_fetch_add(&descriptor->references, 1);
    kl_rc rc = KL_OK;
    if (unsealed) {
        kl__pump_leave(pump);
        rc = kl__queue_seal(pump->queue);
        kl__pump_enter(pump);
    }
    if (rc == KL_OK && !unsealed) {
        rc = move_some(pump, kl__newest_layout(descriptor)->number);
        kl_rc told = tell_drained(pump);
        rc = rc != KL_OK ? rc : told;
    }
    kl__descriptor_release(descriptor);
    return rc;
}
