/* doctor_inside.h - what the doctor's files share.
 *
 *      doctor.c           the directory, history.db, and the order of things
 *      doctor_journal.c   reads the journal: what is readable, what is lost, what it adds up to
 *      doctor_plan.c      what has to become of each segment
 *      doctor_repair.c    does that
 *      doctor_history.c   looks into history.db */
#ifndef KL_STORE_DOCTOR_INSIDE_H
#define KL_STORE_DOCTOR_INSIDE_H

#include "keyline/store.h"
#include "store/disk/doctor.h"
#include "store/disk/doctor_history.h"
#include "store/disk/frames.h"
#include "store/disk/reach.h"
#include "store/disk/segments.h"
#include "store/disk/state.h"

enum {
    KL_NAME_BYTES = 64,         /* of a file that we name */
    KL_MISSING_MAX = 1 << 16,   /* segments that are made anew where they are missing, in one gap */
    KL_FILLED_MAX = 1 << 26,    /* frames that are filled in for lost ones: 4 GiB */
    KL_DOCTOR_TEXT_BYTES = 800, /* of a finding */
};

/* Sequence numbers that are passed over where the journal has lost its end, so that none is given twice: versions of
 * records are such numbers. More than any lost end had; a store has 2^48. */
#define KL_SEQUENCES_SKIPPED (UINT64_C(1) << 32)

typedef enum kl__action { KL_ACT_KEEP, KL_ACT_REWRITE, KL_ACT_REMOVE } kl__action;

/* A segment under examination. */
typedef struct kl__case {
    uint64_t number;
    uint64_t bytes;              /* of the file */
    bool is_there;               /* else it is missing */
    bool is_usable;              /* its header is right, or frames in it are */
    bool is_damaged;             /* the store does not open with it as it is */
    bool is_cut;                 /* and what stood behind the readable frames may be lost */
    bool disk_fails;             /* to read some of its bytes */
    uint64_t end;                /* behind the last readable frame */
    uint64_t frames;             /* readable */
    uint64_t before;             /* number of the last frame before it; 0: none */
    uint64_t last;               /* number of its last frame, or `before` */
    uint64_t lost_from, lost_to; /* frames that are missing between the segment before and this one; 0: none */

    kl__action action;
    uint64_t fill_from, fill_to; /* frames to fill in at its end */
    bool has_end;                /* the journal's new end goes here */
} kl__case;

/* Below the data directory: a name of ours that is not a regular file's. A repair moves it aside; until then, too, it
 * is as if the file were missing. */
typedef struct kl__stray {
    char name[KL_NAME_BYTES];
} kl__stray;

/* A partition, as far as it is known. */
typedef struct kl__known {
    bool is_known; /* from the journal; else it is only a number that must not be given again */
    uint8_t shard_prefix_len;
    char name[KL_PARTITION_BYTES_MAX + 1];
    char history_name[KL_PARTITION_BYTES_MAX + 1];
} kl__known;

typedef struct kl__doctor {
    kl__vfs *vfs;
    const kl__doctor_opts *opts;
    char path[KL_PATH_BYTES], journal_dir[KL_PATH_BYTES], quarantine_dir[KL_PATH_BYTES];
    bool is_quiet; /* findings are counted and not told */

    bool has_lock, has_reached, has_journal, has_quarantine, has_history, has_wal, has_shm, has_rollback;

    kl__stray *strays;
    size_t stray_count, stray_room;

    kl__case *cases; /* of the files that are there, by number */
    size_t case_count;
    bool has_leftover; /* a file of ours from an interrupted repair */
    kl__reach reached; /* what the file of that name says of this journal */
    bool is_newer;     /* something is of a version that we do not know */
    uint64_t journal;  /* its random number */
    uint64_t last_frame, last_sequence;
    int64_t last_ms;
    kl__known known[KL_DISK_PARTITIONS_MAX + 1]; /* by number */
    uint32_t known_count;                        /* the highest number */
    uint32_t announced;                          /* the highest that the journal has itself */

    char *fences; /* FENCE records that name every fence and seal that is known */
    size_t fence_bytes;
    uint64_t fence_sum; /* of their CRCs */
    uint32_t fence_count;

    kl__case *plan; /* what the journal is to become, without gaps */
    size_t plan_count;
    bool wants_end;        /* the journal's end is lost */
    const char *hindrance; /* why it cannot be repaired; NULL: it can */

    uint64_t history_commits, history_noted; /* what history.db has made, and what the journal knows of that */
    uint64_t first_noted;                    /* the first segment that is needed; 0: not known */
    bool history_is_damaged, history_tasks_known;
    bool has_repaired_history; /* a repair made a new one and was interrupted before that took its place */
    bool history_fails;        /* to be read: the disk or the system refuses */
    bool history_can_wait;     /* it is not looked at */
    kl__doctor_totals totals;
} kl__doctor;

/* ---- doctor.c ---- */

void kl__doctor_found(kl__doctor *doctor, kl__finding_kind kind, kl__severity severity, const char *file,
                      int64_t offset, const char *format, ...) KL_PRINTF(6, 7);

/* A name below the data directory that was listed. *ret_is_file false: it is noted, and told, as a stray. KL_ENOMEM;
 * KL_ESYSTEM: this user may not read it. */
kl_rc kl__doctor_probe(kl__doctor *doctor, const char *name, bool *ret_is_file);

/* The segment's path below the data directory, and all of it. */
void kl__case_name(uint64_t number, char ret_name[KL_NAME_BYTES]);
void kl__case_path(const kl__doctor *doctor, uint64_t number, char ret_path[KL_PATH_BYTES]);

/* ---- doctor_journal.c ---- */

/* Lists the segments, if there are any, tells what is wrong with them, and adds up what they hold. */
kl_rc kl__doctor_read_journal(kl__doctor *doctor);

/* Called with each readable frame of a segment, in order. `hole`: bytes between the frame before, or the header, and
 * this one, which cannot be read. */
typedef kl_rc kl__frame_fn(void *ctx, kl__case *its, const kl__frame *frame, uint64_t offset, uint64_t hole);

/* Loads the segment as far as the disk reads it, and gives it the header that it should have. */
kl_rc kl__case_load(kl__doctor *doctor, kl__case *its, kl__segment_image *image);

/* Visits the frames whose numbers are above `before`. *ret_end is behind the last, *ret_repeated how many were not. */
kl_rc kl__case_walk(kl__case *its, const kl__segment_image *image, kl__frame_fn *visit, void *ctx, uint64_t *ret_end,
                    uint64_t *ret_repeated);

/* Is the record's partition known, and has it that shard? */
bool kl__doctor_belongs(const kl__doctor *doctor, const kl__record_header *record);

/* Writes the PARTITION record of a known number; returns its bytes, a multiple of 8 up to KL_KNOWN_BYTES_MAX. */
enum { KL_KNOWN_BYTES_MAX = sizeof(kl__partition_record) + KL_PARTITION_BYTES_MAX + 8 };
size_t kl__known_write(const kl__doctor *doctor, uint32_t number, kl__record_header *out);

/* ---- doctor_plan.c ---- */

kl_rc kl__doctor_plan(kl__doctor *doctor); /* KL_ENOMEM */

/* ---- doctor_repair.c ---- */

kl_rc kl__doctor_move_strays(kl__doctor *doctor);
kl_rc kl__doctor_repair_journal(kl__doctor *doctor);
kl_rc kl__doctor_repair_history(kl__doctor *doctor);
kl_rc kl__doctor_drop_leftovers(kl__doctor *doctor); /* files of a history that was made and not used */

#endif
