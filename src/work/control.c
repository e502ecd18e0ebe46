/* control.c - steering keys and whole queues (control.h); single tasks are control_task.c's.
 *
 * From: the application or the program.  To: ask_send.c, for what only a shard's owner may do; records, for what must
 * hold whoever owns it. */
#include "keyline/control.h"

#include <stdio.h>
#include <string.h>

#include "base/compare.h"
#include "queue/look.h"
#include "work/ask.h"
#include "work/inside.h"

static kl_rc check_given(bool all)
{
    return all ? KL_OK : kl__fail(KL_EINVAL, "an argument is NULL that may not be; control.h says which may");
}

static kl_rc check_key(kl_bytes key)
{
    if (key.len > 0 && !key.data)
        return check_given(false);
    if (key.len == 0)
        return kl__fail(KL_EINVAL, "no key was named; tasks without a key are steered one by one, by their ids");
    if (key.len > KL_KEY_BYTES_MAX)
        return kl__fail(KL_EINVAL, "the key has %zu bytes; keys have up to %d", key.len, KL_KEY_BYTES_MAX);
    return KL_OK;
}

/* --- Whole queues --- */

typedef kl_rc each_fn(kl_queue *queue, kl__source source, void *ctx);

/* Every partition of every layout that may hold tasks, the oldest layout first. */
static kl_rc each_source(kl_queue *queue, each_fn *each, void *ctx)
{
    kl_rc rc = kl__queue_refresh(queue);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++)
        for (uint32_t p = 0;
             rc == KL_OK && !descriptor->layouts[i].drained && p < descriptor->layouts[i].layout.partitions; p++)
            rc = each(queue, (kl__source){&descriptor->layouts[i], p}, ctx);
    kl__descriptor_release(descriptor);
    return rc;
}

/* Tasks that are to be ended by the owners of their shards. */
struct purge {
    const char *verb;
    const kl_task_id *job; /* only of this; NULL: all */
    uint64_t count;
};

static json_t *purge_request(const struct purge *purge)
{
    json_t *request = kl__ask_for(purge->verb);
    if (!request || !purge->job || kl__json_set_id(request, "id", purge->job))
        return request;
    json_decref(request);
    return NULL;
}

