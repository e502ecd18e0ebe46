/* import.c - tasks that an object-per-task system left: tasks/<shard>/<uuid>.json, where <shard> are the first digits.
 *
 * From: work/worker_inbox.c, by way of the queue.  To: append.c; then the objects are deleted.
 *
 * A store that is opened with ?import=QUEUE takes them in as tasks of that queue: shard by shard in random order, a
 * page at a time, the oldest of a page (by when it was written) first. The payload is the object as it is; it has no
 * key. What the queue refuses is moved to index/refused/<uuid>.json.
 *
 * I1  Where a task goes, and its id, follow from its UUID and from when its object was written (its partition the queue
 *     chooses, by the number that stands for the UUID); its token is the UUID. So whoever takes it in again, because
 *     another process does at the same time or because its object could not be deleted, appends it to the same shard,
 *     where it is known: while it waits, and for ten minutes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"
#include "base/wait.h"
#include "store/s3/s3.h"

enum { UUID_CHARS = 36, PAGE_MAX = 256, PAGES_MAX = 1000 };

struct import {
    kl__s3 *s3;
    kl__s3_listed *items[PAGE_MAX];
    kl__s3_request requests[PAGE_MAX];
    kl_handed handed[PAGE_MAX];
    size_t count;
};

/* --- Finding them --- */

/* The 16 bytes of ".../xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.json". */
static bool uuid_of(const char *name, kl_token *ret_uuid)
{
    const char *at = strrchr(name, '/') + 1;
    char text[UUID_CHARS + 1];
    if (strlen(at) != UUID_CHARS + 5 || strcmp(at + UUID_CHARS, ".json") != 0)
        return false;
    memcpy(text, at, UUID_CHARS);
    text[UUID_CHARS] = '\0';
    return at[8] == '-' && at[13] == '-' && at[18] == '-' && at[23] == '-' && kl__s3_read_16(text, ret_uuid->bytes);
}

static int by_age(const void *a, const void *b)
{
    const kl__s3_listed *x = *(kl__s3_listed *const *)a, *y = *(kl__s3_listed *const *)b;
    return x->modified_ms != y->modified_ms ? (x->modified_ms < y->modified_ms ? -1 : 1) : strcmp(x->name, y->name);
}

/* Those of a page whose names are UUIDs, the oldest first. */
static kl_rc choose(struct import *import, const kl__s3_names *names)
{
    kl_token uuid;
    kl__s3_listed **found = kl__alloc_zeroed(names->count ? names->count : 1, sizeof *found);
    size_t count = 0;
    if (!found)
        return kl__fail_memory();
    for (size_t i = 0; i < names->count; i++)
        if (uuid_of(names->items[i].name, &uuid))
            found[count++] = &names->items[i];
    qsort(found, count, sizeof *found, by_age);
    import->count = count < PAGE_MAX ? count : PAGE_MAX;
    for (size_t i = 0; i < import->count; i++)
        import->items[i] = found[i];
    kl__free(found);
    return KL_OK;
}

/* In the first page that has some: whoever puts other objects there hides none. */
static kl_rc find_in_shard(struct import *import, uint32_t shard, kl__s3_names *ret_names)
{
    char prefix[64], after[KL_S3_NAME_MAX] = "";
    kl_rc rc = KL_OK;
    bool more = true;
    snprintf(prefix, sizeof prefix, "tasks/%0*x/", (int)import->s3->import_digits, shard);
    for (int page = 0; rc == KL_OK && more && import->count == 0 && page < PAGES_MAX; page++) {
        kl__s3_names_free(ret_names);
        rc = kl__s3_list_page(import->s3, prefix, *after ? after : NULL, 0, ret_names);
        if (rc == KL_OK)
            rc = choose(import, ret_names);
        more = rc == KL_OK && ret_names->more && ret_names->count > 0;
        if (more)
            snprintf(after, sizeof after, "%s", ret_names->items[ret_names->count - 1].name);
    }
    return rc;
}

/* The first shard, from a random one on, that has some. */
static kl_rc find(struct import *import, kl__s3_names *ret_names)
{
    uint32_t shards = 1u << 4 * import->s3->import_digits;
    uint64_t random = kl__s3_nonce();
    uint32_t from = (uint32_t)kl__random_below(&random, shards);
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && import->count == 0 && i < shards; i++) {
        kl__s3_names_free(ret_names);
        rc = find_in_shard(import, (from + i) % shards, ret_names);
    }
    return rc;
}

