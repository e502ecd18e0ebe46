/* test_conformance_postgres.c - the PostgreSQL engine keeps the contract, on a real server.
 *
 * Each claim has a schema for itself, which is emptied when it is over. Random claims do less than elsewhere, because
 * every call is a round trip and every write a commit; KL_TEST_OPS asks for more.
 *
 * The claims below are of this engine alone: what it does when connections are lost, and what its rows are. */
#include <stdlib.h>

#include "base/random.h"
#include "store/calls.h"
#include "store/conformance.h"
#include "store/pg_clock.h"
#include "store/pg_server.h"
#include "store/pg_trial.h"
#include "store/quick.h"

static kl_rc reopen_postgres(void *place, const kl_store_opts *opts, kl_store **ret_store)
{
    struct pg_place *its = place;
    return pg_clock_open(its->url, opts, ret_store);
}

/* A schema that nobody uses just now; making one takes a quarter of a second. */
static struct pg_place *spare;

/* As it was when it was made. */
static void empty_schema(const char *schema)
{
    char sql[1024];
    snprintf(sql, sizeof sql,
             "DO $$ DECLARE names text; BEGIN"
             " SELECT string_agg(format('%%I.%%I', n.nspname, c.relname), ', ') INTO names"
             " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
             " WHERE n.nspname = '%s' AND c.relkind = 'r' AND c.relname NOT IN ('meta', 'test_clock')"
             " AND pg_relation_size(c.oid) > 0;"
             " IF names IS NOT NULL THEN EXECUTE 'TRUNCATE ' || names; END IF; END $$;"
             "ALTER SEQUENCE %s.clock RESTART; ALTER SEQUENCE %s.segment_in_use RESTART;"
             "ALTER SEQUENCE %s.part_in_use RESTART;"
             "INSERT INTO %s.segments SELECT n, 0, 0, 0 FROM generate_series(1, 2) AS n;"
             "SELECT %s.note_started();"
             "UPDATE %s.test_clock SET ms = 0; ALTER SEQUENCE %s.positions RESTART",
             schema, schema, schema, schema, schema, schema, schema, schema);
    pg_server_run(sql);
}

static void drop_postgres(void *place)
{
    struct pg_place *its = place;
    if (!its)
        return;
    its->url[its->url_length] = '\0';
    empty_schema(its->schema);
    free(spare);
    spare = its;
}

static kl_rc open_postgres(const kl_store_opts *opts, void **ret_place, kl_store **ret_store)
{
    struct pg_place *its = spare ? spare : calloc(1, sizeof *its);
    if (!its)
        return kl__fail_memory();
    kl_rc rc = its == spare ? KL_OK : pg_server_new_schema(its->url, its->schema);
    spare = NULL;
    its->url_length = strlen(its->url);
    if (rc == KL_OK)
        rc = reopen_postgres(its, opts, ret_store);
    if (rc != KL_OK)
        free(its);
    else
        *ret_place = its;
    return rc;
}

enum { OPERATIONS = 600 };

__attribute__((constructor)) static void do_less(void)
{
    char operations[16];
    snprintf(operations, sizeof operations, "%d", OPERATIONS);
    setenv("KL_TEST_OPS", operations, 0);
}

const struct subject subject = {
    .name = "postgres", .clocked = true, .open = open_postgres, .reopen = reopen_postgres, .destroy = drop_postgres};

/* ---- What is not in the contract ---- */

const char *schema_of(const struct trial *t) { return ((const struct pg_place *)t->place)->schema; }

static void name_schema(const struct trial *t, const char *sql, char ret_text[PG_SQL_BYTES])
{
    size_t length = 0;
    for (const char *at = sql; *at && length < PG_SQL_BYTES - 64; at += strncmp(at, "$S", 2) == 0 ? 2 : 1)
        if (strncmp(at, "$S", 2) == 0)
            length += (size_t)snprintf(ret_text + length, PG_SQL_BYTES - length, "%s", schema_of(t));
        else
            ret_text[length++] = *at;
    ret_text[length] = '\0';
}

void run_there(const struct trial *t, const char *sql)
{
    char text[PG_SQL_BYTES];
    name_schema(t, sql, text);
    pg_server_run(text);
}

