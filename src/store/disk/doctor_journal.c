/* doctor_journal.c - reads the journal for the doctor.
 *
 * Two passes. The first finds the readable frames of every segment, by number and not by place: behind a hole the next
 * valid frame is searched, and numbers tell what is missing in between. It also gathers the partitions, which every
 * segment names at its beginning, so that one whose own record is lost is known from elsewhere. The second pass applies
 * the records to a state, as opening the store would.
 *
 * A segment whose header is unreadable is read all the same: its frames name the segment and the journal too. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/disk/doctor_inside.h"
#include "store/disk/journal.h"
#include "store/disk/recover.h"

enum { BLOCK = 4096 };

#define MEANING                                                                                                        \
    "tasks appended then may be missing, tasks settled then may run again, and records and fences may be older than "  \
    "they were"

typedef unsigned long long ull;

/* ---- Segments ---- */

/* Piece by piece, with zeros for what the disk does not give. */
static int read_around(kl__doctor *doctor, kl__file *file, kl__segment_image *image, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += BLOCK) {
        size_t wanted = size - at < BLOCK ? (size_t)(size - at) : BLOCK, got = 0;
        int error = kl__vfs_read(doctor->vfs, file, image->bytes + at, wanted, at, &got);
        if (error && error != -EIO)
            return error;
        memset(image->bytes + at + got, 0, wanted - got);
    }
    image->size = size;
    if (size >= KL_SEGMENT_HEADER)
        memcpy(&image->header, image->bytes, KL_SEGMENT_HEADER);
    return 0;
}

static kl_rc load_file(kl__doctor *doctor, kl__case *its, kl__segment_image *image)
{
    char path[KL_PATH_BYTES];
    kl__file *file = NULL;
    uint64_t size = 0;
    kl__case_path(doctor, its->number, path);
    int error = doctor->vfs->open(doctor->vfs, path, KL_OPEN_READ, &file);
    if (!error)
        error = doctor->vfs->size(doctor->vfs, file, &size);
    kl_rc rc = error ? KL_OK : kl__image_load(doctor->vfs, file, image);
    if (rc == KL_ESYSTEM && image->capacity >= size) {
        its->disk_fails = true;
        error = read_around(doctor, file, image, size);
        rc = KL_OK;
    }
    doctor->vfs->close(doctor->vfs, file);
    if (error)
        return kl__fail(KL_ESYSTEM, "%s could not be read: %s", path, strerror(-error));
    its->bytes = size;
    return rc;
}

/* A frame's header that is right by itself, whether or not its records are. */
static const kl__frame *find_promise(const kl__segment_image *image, uint64_t number, uint64_t offset)
{
    if (offset % 8 != 0 || offset + KL_FRAME_HEADER > image->size)
        return NULL;
    const kl__frame *frame = (const void *)(image->bytes + offset);
    bool is_right = frame->magic == KL_FRAME_MAGIC && frame->segment == number && frame->crc == kl__frame_crc(frame);
    return is_right ? frame : NULL;
}

/* The journal's number as a frame of this segment says it; 0: none does. */
static uint64_t guess_journal(const kl__segment_image *image, uint64_t number)
{
    for (uint64_t at = 0; at + KL_FRAME_HEADER <= image->size; at += 8) {
        const kl__frame *frame = find_promise(image, number, at);
        if (frame)
            return frame->journal;
    }
    return 0;
}

kl_rc kl__case_load(kl__doctor *doctor, kl__case *its, kl__segment_image *image)
{
    kl_rc rc = load_file(doctor, its, image);
    if (rc != KL_OK)
        return rc;
    if (!doctor->journal)
        doctor->journal = guess_journal(image, its->number);
    if (kl__image_header(image, its->number) == KL_HEADER_BAD)
        image->header =
            (kl__segment_header){.number = its->number, .journal = doctor->journal, .bytes = KL_SEGMENT_HEADER};
    return KL_OK;
}

