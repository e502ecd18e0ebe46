/* descriptor.c - the record of a queue, and what a process knows of it.
 *
 * From: queue.c, layouts.c, and everybody who asks for kl__queue_descriptor.  To: record.c, layouts.c.
 *
 *     {"format": 1, "created_ms": 1700000000000, "paused": false,
 *      "settings": {"attempts_max": 8, "timeout_ms": "none", "head_policy": "continue", ...},
 *      "stores": ["disk:/mnt/b"],                           those that are not the queue's own
 *      "layouts": [{"number": 1, "partitions": 4, "shard_prefix_len": 1, "origin": "keyline.toml line 3",
 *                   "partitions_origin": "keyline.toml line 3", "shard_prefix_len_origin": "",
 *                   "sealed": false, "drained": false, "by_name": false,
 *                   "stores": [0, 0, 1, 1]}]}                                        0: own; 1: the first of "stores"
 *
 * Fields that are not known here are kept when the record is written, in it, in its settings and in its layouts: they
 * come from a newer program, which shall find them again. A program that could do harm by not knowing a field must find
 * another format.
 *
 * D1  A descriptor that others can see is complete and never changes; the record's next version makes another one.
 * D2  The queue's descriptor only goes forward: one thread at a time reads the record and sets it. */
#include "base/compare.h"
#include "queue/inside.h"

enum {
    FORMAT = 1,
    CHANGE_TRIES_MAX = 32, /* conflicts in a row: others change it all the time */
};

/* --- Making and freeing --- */

static kl__descriptor *make_descriptor(void)
{
    kl__descriptor *descriptor = kl__alloc_zeroed(1, sizeof *descriptor);
    if (!descriptor)
        return NULL;
    atomic_init(&descriptor->references, 1);
    descriptor->settings = kl__settings_defaults();
    return descriptor;
}

void kl__descriptor_release(kl__descriptor *descriptor)
{
    if (!descriptor || atomic_fetch_sub(&descriptor->references, 1) > 1)
        return;
    for (size_t i = 0; i < descriptor->layout_count; i++)
        kl__layout_parts_release(descriptor->layouts[i].parts);
    kl_arena_free(&descriptor->arena);
    kl__free(descriptor);
}

static kl__descriptor *known_of(kl_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    kl__descriptor *descriptor = queue->descriptor;
    if (descriptor)
        atomic_fetch_add(&descriptor->references, 1);
    pthread_mutex_unlock(&queue->mutex);
    return descriptor;
}

kl__descriptor *kl__queue_descriptor(kl_queue *queue)
{
    kl__descriptor *descriptor = known_of(queue);
    KL_ASSERT(descriptor);
    return descriptor;
}

/* Settings show the newest layout. */
static void show_layout(kl__descriptor *descriptor)
{
    const kl__queue_layout *newest = kl__newest_layout(descriptor);
    descriptor->settings.partitions = newest->layout.partitions;
    descriptor->settings.shard_prefix_len = newest->layout.shard_prefix_len;
    descriptor->settings.stores = newest->urls;
    descriptor->settings.store_count = newest->urls ? newest->layout.partitions : 0;
    descriptor->settings.origin = newest->origin;
}

/* --- A new layout --- */

/* NULL urls, or all of them the queue's own, give NULL. */
static kl_rc copy_urls(kl_arena *arena, uint32_t count, const char *const *urls, const char *const **ret_urls)
{
    const char **copies = urls ? kl_arena_alloc(arena, count * sizeof *copies) : NULL;
    bool other = false;
    if (urls && !copies)
        return kl__fail_memory();
    for (uint32_t i = 0; urls && i < count; i++) {
        kl_bytes copy;
        if (!kl_arena_copy(arena, kl_str(urls[i]), &copy))
            return kl__fail_memory();
        copies[i] = copy.data;
        other |= copy.len > 0;
    }
    *ret_urls = other ? copies : NULL;
    return KL_OK;
}

/* A task that moves from an older layout to the newest has an id in each between: without this one it would come out as
 * another, for some who move it and not for others. Only the digits count. */
