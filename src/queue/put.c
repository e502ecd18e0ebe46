/* put.c - producers: from a caller's tasks to entries in stores.
 *
 * From: applications, cron.c, job.c.  To: store/.
 *
 *     check all -> envelopes -> [uniques, each on its own: unique.c] -> places and ids -> one append a store
 *                                                                            ^                  |
 *                                                                            +-- KL_ESEALED ----+
 *
 * The place of a key follows from the newest layout that this process knows of. When that is no longer the newest, its
 * shards are sealed and the store says so: then the queue's record is read again. So no put looks at the record.
 *
 * Tasks without a key are spread: the first run of them goes to a random shard, the next to the one after it. A run is
 * as long as it takes to touch each shard once, so a large batch makes few runs and a small one is spread anyway.
 *
 * A plain task costs three hashes of its key, an id and no memory: what a call needs is taken once. */
#include "queue/put.h"

#include <stdio.h>
#include <time.h>

#include "base/compare.h"
#include "base/mutant.h"
#include "base/random.h"
#include "queue/envelope.h"

enum {
    SEED_GROUP = 4,
    SEED_APPEND = 5,
    RUN_MAX = 64, /* ids made at once */
};

/* --- Waiting --- */

static void sleep_really(int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static _Atomic(kl__sleep_fn *) sleeper = sleep_really;

void kl__queue_sleep_by(kl__sleep_fn *sleep) { atomic_store(&sleeper, sleep ? sleep : sleep_really); }

void kl__queue_sleep(int64_t ms)
{
    if (ms > 0)
        atomic_load (&sleeper)(ms);
}

bool kl__put_again(kl_rc rc, uint32_t tries)
{
    if (KL_LIKELY(rc != KL_EBUSY) || tries + 1 >= KL_PUT_STORE_TRIES)
        return false;
    kl__queue_sleep(tries == 0 ? 0 : INT64_C(1) << (tries - 1));
    return true;
}

/* Where a test has its own time, calls take none. */
bool kl__put_took_long(int64_t began_ns)
{
    return atomic_load(&sleeper) == sleep_really && kl__monotonic_ns() - began_ns > KL_PUT_LONG_MS * INT64_C(1000000);
}

/* --- Appending --- */

uint16_t kl__group_hash(kl_bytes group)
{
    if (group.len == 0)
        return 0;
    uint16_t hash = (uint16_t)(kl__hash(group, SEED_GROUP) >> 48);
    return hash ? hash : 1;
}

static kl_rc append_entries(kl_store *store, const kl_entry *entries, size_t count, const kl_token *token)
{
    kl_rc rc;
    KL_ASK(rc, kl_store_append(store, entries, count, token));
    return rc;
}

/* A token names tasks and their partitions: a task that moves may keep its id, and a batch that is not quite the same
 * is none that the store knows. */
struct naming {
    uint64_t hashes[2];
};

static const struct naming nothing_named = {{SEED_APPEND, SEED_APPEND + 1}};

static void name_entry(struct naming *naming, const kl_entry *entry)
{
    for (int half = 0; half < 2; half++) {
        uint64_t hash = kl__hash((kl_bytes){&entry->place.partition, 4}, naming->hashes[half]);
        naming->hashes[half] = kl__hash((kl_bytes){entry->id.bytes, sizeof entry->id.bytes}, hash);
    }
}

static kl_token token_of(const struct naming *naming)
{
    kl_token token;
    memcpy(token.bytes, naming->hashes, sizeof token.bytes);
    return token;
}

kl_token kl__queue_token(const kl_entry *entries, size_t count)
{
    struct naming naming = nothing_named;
    for (size_t i = 0; i < count; i++)
        name_entry(&naming, &entries[i]);
    return token_of(&naming);
}

kl_rc kl__queue_append(kl_store *store, const kl_entry *entries, size_t count)
{
    kl_token token = kl__queue_token(entries, count);
    return append_entries(store, entries, count, &token);
}

/* --- The call's queues and stores --- */

static void *grow(kl__put_call *call, const void *items, size_t count, size_t size, size_t *room)
{
    void *more = kl_arena_alloc(&call->arena, 4 * *room * size);
    if (more) {
        memcpy(more, items, count * size);
        *room *= 4;
    }
    return more;
}

static kl_rc add_route(kl__put_call *call, kl_queue *queue, uint32_t *ret_route)
{
    if (call->route_count == call->route_room) {
        kl__put_route *routes = grow(call, call->routes, call->route_count, sizeof *routes, &call->route_room);
        if (!routes)
            return kl__fail_memory();
        call->routes = routes;
    }
    kl__put_route *route = &call->routes[call->route_count];
    *route = (kl__put_route){.queue = queue, .descriptor = kl__queue_descriptor(queue)};
    route->layout = kl__put_layout(route->descriptor);
    *ret_route = (uint32_t)call->route_count++;
    return KL_OK;
}

static inline kl_rc find_route(kl__put_call *call, kl_queue *queue, uint32_t *ret_route)
{
    for (size_t i = call->route_count; i-- > 0;)
        if (KL_LIKELY(call->routes[i].queue == queue)) {
            *ret_route = (uint32_t)i;
            return KL_OK;
        }
    return add_route(call, queue, ret_route);
}

static inline kl_rc find_store(kl__put_call *call, kl_store *store, uint32_t *ret_store)
{
    for (size_t i = call->store_count; i-- > 0;)
        if (KL_LIKELY(call->stores[i].store == store)) {
            *ret_store = (uint32_t)i;
            return KL_OK;
        }
    if (call->store_count == call->store_room) {
        kl__put_store *stores = grow(call, call->stores, call->store_count, sizeof *stores, &call->store_room);
        if (!stores)
            return kl__fail_memory();
        call->stores = stores;
    }
    call->stores[call->store_count] = (kl__put_store){.store = store};
    *ret_store = (uint32_t)call->store_count++;
    return KL_OK;
}

kl_rc kl__put_refresh(kl__put_call *call)
{
    for (size_t i = 0; i < call->route_count; i++) {
        kl__put_route *route = &call->routes[i];
        kl_rc rc;
        KL_ASK(rc, kl__queue_seal(route->queue));
        if (rc != KL_OK)
            return rc;
        kl__descriptor_release(route->descriptor);
        *route = (kl__put_route){.queue = route->queue, .descriptor = kl__queue_descriptor(route->queue)};
        route->layout = kl__put_layout(route->descriptor);
    }
    return KL_OK;
}

/* --- Checking --- */

/* Names the task by its number in the call, from 1. */
#define REFUSE(call, index, format, ...)                                                                               \
    kl__fail(KL_EINVAL, "task %zu of %zu: " format, (index) + 1, (call)->count, __VA_ARGS__)

static kl_rc refuse_again(const kl__put_call *call, size_t i)
{
    char why[512];
    snprintf(why, sizeof why, "%s", kl_error_text());
    return REFUSE(call, i, "%s", why);
}

static kl_rc make_envelope(kl__put_call *call, size_t i, const kl_put *task)
{
    kl_task_extra extra = {
        .attempts_max = (uint32_t)task->attempts_max,
        .timeout_ms = task->timeout_ms,
        .unique = task->unique,
        .group = task->group,
        .traceparent = task->traceparent,
        .headers = kl__unconst(task->headers), /* only read */
        .header_count = task->header_count,
        .tags = kl__unconst(task->tags),
        .tag_count = task->tag_count,
        .keep_ms = task->keep_ms,
        .job_run = task->job_run,
    };
    kl_rc rc = kl__envelope_encode(&extra, &call->arena, &call->entries[i].headers);
    return rc == KL_EINVAL ? refuse_again(call, i) : rc;
}

static kl_rc resolve_named(kl__put_call *call, size_t i, kl__put_route *route);

static kl_rc prepare_task(kl__put_call *call, size_t i)
{
    const kl_put *task = &call->tasks[i];
    kl__put_way *way = &call->ways[i];
    bool plain = kl__put_is_plain(task);
    kl_rc rc = kl__put_check(task);
    *way = (kl__put_way){.stored = false};
    if (KL_UNLIKELY(rc != KL_OK))
        rc = refuse_again(call, i);
    else
        rc = find_route(call, task->queue ? task->queue : call->queue, &way->route);
    if (rc == KL_OK && KL_UNLIKELY(task->partition) && !call->handed)
        rc = resolve_named(call, i, &call->routes[way->route]);
    if (rc != KL_OK)
        return rc;
    call->entries[i] = (kl_entry){
        .job = task->job,
        .due_ms = task->due_ms,
        .priority = (int32_t)task->priority,
        .group = kl__group_hash(task->group),
        .key = task->key,
        .kind = task->kind,
        .payload = task->payload,
    };
    call->uniques += task->unique.len > 0;
    return plain ? KL_OK : make_envelope(call, i, task);
}

static kl_rc prepare(kl__put_call *call)
{
    size_t sum = 0;
    for (size_t i = 0; i < call->count; i++) {
        kl_rc rc = prepare_task(call, i);
        if (rc != KL_OK)
            return rc;
        const kl_entry *entry = &call->entries[i];
        sum += entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
        if (sum > KL_BATCH_BYTES_MAX)
            return REFUSE(call, i, "with it the call has %zu bytes, and one call takes up to %u; put fewer at a time",
                          sum, KL_BATCH_BYTES_MAX);
    }
    return KL_OK;
}

/* --- Places --- */

static kl_rc resolve_named(kl__put_call *call, size_t i, kl__put_route *route)
{
    const char *name = call->tasks[i].partition;
    if (route->named && (route->named == name || strcmp(route->named, name) == 0))
        return KL_OK;
    kl_rc rc = kl__layout_partition_find(route->queue, &route->layout->layout, name, &route->named_number);
    route->named = rc == KL_OK ? name : NULL;
    return rc == KL_EINVAL ? refuse_again(call, i) : rc;
}

/* Threads share no state for it. */
static uint64_t draw(void)
{
    static _Thread_local uint64_t state;
    if (KL_UNLIKELY(state == 0))
        state = kl__random_seed();
    return kl__random_next(&state);
}

static uint64_t cells_of(const kl_layout *layout) { return (uint64_t)layout->partitions * kl_layout_shards(layout); }

static void next_cell(kl__put_route *route)
{
    const kl_layout *layout = &route->layout->layout;
    if (++route->partition == layout->partitions) {
        route->partition = 0;
        route->shard = (route->shard + 1) % kl_layout_shards(layout);
    }
}

static bool is_away(const kl__put_route *route)
{
    return kl__layout_number(route->layout, route->partition) == KL_PARTITION_AWAY;
}

/* Goes on to the next shard when the run is over, partition by partition, past those whose store is away. */
static void spread(const kl__put_call *call, kl__put_route *route)
{
    const kl_layout *layout = &route->layout->layout;
    if (route->spreads && route->run_left > 0) {
        route->run_left--;
        return;
    }
    uint32_t run = (uint32_t)((call->count + cells_of(layout) - 1) / cells_of(layout));
    route->run_left = run - 1;
    if (!route->spreads) {
        route->partition = kl__hash_scale(draw(), layout->partitions);
        route->shard = kl__hash_scale(draw(), kl_layout_shards(layout));
        route->spreads = true;
    } else {
        next_cell(route);
    }
    for (uint32_t i = 1; i < layout->partitions && is_away(route); i++)
        next_cell(route);
}

/* Where a task without a key goes once its id is known. */
static uint64_t hash_id(const kl_task_id *id, uint64_t seed)
{
    kl_layout any = {1, 1};
    uint32_t random = kl_id_unpack(&any, id).random;
    return kl__hash((kl_bytes){&random, sizeof random}, seed);
}

static kl_rc set_due(kl__put_call *call, size_t i)
{
    kl__put_store *store = &call->stores[call->ways[i].store];
    int64_t delay_ms = call->tasks[i].delay_ms;
    if (store->now_ms == 0) {
        kl_rc rc;
        KL_ASK(rc, kl_store_now(store->store, &store->now_ms));
        if (rc != KL_OK)
            return rc;
    }
    if (delay_ms > KL_ID_MS_MAX - store->now_ms)
        return REFUSE(call, i, "delay_ms is %lld, which ends after the year 2527; make it shorter",
                      (long long)delay_ms);
    call->entries[i].due_ms = store->now_ms + delay_ms;
    return KL_OK;
}

static inline kl_rc set_place(kl__put_call *call, size_t i, const kl__queue_layout *layout, uint32_t partition,
                              uint32_t shard)
{
    kl_entry *entry = &call->entries[i];
    entry->place = (kl_place){kl__layout_number(layout, partition), shard};
    kl_rc rc = find_store(call, layout->stores[partition], &call->ways[i].store);
    if (rc == KL_OK && KL_UNLIKELY(call->tasks[i].delay_ms > 0 && entry->due_ms == 0))
        rc = set_due(call, i);
    return rc;
}

static uint32_t partition_of_handed(const kl_layout *layout, const kl_handed *handed)
{
    kl_bytes number = {&handed->number, sizeof handed->number};
    return kl__hash_scale(kl__hash(number, KL_SEED_PARTITION), layout->partitions);
}

/* The partition that a task goes to; `otherwise` when neither its name nor its key says. A name that this layout does
 * not have is the fault of whoever puts now, and not of who put a task that has waited since. */
static inline kl_rc choose_partition(kl__put_call *call, size_t i, kl__put_route *route, uint32_t otherwise,
                                     uint32_t *ret_partition)
{
    const kl_layout *layout = &route->layout->layout;
    kl_bytes key = call->entries[i].key;
    if (KL_UNLIKELY(call->tasks[i].partition)) {
        kl_rc rc = resolve_named(call, i, route);
        if (rc != KL_EINVAL || !call->handed) {
            *ret_partition = route->named_number;
            route->by_name |= key.len > 0 && *ret_partition != kl_partition_of(layout, key);
            return rc;
        }
    }
    if (key.len > 0)
        *ret_partition = kl_partition_of(layout, key);
    else
        *ret_partition = KL_UNLIKELY(call->handed) ? partition_of_handed(layout, &call->handed[i]) : otherwise;
    return KL_OK;
}

static inline kl_rc choose_place(kl__put_call *call, size_t i)
{
    kl__put_route *route = &call->routes[call->ways[i].route];
    const kl_entry *entry = &call->entries[i];
    uint32_t partition;
    if (entry->key.len == 0)
        spread(call, route);
    kl_rc rc = choose_partition(call, i, route, route->partition, &partition);
    if (rc != KL_OK)
        return rc;
    uint32_t shard = entry->key.len > 0 ? kl_shard_of(&route->layout->layout, entry->key) : route->shard;
    return set_place(call, i, route->layout, partition, shard);
}

/* The place of a task whose id is known. */
static kl_rc place_by_id(kl__put_call *call, size_t i)
{
    kl__put_route *route = &call->routes[call->ways[i].route];
    const kl_layout *layout = &route->layout->layout;
    const kl_entry *entry = &call->entries[i];
    uint32_t partition, any = kl__hash_scale(hash_id(&entry->id, KL_SEED_PARTITION), layout->partitions);
    kl_rc rc = choose_partition(call, i, route, any, &partition);
    return rc == KL_OK ? set_place(call, i, route->layout, partition, kl_id_shard(layout, &entry->id)) : rc;
}

/* --- Ids --- */

/* Tasks from i on that are in one shard and get their ids at once. */
static size_t run_from(const kl__put_call *call, size_t i, size_t to)
{
    size_t end = i + 1;
    while (end < to && end - i < RUN_MAX && call->ways[end].route == call->ways[i].route && !call->ways[end].stored &&
           call->entries[end].place.shard == call->entries[i].place.shard)
        end++;
    return end;
}

static kl_rc make_ids(kl__put_call *call, kl__put_range range)
{
    kl_rc rc = KL_OK;
    for (size_t i = range.from, end; rc == KL_OK && i < range.to; i = end) {
        uint32_t lanes[RUN_MAX];
        kl_task_id ids[RUN_MAX];
        end = i + 1;
        if (call->ways[i].stored)
            continue;
        end = run_from(call, i, range.to);
        for (size_t j = i; j < end; j++)
            lanes[j - i] = kl_lane_of(call->entries[j].key);
        rc = kl_idgen_batch(call->routes[call->ways[i].route].layout->idgen, call->entries[i].place.shard, lanes,
                            end - i, ids);
        for (size_t j = i; rc == KL_OK && j < end; j++)
            call->entries[j].id = ids[j - i];
    }
    return rc;
}

/* --- Routing --- */

/* What the route remembers of another layout is forgotten. */
static void use_layout(kl__put_route *route, const kl__queue_layout *layout)
{
    if (route->layout == layout)
        return;
    route->layout = layout;
    route->spreads = route->by_name = false;
    route->named = NULL;
}

/* Q4 */
kl_rc kl__put_mark(kl__put_call *call)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < call->route_count; i++)
        if (KL_UNLIKELY(call->routes[i].by_name))
            KL_ASK(rc, kl__queue_mark_by_name(call->routes[i].queue, call->routes[i].layout));
    return rc;
}

