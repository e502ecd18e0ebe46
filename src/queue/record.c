/* record.c - one record at a time: see record.h.
 *
 * From: every file of the queue that has a record.  To: the store. */
#include "queue/record.h"

#include <stdio.h>

#include "queue/put.h"

enum { CLEAR_MAX = 256 /* records removed at once */ };

kl_bytes kl__record_name(char *buffer, size_t size, const char *kind, const char *queue, const char *suffix)
{
    int length = snprintf(buffer, size, "%s/%s%s%s", kind, queue, suffix ? "/" : "", suffix ? suffix : "");
    KL_ASSERT(length > 0 && (size_t)length < size && length <= KL_RECORD_NAME_MAX);
    return (kl_bytes){buffer, (size_t)length};
}

kl_rc kl__record_get(kl_store *store, kl_bytes name, kl_arena *arena, kl_record *ret_record)
{
    kl_record record;
    kl_rc rc;
    KL_ASK(rc, kl_store_get(store, &name, 1, arena, &record));
    if (rc == KL_OK && !kl_arena_copy(arena, name, &record.name))
        rc = kl__fail_memory();
    if (rc == KL_OK)
        *ret_record = record;
    return rc;
}

kl_rc kl__record_read(kl_store *store, kl_bytes name, kl_arena *arena, kl__json *ret_value, kl_record *ret_record)
{
    kl_rc rc = kl__record_get(store, name, arena, ret_record);
    if (rc != KL_OK)
        return rc;
    return ret_record->version == 0 ? KL_ENOTFOUND
                                    : kl__json_parse(ret_record->value, ret_record->name.data, ret_value);
}

static kl_rc write_one(kl_store *store, kl_write *write, uint64_t *ret_version)
{
    kl_rc rc;
    KL_ASK(rc, kl_store_put(store, write, 1));
    if (rc == KL_OK && ret_version)
        *ret_version = write->new_version;
    return rc;
}

kl_rc kl__record_put(kl_store *store, kl_bytes name, uint64_t version, kl_bytes value, int64_t expires_ms,
                     uint64_t *ret_version)
{
    kl_write write = {.name = name, .version = version, .value = value, .expires_ms = expires_ms};
    return write_one(store, &write, ret_version);
}

kl_rc kl__record_write(kl_store *store, kl_bytes name, uint64_t version, const json_t *value, int64_t expires_ms,
                       uint64_t *ret_version)
{
    kl_arena arena = {0};
    kl_bytes text;
    kl_rc rc = kl__json_print(value, &arena, &text);
    if (rc == KL_OK)
        rc = kl__record_put(store, name, version, text, expires_ms, ret_version);
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl__record_remove(kl_store *store, kl_bytes name, uint64_t version)
{
    kl_write write = {.name = name, .version = version, .remove = true};
    return write_one(store, &write, NULL);
}

/* A record that somebody writes meanwhile is met again by the next listing from the first. */
static kl_rc clear_some(kl_store *store, const kl_record *records, size_t count)
{
    kl_write writes[CLEAR_MAX];
    for (size_t i = 0; i < count; i++)
        writes[i] = (kl_write){.name = records[i].name, .version = records[i].version, .remove = true};
    kl_rc rc = kl_store_put(store, writes, count);
    return rc == KL_ECONFLICT ? KL_OK : rc;
}

kl_rc kl__records_clear(kl_store *store, kl_bytes prefix)
{
    kl_record records[CLEAR_MAX];
    kl_arena arena = {0};
    size_t count;
    kl_rc rc;
    do {
        kl_arena_reset(&arena);
        rc = kl_store_list(store, prefix, (kl_bytes){"", 0}, CLEAR_MAX, &arena, records, &count);
        if (rc == KL_OK && count > 0)
            rc = clear_some(store, records, count);
    } while (rc == KL_OK && count > 0);
    kl_arena_free(&arena);
    return rc;
}
