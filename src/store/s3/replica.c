/* replica.c - what the log of a shard's tasks says, applied to the memory engine's structures.
 *
 * From: refresh.c (objects that were read), append.c (objects that were written). To: the calls. The journal is
 * journal.c's.
 *
 * Objects of a log are applied in the order of their numbers, each once. Task objects may be behind the journal: what
 * the journal says of tasks that are not loaded yet is kept with their object, and heeded when it is. Applying may be
 * broken off for want of memory and begun again.
 *
 * R1  A task waits in the replica exactly if its object is loaded and its pointer stands there.
 * R2  Of objects with the same token, or the same id while the first one waits, the one with the lower number
 *     counts. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "store/s3/s3.h"

/* What copies of strings of an object of so many bytes can take: no copy fails then, and what is not understood is
 * damaged. */
bool kl__s3_reserve(kl_arena *arena, size_t bytes)
{
    enum { FIELDS = 512 }; /* what a few strings are rounded up by */
    bool there = kl_arena_alloc(arena, bytes + FIELDS) != NULL;
    kl_arena_reset(arena);
    return there;
}

/* --- Objects --- */

static kl__s3_object *by_number(const kl__tree_node *node) { return KL_CONTAINER(node, kl__s3_object, by_number); }

static bool less_number(const kl__tree_node *a, const kl__tree_node *b)
{
    return by_number(a)->number < by_number(b)->number;
}

kl__s3_object *kl__s3_object_of(kl__s3_shard *shard, uint64_t number)
{
    kl__s3_object probe = {.number = number};
    kl__tree_node *node = kl__memory_find_node(shard->objects, &probe.by_number, less_number);
    return node ? by_number(node) : NULL;
}

kl__s3_object *kl__s3_object_make(kl__s3_shard *shard, uint64_t number)
{
    kl__s3_object *object = kl__s3_object_of(shard, number);
    if (object || !(object = kl__alloc_zeroed(1, sizeof *object)))
        return object;
    object->number = number;
    kl__tree_insert(&shard->objects, &object->by_number, less_number);
    return object;
}

void kl__s3_retry_free(kl__s3_retry *retry)
{
    for (kl__s3_retry *next; retry; retry = next) {
        next = retry->next;
        for (kl__memory_left *left = retry->left, *later; left; left = later) {
            later = left->next;
            kl__free(left);
        }
        kl__free(retry);
    }
}

void kl__s3_object_free(kl__s3_shard *shard, kl__s3_object *object)
{
    kl__tree_remove(&shard->objects, &object->by_number, less_number);
    for (uint32_t i = 0; object->tasks && i < object->count; i++) {
        if (object->tasks[i]) {
            kl__memory_take_out(object->tasks[i]);
            kl__memory_task_free(object->tasks[i]);
        }
    }
    kl__s3_retry_free(object->retries);
    kl__free(object->tasks);
    kl__free(object->settled);
    kl__free(object);
}

bool kl__s3_is_settled(const kl__s3_object *object, uint32_t index)
{
    return index < object->settled_room && (object->settled[index / 8] >> index % 8 & 1);
}

bool kl__s3_set_settled(kl__s3_object *object, uint32_t index)
{
    if (index >= object->settled_room) {
        uint32_t room = object->settled_room ? object->settled_room : 64;
        while (room <= index)
            room *= 2;
        uint8_t *grown = kl__alloc_zeroed(room / 8, 1);
        if (!grown)
            return false;
        if (object->settled_room)
            memcpy(grown, object->settled, object->settled_room / 8);
        kl__free(object->settled);
        object->settled = grown;
        object->settled_room = room;
    }
    object->settled[index / 8] |= (uint8_t)(1u << index % 8);
    return true;
}

/* --- Tokens --- */

static kl__s3_token *by_value(const kl__tree_node *node) { return KL_CONTAINER(node, kl__s3_token, by_value); }

static bool less_token(const kl__tree_node *a, const kl__tree_node *b)
{
    return memcmp(&by_value(a)->token, &by_value(b)->token, sizeof(kl_token)) < 0;
}

static void drop_oldest_token(kl__s3_shard *shard)
{
    kl__s3_token *token = shard->oldest_token;
    kl__tree_remove(&shard->tokens, &token->by_value, less_token);
    shard->oldest_token = token->next;
    if (!token->next)
        shard->newest_token = NULL;
    shard->token_count--;
    kl__free(token);
}

