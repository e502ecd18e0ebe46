/* test_doctor_repair.c - what the doctor repairs: the store opens again with everything that is readable, whatever the
 * damage and wherever the repair is interrupted, and nothing that cannot be read is destroyed. */
#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "faultvfs.h"
#include "harness.h"
#include "patient.h"
#include "store/disk/format.h"

#define QUARANTINE RECORDING_PATH "/quarantine/"

enum { DAMAGES = 400, HITS_MAX = 4 };

static uint64_t middle(const struct patient *patient) { return patient->first_segment + 1; }

/* The tasks whose frames stand in the segment, from the byte `from` on. */
static void note_missing(const struct patient *patient, uint64_t segment, uint64_t from, bool missing[PATIENT_TASKS])
{
    for (size_t i = 0; i < patient->frame_count; i++) {
        const struct patient_frame *frame = &patient->frames[i];
        if (frame->task >= 0 && frame->segment == segment && frame->offset + frame->bytes > from)
            missing[frame->task] = true;
    }
}

/* Repairs, and looks again: the second repair finds nothing to do. */
static bool repair(struct patient *patient)
{
    kl_rc rc = patient_examine(patient, true);
    if (rc != KL_OK)
        printf("# not repaired: %s: %s\n", kl_rc_name(rc), kl_error_text());
    CHECK_INT(rc, KL_OK);
    kl__doctor_totals first = patient->totals;
    uint64_t ops = simdisk_ops(patient->disk);
    CHECK_INT(patient_examine(patient, false), KL_OK);
    for (size_t i = 0; i < patient->finding_count && patient->totals.damages; i++)
        printf("# %s\n", patient->text[i]);
    CHECK_INT(patient->totals.damages, 0);
    CHECK_INT(patient->totals.waiting, first.waiting);
    CHECK_INT(simdisk_ops(patient->disk), ops);
    CHECK_INT(patient_examine(patient, true), KL_OK);
    CHECK_INT(patient_found(patient, KL_FOUND_LOST_FRAMES, KL_FOUND_REPAIRED), 0);
    return rc == KL_OK;
}

/* All of a file; returns its size. */
static size_t take_bytes(struct patient *patient, const char *path, char **ret_bytes)
{
    size_t size = (size_t)patient_size(patient, path);
    *ret_bytes = malloc(size + 1);
    KL_ASSERT(*ret_bytes);
    patient_read(patient, path, 0, *ret_bytes, size);
    return size;
}

/* What a file was before the repair. */
struct before {
    const char *path, *copy; /* copy: without its number */
    char *bytes;
    size_t size;
};

static bool is_same(struct patient *patient, const struct before *before, const char *path)
{
    char *bytes;
    if (!patient_has(patient, path))
        return false;
    size_t size = take_bytes(patient, path, &bytes);
    bool same = size == before->size && memcmp(bytes, before->bytes, size) == 0;
    free(bytes);
    return same;
}

/* Is it still there, where it was or in quarantine? */
static bool is_kept(struct patient *patient, const struct before *before)
{
    bool kept = is_same(patient, before, before->path);
    for (int n = 1; n < 10 && !kept; n++) {
        char copy[100];
        snprintf(copy, sizeof copy, "%s-%d%s", before->copy, n, strstr(before->path, ".db") ? ".db" : "");
        kept = is_same(patient, before, copy);
    }
    return kept;
}

TEST(of_an_unreadable_frame_only_its_task_is_lost_and_the_file_is_kept)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS] = {[50] = true};
    char path[64], copy[100], *before, *after;
    REQUIRE(patient);
    const struct patient_frame *frame = patient_frame_of(patient, 50);
    patient_flip(patient, frame);
    patient_path(frame->segment, path);
    size_t size = take_bytes(patient, path, &before);
    CHECK(repair(patient));
    snprintf(copy, sizeof copy, QUARANTINE "%016llx.seg-1", (unsigned long long)frame->segment);
    REQUIRE(patient_has(patient, copy));
    CHECK_INT(take_bytes(patient, copy, &after), size);
    CHECK(memcmp(before, after, size) == 0);
    CHECK(patient_is_well(patient, missing));
    free(before);
    free(after);
    patient_free(patient);
}

TEST(a_store_works_on_after_a_repair)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS] = {[40] = true, [41] = true, [119] = true};
    REQUIRE(patient);
    patient_flip(patient, patient_frame_of(patient, 40));
    patient_wipe(patient, patient_frame_of(patient, 41));
    patient_flip(patient, patient_frame_of(patient, 119));
    CHECK(repair(patient));
    CHECK(patient_is_well(patient, missing));
    CHECK(patient_is_well(patient, missing)); /* it was closed and is opened again */
    CHECK_INT(patient_examine(patient, false), KL_OK);
    patient_free(patient);
}

