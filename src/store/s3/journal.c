/* journal.c - what the journal of a shard says, and its checkpoint, applied to the memory engine's structures.
 *
 * From: refresh.c (objects that were read), settle.c (objects that were written).  To: replica.c's tasks; upkeep.c and
 * settle.c, for what they write.
 *
 * What is said of tasks that are not loaded yet stays with their object (replica.c). An object that cannot be
 * understood, or an item of one, stops its shard: nothing behind it may be taken for true, and no checkpoint may cover
 * it. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

kl_rc kl__s3_fail_damaged(const kl__s3_shard *shard, const char *log, uint64_t number)
{
    return kl__fail(KL_EDAMAGED,
                    "object %016llx of %s/%s/%s cannot be understood; is it of a newer release? Update keyline",
                    (unsigned long long)number, log, shard->partition->name, shard->digits);
}

/* --- Journal: ends --- */

static void end_loaded(kl__s3_object *object, uint32_t index)
{
    kl__memory_task *task = index < object->count ? object->tasks[index] : NULL;
    if (!task)
        return;
    kl__memory_take_out(task);
    kl__memory_task_free(task);
    object->tasks[index] = NULL;
    if (--object->live == 0)
        object->dead_ns = kl__monotonic_ns();
}

/* The journal says something of an object, so it is there, whether or not a look at the log has shown it yet. */
static void learn_number(kl__s3_shard *shard, uint64_t number)
{
    if (number > shard->tail) {
        shard->tail = number;
        shard->sealed = false; /* there is nothing in a seal to be settled */
    }
    shard->ended &= shard->taken >= shard->tail;
}

static bool end_unloaded(kl__s3_shard *shard, uint64_t number, uint32_t index)
{
    learn_number(shard, number);
    kl__s3_object *object = kl__s3_object_make(shard, number);
    if (!object || !kl__s3_set_settled(object, index))
        return false;
    kl__s3_retry **link = kl__s3_find_retry(object, number << KL_S3_INDEX_BITS | index), *retry = *link;
    if (retry) {
        *link = retry->next;
        retry->next = NULL;
        kl__s3_retry_free(retry);
    }
    return true;
}

/* The task waits no more. False: no memory. */
static bool end_task(kl__s3_shard *shard, uint64_t number, uint32_t index)
{
    kl__s3_object *object = kl__s3_object_of(shard, number);
    if (object && object->loaded) {
        end_loaded(object, index);
        return !object->damaged || end_unloaded(shard, number, index);
    }
    return number <= shard->taken || end_unloaded(shard, number, index); /* else it is gone */
}

/* "number.first-last" or "number.index", in hex. */
static kl_rc end_run(kl__s3_shard *shard, const char *run)
{
    char *end;
    uint64_t number = strtoull(run, &end, 16);
    if (*end != '.')
        return KL_EDAMAGED;
    unsigned long from = strtoul(end + 1, &end, 16), to = from;
    if (*end == '-')
        to = strtoul(end + 1, &end, 16);
    if (*end != '\0' || from > to || to >= KL_S3_ENTRIES_MAX)
        return KL_EDAMAGED;
    for (unsigned long i = from; i <= to; i++)
        if (!end_task(shard, number, (uint32_t)i))
            return KL_ENOMEM;
    return KL_OK;
}

/* --- Journal: errors and results --- */

static kl_rc read_left(const json_t *errors, kl_arena *arena, kl__memory_left **ret_left)
{
    kl__memory_left **end = ret_left;
    int64_t attempts, expires_ms;
    kl_bytes error;
    *ret_left = NULL;
    for (size_t i = 0; i < json_array_size(errors); i++) {
        const json_t *item = json_array_get(errors, i);
        if (!kl__s3_get_int(item, "attempts", &attempts) || !kl__s3_get_int(item, "expires_ms", &expires_ms) ||
            !kl__s3_get_bytes(item, "error", arena, &error))
            return KL_EDAMAGED;
        *end = kl__s3_left_make((uint32_t)attempts, expires_ms, error, (kl_bytes){0});
        if (!*end)
            return KL_ENOMEM;
        end = &(*end)->next;
    }
    return KL_OK;
}

static void free_left(kl__memory_left *left)
{
    for (kl__memory_left *next; left; left = next) {
        next = left->next;
        kl__free(left);
    }
}

