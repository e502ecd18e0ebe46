/* postgres.c - the PostgreSQL engine: opening, closing, its clock and its partitions.
 *
 * Reading order: postgres.h -> sql_tables.c -> connect.c, pool.c -> append.c, sql_tasks.c -> scan.c, read.c ->
 * settle.c, sql_settle.c -> records.c -> inbox.c, sql_inbox.c -> wait.c, upkeep.c. */
#include "store/postgres/seen.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/layout.h"
#include "base/wait.h"
#include "store/engines.h"
#include "store/postgres/migrate.h"

/* --- The URL --- */

static kl_rc set_schema(kl__pg *pg, kl_bytes name)
{
    char quoted[KL_QUOTE_BYTES];
    const char *text = name.data;
    bool good = name.len >= 1 && name.len < sizeof pg->schema && !(text[0] >= '0' && text[0] <= '9') &&
                !(name.len >= 3 && memcmp(text, "pg_", 3) == 0) &&
                !kl__bytes_equal(name, kl_str("information_schema")); /* PostgreSQL keeps those for itself */
    for (size_t i = 0; good && i < name.len; i++)
        good = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= '0' && text[i] <= '9') || text[i] == '_';
    if (!good)
        return kl__fail(KL_EINVAL,
                        "schema is %s; it must be 1 to %d letters a to z, digits and _, no digit and no "
                        "pg_ first, and not information_schema",
                        kl__quote(name, quoted), KL_PG_SCHEMA_BYTES - 1);
    memcpy(pg->schema, name.data, name.len);
    pg->schema[name.len] = '\0';
    return KL_OK;
}

static kl_rc set_pool(kl__pg *pg, kl_bytes value)
{
    char quoted[KL_QUOTE_BYTES], *end;
    unsigned long number = strtoul(value.data, &end, 10);
    if (value.len == 0 || end != (const char *)value.data + value.len || number < 2 || number > KL_PG_POOL_MAX)
        return kl__fail(KL_EINVAL, "pool is %s; it must be from 2 to %d connections", kl__quote(value, quoted),
                        KL_PG_POOL_MAX);
    pg->pool_max = (uint32_t)number;
    return KL_OK;
}

static kl_rc set_flag(const char *name, kl_bytes value, bool *ret_flag)
{
    char quoted[KL_QUOTE_BYTES];
    bool on = kl__bytes_equal(value, kl_str("on")), off = kl__bytes_equal(value, kl_str("off"));
    if (!on && !off)
        return kl__fail(KL_EINVAL, "%s is %s; it must be on or off", name, kl__quote(value, quoted));
    *ret_flag = on;
    return KL_OK;
}

/* Takes a parameter of ours; others are appended to the URL for libpq. */
static kl_rc take_param(kl__pg *pg, kl_bytes param, bool *is_first)
{
    kl_bytes value;
    if (kl__url_param(param, "schema", &value))
        return set_schema(pg, value);
    if (kl__url_param(param, "pool", &value))
        return set_pool(pg, value);
    if (kl__url_param(param, "listen", &value))
        return set_flag("listen", value, &pg->may_listen);
    if (kl__url_param(param, "migrate", &value))
        return set_flag("migrate", value, &pg->may_migrate);
    char *end = pg->url + strlen(pg->url);
    *end++ = *is_first ? '?' : '&';
    memcpy(end, param.data, param.len);
    end[param.len] = '\0';
    *is_first = false;
    return KL_OK;
}

/* Whether libpq understands what is left for it. */
static kl_rc check_url(const kl__pg *pg)
{
    char *text = NULL;
    PQconninfoOption *parsed = PQconninfoParse(pg->url, &text);
    kl_rc rc = KL_OK;
    if (!parsed && text)
        rc = kl__fail(KL_EINVAL, "the URL of the store is wrong: %.*s; write %s, with parameters of libpq",
                      (int)strcspn(text, "\n"), text, kl__engine_postgres.usage);
    else if (!parsed)
        rc = kl__fail_memory();
    PQconninfoFree(parsed);
    PQfreemem(text);
    return rc;
}

