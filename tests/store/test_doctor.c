/* test_doctor.c - what the doctor finds, and that looking changes nothing. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/hash.h"
#include "faultvfs.h"
#include "harness.h"
#include "patient.h"
#include "store/disk/disk.h"
#include "store/disk/format.h"
#include "workdir.h"

enum { OWNING = 2 }; /* operations on the file `lock` when the directory is taken */

static uint64_t middle(const struct patient *patient) { return patient->first_segment + 1; }

/* Examines the patient twice and frees it: the same is found, and nothing has changed on the disk. */
static kl_rc examine(struct patient *patient)
{
    uint64_t ops = simdisk_ops(patient->disk);
    kl_rc rc = patient_examine(patient, false);
    size_t found = patient->finding_count;
    CHECK_INT(patient_examine(patient, false), rc);
    CHECK_INT(patient->finding_count, found);
    CHECK_INT(simdisk_ops(patient->disk), ops);
    return rc;
}

TEST(a_store_that_was_closed_is_whole_and_gets_no_remark)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    CHECK_INT(examine(patient), KL_OK);
    CHECK_INT(patient->finding_count, 0);
    const kl__doctor_totals *totals = &patient->totals;
    CHECK_INT(totals->frames, patient->frame_count);
    CHECK_INT(totals->last_frame, patient->frames[patient->frame_count - 1].number);
    CHECK_INT(totals->waiting, PATIENT_TASKS - PATIENT_SETTLED);
    CHECK_INT(totals->partitions, 2);
    CHECK_INT(totals->values, 1);
    CHECK_INT(totals->settled, 0);
    CHECK_INT(totals->records[KL_RECORD_ENTRY], PATIENT_TASKS);
    CHECK_INT(totals->records[KL_RECORD_SETTLE], PATIENT_SETTLED);
    CHECK_INT(totals->records[KL_RECORD_WRITE], 1);
    CHECK_INT(totals->records[KL_RECORD_CLOSE], 1);
    CHECK_INT(totals->history_tasks, PATIENT_SETTLED);
    CHECK(totals->has_history && totals->history_was_checked && totals->was_closed && !totals->is_torn);
    CHECK(totals->live_bytes > (uint64_t)(PATIENT_TASKS - PATIENT_SETTLED) * 2000 && totals->dead_bytes > 0);
    CHECK(totals->segments >= patient->last_segment - patient->first_segment + 1);
    patient_free(patient);
}

TEST(a_store_whose_process_was_killed_is_whole_too)
{
    struct patient *patient = patient_make(false);
    REQUIRE(patient);
    REQUIRE(patient_has(patient, RECORDING_PATH "/history.db-wal"));
    CHECK_INT(examine(patient), KL_OK);
    CHECK_INT(patient_found(patient, KL_FOUND_NOT_CLOSED, KL_FOUND_NOTE), 1);
    CHECK_INT(patient->finding_count, 1);
    CHECK_INT(patient->totals.history_tasks, PATIENT_SETTLED);
    CHECK_INT(patient->totals.damages + patient->totals.warnings, 0);
    CHECK(patient_is_well(patient, NULL));
    patient_free(patient);
}

TEST(a_directory_without_a_store_is_named_so_and_stays_as_it_is)
{
    struct patient *patient = patient_on(simdisk_new());
    CHECK_INT(patient_examine(patient, true), KL_ENOTFOUND);
    CHECK_CONTAINS(kl_error_text(), "no directory " RECORDING_PATH);
    REQUIRE(patient->vfs->mkdir(patient->vfs, RECORDING_PATH) == 0);
    uint64_t ops = simdisk_ops(patient->disk);
    CHECK_INT(patient_examine(patient, false), KL_EINVAL);
    CHECK_INT(patient_examine(patient, true), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "not a data directory");
    CHECK_INT(simdisk_ops(patient->disk), ops);
    patient_free(patient);
}

TEST(an_unreadable_frame_is_told_with_its_number_bytes_and_records)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    const struct patient_frame *frame = patient_frame_of(patient, 50);
    char text[200];
    patient_flip(patient, frame);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE), 1);
    snprintf(text, sizeof text, "%016llx.seg %llu: %llu bytes cannot be read: frame %llu is lost, which held 1 record;",
             (unsigned long long)frame->segment, (unsigned long long)frame->offset, (unsigned long long)frame->bytes,
             (unsigned long long)frame->number);
    CHECK(patient_says(patient, text));
    CHECK(patient_says(patient, "tasks settled then may run again"));
    CHECK_INT(patient->totals.lost_frames, 1);
    CHECK_INT(patient->totals.damages, 1);
    CHECK_INT(patient->totals.waiting, PATIENT_TASKS - PATIENT_SETTLED - 1);
    patient_free(patient);
}

