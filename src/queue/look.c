/* look.c - looking at tasks: one by its id, and those that wait. (finished.c: those that are finished.)
 *
 * From: applications, net/, cli/.  To: store/, envelope.c.
 *
 * A queue is several sources: each partition of each layout. Waiting tasks are listed source by source, the oldest
 * layout first, shard by shard, line by line.
 *
 * Cursors are text: a letter and the version, the numbers of the place, and a hash of all that together with the queue
 * and the filter. So a cursor that was altered, or belongs to another list, is refused. */
#include "queue/look.h"

#include <stdio.h>

#include "base/compare.h"
#include "base/layout.h"

enum {
    LOOK_MAX = 100000, /* waiting tasks looked at in one call, unless the caller says */
    STUBS_MAX = 256,   /* of one scan */
    REFS_MAX = 256,    /* ids looked for in one read */
    MOVED_MAX = 65536, /* ids under which a moved task is looked for */
    LINES = KL_LINE_RETRY - KL_PRIORITY_MIN + 1,
};

kl_rc kl__refuse_no_queue(void) { return kl__fail(KL_EINVAL, "the queue is NULL; open one with kl_queue_open"); }

/* --- What is found --- */

static kl_rc name_partition(const kl_queue *queue, kl__source source, kl_arena *arena, const char **ret_name)
{
    char name[KL_PARTITION_NAME_BYTES];
    kl_bytes copy;
    kl_rc rc = kl_partition_name(&source.layout->layout, queue->name, source.partition, sizeof name, name);
    if (rc != KL_OK)
        return rc;
    if (!kl_arena_copy(arena, kl_str(name), &copy))
        return kl__fail_memory();
    *ret_name = copy.data;
    return KL_OK;
}

/* Adds what the task carries and where it is. What is no envelope was put by others, and is shown without. */
kl_rc kl__look_describe(const kl_queue *queue, kl__source source, kl_arena *arena, kl_found *found)
{
    kl_bytes name;
    found->extra = (kl_task_extra){0};
    found->layout = source.layout->number;
    found->made_ms = kl_id_ms(&source.layout->layout, &found->task.entry.id);
    kl_rc rc = kl__envelope_decode(found->task.entry.headers, arena, &found->extra);
    if (rc != KL_OK && rc != KL_EDAMAGED)
        return rc;
    if (!kl_arena_copy(arena, kl_str(queue->name), &name))
        return kl__fail_memory();
    found->queue = name.data;
    return name_partition(queue, source, arena, &found->partition);
}

/* A waiting task is told by the line in which it waits. */
const char *kl__task_state_name(const kl_task *task)
{
    switch (task->state) {
    case KL_TASK_DONE:
        return "done";
    case KL_TASK_DEAD:
        return "dead";
    case KL_TASK_CANCELLED:
        return "cancelled";
    case KL_TASK_WAITING:
        return task->attempts ? "retry" : task->entry.due_ms ? "due" : "ready";
    default:
        return "unknown";
    }
}

/* --- One task --- */

/* A search for one task under many ids and in many partitions, a store's call at a time. */
struct search {
    kl_arena *arena;
    kl_store *store;
    size_t count;
    size_t left; /* ids that may still be tried */
    bool found;
    kl_task task;
    kl__source source;
    kl_ref refs[REFS_MAX];
    kl__source sources[REFS_MAX];
    kl_task tasks[REFS_MAX];
};

static void note_found(struct search *search, const kl_task *tasks, const kl__source *sources, size_t count)
{
    for (size_t i = 0; i < count && !search->found; i++) {
        if (tasks[i].state == KL_TASK_UNKNOWN)
            continue;
        search->found = true;
        search->task = tasks[i];
        search->source = sources[i];
    }
}

/* Asks for what has been gathered. */
static kl_rc ask(struct search *search)
{
    kl_rc rc = KL_OK;
    for (size_t done = 0, count = 0; rc == KL_OK && !search->found && done < search->count; done += count) {
        rc = kl_store_read(search->store, search->refs + done, search->count - done, search->arena, search->tasks,
                           &count);
        if (rc == KL_OK)
            note_found(search, search->tasks, search->sources + done, count);
    }
    search->count = 0;
    return rc;
}

