/* finished.c - what is finished and kept in memory: read, results, find, forget.
 *
 * Find walks the finished tasks from the latest on and looks at each: it is the definition of the answer, not a fast
 * way to it. */
#include "store/memory/memory.h"
#include "store/words.h"

static kl__memory_task *by_id(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_task, by_id); }

static kl__memory_task *by_time(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_task, in_order); }

static kl__memory_task *by_job(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_task, by_job); }

static kl__memory_task *by_expiry(const kl__tree_node *node) { return KL_CONTAINER(node, kl__memory_task, by_expiry); }

static bool less_id(const kl__tree_node *a, const kl__tree_node *b)
{
    return kl_id_compare(&by_id(a)->entry.id, &by_id(b)->entry.id) < 0;
}

/* The latest first; those of one millisecond by partition, shard and id, so that a page goes on behind any of them. */
static bool less_time(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__memory_task *first = by_time(a), *second = by_time(b);
    kl_place p = first->entry.place, q = second->entry.place;
    if (first->finished_ms != second->finished_ms)
        return first->finished_ms > second->finished_ms;
    if (p.partition != q.partition)
        return p.partition > q.partition;
    if (p.shard != q.shard)
        return p.shard > q.shard;
    return kl_id_compare(&first->entry.id, &second->entry.id) > 0;
}

static bool less_job(const kl__tree_node *a, const kl__tree_node *b)
{
    int order = kl_id_compare(&by_job(a)->entry.job, &by_job(b)->entry.job);
    return order != 0 ? order < 0 : kl_id_compare(&by_job(a)->entry.id, &by_job(b)->entry.id) < 0;
}

static bool less_expiry(const kl__tree_node *a, const kl__tree_node *b)
{
    const kl__memory_task *first = by_expiry(a), *second = by_expiry(b);
    return first->expires_ms != second->expires_ms ? first->expires_ms < second->expires_ms
                                                   : (uintptr_t)first < (uintptr_t)second;
}

static bool is_set(const kl_task_id *id) { return !kl__id_is_none(id); }

/* --- Keeping and dropping --- */

static uint64_t *count_of(kl__memory *memory, const kl__memory_task *task)
{
    kl__memory_partition *partition = kl__memory_partition_of(memory, task->entry.place.partition);
    return task->state == KL_TASK_DONE   ? &partition->done
           : task->state == KL_TASK_DEAD ? &partition->dead
                                         : &partition->cancelled;
}

static kl__memory_task *find_finished(const kl__memory_shard *shard, const kl_task_id *id)
{
    kl__memory_task probe = {.entry = {.id = *id}};
    kl__tree_node *node = kl__memory_find_node(shard->finished, &probe.by_id, less_id);
    return node ? by_id(node) : NULL;
}

void kl__memory_keep(kl__memory *memory, kl__memory_task *task)
{
    kl__memory_task *earlier = find_finished(task->shard, &task->entry.id);
    if (earlier)
        kl__memory_drop(memory, earlier);
    kl__tree_insert(&task->shard->finished, &task->by_id, less_id);
    kl__tree_insert(&memory->finished, &task->in_order, less_time);
    kl__tree_insert(&memory->expiring, &task->by_expiry, less_expiry);
    if (is_set(&task->entry.job))
        kl__tree_insert(&task->shard->by_job, &task->by_job, less_job);
    memory->finished_count++;
    ++*count_of(memory, task);
}

void kl__memory_drop(kl__memory *memory, kl__memory_task *task)
{
    kl__tree_remove(&task->shard->finished, &task->by_id, less_id);
    kl__tree_remove(&memory->finished, &task->in_order, less_time);
    kl__tree_remove(&memory->expiring, &task->by_expiry, less_expiry);
    if (is_set(&task->entry.job))
        kl__tree_remove(&task->shard->by_job, &task->by_job, less_job);
    memory->finished_count--;
    --*count_of(memory, task);
    kl__memory_task_free(task);
}

void kl__memory_finished_drop(kl__memory *memory, int64_t now_ms)
{
    kl__tree_node *node;
    while ((node = kl__tree_first(memory->expiring)) && by_expiry(node)->expires_ms <= now_ms)
        kl__memory_drop(memory, by_expiry(node));
    while (memory->finished_count > (uint64_t)memory->opts.history_rows_max) {
        for (node = memory->finished; node->right; node = node->right)
            ;
        kl__memory_drop(memory, by_time(node));
    }
}

kl_rc kl__memory_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    kl__memory_enter(self);
    const kl__memory_shard *shard = kl__memory_shard_of(self, place);
    for (size_t i = 0; shard && i < count; i++) {
        kl__memory_task *task = find_finished(shard, &ids[i]);
        if (task)
            kl__memory_drop(self, task);
    }
    kl__memory_leave(self);
    return KL_OK;
}

/* --- Answers --- */

static bool copy(kl_arena *arena, kl_bytes bytes, kl_bytes *ret_copy)
{
    *ret_copy = (kl_bytes){"", 0};
    return bytes.len == 0 || kl_arena_copy(arena, bytes, ret_copy);
}

/* The error of the last attempt that left one. */
static kl_bytes last_error(const kl__memory_task *task)
{
    for (const kl__memory_left *left = task->left; left; left = left->next)
        if (left->error.len > 0)
            return left->error;
    return (kl_bytes){"", 0};
}

