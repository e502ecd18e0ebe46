/* values.c - the records of store.h: get, put, list.
 *
 * A put claims its names from the decision until it is applied, so a version is compared with one that nothing under
 * way can change. What is refused never reaches the journal. */
#include <string.h>

#include "base/compare.h"
#include "base/hash.h"
#include "store/disk/disk.h"

static kl_rc copy_record(const kl__held_record *held, kl_arena *arena, kl_record *ret_record)
{
    kl_record record = {.version = held->version, .expires_ms = held->expires_ms};
    if (!kl_arena_copy(arena, kl__held_name(held), &record.name) ||
        !kl_arena_copy(arena, kl__held_value(held), &record.value))
        return kl__fail_memory();
    *ret_record = record;
    return KL_OK;
}

kl_rc kl__disk_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    kl__disk *disk = self;
    int64_t now_ms = kl__disk_now(disk);
    kl_rc rc = KL_OK;
    pthread_mutex_lock(&disk->state.mutex);
    for (size_t i = 0; i < count && rc == KL_OK; i++) {
        const kl__held_record *held = kl__records_find(&disk->state.records, names[i]);
        ret_records[i] = (kl_record){.name = names[i]};
        if (held && !kl__held_expired(held, now_ms))
            rc = copy_record(held, arena, &ret_records[i]);
    }
    pthread_mutex_unlock(&disk->state.mutex);
    return rc;
}

static bool begins_with(kl_bytes name, kl_bytes prefix)
{
    return name.len >= prefix.len && (prefix.len == 0 || memcmp(name.data, prefix.data, prefix.len) == 0);
}

/* Who lists records wants to know how things are, above all a server that is asked whether it is ready: a store that
 * takes nothing more says so. */
kl_rc kl__disk_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                    size_t *ret_count)
{
    kl__disk *disk = self;
    const kl__records *records = &disk->state.records;
    int64_t now_ms = kl__disk_now(disk);
    kl_rc rc = kl__journal_check(disk->journal);
    size_t count = 0;
    bool from_prefix = after.len == 0 || kl__bytes_compare(after, prefix) < 0;
    pthread_mutex_lock(&disk->state.mutex);
    const kl__held_record *held = kl__records_after(records, from_prefix ? prefix : after, from_prefix);
    while (held && count < max && rc == KL_OK && begins_with(kl__held_name(held), prefix)) {
        if (!kl__held_expired(held, now_ms)) {
            rc = copy_record(held, arena, &ret_records[count]);
            count += rc == KL_OK;
        }
        held = kl__records_after(records, kl__held_name(held), false);
    }
    pthread_mutex_unlock(&disk->state.mutex);
    *ret_count = count;
    return rc;
}

/* ---- Put ---- */

static kl_rc fail_conflict(const kl_write *write, uint64_t version)
{
    int shown = write->name.len < 100 ? (int)write->name.len : 100;
    return kl__fail(KL_ECONFLICT,
                    "record '%.*s' has version %llu, and %llu was expected; read it again and decide anew", shown,
                    (const char *)write->name.data, (unsigned long long)version, (unsigned long long)write->version);
}

/* Sets rc and, when nothing has to be written, new_version. Returns whether it is to be written. */
static bool decide(const kl__disk *disk, kl_write *write, int64_t now_ms)
{
    const kl__held_record *held = kl__records_find(&disk->state.records, write->name);
    bool is_there = held && !kl__held_expired(held, now_ms);
    uint64_t version = is_there ? held->version : 0;
    write->rc = KL_OK;
    write->new_version = 0;
    if (write->remove && !is_there)
        return false;
    if (version == write->version)
        return true;
    if (!write->remove && is_there && held->expires_ms == write->expires_ms &&
        kl__bytes_equal(kl__held_value(held), write->value))
        write->new_version = version; /* the repeat of a write whose reply was lost */
    else
        write->rc = fail_conflict(write, version);
    return false;
}

static size_t write_bytes(const kl_write *write)
{
    return kl__round8(sizeof(kl__write_record) + write->name.len + (write->remove ? 0 : write->value.len));
}

static char *put_write(kl_write *write, uint64_t sequence, char *at, uint64_t *sum)
{
    kl__write_record *record = (kl__write_record *)(void *)at;
    *record = (kl__write_record){
        .header = {.sequence = sequence, .type = KL_RECORD_WRITE, .flags = write->remove ? KL_WRITE_REMOVE : 0},
        .version = sequence,
        .expires_ms = write->expires_ms,
        .name_bytes = (uint16_t)write->name.len,
        .value_bytes = write->remove ? 0 : (uint32_t)write->value.len,
    };
    char *end = (char *)(record + 1);
    memcpy(end, write->name.data, write->name.len);
    end += write->name.len;
    if (record->value_bytes)
        memcpy(end, write->value.data, record->value_bytes);
    end += record->value_bytes;
    *sum += kl__record_seal(&record->header, end);
    write->new_version = write->remove ? 0 : sequence;
    return at + record->header.bytes;
}