static kl_rc read_url(kl__pg *pg, const char *where)
{
    static const char scheme[] = "postgresql:";
    char quoted[KL_QUOTE_BYTES];
    bool is_first = true;
    if (strncmp(where, "//", 2) != 0)
        return kl__fail(KL_EINVAL, "%s stands behind postgres: and should begin with //; write %s",
                        kl__quote(kl_str(where), quoted), kl__engine_postgres.usage);
    size_t base = strcspn(where, "?");
    pg->url = kl__alloc_zeroed(1, sizeof scheme + strlen(where) + 1);
    if (!pg->url)
        return kl__fail_memory();
    memcpy(pg->url, scheme, sizeof scheme - 1);
    memcpy(pg->url + sizeof scheme - 1, where, base);
    kl_rc rc = set_schema(pg, kl_str("keyline"));
    for (const char *at = where + base; rc == KL_OK && *at;) {
        size_t len = strcspn(++at, "&");
        if (len > 0)
            rc = take_param(pg, (kl_bytes){at, len}, &is_first);
        at += len;
    }
    return rc == KL_OK ? check_url(pg) : rc;
}

/* --- Open and close --- */

static void free_store(kl__pg *pg)
{
    kl__pg_pool_close(pg);
    kl__pg_seen_close(pg->seen);
    pthread_cond_destroy(&pg->given);
    pthread_cond_destroy(&pg->told);
    pthread_cond_destroy(&pg->upkeep_wakes);
    pthread_mutex_destroy(&pg->mutex);
    pthread_mutex_destroy(&pg->taking);
    kl__pg_groups_close(&pg->groups);
    kl__pg_lows_free(pg);
    kl__pg_names_free(pg);
    kl__away_close(&pg->away);
    kl__free(pg->url);
    kl__free(pg);
}

static const kl__told_words words = {"the database cannot be used", "the database can be used again"};

static kl__pg *make_store(const kl_store_opts *opts)
{
    kl__pg *pg = kl__alloc_zeroed(1, sizeof *pg);
    if (!pg)
        return NULL;
    pg->seen = kl__pg_seen_open(); /* it goes without, too */
    pthread_mutex_init(&pg->mutex, NULL);
    pthread_mutex_init(&pg->taking, NULL);
    kl__pg_groups_open(&pg->groups);
    kl__cond_init(&pg->given);
    kl__cond_init(&pg->told);
    kl__cond_init(&pg->upkeep_wakes);
    pg->opts = *opts;
    kl__away_open(&pg->away, &words, opts);
    pg->pool_max = KL_PG_POOL;
    pg->may_listen = pg->may_migrate = true;
    return pg;
}

static kl_rc open_postgres(const char *where, const kl_store_opts *opts, void **ret_self)
{
    kl__pg *pg = make_store(opts);
    kl_rc rc = pg ? read_url(pg, where) : kl__fail_memory();
    if (!pg)
        return rc;
    if (rc == KL_OK && opts->hasty)
        rc = kl__pg_watch_start(pg);
    if (rc == KL_OK)
        rc = kl__pg_schema_open(pg);
    if (rc == KL_OK)
        rc = kl__pg_upkeep_start(pg);
    if (rc != KL_OK) {
        kl__pg_watch_stop(pg);
        free_store(pg);
        return rc;
    }
    pthread_mutex_lock(&pg->mutex);
    pg->opened = true;
    pthread_mutex_unlock(&pg->mutex);
    *ret_self = pg;
    return KL_OK;
}

static void close_postgres(void *self)
{
    kl__pg *pg = self;
    kl__pg_upkeep_stop(pg);
    kl__pg_wait_close(pg);
    kl__pg_watch_stop(pg);
    free_store(pg);
}

/* --- The schema, by hand --- */

bool kl__pg_is_url(const char *url)
{
    return strncmp(url, "postgres:", strlen("postgres:")) == 0 ||
           strncmp(url, "postgresql:", strlen("postgresql:")) == 0;
}