static kl_rc show(const kl__memory_task *task, kl_arena *arena, kl_task *ret_task)
{
    bool waiting = task->state == KL_TASK_WAITING;
    kl_bytes error = waiting ? (kl_bytes){"", 0} : last_error(task);
    *ret_task = (kl_task){
        .entry = task->entry,
        .state = task->state,
        .attempts = task->attempts,
        .position = waiting ? task->position : 0,
        .not_before_ms = waiting ? task->not_before_ms : 0,
        .finished_ms = task->finished_ms,
    };
    bool copied = copy(arena, task->entry.key, &ret_task->entry.key) &&
                  copy(arena, task->entry.kind, &ret_task->entry.kind) &&
                  copy(arena, task->entry.headers, &ret_task->entry.headers) &&
                  copy(arena, task->entry.payload, &ret_task->entry.payload) && copy(arena, error, &ret_task->error) &&
                  copy(arena, task->result, &ret_task->result);
    return copied ? KL_OK : kl__fail_memory();
}

static size_t shown_bytes(const kl__memory_task *task)
{
    return kl__memory_task_bytes(&task->entry) +
           (task->state == KL_TASK_WAITING ? 0 : last_error(task).len + task->result.len);
}

kl_rc kl__memory_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                      size_t *ret_count)
{
    kl_rc rc = KL_OK;
    size_t done = 0, bytes = 0;
    kl__memory_enter(self);
    for (; done < count; done++) {
        const kl_ref *ref = &refs[done];
        kl__memory_shard *shard = kl__memory_shard_of(self, ref->place);
        const kl__memory_task *task = shard ? kl__memory_waiting(shard, &ref->id) : NULL;
        if (!task && shard)
            task = find_finished(shard, &ref->id);
        bytes += task ? shown_bytes(task) : 0;
        if (done > 0 && bytes > KL_BATCH_BYTES_MAX)
            break;
        if (!task)
            ret_tasks[done] = (kl_task){.entry = {.place = ref->place, .id = ref->id}, .state = KL_TASK_UNKNOWN};
        else if ((rc = show(task, arena, &ret_tasks[done])) != KL_OK)
            break;
    }
    kl__memory_leave(self);
    if (rc == KL_OK)
        *ret_count = done;
    return rc;
}

kl_rc kl__memory_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                         kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl_rc rc = KL_OK;
    size_t count = 0;
    kl__memory_task probe = {.entry = {.job = *job, .id = after ? *after : (kl_task_id){{0}}}};
    kl__memory_enter(self);
    const kl__memory_shard *shard = kl__memory_shard_of(self, place);
    kl__tree_node *root = shard ? shard->by_job : NULL;
    kl__tree_node *node =
        after ? kl__memory_after(root, &probe.by_job, less_job) : kl__memory_from(root, &probe.by_job, less_job);
    while (rc == KL_OK && node && count < max && kl_id_compare(&by_job(node)->entry.job, job) == 0) {
        rc = show(by_job(node), arena, &ret_tasks[count++]);
        node = kl__memory_after(root, node, less_job);
    }
    kl__memory_leave(self);
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

void kl__memory_count_job(const kl__memory_shard *shard, const kl_task_id *job, kl_counts *counts)
{
    kl__memory_task probe = {.entry = {.job = *job}};
    kl__tree_node *node = kl__memory_from(shard->by_job, &probe.by_job, less_job);
    for (; node && kl_id_compare(&by_job(node)->entry.job, job) == 0;
         node = kl__memory_after(shard->by_job, node, less_job)) {
        kl_task_state state = by_job(node)->state;
        counts->done += state == KL_TASK_DONE;
        counts->dead += state == KL_TASK_DEAD;
        counts->cancelled += state == KL_TASK_CANCELLED;
    }
}

/* --- Find --- */

static bool an_error_has(const kl__memory_task *task, kl_bytes words)
{
    for (const kl__memory_left *left = task->left; left; left = left->next)
        if (left->error.len > 0 && kl__has_words(left->error, words))
            return true;
    return false;
}

static bool matches(const kl__memory_task *task, const kl_find *find)
{
    const kl_entry *entry = &task->entry;
    return (find->partition == 0 || entry->place.partition == find->partition) &&
           (find->state == KL_TASK_UNKNOWN || task->state == find->state) &&
           (find->key.len == 0 || kl__bytes_equal(entry->key, find->key)) &&
           (find->kind.len == 0 || kl__bytes_equal(entry->kind, find->kind)) &&
           (!is_set(&find->job) || kl_id_compare(&entry->job, &find->job) == 0) &&
           (find->from_ms == 0 || task->finished_ms >= find->from_ms) &&
           (find->until_ms == 0 || task->finished_ms < find->until_ms) &&
           (find->words.len == 0 || an_error_has(task, find->words));
}

static kl__tree_node *first_of(const kl__memory *memory, const kl_task *after)
{
    if (!after)
        return kl__tree_first(memory->finished);
    kl__memory_task probe = {.finished_ms = after->finished_ms,
                             .entry = {.place = after->entry.place, .id = after->entry.id}};
    return kl__memory_after(memory->finished, &probe.in_order, less_time);
}

kl_rc kl__memory_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl__memory *memory = self;
    kl_rc rc = KL_OK;
    size_t count = 0;
    kl__memory_enter(memory);
    kl__tree_node *node = first_of(memory, find->after);
    while (rc == KL_OK && node && count < find->max) {
        if (matches(by_time(node), find))
            rc = show(by_time(node), arena, &ret_tasks[count++]);
        node = kl__memory_after(memory->finished, node, less_time);
    }
    kl__memory_leave(memory);
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}
