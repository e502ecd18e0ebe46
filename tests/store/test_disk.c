/* test_disk.c - the disk engine in a real directory: who owns it, which files it makes, and what a restart finds. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "disk_rig.h"
#include "store/disk/disk.h"
#include "store/disk/doctor.h"
#include "store/disk/frames.h"
#include "store/dispatch.h"

enum { FILES_MAX = 256, SEGMENT_ROUNDS = 150, SEGMENT_TASKS = 500 };

/* ---- Owning ---- */

TEST(a_second_open_names_the_pid_of_the_first)
{
    struct rig rig;
    char pid[32];
    kl_store *second;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    snprintf(pid, sizeof pid, "process %lld;", (long long)getpid());
    CHECK_INT(kl_store_open(rig.url, &rig.opts, &second), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), pid);
    rig_append(&rig, 1, 10, 100); /* the first is not disturbed */
    CHECK_INT(rig_waiting(&rig), 10);
    rig_end(&rig);
}

/* What the other process was told comes back through a pipe. */
TEST(another_process_is_told_the_pid_too)
{
    struct rig rig;
    char pid[32], text[512] = "";
    int ends[2], status = 0;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    REQUIRE(pipe(ends) == 0);
    snprintf(pid, sizeof pid, "process %lld;", (long long)getpid());
    rig_close(&rig); /* no threads while forking; opened again behind it */
    int go[2];
    REQUIRE(pipe(go) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        kl_store *second;
        bool ok = read(go[0], &byte, 1) == 1 && kl_store_open(rig.url, &rig.opts, &second) == KL_EBUSY;
        const char *said = ok ? kl_error_text() : "it was opened";
        _exit(write(ends[1], said, strlen(said)) > 0 ? 0 : 1);
    }
    CHECK_OK(rig_open(&rig));
    CHECK(write(go[1], "x", 1) == 1);
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    CHECK_CONTAINS(text, pid);
    for (int i = 0; i < 2; i++)
        close(ends[i]), close(go[i]);
    rig_end(&rig);
}

TEST(a_closed_store_opens_again_at_once)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    for (uint64_t i = 0; i < 10 && rig.store; i++) {
        rig_append(&rig, i, 1, 100);
        rig_reopen(&rig);
    }
    REQUIRE(rig.store);
    CHECK_INT(rig_waiting(&rig), 10);
    rig_end(&rig);
}

/* ---- Files ---- */

static bool is_there(const struct rig *rig, const char *name)
{
    char path[WORKDIR_BYTES + 64];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", rig->data, name);
    return stat(path, &status) == 0;
}

static bool has_next(void *ctx) { return workdir_files(((struct rig *)ctx)->journal, ".seg").count == 2; }

TEST(the_files_are_those_that_the_format_names)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    CHECK(is_there(&rig, "lock"));
    CHECK(is_there(&rig, "history.db"));
    CHECK(is_there(&rig, "journal/0000000000000001.seg"));
    rig_append(&rig, 1, 800, 200); /* more than half of a segment */
    rig_await(has_next, &rig, "the next segment is prepared ahead");
    kl__segments_make_spare(&((kl__disk *)rig.store->self)->segments); /* as upkeep does, whenever it comes to it */
    CHECK(is_there(&rig, "journal/0000000000000002.seg"));
    struct workdir_files files = workdir_files(rig.journal, "");
    CHECK_INT(files.count, 2);
    CHECK_INT(files.largest, RIG_SEGMENT);
    CHECK_INT(files.bytes, 2 * RIG_SEGMENT);
    rig_end(&rig);
}

static bool has_few_files(void *ctx) { return workdir_files(((struct rig *)ctx)->journal, "").count <= 4; }

/* The files that were ever seen. Each is held open, so that its number is not given to another when it is removed. */
struct files_seen {
    int held[FILES_MAX];
    ino_t inodes[FILES_MAX];
    size_t count;
    unsigned long last; /* the highest number of a segment */
};

