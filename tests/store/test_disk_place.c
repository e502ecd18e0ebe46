/* test_disk_place.c - a store stays the one that was opened, whatever becomes of its directory, and wherever the
 * process works by then. */
#include <sys/stat.h>
#include <unistd.h>

#include "disk_rig.h"

/* ---- The directory goes ---- */

struct last {
    struct rig *rig;
    uint64_t number;
    kl_rc rc;
};

static bool is_refused(void *ctx)
{
    struct last *last = ctx;
    kl_entry entry = rig_entry(last->rig, last->number++, 100);
    last->rc = kl_store_append(last->rig->store, &entry, 1, NULL);
    return last->rc != KL_OK;
}

/* Upkeep looks every second. What was accepted until then is lost with the directory, as is what was before. */
static void check_noticed(struct rig *rig)
{
    struct last last = {.rig = rig, .number = 1000};
    CHECK(rig_await(is_refused, &last, "the append is refused"));
    CHECK_INT(last.rc, KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "removed, moved or replaced");
    CHECK_CONTAINS(kl_error_text(), rig->data);
    kl_settled settled = {.id = rig_id(1), .outcome = KL_DONE};
    kl_settle batch = {.place = rig_place(rig, 1), .epoch = 1, .tasks = &settled, .count = 1};
    CHECK_OK(rig_set_positions(rig, batch.place, &settled, 1));
    CHECK_INT(kl_store_settle(rig->store, &batch, 1), KL_ESYSTEM); /* outcomes are no more accepted than tasks */
}

TEST(a_store_whose_directory_is_removed_takes_nothing_more)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 1, 10, 100);
    CHECK(workdir_remove(rig.data));
    check_noticed(&rig);
    rig_end(&rig);
}

TEST(a_store_whose_directory_is_replaced_takes_nothing_more_and_leaves_the_other_alone)
{
    struct rig rig, other;
    char moved[WORKDIR_BYTES + 16];
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 1, 10, 100);
    snprintf(moved, sizeof moved, "%s.old", rig.data);
    REQUIRE(rename(rig.data, moved) == 0);
    other = rig;
    other.store = NULL;
    other.arena = (kl_arena){0};
    CHECK_OK(rig_open(&other));
    REQUIRE(other.store);
    rig_append(&other, 1, 20, 100);
    check_noticed(&rig);
    rig_close(&rig);
    CHECK(rig_reopen(&other));
    CHECK_INT(rig_waiting(&other), 20);
    rig_close(&other);
    kl_arena_free(&other.arena);
    CHECK(workdir_remove(rig.data) && rename(moved, rig.data) == 0); /* what was there is put back */
    CHECK_OK(rig_open(&rig));
    CHECK(rig_waiting(&rig) >= 10);
    rig_end(&rig);
}

static void keep(struct rig *rig, uint64_t number)
{
    kl_settled settled = {.id = rig_id(number), .outcome = KL_DEAD, .attempts = 1, .keep_ms = INT64_C(1) << 40};
    kl_settle batch = {.place = rig_place(rig, number), .tasks = &settled, .count = 1};
    CHECK_OK(rig_set_positions(rig, batch.place, &settled, 1));
    CHECK_OK(kl_store_settle(rig->store, &batch, 1));
}

static kl_task_state state_of(struct rig *rig, uint64_t number)
{
    kl_task task = {.state = KL_TASK_UNKNOWN};
    size_t count;
    kl_task_id id = rig_id(number);
    CHECK_OK(read_some(rig->store, rig_place(rig, number), &id, 1, &rig->arena, &task, &count));
    return task.state;
}

/* Connections to history.db are opened by its name, when a call needs one. */
TEST(a_store_whose_directory_is_replaced_shows_nothing_of_the_history_there)
{
    struct rig rig, other;
    char moved[WORKDIR_BYTES + 16];
    kl_task task;
    size_t count;
    kl_task_id id = rig_id(1);
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 1, 1, 100);
    keep(&rig, 1);
    snprintf(moved, sizeof moved, "%s.old", rig.data);
    REQUIRE(rename(rig.data, moved) == 0);
    other = rig;
    other.store = NULL;
    other.arena = (kl_arena){0};
    CHECK_OK(rig_open(&other));
    REQUIRE(other.store);
    CHECK_INT(read_some(rig.store, rig_place(&rig, 1), &id, 1, &rig.arena, &task, &count), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "removed, moved or replaced");
    rig_close(&rig);
    rig_close(&other);
    kl_arena_free(&other.arena);
    CHECK(workdir_remove(rig.data) && rename(moved, rig.data) == 0); /* what was there is put back */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    CHECK_INT(state_of(&rig, 1), KL_TASK_DEAD);
    rig_end(&rig);
}