static kl_rc mark_by_name(kl__put_call *call)
{
    if (KL_LIKELY(!call->marks_later))
        return kl__put_mark(call);
    for (size_t i = 0; i < call->route_count; i++)
        call->unmarked |= call->routes[i].by_name && !call->routes[i].layout->by_name;
    return KL_OK;
}

static kl_rc place_all_by_id(kl__put_call *call, kl__put_range range)
{
    kl_rc rc = KL_OK;
    for (size_t i = range.from; rc == KL_OK && i < range.to; i++)
        if (!call->ways[i].stored)
            rc = place_by_id(call, i);
    return rc == KL_OK ? mark_by_name(call) : rc;
}

static void use_newest(kl__put_call *call)
{
    for (size_t i = 0; i < call->route_count; i++)
        use_layout(&call->routes[i], kl__put_layout(call->routes[i].descriptor));
}

kl_rc kl__put_route_tasks(kl__put_call *call, kl__put_range range, bool claimed)
{
    kl_rc rc = KL_OK;
    use_newest(call);
    for (size_t i = range.from; rc == KL_OK && i < range.to; i++)
        if (KL_LIKELY(!call->ways[i].stored))
            rc = choose_place(call, i);
    if (rc == KL_OK)
        rc = make_ids(call, range);
    if (rc != KL_OK)
        return rc;
    return claimed ? place_all_by_id(call, range) : mark_by_name(call);
}

