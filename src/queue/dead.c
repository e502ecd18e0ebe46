/* dead.c - dead letters: put back, moved to another queue, or forgotten.
 *
 * From: applications, net/, cli/.  To: store/, look.c.
 *
 *     find a page -> put its letters again, the oldest first -> forget those that were stored -> tell, wait -> go on
 *
 * Stores show finished tasks the latest first, but letters of one key must stand in line as they died. So the pages of
 * a partition are found twice: once to mark where each begins, then from the last page to the first. A mark takes
 * little, so there may be millions of letters.
 *
 * R1  A letter is forgotten only after its task was stored again.
 * R2  The append's token follows from the letter's id: a letter that was put back but not forgotten is not stored a
 *     second time by the next run, for as long as the store remembers the token.
 * R3  Only what had died when the run began is looked at, so what dies again meanwhile is left alone. Where a rate
 *     makes a page take long, its letters are looked at again before each part of it: others may have handled them.
 * R4  A letter is put only after those of its key that died before it. One that the store is too busy for holds the
 *     others of its key up, and ends the run if that goes on.
 * R5  A letter that is moved or purged leaves its job, which has a task less then: else it would wait for it for
 *     ever. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/compare.h"
#include "base/layout.h"
#include "base/wait.h"
#include "queue/envelope.h"
#include "queue/job.h"
#include "queue/look.h"
#include "queue/put.h"

enum {
    PAGE = 64,       /* letters in memory at once */
    SEED_RETRY = 6,  /* of append tokens */
    CHUNKS_A_S = 10, /* with a rate: how often in a second some are put */
};

enum action { RETRY, MOVE, PURGE };

/* Where a page of a partition begins: behind this task. */
struct marks {
    kl_task *tasks;
    size_t count, room;
};

/* One letter on its way. */
struct letter {
    struct run *run;
    const kl_task *task;
    kl_entry entry;  /* as it is put again, */
    kl_store *store; /* and where; NULL: not chosen yet, or its layout is sealed */
    kl_rc rc;
    bool again;   /* it is to be appended (once more), */
    bool held_up; /* and was not now, because of one before it */
    bool gone;    /* somebody else has put it back, moved or purged it since the page was found */
    bool flying;  /* its append has not ended; under the mutex, as is rc until then */
    char error[sizeof((kl_account *)0)->error];
};

struct run {
    kl_queue *queue, *to;
    const kl_redrive *which;
    enum action action;
    kl__source source; /* that is being worked on */
    kl_find find;
    kl_account account;
    uint64_t waited_for; /* letters that the rate has been paid for */
    bool stopped;
    uint64_t marked; /* the number of a layout that is known to have tasks by_name; 0: none is */
    kl_arena arena;  /* of one page */
    pthread_mutex_t mutex;
    pthread_cond_t landed;
    size_t flying; /* appends that have not ended; under the mutex */
    kl_task tasks[PAGE];
    struct letter letters[PAGE];
};

/* --- Putting again --- */

/* By the hash, not by the id: that may be the token of the call that put it first. */
static kl_token token_of(const kl_task *task)
{
    kl_token token;
    uint64_t hashes[2];
    kl_bytes id = {task->entry.id.bytes, sizeof task->entry.id.bytes};
    for (uint64_t half = 0; half < 2; half++)
        hashes[half] = kl__hash(id, (uint64_t)SEED_RETRY << 32 | half);
    memcpy(token.bytes, hashes, sizeof token.bytes);
    return token;
}

/* A letter that its producer put into this partition of its queue by name goes there again, if there still is one of
 * that number, which then has the same name. So does one without a key while the layout is the same: nothing tells
 * whether somebody named its partition. */
static bool keeps_partition(const struct run *run, const kl__queue_layout *layout, kl_bytes key)
{
    kl__source from = run->source;
    if (run->action != RETRY || from.partition >= layout->layout.partitions)
        return false;
    return key.len > 0 ? from.partition != kl_partition_of(&from.layout->layout, key)
                       : from.layout->number == layout->number;
}

