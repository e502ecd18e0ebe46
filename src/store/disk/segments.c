/* segments.c - the journal's files; see segments.h. */
#include "store/disk/segments.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "store/disk/format.h"

enum { ZEROS = 256 << 10, NAME_BYTES = 20 /* 16 digits and .seg */, AGAIN_NS = 1000000000 };

void kl__segments_log(const kl__segments *segments, kl_log_level level, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (!segments->log)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    segments->log(segments->log_ctx, level, text);
}

/* ---- Names ---- */

void kl__segments_path(const kl__segments *segments, uint64_t number, char *ret_path)
{
    snprintf(ret_path, KL_PATH_BYTES, "%.4000s/%016llx.seg", segments->dir, (unsigned long long)number);
}

/* Where the next is made, and what is dropped goes. When it is not known whether one was put there durably, the spare
 * may bear its old name still, and must not be written: then they are made beside it. */
static void spare_path(const kl__segments *segments, bool is_in_doubt, char *ret_path)
{
    snprintf(ret_path, KL_PATH_BYTES, "%.4000s/%s", segments->dir, is_in_doubt ? "spare2" : "spare");
}

bool kl__segments_parse(const char *name, uint64_t *ret_number)
{
    uint64_t number = 0;
    if (strlen(name) != NAME_BYTES || strcmp(name + 16, ".seg") != 0)
        return false;
    for (int i = 0; i < 16; i++) {
        const char *digit = strchr("0123456789abcdef", name[i]);
        if (!digit || !name[i])
            return false;
        number = number << 4 | (uint64_t)(digit - "0123456789abcdef");
    }
    *ret_number = number;
    return number != 0;
}

/* ---- In their place ---- */

/* The directory alone: a look before names in it are used. */
static int check_directory(const kl__segments *segments)
{
    kl__vfs *vfs = segments->vfs;
    return vfs->still && segments->lock ? vfs->still(vfs, segments->lock) : 0;
}

/* Segments are dropped with `files` held, so none is closed meanwhile. */
int kl__segments_check(kl__segments *segments)
{
    kl__vfs *vfs = segments->vfs;
    kl__state *state = segments->state;
    pthread_mutex_lock(&segments->files);
    int error = check_directory(segments);
    pthread_mutex_lock(&state->mutex);
    for (size_t i = 0; !error && vfs->still && i < state->segment_count; i++)
        error = vfs->still(vfs, state->segments[i]->file);
    pthread_mutex_unlock(&state->mutex);
    pthread_mutex_unlock(&segments->files);
    return error;
}

/* ---- The next segment ---- */

int kl__segment_write_header(kl__segments *segments, kl__file *file, uint64_t number, uint64_t bytes)
{
    kl__segment_header header = {
        .magic = KL_SEGMENT_MAGIC,
        .version = KL_FORMAT_VERSION,
        .number = number,
        .journal = segments->journal,
        .bytes = bytes,
    };
    header.crc = kl__segment_crc(&header);
    int error = kl__vfs_write(segments->vfs, file, &header, sizeof header, 0);
    return error ? error : segments->vfs->sync(segments->vfs, file);
}

static int fill_with_zeros(kl__segments *segments, kl__file *file)
{
    char *zeros = kl__alloc_zeroed(1, ZEROS);
    int error = zeros ? 0 : -ENOMEM;
    for (uint64_t at = 0; at < segments->segment_bytes && !error; at += ZEROS) {
        uint64_t left = segments->segment_bytes - at;
        error = kl__vfs_write(segments->vfs, file, zeros, left < ZEROS ? left : ZEROS, at);
    }
    kl__free(zeros);
    return error ? error : segments->vfs->sync(segments->vfs, file);
}

/* The spare file, as it was left or new. */
static int open_spare(kl__segments *segments, const char *path, kl__file **ret_file)
{
    kl__vfs *vfs = segments->vfs;
    uint64_t size = 0;
    int error = vfs->open(vfs, path, KL_OPEN_WRITE, ret_file);
    if (error == 0) {
        error = vfs->size(vfs, *ret_file, &size);
        if (error == 0 && size == segments->segment_bytes)
            return 0;
        vfs->close(vfs, *ret_file);
        *ret_file = NULL;
        error = vfs->unlink(vfs, path);
    }
    if (error && error != -ENOENT)
        return error;
    error = vfs->open(vfs, path, KL_OPEN_CREATE, ret_file);
    if (error)
        return error;
    error = fill_with_zeros(segments, *ret_file);
    if (error) {
        vfs->close(vfs, *ret_file);
        *ret_file = NULL;
        (void)vfs->unlink(vfs, path); /* a full disk wants it back; if it stays, it is found as the spare next time */
    }
    return error;
}

