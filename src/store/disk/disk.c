/* disk.c - opens and closes a data directory, and answers from memory. */
#include "store/disk/disk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "store/disk/reserve.h"
#include "store/engines.h"

enum { SCAN_PART = 1024 };

/* ---- The clock ---- */

int64_t kl__disk_now(void *ctx)
{
    kl__disk *disk = ctx;
    int64_t now_ms = disk->now_ms(disk->now_ctx);
    int64_t last_ms = atomic_load_explicit(&disk->clock_ms, memory_order_relaxed);
    while (now_ms > last_ms)
        if (atomic_compare_exchange_weak(&disk->clock_ms, &last_ms, now_ms))
            return now_ms;
    return last_ms;
}

/* Each journal has another random number; a store and its copies have the same. */
uint64_t kl__disk_identity(const void *disk) { return ((const kl__disk *)disk)->segments.journal; }

static kl_rc now(void *self, int64_t *ret_ms)
{
    *ret_ms = kl__disk_now(self);
    return KL_OK;
}

/* ---- Partitions ---- */

/* With the state's mutex held. KL_ENOTFOUND: there is none of that name. */
static kl_rc find_partition(const kl__state *state, const char *name, uint32_t shard_prefix_len,
                            uint32_t *ret_partition)
{
    for (uint32_t number = 1; number <= state->partition_count; number++) {
        const kl__partition_state *partition = state->partitions[number];
        if (strcmp(partition->name, name) != 0)
            continue;
        if (partition->shard_prefix_len != shard_prefix_len)
            return kl__fail(KL_EINVAL,
                            "partition '%s' has shard_prefix_len %u in this store, and %u was asked for; use %u", name,
                            partition->shard_prefix_len, shard_prefix_len, partition->shard_prefix_len);
        *ret_partition = number;
        return KL_OK;
    }
    return KL_ENOTFOUND;
}

static kl_rc make_partition(kl__disk *disk, const char *name, uint32_t shard_prefix_len, uint32_t number)
{
    kl__commit call = {.done = NULL};
    uint64_t sum = 0;
    kl_rc rc =
        kl__journal_reserve(disk->journal, kl__round8(sizeof(kl__partition_record) + strlen(name) + 1), 1, &call);
    if (rc != KL_OK)
        return rc;
    kl__put_partition(call.bytes, call.sequence, name, shard_prefix_len, number, &sum);
    kl__journal_publish(disk->journal, &call, sum);
    return kl__journal_wait(disk->journal, &call);
}

/* For people who look into history.db; nothing depends on it. */
static void name_partition(kl__disk *disk, uint32_t number, const char *name)
{
    if (kl__history_name(disk->history, number, name) != KL_OK)
        kl__segments_log(&disk->segments, KL_LOG_WARN, "history.db does not show the name of partition '%s': %s", name,
                         kl_error_text());
}

static kl_rc partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    kl__disk *disk = self;
    kl__state *state = &disk->state;
    pthread_mutex_lock(&disk->partition_mutex);
    pthread_mutex_lock(&state->mutex);
    kl_rc rc = find_partition(state, name, shard_prefix_len, ret_partition);
    uint32_t number = state->partition_count + 1;
    pthread_mutex_unlock(&state->mutex);
    if (rc == KL_ENOTFOUND && number > KL_DISK_PARTITIONS_MAX)
        rc = kl__fail(KL_EFULL, "a disk store holds %d partitions, and all are taken; put '%s' into another store",
                      KL_DISK_PARTITIONS_MAX, name);
    if (rc == KL_ENOTFOUND) {
        rc = make_partition(disk, name, shard_prefix_len, number);
        if (rc == KL_OK) {
            *ret_partition = number;
            name_partition(disk, number, name);
        }
    }
    pthread_mutex_unlock(&disk->partition_mutex);
    return rc;
}

/* ---- Looking ---- */