/* Adds what an attempt left; of the same attempt only the last counts, and what has expired goes. */
static void add_left(kl__memory_left **lefts, kl__memory_left *added, int64_t at_ms)
{
    for (kl__memory_left **link = lefts; *link;) {
        kl__memory_left *old = *link;
        if ((added && old->attempts == added->attempts) || old->expires_ms <= at_ms) {
            *link = old->next;
            kl__free(old);
        } else {
            link = &old->next;
        }
    }
    if (!added)
        return;
    kl__memory_left *last = added;
    while (last->next)
        last = last->next;
    last->next = *lefts;
    *lefts = added;
}

/* --- Journal: retries --- */

static bool retry_unloaded(kl__s3_shard *shard, uint64_t position, const kl__s3_retry *said, int64_t at_ms)
{
    uint64_t number = position >> KL_S3_INDEX_BITS;
    kl__s3_object *object = kl__s3_object_make(shard, number);
    if (!object)
        return false;
    kl__s3_retry **link = kl__s3_find_retry(object, position);
    if (!*link && !(*link = kl__alloc_zeroed(1, sizeof **link)))
        return false;
    kl__s3_retry *retry = *link;
    retry->position = position;
    retry->attempts = said->attempts;
    retry->due_ms = said->due_ms;
    add_left(&retry->left, said->left, at_ms);
    learn_number(shard, number);
    if (number > shard->retry_to)
        shard->retry_to = number;
    return true;
}

/* Takes over said->left on success. */
static bool retry_task(kl__s3_shard *shard, const kl__s3_retry *said, int64_t at_ms)
{
    uint64_t number = said->position >> KL_S3_INDEX_BITS;
    uint32_t index = said->position & (KL_S3_ENTRIES_MAX - 1);
    kl__s3_object *object = kl__s3_object_of(shard, number);
    kl__memory_task *task = object && object->loaded && index < object->count ? object->tasks[index] : NULL;
    bool unloaded = !(object && object->loaded) && number > shard->taken;
    if (unloaded || (!task && object && object->damaged && !kl__s3_is_settled(object, index)))
        return retry_unloaded(shard, said->position, said, at_ms);
    if (!task) {
        free_left(said->left);
        return true;
    }
    add_left(&task->left, said->left, at_ms);
    kl__memory_take_out(task);
    task->attempts = said->attempts;
    task->not_before_ms = said->due_ms;
    kl__memory_put_in_line(task, KL_LINE_RETRY);
    return true;
}

static kl_rc apply_retry(kl__s3_shard *shard, const json_t *item, int64_t at_ms, kl_arena *arena)
{
    kl__s3_retry said = {0};
    int64_t attempts;
    if (!kl__s3_get_hex(item, "retry", &said.position) || !kl__s3_get_int(item, "attempts", &attempts) ||
        !kl__s3_get_int(item, "due_ms", &said.due_ms))
        return KL_EDAMAGED;
    said.attempts = (uint32_t)attempts;
    kl_rc rc = read_left(json_object_get(item, "errors"), arena, &said.left);
    if (rc == KL_OK && !retry_task(shard, &said, at_ms))
        rc = KL_ENOMEM;
    if (rc != KL_OK)
        free_left(said.left);
    return rc;
}

/* --- Journal: kept --- */

static const struct {
    kl_task_state state;
    const char *name;
} states[] = {{KL_TASK_DONE, "done"}, {KL_TASK_DEAD, "dead"}, {KL_TASK_CANCELLED, "cancelled"}};

static kl_task_state state_of(const char *name)
{
    for (size_t i = 0; name && i < sizeof states / sizeof states[0]; i++)
        if (strcmp(states[i].name, name) == 0)
            return states[i].state;
    return KL_TASK_UNKNOWN;
}

static kl__s3_forgotten *forgotten_of(const kl__tree_node *node) { return KL_CONTAINER(node, kl__s3_forgotten, by_id); }

static bool less_forgotten(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl_id_compare(&forgotten_of(a)->id, &forgotten_of(b)->id) < 0;
}

static kl__s3_forgotten *find_forgotten(const kl__s3_shard *shard, const kl_task_id *id)
{
    kl__s3_forgotten probe = {.id = *id};
    kl__tree_node *node = kl__memory_find_node(shard->forgotten, &probe.by_id, less_forgotten);
    return node ? forgotten_of(node) : NULL;
}

void kl__s3_forgotten_free(kl__s3_shard *shard, kl__s3_forgotten *one)
{
    kl__tree_remove(&shard->forgotten, &one->by_id, less_forgotten);
    kl__free(one);
}

static bool less_id(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl_id_compare(&KL_CONTAINER(a, kl__memory_task, by_id)->entry.id,
                         &KL_CONTAINER(b, kl__memory_task, by_id)->entry.id) < 0;
}