static void see_file(struct files_seen *seen, int dir, const char *name)
{
    struct stat status;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    unsigned long number = strtoul(name, NULL, 16);
    seen->last = number > seen->last ? number : seen->last;
    CHECK_INT(fstat(fd, &status), 0);
    for (size_t i = 0; i < seen->count; i++) {
        if (seen->inodes[i] == status.st_ino) {
            close(fd);
            return;
        }
    }
    REQUIRE(seen->count < FILES_MAX);
    seen->inodes[seen->count] = status.st_ino;
    seen->held[seen->count++] = fd;
}

static void see_files(struct files_seen *seen, const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    REQUIRE(dir);
    while ((entry = readdir(dir)) != NULL)
        if (strstr(entry->d_name, ".seg"))
            see_file(seen, dirfd(dir), entry->d_name);
    closedir(dir);
}

/* As many as there may be while the journal is written briskly (G2 of segments.h): the one being written, the next, the
 * spare, those that are kept, and one that is just leaving. */
static bool has_brisk_files(void *ctx)
{
    return workdir_files(((struct rig *)ctx)->journal, "").count <= 4 + KL_PATIENCE_SEGMENTS;
}

/* Appends and settles, the latter `late` rounds behind. False: a machine that is so slow that the journal was not brisk
 * all the time, of which nothing is promised. */
static bool write_briskly(struct rig *rig, uint64_t late, struct files_seen *seen)
{
    int64_t longest_ns = 0, before_ns = kl__monotonic_ns();
    for (uint64_t round = 0; round < SEGMENT_ROUNDS && !test_failed(); round++) {
        rig_append(rig, round * SEGMENT_TASKS, SEGMENT_TASKS, 200);
        if (round >= late)
            rig_settle(rig, (round - late) * SEGMENT_TASKS, SEGMENT_TASKS);
        rig_await(has_brisk_files, rig, "what is settled is dropped, or kept for later");
        see_files(seen, rig->journal);
        int64_t now_ns = kl__monotonic_ns();
        longest_ns = now_ns - before_ns > longest_ns ? now_ns - before_ns : longest_ns;
        before_ns = now_ns;
    }
    for (size_t i = 0; i < seen->count; i++)
        close(seen->held[i]);
    return longest_ns < KL_BRISK_MS * INT64_C(1000000) / 4; /* a segment takes two rounds, and a bit */
}

/* A dropped file is renamed and not written anew, so there are far more segments than files. */
TEST(segments_are_used_again)
{
    struct rig rig;
    struct files_seen seen = {.count = 0};
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    bool was_brisk = write_briskly(&rig, 0, &seen);
    CHECK(seen.last > SEGMENT_ROUNDS / 2);
    CHECK(!was_brisk || seen.count * 3 < seen.last);
    CHECK(!is_there(&rig, "journal/0000000000000001.seg"));
    CHECK_INT(workdir_files(rig.journal, "").largest, RIG_SEGMENT);
    CHECK(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), 0);
    rig_end(&rig);
}

/* By the time that everything in a segment is settled the next one has been prepared. It is kept for the one behind. */
TEST(segments_are_used_again_when_settles_come_late)
{
    struct rig rig;
    struct files_seen seen = {.count = 0};
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    bool was_brisk = write_briskly(&rig, 1, &seen);
    CHECK(seen.last > SEGMENT_ROUNDS / 2);
    CHECK(!was_brisk || seen.count * 3 < seen.last);
    rig_end(&rig);
}

static bool has_two_files(void *ctx) { return workdir_files(((struct rig *)ctx)->journal, "").count <= 2; }

TEST(a_segment_that_is_not_used_again_is_given_back)
{
    enum { TASKS = 3000, BYTES = 200 };
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, TASKS, BYTES);
    rig_settle(&rig, 0, TASKS);
    rig_await(has_two_files, &rig, "it is not kept for ever");
    CHECK_INT(rig_waiting(&rig), 0);
    rig_end(&rig);
}

/* ---- Large things ---- */