long long number_there(const struct trial *t, const char *sql)
{
    char text[PG_SQL_BYTES];
    name_schema(t, sql, text);
    return pg_server_number(text);
}

long long rows_of(const struct trial *t, const char *table)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM $S.%s", table);
    return number_there(t, sql);
}

/* Draws 100 numbers, and tells the last. What the sequence drew is lost with the end of the log, although a commit that
 * did not wait for the disk showed it. */
static long long draw_and_show(const struct trial *t)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "SELECT $S.append(ARRAY[gen_random_uuid()], ARRAY[%u], ARRAY[4], 100, '{}', '{}', true, '{}', '{}', '{}',"
             " '{}', '{}', '{}', '{}', '{}', '{}', NULL, NULL, '{}')",
             t->orders);
    return number_there(t, sql) + 99;
}

CLAIM(positions_ascend_when_the_server_crashed_before_it_wrote_its_log)
{
    enum { CRASHES = 3 };
    long long last = 0;
    pg_server_run("ALTER SYSTEM SET wal_writer_delay = '10s'");
    pg_server_run("SELECT pg_reload_conf()");
    for (int i = 0; i < CRASHES; i++) {
        long long first = draw_and_show(t) - 99;
        CHECK(first > last);
        last = draw_and_show(t);
        CHECK(last > first);
        if (!pg_server_crash())
            break;
    }
    CHECK(draw_and_show(t) - 99 > last);
    pg_server_run("ALTER SYSTEM RESET wal_writer_delay");
    pg_server_run("SELECT pg_reload_conf()");
}

/* Somebody else appends the entry, under the token, and is lost before he waits for the disk. Returns where the log
 * ends. */
static long long append_and_vanish(const struct trial *t, const kl_entry *entry, const kl_token *token)
{
    char sql[1024], id[2 * sizeof entry->id.bytes + 1], name[2 * sizeof token->bytes + 1];
    for (size_t i = 0; i < sizeof entry->id.bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", entry->id.bytes[i]);
    for (size_t i = 0; i < sizeof token->bytes; i++)
        snprintf(name + 2 * i, 3, "%02x", token->bytes[i]);
    snprintf(sql, sizeof sql,
             "BEGIN; SET LOCAL synchronous_commit = off;"
             "INSERT INTO %s.tokens (token, part) VALUES ('%s', 0);"
             "INSERT INTO %s.entries (partition, slot, last, number, tasks, segment)"
             " VALUES (%u, %u * 64 + 16, nextval('%s.positions') * 65536 + 80, 1, %s.pack(0, '%s', NULL, NULL, NULL,"
             " NULL), 1); COMMIT",
             schema_of(t), name, schema_of(t), entry->place.partition, entry->place.shard, schema_of(t), schema_of(t),
             id);
    pg_server_run(sql);
    return pg_server_number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint");
}

/* By its token, alone or with others, or because the task waits. */
CLAIM(what_is_acknowledged_is_on_disk_though_somebody_else_did_it_and_did_not_wait)
{
    enum { ROUNDS = 12 };
    pg_server_run("ALTER SYSTEM SET wal_writer_delay = '10s'");
    pg_server_run("SELECT pg_reload_conf()");
    for (int i = 0; i < ROUNDS; i++) {
        kl_token token = make_token();
        kl_entry entries[2];
        size_t count = i % 3 == 1 ? 2 : 1;
        for (size_t j = 0; j < count; j++)
            entries[j] = make_entry(t, order_place(t, 4), NULL, NULL);
        long long end = append_and_vanish(t, &entries[0], &token);
        CHECK_OK(kl_store_append(t->store, entries, count, i % 3 == 2 ? NULL : &token));
        CHECK(pg_server_number("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint") >= end);
    }
    CHECK_INT(rows_of(t, "tasks"), ROUNDS);
    pg_server_run("ALTER SYSTEM RESET wal_writer_delay");
    pg_server_run("SELECT pg_reload_conf()");
}

/* As it was written, and then the numbers in it made wrong in every way. */
CLAIM(a_row_whose_lengths_do_not_fit_its_bytes_is_an_error_and_nothing_of_it_is_shown)
{
    static const char *const wrong[] = {
        "tasks = set_byte(tasks, 1, 255)",
        "tasks = set_byte(tasks, 3, 0)",
        "tasks = set_byte(tasks, 4, 255)",
        "tasks = set_byte(tasks, 6, 255)",
        "tasks = set_byte(tasks, 7, 255)",
        "tasks = set_byte(tasks, 28, 0)",
        "tasks = substr(tasks, 1, 60)",
        "tasks = substr(tasks, 1, 49)",
        "tasks = ''::bytea",
        "number = 3",
        "number = -1",
        "tasks = tasks, number = 32767",
        "tasks = substr(tasks, 1, 50), bytes = 5000",
    };
    char sql[512];
    kl_entry entries[2];
    kl_stub stubs[4];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(entries); i++) {
        entries[i] = make_entry(t, order_place(t, 4), "key", "payload");
        entries[i].kind = kl_str("kind");
        entries[i].headers = kl_str("headers");
    }
    kl_token token = make_token();
    kl_scan scan = {.place = order_place(t, 4), .max = COUNT(stubs)};
    CHECK_OK(kl_store_append(t->store, entries, COUNT(entries), &token));
    for (size_t i = 0; i < COUNT(wrong); i++) {
        snprintf(sql, sizeof sql,
                 "CREATE TABLE %s.good AS SELECT tasks, number FROM %s.entries; UPDATE %s.entries SET %s", schema_of(t),
                 schema_of(t), schema_of(t), wrong[i]);
        pg_server_run(sql);
        CHECK_RC(scan_one(t->store, &scan, stubs, &count), KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), "shard 4 of");
        snprintf(
            sql, sizeof sql,
            "UPDATE %s.entries SET tasks = g.tasks, number = g.number, bytes = NULL FROM %s.good g; DROP TABLE %s.good",
            schema_of(t), schema_of(t), schema_of(t));
        pg_server_run(sql);
        CHECK_OK(scan_one(t->store, &scan, stubs, &count));
        CHECK_INT(count, COUNT(entries));
    }
}