kl_rc kl__case_walk(kl__case *its, const kl__segment_image *image, kl__frame_fn *visit, void *ctx, uint64_t *ret_end,
                    uint64_t *ret_repeated)
{
    uint64_t at = KL_SEGMENT_HEADER, hole = 0, last = its->before;
    *ret_end = KL_SEGMENT_HEADER;
    *ret_repeated = 0;
    for (;;) {
        uint64_t found = at;
        const kl__frame *frame = kl__image_frame(image, at);
        if (!frame)
            frame = kl__image_search(image, at, &found);
        if (!frame)
            return KL_OK;
        hole += found - at;
        at = found + KL_FRAME_HEADER + frame->bytes;
        if (last && frame->number <= last) {
            ++*ret_repeated;
            hole += at - found;
            continue;
        }
        kl_rc rc = visit(ctx, its, frame, found, hole);
        if (rc != KL_OK)
            return rc;
        last = frame->number;
        hole = 0;
        *ret_end = at;
    }
}

/* ---- Partitions ---- */

static const char *name_in(const kl__partition_record *record) { return (const char *)(record + 1); }

static bool is_same(const kl__known *known, const kl__partition_record *record)
{
    return known->is_known && known->shard_prefix_len == record->header.small[0] &&
           strcmp(known->name, name_in(record)) == 0;
}

static void note_partition(kl__doctor *doctor, const kl__partition_record *record)
{
    if (record->number < 1 || record->number > KL_DISK_PARTITIONS_MAX || doctor->known[record->number].is_known)
        return;
    kl__known *known = &doctor->known[record->number];
    known->is_known = true;
    known->shard_prefix_len = record->header.small[0];
    snprintf(known->name, sizeof known->name, "%s", name_in(record));
    if (record->number > doctor->known_count)
        doctor->known_count = record->number;
    if (record->number > doctor->announced)
        doctor->announced = record->number;
}

bool kl__doctor_belongs(const kl__doctor *doctor, const kl__record_header *record)
{
    const kl__partition_record *named = (const void *)record;
    if (record->type == KL_RECORD_PARTITION)
        return named->number >= 1 && named->number <= KL_DISK_PARTITIONS_MAX &&
               is_same(&doctor->known[named->number], named);
    if (record->type != KL_RECORD_ENTRY && record->type != KL_RECORD_SETTLE && record->type != KL_RECORD_FENCE)
        return true;
    if (record->partition < 1 || record->partition > KL_DISK_PARTITIONS_MAX)
        return false;
    const kl__known *known = &doctor->known[record->partition];
    return known->is_known && record->shard < 1u << (4 * known->shard_prefix_len);
}

size_t kl__known_write(const kl__doctor *doctor, uint32_t number, kl__record_header *out)
{
    const kl__known *known = &doctor->known[number];
    uint64_t sum = 0;
    char *end = kl__put_partition((char *)out, 0, known->name, known->shard_prefix_len, number, &sum);
    return (size_t)(end - (char *)out);
}

/* ---- First pass: what is readable ---- */

struct survey {
    kl__doctor *doctor;
    const kl__segment_image *image;
    kl__case *previous; /* the segment before, when no number is missing in between */
    uint64_t before;    /* the last frame so far */
    kl__case *torn;     /* at the end of this one stands a frame's header without the records */
    uint64_t torn_records;
};

/* "frame 7 is", or "frames 7 to 9 are". */
static const char *name_frames(uint64_t from, uint64_t to, char text[64])
{
    if (from == to)
        snprintf(text, 64, "frame %llu is", (ull)from);
    else
        snprintf(text, 64, "frames %llu to %llu are", (ull)from, (ull)to);
    return text;
}

/* ", which held 3 records", of the first of some lost frames. */
static void name_promise(uint64_t records, bool is_one, char text[80])
{
    snprintf(text, 80, ", %s held %llu record%s", is_one ? "which" : "the first of which", (ull)records,
             records == 1 ? "" : "s");
}

/* Bytes that cannot be read, before a frame that can. */
static void tell_hole(struct survey *survey, const kl__case *its, const kl__frame *frame, uint64_t offset,
                      uint64_t hole)
{
    kl__doctor *doctor = survey->doctor;
    char name[KL_NAME_BYTES], frames[64], promised[80] = "";
    const kl__frame *promise = find_promise(survey->image, its->number, offset - hole);
    kl__case_name(its->number, name);
    if (promise)
        name_promise(promise->records, survey->before && frame->number == survey->before + 2, promised);
    if (!survey->before) {
        doctor->totals.lost_frames++;
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE, name, (int64_t)(offset - hole),
                         "%llu bytes before frame %llu cannot be read: one frame or more is lost%s; %s.", (ull)hole,
                         (ull)frame->number, promised, MEANING);
    } else if (frame->number == survey->before + 1) {
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE, name, (int64_t)(offset - hole),
                         "%llu bytes stand where none should, between frames %llu and %llu; no frame is lost.",
                         (ull)hole, (ull)survey->before, (ull)frame->number);
    } else {
        doctor->totals.lost_frames += frame->number - 1 - survey->before;
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE, name, (int64_t)(offset - hole),
                         "%llu bytes cannot be read: %s lost%s; %s.", (ull)hole,
                         name_frames(survey->before + 1, frame->number - 1, frames), promised, MEANING);
    }
}

