/* test_history_faults.c - a history that cannot have memory, cannot write, loses power or is damaged. */
#include <errno.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/random.h"
#include "faultvfs.h"
#include "history_support.h"
#include "simdisk.h"
#include "simsqlite.h"
#include "store/disk/doctor_history.h"

/* ---- A script whose steps can be repeated ---- */

enum { STEPS = 14 };

/* Adds, retries, forgets and trims; each changes what the next ones see. */
static kl_rc do_step(struct shelf *shelf, uint32_t step)
{
    kl_entry entries[3] = {shelf_entry(10 * step, "a"), shelf_entry(10 * step + 1, "b"),
                           shelf_entry(10 * step + 2, "")};
    kl__history_row rows[3] = {shelf_row(&entries[0], KL_DONE, 2, NULL),
                               shelf_row(&entries[1], KL_DEAD, 1, "some error"),
                               shelf_row(&entries[2], KL_RETRY, 1, "an early error")};
    entries[0].job = shelf_id(5);
    size_t trimmed;
    if (step % 7 == 5)
        return kl__history_forget(shelf->history, (kl_place){1, 2}, (kl_task_id[]){shelf_id(10 * (step - 1))}, 1);
    if (step % 7 == 6)
        return kl__history_trim(shelf->history, SHELF_MS + 1000 + 10 * step - 35, 2, false, &trimmed);
    return kl__history_add(shelf->history, rows, 3, step);
}

/* Everything that a reader can see, as text. */
static const char *describe(struct shelf *shelf)
{
    static char text[4096];
    uint64_t done = 0, dead = 0, cancelled = 0;
    size_t len = (size_t)snprintf(text, sizeof text, "%s; errors: ", shelf_find(shelf, (kl_find){0}, 5));
    len += (size_t)snprintf(text + len, sizeof text - len, "%s; ",
                            shelf_find(shelf, (kl_find){.words = kl_str("error")}, 5));
    CHECK_OK(kl__history_counts(shelf->history, 1, NULL, &done, &dead, &cancelled));
    snprintf(text + len, sizeof text - len, "%d %d %d at %d", (int)done, (int)dead, (int)cancelled,
             (int)kl__history_position(shelf->history));
    return text;
}

static char expected[STEPS + 1][4096]; /* after each step */

static void play(void)
{
    struct shelf shelf;
    shelf_new(&shelf);
    for (uint32_t step = 1; step <= STEPS && shelf.history; step++) {
        CHECK_OK(do_step(&shelf, step));
        strcpy(expected[step], describe(&shelf));
    }
    shelf_free(&shelf);
}

/* ---- Memory ---- */

/* SQLite's own memory, which fails at a chosen call. */
static sqlite3_mem_methods real;
static atomic_int_fast64_t sqlite_countdown;

static bool refuse(void) { return atomic_load(&sqlite_countdown) && atomic_fetch_sub(&sqlite_countdown, 1) == 1; }
static void *refusing_malloc(int size) { return refuse() ? NULL : real.xMalloc(size); }
static void *refusing_realloc(void *memory, int size) { return refuse() ? NULL : real.xRealloc(memory, size); }

__attribute__((constructor)) static void watch_sqlite_memory(void)
{
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real);
    sqlite3_mem_methods refusing = real;
    refusing.xMalloc = refusing_malloc;
    refusing.xRealloc = refusing_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &refusing);
}

static void fail_ours(uint64_t at) { kl__alloc_fail_at(at); }
static void fail_sqlites(uint64_t at) { atomic_store(&sqlite_countdown, (int_fast64_t)at); }

/* Repeats each step, with one more allocation granted each time, until it succeeds. */
static void starve(void (*fail_at)(uint64_t at))
{
    struct shelf shelf;
    play();
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    uint64_t refused = 0;
    for (uint32_t step = 1; step <= STEPS; step++) {
        char before[4096];
        kl_rc rc = KL_ENOMEM;
        strcpy(before, describe(&shelf));
        for (uint64_t at = 1; rc != KL_OK && at < 10000 && !test_failed(); at++) {
            fail_at(at);
            rc = do_step(&shelf, step);
            fail_at(0);
            if (rc == KL_OK)
                break;
            CHECK_INT(rc, KL_ENOMEM);
            CHECK_CONTAINS(kl_error_text(), "out of memory");
            refused++;
            if (at % 5 == 1)
                CHECK_STR(describe(&shelf), before);
        }
        CHECK_STR(describe(&shelf), expected[step]);
        CHECK_OK(kl__history_check(shelf.history));
    }
    CHECK(refused > 20);
    shelf_free(&shelf);
}

