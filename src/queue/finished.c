/* finished.c - finished tasks of all partitions and layouts of a queue in one list, the latest first.
 *
 * From: applications, net/, cli/, dead.c.  To: store/, look.c.
 *
 * Each partition of each layout is a source that shows its tasks in order; the list is their merge. Of equal times
 * those of the newer layout and the lower partition come first: so the order is total, and one place in it, the last
 * task that was shown, says for every source where the next page begins:
 *
 *     sources before its own     what was finished before its time
 *     its own source             what comes behind it
 *     sources after its own      what was finished at its time or before
 *
 * A source is asked for its share of the page and asked again only when that is used up, so about as many tasks are
 * read as are shown, and no more than that many are held. A page ends early where they are large. */
#include <stdio.h>

#include "queue/look.h"

enum { SHARE_MAX = 128 /* tasks that a source is asked for at once: it holds them all with their bytes */ };

struct stream {
    kl__source source;
    kl_find find;
    kl_task after; /* the last that was taken, without its bytes */
    kl_arena arena;
    kl_task *tasks;
    size_t count, next;
    bool ended;
};

struct merge {
    kl_queue *queue;
    const kl_finished *which;
    kl_arena *arena; /* the caller's */
    kl_found *found;
    size_t count;
    size_t bytes; /* of what was shown */
    size_t share; /* tasks that a source is asked for at once */
    struct stream *streams;
    size_t stream_count;
    struct stream *last; /* of the last task shown */
};

kl_find kl__finished_find(const kl_finished *which, kl__source source)
{
    return (kl_find){
        .partition = kl__layout_number(source.layout, source.partition),
        .state = which->state,
        .key = which->key,
        .kind = which->kind,
        .job = which->job,
        .from_ms = which->from_ms,
        .until_ms = which->until_ms,
        .words = which->words,
    };
}

/* --- Streams --- */

static bool keep(kl_arena *arena, kl_bytes *bytes)
{
    if (bytes->len > 0)
        return kl_arena_copy(arena, *bytes, bytes);
    *bytes = (kl_bytes){"", 0};
    return true;
}

static size_t bytes_of(const kl_task *task)
{
    return task->entry.key.len + task->entry.kind.len + task->entry.headers.len + task->entry.payload.len +
           task->error.len + task->result.len;
}

/* The task's bytes move into the caller's arena. */
static kl_rc keep_task(kl_arena *arena, kl_task *task)
{
    bool kept = keep(arena, &task->entry.key) && keep(arena, &task->entry.kind) && keep(arena, &task->entry.headers) &&
                keep(arena, &task->entry.payload) && keep(arena, &task->error) && keep(arena, &task->result);
    return kept ? KL_OK : kl__fail_memory();
}

static kl_task mark_of(const kl_task *task)
{
    return (kl_task){
        .entry = {.place = task->entry.place, .id = task->entry.id},
        .state = task->state,
        .position = task->position,
        .finished_ms = task->finished_ms,
    };
}

static kl_rc refill(struct merge *merge, struct stream *stream)
{
    if (stream->next < stream->count || stream->ended)
        return KL_OK;
    if (!stream->tasks && !(stream->tasks = kl__alloc_zeroed(merge->share, sizeof *stream->tasks)))
        return kl__fail_memory();
    kl_arena_reset(&stream->arena);
    stream->find.max = merge->share;
    stream->next = stream->count = 0;
    kl_rc rc =
        kl_store_find(kl__source_store(stream->source), &stream->find, &stream->arena, stream->tasks, &stream->count);
    stream->ended = rc == KL_OK && stream->count < merge->share;
    return rc;
}

/* The stream whose next task is the next of the list, or NULL at the end. */
static kl_rc choose(struct merge *merge, struct stream **ret_stream)
{
    struct stream *best = NULL;
    for (size_t i = 0; i < merge->stream_count; i++) {
        struct stream *stream = &merge->streams[i];
        kl_rc rc = refill(merge, stream);
        if (rc != KL_OK)
            return rc;
        if (stream->next == stream->count)
            continue;
        if (!best || stream->tasks[stream->next].finished_ms > best->tasks[best->next].finished_ms)
            best = stream;
    }
    *ret_stream = best;
    return KL_OK;
}

static kl_rc show(struct merge *merge, struct stream *stream)
{
    kl_found *found = &merge->found[merge->count];
    found->task = stream->tasks[stream->next++];
    stream->after = mark_of(&found->task);
    stream->find.after = &stream->after;
    kl_rc rc = keep_task(merge->arena, &found->task);
    if (rc == KL_OK)
        rc = kl__look_describe(merge->queue, stream->source, merge->arena, found);
    merge->last = stream;
    merge->count += rc == KL_OK;
    merge->bytes += bytes_of(&found->task);
    return rc;
}

static bool is_full(const struct merge *merge)
{
    return merge->count == merge->which->max || merge->bytes >= KL_BATCH_BYTES_MAX;
}

/* --- Cursors --- */

static uint64_t hash_finished(const kl_queue *queue, const kl_finished *which)
{
    int64_t numbers[] = {which->state, which->from_ms, which->until_ms};
    uint64_t hash = kl__cursor_hash(0, kl_str(queue->name));
    hash = kl__cursor_hash(hash, which->key);
    hash = kl__cursor_hash(hash, which->kind);
    hash = kl__cursor_hash(hash, which->words);
    hash = kl__cursor_hash(hash, (kl_bytes){which->job.bytes, sizeof which->job.bytes});
    return kl__cursor_hash(hash, (kl_bytes){numbers, sizeof numbers});
}