static const kl__queue_layout *find_layout(const kl__descriptor *descriptor, uint64_t number)
{
    for (size_t i = descriptor->layout_count; i-- > 0;)
        if (descriptor->layouts[i].number == number)
            return &descriptor->layouts[i];
    return NULL;
}

kl_rc kl__put_place_tasks(kl__put_call *call, kl__put_range range, const kl__put_made *made)
{
    for (size_t i = range.from; i < range.to; i++) {
        uint32_t number = call->ways[i].route;
        kl__put_route *route = &call->routes[number];
        if (route->layout->number == made[number].number)
            continue;
        const kl__queue_layout *layout = find_layout(route->descriptor, made[number].number);
        if (!layout)
            return kl__fail(KL_ESEALED, "layout %llu of the queue %s is no more",
                            (unsigned long long)made[number].number, route->queue->name);
        use_layout(route, layout);
    }
    return place_all_by_id(call, range);
}

/* Without a key the shard keeps its first digits, as it does with one: so look.c finds what has moved. */
uint32_t kl__move_shard(const kl_layout *from, const kl_layout *to, const kl_entry *entry)
{
    uint32_t shard = kl_id_shard(from, &entry->id), digits = to->shard_prefix_len;
    if (entry->key.len > 0)
        return kl_shard_of(to, entry->key);
    if (digits <= from->shard_prefix_len)
        return shard >> 4 * (from->shard_prefix_len - digits);
    uint32_t bits = 4 * (digits - from->shard_prefix_len);
    return shard << bits | kl__hash_scale(hash_id(&entry->id, KL_SEED_SHARD), UINT32_C(1) << bits);
}