CLAIM(a_batch_is_one_row_however_many_tasks_it_settles)
{
    kl_entry entries[500];
    kl_settled tasks[COUNT(entries)];
    size_t count;
    for (size_t i = 0; i < COUNT(entries); i++)
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
    append(t, entries, COUNT(entries));
    kl_stub *stubs = scan_line(t, order_place(t, 4), 0, &count);
    REQUIRE(count == COUNT(entries));
    for (size_t i = 0; i < count; i++)
        tasks[i] = next_attempt(&stubs[i], KL_DONE);
    CHECK_OK(settle(t, order_place(t, 4), 0, tasks, count));
    CHECK(rows_of(t, "settled") <= 1);
    CHECK_LINE(t, order_place(t, 4), 0, NULL, 0);
}

/* ---- Many entries at once ---- */

enum { MANY = 700 };

static void make_many(struct trial *t, kl_entry entries[MANY])
{
    static const char *const keys[] = {NULL, "anna", "bert"};
    for (uint32_t i = 0; i < MANY; i++) {
        kl_place place = i % 2 ? order_place(t, i % 16) : bill_place(t, i % 256);
        entries[i] = make_entry(t, place, keys[i % 3], i % 5 ? "payload\xff" : NULL);
        entries[i].kind = kl_str(i % 7 ? "kind" : NULL);
        entries[i].headers = kl_str(i % 11 ? NULL : "headers");
        entries[i].priority = (int32_t)(i % 32) + KL_PRIORITY_MIN;
        entries[i].due_ms = i % 4 ? 0 : START_MS + i;
        entries[i].group = (uint16_t)(i * 97);
        if (i % 6 == 0)
            entries[i].job = make_id(t, place, kl_str(NULL));
    }
}

CLAIM(many_entries_are_stored_as_few_are_and_once)
{
    static kl_entry entries[MANY];
    kl_token token = make_token();
    make_many(t, entries);
    for (int repeat = 0; repeat < 3; repeat++)
        CHECK_OK(kl_store_append(t->store, entries, MANY, &token));
    CHECK_INT(rows_of(t, "tasks"), MANY);
    BOTH_LIVES(t)
    for (size_t i = 0; i < MANY; i += 7) {
        kl_task task = read_one(t, entries[i].place, &entries[i].id);
        CHECK_INT(task.state, KL_TASK_WAITING);
        CHECK_ENTRY(&task.entry, &entries[i]);
        CHECK_INT(line_of(t, entries[i].place, &entries[i].id), entries[i].due_ms ? KL_LINE_DUE : entries[i].priority);
    }
}