TEST(an_earlier_copy_in_quarantine_is_never_replaced)
{
    struct patient *patient = patient_make(true);
    char copy[100];
    REQUIRE(patient);
    const struct patient_frame *first = patient_frame_of(patient, 40);
    patient_flip(patient, first);
    CHECK_INT(patient_examine(patient, true), KL_OK);
    patient_flip(patient, first); /* whatever stands there now */
    CHECK_INT(patient_examine(patient, true), KL_OK);
    for (int i = 1; i <= 2; i++) {
        snprintf(copy, sizeof copy, QUARANTINE "%016llx.seg-%d", (unsigned long long)first->segment, i);
        CHECK(patient_has(patient, copy));
    }
    patient_free(patient);
}

TEST(a_rewritten_segment_can_be_read_without_those_before_it)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    uint64_t segment = middle(patient);
    bool missing[PATIENT_TASKS] = {0};
    char path[64];
    for (size_t i = 0; i < patient->frame_count; i++) {
        if (patient->frames[i].segment != segment)
            continue;
        patient_wipe(patient, &patient->frames[i]); /* its first frame, which names the partitions */
        break;
    }
    CHECK(repair(patient));
    patient_path(patient->first_segment, path);
    patient_unlink(patient, path);
    note_missing(patient, patient->first_segment, 0, missing);
    CHECK_INT(patient_examine(patient, false), KL_EDAMAGED);
    CHECK_INT(patient->totals.damages, 1); /* that it is missing, and nothing else */
    CHECK(repair(patient));
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

/* Shard 3 of partition "a" is fenced at epoch 7, shard 4 sealed; then records pass, into further segments. */
static void fence_and_seal(struct patient *patient)
{
    enum { PASSING = 12, VALUE_BYTES = 30000 };
    kl_store *store = NULL;
    uint32_t partition = 0;
    char *value = calloc(1, VALUE_BYTES);
    REQUIRE(value && patient_open(patient, &store) == KL_OK);
    CHECK_INT(kl_store_partition(store, "a", 1, &partition), KL_OK);
    kl_fence fences[2] = {{.place = {partition, 3}, .epoch = 7}, {.place = {partition, 4}, .seal = true}};
    CHECK_INT(kl_store_fence(store, fences, 2), KL_OK);
    kl_write write = {.name = {"passing", 7}, .value = {value, VALUE_BYTES}};
    for (int i = 0; i < PASSING; i++) {
        memcpy(value, &i, sizeof i);
        CHECK_INT(kl_store_put(store, &write, 1), KL_OK);
        write.version = write.new_version;
    }
    kl_store_close(store);
    free(value);
}

/* The last segment that has a frame. */
static struct patient_frame first_frame_of_last(struct patient *patient)
{
    struct patient_frame found = {.task = -1};
    for (uint64_t segment = 1; segment < 64; segment++) {
        kl__frame frame;
        char path[64];
        patient_path(segment, path);
        if (!patient_has(patient, path))
            continue;
        patient_read(patient, path, KL_SEGMENT_HEADER, &frame, sizeof frame);
        if (frame.magic == KL_FRAME_MAGIC && frame.segment == segment)
            found = (struct patient_frame){segment, KL_SEGMENT_HEADER, KL_FRAME_HEADER + frame.bytes, frame.number, -1};
    }
    return found;
}

static void check_fence_and_seal(struct patient *patient)
{
    kl_store *store = NULL;
    uint32_t partition = 0;
    REQUIRE(patient_open(patient, &store) == KL_OK);
    CHECK_INT(kl_store_partition(store, "a", 1, &partition), KL_OK);
    kl_fence stale = {.place = {partition, 3}, .epoch = 6};
    kl_entry late = {.place = {partition, 4}, .id = {{0x40}}};
    CHECK_INT(kl_store_fence(store, &stale, 1), KL_ESTALE);
    CHECK_INT(kl_store_append(store, &late, 1, NULL), KL_ESEALED);
    kl_store_close(store);
}

