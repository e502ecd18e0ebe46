/* layouts.c - layouts of a queue: names, stores and numbers of their partitions, sealing, moving ids.
 *
 * From: descriptor.c (what the record says), queue.c (alter), work/ (seal, drained).  To: the stores.
 *
 * Whatever a process needs to use a layout is made once, in two steps: attach opens the stores, before anything is
 * written into the record that could not be opened; complete makes the partitions there, after it has been written,
 * because a partition's shards can never be changed again and only the record says what they are.
 *
 * Of a layout that stands in the record, a store other than the queue's own may be away: its partitions have no numbers
 * until it is there, calls that name them fail with KL_EBUSY, and the other partitions are used. */
#include <stdio.h>

#include "base/layout.h"
#include "base/mutant.h"
#include "queue/inside.h"

enum { SEAL_BATCH = 4096 /* shards sealed in one call */ };

struct kl__layout_parts {
    _Atomic(uint32_t) references;
    kl_arena arena;
    kl_store **stores;   /* by partition */
    kl__number *numbers; /* by partition; NULL until complete */
    kl_idgen *idgen;     /* likewise */
    char queue[KL_QUEUE_NAME_MAX + 1];
    size_t shared_count;
    struct {
        const char *url;
        kl_store *store;
    } shared[KL_QUEUE_STORES_MAX]; /* by kl__store_share */
};

static kl_rc name_partition(const char *queue, const kl__queue_layout *layout, uint32_t partition,
                            char ret_name[KL_PARTITION_NAME_BYTES])
{
    kl_rc rc = kl_partition_name(&layout->layout, queue, partition, KL_PARTITION_NAME_BYTES, ret_name);
    size_t length = rc == KL_OK ? strlen(ret_name) : 0;
    if (rc == KL_OK && layout->number > 1)
        snprintf(ret_name + length, KL_PARTITION_NAME_BYTES - length, "@%llu", (unsigned long long)layout->number);
    return rc;
}

kl_rc kl__layout_partition_name(const kl_queue *queue, const kl__queue_layout *layout, uint32_t partition,
                                char ret_name[KL_PARTITION_NAME_BYTES])
{
    return name_partition(queue->name, layout, partition, ret_name);
}

kl_rc kl__layout_tell_partition(const kl_queue *queue, const kl__descriptor *descriptor, const kl__queue_layout *layout,
                                uint32_t partition, char ret_name[KL_TOLD_PARTITION_BYTES])
{
    const kl__queue_layout *newest = kl__newest_layout(descriptor);
    bool same = partition < newest->layout.partitions && newest->stores[partition] == layout->stores[partition];
    kl_rc rc = kl_partition_name(&layout->layout, queue->name, partition, KL_PARTITION_NAME_BYTES, ret_name);
    size_t length = rc == KL_OK ? strlen(ret_name) : 0;
    if (rc == KL_OK && !same)
        snprintf(ret_name + length, KL_TOLD_PARTITION_BYTES - length, " of layout %llu",
                 (unsigned long long)layout->number);
    return rc;
}

static kl_rc refuse_partition(const kl_queue *queue, const kl_layout *layout, const char *name)
{
    const char *is = queue->name;
    if (layout->partitions == 1)
        return kl__fail(KL_EINVAL, "the queue %s has no partition %.80s; it has one, called %s", is, name, is);
    if (layout->partitions == 2)
        return kl__fail(KL_EINVAL, "the queue %s has no partition %.80s; it has %s and %s__p1", is, name, is, is);
    return kl__fail(KL_EINVAL, "the queue %s has no partition %.80s; it has %u: %s, and %s__p1 to %s__p%u", is, name,
                    layout->partitions, is, is, is, layout->partitions - 1);
}

kl_rc kl__layout_partition_find(const kl_queue *queue, const kl_layout *layout, const char *name,
                                uint32_t *ret_partition)
{
    char made[KL_PARTITION_NAME_BYTES];
    for (uint32_t i = 0; i < layout->partitions; i++) {
        kl_rc rc = kl_partition_name(layout, queue->name, i, sizeof made, made);
        if (rc != KL_OK)
            return rc;
        if (strcmp(made, name) == 0) {
            *ret_partition = i;
            return KL_OK;
        }
    }
    return refuse_partition(queue, layout, name);
}

/* --- Parts --- */