static void choose_place(const struct run *run, const kl__queue_layout *layout, const kl_task *task,
                         uint32_t *ret_partition, uint32_t *ret_shard)
{
    kl_bytes id = {task->entry.id.bytes, sizeof task->entry.id.bytes}, key = task->entry.key;
    const kl_layout *to = &layout->layout;
    bool keyed = key.len > 0;
    *ret_partition = keyed ? kl_partition_of(to, key) : kl__hash_scale(kl__hash(id, KL_SEED_PARTITION), to->partitions);
    *ret_shard = keyed ? kl_shard_of(to, key) : kl__hash_scale(kl__hash(id, KL_SEED_SHARD), kl_layout_shards(to));
    if (keeps_partition(run, layout, key))
        *ret_partition = run->source.partition;
}

/* Q4: the layout is marked before it has the first task that lies elsewhere than its key says. */
static kl_rc mark_by_name(struct run *run, const kl__queue_layout *layout, uint32_t partition, kl_bytes key)
{
    kl_rc rc = KL_OK;
    if (key.len == 0 || partition == kl_partition_of(&layout->layout, key) || run->marked == layout->number)
        return KL_OK;
    KL_ASK(rc, kl__queue_mark_by_name(run->to, layout));
    if (rc == KL_OK)
        run->marked = layout->number;
    return rc;
}

/* A due time that has passed is left out: with it, the task would stand before others of its key. So is one to
 * come when this very task was asked for: who does that wants it now. */
static int64_t due_of(const struct run *run, const kl_task *task, int64_t now_ms)
{
    static const kl_task_id none;
    bool asked = run->action == RETRY && memcmp(&run->which->id, &none, sizeof none) != 0;
    return task->entry.due_ms > now_ms && !asked ? task->entry.due_ms : 0;
}

/* What a letter does not take along. How long a job's tasks are kept is the job's to say. */
static kl__leaves leaves_of(const struct run *run, const kl_entry *entry)
{
    if (run->action != MOVE)
        return KL_LEAVES_NOTHING;
    return kl__id_is_none(&entry->job) ? KL_LEAVES_UNIQUE : KL_LEAVES_UNIQUE_AND_JOB;
}

static kl_rc make_entry(struct run *run, struct letter *letter, const kl__queue_layout *layout, int64_t now_ms)
{
    const kl_entry *old = &letter->task->entry;
    uint32_t partition, shard;
    choose_place(run, layout, letter->task, &partition, &shard);
    letter->entry = *old;
    letter->entry.place = (kl_place){kl__layout_number(layout, partition), shard};
    letter->entry.due_ms = due_of(run, letter->task, now_ms);
    if (run->action == MOVE)
        letter->entry.job = (kl_task_id){{0}};
    kl_rc rc = mark_by_name(run, layout, partition, old->key);
    if (rc == KL_OK)
        rc = kl_idgen_next(layout->idgen, shard, kl_lane_of(old->key), &letter->entry.id);
    if (rc == KL_OK)
        rc = kl__envelope_repeat(old->headers, &old->id, leaves_of(run, old), &run->arena, &letter->entry.headers);
    if (rc == KL_OK)
        letter->store = layout->stores[partition];
    return rc;
}

static void note(struct letter *letter, kl_rc rc, const char *error)
{
    letter->rc = rc;
    snprintf(letter->error, sizeof letter->error, "%s", rc == KL_OK ? "" : error);
}

static void land(void *ctx, kl_rc rc, const char *error)
{
    struct letter *letter = ctx;
    struct run *run = letter->run;
    pthread_mutex_lock(&run->mutex);
    note(letter, rc, error);
    letter->flying = false;
    run->flying--;
    pthread_cond_signal(&run->landed);
    pthread_mutex_unlock(&run->mutex);
}

/* What is tried again, because the store was busy, keeps its id: it may have been stored. */
static void launch(struct run *run, struct letter *letter, const kl__queue_layout *layout, int64_t now_ms)
{
    kl_token token = token_of(letter->task);
    kl_rc rc = letter->store ? KL_OK : make_entry(run, letter, layout, now_ms);
    if (rc != KL_OK) {
        note(letter, rc, kl_error_text());
        return;
    }
    pthread_mutex_lock(&run->mutex);
    letter->flying = true;
    run->flying++;
    pthread_mutex_unlock(&run->mutex);
    rc = kl_store_append_async(letter->store, &letter->entry, 1, &token, land, letter);
    if (rc != KL_OK)
        land(letter, rc, kl_error_text());
}