/* In parts, so that others get the mutex in between. */
static void scan_line(kl__disk *disk, kl_scan *asked)
{
    kl_scan part = *asked;
    asked->count = 0;
    do {
        part.stubs = asked->stubs + asked->count;
        part.max = asked->max - asked->count < SCAN_PART ? asked->max - asked->count : SCAN_PART;
        pthread_mutex_lock(&disk->state.mutex);
        kl__state_scan(&disk->state, &part);
        pthread_mutex_unlock(&disk->state.mutex);
        asked->count += part.count;
        if (part.count)
            part.after = &part.stubs[part.count - 1];
    } while (part.count == part.max && asked->count < asked->max);
}

static kl_rc scan(void *self, kl_scan *scans, size_t count)
{
    for (size_t i = 0; i < count; i++)
        scan_line(self, &scans[i]);
    return KL_OK;
}

static void count_shard(const kl__state *state, const kl__partition_state *partition, const kl__shard_state *shard,
                        kl_counts *counts)
{
    kl_layout layout = {1, partition->shard_prefix_len};
    for (int line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++) {
        const kl__line *its = shard->lines[line - KL_PRIORITY_MIN];
        kl__line_at at;
        if (!its || its->count == 0)
            continue;
        if (line == KL_LINE_DUE) {
            counts->due += its->count;
        } else if (line == KL_LINE_RETRY) {
            counts->retry += its->count;
        } else if (kl__line_first(its, &at)) {
            int64_t ms = kl_id_ms(&layout, &kl__stubs_slot(state->stubs, kl__line_slot(its, &at))->id);
            counts->ready += its->count;
            counts->priorities |= 1u << (line - KL_PRIORITY_MIN);
            if (!counts->oldest_id_ms || ms < counts->oldest_id_ms)
                counts->oldest_id_ms = ms;
        }
    }
}

static void count_waiting(kl__state *state, kl_place place, kl_counts *counts)
{
    pthread_mutex_lock(&state->mutex);
    const kl__partition_state *its = state->partitions[place.partition];
    uint32_t first = place.shard == KL_ALL_SHARDS ? 0 : place.shard;
    uint32_t end = place.shard == KL_ALL_SHARDS ? 1u << (4 * its->shard_prefix_len) : place.shard + 1;
    for (uint32_t shard = first; shard < end; shard++)
        if (its->shards[shard])
            count_shard(state, its, its->shards[shard], counts);
    pthread_mutex_unlock(&state->mutex);
}

static kl_rc counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    kl__disk *disk = self;
    memset(ret_counts, 0, sizeof *ret_counts);
    if (!job)
        count_waiting(&disk->state, place, ret_counts);
    if (place.shard != KL_ALL_SHARDS)
        return KL_OK;
    kl_rc rc = job ? kl__keeper_catch_up(disk) : KL_OK;
    ret_counts->finished_behind = !job && kl__keeper_is_behind(disk);
    if (rc == KL_OK)
        rc = kl__history_counts(disk->history, place.partition, job, &ret_counts->done, &ret_counts->dead,
                                &ret_counts->cancelled);
    bool can_do_without = ret_counts->finished_behind && rc != KL_EDAMAGED && rc != KL_ENOMEM;
    return can_do_without ? KL_OK : rc;
}

static kl_rc wait_for_work(void *self, uint32_t number, int64_t wait_ms, uint64_t *seen)
{
    kl__disk *disk = self;
    kl__state *state = &disk->state;
    int64_t until_ns = kl__deadline_ns(wait_ms);
    pthread_mutex_lock(&state->mutex);
    const kl__partition_state *its = state->partitions[number];
    state->waiters++;
    while (its->appended == *seen && kl__cond_wait(&state->appended, &state->mutex, until_ns))
        continue;
    state->waiters--;
    *seen = its->appended;
    pthread_mutex_unlock(&state->mutex);
    return KL_OK;
}

/* ---- Open ---- */

static kl_rc make_directory(kl__disk *disk, const char *path)
{
    int error = disk->vfs->mkdir(disk->vfs, path);
    if (error && error != -EEXIST)
        return kl__fail(KL_ESYSTEM,
                        "the directory %s could not be made: %s; make the one it stands in, or choose another", path,
                        strerror(-error));
    return KL_OK;
}