kl_task_id kl__id_on_its_way(const kl__descriptor *descriptor, uint64_t from, uint64_t to, const kl_layout *layout,
                             const kl_entry *entry)
{
    kl_entry moved = *entry;
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *next = &descriptor->layouts[i];
        if (next->number <= from || next->number > to)
            continue;
        uint32_t shard = kl__move_shard(layout, &next->layout, &moved);
        moved.id = kl__id_moved(layout, &next->layout, shard, &moved.id);
        layout = &next->layout;
    }
    return moved.id;
}

/* By the id that it has there: the one before is another in each older layout. */
uint32_t kl__move_partition(const kl_layout *to, const kl_entry *entry)
{
    kl_bytes id = {&entry->id, sizeof entry->id};
    return entry->key.len > 0 ? kl_partition_of(to, entry->key)
                              : kl__hash_scale(kl__hash(id, KL_SEED_PARTITION), to->partitions);
}

kl_entry kl__entry_moved(const kl__descriptor *descriptor, uint64_t from, const kl_layout *layout,
                         const kl_entry *entry, kl_store **ret_store)
{
    const kl__queue_layout *to = kl__newest_layout(descriptor);
    kl_entry moved = *entry;
    moved.id = kl__id_on_its_way(descriptor, from, to->number, layout, entry);
    uint32_t partition = kl__move_partition(&to->layout, &moved);
    moved.place = (kl_place){kl__layout_number(to, partition), kl_id_shard(&to->layout, &moved.id)};
    *ret_store = to->stores[partition];
    return moved;
}

