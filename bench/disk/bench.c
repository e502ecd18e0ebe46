/* bench.c - append a group durably, settle it durably, again and again.
 *
 * `groups`: one thread does both in turn. The time that counts is spent inside append and settle; making ids or filling
 * in structs before them does not count, on any side.
 *
 * `beside`: as in a queue that is in use, threads append groups while others settle those that were appended before.
 * They work in pairs, each with tasks of its own: one thread of a pair appends, the other settles what is durable, and
 * at most BESIDE_MAX groups are appended and not settled. All the time counts, from the first append to the last
 * settle.
 *
 * A directory may be used by several runs: what one left in a steady state, the next finds so. */
#include "bench.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { BESIDE_MAX = 4 };

static struct settings args = {
    .group = 64, .ms = 500, .pairs = 1, .threads = 32, .window = 1024, .tasks = 10000, .rounds = 5};

unsigned char payload[PAYLOAD_BYTES];

static void fill_payload(void)
{
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof payload; i++) {
        x = x * 1664525 + 1013904223;
        payload[i] = (unsigned char)(x >> 24);
    }
}

const char *path_in(const struct settings *settings, const char *name)
{
    static _Thread_local char path[4096]; /* threads open connections of their own at the same moment */
    int length = snprintf(path, sizeof path, "%s/%s", settings->dir, name);
    MUST_SAYING(length > 0 && (size_t)length < sizeof path, "the directory's name is too long");
    return path;
}

static int by_value(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

void print_percentiles(int64_t *ns, size_t count)
{
    MUST_SAYING(count, "nothing was measured");
    qsort(ns, count, sizeof *ns, by_value);
    printf("p50_ns %lld p99_ns %lld", (long long)ns[count / 2], (long long)ns[count * 99 / 100]);
}

struct spent {
    int64_t append_ns, settle_ns, tasks;
};

static void run_group(size_t count, struct spent *spent)
{
    if (side.prepare)
        side.prepare(0, count);
    int64_t begin = now_ns();
    side.append(0, count);
    int64_t appended = now_ns();
    side.settle(0, count);
    spent->append_ns += appended - begin;
    spent->settle_ns += now_ns() - appended;
    spent->tasks += (int64_t)count;
}

static void open_warm(const struct settings *settings)
{
    struct spent warm = {0};
    side.open(settings);
    while (warm.tasks < settings->warm)
        run_group(WARM_GROUP, &warm);
}

static void run_groups(const struct settings *settings)
{
    struct spent spent = {0};
    struct settings one = *settings;
    one.pairs = 0;
    open_warm(&one);
    int64_t end = now_ns() + settings->ms * 1000000;
    while (now_ns() < end)
        run_group((size_t)settings->group, &spent);
    printf("tasks/s %.0f append_s %.3f settle_s %.3f",
           (double)spent.tasks * 1e9 / (double)(spent.append_ns + spent.settle_ns), (double)spent.append_ns / 1e9,
           (double)spent.settle_ns / 1e9);
    if (side.report)
        side.report();
    printf("\n");
    side.close();
}

struct pair {
    pthread_t appender, settler;
    int index;
    size_t group;
    int64_t end_ns;
    int64_t settled;       /* groups */
    sem_t room, appended;  /* groups that may be appended, and that may be settled */
    _Atomic(int64_t) last; /* how many groups there were, once that is known */
};

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore))
        MUST(errno == EINTR);
}

static void *append_groups(void *arg)
{
    struct pair *pair = arg;
    int64_t groups = 0;
    for (; now_ns() < pair->end_ns; groups++) {
        await(&pair->room);
        if (side.prepare)
            side.prepare(pair->index, pair->group);
        side.append(pair->index, pair->group);
        sem_post(&pair->appended);
    }
    atomic_store(&pair->last, groups);
    sem_post(&pair->appended);
    return NULL;
}

static void *settle_groups(void *arg)
{
    struct pair *pair = arg;
    for (;; pair->settled++) {
        await(&pair->appended);
        if (pair->settled == atomic_load(&pair->last))
            return NULL;
        side.settle(pair->index, pair->group);
        sem_post(&pair->room);
    }
}