TEST(a_batch_larger_than_a_segment_is_stored_whole)
{
    enum { COUNT = 2000, BYTES = 1000 };
    struct rig rig;
    kl_entry *entries = calloc(COUNT, sizeof *entries);
    REQUIRE(rig_begin(&rig, 64 << 10));
    for (uint64_t i = 0; i < COUNT; i++)
        entries[i] = rig_entry(&rig, i, BYTES);
    CHECK_OK(kl_store_append(rig.store, entries, COUNT, NULL));
    CHECK(workdir_files(rig.journal, "").largest > (size_t)COUNT * BYTES);
    for (int life = 0; life < 2 && rig.store; life++) {
        CHECK_INT(rig_waiting(&rig), COUNT);
        for (uint64_t i = 0; i < COUNT; i += 97)
            CHECK(rig_is_whole(&rig, i, BYTES));
        rig_reopen(&rig);
    }
    REQUIRE(rig.store);
    rig_settle(&rig, 0, COUNT);
    rig_append(&rig, COUNT, 200, 1000); /* over into the next one */
    rig_await(has_few_files, &rig, "the large segment is dropped");
    free(entries);
    rig_end(&rig);
}

TEST(the_largest_payloads_come_back)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, 64 << 10));
    rig_append(&rig, 0, 9, KL_PAYLOAD_BYTES_MAX);
    for (int life = 0; life < 2 && rig.store; life++) {
        for (uint64_t i = 0; i < 9; i++)
            CHECK(rig_is_whole(&rig, i, KL_PAYLOAD_BYTES_MAX));
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

TEST(the_longest_partition_name_survives_new_segments)
{
    struct rig rig;
    char name[KL_PARTITION_BYTES_MAX + 1];
    uint32_t first = 0, number = 0;
    REQUIRE(rig_begin(&rig, 64 << 10));
    memset(name, 'n', KL_PARTITION_BYTES_MAX);
    name[KL_PARTITION_BYTES_MAX] = '\0';
    CHECK_OK(kl_store_partition(rig.store, name, 2, &first));
    for (uint64_t i = 0; i < 10; i++) { /* the segment where it was made is long gone */
        rig_append(&rig, i * 500, 500, 200);
        rig_settle(&rig, i * 500, 500);
    }
    rig_await(has_few_files, &rig, "what is settled is dropped");
    REQUIRE(rig_reopen(&rig));
    CHECK_OK(kl_store_partition(rig.store, name, 2, &number));
    CHECK_INT(number, first);
    rig_end(&rig);
}

/* ---- Restarts ---- */

struct clock {
    _Atomic int64_t ms;
};

static int64_t read_clock(void *ctx) { return atomic_load(&((struct clock *)ctx)->ms); }

TEST(the_clock_does_not_step_back_over_a_restart)
{
    struct rig rig;
    struct clock clock = {.ms = 2000000};
    int64_t before, after;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig);
    rig.opts.now_ms = read_clock;
    rig.opts.now_ctx = &clock;
    REQUIRE(workdir_remove(rig.data)); /* a store that has only ever known this clock */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_OK(kl_store_now(rig.store, &before));
    CHECK_INT(before, 2000000);
    clock.ms = 1000000;
    REQUIRE(rig_reopen(&rig));
    CHECK_OK(kl_store_now(rig.store, &after));
    CHECK_INT(after, 2000000);
    clock.ms = 3000000;
    CHECK_OK(kl_store_now(rig.store, &after));
    CHECK_INT(after, 3000000);
    rig_end(&rig);
}

static uint64_t last_position(struct rig *rig, uint64_t number)
{
    kl_scan scan = {.place = rig_place(rig, number), .line = 0, .max = RIG_BATCH};
    kl_stub stubs[RIG_BATCH];
    size_t count = 0;
    CHECK_OK(scan_one(rig->store, &scan, stubs, &count));
    return count ? stubs[count - 1].position : 0;
}

static void keep(struct rig *rig, uint64_t number)
{
    kl_settled settled = {
        .id = rig_id(number), .outcome = KL_DEAD, .attempts = 1, .keep_ms = 1000000, .error = {"it broke", 8}};
    kl_settle batch = {.place = rig_place(rig, number), .tasks = &settled, .count = 1};
    CHECK_OK(rig_set_positions(rig, batch.place, &settled, 1));
    CHECK_OK(kl_store_settle(rig->store, &batch, 1));
}