static void move_id(const kl__put_route *route, const kl__put_made *made, kl_entry *entry)
{
    const kl_layout *to = &route->layout->layout;
    uint32_t shard = kl__move_shard(&made->layout, to, entry);
    entry->id = kl__id_moved(&made->layout, to, shard, &entry->id);
}

kl_rc kl__put_move_tasks(kl__put_call *call, kl__put_range range, kl__put_made *made)
{
    use_newest(call);
    for (size_t i = range.from; i < range.to; i++) {
        const kl__put_route *route = &call->routes[call->ways[i].route];
        if (!call->ways[i].stored && route->layout->number != made[call->ways[i].route].number)
            move_id(route, &made[call->ways[i].route], &call->entries[i]);
    }
    for (size_t i = range.from; i < range.to; i++) {
        const kl__queue_layout *layout = call->routes[call->ways[i].route].layout;
        made[call->ways[i].route] = (kl__put_made){layout->number, layout->layout};
    }
    return place_all_by_id(call, range);
}

/* --- One append a store --- */

static bool belongs(const kl__put_call *call, size_t i, uint32_t store)
{
    return call->ways[i].store == store && !call->ways[i].stored;
}

/* The range's entries for the store, as they are if there are no others. */
static kl_rc gather(kl__put_call *call, kl__put_range range, uint32_t store, const kl_entry **ret_entries,
                    size_t *ret_count)
{
    size_t count = 0;
    for (size_t i = range.from; i < range.to; i++)
        count += belongs(call, i, store);
    *ret_count = count;
    *ret_entries = &call->entries[range.from];
    if (count == 0 || count == range.to - range.from)
        return KL_OK;
    if (!call->gathered && !(call->gathered = kl_arena_alloc(&call->arena, call->count * sizeof *call->gathered)))
        return kl__fail_memory();
    count = 0;
    for (size_t i = range.from; i < range.to; i++)
        if (belongs(call, i, store))
            call->gathered[count++] = call->entries[i];
    *ret_entries = call->gathered;
    return KL_OK;
}