TEST(frames_lost_at_the_end_of_a_segment_are_noticed_by_the_next_one)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    size_t last = 0;
    while (patient->frames[last + 1].segment == patient->first_segment)
        last++;
    patient_wipe(patient, &patient->frames[last]);
    patient_wipe(patient, &patient->frames[last - 1]);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, "Nothing can be read from here on"));
    CHECK_INT(patient->totals.lost_frames, 2);
    patient_free(patient);
}

/* The frame behind a task's is the one that settled it. */
TEST(tasks_that_history_knows_as_done_and_that_will_run_again_are_counted)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_wipe(patient, patient_frame_of(patient, 3) + 1);
    patient_wipe(patient, patient_frame_of(patient, 7) + 1);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient->totals.waiting, PATIENT_TASKS - PATIENT_SETTLED + 2);
    CHECK_INT(patient_found(patient, KL_FOUND_RUN_AGAIN, KL_FOUND_NOTE), 1);
    CHECK(patient_says(patient, "2 of the waiting tasks are finished"));
    patient_free(patient);
}

TEST(a_torn_last_write_is_harmless)
{
    struct patient *patient = patient_make(false);
    REQUIRE(patient);
    const struct patient_frame *last = &patient->frames[patient->frame_count - 1];
    patient_flip(patient, last);
    CHECK_INT(examine(patient), KL_OK);
    CHECK_INT(patient_found(patient, KL_FOUND_TORN_WRITE, KL_FOUND_NOTE), 1);
    CHECK(patient_says(patient, "It was not acknowledged"));
    CHECK(patient->totals.is_torn);
    CHECK_INT(patient->totals.damages, 0);
    patient_free(patient);
}

TEST(a_missing_segment_is_named)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    patient_path(middle(patient), path);
    patient_unlink(patient, path);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_MISSING_SEGMENTS, KL_FOUND_DAMAGE), 1);
    CHECK_INT(patient_found(patient, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, strrchr(path, '/') + 1));
    patient_free(patient);
}

TEST(a_missing_first_segment_is_named)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    patient_path(patient->first_segment, path);
    patient_unlink(patient, path);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_MISSING_SEGMENTS, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, strrchr(path, '/') + 1));
    patient_free(patient);
}

TEST(a_journal_of_which_all_segments_are_missing_is_named)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    for (uint64_t segment = patient->first_segment; segment <= patient->last_segment + 1; segment++) {
        patient_path(segment, path);
        if (patient_has(patient, path))
            patient_unlink(patient, path);
    }
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_NO_JOURNAL, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, "All segments are missing"));
    patient_free(patient);
}

TEST(an_unreadable_header_costs_no_frame)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    patient_path(middle(patient), path);
    patient_write(patient, path, 20, "x", 1);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_BAD_HEADER, KL_FOUND_DAMAGE), 1);
    CHECK_INT(patient->totals.damages, 1);
    CHECK_INT(patient->totals.waiting, PATIENT_TASKS - PATIENT_SETTLED);
    patient_free(patient);
}

TEST(a_file_that_was_cut_off_is_told_with_both_sizes)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    patient_path(middle(patient), path);
    patient_cut(patient, path, 9000);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_CUT_OFF, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, ".seg 9000: The file ends here and should have 65536 bytes"));
    CHECK(patient->totals.lost_frames > 5);
    patient_free(patient);
}

/* Writes another header, with a right checksum. */
static void set_header(struct patient *patient, uint64_t segment, uint32_t version, uint64_t number, uint64_t journal)
{
    char path[64];
    kl__segment_header header;
    patient_path(segment, path);
    patient_read(patient, path, 0, &header, sizeof header);
    header.version = version;
    header.number = number;
    header.journal += journal;
    header.crc = kl__segment_crc(&header);
    patient_write(patient, path, 0, &header, sizeof header);
}

TEST(a_segment_of_another_journal_is_told_apart)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    set_header(patient, middle(patient), 1, middle(patient), 1);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_FOREIGN_SEGMENT, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, "belongs to another journal"));
    patient_free(patient);
}