static bool ids_pass(const kl__descriptor *draft, size_t index)
{
    const kl__queue_layout *layout = &draft->layouts[index];
    bool undrained = false;
    for (size_t i = 0; i < index; i++)
        undrained |= !draft->layouts[i].drained;
    if (!undrained || index + 1 == draft->layout_count)
        return false;
    return layout[-1].layout.shard_prefix_len != layout->layout.shard_prefix_len &&
           layout[1].layout.shard_prefix_len != layout->layout.shard_prefix_len;
}

/* It gets nothing more, and nobody could ask for anything there. */
static kl_rc can_forget(const kl__queue_layout *layout, bool *ret_can)
{
    bool keeps = true;
    bool is_known = layout->numbers; /* another process may have made it just now */
    kl_rc rc = is_known ? kl__layout_keeps(layout, &keeps) : KL_OK;
    *ret_can = !keeps;
    return rc;
}

/* Forgets the oldest layout that is drained, and of which nothing is kept or needed. */
static kl_rc make_room(kl__descriptor *draft)
{
    size_t gone = 0, drained = 0;
    bool can = false;
    for (; gone < draft->layout_count; gone++) {
        if (!draft->layouts[gone].drained || ids_pass(draft, gone))
            continue;
        kl_rc rc = can_forget(&draft->layouts[gone], &can);
        if (rc != KL_OK)
            return rc;
        if (can)
            break;
        drained++;
    }
    if (!can && drained == 0)
        return kl__fail(KL_EBUSY,
                        "%zu layouts of this queue still hold tasks, and there are never more; let workers finish the "
                        "oldest, then change the layout",
                        draft->layout_count);
    if (!can)
        return kl__fail(
            KL_EBUSY,
            "%zu layouts of this queue still hold tasks, dead letters or results, and there are never more; "
            "retry, move or purge its dead letters, or wait until what is kept has expired, then change the "
            "layout",
            draft->layout_count);
    kl__layout_parts_release(draft->layouts[gone].parts);
    draft->layout_count--;
    memmove(&draft->layouts[gone], &draft->layouts[gone + 1], (draft->layout_count - gone) * sizeof draft->layouts[0]);
    return KL_OK;
}

static bool copy_text(kl_arena *arena, const char *text, const char **ret_text)
{
    kl_bytes copy;
    if (!kl_arena_copy(arena, kl_str(text), &copy))
        return false;
    *ret_text = copy.data;
    return true;
}

/* The layout with its origins; the rest is made here. */
static kl_rc append_layout(kl__descriptor *draft, const kl__queue_layout *layout, const char *const *urls)
{
    kl__queue_layout made = *layout;
    kl_rc rc = copy_urls(&draft->arena, layout->layout.partitions, urls, &made.urls);
    if (rc != KL_OK)
        return rc;
    if (!copy_text(&draft->arena, layout->origin, &made.origin) ||
        !copy_text(&draft->arena, layout->partitions_origin, &made.partitions_origin) ||
        !copy_text(&draft->arena, layout->prefix_origin, &made.prefix_origin))
        return kl__fail_memory();
    draft->layouts[draft->layout_count++] = made;
    show_layout(draft);
    return KL_OK;
}

kl_rc kl__draft_layout(kl__descriptor *draft, kl_layout layout, const char *const *urls, const char *origin)
{
    const kl__queue_layout *there = kl__newest_layout(draft);
    bool same_partitions = layout.partitions == there->layout.partitions,
         same_prefix = layout.shard_prefix_len == there->layout.shard_prefix_len;
    kl__queue_layout wanted = {.number = there->number + 1,
                               .layout = layout,
                               .origin = origin,
                               .partitions_origin = same_partitions ? there->partitions_origin : origin,
                               .prefix_origin = same_prefix ? there->prefix_origin : origin};
    kl_rc rc = draft->layout_count == KL_LAYOUTS_MAX ? make_room(draft) : KL_OK;
    return rc == KL_OK ? append_layout(draft, &wanted, urls) : rc;
}

/* --- Reading the record --- */

