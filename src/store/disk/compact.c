/* compact.c - the thread of upkeep: drops segments, prepares the next, and copies stragglers out of old ones.
 *
 * Segments are dropped in order only. When more than half of the journal is not needed any more, what is live in the
 * first segment is written again at the end, and then the first can be dropped: so the disk holds at most twice what is
 * live, and two segments (G2 of segments.h).
 *
 * A copy must not stand behind the settle of its task, or reading the journal would bring the task back. So copies are
 * written while nothing else is on its way to the journal (kl__journal_exclusive), and what is live is decided then.
 * But nothing in an old segment becomes live again, so what may be is found before, while everything goes on. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/wait.h"
#include "store/disk/disk.h"
#include "store/disk/frames.h"

enum {
    COPY_BYTES = 1 << 20,
    COPY_RECORDS = COPY_BYTES / sizeof(kl__record_header) + 1,
    RECORD_MAX = 2 << 20, /* of a task or a value */
    PIECE_BYTES = 1 << 20,
    HEAD_BYTES = 16 << 10, /* read for the sake of a frame's header */
    LOOK_RECORDS = 256,
    LOOK_AHEAD = 8,
    FAR_AHEAD = 2 * LOOK_AHEAD,
    LOOK_MS = 1000,
    LOOK_SLOTS = 1 << 16,
    RESCUE_TASKS = 1024,
    SWEEP_RECORDS = 256,
    QUIET_MS = 100,
    PATIENCE_MS = 1000,
    PAUSE_NS = 10000000,
};

_Static_assert(sizeof(kl__entry_record) + 64 + KL_KEY_BYTES_MAX + KL_KIND_BYTES_MAX + KL_HEADERS_BYTES_MAX +
                           KL_PAYLOAD_BYTES_MAX <
                       RECORD_MAX &&
                   sizeof(kl__write_record) + 8 + KL_RECORD_NAME_MAX + KL_RECORD_BYTES_MAX < RECORD_MAX,
               "the largest record that can be live fits");

/* Where the copying of a segment stands. */
struct copying {
    kl__disk *disk;
    kl__segment *segment;
    kl__segment_image piece; /* of the segment, */
    uint64_t piece_offset;   /* which begins there with a frame */
    uint64_t frame_offset;   /* of the frame being looked through, */
    uint32_t record;         /* the next one in it, */
    uint64_t record_offset;  /* and where in the segment that stands */
    uint32_t token;          /* the next to be looked at of those that are remembered */
    char *found;             /* records that were live when they were looked at, */
    uint64_t *offsets;       /* and where each stands in the segment */
    size_t count, bytes;     /* of those */
    bool is_damaged;
    uint64_t lost; /* tasks whose bytes are */
};

/* --- Reading the segment --- */

static kl_rc load_piece(struct copying *copying, uint64_t bytes)
{
    uint64_t rest = copying->segment->end - copying->frame_offset;
    copying->piece_offset = copying->frame_offset;
    return kl__image_load_piece(copying->disk->vfs, copying->segment->file, copying->frame_offset,
                                bytes < rest ? bytes : rest, &copying->piece);
}

/* The frame at frame_offset, all of it in memory; NULL: it is damaged, or cannot be read. */
static const kl__frame *load_frame(struct copying *copying, kl_rc *ret_rc)
{
    const kl__frame *frame = kl__image_frame(&copying->piece, copying->frame_offset - copying->piece_offset);
    *ret_rc = KL_OK;
    if (frame)
        return frame;
    *ret_rc = load_piece(copying, PIECE_BYTES);
    if (*ret_rc == KL_OK && copying->piece.size >= KL_FRAME_HEADER) {
        uint64_t bytes = KL_FRAME_HEADER + (uint64_t)((const kl__frame *)(const void *)copying->piece.bytes)->bytes;
        if (bytes > copying->piece.size)
            *ret_rc = load_piece(copying, bytes);
        if (*ret_rc == KL_OK)
            frame = kl__image_frame(&copying->piece, 0);
    }
    copying->is_damaged = *ret_rc == KL_OK && !frame;
    return frame;
}