TEST(a_rewritten_segment_names_fences_and_seals_from_before_it)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    uint64_t before = patient->last_segment;
    char path[64];
    fence_and_seal(patient);
    struct patient_frame first = first_frame_of_last(patient);
    REQUIRE(first.segment > before + 1);
    patient_wipe(patient, &first);
    CHECK(repair(patient));
    check_fence_and_seal(patient);
    for (uint64_t segment = 1; segment < first.segment; segment++) {
        patient_path(segment, path);
        if (patient_has(patient, path))
            patient_unlink(patient, path);
    }
    CHECK_INT(patient_examine(patient, false), KL_EDAMAGED);
    CHECK_INT(patient->totals.damages, 1); /* that they are missing, and nothing else */
    CHECK(repair(patient));
    check_fence_and_seal(patient);
    patient_free(patient);
}

TEST(the_first_segment_is_repaired_without_anything_before_it)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS] = {[0] = true}; /* it was settled anyway */
    REQUIRE(patient);
    for (size_t i = 0; patient->frames[i].task <= 0; i++)
        patient_wipe(patient, &patient->frames[i]); /* partitions are known from the next segment */
    CHECK(repair(patient));
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

TEST(missing_segments_are_accepted_as_lost)
{
    for (int which = 0; which < 3; which++) {
        struct patient *patient = patient_make(true);
        bool missing[PATIENT_TASKS] = {0};
        char path[64];
        REQUIRE(patient);
        for (uint64_t segment = middle(patient); segment <= middle(patient) + (which > 0); segment++) {
            patient_path(segment, path);
            patient_unlink(patient, path);
            note_missing(patient, segment, 0, missing);
        }
        if (which == 2) { /* and the end of the one before */
            patient_path(patient->first_segment, path);
            patient_cut(patient, path, 20000);
            note_missing(patient, patient->first_segment, 20000, missing);
        }
        CHECK(repair(patient));
        CHECK(patient_is_well(patient, missing));
        patient_free(patient);
    }
}

TEST(missing_first_segments_are_accepted_as_lost)
{
    for (int which = 0; which < 3; which++) {
        struct patient *patient = patient_make(true);
        bool missing[PATIENT_TASKS] = {0};
        char path[64];
        REQUIRE(patient);
        uint64_t last = which == 0 ? patient->first_segment : which == 1 ? middle(patient) : patient->last_segment + 1;
        for (uint64_t segment = patient->first_segment; segment <= last; segment++) {
            patient_path(segment, path);
            if (patient_has(patient, path))
                patient_unlink(patient, path);
            note_missing(patient, segment, 0, missing);
        }
        CHECK(repair(patient));
        CHECK(patient_is_well(patient, missing));
        CHECK_INT(patient_examine(patient, false), KL_OK);
        patient_free(patient);
    }
}

TEST(segments_without_a_readable_header_lose_nothing)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    for (uint64_t segment = patient->first_segment; segment <= patient->last_segment; segment++) {
        patient_path(segment, path);
        patient_write(patient, path, 0, "garbage", 7);
    }
    CHECK(repair(patient));
    CHECK(patient_is_well(patient, NULL));
    patient_free(patient);
}

TEST(a_segment_that_is_cut_off_keeps_what_is_left)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS] = {0};
    char path[64];
    REQUIRE(patient);
    for (uint64_t segment = middle(patient); segment <= patient->last_segment; segment++) {
        patient_path(segment, path);
        uint64_t size = segment == patient->last_segment ? 1000 : 9000;
        patient_cut(patient, path, size);
        note_missing(patient, segment, size, missing);
    }
    CHECK(repair(patient));
    CHECK(patient->totals.last_sequence > UINT64_C(1) << 32); /* no number of a lost frame is given again */
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

TEST(a_first_segment_that_is_cut_off_before_its_first_frame_is_taken_out)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS] = {0};
    char path[64], copy[100];
    REQUIRE(patient);
    patient_path(patient->first_segment, path);
    patient_cut(patient, path, KL_SEGMENT_HEADER + 50);
    note_missing(patient, patient->first_segment, 0, missing);
    CHECK(repair(patient));
    snprintf(copy, sizeof copy, QUARANTINE "%016llx.seg-1", (unsigned long long)patient->first_segment);
    CHECK(patient_has(patient, copy) && !patient_has(patient, path));
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

/* Behind the last readable frame stands what may be read in part by somebody else. With the segment that was prepared
 * to come next, and without it. */