/* Another program keeps history.db from being written, until it closes it or ends. The store itself writes there once a
 * second, so there may be a moment to wait. */
static sqlite3 *hold_history(const struct rig *rig)
{
    sqlite3 *db = NULL;
    char path[WORKDIR_BYTES + 32];
    snprintf(path, sizeof path, "%s/history.db", rig->data);
    CHECK_INT(sqlite3_open(path, &db), SQLITE_OK);
    CHECK_INT(sqlite3_busy_timeout(db, RIG_PATIENCE_S * 1000), SQLITE_OK);
    CHECK_INT(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static bool is_up_to_date(void *ctx)
{
    struct rig *rig = ctx;
    kl_counts counts = {0};
    CHECK_OK(kl_store_counts(rig->store, (kl_place){rig->partition, KL_ALL_SHARDS}, NULL, &counts));
    return !counts.finished_behind && counts.dead == 15;
}

TEST(what_waits_is_counted_while_another_program_keeps_history)
{
    struct rig rig;
    kl_counts counts = {0};
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 20, 100);
    for (uint64_t i = 0; i < 10; i++)
        keep(&rig, i);
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.dead, 10);
    CHECK(!counts.finished_behind);
    sqlite3 *other = hold_history(&rig);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
        CHECK(counts.finished_behind);
        CHECK_INT(counts.ready, i ? 5 : 10);
        CHECK_INT(counts.dead, 10);
        for (uint64_t task = 10; i == 0 && task < 15; task++)
            keep(&rig, task);
    }
    CHECK_INT(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    CHECK(rig_await(is_up_to_date, &rig, "history to catch up"));
    sqlite3_close(other);
    rig_end(&rig);
}

TEST(limits_of_history_hold_for_what_was_kept_under_wider_ones)
{
    struct rig rig;
    kl_counts counts;
    struct clock clock = {.ms = 1000000};
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig);
    rig.opts.now_ms = read_clock;
    rig.opts.now_ctx = &clock;
    REQUIRE(workdir_remove(rig.data)); /* a store that has only ever known this clock */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    rig_append(&rig, 0, 30, 100);
    for (uint64_t i = 0; i < 30; i++, clock.ms += 10)
        keep(&rig, i);
    rig.opts.history_rows_max = 20;
    REQUIRE(rig_reopen(&rig));
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.dead, 20);
    rig.opts.history_ms_max = 100; /* the last was finished 10 ms ago */
    REQUIRE(rig_reopen(&rig));
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.dead, 9);
    rig_end(&rig);
}

/* ---- A history that is gone ---- */

static bool has_no_first(void *ctx) { return !is_there(ctx, "journal/0000000000000001.seg"); }

TEST(a_store_whose_history_was_deleted_goes_on_when_somebody_says_so)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 32];
    kl_counts counts;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 200, 100);
    for (uint64_t i = 0; i < 100; i++)
        keep(&rig, i);
    rig_append(&rig, 1000, 1600, 500);
    rig_settle(&rig, 1000, 1600);
    REQUIRE(rig_await(has_no_first, &rig, "the first segment to be dropped"));
    uint64_t position = last_position(&rig, 199);
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/history.db", rig.data);
    CHECK_INT(unlink(path), 0);
    for (int i = 0; i < 2; i++) { /* it is not made by trying */
        CHECK_INT(rig_open(&rig), KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), "history.db is missing");
        CHECK(!is_there(&rig, "history.db"));
    }
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = true};
    kl__doctor_totals totals;
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_INT(rig_waiting(&rig), 100);
    rig_append(&rig, 207, 1, 100); /* the same shard as 199 is in */
    CHECK(last_position(&rig, 199 + 8) > position);
    for (uint64_t i = 100; i < 110; i++)
        keep(&rig, i);
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK(counts.dead >= 10 && counts.dead <= 110);
    CHECK_INT(counts.ready, 91);
    rig_end(&rig);
}