void kl__s3_tokens_free(kl__s3_shard *shard)
{
    while (shard->oldest_token)
        drop_oldest_token(shard);
}

bool kl__s3_remember(kl__s3_shard *shard, const kl_token *value, uint64_t number, int64_t at_ms)
{
    kl__s3_token *token = kl__alloc(sizeof *token);
    if (!token)
        return false;
    *token = (kl__s3_token){.number = number, .at_ms = at_ms, .token = *value};
    kl__tree_insert(&shard->tokens, &token->by_value, less_token);
    if (shard->newest_token)
        shard->newest_token->next = token;
    else
        shard->oldest_token = token;
    shard->newest_token = token;
    shard->token_count++;
    while (shard->token_count > KL_TOKENS_KEPT)
        drop_oldest_token(shard);
    return true;
}

bool kl__s3_has_token(kl__s3_shard *shard, const kl_token *value)
{
    kl__s3_token probe = {.token = *value};
    return kl__memory_find_node(shard->tokens, &probe.by_value, less_token) != NULL;
}

/* Whether an earlier object bore the token; else it is remembered. The checkpoint has all tokens up to its number that
 * are young enough, and repeats of others are settled there. False: no memory. */
static bool meet_token(kl__s3_shard *shard, const kl_token *value, uint64_t number, int64_t at_ms, bool *ret_repeat)
{
    kl__s3_token probe = {.token = *value};
    while (shard->oldest_token && at_ms - shard->oldest_token->at_ms > KL_S3_TOKEN_MS)
        drop_oldest_token(shard);
    kl__tree_node *node = kl__memory_find_node(shard->tokens, &probe.by_value, less_token);
    *ret_repeat = node && by_value(node)->number < number;
    return node || number <= shard->tokens_to || kl__s3_remember(shard, value, number, at_ms);
}

/* --- Tasks --- */

kl__memory_task *kl__s3_task_make(kl__memory_shard *shard, const kl_entry *entry, uint64_t position)
{
    kl__memory_task *task = kl__memory_task_make(shard, entry);
    if (task)
        task->position = position;
    return task;
}

kl__memory_left *kl__s3_left_make(uint32_t attempts, int64_t expires_ms, kl_bytes error, kl_bytes result)
{
    kl__memory_left *left = kl__alloc(sizeof *left + error.len + result.len);
    if (!left)
        return NULL;
    char *bytes = left->bytes;
    *left = (kl__memory_left){.attempts = attempts, .expires_ms = expires_ms};
    left->error = kl__memory_copy_to(&bytes, error);
    left->result = kl__memory_copy_to(&bytes, result);
    return left;
}

kl__s3_retry **kl__s3_find_retry(kl__s3_object *object, uint64_t position)
{
    kl__s3_retry **link = &object->retries;
    while (*link && (*link)->position != position)
        link = &(*link)->next;
    return link;
}

static bool note_repeat(kl__s3_shard *shard, uint64_t position)
{
    uint64_t *repeats = kl__grow(shard->repeats, shard->repeat_count, &shard->repeat_room, sizeof *repeats);
    if (!repeats)
        return false;
    shard->repeats = repeats;
    shard->repeats[shard->repeat_count++] = position;
    return true;
}

/* Puts one task of an object that is being loaded into its line. False: no memory. */
static bool link_task(kl__s3 *s3, kl__s3_shard *shard, kl__s3_object *object, uint32_t index, const kl_entry *entry)
{
    kl__memory_shard *lines = kl__memory_shard_make(s3->memory, shard->place);
    uint64_t position = object->number << KL_S3_INDEX_BITS | index;
    if (!lines)
        return false;
    if (kl__memory_waiting(lines, &entry->id)) /* noted first: what is settled is not looked at again */
        return note_repeat(shard, position) && kl__s3_set_settled(object, index);
    kl__memory_task *task = kl__s3_task_make(lines, entry, position);
    if (!task)
        return false;
    kl__s3_retry **link = kl__s3_find_retry(object, position), *retry = *link;
    if (retry) {
        *link = retry->next;
        task->attempts = retry->attempts;
        task->not_before_ms = retry->due_ms;
        task->left = retry->left;
        kl__free(retry);
        kl__memory_put_in_line(task, KL_LINE_RETRY);
    } else {
        kl__memory_put_in_line(task, entry->due_ms > 0 ? KL_LINE_DUE : entry->priority);
    }
    object->tasks[index] = task;
    object->live++;
    return true;
}