static kl_rc try_id(struct search *search, kl__source source, const kl_task_id *id)
{
    kl_store *store = kl__source_store(source);
    kl_rc rc = KL_OK;
    if (search->found || search->left == 0)
        return KL_OK;
    if (search->count == REFS_MAX || (search->count > 0 && store != search->store))
        rc = ask(search);
    if (rc != KL_OK || search->found)
        return rc;
    kl_place place = {kl__layout_number(source.layout, source.partition), kl_id_shard(&source.layout->layout, id)};
    search->store = store;
    search->refs[search->count] = (kl_ref){.place = place, .id = *id};
    search->sources[search->count++] = source;
    search->left--;
    return KL_OK;
}

static kl_rc try_partitions(struct search *search, const kl__queue_layout *layout, const kl_task_id *id)
{
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && i < layout->layout.partitions && !search->found; i++)
        rc = try_id(search, (kl__source){layout, i}, id);
    return rc;
}

/* The ids that a task of layout `from` can have after its moves to `to`. With a key, its shard's name keeps its first
 * digits, and the others are not known. */
static kl_rc try_moved(struct search *search, const kl__descriptor *descriptor, const kl__queue_layout *from,
                       const kl__queue_layout *to, const kl_task_id *id)
{
    uint32_t digits = from->layout.shard_prefix_len, new_digits = to->layout.shard_prefix_len;
    uint32_t shard = kl_id_shard(&from->layout, id), count = 1;
    kl_entry entry = {.id = *id};
    kl_task_id moved = kl__id_on_its_way(descriptor, from->number, to->number, &from->layout, &entry);
    if (kl_id_unpack(&from->layout, id).lane == 0)
        return try_partitions(search, to, &moved);
    if (new_digits > digits) {
        count = UINT32_C(1) << 4 * (new_digits - digits);
        shard <<= 4 * (new_digits - digits);
    } else {
        shard >>= 4 * (digits - new_digits);
    }
    kl_rc rc = KL_OK;
    for (uint32_t i = 0; rc == KL_OK && i < count && !search->found && search->left > 0; i++) {
        moved = kl__id_moved(&to->layout, &to->layout, shard + i, &moved);
        rc = try_partitions(search, to, &moved);
    }
    return rc;
}

/* The newest layout first. */
static kl_rc try_all(struct search *search, const kl__descriptor *descriptor, const kl_task_id *id)
{
    kl_rc rc = KL_OK;
    search->left = (size_t)KL_LAYOUTS_MAX * KL_PARTITIONS_MAX;
    for (size_t i = descriptor->layout_count; rc == KL_OK && !search->found && i-- > 0;)
        rc = try_partitions(search, &descriptor->layouts[i], id);
    if (rc == KL_OK && !search->found)
        rc = ask(search);
    search->left = MOVED_MAX;
    for (size_t i = descriptor->layout_count; rc == KL_OK && !search->found && i-- > 0;)
        for (size_t j = 0; rc == KL_OK && !search->found && j < i; j++)
            rc = try_moved(search, descriptor, &descriptor->layouts[j], &descriptor->layouts[i], id);
    return rc == KL_OK && !search->found ? ask(search) : rc;
}

/* With several layouts a task may have moved from the one not yet looked at to the one already looked at: then it is
 * there the second time. */
kl_rc kl__look_task(kl_queue *queue, const kl__descriptor *descriptor, const kl_task_id *id, kl_arena *arena,
                    kl_task *ret_task, kl__source *ret_source)
{
    struct search *search = kl__alloc(sizeof *search);
    char text[KL_ID_TEXT_BYTES];
    kl_rc rc = KL_OK;
    if (!search)
        return kl__fail_memory();
    search->arena = arena;
    search->count = 0;
    search->found = false;
    for (int looks = descriptor->layout_count > 1 ? 2 : 1; rc == KL_OK && !search->found && looks > 0; looks--)
        rc = try_all(search, descriptor, id);
    if (rc == KL_OK && search->found) {
        *ret_task = search->task;
        *ret_source = search->source;
    } else if (rc == KL_OK) {
        kl_id_print(id, text);
        rc = kl__fail(
            KL_ENOTFOUND,
            "the queue %s has no task %s: it never had, or it is finished and no longer kept; keep_done_ms and "
            "keep_dead_ms say how long",
            queue->name, text);
    }
    kl__free(search);
    return rc;
}