void kl__layout_parts_release(kl__layout_parts *parts)
{
    if (!parts || atomic_fetch_sub(&parts->references, 1) > 1)
        return;
    for (size_t i = 0; i < parts->shared_count; i++)
        kl__store_unshare(parts->shared[i].store);
    kl_idgen_close(parts->idgen);
    kl_arena_free(&parts->arena);
    kl__free(parts);
}

/* The sentence of what failed, with the place before it. It is not the queue that is not found. */
static kl_rc fail_at(kl_rc rc, const char *queue, uint32_t partition)
{
    char reason[400];
    rc = rc == KL_ENOTFOUND ? KL_EDAMAGED : rc;
    snprintf(reason, sizeof reason, "%s", kl_error_text());
    return kl__fail(rc, "partition %u of queue %s: %s", partition, queue, reason);
}

static kl_rc share(kl__layout_parts *parts, const char *url, bool is_new, kl_store **ret_store)
{
    for (size_t i = 0; i < parts->shared_count; i++) {
        if (strcmp(parts->shared[i].url, url) == 0) {
            *ret_store = parts->shared[i].store;
            return KL_OK;
        }
    }
    KL_ASSERT(parts->shared_count < KL_QUEUE_STORES_MAX); /* checked in options, and in the record */
    kl_bytes copy;
    if (!kl_arena_copy(&parts->arena, kl_str(url), &copy))
        return kl__fail_memory();
    kl_rc rc = kl__store_share(url, is_new, ret_store);
    if (rc != KL_OK)
        return rc;
    parts->shared[parts->shared_count].url = copy.data;
    parts->shared[parts->shared_count++].store = *ret_store;
    return KL_OK;
}

/* A store of a layout that is yet to be written into the record: it is there, and keeps what the queue's own would
 * keep. */
static kl_rc check_new(const kl_queue *queue, kl_store *store)
{
    int64_t now_ms;
    if (kl_store_info_of(queue->store).can & ~kl_store_info_of(store).can & KL_STORE_DURABLE)
        return kl__fail(KL_EINVAL,
                        "its store would be gone with this process, and its tasks with it; name one that lasts, "
                        "as the queue's own does");
    return kl_store_now(store, &now_ms);
}

static kl_rc open_stores(kl_queue *queue, const kl__queue_layout *layout, bool is_new, kl__layout_parts *parts)
{
    uint32_t count = layout->layout.partitions;
    parts->stores = kl_arena_alloc(&parts->arena, count * sizeof(kl_store *));
    if (!parts->stores)
        return kl__fail_memory();
    for (uint32_t i = 0; i < count; i++) {
        const char *url = layout->urls ? layout->urls[i] : "";
        parts->stores[i] = queue->store;
        kl_rc rc = *url ? share(parts, url, is_new, &parts->stores[i]) : KL_OK;
        if (rc == KL_OK && *url && is_new)
            rc = check_new(queue, parts->stores[i]);
        if (rc != KL_OK)
            return rc == KL_ENOMEM ? rc : fail_at(rc, queue->name, i);
    }
    return KL_OK;
}

static kl_rc make_parts(kl_queue *queue, const kl__queue_layout *layout, bool is_new, kl__layout_parts **ret_parts)
{
    kl__layout_parts *parts = kl__alloc_zeroed(1, sizeof *parts);
    if (!parts)
        return kl__fail_memory();
    atomic_init(&parts->references, 1);
    memcpy(parts->queue, queue->name, sizeof parts->queue);
    kl_rc rc = open_stores(queue, layout, is_new, parts);
    if (rc == KL_OK)
        *ret_parts = parts;
    else
        kl__layout_parts_release(parts);
    return rc;
}

/* A removed queue that was made again has other layouts, under greater numbers. */
static kl__layout_parts *known_parts(const kl__descriptor *known, uint64_t number)
{
    for (size_t i = 0; known && i < known->layout_count; i++) {
        if (known->layouts[i].number == number) {
            atomic_fetch_add(&known->layouts[i].parts->references, 1);
            return known->layouts[i].parts;
        }
    }
    return NULL;
}

static void show_parts(kl__queue_layout *layout)
{
    layout->stores = layout->parts->stores;
    layout->numbers = layout->parts->numbers;
    layout->idgen = layout->parts->idgen;
}

kl_rc kl__layouts_attach(kl_queue *queue, kl__descriptor *descriptor, const kl__descriptor *known, bool is_new)
{
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        kl__queue_layout *layout = &descriptor->layouts[i];
        if (!layout->parts)
            layout->parts = known_parts(known, layout->number);
        kl_rc rc = layout->parts ? KL_OK : make_parts(queue, layout, is_new, &layout->parts);
        if (rc != KL_OK)
            return rc;
        show_parts(layout);
    }
    return KL_OK;
}

