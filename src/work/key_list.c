/* key_list.c - keys with waiting tasks: the longest lines, the oldest tasks, or what is held up first.
 *
 * The first look_max waiting tasks are read and counted by key: what that misses stands behind so many others that it
 * is not what somebody who asks has to look at first. */
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "keyline/control.h"
#include "queue/inside.h"
#include "work/ask.h"
#include "work/inside.h"
#include "work/why.h"

enum { PAGE = 500, LOOK_DEFAULT = 100000, LIST_MAX = 1000 };

struct key {
    kl_bytes bytes;
    uint64_t hash, count;
    int64_t oldest_ms;
    kl_why why;
    uint64_t partition; /* of the first task: a hash of its name */
    uint16_t kind;      /* likewise, by kl__owners_kind */
    kl_found first;     /* of its tasks in line; of what it points to only the key is there */
};

struct keys {
    struct key *slots; /* by hash, linear probing; count 0: empty */
    size_t capacity, used;
    kl_arena *arena;
};

static struct key *place_for(const struct keys *keys, uint64_t hash)
{
    size_t i = hash & (keys->capacity - 1);
    while (keys->slots[i].count && keys->slots[i].hash != hash)
        i = (i + 1) & (keys->capacity - 1);
    return &keys->slots[i];
}

static bool grow(struct keys *keys)
{
    struct keys bigger = {
        .capacity = keys->capacity ? keys->capacity * 2 : 64, .used = keys->used, .arena = keys->arena};
    bigger.slots = kl__alloc_zeroed(bigger.capacity, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (size_t i = 0; i < keys->capacity; i++)
        if (keys->slots[i].count)
            *place_for(&bigger, keys->slots[i].hash) = keys->slots[i];
    kl__free(keys->slots);
    *keys = bigger;
    return true;
}

static uint64_t partition_hash(const char *name) { return kl__hash(kl_str(name), KL_SEED_PARTITION); }

static void set_first(struct key *key, const kl_found *found)
{
    key->first = *found;
    key->first.task.entry.key = key->bytes; /* what it pointed to lies in a page that goes */
    key->partition = partition_hash(found->partition);
    key->kind = kl__owners_kind(found->task.entry.kind);
}

static kl_rc count(struct keys *keys, const kl_found *found)
{
    kl_bytes key = found->task.entry.key;
    if (key.len == 0)
        return KL_OK;
    if (keys->used * 2 >= keys->capacity && !grow(keys))
        return kl__fail_memory();
    uint64_t hash = kl__key_hash(key);
    struct key *slot = place_for(keys, hash);
    if (!slot->count) {
        if (!kl_arena_copy(keys->arena, key, &slot->bytes))
            return kl__fail_memory();
        slot->hash = hash;
        set_first(slot, found);
        slot->oldest_ms = found->made_ms;
        keys->used++;
    } else if (found->task.attempts > slot->first.task.attempts) {
        set_first(slot, found); /* it was tried: it stands first */
    }
    if (found->made_ms < slot->oldest_ms)
        slot->oldest_ms = found->made_ms;
    slot->count++;
    return KL_OK;
}

static kl_rc count_all(kl_queue *queue, struct keys *keys, size_t look_max, bool *ret_all)
{
    kl_arena pages[2] = {{0}, {0}}; /* the cursor of one page lies in its arena while the next is read */
    kl_found *found = kl__alloc(PAGE * sizeof *found);
    kl_bytes cursor = {0};
    size_t seen = 0, page = 0;
    kl_rc rc = found ? KL_OK : kl__fail_memory();
    do {
        kl_waiting which = {.max = PAGE, .look_max = look_max, .cursor = cursor};
        size_t some = 0;
        kl_arena *arena = &pages[page++ % 2];
        kl_arena_reset(arena);
        if (rc == KL_OK)
            rc = kl_queue_waiting(queue, &which, arena, found, &some, &cursor);
        for (size_t i = 0; i < some && rc == KL_OK; i++)
            rc = count(keys, &found[i]);
        seen += some;
    } while (rc == KL_OK && cursor.len > 0 && seen < look_max);
    *ret_all = rc == KL_OK && cursor.len == 0;
    kl__free(found);
    kl_arena_free(&pages[0]);
    kl_arena_free(&pages[1]);
    return rc;
}

static int by_count(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return kl__bytes_compare(x->bytes, y->bytes);
}

static int by_age(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->oldest_ms != y->oldest_ms)
        return x->oldest_ms < y->oldest_ms ? -1 : 1;
    return by_count(a, b);
}

