/* job_results.c - the finished tasks of a job in the order of their ids: a merge that reads about what it returns.
 *
 * From: kl_job_results, job_rerun.c, job_cancel.c.  To: kl_store_results, shard by shard.
 *
 * Ids begin with their shard. So inside one partition of one layout all ids of shard 0 come before those of shard 1,
 * and a partition is one stream that goes from shard to shard; only streams of different partitions and layouts
 * interleave. A stream that holds no rows is known by a lower bound of what it could give next (the last id that it
 * gave, or the first of the shard that it comes to), and is asked only when no other stream has anything lower:
 *
 *     stream 0   [31.. 32.. 35..]        head 31
 *     stream 1   [33..]                  head 33
 *     stream 2   (shard 4 not read)      bound 40..       not asked before 33 and 35 are given out
 *
 * Each is asked for its share of what the page still needs, by what it has given so far. A page of one stream therefore
 * reads the rows that it returns and one more, and one of several reads few that it throws away. Asking every shard for
 * a whole page, as one would at first, reads shards x tasks rows for a full listing.
 *
 * Where several shards of a partition have nothing, one search says which have any, if the results are few. So a page
 * asks in vain a few dozen times, however many shards there are; but where there are more than FEW_MAX results, and yet
 * fewer than shards, as often as shards lie between those that it returns.
 *
 * R1  Everything up to the last id that was given out has been given out, in every stream. So that one id is the whole
 *     cursor, whatever layouts are opened between two pages.
 * R2  An id is given out once. The same id in two layouts is one task that was moved: the newer layout's counts.
 *
 * A cursor is the base64url of
 *
 *     byte 0      version, 1
 *     1..16       the job
 *     17..32      the last id that was given out
 *     33..36      CRC-32C of bytes 0..32, little-endian */
#include <endian.h>
#include <stdlib.h>

#include "base/compare.h"
#include "base/crc32c.h"
#include "base/layout.h"
#include "queue/job.h"
#include "queue/put.h"

enum {
    ROWS_FIRST_MAX = 128, /* rows asked for at once before it is known how large they are */
    VAIN_MAX = 32,        /* shards of a partition without results, before it is asked which have any */
    FEW_MAX = 1024,       /* results of a partition that are looked through for that, */
    FEW_AT_ONCE = 16,     /* so many in one search: they come with their payloads */
    CURSOR_VERSION = 1,
    CURSOR_BYTES = 37,
    CURSOR_CHECKED_BYTES = 33,
    CURSOR_TEXT_BYTES = 50, /* 37 bytes in base64 without padding */
};

_Static_assert(CURSOR_TEXT_BYTES == (CURSOR_BYTES * 8 + 5) / 6 && CURSOR_TEXT_BYTES <= KL_JOB_CURSOR_MAX, "it fits");

/* One partition of one layout. */
struct stream {
    const kl__queue_layout *layout;
    uint32_t partition;
    uint32_t shard;    /* the rows are of this one, or would be */
    bool begun;        /* `key` is an id of the shard that was passed, not just the shard's first */
    bool shard_ends;   /* the rows are the last of the shard */
    kl_task_id key;    /* the first row's id, or nothing comes from here before it */
    kl_task_id passed; /* the last id that was read, or the cursor */
    kl_task *rows;     /* from `at` to `count`; their bytes lie in the arena */
    size_t at, count, room;
    uint64_t given;
    uint32_t in_vain; /* shards that were asked and had nothing */
    uint32_t *shards; /* the only ones that have results, ascending; NULL: not known */
    size_t shard_at, shard_count;
};

struct merge {
    kl_task_id job;
    kl_arena *arena;
    size_t page;
    uint64_t given, read, bytes;
    uint64_t searched;    /* rows read to learn which shards have any */
    kl_task_id last;      /* given out; all zero: none */
    size_t count;         /* of the heap */
    struct stream **heap; /* the lowest first */
    struct stream *streams;
    size_t stream_count;
};

/* --- The heap --- */

static bool has_rows(const struct stream *stream) { return stream->at < stream->count; }

/* Of equal keys, a stream that must be asked comes first, so that both rows of one id are known before one is given
 * out; then the newer layout, which stands later in the array. */
static bool less(const struct stream *a, const struct stream *b)
{
    int order = kl_id_compare(&a->key, &b->key);
    if (order != 0)
        return order < 0;
    return has_rows(a) != has_rows(b) ? has_rows(b) : a > b;
}

