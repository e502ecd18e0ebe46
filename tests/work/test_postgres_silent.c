/* test_postgres_silent.c - a database that neither answers nor goes away, and one that refuses everybody.
 *
 * Part of test-postgres. */
#include <libpq-fe.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "store/pg_server.h"
#include "work/support.h"

enum { CONNECTIONS = 3, CALLERS = 32, PAUSE_LEAST_MS = 25 };

struct bed {
    kl_store *store;
    kl_queue *queue;
    char url[PG_URL_BYTES], schema[64];
};

static bool open_queue(struct bed *bed)
{
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    bool good = kl_store_open(bed->url, NULL, &bed->store) == KL_OK &&
                kl_queue_open(bed->store, "orders", &opts, &bed->queue) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no queue: %s", kl_error_text());
    return good;
}

static void close_queue(struct bed *bed)
{
    kl_queue_close(bed->queue);
    kl_store_close(bed->store);
}

static void drop_schema(const struct bed *bed)
{
    char sql[128];
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", bed->schema);
    pg_server_run(sql);
}

static long long waiting(const struct bed *bed)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.waiting", bed->schema);
    return pg_server_number(sql);
}

static bool one_waits(void *bed) { return waiting(bed) == 1; }
static bool none_waits(void *bed) { return waiting(bed) == 0; }

/* --- A pooler that is stopped where it stands --- */

static bool open_bed(struct bed *bed)
{
    char direct[PG_URL_BYTES], pooler[PG_URL_BYTES];
    *bed = (struct bed){.store = NULL};
    if (pg_server_new_schema(direct, bed->schema) != KL_OK || pg_bouncer_url(CONNECTIONS, pooler) != KL_OK)
        return false;
    snprintf(bed->url, sizeof bed->url, "%.300s&schema=%s", pooler, bed->schema);
    return open_queue(bed);
}

/* Whether the outcome that was sent into the silence counts is not known: the pooler may pass it on when it wakes
 * up. */
static void run_the_rest(struct bed *bed, struct runs *runs)
{
    kl_worker *next = start_worker(bed->queue, &(struct start){.fn = runs_handle, .ctx = runs});
    await_condition("nothing waits", none_waits, bed);
    drain_and_close(next);
    CHECK(runs_of(runs, "hold") <= 2);
    CHECK_INT(runs_of(runs, "done 1"), 1);
    CHECK_INT(runs_of(runs, "done 2"), 1);
}

