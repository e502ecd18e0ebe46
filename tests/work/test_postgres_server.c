/* test_postgres_server.c - what whoever runs the server sees of the store, and what the store makes of the server's
 * settings.
 *
 * Part of test-postgres. Settings of the server are taken back at the end of each test. */
#include <dlfcn.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "queue/inside.h"
#include "store/pg_server.h"
#include "store/quick.h"
#include "work/support.h"

struct bed {
    kl_store *store;
    kl_queue *queue;
    char url[PG_URL_BYTES], schema[64];
};

static bool open_bed(struct bed *bed)
{
    *bed = (struct bed){.store = NULL};
    bool good = pg_server_new_schema(bed->url, bed->schema) == KL_OK &&
                kl_store_open(bed->url, NULL, &bed->store) == KL_OK &&
                kl_queue_open(bed->store, "orders", NULL, &bed->queue) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no queue: %s", kl_error_text());
    return good;
}

static void close_bed(struct bed *bed)
{
    char sql[128];
    kl_queue_close(bed->queue);
    kl_store_close(bed->store);
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", bed->schema);
    pg_server_run(sql);
}

static PGconn *connect_app(const struct bed *bed)
{
    char sql[128];
    PGconn *app = pg_server_connect();
    snprintf(sql, sizeof sql, "SET search_path = %s, public", bed->schema);
    PQclear(PQexec(app, sql));
    return app;
}

static void say(PGconn *app, const char *sql)
{
    PGresult *rows = PQexec(app, sql);
    ExecStatusType status = PQresultStatus(rows);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", sql, PQerrorMessage(app));
    PQclear(rows);
}

/* --- Commits that are held up --- */

static bool waits_for_replica(void *ctx)
{
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep'",
             PQbackendPID(ctx));
    return pg_server_number(sql) == 1;
}

static bool waits_or_ends(void *held)
{
    return waits_for_replica(held) || (PQconsumeInput(held) == 1 && !PQisBusy(held));
}

static void end_call(PGconn *app)
{
    for (PGresult *rows; (rows = PQgetResult(app)); PQclear(rows))
        CHECK_INT(PQresultStatus(rows), PGRES_TUPLES_OK);
}

static void set_replicas(const char *names)
{
    char sql[128];
    snprintf(sql, sizeof sql, "ALTER SYSTEM SET synchronous_standby_names = '%s'", names);
    pg_server_run(sql);
    pg_server_run("SELECT pg_reload_conf()");
}

/* Puts until a commit is held up: the server takes its time to learn of the setting. Returns how many tasks that
 * are. */
static size_t put_until_held(PGconn *held)
{
    size_t count = 0;
    bool waits = false;
    while (!waits) {
        CHECK(PQsendQuery(held, "SELECT put('orders', 'done')") == 1);
        count++;
        await_condition("a commit ends or is held up", waits_or_ends, held);
        waits = waits_for_replica(held);
        if (!waits)
            end_call(held);
    }
    return count;
}

/* A replica that never answers holds up one commit; the limit is for a test that fails. */
TEST(a_put_in_sql_whose_commit_is_held_up_holds_up_no_other)
{
    enum { OTHERS = 8 };
    struct bed bed;
    PGconn *others[OTHERS];
    size_t count = 1, sum = 0;
    REQUIRE(open_bed(&bed));
    PGconn *held = connect_app(&bed);
    for (int i = 0; i < OTHERS; i++) {
        others[i] = connect_app(&bed);
        say(others[i], "SET synchronous_commit = local; SET statement_timeout = '20s'");
    }
    set_replicas("nobody");
    size_t puts = OTHERS + put_until_held(held);
    for (int i = 0; i < OTHERS; i++)
        say(others[i], "SELECT put('orders', 'done')");
    CHECK(waits_for_replica(held));
    set_replicas("");
    end_call(held);
    for (; count > 0; sum += count)
        CHECK_INT(kl__queue_take_in(bed.queue, 0, NULL, NULL, &count), KL_OK);
    CHECK_INT(sum, puts);
    for (int i = 0; i < OTHERS; i++)
        PQfinish(others[i]);
    PQfinish(held);
    close_bed(&bed);
}

/* --- Connections --- */

/* Who may come in how; the old text is to be freed. */
static char *read_rules(char path[512])
{
    PGconn *app = pg_server_connect();
    PGresult *rows = PQexec(app, "SELECT current_setting('hba_file'), pg_read_file(current_setting('hba_file'))");
    snprintf(path, 512, "%s", PQgetvalue(rows, 0, 0));
    char *text = strdup(PQgetvalue(rows, 0, 1));
    PQclear(rows);
    PQfinish(app);
    return text;
}

static void write_rules(const char *path, const char *first, const char *rest)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fprintf(file, "%s%s", first, rest) > 0 && fclose(file) == 0);
    pg_server_run("SELECT pg_reload_conf()");
}

