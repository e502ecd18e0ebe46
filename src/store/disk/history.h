/* history.h - what is finished and kept: history.db, an SQLite file in the data directory that any tool can open.
 *
 * From: keep.c, which reads settled tasks off the journal.  To: read, results, find and counts of the disk engine.
 *
 * Rows are added in the order of the journal. The sequence number of the last settle that was added is committed in
 * the same transaction (H1), so after a crash the journal is read on from there and nothing is lost. The rows of one
 * settle may be added in several transactions of which only the last moves the position to it: those of the others are
 * ahead of the position, and replace themselves when they are added again. Each transaction is synced (WAL, synchronous
 * = FULL) before add returns, so the journal may then drop what it held (H2).
 *
 * Tasks are kept in the order in which they are added, and that is the order of their finished times: a time that would
 * step back is kept as that of the task before (H3). Every field of a kept task is covered by a checksum (H4).
 *
 * All calls are safe from any thread, except close. Those that write take turns; each that reads has a connection of
 * its own from a small pool. Other programs may open the file at any time, and should only read. */
#ifndef KL_STORE_HISTORY_H
#define KL_STORE_HISTORY_H

#include "base/base.h"
#include "keyline/store.h"

#define KL_HISTORY_WORDS_MAX 59 /* of one search */

typedef struct kl__history kl__history;

/* Path of the db file; sqlite_vfs NULL: SQLite's own file layer. Made when it is not there. KL_EDAMAGED: damaged, not a
 * database of ours, or of a newer version; the sentence says which. KL_ESYSTEM: it cannot be opened. KL_ENOMEM.
 *
 * Errors of all calls: KL_EDAMAGED: what it met is damaged. KL_ESYSTEM: reading or writing failed. KL_EFULL: the disk
 * is full; call again later. KL_EBUSY: another program has kept the file for seconds. KL_ENOMEM. Nothing has
 * changed. */
kl_rc kl__history_open(const char *path, const char *sqlite_vfs, int64_t rows_max, int64_t ms_max,
                       kl__history **ret_history);
void kl__history_close(kl__history *history); /* NULL is fine */

/* Is asked before the file is opened by its name again, for another call that reads: is that still this file's? To be
 * said before anything is read. The calls that find that it is not fail with KL_ESYSTEM. */
typedef bool kl__in_place_fn(void *ctx);
void kl__history_stay(kl__history *history, kl__in_place_fn *in_place, void *ctx);

/* Close shall leave the log beside the file, and both as they are. */
void kl__history_leave_log(kl__history *history);

/* The sequence number up to which settles have been added; 0: none. */
uint64_t kl__history_position(const kl__history *history);

/* How many transactions it has made: a file that has fewer than it once had has lost some. A new file can be given a
 * number to go on from. */
uint64_t kl__history_commits(const kl__history *history);
kl_rc kl__history_set_commits(kl__history *history, uint64_t commits);

/* The partition's name, for people who look into the file. Writes nothing when it is there already. */
kl_rc kl__history_name(kl__history *history, uint32_t partition, const char *name);
kl_rc kl__history_has_names(kl__history *history, bool *ret_any); /* of any partition */

/* One settled task to keep. outcome KL_RETRY: only the attempt's error is added. */
typedef struct kl__history_row {
    const kl_entry *entry; /* RETRY: only place, id are looked at */
    kl_outcome outcome;
    bool ahead; /* its settle comes after the position that is given with it */
    uint32_t attempts;
    int64_t finished_ms;
    int64_t expires_ms; /* when it may be forgotten */
    kl_bytes error, result;
} kl__history_row;

/* Adds rows and moves the position, in one durable transaction. On failure nothing has changed. A row whose task is
 * there already replaces it, with its errors. The errors of a task's retries are kept with it once it is finished, and
 * until then, or when it never is (it was not to be kept), until their own expires_ms.
 *
 * Rows that are ahead come last, and are of one settle, so that an id stands in them once; all are when the position is
 * the one that it has. How often they are added again before the position moves to their settle makes no difference.
 * Best some 10,000 rows at once. */
kl_rc kl__history_add(kl__history *history, const kl__history_row *rows, size_t count, uint64_t position);

/* Forgets up to max rows (at most KL_BATCH_MAX) that have expired by now_ms, were finished ms_max before it, or are
 * over rows_max (the earliest finished first), with their attempts, in one transaction; and errors of unfinished tasks
 * that have expired or are as old, which count as rows. *ret_trimmed below max: there is no more to do for now. Hasty:
 * KL_EBUSY at once when another program has the file. */
kl_rc kl__history_trim(kl__history *history, int64_t now_ms, size_t max, bool hasty, size_t *ret_trimmed);

/* A call waits for another program's transaction, or has waited in vain and none has been made since. */
bool kl__history_is_held(const kl__history *history);

/* As the calls of store.h of the same names. Read fills only tasks whose state is KL_TASK_UNKNOWN on entry and that are
 * kept; *ret_read is how many come before the one that it failed at. */
kl_rc kl__history_read(kl__history *history, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *tasks,
                       size_t *ret_read);
kl_rc kl__history_results(kl__history *history, kl_place place, const kl_task_id *job, const kl_task_id *after,
                          size_t max, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
/* Tasks are given with `position`, their number in the history: in find->after it makes the place exact even when that
 * task has been forgotten since. Without it, tasks of the same millisecond may then be shown again. KL_EINVAL: more
 * than KL_HISTORY_WORDS_MAX words. */
kl_rc kl__history_find(kl__history *history, const kl_find *find, kl_arena *arena, kl_task *ret_tasks,
                       size_t *ret_count);
kl_rc kl__history_forget(kl__history *history, kl_place place, const kl_task_id *ids, size_t count);
/* job NULL: all. With one, its tasks are counted: some 10 ms for 50,000. */
kl_rc kl__history_counts(kl__history *history, uint32_t partition, const kl_task_id *job, uint64_t *ret_done,
                         uint64_t *ret_dead, uint64_t *ret_cancelled);

/* Reads the whole file: SQLite's own check, every checksum, and whether counts and search index agree with the tasks.
 * KL_EDAMAGED with what it found first. */
kl_rc kl__history_check(kl__history *history);

#endif