static kl__memory_task *find_finished(kl__s3 *s3, const kl__s3_shard *shard, const kl_task_id *id)
{
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    kl__memory_task probe = {.entry = {.id = *id}};
    kl__tree_node *node = lines ? kl__memory_find_node(lines->finished, &probe.by_id, less_id) : NULL;
    return node ? KL_CONTAINER(node, kl__memory_task, by_id) : NULL;
}

/* Makes a finished task of what is written about it. */
static kl_rc keep_task(kl__s3 *s3, kl__s3_shard *shard, const json_t *item, int32_t stands, kl_arena *arena)
{
    kl_entry entry;
    kl_bytes result;
    int64_t attempts, finished_ms, expires_ms;
    uint64_t position;
    kl_task_state state = state_of(json_string_value(json_object_get(item, "state")));
    if (!kl__s3_get_entry(json_object_get(item, "task"), shard->place, arena, &entry) ||
        !kl__s3_get_int(item, "attempts", &attempts) || !kl__s3_get_int(item, "finished_ms", &finished_ms) ||
        !kl__s3_get_int(item, "expires_ms", &expires_ms) || !kl__s3_get_bytes(item, "result", arena, &result) ||
        !kl__s3_get_hex(item, "kept", &position) || state == KL_TASK_UNKNOWN)
        return KL_EDAMAGED;
    if (expires_ms <= s3->memory->now_ms || find_forgotten(shard, &entry.id))
        return KL_OK;
    const kl__memory_task *known = find_finished(s3, shard, &entry.id);
    if (known && stands == KL_S3_ARCHIVED && known->finished_ms >= finished_ms)
        return KL_OK; /* an archive may be older than what the journal says */
    kl__memory_shard *lines = kl__memory_shard_make(s3->memory, shard->place);
    kl__memory_task *task = kl__s3_task_make(lines, &entry, position);
    kl__memory_left *left = kl__s3_left_make((uint32_t)attempts, expires_ms, (kl_bytes){0}, result), *errors = NULL;
    kl_rc rc = task && left ? read_left(json_object_get(item, "errors"), arena, &errors) : KL_ENOMEM;
    if (rc != KL_OK) {
        kl__free(task);
        kl__free(left);
        free_left(errors);
        return rc;
    }
    left->next = errors;
    task->left = left;
    task->result = left->result;
    task->state = state;
    task->attempts = (uint32_t)attempts;
    task->finished_ms = finished_ms;
    task->expires_ms = expires_ms;
    task->line = stands;
    kl__memory_keep(s3->memory, task);
    return KL_OK;
}

static kl_rc apply_kept(kl__s3 *s3, kl__s3_shard *shard, const json_t *item, kl_arena *arena)
{
    uint64_t position;
    if (!kl__s3_get_hex(item, "kept", &position))
        return KL_EDAMAGED;
    kl_rc rc = keep_task(s3, shard, item, KL_S3_IN_JOURNAL, arena);
    if (rc == KL_OK && !end_task(shard, position >> KL_S3_INDEX_BITS, (uint32_t)(position & (KL_S3_ENTRIES_MAX - 1))))
        rc = KL_ENOMEM;
    return rc;
}

/* --- Journal: forgotten --- */

static kl_rc forget_one(kl__s3 *s3, kl__s3_shard *shard, const kl_task_id *id, int64_t until_ms)
{
    if (!find_forgotten(shard, id)) {
        kl__s3_forgotten *one = kl__alloc_zeroed(1, sizeof *one);
        if (!one)
            return KL_ENOMEM;
        one->id = *id;
        one->until_ms = until_ms;
        kl__tree_insert(&shard->forgotten, &one->by_id, less_forgotten);
    }
    kl__memory_task *task = find_finished(s3, shard, id);
    if (task)
        kl__memory_drop(s3->memory, task);
    return KL_OK;
}

static kl_rc apply_forget(kl__s3 *s3, kl__s3_shard *shard, const json_t *item)
{
    kl_task_id id;
    int64_t until_ms;
    if (!kl__s3_get_id(item, "forget", &id) || !kl__s3_get_int(item, "until_ms", &until_ms))
        return KL_EDAMAGED;
    return forget_one(s3, shard, &id, until_ms);
}

/* A task that is kept again, after it was forgotten and appended anew, is not forgotten any more. */
static void remember_again(kl__s3_shard *shard, const json_t *item)
{
    kl_task_id id;
    if (!shard->forgotten || !kl__s3_get_id(json_object_get(item, "task"), "id", &id))
        return;
    kl__s3_forgotten *one = find_forgotten(shard, &id);
    if (one)
        kl__s3_forgotten_free(shard, one);
}

/* --- Journal --- */