static kl_rc purge_source(kl_queue *queue, kl__source source, void *ctx)
{
    struct purge *purge = ctx;
    kl_arena arena = {0};
    kl_rc rc = KL_OK;
    for (uint32_t shard = 0; rc == KL_OK && shard < kl_layout_shards(&source.layout->layout); shard++) {
        kl__json answer = {0};
        kl_counts counts;
        kl_place place = {kl__layout_number(source.layout, source.partition), shard};
        rc = kl_store_counts(kl__source_store(source), place, NULL, &counts);
        if (rc != KL_OK || (kl__counts_waiting(&counts) == 0 && !counts.at_least))
            continue;
        rc = kl__ask_send(queue, source, shard, purge_request(purge), &arena, &answer);
        if (rc == KL_OK)
            purge->count += (uint64_t)kl__json_int_or(&answer, "count", 0, INT64_MAX, 0);
        kl__json_free(&answer);
        kl_arena_reset(&arena);
    }
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl_queue_purge(kl_queue *queue, uint64_t *ret_count)
{
    struct purge purge = {.verb = "purge"};
    kl_rc rc = check_given(queue);
    if (rc == KL_OK)
        rc = kl__queue_take_in_all(queue, KL_FOREVER);
    if (rc == KL_OK)
        rc = each_source(queue, purge_source, &purge);
    if (rc == KL_OK && ret_count)
        *ret_count = purge.count;
    return rc;
}

static kl_rc sweep_job(kl_queue *queue, const kl_task_id *job)
{
    struct purge purge = {.verb = "forget", .job = job};
    return each_source(queue, purge_source, &purge);
}

kl_rc kl_job_remove(kl_queue *queue, const kl_task_id *job)
{
    if (!queue || !job)
        return kl__fail(KL_EINVAL, "an argument is NULL; pass the queue and the job's id");
    return kl__job_remove(queue, job, sweep_job);
}

/* --- Single keys --- */

/* A request about a key to the owners of its shard: in each layout, the oldest first, in each partition where it has
 * tasks. */
struct key_ask {
    kl_bytes key;
    const char *partition; /* only there; NULL: wherever it has tasks */
    const char *verb;
    bool dead;
    bool first_layout; /* the first layout in which there is something of the key answers */
    kl_arena *arena;
    bool exists;   /* a layout that holds tasks has the partition */
    bool answered; /* something of the key was there */
    bool running;  /* its first task is, and so was left alone; */
    bool acted;    /* in another partition it was not */
    bool begun;    /* some of it was ended before an owner could answer, and is not counted */
    uint64_t count;
    kl_task_id id;
    kl_key_status *places; /* of `show`: room for max */
    size_t max, place_count;
};

static json_t *key_request(const struct key_ask *ask)
{
    json_t *request = kl__ask_for(ask->verb);
    if (!request || (kl__json_set_bytes(request, "key", ask->key) && kl__json_set_bool(request, "dead", ask->dead)))
        return request;
    json_decref(request);
    return NULL;
}

/* The worker that owns the shard, for people; "" when nobody does, or only an operator for a moment. */
static kl_rc name_owner(const kl_queue *queue, kl__source source, uint32_t shard, kl_arena *arena,
                        const char **ret_owner)
{
    char name[KL_PARTITION_NAME_BYTES];
    kl__ownership ownership;
    kl_rc rc = kl__layout_partition_name(queue, source.layout, source.partition, name);
    if (rc == KL_OK)
        rc = kl__owners_read(kl__source_store(source), name, &source.layout->layout, arena, &ownership);
    if (rc != KL_OK)
        return rc;
    const kl__owner *owner = kl__ownership_of(&ownership, shard);
    *ret_owner = owner && strcmp(owner->name, KL_OPERATOR_NAME) != 0 ? owner->name : "";
    return KL_OK;
}

static kl_rc note_place(kl_queue *queue, kl__source source, struct key_ask *ask, kl__json *answer, const char *owner);

static kl_rc ask_place(kl_queue *queue, kl__source source, struct key_ask *ask)
{
    kl__json answer = {0};
    const char *owner = "";
    uint32_t shard = kl_shard_of(&source.layout->layout, ask->key);
    kl_rc rc = name_owner(queue, source, shard, ask->arena, &owner);
    if (rc == KL_OK)
        rc = kl__ask_send(queue, source, shard, key_request(ask), ask->arena, &answer);
    if (rc != KL_OK)
        return rc == KL_ENOTFOUND ? KL_OK : rc;
    bool running = kl__json_bool_or(&answer, "running", false);
    ask->count += (uint64_t)kl__json_int_or(&answer, "count", 0, INT64_MAX, 0);
    ask->id = kl__json_id_or(&answer, "id", (kl_task_id){{0}});
    ask->running |= running;
    ask->acted |= !running;
    ask->begun |= kl__json_bool_or(&answer, "begun", false);
    if (ask->places)
        rc = note_place(queue, source, ask, &answer, owner);
    else
        ask->answered = true;
    kl__json_free(&answer);
    return rc;
}

static kl_rc look_for_key(kl_queue *queue, kl__source source, kl_bytes key, bool *ret_there)
{
    kl_arena arena = {0};
    kl_found found;
    size_t count;
    bool more;
    kl_rc rc = kl__look_key(queue, source, key, 1, &arena, &found, &count, &more);
    kl_arena_free(&arena);
    *ret_there = count > 0;
    return rc;
}

/* Whom to ask in one layout. Owners are slow to answer, so where a key may be in any partition the store says in which
 * it is. */
static kl_rc choose_places(kl_queue *queue, const kl__queue_layout *layout, struct key_ask *ask,
                           uint32_t ret_partitions[KL_PARTITIONS_MAX], size_t *ret_count)
{
    size_t count = 0;
    *ret_count = 0;
    if (ask->partition) {
        kl_rc rc = kl__layout_partition_find(queue, &layout->layout, ask->partition, ret_partitions);
        *ret_count = rc == KL_OK;
        ask->exists |= rc == KL_OK;
        return rc == KL_EINVAL ? KL_OK : rc;
    }
    for (uint32_t p = 0; layout->by_name && p < layout->layout.partitions; p++) {
        bool there = false;
        kl_rc rc = look_for_key(queue, (kl__source){layout, p}, ask->key, &there);
        if (rc != KL_OK)
            return rc;
        if (there)
            ret_partitions[count++] = p;
    }
    if (count == 0)
        ret_partitions[count++] = kl_partition_of(&layout->layout, ask->key);
    *ret_count = count;
    return KL_OK;
}

static kl_rc refuse_many(const kl_queue *queue, const kl__queue_layout *layout, const struct key_ask *ask,
                         const uint32_t *partitions)
{
    char first[KL_PARTITION_NAME_BYTES], second[KL_PARTITION_NAME_BYTES];
    kl_rc rc = kl_partition_name(&layout->layout, queue->name, partitions[0], sizeof first, first);
    if (rc == KL_OK)
        rc = kl_partition_name(&layout->layout, queue->name, partitions[1], sizeof second, second);
    return rc != KL_OK ? rc
                       : kl__fail(KL_EINVAL,
                                  "tasks of the key '%.*s' wait in more than one partition, %s and %s, with no order "
                                  "between them; name the partition",
                                  (int)ask->key.len, (const char *)ask->key.data, first, second);
}

static kl_rc ask_layout(kl_queue *queue, const kl__queue_layout *layout, struct key_ask *ask)
{
    uint32_t partitions[KL_PARTITIONS_MAX];
    size_t count;
    kl_rc rc = choose_places(queue, layout, ask, partitions, &count);
    if (rc == KL_OK && count > 1 && strcmp(ask->verb, "skip") == 0)
        return refuse_many(queue, layout, ask, partitions);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = ask_place(queue, (kl__source){layout, partitions[i]}, ask);
    return rc;
}

static kl_rc ask_layouts(kl_queue *queue, struct key_ask *ask)
{
    kl_rc rc = kl__queue_take_in_all(queue, KL_CONTROL_WAIT_MS);
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count && !(ask->first_layout && ask->answered); i++)
        if (!descriptor->layouts[i].drained)
            rc = ask_layout(queue, &descriptor->layouts[i], ask);
    if (rc == KL_OK && ask->partition && !ask->exists) {
        uint32_t ignored;
        rc = kl__layout_partition_find(queue, &kl__newest_layout(descriptor)->layout, ask->partition, &ignored);
    }
    kl__descriptor_release(descriptor);
    return rc;
}

