/* segments.h - the journal's files: the one being written, the one that comes next, and those that are full.
 *
 * A new file is written full of zeros before it is used, and a dropped one is used again: syncing into blocks that the
 * file system has already written once takes half the time (measured: 86-100 us against 167-233).
 *
 * A file has its final name only while its header is valid: it is prepared under the name `spare` and then renamed, and
 * renamed back before it is used again. Segments are dropped in order, each durably before the next: a settle is never
 * gone while its task is still there.
 *
 * G1  There are no gaps in the numbers.
 * G2  The disk holds at most twice what is live, and two segments: the one being written and the next (compact.c).
 *     While it is written briskly, so that a segment came into use within KL_BRISK_MS, it may be KL_PATIENCE_SEGMENTS
 *     more, and the spare: stragglers are then copied out of all of these at once, and the files stay, to be used again
 *     one after the other while the next stragglers gather. For to write a file full of zeros takes as long as to fill
 *     it with tasks, and whoever needs it waits.
 * G3  When there is no room to prepare the next segment, appends are refused, and the rest of the current one, at least
 *     seven eighths less a group, is for outcomes; its last eighth for the copies and notes that make room again. */
#ifndef KL_STORE_SEGMENTS_H
#define KL_STORE_SEGMENTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "keyline/store.h"
#include "store/disk/state.h"
#include "store/disk/vfs.h"

enum { KL_PATH_BYTES = 4096, KL_BRISK_MS = 1000, KL_PATIENCE_SEGMENTS = 4 };

typedef struct kl__segments {
    kl__vfs *vfs;
    kl__file *lock;          /* of the data directory */
    char dir[KL_PATH_BYTES]; /* the directory `journal` */
    uint64_t journal;        /* its random number */
    uint64_t segment_bytes;
    kl__state *state;
    kl_log_fn *log;
    void *log_ctx;

    kl__segment *active;           /* only for whoever leads the journal */
    _Atomic(uint64_t) last_synced; /* frame; 0: none, or not known yet */
    _Atomic(uint64_t) rolled;      /* segments that were followed by another for callers, */
    _Atomic(int64_t) rolled_ns;    /* and when one was last; 0: none was */

    pthread_mutex_t files;       /* of whoever prepares or puts away a file */
    _Atomic(kl__segment *) next; /* prepared with `files` held, not yet in the state; NULL: none */
    uint64_t next_number;        /* of the next to be prepared */
    _Atomic(bool) has_spare;     /* one is there to be prepared */
    int64_t spareless_ns;        /* what rolled_ns was when one could not be made */
    kl__segment *leaving;        /* dropped, and its file closed, but it could not be removed; NULL: none */
    int64_t failed_ns;           /* when that was last tried in vain */
    bool drop_failed;            /* it is not known whether a segment was removed, so none behind it may be */

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* the thread of upkeep should look */
    bool next_wanted;
    _Atomic(bool) upkeep_wanted; /* written under the mutex */
    bool stopping;
    _Atomic(bool) has_next;
    _Atomic(int) next_error; /* how the last try to prepare one ended: 0 or a negative errno */
    int64_t next_failed_ns;  /* and when, where it was in vain */
    _Atomic(bool) is_full;   /* appends are refused (G3) */
} kl__segments;

/* Paths. */
void kl__segments_path(const kl__segments *segments, uint64_t number, char *ret_path);
bool kl__segments_parse(const char *name, uint64_t *ret_number); /* false: not a segment's name */

/* Writes a segment's header and syncs it. 0 or a negative errno. */
int kl__segment_write_header(kl__segments *segments, kl__file *file, uint64_t number, uint64_t bytes);

/* Makes the next segment if there is none, from the file at `spare` when that has the right size. 0 or a negative
 * errno. */
int kl__segments_prepare(kl__segments *segments);

/* Are the data directory and all segments still where they were opened? 0 or a negative errno. Files are not made,
 * renamed or removed by their names when the directory is not: these may be somebody else's by now. */
int kl__segments_check(kl__segments *segments);

/* Takes the next segment into use, with room for `bytes`; prepares it when nobody has. Only for whoever leads the
 * journal; is_upkeep: it is for copies, which make nothing brisk. KL_EFULL: there is no room on the disk. KL_EBUSY: as
 * many files as may be open are. KL_ENOMEM. KL_ESYSTEM: it failed. */
kl_rc kl__segments_roll(kl__segments *segments, uint64_t bytes, bool is_upkeep);

/* Drops segments from the first on while nothing in them is needed, keeping a file for the next. While that is there,
 * KL_PATIENCE_SEGMENTS of them at most, less those that gather, stay as they are, and become the spare one after the
 * other. One that is damaged goes to quarantine/, as a repair would put it there. */
void kl__segments_drop(kl__segments *segments);

/* Has a segment come into use within KL_BRISK_MS? */
bool kl__segments_are_brisk(const kl__segments *segments);

/* Makes a spare of zeros, before anybody waits for it, while there are fewer files than may be (G2). Where there is no
 * room for it, it is tried again when another segment has come into use: to try takes all the room from everybody
 * else. */
void kl__segments_make_spare(kl__segments *segments);

/* Gives the spare, and what waits to become it, back to the file system when they are not brisk any more. */
void kl__segments_give_back(kl__segments *segments);

/* Drops them all, for there is nothing more to write. */
void kl__segments_drop_all(kl__segments *segments);

/* Does so at once, while nobody else is there or with `files` held. */
void kl__segments_remove_spare(kl__segments *segments);

/* Makes the next segment of the spare, if it is wanted and there is one: that is quick. */
void kl__segments_prepare_spare(kl__segments *segments);

/* Is there something for the thread of upkeep to do? With the state's mutex held. */
bool kl__segments_need_upkeep(const kl__segments *segments);

/* The disk is full, and copying the little that is live in the first segment would give a whole one. With the state's
 * mutex held. */
bool kl__segments_can_relieve(const kl__segments *segments);

/* What may stand on the disk beside twice what is live and the segment being written: one more, as long as the next is
 * not there. */
uint64_t kl__segments_slack(const kl__segments *segments);

/* Tells the thread of upkeep to look, or to prepare the next segment as well. */
void kl__segments_want_upkeep(kl__segments *segments);
void kl__segments_want_next(kl__segments *segments);

void kl__segments_log(const kl__segments *segments, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);

/* Closes every file, and removes the spare. */
void kl__segments_close(kl__segments *segments);

#endif
