/* compact.c - the thread of upkeep: drops segments, prepares the next, and copies stragglers out of old ones.
 *
 * Segments are dropped in order only. When more than half of the journal is not needed any more, what is live in the
 * first segment is written again at the end, and then the first can be dropped: so the disk holds at most twice what is
 * live, and two segments (G2 of segments.h).
 *
 * A copy must not stand behind the settle of its task, or reading the journal would bring the task back. So copies are
 * written while nothing else is on its way to the journal (kl__journal_exclusive), and what is live is decided then. */
#include <string.h>

#include "base/wait.h"
#include "store/disk/disk.h"
#include "store/disk/frames.h"

enum { COPY_BYTES = 1 << 20, LOOK_MS = 1000, SWEEP_RECORDS = 2000 };

/* Where the copying of a segment stands. */
struct copying {
    kl__disk *disk;
    kl__segment_image image;
    uint64_t segment;
    uint64_t frame_offset; /* of the frame being copied */
    uint32_t record;       /* the next one in it */
    uint64_t record_offset;
    uint64_t end;
    bool is_damaged;
};

/* The next record of the segment; NULL: there is none. */
static const kl__record_header *next_record(struct copying *copying)
{
    while (copying->frame_offset < copying->end) {
        const kl__frame *frame = (const void *)(copying->image.bytes + copying->frame_offset);
        if (copying->record == 0 && !kl__image_frame(&copying->image, copying->frame_offset)) {
            copying->is_damaged = true;
            return NULL;
        }
        if (copying->record < frame->records) {
            if (copying->record == 0)
                copying->record_offset = copying->frame_offset + KL_FRAME_HEADER;
            return (const void *)(copying->image.bytes + copying->record_offset);
        }
        copying->frame_offset += KL_FRAME_HEADER + frame->bytes;
        copying->record = 0;
    }
    return NULL;
}

static void step(struct copying *copying, const kl__record_header *record)
{
    copying->record++;
    copying->record_offset += record->bytes;
}

/* Called while nothing else is under way. At least one live record is copied, when there is any. */
static size_t fill_copies(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum)
{
    (void)sequence; /* copies keep their own */
    struct copying *copying = ctx;
    kl__state *state = &copying->disk->state;
    int64_t now_ms = kl__disk_now(copying->disk);
    const kl__record_header *record;
    size_t records = 0;
    *ret_bytes = 0;
    *ret_sum = 0;
    pthread_mutex_lock(&state->mutex);
    while (*ret_bytes < COPY_BYTES && (record = next_record(copying)) != NULL) {
        kl__where where = {copying->segment, copying->record_offset};
        if (kl__state_is_live(state, record, where, now_ms)) {
            kl__record_header *copy = (kl__record_header *)(void *)(bytes + *ret_bytes);
            kl__state_copy(state, record, copy);
            *ret_sum += kl__record_seal(copy, (char *)copy + copy->bytes);
            *ret_bytes += copy->bytes;
            records++;
        }
        step(copying, record);
    }
    pthread_mutex_unlock(&state->mutex);
    return records;
}

/* False: not all of it could be copied. */
static bool copy_segment(kl__disk *disk, kl__segment *segment)
{
    struct copying copying = {
        .disk = disk, .segment = segment->number, .frame_offset = KL_SEGMENT_HEADER, .end = segment->end};
    kl_rc rc = kl__image_load(disk->vfs, segment->file, &copying.image);
    while (rc == KL_OK && copying.frame_offset < copying.end && !copying.is_damaged)
        rc = kl__journal_exclusive(disk->journal, fill_copies, &copying);
    if (copying.is_damaged)
        kl__segments_log(
            &disk->segments, KL_LOG_ERROR,
            "segment %016llx of the journal is damaged at byte %llu, so it is kept; `keyline doctor` on the "
            "data directory says what is affected",
            (unsigned long long)segment->number, (unsigned long long)copying.frame_offset);
    else if (rc != KL_OK)
        kl__segments_log(&disk->segments, KL_LOG_WARN, "an old segment could not be copied: %s", kl_error_text());
    if (rc == KL_OK)
        disk->compacted = segment->number; /* once is enough: nothing new becomes live in it */
    kl__image_free(&copying.image);
    return rc == KL_OK;
}

/* The first segment, when it should be copied; NULL: none. Large tasks in small segments leave gaps that no copying
 * closes: when everything was copied twice and nothing was gained, it rests. On a full disk only when little of it is
 * live, for the copies go where outcomes have to. */
