/* patient.c - see patient.h. */
#include "patient.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "calls.h"
#include "store/disk/disk.h"
#include "store/disk/frames.h"

enum { PAYLOAD_BYTES = 2000, SEGMENT_BYTES = 64 << 10 };

static const kl_layout layout = {1, 1};

static int64_t now(void *ctx)
{
    (void)ctx;
    return SCRIPT_START_MS;
}

static kl_store_opts options(void)
{
    return (kl_store_opts){.size = sizeof(kl_store_opts), .segment_bytes = SEGMENT_BYTES, .now_ms = now};
}

/* ---- Making one ---- */

static kl_entry entry_of(int task, const uint32_t partitions[2])
{
    static char payload[PAYLOAD_BYTES];
    kl_id_parts parts = {.shard = (uint32_t)task % 16, .ms = task + 1};
    kl_entry entry = {
        .place = {partitions[task % 3 == 2], parts.shard}, .key = {"key", 3}, .payload = {payload, sizeof payload}};
    if (kl_id_pack(&layout, &parts, &entry.id) != KL_OK)
        abort();
    return entry;
}

static int task_of(const void *id)
{
    kl_task_id its;
    memcpy(&its, id, sizeof its);
    return (int)kl_id_ms(&layout, &its) - 1;
}

static kl_rc settle(kl_store *store, int task, const uint32_t partitions[2])
{
    kl_entry entry = entry_of(task, partitions);
    kl_stub stub;
    size_t count;
    kl_scan scan = {.place = entry.place, .max = 1};
    kl_rc rc = scan_one(store, &scan, &stub, &count);
    if (rc != KL_OK || count != 1)
        return KL_ENOTFOUND;
    kl_settled settled = {.id = entry.id,
                          .position = stub.position,
                          .outcome = KL_DONE,
                          .attempts = 1,
                          .keep_ms = 1000000,
                          .result = {"ok", 2}};
    kl_settle batch = {.place = entry.place, .tasks = &settled, .count = 1};
    return kl_store_settle(store, &batch, 1);
}

static kl_rc fill(kl_store *store)
{
    uint32_t partitions[2];
    kl_write write = {.name = {"name", 4}, .value = {"value", 5}};
    kl_rc rc = kl_store_partition(store, "a", 1, &partitions[0]);
    if (rc == KL_OK)
        rc = kl_store_partition(store, "b", 1, &partitions[1]);
    if (rc == KL_OK)
        rc = kl_store_put(store, &write, 1);
    for (int task = 0; task < PATIENT_TASKS && rc == KL_OK; task++) {
        kl_entry entry = entry_of(task, partitions);
        rc = kl_store_append(store, &entry, 1, NULL);
        if (rc == KL_OK && task < PATIENT_SETTLED)
            rc = settle(store, task, partitions);
        kl_counts counts; /* when this returns, history has what was settled, and the next segments note that */
        if (rc == KL_OK && task + 1 == PATIENT_SETTLED)
            rc = kl_store_counts(store, (kl_place){partitions[0], KL_ALL_SHARDS}, NULL, &counts);
    }
    return rc;
}

static void note_frames(struct patient *patient, uint64_t segment)
{
    char path[64];
    kl__file *file;
    kl__segment_image image = {0};
    patient_path(segment, path);
    if (patient->vfs->open(patient->vfs, path, KL_OPEN_READ, &file) != 0)
        return;
    KL_ASSERT(kl__image_load(patient->vfs, file, &image) == KL_OK);
    patient->vfs->close(patient->vfs, file);
    const kl__frame *frame;
    for (uint64_t at = KL_SEGMENT_HEADER; (frame = kl__image_frame(&image, at)); at += KL_FRAME_HEADER + frame->bytes) {
        const kl__record_header *first = kl__frame_first(frame);
        bool is_entry = frame->records && first->type == KL_RECORD_ENTRY;
        KL_ASSERT(patient->frame_count < PATIENT_FRAMES_MAX);
        patient->frames[patient->frame_count++] =
            (struct patient_frame){segment, at, KL_FRAME_HEADER + frame->bytes, frame->number,
                                   is_entry ? task_of(((const kl__entry_record *)(const void *)first)->id) : -1};
        if (!patient->first_segment)
            patient->first_segment = segment;
        patient->last_segment = segment;
    }
    kl__image_free(&image);
}