static kl_rc apply_item(kl__s3 *s3, kl__s3_shard *shard, const json_t *item, int64_t at_ms, kl_arena *arena)
{
    kl_arena_reset(arena);
    if (json_is_string(item))
        return end_run(shard, json_string_value(item));
    if (json_object_get(item, "retry"))
        return apply_retry(shard, item, at_ms, arena);
    if (json_object_get(item, "forget"))
        return apply_forget(s3, shard, item);
    remember_again(shard, item);
    return apply_kept(s3, shard, item, arena);
}

static kl_rc apply_items(kl__s3 *s3, kl__s3_shard *shard, const json_t *items, int64_t at_ms, size_t bytes)
{
    kl_arena arena = {0};
    kl_rc first = kl__s3_reserve(&arena, bytes) ? KL_OK : KL_ENOMEM;
    for (size_t i = 0; first != KL_ENOMEM && i < json_array_size(items); i++) {
        kl_rc rc = apply_item(s3, shard, json_array_get(items, i), at_ms, &arena);
        if (first == KL_OK || rc == KL_ENOMEM)
            first = rc;
    }
    kl_arena_free(&arena);
    return first;
}

kl_rc kl__s3_apply_journal(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, const kl__s3_text *body)
{
    uint64_t fence;
    int64_t at_ms;
    KL_ASSERT(number == shard->journal + 1);
    json_t *root = NULL;
    kl_rc rc = kl__s3_parse_json(body, &root);
    if (rc == KL_OK && (!kl__s3_get_hex(root, "fence", &fence) || !kl__s3_get_int(root, "at", &at_ms) ||
                        !json_is_array(json_object_get(root, "items"))))
        rc = KL_EDAMAGED;
    if (rc == KL_OK)
        rc = apply_items(s3, shard, json_object_get(root, "items"), at_ms, body->len);
    json_decref(root);
    if (rc != KL_OK) /* nothing behind it may be taken for true */
        return rc == KL_ENOMEM ? kl__fail_memory() : kl__s3_fail_damaged(shard, "journal", number);
    if (fence > shard->epoch)
        shard->epoch = fence;
    if (s3->caller_time && at_ms > s3->floor_ms) /* else one wrong clock would stop those of all others */
        s3->floor_ms = at_ms;
    shard->journal = number;
    return KL_OK;
}

kl_rc kl__s3_apply_kept(kl__s3 *s3, kl__s3_shard *shard, const kl__s3_text *body)
{
    json_t *root = NULL;
    kl_arena arena = {0};
    kl_rc first = kl__s3_parse_json(body, &root);
    const json_t *items = json_object_get(root, "items");
    if (first == KL_OK && !kl__s3_reserve(&arena, body->len))
        first = KL_ENOMEM;
    for (size_t i = 0; first != KL_ENOMEM && i < json_array_size(items); i++) {
        kl_arena_reset(&arena);
        kl_rc rc = keep_task(s3, shard, json_array_get(items, i), KL_S3_ARCHIVED, &arena);
        first = rc == KL_ENOMEM || first == KL_OK ? rc : first;
    }
    kl_arena_free(&arena);
    json_decref(root);
    return first == KL_ENOMEM     ? kl__fail_memory()
           : first == KL_EDAMAGED ? kl__s3_fail_damaged(shard, "an archive", 0)
                                  : KL_OK;
}

/* --- The checkpoint --- */

static kl_rc read_tokens(kl__s3_shard *shard, const json_t *tokens)
{
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *item = json_array_get(tokens, i);
        kl_token token;
        uint64_t number;
        int64_t at_ms;
        bool there;
        if (!kl__s3_get_token(item, "token", &token, &there) || !there || !kl__s3_get_hex(item, "number", &number) ||
            !kl__s3_get_int(item, "at", &at_ms))
            return KL_EDAMAGED;
        if (!kl__s3_remember(shard, &token, number, at_ms))
            return KL_ENOMEM;
    }
    return KL_OK;
}

static kl_rc read_forgotten(kl__s3 *s3, kl__s3_shard *shard, const json_t *forgotten)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < json_array_size(forgotten); i++)
        rc = apply_forget(s3, shard, json_array_get(forgotten, i));
    return rc;
}