static void start_pair(struct pair *pair, int index, const struct settings *settings)
{
    *pair = (struct pair){.index = index,
                          .group = (size_t)settings->group,
                          .end_ns = now_ns() + settings->ms * 1000000,
                          .last = INT64_MAX};
    MUST(sem_init(&pair->room, 0, BESIDE_MAX) == 0 && sem_init(&pair->appended, 0, 0) == 0);
    MUST(pthread_create(&pair->appender, NULL, append_groups, pair) == 0);
    MUST(pthread_create(&pair->settler, NULL, settle_groups, pair) == 0);
}

static int64_t join_pair(struct pair *pair)
{
    pthread_join(pair->appender, NULL);
    pthread_join(pair->settler, NULL);
    sem_destroy(&pair->room);
    sem_destroy(&pair->appended);
    return pair->settled * (int64_t)pair->group;
}

static void run_beside(const struct settings *settings)
{
    struct pair pairs[PAIRS_MAX];
    int64_t tasks = 0;
    open_warm(settings);
    int64_t begin = now_ns();
    for (int i = 0; i < settings->pairs; i++)
        start_pair(&pairs[i], i, settings);
    for (int i = 0; i < settings->pairs; i++)
        tasks += join_pair(&pairs[i]);
    printf("tasks/s %.0f\n", (double)tasks * 1e9 / (double)(now_ns() - begin));
    side.close();
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: bench-disk-%s groups%s", side.name, side.takes_turns ? "" : "|beside");
    for (const struct mode *mode = side.modes; mode->name; mode++)
        fprintf(stderr, "|%s", mode->name);
    fprintf(stderr, " --dir=DIR [--group=N] [--ms=N] [--warm=N] [--append-bytes=N] [--settle-bytes=N]\n"
                    "       [--grow=1] [--pairs=N] [--threads=N] [--window=N] [--tasks=N] [--rounds=N]\n"
                    "bench/disk/run compares everything.\n");
    exit(2);
}

static void parse_option(const char *text)
{
    static const struct option {
        const char *name;
        long *value;
        long min, max;
    } options[] = {
        {"--group=", &args.group, 1, GROUP_MAX},
        {"--ms=", &args.ms, 1, 3600000},
        {"--warm=", &args.warm, 0, 100000000},
        {"--append-bytes=", &args.append_bytes, 1, 16 << 20},
        {"--settle-bytes=", &args.settle_bytes, 1, 16 << 20},
        {"--grow=", &args.grow, 0, 1},
        {"--pairs=", &args.pairs, 1, PAIRS_MAX},
        {"--threads=", &args.threads, 1, 1024},
        {"--window=", &args.window, 1, 1 << 20},
        {"--tasks=", &args.tasks, 1, 1000000000},
        {"--rounds=", &args.rounds, 1, 1000},
    };
    if (strncmp(text, "--dir=", 6) == 0) {
        args.dir = text + 6;
        return;
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t length = strlen(options[i].name);
        if (strncmp(text, options[i].name, length) == 0) {
            *options[i].value = atol(text + length);
            if (*options[i].value < options[i].min || *options[i].value > options[i].max)
                usage();
            return;
        }
    }
    usage();
}

int main(int argc, char **argv)
{
    const struct mode groups = {"groups", run_groups}, beside = {"beside", run_beside}, *chosen = NULL;
    for (int i = 2; i < argc; i++)
        parse_option(argv[i]);
    if (argc > 1 && strcmp(argv[1], groups.name) == 0)
        chosen = &groups;
    if (argc > 1 && strcmp(argv[1], beside.name) == 0 && !side.takes_turns)
        chosen = &beside;
    for (const struct mode *mode = side.modes; argc > 1 && mode->name; mode++)
        if (strcmp(argv[1], mode->name) == 0)
            chosen = mode;
    if (!chosen || !args.dir)
        usage();
    fill_payload();
    chosen->run(&args);
    return 0;
}