/* Which of them are there, although one of their shards is sealed. */
static kl_rc append_parts(kl__put_call *call, kl__put_range range, uint32_t store, const kl_entry *entries,
                          size_t count, const kl_token *token)
{
    bool *stored = kl_arena_alloc(&call->arena, count * sizeof *stored);
    size_t next = 0;
    if (!stored)
        return kl__fail_memory();
    memset(stored, 0, count * sizeof *stored);
    kl_rc rc = kl__append_parts(call->stores[store].store, entries, count, token, stored);
    for (size_t i = range.from; i < range.to; i++)
        if (belongs(call, i, store))
            call->ways[i].stored = stored[next++];
    return rc;
}

/* Of a claim's append: the one that whoever held the claim before used. So it names also what was seen to be there
 * since: of the rest, some may have been stored with that, and be done and gone. */
static kl_token claimed_token(const kl__put_call *call, kl__put_range range, uint32_t store)
{
    struct naming naming = nothing_named;
    for (size_t i = range.from; i < range.to; i++)
        if (belongs(call, i, store) || (call->ways[i].store == store && call->ways[i].seen))
            name_entry(&naming, &call->entries[i]);
    return token_of(&naming);
}

static kl_rc append_store(kl__put_call *call, kl__put_range range, uint32_t store, bool claimed)
{
    const kl_entry *entries;
    size_t count;
    kl_token token;
    kl_rc rc = gather(call, range, store, &entries, &count);
    if (rc != KL_OK || count == 0)
        return rc;
    if (claimed)
        token = claimed_token(call, range, store);
    else
        memcpy(token.bytes, entries[0].id.bytes, sizeof token.bytes); /* a fresh id: no other call has it */
    rc = append_entries(call->stores[store].store, entries, count, &token);
    if (rc == KL_ESEALED)
        return append_parts(call, range, store, entries, count, &token);
    for (size_t i = range.from; rc == KL_OK && i < range.to; i++)
        call->ways[i].stored |= belongs(call, i, store);
    return rc;
}

