/* bench.c - append a group durably, settle it durably, again and again.
 *
 * The time that counts is spent inside append and settle; making ids or filling in structs before them does not count,
 * on any side. A directory may be used by several runs: what one left in a steady state, the next finds so. */
#include "bench.h"

static struct settings args = {.group = 64, .ms = 500, .threads = 32, .window = 1024, .tasks = 10000, .rounds = 5};

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
    static char path[4096];
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
        side.prepare(count);
    int64_t begin = now_ns();
    side.append(count);
    int64_t appended = now_ns();
    side.settle(count);
    spent->append_ns += appended - begin;
    spent->settle_ns += now_ns() - appended;
    spent->tasks += (int64_t)count;
}

static void run_groups(const struct settings *settings)
{
    struct spent warm = {0}, spent = {0};
    side.open(settings);
    while (warm.tasks < settings->warm)
        run_group(WARM_GROUP, &warm);

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

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: bench-disk-%s groups", side.name);
    for (const struct mode *mode = side.modes; mode->name; mode++)
        fprintf(stderr, "|%s", mode->name);
    fprintf(stderr, " --dir=DIR [--group=N] [--ms=N] [--warm=N] [--append-bytes=N] [--settle-bytes=N]\n"
                    "       [--grow=1] [--threads=N] [--window=N] [--tasks=N] [--rounds=N]\n"
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
    const struct mode groups = {"groups", run_groups}, *chosen = NULL;
    for (int i = 2; i < argc; i++)
        parse_option(argv[i]);
    if (argc > 1 && strcmp(argv[1], groups.name) == 0)
        chosen = &groups;
    for (const struct mode *mode = side.modes; argc > 1 && mode->name; mode++)
        if (strcmp(argv[1], mode->name) == 0)
            chosen = mode;
    if (!chosen || !args.dir)
        usage();
    fill_payload();
    chosen->run(&args);
    return 0;
}
