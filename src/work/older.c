/* older.c - what older layouts of the queue still hold: seal them, move the due line, and say when they are drained.
 *
 * From: beat.c.  To: the queue's record, and the newest layout.
 *
 * Tasks without a due time are run where they are. Those that have one would hold up their keys in the newer layout until
 * it comes, so the owner of their shard puts them into the newest layout and ends them here. Their new ids follow from
 * the old ones, so doing that twice puts nothing twice. Nothing more of the due line is taken into memory here, also not
 * when it is due: of a move that was broken off between its two steps, only the other copy is run. For the same reason
 * nobody ends or tries such a task here: it is moved first. */
#include <string.h>

#include "base/mutant.h"
#include "base/random.h"
#include "work/inside.h"

enum { MOVE_MAX = 128 };

struct mover {
    kl__window *window;
    kl__descriptor *descriptor;
    kl_arena arena;
    size_t count;
    kl_stub stubs[MOVE_MAX];
    kl_ref refs[MOVE_MAX];
    kl_task tasks[MOVE_MAX];
    kl_settled settled[MOVE_MAX];
};

/* The same task in the newest layout. */
static kl_entry moved(const kl__window *window, const kl__queue_layout *to, const kl_task *task, kl_store **ret_store)
{
    kl_entry entry = task->entry;
    uint32_t partition, shard = kl__move_shard(&window->partition->layout, &to->layout, &entry);
    if (entry.key.len > 0)
        partition = kl_partition_of(&to->layout, entry.key);
    else
        partition =
            kl__hash_scale(kl__hash((kl_bytes){&entry.id, sizeof entry.id}, KL_SEED_PARTITION), to->layout.partitions);
    *ret_store = to->stores[partition];
    entry.place = (kl_place){to->numbers[partition], shard};
    entry.id = kl__id_moved(&window->partition->layout, &to->layout, shard, &task->entry.id);
    if (KL_MUTANT(due_other_id))
        entry.id.bytes[15] ^= (uint8_t)kl__random_next(&window->pump->random);
    return entry;
}

/* Puts them where they go, partition stores being what they may, and then ends them here. The mutex is not held. */
static kl_rc move(struct mover *mover, kl_store *store, kl_settle *batch)
{
    const kl__queue_layout *to = kl__newest_layout(mover->descriptor);
    size_t read = 0, count = 0;
    kl_rc rc = kl_store_read(store, mover->refs, mover->count, &mover->arena, mover->tasks, &read);
    for (size_t i = 0; i < read && rc == KL_OK; i++) {
        if (mover->tasks[i].state != KL_TASK_WAITING)
            continue;
        kl_store *there;
        kl_entry entry = moved(mover->window, to, &mover->tasks[i], &there);
        rc = KL_MUTANT(due_not_moved) ? KL_OK : kl__queue_append(there, &entry, 1);
        if (rc != KL_OK)
            break;
        mover->settled[count++] = (kl_settled){.id = mover->tasks[i].entry.id,
                                               .position = mover->tasks[i].position,
                                               .outcome = KL_DONE,
                                               .attempts = mover->tasks[i].attempts};
    }
    if (count == 0)
        return rc;
    batch->tasks = mover->settled; /* also when not all could be put: the next try may go to another layout */
    batch->count = count;
    kl_rc settled = kl_store_settle(store, batch, 1);
    return rc != KL_OK ? rc : settled;
}

/* Those of a page of the due line that are not in memory. */
static void choose(struct mover *mover, const kl_scan *scan)
{
    kl__window *window = mover->window;
    mover->count = 0;
    for (size_t i = 0; i < scan->count; i++) {
        const kl_stub *stub = &scan->stubs[i];
        if (!kl__held_at(window, stub->position))
            mover->refs[mover->count++] = (kl_ref){window->place, stub->id, stub->position, true};
    }
}

static kl_rc move_page(struct mover *mover, bool *ret_more)
{
    kl__window *window = mover->window;
    kl__pump *pump = window->pump;
    kl_store *store = window->partition->store;
    kl_scan scan = {
        .place = window->place, .line = KL_LINE_DUE, .until_ms = KL_ID_MS_MAX, .stubs = mover->stubs, .max = MOVE_MAX};
    kl_settle batch = {.place = window->place, .epoch = window->epoch};
    kl__pump_leave(pump);
    kl_rc rc = kl_store_scan(store, &scan, 1);
    kl__pump_enter(pump);
    if (rc != KL_OK)
        return rc;
    choose(mover, &scan);
    *ret_more = scan.count == MOVE_MAX && mover->count > 0;
    kl__pump_leave(pump);
    rc = mover->count ? move(mover, store, &batch) : KL_OK;
    kl__pump_enter(pump);
    kl_arena_reset(&mover->arena);
    return rc;
}

static kl_rc move_window(kl__pump *pump, kl__window *window)
{
    struct mover *mover = kl__alloc_zeroed(1, sizeof *mover);
    bool more = true;
    kl_rc rc = KL_OK;
    if (!mover)
        return kl__fail_memory();
    mover->window = window;
    mover->descriptor = pump->descriptor;
    atomic_fetch_add(&mover->descriptor->references, 1);
    while (more && rc == KL_OK && !window->lost)
        rc = move_page(mover, &more);
    kl__descriptor_release(mover->descriptor);
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
    return KL_MUTANT(stale_move) ||
           kl__owners_holds(window->partition->owners, pump->opts.local_ms(pump->opts.local_ctx));
}

static kl_rc move_all(kl__pump *pump, uint64_t newest)
{
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        if (partition->layout_number == newest || partition->ending)
            continue;
        for (kl__window *window = partition->windows; window; window = window->next) {
            if (window->leaving || !is_owned_now(window))
                continue;
            window->out++;
            kl_rc rc = move_window(pump, window);
            window->out--;
            bool lost = window->lost;
            kl__window_free_if_done(window);
            if (rc == KL_ESTALE || rc == KL_ESEALED)
                return KL_OK; /* another owner, or a still newer layout: the next beat knows */
            if (rc != KL_OK || lost)
                return rc;
        }
    }
    return KL_OK;
}

/* The layout is the one that tasks are put into, and the record that says so was read after the shard was taken: the owner
 * before may have known of a newer one, and have moved the task there. */
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
    kl_rc rc = move_window(pump, window);
    bool refused = rc == KL_EINVAL || rc == KL_EFULL || rc == KL_EDAMAGED || rc == KL_EMISMATCH;
    return !window->lost && (rc == KL_OK || refused);
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
    if (rc == KL_OK && !unsealed)
        rc = move_all(pump, kl__newest_layout(descriptor)->number);
    if (rc == KL_OK && !unsealed)
        rc = tell_drained(pump);
    kl__descriptor_release(descriptor);
    return rc;
}