/* --- What may have to be copied --- */

static bool has_enough(const struct copying *copying) { return copying->bytes >= COPY_BYTES; }

static const kl__record_header *next_record(const struct copying *copying, const kl__frame *frame)
{
    return (const void *)((const char *)frame + (copying->record_offset - copying->frame_offset));
}

static void note(struct copying *copying, const kl__record_header *record, uint64_t offset)
{
    KL_ASSERT(record->bytes <= RECORD_MAX && copying->count < COPY_RECORDS);
    memcpy(copying->found + copying->bytes, record, record->bytes);
    copying->offsets[copying->count++] = offset;
    copying->bytes += record->bytes;
}

/* Every append has a token, so there are some in every frame; but they are in memory, and need not be read for. */
static void find_tokens(struct copying *copying)
{
    kl__state *state = &copying->disk->state;
    const kl__token_info *info;
    pthread_mutex_lock(&state->mutex);
    while (!has_enough(copying) &&
           (info = kl__tokens_next(state->tokens, copying->segment->number, &copying->token)) != NULL) {
        kl__token_record record = {
            .header = {.bytes = sizeof record, .sequence = info->sequence, .type = KL_RECORD_TOKEN}};
        memcpy(record.token, &info->token, sizeof record.token);
        note(copying, &record.header, 0);
    }
    pthread_mutex_unlock(&state->mutex);
}

/* Looks at the next record of the frame, with the state's mutex held. */
static void look_at(struct copying *copying, const kl__record_header *record, int64_t now_ms)
{
    kl__where where = {copying->segment->number, copying->record_offset};
    if (record->type != KL_RECORD_TOKEN && kl__state_is_live(&copying->disk->state, record, where, now_ms))
        note(copying, record, copying->record_offset);
    copying->record++;
    copying->record_offset += record->bytes;
}

/* Up to LOOK_RECORDS of them, with the state's mutex held. */
static void look_at_some(struct copying *copying, const kl__frame *frame, int64_t now_ms)
{
    const kl__state *state = &copying->disk->state;
    const kl__record_header *ahead = next_record(copying, frame), *far = ahead;
    uint32_t fetched = copying->record, fetched_far = fetched, end = frame->records;
    if (end - copying->record > LOOK_RECORDS)
        end = copying->record + LOOK_RECORDS;
    while (copying->record < end && !has_enough(copying)) {
        for (; fetched_far < end && fetched_far < copying->record + FAR_AHEAD;
             fetched_far++, far = kl__record_next(far))
            kl__state_prefetch(state, far);
        for (; fetched < end && fetched < copying->record + LOOK_AHEAD; fetched++, ahead = kl__record_next(ahead))
            kl__state_prefetch_slot(state, ahead);
        look_at(copying, next_record(copying, frame), now_ms);
    }
}

/* The rest of a frame's records, some at a time, so that nobody waits long for the mutex. */
static void look_through(struct copying *copying, const kl__frame *frame)
{
    kl__state *state = &copying->disk->state;
    int64_t now_ms = kl__disk_now(copying->disk);
    if (copying->record == 0)
        copying->record_offset = copying->frame_offset + KL_FRAME_HEADER;
    while (copying->record < frame->records && !has_enough(copying)) {
        pthread_mutex_lock(&state->mutex);
        look_at_some(copying, frame, now_ms);
        pthread_mutex_unlock(&state->mutex);
    }
}

/* Is nothing in the frame live? Nothing in it becomes so again. */
static bool is_dead(const struct copying *copying, const kl__frame *frame)
{
    kl__state *state = &copying->disk->state;
    uint64_t end = copying->frame_offset + KL_FRAME_HEADER + frame->bytes;
    if (end > copying->segment->end)
        return false; /* it is not what was written */
    pthread_mutex_lock(&state->mutex);
    bool has_live = kl__segment_has_live(copying->segment, copying->frame_offset, end);
    pthread_mutex_unlock(&state->mutex);
    return !has_live;
}

/* There is nothing to be found: the segment has ended, or what was live in it has been settled meanwhile, which is soon
 * where workers keep up. */
