/* keyline.c - the disk store through its public calls, as a worker uses it: append, scan, settle under an epoch.
 *
 * The scan counts: who settles has read the lines before. Payloads are not read, nor do the peers read theirs. */
#include "keyline.h"

enum { KEYS_A_SHARD = 64 };

static kl_layout layout;
static char keys[SHARDS][KEYS_A_SHARD][KEY_BYTES + 1];
static _Thread_local kl_entry entries[GROUP_MAX];

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

static void open_partition(struct queue *queue, const char *name)
{
    kl_fence fences[SHARDS];
    MUST_KL(kl_store_partition(queue->store, name, layout.shard_prefix_len, &queue->partition));
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        fences[shard] = (kl_fence){.place = {queue->partition, shard}, .epoch = 1};
    MUST_KL(kl_store_fence(queue->store, fences, SHARDS));
}

void open_queue(struct queue *queue, const char *dir)
{
    char url[4096];
    if (!layout.partitions) {
        MUST_KL(kl_layout_init(1, 1, &layout));
        make_keys();
    }
    *queue = (struct queue){0};
    snprintf(url, sizeof url, "disk:%s", dir);
    MUST_KL(kl_store_open(url, NULL, &queue->store));
    MUST_KL(kl_idgen_open(&layout, NULL, &queue->idgen));
    open_partition(queue, "bench");
}

void close_queue(struct queue *queue)
{
    kl_idgen_close(queue->idgen);
    kl_store_close(queue->store);
}

void fill_entries(struct queue *queue, kl_entry *ret_entries, size_t count)
{
    for (size_t i = 0; i < count; i++, queue->turn++) {
        uint32_t shard = queue->turn % SHARDS;
        kl_bytes key = {keys[shard][queue->turn / SHARDS % KEYS_A_SHARD], KEY_BYTES};
        ret_entries[i] =
            (kl_entry){.place = {queue->partition, shard}, .key = key, .payload = {payload, sizeof payload}};
        MUST_KL(kl_idgen_next(queue->idgen, shard, kl_lane_of(key), &ret_entries[i].id));
    }
}

void prepare_group(struct queue *queue, size_t count) { fill_entries(queue, entries, count); }

void append_group(struct queue *queue, size_t count) { MUST_KL(kl_store_append(queue->store, entries, count, NULL)); }

/* How many of a group's tasks are in each shard: the groups that are appended and settled are the same, in turn. */
static void count_by_shard(struct queue *queue, size_t count, size_t ret_counts[SHARDS])
{
    memset(ret_counts, 0, SHARDS * sizeof ret_counts[0]);
    for (size_t i = 0; i < count; i++)
        ret_counts[queue->settle_turn++ % SHARDS]++;
}

/* The stubs of a group, shard by shard: one scan of all shards, as a worker's. */
static void scan_group(struct queue *queue, const size_t counts[SHARDS], kl_stub *ret_stubs)
{
    kl_scan scans[SHARDS];
    size_t count = 0;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (!counts[shard])
            continue;
        scans[count++] = (kl_scan){.place = {queue->partition, shard},
                                   .after = queue->last[shard].position ? &queue->last[shard] : NULL,
                                   .stubs = ret_stubs,
                                   .max = counts[shard]};
        ret_stubs += counts[shard];
    }
    MUST_KL(kl_store_scan(queue->store, scans, count));
    for (size_t i = 0; i < count; i++) {
        MUST_SAYING(scans[i].count == scans[i].max, "tasks that were appended are not in their line");
        queue->last[scans[i].place.shard] = scans[i].stubs[scans[i].count - 1];
    }
}

void settle_group(struct queue *queue, size_t count)
{
    static _Thread_local kl_stub stubs[GROUP_MAX];
    static _Thread_local kl_settled settled[GROUP_MAX];
    kl_settle batches[SHARDS];
    size_t counts[SHARDS], batch_count = 0, total = 0;
    count_by_shard(queue, count, counts);
    int64_t begin = now_ns();
    scan_group(queue, counts, stubs);
    queue->scan_ns += now_ns() - begin;
    for (uint32_t shard = 0; shard < SHARDS; total += counts[shard++]) {
        if (!counts[shard])
            continue;
        for (size_t i = total; i < total + counts[shard]; i++)
            settled[i] =
                (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .outcome = KL_DONE, .attempts = 1};
        batches[batch_count++] = (kl_settle){
            .place = {queue->partition, shard}, .epoch = 1, .tasks = settled + total, .count = counts[shard]};
    }
    MUST_KL(kl_store_settle(queue->store, batches, batch_count));
}

/* Each pair has a partition of its own in one store. */
static struct queue queues[PAIRS_MAX];

static void open_keyline(const struct settings *settings)
{
    open_queue(&queues[0], path_in(settings, "keyline"));
    for (int i = 1; i < settings->pairs; i++) {
        char name[] = "bench-0";
        name[sizeof name - 2] = (char)('0' + i);
        queues[i] = (struct queue){.store = queues[0].store, .idgen = queues[0].idgen};
        open_partition(&queues[i], name);
    }
}

static void prepare_keyline(int pair, size_t count) { prepare_group(&queues[pair], count); }
static void append_keyline(int pair, size_t count) { append_group(&queues[pair], count); }
static void settle_keyline(int pair, size_t count) { settle_group(&queues[pair], count); }
static void report_keyline(void) { printf(" scan_s %.3f", (double)queues[0].scan_ns / 1e9); }
static void close_keyline(void) { close_queue(&queues[0]); }

const struct side side = {.name = "keyline",
                          .open = open_keyline,
                          .prepare = prepare_keyline,
                          .append = append_keyline,
                          .settle = settle_keyline,
                          .report = report_keyline,
                          .close = close_keyline,
                          .modes = keyline_modes};
