/* doctor_history.h - the doctor's look at history.db, kept apart because both have something called a segment. */
#ifndef KL_STORE_DOCTOR_HISTORY_H
#define KL_STORE_DOCTOR_HISTORY_H

#include "base/base.h"
#include "store/disk/history.h"

typedef enum kl__history_health {
    KL_HISTORY_WHOLE,
    KL_HISTORY_DAMAGED,
    KL_HISTORY_NEWER, /* of a version that we do not know */
} kl__history_health;

typedef struct kl__history_report {
    kl__history_health health;
    uint64_t position, commits; /* as it says itself, like the next; 0: that cannot be read */
    uint64_t tasks;
    bool tasks_known;
    char text[512]; /* what is wrong */
} kl__history_report;

/* A partition that history knows; name "": only its number. */
typedef void kl__history_name_fn(void *ctx, uint32_t number, const char *name);

/* Reads all of the file and its log, if it has one, and changes nothing. KL_OK: the report is complete. KL_ESYSTEM,
 * KL_ENOMEM: it cannot be read. */
kl_rc kl__history_examine(const char *path, const char *sqlite_vfs, bool has_wal, kl__history_name_fn *named, void *ctx,
                          kl__history_report *ret_report);

/* Gives one task after another; false: there are no more. */
typedef bool kl__history_next_fn(void *ctx, uint32_t *ret_partition, kl_task_id *ret_id);

/* How many of these tasks are finished and in the file, which is whole. Errors as above. */
kl_rc kl__history_count_of(const char *path, const char *sqlite_vfs, bool has_wal, kl__history_next_fn *next, void *ctx,
                           uint64_t *ret_count);

typedef struct kl__history_saved {
    uint64_t tasks;
    uint64_t lacking_errors; /* of these, tasks that have lost errors, */
    uint64_t lost_errors;    /* and how many those are */
    bool may_lack_errors;    /* tasks that are not finished may have lost some: how many cannot be told */
} kl__history_saved;

/* Adds every task that can be read to a new history (history_salvage.c), and changes nothing in the old file. KL_OK
 * also where that is none. Errors as kl__history_add. */
kl_rc kl__history_salvage(const char *path, const char *sqlite_vfs, bool has_wal, kl__history *to,
                          kl__history_saved *ret_saved);

#endif