TEST(a_segment_under_another_name_is_told_apart)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    set_header(patient, middle(patient), 1, 77, 0);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_FOREIGN_SEGMENT, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, "segment 000000000000004d under another name"));
    patient_free(patient);
}

TEST(a_newer_format_is_not_repaired)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    set_header(patient, middle(patient), 2, middle(patient), 0);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_NEWER, KL_FOUND_DAMAGE), 1);
    uint64_t ops = simdisk_ops(patient->disk);
    CHECK_INT(patient_examine(patient, true), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "newer version");
    CHECK_INT(simdisk_ops(patient->disk), ops + OWNING);
    patient_free(patient);
}

TEST(a_damaged_version_is_damage_and_not_a_newer_format)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    patient_path(middle(patient), path);
    patient_write(patient, path, offsetof(kl__segment_header, version), "\xcb", 1);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_NEWER, KL_FOUND_DAMAGE), 0);
    CHECK_INT(patient_found(patient, KL_FOUND_BAD_HEADER, KL_FOUND_DAMAGE), 1);
    CHECK_INT(patient_examine(patient, true), KL_OK);
    CHECK_INT(examine(patient), KL_OK);
    patient_free(patient);
}

TEST(files_that_do_not_belong_are_named_and_do_no_harm)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_write(patient, RECORDING_PATH "/notes.txt", 0, "x", 1);
    patient_write(patient, RECORDING_PATH "/http", 0, "x", 1); /* a server that was killed leaves its socket */
    patient_write(patient, RECORDING_PATH "/journal/1.seg", 0, "x", 1);
    CHECK_INT(examine(patient), KL_OK);
    CHECK_INT(patient_found(patient, KL_FOUND_FOREIGN_FILE, KL_FOUND_WARNING), 2);
    CHECK(patient_says(patient, "notes.txt") && patient_says(patient, "journal/1.seg"));
    CHECK_INT(patient->totals.warnings, 2);
    patient_free(patient);
}

TEST(records_of_an_unknown_partition_are_counted)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    /* Only the first segment is left, and the record that made partition b is gone. */
    for (uint64_t segment = middle(patient); segment <= patient->last_segment + 1; segment++) {
        char path[64];
        patient_path(segment, path);
        if (patient_has(patient, path))
            patient_unlink(patient, path);
    }
    patient_unlink(patient, RECORDING_PATH "/history.db");
    patient_wipe(patient, &patient->frames[2]); /* the first names none, the second made partition a */
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_FOREIGN_RECORDS, KL_FOUND_DAMAGE), 1);
    CHECK(patient_says(patient, "the first is of partition 2"));
    CHECK(patient->totals.left_out_records > 5);
    CHECK_INT(patient->totals.partitions, 1);
    patient_free(patient);
}

TEST(a_missing_history_is_told)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_unlink(patient, RECORDING_PATH "/history.db");
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_NO_HISTORY, KL_FOUND_DAMAGE), 1);
    CHECK(!patient->totals.has_history);
    patient_free(patient);
}

/* ---- Opening and the doctor judge alike ---- */

static void remove_history(struct patient *patient) { patient_unlink(patient, RECORDING_PATH "/history.db"); }

static void empty_history(struct patient *patient) { patient_cut(patient, RECORDING_PATH "/history.db", 0); }

static void empty_log(struct patient *patient) { patient_cut(patient, RECORDING_PATH "/history.db-wal", 0); }

static void remove_log(struct patient *patient) { patient_unlink(patient, RECORDING_PATH "/history.db-wal"); }

static void overwrite_log(struct patient *patient)
{
    patient_write(patient, RECORDING_PATH "/history.db-wal", 0, "not a log at all", 16);
}

/* The journal has noted that there were transactions, and the file has fewer. */
static void lose_history(bool closed, void (*lose)(struct patient *))
{
    struct patient *patient = patient_make(closed);
    kl_store *store = NULL;
    REQUIRE(patient);
    lose(patient);
    bool was_there = patient_has(patient, RECORDING_PATH "/history.db");
    CHECK_INT(patient_open(patient, &store), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "keyline doctor --repair");
    CHECK_INT(patient_has(patient, RECORDING_PATH "/history.db"), was_there);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient->totals.damages, 1);
    CHECK_INT(patient_examine(patient, true), KL_OK);
    CHECK(patient_is_well(patient, NULL));
    CHECK_INT(patient_examine(patient, false), KL_OK);
    CHECK_INT(patient->totals.history_tasks, PATIENT_SETTLED); /* the journal had them still */
    patient_free(patient);
}