TEST(a_worker_and_its_store_end_though_the_database_is_silent)
{
    struct bed bed;
    struct runs runs;
    REQUIRE(open_bed(&bed));
    runs_init(&runs);
    kl_worker *worker = start_worker(bed.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(bed.queue, "a", "done 1");
    put_task(bed.queue, "b", "done 2");
    put_task(bed.queue, "c", "hold");
    runs_wait(&runs, 3);
    await_condition("one waits", one_waits, &bed);
    pg_bouncer_stop(true);
    runs_open(&runs, true);
    CHECK_INT(kl_worker_drain(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    close_queue(&bed);
    pg_bouncer_stop(false);
    if (open_queue(&bed)) {
        run_the_rest(&bed, &runs);
        close_queue(&bed);
    }
    drop_schema(&bed);
    runs_free(&runs);
}

TEST(a_worker_that_is_closed_at_once_does_not_wait_for_a_silent_database)
{
    struct bed bed;
    struct runs runs;
    REQUIRE(open_bed(&bed));
    runs_init(&runs);
    kl_worker *worker = start_worker(bed.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(bed.queue, "c", "stuck");
    runs_wait(&runs, 1);
    pg_bouncer_stop(true);
    kl_worker_close(worker);
    close_queue(&bed);
    pg_bouncer_stop(false);
    CHECK_INT(waiting(&bed), 1);
    drop_schema(&bed);
    runs_free(&runs);
}

/* --- One of two databases is silent --- */

/* The second partition's lies behind the pooler. */
static bool open_pair(struct bed *bed, char ret_second[64])
{
    static char pooler[PG_URL_BYTES], other[PG_URL_BYTES + 80], ignored[PG_URL_BYTES];
    const char *stores[] = {"", other};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .lease_ms = 1000, .stores = stores, .store_count = 2};
    *bed = (struct bed){.store = NULL};
    if (pg_server_new_schema(bed->url, bed->schema) != KL_OK || pg_server_new_schema(ignored, ret_second) != KL_OK ||
        pg_bouncer_url(CONNECTIONS, pooler) != KL_OK)
        return false;
    snprintf(other, sizeof other, "%.300s&schema=%s", pooler, ret_second);
    return kl_store_open(bed->url, NULL, &bed->store) == KL_OK &&
           kl_queue_open(bed->store, "orders", &opts, &bed->queue) == KL_OK;
}

static const char *key_of(uint32_t partition, char ret_key[16])
{
    kl_layout layout;
    CHECK_INT(kl_layout_init(2, 1, &layout), KL_OK);
    for (int i = 0;; i++) {
        snprintf(ret_key, 16, "key-%d", i);
        if (kl_partition_of(&layout, kl_str(ret_key)) == partition)
            return ret_key;
    }
}

struct putting {
    kl_queue *queue;
    const char *key;
};

static bool takes(void *ctx)
{
    const struct putting *putting = ctx;
    kl_put task = {.key = kl_str(putting->key), .payload = kl_str("done there 2")};
    return kl_queue_put(putting->queue, &task, 1, kl_str("2"), NULL) == KL_OK;
}

TEST(a_silent_database_of_one_partition_does_not_hold_up_the_others)
{
    struct bed bed;
    struct runs runs;
    char second[64], here[16], there[16];
    REQUIRE(open_pair(&bed, second));
    key_of(0, here), key_of(1, there);
    runs_init(&runs);
    kl_worker *worker = start_worker(bed.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(bed.queue, here, "done here 1");
    put_task(bed.queue, there, "done there 1");
    CHECK(runs_wait(&runs, 2));
    pg_bouncer_stop(true);
    for (int i = 2; i < 6; i++) {
        char payload[32];
        snprintf(payload, sizeof payload, "done here %d", i);
        put_task(bed.queue, here, payload);
        CHECK(runs_wait_for(&runs, payload, 1));
    }
    pg_bouncer_stop(false);
    await_condition("its tasks are taken", takes, &(struct putting){bed.queue, there});
    CHECK(runs_wait_for(&runs, "done there 2", 1));
    drain_and_close(worker);
    close_queue(&bed);
    drop_schema(&bed);
    memcpy(bed.schema, second, sizeof second);
    drop_schema(&bed);
    runs_free(&runs);
}

/* Through the library, and in SQL. */
static void put_here(struct bed *bed, int number)
{
    char payload[32], sql[256];
    snprintf(payload, sizeof payload, "done here %d", number);
    snprintf(sql, sizeof sql, "SELECT %s.put('orders', '%s')", bed->schema, payload);
    if (number % 2)
        pg_server_run(sql);
    else
        put_task(bed->queue, "", payload);
}

TEST(a_silent_database_of_one_queue_does_not_hold_up_the_workers_other_queue)
{
    struct bed here, there;
    struct runs runs;
    here = (struct bed){.store = NULL};
    REQUIRE(open_bed(&there) && pg_server_new_schema(here.url, here.schema) == KL_OK && open_queue(&here));
    runs_init(&runs);
    kl_worker *worker = start_worker_of_two(there.queue, here.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_here(&here, 1);
    put_task(there.queue, "", "done there 1");
    CHECK(runs_wait(&runs, 2));
    pg_bouncer_stop(true);
    for (int i = 2; i < 6; i++) {
        put_here(&here, i);
        CHECK(runs_wait(&runs, (size_t)i + 1));
    }
    pg_bouncer_stop(false);
    await_condition("its tasks are taken", takes, &(struct putting){there.queue, ""});
    CHECK(runs_wait_for(&runs, "done there 2", 1));
    drain_and_close(worker);
    close_queue(&here);
    close_queue(&there);
    drop_schema(&here);
    drop_schema(&there);
    runs_free(&runs);
}

static bool find_queue(struct bed *bed)
{
    return kl_store_open(bed->url, NULL, &bed->store) == KL_OK &&
           kl_queue_find(bed->store, "orders", &bed->queue) == KL_OK;
}

/* As of a restore that is under way: connections are taken, and what they ask first waits. */
TEST(a_database_that_lets_its_opening_wait_does_not_hold_up_the_others_nor_the_end)
{
    struct bed bed;
    struct runs runs;
    char second[64], here[16], there[16], sql[128];
    REQUIRE(open_pair(&bed, second));
    key_of(0, here), key_of(1, there);
    put_task(bed.queue, there, "done there 1");
    close_queue(&bed);
    runs_init(&runs);
    PGconn *holder = pg_server_connect();
    snprintf(sql, sizeof sql, "BEGIN; LOCK TABLE %s.meta IN ACCESS EXCLUSIVE MODE", second);
    PQclear(PQexec(holder, sql));
    REQUIRE(find_queue(&bed));
    put_task(bed.queue, here, "done here 1");
    kl_worker *worker = start_worker(bed.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    CHECK(runs_wait_for(&runs, "done here 1", 1));
    CHECK_INT(kl_worker_drain(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    close_queue(&bed);
    PQfinish(holder);
    REQUIRE(find_queue(&bed));
    worker = start_worker(bed.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    CHECK(runs_wait_for(&runs, "done there 1", 1));
    drain_and_close(worker);
    close_queue(&bed);
    drop_schema(&bed);
    memcpy(bed.schema, second, sizeof second);
    drop_schema(&bed);
    runs_free(&runs);
}

static void *name_partition(void *store)
{
    uint32_t partition;
    CHECK_INT(kl_store_partition(store, "other", 1, &partition), KL_OK);
    return NULL;
}

/* Long enough to be asked for twice whether the server answers at all. */
static bool has_waited(void *ctx)
{
    const struct bed *bed = ctx;
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_stat_activity WHERE application_name = '%s' AND wait_event_type = 'Lock'"
             " AND clock_timestamp() - query_start > '8 seconds'",
             bed->schema);
    return pg_server_number(sql) == 1;
}

TEST(a_call_that_waits_for_somebodys_transaction_is_waited_for_in_one_of_several_databases_too)
{
    struct bed bed;
    pthread_t thread;
    char sql[128];
    kl_store_opts opts = {.size = sizeof opts, .hasty = true};
    bed = (struct bed){.store = NULL};
    REQUIRE(pg_server_new_schema(bed.url, bed.schema) == KL_OK);
    REQUIRE(kl_store_open(bed.url, &opts, &bed.store) == KL_OK);
    PGconn *holder = pg_server_connect();
    snprintf(sql, sizeof sql, "BEGIN; LOCK TABLE %s.partitions IN SHARE MODE", bed.schema);
    PQclear(PQexec(holder, sql));
    if (pthread_create(&thread, NULL, name_partition, bed.store) == 0) {
        await_condition("the call has waited", has_waited, &bed);
        PQfinish(holder);
        pthread_join(thread, NULL);
    }
    close_queue(&bed);
    drop_schema(&bed);
}

/* --- A server that closes every connection --- */

struct closer {
    char dir[WORKDIR_BYTES], path[WORKDIR_BYTES + 32], real[PG_URL_BYTES];
    int listens;
    pthread_t thread;
    atomic_int tries;
    atomic_bool refuses; /* it says so before: the login is not allowed */
};

/* The server's socket, under another name that can be made to lead elsewhere. */
static bool make_door(struct closer *closer, struct bed *bed)
{
    char url[PG_URL_BYTES];
    *bed = (struct bed){.store = NULL};
    const char *host = pg_server_new_schema(url, bed->schema) == KL_OK ? strstr(url, "host=") : NULL;
    if (!host || !workdir_make(closer->dir))
        return false;
    host += strlen("host=");
    snprintf(closer->real, sizeof closer->real, "%.*s/.s.PGSQL.5432", (int)strcspn(host, "&"), host);
    snprintf(closer->path, sizeof closer->path, "%s/.s.PGSQL.5432", closer->dir);
    snprintf(bed->url, sizeof bed->url, "postgres:///postgres?host=%s&user=postgres&schema=%s&application_name=%s",
             closer->dir, bed->schema, bed->schema);
    return symlink(closer->real, closer->path) == 0;
}

/* As the protocol has it: a letter, a length, and fields. */
static void refuse_login(int peer)
{
    static const char refusal[] = "E\0\0\0\x3fSFATAL\0VFATAL\0C28000\0Mthe role is not permitted to log in\0";
    char asked[1024];
    _Static_assert(sizeof refusal == 0x3f + 1, "the length");
    CHECK(recv(peer, asked, sizeof asked, 0) > 0 && send(peer, refusal, sizeof refusal, MSG_NOSIGNAL) > 0);
}

static void *close_all(void *ctx)
{
    struct closer *closer = ctx;
    for (int peer; (peer = accept(closer->listens, NULL, NULL)) >= 0; close(peer)) {
        if (atomic_load(&closer->refuses))
            refuse_login(peer);
        atomic_fetch_add(&closer->tries, 1);
    }
    return NULL;
}

static bool start_closing(struct closer *closer, const struct bed *bed)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char sql[256];
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", closer->path);
    closer->listens = socket(AF_UNIX, SOCK_STREAM, 0);
    bool good = unlink(closer->path) == 0 && bind(closer->listens, (struct sockaddr *)&name, sizeof name) == 0 &&
                listen(closer->listens, CALLERS) == 0 && pthread_create(&closer->thread, NULL, close_all, closer) == 0;
    snprintf(sql, sizeof sql,
             "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = '%s'",
             bed->schema);
    pg_server_run(sql);
    return good;
}

static void end_closing(struct closer *closer)
{
    shutdown(closer->listens, SHUT_RDWR);
    pthread_join(closer->thread, NULL);
    close(closer->listens);
    CHECK(unlink(closer->path) == 0 && symlink(closer->real, closer->path) == 0);
}

static void *call(void *store)
{
    int64_t now_ms;
    CHECK_INT(kl_store_now(store, &now_ms), KL_EBUSY);
    return NULL;
}

static void call_at_once(kl_store *store)
{
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&threads[i], NULL, call, store) == 0);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
}

static bool answers(void *store)
{
    int64_t now_ms;
    return kl_store_now(store, &now_ms) == KL_OK;
}

TEST(a_server_that_is_away_is_asked_now_and_then_and_not_by_every_call)
{
    static struct closer closer;
    struct bed bed;
    kl_store_opts opts = {.size = sizeof opts, .hasty = true};
    closer = (struct closer){.listens = -1};
    REQUIRE(make_door(&closer, &bed));
    REQUIRE(kl_store_open(bed.url, &opts, &bed.store) == KL_OK);
    if (start_closing(&closer, &bed)) {
        int64_t began_ns = kl__monotonic_ns();
        call_at_once(bed.store);
        int64_t pauses = (kl__monotonic_ns() - began_ns) / 1000000 / PAUSE_LEAST_MS;
        CHECK(atomic_load(&closer.tries) > 1);
        CHECK(atomic_load(&closer.tries) <= CALLERS + pauses);
        end_closing(&closer);
        await_condition("it answers again", answers, bed.store);
    }
    kl_store_close(bed.store);
    drop_schema(&bed);
    workdir_remove(closer.dir);
}

struct naming {
    struct closer *closer;
    kl_store *store;
    kl_rc rc;
    atomic_bool over;
};

static void *name_one(void *ctx)
{
    struct naming *naming = ctx;
    uint32_t partition;
    naming->rc = kl_store_partition(naming->store, "other", 1, &partition);
    atomic_store(&naming->over, true);
    return NULL;
}

static bool waits_for_lock(void *bed)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_stat_activity WHERE application_name = '%s' AND wait_event_type = 'Lock'",
             ((struct bed *)bed)->schema);
    return pg_server_number(sql) == 1;
}

/* Upkeep tries, too, but not so often. */
static bool was_refused(void *ctx)
{
    struct naming *naming = ctx;
    return atomic_load(&naming->over) || atomic_load(&naming->closer->tries) >= 4;
}

TEST(a_call_that_may_have_had_its_effect_is_made_again_when_the_login_was_refused_meanwhile)
{
    static struct closer closer;
    struct bed bed;
    pthread_t thread;
    char sql[128];
    closer = (struct closer){.listens = -1, .refuses = true};
    REQUIRE(make_door(&closer, &bed));
    REQUIRE(kl_store_open(bed.url, NULL, &bed.store) == KL_OK);
    PGconn *holder = pg_server_connect();
    snprintf(sql, sizeof sql, "BEGIN; LOCK TABLE %s.partitions IN SHARE MODE", bed.schema);
    PQclear(PQexec(holder, sql));
    struct naming naming = {.closer = &closer, .store = bed.store};
    REQUIRE(pthread_create(&thread, NULL, name_one, &naming) == 0);
    await_condition("the call waits", waits_for_lock, &bed);
    if (start_closing(&closer, &bed)) {
        await_condition("the call was refused", was_refused, &naming);
        PQfinish(holder);
        end_closing(&closer);
    }
    pthread_join(thread, NULL);
    CHECK_INT(naming.rc, KL_OK);
    kl_store_close(bed.store);
    drop_schema(&bed);
    workdir_remove(closer.dir);
}

static bool says_login(void *store)
{
    int64_t now_ms;
    CHECK_INT(kl_store_now(store, &now_ms), KL_EBUSY);
    return strstr(kl_error_text(), "not permitted to log in");
}

TEST(a_store_that_was_away_when_it_was_opened_is_away_while_its_server_refuses_the_login)
{
    static struct closer closer;
    struct bed bed;
    kl_store_opts opts = {.size = sizeof opts, .hasty = true};
    closer = (struct closer){.listens = -1};
    REQUIRE(make_door(&closer, &bed) && start_closing(&closer, &bed));
    REQUIRE(kl_store_open(bed.url, &opts, &bed.store) == KL_OK);
    atomic_store(&closer.refuses, true);
    await_condition("it says so", says_login, bed.store);
    end_closing(&closer);
    await_condition("it answers", answers, bed.store);
    kl_store_close(bed.store);
    drop_schema(&bed);
    workdir_remove(closer.dir);
}