static void sift_down(struct merge *merge, size_t at)
{
    struct stream *moved = merge->heap[at];
    for (size_t child; (child = 2 * at + 1) < merge->count; at = child) {
        if (child + 1 < merge->count && less(merge->heap[child + 1], merge->heap[child]))
            child++;
        if (!less(merge->heap[child], moved))
            break;
        merge->heap[at] = merge->heap[child];
    }
    merge->heap[at] = moved;
}

static void drop_first(struct merge *merge)
{
    merge->heap[0] = merge->heap[--merge->count];
    if (merge->count > 0)
        sift_down(merge, 0);
}

/* --- Streams --- */

/* The lowest id that could begin with the shard's digits. */
static kl_task_id first_of_shard(const kl_layout *layout, uint32_t shard)
{
    kl_task_id id = {{0}};
    uint32_t digits = shard << (32 - kl__shard_bits(layout));
    for (int i = 0; i < 4; i++)
        id.bytes[i] = (uint8_t)(digits >> (24 - 8 * i));
    return id;
}

/* The first shard from this one on that may have results. False: there is none. */
static bool next_shard(struct stream *stream, uint32_t from, uint32_t *ret_shard)
{
    if (!stream->shards) {
        *ret_shard = from;
        return from < kl_layout_shards(&stream->layout->layout);
    }
    while (stream->shard_at < stream->shard_count && stream->shards[stream->shard_at] < from)
        stream->shard_at++;
    if (stream->shard_at == stream->shard_count)
        return false;
    *ret_shard = stream->shards[stream->shard_at];
    return true;
}

static void begin_stream(struct stream *stream, const kl_task_id *after)
{
    if (!after)
        return;
    stream->shard = kl_id_shard(&stream->layout->layout, after);
    stream->begun = true;
    stream->key = stream->passed = *after;
}

/* What it could give next when it holds no rows. False: it has ended. */
static bool move_on(struct stream *stream)
{
    if (!stream->shard_ends) {
        stream->key = stream->passed;
        return true;
    }
    if (!next_shard(stream, stream->shard + 1, &stream->shard))
        return false;
    stream->begun = stream->shard_ends = false;
    stream->key = first_of_shard(&stream->layout->layout, stream->shard);
    return true;
}

/* --- Few results in many shards --- */

static int compare_shards(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* Learns which shards have results. Where there are too many to look through, nothing is known: the search shows the
 * latest first. */
static kl_rc search_shards(struct merge *merge, struct stream *stream)
{
    kl_task rows[FEW_AT_ONCE], last;
    kl_arena arena = {0};
    kl_find find = {
        .partition = kl__layout_number(stream->layout, stream->partition), .job = merge->job, .max = FEW_AT_ONCE};
    uint32_t *shards = kl__alloc_zeroed(FEW_MAX, sizeof *shards);
    size_t count = FEW_AT_ONCE, known = 0;
    kl_rc rc = shards ? KL_OK : kl__fail_memory();
    while (rc == KL_OK && count == FEW_AT_ONCE && known + FEW_AT_ONCE <= FEW_MAX) {
        kl_arena_reset(&arena);
        KL_ASK(rc, kl_store_find(stream->layout->stores[stream->partition], &find, &arena, rows, &count));
        for (size_t i = 0; rc == KL_OK && i < count; i++)
            shards[known++] = rows[i].entry.place.shard;
        if (rc == KL_OK && count > 0) {
            last = rows[count - 1];
            find.after = &last;
        }
    }
    kl_arena_free(&arena);
    merge->searched += known;
    if (rc != KL_OK || count == FEW_AT_ONCE) {
        kl__free(shards);
        return rc;
    }
    qsort(shards, known, sizeof *shards, compare_shards);
    stream->shards = shards;
    stream->shard_count = known;
    return KL_OK;
}

/* --- Asking --- */

/* Its share of what the page still needs, as far as that is known by now. */
static size_t rows_to_ask(const struct merge *merge, const struct stream *stream)
{
    uint64_t needed = merge->given < merge->page ? merge->page - merge->given : 1;
    uint64_t all = merge->given + merge->count;
    uint64_t share = (needed * (stream->given + 1) + all - 1) / all;
    uint64_t fit = merge->read ? KL_BATCH_BYTES_MAX / (merge->bytes / merge->read + 1) : ROWS_FIRST_MAX;
    if (share > fit)
        share = fit;
    return share < 1 ? 1 : share > KL_JOB_PAGE_MAX ? KL_JOB_PAGE_MAX : (size_t)share;
}

static size_t bytes_of(const kl_task *task)
{
    return sizeof *task + task->entry.payload.len + task->entry.headers.len + task->result.len + task->error.len;
}

/* The stream's rows have been given out, so they need not be kept. */
static bool make_room(struct stream *stream, size_t max)
{
    if (max <= stream->room)
        return true;
    kl__free(stream->rows);
    stream->rows = kl__alloc_zeroed(max, sizeof *stream->rows);
    stream->room = stream->rows ? max : 0;
    return stream->rows != NULL;
}

static kl_rc ask(struct merge *merge, struct stream *stream)
{
    size_t max = rows_to_ask(merge, stream);
    kl_place place = {kl__layout_number(stream->layout, stream->partition), stream->shard};
    stream->at = stream->count = 0;
    if (!make_room(stream, max))
        return kl__fail_memory();
    size_t count;
    kl_rc rc;
    KL_ASK(rc, kl_store_results(stream->layout->stores[stream->partition], place, &merge->job,
                                stream->begun ? &stream->passed : NULL, max, merge->arena, stream->rows, &count));
    if (rc != KL_OK)
        return rc;
    stream->count = count;
    stream->shard_ends = count < max;
    if (count == 0 && ++stream->in_vain == VAIN_MAX)
        return search_shards(merge, stream);
    merge->read += count;
    for (size_t i = 0; i < count; i++)
        merge->bytes += bytes_of(&stream->rows[i]);
    if (count > 0) {
        stream->begun = true;
        stream->passed = stream->rows[count - 1].entry.id;
    }
    return KL_OK;
}

/* --- The merge --- */

static size_t count_streams(const kl__descriptor *descriptor, const kl__job *job)
{
    size_t count = 0;
    for (size_t i = 0; i < descriptor->layout_count; i++)
        if (descriptor->layouts[i].number >= job->layout)
            count += descriptor->layouts[i].layout.partitions;
    return count;
}

static void make_streams(struct merge *merge, const kl__descriptor *descriptor, const kl__job *job,
                         const kl_task_id *after)
{
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        for (uint32_t p = 0; layout->number >= job->layout && p < layout->layout.partitions; p++) {
            struct stream *stream = &merge->streams[merge->count];
            *stream = (struct stream){.layout = layout, .partition = p};
            begin_stream(stream, after);
            merge->heap[merge->count++] = stream;
        }
    }
    for (size_t i = merge->count / 2; i-- > 0;)
        sift_down(merge, i);
}