/* The directory that holds the data directory; its entry has to be durable too. */
static void parent_of(const char *path, char *ret_parent)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(ret_parent, KL_PATH_BYTES, ".");
    else if (slash == path)
        snprintf(ret_parent, KL_PATH_BYTES, "/");
    else
        snprintf(ret_parent, KL_PATH_BYTES, "%.*s", (int)(slash - path), path);
}

static kl_rc fail_sync(const char *path, int error)
{
    return kl__fail(KL_ESYSTEM, "the directory %s could not be synced: %s", path, strerror(-error));
}

static kl_rc sync_directory(kl__disk *disk, const char *path)
{
    int error = disk->vfs->sync_dir(disk->vfs, path);
    return error ? fail_sync(path, error) : KL_OK;
}

static kl_rc take_ownership(kl__disk *disk)
{
    int64_t pid = 0;
    int error = disk->vfs->lock(disk->vfs, disk->path, &disk->lock, &pid);
    if (error == -EBUSY && pid)
        return kl__fail(KL_EBUSY,
                        "%s is open in process %lld; it does not answer, so try again when it has read its journal or "
                        "come to its end, or stop it",
                        disk->path, (long long)pid);
    if (error == -EBUSY)
        return kl__fail(KL_EBUSY, KL_DISK_HELD "; stop that one first, or try again when it has ended", disk->path,
                        disk->path);
    if (error == -ENOTDIR)
        return kl__fail(KL_ESYSTEM, "%s is a file and not a directory, or lies in one; name another directory",
                        disk->path);
    if (error)
        return kl__fail(KL_ESYSTEM, "%s/lock could not be taken: %s; it must be a file that this user may write",
                        disk->path, strerror(-error));
    disk->segments.lock = disk->lock;
    return KL_OK;
}

static void ignore_name(void *ctx, const char *name) { (void)ctx, (void)name; }

/* A journal that is missing beside its history is told of later. */
static kl_rc check_made(kl__disk *disk)
{
    char path[KL_PATH_BYTES];
    snprintf(path, sizeof path, "%.4000s/history.db", disk->path);
    kl__file *file = NULL;
    int error = disk->vfs->open(disk->vfs, path, KL_OPEN_READ, &file);
    disk->vfs->close(disk->vfs, file);
    if (!error || disk->vfs->list(disk->vfs, disk->segments.dir, ignore_name, NULL) == 0)
        return KL_OK;
    return kl__fail(KL_ENOTFOUND,
                    "there is no store in %s; see that the directory is there, and its file system mounted",
                    disk->path);
}

static kl_rc open_directories(kl__disk *disk, const kl_store_opts *opts)
{
    char parent[KL_PATH_BYTES];
    parent_of(disk->path, parent);
    kl_rc rc = opts->no_make ? check_made(disk) : make_directory(disk, disk->path);
    if (rc == KL_OK)
        rc = take_ownership(disk);
    if (rc == KL_OK && !kl__reserve_give(disk->vfs, disk->path))
        rc = kl__fail(KL_EFULL,
                      "the disk of %s is full, and its blocks are so small that SQLite would end this process there; "
                      "nothing was changed: make 64 KiB of room",
                      disk->path);
    if (rc == KL_OK)
        rc = make_directory(disk, disk->segments.dir);
    if (rc == KL_OK)
        rc = sync_directory(disk, disk->path);
    if (rc != KL_OK)
        return rc;
    /* Where the parent may not be read, somebody else made the directory, and saw to it. */
    int error = disk->vfs->sync_dir(disk->vfs, parent);
    return error && error != -EACCES && error != -EPERM ? fail_sync(parent, error) : KL_OK;
}

/* May files be made by their names, or has somebody else put another directory in this one's place? */
static bool is_in_place(void *ctx)
{
    const kl__disk *disk = ctx;
    return disk->lock && (!disk->vfs->still || disk->vfs->still(disk->vfs, disk->lock) == 0);
}