TEST(a_change_without_memory_changes_nothing) { starve(fail_ours); }
TEST(a_change_without_memory_for_sqlite_changes_nothing) { starve(fail_sqlites); }

TEST(opening_and_finding_without_memory_fail_and_leave_nothing_behind)
{
    struct shelf shelf;
    void (*const ways[2])(uint64_t) = {fail_ours, fail_sqlites};
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DEAD, "k", "word");
    for (int way = 0; way < 2; way++) {
        kl_rc rc = KL_ENOMEM;
        uint64_t refused = 0;
        for (uint64_t at = 1; rc != KL_OK && at < 10000 && !test_failed(); at++) {
            kl_task task;
            size_t count = 0;
            kl_find find = {.words = kl_str("word"), .max = 1};
            shelf_close(&shelf);
            ways[way](at);
            rc = kl__history_open(shelf.path, NULL, 10, INT64_MAX, &shelf.history);
            if (rc == KL_OK)
                rc = kl__history_find(shelf.history, &find, &shelf.arena, &task, &count);
            ways[way](0);
            kl_arena_reset(&shelf.arena);
            if (rc == KL_OK)
                CHECK_INT(count, 1);
            else
                CHECK_INT(rc, KL_ENOMEM);
            refused += rc != KL_OK;
        }
        CHECK(refused > 3);
    }
    shelf_free(&shelf);
}

/* ---- A disk that fails or is full ---- */

static void fail_calls(unsigned kinds, int error, kl_rc rc_expected)
{
    play();
    uint64_t failures = 0;
    bool all_seen = false;
    for (uint64_t at = 1; !all_seen && !test_failed(); at++) {
        simdisk *disk = simdisk_new();
        faultvfs *faulty = faultvfs_new(simdisk_vfs(disk));
        simsqlite *layer = simsqlite_new(faultvfs_vfs(faulty));
        struct shelf shelf = {.path = "/history.db", .sqlite_vfs = faultvfs_vfs(faulty)->sqlite_vfs, .rows_max = 1000};
        shelf_open(&shelf);
        REQUIRE(shelf.history);
        faultvfs_set(faulty, &(vfs_fault){.kinds = kinds, .at = at, .error = error});
        for (uint32_t step = 1; step <= STEPS; step++) {
            uint64_t position = kl__history_position(shelf.history);
            kl_rc rc = do_step(&shelf, step);
            if (rc != KL_OK) {
                CHECK_INT(rc, rc_expected);
                CHECK_CONTAINS(kl_error_text(), "/history.db");
                CHECK_INT(kl__history_position(shelf.history), position);
                failures++;
                CHECK_OK(do_step(&shelf, step));
            }
            CHECK_STR(describe(&shelf), expected[step]);
        }
        all_seen = faultvfs_hits(faulty, NULL, 0) == 0;
        shelf_close(&shelf);
        shelf_open(&shelf);
        REQUIRE(shelf.history);
        CHECK_STR(describe(&shelf), expected[STEPS]);
        CHECK_OK(kl__history_check(shelf.history));
        shelf_free(&shelf);
        simsqlite_free(layer);
        faultvfs_free(faulty);
        simdisk_free(disk);
    }
    CHECK(failures >= STEPS);
}

TEST(a_failed_write_changes_nothing_and_can_be_repeated) { fail_calls(FAULT_WRITE, EIO, KL_ESYSTEM); }
TEST(a_failed_sync_changes_nothing_and_can_be_repeated) { fail_calls(FAULT_SYNC, EIO, KL_ESYSTEM); }
TEST(a_full_disk_changes_nothing_and_is_told) { fail_calls(FAULT_WRITE, ENOSPC, KL_EFULL); }

/* ---- Power ---- */

