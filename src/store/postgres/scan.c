/* scan.c - what waits: parts of lines as stubs, and how many there are. */
#include "base/hash.h"
#include "keyline/layout.h"
#include "store/postgres/postgres.h"

static int line_number(int32_t line)
{
    return line == KL_LINE_DUE ? KL_PG_DUE : line == KL_LINE_RETRY ? KL_PG_RETRY : line - KL_PRIORITY_MIN;
}

/* --- Scan --- */

static void add_asked(kl__pg_args *args, const kl_scan *scans, size_t count)
{
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, scans[i].place.partition);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, scans[i].place.shard);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, line_number(scans[i].line));
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, scans[i].after ? (int64_t)scans[i].after->position : 0);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, scans[i].after ? scans[i].after->due_ms : 0);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, scans[i].until_ms);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, (int64_t)scans[i].max);
}

enum { SCAN_AT, SCAN_ID, SCAN_POSITION, SCAN_DUE, SCAN_BYTES, SCAN_ATTEMPTS, SCAN_GROUP, SCAN_PRIORITY, SCAN_KEY };

static kl_stub stub_of(const PGresult *rows, int row)
{
    return (kl_stub){
        .id = kl__pg_get_id(rows, row, SCAN_ID),
        .position = (uint64_t)kl__pg_get_int(rows, row, SCAN_POSITION),
        .key_hash = kl__key_hash(kl__pg_get_bytes(rows, row, SCAN_KEY)),
        .due_ms = kl__pg_get_int(rows, row, SCAN_DUE),
        .bytes = (uint32_t)kl__pg_get_int(rows, row, SCAN_BYTES),
        .attempts = (uint16_t)kl__pg_get_int(rows, row, SCAN_ATTEMPTS),
        .group = (uint16_t)kl__pg_get_int(rows, row, SCAN_GROUP),
        .priority = (int8_t)kl__pg_get_int(rows, row, SCAN_PRIORITY),
    };
}

kl_rc kl__pg_scan(void *self, kl_scan *scans, size_t count)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    add_asked(&args, scans, count);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.scan($1,$2,$3,$4,$5,$6,$7)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    for (size_t i = 0; i < count; i++)
        scans[i].count = 0;
    for (int row = 0; row < PQntuples(rows); row++) {
        kl_scan *scan = &scans[kl__pg_get_int(rows, row, SCAN_AT) - 1];
        KL_ASSERT(scan->count < scan->max);
        scan->stubs[scan->count++] = stub_of(rows, row);
    }
    PQclear(rows);
    return KL_OK;
}

/* --- Counts --- */

enum { READY, DUE, RETRY, PRIORITIES, FIRSTS, PREFIX_LEN, DONE, DEAD, CANCELLED };

/* The oldest of those that stand first in a ready line. */
static int64_t oldest_of(const PGresult *rows)
{
    kl_layout layout = {1, (uint32_t)kl__pg_get_int(rows, 0, PREFIX_LEN)};
    kl_bytes rest = kl__pg_get_elements(rows, 0, FIRSTS);
    int64_t oldest_ms = 0;
    for (size_t left = kl__pg_get_length(rows, 0, FIRSTS); left > 0; left--) {
        kl_task_id id = {{0}};
        kl_bytes element = kl__pg_next_element(&rest);
        memcpy(&id, element.data, element.len < sizeof id ? element.len : sizeof id);
        int64_t ms = kl_id_ms(&layout, &id);
        if (oldest_ms == 0 || ms < oldest_ms)
            oldest_ms = ms;
    }
    return oldest_ms;
}

static kl_rc count_job(kl__pg *pg, uint32_t partition, const kl_task_id *job, kl_counts *ret_counts)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_int(&args, KL_PG_INT4, partition);
    kl__pg_uuid(&args, job);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT * FROM $S.counts_of_job($1,$2)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    *ret_counts = (kl_counts){.done = (uint64_t)kl__pg_get_int(rows, 0, 0),
                              .dead = (uint64_t)kl__pg_get_int(rows, 0, 1),
                              .cancelled = (uint64_t)kl__pg_get_int(rows, 0, 2)};
    PQclear(rows);
    return KL_OK;
}

kl_rc kl__pg_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    enum { LAST_SHARD = 0xffff };
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    bool all = place.shard == KL_ALL_SHARDS;
    if (job)
        return count_job(self, place.partition, job, ret_counts);
    kl__pg_int(&args, KL_PG_INT4, place.partition);
    kl__pg_int(&args, KL_PG_INT4, all ? 0 : place.shard);
    kl__pg_int(&args, KL_PG_INT4, all ? LAST_SHARD : place.shard);
    kl__pg_int(&args, KL_PG_BOOL, all);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.counts($1,$2,$3,$4)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    *ret_counts = (kl_counts){.ready = (uint64_t)kl__pg_get_int(rows, 0, READY),
                              .due = (uint64_t)kl__pg_get_int(rows, 0, DUE),
                              .retry = (uint64_t)kl__pg_get_int(rows, 0, RETRY),
                              .priorities = (uint32_t)kl__pg_get_int(rows, 0, PRIORITIES),
                              .oldest_id_ms = oldest_of(rows),
                              .done = (uint64_t)kl__pg_get_int(rows, 0, DONE),
                              .dead = (uint64_t)kl__pg_get_int(rows, 0, DEAD),
                              .cancelled = (uint64_t)kl__pg_get_int(rows, 0, CANCELLED)};
    PQclear(rows);
    return KL_OK;
}
