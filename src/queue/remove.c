/* remove.c - the end of a queue: refused while somebody needs it, then everything of it, the record last.
 *
 * From: applications, the program.  To: the stores of its layouts, and its records.
 *
 * The record goes last, so that a removal that failed on its way can be repeated. What stays is one small record that
 * says how far the layouts' numbers had come (gone/NAME): partitions are for ever, and a queue of the same name that is
 * made later must not meet those of this one, which may be sealed or have other shards.
 *
 * A put that is under way while an empty queue is removed may be stored after its tasks were counted, and is lost with
 * the queue. Sealing the shards first would refuse it, but then a queue that turns out to hold tasks could not be left
 * as it was. They are sealed last: whoever has the queue open still and puts something looks for its record and is told
 * that it is gone, or finds the one that was made since. */
#include "queue/inside.h"
#include "store/quick.h"

enum {
    FORGET_PIECE = 64, /* kept tasks forgotten at once: they come with their payloads */
    GONE_TRIES_MAX = 16,
};

/* --- Who needs it --- */

static kl_rc check_no_tasks(const kl_queue *queue, const kl__descriptor *descriptor)
{
    kl_counts counts = {0};
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++)
        rc = kl__layout_count(&descriptor->layouts[i], &counts);
    uint64_t left = 0;
    if (rc == KL_OK)
        rc = kl__store_left(queue->store, queue->name, &left); /* put in SQL, and not taken in */
    uint64_t waiting = kl__counts_waiting(&counts) + left;
    bool empty = true;
    for (size_t i = 0; rc == KL_OK && empty && waiting == 0 && counts.at_least && i < descriptor->layout_count; i++)
        rc = kl__layout_is_empty(&descriptor->layouts[i], &empty);
    if (rc == KL_OK && !empty)
        return kl__fail(KL_EBUSY,
                        "queue %s holds tasks, or not all of it can be counted; let workers finish them, or "
                        "purge the queue, then remove it",
                        queue->name);
    if (rc == KL_OK && waiting > 0)
        rc = kl__fail(
            KL_EBUSY, "queue %s holds %s%llu task%s; let workers finish them, or purge the queue, then remove it",
            queue->name, counts.at_least ? "at least " : "", (unsigned long long)waiting, waiting == 1 ? "" : "s");
    return rc;
}

/* Of the owners' record (work/owners.c) only this is looked at: "workers", a list of {"name", "expires_ms"}. */
static kl_rc check_workers(const kl_queue *queue, kl__json *owners, kl_arena *arena, int64_t now_ms)
{
    json_t *workers = kl__json_array_of(owners, "workers", SIZE_MAX);
    for (size_t i = 0; workers && i < json_array_size(workers); i++) {
        kl__json worker = kl__json_item(owners, workers, i);
        int64_t expires_ms = kl__json_int(&worker, "expires_ms", 0, INT64_MAX);
        const char *name = kl__json_text_or(&worker, "name", arena, "somebody");
        if (worker.rc != KL_OK)
            return worker.rc;
        if (expires_ms > now_ms)
            return kl__fail(KL_EBUSY,
                            "the worker %.80s serves queue %s; stop it, or wait %lld ms if it is gone already", name,
                            queue->name, (long long)(expires_ms - now_ms));
    }
    return owners->rc;
}

static kl_rc check_owners(const kl_queue *queue, kl_store *store, const char *partition)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_bytes record_name = kl__record_name(name, sizeof name, "owners", partition, NULL);
    kl_arena arena = {0};
    kl_record record;
    kl__json owners = {0};
    int64_t now_ms;
    kl_rc rc = kl__record_read(store, record_name, &arena, &owners, &record);
    if (rc == KL_OK)
        rc = kl_store_now(store, &now_ms);
    if (rc == KL_OK)
        rc = check_workers(queue, &owners, &arena, now_ms);
    kl__json_free(&owners);
    kl_arena_free(&arena);
    return rc == KL_ENOTFOUND ? KL_OK : rc;
}

/* --- What is kept --- */

/* Forgets those of the tasks that lie in the shard of the first. */
static kl_rc forget_shard(kl_store *store, const kl_task *tasks, size_t count)
{
    kl_task_id ids[FORGET_PIECE];
    size_t chosen = 0;
    for (size_t i = 0; i < count; i++)
        if (tasks[i].entry.place.shard == tasks[0].entry.place.shard)
            ids[chosen++] = tasks[i].entry.id;
    return kl_store_forget(store, tasks[0].entry.place, ids, chosen);
}

static kl_rc forget_piece(kl_store *store, const kl_task *tasks, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = tasks[j].entry.place.shard == tasks[i].entry.place.shard;
        if (!seen)
            rc = forget_shard(store, &tasks[i], count - i);
    }
    return rc;
}