static kl_rc write_place(const struct merge *merge, kl_bytes *ret_cursor)
{
    char text[KL_CURSOR_BYTES - 20], id[KL_ID_TEXT_BYTES];
    const struct stream *last = merge->last;
    *ret_cursor = (kl_bytes){"", 0};
    if (!is_full(merge))
        return KL_OK;
    kl_id_print(&last->after.entry.id, id);
    snprintf(text, sizeof text, "f1.%llu.%u.%u.%llu.%llu.%s", (unsigned long long)last->source.layout->number,
             last->source.partition, last->after.entry.place.shard, (unsigned long long)last->after.finished_ms,
             (unsigned long long)last->after.position, id);
    return kl__cursor_write(text, hash_finished(merge->queue, merge->which), merge->arena, ret_cursor);
}

struct place {
    uint64_t layout;
    uint32_t partition;
    kl_task after; /* but for the number of its partition in the store */
};

/* Its hash says that the text was written by write_place, unless somebody went to the trouble of forging it. */
static kl_rc read_place(const struct merge *merge, struct place *ret_place)
{
    char text[KL_CURSOR_BYTES], id[KL_ID_TEXT_BYTES];
    unsigned long long layout, finished_ms, position;
    kl_rc rc = kl__cursor_read(merge->which->cursor, hash_finished(merge->queue, merge->which), text);
    if (rc != KL_OK)
        return rc;
    *ret_place = (struct place){.layout = 0};
    if (sscanf(text, "f1.%llu.%u.%u.%llu.%llu.%36s", &layout, &ret_place->partition,
               &ret_place->after.entry.place.shard, &finished_ms, &position, id) != 6 ||
        finished_ms > KL_ID_MS_MAX || kl_id_parse(kl_str(id), &ret_place->after.entry.id) != KL_OK)
        return kl__cursor_refuse();
    ret_place->layout = layout;
    ret_place->after.finished_ms = (int64_t)finished_ms;
    ret_place->after.position = position;
    return KL_OK;
}

static void end_before(kl_find *find, int64_t until_ms)
{
    if (find->until_ms == 0 || find->until_ms > until_ms)
        find->until_ms = until_ms;
}

/* Lets the stream go on where the place says. A layout that is no more has no stream of its own. */
static void go_to(struct stream *stream, const struct place *place)
{
    uint64_t layout = stream->source.layout->number;
    uint32_t partition = stream->source.partition;
    if (layout == place->layout && partition == place->partition) {
        stream->after = place->after;
        stream->after.entry.place.partition = stream->find.partition;
        stream->find.after = &stream->after;
        return;
    }
    bool before = layout > place->layout || (layout == place->layout && partition < place->partition);
    end_before(&stream->find, place->after.finished_ms + !before);
}

/* --- The list --- */

/* The newest layout first. */
static kl_rc make_streams(struct merge *merge, const kl__descriptor *descriptor)
{
    size_t count = 0;
    struct place place;
    kl_rc rc = merge->which->cursor.len > 0 ? read_place(merge, &place) : KL_OK;
    if (rc != KL_OK)
        return rc;
    for (size_t i = 0; i < descriptor->layout_count; i++)
        count += descriptor->layouts[i].layout.partitions;
    merge->streams = kl__alloc_zeroed(count, sizeof *merge->streams);
    if (!merge->streams)
        return kl__fail_memory();
    KL_ASSERT(count > 0);
    merge->stream_count = count;
    merge->share = (merge->which->max + count - 1) / count;
    if (merge->share > SHARE_MAX)
        merge->share = SHARE_MAX;
    count = 0;
    for (size_t i = descriptor->layout_count; i-- > 0;) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        for (uint32_t p = 0; p < layout->layout.partitions; p++) {
            struct stream *stream = &merge->streams[count++];
            stream->source = (kl__source){layout, p};
            stream->find = kl__finished_find(merge->which, stream->source);
            if (merge->which->cursor.len > 0)
                go_to(stream, &place);
        }
    }
    return KL_OK;
}

static kl_rc list(struct merge *merge, const kl__descriptor *descriptor, kl_bytes *ret_cursor)
{
    kl_rc rc = make_streams(merge, descriptor);
    for (bool more = true; rc == KL_OK && more && !is_full(merge);) {
        struct stream *stream = NULL;
        rc = choose(merge, &stream);
        more = rc == KL_OK && stream;
        if (more)
            rc = show(merge, stream);
    }
    if (rc == KL_OK)
        rc = write_place(merge, ret_cursor);
    for (size_t i = 0; i < merge->stream_count; i++) {
        kl_arena_free(&merge->streams[i].arena);
        kl__free(merge->streams[i].tasks);
    }
    kl__free(merge->streams);
    return rc;
}

kl_rc kl_queue_finished(kl_queue *queue, const kl_finished *which, kl_arena *arena, kl_found *ret_found,
                        size_t *ret_count, kl_bytes *ret_cursor)
{
    if (!queue)
        return kl__refuse_no_queue();
    if (!which)
        return kl__fail(KL_EINVAL, "the kl_finished is NULL; pass one, at least with max");
    kl_rc rc = kl__list_check(which->max, arena, ret_found, ret_count, ret_cursor);
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    struct merge merge = {.queue = queue, .which = which, .arena = arena, .found = ret_found};
    rc = list(&merge, descriptor, ret_cursor);
    kl__descriptor_release(descriptor);
    if (rc == KL_OK)
        *ret_count = merge.count;
    return rc;
}