static kl_rc ask_number(const kl__queue_layout *layout, uint32_t partition, uint32_t *ret_number)
{
    const char *queue = layout->parts->queue;
    char name[KL_PARTITION_NAME_BYTES];
    kl_rc rc = name_partition(queue, layout, partition, name);
    if (rc == KL_OK)
        rc = kl_store_partition(layout->stores[partition], name, layout->layout.shard_prefix_len, ret_number);
    return rc == KL_OK || rc == KL_ENOMEM ? rc : fail_at(rc, queue, partition);
}

uint32_t kl__layout_find_number(const kl__queue_layout *layout, uint32_t partition)
{
    uint32_t number;
    if (ask_number(layout, partition, &number) != KL_OK)
        return KL_PARTITION_AWAY;
    atomic_store_explicit(&layout->numbers[partition], number, memory_order_release);
    return number;
}

static kl_rc number_partitions(const kl_queue *queue, const kl__queue_layout *layout, kl__number *ret_numbers)
{
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        uint32_t number = KL_PARTITION_AWAY;
        kl_rc rc = ask_number(layout, i, &number);
        if (rc != KL_OK && (rc != KL_EBUSY || layout->stores[i] == queue->store))
            return rc;
        atomic_init(&ret_numbers[i], number);
    }
    return KL_OK;
}

static kl_rc complete_one(const kl_queue *queue, kl__queue_layout *layout)
{
    kl__layout_parts *parts = layout->parts;
    kl__number *numbers = kl_arena_alloc(&parts->arena, layout->layout.partitions * sizeof *numbers);
    kl_rc rc = numbers ? number_partitions(queue, layout, numbers) : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl_idgen_open(&layout->layout, NULL, &parts->idgen);
    if (rc == KL_OK)
        parts->numbers = numbers;
    return rc;
}

/* Parts that are not complete belong to one descriptor that nobody else has seen. */
kl_rc kl__layouts_complete(kl_queue *queue, kl__descriptor *descriptor)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++) {
        if (!descriptor->layouts[i].parts->numbers)
            rc = complete_one(queue, &descriptor->layouts[i]);
        show_parts(&descriptor->layouts[i]);
    }
    return rc;
}

/* --- Counting --- */

static void add(kl_counts *sum, const kl_counts *part)
{
    bool older = part->oldest_id_ms != 0 && (sum->oldest_id_ms == 0 || part->oldest_id_ms < sum->oldest_id_ms);
    sum->ready += part->ready;
    sum->due += part->due;
    sum->retry += part->retry;
    sum->priorities |= part->priorities;
    sum->oldest_id_ms = older ? part->oldest_id_ms : sum->oldest_id_ms;
    sum->done += part->done;
    sum->dead += part->dead;
    sum->cancelled += part->cancelled;
    sum->at_least |= part->at_least;
    sum->finished_behind |= part->finished_behind;
}

static kl_rc add_place(const kl__queue_layout *layout, uint32_t partition, uint32_t shard, kl_counts *sum)
{
    kl_counts part = {0};
    kl_place place = {kl__layout_number(layout, partition), shard};
    kl_rc rc = kl_store_counts(layout->stores[partition], place, NULL, &part);
    if (rc == KL_OK)
        add(sum, &part);
    return rc;
}

kl_rc kl__layout_count_one(const kl__queue_layout *layout, uint32_t partition, kl_counts *counts)
{
    return add_place(layout, partition, KL_ALL_SHARDS, counts);
}