static void await(struct run *run)
{
    pthread_mutex_lock(&run->mutex);
    while (run->flying > 0)
        kl__cond_wait(&run->landed, &run->mutex, KL_NEVER);
    pthread_mutex_unlock(&run->mutex);
}

static bool is_for_later(kl_rc rc) { return rc == KL_ESEALED || rc == KL_EBUSY; }

/* One whose append has not ended holds the next ones of its key up where it may still fail while theirs succeed: an
 * engine that stores all of an append or nothing refuses it at once, or fails for good. */
static bool holds_up(const struct letter *letter)
{
    if (letter->flying)
        return !(kl_store_info_of(letter->store).can & KL_STORE_ATOMIC_APPEND);
    return letter->again && is_for_later(letter->rc);
}

/* R4. Letters before this one that are not to be appended now have ended. */
static bool is_held_up(struct run *run, const struct letter *letters, size_t at)
{
    kl_bytes key = letters[at].task->entry.key;
    bool held = false;
    pthread_mutex_lock(&run->mutex);
    for (size_t i = 0; key.len > 0 && !held && i < at; i++)
        held = kl__bytes_equal(letters[i].task->entry.key, key) && holds_up(&letters[i]);
    pthread_mutex_unlock(&run->mutex);
    return held;
}

/* Appends what is to be, all at once so that the store can make one write of it, in order. */
static kl_rc append_some(struct run *run, struct letter *letters, size_t count)
{
    int64_t now_ms;
    kl__descriptor *descriptor = kl__queue_descriptor(run->to);
    kl_rc rc = kl_store_now(run->to->store, &now_ms);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        letters[i].held_up = letters[i].again && is_held_up(run, letters, i);
        if (letters[i].held_up)
            note(&letters[i], KL_EBUSY, "a dead letter of its key, which died before it, could not be put back");
        else if (letters[i].again)
            launch(run, &letters[i], kl__put_layout(descriptor), now_ms);
    }
    await(run);
    kl__descriptor_release(descriptor);
    return rc;
}

/* What came of the appends, and what is left to be done. */
struct left {
    bool any;    /* some are to be appended (once more), */
    bool sealed; /* of them some elsewhere, */
    bool busy;   /* and of some the store said: not just now */
};

static struct left sort_out(struct letter *letters, size_t count)
{
    struct left left = {0};
    for (size_t i = 0; i < count; i++) {
        struct letter *letter = &letters[i];
        letter->again = letter->again && is_for_later(letter->rc);
        if (letter->again && letter->rc == KL_ESEALED)
            letter->store = NULL;
        left.any |= letter->again;
        left.sealed |= letter->again && letter->rc == KL_ESEALED;
        left.busy |= letter->again && !letter->held_up;
    }
    return left;
}

/* Those for which there is no more waiting: the first error is theirs all. */
static kl_rc give_up(struct letter *letters, size_t count, kl_rc rc)
{
    char error[sizeof letters->error];
    snprintf(error, sizeof error, "%s", kl_error_text());
    for (size_t i = 0; i < count; i++)
        if (letters[i].again)
            note(&letters[i], rc, error);
    return rc;
}

static kl_rc fail_busy(const struct letter *letters, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (letters[i].again)
            return kl__fail(KL_EBUSY, "%s", letters[i].error);
    return KL_OK;
}

/* KL_EBUSY: some could not be put, and what died after them is to wait for them; they are `again`. */
static kl_rc put_again(struct run *run, struct letter *letters, size_t count)
{
    for (uint32_t tries = 0;;) {
        kl_rc rc = append_some(run, letters, count);
        if (kl__put_again(rc, tries++))
            continue;
        if (rc != KL_OK)
            return give_up(letters, count, rc);
        struct left left = sort_out(letters, count);
        if (!left.any)
            return KL_OK;
        if (left.sealed && (rc = kl__queue_seal(run->to)) != KL_OK && rc != KL_EBUSY)
            return give_up(letters, count, rc);
        if (!left.busy)
            tries--; /* others were, and now it is their turn */
        else if (!kl__put_again(KL_EBUSY, tries - 1))
            return fail_busy(letters, count);
    }
}

