/* test_disk_damaged.c - a history.db in which bytes are damaged: what is told of it, and what a repair keeps. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_rig.h"
#include "store/disk/doctor.h"

enum { KEPT = 2000, MARKED = 1000, PAGE = 4096 };

/* Overwrites the first page of this type that has the text. */
enum { TASKS_PAGE = 0x0d, ERRORS_PAGE = 0x0a };
static bool spoil_page(const char *path, char type, const char *text)
{
    char page[PAGE + 1] = {0};
    FILE *file = fopen(path, "r+b");
    bool found = false;
    for (long at = 0; file && !found && fread(page, 1, PAGE, file) == PAGE; at += PAGE) {
        found = page[0] == type && memmem(page, PAGE, text, strlen(text));
        if (found && fseek(file, at, SEEK_SET) == 0) {
            memset(page, 0, PAGE);
            found = fwrite(page, 1, PAGE, file) == PAGE;
        }
    }
    return file && fclose(file) == 0 && found;
}

/* Puts other bytes, as many, in the place of the first such ones. */
static bool change_bytes(const char *path, const char *from, const char *to)
{
    char page[PAGE];
    FILE *file = fopen(path, "r+b");
    bool found = false;
    for (long at = 0; file && !found && fread(page, 1, PAGE, file) == PAGE; at += PAGE) {
        const char *there = memmem(page, PAGE, from, strlen(from));
        found =
            there && fseek(file, at + (there - page), SEEK_SET) == 0 && fwrite(to, 1, strlen(to), file) == strlen(to);
    }
    return file && fclose(file) == 0 && found;
}

static kl_task read_kept(struct rig *rig, uint64_t number)
{
    kl_task task = {0};
    size_t count = 0;
    kl_ref ref = {.place = rig_place(rig, number), .id = rig_id(number)};
    CHECK_OK(kl_store_read(rig->store, &ref, 1, &rig->arena, &task, &count));
    return task;
}

static void keep_many(struct rig *rig)
{
    rig_append(rig, 0, KEPT, 30);
    for (uint64_t i = 0; i < KEPT; i++) {
        kl_settled settled = {.id = rig_id(i),
                              .outcome = KL_DEAD,
                              .attempts = 2,
                              .keep_ms = INT64_C(1) << 40,
                              .error = {"it broke", 8},
                              .result = {"marked", i == MARKED ? 6 : 0}};
        kl_settle batch = {.place = rig_place(rig, i), .tasks = &settled, .count = 1};
        CHECK_OK(rig_set_positions(rig, batch.place, &settled, 1));
        CHECK_OK(kl_store_settle(rig->store, &batch, 1));
    }
    rig_append(rig, KEPT, 4000, 300); /* the journal drops what was finished */
    rig_settle(rig, KEPT, 4000);
}

static bool is_there(const struct rig *rig, const char *name)
{
    char path[WORKDIR_BYTES + 64];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", rig->data, name);
    return stat(path, &status) == 0;
}

static bool has_no_first(void *ctx) { return !is_there(ctx, "journal/0000000000000001.seg"); }

/* What the doctor says first. */
static void note_text(void *ctx, const kl__finding *finding)
{
    if (!*(char *)ctx)
        snprintf(ctx, 800, "%s", finding->text);
}

TEST(of_a_bad_page_in_history_only_its_tasks_are_lost)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 32];
    kl_counts counts = {0};
    kl__doctor_totals totals;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    keep_many(&rig);
    REQUIRE(rig_await(has_no_first, &rig, "the first segment to be dropped"));
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/history.db", rig.data);
    REQUIRE(spoil_page(path, TASKS_PAGE, "marked"));
    char told[800] = "";
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .found = note_text, .ctx = told};
    CHECK_INT(kl__doctor_see(&opts, &totals), KL_EDAMAGED);
    CHECK_INT(totals.history_tasks, KEPT);
    CHECK_CONTAINS(told, "in disorder). Waiting tasks"); /* in words, and nothing of SQLite's or of a doctor */
    CHECK(!strchr(told, '\n') && !strstr(told, "***"));
    opts.repair = true;
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK(totals.lost_finished >= 1 && totals.lost_finished <= 60); /* a page of them */
    CHECK_INT(totals.history_tasks, KEPT - (int64_t)totals.lost_finished);
    CHECK(is_there(&rig, "quarantine/history-1.db"));
    CHECK(!is_there(&rig, "history-repaired.db"));
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK(counts.dead >= totals.history_tasks && counts.dead <= KEPT);
    kl_task task = read_kept(&rig, KEPT - 1);
    CHECK_INT(task.state, KL_TASK_DEAD);
    CHECK_INT(task.attempts, 2);
    CHECK_INT(task.error.len, 8);
    CHECK_INT(read_kept(&rig, 0).state, KL_TASK_DEAD);
    rig_end(&rig);
}

static bool overwrite(const char *path, long at, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "r+b");
    bool written = file && fseek(file, at, SEEK_SET) == 0 && fwrite(bytes, 1, count, file) == count;
    return file && fclose(file) == 0 && written;
}

static bool cut_page(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && truncate(path, status.st_size - PAGE) == 0;
}

/* A store with KEPT finished tasks is made once, and its file is put back before each damage. */
static bool copy_file(const char *from, const char *to)
{
    char command[3 * WORKDIR_BYTES];
    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    return system(command) == 0;
}