/* The stores of one layout's partitions, from the numbers that stand for them. */
static void read_urls(kl__json *from, kl__json *item, kl__descriptor *descriptor, kl__queue_layout *layout)
{
    if (!kl__json_has(item, "stores"))
        return;
    json_t *table = kl__json_array_of(from, "stores", KL_QUEUE_STORES_MAX);
    json_t *indexes = kl__json_array_of(item, "stores", KL_PARTITIONS_MAX);
    if (!table || !indexes)
        return;
    if (json_array_size(indexes) != layout->layout.partitions) {
        kl__json_damaged(item, "stores", "names another number of stores than there are partitions");
        return;
    }
    const char **urls = kl_arena_alloc(&descriptor->arena, layout->layout.partitions * sizeof *urls);
    if (!urls) {
        item->rc = kl__fail_memory();
        return;
    }
    int64_t last = (int64_t)json_array_size(table);
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        int64_t index = kl__json_int_of(item, json_array_get(indexes, i), "stores", 0, last);
        const json_t *url = index > 0 ? json_array_get(table, (size_t)index - 1) : NULL;
        urls[i] = url ? kl__json_bytes_of(item, url, "stores", &descriptor->arena).data : "";
    }
    layout->urls = urls;
}

/* Whose a number of the layout is. Records of earlier versions say it only of the layout. */
static const char *read_origin(kl__json *item, const char *name, uint32_t number, const kl__queue_layout *layout,
                               kl_arena *arena)
{
    return kl__json_text_or(item, name, arena, number == 1 ? "" : layout->origin);
}

static void read_layout(kl__json *from, kl__json *item, kl__descriptor *descriptor)
{
    uint64_t before = descriptor->layout_count ? kl__newest_layout(descriptor)->number : 0;
    kl__queue_layout *layout = &descriptor->layouts[descriptor->layout_count];
    layout->number = (uint64_t)kl__json_int(item, "number", (int64_t)before + 1, INT64_MAX / 2);
    layout->layout.partitions = (uint32_t)kl__json_int(item, "partitions", 1, KL_PARTITIONS_MAX);
    layout->layout.shard_prefix_len = (uint32_t)kl__json_int(item, "shard_prefix_len", 1, KL_SHARD_PREFIX_LEN_MAX);
    layout->origin = kl__json_text_or(item, "origin", &descriptor->arena, "");
    layout->partitions_origin =
        read_origin(item, "partitions_origin", layout->layout.partitions, layout, &descriptor->arena);
    layout->prefix_origin =
        read_origin(item, "shard_prefix_len_origin", layout->layout.shard_prefix_len, layout, &descriptor->arena);
    layout->sealed = kl__json_bool_or(item, "sealed", false);
    layout->drained = kl__json_bool_or(item, "drained", false);
    layout->by_name = kl__json_bool_or(item, "by_name", false);
    if (layout->drained && !layout->sealed)
        kl__json_damaged(item, "drained", "is true of a layout that is not sealed");
    if (item->rc == KL_OK)
        read_urls(from, item, descriptor, layout);
    if (item->rc == KL_OK && from->rc == KL_OK)
        descriptor->layout_count++;
    else if (from->rc == KL_OK)
        from->rc = item->rc;
}

static void read_layouts(kl__json *from, kl__descriptor *descriptor)
{
    json_t *layouts = kl__json_array_of(from, "layouts", KL_LAYOUTS_MAX);
    for (size_t i = 0; layouts && from->rc == KL_OK && i < json_array_size(layouts); i++) {
        kl__json item = kl__json_item(from, layouts, i);
        if (item.rc == KL_OK)
            read_layout(from, &item, descriptor);
        else
            from->rc = item.rc;
    }
    if (from->rc == KL_OK && descriptor->layout_count == 0)
        kl__json_damaged(from, "layouts", "is empty");
}

static kl_rc check_format(kl__json *from)
{
    int64_t format = kl__json_int(from, "format", 1, INT32_MAX);
    if (from->rc == KL_OK && format > FORMAT)
        from->rc = kl__fail(KL_EINVAL,
                            "the record %s has format %lld, and this program knows up to %d; use a newer version of it",
                            from->what, (long long)format, FORMAT);
    return from->rc;
}