TEST(a_damaged_end_of_a_journal_that_was_closed_is_kept)
{
    for (int is_last = 0; is_last < 2; is_last++) {
        struct patient *patient = patient_make(true);
        bool missing[PATIENT_TASKS] = {0};
        char path[64], copy[100];
        REQUIRE(patient);
        for (const struct patient_frame *frame = patient_frame_of(patient, PATIENT_TASKS - 1);
             frame < patient->frames + patient->frame_count; frame++)
            patient_flip(patient, frame);
        missing[PATIENT_TASKS - 1] = true;
        patient_path(patient->last_segment + 1, path);
        if (is_last && patient_has(patient, path))
            patient_unlink(patient, path);
        patient_path(patient->last_segment, path);
        snprintf(copy, sizeof copy, QUARANTINE "%016llx.seg-1", (unsigned long long)patient->last_segment);
        struct before before = {.path = path, .copy = copy};
        before.size = take_bytes(patient, path, &before.bytes);
        CHECK_INT(patient_examine(patient, false), KL_EDAMAGED);
        CHECK_INT(patient_found(patient, KL_FOUND_LOST_END, KL_FOUND_DAMAGE), 1);
        CHECK(repair(patient));
        CHECK(is_same(patient, &before, copy));
        CHECK(patient_is_well(patient, missing));
        free(before.bytes);
        patient_free(patient);
    }
}

TEST(a_journal_of_which_nothing_is_left_opens_again)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS];
    char path[64];
    REQUIRE(patient);
    memset(missing, 1, sizeof missing);
    for (uint64_t segment = patient->first_segment; segment <= patient->last_segment + 1; segment++) {
        patient_path(segment, path);
        if (patient_has(patient, path))
            patient_cut(patient, path, 50);
    }
    CHECK(repair(patient));
    CHECK_INT(patient->totals.history_tasks, PATIENT_SETTLED);
    CHECK_INT(patient->totals.partitions, 2); /* kept for history, under other names */
    CHECK(patient_is_well(patient, missing));
    CHECK_INT(patient_examine(patient, false), KL_OK);
    CHECK_INT(patient->totals.partitions, 4);
    patient_free(patient);
}

TEST(a_frame_that_stands_twice_counts_once)
{
    struct patient *patient = patient_make(true);
    char path[64], bytes[4096];
    REQUIRE(patient);
    const struct patient_frame *frame = patient_frame_of(patient, PATIENT_TASKS - 1);
    const struct patient_frame *last = &patient->frames[patient->frame_count - 1];
    REQUIRE(frame->segment == last->segment && frame->bytes <= sizeof bytes);
    patient_path(frame->segment, path);
    patient_read(patient, path, frame->offset, bytes, frame->bytes);
    patient_write(patient, path, last->offset + last->bytes, bytes, frame->bytes);
    CHECK_INT(patient_examine(patient, false), KL_EDAMAGED);
    CHECK_INT(patient_found(patient, KL_FOUND_REPEATED_FRAMES, KL_FOUND_DAMAGE), 1);
    CHECK(repair(patient));
    CHECK(patient_is_well(patient, NULL));
    patient_free(patient);
}

TEST(a_segment_that_does_not_belong_is_taken_out)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_write(patient, RECORDING_PATH "/journal/00000000deadbeef.seg", 0, "garbage", 7);
    CHECK_INT(patient_examine(patient, false), KL_EDAMAGED);
    CHECK(repair(patient));
    CHECK(patient_has(patient, QUARANTINE "00000000deadbeef.seg-1"));
    CHECK(!patient_has(patient, RECORDING_PATH "/journal/00000000deadbeef.seg"));
    CHECK(patient_is_well(patient, NULL));
    patient_free(patient);
}