static void close_merge(struct merge *merge)
{
    if (!merge)
        return;
    for (size_t i = 0; merge->streams && i < merge->stream_count; i++) {
        kl__free(merge->streams[i].rows);
        kl__free(merge->streams[i].shards);
    }
    kl__free(merge->streams);
    kl__free(merge->heap);
    kl__free(merge);
}

static kl_rc open_merge(const kl__descriptor *descriptor, const kl__job *job, const kl_task_id *after, size_t page,
                        kl_arena *arena, struct merge **ret_merge)
{
    size_t count = count_streams(descriptor, job);
    struct merge *merge = kl__alloc_zeroed(1, sizeof *merge);
    if (!merge)
        return kl__fail_memory();
    *merge = (struct merge){.job = job->id, .arena = arena, .page = page, .stream_count = count};
    merge->streams = kl__alloc_zeroed(count, sizeof *merge->streams);
    merge->heap = kl__alloc_zeroed(count, sizeof *merge->heap);
    if (!merge->streams || !merge->heap) {
        close_merge(merge);
        return kl__fail_memory();
    }
    make_streams(merge, descriptor, job, after);
    *ret_merge = merge;
    return KL_OK;
}

/* The first stream has a new key, or has ended. */
static void replace_first(struct merge *merge)
{
    struct stream *first = merge->heap[0];
    if (has_rows(first))
        first->key = first->rows[first->at].entry.id;
    else if (!move_on(first)) {
        drop_first(merge);
        return;
    }
    sift_down(merge, 0);
}

static kl_rc next(struct merge *merge, kl__merged *ret_merged)
{
    while (merge->count > 0) {
        struct stream *first = merge->heap[0];
        if (!has_rows(first)) {
            kl_rc rc = ask(merge, first);
            if (rc != KL_OK)
                return rc;
            replace_first(merge);
            continue;
        }
        const kl_task *row = &first->rows[first->at++];
        bool repeated = merge->given > 0 && kl_id_compare(&row->entry.id, &merge->last) == 0; /* R2 */
        if (!repeated) {
            *ret_merged = (kl__merged){*row, first->layout, first->partition};
            merge->last = row->entry.id;
            merge->given++;
            first->given++;
        }
        replace_first(merge);
        if (!repeated)
            return KL_OK;
    }
    ret_merged->layout = NULL; /* the end */
    return KL_OK;
}

/* --- Cursors --- */

