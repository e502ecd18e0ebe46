/* queue.c - queues: opened, shown, listed, altered, paused.
 *
 * From: applications, workers, the program.  To: descriptor.c (the record), layouts.c.
 *
 * Two processes that open a queue which does not exist both try to put its record where none is. One wins, and both
 * read what the winner wrote. */
#include "queue/inside.h"

#include <stdio.h>

#include "base/layout.h"
#include "store/quick.h"

enum {
    BILLED_LEASE_MS = 30000, /* an idle worker of several then takes some 1,350 requests an hour on S3 */
    OPEN_TRIES_MAX = 16,     /* made by one and removed by another, again and again */
    LIST_PIECE = 64,         /* names listed at once */
    REASON_BYTES = 256,
    SCHEME_BYTES = 64,
};

/* --- Names --- */

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static const char *what_is_wrong(const char *name)
{
    size_t length = strlen(name);
    if (length == 0)
        return "is empty";
    if (length > KL_QUEUE_NAME_MAX)
        return "is longer than 64 bytes";
    if (!is_alphanumeric(*name))
        return "does not begin with a letter or digit";
    if (strstr(name, "__p"))
        return "has __p in it, which names of partitions have";
    for (const char *c = name; *c; c++)
        if (!is_alphanumeric(*c) && *c != '.' && *c != '_' && *c != '-')
            return "has other characters than letters, digits, '.', '_' and '-'";
    return NULL;
}

kl_rc kl__queue_check_name(const char *name)
{
    char quoted[KL_QUOTE_BYTES];
    if (!name)
        return kl__fail(KL_EINVAL, "the queue's name is NULL; pass one such as \"orders\"");
    const char *wrong = what_is_wrong(name);
    if (wrong && strstr(name, "__p"))
        return kl__fail(KL_EINVAL, "the queue's name %s %s; name the queue, and its partition apart from it",
                        kl__quote(kl_str(name), quoted), wrong);
    if (wrong)
        return kl__fail(KL_EINVAL, "the queue's name %s %s; write one such as orders or billing.invoices",
                        kl__quote(kl_str(name), quoted), wrong);
    return KL_OK;
}

/* --- Layouts: stated and there --- */

/* " (made so by keyline.toml line 3)", " (the default)", or nothing. */
static const char *made_by(const char *origin, bool is_default, char *buffer, size_t size)
{
    if (*origin)
        snprintf(buffer, size, " (made so by %s)", origin);
    else
        snprintf(buffer, size, "%s", is_default ? " (the default)" : "");
    return buffer;
}

static const char *says(const kl_queue_opts *stated)
{
    return stated->origin && *stated->origin ? stated->origin : "this call";
}

/* Its scheme alone: the rest of a URL may hold a password, and whoever reads the sentence need not know it. */
static const char *store_text(const char *url, char *buffer, size_t size)
{
    if (!*url)
        return "the queue's own store";
    snprintf(buffer, size, "a store of %.*s", (int)strcspn(url, ":"), url);
    return buffer;
}

#define LEAVE_IT_OUT "leave it out, or change the queue with `keyline queue alter`"

static kl_rc check_numbers(const kl_queue *queue, const kl__queue_layout *there, const kl_queue_opts *stated)
{
    char by[REASON_BYTES];
    uint32_t partitions = there->layout.partitions, len = there->layout.shard_prefix_len;
    made_by(there->partitions_origin, partitions == 1, by, sizeof by);
    if (stated->partitions != 0 && stated->partitions != partitions)
        return kl__fail(KL_EMISMATCH, "queue %s has %u partition%s%s, and %s says %lld; " LEAVE_IT_OUT, queue->name,
                        partitions, partitions == 1 ? "" : "s", by, says(stated), (long long)stated->partitions);
    if (stated->shard_prefix_len != 0 && stated->shard_prefix_len != len)
        return kl__fail(KL_EMISMATCH, "queue %s has a shard_prefix_len of %u%s, and %s says %lld; " LEAVE_IT_OUT,
                        queue->name, len, made_by(there->prefix_origin, len == 1, by, sizeof by), says(stated),
                        (long long)stated->shard_prefix_len);
    if (stated->store_count != 0 && stated->store_count != partitions)
        return kl__fail(KL_EMISMATCH, "queue %s has %u partition%s%s, and %s names %zu stores; name one for each",
                        queue->name, partitions, partitions == 1 ? "" : "s", by, says(stated), stated->store_count);
    return KL_OK;
}

static const char *url_of(const kl__queue_layout *layout, size_t partition)
{
    return layout->urls ? layout->urls[partition] : "";
}

