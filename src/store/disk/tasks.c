/* tasks.c - reads tasks back: from the journal while they wait, from history when they are finished. */
#include <string.h>

#include "store/disk/disk.h"

void kl__entry_decode(const kl__entry_record *record, kl_entry *ret_entry)
{
    const char *at = (const char *)(record + 1);
    kl_entry entry = {.place = {record->header.partition, record->header.shard},
                      .priority = kl__entry_priority(record),
                      .group = (uint16_t)record->header.epoch};
    memcpy(&entry.id, record->id, sizeof entry.id);
    if (record->header.flags & KL_ENTRY_DUE) {
        memcpy(&entry.due_ms, at, 8);
        at += 8;
    }
    if (record->header.flags & KL_ENTRY_JOB) {
        memcpy(&entry.job, at, 16);
        at += 16;
    }
    if (record->header.flags & KL_ENTRY_TRIED)
        at += 16;
    entry.key = (kl_bytes){at, record->key_bytes};
    entry.kind = (kl_bytes){at + entry.key.len, record->header.small[1]};
    entry.headers = (kl_bytes){at + entry.key.len + entry.kind.len, record->headers_bytes};
    entry.payload = (kl_bytes){at + entry.key.len + entry.kind.len + entry.headers.len, record->payload_bytes};
    *ret_entry = entry;
}

static bool is_sound(const kl__record_header *record, uint32_t bytes)
{
    return record->bytes == bytes && record->crc == kl__record_crc(record);
}

/* The segment is held by a reader or a pin. When nothing in it is needed any more, its file is put aside. */
static kl_rc fail_damaged(kl__disk *disk, kl__segment *segment, uint64_t offset)
{
    pthread_mutex_lock(&disk->state.mutex);
    segment->is_damaged = true;
    pthread_mutex_unlock(&disk->state.mutex);
    return kl__fail(KL_EDAMAGED,
                    "segment %016llx of the journal is damaged at byte %llu; `keyline doctor` on the data "
                    "directory says what is affected",
                    (unsigned long long)segment->number, (unsigned long long)offset);
}

static kl_rc read_record(kl__disk *disk, kl__segment *segment, uint64_t offset, uint32_t bytes,
                         kl__record_header *ret_record)
{
    size_t got = 0;
    int error = kl__vfs_read(disk->vfs, segment->file, ret_record, bytes, offset, &got);
    if (error)
        return kl__fail(KL_ESYSTEM, "segment %016llx of the journal could not be read: %s",
                        (unsigned long long)segment->number, strerror(-error));
    if (got != bytes || !is_sound(ret_record, bytes))
        return fail_damaged(disk, segment, offset);
    return KL_OK;
}

kl_rc kl__disk_read_record(kl__disk *disk, kl__segment *segment, uint64_t offset, uint32_t bytes, kl_arena *arena,
                           const kl__record_header **ret_record)
{
    kl__record_header *record = kl_arena_alloc(arena, bytes);
    kl_rc rc = record ? read_record(disk, segment, offset, bytes, record) : kl__fail_memory();
    if (rc == KL_OK)
        *ret_record = record;
    return rc;
}

/* ---- Waiting tasks, some at a time ---- */

enum { PART = 64 }; /* tasks looked up at once, with the state's mutex held */

/* A waiting task that is being read. */
struct reading {
    kl__record_header *record; /* NULL: it does not wait */
    kl__segment *segment; /* where it is to be read from, held so that it is not dropped; NULL: it is here already */
    kl__where where;
    uint32_t bytes;
};

/* What memory knows of a task, without its bytes. KL_EFULL: those are more than `room`. */
static kl_rc find_waiting(kl__state *state, const kl_ref *ref, uint64_t room, kl_arena *arena, struct reading *reading,
                          kl_task *task)
{
    uint32_t number = kl__stubs_find(state->stubs, ref->place.partition, &ref->id);
    const kl__slot *slot = number == KL_SLOT_NONE ? NULL : kl__stubs_slot(state->stubs, number);
    *reading = (struct reading){.record = NULL};
    if (!slot || slot->shard != ref->place.shard)
        return KL_OK;
    reading->where = kl__slot_where(state, slot);
    reading->bytes = kl__slot_record_bytes(slot);
    if (reading->bytes > room)
        return KL_EFULL;
    task->attempts = (uint32_t)slot->attempts;
    task->position = slot->position;
    task->not_before_ms = (int64_t)slot->due_ms;
    if (!(reading->record = kl_arena_alloc(arena, reading->bytes)))
        return kl__fail_memory();
    kl__recent_prefetch(state->recent, reading->where.segment, reading->where.offset, reading->bytes);
    return KL_OK;
}