/* --- Forgetting --- */

static kl_rc forget_some(struct run *run, uint32_t shard, const kl_task_id *ids, size_t count)
{
    kl_place place = {kl__layout_number(run->source.layout, run->source.partition), shard};
    kl_rc rc;
    KL_ASK(rc, kl_store_forget(kl__source_store(run->source), place, ids, count));
    return rc;
}

/* Of one shard at a time: a page has few, so they are looked for. */
static void forget(struct run *run, struct letter *letters, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kl_task_id ids[PAGE];
        size_t same = 0;
        uint32_t shard = letters[i].task->entry.place.shard;
        if (letters[i].rc != KL_OK || letters[i].again)
            continue;
        for (size_t j = i; j < count; j++) {
            if (letters[j].rc != KL_OK || letters[j].again || letters[j].task->entry.place.shard != shard)
                continue;
            ids[same++] = letters[j].task->entry.id;
            letters[j].again = true; /* it is in hand */
        }
        kl_rc rc = forget_some(run, shard, ids, same);
        for (size_t j = i; rc != KL_OK && j < count; j++)
            if (letters[j].rc == KL_OK && letters[j].task->entry.place.shard == shard)
                note(&letters[j], rc, kl_error_text());
    }
}

/* --- Jobs --- */

static bool has_left(const struct letter *letter)
{
    return letter->rc == KL_OK && !kl__id_is_none(&letter->task->entry.job);
}

/* Each job once, with all of its letters: a page has few, so they are looked for. */
static kl_rc leave_jobs(struct run *run, const struct letter *letters, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        const kl_task_id *job = &letters[i].task->entry.job;
        uint64_t left = 0;
        bool first = has_left(&letters[i]);
        for (size_t j = 0; first && j < count; j++) {
            bool same = has_left(&letters[j]) && kl_id_compare(&letters[j].task->entry.job, job) == 0;
            left += same;
            first = !(same && j < i);
        }
        if (first)
            rc = kl__job_leave(run->queue, job, left);
    }
    return rc;
}

/* --- Pages --- */

static void count_letters(struct run *run, const struct letter *letters, size_t count)
{
    kl_account *account = &run->account;
    size_t seen = 0, hopeless = 0;
    for (size_t i = 0; i < count; i++) {
        kl_rc rc = letters[i].rc;
        if (letters[i].gone)
            continue;
        seen++;
        account->seen++;
        account->done += rc == KL_OK;
        if (rc == KL_OK && run->action != PURGE)
            account->last = letters[i].entry.id;
        if (rc != KL_OK && account->failed++ == 0)
            snprintf(account->error, sizeof account->error, "%s", letters[i].error);
        hopeless += rc == KL_EFULL || kl_rc_class(rc) == KL_CLASS_FATAL;
    }
    run->stopped |= seen > 0 && hopeless == seen; /* the next ones would fare no better */
    if (run->which->told && !run->which->told(run->which->told_ctx, account))
        run->stopped = true;
}

static void wait_for_rate(struct run *run)
{
    int64_t rate = run->which->rate;
    if (rate <= 0 || run->stopped)
        return;
    uint64_t due = (run->account.seen - run->waited_for) * 1000 / (uint64_t)rate; /* ms */
    kl__queue_sleep((int64_t)due);
    run->waited_for += due * (uint64_t)rate / 1000;
}

static kl_rc read_letters(struct run *run, const struct letter *letters, size_t count, kl_arena *arena, kl_task *tasks,
                          size_t *ret_read)
{
    kl_ref refs[PAGE];
    kl_rc rc;
    uint32_t tries = 0;
    uint32_t partition = kl__layout_number(run->source.layout, run->source.partition);
    for (size_t i = 0; i < count; i++)
        refs[i] = (kl_ref){.place = {partition, letters[i].task->entry.place.shard}, .id = letters[i].task->entry.id};
    do {
        kl_arena_reset(arena);
        rc = kl_store_read(kl__source_store(run->source), refs, count, arena, tasks, ret_read);
    } while (kl__put_again(rc, tries++));
    return rc;
}