/* Frames that are missing although nothing unreadable stands in their place. */
static void tell_gap(struct survey *survey, kl__case *its, const kl__frame *frame)
{
    kl__doctor *doctor = survey->doctor;
    const kl__case *at = survey->previous ? survey->previous : its;
    char name[KL_NAME_BYTES], frames[64], promised[80] = "";
    kl__case_name(at->number, name);
    if (survey->torn && survey->torn == survey->previous)
        name_promise(survey->torn_records, frame->number == survey->before + 2, promised);
    name_frames(survey->before + 1, frame->number - 1, frames);
    doctor->totals.lost_frames += frame->number - 1 - survey->before;
    if (survey->previous)
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE, name, (int64_t)at->end,
                         "Nothing can be read from here on, and %s lost that should follow%s; %s.", frames, promised,
                         MEANING);
    else
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE, name, -1, "Before this segment, %s lost.",
                         frames);
}

/* Segments come into use one after the other, and go so: before the first frame there is none without, but those that
 * an earlier repair has made, of which the header is all. Opening judges so, too (find_emptied in recover.c). */
static void tell_emptied(kl__doctor *doctor, const kl__case *first)
{
    for (kl__case *its = doctor->cases; its < first; its++) {
        if (its->is_usable && !its->is_damaged && its->bytes == KL_SEGMENT_HEADER)
            continue;
        its->is_usable = false; /* one that was cut off had a header */
        if (its->is_damaged)
            continue;
        char name[KL_NAME_BYTES];
        kl__case_name(its->number, name);
        its->is_damaged = true;
        doctor->totals.lost_frames++;
        kl__doctor_found(doctor, KL_FOUND_LOST_FRAMES, KL_FOUND_DAMAGE, name, KL_SEGMENT_HEADER,
                         "Nothing in this segment can be read, and there are frames in a later one: all of its own are "
                         "lost; %s.",
                         MEANING);
    }
}

static kl_rc survey_frame(void *ctx, kl__case *its, const kl__frame *frame, uint64_t offset, uint64_t hole)
{
    struct survey *survey = ctx;
    kl__doctor *doctor = survey->doctor;
    bool has_gap = survey->before && frame->number > survey->before + 1;
    if (!survey->before)
        tell_emptied(doctor, its);
    if (hole) {
        its->is_damaged = true;
        tell_hole(survey, its, frame, offset, hole);
    } else if (has_gap) {
        tell_gap(survey, its, frame);
        if (its->frames) {
            its->is_damaged = true;
        } else {
            its->lost_from = survey->before + 1;
            its->lost_to = frame->number - 1;
            if (survey->previous)
                survey->previous->is_damaged = true;
        }
    }
    const kl__record_header *record = kl__frame_first(frame);
    for (uint32_t i = 0; i < frame->records; i++, record = kl__record_next(record))
        if (record->type == KL_RECORD_PARTITION)
            note_partition(doctor, (const void *)record);
    its->frames++;
    its->last = survey->before = frame->number;
    doctor->last_frame = frame->number;
    if (frame->sequence + frame->records > doctor->last_sequence + 1)
        doctor->last_sequence = frame->sequence + frame->records - 1;
    if (frame->now_ms > doctor->last_ms)
        doctor->last_ms = frame->now_ms;
    doctor->totals.frames++;
    doctor->totals.dead_bytes += KL_FRAME_HEADER + frame->bytes;
    doctor->totals.was_closed = frame->records == 1 && kl__frame_first(frame)->type == KL_RECORD_CLOSE;
    survey->torn = NULL;
    return KL_OK;
}