static kl__segment *find_work(kl__disk *disk, uint64_t slack)
{
    kl__state *state = &disk->state;
    kl__segment *segment = NULL;
    pthread_mutex_lock(&state->mutex);
    if (state->live < disk->copied_live || state->closed_bytes < disk->copied_closed) { /* something was gained */
        disk->copied_closed = state->closed_bytes;
        disk->copied = 0;
    }
    disk->copied_live = state->live;
    bool is_worth_it = disk->copied <= 2 * state->live && kl__state_must_compact(state, slack);
    if (atomic_load(&disk->segments.is_full))
        is_worth_it = kl__segments_can_relieve(&disk->segments);
    if (is_worth_it && state->segments[0]->number > disk->compacted) {
        segment = state->segments[0];
        disk->copied += segment->live;
    }
    pthread_mutex_unlock(&state->mutex);
    return segment;
}

/* Behind copies a frame is written in any case: if they were the last and got damaged, they would look like the torn
 * end of a write that nobody was told of, while what they are copies of is gone. */
static void drop(kl__disk *disk, bool is_copied)
{
    pthread_mutex_lock(&disk->state.mutex);
    bool can_drop = kl__state_can_drop(&disk->state), may_drop = kl__state_may_drop(&disk->state);
    pthread_mutex_unlock(&disk->state.mutex);
    bool is_noted = may_drop && !is_copied;
    if (is_noted || (can_drop && kl__keeper_note(disk, is_copied) == KL_OK)) /* else in a while */
        kl__segments_drop(&disk->segments);
}

/* False: there was nothing to copy, or it could not be: then it is tried again in a while. */
static bool compact(kl__disk *disk, uint64_t slack)
{
    kl__segment *segment = find_work(disk, slack);
    if (!segment)
        return false;
    bool is_copied = copy_segment(disk, segment);
    drop(disk, true);
    return is_copied;
}

/* The next segment is best made of one that is dropped. */
static void keep_up(kl__disk *disk, bool next_wanted)
{
    pthread_mutex_lock(&disk->state.mutex);
    kl__state_sweep(&disk->state, kl__disk_now(disk), SWEEP_RECORDS);
    pthread_mutex_unlock(&disk->state.mutex);
    drop(disk, false);
    bool is_compacted = compact(disk, next_wanted ? 0 : kl__segments_slack(&disk->segments));
    if (next_wanted && !atomic_load(&disk->segments.has_next))
        (void)kl__segments_prepare(&disk->segments); /* it is tried again when it is needed */
    if (is_compacted)
        kl__segments_want_upkeep(&disk->segments); /* there may be more */
}

static void *run_upkeep(void *ctx)
{
    kl__disk *disk = ctx;
    kl__segments *segments = &disk->segments;
    pthread_mutex_lock(&segments->mutex);
    while (!segments->stopping) {
        bool is_time = true;
        if (!segments->upkeep_wanted && !(segments->next_wanted && !segments->next_error))
            is_time = !kl__cond_wait(&segments->changed, &segments->mutex, kl__deadline_ns(LOOK_MS));
        if (segments->stopping)
            break;
        if (!is_time && !segments->upkeep_wanted && !segments->next_wanted)
            continue;
        bool next_wanted = segments->next_wanted;
        segments->upkeep_wanted = false;
        segments->next_wanted = false;
        pthread_mutex_unlock(&segments->mutex);
        keep_up(disk, next_wanted);
        pthread_mutex_lock(&segments->mutex);
    }
    pthread_mutex_unlock(&segments->mutex);
    return NULL;
}

kl_rc kl__upkeep_start(kl__disk *disk)
{
    if (pthread_create(&disk->upkeep, NULL, run_upkeep, disk) != 0)
        return kl__fail(KL_ESYSTEM, "a thread could not be started; raise the limit of processes");
    disk->has_upkeep = true;
    return KL_OK;
}

void kl__upkeep_stop(kl__disk *disk)
{
    if (!disk->has_upkeep)
        return;
    pthread_mutex_lock(&disk->segments.mutex);
    disk->segments.stopping = true;
    pthread_cond_broadcast(&disk->segments.changed);
    pthread_mutex_unlock(&disk->segments.mutex);
    pthread_join(disk->upkeep, NULL);
    disk->has_upkeep = false;
}
