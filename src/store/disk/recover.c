/* recover.c - reads the journal into the state.
 *
 * Every frame in order is applied as it was when it was written. The journal ends where no valid frame stands. If one
 * with a higher number stands behind that place, in the same segment or a later one, something that was acknowledged is
 * damaged, and the store is not opened: only `keyline doctor --repair`, on somebody's word, leaves data behind. */
#include "store/disk/recover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "store/disk/frames.h"

/* ---- Which segments there are ---- */

typedef struct names {
    uint64_t *numbers;
    size_t count, capacity;
    bool failed;
} names;

static void note_name(void *ctx, const char *name)
{
    names *found = ctx;
    uint64_t number;
    if (!kl__segments_parse(name, &number))
        return;
    if (found->count == found->capacity) {
        size_t capacity = found->capacity ? found->capacity * 2 : 64;
        uint64_t *numbers = kl__alloc(capacity * sizeof(*numbers));
        if (!numbers) {
            found->failed = true;
            return;
        }
        if (found->count)
            memcpy(numbers, found->numbers, found->count * sizeof(*numbers));
        kl__free(found->numbers);
        found->numbers = numbers;
        found->capacity = capacity;
    }
    found->numbers[found->count++] = number;
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

kl_rc kl__recover_list(kl__vfs *vfs, const char *dir, uint64_t **ret_numbers, size_t *ret_count)
{
    names found = {0};
    int error = vfs->list(vfs, dir, note_name, &found);
    if (error || found.failed) {
        kl__free(found.numbers);
        return found.failed ? kl__fail_memory()
                            : kl__fail(KL_ESYSTEM, "%s could not be listed: %s", dir, strerror(-error));
    }
    if (found.count)
        qsort(found.numbers, found.count, sizeof(*found.numbers), compare_numbers);
    *ret_numbers = found.numbers;
    *ret_count = found.count;
    return KL_OK;
}

/* ---- One segment ---- */

static kl_rc fail_damaged(const kl__segments *segments, uint64_t number, const char *what, uint64_t offset)
{
    return kl__fail(KL_EDAMAGED,
                    "segment %016llx of the journal in %s is damaged: %s at byte %llu; nothing was changed: "
                    "`keyline doctor` on the data directory says what is affected and can repair it",
                    (unsigned long long)number, segments->dir, what, (unsigned long long)offset);
}

static void note_frame(kl__recovered *recovered, const kl__frame *frame)
{
    recovered->last_frame = frame->number;
    if (frame->sequence + frame->records > recovered->last_sequence + 1)
        recovered->last_sequence = frame->sequence + frame->records - 1;
    if (frame->now_ms > recovered->clock_ms)
        recovered->clock_ms = frame->now_ms;
    recovered->was_closed = frame->records == 1 && kl__frame_first(frame)->type == KL_RECORD_CLOSE;
}

/* Applies what stands in the segment, and notes where it ends. */
static kl_rc read_frames(kl__segments *segments, kl__state *state, const kl__segment_image *image, kl__segment *segment,
                         kl__recovered *recovered)
{
    const kl__frame *frame;
    while ((frame = kl__image_frame(image, segment->end)) != NULL) {
        if (recovered->last_frame && frame->number != recovered->last_frame + 1)
            return fail_damaged(segments, segment->number, "frames before this one are missing", segment->end);
        kl__where where = {segment->number, segment->end + KL_FRAME_HEADER};
        kl_rc rc = kl__state_apply_all(state, kl__frame_first(frame), frame->records, where, frame->now_ms, true);
        if (rc == KL_ENOMEM)
            return kl__fail_memory();
        if (rc == KL_EINVAL)
            return fail_damaged(segments, segment->number, "a record that does not belong there stands", segment->end);
        if (rc != KL_OK)
            return rc;
        note_frame(recovered, frame);
        segment->end += KL_FRAME_HEADER + frame->bytes;
    }
    uint64_t behind;
    if (kl__image_search(image, segment->end, &behind))
        return fail_damaged(segments, segment->number, "a frame is unreadable", segment->end);
    return KL_OK;
}

static kl_rc check_header(kl__segments *segments, const kl__segment_image *image, uint64_t number)
{
    switch (kl__image_header(image, number)) {
    case KL_HEADER_NEWER:
        return kl__fail(KL_EDAMAGED,
                        "the journal in %s was written by a newer version of Keyline (format %u, this one "
                        "knows %u); open it with that",
                        segments->dir, image->header.version, KL_FORMAT_VERSION);
    case KL_HEADER_BAD:
        return fail_damaged(segments, number, "its header is unreadable", 0);
    case KL_HEADER_SHORT:
        return fail_damaged(segments, number, "the file was cut off", image->size);
    case KL_HEADER_OK:
        break;
    }
    if (segments->journal && image->header.journal != segments->journal)
        return fail_damaged(segments, number, "it belongs to another journal", 0);
    return KL_OK;
}

static kl_rc read_segment(kl__segments *segments, kl__state *state, kl__segment_image *image, kl__segment *segment,
                          kl__recovered *recovered)
{
    kl_rc rc = kl__image_load(segments->vfs, segment->file, image);
    if (rc == KL_OK)
        rc = check_header(segments, image, segment->number);
    if (rc != KL_OK)
        return rc;
    segments->journal = image->header.journal;
    segment->bytes = image->size; /* what it was prepared with, or more for a large batch */
    segment->end = KL_SEGMENT_HEADER;
    return read_frames(segments, state, image, segment, recovered);
}

/* ---- All of them ---- */

/* The last two segments may hold what a process wrote that was killed before it synced, or whose sync failed: what is
 * read of them must be on the disk, or the next frame would stand behind one that is not. */
static kl_rc open_segment(kl__segments *segments, kl__state *state, uint64_t number, bool is_last)
{
    char path[KL_PATH_BYTES];
    kl__segments_path(segments, number, path);
    kl__segment *segment = kl__alloc_zeroed(1, sizeof *segment);
    if (!segment)
        return kl__fail_memory();
    segment->number = number;
    int error = segments->vfs->open(segments->vfs, path, KL_OPEN_WRITE, &segment->file);
    if (!error)
        error = segments->vfs->size(segments->vfs, segment->file, &segment->bytes);
    if (error) {
        if (segment->file)
            segments->vfs->close(segments->vfs, segment->file);
        kl__free(segment);
        if (kl__vfs_is_no_file(error) || error == -ENOENT) /* it was listed */
            return fail_damaged(segments, number, "what stands there is not a file", 0);
        return kl__fail(KL_ESYSTEM, "%s could not be opened: %s", path, strerror(-error));
    }
    error = is_last ? segments->vfs->refresh(segments->vfs, segment->file) : 0;
    if (error || !kl__state_add_segment(state, segment)) {
        segments->vfs->close(segments->vfs, segment->file);
        kl__free(segment);
        return error ? kl__fail(KL_ESYSTEM, "%s could not be synced: %s", path, strerror(-error)) : kl__fail_memory();
    }
    return KL_OK;
}

static kl_rc read_all(kl__segments *segments, kl__state *state, const uint64_t *numbers, size_t count,
                      kl__recovered *recovered)
{
    kl__segment_image image = {0};
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < count && rc == KL_OK; i++) {
        if (i && numbers[i] != numbers[i - 1] + 1)
            rc = kl__fail(KL_EDAMAGED,
                          "segment %016llx of the journal in %s is missing; nothing was changed: `keyline doctor` on "
                          "the data directory says what is affected",
                          (unsigned long long)numbers[i - 1] + 1, segments->dir);
        if (rc == KL_OK)
            rc = open_segment(segments, state, numbers[i], i + 2 >= count);
        if (rc == KL_OK)
            rc = read_segment(segments, state, &image, state->segments[i], recovered);
    }
    kl__image_free(&image);
    return rc;
}