CLAIM(calls_of_many_and_of_few_entries_keep_their_order)
{
    static kl_entry entries[MANY];
    static kl_task_id ids[MANY];
    for (size_t i = 0; i < MANY; i++) {
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
        ids[i] = entries[i].id;
    }
    for (size_t at = 0, step = 1; at < MANY; at += step) {
        kl_token token = make_token();
        step = at % 3 ? 100 : 3;
        step = step < MANY - at ? step : MANY - at;
        CHECK_OK(kl_store_append(t->store, entries + at, step, &token));
    }
    CHECK_LINE(t, order_place(t, 4), 0, ids, MANY);
}

CLAIM(many_entries_are_refused_whole_when_one_is_for_a_sealed_shard)
{
    static kl_entry entries[MANY];
    kl_token token = make_token();
    make_many(t, entries);
    CHECK_OK(seal(t, order_place(t, 5), 0));
    CHECK_OK(seal(t, bill_place(t, 30), 0));
    CHECK_RC(kl_store_append(t->store, entries, MANY, &token), KL_ESEALED);
    CHECK_CONTAINS(kl_error_text(), "entry 5:");
    CHECK_INT(rows_of(t, "tasks"), 0);
    CHECK_INT(rows_of(t, "tokens"), 0);
    CHECK_OK(kl_store_append(t->store, entries, 1, &token));
}

/* ---- What is kept ---- */

/* `settle` compares every task, and is not there: so settle_sure has done it all. */
CLAIM(tasks_that_a_scan_has_shown_are_kept_without_being_compared)
{
    enum { TASKS = 120, STALE = 51, TRIES = 3 };
    static kl_entry entries[MANY];
    static kl_settled outcomes[TASKS];
    static kl_settle batches[TASKS];
    static const kl_outcome ends[] = {KL_DONE, KL_DEAD, KL_CANCELLED};
    static const kl_task_state states[] = {KL_TASK_DONE, KL_TASK_DEAD, KL_TASK_CANCELLED};
    char sql[128];
    make_many(t, entries);
    CHECK_OK(kl_store_append(t->store, entries, TASKS, NULL));
    for (size_t i = 0; i < TASKS; i++) {
        outcomes[i] = outcome_of(t, entries[i].place, &entries[i].id, ends[i % COUNT(ends)]);
        outcomes[i].keep_ms = i % 10 ? KEEP_MS : 0;
        outcomes[i].attempts = TRIES;
        outcomes[i].result = kl_str(i % 4 ? "result" : NULL);
        outcomes[i].error = kl_str(i % 5 ? NULL : "error");
        batches[i] = (kl_settle){.place = entries[i].place, .tasks = &outcomes[i], .count = 1};
    }
    kl_place stale = entries[STALE].place;
    CHECK_OK(kl_store_fence(t->store, &(kl_fence){.place = stale, .epoch = 1}, 1));
    snprintf(sql, sizeof sql, "ALTER FUNCTION %s.settle RENAME TO settle_away", schema_of(t));
    pg_server_run(sql);
    CHECK_RC(kl_store_settle(t->store, batches, TASKS), KL_ESTALE);
    snprintf(sql, sizeof sql, "ALTER FUNCTION %s.settle_away RENAME TO settle", schema_of(t));
    pg_server_run(sql);
    for (size_t i = 0; i < TASKS; i++) {
        bool is_stale = entries[i].place.partition == stale.partition && entries[i].place.shard == stale.shard;
        kl_task task = read_one(t, entries[i].place, &entries[i].id);
        CHECK_INT(batches[i].rc, is_stale ? KL_ESTALE : KL_OK);
        CHECK_INT(task.state, is_stale ? KL_TASK_WAITING : i % 10 ? states[i % COUNT(states)] : KL_TASK_UNKNOWN);
        if (is_stale || i % 10 == 0)
            continue;
        CHECK_ENTRY(&task.entry, &entries[i]);
        CHECK_INT(task.attempts, TRIES);
        CHECK_BYTES(task.result, outcomes[i].result);
        CHECK_BYTES(task.error, outcomes[i].error);
    }
}

