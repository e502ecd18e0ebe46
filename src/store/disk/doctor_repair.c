/* doctor_repair.c - carries out what doctor_plan.c has planned, and makes a damaged history.db anew.
 *
 * Power may be lost, and the disk may fill up, at any point: each step is durable before the next, the store does not
 * open while a damaged segment is left, and doing it all again leads to the same end.
 *
 * First of all, what is not a regular file under a name of ours is moved to quarantine/NAME-N, and from then on the
 * file is missing. For each segment that is to be rewritten, from the first to the last:
 *   1  the file, if there is one, is copied to quarantine/unfinished, which is synced, and renamed to
 *      quarantine/NAME-N, with N such that no earlier one is replaced; the directory is synced;
 *   2  journal/repair is written, with what is readable of the file, and synced; so is its name, lest a rename that
 *      overtakes its making leaves neither file;
 *   3  it is renamed over the file, and the directory is synced. Until then the old file counts, from then on the new.
 * A file that is to be taken out is copied as in 1 and then removed, after all others are done. Then `reached` is
 * removed.
 *
 * For history.db:
 *   4  history-repair.db is made, with all tasks that can be read of the old file, and renamed to history-repaired.db:
 *      from then on it is complete;
 *   5  the old log is copied, as in 1, to quarantine/history-N.db-wal, so that it stands beside the file wherever that
 *      is;
 *   6  the old file is moved to quarantine/history-N.db, and both directories are synced;
 *   7  the old log and its index are removed where they were;
 *   8  history-repaired.db becomes history.db: where that is missing at first, this is where a repair was interrupted.
 *      What the journal still has of finished tasks is added when the store is opened.
 *
 * quarantine/unfinished and journal/repair are begun anew when they are found. A copy that an interrupted repair has
 * finished is found by its bytes and not made again. Nothing in quarantine/ is ever removed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "store/disk/doctor_inside.h"
#include "store/disk/history.h"
#include "store/disk/journal.h"

enum { COPY_BYTES = 1 << 20, COPIES_MAX = 1 << 20 };

typedef unsigned long long ull;

static kl_rc fail_at(const char *what, const char *path, int error)
{
    if (error == -ENOSPC || error == -EDQUOT)
        return kl__fail(KL_EFULL, "there is no room for %s; nothing is lost: make room and repair again", path);
    return kl__fail(KL_ESYSTEM, "%s could not be %s: %s; nothing is lost: repair again when that is seen to", path,
                    what, strerror(-error));
}

static void join(const char *directory, const char *name, char ret_path[KL_PATH_BYTES])
{
    snprintf(ret_path, KL_PATH_BYTES, "%.3900s/%.180s", directory, name);
}

static kl_rc sync_directory(kl__doctor *doctor, const char *path)
{
    int error = doctor->vfs->sync_dir(doctor->vfs, path);
    return error ? fail_at("synced", path, error) : KL_OK;
}

static kl_rc remove_file(kl__doctor *doctor, const char *path)
{
    int error = doctor->vfs->unlink(doctor->vfs, path);
    return error && error != -ENOENT ? fail_at("removed", path, error) : KL_OK;
}

/* A new file in place of one that an interrupted repair may have left. */
static kl_rc begin_file(kl__doctor *doctor, const char *path, kl__file **ret_file)
{
    kl_rc rc = remove_file(doctor, path);
    if (rc != KL_OK)
        return rc;
    int error = doctor->vfs->open(doctor->vfs, path, KL_OPEN_CREATE, ret_file);
    return error ? fail_at("made", path, error) : KL_OK;
}

/* ---- Quarantine ---- */

static bool is_there(kl__doctor *doctor, const char *path)
{
    kl__file *file = NULL;
    int error = doctor->vfs->open(doctor->vfs, path, KL_OPEN_READ, &file);
    doctor->vfs->close(doctor->vfs, file);
    return error != -ENOENT;
}