static kl_rc read_descriptor(kl__json *from, uint64_t version, kl__descriptor **ret_descriptor)
{
    if (check_format(from) != KL_OK)
        return from->rc;
    kl__descriptor *descriptor = make_descriptor();
    if (!descriptor)
        return kl__fail_memory();
    descriptor->version = version;
    descriptor->created_ms = kl__json_int(from, "created_ms", 0, KL_ID_MS_MAX);
    descriptor->paused = kl__json_bool_or(from, "paused", false);
    kl__json settings = kl__json_inner(from, "settings");
    if (settings.rc == KL_OK)
        kl__settings_read(&settings, &descriptor->settings);
    from->rc = settings.rc;
    if (from->rc == KL_OK)
        read_layouts(from, descriptor);
    if (from->rc != KL_OK) {
        kl__descriptor_release(descriptor);
        return from->rc;
    }
    show_layout(descriptor);
    *ret_descriptor = descriptor;
    return KL_OK;
}

/* --- Writing the record --- */

/* The number that stands for a store; it is added to the table when it is not there. -1: out of memory. The table never
 * gets too long, because each layout's stores are few (layouts.c) and so are the layouts; it is checked on writing. */
static int64_t index_of(json_t *table, const char *url)
{
    json_t *value = kl__json_bytes_value(kl_str(url));
    size_t i = 0, count = json_array_size(table);
    if (!value)
        return -1;
    while (i < count && !json_equal(json_array_get(table, i), value))
        i++;
    if (i < count)
        json_decref(value);
    else if (!kl__json_append(table, value))
        return -1;
    return (int64_t)i + 1;
}

static bool write_urls(json_t *item, json_t *table, const kl__queue_layout *layout)
{
    if (!layout->urls)
        return true;
    json_t *indexes = kl__json_array();
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        int64_t index = *layout->urls[i] ? index_of(table, layout->urls[i]) : 0;
        if (index < 0 || !kl__json_append(indexes, json_integer(index))) {
            json_decref(indexes);
            return false;
        }
    }
    return kl__json_set(item, "stores", indexes);
}

static bool write_layout(json_t *item, json_t *table, const kl__queue_layout *layout)
{
    return kl__json_set_int(item, "number", (int64_t)layout->number) &&
           kl__json_set_int(item, "partitions", layout->layout.partitions) &&
           kl__json_set_int(item, "shard_prefix_len", layout->layout.shard_prefix_len) &&
           kl__json_set_text(item, "origin", layout->origin) &&
           kl__json_set_text(item, "partitions_origin", layout->partitions_origin) &&
           kl__json_set_text(item, "shard_prefix_len_origin", layout->prefix_origin) &&
           kl__json_set_bool(item, "sealed", layout->sealed) && kl__json_set_bool(item, "drained", layout->drained) &&
           kl__json_set_bool(item, "by_name", layout->by_name) && write_urls(item, table, layout);
}

/* The item of this layout in the record as it was, to be written over; or a new one. To be released. */
static json_t *item_of(json_t *layouts, uint64_t number)
{
    for (size_t i = 0; i < json_array_size(layouts); i++) {
        json_t *item = json_array_get(layouts, i);
        if ((uint64_t)json_integer_value(json_object_get(item, "number")) == number)
            return json_incref(item);
    }
    return kl__json_object();
}

static bool write_layouts(json_t *to, json_t *table, const kl__descriptor *descriptor)
{
    json_t *old = json_object_get(to, "layouts"), *layouts = kl__json_array();
    bool written = layouts != NULL;
    for (size_t i = 0; written && i < descriptor->layout_count; i++) {
        json_t *item = item_of(old, descriptor->layouts[i].number);
        written = write_layout(item, table, &descriptor->layouts[i]) && kl__json_append(layouts, json_incref(item));
        json_decref(item);
    }
    return written ? kl__json_set(to, "layouts", layouts) : (json_decref(layouts), false);
}