static const char digits_of_64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void print_64(const uint8_t bytes[CURSOR_BYTES], char text[CURSOR_TEXT_BYTES + 1])
{
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = 0; i < CURSOR_BYTES; i++) {
        bits = bits << 8 | bytes[i];
        for (held += 8; held >= 6; held -= 6)
            *text++ = digits_of_64[bits >> (held - 6) & 63];
    }
    if (held > 0)
        *text++ = digits_of_64[bits << (6 - held) & 63];
    *text = '\0';
}

static bool parse_64(const char *text, uint8_t bytes[CURSOR_BYTES])
{
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = 0; i < CURSOR_TEXT_BYTES; i++) {
        const char *digit = text[i] ? strchr(digits_of_64, text[i]) : NULL;
        if (!digit)
            return false;
        bits = bits << 6 | (uint32_t)(digit - digits_of_64);
        held += 6;
        if (held >= 8) {
            held -= 8;
            *bytes++ = (uint8_t)(bits >> held);
        }
    }
    return (bits & ((1u << held) - 1)) == 0;
}

static uint32_t checksum(const uint8_t bytes[CURSOR_BYTES]) { return kl__crc32c(0, bytes, CURSOR_CHECKED_BYTES); }

static kl_rc print_cursor(const kl_task_id *job, const kl_task_id *last, kl_arena *arena, kl_bytes *ret_cursor)
{
    uint8_t bytes[CURSOR_BYTES] = {CURSOR_VERSION};
    memcpy(bytes + 1, job, sizeof *job);
    memcpy(bytes + 17, last, sizeof *last);
    uint32_t crc = htole32(checksum(bytes));
    memcpy(bytes + CURSOR_CHECKED_BYTES, &crc, sizeof crc);
    char text[CURSOR_TEXT_BYTES + 1];
    print_64(bytes, text);
    return kl_arena_copy(arena, kl_str(text), ret_cursor) ? KL_OK : kl__fail_memory();
}

static kl_rc refuse_cursor(kl_bytes cursor, const char *why)
{
    char quoted[KL_QUOTE_BYTES];
    return kl__fail(KL_EINVAL,
                    "%s is no cursor of this job: %s; pass what the last call returned, a task's id, or nothing",
                    kl__quote(cursor, quoted), why);
}

static kl_rc parse_cursor(kl_bytes cursor, const kl_task_id *job, kl_task_id *ret_last)
{
    uint8_t bytes[CURSOR_BYTES];
    uint32_t crc;
    if (cursor.len == KL_ID_TEXT_BYTES - 1)
        return kl_id_parse(cursor, ret_last);
    if (cursor.len != CURSOR_TEXT_BYTES)
        return refuse_cursor(cursor, "it has another length");
    if (!parse_64(cursor.data, bytes))
        return refuse_cursor(cursor, "there is a character in it that cursors do not have");
    memcpy(&crc, bytes + CURSOR_CHECKED_BYTES, sizeof crc);
    if (le32toh(crc) != checksum(bytes))
        return refuse_cursor(cursor, "it was changed on its way");
    if (bytes[0] != CURSOR_VERSION)
        return refuse_cursor(cursor, "it is of another version");
    if (memcmp(bytes + 1, job, sizeof *job) != 0)
        return refuse_cursor(cursor, "it belongs to another one");
    memcpy(ret_last, bytes + 17, sizeof *ret_last);
    return KL_OK;
}

/* --- A page --- */

static kl_rc fill_found(const kl_queue *queue, const kl__merged *merged, kl_arena *arena, kl_found *ret_found)
{
    char name[KL_PARTITION_NAME_BYTES];
    kl_bytes partition, own_name;
    *ret_found = (kl_found){.task = merged->task};
    kl_rc rc = kl__envelope_decode(merged->task.entry.headers, arena, &ret_found->extra);
    if (rc == KL_OK)
        rc = kl_partition_name(&merged->layout->layout, queue->name, merged->partition, sizeof name, name);
    if (rc != KL_OK)
        return rc;
    if (!kl_arena_copy(arena, kl_str(name), &partition) || !kl_arena_copy(arena, kl_str(queue->name), &own_name))
        return kl__fail_memory();
    ret_found->partition = partition.data;
    ret_found->layout = merged->layout->number;
    ret_found->made_ms = kl_id_ms(&merged->layout->layout, &merged->task.entry.id);
    ret_found->queue = own_name.data;
    return KL_OK;
}

