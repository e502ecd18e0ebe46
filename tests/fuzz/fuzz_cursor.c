/* fuzz_cursor.c - cursors of lists: given as they are, and signed as the list would have (the signature keeps mistakes
 * away, not people). None of them leads a list out of the queue. */
#include "fuzz.h"
#include "keyline/job.h"
#include "queue/look.h"

enum { TASKS = 12, SETTLED = 5, PAGE = 4, KEEP_MS = 3600 * 1000 };

static struct {
    kl_store *store;
    kl_queue *queue;
    kl_task_id job;
} world;

/* Some tasks of every shard are done. */
static void settle_some(void)
{
    kl__descriptor *descriptor = kl__queue_descriptor(world.queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    for (uint32_t shard = 0, left = SETTLED; left > 0 && shard < kl_layout_shards(&layout->layout); shard++) {
        kl_stub stub;
        kl_scan scan = {.place = {layout->numbers[0], shard}, .until_ms = INT64_MAX, .stubs = &stub, .max = 1};
        HOLDS(kl_store_scan(world.store, &scan, 1) == KL_OK);
        if (scan.count == 0)
            continue;
        kl_settled done = {.id = stub.id, .position = stub.position, .attempts = 1, .keep_ms = KEEP_MS};
        kl_settle batch = {.place = scan.place, .tasks = &done, .count = 1};
        HOLDS(kl_store_settle(world.store, &batch, 1) == KL_OK);
        left--;
    }
    kl__descriptor_release(descriptor);
}

/* Made once: the lists change nothing. */
static void make_world(void)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .shard_prefix_len = 1};
    kl_put tasks[TASKS] = {{.queue = NULL}};
    char keys[TASKS][8];
    for (int i = 0; i < TASKS; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
        tasks[i] = (kl_put){.key = kl_str(keys[i]), .priority = i % 3, .delay_ms = i % 4 == 0 ? KEEP_MS : 0};
    }
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = TASKS};
    kl_job_answer answer;
    HOLDS(kl_store_open("memory:", NULL, &world.store) == KL_OK);
    HOLDS(kl_queue_open(world.store, "orders", &opts, &world.queue) == KL_OK);
    HOLDS(kl_job_submit(world.queue, &spec, &answer, NULL) == KL_OK);
    world.job = answer.job;
    settle_some();
}

static void check_page(kl_rc rc, const kl_found *found, size_t count)
{
    HOLDS(rc == KL_OK || rc == KL_EINVAL);
    HOLDS(rc == KL_OK ? count <= PAGE : *kl_error_text() != 0);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        HOLDS(strcmp(found[i].queue, "orders") == 0 && found[i].task.entry.key.len >= 5);
}

static void list_all(kl_bytes cursor, kl_arena *arena)
{
    kl_found found[PAGE];
    size_t count = 0;
    kl_bytes next;
    kl_waiting waiting = {.max = PAGE, .cursor = cursor};
    kl_finished finished = {.max = PAGE, .cursor = cursor};
    check_page(kl_queue_waiting(world.queue, &waiting, arena, found, &count, &next), found, count);
    check_page(kl_queue_finished(world.queue, &finished, arena, found, &count, &next), found, count);
    check_page(kl_job_results(world.queue, &world.job, cursor, PAGE, arena, found, &count, &next, NULL), found, count);
}

/* The hashes of these two lists, as look.c and finished.c make them. */
static uint64_t hash_list(bool is_finished)
{
    static const int64_t numbers[3];
    static const kl_task_id none;
    uint64_t hash = kl__cursor_hash(kl__cursor_hash(0, kl_str("orders")), (kl_bytes){NULL, 0});
    if (!is_finished)
        return kl__cursor_hash(hash, (kl_bytes){numbers, 1});
    hash = kl__cursor_hash(kl__cursor_hash(hash, (kl_bytes){NULL, 0}), (kl_bytes){NULL, 0});
    hash = kl__cursor_hash(hash, (kl_bytes){none.bytes, sizeof none.bytes});
    return kl__cursor_hash(hash, (kl_bytes){numbers, sizeof numbers});
}

static void check_signed(const uint8_t *data, size_t size, kl_arena *arena)
{
    char text[KL_CURSOR_BYTES - 20] = "", read[KL_CURSOR_BYTES];
    kl_bytes cursor;
    memcpy(text, data, size < sizeof text ? size : sizeof text - 1);
    uint64_t list = hash_list(*text == 'f');
    if (!*text)
        return;
    HOLDS(kl__cursor_write(text, list, arena, &cursor) == KL_OK);
    HOLDS(kl__cursor_read(cursor, list, read) == KL_OK && strcmp(read, text) == 0);
    HOLDS(kl__cursor_read(cursor, list + 1, read) == KL_EINVAL);
    list_all(cursor, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kl_arena arena = {0};
    if (!world.store)
        make_world();
    char *copy = fuzz_copy(data, size);
    list_all((kl_bytes){copy, size}, &arena);
    check_signed(data, size, &arena);
    kl_arena_free(&arena);
    free(copy);
    return 0;
}