static kl_rc check_stores(const kl_queue *queue, const kl__queue_layout *there, const kl_queue_opts *stated)
{
    char by[REASON_BYTES], is[SCHEME_BYTES], said[SCHEME_BYTES];
    for (size_t i = 0; i < stated->store_count; i++) {
        const char *url = url_of(there, i);
        if (strcmp(url, stated->stores[i]) != 0)
            return kl__fail(KL_EMISMATCH,
                            "partition %zu of queue %s lies in %s%s, and %s says another: %s; " LEAVE_IT_OUT, i,
                            queue->name, store_text(url, is, sizeof is), made_by(there->origin, !*url, by, sizeof by),
                            says(stated), store_text(stated->stores[i], said, sizeof said));
    }
    return KL_OK;
}

static kl_rc check_layout(kl_queue *queue, const kl_queue_opts *stated)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *there = kl__newest_layout(descriptor);
    kl_rc rc = check_numbers(queue, there, stated);
    if (rc == KL_OK)
        rc = check_stores(queue, there, stated);
    kl__descriptor_release(descriptor);
    return rc;
}

/* --- Open and close --- */

/* What a queue that is made now is like. Where each heartbeat is paid for they come less often. */
static kl_rc complete(const kl_store *store, const kl_queue_opts *stated, kl_queue_opts *ret_settings)
{
    kl_queue_opts settings = kl__settings_defaults();
    if (kl_store_info_of(store).can & KL_STORE_BILLED)
        settings.lease_ms = BILLED_LEASE_MS;
    kl_rc rc = kl__settings_merge(&settings, stated);
    if (rc != KL_OK)
        return rc;
    if (stated->partitions != 0)
        settings.partitions = stated->partitions;
    if (stated->shard_prefix_len != 0)
        settings.shard_prefix_len = stated->shard_prefix_len;
    if (stated->store_count != 0 && (int64_t)stated->store_count != settings.partitions)
        return kl__fail(KL_EINVAL, "partitions is %lld and store_count is %zu; name a store for each partition",
                        (long long)settings.partitions, stated->store_count);
    settings.stores = stated->stores;
    settings.store_count = stated->store_count;
    settings.origin = stated->origin ? stated->origin : "";
    *ret_settings = settings;
    return KL_OK;
}

static kl_rc make_queue(kl_store *store, const char *name, kl_queue **ret_queue)
{
    kl_queue *queue = kl__alloc_zeroed(1, sizeof *queue);
    if (!queue)
        return kl__fail_memory();
    queue->store = store;
    memcpy(queue->name, name, strlen(name) + 1);
    pthread_mutex_init(&queue->refresh_mutex, NULL);
    pthread_mutex_init(&queue->mutex, NULL);
    *ret_queue = queue;
    return KL_OK;
}

void kl_queue_close(kl_queue *queue)
{
    if (!queue)
        return;
    kl__descriptor_release(queue->descriptor);
    pthread_mutex_destroy(&queue->mutex);
    pthread_mutex_destroy(&queue->refresh_mutex);
    kl__free(queue);
}

/* Reads the record, making it first where there is none. */
static kl_rc find_or_make(kl_queue *queue, const kl_queue_opts *stated)
{
    kl_queue_opts settings;
    for (int i = 0; i < OPEN_TRIES_MAX; i++) {
        kl_rc rc = kl__queue_refresh(queue);
        if (rc != KL_ENOTFOUND)
            return rc;
        rc = complete(queue->store, stated, &settings);
        if (rc == KL_OK)
            rc = kl__queue_make(queue, &settings, stated);
        if (rc != KL_OK && rc != KL_ECONFLICT)
            return rc;
    }
    return kl__fail(KL_EBUSY, "queue %s was made and removed %d times meanwhile; try again", queue->name,
                    OPEN_TRIES_MAX);
}

static kl_rc check_open(const kl_store *store, const char *name, kl_queue **ret_queue)
{
    if (!store)
        return kl__fail(KL_EINVAL, "the store is NULL; open one with kl_store_open");
    if (!ret_queue)
        return kl__fail(KL_EINVAL, "ret_queue is NULL; pass somewhere to put the queue");
    return kl__queue_check_name(name);
}

/* What is stated, with URLs that hold for everybody; these lie in the arena. */
static kl_rc take_stated(const kl_queue_opts *opts, kl_arena *arena, kl_queue_opts *ret_stated)
{
    kl_rc rc = kl__settings_take(opts, ret_stated);
    return rc == KL_OK ? kl__stores_absolute(ret_stated, arena) : rc;
}