static bool is_over(const struct copying *copying)
{
    kl__state *state = &copying->disk->state;
    pthread_mutex_lock(&state->mutex);
    bool has_live = copying->segment->live > 0;
    pthread_mutex_unlock(&state->mutex);
    return !has_live || copying->frame_offset >= copying->segment->end;
}

static void go_on(struct copying *copying, const kl__frame *frame)
{
    copying->frame_offset += KL_FRAME_HEADER + frame->bytes;
    copying->record = 0;
}

/* Passes over frames in which nothing is live, of which little more than the header is read. Stragglers that were
 * copied stand together, so most are. What cannot be read is left for load_frame. */
static kl_rc pass_dead(struct copying *copying)
{
    kl_rc rc = KL_OK;
    while (rc == KL_OK && !is_over(copying)) {
        const kl__frame *frame = kl__image_frame_header(&copying->piece, copying->frame_offset - copying->piece_offset);
        if (!frame && (rc = load_piece(copying, HEAD_BYTES)) == KL_OK)
            frame = kl__image_frame_header(&copying->piece, 0);
        if (!frame || !is_dead(copying, frame))
            break;
        go_on(copying, frame);
    }
    return rc;
}

/* Looks on until there is enough for one copy, or it is over. */
static kl_rc find_live(struct copying *copying)
{
    kl_rc rc = KL_OK;
    copying->count = copying->bytes = 0;
    find_tokens(copying);
    while (!has_enough(copying) && !is_over(copying)) {
        if (copying->record == 0 && ((rc = pass_dead(copying)) != KL_OK || is_over(copying)))
            break;
        const kl__frame *frame = load_frame(copying, &rc);
        if (!frame)
            break;
        look_through(copying, frame);
        if (copying->record == frame->records)
            go_on(copying, frame);
    }
    return rc;
}

/* --- Copying --- */

/* Called while nothing else is under way. */
static size_t fill_copies(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum)
{
    (void)sequence; /* copies keep their own */
    struct copying *copying = ctx;
    kl__state *state = &copying->disk->state;
    int64_t now_ms = kl__disk_now(copying->disk);
    const kl__record_header *record = (const void *)copying->found;
    size_t records = 0;
    *ret_bytes = 0;
    *ret_sum = 0;
    pthread_mutex_lock(&state->mutex);
    for (size_t i = 0; i < copying->count; i++, record = kl__record_next(record)) {
        if (!kl__state_is_live(state, record, (kl__where){copying->segment->number, copying->offsets[i]}, now_ms))
            continue;
        kl__record_header *copy = (kl__record_header *)(void *)(bytes + *ret_bytes);
        kl__state_copy(state, record, copy);
        *ret_sum += kl__record_seal(copy, (char *)copy + copy->bytes);
        *ret_bytes += copy->bytes;
        records++;
    }
    pthread_mutex_unlock(&state->mutex);
    return records;
}

static kl_rc copy_all(struct copying *copying)
{
    if (!copying->found || !copying->offsets)
        return kl__fail_memory();
    kl_rc rc = kl__image_load_piece(copying->disk->vfs, copying->segment->file, 0, KL_SEGMENT_HEADER, &copying->piece);
    if (rc == KL_OK && copying->piece.size == KL_SEGMENT_HEADER)
        memcpy(&copying->piece.header, copying->piece.bytes, KL_SEGMENT_HEADER);
    copying->piece.size = 0;
    while (rc == KL_OK && !copying->is_damaged && !is_over(copying)) {
        rc = find_live(copying);
        if (rc == KL_OK && copying->count > 0)
            rc = kl__journal_exclusive(copying->disk->journal, fill_copies, copying);
    }
    return rc;
}

/* --- A damaged segment ---
 *
 * What is needed of it is known without it. Tokens and records are in memory whole. Of tasks their places are, and each
 * record has a checksum of its own; a task whose record is damaged is written again without its bytes, so that it waits
 * as before, and whoever reads it is told. Then nothing keeps the segment, and its file is put aside. */