static kl_rc fail_none(const struct key_ask *ask)
{
    const char *in = ask->partition ? " in " : "", *partition = ask->partition ? ask->partition : "";
    if (strcmp(ask->verb, "wake") == 0)
        return kl__fail(
            KL_ENOTFOUND,
            "no task of the key '%.*s' waits%s%s for anything but its time; list the keys that have some, or "
            "retry a delayed task by its id",
            (int)ask->key.len, (const char *)ask->key.data, in, partition);
    return kl__fail(KL_ENOTFOUND, "no task of the key '%.*s' waits%s%s; list the keys that have some",
                    (int)ask->key.len, (const char *)ask->key.data, in, partition);
}

/* KL_ENOTFOUND: nothing of the key is there. */
static kl_rc ask_key(kl_queue *queue, struct key_ask *ask)
{
    kl_rc rc = check_given(queue);
    if (rc == KL_OK)
        rc = check_key(ask->key);
    if (rc == KL_OK)
        rc = ask_layouts(queue, ask);
    bool none = strcmp(ask->verb, "drain") == 0 ? ask->count == 0 && !ask->begun : !ask->answered;
    return rc == KL_OK && none && !ask->places ? fail_none(ask) : rc;
}

static kl_rc wake(kl_queue *queue, kl_bytes key, const char *partition, bool *ret_running)
{
    kl_arena arena = {0};
    struct key_ask ask = {.key = key, .partition = partition, .verb = "wake", .first_layout = true, .arena = &arena};
    kl_rc rc = ask_key(queue, &ask);
    *ret_running = ask.running && !ask.acted;
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl_key_retry(kl_queue *queue, kl_bytes key, const char *partition)
{
    bool running = false;
    kl_rc rc = wake(queue, key, partition, &running);
    return rc == KL_OK && running ? kl__fail(KL_EBUSY, "the key's first task is running; wait for its end") : rc;
}

kl_rc kl_key_skip(kl_queue *queue, kl_bytes key, const char *partition, kl_task_id *ret_id)
{
    kl_arena arena = {0};
    struct key_ask ask = {.key = key, .partition = partition, .verb = "skip", .first_layout = true, .arena = &arena};
    kl_rc rc = ask_key(queue, &ask);
    if (rc == KL_OK && ret_id)
        *ret_id = ask.id;
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl_key_drain(kl_queue *queue, kl_bytes key, const char *partition, bool dead, uint64_t *ret_count)
{
    kl_arena arena = {0};
    struct key_ask ask = {.key = key, .partition = partition, .verb = "drain", .dead = dead, .arena = &arena};
    kl_rc rc = ask_key(queue, &ask);
    if (rc == KL_OK && ret_count)
        *ret_count = ask.count;
    kl_arena_free(&arena);
    return rc;
}

/* --- Pause: a record, so that it holds whoever owns the shard --- */

static kl_bytes pause_name(const kl_queue *queue, kl_bytes key, char buffer[KL_RECORD_NAME_BYTES])
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)kl__key_hash(key));
    return kl__record_name(buffer, KL_RECORD_NAME_BYTES, "pause", queue->name, hash);
}