TEST(a_history_that_is_gone_is_damage_to_the_doctor_and_to_opening) { lose_history(true, remove_history); }
TEST(a_history_that_was_emptied_is_damage_to_the_doctor_and_to_opening) { lose_history(true, empty_history); }
TEST(a_history_whose_log_was_emptied_is_damage_to_the_doctor_and_to_opening) { lose_history(false, empty_log); }
TEST(a_history_whose_log_is_gone_is_damage_to_the_doctor_and_to_opening) { lose_history(false, remove_log); }
TEST(a_history_whose_log_was_overwritten_is_damage_to_the_doctor_and_to_opening) { lose_history(false, overwrite_log); }

/* SQLite reads such a file, and refuses only what is to be written. */
TEST(a_history_that_can_only_be_read_is_damage_to_the_doctor_and_to_opening)
{
    struct patient *patient = patient_make(true);
    kl_store *store = NULL;
    REQUIRE(patient);
    patient_write(patient, RECORDING_PATH "/history.db", 18, "\3", 1); /* the write version */
    CHECK_INT(patient_open(patient, &store), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "keyline doctor");
    kl_store_close(store);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_HISTORY_DAMAGED, KL_FOUND_DAMAGE), 1);
    CHECK_INT(patient_examine(patient, true), KL_OK);
    CHECK_INT(patient->totals.lost_finished, 0);
    CHECK(patient_is_well(patient, NULL));
    CHECK_INT(patient->totals.history_tasks, PATIENT_SETTLED);
    patient_free(patient);
}

/* Adds up the bytes of a file, so that a change shows. */
static uint64_t sum_file(struct patient *patient, const char *path)
{
    uint64_t size = patient_size(patient, path);
    char *bytes = malloc(size + 1);
    KL_ASSERT(bytes);
    patient_read(patient, path, 0, bytes, size);
    uint64_t sum = kl__hash((kl_bytes){bytes, size}, size);
    free(bytes);
    return sum;
}

TEST(an_open_that_is_refused_leaves_history_and_its_log_as_they_are)
{
    struct patient *patient = patient_make(false);
    kl_store *store = NULL;
    REQUIRE(patient);
    patient_flip(patient, patient_frame_of(patient, 50));
    uint64_t file = sum_file(patient, RECORDING_PATH "/history.db");
    uint64_t log = sum_file(patient, RECORDING_PATH "/history.db-wal");
    CHECK_INT(patient_open(patient, &store), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), "nothing was changed");
    REQUIRE(patient_has(patient, RECORDING_PATH "/history.db-wal"));
    CHECK(sum_file(patient, RECORDING_PATH "/history.db") == file);
    CHECK(sum_file(patient, RECORDING_PATH "/history.db-wal") == log);
    patient_free(patient);
}

TEST(a_damaged_history_is_told_and_costs_no_waiting_task)
{
    struct patient *patient = patient_make(true);
    char garbage[512];
    REQUIRE(patient);
    memset(garbage, 0xa5, sizeof garbage);
    for (uint64_t at = 4096; at + 4096 <= patient_size(patient, RECORDING_PATH "/history.db"); at += 4096)
        patient_write(patient, RECORDING_PATH "/history.db", at, garbage, sizeof garbage);
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_HISTORY_DAMAGED, KL_FOUND_DAMAGE), 1);
    CHECK_INT(patient->totals.waiting, PATIENT_TASKS - PATIENT_SETTLED);
    patient_free(patient);
}

TEST(a_damaged_log_of_the_history_is_noticed)
{
    struct patient *patient = patient_make(false);
    char garbage[64];
    REQUIRE(patient);
    memset(garbage, 0xa5, sizeof garbage);
    uint64_t size = patient_size(patient, RECORDING_PATH "/history.db-wal");
    patient_write(patient, RECORDING_PATH "/history.db-wal", size / 2, garbage, sizeof garbage);
    /* SQLite takes the log as ending there. The journal has noted more; and it has what is gone. */
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK(patient->totals.history_tasks < PATIENT_SETTLED);
    CHECK(patient_says(patient, "has lost its last") || patient_says(patient, "The file is new"));
    CHECK_INT(patient_examine(patient, true), KL_OK);
    CHECK_INT(patient->totals.history_tasks + patient->totals.settled, PATIENT_SETTLED);
    CHECK(patient_is_well(patient, NULL));
    patient_free(patient);
}