static int probe(kl__disk *disk, const char *path)
{
    kl__file *file = NULL;
    int error = disk->vfs->open(disk->vfs, path, KL_OPEN_READ, &file);
    disk->vfs->close(disk->vfs, file);
    return error;
}

static void note_history(void *ctx, const char *name) { *(bool *)ctx |= strcmp(name, "history.db") == 0; }

/* A link that leads nowhere has a name, and SQLite would make a file at its end. */
static int probe_history(kl__disk *disk, const char *path)
{
    bool has_name = false;
    int error = probe(disk, path);
    if (error == -ENOENT)
        (void)disk->vfs->list(disk->vfs, disk->path, note_history, &has_name);
    return has_name ? -ELOOP : error;
}

static kl_rc open_history(kl__disk *disk, const kl_store_opts *opts, bool makes)
{
    char path[KL_PATH_BYTES];
    snprintf(path, sizeof path, "%.4000s/history.db", disk->path);
    int error = disk->history ? 0 : probe_history(disk, path);
    if (disk->history || (!makes && error == -ENOENT))
        return KL_OK;
    if (kl__vfs_is_no_file(error))
        return kl__fail(KL_EDAMAGED,
                        "%s is not a file, and finished tasks are missing; nothing was changed: `keyline doctor` on "
                        "the data directory says what is affected and can repair it",
                        path);
    char log[KL_PATH_BYTES + 8];
    snprintf(log, sizeof log, "%s-wal", path);
    disk->history_had_log = probe(disk, log) != -ENOENT;
    kl_rc rc =
        kl__history_open(path, disk->vfs->sqlite_vfs, opts->history_rows_max, opts->history_ms_max, &disk->history);
    if (rc != KL_OK)
        return rc;
    kl__history_stay(disk->history, is_in_place, disk);
    disk->state.kept_sequence = kl__history_position(disk->history);
    return KL_OK;
}

static uint64_t history_commits(const kl__disk *disk) { return disk->history ? kl__history_commits(disk->history) : 0; }

/* A damaged log of SQLite's looks like a shorter one: what it held is gone without a word. The journal remembers. As
 * long as it has noted nothing, it has all that history had. */
static kl_rc check_history(kl__disk *disk)
{
    uint64_t commits = history_commits(disk), noted = disk->state.history_noted;
    atomic_store(&disk->state.history_commits, commits);
    if (commits >= noted)
        return KL_OK;
    if (!disk->history)
        return kl__fail(
            KL_EDAMAGED,
            "history.db is missing in %s, and finished tasks with it; nothing was changed: restore it, or let "
            "`keyline doctor --repair` make a new one and go on without",
            disk->path);
    return kl__fail(KL_EDAMAGED,
                    "history.db in %s has lost its last %llu transactions; nothing was changed: restore it, "
                    "or let `keyline doctor --repair` move it aside and go on without",
                    disk->path, (unsigned long long)(noted - commits));
}

/* History learns of a partition when the journal has it, so a journal without a frame has lost them. */
static kl_rc check_frames(kl__disk *disk, const kl__recovered *recovered)
{
    bool has_names = false;
    if (recovered->last_frame || !disk->history)
        return KL_OK;
    kl_rc rc = kl__history_has_names(disk->history, &has_names);
    if (rc != KL_OK || !has_names)
        return rc;
    return kl__fail(KL_EDAMAGED,
                    "nothing in the journal in %s is readable, and history.db beside it knows of partitions; nothing "
                    "was changed: `keyline doctor` on the data directory says what is affected and can repair it",
                    disk->segments.dir);
}

/* A segment is dropped only after the journal has noted that it is not needed (NOTE in format.h); and the first is
 * there before history has made a transaction. */