static kl_rc make_quarantine(kl__doctor *doctor)
{
    int error = doctor->vfs->mkdir(doctor->vfs, doctor->quarantine_dir);
    if (error && error != -EEXIST)
        return fail_at("made", doctor->quarantine_dir, error);
    return sync_directory(doctor, doctor->path);
}

static int copy_bytes(kl__doctor *doctor, kl__file *from, kl__file *to)
{
    char *bytes = kl__alloc(COPY_BYTES);
    int error = bytes ? 0 : -ENOMEM;
    for (uint64_t at = 0; !error;) {
        size_t got = 0;
        error = kl__vfs_read(doctor->vfs, from, bytes, COPY_BYTES, at, &got);
        if (error || got == 0)
            break;
        error = kl__vfs_write(doctor->vfs, to, bytes, got, at);
        at += got;
    }
    kl__free(bytes);
    return error ? error : doctor->vfs->sync(doctor->vfs, to);
}

/* Is there a copy of the file already, from a repair that went no further? */
static bool is_copied(kl__doctor *doctor, const char *path, const char *copy)
{
    kl__file *files[2] = {NULL, NULL};
    char *bytes = kl__alloc((size_t)2 * COPY_BYTES);
    size_t got[2] = {0, 0};
    bool is_same = bytes && doctor->vfs->open(doctor->vfs, path, KL_OPEN_READ, &files[0]) == 0 &&
                   doctor->vfs->open(doctor->vfs, copy, KL_OPEN_READ, &files[1]) == 0;
    for (uint64_t at = 0; is_same; at += got[0]) {
        for (int i = 0; i < 2 && is_same; i++)
            is_same = kl__vfs_read(doctor->vfs, files[i], bytes + (size_t)i * COPY_BYTES, COPY_BYTES, at, &got[i]) == 0;
        is_same = is_same && got[0] == got[1] && memcmp(bytes, bytes + COPY_BYTES, got[0]) == 0;
        if (is_same && got[0] == 0)
            break;
    }
    for (int i = 0; i < 2; i++)
        doctor->vfs->close(doctor->vfs, files[i]);
    kl__free(bytes);
    return is_same;
}

/* Step 1, with the copy's whole path given. */
static kl_rc copy_aside(kl__doctor *doctor, const char *path, const char *copy)
{
    char unfinished[KL_PATH_BYTES];
    kl__file *from = NULL, *to = NULL;
    join(doctor->quarantine_dir, "unfinished", unfinished);
    int error = doctor->vfs->open(doctor->vfs, path, KL_OPEN_READ, &from);
    if (error)
        return fail_at("opened", path, error);
    kl_rc rc = begin_file(doctor, unfinished, &to);
    if (rc == KL_OK)
        error = copy_bytes(doctor, from, to);
    doctor->vfs->close(doctor->vfs, from);
    doctor->vfs->close(doctor->vfs, to);
    if (rc == KL_OK && !error)
        error = doctor->vfs->rename(doctor->vfs, unfinished, copy);
    if (error) {
        (void)doctor->vfs->unlink(doctor->vfs,
                                  unfinished); /* a full disk wants it back; the next repair removes it too */
        return fail_at("copied to quarantine", path, error);
    }
    return rc == KL_OK ? sync_directory(doctor, doctor->quarantine_dir) : rc;
}

/* journal/X.seg to quarantine/X.seg-N; *ret_name is that, below the data directory. */
static kl_rc quarantine_segment(kl__doctor *doctor, const kl__case *its, char ret_name[KL_NAME_BYTES])
{
    char path[KL_PATH_BYTES], copy[KL_PATH_BYTES];
    kl_rc rc = make_quarantine(doctor);
    kl__case_path(doctor, its->number, path);
    for (int n = 1; n <= COPIES_MAX && rc == KL_OK; n++) {
        snprintf(ret_name, KL_NAME_BYTES, "quarantine/%016llx.seg-%d", (ull)its->number, n);
        join(doctor->path, ret_name, copy);
        bool is_taken = is_there(doctor, copy);
        if (is_taken && !is_copied(doctor, path, copy))
            continue;
        doctor->totals.quarantined++;
        return is_taken ? sync_directory(doctor, doctor->quarantine_dir) : copy_aside(doctor, path, copy);
    }
    return rc == KL_OK ? fail_at("copied", path, -EEXIST) : rc;
}

