/* scan.c - what waits: parts of lines as stubs, and how many there are.
 *
 * The server shows rows, which have one task or many (sql_tables.c); here they are taken apart. A line is asked for as
 * many rows as are likely to have the tasks that are wanted; where those turn out to be too few, it is asked for
 * more. */
#include <stdlib.h>

#include "base/hash.h"
#include "keyline/layout.h"
#include "store/postgres/seen.h"

static int line_number(int32_t line)
{
    return line == KL_LINE_DUE ? KL_PG_DUE : line == KL_LINE_RETRY ? KL_PG_RETRY : line - KL_PRIORITY_MIN;
}

/* --- Asking --- */

/* A scan that is under way. */
struct part {
    kl_scan *scan;
    uint64_t after; /* behind the last task that was passed */
    int64_t due_ms;
    size_t rows; /* asked for */
    size_t shown;
    bool ended;
};

static size_t rows_wanted(const kl__pg *pg, const struct part *part)
{
    uint32_t each = atomic_load(&pg->row_tasks);
    bool single = part->scan->line == KL_LINE_DUE || part->scan->line == KL_LINE_RETRY;
    size_t wanted = part->scan->max - part->scan->count;
    return single ? wanted : wanted / (each > 0 ? each : 1) + 1;
}

static void add_asked(kl__pg_args *args, struct part *const *parts, size_t count)
{
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, parts[i]->scan->place.partition);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, parts[i]->scan->place.shard);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, line_number(parts[i]->scan->line));
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, (int64_t)parts[i]->after);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, parts[i]->due_ms);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, parts[i]->scan->until_ms);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, (int64_t)parts[i]->rows);
}

static kl_rc ask_rows(kl__pg *pg, struct part *const *parts, size_t count, PGresult **ret_rows)
{
    kl__pg_args args = {0};
    for (size_t i = 0; i < count; i++) {
        parts[i]->rows = rows_wanted(pg, parts[i]);
        parts[i]->shown = 0;
    }
    add_asked(&args, parts, count);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT * FROM $S.scan($1,$2,$3,$4,$5,$6,$7)", &args, true}, ret_rows);
    kl__pg_args_free(&args);
    return rc;
}

/* --- Taking rows apart --- */

/* A row whose tasks are taken one by one. */
struct walk {
    kl_bytes tasks, groups, hidden;
    size_t number, hidden_count;
    uint64_t base; /* of positions */
    int64_t bytes; /* of a task that was cut; else -1 */
};

static struct walk walk_of(const PGresult *rows, int row)
{
    bool cut = !PQgetisnull(rows, row, KL_PG_SHOWN_BYTES);
    return (struct walk){
        .tasks = kl__pg_get_bytes(rows, row, KL_PG_SHOWN_TASKS),
        .groups = kl__pg_get_elements(rows, row, KL_PG_SHOWN_GROUPS),
        .hidden = kl__pg_get_elements(rows, row, KL_PG_SHOWN_HIDDEN),
        .number = (size_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_NUMBER),
        .hidden_count = kl__pg_get_length(rows, row, KL_PG_SHOWN_HIDDEN),
        .base = (uint64_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_LAST) & ~UINT64_C(0xff00),
        .bytes = cut ? kl__pg_get_int(rows, row, KL_PG_SHOWN_BYTES) : -1,
    };
}

static bool is_hidden(const struct walk *walk, uint64_t position)
{
    kl_bytes rest = walk->hidden;
    for (size_t i = 0; i < walk->hidden_count; i++) {
        const unsigned char *digits = kl__pg_next_element(&rest).data;
        uint64_t one = 0;
        for (int d = 0; d < 8; d++)
            one = one << 8 | digits[d];
        if (one == position)
            return true;
    }
    return false;
}

/* Number `at` of the row, as a stub without what the row says of all of its tasks. False: the row is damaged. */
static bool next_stub(struct walk *walk, size_t at, kl_stub *ret_stub)
{
    kl__pg_packed packed;
    if (!kl__pg_unpack(walk->tasks, walk->number, at, &packed) || (packed.cut && walk->bytes < 0))
        return false;
    kl_bytes group = walk->groups.len > 0 ? kl__pg_next_element(&walk->groups) : (kl_bytes){"", 0};
    const unsigned char *digits = group.data;
    *ret_stub = (kl_stub){
        .id = packed.id,
        .position = walk->base + ((uint64_t)packed.at << 8),
        .key_hash = kl__key_hash(packed.key),
        .bytes = walk->bytes < 0 ? (uint32_t)packed.bytes : (uint32_t)walk->bytes,
        .group = group.len == 2 ? (uint16_t)(digits[0] << 8 | digits[1]) : 0,
    };
    return true;
}

static kl_rc refuse_row(const kl__pg *pg, const PGresult *rows, int row, kl_place place)
{
    return kl__fail(
        KL_EDAMAGED,
        "shard %u of partition %u has a row of %s.entries whose lengths do not fit its bytes (last = %lld); "
        "restore it, or delete it with the tasks in it",
        place.shard, place.partition, pg->schema, (long long)kl__pg_get_int(rows, row, KL_PG_SHOWN_LAST));
}