/* False: there is nothing in it to be read. */
static bool survey_header(kl__doctor *doctor, kl__case *its, const kl__segment_image *image)
{
    char name[KL_NAME_BYTES];
    kl__segment_header raw = {0};
    kl__case_name(its->number, name);
    if (image->size >= sizeof raw)
        memcpy(&raw, image->bytes, sizeof raw);
    bool is_header = memcmp(raw.magic, KL_SEGMENT_MAGIC, sizeof raw.magic) == 0 && raw.crc == kl__segment_crc(&raw);
    if (is_header && raw.version > KL_FORMAT_VERSION) {
        doctor->is_newer = true;
        kl__doctor_found(doctor, KL_FOUND_NEWER, KL_FOUND_DAMAGE, name, 0,
                         "The segment is of format %u, and this version of Keyline knows formats up to %u: use the one "
                         "that wrote it.",
                         raw.version, KL_FORMAT_VERSION);
        return false;
    }
    if (is_header && raw.journal != doctor->journal) {
        kl__doctor_found(
            doctor, KL_FOUND_FOREIGN_SEGMENT, KL_FOUND_DAMAGE, name, 0,
            "The segment belongs to another journal (%016llx, this one is %016llx); nothing in it is used.",
            (ull)raw.journal, (ull)doctor->journal);
    } else if (is_header && raw.number != its->number) {
        kl__doctor_found(doctor, KL_FOUND_FOREIGN_SEGMENT, KL_FOUND_DAMAGE, name, 0,
                         "By its header this is segment %016llx under another name; nothing in it is used.",
                         (ull)raw.number);
    } else if (is_header && raw.version != 0 && image->size < raw.bytes) {
        its->is_usable = its->is_damaged = its->is_cut = true;
        kl__doctor_found(doctor, KL_FOUND_CUT_OFF, KL_FOUND_DAMAGE, name, (int64_t)image->size,
                         "The file ends here and should have %llu bytes: its end was cut off.", (ull)raw.bytes);
        return true;
    } else if (is_header && raw.version != 0) {
        its->is_usable = true;
        return true;
    } else {
        its->is_damaged = true;
        kl__doctor_found(doctor, KL_FOUND_BAD_HEADER, KL_FOUND_DAMAGE, name, 0, "The segment's header is unreadable.");
        return true;
    }
    its->is_damaged = true;
    return false;
}

/* A write that was under way shows by a frame header without its records. */
static void survey_end(struct survey *survey, kl__case *its)
{
    const kl__frame *promise = find_promise(survey->image, its->number, its->end);
    if (promise && promise->journal == survey->doctor->journal && promise->number == survey->before + 1) {
        survey->torn = its;
        survey->torn_records = promise->records;
    } else if (its->is_cut && its->end + KL_FRAME_HEADER <= survey->image->size) {
        its->is_cut = false; /* only of what had not been used yet */
    }
}

static kl_rc survey_segment(struct survey *survey, kl__case *its, kl__segment_image *image)
{
    kl__doctor *doctor = survey->doctor;
    uint64_t repeated;
    char name[KL_NAME_BYTES];
    its->before = its->last = survey->before;
    its->end = KL_SEGMENT_HEADER;
    kl_rc rc = kl__case_load(doctor, its, image);
    if (rc != KL_OK)
        return rc;
    survey->image = image;
    kl__case_name(its->number, name);
    doctor->totals.segments++;
    doctor->totals.segment_bytes += its->bytes;
    if (its->disk_fails)
        kl__doctor_found(doctor, KL_FOUND_UNREADABLE_DISK, KL_FOUND_DAMAGE, name, -1,
                         "The disk fails to read part of this file. Copy the data directory to a healthy disk, with a "
                         "tool that passes over what cannot be read, and examine the copy.");
    if (!survey_header(doctor, its, image))
        return KL_OK;
    rc = kl__case_walk(its, image, survey_frame, survey, &its->end, &repeated);
    if (rc != KL_OK)
        return rc;
    if (repeated) {
        its->is_damaged = true;
        kl__doctor_found(doctor, KL_FOUND_REPEATED_FRAMES, KL_FOUND_DAMAGE, name, -1,
                         "%llu frames in this segment bear numbers that were given before; they are not used.",
                         (ull)repeated);
    }
    its->is_usable |= its->frames > 0;
    survey_end(survey, its);
    return KL_OK;
}

