/* test_simsqlite.c - SQLite on the simulated disk: what it commits in WAL mode is there after power was lost at any
 * operation. */
#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>

#include "base/random.h"
#include "faultvfs.h"
#include "harness.h"
#include "simdisk.h"
#include "simsqlite.h"

static sqlite3 *open_db(kl__vfs *vfs)
{
    sqlite3 *db = NULL;
    if (sqlite3_open_v2("/h.db", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs->sqlite_vfs) != SQLITE_OK ||
        sqlite3_exec(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 8", NULL,
                     NULL, NULL) != SQLITE_OK) {
        sqlite3_close(db);
        return NULL;
    }
    return db;
}

static int number_of(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement;
    int number = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        return -1;
    if (sqlite3_step(statement) == SQLITE_ROW)
        number = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return number;
}

static bool run(sqlite3 *db, const char *sql) { return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK; }

static bool insert(sqlite3 *db, int number)
{
    char sql[128];
    snprintf(sql, sizeof sql, "INSERT INTO t VALUES (%d, hex(zeroblob(%d)))", number, number * 37 % 3000);
    return run(db, sql);
}

TEST(two_connections_share_a_database_and_exclude_each_other)
{
    simdisk *disk = simdisk_new();
    simsqlite *layer = simsqlite_new(simdisk_vfs(disk));
    sqlite3 *one = open_db(simdisk_vfs(disk)), *two = open_db(simdisk_vfs(disk));
    REQUIRE(one && two);
    CHECK(run(one, "CREATE TABLE t (n INTEGER PRIMARY KEY, b)"));
    CHECK(run(two, "BEGIN"));
    CHECK_INT(number_of(two, "SELECT count(*) FROM t"), 0);
    CHECK(run(one, "BEGIN IMMEDIATE"));
    CHECK(insert(one, 1));
    CHECK(!run(two, "INSERT INTO t VALUES (2, 2)"));
    CHECK(run(one, "COMMIT"));
    CHECK_INT(number_of(two, "SELECT count(*) FROM t"), 0);
    CHECK(run(two, "COMMIT"));
    CHECK_INT(number_of(two, "SELECT count(*) FROM t"), 1);
    CHECK(insert(two, 3));
    CHECK_INT(number_of(one, "SELECT count(*) FROM t"), 2);
    CHECK_INT(sqlite3_close(one), SQLITE_OK);
    CHECK_INT(sqlite3_close(two), SQLITE_OK);
    simsqlite_free(layer);
    simdisk_free(disk);
}

enum { ROWS = 40 };

/* Rows 1..n are there for some n that is at least `least` and at most `most`. */
static bool check_image(simdisk *image, int least, int most)
{
    simsqlite *layer = simsqlite_new(simdisk_vfs(image));
    sqlite3 *db = open_db(simdisk_vfs(image));
    bool ok = db != NULL;
    if (ok && least >= 0) {
        int count = number_of(db, "SELECT count(*) FROM t");
        ok = count >= least && count <= most && number_of(db, "SELECT coalesce(max(n), 0) FROM t") == count &&
             number_of(db, "SELECT 1 FROM pragma_integrity_check WHERE integrity_check = 'ok'") == 1 &&
             insert(db, count + 1);
    }
    sqlite3_close(db);
    simsqlite_free(layer);
    return ok;
}

TEST(what_is_committed_survives_power_loss_at_any_operation)
{
    uint64_t random = test_seed();
    simdisk *disk = simdisk_new(), *again = simdisk_new();
    uint64_t committed[ROWS + 1];
    simsqlite *layer = simsqlite_new(simdisk_vfs(disk));
    simdisk_record(disk);
    sqlite3 *db = open_db(simdisk_vfs(disk));
    REQUIRE(db && run(db, "CREATE TABLE t (n INTEGER PRIMARY KEY, b)"));
    CHECK_INT(simdisk_vfs(disk)->sync_dir(simdisk_vfs(disk), "/"), 0);
    committed[0] = simdisk_ops(disk);
    for (int i = 1; i <= ROWS; i++) {
        CHECK(insert(db, i));
        committed[i] = simdisk_ops(disk);
    }
    CHECK_INT(sqlite3_close(db), SQLITE_OK);
    simsqlite_free(layer);
    int row = -1;
    uint64_t images = 0;
    for (uint64_t op = 1; op <= simdisk_ops(disk) && !test_failed(); op++) {
        simdisk_forward(again, disk, op);
        while (row < ROWS && committed[row + 1] <= op)
            row++;
        for (int outcome = 0; outcome < SIM_OUTCOMES; outcome++, images++) {
            uint64_t seed = kl__random_next(&random);
            simdisk *image = simdisk_image(again, (simdisk_outcome)outcome, seed);
            if (!check_image(image, row, row + 1))
                test_fail(__FILE__, __LINE__, "operation %" PRIu64 ", %s", op, simdisk_outcome_names[outcome]);
            simdisk_free(image);
        }
    }
    printf("# %" PRIu64 " images of %" PRIu64 " operations\n", images, simdisk_ops(disk));
    simdisk_free(again);
    simdisk_free(disk);
}

TEST(a_full_disk_and_a_failing_one_are_told_to_sqlite)
{
    simdisk *disk = simdisk_new();
    faultvfs *faulty = faultvfs_new(simdisk_vfs(disk));
    simsqlite *layer = simsqlite_new(faultvfs_vfs(faulty));
    sqlite3 *db = open_db(faultvfs_vfs(faulty));
    REQUIRE(db && run(db, "CREATE TABLE t (n INTEGER PRIMARY KEY, b)"));
    CHECK(insert(db, 1));
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .error = ENOSPC});
    CHECK(!insert(db, 2));
    CHECK_INT(sqlite3_errcode(db), SQLITE_FULL);
    CHECK(insert(db, 2));
    faultvfs_set(faulty, &(vfs_fault){.kinds = FAULT_SYNC, .at = 1, .error = EIO});
    CHECK(!insert(db, 3));
    CHECK_INT(sqlite3_extended_errcode(db), SQLITE_IOERR_FSYNC);
    faultvfs_set(faulty, NULL);
    CHECK(insert(db, 3));
    CHECK_INT(number_of(db, "SELECT count(*) FROM t"), 3);
    CHECK_INT(sqlite3_close(db), SQLITE_OK);
    simsqlite_free(layer);
    faultvfs_free(faulty);
    simdisk_free(disk);
}