/* A record of store.h, made anew of what is in memory. */
static void note_value(struct copying *copying, const kl__held_record *held)
{
    kl__write_record *write = (void *)(copying->found + copying->bytes);
    KL_ASSERT(held->bytes <= RECORD_MAX && copying->count < COPY_RECORDS);
    memset(write, 0, held->bytes);
    write->header = (kl__record_header){.bytes = held->bytes, .sequence = held->version, .type = KL_RECORD_WRITE};
    write->version = held->version;
    write->expires_ms = held->expires_ms;
    write->name_bytes = held->name_bytes;
    write->value_bytes = held->value_bytes;
    memcpy(write + 1, held->text, (size_t)held->name_bytes + held->value_bytes);
    copying->offsets[copying->count++] = held->where.offset;
    copying->bytes += held->bytes;
}

/* Those that were copied are elsewhere by the next time. */
static void find_values(struct copying *copying)
{
    kl__state *state = &copying->disk->state;
    pthread_mutex_lock(&state->mutex);
    const kl__held_record *held = kl__records_after(&state->records, (kl_bytes){"", 0}, true);
    for (; held && !has_enough(copying); held = kl__records_after(&state->records, kl__held_name(held), false))
        if (held->where.segment == copying->segment->number)
            note_value(copying, held);
    pthread_mutex_unlock(&state->mutex);
}

/* The task as far as memory knows it. */
static void note_lost(struct copying *copying, const kl__slot *slot, uint64_t offset)
{
    struct {
        kl__entry_record record;
        uint64_t due_ms;
    } entry = {.record = {.header = {.bytes = sizeof entry.record,
                                     .sequence = slot->position,
                                     .epoch = slot->group,
                                     .type = KL_RECORD_ENTRY,
                                     .flags = KL_ENTRY_LOST,
                                     .small = {(uint8_t)((int)slot->priority + KL_PRIORITY_MIN)},
                                     .partition = slot->partition,
                                     .shard = slot->shard},
                          .key_hash = slot->key_hash},
               .due_ms = slot->due_ms};
    memcpy(entry.record.id, &slot->id, sizeof entry.record.id);
    if (slot->line == KL_LINE_DUE - KL_PRIORITY_MIN) {
        entry.record.header.flags |= KL_ENTRY_DUE;
        entry.record.header.bytes = sizeof entry;
    }
    note(copying, &entry.record.header, offset);
    copying->lost++;
}

/* Waiting tasks of the segment, from the slot *next on: about COPY_BYTES of them, or those among LOOK_SLOTS. */
static size_t find_slots(struct copying *copying, kl__slot slots[RESCUE_TASKS], uint32_t *next)
{
    kl__state *state = &copying->disk->state;
    const kl__slot *slot;
    size_t count = 0, bytes = 0;
    uint32_t end = *next + LOOK_SLOTS;
    pthread_mutex_lock(&state->mutex);
    while (count < RESCUE_TASKS && bytes < COPY_BYTES && (slot = kl__stubs_next(state->stubs, next, end)) != NULL) {
        if (kl__slot_where(state, slot).segment != copying->segment->number)
            continue;
        slots[count++] = *slot;
        bytes += kl__slot_record_bytes(slot);
    }
    pthread_mutex_unlock(&state->mutex);
    return count;
}

static kl_rc note_task(struct copying *copying, const kl__slot *slot, kl_arena *arena)
{
    const kl__record_header *record;
    uint64_t offset = (uint64_t)slot->offset8 * 8;
    kl_rc rc =
        kl__disk_read_record(copying->disk, copying->segment, offset, kl__slot_record_bytes(slot), arena, &record);
    bool is_its = rc == KL_OK && record->type == KL_RECORD_ENTRY && kl__record_is_sound(record) &&
                  memcmp(((const kl__entry_record *)(const void *)record)->id, &slot->id, sizeof slot->id) == 0;
    if (is_its)
        note(copying, record, offset);
    else if (rc == KL_OK || rc == KL_EDAMAGED)
        note_lost(copying, slot, offset);
    else
        return rc;
    return KL_OK;
}

