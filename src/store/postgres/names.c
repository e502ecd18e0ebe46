/* names.c - whether the database is still the one whose partitions this handle knows by number.
 *
 * A partition has a name, and the schema gives it a number. When the database is restored, or its schema dropped and
 * made again, while a process has the store open, a number may be another partition's: its worker would run another
 * queue's tasks. So the names are compared on every new connection before it is used, and when `partitions` is found to
 * be another table, which a worker looks for many times a second (pulse). From the first difference on no call is made
 * any more.
 *
 * N1  A connection is in the pool only if all names that were known when it was made had their numbers there. */
#include "store/postgres/postgres.h"

struct kl__pg_name {
    kl__pg_name *next;
    uint32_t number;
    char text[];
};

/* The mutex is held. */
static kl__pg_name *find(const kl__pg *pg, uint32_t number)
{
    kl__pg_name *name = pg->names;
    while (name && name->number != number)
        name = name->next;
    return name;
}

kl_rc kl__pg_names_note(kl__pg *pg, const char *text, uint32_t number)
{
    size_t size = strlen(text) + 1;
    kl__pg_name *made = kl__alloc(sizeof *made + size);
    if (!made)
        return kl__fail_memory();
    made->number = number;
    memcpy(made->text, text, size);
    pthread_mutex_lock(&pg->mutex);
    kl__pg_name *known = find(pg, number);
    bool same = !known || strcmp(known->text, text) == 0;
    if (!known) {
        made->next = pg->names;
        pg->names = made;
    }
    pthread_mutex_unlock(&pg->mutex);
    if (known)
        kl__free(made);
    if (!same)
        atomic_store(&pg->replaced, true);
    return kl__pg_names_hold(pg);
}

kl_rc kl__pg_names_hold(const kl__pg *pg)
{
    if (!atomic_load(&pg->replaced))
        return KL_OK;
    return kl__fail(
        KL_ESYSTEM,
        "the database was replaced while this process had it open, and its partitions are others now; end this "
        "process and start it again");
}

/* Returns how many they are. */
static size_t add_names(kl__pg *pg, kl__pg_args *args)
{
    size_t count = 0;
    pthread_mutex_lock(&pg->mutex);
    for (const kl__pg_name *name = pg->names; name; name = name->next)
        count++;
    kl__pg_array(args, KL_PG_INT4, count);
    for (const kl__pg_name *name = pg->names; name; name = name->next)
        kl__pg_add_int(args, KL_PG_INT4, name->number);
    kl__pg_array(args, KL_PG_BYTEA, count);
    for (const kl__pg_name *name = pg->names; name; name = name->next)
        kl__pg_add_bytes(args, kl_str(name->text));
    pthread_mutex_unlock(&pg->mutex);
    return count;
}

/* Where the connection failed, or there is no memory for an answer (rows NULL), nothing is known of the schema. */
static kl_rc refuse(const kl__pg *pg, const PGconn *conn, const PGresult *rows)
{
    const char *text = PQerrorMessage(conn), *state = PQresultErrorField(rows, PG_DIAG_SQLSTATE);
    bool is_lost = !state || strncmp(state, "08", 2) == 0 || strncmp(state, "57P", 3) == 0;
    return kl__fail(KL_EBUSY,
                    is_lost ? "the schema %s is not to be read: %.*s"
                            : "the schema %s is not to be read: %.*s; is it being restored?",
                    pg->schema, (int)strcspn(text, "\n"), text);
}

kl_rc kl__pg_names_check(kl__pg *pg, PGconn *conn)
{
    kl__pg_args args = {0};
    size_t count = add_names(pg, &args);
    char *sql = args.failed ? NULL
                            : kl__pg_expand(pg, "SELECT pg_catalog.count(*) FROM ROWS FROM (pg_catalog.unnest($1),"
                                                " pg_catalog.unnest($2)) AS u(number, name)"
                                                " WHERE NOT EXISTS (SELECT FROM $S.partitions p WHERE"
                                                " p.number OPERATOR(pg_catalog.=) u.number"
                                                " AND p.name OPERATOR(pg_catalog.=) u.name)");
    PGresult *rows = sql && count > 0 ? kl__pg_exec(conn, sql, &args) : NULL;
    kl_rc rc = KL_OK;
    if (!sql)
        rc = kl__fail_memory();
    else if (count > 0 && !kl__pg_is_good(rows))
        rc = refuse(pg, conn, rows);
    else if (count > 0 && kl__pg_get_int(rows, 0, 0) > 0)
        atomic_store(&pg->replaced, true);
    PQclear(rows);
    kl__free(sql);
    kl__pg_args_free(&args);
    return rc == KL_OK ? kl__pg_names_hold(pg) : rc;
}

/* On a connection of its own, which is rare. */
kl_rc kl__pg_names_see(kl__pg *pg, int64_t table)
{
    PGconn *conn = NULL;
    int64_t before = atomic_exchange(&pg->names_table, table);
    if (before == 0 || before == table)
        return KL_OK;
    kl_rc rc = kl__pg_connect(pg, &conn);
    if (rc == KL_OK)
        rc = kl__pg_names_check(pg, conn);
    if (rc != KL_OK)
        atomic_store(&pg->names_table, before); /* so it is looked again */
    kl__pg_disconnect(pg, conn);
    return rc;
}

void kl__pg_names_free(kl__pg *pg)
{
    for (kl__pg_name *name = pg->names, *next; name; name = next) {
        next = name->next;
        kl__free(name);
    }
}