/* The index is read from its end once for all that are to go. */
CLAIM(what_is_more_than_may_be_kept_goes_many_at_a_time)
{
    enum { ROWS = 5000, MOST = 100 };
    char sql[512];
    snprintf(sql, sizeof sql,
             "INSERT INTO %s.kept (partition, shard, id, state, attempts, finished_ms, expires_ms)"
             " SELECT 1, 0, md5(n::text)::uuid, 2, 1, n, %lld FROM generate_series(1, %d) n; ANALYZE %s.kept",
             schema_of(t), (long long)INT64_MAX, ROWS, schema_of(t));
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT u.cut FROM %s.upkeep(%d, %d, %d) u", schema_of(t), MOST, MOST, MOST);
    CHECK_INT(pg_server_number(sql), 20 * MOST);
    pg_server_run(sql);
    CHECK_INT(pg_server_number(sql), ROWS - MOST - 40 * MOST);
    snprintf(sql, sizeof sql, "SELECT min(finished_ms) FROM %s.kept", schema_of(t));
    CHECK_INT(pg_server_number(sql), ROWS - MOST + 1);
}

/* ---- Connections ---- */

/* Ends all connections of the trial's store. */
static void cut_all(const struct trial *t)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '%s'",
             schema_of(t));
    pg_server_run(sql);
}

CLAIM(calls_go_on_when_connections_are_lost)
{
    kl_task_id ids[20];
    uint64_t seen = 0;
    CHECK_OK(kl_store_wait(t->store, t->orders, 0, &seen));
    for (size_t i = 0; i < COUNT(ids); i++) {
        kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
        kl_token token = make_token();
        cut_all(t);
        CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
        CHECK_OK(kl_store_wait(t->store, t->orders, PATIENCE_MS, &seen));
        ids[i] = entry.id;
    }
    CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
}

/* A put of several records is not made again by itself when its answer is lost. */
CLAIM(a_connection_that_was_closed_while_it_was_idle_is_not_used)
{
    char sql[256];
    kl_write writes[2] = {{.name = kl_str("a"), .value = kl_str("1")}, {.name = kl_str("b"), .value = kl_str("1")}};
    CHECK_OK(kl_store_put(t->store, writes, COUNT(writes)));
    snprintf(sql, sizeof sql,
             "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = '%s'",
             schema_of(t));
    for (size_t i = 0; i < COUNT(writes); i++)
        writes[i].version = writes[i].new_version;
    pg_server_run(sql);
    CHECK_OK(kl_store_put(t->store, writes, COUNT(writes)));
}

struct cutter {
    const struct trial *t;
    atomic_bool stops;
    _Atomic long appended; /* calls that have returned */
    int cuts;
};

static void *cut_on(void *ctx)
{
    struct cutter *cutter = ctx;
    uint64_t random = test_seed();
    for (long seen = -1; !atomic_load(&cutter->stops); cutter->cuts++) {
        AWAIT(atomic_load(&cutter->appended) != seen || atomic_load(&cutter->stops));
        seen = atomic_load(&cutter->appended);
        for (uint64_t i = kl__random_below(&random, 8); i > 0; i--) /* at any point of the next call */
            pg_server_number("SELECT 1");
        cut_all(cutter->t);
    }
    return NULL;
}

/* Appends of one entry and of many in turn. */
CLAIM(nothing_is_lost_or_doubled_while_connections_are_cut)
{
    enum { APPENDS = 120, BATCH = 80 };
    static kl_task_id ids[APPENDS * BATCH];
    static kl_entry entries[BATCH];
    size_t appended = 0;
    struct cutter cutter = {.t = t};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, cut_on, &cutter) == 0);
    for (int i = 0; i < APPENDS; i++) {
        kl_token token = make_token();
        size_t count = i % 2 ? 1 : BATCH;
        kl_rc rc;
        for (size_t j = 0; j < count; j++) {
            entries[j] = make_entry(t, order_place(t, 4), "k", "x");
            ids[appended++] = entries[j].id;
        }
        do {
            rc = kl_store_append(t->store, entries, count, &token);
        } while (rc == KL_EBUSY);
        CHECK_OK(rc);
        atomic_fetch_add(&cutter.appended, 1);
    }
    atomic_store(&cutter.stops, true);
    pthread_join(thread, NULL);
    CHECK(cutter.cuts > 0);
    CHECK_LINE(t, order_place(t, 4), 0, ids, appended);
}