static kl_rc copy_found(struct copying *copying)
{
    return copying->count ? kl__journal_exclusive(copying->disk->journal, fill_copies, copying) : KL_OK;
}

static kl_rc rescue_tasks(struct copying *copying)
{
    kl__state *state = &copying->disk->state;
    kl__slot *slots = kl__alloc(RESCUE_TASKS * sizeof *slots);
    kl_arena arena = {0};
    kl_rc rc = slots ? KL_OK : kl__fail_memory();
    pthread_mutex_lock(&state->mutex);
    uint32_t next = 1, end = kl__stubs_end(state->stubs); /* what comes later is not in this segment */
    pthread_mutex_unlock(&state->mutex);
    while (rc == KL_OK && next < end) {
        size_t count = find_slots(copying, slots, &next);
        copying->count = copying->bytes = 0;
        kl_arena_reset(&arena);
        for (size_t i = 0; i < count && rc == KL_OK; i++)
            rc = note_task(copying, &slots[i], &arena);
        if (rc == KL_OK)
            rc = copy_found(copying);
    }
    kl_arena_free(&arena);
    kl__free(slots);
    return rc;
}

/* Copies all that is needed of the segment, and marks it. */
static kl_rc rescue(struct copying *copying)
{
    kl__segment *segment = copying->segment;
    kl_rc rc = KL_OK;
    do {
        copying->count = copying->bytes = 0;
        find_tokens(copying);
        find_values(copying);
        rc = copy_found(copying);
    } while (rc == KL_OK && copying->count);
    if (rc == KL_OK)
        rc = rescue_tasks(copying);
    if (rc != KL_OK)
        return rc;
    pthread_mutex_lock(&copying->disk->state.mutex);
    segment->is_damaged = true; /* it has a reader still, so nobody drops it meanwhile */
    pthread_mutex_unlock(&copying->disk->state.mutex);
    kl__segments_log(
        &copying->disk->segments, KL_LOG_ERROR,
        "segment %016llx of the journal is damaged at byte %llu: %llu waiting tasks have lost their key and "
        "payload; all else in it was copied, and the file goes to quarantine/",
        (unsigned long long)segment->number, (unsigned long long)copying->frame_offset,
        (unsigned long long)copying->lost);
    return KL_OK;
}

/* False: not all of it could be copied. */
static bool copy_segment(kl__disk *disk, kl__segment *segment)
{
    struct copying copying = {.disk = disk,
                              .segment = segment,
                              .frame_offset = KL_SEGMENT_HEADER,
                              .found = kl__alloc(COPY_BYTES + RECORD_MAX),
                              .offsets = kl__alloc_zeroed(COPY_RECORDS, sizeof *copying.offsets)};
    kl_rc rc = copy_all(&copying);
    if (rc == KL_OK && copying.is_damaged)
        rc = rescue(&copying);
    if (rc != KL_OK)
        kl__segments_log(&disk->segments, KL_LOG_WARN, "an old segment could not be copied: %s", kl_error_text());
    if (rc == KL_OK)
        disk->compacted = segment->number; /* once is enough: nothing new becomes live in it */
    else if (rc != KL_EFULL)               /* of which outcomes wait to be relieved */
        disk->failed_ns = kl__monotonic_ns();
    kl__image_free(&copying.piece);
    kl__free(copying.found);
    kl__free(copying.offsets);
    return rc == KL_OK;
}

/* While workers are at what is live in the first segment, it becomes less by itself. What they leave is copied: when
 * nothing has changed for QUIET_MS, or after PATIENCE_MS in any case. With the state's mutex held. */
static bool is_quiet(kl__disk *disk)
{
    const kl__segment *first = disk->state.segments[0];
    int64_t now_ns = kl__monotonic_ns();
    if (first->number != disk->watched)
        disk->watched_ns = now_ns;
    if (first->number != disk->watched || first->live != disk->watched_live)
        disk->quiet_ns = now_ns;
    disk->watched = first->number;
    disk->watched_live = first->live;
    return now_ns - disk->quiet_ns >= QUIET_MS * INT64_C(1000000) ||
           now_ns - disk->watched_ns >= PATIENCE_MS * INT64_C(1000000);
}