struct patient *patient_on(simdisk *disk)
{
    struct patient *patient = calloc(1, sizeof *patient);
    KL_ASSERT(patient);
    patient->disk = disk;
    patient->vfs = simdisk_vfs(disk);
    patient->store = sim_store_on(patient->vfs);
    return patient;
}

struct patient *patient_make(bool closed)
{
    struct patient *patient = patient_on(simdisk_new());
    kl_store_opts opts = options();
    kl_store *store = NULL;
    kl_rc rc = kl__disk_open_on(patient->vfs, RECORDING_PATH, &opts, &store);
    if (rc == KL_OK)
        rc = fill(store);
    if (!closed) {
        struct patient *killed = patient_on(simdisk_clone(patient->disk));
        kl_store_close(store);
        patient_free(patient);
        patient = killed;
    } else {
        kl_store_close(store);
    }
    for (uint64_t segment = 1; segment < 20; segment++)
        note_frames(patient, segment);
    if (rc == KL_OK && patient->last_segment >= patient->first_segment + 3)
        return patient;
    patient_free(patient);
    return NULL;
}

struct patient *patient_copy(const struct patient *patient)
{
    struct patient *copy = patient_on(simdisk_clone(patient->disk));
    memcpy(copy->frames, patient->frames, sizeof copy->frames);
    copy->frame_count = patient->frame_count;
    copy->first_segment = patient->first_segment;
    copy->last_segment = patient->last_segment;
    return copy;
}

void patient_free(struct patient *patient)
{
    if (!patient)
        return;
    sim_store_end(&patient->store);
    simdisk_free(patient->disk);
    free(patient);
}

/* ---- Looking ---- */

static void note_finding(void *ctx, const kl__finding *finding)
{
    struct patient *patient = ctx;
    patient->findings[finding->kind][finding->severity]++;
    if (patient->finding_count < PATIENT_FINDINGS_MAX)
        snprintf(patient->text[patient->finding_count++], sizeof patient->text[0], "%s %lld: %s", finding->file,
                 (long long)finding->offset, finding->text);
}

kl_rc patient_examine(struct patient *patient, bool repair)
{
    kl__doctor_opts opts = {patient->vfs, RECORDING_PATH, repair, note_finding, patient};
    memset(patient->findings, 0, sizeof patient->findings);
    patient->finding_count = 0;
    return kl__doctor_see(&opts, &patient->totals);
}

size_t patient_found(const struct patient *patient, kl__finding_kind kind, kl__severity severity)
{
    return patient->findings[kind][severity];
}

bool patient_says(const struct patient *patient, const char *part)
{
    for (size_t i = 0; i < patient->finding_count; i++)
        if (strstr(patient->text[i], part))
            return true;
    return false;
}

static kl_rc scan_partition(kl_store *store, const char *name, bool ret_waiting[PATIENT_TASKS])
{
    uint32_t partition;
    kl_rc rc = kl_store_partition(store, name, 1, &partition);
    for (uint32_t shard = 0; shard < 16 && rc == KL_OK; shard++) {
        kl_stub stubs[PATIENT_TASKS];
        size_t count = 0;
        kl_scan scan = {.place = {partition, shard}, .max = PATIENT_TASKS};
        rc = scan_one(store, &scan, stubs, &count);
        for (size_t i = 0; i < count && rc == KL_OK; i++) {
            int task = task_of(&stubs[i].id);
            kl_arena arena = {0};
            kl_task read;
            size_t got;
            rc = read_some(store, scan.place, &stubs[i].id, 1, &arena, &read, &got); /* its bytes are checked */
            kl_arena_free(&arena);
            if (task >= 0 && task < PATIENT_TASKS)
                ret_waiting[task] = true;
            else
                rc = KL_EINVAL;
        }
    }
    return rc;
}

kl_rc patient_open(struct patient *patient, kl_store **ret_store)
{
    kl_store_opts opts = options();
    return kl__disk_open_on(patient->vfs, RECORDING_PATH, &opts, ret_store);
}

kl_rc patient_waiting(struct patient *patient, bool ret_waiting[PATIENT_TASKS])
{
    kl_store *store = NULL;
    memset(ret_waiting, 0, PATIENT_TASKS * sizeof(*ret_waiting));
    kl_rc rc = patient_open(patient, &store);
    if (rc == KL_OK)
        rc = scan_partition(store, "a", ret_waiting);
    if (rc == KL_OK)
        rc = scan_partition(store, "b", ret_waiting);
    kl_store_close(store);
    return rc;
}

