/* bench.c - options, and the mode that is asked for. */
#include "bench.h"

#include <sys/resource.h>

static struct settings args = {.group = 64, .ms = 500, .tasks = 10000, .rate = 1000, .processes = 1};

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
    int64_t p50 = ns[count / 2], p99 = ns[count * 99 / 100];
    printf("p50_us %.1f p99_us %.1f", (double)p50 / 1e3, (double)p99 / 1e3);
}

static int64_t ns_of(struct timeval time) { return (int64_t)time.tv_sec * 1000000000 + (int64_t)time.tv_usec * 1000; }

int64_t cpu_ns(void)
{
    struct rusage usage;
    MUST(getrusage(RUSAGE_SELF, &usage) == 0);
    return ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
}

void sleep_us(int64_t us)
{
    struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        ;
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: %s ", program);
    for (const struct mode *mode = modes; mode->name; mode++)
        fprintf(stderr, "%s%s", mode == modes ? "" : "|", mode->name);
    fprintf(stderr, " --dir=DIR [--group=N] [--ms=N] [--warm=N] [--threads=N] [--tasks=N] [--failing=N]\n"
                    "       [--rate=N] [--processes=N] [--sleep-us=N] [--paused=1] [--fresh=1]\n"
                    "bench/queue/run compares everything.\n");
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
        {"--threads=", &args.threads, 0, 1024},
        {"--tasks=", &args.tasks, 1, 100000000},
        {"--failing=", &args.failing, 0, 10000000},
        {"--rate=", &args.rate, 1, 100000},
        {"--processes=", &args.processes, 1, 64},
        {"--sleep-us=", &args.sleep_us, 0, 1000000},
        {"--paused=", &args.paused, 0, 1},
        {"--fresh=", &args.fresh, 0, 1},
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
    const struct mode *chosen = modes;
    for (int i = 2; i < argc; i++)
        parse_option(argv[i]);
    while (chosen->name && (argc < 2 || strcmp(argv[1], chosen->name) != 0))
        chosen++;
    if (!chosen->name || !args.dir)
        usage();
    fill_payload();
    chosen->run(&args);
    return 0;
}
