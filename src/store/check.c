/* check.c - is the input of a call valid? Every argument is looked at once, here, before an engine sees any of it.
 *
 * A sentence names the item ("entry 3", "task 5 of batch 2"), what it has, and what it may have. Nothing is formatted
 * unless something is wrong: for a valid entry the checks are a dozen comparisons. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/layout.h"
#include "store/dispatch.h"
#include "store/quick.h"

#define NO_BATCH SIZE_MAX

/* Which item of a call is looked at. */
struct item {
    const char *what; /* "entry"; NULL: the call has one thing only */
    size_t index;
    size_t batch; /* of a settle, or NO_BATCH */
};

static const struct item call_itself = {NULL, 0, NO_BATCH};

static kl_rc refuse(const struct item *item, const char *format, ...) KL_PRINTF(2, 3) __attribute__((cold));

static kl_rc refuse(const struct item *item, const char *format, ...)
{
    char sentence[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (!item->what)
        return kl__fail(KL_EINVAL, "%s", sentence);
    if (item->batch == NO_BATCH)
        return kl__fail(KL_EINVAL, "%s %zu: %s", item->what, item->index, sentence);
    return kl__fail(KL_EINVAL, "%s %zu of batch %zu: %s", item->what, item->index, item->batch, sentence);
}

/* --- Parts --- */

static kl_rc check_pointer(const void *pointer, const char *what)
{
    return pointer ? KL_OK : kl__fail(KL_EINVAL, "%s is NULL; pass one", what);
}

/* An array of items: NULL only when it is empty. */
static kl_rc check_array(const void *items, const char *what, size_t count)
{
    if (count > KL_BATCH_MAX)
        return kl__fail(KL_EINVAL, "%zu %s are too many for one call; pass at most %d and call again", count, what,
                        KL_BATCH_MAX);
    if (count > 0 && !items)
        return kl__fail(KL_EINVAL, "there should be %zu %s, but the pointer is NULL", count, what);
    return KL_OK;
}

/* Where a call that shows up to max of something puts its answer. */
static kl_rc check_answer(size_t max, const void *answers, const size_t *ret_count)
{
    if (!answers || !ret_count)
        return kl__fail(KL_EINVAL, "the array for the answers or ret_count is NULL; pass both");
    if (max < 1 || max > KL_BATCH_MAX)
        return kl__fail(KL_EINVAL, "max is %zu; it must be from 1 to %d", max, KL_BATCH_MAX);
    return KL_OK;
}

static inline kl_rc check_number(const struct item *item, const char *name, int64_t value, int64_t min, int64_t max)
{
    if (KL_LIKELY(value >= min && value <= max))
        return KL_OK;
    return refuse(item, "%s is %lld; it must be from %lld to %lld", name, (long long)value, (long long)min,
                  (long long)max);
}

static inline kl_rc check_bytes(const struct item *item, const char *name, kl_bytes bytes, size_t max)
{
    if (KL_UNLIKELY(bytes.len > max))
        return refuse(item, "%s.len is %zu; it may be up to %zu", name, bytes.len, max);
    if (KL_UNLIKELY(bytes.len > 0 && !bytes.data))
        return refuse(item, "%s.len is %zu, but %s.data is NULL", name, bytes.len, name);
    return KL_OK;
}

static inline kl_rc check_known(kl_store *store, const struct item *item, uint32_t partition, uint32_t *ret_prefix_len)
{
    *ret_prefix_len = kl__partition_prefix_len(store, partition);
    if (KL_LIKELY(*ret_prefix_len))
        return KL_OK;
    if (partition == KL_PARTITION_AWAY)
        return kl__late_refuse(store);
    return refuse(item, "partition %u is not known to this store; call kl_store_partition first and use its answer",
                  partition);
}

static kl_rc refuse_shard(const struct item *item, kl_place place, uint32_t shards)
{
    if (place.shard == KL_ALL_SHARDS)
        return refuse(item, "KL_ALL_SHARDS is for kl_store_counts only; name one shard, 0 to %u", shards - 1);
    return refuse(item, "shard %u is none of partition %u, which has shards 0 to %u", place.shard, place.partition,
                  shards - 1);
}

static inline kl_rc check_place(kl_store *store, const struct item *item, kl_place place, uint32_t *ret_prefix_len)
{
    kl_rc rc = check_known(store, item, place.partition, ret_prefix_len);
    if (KL_UNLIKELY(rc != KL_OK))
        return rc;
    uint32_t shards = UINT32_C(1) << (4 * *ret_prefix_len);
    return KL_LIKELY(place.shard < shards) ? KL_OK : refuse_shard(item, place, shards);
}

static kl_rc refuse_id(const struct item *item, const kl_task_id *id, uint32_t shard, uint32_t prefix_len)
{
    char text[KL_ID_TEXT_BYTES], name[KL_SHARD_NAME_BYTES];
    kl_layout layout = {1, prefix_len};
    kl_id_print(id, text);
    kl_shard_name(&layout, shard, name);
    return refuse(item, "its id %s does not begin with its shard, %s; make ids with kl_idgen_next for that shard", text,
                  name);
}

static inline kl_rc check_id(const struct item *item, const kl_task_id *id, uint32_t shard, uint32_t prefix_len)
{
    _Static_assert(KL_SHARD_PREFIX_LEN_MAX == 4, "a shard's digits stand in the first two bytes");
    uint32_t digits = ((uint32_t)id->bytes[0] << 8 | id->bytes[1]) >> (16 - 4 * prefix_len);
    return KL_LIKELY(digits == shard) ? KL_OK : refuse_id(item, id, shard, prefix_len);
}

static kl_rc check_ids(kl_store *store, kl_place place, const kl_task_id *ids, size_t count)
{
    uint32_t prefix_len;
    kl_rc rc = check_place(store, &call_itself, place, &prefix_len);
    if (rc == KL_OK)
        rc = check_array(ids, "ids", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = check_id(&(struct item){"task", i, NO_BATCH}, &ids[i], place.shard, prefix_len);
    return rc;
}

/* --- Engines and partitions --- */

static bool plain_word(const char *text)
{
    if (!text || !*text)
        return false;
    for (; *text; text++)
        if (!(*text >= 'a' && *text <= 'z') && !(*text >= '0' && *text <= '9') && *text != '_')
            return false;
    return true;
}

kl_rc kl__check_engine(const kl_engine *engine)
{
    if (!engine)
        return kl__fail(KL_EINVAL, "the engine is NULL; pass one");
    size_t least = offsetof(kl_engine, list) + sizeof engine->list;
    if (engine->size < least || engine->size > sizeof *engine)
        return kl__fail(
            KL_EINVAL,
            "kl_engine.size is %zu, but this library's engines have %zu to %zu bytes; build the engine with a "
            "header that is not newer than the library and set .size = sizeof(kl_engine)",
            engine->size, least, sizeof *engine);
    if (!plain_word(engine->scheme))
        return kl__fail(KL_EINVAL, "the engine's scheme must be a word of a-z, 0-9 and _");
    if (!engine->open || !engine->close || !engine->now || !engine->partition || !engine->append || !engine->scan ||
        !engine->read || !engine->settle || !engine->fence || !engine->counts || !engine->wait || !engine->results ||
        !engine->find || !engine->forget || !engine->get || !engine->put || !engine->list)
        return kl__fail(KL_EINVAL, "the engine '%s' lacks a function; it must have all of them", engine->scheme);
    return KL_OK;
}

kl_rc kl__check_partition(const char *name, uint32_t shard_prefix_len, const uint32_t *ret_partition)
{
    if (!name || !*name)
        return kl__fail(KL_EINVAL, "the partition has no name; give it one of 1 to %d bytes", KL_PARTITION_BYTES_MAX);
    size_t length = strlen(name);
    if (length > KL_PARTITION_BYTES_MAX)
        return kl__fail(KL_EINVAL, "the partition's name has %zu bytes; it may have up to %d", length,
                        KL_PARTITION_BYTES_MAX);
    kl_rc rc = check_number(&call_itself, "shard_prefix_len", shard_prefix_len, 1, KL_SHARD_PREFIX_LEN_MAX);
    return rc != KL_OK ? rc : check_pointer(ret_partition, "ret_partition");
}

/* --- Tasks --- */

static kl_rc check_entry(const struct item *item, const kl_entry *entry)
{
    kl_rc rc = check_number(item, "priority", entry->priority, KL_PRIORITY_MIN, KL_PRIORITY_MAX);
    if (rc == KL_OK)
        rc = check_number(item, "due_ms", entry->due_ms, 0, KL_ID_MS_MAX);
    if (rc == KL_OK)
        rc = check_bytes(item, "key", entry->key, KL_KEY_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes(item, "kind", entry->kind, KL_KIND_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes(item, "headers", entry->headers, KL_HEADERS_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes(item, "payload", entry->payload, KL_PAYLOAD_BYTES_MAX);
    return rc;
}

/* The bytes of one item must leave the sum of the call below its limit; sums cannot overflow, because 65,536 items of
 * the largest size stay below 2^38. */
static inline kl_rc check_sum(const struct item *item, const char *what, size_t sum)
{
    if (KL_LIKELY(sum <= KL_BATCH_BYTES_MAX))
        return KL_OK;
    return refuse(item, "with it the call has %zu bytes of %s, and one call takes up to %u; make more calls of fewer",
                  sum, what, KL_BATCH_BYTES_MAX);
}

kl_rc kl__check_append(kl_store *store, const kl_entry *entries, size_t count, size_t *ret_bytes)
{
    size_t sum = 0;
    kl_rc rc = check_array(entries, "entries", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        const kl_entry *entry = &entries[i];
        struct item item = {"entry", i, NO_BATCH};
        uint32_t prefix_len = 0;
        rc = check_place(store, &item, entry->place, &prefix_len);
        if (rc == KL_OK)
            rc = check_id(&item, &entry->id, entry->place.shard, prefix_len);
        if (rc == KL_OK)
            rc = check_entry(&item, entry);
        if (rc != KL_OK)
            return rc;
        sum += entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
        rc = check_sum(&item, "keys, kinds, headers and payloads", sum);
    }
    if (rc == KL_OK)
        *ret_bytes = sum;
    return rc;
}

static kl_rc check_one_scan(kl_store *store, const struct item *item, const kl_scan *scan)
{
    uint32_t prefix_len;
    kl_rc rc = check_place(store, item, scan->place, &prefix_len);
    if (rc == KL_OK && (scan->line < KL_PRIORITY_MIN || scan->line > KL_LINE_RETRY))
        return refuse(item, "there is no line %d; the lines are the priorities %d to %d, KL_LINE_DUE and KL_LINE_RETRY",
                      scan->line, KL_PRIORITY_MIN, KL_PRIORITY_MAX);
    if (rc == KL_OK && (scan->max < 1 || scan->max > KL_BATCH_MAX))
        return refuse(item, "max is %zu; it must be from 1 to %d", scan->max, KL_BATCH_MAX);
    if (rc == KL_OK && !scan->stubs)
        return refuse(item, "stubs is NULL; pass an array of max");
    return rc;
}

kl_rc kl__check_scan(kl_store *store, const kl_scan *scans, size_t count)
{
    kl_rc rc = check_array(scans, "scans", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = check_one_scan(store, &(struct item){"scan", i, NO_BATCH}, &scans[i]);
    return rc;
}

kl_rc kl__check_read(kl_store *store, const kl_ref *refs, size_t count, const kl_arena *arena, const kl_task *ret_tasks,
                     const size_t *ret_count)
{
    uint32_t prefix_len;
    kl_rc rc = check_array(refs, "refs", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        const struct item item = {"task", i, NO_BATCH};
        rc = check_place(store, &item, refs[i].place, &prefix_len);
        if (rc == KL_OK)
            rc = check_id(&item, &refs[i].id, refs[i].place.shard, prefix_len);
    }
    if (rc == KL_OK)
        rc = check_pointer(ret_count, "ret_count");
    if (rc != KL_OK || count == 0)
        return rc;
    rc = check_pointer(ret_tasks, "ret_tasks");
    return rc != KL_OK ? rc : check_pointer(arena, "the arena");
}

static kl_rc check_settled(const struct item *item, const kl_settled *settled)
{
    if (KL_UNLIKELY((int)settled->outcome < KL_DONE || (int)settled->outcome > KL_CANCELLED))
        return refuse(item, "%d is no outcome; use KL_DONE, KL_RETRY, KL_DEAD or KL_CANCELLED", (int)settled->outcome);
    kl_rc rc = check_number(item, "attempts", settled->attempts, 0, KL_ATTEMPTS_MAX);
    if (rc == KL_OK)
        rc = check_number(item, "due_ms", settled->due_ms, 0, KL_ID_MS_MAX);
    if (rc == KL_OK)
        rc = check_number(item, "keep_ms", settled->keep_ms, 0, KL_ID_MS_MAX);
    if (rc == KL_OK)
        rc = check_bytes(item, "error", settled->error, KL_ERROR_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes(item, "result", settled->result, KL_RESULT_BYTES_MAX);
    return rc;
}

static kl_rc check_batch(kl_store *store, const kl_settle *batch, size_t index, size_t *tasks, size_t *bytes)
{
    struct item item = {"batch", index, NO_BATCH};
    uint32_t prefix_len;
    kl_rc rc = check_place(store, &item, batch->place, &prefix_len);
    if (rc == KL_OK && batch->epoch > KL_EPOCH_MAX)
        rc = refuse(&item, "epoch is %llu; it must be from 0 to %llu", (unsigned long long)batch->epoch,
                    (unsigned long long)KL_EPOCH_MAX);
    if (rc == KL_OK && (batch->count > KL_BATCH_MAX || *tasks + batch->count > KL_BATCH_MAX))
        rc = refuse(&item, "with its %zu task%s the call has more than %d; settle what stands before it first",
                    batch->count, kl__plural(batch->count), KL_BATCH_MAX);
    if (rc == KL_OK && batch->count > 0 && !batch->tasks)
        rc = refuse(&item, "there should be %zu tasks, but the pointer is NULL", batch->count);
    if (rc != KL_OK)
        return rc;
    *tasks += batch->count;
    for (size_t i = 0; rc == KL_OK && i < batch->count; i++) {
        const kl_settled *settled = &batch->tasks[i];
        item = (struct item){"task", i, index};
        rc = check_id(&item, &settled->id, batch->place.shard, prefix_len);
        if (rc == KL_OK)
            rc = check_settled(&item, settled);
        if (rc != KL_OK)
            return rc;
        *bytes += settled->error.len + settled->result.len;
        rc = check_sum(&item, "errors and results", *bytes);
    }
    return rc;
}

kl_rc kl__check_settle(kl_store *store, const kl_settle *batches, size_t count, uint64_t *ret_tasks,
                       uint64_t *ret_bytes)
{
    size_t tasks = 0, bytes = 0;
    kl_rc rc = check_array(batches, "batches", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = check_batch(store, &batches[i], i, &tasks, &bytes);
    *ret_tasks = rc == KL_OK ? tasks : 0;
    *ret_bytes = rc == KL_OK ? bytes : 0;
    return rc;
}

static kl_rc check_one_fence(kl_store *store, const struct item *item, const kl_fence *fence)
{
    uint32_t prefix_len;
    kl_rc rc = check_place(store, item, fence->place, &prefix_len);
    if (rc == KL_OK && fence->seal && !(kl_store_info_of(store).can & KL_STORE_SEAL))
        return refuse(item, "a store of engine '%s' cannot seal shards; look for KL_STORE_SEAL before you ask",
                      store->engine->scheme);
    uint64_t min = fence->seal ? 0 : 1;
    if (rc == KL_OK && (fence->epoch < min || fence->epoch > KL_EPOCH_MAX))
        return refuse(item, "epoch is %llu; it must be from %llu to %llu", (unsigned long long)fence->epoch,
                      (unsigned long long)min, (unsigned long long)KL_EPOCH_MAX);
    return rc;
}

kl_rc kl__check_fence(kl_store *store, const kl_fence *fences, size_t count)
{
    kl_rc rc = check_array(fences, "fences", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = check_one_fence(store, &(struct item){"fence", i, NO_BATCH}, &fences[i]);
    return rc;
}

kl_rc kl__check_counts(kl_store *store, kl_place place, const kl_task_id *job, const kl_counts *ret_counts)
{
    uint32_t prefix_len;
    kl_rc rc = place.shard == KL_ALL_SHARDS ? check_known(store, &call_itself, place.partition, &prefix_len)
                                            : check_place(store, &call_itself, place, &prefix_len);
    if (rc == KL_OK && job && place.shard != KL_ALL_SHARDS)
        return kl__fail(KL_EINVAL, "a job's tasks are counted in a whole partition only; pass KL_ALL_SHARDS, not %u",
                        place.shard);
    if (rc == KL_OK && job && kl__id_is_none(job))
        return kl__fail(KL_EINVAL, "the job's id is all zero, which means no job; pass NULL to count all tasks");
    return rc != KL_OK ? rc : check_pointer(ret_counts, "ret_counts");
}

kl_rc kl__check_wait(kl_store *store, uint32_t partition, const uint64_t *seen)
{
    uint32_t prefix_len;
    kl_rc rc = check_known(store, &call_itself, partition, &prefix_len);
    return rc != KL_OK ? rc : check_pointer(seen, "seen");
}

/* --- What is finished --- */

static bool all_zero(const kl_task_id *id) { return kl__id_is_none(id); }

kl_rc kl__check_results(kl_store *store, kl_place place, const kl_task_id *job, size_t max, const kl_arena *arena,
                        const kl_task *ret_tasks, const size_t *ret_count)
{
    uint32_t prefix_len;
    kl_rc rc = check_place(store, &call_itself, place, &prefix_len);
    if (rc == KL_OK)
        rc = check_pointer(job, "the job's id");
    if (rc == KL_OK && all_zero(job))
        rc = kl__fail(KL_EINVAL,
                      "the job's id is all zero, which means no job; kl_store_find shows tasks of any or none");
    if (rc == KL_OK)
        rc = check_answer(max, ret_tasks, ret_count);
    return rc != KL_OK ? rc : check_pointer(arena, "the arena");
}

/* Words are runs of letters, digits and bytes of other alphabets. */
static bool has_word(kl_bytes text)
{
    const unsigned char *bytes = text.data;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = bytes[i];
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80)
            return true;
    }
    return false;
}

static kl_rc check_filters(const kl_find *find)
{
    if ((int)find->state != KL_TASK_UNKNOWN &&
        ((int)find->state < KL_TASK_DONE || (int)find->state > KL_TASK_CANCELLED))
        return kl__fail(KL_EINVAL,
                        "state is %d; finished tasks are KL_TASK_DONE, KL_TASK_DEAD or KL_TASK_CANCELLED, and "
                        "0 means any of them",
                        (int)find->state);
    struct item item = {NULL, 0, NO_BATCH};
    kl_rc rc = check_bytes(&item, "key", find->key, KL_KEY_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes(&item, "kind", find->kind, KL_KIND_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes(&item, "words", find->words, KL_ERROR_BYTES_MAX);
    if (rc == KL_OK && find->words.len > 0 && !has_word(find->words))
        rc = kl__fail(KL_EINVAL, "there is no letter or digit in words; write whole words, or leave it empty");
    return rc;
}

kl_rc kl__check_find(kl_store *store, const kl_find *find, const kl_arena *arena, const kl_task *ret_tasks,
                     const size_t *ret_count)
{
    uint32_t prefix_len;
    kl_rc rc = check_pointer(find, "the kl_find");
    if (rc == KL_OK && find->partition != 0)
        rc = check_known(store, &call_itself, find->partition, &prefix_len);
    if (rc == KL_OK)
        rc = check_filters(find);
    if (rc == KL_OK)
        rc = check_answer(find->max, ret_tasks, ret_count);
    return rc != KL_OK ? rc : check_pointer(arena, "the arena");
}

kl_rc kl__check_forget(kl_store *store, kl_place place, const kl_task_id *ids, size_t count)
{
    return check_ids(store, place, ids, count);
}

/* --- Records --- */

static kl_rc check_name(const struct item *item, kl_bytes name)
{
    if (name.len == 0)
        return refuse(item, "its name is empty; a record's name has 1 to %d bytes", KL_RECORD_NAME_MAX);
    return check_bytes(item, "name", name, KL_RECORD_NAME_MAX);
}

kl_rc kl__check_get(const kl_bytes *names, size_t count, const kl_arena *arena, const kl_record *ret_records)
{
    kl_rc rc = check_array(names, "names", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = check_name(&(struct item){"record", i, NO_BATCH}, names[i]);
    if (rc != KL_OK || count == 0)
        return rc;
    rc = check_pointer(ret_records, "ret_records");
    return rc != KL_OK ? rc : check_pointer(arena, "the arena");
}

kl_rc kl__check_put(const kl_write *writes, size_t count)
{
    size_t sum = 0;
    kl_rc rc = check_array(writes, "writes", count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        struct item item = {"write", i, NO_BATCH};
        rc = check_name(&item, writes[i].name);
        if (rc == KL_OK && !writes[i].remove)
            rc = check_bytes(&item, "value", writes[i].value, KL_RECORD_BYTES_MAX);
        if (rc == KL_OK && !writes[i].remove)
            rc = check_number(&item, "expires_ms", writes[i].expires_ms, 0, INT64_MAX);
        if (rc != KL_OK)
            return rc;
        sum += writes[i].name.len + (writes[i].remove ? 0 : writes[i].value.len);
        rc = check_sum(&item, "names and values", sum);
    }
    return rc;
}

kl_rc kl__check_list(kl_bytes prefix, kl_bytes after, size_t max, const kl_arena *arena, const kl_record *ret_records,
                     const size_t *ret_count)
{
    kl_rc rc = check_bytes(&call_itself, "prefix", prefix, KL_RECORD_NAME_MAX);
    if (rc == KL_OK)
        rc = check_bytes(&call_itself, "after", after, KL_RECORD_NAME_MAX);
    if (rc == KL_OK)
        rc = check_answer(max, ret_records, ret_count);
    return rc != KL_OK ? rc : check_pointer(arena, "the arena");
}

kl_rc kl__check_take_in(const kl_store *store, const char *queue, size_t max, kl_take_fn *take, const size_t *ret_count)
{
    if (!store->engine->take_in)
        return kl__fail(KL_EINVAL, "the store %s: has no inbox; ask for KL_STORE_INBOX first", store->engine->scheme);
    if (!queue || !*queue)
        return kl__fail(KL_EINVAL, "the queue has no name; say whose tasks are to be taken in");
    kl_rc rc = take ? KL_OK : kl__fail(KL_EINVAL, "take is NULL; pass a function");
    return rc == KL_OK ? check_answer(max, ret_count, ret_count) : rc;
}