kl_rc kl_key_pause(kl_queue *queue, kl_bytes key)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_rc rc = check_given(queue);
    if (rc == KL_OK)
        rc = check_key(key);
    if (rc != KL_OK)
        return rc;
    json_t *value = kl__json_object();
    rc = kl__json_set_bytes(value, "key", key)
             ? kl__record_write(queue->store, pause_name(queue, key, buffer), 0, value, 0, NULL)
             : kl__fail_memory();
    json_decref(value);
    return rc == KL_ECONFLICT ? KL_OK : rc; /* it is paused */
}

/* Its first task gets its attempts back while the pause still holds: then nobody can find it without. */
kl_rc kl_key_resume(kl_queue *queue, kl_bytes key)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_arena arena = {0};
    kl_record record;
    bool running; /* then there is nothing to be tried again */
    kl_rc rc = check_given(queue);
    if (rc == KL_OK)
        rc = check_key(key);
    if (rc == KL_OK)
        rc = wake(queue, key, NULL, &running);
    if (rc != KL_OK && rc != KL_ENOTFOUND)
        return rc;
    kl_bytes name = pause_name(queue, key, buffer);
    rc = kl__record_get(queue->store, name, &arena, &record);
    if (rc == KL_OK && record.version)
        rc = kl__record_remove(queue->store, name, record.version);
    kl_arena_free(&arena);
    return rc == KL_ENOTFOUND ? KL_OK : rc;
}

/* --- Show --- */

static const char *reason_text(kl_why why)
{
    switch (why) {
    case KL_WHY_IDLE:
        return "no task of it waits";
    case KL_WHY_READY:
        return "nothing is in its way: it waits for a free thread";
    case KL_WHY_RUNNING:
        return "its first task is running";
    case KL_WHY_RETRYING:
        return "its first task failed and is tried again later; `key retry` tries it now";
    case KL_WHY_DELAYED:
        return "its first task is not due yet";
    case KL_WHY_PAUSED:
        return "it is paused; `key resume` lets it go on";
    case KL_WHY_HALTED:
        return "its first task failed for good; `key retry`, `key skip` or `key drain` lets it go on";
    case KL_WHY_QUEUE_PAUSED:
        return "the queue is paused; `queue resume` lets it go on";
    case KL_WHY_KIND:
        return "no worker here has a handler for the kind of its first task; start one that has";
    case KL_WHY_LAYOUT:
        return "tasks of it in an older layout of the queue come first";
    case KL_WHY_RATE:
        return "the queue's rate or concurrency is used up";
    case KL_WHY_NO_WORKER:
        return "no worker owns its shard; start one";
    case KL_WHY_PARTITION:
        return "its worker runs as many tasks of its partition as it may at a time; wait, raise --per-partition, or "
               "start another worker";
    }
    return "";
}