/* A segment could not be copied just now, and it is not yet time to try again: to read what cannot be read may take
 * long. */
static bool must_rest(const kl__disk *disk)
{
    return disk->failed_ns && kl__monotonic_ns() - disk->failed_ns < LOOK_MS * INT64_C(1000000);
}

/* Forgets what was copied when something was gained by it; and as much as callers have written since, or what they
 * write would be taken for what copying does not gain. With the state's mutex held. */
static void reckon(kl__disk *disk)
{
    const kl__state *state = &disk->state;
    uint64_t needed = kl__state_needed_bytes(state), rolled = atomic_load(&disk->segments.rolled);
    uint64_t written = (rolled - disk->rolled) * disk->segments.segment_bytes;
    if (state->live < disk->copied_live || needed < disk->copied_needed) {
        disk->copied_needed = needed;
        disk->copied = 0;
    }
    disk->copied -= written < disk->copied ? written : disk->copied;
    disk->copied_live = state->live;
    disk->rolled = rolled;
}

/* The first segment, when it should be copied, held so that it is not dropped meanwhile; NULL: none. Stragglers are
 * copied once for each time that the first segment is, so while segments are brisk several gather first (G2). Large
 * tasks in small segments leave gaps that no copying closes: when everything was copied twice and nothing was gained,
 * it rests. On a full disk only when little of it is live, for the copies go where outcomes have to. */
static kl__segment *find_work(kl__disk *disk, uint64_t slack, bool is_closing)
{
    kl__state *state = &disk->state;
    kl__segment *segment = NULL;
    pthread_mutex_lock(&state->mutex);
    reckon(disk);
    bool is_worth_it =
        disk->copied <= 2 * state->live && !kl__state_droppable(state) && kl__state_must_compact(state, slack);
    bool is_far_over = kl__state_must_compact(state, KL_PATIENCE_SEGMENTS * disk->segments.segment_bytes);
    disk->is_patient = is_worth_it && state->segments[0]->number > disk->compacted && !is_far_over && !is_closing &&
                       (kl__segments_are_brisk(&disk->segments) || !is_quiet(disk));
    is_worth_it &= !disk->is_patient;
    if (atomic_load(&disk->segments.is_full)) {
        is_worth_it = kl__segments_can_relieve(&disk->segments);
        disk->is_patient = false;
    }
    if (is_worth_it && state->segments[0]->number > disk->compacted && (is_closing || !must_rest(disk))) {
        segment = state->segments[0];
        segment->readers++;
        disk->copied += segment->live;
    }
    pthread_mutex_unlock(&state->mutex);
    return segment;
}

/* A segment goes only when the journal says durably that it may, for else it would be missed when the store is opened.
 * Behind copies that is said in any case: if they were the last and got damaged, they would look like the torn end of a
 * write that nobody was told of, while what they are copies of is gone. */
static void drop(kl__disk *disk, bool must_note)
{
    pthread_mutex_lock(&disk->state.mutex);
    bool can_drop = kl__state_droppable(&disk->state) > 0, may_drop = kl__state_may_drop(&disk->state);
    pthread_mutex_unlock(&disk->state.mutex);
    bool is_noted = may_drop && !must_note;
    if (is_noted || (can_drop && kl__keeper_note(disk, true) == KL_OK)) /* else in a while */
        kl__segments_drop(&disk->segments);
}

/* False: there was nothing to copy, or it could not be: then it is tried again in a while. */
static bool compact(kl__disk *disk, uint64_t slack, bool is_closing)
{
    kl__segment *segment = find_work(disk, slack, is_closing);
    if (!segment)
        return false;
    bool is_copied = copy_segment(disk, segment);
    pthread_mutex_lock(&disk->state.mutex);
    segment->readers--;
    pthread_mutex_unlock(&disk->state.mutex);
    drop(disk, true);
    return is_copied;
}

