/* bench.c - the workload: two producers, a thousand keys, tasks that do next to nothing.
 *
 * What each side has to do is the same: hash the key's text, wait for room, hand over a function and its context,
 * call the function. A task adds one to the counter of its key. The counters are plain numbers a cache line apart:
 * nothing is shared, and a sum that is wrong in the end gives away tasks of one key that overlapped.
 *
 * Throughput is counted from the first submit until the last task has run.
 *
 * Latency (--rate) is from just before submit until the task starts, so waiting for room counts. Every 16th task takes
 * the time: reading the clock in each would be a good part of the load. Producers must not spin on a machine of two
 * cores, or they would take the very time that they measure. So each sleeps on a timerfd that ticks every 100 us and
 * then submits all that is due: ticks missed are made up for (the load does not adapt to the side), and bursts stay far
 * below the capacity. The timer is the same on every side. */
#include "bench.h"

#include <pthread.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TICK_NS      100000
#define TICKS_S      (1000000000 / TICK_NS)
#define SAMPLE_EVERY 16
#define KNOCK_EVERY  10
#define KEY_STRIDE   617 /* a prime: visits all keys, neighbours far apart */

struct producer {
    _Alignas(64) pthread_t thread; /* a cache line of its own */
    size_t key;                    /* index of the next one */
    size_t turns;                  /* tasks since one knocked, which is every tenth */
    size_t knocks;                 /* index of the failing key where the next one does */
    int64_t submitted;
    int64_t submitted_max;
    int64_t *samples; /* a sampled task's submit time and, once it ran, its latency */
};

static struct settings args = {.capacity = 8192, .batch = 1, .ms = 600, .keys = KEYS};
static const struct side *carrier;
static void *queue;
static kl_bytes keys[KEYS];
static size_t key_count, key_stride;
static struct counter {
    _Alignas(64) int64_t value;
} counters[KEYS];
static int64_t end_ns;

static kl_outcome count(kl_run *run, void *ctx)
{
    (void)run;
    ++*(int64_t *)ctx;
    return KL_DONE;
}

/* Each step needs the one before, so that a step takes the same time everywhere. */
static kl_outcome work_and_count(kl_run *run, void *ctx)
{
    uint64_t x = (uintptr_t)ctx;
    for (long i = 0; i < args.work; i++)
        x *= 0x9e3779b97f4a7c15u;
    __asm__ volatile("" : : "r"(x)); /* as if somebody needed it */
    return count(run, ctx);
}

static kl_outcome note_latency(kl_run *run, void *ctx)
{
    int64_t *sample = ctx;
    (void)run;
    *sample = now_ns() - *sample;
    return KL_DONE;
}

static kl_exec_task next_task(struct producer *producer)
{
    kl_exec_task task = {
        .key = keys[producer->key], .fn = args.work ? work_and_count : count, .ctx = &counters[producer->key].value};
    if (producer->samples && producer->submitted % SAMPLE_EVERY == 0) {
        int64_t *sample = &producer->samples[producer->submitted / SAMPLE_EVERY];
        *sample = now_ns();
        task.fn = note_latency;
        task.ctx = sample;
    }
    producer->submitted++;
    producer->key += key_stride;
    if (producer->key >= key_count)
        producer->key -= key_count;
    return task;
}

/* As cheap as the next good task: to divide here would be put down to the side. */
static kl_exec_task next_knock(struct producer *producer)
{
    producer->turns = 0;
    if (++producer->knocks >= (size_t)args.failing)
        producer->knocks = 0;
    return carrier->knock(queue, producer->knocks);
}

static void submit_some(struct producer *producer, int64_t left)
{
    kl_exec_task tasks[BATCH_MAX];
    while (left > 0) {
        size_t n = left < args.batch ? (size_t)left : (size_t)args.batch;
        for (size_t i = 0; i < n; i++)
            tasks[i] = args.knocking && ++producer->turns == KNOCK_EVERY ? next_knock(producer) : next_task(producer);
        if (n == 1)
            carrier->submit(queue, tasks[0].key, tasks[0].fn, tasks[0].ctx);
        else
            carrier->submit_batch(queue, tasks, n);
        left -= (int64_t)n;
    }
}

static void *produce_flat_out(void *arg)
{
    while (now_ns() < end_ns)
        submit_some(arg, BATCH_MAX);
    return NULL;
}

static void *produce_paced(void *arg)
{
    struct producer *producer = arg;
    struct itimerspec every_tick = {{0, TICK_NS}, {0, TICK_NS}};
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    MUST(timer >= 0 && timerfd_settime(timer, 0, &every_tick, NULL) == 0);

    uint64_t ticks = 0, elapsed;
    while (now_ns() < end_ns && producer->submitted < producer->submitted_max) {
        MUST(read(timer, &elapsed, sizeof elapsed) == sizeof elapsed);
        ticks += elapsed;
        int64_t due = (int64_t)ticks * args.rate / PRODUCERS / TICKS_S;
        if (due > producer->submitted_max)
            due = producer->submitted_max;
        submit_some(producer, due - producer->submitted);
    }
    close(timer);
    return NULL;
}