static int prepare_file(kl__segments *segments, uint64_t number, kl__file **ret_file)
{
    kl__vfs *vfs = segments->vfs;
    char spare[KL_PATH_BYTES], path[KL_PATH_BYTES];
    spare_path(segments, segments->drop_failed, spare);
    kl__segments_path(segments, number, path);
    int error = check_directory(segments);
    if (!error)
        error = open_spare(segments, spare, ret_file);
    if (error)
        return error;
    error = kl__segment_write_header(segments, *ret_file, number, segments->segment_bytes);
    if (!error)
        error = vfs->rename(vfs, spare, path);
    if (!error)
        segments->has_spare = false;
    if (!error)
        error = vfs->sync_dir(vfs, segments->dir);
    if (error) {
        vfs->close(vfs, *ret_file);
        *ret_file = NULL;
    }
    return error;
}

static void set_next(kl__segments *segments, kl__segment *next, int error)
{
    bool is_full = kl__vfs_is_full(error), was_full = atomic_exchange(&segments->is_full, is_full);
    int64_t now_ns = kl__monotonic_ns();
    segments->next_number += next != NULL;
    atomic_store(&segments->has_next, next != NULL); /* before it may be taken, which says that it is not */
    segments->next = next;
    pthread_mutex_lock(&segments->mutex);
    bool is_news = segments->next_error != error || now_ns - segments->next_failed_ns >= AGAIN_NS;
    segments->next_wanted = error != 0;
    segments->next_error = error;
    segments->next_failed_ns = error ? now_ns : 0;
    pthread_mutex_unlock(&segments->mutex);
    if (is_full && !was_full)
        kl__segments_log(segments, KL_LOG_ERROR, "the disk is full: tasks are refused, outcomes are still accepted");
    else if (was_full && !error)
        kl__segments_log(segments, KL_LOG_INFO, "there is room on the disk again: tasks are accepted");
    else if (error && !is_full && is_news) /* each call that needs it tries */
        kl__segments_log(segments, KL_LOG_ERROR, "the next segment could not be prepared: %s", strerror(-error));
}

/* With `files` held. */
static int prepare(kl__segments *segments)
{
    uint64_t number = segments->next_number;
    kl__segment *next = kl__alloc_zeroed(1, sizeof *next);
    int error = next ? prepare_file(segments, number, &next->file) : -ENOMEM;
    if (error) {
        kl__free(next);
        next = NULL;
    } else {
        next->number = number;
        next->bytes = segments->segment_bytes;
        next->end = KL_SEGMENT_HEADER;
    }
    set_next(segments, next, error);
    return error;
}

int kl__segments_prepare(kl__segments *segments)
{
    pthread_mutex_lock(&segments->files);
    int error = segments->next ? 0 : prepare(segments);
    pthread_mutex_unlock(&segments->files);
    return error;
}

/* ---- Dropping ---- */

/* A name in quarantine/ that is not taken. */
static int name_aside(const kl__segments *segments, uint64_t number, char ret_path[KL_PATH_BYTES])
{
    enum { ASIDE_MAX = 1 << 20 };
    int data = (int)(strrchr(segments->dir, '/') - segments->dir), error = 0;
    for (int n = 1; n <= ASIDE_MAX && error == 0; n++) {
        kl__file *file = NULL;
        snprintf(ret_path, KL_PATH_BYTES, "%.*s/quarantine/%016llx.seg-%d", data, segments->dir,
                 (unsigned long long)number, n);
        error = segments->vfs->open(segments->vfs, ret_path, KL_OPEN_READ, &file);
        segments->vfs->close(segments->vfs, file);
    }
    return error == -ENOENT ? 0 : error ? error : -EEXIST;
}

