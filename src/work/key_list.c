/* key_list.c - keys with waiting tasks, the longest lines first.
 *
 * The first look_max waiting tasks are read and counted by key: what that misses stands behind so many others that it is
 * not what somebody who asks has to look at first. */
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "keyline/control.h"
#include "queue/inside.h"

enum { PAGE = 500, LOOK_DEFAULT = 100000, LIST_MAX = 1000 };

struct key {
    kl_bytes bytes;
    uint64_t hash, count;
    kl_found first; /* of its tasks in line; bytes of its payload are gone */
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
        slot->first = *found;
        keys->used++;
    } else if (found->task.attempts > slot->first.task.attempts) {
        slot->first = *found; /* it was tried: it stands first */
    }
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

static kl_rc is_paused(kl_queue *queue, const struct key *key, kl_arena *arena, bool *ret_paused)
{
    char hash[17], name[KL_RECORD_NAME_BYTES];
    kl_record record;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)key->hash);
    kl_rc rc =
        kl__record_get(queue->store, kl__record_name(name, sizeof name, "pause", queue->name, hash), arena, &record);
    if (rc == KL_OK)
        *ret_paused = record.version != 0;
    return rc;
}

/* As far as the store alone tells; kl_key_show asks the owner. */
static kl_rc describe(kl_queue *queue, const struct key *key, bool all, kl_arena *arena, kl_key_status *ret_status)
{
    bool paused = false;
    int64_t now_ms;
    kl_rc rc = is_paused(queue, key, arena, &paused);
    if (rc == KL_OK)
        rc = kl_store_now(queue->store, &now_ms);
    if (rc != KL_OK)
        return rc;
    const kl_task *first = &key->first.task;
    bool later = first->not_before_ms > now_ms;
    *ret_status = (kl_key_status){
        .key = key->bytes,
        .why = paused  ? KL_WHY_PAUSED
               : later ? (first->attempts ? KL_WHY_RETRYING : KL_WHY_DELAYED)
                       : KL_WHY_READY,
        .reason = "",
        .waiting = key->count,
        .at_least = !all,
        .until_ms = later ? first->not_before_ms : 0,
        .head = first->entry.id,
        .attempts = first->attempts,
        .error = "",
        .owner = "",
        .percent = -1,
        .progress = "",
    };
    return KL_OK;
}

kl_rc kl_key_list(kl_queue *queue, size_t look_max, size_t max, kl_arena *arena, kl_key_status *ret_keys,
                  size_t *ret_count)
{
    struct keys keys = {.arena = arena};
    bool all = false;
    size_t used = 0;
    if (max == 0 || max > LIST_MAX)
        return kl__fail(KL_EINVAL, "%zu keys were asked for; ask for 1 to %d", max, LIST_MAX);
    kl_rc rc = count_all(queue, &keys, look_max ? look_max : LOOK_DEFAULT, &all);
    for (size_t i = 0; i < keys.capacity; i++)
        if (keys.slots[i].count)
            keys.slots[used++] = keys.slots[i];
    if (used)
        qsort(keys.slots, used, sizeof *keys.slots, by_count);
    used = used < max ? used : max;
    for (size_t i = 0; i < used && rc == KL_OK; i++)
        rc = describe(queue, &keys.slots[i], all, arena, &ret_keys[i]);
    kl__free(keys.slots);
    if (rc == KL_OK)
        *ret_count = used;
    return rc;
}