static uint32_t count_tasks(const json_t *appends)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(appends); i++)
        count += json_array_size(json_object_get(json_array_get(appends, i), "tasks"));
    return count <= KL_S3_ENTRIES_MAX ? (uint32_t)count : 0;
}

/* One append's part of the object: each of its tasks is settled, or in a line, or (KL_EDAMAGED) not understood. */
static kl_rc load_append(kl__s3 *s3, kl__s3_shard *shard, kl__s3_object *object, const json_t *append, int64_t at_ms,
                         kl_arena *arena, uint32_t *index)
{
    const json_t *tasks = json_object_get(append, "tasks");
    kl_token token;
    kl_entry entry;
    bool named, repeat = false;
    kl_rc rc = KL_OK;
    if (!kl__s3_get_token(append, "token", &token, &named))
        rc = KL_EDAMAGED;
    else if (named && !meet_token(shard, &token, object->number, at_ms, &repeat))
        return KL_ENOMEM;
    for (size_t i = 0; i < json_array_size(tasks); i++, ++*index) {
        if (repeat && !kl__s3_set_settled(object, *index))
            return KL_ENOMEM;
        if (kl__s3_is_settled(object, *index) || object->tasks[*index])
            continue;
        kl_arena_reset(arena);
        if (!kl__s3_get_entry(json_array_get(tasks, i), shard->place, arena, &entry))
            rc = KL_EDAMAGED;
        else if (!link_task(s3, shard, object, *index, &entry))
            return KL_ENOMEM;
    }
    return rc;
}

static kl_rc load_appends(kl__s3 *s3, kl__s3_shard *shard, kl__s3_object *object, const json_t *root, size_t bytes)
{
    const json_t *appends = json_object_get(root, "appends");
    kl_arena arena = {0};
    int64_t at_ms;
    uint32_t index = 0, count = count_tasks(appends);
    bool whole = json_is_array(appends) && (count || json_array_size(appends) == 0);
    kl_rc first = kl__s3_get_int(root, "at", &at_ms) && whole ? KL_OK : KL_EDAMAGED;
    if (!object->tasks && !(object->tasks = kl__alloc_zeroed(count ? count : 1, sizeof(kl__memory_task *))))
        return KL_ENOMEM;
    object->count = count;
    if (!kl__s3_reserve(&arena, bytes))
        first = KL_ENOMEM;
    for (size_t i = 0; first != KL_ENOMEM && count && i < json_array_size(appends); i++) {
        kl_rc rc = load_append(s3, shard, object, json_array_get(appends, i), at_ms, &arena, &index);
        first = rc == KL_ENOMEM || first == KL_OK ? rc : first;
    }
    kl_arena_free(&arena);
    return first;
}

/* It is loaded: what the journal said of it while it was not has been heeded, and goes; unless it is damaged. */
static void end_load(kl__s3_object *object, bool damaged)
{
    object->loaded = true;
    object->damaged = damaged;
    object->live += damaged;
    object->dead_ns = object->live ? 0 : kl__monotonic_ns();
    if (damaged)
        return;
    kl__s3_retry_free(object->retries); /* of tasks that it does not have */
    object->retries = NULL;
    kl__free(object->settled);
    object->settled = NULL;
    object->settled_room = 0;
}

kl_rc kl__s3_apply_tasks(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, const kl__s3_text *body)
{
    KL_ASSERT(number == shard->taken + 1);
    kl__s3_object *object = kl__s3_object_make(shard, number);
    json_t *root = NULL;
    kl_rc rc = object ? kl__s3_parse_json(body, &root) : KL_ENOMEM;
    if (rc == KL_OK)
        rc = load_appends(s3, shard, object, root, body->len);
    bool seal = json_is_true(json_object_get(root, "sealed"));
    json_decref(root);
    if (rc == KL_ENOMEM)
        return kl__fail_memory();
    end_load(object, rc != KL_OK);
    shard->taken = number;
    shard->news = true;
    if (shard->tail <= number) {
        shard->tail = number;
        shard->sealed = seal;
    }
    if (rc != KL_OK)
        kl__s3_log(s3, KL_LOG_ERROR,
                   "tasks of object tasks/%s/%s/%016llx.json cannot be understood and wait there; is it of a newer "
                   "release? Update keyline",
                   shard->partition->name, shard->digits, (unsigned long long)number);
    return KL_OK;
}