kl_rc kl__layout_count(const kl__queue_layout *layout, kl_counts *counts)
{
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        kl_rc rc = kl__layout_count_one(layout, i, counts);
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

static kl_rc sum_shards(const kl__queue_layout *layout, uint32_t partition, kl_counts *counts)
{
    uint32_t shards = kl_layout_shards(&layout->layout);
    for (uint32_t i = 0; i < shards && kl__counts_waiting(counts) == 0 && !counts->at_least; i++) {
        kl_rc rc = add_place(layout, partition, i, counts);
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

kl_rc kl__layout_is_empty(const kl__queue_layout *layout, bool *ret_empty)
{
    kl_counts counts = {0};
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && i < layout->layout.partitions; i++)
        rc = sum_shards(layout, i, &counts);
    if (rc == KL_OK)
        *ret_empty = kl__counts_waiting(&counts) == 0 && !counts.at_least;
    return rc;
}

kl_rc kl__layout_keeps(const kl__queue_layout *layout, bool *ret_keeps)
{
    kl_arena arena = {0};
    kl_task task;
    size_t count = 0;
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && count == 0 && i < layout->layout.partitions; i++) {
        kl_find find = {.partition = kl__layout_number(layout, i), .max = 1};
        rc = kl_store_find(layout->stores[i], &find, &arena, &task, &count);
    }
    kl_arena_free(&arena);
    *ret_keeps = count > 0;
    return rc;
}

/* --- Sealing --- */

kl_rc kl__layout_check_seal(const kl_queue *queue, const kl__queue_layout *layout)
{
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        kl_store_info info = kl_store_info_of(layout->stores[i]);
        if (!(info.can & KL_STORE_SEAL))
            return kl__fail(KL_EINVAL,
                            "the layout of queue %s cannot be changed: its partition %u lies in a %s store, which "
                            "cannot seal shards; make another queue and move the tasks there",
                            queue->name, i, info.scheme);
    }
    return KL_OK;
}

static kl_rc seal_partition(kl_store *store, uint32_t number, uint32_t shards, kl_fence *fences)
{
    kl_rc rc = KL_OK;
    for (uint32_t first = 0; rc == KL_OK && first < shards; first += SEAL_BATCH) {
        uint32_t count = shards - first < SEAL_BATCH ? shards - first : SEAL_BATCH;
        for (uint32_t i = 0; i < count; i++)
            fences[i] = (kl_fence){.place = {number, first + i}, .seal = true};
        rc = KL_MUTANT(never_sealed) ? KL_OK : kl_store_fence(store, fences, count);
    }
    return rc;
}

kl_rc kl__layout_seal(const kl_queue *queue, const kl__queue_layout *layout)
{
    kl_rc rc = kl__layout_check_seal(queue, layout);
    if (rc != KL_OK)
        return rc;
    kl_fence *fences = kl__alloc_zeroed(SEAL_BATCH, sizeof *fences);
    if (!fences)
        return kl__fail_memory();
    uint32_t shards = kl_layout_shards(&layout->layout);
    for (uint32_t i = 0; rc == KL_OK && i < layout->layout.partitions; i++)
        rc = seal_partition(layout->stores[i], kl__layout_number(layout, i), shards, fences);
    kl__free(fences);
    return rc;
}

/* ctx: a layout's number; all that are older have been sealed. */
static kl_rc mark_sealed(kl__descriptor *draft, void *ctx)
{
    const uint64_t *below = ctx;
    for (size_t i = 0; i < draft->layout_count; i++)
        if (draft->layouts[i].number < *below)
            draft->layouts[i].sealed = true;
    return KL_OK;
}

kl_rc kl__queue_seal(kl_queue *queue)
{
    kl_rc rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    uint64_t newest = kl__newest_layout(descriptor)->number;
    bool any = false;
    for (size_t i = 0; rc == KL_OK && i + 1 < descriptor->layout_count; i++) {
        if (descriptor->layouts[i].sealed)
            continue;
        any = true;
        rc = kl__layout_seal(queue, &descriptor->layouts[i]);
    }
    kl__descriptor_release(descriptor);
    return rc == KL_OK && any ? kl__queue_change(queue, mark_sealed, &newest) : rc;
}

/* --- Partitions by name --- */

/* ctx: a layout's number. */
static kl_rc mark_by_name(kl__descriptor *draft, void *ctx)
{
    const uint64_t *number = ctx;
    for (size_t i = 0; i < draft->layout_count; i++)
        draft->layouts[i].by_name |= draft->layouts[i].number == *number;
    return KL_OK; /* one that is forgotten is sealed, and the append finds that out */
}

kl_rc kl__queue_mark_by_name(kl_queue *queue, const kl__queue_layout *layout)
{
    uint64_t number = layout->number;
    return layout->by_name ? KL_OK : kl__queue_change(queue, mark_by_name, &number);
}

/* --- Drained --- */

struct draining {
    kl_queue *queue;
    uint64_t number;
};

static kl_rc fail_unsealed(const struct draining *draining)
{
    return kl__fail(KL_EINVAL, "layout %llu of queue %s is not sealed, so it can still get tasks; seal it first",
                    (unsigned long long)draining->number, draining->queue->name);
}