/* ---- What is no file ---- */

struct search {
    const char *name;
    bool is_found;
};

static void compare_name(void *ctx, const char *name)
{
    struct search *search = ctx;
    search->is_found |= strcmp(name, search->name) == 0;
}

/* Not by opening it: what stands there may be no file either. */
static kl_rc name_in_quarantine(kl__doctor *doctor, const char *base, char ret_name[KL_NAME_BYTES])
{
    const size_t directory = strlen("quarantine/");
    for (int n = 1; n <= COPIES_MAX; n++) {
        snprintf(ret_name, KL_NAME_BYTES, "quarantine/%.40s-%d", base, n);
        struct search search = {.name = ret_name + directory};
        int error = doctor->vfs->list(doctor->vfs, doctor->quarantine_dir, compare_name, &search);
        if (error)
            return fail_at("listed", doctor->quarantine_dir, error);
        if (!search.is_found)
            return KL_OK;
    }
    return fail_at("moved", base, -EEXIST);
}

static kl_rc move_stray(kl__doctor *doctor, const char *name)
{
    char from[KL_PATH_BYTES], to[KL_PATH_BYTES], aside[KL_NAME_BYTES];
    const char *slash = strrchr(name, '/');
    kl_rc rc = name_in_quarantine(doctor, slash ? slash + 1 : name, aside);
    if (rc != KL_OK)
        return rc;
    join(doctor->path, name, from);
    join(doctor->path, aside, to);
    int error = doctor->vfs->rename(doctor->vfs, from, to);
    if (error)
        return fail_at("moved to quarantine/", from, error);
    rc = sync_directory(doctor, doctor->quarantine_dir);
    if (rc == KL_OK)
        rc = sync_directory(doctor, slash ? doctor->journal_dir : doctor->path);
    if (rc != KL_OK)
        return rc;
    doctor->totals.quarantined++;
    kl__doctor_found(doctor, KL_FOUND_NO_FILE, KL_FOUND_REPAIRED, name, -1, "Moved to %s.", aside);
    return KL_OK;
}

kl_rc kl__doctor_move_strays(kl__doctor *doctor)
{
    kl_rc rc = doctor->stray_count ? make_quarantine(doctor) : KL_OK;
    for (size_t i = 0; i < doctor->stray_count && rc == KL_OK; i++)
        rc = move_stray(doctor, doctor->strays[i].name);
    return rc;
}

/* ---- Writing a segment ---- */

struct writer {
    kl__doctor *doctor;
    kl__case *its;
    kl__file *file;
    char *buffer; /* of a frame */
    size_t capacity;
    uint64_t at;
    uint64_t frames; /* that were readable */
    uint64_t last;   /* frame's number */
    uint64_t sequence;
    int64_t now_ms;
};

static bool reserve(struct writer *w, size_t bytes)
{
    if (bytes <= w->capacity)
        return true;
    kl__free(w->buffer);
    w->buffer = kl__alloc(bytes);
    w->capacity = w->buffer ? bytes : 0;
    return w->buffer != NULL;
}

/* The records that belong, behind `out`. */
static char *take_records(struct writer *w, const kl__frame *source, kl__frame *frame, char *out)
{
    const kl__record_header *record = kl__frame_first(source);
    for (uint32_t i = 0; i < source->records; i++, record = kl__record_next(record)) {
        if (!kl__doctor_belongs(w->doctor, record))
            continue;
        memcpy(out, record, record->bytes);
        out += record->bytes;
        frame->sum += record->crc;
        frame->records++;
    }
    return out;
}