/* Moves a damaged segment's file to quarantine/, durably there; that it has left is yet to be synced. */
static int put_aside(kl__segments *segments, const kl__segment *segment, const char *path)
{
    kl__vfs *vfs = segments->vfs;
    char to[KL_PATH_BYTES], directory[KL_PATH_BYTES];
    int data = (int)(strrchr(segments->dir, '/') - segments->dir);
    snprintf(directory, sizeof directory, "%.*s/quarantine", data, segments->dir);
    int error = vfs->mkdir(vfs, directory);
    if (error && error != -EEXIST)
        return error;
    directory[data] = 0;
    error = vfs->sync_dir(vfs, directory); /* what moves there must be found */
    if (!error)
        error = name_aside(segments, segment->number, to);
    if (!error)
        error = vfs->rename(vfs, path, to);
    bool is_moved = !error;
    directory[data] = '/';
    if (!error)
        error = vfs->sync_dir(vfs, directory);
    segments->drop_failed = is_moved && error != 0;
    if (!error)
        kl__segments_log(segments, KL_LOG_WARN, "the damaged segment %016llx of the journal is now %s",
                         (unsigned long long)segment->number, to);
    return error;
}

/* Off the disk, or into use as the next or the one behind it. Durable on return. With `files` held. When it fails, the
 * segment is where it was, or that is not known: then none may go any more (drop_failed). */
static int put_away(kl__segments *segments, const kl__segment *segment)
{
    kl__vfs *vfs = segments->vfs;
    char path[KL_PATH_BYTES], spare[KL_PATH_BYTES];
    kl__segments_path(segments, segment->number, path);
    spare_path(segments, false, spare);
    bool is_spare = segment->bytes == segments->segment_bytes && !segments->has_spare && !segment->is_damaged;
    int error = check_directory(segments);
    if (!error && segment->is_damaged)
        error = put_aside(segments, segment, path);
    else if (!error)
        error = is_spare ? vfs->rename(vfs, path, spare) : vfs->unlink(vfs, path);
    if (!error) {
        error = vfs->sync_dir(vfs, segments->dir);
        segments->drop_failed = error != 0;
    }
    if (!error && is_spare)
        segments->has_spare = true;
    if (!error && is_spare && !segments->next)
        (void)prepare(segments); /* if it fails, it is tried again when it is wanted */
    return error;
}

void kl__segments_remove_spare(kl__segments *segments)
{
    char spare[KL_PATH_BYTES];
    for (int is_in_doubt = 0; is_in_doubt < 2 && check_directory(segments) == 0; is_in_doubt++) {
        spare_path(segments, is_in_doubt, spare);
        (void)segments->vfs->unlink(segments->vfs, spare); /* if it stays, it is found as the spare next time */
    }
    segments->has_spare = false;
}

void kl__segments_prepare_spare(kl__segments *segments)
{
    pthread_mutex_lock(&segments->files);
    if (!segments->next && segments->has_spare)
        (void)prepare(segments);
    pthread_mutex_unlock(&segments->files);
}

/* Has what is not live outgrown what is left to gather while segments are brisk? With the state's mutex held. */
static bool are_too_many(const kl__segments *segments)
{
    return kl__state_must_compact(segments->state, KL_PATIENCE_SEGMENTS * segments->segment_bytes);
}

void kl__segments_make_spare(kl__segments *segments)
{
    char path[KL_PATH_BYTES];
    kl__file *file = NULL;
    spare_path(segments, false, path);
    pthread_mutex_lock(&segments->files);
    int64_t rolled_ns = atomic_load_explicit(&segments->rolled_ns, memory_order_relaxed);
    pthread_mutex_lock(&segments->state->mutex);
    bool is_wanted = !segments->has_spare && segments->next && !segments->drop_failed && !segments->is_full &&
                     rolled_ns != segments->spareless_ns && kl__segments_are_brisk(segments) && !are_too_many(segments);
    pthread_mutex_unlock(&segments->state->mutex);
    if (is_wanted && check_directory(segments) == 0) {
        segments->has_spare = open_spare(segments, path, &file) == 0;
        segments->spareless_ns = segments->has_spare ? 0 : rolled_ns;
        segments->vfs->close(segments->vfs, file);
    }
    pthread_mutex_unlock(&segments->files);
}

/* How many that could be dropped need not be yet: with those that gather they are within the bound (G2). A full disk
 * wants them all, and what is of no use as a spare goes. With the state's mutex held. */