static bool password_is_wanted(void *url)
{
    PGconn *conn = PQconnectdb(url);
    bool wanted = PQconnectionNeedsPassword(conn);
    PQfinish(conn);
    return wanted;
}

TEST(a_password_that_is_missing_is_asked_for_and_is_no_server_that_is_away)
{
    char url[PG_URL_BYTES + 64], path[512];
    kl_store *store = NULL;
    REQUIRE(pg_server_url(url) == KL_OK);
    char *rules = read_rules(path);
    setenv("PGPASSFILE", "/nowhere", 1);
    pg_server_run("CREATE ROLE with_password LOGIN PASSWORD 'x'");
    write_rules(path, "local all with_password scram-sha-256\n", rules);
    snprintf(url + strlen(url), 64, "&user=with_password");
    await_condition("the server wants a password", password_is_wanted, url);
    CHECK_INT(kl_store_open(url, NULL, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "supply a password");
    write_rules(path, "", rules);
    pg_server_run("DROP ROLE with_password");
    unsetenv("PGPASSFILE");
    free(rules);
}

/* Descriptors that a program which is started here would have, too. */
static int inherited(void)
{
    enum { DESCRIPTORS = 256 };
    int count = 0;
    for (int i = 0; i < DESCRIPTORS; i++) {
        int flags = fcntl(i, F_GETFD);
        count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
    }
    return count;
}

/* One that goes on would keep the listener from its end. */
TEST(a_program_that_is_started_gets_none_of_the_store_s_descriptors)
{
    struct bed bed;
    char url[PG_URL_BYTES];
    uint32_t partition = 0;
    uint64_t seen = 0;
    REQUIRE(pg_server_url(url) == KL_OK);
    int before = inherited();
    REQUIRE(open_bed(&bed));
    CHECK_INT(kl_store_partition(bed.store, "other", 2, &partition), KL_OK);
    CHECK_INT(kl_store_wait(bed.store, partition, 0, &seen), KL_OK); /* which listens */
    CHECK_INT(inherited(), before);
    close_bed(&bed);
}

TEST(connections_bear_the_program_s_name)
{
    struct bed bed;
    char url[PG_URL_BYTES];
    kl_store *store = NULL;
    int64_t ms;
    REQUIRE(open_bed(&bed));
    snprintf(url, sizeof url, "%s", bed.url);
    *strstr(url, "&application_name") = '\0';
    CHECK_INT(kl_store_open(url, NULL, &store), KL_OK);
    CHECK_INT(kl_store_now(store, &ms), KL_OK);
    CHECK(pg_server_number("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'keyline'") >= 1);
    kl_store_close(store);
    close_bed(&bed);
}

/* As pg_restore --clean leaves it, to connections that stay. */
TEST(a_worker_notices_that_its_partitions_are_another_table)
{
    struct bed bed;
    char sql[768];
    int64_t ms;
    uint64_t news;
    REQUIRE(open_bed(&bed));
    const char *s = bed.schema;
    snprintf(
        sql, sizeof sql,
        "CREATE TABLE %s.other (LIKE %s.partitions INCLUDING ALL); INSERT INTO %s.other SELECT * FROM %s.partitions;"
        "DROP TABLE %s.partitions; ALTER TABLE %s.other RENAME TO partitions",
        s, s, s, s, s, s);
    CHECK_INT(kl__store_pulse(bed.store, &ms, &news), KL_OK);
    pg_server_run(sql);
    CHECK_INT(kl__store_pulse(bed.store, &ms, &news), KL_OK);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "UPDATE %s.partitions SET name = name || '-'", s);
    pg_server_run(sql);
    CHECK_INT(kl__store_pulse(bed.store, &ms, &news), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "was replaced");
    CHECK_INT(kl_store_now(bed.store, &ms), KL_ESYSTEM);
    close_bed(&bed);
}

/* --- Taking in --- */

static void refuse(PGconn *app, const char *sql, const char *says)
{
    PGresult *rows = PQexec(app, sql);
    CHECK_INT(PQresultStatus(rows), PGRES_FATAL_ERROR);
    CHECK_CONTAINS(PQerrorMessage(app), says);
    PQclear(rows);
}

static long long limit_at(const struct bed *bed, const char *at)
{
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT coalesce(max(ms), -1) FROM %s.limits WHERE at = '%s'", bed->schema, at);
    return pg_server_number(sql);
}