/* What the first frame of a segment says, so that it can be read without those before it. */
static char *put_beginning(struct writer *w, kl__frame *frame, char *out)
{
    frame->sum += kl__put_note(out, w->sequence, w->doctor->history_noted, w->doctor->first_noted);
    frame->records++;
    out += sizeof(kl__record_header);
    for (uint32_t number = 1; number <= w->doctor->known_count; number++) {
        kl__record_header *record = (void *)out;
        out += kl__known_write(w->doctor, number, record);
        frame->sum += record->crc;
        frame->records++;
    }
    if (w->doctor->fence_bytes)
        memcpy(out, w->doctor->fences, w->doctor->fence_bytes);
    frame->sum += w->doctor->fence_sum;
    frame->records += w->doctor->fence_count;
    return out + w->doctor->fence_bytes;
}

/* A frame with the records of `source`; NULL: an empty one. */
static kl_rc put_frame(struct writer *w, uint64_t number, const kl__frame *source)
{
    bool is_first = w->at == KL_SEGMENT_HEADER;
    size_t room = KL_FRAME_HEADER + (source ? source->bytes : 0);
    if (is_first)
        room +=
            sizeof(kl__record_header) + (size_t)w->doctor->known_count * KL_KNOWN_BYTES_MAX + w->doctor->fence_bytes;
    if (!reserve(w, room))
        return kl__fail_memory();
    kl__frame *frame = (void *)w->buffer;
    *frame = (kl__frame){.magic = KL_FRAME_MAGIC,
                         .segment = w->its->number,
                         .number = number,
                         .journal = w->doctor->journal,
                         .now_ms = w->now_ms,
                         .sequence = w->sequence};
    char *out = (char *)(frame + 1);
    if (is_first)
        out = put_beginning(w, frame, out);
    if (source)
        out = take_records(w, source, frame, out);
    frame->bytes = (uint32_t)(out - (char *)(frame + 1));
    frame->crc = kl__frame_crc(frame);
    size_t bytes = (size_t)(out - w->buffer);
    int error = kl__vfs_write(w->doctor->vfs, w->file, w->buffer, bytes, w->at);
    if (error)
        return fail_at("written", "journal/repair", error);
    w->at += bytes;
    w->last = number;
    return KL_OK;
}

static kl_rc put_empty(struct writer *w, uint64_t from, uint64_t to)
{
    kl_rc rc = KL_OK;
    for (uint64_t number = from; number <= to && rc == KL_OK; number++)
        rc = put_frame(w, number, NULL);
    return rc;
}

/* Frames lost before this one are filled in here when something unreadable stood in their place, else at the end of the
 * segment before (doctor_plan.c). Of those before the first frame of all, one is enough. */
static kl_rc copy_frame(void *ctx, kl__case *its, const kl__frame *frame, uint64_t offset, uint64_t hole)
{
    (void)offset;
    struct writer *w = ctx;
    kl_rc rc = KL_OK;
    if (w->last && (hole || w->frames))
        rc = put_empty(w, w->last + 1, frame->number - 1);
    else if (!its->before && !w->frames && frame->number > 1)
        rc = put_empty(w, frame->number - 1, frame->number - 1);
    w->now_ms = frame->now_ms;
    w->sequence = frame->sequence;
    w->frames++;
    return rc == KL_OK ? put_frame(w, frame->number, frame) : rc;
}

static kl_rc copy_readable(struct writer *w)
{
    kl__segment_image image = {0};
    uint64_t end, repeated;
    if (!w->its->frames)
        return KL_OK;
    kl_rc rc = kl__case_load(w->doctor, w->its, &image);
    if (rc == KL_OK)
        rc = kl__case_walk(w->its, &image, copy_frame, w, &end, &repeated);
    kl__image_free(&image);
    if (rc == KL_OK && w->frames != w->its->frames)
        return kl__fail(KL_ESYSTEM, "segment %016llx reads differently than a moment ago; see to the disk",
                        (ull)w->its->number);
    return rc;
}