/* A journal of one segment has noted nothing, and has dropped nothing either. */
TEST(a_history_that_the_journal_has_all_of_is_made_again_when_it_is_gone)
{
    for (int is_there = 0; is_there < 2; is_there++) {
        struct rig rig;
        char path[WORKDIR_BYTES + 32];
        kl__doctor_totals totals;
        kl_counts counts = {0};
        REQUIRE(rig_begin(&rig, RIG_SEGMENT));
        rig_append(&rig, 0, 20, 100);
        for (uint64_t i = 0; i < 10; i++)
            keep(&rig, i);
        rig_close(&rig);
        snprintf(path, sizeof path, "%s/history.db", rig.data);
        CHECK_INT(is_there ? truncate(path, 0) : unlink(path), 0);
        kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data};
        CHECK_OK(kl__doctor_see(&opts, &totals));
        CHECK_INT(totals.damages, 0);
        CHECK_INT(totals.settled, 10);
        CHECK_OK(rig_open(&rig));
        REQUIRE(rig.store);
        CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
        CHECK_INT(counts.dead, 10);
        CHECK_INT(counts.ready, 10);
        rig_end(&rig);
    }
}

TEST(a_journal_that_is_gone_or_older_than_history_is_noticed)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 200, 100);
    for (uint64_t i = 0; i < 100; i++)
        keep(&rig, i);
    kl_counts counts;
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.dead, 100);
    rig_close(&rig);
    CHECK(workdir_remove(rig.journal));
    CHECK_INT(rig_open(&rig), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "history.db beside it is not new");
    CHECK(workdir_remove(rig.journal));
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = true};
    kl__doctor_totals totals;
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK_INT(totals.partitions, 1); /* kept for history, under another name */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_INT(rig.partition, 2);
    CHECK_INT(rig_waiting(&rig), 0);
    rig_end(&rig);
}

static void remove_segment(const struct rig *rig, uint64_t number)
{
    char path[WORKDIR_BYTES + 64];
    snprintf(path, sizeof path, "%s/%016llx.seg", rig->journal, (unsigned long long)number);
    CHECK_INT(unlink(path), 0);
}

TEST(a_journal_whose_segments_are_gone_is_noticed_though_nothing_was_ever_finished)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 200, 100);
    rig_close(&rig);
    remove_segment(&rig, 1); /* what is left is prepared, and empty */
    CHECK_INT(rig_open(&rig), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "segment 0000000000000001 of the journal");
    remove_segment(&rig, 2);
    CHECK_INT(rig_open(&rig), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "history.db beside it is not new");
    rig_end(&rig);
}

TEST(a_journal_that_held_only_records_is_missed_too)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig);
    REQUIRE(workdir_remove(rig.data));
    REQUIRE(kl_store_open(rig.url, &rig.opts, &rig.store) == KL_OK); /* and no partition */
    kl_write write = {.name = kl_str("a"), .value = kl_str("b")};
    CHECK_OK(kl_store_put(rig.store, &write, 1));
    rig_close(&rig);
    CHECK(workdir_remove(rig.journal));
    CHECK_INT(rig_open(&rig), KL_EDAMAGED);
    rig_end(&rig);
}

static bool has_two_segments(void *ctx)
{
    return !is_there(ctx, "journal/0000000000000001.seg") && !is_there(ctx, "journal/0000000000000002.seg");
}

/* Those that were dropped are not missed, and the first that was not is. */
TEST(a_first_segment_that_was_not_dropped_is_missed)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 3000, 300);
    CHECK(is_there(&rig, "journal/0000000000000004.seg"));
    rig_settle(&rig, 0, 2000);
    REQUIRE(rig_await(has_two_segments, &rig, "the first two to be dropped"));
    REQUIRE(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), 1000);
    rig_close(&rig);
    char path[32];
    uint64_t first = 3;
    while (snprintf(path, sizeof path, "journal/%016llx.seg", (unsigned long long)first), !is_there(&rig, path))
        first++;
    remove_segment(&rig, first);
    CHECK_INT(rig_open(&rig), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "is missing");
    rig_end(&rig);
}

