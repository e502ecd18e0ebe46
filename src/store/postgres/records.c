/* records.c - small values with a version.
 *
 * A put of several records is one transaction, so it is there whole or not at all; but it is not repeated by itself
 * when its answer is lost, because writes of one name in one call are not recognised one by one (S5). */
#include <stdio.h>

#include "store/postgres/postgres.h"

enum { RECORD_AT, RECORD_NAME, RECORD_VALUE, RECORD_VERSION, RECORD_EXPIRES };
enum { PUT_AT, PUT_THERE, PUT_MADE, PUT_OK };

static bool take_record(const PGresult *rows, int row, kl_arena *arena, kl_record *ret_record)
{
    kl_record record = {.version = (uint64_t)kl__pg_get_int(rows, row, RECORD_VERSION),
                        .expires_ms = kl__pg_get_int(rows, row, RECORD_EXPIRES)};
    if (!kl_arena_copy(arena, kl__pg_get_bytes(rows, row, RECORD_NAME), &record.name) ||
        !kl_arena_copy(arena, kl__pg_get_bytes(rows, row, RECORD_VALUE), &record.value))
        return false;
    *ret_record = record;
    return true;
}

kl_rc kl__pg_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    bool copied = true;
    kl__pg_array(&args, KL_PG_BYTEA, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_bytes(&args, names[i]);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.get($1)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    for (size_t i = 0; i < count; i++)
        ret_records[i] = (kl_record){.name = {"", 0}, .value = {"", 0}};
    for (int row = 0; copied && row < PQntuples(rows); row++)
        copied = take_record(rows, row, arena, &ret_records[kl__pg_get_int(rows, row, RECORD_AT) - 1]);
    PQclear(rows);
    return copied ? KL_OK : kl__fail_memory();
}

/* --- List --- */

/* The first name that is behind all that begin with the prefix: its last byte that can be raised, raised. False: there
 * is none. */
static bool end_of(kl_bytes prefix, char ret_end[KL_RECORD_NAME_MAX], size_t *ret_len)
{
    size_t len = prefix.len;
    const unsigned char *bytes = prefix.data;
    while (len > 0 && bytes[len - 1] == 0xff)
        len--;
    if (len == 0)
        return false;
    memcpy(ret_end, bytes, len);
    ret_end[len - 1] = (char)(bytes[len - 1] + 1);
    *ret_len = len;
    return true;
}

kl_rc kl__pg_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    char end[KL_RECORD_NAME_MAX];
    size_t end_len = 0;
    bool copied = true;
    kl__pg_bytes(&args, prefix);
    if (end_of(prefix, end, &end_len))
        kl__pg_bytes(&args, (kl_bytes){end, end_len});
    else
        kl__pg_null(&args, KL_PG_BYTEA);
    if (after.len > 0)
        kl__pg_bytes(&args, after);
    else
        kl__pg_null(&args, KL_PG_BYTEA);
    kl__pg_int(&args, KL_PG_INT4, (int64_t)max);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.list($1,$2,$3,$4)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    int count = PQntuples(rows);
    for (int row = 0; copied && row < count; row++)
        copied = take_record(rows, row, arena, &ret_records[row]);
    PQclear(rows);
    if (!copied)
        return kl__fail_memory();
    *ret_count = (size_t)count;
    return KL_OK;
}

/* --- Put --- */

static void add_writes(kl__pg_args *args, const kl_write *writes, size_t count)
{
    kl__pg_array(args, KL_PG_BYTEA, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_bytes(args, writes[i].name);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, (int64_t)writes[i].version);
    kl__pg_array(args, KL_PG_BOOL, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_BOOL, writes[i].remove);
    kl__pg_array(args, KL_PG_BYTEA, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_bytes(args, writes[i].remove ? (kl_bytes){"", 0} : writes[i].value);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, writes[i].expires_ms);
    kl__pg_array(args, KL_PG_BOOL, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_BOOL, writes[i].quiet);
}

static kl_rc take_answers(const PGresult *rows, kl_write *writes)
{
    kl_rc first = KL_OK;
    for (int row = 0; row < PQntuples(rows); row++) {
        kl_write *write = &writes[row];
        bool ok = kl__pg_get_int(rows, row, PUT_OK) != 0;
        write->rc = ok ? KL_OK : KL_ECONFLICT;
        write->new_version = ok ? (uint64_t)kl__pg_get_int(rows, row, PUT_MADE) : 0;
        if (!ok && first == KL_OK)
            first = kl__fail(KL_ECONFLICT,
                             "write %d: the record '%.*s' is at version %lld, not %llu; read it again and decide anew",
                             row, (int)(write->name.len < 80 ? write->name.len : 80), (const char *)write->name.data,
                             (long long)kl__pg_get_int(rows, row, PUT_THERE), (unsigned long long)write->version);
    }
    return first;
}

kl_rc kl__pg_put(void *self, kl_write *writes, size_t count)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    add_writes(&args, writes, count);
    kl_rc rc =
        kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.put_records($1,$2,$3,$4,$5,$6)", &args, count == 1}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK) {
        for (size_t i = 0; i < count; i++)
            writes[i].rc = rc;
        return rc;
    }
    rc = take_answers(rows, writes);
    PQclear(rows);
    return rc;
}