static size_t kept_max(const kl__segments *segments)
{
    const kl__state *state = segments->state;
    const kl__segment *first = state->segment_count ? state->segments[0] : NULL;
    bool is_of_use = segments->has_spare && first && first->bytes == segments->segment_bytes && !first->is_damaged;
    if (!is_of_use || segments->is_full || are_too_many(segments))
        return 0;
    uint64_t bound = 2 * state->live + KL_PATIENCE_SEGMENTS * segments->segment_bytes;
    uint64_t more = (bound - kl__state_needed_bytes(state)) / segments->segment_bytes;
    return more < KL_PATIENCE_SEGMENTS ? (size_t)more : KL_PATIENCE_SEGMENTS;
}

/* The first segment, when nothing in it is needed; NULL: it is, or may stay. */
static kl__segment *take_first(kl__segments *segments, bool is_all)
{
    kl__state *state = segments->state;
    pthread_mutex_lock(&state->mutex);
    size_t kept = is_all ? 0 : kept_max(segments);
    bool is_over = kl__state_droppable(state) > kept && kl__state_may_drop(state);
    kl__segment *first = is_over ? kl__state_drop_segment(state) : NULL;
    pthread_mutex_unlock(&state->mutex);
    return first;
}

/* One could not be removed just now, and it is not yet time to try again. */
static bool must_rest(const kl__segments *segments)
{
    return segments->leaving && kl__monotonic_ns() - segments->failed_ns < AGAIN_NS;
}

/* With `files` held, so that each is off the disk before the next. One that could not be removed is tried again when it
 * is the next one's turn, and not before a while. */
static void drop(kl__segments *segments, bool is_all)
{
    int error = 0;
    while (!error && !segments->drop_failed && !must_rest(segments)) {
        if (!segments->leaving && (segments->leaving = take_first(segments, is_all)) != NULL)
            segments->vfs->close(segments->vfs, segments->leaving->file);
        if (!segments->leaving)
            break;
        error = put_away(segments, segments->leaving);
        if (error)
            kl__segments_log(segments, KL_LOG_ERROR,
                             "a segment that is not needed could not be removed (%s); the journal will grow until %s",
                             strerror(-error), segments->drop_failed ? "the store is opened again" : "it can be");
        if (error && !segments->drop_failed) {
            segments->failed_ns = kl__monotonic_ns();
            break;
        }
        kl__segment_free(segments->leaving);
        segments->leaving = NULL;
    }
}

void kl__segments_drop(kl__segments *segments)
{
    pthread_mutex_lock(&segments->files);
    drop(segments, false);
    pthread_mutex_unlock(&segments->files);
}

void kl__segments_drop_all(kl__segments *segments)
{
    pthread_mutex_lock(&segments->files);
    segments->failed_ns = 0; /* there is no later */
    drop(segments, true);
    pthread_mutex_unlock(&segments->files);
}

bool kl__segments_are_brisk(const kl__segments *segments)
{
    int64_t rolled_ns = atomic_load_explicit(&segments->rolled_ns, memory_order_relaxed);
    return rolled_ns && kl__monotonic_ns() - rolled_ns < KL_BRISK_MS * INT64_C(1000000);
}

void kl__segments_give_back(kl__segments *segments)
{
    pthread_mutex_lock(&segments->files);
    if (segments->has_spare && !kl__segments_are_brisk(segments)) {
        drop(segments, true);
        kl__segments_remove_spare(segments);
    }
    pthread_mutex_unlock(&segments->files);
}

/* ---- Going on to it ---- */

/* A large batch gets a large segment. Its header goes on to say what it was prepared with: it must never be in
 * doubt. */
static int enlarge(kl__segments *segments, kl__segment *next, uint64_t bytes)
{
    int error = segments->vfs->truncate(segments->vfs, next->file, bytes);
    if (!error)
        error = segments->vfs->sync(segments->vfs, next->file);
    if (error)
        (void)segments->vfs->truncate(segments->vfs, next->file, next->bytes); /* a full disk wants it back */
    else
        next->bytes = bytes;
    return error;
}

static kl_rc fail_next(int error)
{
    if (kl__vfs_is_full(error))
        return kl__fail(KL_EFULL, "the disk is full; nothing was stored; make room and call again");
    return kl__fail(KL_ESYSTEM, "%s", strerror(-error));
}

/* Files and memory that are used up come back. Nothing stands in the file that was to be made, and the next try begins
 * it anew. */
