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

kl_rc kl__disk_read_record(kl__disk *disk, const kl__segment *segment, uint64_t offset, uint32_t bytes, kl_arena *arena,
                           const kl__record_header **ret_record)
{
    size_t got = 0;
    kl__record_header *record = kl_arena_alloc(arena, bytes);
    if (!record)
        return kl__fail_memory();
    int error = kl__vfs_read(disk->vfs, segment->file, record, bytes, offset, &got);
    if (error)
        return kl__fail(KL_ESYSTEM, "segment %016llx of the journal could not be read: %s",
                        (unsigned long long)segment->number, strerror(-error));
    if (got != bytes || record->bytes != bytes || record->crc != kl__record_crc(record))
        return kl__fail(KL_EDAMAGED,
                        "segment %016llx of the journal is damaged at byte %llu; `keyline doctor` on the data "
                        "directory says what is affected",
                        (unsigned long long)segment->number, (unsigned long long)offset);
    *ret_record = record;
    return KL_OK;
}

/* What is known of a waiting task in memory, and the segment where the rest is, held so that it is not dropped. NULL:
 * it is not waiting. */
static kl__segment *hold_waiting(kl__disk *disk, const kl_ref *ref, kl_task *task, uint64_t *ret_offset,
                                 uint32_t *ret_bytes)
{
    kl__state *state = &disk->state;
    kl__segment *segment = NULL;
    pthread_mutex_lock(&state->mutex);
    uint32_t number = kl__stubs_find(state->stubs, ref->place.partition, &ref->id);
    const kl__slot *slot = number == KL_SLOT_NONE ? NULL : kl__stubs_slot(state->stubs, number);
    if (slot && slot->shard == ref->place.shard) {
        kl__where where = kl__slot_where(state, slot);
        segment = kl__state_segment(state, where.segment);
        segment->readers++;
        *ret_offset = where.offset;
        *ret_bytes = kl__slot_record_bytes(slot);
        *task = (kl_task){.state = KL_TASK_WAITING,
                          .attempts = (uint32_t)slot->attempts,
                          .position = slot->position,
                          .not_before_ms = (int64_t)slot->due_ms};
    }
    pthread_mutex_unlock(&state->mutex);
    return segment;
}

static void let_go(kl__disk *disk, kl__segment *segment)
{
    pthread_mutex_lock(&disk->state.mutex);
    segment->readers--;
    bool wants_upkeep = kl__state_can_drop(&disk->state);
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

/* ret_task->state stays KL_TASK_UNKNOWN when it is not waiting. */
static kl_rc read_waiting(kl__disk *disk, const kl_ref *ref, kl_arena *arena, kl_task *ret_task)
{
    uint64_t offset = 0;
    uint32_t bytes = 0;
    const kl__record_header *record;
    kl_task task;
    kl__segment *segment = hold_waiting(disk, ref, &task, &offset, &bytes);
    if (!segment)
        return KL_OK;
    kl_rc rc = kl__disk_read_record(disk, segment, offset, bytes, arena, &record);
    let_go(disk, segment);
    if (rc == KL_OK && (record->type != KL_RECORD_ENTRY ||
                        memcmp(((const kl__entry_record *)record)->id, &ref->id, sizeof ref->id) != 0))
        rc = KL_EDAMAGED;
    if (rc == KL_EDAMAGED)
        return fail_damaged_task(&ref->id);
    if (rc == KL_OK) {
        kl__entry_decode((const kl__entry_record *)record, &task.entry);
        *ret_task = task;
    }
    return rc;
}

static uint64_t task_bytes(const kl_task *task)
{
    return task->entry.key.len + task->entry.kind.len + task->entry.headers.len + task->entry.payload.len +
           task->error.len + task->result.len;
}

/* Fills up with what history has, a few at a time. Tasks from the one on that would make it too much are left out. */
static kl_rc read_finished(kl__disk *disk, const kl_ref *refs, kl_arena *arena, kl_task *tasks, size_t *count)
{
    enum { PART = 16 };
    bool is_needed = false;
    for (size_t i = 0; i < *count; i++)
        is_needed |= tasks[i].state == KL_TASK_UNKNOWN;
    kl_rc rc = is_needed ? kl__keeper_catch_up(disk) : KL_OK;
    uint64_t bytes = 0;
    for (size_t at = 0; is_needed && rc == KL_OK && at < *count; at += PART) {
        size_t part = *count - at < PART ? *count - at : PART;
        rc = kl__history_read(disk->history, refs + at, part, arena, tasks + at);
        for (size_t i = at; i < at + part; i++) {
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
    size_t read = 0;
    for (; read < count && (read == 0 || bytes < KL_BATCH_BYTES_MAX); read++) {
        ret_tasks[read] = (kl_task){.entry = {.place = refs[read].place, .id = refs[read].id}};
        rc = read_waiting(disk, &refs[read], arena, &ret_tasks[read]);
        if (rc != KL_OK)
            break;
        bytes += task_bytes(&ret_tasks[read]);
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