/* Where a rate is kept, a page takes long enough for others to handle some of its letters. */
static kl_rc note_gone(struct run *run, struct letter *letters, size_t count)
{
    kl_task tasks[PAGE];
    kl_arena arena = {0};
    kl_rc rc = KL_OK;
    for (size_t done = 0, read = 0; rc == KL_OK && done < count; done += read) {
        rc = read_letters(run, letters + done, count - done, &arena, tasks, &read);
        for (size_t i = 0; (rc == KL_OK || rc == KL_EDAMAGED) && i < read; i++) {
            struct letter *letter = &letters[done + i];
            letter->gone = tasks[i].state != letter->task->state;
            letter->again &= !letter->gone;
            letter->rc = letter->gone ? KL_ENOTFOUND : KL_OK;
        }
        if (rc == KL_EDAMAGED) { /* it is there */
            read++;
            rc = KL_OK;
        }
    }
    kl_arena_free(&arena);
    return rc;
}

/* What was put is forgotten and counted whatever became of the others. */
static kl_rc handle_chunk(struct run *run, struct letter *letters, size_t count)
{
    char why[sizeof run->account.error];
    kl_rc rc = run->action == PURGE ? KL_OK : put_again(run, letters, count);
    snprintf(why, sizeof why, "%s", kl_error_text());
    for (size_t i = 0; i < count; i++)
        letters[i].again = false;
    forget(run, letters, count);
    count_letters(run, letters, count);
    kl_rc left = run->action == RETRY ? KL_OK : leave_jobs(run, letters, count);
    if (rc != KL_OK)
        return kl__fail(rc, "%s", why);
    wait_for_rate(run);
    return left;
}

/* How many may be handled next: of these, of those that are asked for, and of the rate's share. */
static size_t chunk_of(const struct run *run, size_t left)
{
    uint64_t chunk = left, max = run->which->max;
    if (max > 0 && max - run->account.seen < chunk)
        chunk = max - run->account.seen;
    uint64_t share = run->which->rate > 0 ? ((uint64_t)run->which->rate + CHUNKS_A_S - 1) / CHUNKS_A_S : chunk;
    return (size_t)(share < chunk ? share : chunk);
}

/* Letters of a page, which are shown the latest first, from the last to the first. */
static kl_rc handle_page(struct run *run, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < count; i++)
        run->letters[i] = (struct letter){.run = run, .task = &run->tasks[count - 1 - i], .again = true};
    for (size_t done = 0, chunk; rc == KL_OK && !run->stopped && done < count; done += chunk) {
        chunk = chunk_of(run, count - done);
        rc = done > 0 ? note_gone(run, run->letters + done, chunk) : KL_OK;
        if (rc == KL_OK)
            rc = handle_chunk(run, run->letters + done, chunk);
        if (run->which->max > 0 && run->account.seen >= run->which->max)
            run->stopped = true;
    }
    return rc;
}

static kl_rc find_page(struct run *run, const kl_task *after, size_t *ret_count)
{
    kl_rc rc;
    uint32_t tries = 0;
    run->find.after = after;
    run->find.max = PAGE;
    do {
        kl_arena_reset(&run->arena);
        rc = kl_store_find(kl__source_store(run->source), &run->find, &run->arena, run->tasks, ret_count);
    } while (kl__put_again(rc, tries++));
    return rc;
}

static kl_rc add_mark(struct marks *marks, const kl_task *task)
{
    if (marks->count == marks->room) {
        size_t room = marks->room ? 2 * marks->room : 16;
        kl_task *tasks = kl__alloc_zeroed(room, sizeof *tasks);
        if (!tasks)
            return kl__fail_memory();
        if (marks->count > 0)
            memcpy(tasks, marks->tasks, marks->count * sizeof *tasks);
        kl__free(marks->tasks);
        marks->tasks = tasks;
        marks->room = room;
    }
    marks->tasks[marks->count++] = (kl_task){
        .entry = {.place = task->entry.place, .id = task->entry.id},
        .state = task->state,
        .position = task->position,
        .finished_ms = task->finished_ms,
    };
    return KL_OK;
}

