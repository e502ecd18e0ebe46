/* keep.c - the thread that carries settled tasks from the journal into history.
 *
 * What is to be kept waits in the state, in the order of the journal, and the bytes of it stay in their segments until
 * history has committed them (T3 of state.h). A transaction records the last SETTLE of which all is in history. After a
 * crash the journal is read from there: what was carried of the next one is carried again, and takes its own place. */
#include <stdio.h>
#include <string.h>

#include "base/wait.h"
#include "store/disk/disk.h"

enum { KEPT_MAX = 1 << 18 }; /* waiting for history: 18 MiB, or one call's more */
enum {
    BATCH_ROWS = 4096,
    BATCH_BYTES = 16 << 20,
    TRIM_ROWS = 10000,
    TRIMS = 30,
    RETRY_MS = 1000,
    HELD_MS = 20, /* how often is looked whether another program has the file */
    TRIM_MS = 1000
};

/* A batch on its way. */
struct batch {
    kl__kept *kept;
    kl__history_row *rows;
    kl_entry *entries;
    size_t count, capacity;
    uint64_t position; /* history's, when they are there */
    kl_arena arena;
    const kl__settle_record *settle; /* the last one read */
    kl__where settle_where;
};

static bool grow(struct batch *batch, size_t count)
{
    if (count <= batch->capacity)
        return true;
    kl__free(batch->kept);
    kl__free(batch->rows);
    kl__free(batch->entries);
    batch->kept = kl__alloc(count * sizeof(*batch->kept));
    batch->rows = kl__alloc(count * sizeof(*batch->rows));
    batch->entries = kl__alloc(count * sizeof(*batch->entries));
    batch->capacity = batch->kept && batch->rows && batch->entries ? count : 0;
    return batch->capacity != 0;
}

static void free_batch(struct batch *batch)
{
    kl__free(batch->kept);
    kl__free(batch->rows);
    kl__free(batch->entries);
    kl_arena_free(&batch->arena);
}

static const kl__kept *kept_at(const kl__state *state, size_t index)
{
    return &state->kept[(state->kept_first + index) % state->kept_capacity];
}

/* How many to take: up to about BATCH_ROWS or BATCH_BYTES. With the state's mutex held. */
static size_t choose(const kl__state *state)
{
    size_t bytes = 0, count = 0;
    for (; count < state->kept_count && count < BATCH_ROWS && bytes < BATCH_BYTES; count++) {
        const kl__kept *kept = kept_at(state, count);
        bool is_new = count == 0 || kept->sequence != kept_at(state, count - 1)->sequence;
        bytes += kept->entry_bytes + (is_new ? kept->settle_bytes : 0);
    }
    return count;
}

/* The last SETTLE of which nothing is left when the first `count` are taken. */
static uint64_t position_after(const kl__state *state, size_t count)
{
    uint64_t last = kept_at(state, count - 1)->sequence;
    if (count == state->kept_count || kept_at(state, count)->sequence != last)
        return last;
    for (size_t i = count; i > 0; i--)
        if (kept_at(state, i - 1)->sequence != last)
            return kept_at(state, i - 1)->sequence;
    return state->kept_sequence;
}

static kl_rc read_settle(kl__disk *disk, struct batch *batch, const kl__kept *kept)
{
    const kl__record_header *record;
    if (batch->settle && batch->settle_where.segment == kept->settle.segment &&
        batch->settle_where.offset == kept->settle.offset)
        return KL_OK;
    pthread_mutex_lock(&disk->state.mutex);
    kl__segment *segment = kl__state_segment(&disk->state, kept->settle.segment);
    pthread_mutex_unlock(&disk->state.mutex);
    kl_rc rc = kl__disk_read_record(disk, segment, kept->settle.offset, kept->settle_bytes, &batch->arena, &record);
    if (rc != KL_OK)
        return rc;
    batch->settle = (const void *)record;
    batch->settle_where = kept->settle;
    return KL_OK;
}