static int urgency(kl_why why)
{
    static const kl_why first[] = {KL_WHY_HALTED, KL_WHY_PAUSED, KL_WHY_KIND, KL_WHY_RETRYING, KL_WHY_DELAYED};
    int at = 0, count = (int)(sizeof first / sizeof first[0]);
    while (at < count && first[at] != why)
        at++;
    return at;
}

static int by_state(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    int difference = urgency(x->why) - urgency(y->why);
    return difference ? difference : by_count(a, b);
}

/* --- What the store alone tells; kl_key_show asks the owner --- */

/* What keeps a task that is due from being started, as far as its partition's owners and their kinds tell. */
static kl_rc find_unserved(void *ctx, const char *partition, uint64_t layout_number, const kl_layout *layout,
                           const kl__ownership *ownership)
{
    const struct keys *keys = ctx;
    uint64_t hash = partition_hash(partition);
    (void)layout;
    for (size_t i = 0; i < keys->capacity; i++) {
        struct key *key = &keys->slots[i];
        if (!key->count || key->why != KL_WHY_READY || key->partition != hash || key->first.layout != layout_number)
            continue;
        const kl__owner *owner = kl__ownership_of(ownership, key->first.task.entry.place.shard);
        if (!owner || strcmp(owner->name, KL_OPERATOR_NAME) == 0)
            key->why = KL_WHY_NO_WORKER;
        else if (!kl__ownership_serves(ownership, key->kind))
            key->why = KL_WHY_KIND;
    }
    return KL_OK;
}

static kl_rc find_states(kl_queue *queue, struct keys *keys)
{
    int64_t now_ms;
    kl_arena arena = {0};
    kl__keyset *paused = kl__keyset_open(); /* all at once: there are few, and keys may be many */
    kl_rc rc = paused ? kl__keyset_read_paused(paused, queue, &arena) : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl_store_now(queue->store, &now_ms);
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; rc == KL_OK && i < keys->capacity; i++)
        if (keys->slots[i].count)
            keys->slots[i].why = kl__found_why(&keys->slots[i].first, descriptor, paused, now_ms);
    kl__descriptor_release(descriptor);
    if (rc == KL_OK)
        rc = kl__queue_owners(queue, &arena, find_unserved, keys);
    kl__keyset_free(paused);
    kl_arena_free(&arena);
    return rc;
}

static kl_key_status describe(const struct key *key, bool all)
{
    const kl_task *first = &key->first.task;
    return (kl_key_status){
        .key = key->bytes,
        .why = key->why,
        .reason = "",
        .waiting = key->count,
        .at_least = !all,
        .until_ms = key->why == KL_WHY_RETRYING || key->why == KL_WHY_DELAYED ? first->not_before_ms : 0,
        .head = first->entry.id,
        .oldest_ms = key->oldest_ms,
        .attempts = first->attempts,
        .error = "",
        .owner = "",
        .percent = -1,
        .progress = "",
    };
}

static kl_rc check(kl_key_order order, size_t max)
{
    if ((unsigned)order > KL_KEYS_BY_STATE)
        return kl__fail(KL_EINVAL, "the order is %d; it must be one of kl_key_order", (int)order);
    if (max == 0 || max > LIST_MAX)
        return kl__fail(KL_EINVAL, "%zu keys were asked for; ask for 1 to %d", max, LIST_MAX);
    return KL_OK;
}

kl_rc kl_key_list(kl_queue *queue, kl_key_order order, size_t look_max, size_t max, kl_arena *arena,
                  kl_key_status *ret_keys, size_t *ret_count)
{
    static int (*const compare[])(const void *, const void *) = {by_count, by_count, by_age, by_state};
    struct keys keys = {.arena = arena};
    bool all = false;
    size_t used = 0;
    if (!queue || !arena || !ret_keys || !ret_count)
        return kl__fail(KL_EINVAL, "an argument is NULL; pass the queue, an arena and room for the answer");
    kl_rc rc = check(order, max);
    if (rc == KL_OK)
        rc = count_all(queue, &keys, look_max ? look_max : LOOK_DEFAULT, &all);
    if (rc == KL_OK)
        rc = find_states(queue, &keys);
    for (size_t i = 0; rc == KL_OK && i < keys.capacity; i++)
        if (keys.slots[i].count)
            keys.slots[used++] = keys.slots[i];
    if (used)
        qsort(keys.slots, used, sizeof *keys.slots, compare[order]);
    used = used < max ? used : max;
    for (size_t i = 0; i < used; i++)
        ret_keys[i] = describe(&keys.slots[i], all);
    kl__free(keys.slots);
    if (rc == KL_OK)
        *ret_count = used;
    return rc;
}