static kl_rc check_segments(kl__disk *disk, const kl__recovered *recovered)
{
    const kl__state *state = &disk->state;
    if (state->segment_count == 0 && history_commits(disk) > 0)
        return kl__fail(KL_EDAMAGED,
                        "the journal in %s is missing, and history.db beside it is not new; nothing was changed: see "
                        "that the right directory is there, or let `keyline doctor --repair` go on without",
                        disk->segments.dir);
    uint64_t noted = recovered->last_frame ? state->first_noted : 1;
    if (state->segment_count == 0 || noted == 0 || state->segments[0]->number <= noted)
        return check_frames(disk, recovered);
    return kl__fail(
        KL_EDAMAGED,
        "segment %016llx of the journal in %s is missing; nothing was changed: `keyline doctor` on the data "
        "directory says what is affected",
        (unsigned long long)noted, disk->segments.dir);
}

/* What was written down to be on the disk does not go by itself (reach.h). */
static kl_rc check_end(kl__disk *disk, const kl__recovered *recovered)
{
    const kl__state *state = &disk->state;
    kl__reach *reach = &disk->reached;
    int error = state->segment_count ? kl__reach_read(disk->vfs, disk->path, disk->segments.journal, reach) : 0;
    if (error)
        kl__segments_log(&disk->segments, KL_LOG_WARN, "%s/reached could not be read, so a lost end is not noticed: %s",
                         disk->path, strerror(-error));
    if (reach->frame <= recovered->last_frame)
        return KL_OK;
    if (reach->segment >= disk->segments.next_number)
        return kl__fail(KL_EDAMAGED,
                        "segment %016llx of the journal in %s is missing; nothing was changed: `keyline doctor` on the "
                        "data directory says what is affected",
                        (unsigned long long)reach->segment, disk->segments.dir);
    return kl__fail(KL_EDAMAGED,
                    "the journal in %s has lost its end: it is readable up to frame %llu and had come to frame %llu at "
                    "least; nothing was changed: `keyline doctor` on the data directory says what is affected and can "
                    "repair it",
                    disk->segments.dir, (unsigned long long)recovered->last_frame, (unsigned long long)reach->frame);
}

/* History has only what the journal had before. */
static kl_rc check_journal(kl__disk *disk, const kl__recovered *recovered)
{
    kl_rc rc = check_segments(disk, recovered);
    if (rc == KL_OK)
        rc = check_end(disk, recovered);
    if (rc != KL_OK)
        return rc;
    uint64_t known = disk->state.kept_sequence;
    if (known <= recovered->last_sequence)
        return KL_OK;
    return kl__fail(
        KL_EDAMAGED,
        "the journal in %s is missing or older than history.db beside it (it ends at %llu, and history "
        "knows of %llu); nothing was changed: see that the right directory is there, or let `keyline doctor "
        "--repair` go on with what is",
        disk->segments.dir, (unsigned long long)recovered->last_sequence, (unsigned long long)known);
}

/* The next segment, unless the disk is full: then the store opens and refuses appends. A spare of a process that was
 * killed has become the next by then, or is one too many. */
static kl_rc prepare_segments(kl__disk *disk)
{
    int error = kl__segments_prepare(&disk->segments);
    kl__segments_remove_spare(&disk->segments);
    bool is_full = kl__vfs_is_full(error);
    if (error && !(is_full && disk->segments.active))
        return kl__fail(is_full ? KL_EFULL : KL_ESYSTEM, "the journal in %s could not be prepared: %s; %s",
                        disk->segments.dir, strerror(-error),
                        is_full ? "make room there" : "it must be a directory that this user may write");
    return KL_OK;
}

/* A history that has made a transaction tells that there was a journal. */
static void mark_history(kl__disk *disk)
{
    if (kl__history_commits(disk->history) == 0 && kl__history_set_commits(disk->history, 1) != KL_OK)
        kl__segments_log(&disk->segments, KL_LOG_WARN, "history.db does not know yet that there is a journal: %s",
                         kl_error_text());
}

/* A partition may have been made just before a crash, and history not told. */
static void name_partitions(kl__disk *disk)
{
    for (uint32_t number = 1; number <= disk->state.partition_count; number++)
        name_partition(disk, number, disk->state.partitions[number]->name);
}