static kl_rc find_task(kl_queue *queue, const kl__descriptor *descriptor, const kl_task_id *id, kl_arena *arena,
                       kl_found *ret_found)
{
    kl__source source;
    kl_rc rc = kl__look_task(queue, descriptor, id, arena, &ret_found->task, &source);
    return rc == KL_OK ? kl__look_describe(queue, source, arena, ret_found) : rc;
}

/* What is not found may lie in a layout that was opened by another process since. */
kl_rc kl_queue_task(kl_queue *queue, const kl_task_id *id, kl_arena *arena, kl_found *ret_found)
{
    kl_found found;
    if (!queue)
        return kl__refuse_no_queue();
    if (!id || !arena || !ret_found)
        return kl__fail(KL_EINVAL, "the id, the arena or ret_found is NULL; pass all three");
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_rc rc = find_task(queue, descriptor, id, arena, &found);
    if (rc == KL_ENOTFOUND) {
        kl_rc known = kl__queue_refresh(queue);
        kl__descriptor *newer = kl__queue_descriptor(queue);
        if (known != KL_OK)
            rc = known;
        else if (newer->version != descriptor->version)
            rc = find_task(queue, newer, id, arena, &found);
        kl__descriptor_release(descriptor);
        descriptor = newer;
    }
    kl__descriptor_release(descriptor);
    if (rc == KL_OK)
        *ret_found = found;
    return rc;
}

/* --- Cursors --- */

/* Hashes are chained: where one text ends and the next begins counts too. */
uint64_t kl__cursor_hash(uint64_t before, kl_bytes bytes) { return kl__hash(bytes, before + bytes.len); }

static uint64_t sign(kl_bytes text, uint64_t list) { return kl__hash(text, list); }

/* The text with its hash behind it, in the arena. */
kl_rc kl__cursor_write(const char *text, uint64_t list, kl_arena *arena, kl_bytes *ret_cursor)
{
    char whole[KL_CURSOR_BYTES];
    int length = snprintf(whole, sizeof whole, "%s-%016llx", text, (unsigned long long)sign(kl_str(text), list));
    KL_ASSERT(length > 0 && length < KL_CURSOR_BYTES);
    return kl_arena_copy(arena, (kl_bytes){whole, (size_t)length}, ret_cursor) ? KL_OK : kl__fail_memory();
}

kl_rc kl__cursor_refuse(void)
{
    return kl__fail(KL_EINVAL, "this is no cursor of this list; pass what the last call of the same list returned, or "
                               "nothing to begin anew");
}

/* Takes the hash off again; the rest is text that kl__cursor_write got for the same list. */
kl_rc kl__cursor_read(kl_bytes cursor, uint64_t list, char ret_text[KL_CURSOR_BYTES])
{
    enum { HASH_BYTES = 17 };
    char hash[HASH_BYTES + 1];
    if (!cursor.data || cursor.len <= HASH_BYTES || cursor.len >= KL_CURSOR_BYTES)
        return kl__cursor_refuse();
    kl_bytes text = {cursor.data, cursor.len - HASH_BYTES};
    snprintf(hash, sizeof hash, "-%016llx", (unsigned long long)sign(text, list));
    if (memcmp((const char *)cursor.data + text.len, hash, HASH_BYTES) != 0)
        return kl__cursor_refuse();
    memcpy(ret_text, text.data, text.len);
    ret_text[text.len] = '\0';
    return KL_OK;
}

kl_rc kl__list_check(size_t max, const kl_arena *arena, const kl_found *ret_found, const size_t *ret_count,
                     const kl_bytes *ret_cursor)
{
    if (max < 1 || max > KL_LIST_MAX)
        return kl__fail(KL_EINVAL, "max is %zu; ask for 1 to %d tasks at a time", max, KL_LIST_MAX);
    if (!arena || !ret_found || !ret_count || !ret_cursor)
        return kl__fail(KL_EINVAL, "the arena, ret_found, ret_count or ret_cursor is NULL; pass all four");
    return KL_OK;
}

/* --- What waits --- */

/* Where the list is: everything before it has been looked at. */
struct spot {
    uint64_t layout; /* its number */
    uint32_t partition, shard;
    int32_t line;
    bool inside; /* go on behind `position` of the line, else from its first */
    uint64_t position;
    int64_t due_ms;
};

