/* memory.c - the memory engine: opening, closing, time and partitions.
 *
 * Reading order: memory.h (the data and its invariants) -> tasks.c (append, scan) -> settle.c -> finished.c ->
 * records.c. */
#include "store/memory/memory.h"

#include "base/layout.h"
#include "base/wait.h"
#include "store/engines.h"

/* --- Trees --- */

kl__tree_node *kl__memory_from(kl__tree_node *root, const kl__tree_node *probe, kl__tree_less *less)
{
    kl__tree_node *best = NULL;
    while (root) {
        bool before = less(root, probe);
        best = before ? best : root;
        root = before ? root->right : root->left;
    }
    return best;
}

kl__tree_node *kl__memory_after(kl__tree_node *root, const kl__tree_node *probe, kl__tree_less *less)
{
    kl__tree_node *best = NULL;
    while (root) {
        bool behind = less(probe, root);
        best = behind ? root : best;
        root = behind ? root->left : root->right;
    }
    return best;
}

kl__tree_node *kl__memory_find_node(kl__tree_node *root, const kl__tree_node *probe, kl__tree_less *less)
{
    kl__tree_node *node = kl__memory_from(root, probe, less);
    return node && !less(probe, node) ? node : NULL;
}

/* --- Time --- */

int64_t kl__memory_enter(kl__memory *memory)
{
    pthread_mutex_lock(&memory->mutex);
    int64_t now_ms = memory->opts.now_ms(memory->opts.now_ctx);
    if (now_ms > memory->now_ms)
        memory->now_ms = now_ms < KL_ID_MS_MAX ? now_ms : KL_ID_MS_MAX;
    kl__memory_tokens_drop(memory, memory->now_ms);
    kl__memory_finished_drop(memory, memory->now_ms);
    kl__memory_records_drop(memory, memory->now_ms);
    return memory->now_ms;
}

void kl__memory_leave(kl__memory *memory) { pthread_mutex_unlock(&memory->mutex); }

static kl_rc now(void *self, int64_t *ret_ms)
{
    *ret_ms = kl__memory_enter(self);
    kl__memory_leave(self);
    return KL_OK;
}

/* --- Partitions --- */

static kl__memory_partition *by_name(const kl__tree_node *node)
{
    return KL_CONTAINER(node, kl__memory_partition, by_name);
}

static bool less_name(const kl__tree_node *a, const kl__tree_node *b)
{
    return strcmp(by_name(a)->name, by_name(b)->name) < 0;
}

kl__memory_shard *kl__memory_shard_make(kl__memory *memory, kl_place place)
{
    kl__memory_shard **shard = &kl__memory_partition_of(memory, place.partition)->shards[place.shard];
    if (!*shard && (*shard = kl__alloc_zeroed(1, sizeof **shard)))
        (*shard)->place = place;
    return *shard;
}

/* Room for one more number. */
static bool make_room(kl__memory *memory)
{
    if (memory->partition_count < memory->partition_room)
        return true;
    uint32_t room = memory->partition_room ? memory->partition_room * 2 : 8;
    kl__memory_partition **grown = kl__alloc_zeroed(room, sizeof *grown);
    if (!grown)
        return false;
    for (uint32_t i = 0; i < memory->partition_count; i++)
        grown[i] = memory->by_number[i];
    kl__free(memory->by_number);
    memory->by_number = grown;
    memory->partition_room = room;
    return true;
}

static kl__memory_partition *make_partition(kl__memory *memory, const char *name, uint32_t shard_prefix_len)
{
    kl_layout layout = {1, shard_prefix_len};
    kl__memory_partition *partition = make_room(memory) ? kl__alloc_zeroed(1, sizeof *partition) : NULL;
    if (!partition)
        return NULL;
    partition->shards = kl__alloc_zeroed(kl_layout_shards(&layout), sizeof(kl__memory_shard *));
    if (!partition->shards) {
        kl__free(partition);
        return NULL;
    }
    strcpy(partition->name, name);
    partition->shard_prefix_len = shard_prefix_len;
    memory->by_number[memory->partition_count++] = partition;
    partition->number = memory->partition_count;
    kl__tree_insert(&memory->partitions, &partition->by_name, less_name);
    return partition;
}