static void check_image(simdisk *image, uint32_t least, uint32_t most)
{
    simsqlite *layer = simsqlite_new(simdisk_vfs(image));
    struct shelf shelf = {.path = "/history.db", .sqlite_vfs = simdisk_vfs(image)->sqlite_vfs, .rows_max = 1000};
    shelf_open(&shelf);
    if (shelf.history) {
        const char *found = describe(&shelf);
        uint32_t step = least;
        while (step < most && strcmp(found, expected[step]) != 0)
            step++;
        CHECK_STR(found, expected[step]);
        CHECK_OK(kl__history_check(shelf.history));
        CHECK_OK(do_step(&shelf, STEPS + 1));
    }
    shelf_free(&shelf);
    simsqlite_free(layer);
}

TEST(after_power_was_lost_at_any_operation_every_change_is_there_whole_or_not_at_all)
{
    uint64_t random = test_seed(), images = 0;
    simdisk *disk = simdisk_new(), *again = simdisk_new();
    simsqlite *layer = simsqlite_new(simdisk_vfs(disk));
    uint64_t done[STEPS + 1];
    play();
    simdisk_record(disk);
    struct shelf shelf = {.path = "/history.db", .sqlite_vfs = simdisk_vfs(disk)->sqlite_vfs, .rows_max = 1000};
    shelf_open(&shelf);
    REQUIRE(shelf.history);
    strcpy(expected[0], describe(&shelf));
    done[0] = simdisk_ops(disk);
    for (uint32_t step = 1; step <= STEPS; step++) {
        CHECK_OK(do_step(&shelf, step));
        done[step] = simdisk_ops(disk);
    }
    shelf_free(&shelf); /* moves the log into the file */
    simsqlite_free(layer);
    uint32_t step = 0;
    uint64_t stride = 1 + simdisk_recorded(disk) / test_ops(1000);
    for (uint64_t op = 1; op <= simdisk_recorded(disk) && !test_failed(); op += stride) {
        simdisk_forward(again, disk, op);
        while (step < STEPS && done[step + 1] <= op)
            step++;
        for (int outcome = 0; outcome < SIM_OUTCOMES; outcome++, images++) {
            simdisk *image = simdisk_image(again, (simdisk_outcome)outcome, kl__random_next(&random));
            check_image(image, step, step < STEPS ? step + 1 : STEPS);
            if (test_failed())
                test_fail(__FILE__, __LINE__, "operation %" PRIu64 ", %s", op, simdisk_outcome_names[outcome]);
            simdisk_free(image);
        }
    }
    printf("# %" PRIu64 " images of %" PRIu64 " operations\n", images, simdisk_recorded(disk));
    simdisk_free(again);
    simdisk_free(disk);
}

/* ---- Damage ---- */

enum { FILE_BYTES_MAX = 1 << 20 };

static size_t load_file(const char *path, uint8_t *bytes)
{
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(bytes, 1, FILE_BYTES_MAX, file) : 0;
    if (file)
        fclose(file);
    return size;
}

static void save_file(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size);
    if (file)
        fclose(file);
}

/* True when all is said to be well, and then it must be as it was. */
static bool look(struct shelf *shelf, const char *before, const char *what)
{
    kl_rc rc = kl__history_open(shelf->path, NULL, 1000, INT64_MAX, &shelf->history);
    bool well = rc == KL_OK && (rc = kl__history_check(shelf->history)) == KL_OK;
    if (well && strcmp(describe(shelf), before) != 0)
        test_fail(__FILE__, __LINE__, "%s is not noticed", what);
    if (!well && rc != KL_EDAMAGED)
        test_fail(__FILE__, __LINE__, "%s gives %s: %s", what, kl_rc_name(rc), kl_error_text());
    if (rc == KL_OK)
        shelf_close(shelf);
    kl__history_close(shelf->history);
    shelf->history = NULL;
    return well;
}

TEST(a_flipped_bit_is_noticed_or_harmless)
{
    uint64_t random = test_seed(), noticed = 0;
    static uint8_t bytes[FILE_BYTES_MAX];
    struct shelf shelf;
    char before[4096], what[64];
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t step = 1; step <= STEPS; step++)
        CHECK_OK(do_step(&shelf, step));
    strcpy(before, describe(&shelf));
    shelf_close(&shelf);
    size_t size = load_file(shelf.path, bytes);
    REQUIRE(size > 4096 && size < FILE_BYTES_MAX);
    for (uint64_t i = 0, n = test_ops(1500); i < n && !test_failed(); i++) {
        uint64_t bit = kl__random_below(&random, size * 8);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        save_file(shelf.path, bytes, size);
        snprintf(what, sizeof what, "bit %d of byte %d", (int)(bit % 8), (int)(bit / 8));
        noticed += !look(&shelf, before, what);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(noticed > 0);
    shelf_free(&shelf);
}