static kl_rc read_entry(kl__disk *disk, struct batch *batch, const kl__kept *kept, kl_entry *ret_entry)
{
    const kl__record_header *record;
    pthread_mutex_lock(&disk->state.mutex);
    kl__segment *segment = kl__state_segment(&disk->state, kept->entry.segment);
    pthread_mutex_unlock(&disk->state.mutex);
    kl_rc rc = kl__disk_read_record(disk, segment, kept->entry.offset, kept->entry_bytes, &batch->arena, &record);
    if (rc == KL_OK && record->flags & KL_ENTRY_LOST)
        return kl__fail(KL_EDAMAGED, "they were damaged in a segment that is now in quarantine/");
    if (rc == KL_OK)
        kl__entry_decode((const void *)record, ret_entry);
    return rc;
}

static void fill_row(const kl__disk *disk, const struct batch *batch, const kl__kept *kept, const kl_entry *entry,
                     kl__history_row *ret_row)
{
    kl__settled its;
    (void)kl__settled_read((const char *)batch->settle + kept->item, SIZE_MAX, &its); /* it was sound when it came */
    int64_t latest_ms = kept->now_ms + disk->history_ms_max;
    *ret_row = (kl__history_row){.entry = entry,
                                 .ahead = kept->sequence > batch->position,
                                 .outcome = (kl_outcome)its.item->outcome,
                                 .attempts = its.item->attempts,
                                 .finished_ms = kept->now_ms,
                                 .expires_ms = its.until_ms < latest_ms ? its.until_ms : latest_ms,
                                 .error = its.error,
                                 .result = its.result};
}

/* What came of a task whose own bytes are lost is kept, with a sentence in the place of an error. */
static void mark_lost(kl__disk *disk, kl__history_row *row)
{
    kl__segments_log(&disk->segments, KL_LOG_ERROR, "a finished task is kept without its key and payload: %s",
                     kl_error_text());
    if (row->error.len == 0)
        row->error = kl_str("its key, kind, headers and payload were damaged in the journal and are lost");
}

static kl_rc read_row(kl__disk *disk, struct batch *batch, size_t index)
{
    const kl__kept *kept = &batch->kept[index];
    kl_entry *entry = &batch->entries[index];
    kl_rc rc = read_settle(disk, batch, kept);
    if (rc != KL_OK)
        return rc;
    if (kept->entry_bytes)
        rc = read_entry(disk, batch, kept, entry);
    if (rc != KL_OK && rc != KL_EDAMAGED) /* what cannot be read just now is tried again, for however long */
        return rc;
    if (!kept->entry_bytes || rc != KL_OK) {
        *entry = (kl_entry){.place = {batch->settle->header.partition, batch->settle->header.shard}};
        memcpy(&entry->id, (const char *)batch->settle + kept->item, sizeof entry->id);
    }
    fill_row(disk, batch, kept, entry, &batch->rows[index]);
    if (rc != KL_OK)
        mark_lost(disk, &batch->rows[index]);
    return KL_OK;
}

/* Copies what is next, with the mutex held, to be read without it. */
static bool take(kl__disk *disk, struct batch *batch)
{
    kl_arena_reset(&batch->arena);
    batch->settle = NULL;
    batch->count = choose(&disk->state);
    if (!grow(batch, batch->count))
        return false;
    batch->position = position_after(&disk->state, batch->count);
    for (size_t i = 0; i < batch->count; i++)
        batch->kept[i] = *kept_at(&disk->state, i);
    return true;
}

/* Rows whose outcome is lost cannot be kept: that is said, and the others go on. */
static kl_rc read_rows(kl__disk *disk, struct batch *batch, size_t *ret_rows)
{
    size_t rows = 0;
    for (size_t i = 0; i < batch->count; i++) {
        kl_rc rc = read_row(disk, batch, i);
        if (rc == KL_EDAMAGED)
            kl__segments_log(&disk->segments, KL_LOG_ERROR, "a finished task is not kept: %s", kl_error_text());
        else if (rc != KL_OK)
            return rc;
        else
            batch->rows[rows++] = batch->rows[i];
    }
    *ret_rows = rows;
    return KL_OK;
}

