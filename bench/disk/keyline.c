/* keyline.c - the disk store through its public calls, as a worker uses it: append, scan, settle under an epoch.
 *
 * The scan counts: who settles has read the lines before. Payloads are not read, nor do the peers read theirs. */
#include "keyline.h"

enum { KEYS_A_SHARD = 64 };

static kl_layout layout;
static char keys[SHARDS][KEYS_A_SHARD][KEY_BYTES + 1];
static kl_entry entries[GROUP_MAX];

/* Keys that really belong to their shards. */
static void make_keys(void)
{
    size_t missing = (size_t)SHARDS * KEYS_A_SHARD, counts[SHARDS] = {0};
    for (unsigned i = 0; missing; i++) {
        char key[KEY_BYTES + 1];
        snprintf(key, sizeof key, "key-%04x", i & 0xffff);
        uint32_t shard = kl_shard_of(&layout, kl_str(key));
        if (counts[shard] == KEYS_A_SHARD)
            continue;
        memcpy(keys[shard][counts[shard]++], key, sizeof key);
        missing--;
    }
}

void open_queue(struct queue *queue, const char *dir)
{
    char url[4096];
    kl_fence fences[SHARDS];
    if (!layout.partitions) {
        MUST_KL(kl_layout_init(1, 1, &layout));
        make_keys();
    }
    *queue = (struct queue){0};
    snprintf(url, sizeof url, "disk:%s", dir);
    MUST_KL(kl_store_open(url, NULL, &queue->store));
    MUST_KL(kl_store_partition(queue->store, "bench", layout.shard_prefix_len, &queue->partition));
    MUST_KL(kl_idgen_open(&layout, NULL, &queue->idgen));
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        fences[shard] = (kl_fence){.place = {queue->partition, shard}, .epoch = 1};
    MUST_KL(kl_store_fence(queue->store, fences, SHARDS));
}

void close_queue(struct queue *queue)
{
    kl_idgen_close(queue->idgen);
    kl_store_close(queue->store);
}

void fill_entries(struct queue *queue, kl_entry *ret_entries, size_t count)
{
    memset(queue->appended, 0, sizeof queue->appended);
    for (size_t i = 0; i < count; i++, queue->turn++) {
        uint32_t shard = queue->turn % SHARDS;
        kl_bytes key = {keys[shard][queue->turn / SHARDS % KEYS_A_SHARD], KEY_BYTES};
        ret_entries[i] =
            (kl_entry){.place = {queue->partition, shard}, .key = key, .payload = {payload, sizeof payload}};
        MUST_KL(kl_idgen_next(queue->idgen, shard, kl_lane_of(key), &ret_entries[i].id));
        queue->appended[shard]++;
    }
}

void prepare_group(struct queue *queue, size_t count) { fill_entries(queue, entries, count); }

void append_group(struct queue *queue, size_t count) { MUST_KL(kl_store_append(queue->store, entries, count, NULL)); }

/* The stubs of the group that was appended, shard by shard: one scan of all shards, as a worker's. */
static void scan_group(struct queue *queue, kl_stub *ret_stubs)
{
    kl_scan scans[SHARDS];
    size_t count = 0;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (!queue->appended[shard])
            continue;
        scans[count++] = (kl_scan){.place = {queue->partition, shard},
                                   .after = queue->last[shard].position ? &queue->last[shard] : NULL,
                                   .stubs = ret_stubs,
                                   .max = queue->appended[shard]};
        ret_stubs += queue->appended[shard];
    }
    MUST_KL(kl_store_scan(queue->store, scans, count));
    for (size_t i = 0; i < count; i++) {
        MUST_SAYING(scans[i].count == scans[i].max, "tasks that were appended are not in their line");
        queue->last[scans[i].place.shard] = scans[i].stubs[scans[i].count - 1];
    }
}

void settle_group(struct queue *queue)
{
    static kl_stub stubs[GROUP_MAX];
    static kl_settled settled[GROUP_MAX];
    kl_settle batches[SHARDS];
    size_t batch_count = 0, total = 0;
    int64_t begin = now_ns();
    scan_group(queue, stubs);
    queue->scan_ns += now_ns() - begin;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        size_t count = queue->appended[shard];
        if (!count)
            continue;
        for (size_t i = total; i < total + count; i++)
            settled[i] =
                (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .outcome = KL_DONE, .attempts = 1};
        batches[batch_count++] =
            (kl_settle){.place = {queue->partition, shard}, .epoch = 1, .tasks = settled + total, .count = count};
        total += count;
    }
    MUST_KL(kl_store_settle(queue->store, batches, batch_count));
}

static struct queue bench_queue;

static void open_keyline(const struct settings *settings) { open_queue(&bench_queue, path_in(settings, "keyline")); }
static void prepare_keyline(size_t count) { prepare_group(&bench_queue, count); }
static void append_keyline(size_t count) { append_group(&bench_queue, count); }

static void settle_keyline(size_t count)
{
    (void)count;
    settle_group(&bench_queue);
}

static void report_keyline(void) { printf(" scan_s %.3f", (double)bench_queue.scan_ns / 1e9); }
static void close_keyline(void) { close_queue(&bench_queue); }

const struct side side = {.name = "keyline",
                          .open = open_keyline,
                          .prepare = prepare_keyline,
                          .append = append_keyline,
                          .settle = settle_keyline,
                          .report = report_keyline,
                          .close = close_keyline,
                          .modes = keyline_modes};
