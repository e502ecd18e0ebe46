/* doctor.h - examines a data directory of the disk engine, says in words what it finds, and repairs it on request.
 *
 * From: cli/doctor.c.  To: doctor.c, which says how; format.h and history.h describe what is looked at.
 *
 * Without `repair` nothing on disk changes. With it, nothing that cannot be read is destroyed: what is taken out of use
 * goes to quarantine/ first. */
#ifndef KL_STORE_DOCTOR_H
#define KL_STORE_DOCTOR_H

#include "base/base.h"
#include "store/disk/format.h"
#include "store/disk/vfs.h"

typedef enum kl__severity {
    KL_FOUND_NOTE,     /* good to know */
    KL_FOUND_WARNING,  /* somebody should look at it; the store works */
    KL_FOUND_DAMAGE,   /* the store does not open, or something is lost */
    KL_FOUND_REPAIRED, /* what was done about it */
} kl__severity;

/* Every kind of finding, with its name for machines. */
#define KL_FINDINGS(X)                                                                                                 \
    X(FOREIGN_FILE, "foreign-file")                                                                                    \
    X(UNFINISHED, "unfinished-repair")                                                                                 \
    X(NOT_CLOSED, "not-closed")                                                                                        \
    X(TORN_WRITE, "torn-write")                                                                                        \
    X(NO_FILE, "not-a-file")                                                                                           \
    X(NO_JOURNAL, "missing-journal")                                                                                   \
    X(NEWER, "newer-version")                                                                                          \
    X(MISSING_SEGMENTS, "missing-segments")                                                                            \
    X(BAD_HEADER, "bad-header")                                                                                        \
    X(FOREIGN_SEGMENT, "foreign-segment")                                                                              \
    X(CUT_OFF, "cut-off")                                                                                              \
    X(UNREADABLE_DISK, "unreadable-disk")                                                                              \
    X(LOST_FRAMES, "lost-frames")                                                                                      \
    X(REPEATED_FRAMES, "repeated-frames")                                                                              \
    X(FOREIGN_RECORDS, "foreign-records")                                                                              \
    X(LOST_PARTITION, "lost-partition")                                                                                \
    X(LOST_END, "lost-end")                                                                                            \
    X(RUN_AGAIN, "run-again")                                                                                          \
    X(NO_HISTORY, "missing-history")                                                                                   \
    X(HISTORY_DAMAGED, "damaged-history")                                                                              \
    X(LOST_ERRORS, "lost-errors")                                                                                      \
    X(HISTORY_UNCHECKED, "unchecked-history")

typedef enum kl__finding_kind {
#define KL_FINDING_ENUM(name, text) KL_FOUND_##name,
    KL_FINDINGS(KL_FINDING_ENUM)
#undef KL_FINDING_ENUM
        KL_FINDING_KINDS
} kl__finding_kind;

typedef struct kl__finding {
    kl__finding_kind kind;
    kl__severity severity;
    const char *file; /* below the data directory; "": none in particular */
    int64_t offset;   /* of a byte in it; -1: none */
    const char *text; /* one or more sentences */
} kl__finding;

typedef void kl__finding_fn(void *ctx, const kl__finding *finding);

/* What is there; after a repair, what is there now. */
typedef struct kl__doctor_totals {
    uint64_t segments, segment_bytes;
    uint64_t frames, last_frame, last_sequence;
    uint64_t records[KL_RECORD_TYPES];
    uint64_t live_bytes, dead_bytes; /* of frames */
    uint64_t waiting;                /* tasks */
    uint64_t settled;                /* to be kept, and not in history yet */
    uint64_t values;                 /* records of store.h */
    uint64_t partitions;
    bool was_closed; /* in order */
    bool is_torn;    /* the last write was under way */
    bool has_history;
    bool history_was_checked;
    uint64_t history_tasks, history_position; /* as it says itself */
    bool history_is_damaged;

    /* Of the first examination. */
    uint64_t damages, warnings;
    uint64_t lost_frames;      /* that are known of */
    bool may_have_lost_more;   /* before the first or behind the last that is readable: how many cannot be told */
    uint64_t left_out_records; /* readable, and of no use: their partition is not known */
    uint64_t quarantined;      /* files that a repair has copied or moved aside */
    uint64_t lost_finished;    /* tasks that history.db counted, and that a repair could not read */
    bool may_lack_finished;    /* how many those are cannot be told */
    uint64_t lacking_errors;   /* tasks that a repair could read without all of their errors, */
    uint64_t lost_errors;      /* and how many of these it could not read */
    bool may_lack_errors;      /* so may tasks that are not finished: how many cannot be told */
} kl__doctor_totals;

typedef struct kl__doctor_opts {
    kl__vfs *vfs;
    const char *path;
    bool repair;
    kl__finding_fn *found;
    void *ctx;
} kl__doctor_opts;

/* KL_OK: it is whole, or is again. KL_EDAMAGED: it is not; findings were told, and after a repair the sentence says why
 * that cannot be. KL_EINVAL: this is no data directory. KL_EBUSY: it is open; the sentence names the pid. KL_EFULL,
 * KL_ESYSTEM, KL_ENOMEM: it went no further, nothing is lost, and it can be called again. */
kl_rc kl__doctor_see(const kl__doctor_opts *opts, kl__doctor_totals *ret_totals);

const char *kl__finding_name(kl__finding_kind kind);

#endif