static uint64_t read_64(const uint8_t bytes[8])
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | bytes[i];
    return value;
}

static kl_bytes payload_of(const kl__s3_request *request)
{
    return (kl_bytes){request->reply.data, request->reply.len};
}

static kl_rc read_all(struct import *import, size_t max)
{
    kl_rc rc = KL_OK;
    size_t there = 0;
    import->count = import->count < max ? import->count : max;
    for (size_t i = 0; rc == KL_OK && i < import->count; i++) {
        import->requests[i] =
            (kl__s3_request){.kind = KL_S3_GET, .name = kl__s3_name(import->s3, "%s", import->items[i]->name)};
        rc = import->requests[i].name ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK)
        rc = kl__s3_send(import->s3->http, import->requests, import->count);
    for (size_t i = 0; rc == KL_OK && i < import->count; i++) {
        kl_token uuid;
        if (import->requests[i].status != 200 || !uuid_of(import->items[i]->name, &uuid))
            break; /* somebody else has taken it in: those before it, then */
        import->handed[there++] =
            (kl_handed){.number = read_64(uuid.bytes), .payload = payload_of(&import->requests[i])};
    }
    import->count = rc == KL_OK ? there : 0;
    return rc;
}

/* --- Taking them in --- */

struct waiting {
    pthread_mutex_t mutex;
    pthread_cond_t told;
    size_t left;
    kl_rc rc;
};

static void tell(void *ctx, kl_rc rc, const char *error)
{
    struct waiting *waiting = ctx;
    (void)error;
    pthread_mutex_lock(&waiting->mutex);
    waiting->rc = waiting->rc != KL_OK ? waiting->rc : rc;
    if (--waiting->left == 0)
        pthread_cond_signal(&waiting->told);
    pthread_mutex_unlock(&waiting->mutex);
}

static size_t bytes_of(const kl_entry *entry)
{
    return entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
}

/* I1. Its first digits are the shard, as they were. */
static kl_rc place(const kl__s3 *s3, const kl__s3_listed *item, const kl_token *uuid, kl_entry *entry)
{
    enum { SEQUENCED = 28 }; /* bits of shard and sequence */
    uint32_t digits = s3->partitions[entry->place.partition - 1]->shard_prefix_len;
    kl_layout layout = {1, digits};
    uint64_t high = read_64(uuid->bytes) >> (64 - SEQUENCED), low = read_64(uuid->bytes + 8);
    uint32_t below = SEQUENCED - 4 * digits;
    int64_t ms = item->modified_ms > 0 ? item->modified_ms : 0;
    kl_id_parts parts = {.shard = (uint32_t)(high >> below),
                         .sequence = (uint32_t)(high & ((UINT64_C(1) << below) - 1)),
                         .ms = ms < KL_ID_MS_MAX ? ms : KL_ID_MS_MAX,
                         .random = (uint32_t)(low & KL_ID_RANDOM_MAX)};
    entry->place.shard = parts.shard;
    return kl_id_pack(&layout, &parts, &entry->id);
}

/* Each by its own token, all in one go. Where not every object became a task nobody says which did: those have no
 * token. */
static kl_rc append_all(struct import *import, const kl_taken *taken)
{
    struct waiting waiting = {.left = taken->entry_count};
    pthread_mutex_init(&waiting.mutex, NULL);
    kl__cond_init(&waiting.told);
    for (size_t i = 0; i < taken->entry_count; i++) {
        kl_token uuid;
        kl_entry entry = taken->entries[i];
        (void)uuid_of(import->items[i]->name, &uuid);
        kl_rc rc = place(import->s3, import->items[i], &uuid, &entry);
        kl_append append = {.entries = &entry,
                            .count = 1,
                            .bytes = bytes_of(&entry),
                            .token = taken->entry_count == taken->count ? &uuid : NULL,
                            .done = tell,
                            .ctx = &waiting};
        if (rc == KL_OK)
            rc = kl__s3_append(import->s3, &append);
        if (rc != KL_OK)
            tell(&waiting, rc, "");
    }
    pthread_mutex_lock(&waiting.mutex);
    while (waiting.left > 0)
        kl__cond_wait(&waiting.told, &waiting.mutex, KL_NEVER);
    pthread_mutex_unlock(&waiting.mutex);
    pthread_mutex_destroy(&waiting.mutex);
    pthread_cond_destroy(&waiting.told);
    return waiting.rc == KL_OK ? KL_OK : kl__fail(waiting.rc, "tasks were not taken in; it is tried again");
}