kl_rc kl_queue_open(kl_store *store, const char *name, const kl_queue_opts *opts, kl_queue **ret_queue)
{
    kl_queue_opts stated;
    kl_queue *queue = NULL;
    kl_arena arena = {0};
    kl_rc rc = check_open(store, name, ret_queue);
    if (rc == KL_OK)
        rc = take_stated(opts, &arena, &stated);
    if (rc == KL_OK)
        rc = make_queue(store, name, &queue);
    if (rc == KL_OK)
        rc = find_or_make(queue, &stated);
    if (rc == KL_OK)
        rc = check_layout(queue, &stated);
    kl_arena_free(&arena);
    if (rc == KL_OK)
        *ret_queue = queue;
    else
        kl_queue_close(queue);
    return rc;
}

kl_rc kl_queue_find(kl_store *store, const char *name, kl_queue **ret_queue)
{
    kl_queue *queue = NULL;
    kl_rc rc = check_open(store, name, ret_queue);
    if (rc == KL_OK)
        rc = make_queue(store, name, &queue);
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    if (rc == KL_OK)
        *ret_queue = queue;
    else
        kl_queue_close(queue);
    return rc;
}

/* --- Showing --- */

static kl_rc check_queue(const kl_queue *queue)
{
    return queue ? KL_OK : kl__fail(KL_EINVAL, "the queue is NULL; open one with kl_queue_open");
}

static bool copy_text(kl_arena *arena, const char *text, const char **ret_text)
{
    kl_bytes copy;
    if (!kl_arena_copy(arena, kl_str(text), &copy))
        return false;
    *ret_text = copy.data;
    return true;
}

static kl_rc copy_settings(const kl__descriptor *descriptor, kl_arena *arena, kl_queue_opts *ret_settings)
{
    kl_queue_opts settings = descriptor->settings;
    const char **urls = kl_arena_alloc(arena, settings.store_count * sizeof *urls + 1);
    bool copied = urls && copy_text(arena, descriptor->settings.origin, &settings.origin);
    for (size_t i = 0; copied && i < settings.store_count; i++)
        copied = copy_text(arena, descriptor->settings.stores[i], &urls[i]);
    if (!copied)
        return kl__fail_memory();
    settings.stores = settings.store_count ? urls : NULL;
    *ret_settings = settings;
    return KL_OK;
}

/* Adds a partition to those that could not be asked. */
static kl_rc note_away(const kl_queue *queue, const kl__descriptor *descriptor, const kl__queue_layout *layout,
                       uint32_t partition, kl_arena *arena, kl_queue_info *info)
{
    char name[KL_TOLD_PARTITION_BYTES], begins[KL_TOLD_PARTITION_BYTES + 2], why[REASON_BYTES];
    snprintf(why, sizeof why, "%s", kl_error_text());
    if (layout->drained) { /* nothing waits there */
        info->counts.finished_behind = true;
        return KL_OK;
    }
    kl_rc rc = kl__layout_tell_partition(queue, descriptor, layout, partition, name);
    if (rc != KL_OK)
        return rc;
    snprintf(begins, sizeof begins, "%s: ", name);
    info->counts.at_least = true;
    if (strstr(info->away, begins))
        return KL_OK;
    size_t size = strlen(info->away) + strlen("; ") + strlen(begins) + strlen(why) + 1;
    char *text = kl_arena_alloc(arena, size);
    if (!text)
        return kl__fail_memory();
    snprintf(text, size, "%s%s%s%s", info->away, *info->away ? "; " : "", begins, why);
    info->away = text;
    return KL_OK;
}

static kl_rc count_layout(const kl_queue *queue, const kl__descriptor *descriptor, const kl__queue_layout *layout,
                          kl_arena *arena, kl_queue_info *info)
{
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && i < layout->layout.partitions; i++) {
        rc = kl__layout_count_one(layout, i, &info->counts);
        if (rc == KL_EBUSY && layout->stores[i] != queue->store)
            rc = note_away(queue, descriptor, layout, i, arena, info);
    }
    return rc;
}

/* Of all layouts, and how many of the older ones hold tasks. */
static kl_rc count_layouts(const kl_queue *queue, const kl__descriptor *descriptor, kl_arena *arena,
                           kl_queue_info *info)
{
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        uint64_t before = kl__counts_waiting(&info->counts);
        kl_rc rc = count_layout(queue, descriptor, &descriptor->layouts[i], arena, info);
        if (rc != KL_OK)
            return rc;
        info->layouts_draining += i + 1 < descriptor->layout_count && kl__counts_waiting(&info->counts) > before;
    }
    return KL_OK;
}