TEST(tasks_of_a_partition_whose_name_is_lost_are_left_out_and_kept_aside)
{
    struct patient *patient = patient_make(true);
    bool missing[PATIENT_TASKS] = {0};
    char path[64], copy[100];
    REQUIRE(patient);
    for (uint64_t segment = middle(patient); segment <= patient->last_segment + 1; segment++) {
        patient_path(segment, path);
        if (patient_has(patient, path))
            patient_unlink(patient, path);
        note_missing(patient, segment, 0, missing);
    }
    for (int task = 2; task < PATIENT_TASKS; task += 3)
        missing[task] = true;
    patient_wipe(patient, &patient->frames[2]);
    CHECK(repair(patient));
    snprintf(copy, sizeof copy, QUARANTINE "%016llx.seg-1", (unsigned long long)patient->first_segment);
    CHECK(patient_has(patient, copy));
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

TEST(a_damaged_history_is_moved_aside_with_its_log_and_made_anew)
{
    for (int closed = 0; closed < 2; closed++) {
        struct patient *patient = patient_make(closed);
        REQUIRE(patient);
        uint64_t size = patient_size(patient, RECORDING_PATH "/history.db");
        if (closed) {
            char garbage[4096];
            memset(garbage, 0xa5, sizeof garbage);
            for (uint64_t at = 4096; at < size; at += 4096)
                patient_write(patient, RECORDING_PATH "/history.db", at, garbage, 512);
        } else {
            patient_write(patient, RECORDING_PATH "/history.db", 0, "not a database at all", 21);
            patient_write(patient, RECORDING_PATH "/history.db-wal", 0, "not a log at all", 16);
        }
        CHECK(repair(patient));
        CHECK(patient_has(patient, QUARANTINE "history-1.db"));
        CHECK_INT(patient_size(patient, QUARANTINE "history-1.db"), size);
        CHECK_INT(patient_has(patient, QUARANTINE "history-1.db-wal"), !closed);
        CHECK(!patient_has(patient, RECORDING_PATH "/history.db-wal"));
        CHECK_INT(patient->totals.settled, PATIENT_SETTLED); /* the journal has them still */
        CHECK(patient_is_well(patient, NULL));
        CHECK_INT(patient_examine(patient, false), KL_OK);
        CHECK_INT(patient->totals.history_tasks, PATIENT_SETTLED);
        patient_free(patient);
    }
}

TEST(a_missing_history_is_made_anew_and_a_lonely_log_kept)
{
    struct patient *patient = patient_make(false);
    REQUIRE(patient);
    patient_unlink(patient, RECORDING_PATH "/history.db");
    CHECK(repair(patient));
    CHECK(patient_has(patient, QUARANTINE "history-1.db-wal"));
    CHECK(patient_is_well(patient, NULL));
    CHECK_INT(patient_examine(patient, false), KL_OK);
    CHECK_INT(patient->totals.history_tasks, PATIENT_SETTLED);
    patient_free(patient);
}

TEST(a_missing_journal_is_made_anew)
{
    struct patient *patient = patient_on(simdisk_new());
    bool missing[PATIENT_TASKS];
    memset(missing, 1, sizeof missing);
    REQUIRE(patient->vfs->mkdir(patient->vfs, RECORDING_PATH) == 0);
    patient->vfs->mkdir(patient->vfs, RECORDING_PATH "/journal");
    CHECK_INT(patient_examine(patient, false), KL_OK); /* a store that was just being made */
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

TEST(what_an_interrupted_repair_left_is_removed)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_write(patient, RECORDING_PATH "/journal/repair", 0, "x", 1);
    CHECK_INT(patient_examine(patient, false), KL_OK);
    CHECK_INT(patient_found(patient, KL_FOUND_UNFINISHED, KL_FOUND_WARNING), 1);
    CHECK_INT(patient_examine(patient, true), KL_OK);
    CHECK(!patient_has(patient, RECORDING_PATH "/journal/repair"));
    CHECK(patient_is_well(patient, NULL));
    patient_free(patient);
}

/* ---- Repairs that do not come to their end ---- */

/* Damage of every kind at once, and the tasks that it costs. */
static struct patient *make_badly_damaged(bool missing[PATIENT_TASKS])
{
    struct patient *patient = patient_make(false);
    char path[64];
    memset(missing, 0, PATIENT_TASKS);
    if (!patient)
        return NULL;
    patient_flip(patient, patient_frame_of(patient, 12));
    missing[12] = true;
    patient_path(middle(patient), path);
    patient_unlink(patient, path);
    note_missing(patient, middle(patient), 0, missing);
    patient_path(middle(patient) + 1, path);
    patient_write(patient, path, 0, "garbage", 7);
    patient_write(patient, RECORDING_PATH "/journal/00000000deadbeef.seg", 0, "garbage", 7);
    patient_write(patient, RECORDING_PATH "/history.db", 0, "not a database at all", 21);
    return patient;
}

TEST(a_full_disk_stops_a_repair_and_loses_nothing)
{
    bool missing[PATIENT_TASKS];
    struct patient *patient = make_badly_damaged(missing);
    REQUIRE(patient);
    uint64_t used = simdisk_used(patient->disk), room = 0;
    kl_rc rc = KL_EFULL;
    for (; rc == KL_EFULL && room < UINT64_C(4) << 20; room += 16 << 10) {
        simdisk_capacity(patient->disk, used + room);
        rc = patient_examine(patient, true);
        CHECK(rc == KL_OK || rc == KL_EFULL);
        if (room == 0)
            CHECK_INT(rc, KL_EFULL);
    }
    simdisk_capacity(patient->disk, 0);
    CHECK_INT(rc, KL_OK);
    CHECK(repair(patient));
    CHECK(patient_is_well(patient, missing));
    patient_free(patient);
}

TEST(a_repair_in_which_any_call_fails_can_be_made_again)
{
    bool missing[PATIENT_TASKS];
    struct patient *original = make_badly_damaged(missing);
    REQUIRE(original);
    uint64_t failed = 0, step = test_ops(16) < 16 ? 5 : 1;
    static const int errors[] = {EIO, ENOSPC, 0};
    for (int kind = 0; kind < 3; kind++) {
        for (uint64_t at = 1;; at += step) {
            struct patient *patient = patient_copy(original);
            faultvfs *faulty = faultvfs_new(patient->vfs);
            struct sim_store store = sim_store_on(faultvfs_vfs(faulty));
            kl__vfs *under = patient->vfs;
            unsigned kinds = errors[kind] == EIO ? (unsigned)FAULT_ANY : FAULT_WRITE;
            /* A file that cannot be read is another matter: it is damage. */
            faultvfs_set(faulty, &(vfs_fault){.kinds = kinds & ~(unsigned)FAULT_READ, .at = at, .error = errors[kind]});
            patient->vfs = faultvfs_vfs(faulty);
            kl_rc rc = patient_examine(patient, true);
            uint64_t hits = faultvfs_hits(faulty, NULL, 0);
            patient->vfs = under;
            sim_store_end(&store);
            faultvfs_free(faulty);
            failed += rc != KL_OK;
            CHECK(rc == KL_OK || hits);
            CHECK(repair(patient));
            CHECK(patient_is_well(patient, missing));
            patient_free(patient);
            if (!hits || test_failed())
                break;
        }
    }
    CHECK(failed * step > 20);
    patient_free(original);
}

TEST(power_may_be_lost_at_any_point_of_a_repair)
{
    bool missing[PATIENT_TASKS];
    struct patient *original = make_badly_damaged(missing);
    REQUIRE(original);
    simdisk *start = simdisk_image(original->disk, SIM_ALL, 1);
    struct patient *recorded = patient_on(simdisk_clone(start));
    simdisk_record(recorded->disk);
    CHECK_INT(patient_examine(recorded, true), KL_OK);
    uint64_t ops = simdisk_recorded(recorded->disk), seed = test_seed(), step = test_ops(16) < 16 ? 7 : 1;
    struct before kept[] = {
        {.path = RECORDING_PATH "/journal/0000000000000001.seg", .copy = QUARANTINE "0000000000000001.seg"},
        {.path = RECORDING_PATH "/journal/0000000000000003.seg", .copy = QUARANTINE "0000000000000003.seg"},
        {.path = RECORDING_PATH "/journal/00000000deadbeef.seg", .copy = QUARANTINE "00000000deadbeef.seg"},
        {.path = RECORDING_PATH "/history.db", .copy = QUARANTINE "history"}};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        kept[i].size = take_bytes(original, kept[i].path, &kept[i].bytes);
    for (uint64_t op = 1; op <= ops && !test_failed(); op += step) {
        simdisk *disk = simdisk_clone(start);
        simdisk_forward(disk, recorded->disk, op);
        for (int outcome = 0; outcome < SIM_OUTCOMES; outcome++) {
            struct patient *patient = patient_on(simdisk_image(disk, (simdisk_outcome)outcome, kl__random_next(&seed)));
            for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
                CHECK(is_kept(patient, &kept[i]));
            bool waiting[PATIENT_TASKS];
            kl_rc rc = patient_waiting(patient, waiting); /* what does open has to be right */
            CHECK(rc == KL_EDAMAGED || (rc == KL_OK && patient_is_well(patient, missing)));
            CHECK(repair(patient));
            CHECK(patient_is_well(patient, missing));
            if (test_failed()) {
                char text[200];
                simdisk_describe(recorded->disk, op, text, sizeof text);
                printf("# after operation %llu: %s, %s\n", (unsigned long long)op, text,
                       simdisk_outcome_names[outcome]);
            }
            patient_free(patient);
        }
        simdisk_free(disk);
    }
    CHECK(ops > 20);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        free(kept[i].bytes);
    patient_free(recorded);
    simdisk_free(start);
    patient_free(original);
}

/* ---- Afterwards ---- */

static void settle_all(kl_store *store, const char *name)
{
    uint32_t partition;
    CHECK_INT(kl_store_partition(store, name, 1, &partition), KL_OK);
    for (uint32_t shard = 0; shard < 16; shard++) {
        kl_stub stubs[PATIENT_TASKS];
        kl_settled settled[PATIENT_TASKS];
        kl_scan scan = {.place = {partition, shard}, .stubs = stubs, .max = PATIENT_TASKS};
        CHECK_INT(kl_store_scan(store, &scan, 1), KL_OK);
        for (size_t i = 0; i < scan.count; i++)
            settled[i] = (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .attempts = 1};
        kl_settle batch = {.place = scan.place, .tasks = settled, .count = scan.count};
        if (scan.count)
            CHECK_INT(kl_store_settle(store, &batch, 1), KL_OK);
    }
}

/* Repairs, settles what waits, so that segment `last` and all before it are dropped, and loses power after each
 * operation. */
static void lose_power_at_work(struct patient *patient, uint64_t last)
{
    char path[64];
    CHECK(repair(patient));
    simdisk *start = simdisk_image(patient->disk, SIM_ALL, 1);
    struct patient *recorded = patient_on(simdisk_clone(start));
    kl_store *store = NULL;
    simdisk_record(recorded->disk);
    CHECK_INT(patient_open(recorded, &store), KL_OK);
    REQUIRE(store);
    settle_all(store, "a");
    settle_all(store, "b");
    kl_store_close(store);
    patient_path(last, path);
    CHECK(!patient_has(recorded, path));
    uint64_t ops = simdisk_recorded(recorded->disk);
    for (uint64_t op = 1; op <= ops && !test_failed(); op++) {
        simdisk *disk = simdisk_clone(start);
        simdisk_forward(disk, recorded->disk, op);
        struct patient *found = patient_on(simdisk_image(disk, SIM_NOTHING, 1));
        bool waiting[PATIENT_TASKS];
        kl_rc rc = patient_waiting(found, waiting);
        if (rc != KL_OK)
            printf("# after operation %llu: %s\n", (unsigned long long)op, kl_error_text());
        CHECK_INT(rc, KL_OK);
        CHECK_INT(patient_examine(found, false), KL_OK);
        patient_free(found);
        simdisk_free(disk);
    }
    patient_free(recorded);
    simdisk_free(start);
}

/* Segments that were made anew hold nothing, and each is the first once, when those before it have been dropped. */
TEST(power_may_be_lost_while_the_store_drops_segments_that_a_repair_has_made)
{
    struct patient *patient = patient_make(true);
    char path[64];
    REQUIRE(patient);
    for (uint64_t segment = middle(patient); segment <= middle(patient) + 1; segment++) {
        patient_path(segment, path);
        patient_unlink(patient, path);
    }
    lose_power_at_work(patient, middle(patient) + 1);
    patient_free(patient);
}

/* One whose next segment is prepared. Whether it is by the time that the store is closed is up to the thread of
 * upkeep. */
static struct patient *make_prepared(void)
{
    for (int i = 0; i < 1000; i++) {
        struct patient *patient = patient_make(true);
        char path[64];
        patient_path(patient ? patient->last_segment + 1 : 0, path);
        if (!patient || patient_has(patient, path))
            return patient;
        patient_free(patient);
    }
    return NULL;
}

/* So it is with one that was prepared, and had not come into use, when the end is written behind it. */
TEST(power_may_be_lost_while_the_store_drops_an_empty_segment_before_a_new_end)
{
    struct patient *patient = make_prepared();
    char path[64];
    REQUIRE(patient);
    patient_path(patient->last_segment + 2, path);
    patient_write(patient, path, 0, "garbage", 7);
    lose_power_at_work(patient, patient->last_segment + 1);
    patient_free(patient);
}

/* ---- Any damage ---- */

struct hit {
    uint64_t segment, from, to;
};

static struct hit damage(struct patient *patient, uint64_t *random)
{
    uint64_t segments = patient->last_segment - patient->first_segment + 1;
    uint64_t segment = patient->first_segment + kl__random_below(random, segments);
    char path[64], noise[5000];
    struct hit hit = {.segment = segment, .to = UINT64_MAX};
    patient_path(segment, path);
    if (!patient_has(patient, path))
        return hit;
    uint64_t size = patient_size(patient, path), at = size ? kl__random_below(random, size) : 0;
    hit.from = at;
    switch (kl__random_below(random, 4)) {
    case 0:
        patient_cut(patient, path, at);
        break;
    case 1:
        patient_unlink(patient, path);
        hit.from = 0;
        break;
    default: {
        size_t bytes = 1 + kl__random_below(random, kl__random_below(random, 2) ? 8 : sizeof noise);
        bytes = bytes < size - at ? bytes : (size_t)(size - at);
        for (size_t i = 0; i < bytes; i++)
            noise[i] = (char)kl__random_next(random);
        if (bytes)
            patient_write(patient, path, at, noise, bytes);
        hit.to = at + bytes;
    }
    }
    return hit;
}

static bool is_hit(const struct patient_frame *frame, const struct hit *hits, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (frame->segment == hits[i].segment && frame->offset < hits[i].to &&
            frame->offset + frame->bytes > hits[i].from)
            return true;
    return false;
}

/* Every task whose frame was not hit is there. */
static void check_rest(const struct patient *patient, const bool *waiting, const struct hit *hits, size_t count)
{
    for (size_t i = 0; i < patient->frame_count; i++) {
        const struct patient_frame *frame = &patient->frames[i];
        if (frame->task >= PATIENT_SETTLED && !waiting[frame->task] && !is_hit(frame, hits, count))
            test_fail(__FILE__, __LINE__, "task %d is missing, and nothing was done to it", frame->task);
        if (frame->task >= 0 && frame->task < PATIENT_SETTLED && waiting[frame->task] && count == 0)
            test_fail(__FILE__, __LINE__, "task %d runs again", frame->task);
    }
}

/* Where it was, or in quarantine, is each segment that was hit as it was left. */
struct hit_file {
    char path[64], copy[100];
    struct before before;
};

static void note_files(struct patient *patient, const struct hit *hits, struct hit_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct hit_file *file = &files[i];
        patient_path(hits[i].segment, file->path);
        snprintf(file->copy, sizeof file->copy, QUARANTINE "%016llx.seg", (unsigned long long)hits[i].segment);
        file->before = (struct before){.path = file->path, .copy = file->copy};
        if (patient_has(patient, file->path))
            file->before.size = take_bytes(patient, file->path, &file->before.bytes);
    }
}