static kl_rc open_all(kl__disk *disk, const kl_store_opts *opts)
{
    kl__recovered recovered;
    kl_rc rc = open_directories(disk, opts);
    if (rc == KL_OK)
        rc = open_history(disk, opts, false);
    if (rc == KL_OK)
        rc = kl__recover(&disk->segments, &disk->state, &recovered);
    if (rc == KL_OK)
        rc = check_journal(disk, &recovered);
    if (rc == KL_OK)
        rc = check_history(disk);
    if (rc == KL_OK)
        rc = open_history(disk, opts, true);
    if (rc == KL_OK)
        rc = prepare_segments(disk);
    if (rc != KL_OK)
        return rc;
    mark_history(disk);
    name_partitions(disk);
    atomic_store(&disk->clock_ms, recovered.clock_ms);
    uint64_t last_sequence =
        recovered.last_sequence; /* never below what history knows, even when the journal is gone */
    if (disk->state.kept_sequence > last_sequence)
        last_sequence = disk->state.kept_sequence;
    rc = kl__journal_open(&disk->state, &disk->segments, kl__disk_now, disk, recovered.last_frame, last_sequence,
                          &disk->journal);
    if (rc == KL_OK)
        rc = kl__keeper_start(disk);
    if (rc == KL_OK)
        rc = kl__upkeep_start(disk);
    return rc;
}

void kl__disk_note_reach(kl__disk *disk, bool always)
{
    kl__reach reach = {0};
    pthread_mutex_lock(&disk->state.mutex);
    reach.segment = disk->state.described; /* before the frame, which may be of a later one */
    pthread_mutex_unlock(&disk->state.mutex);
    reach.frame = atomic_load_explicit(&disk->segments.last_synced, memory_order_acquire);
    if (reach.frame <= disk->reached.frame || (!always && reach.segment <= disk->reached.segment) || !is_in_place(disk))
        return;
    int error = kl__reach_write(disk->vfs, disk->path, disk->segments.journal, &reach);
    if (error && !kl__vfs_is_full(error))
        kl__segments_log(&disk->segments, KL_LOG_WARN,
                         "%s/reached could not be written, so a lost end may not be noticed: %s", disk->path,
                         strerror(-error));
    disk->reached = reach; /* the next segment is the next try */
}

void kl__disk_take_reserve(kl__disk *disk, bool is_closed)
{
    if (is_in_place(disk))
        kl__reserve_take(disk->vfs, disk->path, is_closed);
}

static void close_disk(void *self)
{
    kl__disk *disk = self;
    if (!disk)
        return;
    bool was_open = disk->journal != NULL;
    kl__keeper_stop(disk);
    kl__upkeep_stop(disk);
    kl__journal_close(disk->journal);
    kl__disk_note_reach(disk, true);
    kl__history_close(disk->history);
    if (was_open) /* else nothing is to be changed */
        kl__disk_take_reserve(disk, true);
    kl__blocks_close(disk->blocks);
    kl__segments_close(&disk->segments);
    kl__state_close(&disk->state);
    disk->vfs->unlock(disk->vfs, disk->lock);
    pthread_cond_destroy(&disk->unclaimed);
    pthread_mutex_destroy(&disk->partition_mutex);
    kl__free(disk);
}

static kl_rc open_on(kl__vfs *vfs, const char *path, const kl_store_opts *opts, void **ret_self)
{
    KL_ASSERT(strlen(path) <= KL_DISK_PATH_MAX);
    kl__disk *disk = kl__alloc_aligned(alignof(kl__disk), 1, sizeof *disk); /* zeroed */
    if (!disk)
        return kl__fail_memory();
    disk->vfs = vfs;
    disk->now_ms = opts->now_ms;
    disk->now_ctx = opts->now_ctx;
    disk->history_ms_max = opts->history_ms_max;
    strcpy(disk->path, path);
    kl__segments *segments = &disk->segments;
    segments->vfs = vfs;
    segments->segment_bytes = (uint64_t)opts->segment_bytes;
    segments->state = &disk->state;
    segments->log = opts->log;
    segments->log_ctx = opts->log_ctx;
    snprintf(segments->dir, sizeof segments->dir, "%.4000s/journal", disk->path);
    pthread_mutex_init(&segments->files, NULL);
    pthread_mutex_init(&segments->mutex, NULL);
    kl__cond_init(&segments->changed);
    kl__cond_init(&disk->unclaimed);
    pthread_mutex_init(&disk->partition_mutex, NULL);
    kl_rc rc = kl__state_open(&disk->state);
    if (rc == KL_OK && !(disk->blocks = kl__blocks_open()))
        rc = kl__fail_memory();
    if (rc == KL_OK)
        rc = open_all(disk, opts);
    if (rc != KL_OK) {
        if (disk->history && disk->history_had_log)
            kl__history_leave_log(disk->history);
        close_disk(disk);
        return rc;
    }
    *ret_self = disk;
    return KL_OK;
}

