/* pg_clock.c - see pg_clock.h. */
#include "store/pg_clock.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/base.h"
#include "harness.h"
#include "store/engines.h"
#include "store/pg_server.h"

enum { SQL_BYTES = 1024 };

struct clocked {
    void *inner;
    kl_store_opts opts;
    char schema[64];
    pthread_mutex_t mutex;
    int64_t shown_ms; /* what the table says */
};

static const kl_engine *const real = &kl__engine_postgres;

/* The real engine's own, once the clock is set. */
static void *enter(void *self)
{
    struct clocked *clocked = self;
    char sql[SQL_BYTES];
    pthread_mutex_lock(&clocked->mutex);
    int64_t now_ms = clocked->opts.now_ms(clocked->opts.now_ctx);
    if (now_ms > clocked->shown_ms) {
        snprintf(sql, sizeof sql, "UPDATE %s.test_clock SET ms = GREATEST(ms, %lld)", clocked->schema,
                 (long long)now_ms);
        pg_server_run(sql);
        clocked->shown_ms = now_ms;
    }
    pthread_mutex_unlock(&clocked->mutex);
    return clocked->inner;
}

static void make_clock(const struct clocked *clocked)
{
    char sql[SQL_BYTES];
    snprintf(sql, sizeof sql,
             "CREATE TABLE IF NOT EXISTS %s.test_clock (ms bigint NOT NULL);"
             "INSERT INTO %s.test_clock SELECT 0 WHERE NOT EXISTS (SELECT FROM %s.test_clock);"
             "CREATE OR REPLACE FUNCTION %s.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS"
             " 'SELECT GREATEST((SELECT ms FROM %s.test_clock), (SELECT last_value FROM %s.clock))'",
             clocked->schema, clocked->schema, clocked->schema, clocked->schema, clocked->schema, clocked->schema);
    pg_server_run(sql);
}

/* --- The calls --- */

static kl_rc clocked_open(const char *where, const kl_store_opts *opts, void **ret_self)
{
    struct clocked *clocked = calloc(1, sizeof *clocked);
    const char *schema = strstr(where, "schema=");
    if (!clocked || !schema)
        abort();
    snprintf(clocked->schema, sizeof clocked->schema, "%.*s", (int)strcspn(schema + 7, "&"), schema + 7);
    clocked->opts = *opts;
    kl_rc rc = real->open(where, opts, &clocked->inner);
    if (rc != KL_OK) {
        free(clocked);
        return rc;
    }
    pthread_mutex_init(&clocked->mutex, NULL);
    make_clock(clocked);
    *ret_self = clocked;
    return KL_OK;
}

static void clocked_close(void *self)
{
    struct clocked *clocked = self;
    real->close(clocked->inner);
    pthread_mutex_destroy(&clocked->mutex);
    free(clocked);
}

static kl_rc clocked_now(void *self, int64_t *ret_ms) { return real->now(enter(self), ret_ms); }

static kl_rc clocked_partition(void *self, const char *name, uint32_t len, uint32_t *ret_partition)
{
    return real->partition(enter(self), name, len, ret_partition);
}

static kl_rc clocked_append(void *self, const kl_append *append) { return real->append(enter(self), append); }

static kl_rc clocked_scan(void *self, kl_scan *scans, size_t count) { return real->scan(enter(self), scans, count); }

static kl_rc clocked_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                          size_t *ret_count)
{
    return real->read(enter(self), refs, count, arena, ret_tasks, ret_count);
}

static kl_rc clocked_settle(void *self, kl_settle *batches, size_t count)
{
    return real->settle(enter(self), batches, count);
}

static kl_rc clocked_fence(void *self, kl_fence *fences, size_t count)
{
    return real->fence(enter(self), fences, count);
}

static kl_rc clocked_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    return real->counts(enter(self), place, job, ret_counts);
}

static kl_rc clocked_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    return real->wait(enter(self), partition, wait_ms, seen);
}

static kl_rc clocked_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                             kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    return real->results(enter(self), place, job, after, max, arena, ret_tasks, ret_count);
}

static kl_rc clocked_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    return real->find(enter(self), find, arena, ret_tasks, ret_count);
}

static kl_rc clocked_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    return real->forget(enter(self), place, ids, count);
}

static kl_rc clocked_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    return real->get(enter(self), names, count, arena, ret_records);
}

static kl_rc clocked_put(void *self, kl_write *writes, size_t count) { return real->put(enter(self), writes, count); }

static kl_rc clocked_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena,
                          kl_record *ret_records, size_t *ret_count)
{
    return real->list(enter(self), prefix, after, max, arena, ret_records, ret_count);
}

static kl_rc clocked_lines(void *self, uint32_t partition, uint32_t *ret_priorities)
{
    return real->lines(enter(self), partition, ret_priorities);
}

kl_rc pg_clock_open(const char *url, const kl_store_opts *opts, kl_store **ret_store)
{
    static kl_engine engine;
    engine = (kl_engine){
        .size = sizeof engine,
        .scheme = real->scheme,
        .usage = real->usage,
        .can = real->can,
        .open = clocked_open,
        .close = clocked_close,
        .now = clocked_now,
        .partition = clocked_partition,
        .append = clocked_append,
        .scan = clocked_scan,
        .read = clocked_read,
        .settle = clocked_settle,
        .fence = clocked_fence,
        .counts = clocked_counts,
        .wait = clocked_wait,
        .results = clocked_results,
        .find = clocked_find,
        .forget = clocked_forget,
        .get = clocked_get,
        .put = clocked_put,
        .list = clocked_list,
        .lines = clocked_lines,
    };
    return kl_store_open_engine(&engine, strchr(url, ':') + 1, opts, ret_store);
}
