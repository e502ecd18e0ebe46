/* append.c - entries become rows: one transaction, and one round trip.
 *
 * From: store.c.  To: sql_tasks.c.
 *
 * One entry with a token, which is what a plain put makes, goes by the function append_one: its parts are parameters.
 * Calls that threads make at the same time go together (append_group.c).
 *
 * Else parameters are columns: of the places, of the rows (append.h), and, where entries have any, of their jobs and
 * groups in the order of rows, of which each row takes a slice. A row names its number by its index; the function draws
 * them.
 *
 * Where others append, too, the transaction is committed without waiting for the disk, which ends the shards' locks
 * early, and so producers share one sync: a second statement, sent in the same packet, commits a message in the log,
 * and waits. Everything before it in the log is on disk then. Whoever sees the tasks before they are durable can only
 * lose them together with everything that came after; their positions are not used again then (`started` in
 * sql_tables.c). Who is alone waits for the disk with his locks, which is one transaction less. That others append is
 * seen by the numbers that are drawn: then one's own do not follow one another. */
#include <stdlib.h>

#include "store/postgres/append.h"
#include "store/postgres/row.h"

/* --- Which entries make a row --- */

static int by_line(const void *a, const void *b)
{
    const kl__pg_spot *x = a, *y = b;
    int order = kl__pg_place_compare(x->place, y->place);
    if (order == 0)
        order = (x->line > y->line) - (x->line < y->line);
    return order ? order : (x->entry > y->entry) - (x->entry < y->entry);
}

static void free_plan(kl__pg_plan *plan)
{
    kl__free(plan->spots);
    kl__free(plan->draws);
    kl__free(plan->ats);
    kl__free(plan->places);
    kl__free(plan->rows);
}

static void sort_spots(const kl_append *append, kl__pg_plan *plan)
{
    kl__pg_spot *spots = plan->spots;
    for (size_t i = 0; i < append->count; i++) {
        const kl_entry *entry = &append->entries[i];
        int line = entry->due_ms > 0 ? KL_PG_DUE : entry->priority - KL_PRIORITY_MIN;
        spots[i] = (kl__pg_spot){.place = entry->place, .line = line, .entry = (uint32_t)i};
    }
    qsort(spots, append->count, sizeof *spots, by_line);
    for (size_t i = 1; i < append->count; i++) {
        bool same = kl__pg_place_compare(spots[i].place, spots[i - 1].place) == 0 && spots[i].line == spots[i - 1].line;
        spots[i].group = spots[i - 1].group + !same;
    }
}

/* What a group has under the number that is being filled; 0: none yet. */
struct filled {
    uint32_t draw;
    size_t bytes;
};

/* Gives entries their numbers and places, in the order of the call, so that they ascend along a line. Where a row would
 * become too large, its line goes on with the next number. Entries of the due line have rows of their own whatever
 * number they have; without a token every entry has, because each may have to be left out. `used`: how many have each
 * number. */
static void number_entries(const kl_append *append, kl__pg_plan *plan, const kl__pg_spot *const *spot_of,
                           struct filled *filled, uint16_t *used)
{
    uint32_t lowest = 1;
    for (size_t i = 0; i < append->count; i++) {
        struct filled *group = &filled[spot_of[i]->group];
        size_t bytes = kl__pg_entry_bytes(&append->entries[i]) + KL_PG_ENTRY_BYTES;
        bool shares = group->bytes > 0 && spot_of[i]->line != KL_PG_DUE;
        bool full = shares && (!append->token || group->bytes + bytes > KL_PG_ROW_BYTES);
        uint32_t draw = group->draw > 0 ? group->draw + full : lowest;
        while (used[draw] == KL_PG_DRAW)
            draw++;
        *group = (struct filled){draw, (draw == group->draw ? group->bytes : 0) + bytes};
        plan->draws[i] = draw;
        plan->ats[i] = (uint8_t)used[draw]++;
        plan->draw_count = draw > plan->draw_count ? draw : plan->draw_count;
        while (used[lowest] == KL_PG_DRAW)
            lowest++;
    }
}