static bool write_settings(json_t *to, const kl__descriptor *descriptor)
{
    json_t *old = json_object_get(to, "settings");
    json_t *settings = kl__settings_write(old ? json_incref(old) : kl__json_object(), &descriptor->settings);
    return kl__json_set(to, "settings", settings);
}

/* Over what the record was, so that unknown fields stay. */
static kl_rc write_descriptor(json_t *to, const kl__descriptor *descriptor)
{
    json_t *table = kl__json_array();
    bool written = table && kl__json_set_int(to, "format", FORMAT) &&
                   kl__json_set_int(to, "created_ms", descriptor->created_ms) &&
                   kl__json_set_bool(to, "paused", descriptor->paused) && write_settings(to, descriptor) &&
                   write_layouts(to, table, descriptor);
    size_t stores = json_array_size(table);
    if (written)
        written = kl__json_set(to, "stores", table);
    else
        json_decref(table);
    if (!written)
        return kl__fail_memory();
    return stores <= KL_QUEUE_STORES_MAX
               ? KL_OK
               : kl__fail(KL_EINVAL,
                          "the partitions would lie in %zu different stores, those of older layouts "
                          "included; a queue has up to %d",
                          stores, KL_QUEUE_STORES_MAX);
}

/* --- What the queue knows --- */

static kl_rc fail_removed(const kl_queue *queue)
{
    return kl__fail(
        KL_ENOTFOUND,
        "there is no queue %s: it was never made, or it was removed; look for it in the list of queues, or make it",
        queue->name);
}

static void set_known(kl_queue *queue, kl__descriptor *descriptor)
{
    pthread_mutex_lock(&queue->mutex);
    kl__descriptor *old = queue->descriptor;
    queue->descriptor = descriptor;
    pthread_mutex_unlock(&queue->mutex);
    kl__descriptor_release(old);
}

static kl_rc learn(kl_queue *queue, const kl_record *record, const kl__descriptor *known)
{
    kl__json from;
    kl__descriptor *descriptor;
    kl_rc rc = kl__json_parse(record->value, record->name.data, &from);
    if (rc != KL_OK)
        return rc;
    rc = read_descriptor(&from, record->version, &descriptor);
    kl__json_free(&from);
    if (rc != KL_OK)
        return rc;
    rc = kl__layouts_attach(queue, descriptor, known, false);
    if (rc == KL_OK)
        rc = kl__layouts_complete(queue, descriptor);
    if (rc == KL_OK)
        set_known(queue, descriptor);
    else
        kl__descriptor_release(descriptor);
    return rc;
}

kl_rc kl__queue_refresh(kl_queue *queue)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_bytes record_name = kl__record_name(name, sizeof name, "queue", queue->name, NULL);
    kl_arena arena = {0};
    kl_record record;
    pthread_mutex_lock(&queue->refresh_mutex);
    kl__descriptor *known = known_of(queue);
    kl_rc rc = kl__record_get(queue->store, record_name, &arena, &record);
    if (rc == KL_OK && record.version == 0)
        rc = fail_removed(queue);
    else if (rc == KL_OK && (!known || known->version != record.version))
        rc = learn(queue, &record, known);
    kl__descriptor_release(known);
    pthread_mutex_unlock(&queue->refresh_mutex);
    kl_arena_free(&arena);
    return rc;
}

/* --- Changing --- */

static kl_rc draft_and_write(kl_queue *queue, kl__json *from, const kl_record *record, kl_arena *arena,
                             kl__descriptor_change_fn *change, void *ctx)
{
    kl__descriptor *draft, *known = kl__queue_descriptor(queue);
    kl_bytes text = {0};
    kl_rc rc = read_descriptor(from, record->version, &draft);
    if (rc != KL_OK) {
        kl__descriptor_release(known);
        return rc;
    }
    rc = kl__layouts_attach(queue, draft, known, false);
    if (rc == KL_OK)
        rc = change(draft, ctx);
    if (rc == KL_OK)
        rc = write_descriptor(from->object, draft);
    if (rc == KL_OK)
        rc = kl__layouts_attach(queue, draft, known, true); /* a new layout's stores: before the record names them */
    if (rc == KL_OK)
        rc = kl__json_print(from->object, arena, &text);
    if (rc == KL_OK && !kl__bytes_equal(text, record->value))
        rc = kl__record_put(queue->store, record->name, record->version, text, 0, NULL);
    kl__descriptor_release(draft);
    kl__descriptor_release(known);
    return rc;
}

