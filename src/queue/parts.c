/* parts.c - an append that has met a seal, shard by shard.
 *
 * From: put.c, job_submit.c.  To: the store.
 *
 * A store that does not append to several shards in one step may have stored what is for some of them when it finds
 * another one sealed, in this try or in an earlier one whose reply was lost; and owners may have run that by now. So
 * nothing of it is taken back. What is for each shard is appended by itself, under the token that all of it had: KL_OK
 * means that it stands there, now or since an earlier try, and KL_ESEALED that it does not and never will. A key's
 * tasks are for one shard, so what stays in the old layout and what goes to the new one are of different keys, and keep
 * their order. */
#include <stdlib.h>

#include "base/wait.h"
#include "queue/put.h"

/* Where an entry of a part came from. */
struct origin {
    const kl_entry *entry;
    size_t index;
};

struct parts;

/* What is for one shard. */
struct part {
    struct parts *parts;
    size_t from, count; /* in the entries that are sorted by shard */
    kl_rc rc;
};

struct parts {
    pthread_mutex_t mutex;
    pthread_cond_t landed;
    size_t flying;
    struct origin *origins;
    kl_entry *entries; /* by shard; of one shard in their order */
    struct part *parts;
    size_t count;
    char error[256]; /* of a part that failed */
};

static bool is_same(kl_place a, kl_place b) { return a.partition == b.partition && a.shard == b.shard; }

static int by_place(const void *a, const void *b)
{
    const struct origin *x = a, *y = b;
    if (x->entry->place.partition != y->entry->place.partition)
        return x->entry->place.partition < y->entry->place.partition ? -1 : 1;
    if (x->entry->place.shard != y->entry->place.shard)
        return x->entry->place.shard < y->entry->place.shard ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static void close_parts(struct parts *parts)
{
    pthread_mutex_destroy(&parts->mutex);
    pthread_cond_destroy(&parts->landed);
    kl__free(parts->origins);
    kl__free(parts->entries);
    kl__free(parts->parts);
}

static kl_rc open_parts(struct parts *parts, const kl_entry *entries, size_t count)
{
    *parts = (struct parts){.origins = kl__alloc_zeroed(count, sizeof *parts->origins),
                            .entries = kl__alloc_zeroed(count, sizeof *parts->entries),
                            .parts = kl__alloc_zeroed(count, sizeof *parts->parts)};
    pthread_mutex_init(&parts->mutex, NULL);
    kl__cond_init(&parts->landed);
    if (!parts->origins || !parts->entries || !parts->parts)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        parts->origins[i] = (struct origin){&entries[i], i};
    qsort(parts->origins, count, sizeof *parts->origins, by_place);
    for (size_t i = 0; i < count; i++) {
        parts->entries[i] = *parts->origins[i].entry;
        if (i == 0 || !is_same(parts->entries[i].place, parts->entries[i - 1].place))
            parts->parts[parts->count++] = (struct part){.parts = parts, .from = i, .rc = KL_EBUSY};
        parts->parts[parts->count - 1].count++;
    }
    return KL_OK;
}

static void land(void *ctx, kl_rc rc, const char *error)
{
    struct part *part = ctx;
    struct parts *parts = part->parts;
    pthread_mutex_lock(&parts->mutex);
    part->rc = rc;
    if (rc != KL_OK && rc != KL_ESEALED)
        snprintf(parts->error, sizeof parts->error, "%s", error);
    parts->flying--;
    pthread_cond_signal(&parts->landed);
    pthread_mutex_unlock(&parts->mutex);
}

/* All that the store was too busy for, at once, so that it can make one write of them. */
static void launch(struct parts *parts, kl_store *store, const kl_token *token)
{
    for (size_t i = 0; i < parts->count; i++) {
        struct part *part = &parts->parts[i];
        if (part->rc != KL_EBUSY)
            continue;
        pthread_mutex_lock(&parts->mutex);
        parts->flying++;
        pthread_mutex_unlock(&parts->mutex);
        kl_rc rc = kl_store_append_async(store, &parts->entries[part->from], part->count, token, land, part);
        if (rc != KL_OK)
            land(part, rc, kl_error_text());
    }
    pthread_mutex_lock(&parts->mutex);
    while (parts->flying > 0)
        kl__cond_wait(&parts->landed, &parts->mutex, KL_NEVER);
    pthread_mutex_unlock(&parts->mutex);
}

/* The worst of what came of them: that something is not known, then that a shard is sealed. */
static kl_rc rc_of(const struct parts *parts)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < parts->count; i++)
        if (parts->parts[i].rc != KL_OK && (rc == KL_OK || rc == KL_ESEALED))
            rc = parts->parts[i].rc;
    return rc;
}

static void note_stored(const struct parts *parts, bool *stored)
{
    for (size_t i = 0; i < parts->count; i++)
        for (size_t j = 0; j < parts->parts[i].count; j++)
            stored[parts->origins[parts->parts[i].from + j].index] = parts->parts[i].rc == KL_OK;
}

kl_rc kl__append_parts(kl_store *store, const kl_entry *entries, size_t count, const kl_token *token, bool *stored)
{
    struct parts parts;
    if (kl_store_info_of(store).can & KL_STORE_ATOMIC_APPEND)
        return KL_ESEALED; /* nothing was stored, and the sentence says so */
    kl_rc rc = open_parts(&parts, entries, count);
    if (rc == KL_OK && parts.count > 1) {
        uint32_t tries = 0;
        do
            launch(&parts, store, token);
        while (kl__put_again(rc_of(&parts), tries++));
        rc = rc_of(&parts);
        note_stored(&parts, stored);
    } else if (rc == KL_OK) {
        rc = KL_ESEALED;
    }
    if (rc == KL_ESEALED)
        rc = kl__fail(rc, "some of the shards are sealed, because their queue has a newer layout");
    else if (rc != KL_OK && *parts.error)
        rc = kl__fail(rc, "%s", parts.error);
    close_parts(&parts);
    return rc;
}