/* Marks where each page but the first begins. The last one, which may be empty, is in memory then. */
static kl_rc mark_pages(struct run *run, struct marks *marks, size_t *ret_count)
{
    size_t count;
    kl_rc rc = find_page(run, NULL, &count);
    while (rc == KL_OK && count == PAGE) {
        rc = add_mark(marks, &run->tasks[PAGE - 1]);
        if (rc == KL_OK)
            rc = find_page(run, &marks->tasks[marks->count - 1], &count);
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

/* How many of the page in memory come no later than its last one did when it was marked: others may have taken letters
 * out, and then it shows some of the page behind it, which has been handled. */
static size_t cut_page(const struct run *run, size_t count, const kl_task *end)
{
    size_t kept = 0;
    while (kept < count && run->tasks[kept].finished_ms >= end->finished_ms) {
        if (kl_id_compare(&run->tasks[kept++].entry.id, &end->entry.id) == 0)
            break;
    }
    return kept;
}

static kl_rc handle_marked(struct run *run, struct marks *marks)
{
    size_t count;
    kl_rc rc = mark_pages(run, marks, &count);
    if (rc == KL_OK)
        rc = handle_page(run, count);
    for (size_t i = marks->count; rc == KL_OK && !run->stopped && i-- > 0;) {
        rc = find_page(run, i > 0 ? &marks->tasks[i - 1] : NULL, &count);
        if (rc == KL_OK)
            rc = handle_page(run, cut_page(run, count, &marks->tasks[i]));
    }
    return rc;
}

/* Forgetting needs no order, and what is forgotten is not shown again. */
static kl_rc handle_purged(struct run *run, struct marks *marks)
{
    size_t count = PAGE;
    kl_rc rc = KL_OK;
    for (const kl_task *after = NULL; rc == KL_OK && !run->stopped && count == PAGE;) {
        marks->count = 0;
        rc = find_page(run, after, &count);
        if (rc == KL_OK && count > 0)
            rc = add_mark(marks, &run->tasks[count - 1]);
        if (rc == KL_OK)
            rc = handle_page(run, count);
        after = marks->tasks;
    }
    return rc;
}

/* --- Runs --- */

static kl_finished filter_of(const kl_redrive *which)
{
    kl_finished filter = which->which;
    if (filter.state == KL_TASK_UNKNOWN)
        filter.state = KL_TASK_DEAD;
    return filter;
}

static kl_rc handle_source(struct run *run, kl__source source, int64_t began_ms)
{
    kl_finished filter = filter_of(run->which);
    struct marks marks = {0};
    if (filter.until_ms == 0 || filter.until_ms > began_ms + 1)
        filter.until_ms = began_ms + 1; /* R3 */
    run->source = source;
    run->find = kl__finished_find(&filter, source);
    kl_rc rc = run->action == PURGE ? handle_purged(run, &marks) : handle_marked(run, &marks);
    kl__free(marks.tasks);
    return rc;
}

/* All partitions of a queue, the oldest layout first: a key's letters there died before those in newer ones. */
static size_t list_sources(const kl__descriptor *descriptor, kl__source *sources)
{
    size_t count = 0;
    for (size_t i = 0; i < descriptor->layout_count; i++)
        for (uint32_t p = 0; p < descriptor->layouts[i].layout.partitions; p++, count++)
            if (sources)
                sources[count] = (kl__source){&descriptor->layouts[i], p};
    return count;
}

/* The time at which the run begins, on the clock of each partition's store. */
static kl_rc read_clocks(const kl__source *sources, size_t count, int64_t *ret_ms)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        bool same = i > 0 && kl__source_store(sources[i]) == kl__source_store(sources[i - 1]);
        uint32_t tries = 0;
        if (same) {
            ret_ms[i] = ret_ms[i - 1];
            continue;
        }
        do
            rc = kl_store_now(kl__source_store(sources[i]), &ret_ms[i]);
        while (kl__put_again(rc, tries++));
    }
    return rc;
}