kl_rc kl__put_append(kl__put_call *call, kl__put_range range, bool claimed)
{
    kl_rc rc = KL_OK;
    for (uint32_t store = 0; rc == KL_OK && store < call->store_count; store++)
        rc = append_store(call, range, store, claimed);
    return rc;
}

/* --- The call --- */

static kl_rc put_plain(kl__put_call *call)
{
    kl__put_range all = {0, call->count};
    for (int tries = 0; tries < KL_PUT_LAYOUT_TRIES; tries++) {
        kl_rc rc = kl__put_route_tasks(call, all, false);
        if (rc == KL_OK)
            rc = kl__put_append(call, all, false);
        if (KL_LIKELY(rc != KL_ESEALED))
            return rc;
        rc = kl__put_refresh(call);
        if (rc != KL_OK)
            return rc;
    }
    return kl__fail(KL_EBUSY, "the layout of the queue %s changes again and again; put the tasks later",
                    call->queue->name);
}

static kl_rc put_uniques(kl__put_call *call)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && call->uniques > 0 && i < call->count; i++) {
        const kl_put *task = &call->tasks[i];
        if (task->unique.len > 0)
            rc = kl__put_once(call, (kl__put_range){i, i + 1}, "unique", task->unique, NULL);
    }
    return rc;
}

static kl_rc put_all(kl__put_call *call, kl_bytes token)
{
    if (token.len > 0 && !KL_MUTANT(token_forgotten))
        return kl__put_once(call, (kl__put_range){0, call->count}, "token", token, NULL);
    kl_rc rc = put_uniques(call);
    return rc == KL_OK ? put_plain(call) : rc;
}