static kl_rc show(const kl_queue *queue, const kl__descriptor *descriptor, kl_arena *arena, kl_queue_info *ret_info)
{
    kl_queue_info info = {
        .paused = descriptor->paused,
        .layout_number = kl__newest_layout(descriptor)->number,
        .created_ms = descriptor->created_ms,
        .away = "",
        .refused_why = "",
    };
    uint64_t left = 0;
    kl_rc rc = copy_settings(descriptor, arena, &info.settings);
    if (rc == KL_OK && !copy_text(arena, queue->name, &info.name))
        rc = kl__fail_memory();
    if (rc == KL_OK)
        rc = count_layouts(queue, descriptor, arena, &info);
    if (rc == KL_OK)
        rc = kl__store_left(queue->store, queue->name, &left);
    if (rc == KL_OK)
        rc = kl__store_refused(queue->store, queue->name, arena, &info.refused, &info.refused_why);
    info.counts.ready += left; /* it waits, though it has no place in line yet */
    if (rc == KL_OK)
        *ret_info = info;
    return rc;
}

kl_rc kl_queue_show(kl_queue *queue, kl_arena *arena, kl_queue_info *ret_info)
{
    kl_rc rc = check_queue(queue);
    if (rc == KL_OK && (!arena || !ret_info))
        rc = kl__fail(KL_EINVAL, "the arena or ret_info is NULL; pass both");
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    rc = show(queue, descriptor, arena, ret_info);
    kl__descriptor_release(descriptor);
    return rc;
}

/* --- Listing --- */

static const char prefix[] = "queue/";

enum { PREFIX_BYTES = sizeof prefix - 1 };

/* Up to `max` names behind `after`, which lies in the arena or is the caller's. */
static kl_rc list_piece(kl_store *store, const char *after, size_t max, kl_arena *arena, const char **ret_names,
                        size_t *ret_count)
{
    char behind[PREFIX_BYTES + KL_QUEUE_NAME_MAX + 1];
    kl_record records[LIST_PIECE];
    size_t count;
    snprintf(behind, sizeof behind, "%s%s", prefix, after);
    kl_rc rc = kl_store_list(store, kl_str(prefix), kl_str(*after ? behind : ""), max, arena, records, &count);
    if (rc != KL_OK)
        return rc;
    for (size_t i = 0; i < count; i++) {
        kl_bytes copy, name = {(const char *)records[i].name.data + PREFIX_BYTES, records[i].name.len - PREFIX_BYTES};
        if (!kl_arena_copy(arena, name, &copy))
            return kl__fail_memory();
        ret_names[i] = copy.data;
    }
    *ret_count = count;
    return KL_OK;
}

static kl_rc check_list(const kl_store *store, const char *after, size_t max, const kl_arena *arena,
                        const char *const *ret_names, const size_t *ret_count)
{
    if (!store)
        return kl__fail(KL_EINVAL, "the store is NULL; open one with kl_store_open");
    if (!arena || !ret_names || !ret_count)
        return kl__fail(KL_EINVAL, "the arena, ret_names or ret_count is NULL; pass all of them");
    if (max == 0)
        return kl__fail(KL_EINVAL, "max is 0; ask for at least one name");
    return after && *after ? kl__queue_check_name(after) : KL_OK;
}

kl_rc kl_queue_list(kl_store *store, const char *after, size_t max, kl_arena *arena, const char **ret_names,
                    size_t *ret_count)
{
    size_t count = 0, piece = 0, asked;
    kl_rc rc = check_list(store, after, max, arena, ret_names, ret_count);
    if (rc != KL_OK)
        return rc;
    after = after ? after : "";
    do {
        asked = max - count < LIST_PIECE ? max - count : LIST_PIECE;
        rc = list_piece(store, after, asked, arena, ret_names + count, &piece);
        if (rc != KL_OK)
            return rc;
        count += piece;
        after = count > 0 ? ret_names[count - 1] : after;
    } while (piece == asked && count < max);
    *ret_count = count;
    return KL_OK;
}

/* --- Altering --- */

struct alter {
    kl_queue *queue;
    kl_queue_opts stated;
};