static void tell_missing(kl__doctor *doctor, uint64_t from, uint64_t to)
{
    char name[KL_NAME_BYTES];
    kl__case_name(from, name);
    if (from == to)
        kl__doctor_found(doctor, KL_FOUND_MISSING_SEGMENTS, KL_FOUND_DAMAGE, name, -1, "The segment is missing; %s.",
                         MEANING);
    else
        kl__doctor_found(doctor, KL_FOUND_MISSING_SEGMENTS, KL_FOUND_DAMAGE, name, -1,
                         "%llu segments are missing, up to %016llx; %s.", (ull)to - from + 1, (ull)to, MEANING);
}

static void tell_end(struct survey *survey)
{
    kl__doctor *doctor = survey->doctor;
    char name[KL_NAME_BYTES];
    if (survey->torn && !survey->torn->is_cut) {
        doctor->totals.is_torn = true;
        kl__case_name(survey->torn->number, name);
        kl__doctor_found(
            doctor, KL_FOUND_TORN_WRITE, KL_FOUND_NOTE, name, (int64_t)survey->torn->end,
            "The last write, of %llu record%s, is incomplete: power was lost or the process ended while it "
            "was made. It was not acknowledged, and is passed over.",
            (ull)survey->torn_records, survey->torn_records == 1 ? "" : "s");
    }
    if (doctor->totals.frames && !doctor->totals.was_closed)
        kl__doctor_found(doctor, KL_FOUND_NOT_CLOSED, KL_FOUND_NOTE, "", -1,
                         "The store was not closed in order; that is harmless. The journal is good up to frame %llu.",
                         (ull)doctor->last_frame);
}

static kl_rc survey_all(kl__doctor *doctor)
{
    struct survey survey = {.doctor = doctor};
    kl__segment_image image = {0};
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < doctor->case_count && rc == KL_OK; i++) {
        kl__case *its = &doctor->cases[i];
        bool is_next = i && its->number == its[-1].number + 1;
        survey.previous = is_next ? its - 1 : NULL;
        if (i && !is_next)
            tell_missing(doctor, its[-1].number + 1, its->number - 1);
        rc = survey_segment(&survey, its, &image);
    }
    kl__image_free(&image);
    if (rc == KL_OK)
        tell_end(&survey);
    return rc;
}

/* ---- Second pass: what it adds up to ---- */

struct addition {
    kl__doctor *doctor;
    kl__state state;
    uint64_t segment;   /* as the state counts them: without gaps */
    uint32_t announced; /* partitions so far, as opening sees them */
    uint64_t left_out, unannounced, first_offset;
    uint16_t first_partition;
};

/* Would opening accept the record here? */
static bool is_announced(struct addition *addition, const kl__record_header *record)
{
    const kl__partition_record *named = (const void *)record;
    if (record->type == KL_RECORD_PARTITION) {
        if (named->number == addition->announced + 1)
            addition->announced++;
        return named->number <= addition->announced;
    }
    if (record->type != KL_RECORD_ENTRY && record->type != KL_RECORD_SETTLE && record->type != KL_RECORD_FENCE)
        return true;
    return record->partition <= addition->announced;
}

static kl_rc add_record(struct addition *addition, const kl__record_header *record, kl__where where, int64_t now_ms)
{
    kl__doctor *doctor = addition->doctor;
    doctor->totals.records[record->type]++;
    bool belongs = kl__doctor_belongs(doctor, record);
    if (belongs && is_announced(addition, record))
        return kl__state_apply(&addition->state, record, where, now_ms);
    if (addition->left_out + addition->unannounced == 0) {
        addition->first_offset = where.offset;
        addition->first_partition = record->partition;
    }
    if (!belongs) {
        addition->left_out++;
        return KL_OK;
    }
    addition->unannounced++;
    return kl__state_apply(&addition->state, record, where, now_ms);
}

static kl_rc add_frame(void *ctx, kl__case *its, const kl__frame *frame, uint64_t offset, uint64_t hole)
{
    (void)its, (void)hole;
    struct addition *addition = ctx;
    const kl__record_header *record = kl__frame_first(frame);
    for (uint32_t i = 0; i < frame->records; i++, record = kl__record_next(record)) {
        kl__where where = {addition->segment, offset + (uint64_t)((const char *)record - (const char *)frame)};
        if (add_record(addition, record, where, frame->now_ms) != KL_OK)
            return kl__fail_memory();
    }
    return KL_OK;
}