/* One thread appends, settles every other task, and notes what it was told, while the server crashes. */
struct through {
    struct trial *t;
    kl_task_id left[2000];
    size_t left_count;
    _Atomic size_t made;
    atomic_bool stops;
};

static kl_stub find_last(struct trial *t, const kl_task_id *id)
{
    kl_stub stubs[2000];
    kl_scan scan = {.place = order_place(t, 4), .stubs = stubs, .max = COUNT(stubs)};
    kl_rc rc;
    do {
        rc = kl_store_scan(t->store, &scan, 1);
    } while (rc == KL_EBUSY);
    CHECK_OK(rc);
    CHECK(rc == KL_OK && scan.count > 0 && same_id(&stubs[scan.count - 1].id, id));
    return rc == KL_OK && scan.count > 0 ? stubs[scan.count - 1] : (kl_stub){.id = *id};
}

static void *go_through(void *ctx)
{
    struct through *through = ctx;
    struct trial *t = through->t;
    while (!atomic_load(&through->stops) && through->left_count < COUNT(through->left) && !test_failed()) {
        kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
        kl_token token = make_token();
        kl_rc rc;
        do {
            rc = kl_store_append(t->store, &entry, 1, &token);
        } while (rc == KL_EBUSY);
        CHECK_OK(rc);
        if (atomic_fetch_add(&through->made, 1) % 2) {
            kl_stub stub = find_last(t, &entry.id);
            kl_settled done = next_attempt(&stub, KL_DONE);
            do {
                rc = settle(t, order_place(t, 4), 0, &done, 1);
            } while (rc == KL_EBUSY);
            CHECK_OK(rc);
        } else {
            through->left[through->left_count++] = entry.id;
        }
    }
    return NULL;
}

CLAIM(what_was_acknowledged_is_there_after_the_server_crashed)
{
    enum { CRASHES = 4, BETWEEN = 15 };
    static struct through through;
    pthread_t thread;
    through = (struct through){.t = t};
    REQUIRE(pthread_create(&thread, NULL, go_through, &through) == 0);
    for (size_t i = 1; i <= CRASHES; i++) {
        AWAIT(atomic_load(&through.made) >= i * BETWEEN || test_failed());
        if (!pg_server_crash())
            break;
    }
    atomic_store(&through.stops, true);
    pthread_join(thread, NULL);
    CHECK_LINE(t, order_place(t, 4), 0, through.left, through.left_count);
}

struct heard {
    _Atomic unsigned failed, again;
};

static void hear(void *ctx, kl_log_level level, const char *text)
{
    struct heard *heard = ctx;
    heard->failed += level == KL_LOG_ERROR && strstr(text, "the database cannot be used") != NULL;
    heard->again += level == KL_LOG_WARN && strstr(text, "the database can be used again, after") != NULL;
}

static bool asks_until_told(kl_store *store, const struct heard *heard)
{
    int64_t now_ms;
    return kl_store_now(store, &now_ms) == KL_OK && heard->again > 0;
}

/* Sessions of the role end, and it may begin others or not. */
static void let_in(const char *role, bool may)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "ALTER ROLE %s %s; SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '%s'",
             role, may ? "LOGIN" : "NOLOGIN", role);
    pg_server_run(sql);
}