/* The one that was tried, else the first that is not for later; NULL: none waits. */
static const kl_found *first_of(const kl_found *found, size_t count)
{
    const kl_found *first = count ? found : NULL;
    for (size_t i = count; i-- > 0;)
        if (found[i].task.not_before_ms == 0)
            first = &found[i];
    for (size_t i = count; i-- > 0;)
        if (found[i].task.attempts > 0)
            first = &found[i];
    return first;
}

/* How many tasks of the key wait there, and which is the first where no worker has said: read from the store, up to a
 * bound. */
static kl_rc count_tasks(kl_queue *queue, kl__source source, kl_bytes key, kl_arena *arena, kl_key_status *status)
{
    enum { COUNT_MAX = 1000 };
    kl_found *found = kl_arena_alloc(arena, COUNT_MAX * sizeof *found);
    size_t count = 0;
    kl_rc rc = found ? kl__look_key(queue, source, key, COUNT_MAX, arena, found, &count, &status->at_least)
                     : kl__fail_memory();
    if (rc != KL_OK)
        return rc;
    status->waiting = count;
    const kl_found *head = kl__id_is_none(&status->head) ? first_of(found, count) : NULL;
    if (head) {
        status->head = head->task.entry.id;
        status->attempts = head->task.attempts;
    }
    return KL_OK;
}

static kl_rc fill_status(const kl_queue *queue, kl__source source, struct key_ask *ask, kl__json *answer,
                         kl_key_status *status)
{
    char name[KL_PARTITION_NAME_BYTES];
    kl_bytes copy;
    kl_rc rc = kl_partition_name(&source.layout->layout, queue->name, source.partition, sizeof name, name);
    if (rc == KL_OK &&
        (!kl_arena_copy(ask->arena, kl_str(name), &copy) || !kl_arena_copy(ask->arena, ask->key, &status->key)))
        rc = kl__fail_memory();
    if (rc != KL_OK)
        return rc;
    status->partition = copy.data;
    status->layout = source.layout->number;
    status->why = (kl_why)kl__json_int(answer, "why", 0, KL_WHY_PARTITION);
    status->until_ms = kl__json_int_or(answer, "until", 0, INT64_MAX, 0);
    status->head = kl__json_id_or(answer, "head", (kl_task_id){{0}});
    status->attempts = (uint32_t)kl__json_int_or(answer, "attempts", 0, UINT32_MAX, 0);
    status->error = (const char *)kl__json_bytes_or(answer, "head_error", ask->arena, kl_str("")).data;
    status->running_ms = kl__json_int_or(answer, "running_ms", 0, INT64_MAX, 0);
    status->percent = (int)kl__json_int_or(answer, "percent", -1, 100, -1);
    status->progress = kl__json_text_or(answer, "progress", ask->arena, "");
    status->reason = reason_text(status->why);
    return answer->rc;
}

/* One where nothing waits is told only if there is no other: then the next takes its place. */
static kl_rc note_place(kl_queue *queue, kl__source source, struct key_ask *ask, kl__json *answer, const char *owner)
{
    kl_key_status status = {.owner = owner};
    kl_rc rc = fill_status(queue, source, ask, answer, &status);
    if (rc == KL_OK)
        rc = count_tasks(queue, source, ask->key, ask->arena, &status);
    if (rc != KL_OK)
        return rc;
    ask->answered |= status.waiting > 0;
    size_t last = ask->place_count ? ask->place_count - 1 : 0;
    if (ask->place_count && ask->places[last].waiting == 0)
        ask->place_count = last;
    else if (ask->place_count && (status.waiting == 0 || ask->place_count == ask->max))
        return KL_OK;
    ask->places[ask->place_count++] = status;
    return KL_OK;
}

kl_rc kl_key_places(kl_queue *queue, kl_bytes key, const char *partition, size_t max, kl_arena *arena,
                    kl_key_status *ret_places, size_t *ret_count)
{
    struct key_ask ask = {
        .key = key, .partition = partition, .verb = "show", .arena = arena, .places = ret_places, .max = max};
    if (!arena || !ret_places || !ret_count)
        return check_given(false);
    if (max == 0)
        return kl__fail(KL_EINVAL, "max is 0; ask for at least one place");
    kl_rc rc = ask_key(queue, &ask);
    if (rc == KL_OK)
        *ret_count = ask.place_count;
    return rc;
}