static void tell_records(struct addition *addition, kl__case *its)
{
    kl__doctor *doctor = addition->doctor;
    char name[KL_NAME_BYTES];
    kl__case_name(its->number, name);
    if (addition->left_out)
        kl__doctor_found(doctor, KL_FOUND_FOREIGN_RECORDS, KL_FOUND_DAMAGE, name, (int64_t)addition->first_offset,
                         "%llu records, the first one here, do not belong in this journal: nothing names their "
                         "partition (the first is of partition %u) or it has no such shard. They cannot be used.",
                         (ull)addition->left_out, addition->first_partition);
    if (addition->unannounced)
        kl__doctor_found(doctor, KL_FOUND_LOST_PARTITION, KL_FOUND_DAMAGE, name, (int64_t)addition->first_offset,
                         "%llu records name partitions that nothing before them names; those are known from "
                         "elsewhere in the journal, and no task of theirs is lost.",
                         (ull)addition->unannounced);
    if (addition->left_out + addition->unannounced == 0)
        return;
    its->is_damaged = true;
    addition->announced = doctor->known_count; /* a repair names them all at its beginning */
    doctor->totals.left_out_records += addition->left_out;
    addition->left_out = addition->unannounced = 0;
}

/* Everything that is known of partitions comes first, whether or not opening would know it by then. */
static kl_rc open_state(struct addition *addition)
{
    kl__doctor *doctor = addition->doctor;
    uint64_t record[KL_KNOWN_BYTES_MAX / 8];
    kl_rc rc = kl__state_open(&addition->state);
    addition->state.kept_sequence = doctor->totals.history_position;
    for (uint32_t number = 1; number <= doctor->known_count && rc == KL_OK; number++) {
        kl__known_write(doctor, number, (void *)record);
        if (kl__state_apply(&addition->state, (void *)record, (kl__where){1, 0}, 0) != KL_OK)
            rc = kl__fail_memory();
    }
    return rc;
}

static void close_state(kl__state *state)
{
    for (size_t i = 0; i < state->segment_count; i++)
        kl__segment_free(state->segments[i]);
    kl__state_close(state);
}

static kl_rc add_segment(struct addition *addition, kl__case *its, kl__segment_image *image)
{
    uint64_t end, repeated;
    kl_rc rc = its->frames ? kl__case_load(addition->doctor, its, image) : KL_OK;
    if (rc != KL_OK)
        return rc;
    kl__segment *segment = kl__alloc_zeroed(1, sizeof *segment);
    if (!segment)
        return kl__fail_memory();
    segment->number = ++addition->segment;
    segment->bytes = its->frames ? image->size : 0;
    if (!kl__state_add_segment(&addition->state, segment)) {
        kl__segment_free(segment);
        return kl__fail_memory();
    }
    if (!its->frames)
        return KL_OK;
    rc = kl__case_walk(its, image, add_frame, addition, &end, &repeated);
    if (rc == KL_OK)
        tell_records(addition, its);
    return rc;
}

static void take_totals(struct addition *addition)
{
    kl__doctor_totals *totals = &addition->doctor->totals;
    totals->live_bytes = addition->state.live;
    totals->dead_bytes -= addition->state.live;
    totals->waiting = kl__stubs_count(addition->state.stubs);
    totals->settled = addition->state.kept_count;
    totals->values = addition->state.records.count;
    addition->doctor->history_noted = addition->state.history_noted;
    addition->doctor->first_noted = addition->doctor->totals.frames ? addition->state.first_noted : 1;
    totals->last_frame = addition->doctor->last_frame;
    totals->last_sequence = addition->doctor->last_sequence;
    for (uint32_t number = 1; number <= addition->doctor->known_count; number++)
        totals->partitions += addition->doctor->known[number].is_known;
}

/* Fences only rise and seals stay, so the last of them can be named anywhere. */
static kl_rc take_fences(struct addition *addition)
{
    kl__doctor *doctor = addition->doctor;
    const kl__state *state = &addition->state;
    size_t bytes = (size_t)state->fenced * sizeof(kl__record_header);
    doctor->fences = bytes ? kl__alloc(bytes) : NULL;
    if (bytes && !doctor->fences)
        return kl__fail_memory();
    char *at = doctor->fences;
    for (uint32_t number = 1; bytes && number <= state->partition_count; number++)
        at = kl__put_fences(state->partitions[number], at, &doctor->fence_sum);
    doctor->fence_bytes = bytes;
    doctor->fence_count = state->fenced;
    return KL_OK;
}