TEST(of_a_history_without_its_last_page_or_with_a_bad_header_every_other_task_is_kept)
{
    static const struct {
        long at;
        size_t count;
        const char *bytes;
    } headers[] = {{-1, 0, ""},                      /* its last page is lost instead */
                   {0, 4, "sqli"},  {16, 2, "\x20"}, /* pages of 8192 bytes, */
                   {16, 2, "\x11"},                  /* or of a number that cannot be */
                   {20, 1, "\x40"}, {22, 1, "\x21"},     {28, 4, "\0\0\0\2"}, {28, 4, "\x7f\0\0\2"},
                   {47, 1, "\x7f"}, {56, 4, "\0\0\0\2"}, {68, 4, "else"}};
    struct rig rig;
    char path[WORKDIR_BYTES + 32], copy[WORKDIR_BYTES + 32];
    kl__doctor_totals totals;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    keep_many(&rig);
    REQUIRE(rig_await(has_no_first, &rig, "the first segment to be dropped"));
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/history.db", rig.data);
    snprintf(copy, sizeof copy, "%s/history.good", rig.data);
    REQUIRE(copy_file(path, copy));
    for (size_t i = 0; i < sizeof headers / sizeof headers[0] && !test_failed(); i++) {
        REQUIRE(copy_file(copy, path));
        REQUIRE(headers[i].count ? overwrite(path, headers[i].at, headers[i].bytes, headers[i].count) : cut_page(path));
        kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = true};
        CHECK_OK(kl__doctor_see(&opts, &totals));
        CHECK_INT(totals.damages, 1);
        CHECK(totals.history_tasks <= KEPT && totals.history_tasks >= (headers[i].count ? KEPT : KEPT - 60));
        if (test_failed())
            printf("# damage %zu\n", i);
    }
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_INT(read_kept(&rig, KEPT - 1).state, KL_TASK_DEAD);
    rig_end(&rig);
}

TEST(of_a_history_with_a_bad_name_of_a_view_all_tasks_are_kept)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 32];
    kl__doctor_totals totals;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    keep_many(&rig);
    REQUIRE(rig_await(has_no_first, &rig, "the first segment to be dropped"));
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/history.db", rig.data);
    REQUIRE(change_bytes(path, "CREATE VIEW attempts_view", "CREATE VI\xf4W attempts_view"));
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = true};
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK_INT(totals.history_tasks, KEPT);
    rig_end(&rig);
}

TEST(a_damaged_task_in_history_is_the_one_behind_those_that_were_read)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 32];
    kl_task tasks[40];
    kl_ref refs[40];
    size_t count = 99;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    keep_many(&rig);
    REQUIRE(rig_await(has_no_first, &rig, "the first segment to be dropped"));
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/history.db", rig.data);
    REQUIRE(change_bytes(path, "marked", "bitten"));
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    for (uint64_t i = 0; i < 40; i++)
        refs[i] = (kl_ref){.place = rig_place(&rig, MARKED - 20 + i), .id = rig_id(MARKED - 20 + i)};
    CHECK_INT(kl_store_read(rig.store, refs, 40, &rig.arena, tasks, &count), KL_EDAMAGED);
    CHECK_INT(count, 20);
    CHECK_INT(tasks[19].state, KL_TASK_DEAD);
    CHECK_OK(kl_store_read(rig.store, refs + 21, 19, &rig.arena, tasks, &count));
    CHECK_INT(count, 19);
    CHECK_INT(kl_store_read(rig.store, refs + 20, 1, &rig.arena, tasks, &count), KL_EDAMAGED);
    CHECK_INT(count, 0);
    rig_end(&rig);
}

/* What is said of lost errors. */
static void note_lost_errors(void *ctx, const kl__finding *finding)
{
    if (finding->kind == KL_FOUND_LOST_ERRORS)
        snprintf(ctx, 800, "%s", finding->text);
}

TEST(of_a_bad_page_of_errors_the_tasks_stay_and_the_errors_are_counted)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 32], told[800] = "";
    kl_counts counts = {0};
    kl__doctor_totals totals;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    keep_many(&rig);
    REQUIRE(rig_await(has_no_first, &rig, "the first segment to be dropped"));
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/history.db", rig.data);
    REQUIRE(spoil_page(path, ERRORS_PAGE, "it broke"));
    kl__doctor_opts opts = {
        .vfs = &kl__vfs_system, .path = rig.data, .repair = true, .found = note_lost_errors, .ctx = told};
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK_INT(totals.lost_finished, 0);
    CHECK_INT(totals.history_tasks, KEPT);
    CHECK(totals.lacking_errors >= 1 && totals.lacking_errors <= 100); /* a page of them */
    CHECK_INT(totals.lost_errors, totals.lacking_errors);
    CHECK_CONTAINS(told, "Where that may be the last one, its place says so");
    CHECK(!totals.may_lack_errors); /* no task waits with one */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.dead, KEPT);
    uint64_t lost = 0;
    for (uint64_t i = 0; i < KEPT; i++) {
        kl_bytes error = read_kept(&rig, i).error;
        bool is_lost = error.len && memmem(error.data, error.len, "lost", 4);
        if (!is_lost)
            CHECK_INT(error.len, 8);
        lost += is_lost;
    }
    CHECK(lost <= totals.lost_errors); /* the journal may have brought some back */
    rig_end(&rig);
}
