/* test_postgres_parts.c - partitions on PostgreSQL: their number changes under load, they are named in SQL, and they
 * lie in several databases. */
#include <libpq-fe.h>

#include "change.h"
#include "queue/inside.h"
#include "store/lossy.h"
#include "store/pg_server.h"

static void drop(const char *schema)
{
    char sql[128];
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", schema);
    pg_server_run(sql);
}

TEST(order_per_key_survives_growing_and_shrinking_under_load_on_postgres)
{
    struct rig rig = {.store = NULL};
    char url[PG_URL_BYTES], schema[64];
    REQUIRE(pg_server_new_schema(url, schema) == KL_OK);
    REQUIRE(kl_store_open(url, NULL, &rig.store) == KL_OK);
    CHECK_INT(kl_queue_open(rig.store, "orders", CHANGE_OPTS, &rig.queue), KL_OK);
    if (rig.queue)
        change_under_load(&rig, 50);
    rig_close(&rig);
    drop(schema);
}

/* --- What the documentation says --- */

/* The statements for watching, with another name of the schema; NULL: they are not there. To be freed. */
static char *read_queries(const char *schema)
{
    enum { TEXT_BYTES = 1 << 17 };
    static const char word[] = "keyline";
    char *text = calloc(1, TEXT_BYTES), *queries = calloc(1, TEXT_BYTES), *to = queries;
    FILE *file = fopen(SOURCE_ROOT "/docs/stores/postgres.md", "r");
    size_t read = file ? fread(text, 1, TEXT_BYTES - 1, file) : 0;
    if (file)
        fclose(file);
    const char *watching = read > 0 ? strstr(text, "**Watching**") : NULL;
    const char *at = watching ? strstr(watching, "```sql") : NULL, *end = at ? strstr(at + 6, "```") : NULL;
    for (at = end ? at + 6 : NULL; at && at < end;) {
        bool names = strncmp(at, word, sizeof word - 1) == 0;
        to = names ? stpcpy(to, schema) : memcpy(to, at, 1);
        to += !names;
        at += names ? sizeof word - 1 : 1;
    }
    free(text);
    if (to > queries)
        return queries;
    free(queries);
    return NULL;
}

static bool has_row(const PGresult *rows, const char *queue, const char *partition, const char *layout)
{
    for (int i = 0; i < PQntuples(rows); i++)
        if (strcmp(PQgetvalue(rows, i, 0), queue) == 0 && strcmp(PQgetvalue(rows, i, 1), partition) == 0 &&
            strcmp(PQgetvalue(rows, i, 2), layout) == 0)
            return true;
    return false;
}

TEST(queries_of_the_documentation_run_and_name_queues_and_partitions)
{
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    char url[PG_URL_BYTES], schema[64], *rest = NULL;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2}, more = {.size = sizeof more, .partitions = 3};
    REQUIRE(pg_server_new_schema(url, schema) == KL_OK && kl_store_open(url, NULL, &store) == KL_OK);
    REQUIRE(kl_queue_open(store, "orders", &opts, &queue) == KL_OK);
    put_numbers(queue, "key-", 20, 1);
    CHECK_INT(kl_queue_alter(queue, &more), KL_OK);
    put_numbers(queue, "other-", 20, 1);
    char *queries = read_queries(schema);
    PGconn *conn = pg_server_connect();
    int count = 0;
    REQUIRE(queries);
    for (char *sql = strtok_r(queries, ";", &rest); sql && strchr(sql, 'F');
         sql = strtok_r(NULL, ";", &rest), count++) {
        PGresult *rows = PQexec(conn, sql);
        if (PQresultStatus(rows) != PGRES_TUPLES_OK)
            test_fail(__FILE__, __LINE__, "%s: %s", sql, PQerrorMessage(conn));
        else if (count == 0)
            CHECK(has_row(rows, "orders", "orders", "1") && has_row(rows, "orders", "orders__p1", "1") &&
                  has_row(rows, "orders", "orders__p2", "2"));
        PQclear(rows);
    }
    CHECK_INT(count, 5);
    PQfinish(conn);
    free(queries);
    kl_queue_close(queue);
    kl_store_close(store);
    drop(schema);
}

