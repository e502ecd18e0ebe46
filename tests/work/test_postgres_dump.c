/* test_postgres_dump.c - a dump that is made under load, and restored into another database.
 *
 * Part of test-postgres. Producers put numbers into keys, a worker runs those of some keys and leaves the others alone,
 * and segments are closed, moved and emptied as fast as it goes. Whoever was told that a task is stored before the dump
 * began finds it waiting in the copy, unless it was settled meanwhile; and a key's tasks in the copy have no gap. */
#include <libpq-fe.h>
#include <sys/stat.h>

#include "store/pg_server.h"
#include "work/support.h"

enum { KEYS = 12, STAY = 4, /* keys whose tasks nobody runs */ ROUNDS = 6, TRIES = 300 };

struct load {
    kl_store *store;
    kl_queue *queue;
    char url[PG_URL_BYTES], schema[64], dir[WORKDIR_BYTES];
    atomic_bool ends;
    atomic_int put[KEYS]; /* acknowledged */
    atomic_int moved;     /* rounds of upkeep */
};

/* A key's waiting tasks: from, up to but without `to`; no more than these. */
struct span {
    int from, to, count;
};

static kl_outcome run(kl_work *work, void *ctx)
{
    (void)work, (void)ctx;
    return KL_DONE;
}

static void *produce(void *ctx)
{
    struct load *load = ctx;
    char key[16], payload[16];
    for (int number = 0; !atomic_load(&load->ends); number++)
        for (int i = 0; i < KEYS; i++) {
            snprintf(key, sizeof key, "%d", i);
            snprintf(payload, sizeof payload, "%d", number);
            put_as(
                load->queue,
                &(kl_put){.key = kl_str(key), .kind = kl_str(i < STAY ? "stays" : "runs"), .payload = kl_str(payload)});
            atomic_store(&load->put[i], number + 1);
        }
    return NULL;
}

static void *clear_away(void *ctx)
{
    struct load *load = ctx;
    char sql[128];
    PGconn *conn = pg_server_connect();
    snprintf(sql, sizeof sql, "SELECT %s.upkeep_segments(0, 0, 1)", load->schema);
    while (!atomic_load(&load->ends)) {
        PQclear(PQexec(conn, sql));
        atomic_fetch_add(&load->moved, 1);
    }
    PQfinish(conn);
    return NULL;
}

/* --- What waits --- */

static void count_in(const kl_found *found, struct span *spans)
{
    char key[16], payload[16];
    const kl_entry *entry = &found->task.entry;
    snprintf(key, sizeof key, "%.*s", (int)entry->key.len, (const char *)entry->key.data);
    snprintf(payload, sizeof payload, "%.*s", (int)entry->payload.len, (const char *)entry->payload.data);
    struct span *span = &spans[atoi(key)];
    int number = atoi(payload);
    span->from = span->count == 0 || number < span->from ? number : span->from;
    span->to = span->count == 0 || number >= span->to ? number + 1 : span->to;
    span->count++;
}

static void look(kl_queue *queue, struct span *ret_spans)
{
    static kl_found found[1000];
    kl_arena arena = {0};
    kl_waiting which = {.max = sizeof found / sizeof found[0]};
    size_t count = 0;
    memset(ret_spans, 0, KEYS * sizeof *ret_spans);
    do {
        CHECK_INT(kl_queue_waiting(queue, &which, &arena, found, &count, &which.cursor), KL_OK);
        for (size_t i = 0; i < count; i++)
            count_in(&found[i], ret_spans);
    } while (which.cursor.len > 0);
    kl_arena_free(&arena);
}

/* --- The recipe of docs/stores/postgres.md --- */

struct dump {
    struct load *load;
    char host[PG_URL_BYTES], file[WORKDIR_BYTES + 32];
    pthread_t thread;
    bool good;
    int moved, put; /* when it waited */
    long long newest;
};

static void *make_dump(void *ctx)
{
    struct dump *dump = ctx;
    char *words[] = {"pg_dump",
                     "-Fc",
                     "--no-unlogged-table-data",
                     "-n",
                     dump->load->schema,
                     "-h",
                     dump->host,
                     "-U",
                     "postgres",
                     "-f",
                     dump->file,
                     "postgres",
                     NULL};
    dump->good = pg_server_call("pg_dump", words);
    return NULL;
}

static bool is_waiting(void *ctx)
{
    (void)ctx;
    return pg_server_number("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                            " WHERE NOT l.granted AND a.application_name = 'pg_dump'") > 0;
}

/* The segments whose files are newer than `file`, or, with 0, the newest file: TRUNCATE makes a new one. */
static long long ask_files(const struct load *load, long long file)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT %s FROM pg_class WHERE relnamespace = '%s'::regnamespace AND relname ~ '^entries_[12]$'"
             " AND relfilenode::bigint > %lld",
             file ? "count(*)" : "max(relfilenode::bigint)", load->schema, file);
    return pg_server_number(sql);
}

/* Both segments were emptied, or they cannot be. */
static bool has_moved(void *ctx)
{
    const struct dump *dump = ctx;
    return atomic_load(&dump->load->put[0]) > dump->put + 10 &&
           (atomic_load(&dump->load->moved) > dump->moved + TRIES || ask_files(dump->load, dump->newest) == 2);
}