static kl_rc mark_drained(kl__descriptor *draft, void *ctx)
{
    const struct draining *draining = ctx;
    for (size_t i = 0; i < draft->layout_count; i++) {
        kl__queue_layout *layout = &draft->layouts[i];
        if (layout->number == draining->number && !layout->sealed)
            return fail_unsealed(draining);
        if (layout->number == draining->number)
            layout->drained = true;
    }
    return KL_OK; /* one that is forgotten was drained */
}

static kl_rc check_layout(const struct draining *draining, const kl__queue_layout *layout)
{
    kl_counts counts = {0};
    kl_rc rc = layout->sealed ? kl__layout_count(layout, &counts) : fail_unsealed(draining);
    uint64_t waiting = kl__counts_waiting(&counts);
    bool empty = waiting == 0;
    if (rc == KL_OK && counts.at_least) /* what is counted so may be old as well */
        rc = kl__layout_is_empty(layout, &empty);
    if (rc == KL_OK && !empty)
        rc = kl__fail(KL_EBUSY, "layout %llu of queue %s still holds tasks, %s%llu in number; they come first",
                      (unsigned long long)layout->number, draining->queue->name, counts.at_least ? "at least " : "",
                      (unsigned long long)(waiting ? waiting : 1));
    return rc;
}

/* Q3 would be broken for good by a mistake here, so it is counted again: when it was sealed before, or a task might
 * come between the count and the seal. */
static kl_rc check_empty(const struct draining *draining)
{
    kl__descriptor *descriptor = kl__queue_descriptor(draining->queue);
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++)
        if (descriptor->layouts[i].number == draining->number && !descriptor->layouts[i].drained)
            rc = check_layout(draining, &descriptor->layouts[i]);
    kl__descriptor_release(descriptor);
    return rc;
}

kl_rc kl__queue_drained(kl_queue *queue, uint64_t layout_number)
{
    struct draining draining = {queue, layout_number};
    kl_rc rc = kl__queue_refresh(queue);
    if (rc == KL_OK)
        rc = check_empty(&draining);
    return rc == KL_OK ? kl__queue_change(queue, mark_drained, &draining) : rc;
}

/* What is sealed and empty stays empty. */
static kl_rc retire(kl_queue *queue, const kl__queue_layout *layout)
{
    kl_counts counts = {0};
    kl_rc rc = kl__layout_count(layout, &counts);
    bool empty = rc == KL_OK && kl__counts_waiting(&counts) == 0;
    if (rc == KL_OK && counts.at_least) /* it has not looked everywhere */
        rc = kl__layout_is_empty(layout, &empty);
    return rc == KL_OK && empty ? kl__queue_drained(queue, layout->number) : rc;
}

kl_rc kl__queue_retire(kl_queue *queue)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_rc first = KL_OK;
    for (size_t i = 0; i + 1 < descriptor->layout_count; i++) {
        bool waits = descriptor->layouts[i].sealed && !descriptor->layouts[i].drained;
        kl_rc rc = waits ? retire(queue, &descriptor->layouts[i]) : KL_OK;
        first = first != KL_OK ? first : rc;
    }
    kl__descriptor_release(descriptor);
    return first;
}

/* --- Ids --- */

/* A longer shard leaves the sequence fewer bits. Those that it loses become the first random bits, behind the lane:
 * ids of one generator are told apart by their sequence, which stays whole so, and those of one lane keep their order.
 * The random bits that fall off in turn told apart what different generators made. */
kl_task_id kl__id_moved(const kl_layout *from, const kl_layout *to, uint32_t shard, const kl_task_id *id)
{
    enum { RANDOM_BITS = 26 };
    _Static_assert(KL_ID_RANDOM_MAX == (1u << RANDOM_BITS) - 1, "as id.h says");
    kl_id_parts parts = kl_id_unpack(from, id);
    uint32_t from_bits = kl__shard_bits(from), to_bits = kl__shard_bits(to);
    if (to_bits > from_bits) {
        uint32_t lost = to_bits - from_bits;
        uint32_t low = parts.sequence & ((1u << lost) - 1);
        parts.random = low << (RANDOM_BITS - lost) | parts.random >> lost;
        parts.sequence >>= lost;
    } else {
        parts.sequence <<= from_bits - to_bits;
    }
    parts.shard = shard;
    kl_task_id moved;
    kl_rc rc = kl_id_pack(to, &parts, &moved);
    KL_ASSERT(rc == KL_OK);
    return moved;
}