/* One row more than the page has is read, so that the last page is known to be the last. */
static kl_rc fill_page(struct merge *merge, kl__job_page *page)
{
    size_t bytes = 0;
    kl__merged behind;
    while (page->count < page->max && bytes < KL_BATCH_BYTES_MAX) {
        kl__merged *row = &page->rows[page->count];
        kl_rc rc = next(merge, row);
        if (rc != KL_OK)
            return rc;
        if (!row->layout)
            break;
        page->count++;
        bytes += bytes_of(&row->task);
    }
    kl_rc rc = next(merge, &behind);
    if (rc != KL_OK)
        return rc;
    page->ended = !behind.layout;
    page->read = merge->read + merge->searched;
    return KL_OK;
}

kl_rc kl__job_page_read(const kl__descriptor *descriptor, const kl__job *job, const kl_task_id *after, kl_arena *arena,
                        kl__job_page *page)
{
    struct merge *merge = NULL;
    page->count = 0;
    kl_rc rc = open_merge(descriptor, job, after, page->max + 1, arena, &merge);
    if (rc == KL_OK)
        rc = fill_page(merge, page);
    close_merge(merge);
    return rc;
}

static bool same_place(const kl__merged *a, const kl__merged *b)
{
    return a->layout == b->layout && a->partition == b->partition &&
           a->task.entry.place.shard == b->task.entry.place.shard;
}

/* Rows of one shard are taken together; those that are done have no layout any more. */
static kl_rc forget_shard(kl__merged *rows, size_t count, kl_task_id *ids)
{
    kl__merged first = rows[0];
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        if (same_place(&rows[i], &first)) {
            ids[found++] = rows[i].task.entry.id;
            rows[i].layout = NULL;
        }
    kl_rc rc;
    KL_ASK(rc, kl_store_forget(first.layout->stores[first.partition], first.task.entry.place, ids, found));
    return rc;
}

kl_rc kl__merged_forget(kl__merged *rows, size_t count)
{
    kl_task_id *ids = kl__alloc_zeroed(count ? count : 1, sizeof *ids);
    if (!ids)
        return kl__fail_memory();
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        if (rows[i].layout)
            rc = forget_shard(&rows[i], count - i, ids);
    kl__free(ids);
    return rc;
}

static kl_rc check_page(const kl_queue *queue, const kl_task_id *job, kl_bytes cursor, size_t max,
                        const kl_arena *arena, const kl_found *ret_found, const size_t *ret_count,
                        const kl_bytes *ret_cursor)
{
    if (!queue || !job || !arena || !ret_found || !ret_count || !ret_cursor || (cursor.len > 0 && !cursor.data))
        return kl__fail(KL_EINVAL, "an argument is NULL; only ret_read may be");
    if (max < 1 || max > KL_JOB_PAGE_MAX)
        return kl__fail(KL_EINVAL, "max is %zu; ask for 1 to %d results at a time", max, KL_JOB_PAGE_MAX);
    return KL_OK;
}

static kl_rc read_page(kl_queue *queue, const kl__job *job, kl_bytes cursor, kl_arena *arena, kl__job_page *page,
                       kl_found *ret_found)
{
    kl_task_id last;
    kl_rc rc = cursor.len > 0 ? parse_cursor(cursor, &job->id, &last) : KL_OK;
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    rc = kl__job_page_read(descriptor, job, cursor.len > 0 ? &last : NULL, arena, page);
    for (size_t i = 0; rc == KL_OK && i < page->count; i++)
        rc = fill_found(queue, &page->rows[i], arena, &ret_found[i]);
    kl__descriptor_release(descriptor);
    return rc;
}

kl_rc kl_job_results(kl_queue *queue, const kl_task_id *job, kl_bytes cursor, size_t max, kl_arena *arena,
                     kl_found *ret_found, size_t *ret_count, kl_bytes *ret_cursor, uint64_t *ret_read)
{
    kl__job record;
    kl__job_page page = {.max = max};
    kl_bytes next_cursor = {"", 0};
    kl_rc rc = check_page(queue, job, cursor, max, arena, ret_found, ret_count, ret_cursor);
    if (rc != KL_OK)
        return rc;
    page.rows = kl__alloc_zeroed(max, sizeof *page.rows);
    if (!page.rows)
        return kl__fail_memory();
    rc = kl__job_read(queue, job, arena, &record);
    if (rc == KL_OK)
        rc = read_page(queue, &record, cursor, arena, &page, ret_found);
    if (rc == KL_OK && !page.ended)
        rc = print_cursor(job, &page.rows[page.count - 1].task.entry.id, arena, &next_cursor);
    kl__free(page.rows);
    if (rc != KL_OK)
        return rc;
    *ret_count = page.count;
    *ret_cursor = next_cursor;
    if (ret_read)
        *ret_read = page.read;
    return KL_OK;
}