static kl_rc number_spots(const kl_append *append, kl__pg_plan *plan)
{
    const kl__pg_spot **spot_of = kl__alloc_zeroed(append->count, sizeof *spot_of);
    struct filled *filled = kl__alloc_zeroed(append->count, sizeof *filled);
    uint16_t *used = kl__alloc_zeroed(append->count + 2, sizeof *used); /* at worst a number for each entry */
    bool good = spot_of && filled && used;
    if (good) {
        for (size_t i = 0; i < append->count; i++)
            spot_of[plan->spots[i].entry] = &plan->spots[i];
        number_entries(append, plan, spot_of, filled, used);
    }
    kl__free(spot_of);
    kl__free(filled);
    kl__free(used);
    return good ? KL_OK : kl__fail_memory();
}

static void make_rows(const kl_append *append, kl__pg_plan *plan)
{
    for (size_t i = 0; i < append->count; i++) {
        const kl__pg_spot *spot = &plan->spots[i], *before = i > 0 ? spot - 1 : NULL;
        if (!before || kl__pg_place_compare(spot->place, before->place) != 0)
            plan->places[plan->place_count++] = spot->place;
        if (before && spot->line != KL_PG_DUE && before->group == spot->group &&
            plan->draws[before->entry] == plan->draws[spot->entry])
            plan->rows[plan->row_count - 1].count++;
        else
            plan->rows[plan->row_count++] =
                (kl__pg_row){(uint32_t)plan->place_count, plan->draws[spot->entry], (uint32_t)i, 1};
    }
}

static kl_rc make_plan(const kl_append *append, kl__pg_plan *plan)
{
    size_t count = append->count;
    plan->spots = kl__alloc_zeroed(count, sizeof *plan->spots);
    plan->draws = kl__alloc_zeroed(count, sizeof *plan->draws);
    plan->ats = kl__alloc_zeroed(count, sizeof *plan->ats);
    plan->places = kl__alloc_zeroed(count, sizeof *plan->places);
    plan->rows = kl__alloc_zeroed(count, sizeof *plan->rows);
    if (!plan->spots || !plan->draws || !plan->ats || !plan->places || !plan->rows)
        return kl__fail_memory();
    sort_spots(append, plan);
    kl_rc rc = number_spots(append, plan);
    if (rc == KL_OK)
        make_rows(append, plan);
    return rc;
}

/* --- Columns --- */

static void add_places(kl__pg_args *args, const kl__pg_plan *plan)
{
    kl__pg_array(args, KL_PG_INT4, plan->place_count);
    for (size_t i = 0; i < plan->place_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, plan->places[i].partition);
    kl__pg_array(args, KL_PG_INT4, plan->place_count);
    for (size_t i = 0; i < plan->place_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, plan->places[i].shard);
}

static kl_place place_of(const kl__pg_plan *plan, const kl__pg_row *row) { return plan->places[row->at - 1]; }

static int line_of(const kl__pg_plan *plan, const kl__pg_row *row) { return plan->spots[row->first].line; }