/* Its bytes if it came not long ago, else the segment that has them. */
static void find_bytes(kl__state *state, struct reading *reading)
{
    kl__where where = reading->where;
    if (!reading->record ||
        kl__recent_copy(state->recent, where.segment, where.offset, reading->record, reading->bytes))
        return;
    reading->segment = kl__state_segment(state, where.segment);
    reading->segment->readers++;
}

/* *ret_count: how many, before one that `room` is too small for. */
static kl_rc find_part(kl__disk *disk, const kl_ref *refs, size_t count, uint64_t room, kl_arena *arena,
                       struct reading *readings, kl_task *tasks, size_t *ret_count)
{
    kl__state *state = &disk->state;
    kl_rc rc = KL_OK;
    size_t found = 0;
    uint64_t bytes = 0;
    pthread_mutex_lock(&state->mutex);
    for (size_t i = 0; i < count; i++)
        kl__stubs_prefetch(state->stubs, &refs[i].id);
    for (size_t i = 0; i < count; i++)
        kl__stubs_prefetch_slot(state->stubs, &refs[i].id);
    for (; found < count; found++) {
        tasks[found] = (kl_task){.entry = {.place = refs[found].place, .id = refs[found].id}};
        rc = find_waiting(state, &refs[found], room - bytes, arena, &readings[found], &tasks[found]);
        if (rc != KL_OK)
            break;
        bytes += readings[found].bytes;
    }
    for (size_t i = 0; i < found; i++)
        find_bytes(state, &readings[i]);
    pthread_mutex_unlock(&state->mutex);
    *ret_count = found;
    return rc == KL_EFULL ? KL_OK : rc;
}

static void let_go(kl__disk *disk, const struct reading *readings, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any |= readings[i].segment != NULL;
    if (!any)
        return;
    pthread_mutex_lock(&disk->state.mutex);
    for (size_t i = 0; i < count; i++)
        if (readings[i].segment)
            readings[i].segment->readers--;
    bool wants_upkeep = kl__segments_need_upkeep(&disk->segments);
    pthread_mutex_unlock(&disk->state.mutex);
    if (wants_upkeep)
        kl__segments_want_upkeep(&disk->segments);
}

static kl_rc fail_damaged_task(const kl_task_id *id)
{
    char text[KL_ID_TEXT_BYTES];
    kl_id_print(id, text);
    return kl__fail(KL_EDAMAGED,
                    "task %s: its bytes in the journal are damaged; `keyline doctor` on the data directory says "
                    "what else is",
                    text);
}

static kl_rc fail_lost_task(const kl_task_id *id)
{
    char text[KL_ID_TEXT_BYTES];
    kl_id_print(id, text);
    return kl__fail(KL_EDAMAGED,
                    "task %s: its key and payload were damaged in the journal, in a segment that is now in quarantine/ "
                    "of the data directory; cancel the task, or settle it",
                    text);
}

static bool same_block(const struct reading *a, const struct reading *b)
{
    return a->segment && a->segment == b->segment &&
           a->where.offset / KL_BLOCK_BYTES == b->where.offset / KL_BLOCK_BYTES;
}

/* Is more of its block wanted than this one? Tasks of a shard are mostly asked for in the order in which they stand. */
static bool has_neighbour(const struct reading *readings, size_t count, size_t i)
{
    return (i > 0 && same_block(&readings[i], &readings[i - 1])) ||
           (i + 1 < count && same_block(&readings[i], &readings[i + 1]));
}

static kl_rc read_bytes(kl__disk *disk, const struct reading *reading, bool load)
{
    uint64_t offset = reading->where.offset;
    if (kl__blocks_copy(disk->blocks, disk->vfs, reading->segment, offset, reading->bytes, load, reading->record) &&
        is_sound(reading->record, reading->bytes))
        return KL_OK;
    return read_record(disk, reading->segment, offset, reading->bytes, reading->record);
}

/* What was found is read where it must be, with its block if `load` says so, and taken apart. */
static kl_rc read_waiting(kl__disk *disk, const kl_ref *ref, const struct reading *reading, bool load, kl_task *task)
{
    kl_rc rc = reading->segment ? read_bytes(disk, reading, load) : KL_OK;
    const kl__entry_record *entry = (const kl__entry_record *)reading->record;
    if (rc == KL_OK && (reading->record->type != KL_RECORD_ENTRY || memcmp(entry->id, &ref->id, sizeof ref->id) != 0))
        rc = KL_EDAMAGED;
    if (rc == KL_EDAMAGED)
        return fail_damaged_task(&ref->id);
    if (rc == KL_OK && entry->header.flags & KL_ENTRY_LOST)
        return fail_lost_task(&ref->id);
    if (rc == KL_OK) {
        kl__entry_decode(entry, &task->entry);
        task->state = KL_TASK_WAITING;
    }
    return rc;
}

