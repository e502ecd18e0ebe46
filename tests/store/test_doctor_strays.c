/* test_doctor_strays.c - names of ours that are not a file's: they are moved aside, and then it is as if the file were
 * missing. On a real file system, for a simulated one has neither links nor pipes. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_rig.h"
#include "faultvfs.h"
#include "store/disk/doctor.h"

enum { TASKS = 2000, CALL = 100, PAYLOAD = 1000, PATH_BYTES = WORKDIR_BYTES + 64 };

static void make_directory(const char *path) { CHECK_INT(mkdir(path, 0700), 0); }
static void make_loop(const char *path) { CHECK_INT(symlink(strrchr(path, '/') + 1, path), 0); }
static void make_dangling(const char *path) { CHECK_INT(symlink("nowhere", path), 0); }
static void make_pipe(const char *path) { CHECK_INT(mkfifo(path, 0600), 0); }
static void make_nothing(const char *path) { (void)path; }

static void (*const ways[])(const char *path) = {make_directory, make_loop, make_dangling, make_pipe};

enum { WAYS = sizeof ways / sizeof ways[0] };

static void path_of(const struct rig *rig, const char *name, char ret_path[PATH_BYTES])
{
    snprintf(ret_path, PATH_BYTES, "%s/%s", rig->data, name);
}

static bool has(const struct rig *rig, const char *name)
{
    char path[PATH_BYTES];
    struct stat status;
    path_of(rig, name, path);
    return lstat(path, &status) == 0;
}

/* A store of several segments that was closed, with something else in the place of one of its files. */
static bool begin_with(struct rig *rig, const char *name, void (*make)(const char *path))
{
    char path[PATH_BYTES];
    if (!rig_begin(rig, RIG_SEGMENT))
        return false;
    for (uint64_t i = 0; i < TASKS; i += CALL)
        rig_append(rig, i, CALL, PAYLOAD);
    rig_close(rig);
    path_of(rig, name, path);
    CHECK_INT(unlink(path), 0);
    make(path);
    return !test_failed();
}

static void count_strays(void *ctx, const kl__finding *finding)
{
    if (finding->kind == KL_FOUND_NO_FILE)
        ((int *)ctx)[finding->severity == KL_FOUND_REPAIRED]++;
}

static uint64_t waiting_without(const char *name)
{
    struct rig rig;
    kl__doctor_totals totals = {0};
    if (begin_with(&rig, name, make_nothing)) {
        kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = true};
        CHECK_OK(kl__doctor_see(&opts, &totals));
    }
    rig_end(&rig);
    return totals.waiting;
}

/* Opening changes nothing, and says who can help. But what cannot be read of `reached` is only logged. */
static void check_refused(struct rig *rig, const char *name)
{
    if (strcmp(name, "reached") == 0)
        return;
    CHECK_INT(rig_open(rig), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "`keyline doctor`");
    rig_close(rig);
    CHECK(has(rig, name) && !has(rig, "nowhere"));
}

static void check_moved(struct rig *rig, const char *name, const char *aside, uint64_t waiting)
{
    int strays[2] = {0};
    kl__doctor_totals totals;
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig->data, .found = count_strays, .ctx = strays};
    check_refused(rig, name);
    CHECK_INT(kl__doctor_see(&opts, &totals), KL_EDAMAGED);
    CHECK_INT(strays[0], 1);
    CHECK(has(rig, name) && !has(rig, "quarantine"));
    opts.repair = true;
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK_INT(strays[1], 1);
    CHECK(has(rig, aside));
    CHECK_INT(totals.waiting, waiting);
    CHECK_OK(rig_open(rig));
    if (rig->store)
        CHECK_INT(rig_waiting(rig), waiting);
}

TEST(what_is_no_file_in_a_segments_place_is_moved_aside_as_if_that_were_missing)
{
    static const char *const names[][2] = {
        {"journal/0000000000000001.seg", "quarantine/0000000000000001.seg-1"},
        {"journal/0000000000000003.seg", "quarantine/0000000000000003.seg-1"},
    };
    for (int i = 0; i < 2; i++) {
        uint64_t waiting = waiting_without(names[i][0]);
        CHECK(waiting > 0 && waiting < TASKS);
        for (int way = 0; way < WAYS && !test_failed(); way++) {
            struct rig rig;
            if (begin_with(&rig, names[i][0], ways[way]))
                check_moved(&rig, names[i][0], names[i][1], waiting);
            rig_end(&rig);
        }
    }
}

TEST(what_is_no_file_in_the_place_of_history_or_reached_is_moved_aside)
{
    static const char *const names[][2] = {{"history.db", "quarantine/history.db-1"},
                                           {"reached", "quarantine/reached-1"}};
    for (int i = 0; i < 2; i++)
        for (int way = 0; way < WAYS && !test_failed(); way++) {
            struct rig rig;
            if (begin_with(&rig, names[i][0], ways[way]))
                check_moved(&rig, names[i][0], names[i][1], TASKS);
            rig_end(&rig);
        }
}

TEST(what_is_in_quarantine_is_not_replaced_by_what_is_no_file)
{
    char path[PATH_BYTES];
    struct rig rig;
    REQUIRE(begin_with(&rig, "history.db", make_dangling));
    path_of(&rig, "quarantine", path);
    make_directory(path);
    path_of(&rig, "quarantine/history.db-1", path);
    make_dangling(path); /* which cannot be opened */
    kl__doctor_totals totals;
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig.data, .repair = true};
    CHECK_OK(kl__doctor_see(&opts, &totals));
    CHECK(has(&rig, "quarantine/history.db-1") && has(&rig, "quarantine/history.db-2"));
    CHECK_INT(totals.quarantined, 1);
    rig_end(&rig);
}

/* One more call succeeds each time. */
TEST(a_repair_that_fails_while_it_moves_what_is_no_file_can_be_made_again)
{
    static const char *const name = "journal/0000000000000003.seg";
    uint64_t waiting = waiting_without(name), hits = 1, at = 1;
    for (; hits && !test_failed(); at++) {
        struct rig rig;
        faultvfs *faults = faultvfs_new(&kl__vfs_system);
        REQUIRE(begin_with(&rig, name, make_directory));
        kl__doctor_totals totals;
        kl__doctor_opts opts = {.vfs = faultvfs_vfs(faults), .path = rig.data, .repair = true};
        faultvfs_set(
            faults,
            &(vfs_fault){.kinds = FAULT_RENAME | FAULT_MKDIR | FAULT_LIST | FAULT_SYNC_DIR, .at = at, .error = EIO});
        kl_rc rc = kl__doctor_see(&opts, &totals);
        hits = faultvfs_hits(faults, NULL, 0);
        CHECK(rc == KL_OK || hits);
        faultvfs_set(faults, NULL);
        CHECK_OK(kl__doctor_see(&opts, &totals));
        CHECK(has(&rig, "quarantine/0000000000000003.seg-1"));
        CHECK_OK(rig_open(&rig));
        if (rig.store)
            CHECK_INT(rig_waiting(&rig), waiting);
        rig_end(&rig);
        faultvfs_free(faults);
    }
    CHECK(at > 8);
}