/* What a row says that it has from its place, or from its entries. */
static void add_rows(kl__pg_args *args, const kl__pg_plan *plan)
{
    const kl__pg_row *rows = plan->rows;
    kl__pg_array(args, KL_PG_INT4, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, place_of(plan, &rows[i]).partition);
    kl__pg_array(args, KL_PG_INT4, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, place_of(plan, &rows[i]).shard * 64 + (uint32_t)line_of(plan, &rows[i]));
    kl__pg_array(args, KL_PG_INT4, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, rows[i].draw);
    kl__pg_array(args, KL_PG_INT4, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, plan->ats[plan->spots[rows[i].first + rows[i].count - 1].entry]);
    kl__pg_array(args, KL_PG_INT4, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, rows[i].count);
    kl__pg_array(args, KL_PG_INT4, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        kl__pg_add_int(args, KL_PG_INT4, rows[i].first + 1);
}

/* Of rows that have one entry. A ready line says the priority itself. */
static void add_singles(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan)
{
    bool any = false;
    for (size_t i = 0; i < plan->row_count; i++) {
        const kl_entry *entry = &append->entries[plan->spots[plan->rows[i].first].entry];
        any |= entry->due_ms > 0 || kl__pg_large_bytes(entry) > 0;
    }
    size_t count = any ? plan->row_count : 0; /* a shorter array gives NULLs */
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int_or_null(args, KL_PG_INT8, append->entries[plan->spots[plan->rows[i].first].entry].due_ms);
    kl__pg_array(args, KL_PG_INT2, count);
    for (size_t i = 0; i < count; i++) {
        const kl_entry *entry = &append->entries[plan->spots[plan->rows[i].first].entry];
        kl__pg_add_int_or_null(args, KL_PG_INT2, entry->due_ms > 0 ? entry->priority : 0);
    }
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int_or_null(args, KL_PG_INT4,
                               kl__pg_large_bytes(&append->entries[plan->spots[plan->rows[i].first].entry]));
}

static void add_jobs(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan)
{
    bool any = false;
    for (size_t i = 0; i < append->count; i++)
        any |= !kl__id_is_none(&append->entries[i].job);
    if (!any) {
        kl__pg_null_array(args, KL_PG_UUID);
        return;
    }
    kl__pg_array(args, KL_PG_UUID, append->count);
    for (size_t i = 0; i < append->count; i++) {
        const kl_entry *entry = &append->entries[plan->spots[i].entry];
        if (kl__id_is_none(&entry->job))
            kl__pg_add_null(args);
        else
            kl__pg_add_uuid(args, &entry->job);
    }
}

static void add_groups(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan)
{
    bool any = false;
    for (size_t i = 0; i < append->count; i++)
        any |= append->entries[i].group != 0;
    if (!any) {
        kl__pg_null_array(args, KL_PG_INT2);
        return;
    }
    kl__pg_array(args, KL_PG_INT2, append->count);
    for (size_t i = 0; i < append->count; i++)
        kl__pg_add_int_or_null(args, KL_PG_INT2, append->entries[plan->spots[i].entry].group);
}

/* The entries of a row, as its column `tasks` has them (row.h). */
static void add_tasks(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan, const kl__pg_row *row)
{
    const kl__pg_spot *spots = &plan->spots[row->first];
    size_t bytes = 0, end = 0, head_bytes = (size_t)row->count * KL_PG_HEAD;
    for (size_t i = 0; i < row->count; i++)
        bytes += kl__pg_entry_bytes(&append->entries[spots[i].entry]);
    unsigned char *heads = kl__pg_add_room(args, head_bytes + bytes);
    for (size_t i = 0; heads && i < row->count; i++)
        end = kl__pg_pack(heads + i * KL_PG_HEAD, (char *)heads + head_bytes, end, plan->ats[spots[i].entry],
                          &append->entries[spots[i].entry]);
}

/* --- The call --- */

/* The first of the entries whose shard is sealed. */
static kl_rc find_sealed(kl__pg *pg, const kl_append *append, size_t *ret_first)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_array(&args, KL_PG_INT4, append->count);
    for (size_t i = 0; i < append->count; i++)
        kl__pg_add_int(&args, KL_PG_INT4, append->entries[i].place.partition);
    kl__pg_array(&args, KL_PG_INT4, append->count);
    for (size_t i = 0; i < append->count; i++)
        kl__pg_add_int(&args, KL_PG_INT4, append->entries[i].place.shard);
    kl_rc rc = kl__pg_ask(pg,
                          &(kl__pg_call){"SELECT pg_catalog.min(u.n) FROM ROWS FROM (pg_catalog.unnest($1),"
                                         " pg_catalog.unnest($2)) WITH ORDINALITY AS u(p, s, n)"
                                         " JOIN $S.sealed x ON x.partition = u.p AND x.shard = u.s",
                                         &args, true},
                          &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        *ret_first = PQgetisnull(rows, 0, 0) ? 0 : (size_t)kl__pg_get_int(rows, 0, 0) - 1;
        PQclear(rows);
    }
    return rc;
}

