/* id.c - how many task ids a second one core makes, beside the least that any shared counter could cost.
 *
 *     bench-id [MILLIONS-PER-ROUND]
 *
 * Each row is timed in turn, five rounds over, so that a busy machine disturbs all alike; the median counts. The
 * limit is a bare atomic fetch_add: ids made one by one, safely from any thread, cannot cost less. A batch can. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "keyline/id.h"

enum { ROUNDS = 5, BATCH = 256 };

struct row {
    const char *name;
    void (*run)(kl_idgen *idgen, uint32_t shards, uint64_t count);
    uint32_t prefix_len;
    double per_second[ROUNDS];
};

static _Atomic(uint64_t) counter;
static volatile uint8_t sink;

static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "bench-id: %s\n", kl_error_text());
    exit(1);
}

static void run_fetch_add(kl_idgen *idgen, uint32_t shards, uint64_t count)
{
    (void)idgen, (void)shards;
    for (uint64_t i = 0; i < count; i++)
        atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
}

/* Shards in a scattered order, as keys would have it. */
static void run_next(kl_idgen *idgen, uint32_t shards, uint64_t count)
{
    kl_task_id id = {{0}};
    for (uint64_t i = 0; i < count; i++)
        must(kl_idgen_next(idgen, (uint32_t)(i * 40503) & (shards - 1), (uint32_t)i & KL_LANE_MAX, &id));
    sink = id.bytes[15];
}

static void run_batch(kl_idgen *idgen, uint32_t shards, uint64_t count)
{
    static kl_task_id ids[BATCH];
    for (uint64_t i = 0; i < count; i += BATCH)
        must(kl_idgen_batch(idgen, (uint32_t)(i / BATCH * 40503) & (shards - 1), NULL, BATCH, ids));
    sink = ids[BATCH - 1].bytes[15];
}

static struct row rows[] = {
    {"bare fetch_add (the limit)", run_fetch_add, 1, {0}}, {"one at a time, 16 shards", run_next, 1, {0}},
    {"one at a time, 65536 shards", run_next, 4, {0}},     {"batches of 256, 16 shards", run_batch, 1, {0}},
    {"batches of 256, 65536 shards", run_batch, 4, {0}},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static double measure(const struct row *row, uint64_t count)
{
    kl_layout layout;
    kl_idgen *idgen;
    must(kl_layout_init(1, row->prefix_len, &layout));
    must(kl_idgen_open(&layout, NULL, &idgen));
    int64_t start = kl__monotonic_ns();
    row->run(idgen, kl_layout_shards(&layout), count);
    int64_t took_ns = kl__monotonic_ns() - start;
    kl_idgen_close(idgen);
    return (double)count * 1e9 / (double)took_ns;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct row *row)
{
    qsort(row->per_second, ROUNDS, sizeof row->per_second[0], compare);
    return row->per_second[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    uint64_t millions = argc > 1 ? strtoull(argv[1], NULL, 10) : 10;
    if (millions < 1 || millions > 10000) {
        fprintf(stderr, "bench-id: write how many million ids to make per round, 1 to 10000\n");
        return 2;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < ROWS; i++)
            rows[i].per_second[round] = measure(&rows[i], millions * 1000000);
    double limit = median(&rows[0]);
    printf("%-30s %10s %8s %9s\n", "ids on one core", "M/s", "ns each", "of limit");
    for (int i = 0; i < ROWS; i++) {
        double rate = i ? median(&rows[i]) : limit;
        printf("%-30s %10.1f %8.1f %8.0f%%\n", rows[i].name, rate / 1e6, 1e9 / rate, 100 * rate / limit);
    }
    return 0;
}