/* A segment is dropped only after it was noted that it is not needed. */
static void tell_first(kl__doctor *doctor)
{
    if (doctor->case_count && doctor->first_noted && doctor->cases[0].number > doctor->first_noted)
        tell_missing(doctor, doctor->first_noted, doctor->cases[0].number - 1);
}

/* What was written down to be on the disk does not go by itself: opening judges so, too (check_end in disk.c). */
static void tell_reach(kl__doctor *doctor)
{
    uint64_t last = doctor->case_count ? doctor->cases[doctor->case_count - 1].number : 0;
    int error = last ? kl__reach_read(doctor->vfs, doctor->path, doctor->journal, &doctor->reached) : 0;
    if (error)
        kl__doctor_found(doctor, KL_FOUND_UNREADABLE_DISK, KL_FOUND_WARNING, "reached", -1,
                         "The file cannot be read (%s), so it cannot be told whether the journal has lost its end.",
                         strerror(-error));
    if (doctor->reached.frame <= doctor->last_frame)
        return;
    doctor->wants_end = true;
    if (doctor->reached.segment > last)
        tell_missing(doctor, last + 1, doctor->reached.segment);
    kl__doctor_found(doctor, KL_FOUND_LOST_END, KL_FOUND_DAMAGE, "journal", -1,
                     "The journal had come to frame %llu at least, and is readable up to frame %llu: its end is lost, "
                     "%llu frames or more; %s.",
                     (ull)doctor->reached.frame, (ull)doctor->last_frame,
                     (ull)(doctor->reached.frame - doctor->last_frame), MEANING);
}

struct waiting {
    const kl__stubs *stubs;
    uint32_t next;
};

static bool next_waiting(void *ctx, uint32_t *ret_partition, kl_task_id *ret_id)
{
    struct waiting *waiting = ctx;
    const kl__slot *slot = kl__stubs_next(waiting->stubs, &waiting->next, UINT32_MAX);
    if (!slot)
        return false;
    *ret_partition = slot->partition;
    *ret_id = slot->id;
    return true;
}

/* What was settled in a part that is lost waits again, and history may know of it. */
static kl_rc tell_again(kl__doctor *doctor, const kl__state *state)
{
    char path[KL_PATH_BYTES];
    struct waiting waiting = {state->stubs, 1};
    uint64_t count = 0;
    bool is_lossy = doctor->totals.damages > 0 || doctor->totals.history_position > doctor->last_sequence;
    if (!is_lossy || !doctor->totals.history_was_checked || doctor->totals.history_is_damaged)
        return KL_OK;
    snprintf(path, sizeof path, "%.4000s/history.db", doctor->path);
    kl_rc rc = kl__history_count_of(path, doctor->vfs->sqlite_vfs, doctor->has_wal, next_waiting, &waiting, &count);
    if (rc == KL_OK && count)
        kl__doctor_found(doctor, KL_FOUND_RUN_AGAIN, KL_FOUND_NOTE, "journal", -1,
                         "%llu of the waiting tasks are finished by what history.db knows: what they were settled with "
                         "is lost here, and they will run again.",
                         (ull)count);
    return rc == KL_ENOMEM ? rc : KL_OK; /* it is good to know, and no more */
}

static kl_rc add_up(kl__doctor *doctor)
{
    struct addition addition = {.doctor = doctor};
    kl__segment_image image = {0};
    kl_rc rc = open_state(&addition);
    for (size_t i = 0; i < doctor->case_count && rc == KL_OK; i++)
        rc = add_segment(&addition, &doctor->cases[i], &image);
    if (rc == KL_OK) {
        take_totals(&addition);
        tell_first(doctor);
        tell_reach(doctor);
        rc = take_fences(&addition);
    }
    if (rc == KL_OK)
        rc = tell_again(doctor, &addition.state);
    kl__image_free(&image);
    close_state(&addition.state);
    return rc;
}

/* ---- Names ---- */

