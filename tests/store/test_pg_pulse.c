/* test_pg_pulse.c - what spares processes that share a server most of their questions. */
#include <stdio.h>

#include "harness.h"
#include "keyline/queue.h"
#include "keyline/store.h"
#include "keyline/worker.h"
#include "store/dispatch.h"
#include "store/pg_server.h"
#include "store/postgres/postgres.h"
#include "store/quick.h"

struct rig {
    kl_store *store;
    char url[PG_URL_BYTES], schema[64];
};

static bool open_rig(struct rig *rig)
{
    *rig = (struct rig){.store = NULL};
    bool good =
        pg_server_new_schema(rig->url, rig->schema) == KL_OK && kl_store_open(rig->url, NULL, &rig->store) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no store: %s", kl_error_text());
    return good;
}

static void close_rig(struct rig *rig)
{
    char sql[128];
    kl_store_close(rig->store);
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", rig->schema);
    pg_server_run(sql);
}

static uint64_t news_of(struct rig *rig)
{
    int64_t pulse_ms = 0, now_ms = 0;
    uint64_t news = 0;
    CHECK_INT(kl__store_pulse(rig->store, &pulse_ms, &news), KL_OK);
    CHECK_INT(kl_store_now(rig->store, &now_ms), KL_OK);
    CHECK(pulse_ms > 0 && pulse_ms <= now_ms);
    return news;
}

TEST(a_connection_that_gives_no_answer_has_not_shown_that_its_database_is_the_same)
{
    struct rig rig;
    uint32_t partition;
    REQUIRE(open_rig(&rig));
    CHECK_INT(kl_store_partition(rig.store, "orders", 1, &partition), KL_OK);
    PGconn *conn = pg_server_connect();
    CHECK(PQenterPipelineMode(conn)); /* where libpq has no answer to a single statement, as without memory */
    CHECK_INT(kl__pg_names_check(rig.store->self, conn), KL_EBUSY);
    CHECK(PQexitPipelineMode(conn));
    CHECK_INT(kl__pg_names_check(rig.store->self, conn), KL_OK);
    PQfinish(conn);
    close_rig(&rig);
}

TEST(the_pulse_tells_of_records_that_were_written_or_removed)
{
    struct rig rig;
    REQUIRE(open_rig(&rig));
    uint64_t first = news_of(&rig);
    CHECK(first != 0);
    CHECK_INT(news_of(&rig), first);
    kl_write write = {.name = kl_str("pause/orders/1"), .value = kl_str("x")};
    CHECK_INT(kl_store_put(rig.store, &write, 1), KL_OK);
    uint64_t second = news_of(&rig);
    CHECK(second != first);
    write = (kl_write){.name = kl_str("pause/orders/1"), .version = write.new_version, .value = kl_str("y")};
    CHECK_INT(kl_store_put(rig.store, &write, 1), KL_OK);
    uint64_t third = news_of(&rig);
    CHECK(third != second);
    write = (kl_write){.name = kl_str("pause/orders/1"), .version = write.new_version, .remove = true};
    CHECK_INT(kl_store_put(rig.store, &write, 1), KL_OK);
    uint64_t fourth = news_of(&rig);
    CHECK(fourth != third);
    CHECK_INT(news_of(&rig), fourth);
    close_rig(&rig);
}

TEST(what_is_written_quietly_is_no_news)
{
    struct rig rig;
    REQUIRE(open_rig(&rig));
    uint64_t first = news_of(&rig);
    kl_write write = {.name = kl_str("owners/orders"), .value = kl_str("x"), .quiet = true};
    CHECK_INT(kl_store_put(rig.store, &write, 1), KL_OK);
    uint64_t made = write.new_version;
    write = (kl_write){.name = kl_str("owners/orders"), .version = made, .value = kl_str("y"), .quiet = true};
    CHECK_INT(kl_store_put(rig.store, &write, 1), KL_OK);
    CHECK(write.new_version != made);
    CHECK_INT(news_of(&rig), first);
    write = (kl_write){.name = kl_str("owners/orders"), .version = write.new_version, .value = kl_str("z")};
    CHECK_INT(kl_store_put(rig.store, &write, 1), KL_OK);
    CHECK(news_of(&rig) != first);
    close_rig(&rig);
}