TEST(a_store_that_has_lost_a_segment_takes_nothing_more)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 64];
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 1, 10, 100);
    snprintf(path, sizeof path, "%s/0000000000000001.seg", rig.journal);
    REQUIRE(unlink(path) == 0);
    check_noticed(&rig);
    rig_end(&rig);
}

/* ---- The process goes elsewhere ---- */

enum { SMALL_SEGMENT = 64 << 10, TASKS = 400, BYTES = 1000, KEPT = 7 };

/* Two directories, and a store by the same relative path in each. */
struct homes {
    char dir[WORKDIR_BYTES], before[1024], a[WORKDIR_BYTES + 8], b[WORKDIR_BYTES + 8];
    struct rig mine, other;
};

static bool open_in(struct rig *rig, const char *dir)
{
    CHECK_INT(chdir(dir), 0);
    CHECK_OK(rig_open(rig));
    return rig->store != NULL;
}

static bool begin_homes(struct homes *homes, bool no_socket)
{
    struct rig rig = {.url = "disk:here",
                      .opts = {.size = sizeof rig.opts, .segment_bytes = SMALL_SEGMENT, .no_socket = no_socket}};
    homes->mine = homes->other = rig;
    if (!workdir_make(homes->dir) || !getcwd(homes->before, sizeof homes->before))
        return false;
    snprintf(homes->a, sizeof homes->a, "%s/a", homes->dir);
    snprintf(homes->b, sizeof homes->b, "%s/b", homes->dir);
    CHECK(mkdir(homes->a, 0700) == 0 && mkdir(homes->b, 0700) == 0);
    return open_in(&homes->other, homes->b);
}

static void end_homes(struct homes *homes)
{
    rig_close(&homes->mine);
    rig_close(&homes->other);
    kl_arena_free(&homes->mine.arena);
    CHECK_INT(chdir(homes->before), 0);
    CHECK(workdir_remove(homes->dir));
}

/* Many segments come and go while the process works beside another store of the same relative path. */
static void check_chdir(bool no_socket)
{
    struct homes homes;
    REQUIRE(begin_homes(&homes, no_socket));
    rig_append(&homes.other, 1, TASKS, BYTES);
    rig_close(&homes.other);
    if (open_in(&homes.mine, homes.a)) {
        rig_append(&homes.mine, 1, KEPT, BYTES);
        CHECK_INT(chdir(homes.b), 0);
        keep(&homes.mine, KEPT);
        rig_append(&homes.mine, KEPT + 1, TASKS, BYTES);
        CHECK_INT(state_of(&homes.mine, KEPT), KL_TASK_DEAD);
        rig_settle(&homes.mine, 1, TASKS / 2);
        rig_close(&homes.mine);
    }
    if (open_in(&homes.other, homes.b))
        CHECK_INT(rig_waiting(&homes.other), TASKS);
    if (open_in(&homes.mine, homes.a)) {
        CHECK_INT(rig_waiting(&homes.mine), TASKS + KEPT - TASKS / 2);
        CHECK(rig_is_whole(&homes.mine, TASKS, BYTES));
    }
    end_homes(&homes);
}

TEST(a_store_with_a_relative_path_is_still_there_after_a_chdir)
{
    check_chdir(true);
    check_chdir(false);
}

TEST(a_path_that_is_too_long_from_the_root_is_refused)
{
    static char url[5000];
    struct homes homes;
    REQUIRE(begin_homes(&homes, true));
    memset(url, 'd', 3968 + 5);
    memcpy(url, "disk:", 5);
    for (size_t at = 5 + 100; at < 3968; at += 101)
        url[at] = '/';
    CHECK_INT(kl_store_open(url, &homes.mine.opts, &homes.mine.store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "3968 is the most");
    homes.mine.store = NULL;
    end_homes(&homes);
}

TEST(a_relative_path_in_a_directory_that_is_gone_is_refused)
{
    struct homes homes;
    REQUIRE(begin_homes(&homes, true));
    rig_close(&homes.other);
    CHECK(chdir(homes.a) == 0 && rmdir(homes.a) == 0);
    CHECK_INT(kl_store_open("disk:here", &homes.mine.opts, &homes.mine.store), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "whole path");
    homes.mine.store = NULL;
    end_homes(&homes);
}