TEST(a_file_that_ends_early_is_noticed)
{
    static uint8_t bytes[FILE_BYTES_MAX];
    struct shelf shelf;
    char before[4096], what[64];
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    for (uint32_t step = 1; step <= STEPS; step++)
        CHECK_OK(do_step(&shelf, step));
    strcpy(before, describe(&shelf));
    shelf_close(&shelf);
    size_t size = load_file(shelf.path, bytes);
    for (size_t cut = 2; cut < size; cut += 1777) {
        save_file(shelf.path, bytes, cut);
        snprintf(what, sizeof what, "an end at %d", (int)cut);
        CHECK(!look(&shelf, before, what));
    }
    shelf_free(&shelf);
}

TEST(a_damaged_task_is_named)
{
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_add(&shelf, 1, KL_DEAD, "k", "word");
    shelf_add(&shelf, 2, KL_DEAD, "k", "word");
    shelf_sql(&shelf, "update tasks set payload = 'other' where number = 1");
    kl_task task = {.state = KL_TASK_UNKNOWN}, tasks[2];
    kl_task_id id = shelf_id(1);
    size_t count;
    CHECK_INT(read_kept(shelf.history, (kl_place){1, 2}, &id, 1, &shelf.arena, &task), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "12340000-0000-0000-0000-000000000001");
    CHECK_CONTAINS(kl_error_text(), "keyline doctor");
    CHECK_INT(shelf_read(&shelf, 2).state, KL_TASK_DEAD);
    kl_find find = {.max = 1};
    CHECK_OK(kl__history_find(shelf.history, &find, &shelf.arena, tasks, &count)); /* as far as it is sound */
    find.max = 2;
    CHECK_INT(kl__history_find(shelf.history, &find, &shelf.arena, tasks, &count), KL_EDAMAGED);
    CHECK_INT(kl__history_check(shelf.history), KL_EDAMAGED);
    shelf_free(&shelf);
}

TEST(an_earlier_error_is_not_shown_for_a_last_one_that_is_lost)
{
    struct shelf shelf;
    kl_task task = {.state = KL_TASK_UNKNOWN};
    kl_task_id id = shelf_id(5);
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    shelf_retry(&shelf, 5, 1, "alpha");
    shelf_retry(&shelf, 5, 2, "beta");
    shelf_add(&shelf, 5, KL_DONE, "k", NULL);
    CHECK_BYTES(shelf_read(&shelf, 5).error, kl_str("beta"));
    shelf_sql(&shelf, "update attempts set number = number + 64 where attempt = 2");
    CHECK_INT(read_kept(shelf.history, (kl_place){1, 2}, &id, 1, &shelf.arena, &task), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "12340000-0000-0000-0000-000000000005");
    CHECK_INT(kl__history_check(shelf.history), KL_EDAMAGED);
    shelf_free(&shelf);
}

TEST(counts_and_segments_that_do_not_fit_the_tasks_are_noticed)
{
    static const char *const damages[] = {
        "update counts set tasks = tasks + 1",
        "update segments set live = live - 1",
        "update segments set last = last + 1",
        "update segments set docs = docs + 1",
        "update segments set postings = postings + 1",
        "update blocks set body = zeroblob(12)",
        "delete from blocks",
        "delete from segments",
        "update progress set position = position + 1",
        "update attempts set error = 'another'",
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        struct shelf shelf;
        shelf_new(&shelf);
        REQUIRE(shelf.history);
        shelf_add(&shelf, 1, KL_DEAD, "k", "word");
        shelf_close(&shelf);
        shelf_sql(&shelf, damages[i]);
        if (look(&shelf, "", damages[i]))
            test_fail(__FILE__, __LINE__, "not noticed: %s", damages[i]);
        shelf_free(&shelf);
    }
}