static kl_rc fail_to_prepare(int error)
{
    if (error == -ENOMEM)
        return kl__fail_memory();
    if (error == -EMFILE || error == -ENFILE)
        return kl__fail(
            KL_EBUSY,
            "the next segment of the journal cannot be opened just now (%s); nothing was stored: call again, "
            "or raise the limit of open files",
            strerror(-error));
    return fail_next(error);
}

/* One with room for `bytes` is there after this, or it fails. */
static kl_rc provide_next(kl__segments *segments, uint64_t bytes)
{
    pthread_mutex_lock(&segments->files);
    int error = segments->next ? 0 : prepare(segments);
    if (kl__vfs_is_full(error)) { /* upkeep may not have come to drop what can be */
        drop(segments, true);
        error = segments->next ? 0 : error;
    }
    kl_rc rc = error ? fail_to_prepare(error) : KL_OK;
    if (!error && bytes > segments->next->bytes && (error = enlarge(segments, segments->next, bytes)) != 0)
        rc = fail_next(error);
    pthread_mutex_unlock(&segments->files);
    return rc;
}

kl_rc kl__segments_roll(kl__segments *segments, uint64_t bytes, bool is_upkeep)
{
    /* Nobody else takes it, so when it is there already nothing is waited for that is done with other files. */
    kl__segment *next = segments->next;
    kl_rc rc = next && bytes <= next->bytes ? KL_OK : provide_next(segments, bytes);
    if (rc != KL_OK)
        return rc;
    next = segments->next;
    pthread_mutex_lock(&segments->state->mutex);
    bool added = kl__state_add_segment(segments->state, next);
    pthread_mutex_unlock(&segments->state->mutex);
    if (!added)
        return kl__fail_memory();
    bool is_first = !segments->active; /* it comes into use because the store was opened */
    segments->active = next;
    atomic_store(&segments->has_next, false); /* before another one may be prepared, which says so */
    segments->next = NULL;
    if (!is_upkeep && !is_first) {
        atomic_store_explicit(&segments->rolled_ns, kl__monotonic_ns(), memory_order_relaxed);
        atomic_fetch_add(&segments->rolled, 1);
    }
    kl__segments_want_upkeep(segments);
    return KL_OK;
}

/* ---- Upkeep is asked for ---- */

uint64_t kl__segments_slack(const kl__segments *segments)
{
    return atomic_load_explicit(&segments->has_next, memory_order_relaxed) ? 0 : segments->segment_bytes;
}

bool kl__segments_can_relieve(const kl__segments *segments)
{
    const kl__state *state = segments->state;
    return atomic_load_explicit(&segments->is_full, memory_order_relaxed) && state->segment_count > 1 &&
           state->segments[0]->live <= segments->segment_bytes / 32 * 3; /* less than is kept back */
}

bool kl__segments_need_upkeep(const kl__segments *segments)
{
    size_t droppable = kl__state_droppable(segments->state);
    return droppable > kept_max(segments) || kl__segments_can_relieve(segments) ||
           (!droppable && kl__state_must_compact(segments->state, kl__segments_slack(segments)));
}

void kl__segments_want_upkeep(kl__segments *segments)
{
    if (atomic_load(&segments->upkeep_wanted)) /* as after each commit while upkeep is patient */
        return;
    pthread_mutex_lock(&segments->mutex);
    segments->upkeep_wanted = true;
    pthread_cond_broadcast(&segments->changed);
    pthread_mutex_unlock(&segments->mutex);
}

void kl__segments_want_next(kl__segments *segments)
{
    pthread_mutex_lock(&segments->mutex);
    segments->next_wanted = true;
    pthread_cond_broadcast(&segments->changed);
    pthread_mutex_unlock(&segments->mutex);
}

void kl__segments_close(kl__segments *segments)
{
    kl__state *state = segments->state;
    for (size_t i = 0; i < state->segment_count; i++) {
        segments->vfs->close(segments->vfs, state->segments[i]->file);
        kl__segment_free(state->segments[i]);
    }
    state->segment_count = 0;
    if (segments->next)
        segments->vfs->close(segments->vfs, segments->next->file);
    kl__segment_free(segments->next);
    kl__segment_free(segments->leaving);
    if (segments->has_spare || segments->drop_failed)
        kl__segments_remove_spare(segments);
    pthread_cond_destroy(&segments->changed);
    pthread_mutex_destroy(&segments->mutex);
    pthread_mutex_destroy(&segments->files);
}