/* The journal's new end: a frame that names the partitions, if there is none here yet, and an orderly close behind the
 * sequence numbers that may have been given. */
static kl_rc put_end(struct writer *w)
{
    kl__doctor *doctor = w->doctor;
    uint64_t close[KL_FRAME_HEADER / 8 + sizeof(kl__record_header) / 8];
    kl__frame *frame = (void *)close;
    kl__record_header *record = (void *)(frame + 1);
    uint64_t last = doctor->last_sequence;
    if (doctor->totals.history_position > last)
        last = doctor->totals.history_position;
    w->now_ms = doctor->last_ms;
    w->sequence = last + KL_SEQUENCES_SKIPPED;
    kl_rc rc = w->at == KL_SEGMENT_HEADER ? put_frame(w, w->last + 1, NULL) : KL_OK;
    if (rc != KL_OK)
        return rc;
    *frame = (kl__frame){.bytes = sizeof *record, .records = 1};
    *record = (kl__record_header){.bytes = sizeof *record, .sequence = ++w->sequence, .type = KL_RECORD_CLOSE};
    record->crc = kl__record_crc(record);
    return put_frame(w, w->last + 1, frame);
}

static kl_rc put_header(struct writer *w)
{
    kl__segment_header header = {.magic = KL_SEGMENT_MAGIC,
                                 .version = KL_FORMAT_VERSION,
                                 .number = w->its->number,
                                 .journal = w->doctor->journal,
                                 .bytes = w->at};
    header.crc = kl__segment_crc(&header);
    int error = kl__vfs_write(w->doctor->vfs, w->file, &header, sizeof header, 0);
    if (!error)
        error = w->doctor->vfs->sync(w->doctor->vfs, w->file);
    return error ? fail_at("written", "journal/repair", error) : KL_OK;
}

static kl_rc put_all(struct writer *w)
{
    kl__case *its = w->its;
    kl_rc rc = copy_readable(w);
    if (rc == KL_OK && its->fill_from)
        rc = put_empty(w, its->fill_from, its->fill_to);
    if (rc == KL_OK && its->has_end)
        rc = put_end(w);
    return rc == KL_OK ? put_header(w) : rc;
}

/* Steps 2 and 3. */
static kl_rc rewrite(kl__doctor *doctor, kl__case *its)
{
    struct writer w = {.doctor = doctor, .its = its, .at = KL_SEGMENT_HEADER, .last = its->before};
    char repair[KL_PATH_BYTES], path[KL_PATH_BYTES];
    join(doctor->journal_dir, "repair", repair);
    kl__case_path(doctor, its->number, path);
    kl_rc rc = begin_file(doctor, repair, &w.file);
    if (rc == KL_OK)
        rc = put_all(&w);
    if (rc == KL_OK)
        rc = sync_directory(doctor, doctor->journal_dir);
    kl__free(w.buffer);
    doctor->vfs->close(doctor->vfs, w.file);
    if (rc != KL_OK) {
        (void)doctor->vfs->unlink(doctor->vfs, repair); /* as in copy_aside */
        return rc;
    }
    int error = doctor->vfs->rename(doctor->vfs, repair, path);
    return error ? fail_at("replaced", path, error) : sync_directory(doctor, doctor->journal_dir);
}

/* ---- The journal ---- */

static kl_rc repair_segment(kl__doctor *doctor, kl__case *its)
{
    char name[KL_NAME_BYTES], copy[KL_NAME_BYTES] = "";
    kl__case_name(its->number, name);
    kl_rc rc = its->is_there ? quarantine_segment(doctor, its, copy) : KL_OK;
    if (rc == KL_OK)
        rc = rewrite(doctor, its);
    if (rc != KL_OK)
        return rc;
    if (!its->is_there)
        kl__doctor_found(doctor, KL_FOUND_MISSING_SEGMENTS, KL_FOUND_REPAIRED, name, -1, "Made anew.");
    else if (its->is_damaged)
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_REPAIRED, name, -1,
                         "Rewritten with what is readable (%llu frames); a copy of the damaged file is %s.",
                         (ull)its->frames, copy);
    else
        kl__doctor_found(doctor, KL_FOUND_LOST_END, KL_FOUND_REPAIRED, name, -1,
                         "Closed behind what may be lost; a copy of the file as it was is %s.", copy);
    return KL_OK;
}