/* A connection that was lost, if it was in use just then, and those that are refused after it are one failure. */
CLAIM(that_the_server_lets_nobody_in_is_told_at_once_and_once_and_when_it_does_again)
{
    static const char role[] = "keyline_let_in";
    struct pg_place *its = t->place;
    struct heard heard = {0};
    kl_store *store = NULL;
    int64_t now_ms;
    char sql[128], url[PG_URL_BYTES + sizeof role + 16];
    kl_store_opts opts = {.size = sizeof opts, .log = hear, .log_ctx = &heard, .hasty = true};
    snprintf(sql, sizeof sql, "CREATE ROLE %s LOGIN SUPERUSER", role);
    pg_server_run(sql);
    snprintf(url, sizeof url, "%s&user=%s", its->url, role);
    REQUIRE(kl_store_open(url, &opts, &store) == KL_OK);
    CHECK_OK(kl_store_now(store, &now_ms));
    CHECK(!kl__store_is_away(store));
    CHECK_INT(heard.failed, 0);
    let_in(role, false);
    for (int i = 0; i < 20; i++)
        CHECK_RC(kl_store_now(store, &now_ms), KL_EBUSY);
    CHECK_INT(heard.failed, 1);
    CHECK(kl__store_is_away(store));
    CHECK_INT(heard.again, 0);
    let_in(role, true);
    AWAIT(asks_until_told(store, &heard));
    CHECK(!kl__store_is_away(store));
    CHECK_INT(heard.again, 1);
    kl_store_close(store);
    snprintf(sql, sizeof sql, "DROP ROLE %s", role);
    pg_server_run(sql);
}

static kl_task_state read_state(kl_store *store, const kl_ref *ref)
{
    kl_arena arena = {0};
    kl_task task = {0};
    size_t count = 0;
    CHECK_OK(kl_store_read(store, ref, 1, &arena, &task, &count));
    kl_arena_free(&arena);
    return count == 1 ? task.state : KL_TASK_UNKNOWN;
}

/* Who reads as the owner is shown the task as he scanned it, also when he has lost the shard meanwhile; then his settle
 * tells him. Whoever asks without owning sees what is. */
CLAIM(an_owner_reads_what_he_scanned_and_learns_of_the_next_one_when_he_settles)
{
    kl_store *next = NULL;
    kl_stub stub, same;
    size_t count = 0;
    kl_place place = order_place(t, 4);
    append_one(t, place, "x");
    REQUIRE(reopen_postgres(t->place, NULL, &next) == KL_OK);
    CHECK_OK(kl_store_partition(next, "orders", 1, &(uint32_t){0}));
    CHECK_OK(scan_one(t->store, &(kl_scan){.place = place, .max = 1}, &stub, &count));
    REQUIRE(count == 1);
    CHECK_OK(scan_one(next, &(kl_scan){.place = place, .max = 1}, &same, &count));
    CHECK_OK(kl_store_fence(next, &(kl_fence){.place = place, .epoch = 2}, 1));
    kl_settled done = next_attempt(&stub, KL_DONE);
    CHECK_OK(kl_store_settle(next, &(kl_settle){.place = place, .epoch = 2, .tasks = &done, .count = 1}, 1));
    kl_ref ref = {.place = place, .id = stub.id, .position = stub.position};
    CHECK_INT(read_state(t->store, &ref), KL_TASK_UNKNOWN);
    ref.owned = true;
    CHECK_INT(read_state(t->store, &ref), KL_TASK_WAITING);
    CHECK_INT(read_state(t->store, &ref), KL_TASK_UNKNOWN); /* it was in memory once */
    CHECK_INT(settle(t, place, 1, &done, 1), KL_ESTALE);
    kl_store_close(next);
}

CLAIM(whoever_waits_is_told_without_listening_too)
{
    struct pg_place *its = t->place;
    uint64_t seen = 0;
    size_t length = strlen(its->url);
    snprintf(its->url + length, sizeof its->url - length, "&listen=off");
    REQUIRE(next_life(t));
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t before = seen;
        append_one(t, order_place(t, i), "x");
        CHECK_OK(kl_store_wait(t->store, t->orders, PATIENCE_MS, &seen));
        CHECK(seen != before);
    }
}

/* Sessions of the trial's store whose last statement began so. */
static int64_t sessions_at(const struct trial *t, const char *statement)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = '%s' AND query LIKE '%s%%'",
             schema_of(t), statement);
    return pg_server_number(sql);
}