/* Numbers that must not be given to another partition: those that history uses, and those below a known one. */
static void name_unknown(kl__doctor *doctor)
{
    for (uint32_t number = 1; number <= doctor->known_count; number++) {
        kl__known *known = &doctor->known[number];
        if (known->is_known)
            continue;
        known->shard_prefix_len = 1; /* nothing will ever be put there */
        snprintf(known->name, sizeof known->name, "lost-%u%s%.100s", number, *known->history_name ? "-" : "",
                 known->history_name);
        kl__doctor_found(doctor, KL_FOUND_LOST_PARTITION, KL_FOUND_DAMAGE, "journal", -1,
                         "Partition %u%s%s%s is not named by anything in the journal that can be read. A repair keeps "
                         "its number, under the name %s.",
                         number, *known->history_name ? ", which history.db calls '" : "", known->history_name,
                         *known->history_name ? "'," : "", known->name);
        if (number > doctor->announced)
            doctor->wants_end = true;
    }
}

static void note_name(void *ctx, const char *name)
{
    kl__doctor *doctor = ctx;
    uint64_t number;
    char file[300];
    if (kl__segments_parse(name, &number) || strcmp(name, "spare") == 0 || strcmp(name, "spare2") == 0)
        return;
    snprintf(file, sizeof file, "journal/%s", name);
    if (strcmp(name, "repair") == 0) {
        doctor->has_leftover = true;
        kl__doctor_found(doctor, KL_FOUND_UNFINISHED, KL_FOUND_WARNING, file, -1,
                         "A repair was interrupted and left this; nothing needs it.");
    } else {
        kl__doctor_found(doctor, KL_FOUND_FOREIGN_FILE, KL_FOUND_WARNING, file, -1,
                         "This file is none of Keyline's; it does no harm.");
    }
}

/* The number that most headers have; each vote for another one takes one back. */
static kl_rc elect_journal(kl__doctor *doctor)
{
    uint64_t votes = 0;
    for (size_t i = 0; i < doctor->case_count; i++) {
        char path[KL_PATH_BYTES];
        kl__segment_header header;
        kl__file *file;
        size_t got = 0;
        kl__case_path(doctor, doctor->cases[i].number, path);
        int error = doctor->vfs->open(doctor->vfs, path, KL_OPEN_READ, &file);
        if (error)
            return kl__fail(KL_ESYSTEM, "%s could not be opened: %s", path, strerror(-error));
        error = kl__vfs_read(doctor->vfs, file, &header, sizeof header, 0, &got);
        doctor->vfs->close(doctor->vfs, file);
        if (error || got < sizeof header || memcmp(header.magic, KL_SEGMENT_MAGIC, sizeof header.magic) != 0 ||
            header.crc != kl__segment_crc(&header) || header.number != doctor->cases[i].number)
            continue;
        if (votes == 0)
            doctor->journal = header.journal;
        votes += header.journal == doctor->journal ? 1 : UINT64_MAX;
    }
    return KL_OK;
}

static kl_rc make_cases(kl__doctor *doctor, const uint64_t *numbers, size_t count)
{
    doctor->cases = kl__alloc_zeroed(count + 1, sizeof(*doctor->cases));
    kl_rc rc = doctor->cases ? KL_OK : kl__fail_memory();
    for (size_t i = 0; i < count && rc == KL_OK; i++) {
        char name[KL_NAME_BYTES];
        bool is_file = false;
        kl__case_name(numbers[i], name);
        rc = kl__doctor_probe(doctor, name, &is_file);
        if (is_file)
            doctor->cases[doctor->case_count++] = (kl__case){.number = numbers[i], .is_there = true};
    }
    return rc;
}

static kl_rc list_cases(kl__doctor *doctor)
{
    uint64_t *numbers = NULL;
    size_t count = 0;
    kl_rc rc = kl__recover_list(doctor->vfs, doctor->journal_dir, &numbers, &count);
    if (rc == KL_OK)
        rc = make_cases(doctor, numbers, count);
    kl__free(numbers);
    if (rc != KL_OK)
        return rc;
    int error = doctor->vfs->list(doctor->vfs, doctor->journal_dir, note_name, doctor);
    return error ? kl__fail(KL_ESYSTEM, "%s could not be listed: %s", doctor->journal_dir, strerror(-error)) : KL_OK;
}

kl_rc kl__doctor_read_journal(kl__doctor *doctor)
{
    kl_rc rc = doctor->has_journal ? list_cases(doctor) : KL_OK;
    if (rc == KL_OK)
        rc = elect_journal(doctor);
    if (rc == KL_OK)
        rc = survey_all(doctor);
    if (rc != KL_OK || doctor->is_newer)
        return rc;
    name_unknown(doctor);
    return add_up(doctor);
}