static void say(PGconn *conn, const char *format, const char *schema)
{
    char sql[256];
    snprintf(sql, sizeof sql, format, schema, schema);
    PGresult *rows = PQexec(conn, sql);
    CHECK_INT(PQresultStatus(rows), PGRES_COMMAND_OK);
    PQclear(rows);
}

/* It has its snapshot, and waits for a lock: what is moved and emptied meanwhile must not be missing in it. */
static void dump_slowly(struct dump *dump)
{
    PGconn *holder = pg_server_connect(), *other = pg_server_connect();
    say(holder, "BEGIN; LOCK TABLE %1$s.entries, %1$s.settled, %1$s.tokens IN ACCESS SHARE MODE", dump->load->schema);
    say(other, "BEGIN; LOCK TABLE %s.meta IN ACCESS EXCLUSIVE MODE", dump->load->schema);
    if (pthread_create(&dump->thread, NULL, make_dump, dump) == 0) {
        await_condition("the dump waits", is_waiting, NULL);
        dump->moved = atomic_load(&dump->load->moved);
        dump->put = atomic_load(&dump->load->put[0]);
        dump->newest = ask_files(dump->load, 0);
        await_condition("more is moved", has_moved, dump);
        PQfinish(other);
        pthread_join(dump->thread, NULL);
    }
    PQfinish(holder);
}

static bool restore(struct dump *dump)
{
    char *words[] = {"pg_restore", "-h", dump->host, "-U", "postgres", "-d", "restored", dump->file, NULL};
    pg_server_run("CREATE DATABASE restored");
    return dump->good && pg_server_call("pg_restore", words);
}

/* --- The claim --- */

static void check_key(int key, int put, const struct span *before, const struct span *after, const struct span *copy)
{
    bool stays = key < STAY, whole = copy->count == copy->to - copy->from;
    bool once = stays || copy->count == 0 || before->count == 0 || copy->from >= before->from;
    bool settled = !stays && copy->count == 0 && (after->count == 0 || after->from >= put);
    bool there = copy->to >= put && (stays ? copy->from == 0 : after->count == 0 || copy->from <= after->from);
    if (!whole || !once || (!settled && !there))
        test_fail(__FILE__, __LINE__,
                  "key %d: %d put, waiting %d to %d before and %d to %d after; the copy has %d: %d to %d", key, put,
                  before->from, before->to, after->from, after->to, copy->count, copy->from, copy->to);
}

static void dump_and_check(struct load *load)
{
    struct span before[KEYS], after[KEYS], copy[KEYS];
    static struct dump dump;
    char url[PG_URL_BYTES + 32];
    int put[KEYS];
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    const char *host = strstr(load->url, "host=") + strlen("host=");
    dump = (struct dump){.load = load};
    snprintf(dump.host, sizeof dump.host, "%.*s", (int)strcspn(host, "&"), host);
    snprintf(dump.file, sizeof dump.file, "%s/dump", load->dir);
    for (int i = 0; i < KEYS; i++)
        put[i] = atomic_load(&load->put[i]);
    look(load->queue, before);
    dump_slowly(&dump);
    look(load->queue, after);
    snprintf(url, sizeof url, "%s&dbname=restored", load->url);
    bool good =
        restore(&dump) && kl_store_open(url, NULL, &store) == KL_OK && kl_queue_find(store, "orders", &queue) == KL_OK;
    CHECK(good);
    if (good)
        look(queue, copy);
    for (int i = 0; good && i < KEYS; i++)
        check_key(i, put[i], &before[i], &after[i], &copy[i]);
    kl_queue_close(queue);
    kl_store_close(store);
}

static bool is_moving(void *ctx)
{
    struct load *load = ctx;
    return atomic_load(&load->put[KEYS - 1]) > 20 && atomic_load(&load->moved) > ROUNDS;
}

TEST(a_dump_under_load_has_every_task_that_was_acknowledged_and_not_settled)
{
    static struct load load;
    pthread_t producer, upkeep;
    load = (struct load){.store = NULL};
    REQUIRE(pg_server_new_schema(load.url, load.schema) == KL_OK && workdir_make(load.dir) &&
            chmod(load.dir, 0777) == 0); /* the server's user writes there */
    REQUIRE(kl_store_open(load.url, NULL, &load.store) == KL_OK &&
            kl_queue_open(load.store, "orders", NULL, &load.queue) == KL_OK);
    kl_worker *worker = start_worker(load.queue, &(struct start){.fn = run, .kind = "runs"});
    REQUIRE(pthread_create(&producer, NULL, produce, &load) == 0 &&
            pthread_create(&upkeep, NULL, clear_away, &load) == 0);
    await_condition("segments are closed", is_moving, &load);
    dump_and_check(&load);
    atomic_store(&load.ends, true);
    pthread_join(producer, NULL);
    pthread_join(upkeep, NULL);
    drain_and_close(worker);
    kl_queue_close(load.queue);
    kl_store_close(load.store);
    pg_server_run("DROP DATABASE IF EXISTS restored WITH (FORCE)");
    workdir_remove(load.dir);
}