static kl_outcome run_nothing(kl_work *work, void *ctx)
{
    (void)work;
    (void)ctx;
    return KL_DONE;
}

/* The one record of owners; 0: there is none yet. */
static uint64_t owners_version(struct rig *rig)
{
    kl_arena arena = {0};
    kl_record record = {.version = 0};
    size_t count = 0;
    CHECK_INT(kl_store_list(rig->store, kl_str("owners/"), (kl_bytes){0}, 1, &arena, &record, &count), KL_OK);
    kl_arena_free(&arena);
    return count ? record.version : 0;
}

static uint64_t await_beat(struct rig *rig, uint64_t last)
{
    uint64_t version = last;
    while (version == last && !test_failed())
        version = owners_version(rig);
    return version;
}

TEST(a_worker_that_renews_its_lease_is_no_news)
{
    struct rig rig;
    kl_queue *queue = NULL;
    kl_worker *worker = NULL;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    kl_handler handler = {.fn = run_nothing};
    REQUIRE(open_rig(&rig));
    REQUIRE(kl_queue_open(rig.store, "orders", &opts, &queue) == KL_OK);
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    REQUIRE(kl_worker_start(&served, 1, NULL, &worker) == KL_OK);
    uint64_t version = 0;
    while (kl_worker_show(worker).shards < 16)
        version = await_beat(&rig, version);
    version = await_beat(&rig, version); /* it may have said something of what it took */
    uint64_t before = news_of(&rig);
    for (int i = 0; i < 3; i++)
        version = await_beat(&rig, version);
    CHECK_INT(news_of(&rig), before);
    kl_worker_close(worker);
    kl_queue_close(queue);
    close_rig(&rig);
}

TEST(of_several_who_come_for_upkeep_the_first_does_it)
{
    struct rig rig;
    char sql[128];
    REQUIRE(open_rig(&rig));
    kl_store_close(rig.store); /* it has its own */
    rig.store = NULL;
    snprintf(sql, sizeof sql, "SELECT setval('%s.rounds', 0)", rig.schema);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT %s.upkeep_due(600000)::int", rig.schema);
    CHECK_INT(pg_server_number(sql), 1);
    CHECK_INT(pg_server_number(sql), 0);
    snprintf(sql, sizeof sql, "SELECT %s.upkeep_due(0)::int", rig.schema);
    CHECK_INT(pg_server_number(sql), 1);
    close_rig(&rig);
}

/* Else leases, delays and retries would stand still until it has caught up. */
TEST(a_clock_that_was_set_back_goes_on_at_half_its_speed)
{
    struct rig rig;
    char sql[512];
    REQUIRE(open_rig(&rig));
    kl_store_close(rig.store); /* it has upkeep of its own */
    rig.store = NULL;
    snprintf(sql, sizeof sql,
             "SELECT setval('%s.clock', r.ms + 3600000), setval('%s.rounds', r.ms - 2000)"
             " FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms) r",
             rig.schema, rig.schema);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT last_value FROM %s.clock", rig.schema);
    long long before = pg_server_number(sql);
    snprintf(sql, sizeof sql, "SELECT %s.upkeep_due(1000)::int FROM generate_series(1, 3)", rig.schema);
    CHECK_INT(pg_server_number(sql), 1);
    snprintf(sql, sizeof sql, "SELECT last_value FROM %s.clock", rig.schema);
    long long after = pg_server_number(sql);
    CHECK(after >= before + 1000 && after <= before + 30000);
    snprintf(sql, sizeof sql, "SELECT setval('%s.clock', 1000); SELECT setval('%s.rounds', 0)", rig.schema, rig.schema);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT (%s.upkeep_due(1000) AND last_value = 1000)::int FROM %s.clock", rig.schema,
             rig.schema);
    CHECK_INT(pg_server_number(sql), 1);
    close_rig(&rig);
}