/* --- Two databases --- */

enum { DATABASE_KEYS = 12, EACH = 5 };

struct two {
    kl_store *store;
    kl_queue *queue;
    char url[PG_URL_BYTES], schema[64], other[PG_URL_BYTES + 32];
};

/* `as`: as whom the second one is used; "": as the first is. */
static bool open_two_as(struct two *two, const char *as)
{
    const char *stores[] = {"", two->other};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .stores = stores, .store_count = 2};
    *two = (struct two){.store = NULL};
    if (pg_server_new_schema(two->url, two->schema) != KL_OK)
        return false;
    pg_server_run("CREATE DATABASE second");
    snprintf(two->other, sizeof two->other, "%s&dbname=second%s", two->url, as);
    return kl_store_open(two->url, NULL, &two->store) == KL_OK &&
           kl_queue_open(two->store, "orders", &opts, &two->queue) == KL_OK;
}

static bool open_two(struct two *two) { return open_two_as(two, ""); }

static void close_two(struct two *two)
{
    kl_queue_close(two->queue);
    kl_store_close(two->store);
    drop(two->schema);
    pg_server_run("DROP DATABASE second WITH (FORCE)");
}

/* Each key's first tasks through the library, its last one in SQL. */
static void put_in_both(struct two *two)
{
    char sql[256];
    put_numbers(two->queue, "key-", DATABASE_KEYS, EACH - 1);
    for (int key = 0; key < DATABASE_KEYS; key++) {
        snprintf(sql, sizeof sql, "SELECT %s.put('orders', '%d %d', key => 'key-%d')", two->schema, key, EACH - 1, key);
        pg_server_run(sql);
    }
}

/* In this database, or the one that is named. */
static long long tasks_in(const char *database, const char *schema)
{
    char sql[128], plain[PG_URL_BYTES], url[PG_URL_BYTES + 32] = "";
    if (pg_server_url(plain) == KL_OK)
        snprintf(url, sizeof url, "%s%c%s%s", plain, strchr(plain, '?') ? '&' : '?', database ? "dbname=" : "",
                 database ? database : "");
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.tasks", schema);
    PGconn *conn = PQconnectdb(url);
    PGresult *rows = PQexec(conn, sql);
    long long number = PQntuples(rows) == 1 ? atoll(PQgetvalue(rows, 0, 0)) : -1;
    if (number < 0)
        test_fail(__FILE__, __LINE__, "%s", PQerrorMessage(conn));
    PQclear(rows);
    PQfinish(conn);
    return number;
}

TEST(partitions_in_two_databases_are_one_queue)
{
    static struct order order;
    struct two two;
    memset(&order, 0, sizeof order);
    REQUIRE(open_two(&two));
    put_in_both(&two);
    long long here = tasks_in(NULL, two.schema), there = tasks_in("second", two.schema);
    CHECK(here > 0);
    CHECK(there > 0);
    CHECK_INT(here + there, DATABASE_KEYS * (EACH - 1)); /* what was put in SQL is in the inbox */
    kl_worker *worker = start_worker(
        two.queue, &(struct start){.fn = order_handle, .ctx = &order, .concurrency = 4, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, KL_FOREVER), KL_OK);
    kl_worker_close(worker);
    order_check(&order, DATABASE_KEYS, EACH);
    close_two(&two);
}

/* --- One of two databases is away --- */

static const char *key_of(const kl_queue_info *info, uint32_t partition)
{
    static char keys[2][16];
    kl_layout layout;
    CHECK_INT(kl_layout_init((uint32_t)info->settings.partitions, (uint32_t)info->settings.shard_prefix_len, &layout),
              KL_OK);
    for (int i = 0;; i++) {
        snprintf(keys[partition], sizeof keys[partition], "key-%d", i);
        if (kl_partition_of(&layout, kl_str(keys[partition])) == partition)
            return keys[partition];
    }
}