kl_rc kl__s3_apply_index(kl__s3 *s3, kl__s3_shard *shard, const kl__s3_text *body)
{
    json_t *root = NULL;
    uint64_t tail = 0;
    kl_rc rc = kl__s3_parse_json(body, &root);
    bool good = json_object_get(root, "journal") && kl__s3_get_hex(root, "journal", &shard->checkpoint) &&
                kl__s3_get_hex(root, "epoch", &shard->epoch) && kl__s3_get_hex(root, "swept", &shard->swept) &&
                kl__s3_get_hex(root, "tasks_swept", &shard->tasks_swept) &&
                kl__s3_get_hex(root, "first", &shard->first) && kl__s3_get_hex(root, "tokens_to", &shard->tokens_to) &&
                kl__s3_get_hex(root, "tail", &tail);
    if (rc == KL_OK && !good)
        rc = KL_EDAMAGED;
    shard->taken = shard->first;
    shard->journal = shard->checkpoint;
    if (shard->tail <= tail) {
        shard->tail = tail;
        shard->sealed = json_is_true(json_object_get(root, "sealed"));
    }
    if (rc == KL_OK)
        rc = apply_items(s3, shard, json_object_get(root, "items"), 0, body->len);
    if (rc == KL_OK)
        rc = read_tokens(shard, json_object_get(root, "tokens"));
    if (rc == KL_OK)
        rc = read_forgotten(s3, shard, json_object_get(root, "forgotten"));
    json_decref(root);
    if (rc == KL_EDAMAGED)
        return kl__fail(KL_EDAMAGED, "index/%s/%s.json cannot be understood; is it of a newer release? Update keyline",
                        shard->partition->name, shard->digits);
    return rc == KL_OK ? KL_OK : kl__fail_memory();
}

/* --- Writing --- */

void kl__s3_put_run(kl__s3_text *text, uint64_t number, uint32_t from, uint32_t to)
{
    kl__s3_text_put(text, "\"%llx.%x", (unsigned long long)number, from);
    if (to != from)
        kl__s3_text_put(text, "-%x", to);
    kl__s3_text_add(text, "\"", 1);
}

static bool is_ended(const kl__s3_object *object, uint32_t index)
{
    return object->loaded && !object->damaged ? !object->tasks[index] : kl__s3_is_settled(object, index);
}

bool kl__s3_put_settled(kl__s3_text *text, const kl__s3_object *object)
{
    uint32_t end = object->loaded && !object->damaged ? object->count : object->settled_room;
    bool any = false;
    for (uint32_t i = 0; i < end; i++) {
        uint32_t from = i;
        if (!is_ended(object, i))
            continue;
        while (i + 1 < end && is_ended(object, i + 1))
            i++;
        if (any)
            kl__s3_text_add(text, ",", 1);
        kl__s3_put_run(text, object->number, from, i);
        any = true;
    }
    return any;
}

static void put_error(kl__s3_text *text, bool first, uint32_t attempts, int64_t expires_ms, kl_bytes error)
{
    kl__s3_text_put(text, "%s{\"attempts\":%u,\"expires_ms\":%lld", first ? "" : ",", (unsigned)attempts,
                    (long long)expires_ms);
    kl__s3_put_bytes(text, "error", error);
    kl__s3_text_add(text, "}", 1);
}

static bool put_left(kl__s3_text *text, bool first, const kl__memory_left *left, int64_t at_ms)
{
    for (; left; left = left->next) {
        if (left->error.len == 0 || left->expires_ms <= at_ms)
            continue;
        put_error(text, first, left->attempts, left->expires_ms, left->error);
        first = false;
    }
    return first;
}

void kl__s3_put_retry(kl__s3_text *text, const kl__s3_retry *retry)
{
    kl__s3_text_put(text, "{\"retry\":\"%llx\",\"attempts\":%u,\"due_ms\":%lld,\"errors\":[",
                    (unsigned long long)retry->position, (unsigned)retry->attempts, (long long)retry->due_ms);
    put_left(text, true, retry->left, 0);
    kl__s3_text_put(text, "]}");
}

void kl__s3_put_end(kl__s3_text *text, const kl__s3_end *end)
{
    const char *name = "done";
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        name = states[i].state == end->state ? states[i].name : name;
    kl__s3_text_put(text,
                    "{\"kept\":\"%llx\",\"state\":\"%s\",\"attempts\":%u,\"finished_ms\":%lld,\"expires_ms\":%lld,"
                    "\"task\":{",
                    (unsigned long long)end->position, name, (unsigned)end->attempts, (long long)end->finished_ms,
                    (long long)end->expires_ms);
    kl__s3_put_entry(text, end->entry);
    kl__s3_text_put(text, "},\"errors\":[");
    if (end->error.len)
        put_error(text, true, end->attempts, end->expires_ms, end->error);
    put_left(text, end->error.len == 0, end->left, end->left_at_ms);
    kl__s3_text_put(text, "]");
    kl__s3_put_bytes(text, "result", end->result);
    kl__s3_text_add(text, "}", 1);
}