kl_rc kl__pg_append_sealed(kl__pg *pg, const kl_append *append)
{
    size_t first = 0;
    if (find_sealed(pg, append, &first) != KL_OK)
        return kl__fail(KL_ESEALED, "a shard is sealed, because its queue has a newer layout; read that, and append "
                                    "where it says");
    kl_place place = append->entries[first].place;
    return kl__fail(KL_ESEALED,
                    "entry %zu: shard %u of partition %u is sealed, because its queue has a newer layout; read that, "
                    "and append where it says",
                    first, place.shard, place.partition);
}

/* By which the calls of a transaction can be known again. */
typedef struct kl__pg_names {
    const kl_token *tokens;
    size_t count;
} kl__pg_names;

static kl__pg_names names_of(const kl_append *append) { return (kl__pg_names){append->token, append->token ? 1 : 0}; }

/* Without a token, the server compares the rows' ids with what waits. */
static void add_open(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan, const kl__pg_names *names,
                     bool early)
{
    size_t count = append->token ? 0 : plan->row_count;
    if (names->count > 0)
        kl__pg_array(args, KL_PG_UUID, names->count);
    else
        kl__pg_null_array(args, KL_PG_UUID);
    for (size_t i = 0; i < names->count; i++)
        kl__pg_add_uuid(args, &names->tokens[i]);
    add_places(args, plan);
    kl__pg_int(args, KL_PG_INT4, plan->draw_count);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, plan->rows[i].at);
    kl__pg_array(args, KL_PG_UUID, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_uuid(args, &append->entries[plan->spots[plan->rows[i].first].entry].id);
    kl__pg_int(args, KL_PG_BOOL, early);
}

static void add_all(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan, const kl__pg_names *names,
                    bool early)
{
    add_open(args, append, plan, names, early);
    add_rows(args, plan);
    add_singles(args, append, plan);
    add_jobs(args, append, plan);
    add_groups(args, append, plan);
    kl__pg_array(args, KL_PG_BYTEA, plan->row_count);
    for (size_t i = 0; i < plan->row_count; i++)
        add_tasks(args, append, plan, &plan->rows[i]);
}

kl_rc kl__pg_append_args(const kl_append *append, bool early, kl__pg_args *args)
{
    kl__pg_plan plan = {0};
    kl__pg_names names = names_of(append);
    kl_rc rc = make_plan(append, &plan);
    if (rc == KL_OK)
        add_all(args, append, &plan, &names, early);
    free_plan(&plan);
    return rc;
}

/* A call begins. True: others append, too, in this process now, or in another one before its last call. */
static bool begin_call(kl__pg *pg) { return atomic_fetch_add(&pg->appending, 1) > 0 || atomic_load(&pg->shared); }

static void note_drawn(kl__pg *pg, uint64_t first, uint32_t count)
{
    atomic_store(&pg->shared, atomic_exchange(&pg->number_next, first + count) != first);
}

/* A token is known: whoever brought it may have been lost before the disk was waited for. */
static kl_rc flush_known(kl__pg *pg)
{
    kl__pg_args none = {0};
    return kl__pg_do(pg, &(kl__pg_call){KL_PG_FLUSH, &none, true});
}

/* flushes: it may have been made before. *ret_appended: none of the tokens was known. */
static kl_rc append_rows(kl__pg *pg, const kl_append *append, const kl__pg_plan *plan, const kl__pg_names *names,
                         bool flushes, bool *ret_appended)
{
    enum { EARLY_MIN = 8 }; /* the second commit is worth it */
    static const kl__pg_args none;
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    bool shared = begin_call(pg), many = append->count >= EARLY_MIN || names->count > 1;
    bool early = flushes || (shared && many);
    add_all(&args, append, plan, names, early);
    const kl__pg_step flush = {KL_PG_FLUSH, &none};
    kl_rc rc =
        kl__pg_ask_then(pg, &(kl__pg_call){KL_PG_APPEND, &args, append->token != NULL}, early ? &flush : NULL, &rows);
    atomic_fetch_sub(&pg->appending, 1);
    if (rc == KL_OK) {
        *ret_appended = !PQgetisnull(rows, 0, 0);
        if (*ret_appended)
            note_drawn(pg, (uint64_t)kl__pg_get_int(rows, 0, 0), plan->draw_count);
        PQclear(rows);
    }
    kl__pg_args_free(&args);
    return rc == KL_OK && !early && !*ret_appended ? flush_known(pg) : rc;
}