static kl_rc forget_kept(kl_store *store, uint32_t partition)
{
    kl_task *tasks = kl__alloc_zeroed(FORGET_PIECE, sizeof *tasks);
    kl_arena arena = {0};
    size_t count = 0;
    kl_rc rc = tasks ? KL_OK : kl__fail_memory();
    do {
        kl_find all = {.partition = partition, .max = FORGET_PIECE};
        kl_arena_reset(&arena);
        if (rc == KL_OK)
            rc = kl_store_find(store, &all, &arena, tasks, &count);
        if (rc == KL_OK)
            rc = forget_piece(store, tasks, count);
    } while (rc == KL_OK && count > 0);
    kl_arena_free(&arena);
    kl__free(tasks);
    return rc;
}

/* --- Partition by partition --- */

typedef kl_rc visit_fn(const kl_queue *queue, kl_store *store, const char *name, uint32_t partition);

static kl_rc visit_owners(const kl_queue *queue, kl_store *store, const char *name, uint32_t partition)
{
    (void)partition;
    return check_owners(queue, store, name);
}

static kl_rc visit_clear(const kl_queue *queue, kl_store *store, const char *name, uint32_t partition)
{
    char buffer[KL_RECORD_NAME_BYTES];
    (void)queue;
    kl_rc rc = forget_kept(store, partition);
    if (rc == KL_OK)
        rc = kl__records_clear(store, kl__record_name(buffer, sizeof buffer, "ask", name, ""));
    if (rc != KL_OK)
        return rc;
    kl_arena arena = {0};
    kl_record record;
    rc = kl__record_get(store, kl__record_name(buffer, sizeof buffer, "owners", name, NULL), &arena, &record);
    if (rc == KL_OK && record.version != 0)
        rc = kl__record_remove(store, record.name, record.version);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc visit_all(const kl_queue *queue, const kl__descriptor *descriptor, visit_fn *visit)
{
    char name[KL_PARTITION_NAME_BYTES];
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        for (uint32_t j = 0; rc == KL_OK && j < layout->layout.partitions; j++) {
            rc = kl__layout_partition_name(queue, layout, j, name);
            if (rc == KL_OK)
                rc = visit(queue, layout->stores[j], name, kl__layout_number(layout, j));
        }
    }
    return rc;
}

/* --- Records --- */

static kl_rc clear_records(const kl_queue *queue)
{
    static const char *const kinds[] = {"pause", "unique", "token", "job", "added", "cancel", "idempotency", "cron"};
    char buffer[KL_RECORD_NAME_BYTES];
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < sizeof kinds / sizeof kinds[0]; i++)
        rc = kl__records_clear(queue->store, kl__record_name(buffer, sizeof buffer, kinds[i], queue->name, ""));
    return rc;
}

static kl_rc try_gone(const kl_queue *queue, uint64_t number)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_arena arena = {0};
    kl_record record;
    kl_rc rc = kl__record_get(queue->store, kl__record_name(buffer, sizeof buffer, "gone", queue->name, NULL), &arena,
                              &record);
    json_t *to = kl__json_object();
    if (rc == KL_OK && !kl__json_set_int(to, "layout", (int64_t)number))
        rc = kl__fail_memory();
    if (rc == KL_OK)
        rc = kl__record_write(queue->store, record.name, record.version, to, 0, NULL);
    json_decref(to);
    kl_arena_free(&arena);
    return rc;
}

/* Whoever else writes it removes the same queue, and writes the same. */
static kl_rc write_gone(const kl_queue *queue, const kl__descriptor *descriptor)
{
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < GONE_TRIES_MAX && rc == KL_ECONFLICT; i++)
        rc = try_gone(queue, kl__newest_layout(descriptor)->number);
    return rc;
}

static kl_rc remove_record(const kl_queue *queue, const kl__descriptor *descriptor)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_bytes name = kl__record_name(buffer, sizeof buffer, "queue", queue->name, NULL);
    kl_rc rc = kl__record_remove(queue->store, name, descriptor->version);
    if (rc == KL_ECONFLICT)
        rc = kl__fail(KL_EBUSY, "queue %s was changed while it was removed; look at it again, then remove it",
                      queue->name);
    return rc;
}

static kl_rc remove_all(const kl_queue *queue, const kl__descriptor *descriptor)
{
    kl_rc rc = check_no_tasks(queue, descriptor);
    if (rc == KL_OK)
        rc = visit_all(queue, descriptor, visit_owners);
    if (rc == KL_OK)
        rc = clear_records(queue);
    if (rc == KL_OK)
        rc = visit_all(queue, descriptor, visit_clear);
    if (rc == KL_OK)
        rc = write_gone(queue, descriptor);
    if (rc == KL_OK)
        rc = remove_record(queue, descriptor);
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++)
        if (!descriptor->layouts[i].sealed && kl__layout_check_seal(queue, &descriptor->layouts[i]) == KL_OK)
            rc = kl__layout_seal(queue, &descriptor->layouts[i]);
    return rc;
}

kl_rc kl_queue_remove(kl_queue *queue)
{
    if (!queue)
        return kl__fail(KL_EINVAL, "the queue is NULL; open one with kl_queue_open");
    kl_rc rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc == KL_ENOTFOUND ? KL_OK : rc; /* a repeat */
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    rc = remove_all(queue, descriptor);
    kl__descriptor_release(descriptor);
    return rc;
}