static kl_rc try_change(kl_queue *queue, kl__descriptor_change_fn *change, void *ctx)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_bytes record_name = kl__record_name(name, sizeof name, "queue", queue->name, NULL);
    kl_arena arena = {0};
    kl_record record;
    kl__json from = {0};
    kl_rc rc = kl__record_read(queue->store, record_name, &arena, &from, &record);
    if (rc == KL_OK)
        rc = draft_and_write(queue, &from, &record, &arena, change, ctx);
    else if (rc == KL_ENOTFOUND)
        rc = fail_removed(queue);
    kl__json_free(&from);
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl__queue_change(kl_queue *queue, kl__descriptor_change_fn *change, void *ctx)
{
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < CHANGE_TRIES_MAX && rc == KL_ECONFLICT; i++)
        rc = try_change(queue, change, ctx);
    if (rc == KL_ECONFLICT)
        return kl__fail(KL_EBUSY, "queue %s was changed by others %d times meanwhile; try again", queue->name,
                        CHANGE_TRIES_MAX);
    return rc == KL_OK ? kl__queue_refresh(queue) : rc;
}

/* --- Making the record --- */

/* Partitions of a removed queue stay in their stores, perhaps sealed or with other shards: numbers go on from there. */
static kl_rc first_number(kl_queue *queue, uint64_t *ret_number)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_bytes record_name = kl__record_name(name, sizeof name, "gone", queue->name, NULL);
    kl_arena arena = {0};
    kl_record record;
    kl__json from = {0};
    kl_rc rc = kl__record_read(queue->store, record_name, &arena, &from, &record);
    if (rc == KL_OK) {
        *ret_number = (uint64_t)kl__json_int(&from, "layout", 1, INT64_MAX / 4) + 1;
        rc = from.rc;
    } else if (rc == KL_ENOTFOUND) {
        *ret_number = 1;
        rc = KL_OK;
    }
    kl__json_free(&from);
    kl_arena_free(&arena);
    return rc;
}

static kl_rc put_first(kl_queue *queue, const kl__descriptor *draft)
{
    char name[KL_RECORD_NAME_BYTES];
    kl_bytes record_name = kl__record_name(name, sizeof name, "queue", queue->name, NULL);
    json_t *to = kl__json_object();
    kl_rc rc = to ? write_descriptor(to, draft) : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl__record_write(queue->store, record_name, 0, to, 0, NULL);
    json_decref(to);
    return rc;
}

static kl_rc fill_first(kl_queue *queue, kl__descriptor *draft, const kl_queue_opts *settings,
                        const kl_queue_opts *stated)
{
    kl__queue_layout first = {.origin = settings->origin,
                              .partitions_origin = stated->partitions ? settings->origin : "",
                              .prefix_origin = stated->shard_prefix_len ? settings->origin : ""};
    kl_rc rc = kl_layout_init(settings->partitions, settings->shard_prefix_len, &first.layout);
    if (rc == KL_OK)
        rc = kl_store_now(queue->store, &draft->created_ms);
    if (rc == KL_OK)
        rc = first_number(queue, &first.number);
    draft->settings = *settings;
    if (rc == KL_OK)
        rc = append_layout(draft, &first, settings->store_count ? settings->stores : NULL);
    return rc == KL_OK ? kl__layouts_attach(queue, draft, NULL, true) : rc;
}

kl_rc kl__queue_make(kl_queue *queue, const kl_queue_opts *settings, const kl_queue_opts *stated)
{
    kl__descriptor *draft = make_descriptor();
    if (!draft)
        return kl__fail_memory();
    kl_rc rc = fill_first(queue, draft, settings, stated);
    if (rc == KL_OK)
        rc = put_first(queue, draft);
    kl__descriptor_release(draft);
    return rc;
}