/* More than are added at once, and the last of them goes with the row of its task. */
TEST(a_task_goes_into_a_new_history_with_all_of_its_errors)
{
    enum { RETRIES = 5000 };
    struct shelf old, new;
    kl__history_saved saved;
    kl_entry entry = shelf_entry(1, "key"), other = shelf_entry(2, NULL);
    kl__history_row *rows = calloc(RETRIES + 2, sizeof *rows);
    shelf_new(&old);
    shelf_new(&new);
    REQUIRE(rows && old.history && new.history);
    for (uint32_t i = 0; i < RETRIES; i++)
        rows[i] = shelf_row(&entry, KL_RETRY, i + 1, "an error");
    rows[RETRIES] = shelf_row(&entry, KL_DEAD, RETRIES + 1, "the last");
    rows[RETRIES + 1] = shelf_row(&other, KL_RETRY, 1, "of another that waits");
    for (int i = 0; i < RETRIES + 2; i++)
        rows[i].ahead = true;
    CHECK_OK(kl__history_add(old.history, rows, RETRIES + 2, 0));
    shelf_close(&old);
    CHECK_OK(kl__history_salvage(old.path, NULL, false, new.history, &saved));
    CHECK_INT(saved.tasks, 1);
    CHECK_INT(saved.lacking_errors, 0);
    CHECK_INT(saved.lost_errors, 0);
    CHECK(!saved.may_lack_errors);
    kl_task task = shelf_read(&new, 1);
    CHECK_INT(task.state, KL_TASK_DEAD);
    CHECK_BYTES(task.entry.key, kl_str("key"));
    CHECK_BYTES(task.entry.payload, kl_str("payload"));
    CHECK_BYTES(task.error, kl_str("the last"));
    CHECK_STR(shelf_sql(&new, "SELECT count(*) FROM attempts WHERE number > 0"), "5001");
    CHECK_STR(shelf_sql(&new, "SELECT count(*) FROM attempts WHERE number = 0"), "1");
    CHECK_OK(kl__history_check(new.history));
    free(rows);
    shelf_free(&old);
    shelf_free(&new);
}

/* Adds what is read of `old`, in which that was changed, to a new history. */
static kl__history_saved salvage_without(struct shelf *old, struct shelf *new, const char *sql)
{
    kl__history_saved saved;
    shelf_close(old);
    shelf_sql(old, sql);
    shelf_new(new);
    CHECK_OK(kl__history_salvage(old->path, NULL, false, new->history, &saved));
    CHECK_OK(kl__history_check(new->history));
    return saved;
}

TEST(errors_that_a_new_history_lacks_are_counted_and_a_last_one_that_is_lost_is_said_to_be)
{
    struct shelf old, new;
    shelf_new(&old);
    REQUIRE(old.history);
    for (uint32_t task = 1; task <= 3; task++) {
        shelf_retry(&old, task, 1, "alpha");
        shelf_retry(&old, task, 2, "beta");
        shelf_add(&old, task, KL_DEAD, "k", "gamma");
    }
    shelf_add(&old, 4, KL_DONE, "k", NULL);
    shelf_retry(&old, 5, 1, "of one that waits");
    kl__history_saved saved =
        salvage_without(&old, &new,
                        "UPDATE attempts SET error = 'x' WHERE (substr(hex(id), -1) = '1' AND attempt > 1) OR "
                        "(substr(hex(id), -1) = '2' AND attempt = 1)");
    CHECK_INT(saved.tasks, 4);
    CHECK_INT(saved.lacking_errors, 2);
    CHECK_INT(saved.lost_errors, 3);
    CHECK(!saved.may_lack_errors);
    CHECK_BYTES(shelf_read(&new, 1).error, kl_str("This error is lost: history.db was damaged."));
    CHECK_BYTES(shelf_read(&new, 2).error, kl_str("gamma"));
    CHECK_BYTES(shelf_read(&new, 3).error, kl_str("gamma"));
    CHECK_INT(shelf_read(&new, 4).error.len, 0);
    CHECK_STR(shelf_sql(&new, "SELECT count(*) FROM attempts"), "8");
    CHECK_INT(kl__history_position(new.history), 0); /* the journal may have them still */
    shelf_free(&new);
    saved = salvage_without(&old, &new, "UPDATE attempts SET error = 'x' WHERE number = 0");
    CHECK(saved.may_lack_errors);
    shelf_free(&new);
    shelf_free(&old);
}