static void make_keys(void)
{
    static char texts[KEYS][sizeof "key-0000"];
    for (int i = 0; i < KEYS; i++) {
        snprintf(texts[i], sizeof texts[i], "key-%04u", (unsigned)i % 10000);
        keys[i] = kl_str(texts[i]);
    }
    key_count = (size_t)args.keys;
    if (args.one_shard)
        key_count = keyline_same_shard(keys, key_count);
    key_stride = KEY_STRIDE % key_count;
    if (key_stride == 0)
        key_stride = 1;
}

static void start(struct producer *producer, int index)
{
    producer->key = (size_t)index * key_count / PRODUCERS;
    if (args.rate) {
        producer->submitted_max = args.rate / PRODUCERS * args.ms / 1000;
        size_t bytes = ((size_t)producer->submitted_max / SAMPLE_EVERY + 1) * sizeof *producer->samples;
        MUST(producer->samples = malloc(bytes));
        memset(producer->samples, 0xff, bytes); /* page faults now, not in the middle of the measurement */
    }
}

static int by_value(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void print_latency(const struct producer *producers, size_t sampled)
{
    int64_t *all = malloc((sampled + 1) * sizeof *all);
    size_t n = 0;
    MUST(all && sampled);
    for (int p = 0; p < PRODUCERS; p++)
        for (int64_t i = 0; i < producers[p].submitted; i += SAMPLE_EVERY)
            all[n++] = producers[p].samples[i / SAMPLE_EVERY];
    qsort(all, n, sizeof *all, by_value);
    printf(" p50_ns %lld p99_ns %lld", (long long)all[n / 2], (long long)all[n * 99 / 100]);
    free(all);
}

static void run_workload(void)
{
    struct producer producers[PRODUCERS] = {0};
    make_keys();
    for (int p = 0; p < PRODUCERS; p++)
        start(&producers[p], p);
    queue = carrier->open(&args);

    int64_t start_ns = now_ns();
    end_ns = start_ns + args.ms * 1000000;
    void *(*produce)(void *) = args.rate ? produce_paced : produce_flat_out;
    for (int p = 0; p < PRODUCERS; p++)
        MUST(pthread_create(&producers[p].thread, NULL, produce, &producers[p]) == 0);
    for (int p = 0; p < PRODUCERS; p++)
        pthread_join(producers[p].thread, NULL);
    carrier->finish(queue);
    double seconds = (double)(now_ns() - start_ns) / 1e9;

    int64_t submitted = 0, ran = 0;
    size_t sampled = 0;
    for (int p = 0; p < PRODUCERS; p++) {
        submitted += producers[p].submitted;
        if (args.rate)
            sampled += (size_t)((producers[p].submitted + SAMPLE_EVERY - 1) / SAMPLE_EVERY);
    }
    for (int k = 0; k < KEYS; k++)
        ran += counters[k].value;
    MUST(ran + (int64_t)sampled == submitted);

    printf("tasks/s %.0f", (double)submitted / seconds);
    if (args.rate)
        print_latency(producers, sampled);
    printf("\n");
    for (int p = 0; p < PRODUCERS; p++)
        free(producers[p].samples);
}

static void usage(void)
{
    fprintf(stderr,
            "usage: bench-exec keyline|mutex [--capacity=N] [--batch=N] [--threads=N] [--ms=N] [--rate=N]\n"
            "                                [--keys=N] [--failing=N] [--knocking=1] [--healthy=1] [--one-shard=1]\n"
            "                                [--work=N]\n"
            "       bench-exec memory [--keys=N]\n"
            "bench/exec/run compares everything.\n");
    exit(2);
}

static void parse_option(const char *text)
{
    static const struct option {
        const char *name;
        long *value;
        long max;
    } options[] = {
        {"--capacity=", &args.capacity, KL_EXEC_SHARD_CAPACITY_MAX},
        {"--batch=", &args.batch, BATCH_MAX},
        {"--threads=", &args.threads, KL_EXEC_THREADS_MAX},
        {"--ms=", &args.ms, 3600000},
        {"--rate=", &args.rate, 1000000000},
        {"--keys=", &args.keys, KEYS},
        {"--failing=", &args.failing, KEYS},
        {"--knocking=", &args.knocking, 1},
        {"--healthy=", &args.healthy, 1},
        {"--one-shard=", &args.one_shard, 1},
        {"--work=", &args.work, 1000000000},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t length = strlen(options[i].name);
        if (strncmp(text, options[i].name, length) == 0) {
            *options[i].value = atol(text + length);
            if (*options[i].value < 0 || *options[i].value > options[i].max)
                usage();
            return;
        }
    }
    usage();
}

int main(int argc, char **argv)
{
    static const struct side *const sides[] = {&keyline_side, &mutex_side};
    for (int i = 2; i < argc; i++)
        parse_option(argv[i]);
    if (argc > 1 && strcmp(argv[1], "memory") == 0) {
        measure_memory(args.keys ? (size_t)args.keys : SIZE_MAX);
        return 0;
    }
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (argc > 1 && strcmp(argv[1], sides[i]->name) == 0)
            carrier = sides[i];
    if (!carrier || (args.knocking && (!args.failing || !carrier->knock)) || !args.batch || !args.capacity ||
        !args.ms || !args.keys)
        usage();
    run_workload();
    return 0;
}
