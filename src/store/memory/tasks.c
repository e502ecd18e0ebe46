/* tasks.c - what waits in memory: append, scan, counts, wait.
 *
 * An append makes all of its tasks first and links them in afterwards, so it is atomic. Positions come from one counter
 * of the store: they ascend in every shard (S2), and nobody promised that they have no gaps. */
#include "base/hash.h"
#include "base/wait.h"
#include "store/memory/memory.h"

/* --- Lines --- */

static kl__memory_task *by_id(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_task, by_id); }

static kl__memory_task *in_line(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_task, in_order); }

static bool less_id(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl_id_compare(&by_id(a)->entry.id, &by_id(b)->entry.id) < 0;
}

static bool less_in_line(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__memory_task *first = in_line(a), *second = in_line(b);
    return first->order_ms != second->order_ms ? first->order_ms < second->order_ms
                                               : first->position < second->position;
}

/* The parts of the shard that go with a line. */
static kl__tree_node **line_of(kl__memory_shard *shard, int32_t line) { return &shard->lines[line - KL_PRIORITY_MIN]; }

static kl__tree_node **waiting_of(kl__memory_shard *shard, int32_t line)
{
    return &shard->waiting[line <= KL_PRIORITY_MAX ? KL_MEMORY_READY : KL_MEMORY_LATER];
}

static uint64_t *count_of(kl__memory_shard *shard, int32_t line)
{
    return line == KL_LINE_DUE ? &shard->due : line == KL_LINE_RETRY ? &shard->retry : &shard->ready;
}

kl__memory_task *kl__memory_waiting(kl__memory_shard *shard, const kl_task_id *id)
{
    kl__memory_task probe = {.entry = {.id = *id}};
    for (int i = 0; i < KL_MEMORY_WAITING; i++) {
        kl__tree_node *node = kl__memory_find_node(shard->waiting[i], &probe.by_id, less_id);
        if (node)
            return by_id(node);
    }
    return NULL;
}

void kl__memory_put_in_line(kl__memory_task *task, int32_t line)
{
    task->line = line;
    task->order_ms = line == KL_LINE_DUE ? task->entry.due_ms : 0;
    kl__tree_insert(line_of(task->shard, line), &task->in_order, less_in_line);
    kl__tree_insert(waiting_of(task->shard, line), &task->by_id, less_id);
    ++*count_of(task->shard, line);
}

void kl__memory_take_out(kl__memory_task *task)
{
    kl__tree_remove(line_of(task->shard, task->line), &task->in_order, less_in_line);
    kl__tree_remove(waiting_of(task->shard, task->line), &task->by_id, less_id);
    --*count_of(task->shard, task->line);
}

/* --- Tasks --- */

size_t kl__memory_task_bytes(const kl_entry *entry)
{
    return entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
}

kl_bytes kl__memory_copy_to(char **to, kl_bytes bytes)
{
    kl_bytes copy = {*to, bytes.len};
    if (bytes.len > 0)
        memcpy(*to, bytes.data, bytes.len);
    *to += bytes.len;
    return copy;
}

kl__memory_task *kl__memory_task_make(kl__memory_shard *shard, const kl_entry *entry)
{
    kl__memory_task *task = shard ? kl__alloc(sizeof *task + kl__memory_task_bytes(entry)) : NULL;
    if (!task)
        return NULL;
    char *bytes = task->bytes;
    *task = (kl__memory_task){.shard = shard, .entry = *entry, .state = KL_TASK_WAITING};
    task->entry.key = kl__memory_copy_to(&bytes, entry->key);
    task->entry.kind = kl__memory_copy_to(&bytes, entry->kind);
    task->entry.headers = kl__memory_copy_to(&bytes, entry->headers);
    task->entry.payload = kl__memory_copy_to(&bytes, entry->payload);
    task->not_before_ms = entry->due_ms;
    task->key_hash = kl__key_hash(entry->key);
    return task;
}

void kl__memory_task_free(kl__memory_task *task)
{
    for (kl__memory_left *left = task->left, *next; left; left = next) {
        next = left->next;
        kl__free(left);
    }
    kl__free(task);
}

/* --- Tokens --- */

static kl__memory_token *by_value(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_token, by_value); }