static kl_rc write_once(kl__disk *disk, kl_write *writes, size_t count, const bool *is_written, size_t bytes,
                        size_t accepted)
{
    kl__commit call = {.done = NULL};
    uint64_t sum = 0;
    kl_rc rc = kl__journal_reserve(disk->journal, bytes, accepted, &call);
    if (rc != KL_OK)
        return rc;
    char *at = call.bytes;
    uint64_t sequence = call.sequence;
    for (size_t i = 0; i < count; i++)
        if (is_written[i])
            at = put_write(&writes[i], sequence++, at, &sum);
    kl__journal_publish(disk->journal, &call, sum);
    return kl__journal_wait(disk->journal, &call);
}

static kl_rc write_all(kl__disk *disk, kl_write *writes, size_t count, const bool *is_written, size_t bytes,
                       size_t accepted)
{
    kl_rc rc = write_once(disk, writes, count, is_written, bytes, accepted);
    for (int i = 0; i < KL_FULL_TRIES && rc == KL_EFULL; i++)
        rc = write_once(disk, writes, count, is_written, bytes, accepted);
    return rc;
}

/* Writes of different names, all claimed. */
static kl_rc put_claimed(kl__disk *disk, kl_write *writes, size_t count, bool *is_written)
{
    int64_t now_ms = kl__disk_now(disk);
    size_t bytes = 0, accepted = 0;
    kl_rc first = KL_OK;
    pthread_mutex_lock(&disk->state.mutex);
    for (size_t i = 0; i < count; i++) {
        is_written[i] = decide(disk, &writes[i], now_ms);
        bytes += is_written[i] ? write_bytes(&writes[i]) : 0;
        accepted += is_written[i];
        if (first == KL_OK)
            first = writes[i].rc;
    }
    pthread_mutex_unlock(&disk->state.mutex);
    kl_rc written = accepted ? write_all(disk, writes, count, is_written, bytes, accepted) : KL_OK;
    if (written == KL_OK)
        return first;
    for (size_t i = 0; i < count; i++)
        if (is_written[i])
            writes[i].rc = written;
    return written;
}

/* What a put needs beside its arguments. */
typedef struct put_room {
    bool *is_written;
    uint64_t *seen;  /* hashes of names; 0: free */
    size_t capacity; /* of seen: a power of 2 */
} put_room;

static bool take_room(size_t count, put_room *ret_room)
{
    size_t capacity = 16;
    while (capacity < 2 * count)
        capacity *= 2;
    *ret_room =
        (put_room){kl__alloc_zeroed(count, sizeof(bool)), kl__alloc_zeroed(capacity, sizeof(uint64_t)), capacity};
    return ret_room->is_written && ret_room->seen;
}

static void free_room(put_room *room)
{
    kl__free(room->is_written);
    kl__free(room->seen);
}

/* False: it was there already. */
static bool see(put_room *room, uint64_t hash)
{
    size_t at = hash & (room->capacity - 1);
    while (room->seen[at] && room->seen[at] != hash)
        at = (at + 1) & (room->capacity - 1);
    bool is_new = room->seen[at] == 0;
    room->seen[at] = hash;
    return is_new;
}

/* How many of the writes, from the first on, have different names: one that comes again is decided after its first
 * write. */
static size_t distinct(const kl_write *writes, size_t count, put_room *room, kl__claims *ret_wanted)
{
    size_t i = 0;
    *ret_wanted = (kl__claims){{0}};
    memset(room->seen, 0, room->capacity * sizeof(*room->seen));
    for (; i < count; i++) {
        uint64_t hash = kl__hash_local(writes[i].name) | 1;
        if (!see(room, hash))
            break;
        kl__claim_add(ret_wanted, hash >> 8);
    }
    return i;
}

kl_rc kl__disk_put(void *self, kl_write *writes, size_t count)
{
    kl__disk *disk = self;
    kl_rc first = KL_OK;
    put_room room;
    if (!take_room(count, &room)) {
        free_room(&room);
        for (size_t i = 0; i < count; i++)
            writes[i].rc = KL_ENOMEM;
        return kl__fail_memory();
    }
    for (size_t done = 0, part; done < count; done += part) {
        kl__claims wanted;
        part = distinct(writes + done, count - done, &room, &wanted);
        pthread_mutex_lock(&disk->state.mutex);
        kl__claim(disk, &disk->claimed_values, &wanted);
        pthread_mutex_unlock(&disk->state.mutex);
        kl_rc rc = put_claimed(disk, writes + done, part, room.is_written);
        kl__unclaim(disk, &disk->claimed_values, &wanted);
        first = first == KL_OK ? rc : first;
    }
    free_room(&room);
    return first;
}