TEST(a_newer_history_is_not_repaired)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_write(patient, RECORDING_PATH "/history.db", 60, "\0\0\0\2", 4); /* user_version */
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_NEWER, KL_FOUND_DAMAGE), 1);
    uint64_t ops = simdisk_ops(patient->disk);
    CHECK_INT(patient_examine(patient, true), KL_EDAMAGED);
    CHECK_INT(simdisk_ops(patient->disk), ops + OWNING);
    patient_free(patient);
}

TEST(a_journal_that_ends_before_its_history_is_noticed)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    for (uint64_t segment = patient->first_segment; segment <= patient->last_segment + 1; segment++) {
        char path[64];
        patient_path(segment, path);
        if (patient_has(patient, path))
            patient_unlink(patient, path);
    }
    CHECK_INT(examine(patient), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_LOST_END, KL_FOUND_DAMAGE), 1);
    CHECK_INT(patient_found(patient, KL_FOUND_LOST_PARTITION, KL_FOUND_DAMAGE), 2);
    CHECK(patient_says(patient, "which history.db calls 'b'"));
    patient_free(patient);
}

/* ---- On the machine's own disk ---- */

TEST(a_store_that_is_open_is_not_examined_and_its_process_is_named)
{
    char path[WORKDIR_BYTES], url[WORKDIR_BYTES + 8], pid[32];
    kl_store *store = NULL;
    kl__doctor_totals totals;
    REQUIRE(workdir_make(path));
    snprintf(url, sizeof url, "disk:%s", path);
    snprintf(pid, sizeof pid, "process %lld", (long long)getpid());
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = 65536};
    CHECK_INT(kl_store_open(url, &opts, &store), KL_OK);
    for (int repair = 0; repair < 2; repair++) {
        kl__doctor_opts asked = {&kl__vfs_system, path, repair, NULL, NULL};
        CHECK_INT(kl__doctor_see(&asked, &totals), KL_EBUSY);
        CHECK_CONTAINS(kl_error_text(), pid);
    }
    kl_store_close(store);
    kl__doctor_opts asked = {&kl__vfs_system, path, false, NULL, NULL};
    CHECK_INT(kl__doctor_see(&asked, &totals), KL_OK);
    CHECK(workdir_remove(path));
}

TEST(nobody_owns_a_directory_while_it_is_looked_at)
{
    char path[WORKDIR_BYTES];
    kl__vfs *vfs = &kl__vfs_system;
    kl__file *one = NULL, *two = NULL, *owner = NULL;
    int64_t pid = 0;
    REQUIRE(workdir_make(path));
    CHECK_INT(vfs->look(vfs, path, &one, &pid), -ENOENT);
    CHECK_INT(vfs->lock(vfs, path, &owner, &pid), 0);
    CHECK_INT(vfs->look(vfs, path, &one, &pid), -EBUSY);
    CHECK_INT(pid, getpid());
    vfs->unlock(vfs, owner);
    owner = NULL;
    CHECK_INT(vfs->look(vfs, path, &one, &pid), 0);
    CHECK_INT(vfs->look(vfs, path, &two, &pid), 0);
    CHECK_INT(vfs->lock(vfs, path, &owner, &pid), -EBUSY);
    vfs->unlock(vfs, one);
    vfs->unlock(vfs, two);
    CHECK_INT(vfs->lock(vfs, path, &owner, &pid), 0);
    vfs->unlock(vfs, owner);
    CHECK(workdir_remove(path));
}

TEST(a_file_that_may_not_be_read_is_no_damage)
{
    static const char *const names[] = {"/history.db", "/history.db-wal", ".seg"};
    struct patient *patient = patient_make(false);
    REQUIRE(patient);
    faultvfs *faults = faultvfs_new(patient->vfs);
    kl__vfs *under = patient->vfs;
    patient->vfs = faultvfs_vfs(faults);
    patient->vfs->sqlite_vfs = under->sqlite_vfs;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int repairs = 0; repairs < 2; repairs++) {
            faultvfs_set(
                faults, &(vfs_fault){.kinds = FAULT_OPEN, .at = 1, .lasting = true, .error = EACCES, .only = names[i]});
            CHECK_INT(patient_examine(patient, repairs), KL_ESYSTEM);
            CHECK_CONTAINS(kl_error_text(), "could not be opened");
            CHECK_INT(patient->totals.damages, 0);
        }
    patient->vfs = under;
    CHECK_INT(patient_examine(patient, false), KL_OK);
    faultvfs_free(faults);
    patient_free(patient);
}