kl_rc kl__pg_migrate(const char *url, bool only_look, kl__pg_versions *ret_versions)
{
    kl__pg *pg = make_store(&(kl_store_opts){.size = sizeof(kl_store_opts)});
    kl__pg_versions versions = {.known = KL_PG_VERSION};
    if (!pg)
        return kl__fail_memory();
    kl_rc rc = read_url(pg, strchr(url, ':') + 1);
    if (rc == KL_OK)
        rc = kl__pg_schema_migrate(pg, only_look, &versions.before, &versions.after);
    memcpy(versions.schema, pg->schema, sizeof versions.schema);
    free_store(pg);
    if (rc == KL_OK)
        *ret_versions = versions;
    return rc;
}

/* --- Time and partitions --- */

static int64_t show_clock(kl__pg *pg, int64_t now_ms)
{
    pthread_mutex_lock(&pg->mutex);
    if (now_ms > pg->now_ms)
        pg->now_ms = now_ms;
    now_ms = pg->now_ms;
    pthread_mutex_unlock(&pg->mutex);
    return now_ms;
}

static kl_rc now(void *self, int64_t *ret_ms)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT $S.now_ms()", &args, true}, &rows);
    if (rc != KL_OK)
        return rc;
    *ret_ms = show_clock(self, kl__pg_get_int(rows, 0, 0));
    PQclear(rows);
    return KL_OK;
}

/* Every write of a record draws a version, quiet ones elsewhere. */
static kl_rc pulse(void *self, int64_t *ret_ms, uint64_t *ret_news)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl_rc rc = kl__pg_ask(
        self,
        &(kl__pg_call){"SELECT $S.now_ms(), v.last_value + v.is_called::int,"
                       " (SELECT p.tableoid::pg_catalog.int8 FROM $S.partitions p LIMIT 1) FROM $S.versions v",
                       &args, true},
        &rows);
    if (rc != KL_OK)
        return rc;
    *ret_ms = show_clock(self, kl__pg_get_int(rows, 0, 0));
    *ret_news = (uint64_t)kl__pg_get_int(rows, 0, 1);
    int64_t table = kl__pg_get_int(rows, 0, 2);
    PQclear(rows);
    return kl__pg_names_see(self, table);
}

static kl_rc partition_of(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_bytes(&args, kl_str(name));
    kl__pg_int(&args, KL_PG_INT4, shard_prefix_len);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.partition($1,$2)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    uint32_t number = (uint32_t)kl__pg_get_int(rows, 0, 0), len = (uint32_t)kl__pg_get_int(rows, 0, 1);
    PQclear(rows);
    if (len != shard_prefix_len)
        return kl__fail(KL_EINVAL,
                        "partition '%s' has shard_prefix_len %u, and %u was asked for; a layout is the queue's, so use "
                        "%u",
                        name, len, shard_prefix_len, len);
    *ret_partition = number;
    return kl__pg_names_note(self, name, number);
}

static bool is_away(void *self) { return kl__away_is_told(&((kl__pg *)self)->away); }

const kl_engine kl__engine_postgres = {
    .size = sizeof(kl_engine),
    .scheme = "postgres",
    .usage = "postgres://HOST/DATABASE",
    .can = KL_STORE_DURABLE | KL_STORE_ATOMIC_APPEND | KL_STORE_KEY_HASH | KL_STORE_WAIT | KL_STORE_SHARED |
           KL_STORE_ORDERED | KL_STORE_GROUP | KL_STORE_SEAL | KL_STORE_INBOX,
    .open = open_postgres,
    .close = close_postgres,
    .now = now,
    .partition = partition_of,
    .append = kl__pg_append,
    .scan = kl__pg_scan,
    .read = kl__pg_read,
    .settle = kl__pg_settle,
    .fence = kl__pg_fence,
    .counts = kl__pg_counts,
    .wait = kl__pg_wait,
    .results = kl__pg_results,
    .find = kl__pg_find,
    .forget = kl__pg_forget,
    .get = kl__pg_get,
    .put = kl__pg_put,
    .list = kl__pg_list,
    .take_in = kl__pg_take_in,
    .lines = kl__pg_lines,
    .left = kl__pg_left,
    .pulse = pulse,
    .is_away = is_away,
    .refused = kl__pg_refused,
    .cut = kl__pg_cut,
    .hasten = kl__pg_watch_start,
};
