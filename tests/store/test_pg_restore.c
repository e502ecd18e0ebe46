/* test_pg_restore.c - a database that was put back while others still know what came after. Part of
 * test-conformance-postgres.
 *
 * Who has seen a position may still settle it: so no position is given twice, whatever the database has forgotten. */
#include <stdio.h>

#include "store/calls.h"
#include "store/conformance.h"
#include "store/pg_server.h"
#include "store/quick.h"

enum { DRAWN = 100 };

static const char *schema_of(const struct trial *t) { return ((const struct pg_place *)t->place)->schema; }

/* What is given next: the first of DRAWN numbers. */
static long long draw(const struct trial *t)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT (%s.append_begin(NULL, ARRAY[%u], ARRAY[4], %d))[2]", schema_of(t), t->orders,
             DRAWN);
    return pg_server_number(sql);
}

/* As the sequence was when the copy was made. */
static void put_back(const struct trial *t, long long last)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT setval('%s.positions', %lld)", schema_of(t), last);
    pg_server_run(sql);
}

static bool overlap(long long a, long long b) { return a < b + DRAWN && b < a + DRAWN; }

/* pg_dump brings the rows of unlogged tables, too: they are those of another table then. */
CLAIM(positions_are_not_given_again_when_a_dump_was_restored)
{
    char sql[1024];
    const char *s = schema_of(t);
    long long first = draw(t), second = draw(t);
    CHECK_INT(second, first + DRAWN);
    snprintf(sql, sizeof sql,
             "CREATE TABLE %s.was AS SELECT * FROM %s.started; DROP TABLE %s.started;"
             "CREATE UNLOGGED TABLE %s.started (LIKE %s.was); INSERT INTO %s.started SELECT * FROM %s.was;"
             "DROP TABLE %s.was",
             s, s, s, s, s, s, s, s);
    put_back(t, first + DRAWN - 1);
    pg_server_run(sql);
    long long third = draw(t);
    CHECK(third > second + DRAWN - 1);
    CHECK_INT(draw(t), third + DRAWN);
}

/* A server that was begun from a copy of the files finds no row, as the one did that had crashed since. What it draws
 * is above where the clock alone would put it, because of the two that follow here the second comes too soon for
 * that. */
CLAIM(what_follows_a_copy_differs_from_what_followed_it_before)
{
    char sql[128];
    long long begin = 1LL << 43, after[2];
    snprintf(sql, sizeof sql, "DELETE FROM %s.started", schema_of(t));
    for (size_t i = 0; i < COUNT(after); i++) {
        put_back(t, begin + DRAWN - 1);
        pg_server_run(sql);
        after[i] = draw(t);
        CHECK(after[i] > begin + DRAWN - 1);
    }
    CHECK(!overlap(after[0], after[1]));
}

/* --- Another database under the same name --- */

/* The partitions have other names, or those that they had. */
static void rename_all(const struct trial *t, const char *name)
{
    char sql[256];
    snprintf(sql, sizeof sql, "UPDATE %s.partitions SET name = %s", schema_of(t), name);
    pg_server_run(sql);
}

/* All connections of the store. */
static void cut(const struct trial *t)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '%s'",
             schema_of(t));
    pg_server_run(sql);
}

static bool is_refused(struct trial *t)
{
    kl_stub stub;
    size_t count;
    kl_scan scan = {.place = order_place(t, 4), .max = 1};
    return scan_one(t->store, &scan, &stub, &count) == KL_ESYSTEM && strstr(kl_error_text(), "was replaced");
}

CLAIM(a_database_whose_partitions_have_other_numbers_is_used_no_more)
{
    kl_task_id id;
    append_many(t, order_place(t, 4), &id, 1);
    cut(t);
    CHECK(!is_refused(t));
    rename_all(t, "name || '-'");
    cut(t);
    CHECK(is_refused(t));
    rename_all(t, "substr(name, 1, length(name) - 1)");
    CHECK(is_refused(t));
    REQUIRE(next_life(t));
    CHECK(!is_refused(t));
}