/* The layout that is wanted, and its stores; false: it is the one that is there. */
static bool wants_layout(const kl__queue_layout *there, const kl_queue_opts *stated, kl_layout *ret_layout)
{
    bool stores_differ = false;
    ret_layout->partitions = stated->partitions ? (uint32_t)stated->partitions : there->layout.partitions;
    ret_layout->shard_prefix_len =
        stated->shard_prefix_len ? (uint32_t)stated->shard_prefix_len : there->layout.shard_prefix_len;
    bool numbers_differ = ret_layout->partitions != there->layout.partitions ||
                          ret_layout->shard_prefix_len != there->layout.shard_prefix_len;
    for (size_t i = 0; !numbers_differ && i < stated->store_count && i < there->layout.partitions; i++)
        stores_differ |= strcmp(url_of(there, i), stated->stores[i]) != 0;
    return numbers_differ || stores_differ;
}

static kl_rc check_wanted(const kl_queue *queue, const kl__queue_layout *there, kl_layout wanted,
                          const kl_queue_opts *stated)
{
    if (stated->store_count != 0 && stated->store_count != wanted.partitions)
        return kl__fail(KL_EINVAL, "queue %s would have %u partitions, and store_count is %zu; name a store for each",
                        queue->name, wanted.partitions, stated->store_count);
    if (stated->store_count == 0 && there->urls && wanted.partitions != there->layout.partitions)
        return kl__fail(KL_EINVAL,
                        "the partitions of queue %s lie in several stores; name the store of each of the %u that it "
                        "shall have",
                        queue->name, wanted.partitions);
    return KL_OK;
}

static kl_rc apply(kl__descriptor *draft, void *ctx)
{
    const struct alter *alter = ctx;
    const kl_queue_opts *stated = &alter->stated;
    const kl__queue_layout *there = kl__newest_layout(draft);
    kl_layout wanted;
    kl_rc rc = kl__settings_merge(&draft->settings, stated);
    bool wants = wants_layout(there, stated, &wanted);
    if (rc == KL_OK)
        rc = check_wanted(alter->queue, there, wanted, stated);
    if (rc != KL_OK || !wants)
        return rc;
    rc = kl__layout_check_seal(alter->queue, there);
    return rc == KL_OK ? kl__draft_layout(draft, wanted, stated->store_count ? stated->stores : there->urls,
                                          stated->origin ? stated->origin : "")
                       : rc;
}

static bool states_layout(const kl_queue_opts *stated)
{
    return stated->partitions || stated->shard_prefix_len || stated->store_count;
}

static bool is_unsealed(kl_queue *queue)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    bool unsealed = false;
    for (const kl__queue_layout *layout = descriptor->layouts; layout != kl__newest_layout(descriptor); layout++)
        unsealed |= !layout->sealed;
    kl__descriptor_release(descriptor);
    return unsealed;
}

/* Older layouts in which nothing waits make room for the new one: there may be no worker to tell that they are drained.
 * A mere setting has nothing to do with them, and can be changed while their stores are away. */
static kl_rc carry_out(struct alter *alter)
{
    bool layout = states_layout(&alter->stated);
    kl_rc rc = layout ? kl__queue_refresh(alter->queue) : KL_OK;
    if (rc == KL_OK && layout)
        rc = kl__queue_retire(alter->queue);
    if (rc == KL_OK)
        rc = kl__queue_change(alter->queue, apply, alter);
    if (rc != KL_OK || (!layout && !is_unsealed(alter->queue)))
        return rc;
    rc = kl__queue_seal(alter->queue);
    return rc == KL_OK ? kl__queue_retire(alter->queue) : rc;
}

/* A repeat after a lost reply, or after the process ended here, finds the layout there and seals what is not. */
kl_rc kl_queue_alter(kl_queue *queue, const kl_queue_opts *opts)
{
    struct alter alter = {.queue = queue};
    kl_arena arena = {0};
    kl_rc rc = check_queue(queue);
    if (rc == KL_OK && !opts)
        rc = kl__fail(KL_EINVAL, "opts is NULL; state what is to be changed");
    if (rc == KL_OK)
        rc = take_stated(opts, &arena, &alter.stated);
    if (rc == KL_OK)
        rc = carry_out(&alter);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc set_paused(kl__descriptor *draft, void *ctx)
{
    draft->paused = *(const bool *)ctx;
    return KL_OK;
}

static kl_rc pause_or_resume(kl_queue *queue, bool paused)
{
    kl_rc rc = check_queue(queue);
    return rc == KL_OK ? kl__queue_change(queue, set_paused, &paused) : rc;
}

kl_rc kl_queue_pause(kl_queue *queue) { return pause_or_resume(queue, true); }
kl_rc kl_queue_resume(kl_queue *queue) { return pause_or_resume(queue, false); }