static kl_rc carry(kl__disk *disk, struct batch *batch)
{
    size_t rows = 0;
    kl_rc rc = read_rows(disk, batch, &rows);
    if (rc == KL_OK)
        rc = kl__history_add(disk->history, batch->rows, rows, batch->position);
    atomic_store(&disk->state.history_commits, kl__history_commits(disk->history));
    return rc;
}

/* Called with the state's mutex held; lets go of it meanwhile. */
static void carry_next(kl__disk *disk, struct batch *batch)
{
    kl__state *state = &disk->state;
    kl_rc rc = KL_ENOMEM;
    if (take(disk, batch)) {
        pthread_mutex_unlock(&state->mutex);
        rc = carry(disk, batch);
        pthread_mutex_lock(&state->mutex);
    } else {
        (void)kl__fail_memory();
    }
    if (rc == KL_OK)
        kl__state_kept_done(state, batch->count, batch->position);
    bool is_news = rc != KL_OK && disk->keeper_rc == KL_OK;
    if (is_news)
        snprintf(disk->keeper_error, sizeof disk->keeper_error, "%s", kl_error_text());
    disk->keeper_rc = rc;
    pthread_cond_broadcast(&state->kept_changed);
    bool wants_upkeep = kl__segments_need_upkeep(&disk->segments);
    pthread_mutex_unlock(&state->mutex);
    if (is_news) /* the sentence changes on this thread only */
        kl__segments_log(&disk->segments, KL_LOG_ERROR, "history.db is behind and is tried again every second: %s",
                         disk->keeper_error);
    if (wants_upkeep)
        kl__segments_want_upkeep(&disk->segments);
    pthread_mutex_lock(&state->mutex);
}

/* Forgets some of what has expired or is too much. *ret_more: there may be more of it. */
static kl_rc trim_some(kl__disk *disk, bool hasty, bool *ret_more)
{
    size_t trimmed = 0;
    kl_rc rc = kl__history_trim(disk->history, kl__disk_now(disk), TRIM_ROWS, hasty, &trimmed);
    *ret_more = trimmed == TRIM_ROWS;
    if (rc == KL_OK)
        atomic_store(&disk->keeper_trims, *ret_more);
    return rc;
}

/* Not all at once: there may be tasks to carry. What fails is tried again in a while. */
static void trim(kl__disk *disk)
{
    bool more = true;
    for (int i = 0; i < TRIMS && more; i++)
        if (trim_some(disk, true, &more) != KL_OK)
            return;
}

static void *run_keeper(void *ctx)
{
    kl__disk *disk = ctx;
    kl__state *state = &disk->state;
    struct batch batch = {0};
    int64_t trim_at = kl__deadline_ns(TRIM_MS);
    pthread_mutex_lock(&state->mutex);
    while (!disk->keeper_stops || (state->kept_count && disk->keeper_rc == KL_OK)) {
        if (state->kept_count) {
            carry_next(disk, &batch);
            if (disk->keeper_rc != KL_OK && !disk->keeper_stops)
                kl__cond_wait(&state->kept_changed, &state->mutex, kl__deadline_ns(RETRY_MS));
        } else {
            kl__cond_wait(&state->kept_changed, &state->mutex, trim_at);
        }
        if (kl__monotonic_ns() < trim_at)
            continue;
        pthread_mutex_unlock(&state->mutex);
        trim(disk);
        trim_at = kl__deadline_ns(TRIM_MS);
        pthread_mutex_lock(&state->mutex);
    }
    pthread_mutex_unlock(&state->mutex);
    free_batch(&batch);
    return NULL;
}

