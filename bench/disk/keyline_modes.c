/* keyline_modes.c - what else is measured of the disk store: bytes written, many threads, one task, a deep backlog. */
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>

#include "keyline.h"
#include "store/disk/format.h"

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* A number behind its name in a file of /proc. */
static int64_t read_proc(const char *path, const char *name)
{
    char line[256];
    long long value = -1;
    FILE *file = fopen(path, "r");
    MUST(file);
    while (value < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atoll(line + strlen(name));
    fclose(file);
    MUST_SAYING(value >= 0, name);
    return value;
}

/* ---- bytes: what an append and a settle of a group put into the journal, for the raw loop to write as many ---- */

/* By the format. What is handed to write(2) is more: it is filled up to whole pages. */
static int64_t format_append_bytes(int64_t group)
{
    size_t entry = sizeof(kl__entry_record) + KEY_BYTES + PAYLOAD_BYTES;
    return (int64_t)sizeof(kl__frame) + group * (int64_t)kl__round8(entry);
}

static int64_t format_settle_bytes(int64_t group)
{
    int64_t shards = group < SHARDS ? group : SHARDS;
    return (int64_t)(sizeof(kl__frame) + (size_t)shards * sizeof(kl__settle_record)) +
           group * (int64_t)sizeof(kl__settled_item);
}

static void check_written(int64_t written, int64_t by_format)
{
    enum { TWO_PAGES = 8192 };
    MUST_SAYING(written >= by_format && written < by_format + TWO_PAGES,
                "the journal's format is not the one that this benchmark knows");
}

/* The least of several, because meanwhile a new segment may be filled with zeros. */
static void run_bytes(const struct settings *settings)
{
    enum { GROUPS = 31 };
    int64_t append_written = INT64_MAX, settle_written = INT64_MAX;
    struct queue queue;
    open_queue(&queue, path_in(settings, "keyline"));
    for (int i = 0; i < GROUPS; i++) {
        prepare_group(&queue, (size_t)settings->group);
        int64_t begin = read_proc("/proc/self/io", "wchar: ");
        append_group(&queue, (size_t)settings->group);
        int64_t appended = read_proc("/proc/self/io", "wchar: ");
        settle_group(&queue, (size_t)settings->group);
        int64_t settled = read_proc("/proc/self/io", "wchar: ");
        append_written = min(append_written, appended - begin);
        settle_written = min(settle_written, settled - appended);
    }
    int64_t by_append = format_append_bytes(settings->group), by_settle = format_settle_bytes(settings->group);
    int64_t written = append_written + settle_written;
    check_written(append_written, by_append);
    check_written(settle_written, by_settle);
    printf("append_bytes %lld settle_bytes %lld written_bytes %lld\n", (long long)by_append, (long long)by_settle,
           (long long)written);
    close_queue(&queue);
}

/* ---- threads: many at once, each appending one task and waiting until it is durable ---- */

struct producer {
    pthread_t thread;
    struct queue queue; /* the store and ids are shared, the turn is its own */
    int64_t end_ns, appended;
};

static void *produce(void *arg)
{
    struct producer *producer = arg;
    kl_entry entry;
    while (now_ns() < producer->end_ns) {
        fill_entries(&producer->queue, &entry, 1);
        MUST_KL(kl_store_append(producer->queue.store, &entry, 1, NULL));
        producer->appended++;
    }
    return NULL;
}

/* Appended and settled before, so that there are segments to write over, as there are when the raw loop starts. */
static void warm_up(struct queue *queue, long tasks)
{
    for (long done = 0; done < tasks; done += WARM_GROUP) {
        prepare_group(queue, WARM_GROUP);
        append_group(queue, WARM_GROUP);
        settle_group(queue, WARM_GROUP);
    }
}

static void run_threads(const struct settings *settings)
{
    struct queue queue;
    struct producer *producers = calloc((size_t)settings->threads, sizeof *producers);
    int64_t appended = 0;
    MUST(producers);
    open_queue(&queue, path_in(settings, "keyline"));
    warm_up(&queue, settings->warm);

    int64_t begin = now_ns();
    for (long i = 0; i < settings->threads; i++) {
        producers[i] = (struct producer){.queue = queue, .end_ns = begin + settings->ms * 1000000};
        producers[i].queue.turn = (uint32_t)i;
        MUST(pthread_create(&producers[i].thread, NULL, produce, &producers[i]) == 0);
    }
    for (long i = 0; i < settings->threads; i++) {
        pthread_join(producers[i].thread, NULL);
        appended += producers[i].appended;
    }
    printf("tasks/s %.0f\n", (double)appended * 1e9 / (double)(now_ns() - begin));
    close_queue(&queue);
    free(producers);
}

/* ---- async: one thread, one task a call, `window` of them under way ---- */

static void count_appended(void *ctx, kl_rc rc, const char *error)
{
    MUST_SAYING(rc == KL_OK, error);
    sem_post(ctx);
}

static void run_async(const struct settings *settings)
{
    struct queue queue;
    sem_t room;
    kl_entry entry;
    int64_t appended = 0;
    MUST(sem_init(&room, 0, (unsigned)settings->window) == 0);
    open_queue(&queue, path_in(settings, "keyline"));
    warm_up(&queue, settings->warm);

    int64_t begin = now_ns();
    for (int64_t end = begin + settings->ms * 1000000; now_ns() < end; appended++) {
        fill_entries(&queue, &entry, 1);
        while (sem_wait(&room))
            MUST(errno == EINTR);
        MUST_KL(kl_store_append_async(queue.store, &entry, 1, NULL, count_appended, &room));
    }
    for (long i = 0; i < settings->window; i++)
        while (sem_wait(&room))
            MUST(errno == EINTR);
    printf("tasks/s %.0f\n", (double)appended * 1e9 / (double)(now_ns() - begin));
    close_queue(&queue);
    sem_destroy(&room);
}

/* ---- one: one thread, one task at a time ---- */

static void run_one(const struct settings *settings)
{
    enum { SAMPLES_MAX = 1 << 20 };
    int64_t *ns = malloc(SAMPLES_MAX * sizeof *ns), end;
    size_t count = 0;
    struct queue queue;
    MUST(ns);
    open_queue(&queue, path_in(settings, "keyline"));
    warm_up(&queue, settings->warm);
    for (end = now_ns() + settings->ms * 1000000; count < SAMPLES_MAX && now_ns() < end;) {
        prepare_group(&queue, 1);
        int64_t begin = now_ns();
        append_group(&queue, 1);
        ns[count++] = now_ns() - begin;
    }
    print_percentiles(ns, count);
    printf("\n");
    close_queue(&queue);
    free(ns);
}

/* ---- backlog: groups beside 10,000 waiting tasks and beside many, in turns; the oldest are settled ---- */

enum { SMALL_BACKLOG = 10000 };

static int64_t resident_bytes(void) { return read_proc("/proc/self/status", "VmRSS:") * 1024; }

static void fill_backlog(struct queue *queue, long tasks)
{
    for (long left = tasks; left > 0; left -= GROUP_MAX) {
        size_t count = left < GROUP_MAX ? (size_t)left : GROUP_MAX;
        prepare_group(queue, count);
        append_group(queue, count);
    }
}

/* Nanoseconds for a task, appended and settled. */
static double cost(struct queue *queue, const struct settings *settings)
{
    int64_t spent = 0, tasks = 0;
    for (int64_t end = now_ns() + settings->ms * 1000000; now_ns() < end; tasks += settings->group) {
        prepare_group(queue, (size_t)settings->group);
        int64_t begin = now_ns();
        append_group(queue, (size_t)settings->group);
        settle_group(queue, (size_t)settings->group);
        spent += now_ns() - begin;
    }
    return (double)spent / (double)tasks;
}

static void open_in(struct queue *queue, const struct settings *settings, const char *name)
{
    const char *path = path_in(settings, name);
    MUST(mkdir(path, 0777) == 0 || errno == EEXIST);
    open_queue(queue, path);
}

static void run_backlog(const struct settings *settings)
{
    struct queue small, large;
    open_in(&small, settings, "small");
    open_in(&large, settings, "large");
    fill_backlog(&small, SMALL_BACKLOG);
    warm_up(&small, WARM_GROUP);
    warm_up(&large, WARM_GROUP); /* touches what the benchmark itself needs */

    int64_t resident = resident_bytes(), begin = now_ns();
    fill_backlog(&large, settings->tasks);
    printf("fill_s %.3f bytes_a_task %.1f\n", (double)(now_ns() - begin) / 1e9,
           (double)(resident_bytes() - resident) / (double)settings->tasks);
    warm_up(&small, settings->warm); /* the oldest go, and their segments come back */
    warm_up(&large, settings->warm);
    for (long i = 0; i < settings->rounds; i++) {
        double small_ns = cost(&small, settings);
        printf("small_ns %.1f large_ns %.1f\n", small_ns, cost(&large, settings));
    }
    close_queue(&small);
    close_queue(&large);
}

/* ---- open: how long it takes to open what backlog left, and what is then resident ---- */

static void run_open(const struct settings *settings)
{
    struct queue queue;
    kl_counts counts;
    int64_t resident = resident_bytes(), begin = now_ns();
    open_in(&queue, settings, "large");
    double seconds = (double)(now_ns() - begin) / 1e9;
    MUST_KL(kl_store_counts(queue.store, (kl_place){queue.partition, KL_ALL_SHARDS}, NULL, &counts));
    MUST_SAYING((long)counts.ready == settings->tasks, "another number of tasks is waiting than was left");
    printf("open_s %.3f bytes_a_task %.1f resident_bytes %lld\n", seconds,
           (double)(resident_bytes() - resident) / (double)settings->tasks, (long long)resident_bytes());
    close_queue(&queue);
}

const struct mode keyline_modes[] = {
    {"bytes", run_bytes},
    {"threads", run_threads},
    {"async", run_async},
    {"one", run_one},
    {"backlog", run_backlog},
    {"open", run_open},
    {0},
};