static kl_rc handle_all(struct run *run, const kl__descriptor *descriptor)
{
    size_t count = list_sources(descriptor, NULL);
    kl__source *sources = kl__alloc_zeroed(count, sizeof *sources);
    int64_t *began_ms = kl__alloc_zeroed(count, sizeof *began_ms);
    kl_rc rc = sources && began_ms ? KL_OK : kl__fail_memory();
    if (rc == KL_OK) {
        list_sources(descriptor, sources);
        rc = read_clocks(sources, count, began_ms);
    }
    for (size_t i = 0; rc == KL_OK && !run->stopped && i < count; i++)
        rc = handle_source(run, sources[i], began_ms[i]);
    kl__free(sources);
    kl__free(began_ms);
    return rc;
}

static kl_rc handle_one(struct run *run, const kl__descriptor *descriptor)
{
    char id[KL_ID_TEXT_BYTES];
    kl_rc rc = kl__look_task(run->queue, descriptor, &run->which->id, &run->arena, &run->tasks[0], &run->source);
    if (rc != KL_OK)
        return rc;
    kl_id_print(&run->which->id, id);
    if (run->tasks[0].state != filter_of(run->which).state)
        return kl__fail(KL_ENOTFOUND, "the task %s is no dead letter of the queue %s: it %s", id, run->queue->name,
                        run->tasks[0].state == KL_TASK_WAITING ? "waits" : "is finished otherwise");
    return handle_page(run, 1);
}

static kl_rc check(const struct run *run, const kl_account *ret_account)
{
    if (!run->queue)
        return kl__refuse_no_queue();
    if (!run->which || !ret_account)
        return kl__fail(KL_EINVAL, "the kl_redrive or ret_account is NULL; pass both");
    if (run->which->rate < 0)
        return kl__fail(KL_EINVAL, "rate is %lld; write tasks per second, or 0 for as fast as it goes",
                        (long long)run->which->rate);
    if (run->action == MOVE && !run->which->to)
        return kl__fail(KL_EINVAL, "there is no queue to move to; set `to`");
    if (run->action == MOVE && run->which->to->store == run->queue->store &&
        strcmp(run->which->to->name, run->queue->name) == 0)
        return kl__fail(KL_EINVAL, "the letters are in the queue %s already; retry them, which puts them back",
                        run->queue->name);
    if (run->action != MOVE && run->which->to)
        return kl__fail(KL_EINVAL, "`to` is set, but nothing is moved; use kl_dead_move, or leave it NULL");
    return KL_OK;
}

static kl_rc redrive(kl_queue *queue, const kl_redrive *which, enum action action, kl_account *ret_account)
{
    struct run *run = kl__alloc_zeroed(1, sizeof *run);
    if (ret_account)
        *ret_account = (kl_account){0};
    if (!run)
        return kl__fail_memory();
    run->queue = queue;
    run->which = which;
    run->action = action;
    kl_rc rc = check(run, ret_account);
    if (rc != KL_OK) {
        kl__free(run);
        return rc;
    }
    run->to = action == MOVE ? which->to : queue;
    pthread_mutex_init(&run->mutex, NULL);
    kl__cond_init(&run->landed);
    rc = kl__queue_refresh(queue);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    if (rc == KL_OK)
        rc = kl__id_is_none(&which->id) ? handle_all(run, descriptor) : handle_one(run, descriptor);
    *ret_account = run->account; /* also of what was done before it failed */
    kl__descriptor_release(descriptor);
    pthread_cond_destroy(&run->landed);
    pthread_mutex_destroy(&run->mutex);
    kl_arena_free(&run->arena);
    kl__free(run);
    return rc;
}

kl_rc kl_dead_retry(kl_queue *queue, const kl_redrive *which, kl_account *ret_account)
{
    return redrive(queue, which, RETRY, ret_account);
}

kl_rc kl_dead_move(kl_queue *queue, const kl_redrive *which, kl_account *ret_account)
{
    return redrive(queue, which, MOVE, ret_account);
}

kl_rc kl_dead_purge(kl_queue *queue, const kl_redrive *which, kl_account *ret_account)
{
    return redrive(queue, which, PURGE, ret_account);
}