static kl_rc take_out(kl__doctor *doctor, const kl__case *its)
{
    char name[KL_NAME_BYTES], copy[KL_NAME_BYTES], path[KL_PATH_BYTES];
    kl__case_name(its->number, name);
    kl__case_path(doctor, its->number, path);
    kl_rc rc = quarantine_segment(doctor, its, copy);
    if (rc == KL_OK)
        rc = remove_file(doctor, path);
    if (rc == KL_OK)
        rc = sync_directory(doctor, doctor->journal_dir);
    if (rc == KL_OK)
        kl__doctor_found(doctor, KL_FOUND_BAD_HEADER, KL_FOUND_REPAIRED, name, -1,
                         "Taken out: nothing in it is readable, and it is no part of the journal. It is in %s.", copy);
    return rc;
}

static kl_rc make_journal(kl__doctor *doctor)
{
    int error = doctor->vfs->mkdir(doctor->vfs, doctor->journal_dir);
    if (error && error != -EEXIST)
        return fail_at("made", doctor->journal_dir, error);
    return sync_directory(doctor, doctor->path);
}

/* The journal may end earlier now than it did; the store writes down where when it is opened. */
static kl_rc forget_reach(kl__doctor *doctor)
{
    char path[KL_PATH_BYTES];
    join(doctor->path, "reached", path);
    kl_rc rc = remove_file(doctor, path);
    return rc == KL_OK ? sync_directory(doctor, doctor->path) : rc;
}

kl_rc kl__doctor_repair_journal(kl__doctor *doctor)
{
    char leftover[KL_PATH_BYTES];
    kl_rc rc = doctor->has_journal ? KL_OK : make_journal(doctor);
    if (!doctor->journal)
        doctor->journal = kl__random_seed() | 1;
    join(doctor->journal_dir, "repair", leftover);
    if (rc == KL_OK)
        rc = remove_file(doctor, leftover);
    for (size_t i = 0; i < doctor->plan_count && rc == KL_OK; i++)
        if (doctor->plan[i].action == KL_ACT_REWRITE)
            rc = repair_segment(doctor, &doctor->plan[i]);
    for (size_t i = 0; i < doctor->case_count && rc == KL_OK; i++)
        if (doctor->cases[i].action == KL_ACT_REMOVE)
            rc = take_out(doctor, &doctor->cases[i]);
    if (rc == KL_OK && doctor->has_reached)
        rc = forget_reach(doctor);
    return rc;
}

/* ---- History ---- */

static const char *const history_endings[] = {"", "-wal", "-shm", "-journal"};
enum { HISTORY_FILES = sizeof history_endings / sizeof history_endings[0] };

static void name_history(kl__doctor *doctor, int ending, char ret_path[KL_PATH_BYTES])
{
    char name[KL_NAME_BYTES];
    snprintf(name, sizeof name, "history.db%s", history_endings[ending]);
    join(doctor->path, name, ret_path);
}

/* A number for which none of the names is taken, but by copies of the same. */
static void name_aside(kl__doctor *doctor, char ret_names[HISTORY_FILES][KL_NAME_BYTES])
{
    bool is_taken = true;
    for (int n = 1; is_taken && n <= COPIES_MAX; n++) {
        is_taken = false;
        for (int i = 0; i < HISTORY_FILES; i++) {
            char from[KL_PATH_BYTES], to[KL_PATH_BYTES];
            snprintf(ret_names[i], KL_NAME_BYTES, "quarantine/history-%d.db%s", n, history_endings[i]);
            join(doctor->path, ret_names[i], to);
            name_history(doctor, i, from);
            is_taken |= is_there(doctor, to) && !is_copied(doctor, from, to);
        }
    }
}