/* Tasks that do not wait keep the state KL_TASK_UNKNOWN. *ret_count: how many there are before one that fails. */
static kl_rc read_part(kl__disk *disk, const kl_ref *refs, size_t count, uint64_t room, kl_arena *arena,
                       kl_task *ret_tasks, size_t *ret_count)
{
    struct reading readings[PART];
    size_t found = 0, read = 0;
    kl_rc found_rc = find_part(disk, refs, count < PART ? count : PART, room, arena, readings, ret_tasks, &found);
    kl_rc rc = KL_OK;
    while (read < found && rc == KL_OK) {
        if (readings[read].record)
            rc = read_waiting(disk, &refs[read], &readings[read], has_neighbour(readings, found, read),
                              &ret_tasks[read]);
        read += rc == KL_OK;
    }
    let_go(disk, readings, found);
    *ret_count = read;
    return rc == KL_OK ? found_rc : rc;
}

static uint64_t task_bytes(const kl_task *task)
{
    return task->entry.key.len + task->entry.kind.len + task->entry.headers.len + task->entry.payload.len +
           task->error.len + task->result.len;
}

/* Fills up with what history has, a few at a time. Tasks from the one on that would make it too much are left out, and
 * those from the first that cannot be told. */
static kl_rc read_finished(kl__disk *disk, const kl_ref *refs, kl_arena *arena, kl_task *tasks, size_t *count)
{
    enum { SOME = 16 };
    size_t first = 0;
    while (first < *count && tasks[first].state != KL_TASK_UNKNOWN)
        first++;
    bool is_needed = first < *count;
    kl_rc rc = is_needed ? kl__keeper_catch_up(disk) : KL_OK;
    uint64_t bytes = 0;
    if (rc != KL_OK)
        *count = first;
    for (size_t at = 0; is_needed && rc == KL_OK && at < *count; at += SOME) {
        size_t part = *count - at < SOME ? *count - at : SOME;
        size_t read;
        rc = kl__history_read(disk->history, refs + at, part, arena, tasks + at, &read);
        if (rc != KL_OK)
            *count = at + read;
        for (size_t i = at; i < at + read; i++) {
            bytes += task_bytes(&tasks[i]);
            if (bytes > KL_BATCH_BYTES_MAX && i > 0 && rc == KL_OK) {
                *count = i;
                return KL_OK;
            }
        }
    }
    return rc;
}

kl_rc kl__disk_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                    size_t *ret_count)
{
    kl__disk *disk = self;
    uint64_t bytes = 0;
    kl_rc rc = KL_OK;
    size_t read = 0, part = 1; /* none: the next does not fit */
    while (rc == KL_OK && read < count && part > 0) {
        rc = read_part(disk, refs + read, count - read, KL_BATCH_BYTES_MAX - bytes, arena, ret_tasks + read, &part);
        for (size_t i = 0; i < part; i++)
            bytes += task_bytes(&ret_tasks[read++]);
    }
    if (rc != KL_OK && rc != KL_EDAMAGED)
        return rc;
    *ret_count = read;
    kl_rc finished = read_finished(disk, refs, arena, ret_tasks, ret_count);
    return finished != KL_OK ? finished : *ret_count == read ? rc : KL_OK;
}

kl_rc kl__disk_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                       kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl__disk *disk = self;
    kl_rc rc = kl__keeper_catch_up(disk);
    return rc == KL_OK ? kl__history_results(disk->history, place, job, after, max, arena, ret_tasks, ret_count) : rc;
}

kl_rc kl__disk_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl__disk *disk = self;
    kl_rc rc = kl__keeper_catch_up(disk);
    return rc == KL_OK ? kl__history_find(disk->history, find, arena, ret_tasks, ret_count) : rc;
}

kl_rc kl__disk_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    kl__disk *disk = self;
    kl_rc rc = kl__keeper_catch_up(disk);
    if (rc == KL_OK)
        rc = kl__history_forget(disk->history, place, ids, count);
    if (rc != KL_OK)
        return rc;
    atomic_store(&disk->state.history_commits, kl__history_commits(disk->history));
    return kl__keeper_note(disk, false);
}