static void let_in(bool may)
{
    pg_server_run(may ? "ALTER DATABASE second ALLOW_CONNECTIONS true"
                      : "ALTER DATABASE second ALLOW_CONNECTIONS false");
    if (!may)
        pg_server_run("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'second'");
}

/* As a process that begins now does: nothing of the queue is known to it. */
static kl_queue *open_again(struct two *two, kl_store **ret_store)
{
    kl_queue *queue = NULL;
    kl_queue_close(two->queue); /* nobody else of this process has the other store open then */
    two->queue = NULL;
    CHECK_INT(kl_store_open(two->url, NULL, ret_store), KL_OK);
    CHECK_INT(kl_queue_find(*ret_store, "orders", &queue), KL_OK);
    return queue;
}

TEST(while_one_database_is_away_a_queue_is_opened_and_used_in_the_others_and_later_in_all)
{
    struct two two;
    struct runs runs;
    kl_store *store = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    REQUIRE(open_two(&two));
    runs_init(&runs);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    CHECK_STR(info.away, "");
    const char *here = key_of(&info, 0), *there = key_of(&info, 1);
    put_task(two.queue, here, "done here 1");
    put_task(two.queue, there, "done there 1");
    let_in(false);
    kl_queue *queue = open_again(&two, &store);
    REQUIRE(queue);
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    CHECK_CONTAINS(info.away, "orders__p1: ");
    CHECK_INT(info.counts.ready, 1);
    CHECK(info.counts.at_least);
    kl_put task = {.key = kl_str(there), .payload = kl_str("done there 2")};
    CHECK_INT(kl_queue_put(queue, &task, 1, (kl_bytes){0}, NULL), KL_EBUSY);
    put_task(queue, here, "done here 2");
    for (int i = 0; i < 4; i++)
        put_task(queue, "", "done");
    kl_worker *worker = start_worker(queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    CHECK(runs_wait(&runs, 6));
    CHECK(runs_first(&runs, "done here 1") < runs_first(&runs, "done here 2"));
    CHECK_INT(runs_of(&runs, "done there 1"), 0);
    let_in(true);
    CHECK(runs_wait_for(&runs, "done there 1", 1));
    put_task(queue, there, "done there 2");
    CHECK(runs_wait_for(&runs, "done there 2", 1));
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    CHECK_STR(info.away, "");
    drain_and_close(worker);
    kl_queue_close(queue);
    kl_store_close(store);
    kl_arena_free(&arena);
    runs_free(&runs);
    close_two(&two);
}

TEST(a_worker_that_ends_when_nothing_is_left_does_not_wait_for_a_database_that_is_away)
{
    enum { BOUND_MS = 60000 };
    struct two two;
    struct runs runs;
    kl_store *store = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    REQUIRE(open_two(&two));
    runs_init(&runs);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    const char *here = key_of(&info, 0), *there = key_of(&info, 1);
    put_task(two.queue, here, "done here 1");
    put_task(two.queue, there, "done there 1");
    let_in(false);
    kl_queue *queue = open_again(&two, &store);
    REQUIRE(queue);
    struct start start = {.fn = runs_handle, .ctx = &runs, .until_empty = true};
    kl_worker *worker = start_worker(queue, &start);
    CHECK_INT(kl_worker_wait(worker, BOUND_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(runs_of(&runs, "done here 1"), 1);
    CHECK_INT(runs_of(&runs, "done there 1"), 0);
    let_in(true);
    worker = start_worker(queue, &start);
    CHECK_INT(kl_worker_wait(worker, BOUND_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(runs_of(&runs, "done there 1"), 1);
    kl_queue_close(queue);
    kl_store_close(store);
    kl_arena_free(&arena);
    runs_free(&runs);
    close_two(&two);
}

static bool first_is_drained(void *queue)
{
    CHECK_INT(kl__queue_refresh(queue), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    bool drained = descriptor->layout_count == 2 && descriptor->layouts[0].drained;
    kl__descriptor_release(descriptor);
    return drained;
}

TEST(a_database_that_only_an_older_layout_has_is_told_as_its_own_and_not_at_all_once_that_is_drained)
{
    static const char *const here[] = {"", "", ""};
    struct two two;
    struct runs runs;
    kl_store *store = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 3, .stores = here, .store_count = 3};
    REQUIRE(open_two(&two));
    runs_init(&runs);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    put_task(two.queue, key_of(&info, 1), "dead");
    CHECK_INT(kl_queue_alter(two.queue, &opts), KL_OK);
    let_in(false);
    kl_queue *queue = open_again(&two, &store);
    REQUIRE(queue);
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    CHECK_CONTAINS(info.away, "orders__p1 of layout 1: ");
    CHECK(info.counts.at_least);
    let_in(true);
    kl_worker *worker = start_worker(queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_condition("the first layout is drained", first_is_drained, queue);
    drain_and_close(worker);
    let_in(false);
    kl_queue_close(queue);
    REQUIRE(kl_queue_find(store, "orders", &queue) == KL_OK);
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    CHECK_STR(info.away, "");
    CHECK(!info.counts.at_least);
    CHECK(info.counts.finished_behind); /* it keeps a dead letter */
    let_in(true);
    kl_queue_close(queue);
    kl_store_close(store);
    kl_arena_free(&arena);
    runs_free(&runs);
    close_two(&two);
}

static bool takes(void *queue)
{
    kl_put task = {.payload = kl_str("done there 2")};
    return kl_queue_put(queue, &task, 1, kl_str("2"), NULL) == KL_OK;
}

TEST(a_database_of_one_queue_that_is_away_does_not_hold_up_the_workers_other_queue)
{
    struct two here = {.store = NULL};
    struct runs runs;
    kl_store *store = NULL;
    kl_queue *there = NULL;
    char sql[256];
    REQUIRE(pg_server_new_schema(here.url, here.schema) == KL_OK);
    pg_server_run("CREATE DATABASE second");
    snprintf(here.other, sizeof here.other, "%s&dbname=second", here.url);
    REQUIRE(kl_store_open(here.other, NULL, &store) == KL_OK && kl_store_open(here.url, NULL, &here.store) == KL_OK);
    REQUIRE(kl_queue_open(store, "orders", NULL, &there) == KL_OK);
    REQUIRE(kl_queue_open(here.store, "orders", NULL, &here.queue) == KL_OK);
    runs_init(&runs);
    kl_worker *worker = start_worker_of_two(there, here.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(there, "", "done there 1");
    CHECK(runs_wait(&runs, 1));
    let_in(false);
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'done here')", here.schema);
    for (size_t i = 2; i < 6; i += 2) {
        put_task(here.queue, "", "done here");
        CHECK(runs_wait(&runs, i));
        pg_server_run(sql);
        CHECK(runs_wait(&runs, i + 1));
    }
    let_in(true);
    await_condition("its tasks are taken", takes, there);
    CHECK(runs_wait_for(&runs, "done there 2", 1));
    drain_and_close(worker);
    kl_queue_close(there);
    kl_store_close(store);
    runs_free(&runs);
    close_two(&here);
}

static void put_in_sql(const struct two *two, const char *key, const char *payload)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', '%s', key => '%s')", two->schema, payload, key);
    pg_server_run(sql);
}

TEST(tasks_put_in_sql_do_not_wait_for_those_whose_database_is_away)
{
    struct two two;
    struct runs runs;
    kl_store *store = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    REQUIRE(open_two(&two));
    runs_init(&runs);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    const char *here = key_of(&info, 0), *there = key_of(&info, 1);
    let_in(false);
    kl_queue *queue = open_again(&two, &store);
    REQUIRE(queue);
    put_in_sql(&two, there, "done there 1");
    put_in_sql(&two, here, "done here 1");
    put_in_sql(&two, there, "done there 2");
    put_in_sql(&two, here, "done here 2");
    kl_worker *worker = start_worker(queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    CHECK(runs_wait(&runs, 2));
    CHECK(runs_first(&runs, "done here 1") < runs_first(&runs, "done here 2"));
    put_in_sql(&two, there, "done there 3");
    put_in_sql(&two, here, "done here 3");
    CHECK(runs_wait_for(&runs, "done here 3", 1));
    CHECK_INT(runs_count(&runs), 3);
    let_in(true);
    CHECK(runs_wait(&runs, 6));
    CHECK(runs_first(&runs, "done there 1") < runs_first(&runs, "done there 2"));
    CHECK(runs_first(&runs, "done there 2") < runs_first(&runs, "done there 3"));
    drain_and_close(worker);
    kl_queue_close(queue);
    kl_store_close(store);
    kl_arena_free(&arena);
    runs_free(&runs);
    close_two(&two);
}

static void let_log_in(bool may)
{
    pg_server_run(may ? "ALTER ROLE other LOGIN" : "ALTER ROLE other NOLOGIN");
    if (!may)
        pg_server_run("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE usename = 'other'");
}

TEST(tasks_put_in_sql_stay_in_their_order_while_the_database_of_their_partition_refuses_the_login)
{
    struct two two;
    struct runs runs;
    kl_arena arena = {0};
    kl_queue_info info;
    char sql[128];
    pg_server_run("CREATE ROLE other SUPERUSER LOGIN");
    REQUIRE(open_two_as(&two, "&user=other"));
    runs_init(&runs);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    const char *here = key_of(&info, 0), *there = key_of(&info, 1);
    kl_worker *worker = start_worker(two.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_in_sql(&two, there, "done there 1");
    CHECK(runs_wait(&runs, 1));
    let_log_in(false);
    put_in_sql(&two, there, "done there 2");
    put_in_sql(&two, there, "done there 3");
    for (size_t i = 2; i < 4; i++) { /* with the second of them, what was tried beside the first has come to its end */
        put_in_sql(&two, here, "done here");
        CHECK(runs_wait(&runs, i));
    }
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.inbox WHERE refused IS NULL", two.schema);
    CHECK_INT(pg_server_number(sql), 2);
    let_log_in(true);
    CHECK(runs_wait(&runs, 5));
    CHECK_INT(runs_of(&runs, "done there 2"), 1);
    CHECK(runs_first(&runs, "done there 2") < runs_first(&runs, "done there 3"));
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    close_two(&two);
    pg_server_run("DROP ROLE other");
}

static void run_there(const struct two *two, const char *format)
{
    char url[PG_URL_BYTES + 32] = "", plain[PG_URL_BYTES], sql[400];
    CHECK_INT(pg_server_url(plain), KL_OK);
    snprintf(url, sizeof url, "%s%cdbname=second", plain, strchr(plain, '?') ? '&' : '?');
    snprintf(sql, sizeof sql, format, two->schema, two->schema, two->schema);
    PGconn *conn = PQconnectdb(url);
    PGresult *rows = PQexec(conn, sql);
    if (PQresultStatus(rows) != PGRES_COMMAND_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", sql, PQerrorMessage(conn));
    PQclear(rows);
    PQfinish(conn);
}

TEST(tasks_put_in_sql_do_not_wait_for_those_whose_database_fails)
{
    struct two two;
    kl_arena arena = {0};
    kl_queue_info info;
    size_t count = 0;
    char sql[256];
    REQUIRE(open_two(&two));
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    run_there(&two, "CREATE FUNCTION %s.fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'it fails'; END$$; "
                    "CREATE TRIGGER fail BEFORE INSERT ON %s.entries FOR EACH ROW EXECUTE FUNCTION %s.fail()");
    put_in_sql(&two, key_of(&info, 1), "there");
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'here', key => '%s', unique_key => 'once')", two.schema,
             key_of(&info, 0));
    pg_server_run(sql);
    CHECK_INT(kl__queue_take_in(two.queue, 0, NULL, NULL, &count), KL_OK);
    CHECK_INT(tasks_in(NULL, two.schema), 1);
    CHECK_INT(kl__queue_take_in(two.queue, 0, NULL, NULL, &count), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "it fails");
    run_there(&two, "DROP TRIGGER fail ON %s.entries");
    CHECK_INT(kl__queue_take_in_all(two.queue, KL_FOREVER), KL_OK);
    CHECK_INT(tasks_in("second", two.schema), 1);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    CHECK_STR(info.refused_why, "");
    kl_arena_free(&arena);
    close_two(&two);
}

TEST(a_queue_is_not_made_in_a_database_that_is_away)
{
    struct two two;
    kl_store *store = NULL;
    kl_queue *queue = NULL, *other = NULL;
    REQUIRE(open_two(&two));
    let_in(false);
    queue = open_again(&two, &store);
    const char *stores[] = {"", two.other};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .stores = stores, .store_count = 2};
    CHECK_INT(kl_queue_open(store, "others", &opts, &other), KL_EBUSY);
    CHECK_INT(kl_queue_find(store, "others", &other), KL_ENOTFOUND);
    let_in(true);
    kl_queue_close(queue);
    kl_store_close(store);
    close_two(&two);
}

TEST(a_limit_on_the_queue_needs_no_database_but_the_queues_own)
{
    struct two two = {.store = NULL};
    struct runs runs;
    kl_store *store = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    const char *stores[] = {two.other, ""};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .stores = stores, .store_count = 2, .concurrency = 4};
    REQUIRE(pg_server_new_schema(two.url, two.schema) == KL_OK);
    pg_server_run("CREATE DATABASE second");
    snprintf(two.other, sizeof two.other, "%s&dbname=second", two.url);
    REQUIRE(kl_store_open(two.url, NULL, &two.store) == KL_OK);
    REQUIRE(kl_queue_open(two.store, "orders", &opts, &two.queue) == KL_OK);
    runs_init(&runs);
    CHECK_INT(kl_queue_show(two.queue, &arena, &info), KL_OK);
    put_task(two.queue, key_of(&info, 1), "done here");
    put_task(two.queue, key_of(&info, 0), "done there");
    let_in(false);
    kl_queue *queue = open_again(&two, &store);
    REQUIRE(queue);
    kl_worker *worker = start_worker(queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    CHECK(runs_wait_for(&runs, "done here", 1));
    let_in(true);
    CHECK(runs_wait_for(&runs, "done there", 1));
    drain_and_close(worker);
    kl_queue_close(queue);
    kl_store_close(store);
    kl_arena_free(&arena);
    runs_free(&runs);
    close_two(&two);
}

/* --- A row that is taken in twice --- */

/* A queue of two partitions, and a row of the inbox that is put, and then cannot be taken out. */
static bool open_stuck(struct two *two, const char *options)
{
    char sql[512];
    size_t count = 0;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2};
    *two = (struct two){.store = NULL};
    if (pg_server_new_schema(two->url, two->schema) != KL_OK || kl_store_open(two->url, NULL, &two->store) != KL_OK ||
        kl_queue_open(two->store, "orders", &opts, &two->queue) != KL_OK)
        return false;
    snprintf(sql, sizeof sql,
             "CREATE FUNCTION %s.stay() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
             "IF OLD.payload = 'first' THEN RAISE 'it stays'; END IF; RETURN OLD; END$$; "
             "CREATE TRIGGER stay BEFORE DELETE ON %s.inbox FOR EACH ROW EXECUTE FUNCTION %s.stay()",
             two->schema, two->schema, two->schema);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'first', unique_key => 'once'%s)", two->schema, options);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'next', key => 'a')", two->schema);
    pg_server_run(sql);
    CHECK_INT(kl__queue_take_in(two->queue, 0, NULL, NULL, &count), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "it stays");
    CHECK_INT(tasks_in(NULL, two->schema), 2); /* what is behind it is not held up */
    return true;
}

static void let_go(struct two *two, uint64_t refused, long long tasks)
{
    char sql[128];
    kl_queue_info info;
    kl_arena arena = {0};
    snprintf(sql, sizeof sql, "DROP TRIGGER stay ON %s.inbox", two->schema);
    pg_server_run(sql);
    CHECK_INT(kl__queue_take_in_all(two->queue, KL_FOREVER), KL_OK);
    CHECK_INT(tasks_in(NULL, two->schema), tasks);
    CHECK_INT(kl_queue_show(two->queue, &arena, &info), KL_OK);
    CHECK_INT(info.refused, refused);
    kl_arena_free(&arena);
    kl_queue_close(two->queue);
    kl_store_close(two->store);
    drop(two->schema);
}

static void take_in_with_one_partition(struct two *two)
{
    kl_queue_opts one = {.size = sizeof one, .partitions = 1};
    CHECK_INT(kl_queue_alter(two->queue, &one), KL_OK);
    let_go(two, 0, 2);
}

TEST(a_row_without_a_key_is_the_same_call_when_it_is_taken_in_again_in_another_layout)
{
    struct two two;
    REQUIRE(open_stuck(&two, ""));
    take_in_with_one_partition(&two);
}

TEST(a_row_that_names_a_partition_is_the_same_call_when_it_is_taken_in_again_and_that_is_gone)
{
    struct two two;
    REQUIRE(open_stuck(&two, ", partition => 'orders__p1'"));
    take_in_with_one_partition(&two);
}

TEST(a_row_that_was_changed_after_it_was_put_is_set_aside_and_holds_up_nobody)
{
    struct two two;
    char sql[128];
    REQUIRE(open_stuck(&two, ""));
    snprintf(sql, sizeof sql, "UPDATE %s.inbox SET payload = 'other' WHERE payload = 'first'", two.schema);
    pg_server_run(sql);
    let_go(&two, 1, 2);
}

TEST(tasks_that_are_put_one_by_one_hold_up_only_their_own_keys)
{
    struct two two = {.store = NULL};
    char sql[256];
    size_t count = 0;
    REQUIRE(pg_server_new_schema(two.url, two.schema) == KL_OK && kl_store_open(two.url, NULL, &two.store) == KL_OK &&
            kl_queue_open(two.store, "orders", NULL, &two.queue) == KL_OK);
    snprintf(sql, sizeof sql,
             "SELECT %s.put('orders', 'one', key => 'a', unique_key => n::text) FROM generate_series(1, 100) n",
             two.schema);
    pg_server_run(sql);
    for (const char *key = "ab"; *key; key++) {
        snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'last', key => '%c')", two.schema, *key);
        pg_server_run(sql);
    }
    CHECK_INT(kl__queue_take_in(two.queue, 0, NULL, NULL, &count), KL_OK);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.inbox WHERE payload = 'last'", two.schema);
    CHECK_INT(pg_server_number(sql), 1); /* that of b is in */
    CHECK_INT(kl__queue_take_in_all(two.queue, KL_FOREVER), KL_OK);
    CHECK_INT(tasks_in(NULL, two.schema), 102);
    kl_queue_close(two.queue);
    kl_store_close(two.store);
    drop(two.schema);
}

/* --- Calls that come to nothing --- */

/* What happens to the calls that follow: which is shown to nobody, and which is not made. */
static int calls, blind_call, lost_call;

struct shown {
    kl_take_fn *take;
    void *ctx;
};

static kl_rc look_only(void *ctx, const kl_handed *handed, size_t count, kl_taken *ret_taken)
{
    kl_taken ignored = {0};
    const struct shown *shown = ctx;
    CHECK_INT(shown->take(shown->ctx, handed, count, &ignored), KL_OK);
    *ret_taken = (kl_taken){0};
    return KL_OK;
}

/* Shown once, and not when the call was made again because its transaction had failed: somebody else is at it. */
static kl_rc take_in_badly(void *self, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                           size_t *ret_count)
{
    kl_store *inner = ((struct lossy *)self)->inner;
    int call = ++calls;
    if (call == lost_call)
        return kl__fail(KL_EBUSY, "no answer has come");
    if (call != blind_call)
        return kl_store_take_in(inner, queue, wait_ms, max, take, ctx, ret_count);
    struct shown shown = {take, ctx};
    kl_rc rc = kl_store_take_in(inner, queue, wait_ms, max, look_only, &shown, ret_count);
    *ret_count = 0;
    return rc;
}

struct badly {
    struct two two;
    struct lossy lossy;
    kl_store *store;
    kl_queue *queue;
};

static bool open_badly(struct badly *badly)
{
    *badly = (struct badly){.store = NULL};
    calls = blind_call = lost_call = 0;
    struct two *two = &badly->two;
    if (pg_server_new_schema(two->url, two->schema) != KL_OK || kl_store_open(two->url, NULL, &two->store) != KL_OK ||
        lossy_open(&badly->lossy, two->store, 1, &badly->store) != KL_OK)
        return false;
    badly->lossy.replies_lost = badly->lossy.requests_lost = 0;
    badly->lossy.engine.take_in = take_in_badly;
    return kl_queue_open(badly->store, "orders", NULL, &badly->queue) == KL_OK;
}

static void close_badly(struct badly *badly)
{
    kl_queue_close(badly->queue);
    kl_store_close(badly->store);
    kl_store_close(badly->two.store);
    drop(badly->two.schema);
}

static void put_unique(const struct badly *badly, const char *payload)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', '%s', key => 'k', unique_key => '%s')", badly->two.schema,
             payload, payload);
    pg_server_run(sql);
}

