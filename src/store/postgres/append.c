/* append.c - entries become rows: one call of the schema's function `append`, one transaction.
 *
 * From: store.c.  To: sql_tasks.c; append_copy.c for many.
 *
 * Parameters are columns. An entry names its place by its index in the list of places. Its position follows from its
 * number in the call, to which the function adds what it drew from the sequence. */
#include <stdlib.h>

#include "store/postgres/append.h"

static int by_place(const void *a, const void *b)
{
    const kl__pg_spot *x = a, *y = b;
    int order = kl__pg_place_compare(x->place, y->place);
    return order ? order : (x->entry > y->entry) - (x->entry < y->entry);
}

static void free_plan(kl__pg_plan *plan)
{
    kl__free(plan->spots);
    kl__free(plan->at);
    kl__free(plan->places);
}

static kl_rc make_plan(const kl_append *append, kl__pg_plan *plan)
{
    size_t count = append->count;
    plan->spots = kl__alloc_zeroed(count, sizeof *plan->spots);
    plan->at = kl__alloc_zeroed(count, sizeof *plan->at);
    plan->places = kl__alloc_zeroed(count, sizeof *plan->places);
    if (!plan->spots || !plan->at || !plan->places)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        plan->spots[i] = (kl__pg_spot){append->entries[i].place, (uint32_t)i};
    qsort(plan->spots, count, sizeof *plan->spots, by_place);
    for (size_t i = 0; i < count; i++) {
        kl_place place = plan->spots[i].place;
        if (i == 0 || kl__pg_place_compare(place, plan->spots[i - 1].place) != 0)
            plan->places[plan->place_count++] = place;
        plan->at[plan->spots[i].entry] = (uint32_t)plan->place_count;
    }
    return KL_OK;
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

static void add_numbers(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan)
{
    kl__pg_array(args, KL_PG_INT4, append->count);
    for (size_t i = 0; i < append->count; i++)
        kl__pg_add_int(args, KL_PG_INT4, plan->at[i]);
    kl__pg_array(args, KL_PG_INT4, append->count);
    for (size_t i = 0; i < append->count; i++)
        kl__pg_add_int(args, KL_PG_INT4, kl__pg_line_of(&append->entries[i]));
}

static void add_ids(kl__pg_args *args, const kl_entry *entries, size_t count)
{
    kl__pg_array(args, KL_PG_UUID, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_uuid(args, &entries[i].id);
    kl__pg_array(args, KL_PG_UUID, count);
    for (size_t i = 0; i < count; i++)
        if (kl__id_is_none(&entries[i].job))
            kl__pg_add_null(args);
        else
            kl__pg_add_uuid(args, &entries[i].job);
}

/* A ready line says the priority itself. */
static void add_details(kl__pg_args *args, const kl_entry *entries, size_t count)
{
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int_or_null(args, KL_PG_INT8, entries[i].due_ms);
    kl__pg_array(args, KL_PG_INT2, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int_or_null(args, KL_PG_INT2, entries[i].group);
    kl__pg_array(args, KL_PG_INT2, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int_or_null(args, KL_PG_INT2, entries[i].due_ms > 0 ? entries[i].priority : 0);
}

static void add_parts(kl__pg_args *args, const kl_entry *entries, size_t count)
{
    static const size_t parts[] = {offsetof(kl_entry, key), offsetof(kl_entry, kind), offsetof(kl_entry, headers),
                                   offsetof(kl_entry, payload)};
    for (size_t part = 0; part < sizeof parts / sizeof parts[0]; part++) {
        kl__pg_array(args, KL_PG_BYTEA, count);
        for (size_t i = 0; i < count; i++) {
            const void *bytes = (const char *)&entries[i] + parts[part];
            kl__pg_add_bytes_or_null(args, *(const kl_bytes *)bytes);
        }
    }
}

/* --- The call --- */

/* The server has named the places, as "1/4 2/255"; the caller is told of its own first entry for one of them. */
kl_rc kl__pg_append_sealed(const kl_append *append)
{
    char list[256];
    size_t first = append->count - 1;
    strncpy(list, kl_error_text(), sizeof list - 1);
    list[sizeof list - 1] = '\0';
    for (char *at = list, *end; *at; at = *end ? end + 1 : end) {
        kl_place place = {.partition = (uint32_t)strtoul(at, &end, 10)};
        place.shard = *end == '/' ? (uint32_t)strtoul(end + 1, &end, 10) : 0;
        for (size_t i = 0; i < first; i++)
            if (kl__pg_place_compare(append->entries[i].place, place) == 0)
                first = i;
        end += strcspn(end, " ");
    }
    kl_place place = append->entries[first].place;
    return kl__fail(KL_ESEALED,
                    "entry %zu: shard %u of partition %u is sealed, because its queue has a newer layout; read that, "
                    "and append where it says",
                    first, place.shard, place.partition);
}

static void add_all(kl__pg_args *args, const kl_append *append, const kl__pg_plan *plan)
{
    kl__pg_uuid(args, append->token);
    add_places(args, plan);
    add_numbers(args, append, plan);
    add_ids(args, append->entries, append->count);
    add_details(args, append->entries, append->count);
    add_parts(args, append->entries, append->count);
}

kl_rc kl__pg_append_args(const kl_append *append, kl__pg_args *args)
{
    kl__pg_plan plan = {0};
    kl_rc rc = make_plan(append, &plan);
    if (rc == KL_OK)
        add_all(args, append, &plan);
    free_plan(&plan);
    return rc;
}

static kl_rc append_rows(kl__pg *pg, const kl_append *append, const kl__pg_plan *plan)
{
    kl__pg_args args = {0};
    add_all(&args, append, plan);
    kl_rc rc = kl__pg_do(pg, &(kl__pg_call){KL_PG_APPEND, &args, append->token != NULL});
    kl__pg_args_free(&args);
    return rc;
}

kl_rc kl__pg_append(void *self, const kl_append *append)
{
    kl__pg_plan plan = {0};
    kl_rc rc = make_plan(append, &plan);
    if (rc == KL_OK && append->token && append->count >= KL_PG_COPY_MIN)
        rc = kl__pg_append_copy(self, append, &plan);
    else if (rc == KL_OK)
        rc = append_rows(self, append, &plan);
    if (rc == KL_ESEALED)
        rc = kl__pg_append_sealed(append);
    free_plan(&plan);
    if (rc == KL_OK && append->done)
        append->done(append->ctx, KL_OK, "");
    return rc;
}