kl_rc kl_key_show(kl_queue *queue, kl_bytes key, kl_arena *arena, kl_key_status *ret_status)
{
    enum { SHOWN_MAX = 32 };
    kl_key_status places[SHOWN_MAX];
    size_t count;
    if (!ret_status)
        return check_given(false);
    kl_rc rc = kl_key_places(queue, key, NULL, SHOWN_MAX, arena, places, &count);
    if (rc != KL_OK)
        return rc;
    for (size_t i = 1; i < count; i++) {
        places[0].waiting += places[i].waiting;
        places[0].at_least |= places[i].at_least;
    }
    places[0].at_least |= count == SHOWN_MAX;
    *ret_status = places[0];
    return KL_OK;
}

/* --- Workers --- */

struct workers {
    kl_arena *arena;
    kl_worker_status *status;
    size_t max, count;
};

static kl_worker_status *status_of(struct workers *workers, const char *name)
{
    for (size_t i = 0; i < workers->count; i++)
        if (strcmp(workers->status[i].name, name) == 0)
            return &workers->status[i];
    if (workers->count == workers->max)
        return NULL;
    workers->status[workers->count] = (kl_worker_status){.name = name};
    return &workers->status[workers->count++];
}

/* Of a partition whose store is away nobody is known, and the others are shown. */
static bool is_away(const kl_queue *queue, kl__source source, kl_rc rc)
{
    return rc == KL_EBUSY && kl__source_store(source) != queue->store;
}

static kl_rc add_workers(kl_queue *queue, kl__source source, void *ctx)
{
    struct workers *workers = ctx;
    char name[KL_PARTITION_NAME_BYTES];
    kl__ownership ownership;
    kl_rc rc = kl__layout_partition_name(queue, source.layout, source.partition, name);
    if (rc == KL_OK)
        rc = kl__owners_read(kl__source_store(source), name, &source.layout->layout, workers->arena, &ownership);
    if (is_away(queue, source, rc))
        return KL_OK;
    for (size_t i = 0; rc == KL_OK && i < ownership.count; i++) {
        const kl__owner *owner = &ownership.workers[i];
        bool stands_in = strcmp(owner->name, KL_OPERATOR_NAME) == 0;
        kl_worker_status *status = stands_in ? NULL : status_of(workers, owner->name);
        if (!status)
            continue;
        status->shards += owner->shards;
        status->running = owner->running; /* the same in every partition of the queue */
        status->concurrency = owner->concurrency;
        if (owner->seen_ms > status->seen_ms)
            status->seen_ms = owner->seen_ms;
    }
    return rc;
}

kl_rc kl_queue_workers(kl_queue *queue, size_t max, kl_arena *arena, kl_worker_status *ret_workers, size_t *ret_count)
{
    struct workers workers = {arena, ret_workers, max, 0};
    kl_rc rc = check_given(queue && arena && ret_count && (ret_workers || max == 0));
    if (rc == KL_OK)
        rc = each_source(queue, add_workers, &workers);
    if (rc == KL_OK)
        *ret_count = workers.count;
    return rc;
}

struct showing {
    kl_arena *arena;
    kl__ownership_fn *show;
    void *ctx;
};

static kl_rc show_source(kl_queue *queue, kl__source source, void *ctx)
{
    const struct showing *showing = ctx;
    const kl_layout *layout = &source.layout->layout;
    char name[KL_PARTITION_NAME_BYTES];
    kl__ownership ownership;
    kl_rc rc = kl__layout_partition_name(queue, source.layout, source.partition, name);
    if (rc == KL_OK)
        rc = kl__owners_read(kl__source_store(source), name, layout, showing->arena, &ownership);
    if (is_away(queue, source, rc))
        return KL_OK;
    if (rc == KL_OK)
        rc = kl_partition_name(layout, queue->name, source.partition, sizeof name, name);
    return rc == KL_OK ? showing->show(showing->ctx, name, source.layout->number, layout, &ownership) : rc;
}

kl_rc kl__queue_owners(kl_queue *queue, kl_arena *arena, kl__ownership_fn *show, void *ctx)
{
    return each_source(queue, show_source, &(struct showing){arena, show, ctx});
}