static kl_rc check_call(const kl_queue *queue, const kl_put *tasks, size_t count, kl_bytes token)
{
    if (!queue)
        return kl__fail(KL_EINVAL, "the queue is NULL; open one with kl_queue_open");
    if (count > KL_PUT_MAX)
        return kl__fail(KL_EINVAL, "%zu tasks are too many for one call; put up to %d at a time", count, KL_PUT_MAX);
    if (count > 0 && !tasks)
        return kl__fail(KL_EINVAL, "there should be %zu tasks, but the pointer is NULL; pass the tasks", count);
    if (token.len > KL_UNIQUE_BYTES_MAX || (token.len > 0 && !token.data))
        return kl__fail(KL_EINVAL, "the token has %zu bytes; pass that many, and up to %d", token.len,
                        KL_UNIQUE_BYTES_MAX);
    return KL_OK;
}

static kl_rc begin(kl__put_call *call, kl_queue *queue, const kl_put *tasks, size_t count)
{
    memset(call, 0, offsetof(kl__put_call, one_route));
    call->queue = queue;
    call->tasks = tasks;
    call->count = count;
    call->routes = &call->one_route;
    call->stores = &call->one_store;
    call->route_room = call->store_room = 1;
    call->entries = call->few_entries;
    call->ways = call->few_ways;
    if (count <= KL_PUT_FEW)
        return KL_OK;
    call->entries = kl_arena_alloc(&call->arena, count * sizeof *call->entries);
    call->ways = kl_arena_alloc(&call->arena, count * sizeof *call->ways);
    return call->entries && call->ways ? KL_OK : kl__fail_memory();
}

kl_rc kl__put_begin(kl__put_call *call, kl_queue *queue, const kl_put *tasks, size_t count)
{
    kl_rc rc = begin(call, queue, tasks, count);
    return rc == KL_OK ? prepare(call) : rc;
}

kl_rc kl__put_begin_handed(kl__put_call *call, kl_queue *queue, const kl_handed *handed, const kl_put *tasks,
                           size_t count)
{
    kl_rc rc = begin(call, queue, tasks, count);
    call->handed = handed;
    return rc == KL_OK ? prepare(call) : rc;
}

kl_rc kl__queue_put_handed(kl_queue *queue, const kl_handed *handed, const kl_put *task, kl_bytes token)
{
    kl__put_call call;
    kl_rc rc = kl__put_begin_handed(&call, queue, handed, task, 1);
    if (rc == KL_OK)
        rc = put_all(&call, token);
    kl__put_end(&call);
    return rc;
}

void kl__put_end(kl__put_call *call)
{
    for (size_t i = 0; i < call->route_count; i++)
        kl__descriptor_release(call->routes[i].descriptor);
    kl_arena_free(&call->arena);
}

kl_rc kl__put_check_call(kl_queue *queue, const kl_put *tasks, size_t count, kl_bytes token)
{
    kl__put_call call;
    kl_rc rc = check_call(queue, tasks, count, token);
    if (rc != KL_OK || count == 0)
        return rc;
    rc = kl__put_begin(&call, queue, tasks, count);
    kl__put_end(&call);
    return rc;
}

kl_rc kl_queue_put(kl_queue *queue, const kl_put *tasks, size_t count, kl_bytes token, kl_put_result *ret_results)
{
    kl__put_call call;
    kl_rc rc = check_call(queue, tasks, count, token);
    if (rc != KL_OK || count == 0)
        return rc;
    rc = kl__put_begin(&call, queue, tasks, count);
    if (rc == KL_OK)
        rc = put_all(&call, token);
    for (size_t i = 0; rc == KL_OK && ret_results && i < count; i++)
        ret_results[i] = (kl_put_result){call.entries[i].id, call.ways[i].duplicate};
    kl__put_end(&call);
    return rc;
}