struct walk {
    kl_queue *queue;
    const kl_waiting *which;
    const kl__descriptor *descriptor;
    kl_arena *arena;
    kl_found *found;
    size_t count;     /* found so far */
    size_t bytes;     /* of those; up to KL_BATCH_BYTES_MAX, and one read beyond */
    size_t look_left; /* stubs that may still be looked at */
    uint64_t key_hash;
    struct spot spot;
    bool full; /* the list ends here, though there may be more */
    kl_stub *stubs;
    kl_ref *refs;
    kl_task *tasks;
};

/* Lines in the order in which a worker reads them: 0 is the retry line, then the ready lines, then the due line. */
static int32_t line_number(int32_t place)
{
    return place == 0 ? KL_LINE_RETRY : place == LINES - 1 ? KL_LINE_DUE : KL_PRIORITY_MIN + place - 1;
}

static bool wants_line(const kl_waiting *which, int32_t line)
{
    if (!which->due && !which->retry && !which->ready)
        return true;
    return line == KL_LINE_DUE ? which->due : line == KL_LINE_RETRY ? which->retry : which->ready;
}

static bool has_line(const kl_counts *counts, int32_t line)
{
    if (line == KL_LINE_DUE)
        return counts->due > 0 || counts->at_least;
    return line == KL_LINE_RETRY ? counts->retry > 0 || counts->at_least
                                 : counts->priorities >> (line - KL_PRIORITY_MIN) & 1;
}

static void pass(struct walk *walk, const kl_stub *stub)
{
    walk->spot.inside = true;
    walk->spot.position = stub->position;
    walk->spot.due_ms = stub->due_ms;
    walk->look_left--;
}

static bool fits(const struct walk *walk, const kl_task *task)
{
    return task->state == KL_TASK_WAITING &&
           (walk->which->key.len == 0 || kl__bytes_equal(task->entry.key, walk->which->key));
}

/* Reads the tasks of these stubs and keeps those that fit. *ret_passed: stubs that are done with. */
static kl_rc take_tasks(struct walk *walk, kl__source source, size_t count, size_t *ret_passed)
{
    size_t read = 0;
    kl_rc rc =
        count > 0 ? kl_store_read(kl__source_store(source), walk->refs, count, walk->arena, walk->tasks, &read) : KL_OK;
    for (size_t i = 0; rc == KL_OK && i < read; i++) {
        if (!fits(walk, &walk->tasks[i]))
            continue;
        walk->found[walk->count].task = walk->tasks[i];
        const kl_entry *entry = &walk->tasks[i].entry;
        rc = kl__look_describe(walk->queue, source, walk->arena, &walk->found[walk->count]);
        walk->count += rc == KL_OK;
        walk->bytes += entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
    }
    *ret_passed = read;
    return rc;
}

/* A stub without a hash is of a task without a key, or the engine does not tell. */
static bool may_fit(const struct walk *walk, const kl_stub *stub, bool told)
{
    return walk->key_hash == 0 || stub->key_hash == walk->key_hash || (stub->key_hash == 0 && !told);
}

/* Looks at one page of a line. A read that stops early ends the list: the answer is as large as it may be. */
static kl_rc take_page(struct walk *walk, kl__source source, size_t stubs, size_t *ret_passed)
{
    bool told = kl_store_info_of(kl__source_store(source)).can & KL_STORE_KEY_HASH;
    size_t asked = 0, looked = 0, read = 0, room = walk->which->max - walk->count;
    size_t last_asked[STUBS_MAX];
    kl_place place = {kl__layout_number(source.layout, source.partition), walk->spot.shard};
    for (; looked < stubs && asked < room && looked < walk->look_left; looked++) {
        const kl_stub *stub = &walk->stubs[looked];
        if (!may_fit(walk, stub, told))
            continue;
        walk->refs[asked] = (kl_ref){.place = place, .id = stub->id, .position = stub->position};
        last_asked[asked++] = looked;
    }
    kl_rc rc = take_tasks(walk, source, asked, &read);
    if (rc != KL_OK)
        return rc;
    size_t passed = read < asked ? last_asked[read] : looked;
    for (size_t i = 0; i < passed; i++)
        pass(walk, &walk->stubs[i]);
    walk->full =
        walk->count == walk->which->max || walk->look_left == 0 || read < asked || walk->bytes >= KL_BATCH_BYTES_MAX;
    *ret_passed = passed;
    return KL_OK;
}