kl_rc kl__keeper_start(kl__disk *disk)
{
    if (pthread_create(&disk->keeper, NULL, run_keeper, disk) != 0)
        return kl__fail(KL_ESYSTEM, "a thread could not be started; raise the limit of processes");
    disk->has_keeper = true;
    return KL_OK;
}

void kl__keeper_stop(kl__disk *disk)
{
    if (!disk->has_keeper)
        return;
    pthread_mutex_lock(&disk->state.mutex);
    disk->keeper_stops = true;
    pthread_cond_broadcast(&disk->state.kept_changed);
    pthread_mutex_unlock(&disk->state.mutex);
    pthread_join(disk->keeper, NULL);
    disk->has_keeper = false;
}

/* Waits for those that are there now; more may come meanwhile. Hasty: not for another program's transaction. */
static kl_rc await_kept(kl__disk *disk, bool hasty)
{
    kl__state *state = &disk->state;
    kl_rc rc = KL_OK;
    pthread_mutex_lock(&state->mutex);
    uint64_t sequence = state->kept_count ? kept_at(state, state->kept_count - 1)->sequence : 0;
    while (state->kept_sequence < sequence && disk->keeper_rc == KL_OK &&
           !(hasty && kl__history_is_held(disk->history)))
        kl__cond_wait(&state->kept_changed, &state->mutex, hasty ? kl__deadline_ns(HELD_MS) : KL_NEVER);
    if (state->kept_sequence < sequence && disk->keeper_rc == KL_OK)
        rc = kl__fail(KL_EBUSY, "another program is writing to history.db");
    else if (state->kept_sequence < sequence)
        rc = kl__fail(disk->keeper_rc == KL_ESYSTEM ? KL_EBUSY : disk->keeper_rc,
                      "history.db cannot be written just now, so finished tasks cannot be shown: %s",
                      disk->keeper_error);
    pthread_mutex_unlock(&state->mutex);
    return rc;
}

static size_t fill_note(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum)
{
    kl__state *state = &((kl__disk *)ctx)->state;
    pthread_mutex_lock(&state->mutex);
    *ret_sum = kl__put_note(bytes, sequence, atomic_load(&state->history_commits),
                            kl__state_first_needed(state, state->described));
    pthread_mutex_unlock(&state->mutex);
    *ret_bytes = sizeof(kl__record_header);
    return 1;
}

kl_rc kl__keeper_note(kl__disk *disk, bool always)
{
    uint64_t commits = atomic_load(&disk->state.history_commits);
    pthread_mutex_lock(&disk->state.mutex);
    bool is_known = disk->state.history_noted >= commits;
    pthread_mutex_unlock(&disk->state.mutex);
    if (is_known && !always)
        return kl__journal_check(disk->journal);
    return kl__journal_exclusive(disk->journal, fill_note, disk);
}

kl_rc kl__keeper_make_room(kl__disk *disk)
{
    while (disk->state.kept_count >= KEPT_MAX && disk->keeper_rc == KL_OK)
        kl__cond_wait(&disk->state.kept_changed, &disk->state.mutex, KL_NEVER);
    if (disk->state.kept_count < KEPT_MAX)
        return KL_OK;
    return kl__fail(KL_EFULL,
                    "history.db cannot be written, and too many finished tasks wait for it: %s; see to it, or "
                    "settle without keeping",
                    disk->keeper_error);
}

kl_rc kl__keeper_catch_up(kl__disk *disk)
{
    bool more = true;
    kl_rc rc = await_kept(disk, false);
    while (rc == KL_OK && more)
        rc = trim_some(disk, false, &more);
    return rc;
}

/* To forget all that has expired while the store was closed may take minutes, and workers ask for counts before they
 * look for tasks. */
bool kl__keeper_is_behind(kl__disk *disk)
{
    bool more = atomic_load(&disk->keeper_trims);
    return more || await_kept(disk, true) != KL_OK || trim_some(disk, true, &more) != KL_OK || more;
}