bool patient_is_well(struct patient *patient, const bool *missing)
{
    bool waiting[PATIENT_TASKS];
    kl_rc rc = patient_waiting(patient, waiting);
    if (rc != KL_OK) {
        printf("# it does not open: %s: %s\n", kl_rc_name(rc), kl_error_text());
        return false;
    }
    for (int task = 0; task < PATIENT_TASKS; task++) {
        bool expected = task >= PATIENT_SETTLED && !(missing && missing[task]);
        if (waiting[task] == expected)
            continue;
        printf("# task %d is %s\n", task, waiting[task] ? "there, and should not be" : "missing");
        return false;
    }
    return true;
}

/* ---- Damage ---- */

const struct patient_frame *patient_frame_of(const struct patient *patient, int task)
{
    for (size_t i = 0; i < patient->frame_count; i++)
        if (patient->frames[i].task == task)
            return &patient->frames[i];
    return NULL;
}

void patient_path(uint64_t segment, char ret_path[64])
{
    snprintf(ret_path, 64, "%s/journal/%016llx.seg", RECORDING_PATH, (unsigned long long)segment);
}

static kl__file *open_file(struct patient *patient, const char *path, kl__open_mode mode)
{
    kl__file *file = NULL;
    KL_ASSERT(patient->vfs->open(patient->vfs, path, mode, &file) == 0);
    return file;
}

void patient_read(struct patient *patient, const char *path, uint64_t at, void *bytes, size_t count)
{
    size_t got = 0;
    kl__file *file = open_file(patient, path, KL_OPEN_READ);
    KL_ASSERT(kl__vfs_read(patient->vfs, file, bytes, count, at, &got) == 0 && got == count);
    patient->vfs->close(patient->vfs, file);
}

/* What a test does to the disk is durable, like what stood there before. */
void patient_write(struct patient *patient, const char *path, uint64_t at, const void *bytes, size_t count)
{
    kl__open_mode mode = patient_has(patient, path) ? KL_OPEN_WRITE : KL_OPEN_CREATE;
    kl__file *file = open_file(patient, path, mode);
    KL_ASSERT(kl__vfs_write(patient->vfs, file, bytes, count, at) == 0);
    KL_ASSERT(patient->vfs->sync(patient->vfs, file) == 0);
    patient->vfs->close(patient->vfs, file);
    KL_ASSERT(patient->vfs->sync_dir(patient->vfs, RECORDING_PATH "/journal") == 0);
    KL_ASSERT(patient->vfs->sync_dir(patient->vfs, RECORDING_PATH) == 0);
}

void patient_cut(struct patient *patient, const char *path, uint64_t size)
{
    kl__file *file = open_file(patient, path, KL_OPEN_WRITE);
    KL_ASSERT(patient->vfs->truncate(patient->vfs, file, size) == 0);
    KL_ASSERT(patient->vfs->sync(patient->vfs, file) == 0);
    patient->vfs->close(patient->vfs, file);
}

void patient_unlink(struct patient *patient, const char *path)
{
    KL_ASSERT(patient->vfs->unlink(patient->vfs, path) == 0);
    KL_ASSERT(patient->vfs->sync_dir(patient->vfs, RECORDING_PATH "/journal") == 0);
    KL_ASSERT(patient->vfs->sync_dir(patient->vfs, RECORDING_PATH) == 0);
}

bool patient_has(struct patient *patient, const char *path)
{
    kl__file *file = NULL;
    int error = patient->vfs->open(patient->vfs, path, KL_OPEN_READ, &file);
    patient->vfs->close(patient->vfs, file);
    return error == 0;
}

uint64_t patient_size(struct patient *patient, const char *path)
{
    uint64_t size = 0;
    kl__file *file = open_file(patient, path, KL_OPEN_READ);
    KL_ASSERT(patient->vfs->size(patient->vfs, file, &size) == 0);
    patient->vfs->close(patient->vfs, file);
    return size;
}

void patient_flip(struct patient *patient, const struct patient_frame *frame)
{
    char path[64], byte;
    patient_path(frame->segment, path);
    patient_read(patient, path, frame->offset + frame->bytes / 2, &byte, 1);
    byte ^= 16;
    patient_write(patient, path, frame->offset + frame->bytes / 2, &byte, 1);
}

void patient_wipe(struct patient *patient, const struct patient_frame *frame)
{
    char path[64];
    char *zeros = calloc(1, frame->bytes);
    KL_ASSERT(zeros);
    patient_path(frame->segment, path);
    patient_write(patient, path, frame->offset, zeros, frame->bytes);
    free(zeros);
}