static kl_rc walk_line(struct walk *walk, kl__source source)
{
    kl_rc rc = KL_OK;
    for (bool ended = false; rc == KL_OK && !ended && !walk->full;) {
        kl_stub after = {.position = walk->spot.position, .due_ms = walk->spot.due_ms};
        kl_scan scan = {
            .place = {kl__layout_number(source.layout, source.partition), walk->spot.shard},
            .line = line_number(walk->spot.line),
            .until_ms = INT64_MAX,
            .after = walk->spot.inside ? &after : NULL,
            .stubs = walk->stubs,
            .max = STUBS_MAX,
        };
        size_t passed = 0;
        rc = kl_store_scan(kl__source_store(source), &scan, 1);
        if (rc == KL_OK && scan.count > 0)
            rc = take_page(walk, source, scan.count, &passed);
        ended = rc == KL_OK && passed == scan.count && scan.count < STUBS_MAX;
    }
    return rc;
}

static kl_rc walk_shard(struct walk *walk, kl__source source)
{
    kl_counts counts;
    kl_place place = {kl__layout_number(source.layout, source.partition), walk->spot.shard};
    kl_rc rc = kl_store_counts(kl__source_store(source), place, NULL, &counts);
    for (; rc == KL_OK && !walk->full && walk->spot.line < LINES; walk->spot.line++) {
        int32_t line = line_number(walk->spot.line);
        if (has_line(&counts, line) && wants_line(walk->which, line))
            rc = walk_line(walk, source);
        if (walk->full)
            break;
        walk->spot.inside = false;
    }
    return rc;
}

/* A key's tasks are where the key says, unless some were put into a partition by name (Q4). */
static bool may_hold(const struct walk *walk, kl__source source)
{
    kl_bytes key = walk->which->key;
    return key.len == 0 || source.layout->by_name || kl_partition_of(&source.layout->layout, key) == source.partition;
}

/* All shards, or the one that the key belongs to. */
static kl_rc walk_partition(struct walk *walk, kl__source source)
{
    const kl_layout *layout = &source.layout->layout;
    kl_counts counts;
    kl_place all = {kl__layout_number(source.layout, source.partition), KL_ALL_SHARDS};
    kl_rc rc = kl_store_counts(kl__source_store(source), all, NULL, &counts);
    bool empty = rc == KL_OK && kl__counts_waiting(&counts) == 0 && !counts.at_least;
    uint32_t only = walk->which->key.len > 0 ? kl_shard_of(layout, walk->which->key) : KL_ALL_SHARDS;
    for (; rc == KL_OK && !empty && walk->spot.shard < kl_layout_shards(layout); walk->spot.shard++) {
        if (only == KL_ALL_SHARDS || walk->spot.shard == only)
            rc = walk_shard(walk, source);
        if (walk->full)
            break;
        walk->spot.line = 0;
    }
    return rc;
}

static kl_rc walk_layout(struct walk *walk, const kl__queue_layout *layout)
{
    kl_rc rc = KL_OK;
    if (layout->number != walk->spot.layout)
        walk->spot = (struct spot){.layout = layout->number};
    for (; rc == KL_OK && walk->spot.partition < layout->layout.partitions; walk->spot.partition++) {
        kl__source source = {layout, walk->spot.partition};
        rc = may_hold(walk, source) ? walk_partition(walk, source) : KL_OK;
        if (walk->full)
            break;
        walk->spot.shard = 0;
    }
    return rc;
}

static kl_rc walk_all(struct walk *walk)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && !walk->full && i < walk->descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &walk->descriptor->layouts[i];
        if (layout->number >= walk->spot.layout && !layout->drained)
            rc = walk_layout(walk, layout);
    }
    return rc;
}

static uint64_t hash_waiting(const kl_queue *queue, const kl_waiting *which)
{
    uint8_t lines = (uint8_t)(which->due | which->retry << 1 | which->ready << 2);
    uint64_t hash = kl__cursor_hash(0, kl_str(queue->name));
    hash = kl__cursor_hash(hash, which->key);
    return kl__cursor_hash(hash, (kl_bytes){&lines, sizeof lines});
}

static kl_rc write_spot(const struct walk *walk, kl_bytes *ret_cursor)
{
    const struct spot *spot = &walk->spot;
    char text[KL_CURSOR_BYTES - 20];
    *ret_cursor = (kl_bytes){"", 0};
    if (!walk->full)
        return KL_OK;
    snprintf(text, sizeof text, "w1-%llu-%u-%u-%d-%d-%llu-%llu", (unsigned long long)spot->layout, spot->partition,
             spot->shard, spot->line, spot->inside, (unsigned long long)spot->position,
             (unsigned long long)spot->due_ms);
    return kl__cursor_write(text, hash_waiting(walk->queue, walk->which), walk->arena, ret_cursor);
}