/* All records that have expired by now, some at a time, so that nobody waits long for the mutex. */
static void sweep(kl__disk *disk)
{
    int64_t now_ms = kl__disk_now(disk);
    for (bool has_more = true; has_more;) {
        pthread_mutex_lock(&disk->state.mutex);
        has_more = kl__state_sweep(&disk->state, now_ms, SWEEP_RECORDS);
        pthread_mutex_unlock(&disk->state.mutex);
    }
}

/* Somebody may have removed the directory or put another one in its place: what is written then, nobody will ever read.
 * A look costs some system calls, so there is one in a while. */
static void look_after(kl__disk *disk)
{
    char text[KL_CALL_ERROR_BYTES];
    int64_t now_ns = kl__monotonic_ns();
    if (now_ns - disk->looked_ns < LOOK_MS * INT64_C(1000000) && disk->looked_ns)
        return;
    disk->looked_ns = now_ns;
    if (kl__segments_check(&disk->segments) == 0) {
        kl__disk_take_reserve(disk, false);
        return;
    }
    snprintf(text, sizeof text,
             "%.96s, or its journal, was removed, moved or replaced while it was open: nothing more is accepted; stop "
             "this process, put back what was there, and start it again",
             disk->path);
    kl__journal_break(disk->journal, text);
}

/* The next segment is best made of one that is dropped. */
static void keep_up(kl__disk *disk, bool next_wanted)
{
    look_after(disk);
    kl__disk_note_reach(disk, false);
    sweep(disk);
    kl__segments_prepare_spare(&disk->segments);
    drop(disk, false);
    kl__segments_give_back(&disk->segments);
    bool is_compacted = compact(disk, next_wanted ? 0 : kl__segments_slack(&disk->segments), false);
    if (next_wanted && !atomic_load(&disk->segments.has_next))
        (void)kl__segments_prepare(&disk->segments); /* it is tried again when it is needed */
    kl__segments_make_spare(&disk->segments);
    if (is_compacted)
        kl__segments_want_upkeep(&disk->segments); /* there may be more */
}

/* Is the next segment to be made, and not just now in vain? With the segments' mutex held. */
static bool next_is_due(const kl__segments *segments)
{
    return segments->next_wanted &&
           (!segments->next_error || kl__monotonic_ns() - segments->next_failed_ns >= LOOK_MS * INT64_C(1000000));
}

static void *run_upkeep(void *ctx)
{
    kl__disk *disk = ctx;
    kl__segments *segments = &disk->segments;
    pthread_mutex_lock(&segments->mutex);
    while (!segments->stopping) {
        bool is_time = true;
        if (!segments->upkeep_wanted && !next_is_due(segments))
            is_time = !kl__cond_wait(&segments->changed, &segments->mutex, kl__deadline_ns(LOOK_MS));
        if (segments->stopping)
            break;
        bool next_wanted = next_is_due(segments);
        if (!is_time && !segments->upkeep_wanted && !next_wanted)
            continue;
        segments->upkeep_wanted = false;
        segments->next_wanted &= !next_wanted;
        pthread_mutex_unlock(&segments->mutex);
        keep_up(disk, next_wanted);
        int64_t until_ns = kl__monotonic_ns() + PAUSE_NS;
        pthread_mutex_lock(&segments->mutex);
        while (disk->is_patient && !segments->stopping && !next_is_due(segments))
            if (!kl__cond_wait(&segments->changed, &segments->mutex, until_ns))
                break;
        segments->upkeep_wanted |= disk->is_patient;
    }
    pthread_mutex_unlock(&segments->mutex);
    return NULL;
}

/* A process that is over before upkeep has lost its patience leaves the journal as it should be (G2), too: or those
 * that come and go would let it grow. Patience leaves KL_PATIENCE_SEGMENTS at most, so more need not be copied. */
static void finish(kl__disk *disk)
{
    if (kl__journal_check(disk->journal) != KL_OK)
        return;
    sweep(disk);
    drop(disk, true);
    kl__segments_drop_all(&disk->segments);
    for (int i = 0; i < KL_PATIENCE_SEGMENTS && compact(disk, 0, true); i++)
        kl__segments_drop_all(&disk->segments);
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
    finish(disk);
}