TEST(what_was_shown_by_a_call_that_came_to_nothing_is_not_put)
{
    struct badly badly;
    char sql[256];
    size_t count = 0;
    REQUIRE(open_badly(&badly));
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'first', key => 'k')", badly.two.schema);
    pg_server_run(sql);
    put_unique(&badly, "second");
    blind_call = 1;
    CHECK_INT(kl__queue_take_in(badly.queue, 0, NULL, NULL, &count), KL_OK);
    CHECK_INT(count, 0);
    CHECK_INT(tasks_in(NULL, badly.two.schema), 0);
    CHECK_INT(kl__queue_take_in(badly.queue, 0, NULL, NULL, &count), KL_OK);
    CHECK_INT(tasks_in(NULL, badly.two.schema), 2);
    close_badly(&badly);
}

TEST(a_refused_row_stays_when_those_before_it_cannot_be_taken_out)
{
    struct badly badly;
    char sql[256];
    size_t count = 0;
    REQUIRE(open_badly(&badly));
    put_unique(&badly, "one");
    put_unique(&badly, "other");
    lost_call = 2; /* both are put, and stay */
    CHECK_INT(kl__queue_take_in(badly.queue, 0, NULL, NULL, &count), KL_EBUSY);
    snprintf(sql, sizeof sql, "UPDATE %s.inbox SET payload = 'changed' WHERE payload = 'other'", badly.two.schema);
    pg_server_run(sql);
    lost_call = 4;
    CHECK_INT(kl__queue_take_in(badly.queue, 0, NULL, NULL, &count), KL_EBUSY);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.inbox", badly.two.schema);
    CHECK_INT(pg_server_number(sql), 2);
    CHECK_INT(kl__queue_take_in(badly.queue, 0, NULL, NULL, &count), KL_OK);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.inbox WHERE payload = 'changed' AND refused IS NOT NULL",
             badly.two.schema);
    CHECK_INT(pg_server_number(sql), 1); /* for people to see */
    CHECK_INT(tasks_in(NULL, badly.two.schema), 2);
    close_badly(&badly);
}