static void check_files(struct patient *patient, struct hit_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (files[i].before.bytes && !is_kept(patient, &files[i].before))
            test_fail(__FILE__, __LINE__, "%s was damaged, and is neither there nor in quarantine", files[i].path);
        free(files[i].before.bytes);
    }
}

TEST(whatever_is_damaged_the_rest_is_there_after_a_repair)
{
    struct patient *originals[2] = {patient_make(true), patient_make(false)};
    uint64_t random = test_seed(), damaged = 0, rounds = test_ops(DAMAGES);
    REQUIRE(originals[0] && originals[1]);
    for (uint64_t i = 0; i < rounds && !test_failed(); i++) {
        struct patient *patient = patient_copy(originals[i % 2]);
        struct hit hits[HITS_MAX];
        size_t count = 1 + kl__random_below(&random, HITS_MAX);
        for (size_t j = 0; j < count; j++)
            hits[j] = damage(patient, &random);
        bool waiting[PATIENT_TASKS];
        struct hit_file files[HITS_MAX];
        note_files(patient, hits, files, count);
        kl_rc rc = patient_examine(patient, false);
        struct patient *opened = patient_copy(patient);
        kl_rc open_rc = patient_waiting(opened, waiting);
        /* What is called whole opens; what does not open is called damaged. */
        if (rc == KL_OK)
            CHECK_INT(open_rc, KL_OK);
        damaged += rc != KL_OK;
        CHECK(rc == KL_OK || rc == KL_EDAMAGED);
        CHECK(repair(patient));
        check_files(patient, files, count);
        CHECK_INT(patient_waiting(patient, waiting), KL_OK);
        check_rest(patient, waiting, hits, count);
        CHECK_INT(patient_examine(patient, false), KL_OK);
        patient_free(opened);
        patient_free(patient);
    }
    CHECK(damaged > rounds / 2);
    patient_free(originals[0]);
    patient_free(originals[1]);
}

TEST(an_examination_without_memory_fails_cleanly)
{
    struct patient *patient = patient_make(true);
    REQUIRE(patient);
    patient_flip(patient, patient_frame_of(patient, 50));
    for (uint64_t at = 1;; at++) {
        kl__alloc_fail_at(at);
        kl_rc rc = patient_examine(patient, false);
        uint64_t allocations = kl__alloc_fail_at(0);
        CHECK(rc == KL_ENOMEM || rc == KL_EDAMAGED);
        if (allocations < at) {
            CHECK_INT(rc, KL_EDAMAGED);
            break;
        }
        CHECK_INT(rc, KL_ENOMEM);
        if (test_failed())
            break;
    }
    CHECK(repair(patient));
    patient_free(patient);
}