/* Notices of appends wake the session that listens, so it does not while nobody wants them. */
CLAIM(nobody_listens_while_nobody_waits_and_whoever_waits_again_is_told)
{
    enum { APPENDS_MAX = 20000 };
    uint64_t seen = 0;
    while (seen >> 63 == 0) /* until it is listened (wait.c) */
        CHECK_OK(kl_store_wait(t->store, t->orders, 20, &seen));
    for (int i = 0; i < APPENDS_MAX && sessions_at(t, "UNLISTEN") == 0; i++)
        append_one(t, order_place(t, 1), "x");
    CHECK_INT(sessions_at(t, "UNLISTEN"), 1);
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t before = seen;
        append_one(t, order_place(t, i), "x");
        CHECK_OK(kl_store_wait(t->store, t->orders, PATIENCE_MS, &seen));
        CHECK(seen != before);
    }
    CHECK_INT(sessions_at(t, "UNLISTEN"), 0);
    CHECK_INT(sessions_at(t, "LISTEN"), 1);
}

CLAIM(a_schema_of_a_newer_release_is_refused)
{
    char sql[256];
    kl_store *store = NULL;
    snprintf(sql, sizeof sql, "UPDATE %s.meta SET version = version + 1", schema_of(t));
    pg_server_run(sql);
    CHECK_REFUSED(kl_store_open(((struct pg_place *)t->place)->url, NULL, &store));
    CHECK_CONTAINS(kl_error_text(), "newer");
    CHECK(!store);
    snprintf(sql, sizeof sql, "UPDATE %s.meta SET version = version - 1", schema_of(t));
    pg_server_run(sql);
}

CLAIM(a_url_that_is_not_right_is_refused_with_what_should_be_there)
{
    static const struct {
        const char *url, *says;
    } cases[] = {{"postgres:somewhere", "//"},
                 {"postgres:///postgres?schema=No+good", "schema"},
                 {"postgres:///postgres?schema=", "schema"},
                 {"postgres:///postgres?schema=pg_mine", "pg_"},
                 {"postgres:///postgres?shema=mine", "shema"},
                 {"postgres:///postgres?pool=0", "pool"},
                 {"postgres:///postgres?pool=many", "pool"},
                 {"postgres:///postgres?listen=perhaps", "listen"}};
    kl_store *store = NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK_REFUSED(kl_store_open(cases[i].url, NULL, &store));
        CHECK_CONTAINS(kl_error_text(), cases[i].says);
    }
    CHECK(!store);
    (void)t;
}

CLAIM(a_database_or_user_that_is_not_there_is_a_fault_of_the_url)
{
    static const char *const names[][2] = {{"dbname=nowhere", "nowhere"}, {"user=nobody_here", "nobody_here"}};
    char url[PG_URL_BYTES + 32];
    kl_store *store = NULL;
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(url, sizeof url, "%s&%s", ((struct pg_place *)t->place)->url, names[i][0]);
        CHECK_REFUSED(kl_store_open(url, NULL, &store));
        CHECK_CONTAINS(kl_error_text(), names[i][1]);
        CHECK_CONTAINS(kl_error_text(), "see that the URL names");
    }
    CHECK(!store);
}

struct opening {
    const char *url;
    kl_rc rc;
};

static void *open_once(void *ctx)
{
    struct opening *opening = ctx;
    kl_store *store = NULL;
    opening->rc = kl_store_open(opening->url, NULL, &store);
    if (opening->rc != KL_OK)
        test_fail(__FILE__, __LINE__, "it does not open: %s", kl_error_text());
    kl_store_close(store);
    return NULL;
}

CLAIM(of_several_that_open_a_new_schema_one_makes_it)
{
    enum { OPENERS = 6 };
    char url[PG_URL_BYTES], schema[64], sql[128];
    struct opening openings[OPENERS];
    pthread_t threads[OPENERS];
    REQUIRE(pg_server_new_schema(url, schema) == KL_OK);
    for (int i = 0; i < OPENERS; i++) {
        openings[i] = (struct opening){url, KL_EDEAD};
        if (pthread_create(&threads[i], NULL, open_once, &openings[i]) != 0)
            abort();
    }
    for (int i = 0; i < OPENERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(openings[i].rc, KL_OK);
    }
    snprintf(sql, sizeof sql, "DROP SCHEMA %s CASCADE", schema);
    pg_server_run(sql);
    (void)t;
}