static bool less_token(const kl__tree_node *a, const kl__tree_node *b)
{
    return memcmp(&by_value(a)->token, &by_value(b)->token, sizeof(kl_token)) < 0;
}

static bool token_known(const kl__memory *memory, const kl_token *token)
{
    if (!token)
        return false;
    kl__memory_token probe = {.token = *token};
    return kl__memory_find_node(memory->tokens, &probe.by_value, less_token) != NULL;
}

static void remember(kl__memory *memory, kl__memory_token *token)
{
    kl__tree_insert(&memory->tokens, &token->by_value, less_token);
    token->next = NULL;
    token->since_ms = memory->now_ms;
    if (memory->newest_token)
        memory->newest_token->next = token;
    else
        memory->oldest_token = token;
    memory->newest_token = token;
    memory->token_count++;
}

void kl__memory_tokens_drop(kl__memory *memory, int64_t now_ms)
{
    kl__memory_token *token;
    while ((token = memory->oldest_token) &&
           (memory->token_count > KL_TOKENS_KEPT || now_ms - token->since_ms > KL_MEMORY_TOKEN_MS)) {
        kl__tree_remove(&memory->tokens, &token->by_value, less_token);
        memory->oldest_token = token->next;
        if (!token->next)
            memory->newest_token = NULL;
        memory->token_count--;
        kl__free(token);
    }
}

/* --- Append --- */

static void free_chain(kl__memory_task *task)
{
    for (kl__memory_task *next; task; task = next) {
        next = task->next;
        kl__memory_task_free(task);
    }
}

/* Makes the tasks of an append, linked by `next`. False: out of memory, and nothing is left of them. */
static bool make_chain(kl__memory *memory, const kl_append *append, kl__memory_task **ret_chain)
{
    kl__memory_task *chain = NULL, **end = &chain;
    for (size_t i = 0; i < append->count; i++) {
        const kl_entry *entry = &append->entries[i];
        *end = kl__memory_task_make(kl__memory_shard_make(memory, entry->place), entry);
        if (!*end) {
            free_chain(chain);
            return false;
        }
        end = &(*end)->next;
    }
    *ret_chain = chain;
    return true;
}

/* An id that waits already is passed over: the producer repeats itself. */
static void link_in(kl__memory *memory, kl__memory_task *task)
{
    if (kl__memory_waiting(task->shard, &task->entry.id)) {
        kl__memory_task_free(task);
        return;
    }
    task->position = ++memory->position;
    kl__memory_put_in_line(task, task->entry.due_ms > 0 ? KL_LINE_DUE : task->entry.priority);
    kl__memory_partition_of(memory, task->entry.place.partition)->appended++;
}

/* KL_ESEALED: one of the entries is for a shard that is sealed. */
static kl_rc check_seals(kl__memory *memory, const kl_append *append)
{
    for (size_t i = 0; i < append->count; i++) {
        kl_place place = append->entries[i].place;
        const kl__memory_shard *shard = kl__memory_shard_of(memory, place);
        if (shard && shard->sealed)
            return kl__fail(KL_ESEALED,
                            "entry %zu: shard %u of partition %u is sealed, because its queue has a newer layout; read "
                            "that, and append where it says",
                            i, place.shard, place.partition);
    }
    return KL_OK;
}

static kl_rc append_all(kl__memory *memory, const kl_append *append)
{
    kl__memory_token *token = NULL;
    kl__memory_task *chain;
    if (token_known(memory, append->token))
        return KL_OK;
    kl_rc rc = check_seals(memory, append);
    if (rc != KL_OK)
        return rc;
    if (append->token && !(token = kl__alloc(sizeof *token)))
        return kl__fail_memory();
    if (!make_chain(memory, append, &chain)) {
        kl__free(token);
        return kl__fail_memory();
    }
    for (kl__memory_task *next; chain; chain = next) {
        next = chain->next;
        link_in(memory, chain);
    }
    if (token) {
        token->token = *append->token;
        remember(memory, token);
    }
    pthread_cond_broadcast(&memory->appended);
    return KL_OK;
}

kl_rc kl__memory_append(void *self, const kl_append *append)
{
    kl__memory_enter(self);
    kl_rc rc = append_all(self, append);
    kl__memory_leave(self);
    if (rc == KL_OK && append->done)
        append->done(append->ctx, KL_OK, "");
    return rc;
}