kl_rc kl__disk_path(const char *where, char ret_path[KL_DISK_PATH_MAX + 1])
{
    char here[KL_PATH_BYTES] = "";
    if (strncmp(where, "//", 2) == 0)
        return kl__fail(KL_EINVAL,
                        "disk:%s would be a directory in the root of the file system; write disk:%s or disk:%s", where,
                        where + 2, where + 1);
    while (strncmp(where, "./", 2) == 0)
        where += 1 + strspn(where + 1, "/");
    where = *where ? where : "keyline-data";
    if (*where != '/' && !getcwd(here, sizeof here))
        return kl__fail(KL_ESYSTEM,
                        "the current directory, which disk:%s counts from, cannot be told (%s); write its whole path",
                        where, strerror(errno));
    size_t above = strcmp(here, "/") == 0 ? 0 : strlen(here), below = strlen(where);
    while (below > 1 && where[below - 1] == '/')
        below--;
    size_t bytes = above + (*where != '/') + below;
    if (bytes > KL_DISK_PATH_MAX)
        return kl__fail(KL_EINVAL, "the path of the data directory has %zu bytes; %d is the most", bytes,
                        KL_DISK_PATH_MAX);
    snprintf(ret_path, KL_DISK_PATH_MAX + 1, "%.*s%s%.*s", (int)above, here, *where == '/' ? "" : "/", (int)below,
             where);
    return KL_OK;
}

static kl_rc open_disk(const char *path, const kl_store_opts *opts, void **ret_self)
{
    return open_on(&kl__vfs_system, path, opts, ret_self);
}

const kl_engine kl__engine_disk = {
    .size = sizeof(kl_engine),
    .scheme = "disk",
    .usage = "disk:PATH",
    .can = KL_STORE_DURABLE | KL_STORE_ATOMIC_APPEND | KL_STORE_KEY_HASH | KL_STORE_WAIT | KL_STORE_ASYNC |
           KL_STORE_ORDERED | KL_STORE_SEARCH | KL_STORE_GROUP | KL_STORE_SEAL,
    .open = open_disk,
    .close = close_disk,
    .now = now,
    .partition = partition,
    .append = kl__disk_append,
    .scan = scan,
    .read = kl__disk_read,
    .settle = kl__disk_settle,
    .fence = kl__disk_fence,
    .counts = counts,
    .wait = wait_for_work,
    .results = kl__disk_results,
    .find = kl__disk_find,
    .forget = kl__disk_forget,
    .get = kl__disk_get,
    .put = kl__disk_put,
    .list = kl__disk_list,
};

/* The engine's open has no place for a file system, so it travels beside the call, on the same thread. */
static _Thread_local kl__vfs *next_vfs;

static kl_rc open_next(const char *where, const kl_store_opts *opts, void **ret_self)
{
    return open_on(next_vfs, where, opts, ret_self);
}

static kl_engine engine_on;

static void make_engine_on(void)
{
    engine_on = kl__engine_disk;
    engine_on.open = open_next;
}

kl_rc kl__disk_open_on(kl__vfs *vfs, const char *path, const kl_store_opts *opts, kl_store **ret_store)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    pthread_once(&made, make_engine_on);
    next_vfs = vfs;
    return kl_store_open_engine(&engine_on, path, opts, ret_store);
}