static kl_rc take_row(kl__pg *pg, kl__pg_shown *shown, const PGresult *rows, int row, struct part *part)
{
    kl_scan *scan = part->scan;
    struct walk walk = walk_of(rows, row);
    int32_t line = scan->line;
    bool ready = line != KL_LINE_DUE && line != KL_LINE_RETRY;
    uint64_t after = part->after;
    part->shown++;
    for (size_t at = 0; at < walk.number && scan->count < scan->max; at++) {
        kl_stub stub;
        if (!next_stub(&walk, at, &stub))
            return refuse_row(pg, rows, row, scan->place);
        if ((ready && stub.position <= after) || is_hidden(&walk, stub.position))
            continue;
        stub.due_ms = kl__pg_get_int(rows, row, KL_PG_SHOWN_DUE);
        stub.attempts = (uint16_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_ATTEMPTS);
        stub.priority = (int8_t)(ready ? line : kl__pg_get_int(rows, row, KL_PG_SHOWN_PRIORITY));
        scan->stubs[scan->count++] = stub;
        if (shown && line != KL_LINE_RETRY)
            kl__pg_seen_add(pg->seen, shown, row, at, scan->place, &stub);
    }
    uint64_t last = (uint64_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_LAST);
    part->after = last;
    part->due_ms = kl__pg_get_int(rows, row, KL_PG_SHOWN_DUE);
    return KL_OK;
}

/* Rows in their order. The server shows them so, unless a join of it has turned them. */
struct turned {
    int64_t scan, due_ms, last;
    int row;
};

static int by_order(const void *a, const void *b)
{
    const struct turned *x = a, *y = b;
    if (x->scan != y->scan)
        return x->scan < y->scan ? -1 : 1;
    if (x->due_ms != y->due_ms)
        return x->due_ms < y->due_ms ? -1 : 1;
    return (x->last > y->last) - (x->last < y->last);
}

/* By (due, position) in the due line, whose rows alone have a due time that orders them; the retry line goes by
 * position. */
static struct turned *sort_rows(const PGresult *rows, struct part *const *parts)
{
    int count = PQntuples(rows);
    bool sorted = true;
    struct turned *order = kl__alloc_zeroed((size_t)count + 1, sizeof *order);
    for (int row = 0; order && row < count; row++) {
        int64_t scan = kl__pg_get_int(rows, row, KL_PG_SHOWN_SCAN);
        bool due = parts[scan - 1]->scan->line == KL_LINE_DUE;
        order[row] = (struct turned){scan, due ? kl__pg_get_int(rows, row, KL_PG_SHOWN_DUE) : 0,
                                     kl__pg_get_int(rows, row, KL_PG_SHOWN_LAST), row};
        sorted = sorted && (row == 0 || by_order(&order[row - 1], &order[row]) < 0);
    }
    if (order && !sorted)
        qsort(order, (size_t)count, sizeof *order, by_order);
    return order;
}

/* How many tasks a row has, on average, of late. */
static void count_rows(kl__pg *pg, const PGresult *rows)
{
    size_t tasks = 0;
    int count = PQntuples(rows);
    for (int row = 0; row < count; row++)
        tasks += (size_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_NUMBER);
    if (count > 0)
        atomic_store(&pg->row_tasks, (uint32_t)(tasks / (size_t)count));
}

/* The answer is not the caller's any more. */
static kl_rc take_rows(kl__pg *pg, PGresult *rows, struct part *const *parts, size_t count)
{
    struct turned *order = sort_rows(rows, parts);
    if (!order) {
        PQclear(rows);
        return kl__fail_memory();
    }
    count_rows(pg, rows);
    kl__pg_shown *shown = kl__pg_seen_begin(pg->seen, rows);
    kl_rc rc = KL_OK;
    for (int i = 0; rc == KL_OK && i < PQntuples(rows); i++)
        rc = take_row(pg, shown, rows, order[i].row, parts[order[i].scan - 1]);
    for (size_t i = 0; i < count; i++)
        parts[i]->ended = parts[i]->shown < parts[i]->rows;
    kl__free(order);
    if (shown)
        kl__pg_seen_end(pg->seen, shown);
    else
        PQclear(rows);
    return rc;
}

/* Those that have neither ended nor got all that they want. */
static size_t choose_open(struct part *parts, size_t count, struct part **ret_open)
{
    size_t open = 0;
    for (size_t i = 0; i < count; i++)
        if (!parts[i].ended && parts[i].scan->count < parts[i].scan->max)
            ret_open[open++] = &parts[i];
    return open;
}

kl_rc kl__pg_scan(void *self, kl_scan *scans, size_t count)
{
    struct part *parts = kl__alloc_zeroed(count, sizeof *parts), **open = kl__alloc_zeroed(count, sizeof *open);
    kl_rc rc = parts && open ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        const kl_stub *after = scans[i].after;
        parts[i] = (struct part){&scans[i], after ? after->position : 0, after ? after->due_ms : 0, 0, 0, false};
        scans[i].count = 0;
    }
    for (size_t asked = count; rc == KL_OK && (asked = choose_open(parts, count, open)) > 0;) {
        PGresult *rows = NULL;
        rc = ask_rows(self, open, asked, &rows);
        if (rc == KL_OK)
            rc = take_rows(self, rows, open, asked);
    }
    kl__free(parts);
    kl__free(open);
    return rc;
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

kl_rc kl__pg_lines(void *self, uint32_t partition, uint32_t *ret_priorities)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_int(&args, KL_PG_INT4, partition);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT $S.lines($1)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        *ret_priorities = (uint32_t)kl__pg_get_int(rows, 0, 0);
        PQclear(rows);
    }
    return rc;
}
