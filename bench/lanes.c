/* lanes.c - what an operation of the per-key scheduler costs as the number of queued tasks grows.
 *
 *     bench-lanes [MOST]        from 1,000 tasks to MOST (default 10,000,000), tenfold each time
 *
 * Each column keeps N tasks queued and times a steady step: take a task, settle it, add another (or put it off, where
 * tasks fail). The last column is the price of memory alone, which nobody escapes once N leaves the caches: it touches
 * as many random places of an equally large array as a step touches tasks, lanes and keys. Operations are O(1) or
 * O(log n): from 10^3 to 10^7 a logarithm grows 2.3-fold. Medians of 5 rounds, columns interleaved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"
#include "lanes/lanes.h"

enum { ROUNDS = 5, STEPS = 200000, KEY_BYTES = 16, TASKS_PER_KEY = 10, TOUCHED = 4 };

enum shape { MANY_KEYS, ONE_KEY, PRIORITIES, RETRIES, DELAYED, SHAPES };

static const char *const shape_names[SHAPES] = {"many keys", "one key", "priorities", "retries", "delayed"};

struct bench {
    enum shape shape;
    uint64_t random, position;
    size_t count, keys;
    int64_t now_ms;
    kl__lanes *lanes;
    kl__lane_task *tasks;
    char (*names)[KEY_BYTES + 1];
};

static void add(struct bench *b, kl__lane_task *task)
{
    kl_bytes name = {b->names[kl__random_below(&b->random, b->keys)], KEY_BYTES};
    kl__lane_key key = {name, (uint32_t)kl__hash_local(name)};
    kl__lane *lane = kl__lanes_lane(b->lanes, key.bytes, key.hash);
    if (!lane)
        abort();
    *task = (kl__lane_task){.due_ms = b->now_ms, .position = ++b->position};
    if (b->shape == PRIORITIES)
        task->mark.priority = (int8_t)((int)kl__random_below(&b->random, 32) - 16);
    if (b->shape == DELAYED)
        task->due_ms += (int64_t)kl__random_below(&b->random, 2 * b->count); /* about one comes due each step */
    kl__lanes_add(b->lanes, lane, task, b->now_ms);
}

static void step(struct bench *b)
{
    kl__lane_task *task;
    b->now_ms++;
    if (kl__lanes_take(b->lanes, &task, 1, b->now_ms) == 0)
        return;
    if (b->shape == RETRIES) {
        kl__lanes_retry(b->lanes, task, b->now_ms + 1 + (int64_t)kl__random_below(&b->random, 2 * b->keys), b->now_ms);
        return;
    }
    kl__lanes_end(b->lanes, task, b->now_ms);
    add(b, task);
}

static void open_bench(struct bench *b, enum shape shape, size_t count)
{
    *b = (struct bench){.shape = shape, .random = 1, .count = count};
    b->keys = shape == ONE_KEY ? 1 : count / TASKS_PER_KEY;
    b->lanes = kl__lanes_open();
    b->tasks = calloc(count, sizeof *b->tasks);
    b->names = malloc(b->keys * sizeof *b->names);
    if (!b->lanes || !b->tasks || !b->names)
        abort();
    for (size_t i = 0; i < b->keys; i++)
        snprintf(b->names[i], sizeof b->names[i], "key-%012u", (unsigned)i);
    for (size_t i = 0; i < count; i++)
        add(b, &b->tasks[i]);
    for (size_t i = 0; shape == RETRIES && i < 2 * b->keys; i++) /* until nearly every key waits for a retry */
        step(b);
}

static void close_bench(struct bench *b)
{
    kl__lanes_close(b->lanes);
    free(b->tasks);
    free(b->names);
}

static double time_steps(struct bench *b)
{
    int64_t start = kl__monotonic_ns();
    for (int i = 0; i < STEPS; i++)
        step(b);
    return (double)(kl__monotonic_ns() - start) / STEPS;
}

static double time_memory(struct bench *b)
{
    volatile uint64_t sum = 0;
    int64_t start = kl__monotonic_ns();
    for (int i = 0; i < STEPS * TOUCHED; i++)
        sum += b->tasks[kl__random_below(&b->random, b->count)].position;
    return (double)(kl__monotonic_ns() - start) / STEPS;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof values[0], by_value);
    return values[ROUNDS / 2];
}

static void run_row(size_t count, double *ret_row)
{
    static struct bench benches[SHAPES];
    double costs[SHAPES + 1][ROUNDS];
    for (int shape = 0; shape < SHAPES; shape++)
        open_bench(&benches[shape], (enum shape)shape, count);
    for (int round = 0; round < ROUNDS; round++) {
        for (int shape = 0; shape < SHAPES; shape++)
            costs[shape][round] = time_steps(&benches[shape]);
        costs[SHAPES][round] = time_memory(&benches[MANY_KEYS]);
    }
    for (int i = 0; i <= SHAPES; i++)
        ret_row[i] = median(costs[i]);
    for (int shape = 0; shape < SHAPES; shape++)
        close_bench(&benches[shape]);
}

int main(int argc, char **argv)
{
    size_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
    double first[SHAPES + 1] = {0}, row[SHAPES + 1] = {0};
    printf("Nanoseconds a step (take + settle + add) with N tasks queued\n\n%12s", "N");
    for (int i = 0; i < SHAPES; i++)
        printf("%12s", shape_names[i]);
    printf("%12s\n", "memory");
    for (size_t count = 1000; count <= most; count *= 10) {
        run_row(count, row);
        printf("%12zu", count);
        for (int i = 0; i <= SHAPES; i++)
            printf("%12.0f", row[i]);
        printf("\n");
        fflush(stdout);
        if (count == 1000)
            memcpy(first, row, sizeof first);
    }
    printf("%12s", "last/first");
    for (int i = 0; i <= SHAPES; i++)
        printf("%11.1fx", row[i] / first[i]);
    printf("\n");
    return 0;
}