/* --- Looking at lines --- */

static kl_stub stub_of(const kl__memory_task *task)
{
    return (kl_stub){
        .id = task->entry.id,
        .position = task->position,
        .key_hash = task->key_hash,
        .due_ms = task->not_before_ms, /* 0 in a ready line */
        .bytes = (uint32_t)kl__memory_task_bytes(&task->entry),
        .attempts = (uint16_t)task->attempts,
        .group = task->entry.group,
        .priority = (int8_t)task->entry.priority,
    };
}

static kl__tree_node *first_of(kl__memory_shard *shard, const kl_scan *scan)
{
    kl__tree_node *root = *line_of(shard, scan->line);
    if (!scan->after)
        return kl__tree_first(root);
    kl__memory_task probe = {.order_ms = scan->line == KL_LINE_DUE ? scan->after->due_ms : 0,
                             .position = scan->after->position};
    return kl__memory_after(root, &probe.in_order, less_in_line);
}

static void scan_line(kl__memory *memory, kl_scan *scan)
{
    kl__memory_shard *shard = kl__memory_shard_of(memory, scan->place);
    kl__tree_node *node = shard ? first_of(shard, scan) : NULL;
    scan->count = 0;
    while (node && scan->count < scan->max) {
        const kl__memory_task *task = in_line(node);
        if (scan->line == KL_LINE_DUE && task->order_ms > scan->until_ms)
            break;
        scan->stubs[scan->count++] = stub_of(task);
        node = kl__memory_after(*line_of(shard, scan->line), node, less_in_line);
    }
}

kl_rc kl__memory_scan(void *self, kl_scan *scans, size_t count)
{
    kl__memory_enter(self);
    for (size_t i = 0; i < count; i++)
        scan_line(self, &scans[i]);
    kl__memory_leave(self);
    return KL_OK;
}

static void add_counts(const kl__memory_partition *partition, kl__memory_shard *shard, kl_counts *counts)
{
    kl_layout layout = {1, partition->shard_prefix_len};
    counts->ready += shard->ready;
    counts->due += shard->due;
    counts->retry += shard->retry;
    for (int i = 0; i <= KL_PRIORITY_MAX - KL_PRIORITY_MIN; i++)
        counts->priorities |= (uint32_t)(shard->lines[i] != NULL) << i;
    kl__tree_node *oldest = kl__tree_first(shard->waiting[KL_MEMORY_READY]); /* in a shard, ids are in order of time */
    int64_t oldest_ms = oldest ? kl_id_ms(&layout, &by_id(oldest)->entry.id) : 0;
    if (oldest && (counts->oldest_id_ms == 0 || oldest_ms < counts->oldest_id_ms))
        counts->oldest_id_ms = oldest_ms;
}

kl_rc kl__memory_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    kl_counts counts = {0};
    kl__memory_enter(self);
    kl__memory_partition *partition = kl__memory_partition_of(self, place.partition);
    kl_layout layout = {1, partition->shard_prefix_len};
    bool all = place.shard == KL_ALL_SHARDS;
    uint32_t first = all ? 0 : place.shard, end = all ? kl_layout_shards(&layout) : place.shard + 1;
    for (uint32_t i = first; i < end; i++) {
        if (partition->shards[i] && job)
            kl__memory_count_job(partition->shards[i], job, &counts);
        else if (partition->shards[i])
            add_counts(partition, partition->shards[i], &counts);
    }
    if (all && !job) {
        counts.done = partition->done;
        counts.dead = partition->dead;
        counts.cancelled = partition->cancelled;
    }
    kl__memory_leave(self);
    *ret_counts = counts;
    return KL_OK;
}

kl_rc kl__memory_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    kl__memory *memory = self;
    int64_t until_ns = kl__deadline_ns(wait_ms);
    kl__memory_enter(memory);
    const kl__memory_partition *waited = kl__memory_partition_of(memory, partition);
    while (waited->appended == *seen && kl__cond_wait(&memory->appended, &memory->mutex, until_ns))
        ;
    *seen = waited->appended;
    kl__memory_leave(memory);
    return KL_OK;
}