/* The host of who takes in may be gone without a word, and appends to the same shards wait for its locks. */
TEST(the_server_ends_a_take_in_that_it_hears_nothing_of)
{
    struct bed bed;
    REQUIRE(open_bed(&bed));
    PGconn *app = connect_app(&bed);
    say(app, "CREATE TABLE limits (at text, ms int); CREATE FUNCTION note(at text) RETURNS void LANGUAGE sql AS"
             " $$ INSERT INTO limits SELECT at, setting::int FROM pg_settings"
             " WHERE name = 'idle_in_transaction_session_timeout' $$");
    say(app, "BEGIN; SELECT * FROM inbox_read('orders', 0, 1, 1); SELECT note('inside'); COMMIT; SELECT note('after')");
    say(app, "SET idle_in_transaction_session_timeout = '1s'");
    say(app, "BEGIN; SELECT * FROM inbox_read('orders', 0, 1, 1); SELECT note('shorter'); COMMIT");
    CHECK_INT(limit_at(&bed, "inside"), 5000);
    CHECK_INT(limit_at(&bed, "after"), 0);
    CHECK_INT(limit_at(&bed, "shorter"), 1000);
    PQfinish(app);
    close_bed(&bed);
}

/* Such a database takes any bytes as text; to read what is not UTF-8 would fail for the whole queue, every time. */
TEST(options_that_are_not_utf8_are_refused_in_the_application_s_transaction)
{
    static const char *const options[] = {"tags => ARRAY[E'\\xff']", "unique_key => E'\\xff'",
                                          "headers => jsonb_build_object('name', E'\\xff')"};
    struct bed bed = {.store = NULL};
    char plain[PG_URL_BYTES], url[PG_URL_BYTES + 16], sql[256];
    size_t count = 0;
    REQUIRE(pg_server_new_schema(bed.url, bed.schema) == KL_OK && pg_server_url(plain) == KL_OK);
    pg_server_run("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0");
    snprintf(url, sizeof url, "%s&dbname=bytes", bed.url);
    REQUIRE(kl_store_open(url, NULL, &bed.store) == KL_OK);
    REQUIRE(kl_queue_open(bed.store, "orders", NULL, &bed.queue) == KL_OK);
    snprintf(url, sizeof url, "%s%cdbname=bytes", plain, strchr(plain, '?') ? '&' : '?');
    PGconn *app = PQconnectdb(url);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'x', %s)", bed.schema, options[i]);
        refuse(app, sql, "invalid byte sequence");
    }
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', 'x', tags => ARRAY['a'])", bed.schema);
    say(app, sql);
    CHECK_INT(kl__queue_take_in(bed.queue, 0, NULL, NULL, &count), KL_OK);
    CHECK_INT(count, 1);
    PQfinish(app);
    close_bed(&bed);
    pg_server_run("DROP DATABASE bytes WITH (FORCE)");
}

/* --- The schema --- */

/* Between releases steps change where they stand. */
TEST(a_schema_that_was_made_by_other_steps_is_refused_with_what_to_do)
{
    static const char *const changes[] = {"UPDATE meta SET steps = reverse(steps)",
                                          "UPDATE meta SET version = 1", /* its steps are those of two */
                                          "ALTER TABLE meta DROP COLUMN steps"};
    struct bed bed;
    char url[PG_URL_BYTES + 16];
    kl_store *store = NULL;
    REQUIRE(open_bed(&bed));
    PGconn *app = connect_app(&bed);
    snprintf(url, sizeof url, "%s&migrate=off", bed.url);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        say(app, changes[i]);
        CHECK_INT(kl_store_open(bed.url, NULL, &store), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "made by another build");
        CHECK_CONTAINS(kl_error_text(), "DROP SCHEMA keyline_test_");
        CHECK_INT(kl_store_open(url, NULL, &store), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "made by another build");
    }
    PQfinish(app);
    close_bed(&bed);
}

TEST(functions_that_stand_in_the_schema_already_are_left_alone)
{
    char url[PG_URL_BYTES], schema[64], sql[512];
    kl_store *store = NULL;
    REQUIRE(pg_server_new_schema(url, schema) == KL_OK);
    snprintf(sql, sizeof sql,
             "CREATE SCHEMA %s; CREATE PROCEDURE %s.act() LANGUAGE sql AS 'SELECT 1';"
             "CREATE FUNCTION %s.mine() RETURNS int LANGUAGE sql SET search_path = public AS 'SELECT 1'",
             schema, schema, schema);
    pg_server_run(sql);
    CHECK_INT(kl_store_open(url, NULL, &store), KL_OK);
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_proc WHERE pronamespace = '%s'::regnamespace"
             " AND (proconfig IS NULL OR proconfig = ARRAY['search_path=public'])",
             schema);
    CHECK_INT(pg_server_number(sql), 2);
    kl_store_close(store);
    snprintf(sql, sizeof sql, "DROP SCHEMA %s CASCADE", schema);
    pg_server_run(sql);
}

/* --- A standby --- */