static kl_rc find_partition(kl__memory *memory, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    kl__memory_partition probe = {.number = 0};
    strcpy(probe.name, name);
    kl__tree_node *node = kl__memory_find_node(memory->partitions, &probe.by_name, less_name);
    kl__memory_partition *partition = node ? by_name(node) : make_partition(memory, name, shard_prefix_len);
    if (!partition)
        return kl__fail_memory();
    if (partition->shard_prefix_len != shard_prefix_len)
        return kl__fail(KL_EINVAL,
                        "partition '%s' has shard_prefix_len %u, and %u was asked for; a layout is the queue's, so use "
                        "%u",
                        name, partition->shard_prefix_len, shard_prefix_len, partition->shard_prefix_len);
    *ret_partition = partition->number;
    return KL_OK;
}

static kl_rc partition_of(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    kl__memory_enter(self);
    kl_rc rc = find_partition(self, name, shard_prefix_len, ret_partition);
    kl__memory_leave(self);
    return rc;
}

/* --- Open and close --- */

static kl_rc open_memory(const char *where, const kl_store_opts *opts, void **ret_self)
{
    char quoted[KL_QUOTE_BYTES];
    if (*where)
        return kl__fail(KL_EINVAL, "a store in memory has no place, but %s stands behind its colon; write memory:",
                        kl__quote(kl_str(where), quoted));
    kl__memory *memory = kl__alloc_zeroed(1, sizeof *memory);
    if (!memory)
        return kl__fail_memory();
    pthread_mutex_init(&memory->mutex, NULL);
    kl__cond_init(&memory->appended);
    memory->opts = *opts;
    *ret_self = memory;
    return KL_OK;
}

static void free_waiting(kl__memory_shard *shard)
{
    for (int i = 0; i < KL_MEMORY_WAITING; i++) {
        for (kl__tree_node *node; (node = kl__tree_first(shard->waiting[i]));) {
            kl__memory_task *task = KL_CONTAINER(node, kl__memory_task, by_id);
            kl__memory_take_out(task);
            kl__memory_task_free(task);
        }
    }
}

static void free_partition(kl__memory_partition *partition)
{
    kl_layout layout = {1, partition->shard_prefix_len};
    for (uint32_t i = 0; i < kl_layout_shards(&layout); i++) {
        if (partition->shards[i])
            free_waiting(partition->shards[i]);
        kl__free(partition->shards[i]);
    }
    kl__free(partition->shards);
    kl__free(partition);
}

static void close_memory(void *self)
{
    kl__memory *memory = self;
    kl__memory_tokens_drop(memory, INT64_MAX);
    kl__memory_finished_drop(memory, INT64_MAX);
    for (kl__tree_node *node; (node = kl__tree_first(memory->records));)
        kl__memory_record_drop(memory, KL_CONTAINER(node, kl__memory_record, by_name));
    for (uint32_t i = 0; i < memory->partition_count; i++)
        free_partition(memory->by_number[i]);
    kl__free(memory->by_number);
    pthread_cond_destroy(&memory->appended);
    pthread_mutex_destroy(&memory->mutex);
    kl__free(memory);
}

const kl_engine kl__engine_memory = {
    .size = sizeof(kl_engine),
    .scheme = "memory",
    .usage = "memory:",
    .can =
        KL_STORE_ATOMIC_APPEND | KL_STORE_KEY_HASH | KL_STORE_ORDERED | KL_STORE_WAIT | KL_STORE_GROUP | KL_STORE_SEAL,
    .open = open_memory,
    .close = close_memory,
    .now = now,
    .partition = partition_of,
    .append = kl__memory_append,
    .scan = kl__memory_scan,
    .read = kl__memory_read,
    .settle = kl__memory_settle,
    .fence = kl__memory_fence,
    .counts = kl__memory_counts,
    .wait = kl__memory_wait,
    .results = kl__memory_results,
    .find = kl__memory_find,
    .forget = kl__memory_forget,
    .get = kl__memory_get,
    .put = kl__memory_put,
    .list = kl__memory_list,
};