/* The last segment is the one prepared to come next when nothing was written to it yet, and it is not the only one. */
static void set_aside_next(kl__segments *segments, kl__state *state)
{
    kl__segment *last = state->segments[state->segment_count - 1];
    if (state->segment_count > 1 && last->end == KL_SEGMENT_HEADER) {
        state->segment_count--;
        kl__free(last->part_live); /* it gets others when it comes into use */
        last->part_live = NULL;
        segments->next = last;
        atomic_store(&segments->has_next, true);
        last = state->segments[state->segment_count - 1];
    }
    segments->active = last;
    state->closed_bytes = 0;
    for (size_t i = 0; i + 1 < state->segment_count; i++)
        state->closed_bytes += state->segments[i]->bytes;
}

/* Segments come into use one after the other, and go so: the first has frames, or none has. One that a repair has made
 * in place of a missing one is nothing but its header (doctor_plan.c). NULL: so it is. */
static const kl__segment *find_emptied(const kl__state *state, const kl__recovered *recovered)
{
    size_t first = 0;
    while (first < state->segment_count && state->segments[first]->bytes == KL_SEGMENT_HEADER)
        first++;
    bool is_emptied =
        recovered->last_frame && first < state->segment_count && state->segments[first]->end == KL_SEGMENT_HEADER;
    return is_emptied ? state->segments[first] : NULL;
}

/* Names that a process gave before it was killed were read, so they must stay. */
static kl_rc sync_names(const kl__segments *segments)
{
    int error = segments->vfs->sync_dir(segments->vfs, segments->dir);
    return error ? kl__fail(KL_ESYSTEM, "the journal in %s could not be synced: %s", segments->dir, strerror(-error))
                 : KL_OK;
}

kl_rc kl__recover(kl__segments *segments, kl__state *state, kl__recovered *ret_recovered)
{
    uint64_t *numbers = NULL;
    size_t count = 0;
    memset(ret_recovered, 0, sizeof *ret_recovered);
    ret_recovered->was_closed = true;
    kl_rc rc = kl__recover_list(segments->vfs, segments->dir, &numbers, &count);
    if (rc == KL_OK)
        rc = read_all(segments, state, numbers, count, ret_recovered);
    segments->next_number = count ? numbers[count - 1] + 1 : 1;
    kl__free(numbers);
    if (rc != KL_OK)
        return rc;
    if (count == 0) {
        kl__tokens_recovered(state->tokens);
        segments->journal = kl__random_seed() | 1;
        return KL_OK;
    }
    kl__tokens_recovered(state->tokens);
    const kl__segment *emptied = find_emptied(state, ret_recovered);
    if (emptied)
        return fail_damaged(segments, emptied->number, "none of its frames is readable", KL_SEGMENT_HEADER);
    set_aside_next(segments, state);
    if (!ret_recovered->was_closed)
        kl__segments_log(segments, KL_LOG_INFO,
                         "the store was not closed in order; the journal was read up to frame %llu",
                         (unsigned long long)ret_recovered->last_frame);
    return sync_names(segments);
}