TEST(who_puts_to_a_standby_is_told_at_once_to_name_the_primary)
{
    struct bed bed;
    char url[PG_URL_BYTES + 80];
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_put task = {.payload = kl_str("done")};
    REQUIRE(open_bed(&bed));
    REQUIRE(pg_standby_url(url) == KL_OK);
    snprintf(url + strlen(url), 80, "&schema=%s", bed.schema);
    REQUIRE(kl_store_open(url, NULL, &store) == KL_OK && kl_queue_find(store, "orders", &queue) == KL_OK);
    CHECK_INT(kl_queue_put(queue, &task, 1, kl_str("name"), NULL), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "name the primary");
    kl_queue_close(queue);
    kl_store_close(store);
    close_bed(&bed);
}

TEST(who_opens_a_store_that_is_to_be_made_on_a_standby_is_told_the_same)
{
    char url[PG_URL_BYTES + 80];
    kl_store *store = NULL;
    REQUIRE(pg_standby_url(url) == KL_OK);
    snprintf(url + strlen(url), 80, "&schema=never_made");
    CHECK_INT(kl_store_open(url, NULL, &store), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "name the primary");
    kl_store_close(store);
}

/* --- Several hosts --- */

/* A port on which nobody answers: its line is full, so the kernel drops whoever comes. */
struct deaf {
    int listens, fills, port;
};

static bool open_deaf(struct deaf *deaf)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    deaf->listens = socket(AF_INET, SOCK_STREAM, 0);
    deaf->fills = socket(AF_INET, SOCK_STREAM, 0);
    bool good = bind(deaf->listens, (struct sockaddr *)&name, size) == 0 && listen(deaf->listens, 0) == 0 &&
                getsockname(deaf->listens, (struct sockaddr *)&name, &size) == 0 &&
                connect(deaf->fills, (struct sockaddr *)&name, size) == 0;
    deaf->port = ntohs(name.sin_port);
    return good;
}

static void close_deaf(const struct deaf *deaf)
{
    close(deaf->listens);
    close(deaf->fills);
}

TEST(a_host_that_lets_the_connection_wait_is_left_out_and_the_primary_behind_it_is_found)
{
    struct deaf deaf;
    char url[PG_URL_BYTES + 80], plain[PG_URL_BYTES], schema[64], sql[128];
    kl_store *store = NULL;
    int64_t ms;
    const char *host = pg_standby_url(plain) == KL_OK ? strstr(plain, "host=") : NULL;
    REQUIRE(host && pg_server_new_schema(url, schema) == KL_OK && open_deaf(&deaf));
    int length = (int)strcspn(host += strlen("host="), "&");
    snprintf(url, sizeof url,
             "postgres:///postgres?host=%.*s,127.0.0.1,%.*s&port=5433,%d,5432&user=postgres&schema=%s"
             "&target_session_attrs=read-write&connect_timeout=2",
             length, host, length, host, deaf.port, schema);
    CHECK_INT(kl_store_open(url, NULL, &store), KL_OK);
    CHECK(store && kl_store_now(store, &ms) == KL_OK);
    kl_store_close(store);
    close_deaf(&deaf);
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", schema);
    pg_server_run(sql);
}

TEST(hosts_that_all_let_the_connection_wait_are_away)
{
    struct deaf deaf;
    char url[PG_URL_BYTES];
    kl_store *store = NULL;
    REQUIRE(open_deaf(&deaf));
    snprintf(url, sizeof url, "postgres://127.0.0.1:%d,127.0.0.1:%d/postgres?user=postgres&connect_timeout=1",
             deaf.port, deaf.port);
    CHECK_INT(kl_store_open(url, NULL, &store), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "it does not answer");
    close_deaf(&deaf);
}

/* The name "twofold" has the first two addresses of this host. libpq asks here, too. */
__attribute__((visibility("default"))) int getaddrinfo(const char *name, const char *service,
                                                       const struct addrinfo *hints, struct addrinfo **ret_all)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    struct addrinfo *second = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, "twofold") != 0)
        return real(name, service, hints, ret_all);
    int failed = real("127.0.0.1", service, hints, ret_all);
    if (!failed && real("127.0.0.2", service, hints, &second) == 0)
        (*ret_all)->ai_next = second;
    return failed;
}

/* Nobody listens at the other one, which says so at once. */
TEST(an_address_that_lets_the_connection_wait_is_left_out_and_the_others_of_its_name_are_tried)
{
    struct deaf deaf;
    char url[PG_URL_BYTES];
    kl_store *store = NULL;
    REQUIRE(open_deaf(&deaf));
    snprintf(url, sizeof url, "postgres://twofold:%d/postgres?user=postgres&connect_timeout=2", deaf.port);
    CHECK_INT(kl_store_open(url, NULL, &store), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "127.0.0.2");
    close_deaf(&deaf);
}