static void add_int_or_null(kl__pg_args *args, kl__pg_type type, int64_t value)
{
    if (value != 0)
        kl__pg_int(args, type, value);
    else
        kl__pg_null(args, type);
}

static void add_entry(kl__pg_args *args, const kl_append *append)
{
    const kl_entry *entry = &append->entries[0];
    bool due = entry->due_ms > 0;
    kl__pg_uuid(args, append->token);
    kl__pg_int(args, KL_PG_INT4, entry->place.partition);
    kl__pg_int(args, KL_PG_INT4, entry->place.shard);
    kl__pg_int(args, KL_PG_INT4, due ? KL_PG_DUE : entry->priority - KL_PRIORITY_MIN);
    add_int_or_null(args, KL_PG_INT8, entry->due_ms);
    add_int_or_null(args, KL_PG_INT2, due ? entry->priority : 0);
    add_int_or_null(args, KL_PG_INT4, kl__pg_large_bytes(entry));
    kl__pg_uuid(args, kl__id_is_none(&entry->job) ? NULL : &entry->job);
    add_int_or_null(args, KL_PG_INT2, entry->group);
    unsigned char *head = kl__pg_room(args, KL_PG_HEAD + kl__pg_entry_bytes(entry));
    if (head)
        kl__pg_pack(head, (char *)head + KL_PG_HEAD, 0, 0, entry);
}

/* Transactions that notify are committed one after the other, the disk included; so the notice comes behind it, by
 * itself, and waits for no disk. Should it fail, the call is made again, and the token tells. */
static kl_rc append_one(kl__pg *pg, const kl_append *append)
{
    kl__pg_args args = {0}, notice = {0};
    PGresult *rows = NULL;
    add_entry(&args, append);
    kl__pg_int(&notice, KL_PG_INT4, append->entries[0].place.partition);
    const kl__pg_call call = {"SELECT $S.append_one($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)", &args, true};
    const kl__pg_step then = {"SELECT pg_catalog.pg_notify($C, $1::pg_catalog.text)", &notice};
    kl_rc rc = kl__pg_ask_then(pg, &call, &then, &rows);
    bool known = rc == KL_OK && kl__pg_get_int(rows, 0, 0) == 0;
    if (rc == KL_OK)
        PQclear(rows);
    kl__pg_args_free(&args);
    kl__pg_args_free(&notice);
    return known ? flush_known(pg) : rc;
}

static kl_rc append_many(kl__pg *pg, const kl_append *append, bool flushes)
{
    kl__pg_plan plan = {0};
    kl__pg_names names = names_of(append);
    bool appended;
    kl_rc rc = make_plan(append, &plan);
    if (rc == KL_OK)
        rc = append_rows(pg, append, &plan, &names, flushes, &appended);
    free_plan(&plan);
    return rc;
}

kl_rc kl__pg_append_together(kl__pg *pg, const kl_append *whole, const kl_token *tokens, size_t token_count)
{
    kl__pg_plan plan = {0};
    kl__pg_names names = {tokens, token_count};
    bool appended = false;
    kl_rc rc = make_plan(whole, &plan);
    if (rc == KL_OK)
        rc = append_rows(pg, whole, &plan, &names, false, &appended);
    free_plan(&plan);
    return rc == KL_OK && !appended ? KL_EBUSY : rc;
}

kl_rc kl__pg_append_alone(kl__pg *pg, const kl_append *append, bool flushes)
{
    bool single = append->token && append->count == 1 && !flushes;
    return single ? append_one(pg, append) : append_many(pg, append, flushes);
}

kl_rc kl__pg_append(void *self, const kl_append *append)
{
    kl_rc rc = append->token ? kl__pg_append_grouped(self, append) : kl__pg_append_alone(self, append, false);
    if (rc == KL_ESEALED)
        rc = kl__pg_append_sealed(self, append);
    if (rc == KL_OK && append->done)
        append->done(append->ctx, KL_OK, "");
    return rc;
}
