/* patient.h - a small store on a simulated disk, for the doctor: which task stands in which frame is known, files can
 * be damaged, and what is there afterwards can be counted. */
#ifndef TESTS_PATIENT_H
#define TESTS_PATIENT_H

#include "recording.h"
#include "store/disk/doctor.h"

enum { PATIENT_TASKS = 120, PATIENT_SETTLED = 10, PATIENT_FRAMES_MAX = 400, PATIENT_FINDINGS_MAX = 64 };

/* A readable frame, and the task that was appended in it. */
struct patient_frame {
    uint64_t segment, offset, bytes, number; /* bytes: with its header */
    int task;                                /* -1: none */
};

struct patient {
    simdisk *disk;
    struct sim_store store;
    kl__vfs *vfs;

    /* As it was made. */
    struct patient_frame frames[PATIENT_FRAMES_MAX];
    size_t frame_count;
    uint64_t first_segment, last_segment; /* with frames */

    /* Of the last examination. */
    size_t findings[KL_FINDING_KINDS][KL_FOUND_REPAIRED + 1];
    size_t finding_count;
    char text[PATIENT_FINDINGS_MAX][700];
    kl__doctor_totals totals;
};

/* Tasks 0..PATIENT_TASKS-1, each in a frame of its own, over several segments of 64 KiB: those from PATIENT_SETTLED on
 * wait, in partition "a" or (every third) "b"; the others are done and in history, which the journal has noted. One
 * record. closed: in order; else as when the process was killed, with a log beside history.db. NULL: it cannot be
 * made. */
struct patient *patient_make(bool closed);
struct patient *patient_on(simdisk *disk); /* takes the disk; nothing is known of its frames */
void patient_free(struct patient *patient);

/* Another one in the same state. */
struct patient *patient_copy(const struct patient *patient);

kl_rc patient_examine(struct patient *patient, bool repair);
size_t patient_found(const struct patient *patient, kl__finding_kind kind, kl__severity severity);
bool patient_says(const struct patient *patient, const char *part); /* in some finding */

/* Opens the store and notes which tasks are shown as waiting. KL_EDAMAGED etc.: it does not open. */
kl_rc patient_waiting(struct patient *patient, bool ret_waiting[PATIENT_TASKS]);

/* Opens the store, which the caller closes. */
kl_rc patient_open(struct patient *patient, kl_store **ret_store);

/* Does it open, with exactly these tasks missing from those that should wait? `missing` NULL: none. */
bool patient_is_well(struct patient *patient, const bool *missing);

/* ---- Damage ---- */

const struct patient_frame *patient_frame_of(const struct patient *patient, int task);

void patient_path(uint64_t segment, char ret_path[64]);
void patient_read(struct patient *patient, const char *path, uint64_t at, void *bytes, size_t count);
void patient_write(struct patient *patient, const char *path, uint64_t at, const void *bytes, size_t count);
void patient_cut(struct patient *patient, const char *path, uint64_t size);
void patient_unlink(struct patient *patient, const char *path);
bool patient_has(struct patient *patient, const char *path);
uint64_t patient_size(struct patient *patient, const char *path);

/* Flips a bit in the frame's records, or zeroes all of it. */
void patient_flip(struct patient *patient, const struct patient_frame *frame);
void patient_wipe(struct patient *patient, const struct patient_frame *frame);

#endif