static void zero_frames(const struct rig *rig, uint64_t number)
{
    char path[WORKDIR_BYTES + 64];
    struct stat about;
    snprintf(path, sizeof path, "%s/%016llx.seg", rig->journal, (unsigned long long)number);
    REQUIRE(stat(path, &about) == 0 && truncate(path, KL_SEGMENT_HEADER) == 0 && truncate(path, about.st_size) == 0);
}

TEST(a_first_segment_whose_frames_are_all_gone_is_noticed)
{
    for (uint64_t later = 0; later <= 2000; later += 2000) { /* in another segment than the first */
        struct rig rig;
        kl__doctor_totals totals;
        REQUIRE(rig_begin(&rig, RIG_SEGMENT));
        rig_append(&rig, 0, 200, 300);
        if (later)
            rig_append(&rig, 200, later, 300);
        rig_close(&rig);
        zero_frames(&rig, 1);
        for (int i = 0; i < 2; i++) { /* looking changes nothing */
            CHECK_INT(rig_open(&rig), KL_EDAMAGED);
            CHECK_CONTAINS(kl_error_text(), "is readable");
            kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = i == 1};
            CHECK_INT(kl__doctor_see(&opts, &totals), i == 1 ? KL_OK : KL_EDAMAGED);
        }
        CHECK_OK(rig_open(&rig));
        REQUIRE(rig.store);
        CHECK_INT(rig_waiting(&rig), later);
        rig_end(&rig);
    }
}

/* A kill can leave two segments in which nothing stands yet: the one that was taken into use, and one that upkeep made
 * of a dropped one in the same moment. Makes such a store, with ten tasks in the first segment. */
static bool make_two_empty(struct rig *rig)
{
    if (!rig_begin(rig, RIG_SEGMENT))
        return false;
    rig_append(rig, 0, 10, 100);
    rig_close(rig);
    kl__segments segments = {.vfs = &kl__vfs_system, .segment_bytes = RIG_SEGMENT};
    kl__segment_header header = {0};
    char path[KL_PATH_BYTES];
    snprintf(segments.dir, sizeof segments.dir, "%s", rig->journal);
    kl__segments_path(&segments, 1, path);
    FILE *file = fopen(path, "rb");
    CHECK(file && fread(&header, sizeof header, 1, file) == 1);
    fclose(file);
    segments.journal = header.journal;
    for (uint64_t number = 2; number <= 3; number++) {
        kl__file *made = NULL;
        kl__segments_path(&segments, number, path);
        unlink(path);
        CHECK_INT(kl__vfs_system.open(&kl__vfs_system, path, KL_OPEN_CREATE, &made), 0);
        CHECK_INT(kl__vfs_system.truncate(&kl__vfs_system, made, RIG_SEGMENT), 0);
        CHECK_INT(kl__segment_write_header(&segments, made, number, RIG_SEGMENT), 0);
        kl__vfs_system.close(&kl__vfs_system, made);
    }
    CHECK_OK(rig_open(rig));
    return rig->store != NULL;
}

TEST(two_empty_segments_at_the_end_are_no_harm)
{
    struct rig rig;
    REQUIRE(make_two_empty(&rig));
    CHECK_INT(rig_waiting(&rig), 10);
    rig_append(&rig, 10, 5, 100);
    rig_settle(&rig, 0, 10); /* nothing in the first segment is needed any more */
    rig_append(&rig, 100, 1500, 200);
    rig_await(has_no_first, &rig, "the first segment is dropped");
    REQUIRE(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), 1505);
    rig_end(&rig);
}