static kl_rc set_aside(struct import *import, const kl_taken *taken)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < taken->count; i++) {
        kl__s3_text body = {0};
        char *name = kl__s3_name(import->s3, "index/refused/%s", strrchr(import->items[i]->name, '/') + 1);
        kl__s3_text_put(&body, "{\"why\":");
        kl__s3_put_string(&body, kl_str(taken->refused));
        kl__s3_put_bytes(&body, "task", import->handed[i].payload);
        kl__s3_text_put(&body, "}\n");
        kl__s3_request request = {.kind = KL_S3_PUT, .name = name, .body = {body.data, body.len}};
        rc = name && !body.failed ? kl__s3_send(import->s3->http, &request, 1) : kl__fail_memory();
        if (rc == KL_OK && request.status >= 300)
            rc = kl__s3_refused(&request);
        kl__s3_request_free(&request);
        kl__s3_text_free(&body);
        kl__free(name);
    }
    return rc;
}

static kl_rc do_as_said(struct import *import, const kl_taken *taken)
{
    char *names[PAGE_MAX];
    kl_rc rc = taken->refused ? set_aside(import, taken) : append_all(import, taken);
    for (size_t i = 0; i < taken->count; i++)
        names[i] = (char *)import->requests[i].name;
    return rc == KL_OK ? kl__s3_delete(import->s3, names, taken->count) : rc;
}

/* Brings those that were chosen to the front. They ascend, so none of them is moved before its turn. */
static void bring_forward(struct import *import, const kl_taken *taken)
{
    for (size_t i = 0; taken->which && i < taken->count; i++) {
        size_t from = taken->which[i];
        kl__s3_listed *item = import->items[i];
        kl__s3_request request = import->requests[i];
        kl_handed handed = import->handed[i];
        import->items[i] = import->items[from];
        import->requests[i] = import->requests[from];
        import->handed[i] = import->handed[from];
        import->items[from] = item;
        import->requests[from] = request;
        import->handed[from] = handed;
    }
}

static bool is_for(const kl__s3 *s3, const char *queue) { return s3->import && strcmp(s3->import, queue) == 0; }

/* One look at all shards, at most every poll_ms while there is nothing. */
static bool may_look(kl__s3 *s3)
{
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&s3->upkeep_mutex);
    bool may = now_ns >= s3->import_ns;
    if (may)
        s3->import_ns = now_ns + s3->poll_ms * 1000000;
    pthread_mutex_unlock(&s3->upkeep_mutex);
    return may;
}

static void look_again(kl__s3 *s3)
{
    pthread_mutex_lock(&s3->upkeep_mutex);
    s3->import_ns = 0;
    pthread_mutex_unlock(&s3->upkeep_mutex);
}

kl_rc kl__s3_take_in(void *self, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                     size_t *ret_count)
{
    kl__s3 *s3 = self;
    kl__s3_names names = {0};
    kl_taken taken = {0};
    *ret_count = 0;
    if (!is_for(s3, queue) || !may_look(s3)) {
        kl__s3_sleep(s3, wait_ms);
        return KL_OK;
    }
    struct import *import = kl__alloc_zeroed(1, sizeof *import);
    if (!import)
        return kl__fail_memory();
    import->s3 = s3;
    kl_rc rc = find(import, &names);
    size_t asked = rc == KL_OK ? (import->count < max ? import->count : max) : 0;
    if (rc == KL_OK)
        rc = read_all(import, max);
    if (rc == KL_OK && import->count > 0)
        rc = take(ctx, import->handed, import->count, &taken);
    if (rc == KL_OK && taken.count > 0) {
        bring_forward(import, &taken);
        rc = do_as_said(import, &taken);
    }
    if (rc == KL_OK)
        *ret_count = import->count;
    if (rc == KL_OK && import->count > 0)
        look_again(s3); /* there may be more */
    for (size_t i = 0; i < asked; i++) {
        kl__free((char *)import->requests[i].name);
        kl__s3_request_free(&import->requests[i]);
    }
    kl__s3_names_free(&names);
    kl__free(import);
    return rc;
}
