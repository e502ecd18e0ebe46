/* test_disk_reach.c - a journal that has lost its end is noticed, by what was written down beside it (reach.h). */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_rig.h"
#include "store/disk/doctor.h"
#include "store/disk/reach.h"
#include "store/disk/segments.h"

enum { JOURNAL = 77 };

static void segment_path(const struct rig *rig, uint64_t number, char path[WORKDIR_BYTES + 64])
{
    snprintf(path, WORKDIR_BYTES + 64, "%s/%016llx.seg", rig->journal, (unsigned long long)number);
}

static bool has_segment(const struct rig *rig, uint64_t number)
{
    char path[WORKDIR_BYTES + 64];
    struct stat about;
    segment_path(rig, number, path);
    return stat(path, &about) == 0;
}

/* From this one on. */
static void remove_segments(const struct rig *rig, uint64_t number)
{
    char path[WORKDIR_BYTES + 64];
    for (; has_segment(rig, number); number++) {
        segment_path(rig, number, path);
        CHECK_INT(unlink(path), 0);
    }
}

/* Its header stays. */
static void empty_segment(const struct rig *rig, uint64_t number)
{
    char path[WORKDIR_BYTES + 64];
    struct stat about;
    segment_path(rig, number, path);
    REQUIRE(stat(path, &about) == 0 && truncate(path, KL_SEGMENT_HEADER) == 0 && truncate(path, about.st_size) == 0);
}

static kl_rc see(const struct rig *rig, bool repair, kl__doctor_totals *ret_totals)
{
    kl__doctor_opts opts = {.vfs = &kl__vfs_system, .path = rig->data, .repair = repair};
    return kl__doctor_see(&opts, ret_totals);
}

/* It is noticed, and a repair goes on with what is left. Returns how many tasks that is. */
static uint64_t notice_and_repair(struct rig *rig, const char *words)
{
    kl__doctor_totals totals;
    for (int i = 0; i < 2; i++) { /* looking changes nothing */
        CHECK_INT(rig_open(rig), KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), words);
        CHECK_INT(see(rig, false, &totals), KL_EDAMAGED);
    }
    CHECK_OK(see(rig, true, &totals));
    CHECK(totals.may_have_lost_more);
    CHECK_OK(see(rig, false, &totals));
    CHECK_INT(totals.damages, 0);
    CHECK_OK(rig_open(rig));
    uint64_t waiting = rig->store ? rig_waiting(rig) : 0;
    if (rig->store)
        rig_append(rig, 100000, 10, 100);
    CHECK(rig_reopen(rig));
    CHECK_INT(rig->store ? rig_waiting(rig) : 0, waiting + 10);
    return waiting;
}

TEST(segments_that_are_gone_from_the_end_of_a_closed_journal_are_missed)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 2500, 300);
    rig_close(&rig);
    REQUIRE(has_segment(&rig, 3));
    remove_segments(&rig, 3);
    uint64_t left = notice_and_repair(&rig, "segment 0000000000000");
    CHECK(left > 0 && left < 2500);
    rig_end(&rig);
}

TEST(frames_that_are_gone_from_the_end_of_a_closed_journal_are_missed)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 2500, 300);
    rig_close(&rig);
    uint64_t last = 3;
    while (has_segment(&rig, last + 1))
        last++;
    for (; last >= 3; last--) /* the last is prepared, and empty */
        empty_segment(&rig, last);
    uint64_t left = notice_and_repair(&rig, "has lost its end");
    CHECK(left > 0 && left < 2500);
    rig_end(&rig);
}

/* Nothing is written down when a process is killed; but upkeep has done so for each segment. */
static bool is_written_down(void *ctx)
{
    struct rig *rig = ctx;
    char path[WORKDIR_BYTES + 64];
    kl__segment_header header = {0};
    kl__reach reach = {0};
    uint64_t first = 1; /* nothing stays in some */
    while (!has_segment(rig, first))
        first++;
    segment_path(rig, first, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, &header, sizeof header) == sizeof header);
    close(fd);
    CHECK_INT(kl__reach_read(&kl__vfs_system, rig->data, header.journal, &reach), 0);
    return reach.segment >= 3;
}

TEST(segments_that_came_into_use_are_written_down_while_the_store_is_open)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 2500, 300);
    CHECK(rig_await(is_written_down, &rig, "the third segment to be written down"));
    rig_end(&rig);
}

/* A store without the file, or with another journal's, is as good as one that has it. */
TEST(a_store_opens_without_what_was_written_down)
{
    struct rig rig;
    char path[WORKDIR_BYTES + 64];
    kl__doctor_totals totals;
    kl__reach foreign = {.segment = 1000, .frame = 1000000}, found;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_append(&rig, 0, 100, 300);
    rig_close(&rig);
    snprintf(path, sizeof path, "%s/reached", rig.data);
    for (int which = 0; which < 3; which++) {
        if (which == 0)
            CHECK_INT(unlink(path), 0);
        else if (which == 1)
            CHECK_INT(truncate(path, 0), 0);
        else
            CHECK_INT(kl__reach_write(&kl__vfs_system, rig.data, JOURNAL, &foreign), 0);
        CHECK_OK(see(&rig, false, &totals));
        CHECK_INT(totals.damages + totals.warnings, 0);
        CHECK_OK(rig_open(&rig));
        REQUIRE(rig.store);
        CHECK_INT(rig_waiting(&rig), 100);
        rig_close(&rig);
    }
    CHECK_INT(kl__reach_read(&kl__vfs_system, rig.data, JOURNAL, &found), 0);
    rig_end(&rig);
}

TEST(what_was_written_down_last_counts_and_before_it_is_whole_what_was_before)
{
    char dir[WORKDIR_BYTES], path[WORKDIR_BYTES + 16];
    kl__reach found = {0};
    REQUIRE(workdir_make(dir));
    snprintf(path, sizeof path, "%s/reached", dir);
    for (uint64_t i = 1; i <= 5; i++) {
        kl__reach reach = {.segment = i, .frame = 10 * i};
        CHECK_INT(kl__reach_write(&kl__vfs_system, dir, JOURNAL, &reach), 0);
        CHECK_INT(kl__reach_read(&kl__vfs_system, dir, JOURNAL, &found), 0);
        CHECK_INT(found.frame, 10 * i);
        CHECK_INT(found.segment, i);
    }
    CHECK_INT(kl__reach_read(&kl__vfs_system, dir, JOURNAL + 1, &found), 0);
    CHECK_INT(found.frame, 0);
    int fd = open(path, O_RDWR | O_CLOEXEC), spoiled = 0;
    for (off_t at = 0; at <= KL_REACH_BYTES; at += KL_REACH_BYTES) { /* the mark that was written last is torn */
        kl__reach_mark mark;
        CHECK(pread(fd, &mark, sizeof mark, at) == sizeof mark);
        if (mark.frame != 50)
            continue;
        CHECK(pwrite(fd, "torn", 4, at + 40) == 4);
        spoiled++;
    }
    close(fd);
    CHECK_INT(spoiled, 1);
    CHECK_INT(kl__reach_read(&kl__vfs_system, dir, JOURNAL, &found), 0);
    CHECK_INT(found.frame, 40);
    CHECK(workdir_remove(dir));
}