/* The first frame that a segment is to have. */
static bool has_frame(const struct rig *rig, uint64_t number)
{
    kl__segment_image image = {0};
    kl__file *file = NULL;
    char path[KL_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%016llx.seg", rig->journal, (unsigned long long)number);
    CHECK_INT(kl__vfs_system.open(&kl__vfs_system, path, KL_OPEN_READ, &file), 0);
    CHECK_OK(kl__image_load(&kl__vfs_system, file, &image));
    bool has = kl__image_frame(&image, KL_SEGMENT_HEADER) != NULL;
    kl__vfs_system.close(&kl__vfs_system, file);
    kl__image_free(&image);
    return has;
}

/* Once those before it are dropped it is the first, and the first without a frame is one that has lost them. */
TEST(an_empty_segment_that_is_too_small_for_a_batch_is_not_passed_over_without_a_frame)
{
    enum { COUNT = 2000, BYTES = 1000 };
    struct rig rig;
    kl_entry *entries = calloc(COUNT, sizeof *entries);
    REQUIRE(entries && make_two_empty(&rig));
    for (uint64_t i = 0; i < COUNT; i++)
        entries[i] = rig_entry(&rig, 10 + i, BYTES);
    CHECK_OK(kl_store_append(rig.store, entries, COUNT, NULL));
    CHECK(has_frame(&rig, 3));
    CHECK(has_frame(&rig, 2));
    CHECK(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), 10 + COUNT);
    free(entries);
    rig_end(&rig);
}

/* What is left of the journal has the repeat, at a later position, and the outcome, but not the task itself. */
TEST(a_task_whose_append_was_repeated_does_not_come_back)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 10, 100);
    rig_append(&rig, 100, 1500, 200); /* over into the second segment */
    rig_append(&rig, 0, 10, 100);
    CHECK_INT(rig_waiting(&rig), 1510);
    rig_settle(&rig, 0, 10);
    rig_settle(&rig, 100, 1000);
    rig_await(has_no_first, &rig, "the first segment is dropped");
    CHECK_INT(rig_waiting(&rig), 500);
    REQUIRE(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), 500);
    rig_end(&rig);
}

/* ---- History behind the journal ---- */

static void settle_kept(struct rig *rig, uint64_t number, kl_outcome outcome, uint32_t attempts, const char *error)
{
    kl_settled settled = {.id = rig_id(number),
                          .outcome = outcome,
                          .attempts = attempts,
                          .keep_ms = 100000000,
                          .error = {error, strlen(error)}};
    kl_settle batch = {.place = rig_place(rig, number), .tasks = &settled, .count = 1};
    CHECK_OK(rig_set_positions(rig, batch.place, &settled, 1));
    CHECK_OK(kl_store_settle(rig->store, &batch, 1));
}

/* The task is retried while history cannot be written; its entry is copied on, and nothing else in the segment where it
 * stood is needed. Then the process is killed. */
static _Noreturn void retry_and_die(struct rig *rig)
{
    CHECK_OK(rig_open(rig));
    for (uint64_t i = 0; i < 300; i += 50) /* number 0 in the first segment, and over into the second */
        rig_append(rig, i, 50, 200);
    CHECK(!has_no_first(rig));
    (void)hold_history(rig);
    settle_kept(rig, 0, KL_RETRY, 1, "the first attempt failed");
    rig_append(rig, 300, 1000, 200);
    rig_settle(rig, 1, 1299);
    rig_append(rig, 2000, 300, 200);
    rig_settle(rig, 2000, 300);
    for (int i = 0; i < 500 && !has_no_first(rig); i++) /* it may well stay, for it is not in history yet */
        usleep(2000);
    if (!test_failed())
        kill(getpid(), SIGKILL);
    _exit(1);
}

TEST(an_error_that_history_does_not_have_yet_survives_the_moving_of_its_task)
{
    struct rig rig;
    int status = 0;
    kl_task task = {0};
    kl_task_id id = rig_id(0);
    size_t count = 0;
    REQUIRE(rig_begin(&rig, 64 << 10));
    rig_close(&rig);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        retry_and_die(&rig);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    settle_kept(&rig, 0, KL_DEAD, 2, "");
    CHECK_OK(read_some(rig.store, rig_place(&rig, 0), &id, 1, &rig.arena, &task, &count));
    CHECK_INT(task.state, KL_TASK_DEAD);
    CHECK_INT(task.attempts, 2);
    CHECK_STR(task.error.len ? (const char *)task.error.data : "", "the first attempt failed");
    rig_end(&rig);
}