/* Its hash says that the text was written by write_spot. */
static kl_rc read_spot(struct walk *walk)
{
    char text[KL_CURSOR_BYTES];
    struct spot *spot = &walk->spot;
    unsigned long long layout, position, due_ms;
    int inside;
    if (walk->which->cursor.len == 0)
        return KL_OK;
    kl_rc rc = kl__cursor_read(walk->which->cursor, hash_waiting(walk->queue, walk->which), text);
    if (rc != KL_OK)
        return rc;
    if (sscanf(text, "w1-%llu-%u-%u-%d-%d-%llu-%llu", &layout, &spot->partition, &spot->shard, &spot->line, &inside,
               &position, &due_ms) != 7 ||
        spot->line < 0 || spot->line >= LINES)
        return kl__cursor_refuse();
    spot->layout = layout;
    spot->inside = inside != 0;
    spot->position = position;
    spot->due_ms = (int64_t)due_ms;
    return KL_OK;
}

static kl_rc check_waiting(const kl_waiting *which)
{
    if (!which)
        return kl__fail(KL_EINVAL, "the kl_waiting is NULL; pass one, at least with max");
    if (which->key.len > KL_KEY_BYTES_MAX || (which->key.len > 0 && !which->key.data))
        return kl__fail(KL_EINVAL, "the key has %zu bytes; pass that many, and up to %d", which->key.len,
                        KL_KEY_BYTES_MAX);
    return KL_OK;
}

static kl_rc begin_walk(struct walk *walk)
{
    walk->stubs = kl__alloc_zeroed(STUBS_MAX, sizeof *walk->stubs);
    walk->refs = kl__alloc_zeroed(STUBS_MAX, sizeof *walk->refs);
    walk->tasks = kl__alloc_zeroed(STUBS_MAX, sizeof *walk->tasks);
    return walk->stubs && walk->refs && walk->tasks ? KL_OK : kl__fail_memory();
}

static void end_walk(const struct walk *walk)
{
    kl__free(walk->stubs);
    kl__free(walk->refs);
    kl__free(walk->tasks);
}

static kl_rc list_waiting(struct walk *walk, kl_bytes *ret_cursor)
{
    kl_rc rc = begin_walk(walk);
    if (rc == KL_OK)
        rc = read_spot(walk);
    if (rc == KL_OK)
        rc = walk_all(walk);
    if (rc == KL_OK)
        rc = write_spot(walk, ret_cursor);
    end_walk(walk);
    return rc;
}

kl_rc kl__look_key(kl_queue *queue, kl__source source, kl_bytes key, size_t max, kl_arena *arena, kl_found *ret_found,
                   size_t *ret_count, bool *ret_more)
{
    kl_waiting which = {.key = key, .max = max};
    struct walk walk = {.queue = queue,
                        .which = &which,
                        .arena = arena,
                        .found = ret_found,
                        .look_left = SIZE_MAX,
                        .key_hash = kl__key_hash(key),
                        .spot.shard = kl_shard_of(&source.layout->layout, key)};
    kl_rc rc = begin_walk(&walk);
    if (rc == KL_OK)
        rc = walk_shard(&walk, source);
    end_walk(&walk);
    *ret_count = walk.count;
    *ret_more = walk.full;
    return rc;
}

kl_rc kl_queue_waiting(kl_queue *queue, const kl_waiting *which, kl_arena *arena, kl_found *ret_found,
                       size_t *ret_count, kl_bytes *ret_cursor)
{
    if (!queue)
        return kl__refuse_no_queue();
    kl_rc rc = check_waiting(which);
    if (rc == KL_OK)
        rc = kl__list_check(which->max, arena, ret_found, ret_count, ret_cursor);
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    struct walk walk = {
        .queue = queue,
        .which = which,
        .descriptor = descriptor,
        .arena = arena,
        .found = ret_found,
        .look_left = which->look_max ? which->look_max : LOOK_MAX,
        .key_hash = kl__key_hash(which->key),
    };
    rc = list_waiting(&walk, ret_cursor);
    kl__descriptor_release(descriptor);
    if (rc == KL_OK)
        *ret_count = walk.count;
    return rc;
}