/* Steps 6 and, for what was copied before, 7. Where a file cannot be renamed to another directory, it is copied. */
static kl_rc move_file(kl__doctor *doctor, const char *from, const char *to)
{
    int error = doctor->vfs->rename(doctor->vfs, from, to);
    if (error && error != -EXDEV)
        return fail_at("moved", from, error);
    kl_rc rc = error ? copy_aside(doctor, from, to) : sync_directory(doctor, doctor->quarantine_dir);
    if (rc == KL_OK && error)
        rc = remove_file(doctor, from);
    return rc == KL_OK ? sync_directory(doctor, doctor->path) : rc;
}

static kl_rc put_history_aside(kl__doctor *doctor)
{
    char names[HISTORY_FILES][KL_NAME_BYTES], from[HISTORY_FILES][KL_PATH_BYTES], to[HISTORY_FILES][KL_PATH_BYTES];
    kl_rc rc = make_quarantine(doctor);
    if (rc != KL_OK)
        return rc;
    name_aside(doctor, names);
    for (int i = 0; i < HISTORY_FILES; i++) {
        name_history(doctor, i, from[i]);
        join(doctor->path, names[i], to[i]);
        bool holds_data = strcmp(history_endings[i], "-wal") == 0 || strcmp(history_endings[i], "-journal") == 0;
        if (rc == KL_OK && holds_data && is_there(doctor, from[i]))
            rc = copy_aside(doctor, from[i], to[i]);
    }
    if (rc == KL_OK && doctor->has_history)
        rc = move_file(doctor, from[0], to[0]);
    for (int i = 1; i < HISTORY_FILES && rc == KL_OK; i++)
        rc = remove_file(doctor, from[i]);
    if (rc == KL_OK)
        rc = sync_directory(doctor, doctor->path);
    doctor->totals.quarantined++;
    if (rc == KL_OK)
        kl__doctor_found(doctor, KL_FOUND_HISTORY_DAMAGED, KL_FOUND_REPAIRED, "history.db", -1,
                         "The old file is now %s.", names[0]);
    return rc;
}

static void name_new(kl__doctor *doctor, const char *name, int ending, char ret_path[KL_PATH_BYTES])
{
    char with_ending[KL_NAME_BYTES];
    snprintf(with_ending, sizeof with_ending, "%s%s", name, history_endings[ending]);
    join(doctor->path, with_ending, ret_path);
}

kl_rc kl__doctor_drop_leftovers(kl__doctor *doctor)
{
    kl_rc rc = KL_OK;
    for (int i = 0; i < 2 * HISTORY_FILES && rc == KL_OK; i++) {
        char path[KL_PATH_BYTES];
        name_new(doctor, i % 2 ? "history-repair.db" : "history-repaired.db", i / 2, path);
        if (is_there(doctor, path))
            rc = remove_file(doctor, path);
    }
    return rc;
}

/* Errors go by themselves, for they stand on other pages than their tasks. */
static void tell_lost_errors(kl__doctor *doctor, const kl__history_saved *saved)
{
    doctor->totals.lacking_errors = saved->lacking_errors;
    doctor->totals.lost_errors = saved->lost_errors;
    doctor->totals.may_lack_errors = saved->may_lack_errors;
    if (saved->lacking_errors)
        kl__doctor_found(
            doctor, KL_FOUND_LOST_ERRORS, KL_FOUND_REPAIRED, "history.db", -1,
            "Of the finished tasks that can be read, %llu %s lost %llu error%s. Where that may be the last "
            "one, its place says so. Those that the journal still has are added when the store is opened.",
            (ull)saved->lacking_errors, saved->lacking_errors == 1 ? "has" : "have", (ull)saved->lost_errors,
            saved->lost_errors == 1 ? "" : "s");
    if (saved->may_lack_errors)
        kl__doctor_found(
            doctor, KL_FOUND_LOST_ERRORS, KL_FOUND_REPAIRED, "history.db", -1,
            "Tasks that are not finished may have lost errors of their earlier attempts: how many cannot be "
            "told.");
}

static void tell_saved(kl__doctor *doctor, uint64_t saved)
{
    kl__doctor_totals *totals = &doctor->totals;
    char lost[64] = "how many are lost cannot be told";
    if (doctor->history_tasks_known && totals->history_tasks >= saved)
        snprintf(lost, sizeof lost, "%llu are lost to it",
                 (ull)(totals->lost_finished = totals->history_tasks - saved));
    else
        totals->may_lack_finished = true;
    kl__doctor_found(
        doctor, KL_FOUND_NO_HISTORY, KL_FOUND_REPAIRED, "history.db", -1,
        "Made anew, with the %llu finished tasks that can be read; %s. Those that the journal still has are "
        "added when the store is opened.",
        (ull)saved, lost);
}

static kl_rc fill_history(kl__doctor *doctor, kl__history *history, kl__history_saved *ret_saved)
{
    char old[KL_PATH_BYTES];
    name_history(doctor, 0, old);
    *ret_saved = (kl__history_saved){0};
    kl_rc rc = KL_OK;
    if (doctor->has_history)
        rc = kl__history_salvage(old, doctor->vfs->sqlite_vfs, doctor->has_wal, history, ret_saved);
    if (rc == KL_OK && doctor->history_noted > kl__history_commits(history))
        rc = kl__history_set_commits(history, doctor->history_noted);
    for (uint32_t number = 1; number <= doctor->known_count && rc == KL_OK; number++)
        rc = kl__history_name(history, number, doctor->known[number].name);
    return rc;
}

/* Step 4. */
static kl_rc make_history(kl__doctor *doctor, const char *repaired)
{
    char path[KL_PATH_BYTES];
    kl__history_saved saved = {0};
    kl__history *history = NULL;
    kl_rc rc = kl__doctor_drop_leftovers(doctor);
    name_new(doctor, "history-repair.db", 0, path);
    if (rc == KL_OK)
        rc = kl__history_open(path, doctor->vfs->sqlite_vfs, 0, 0, &history);
    if (rc == KL_OK)
        rc = fill_history(doctor, history, &saved);
    kl__history_close(history);
    if (rc != KL_OK) {
        (void)kl__doctor_drop_leftovers(doctor); /* as in copy_aside */
        return rc;
    }
    rc = sync_directory(doctor, doctor->path);
    int error = rc == KL_OK ? doctor->vfs->rename(doctor->vfs, path, repaired) : 0;
    if (error)
        rc = fail_at("renamed", path, error);
    if (rc == KL_OK)
        rc = sync_directory(doctor, doctor->path);
    if (rc != KL_OK)
        return rc;
    tell_saved(doctor, saved.tasks);
    tell_lost_errors(doctor, &saved);
    return KL_OK;
}

kl_rc kl__doctor_repair_history(kl__doctor *doctor)
{
    char repaired[KL_PATH_BYTES], path[KL_PATH_BYTES];
    bool has_stray = !doctor->has_history && (doctor->has_wal || doctor->has_shm || doctor->has_rollback);
    name_new(doctor, "history-repaired.db", 0, repaired);
    name_history(doctor, 0, path);
    kl_rc rc = doctor->has_history || !doctor->has_repaired_history ? make_history(doctor, repaired) : KL_OK;
    if (rc == KL_OK && (doctor->history_is_damaged || has_stray))
        rc = put_history_aside(doctor);
    if (rc != KL_OK)
        return rc;
    int error = doctor->vfs->rename(doctor->vfs, repaired, path);
    return error ? fail_at("renamed", repaired, error) : sync_directory(doctor, doctor->path);
}
