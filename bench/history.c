/* history.c - how fast finished tasks are added to the history, and how long a page of each kind of search takes.
 *
 *     bench-history [ROWS [DIRECTORY]]       10,000,000 rows; a new directory under ./build-release, else under .
 *
 * First a history of up to a million tasks of 200 B without errors, added 10,000 at a time: rows a second on one
 * thread, each transaction synced. Then ROWS tasks as a busy queue leaves them (8 partitions, 16 shards, 40 kinds, half
 * of the tasks in jobs of 5,000, 2 % with an error of 12 words or so), and 20 pages of 50 of each search: the first
 * page, the one behind it, and so on. Searches are run once before they are timed. The file is removed at the end. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/disk/history.h"

enum {
    BATCH = 10000,
    PLAIN_ROWS_MAX = 1000000,
    PAYLOAD = 200,
    PARTITIONS = 8,
    SHARDS = 16,
    KINDS = 40,
    KEYS = 500000,
    JOB_TASKS = 5000,
    JOB_EVERY = 2 * JOB_TASKS,
    PAGE = 50,
    PAGES = 20,
    LIMIT_MS = 50,
};

#define START_MS INT64_C(1750000000000)

static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "bench-history: %s\n", kl_error_text());
    exit(1);
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31, x *= 0x9e3779b97f4a7c15, x ^= x >> 29, x *= 0xbf58476d1ce4e5b9;
    return x ^ x >> 32;
}

/* ---- Tasks ---- */

struct batch {
    kl_entry entries[BATCH];
    kl__history_row rows[BATCH];
    char keys[BATCH][16], kinds[BATCH][16], errors[BATCH][160];
    uint8_t payload[PAYLOAD];
};

static kl_task_id id_of(uint32_t shard, int64_t ms, uint64_t i)
{
    kl_layout layout;
    kl_task_id id;
    must(kl_layout_init(PARTITIONS, 1, &layout));
    kl_id_parts parts = {.shard = shard,
                         .ms = ms,
                         .sequence = (uint32_t)i & 0xffffff,
                         .lane = (uint32_t)mix(i) & KL_LANE_MAX,
                         .random = (uint32_t)mix(i + 1) & KL_ID_RANDOM_MAX};
    must(kl_id_pack(&layout, &parts, &id));
    return id;
}

static kl_task_id job_of(uint64_t job) { return id_of(0, START_MS + (int64_t)job, job); }

/* Ten tasks a millisecond. */
static int64_t finished_of(uint64_t i) { return START_MS + (int64_t)(i / 10); }

static kl_bytes print_key(char *to, uint64_t number)
{
    return (kl_bytes){to, (size_t)snprintf(to, 16, "customer-%u", (unsigned)number)};
}

static kl_bytes print_kind(char *to, uint64_t number)
{
    return (kl_bytes){to, (size_t)snprintf(to, 16, "kind-%u", (unsigned)number)};
}

/* A twentieth of the tasks have one key, and of the others each has about as many as any. */
static uint64_t key_of(uint64_t i) { return mix(i) % 20 == 0 ? 0 : 1 + mix(i + 7) % KEYS; }

/* Kind 39 is only in partition 8. */
static uint64_t kind_of(uint64_t i, uint32_t partition)
{
    return mix(i + 3) % (partition == PARTITIONS ? KINDS : KINDS - 1);
}

static bool is_dead(uint64_t i) { return mix(i + 5) % 10000 < 5; }

static void fill_error(struct batch *batch, size_t at, uint64_t i, uint64_t rows)
{
    /* "needle" stands in three errors, "timeout" in every one, "odd" and "even" in half each and never together. */
    bool needle = i == rows / 7 || i == rows / 3 || i == rows / 2;
    if (mix(i + 5) % 50 != 0 && !is_dead(i) && !needle)
        return;
    int len = snprintf(batch->errors[at], sizeof batch->errors[at],
                       "timeout: connect to host-%u port %u failed after 30 s, %s, request r%llx%s",
                       (unsigned)(mix(i) % 1000), (unsigned)(mix(i) % 16), i % 2 ? "odd" : "even",
                       (unsigned long long)mix(i + 9), needle ? " needle" : "");
    batch->rows[at].error = (kl_bytes){batch->errors[at], (size_t)len};
}

static void fill_row(struct batch *batch, size_t at, uint64_t i, uint64_t rows, bool errors)
{
    kl_entry *entry = &batch->entries[at];
    uint32_t partition = 1 + (uint32_t)(mix(i + 2) % PARTITIONS), shard = (uint32_t)mix(i + 4) % SHARDS;
    int64_t finished_ms = finished_of(i);
    *entry = (kl_entry){.place = {partition, shard},
                        .id = id_of(shard, finished_ms - 5, i),
                        .key = print_key(batch->keys[at], key_of(i)),
                        .kind = print_kind(batch->kinds[at], kind_of(i, partition)),
                        .payload = {batch->payload, PAYLOAD}};
    if (i % JOB_EVERY < JOB_TASKS)
        entry->job = job_of(i / JOB_EVERY);
    batch->rows[at] = (kl__history_row){.entry = entry,
                                        .outcome = errors && is_dead(i) ? KL_DEAD : KL_DONE,
                                        .attempts = 1,
                                        .finished_ms = finished_ms,
                                        .expires_ms = finished_ms + INT64_C(30) * 86400 * 1000};
    if (errors)
        fill_error(batch, at, i, rows);
}

/* ---- Filling ---- */

static int64_t bytes_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (int64_t)status.st_size : 0;
}

static void remove_db(const char *path)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char name[512];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", path, endings[i]);
        unlink(name);
    }
}

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fill(kl__history *history, uint64_t rows, bool errors)
{
    struct batch *batch = calloc(1, sizeof *batch);
    int64_t took_ns = 0, longest_ns = 0, used_ns = 0;
    if (!batch)
        exit(1);
    for (uint64_t i = 0; i < rows; i += BATCH) {
        size_t count = rows - i < BATCH ? (size_t)(rows - i) : BATCH;
        for (size_t at = 0; at < count; at++)
            fill_row(batch, at, i + at, rows, errors);
        int64_t start = kl__monotonic_ns(), cpu = cpu_ns();
        must(kl__history_add(history, batch->rows, count, i + count));
        int64_t ns = kl__monotonic_ns() - start;
        used_ns += cpu_ns() - cpu;
        took_ns += ns;
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    free(batch);
    printf("  %.0f rows/s, %.0f per second of processor; the longest call of %d rows took %.0f ms\n",
           (double)rows * 1e9 / (double)took_ns, (double)rows * 1e9 / (double)used_ns, BATCH, (double)longest_ns / 1e6);
}

static kl__history *open_new(const char *path, int64_t rows_max)
{
    kl__history *history;
    remove_db(path);
    must(kl__history_open(path, NULL, rows_max, INT64_MAX, &history));
    return history;
}

/* ---- Searching ---- */

struct kind {
    const char *name;
    kl_find find;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Up to PAGES pages; returns how many there were. */
static int turn_pages(kl__history *history, kl_find find, double *ret_ms, size_t *ret_found)
{
    static kl_task tasks[PAGE];
    kl_arena arena = {0};
    kl_task last;
    int page = 0;
    *ret_found = 0;
    for (size_t count = PAGE; page < PAGES && count == PAGE; page++) {
        kl_arena_reset(&arena);
        int64_t start = kl__monotonic_ns();
        must(kl__history_find(history, &find, &arena, tasks, &count));
        ret_ms[page] = (double)(kl__monotonic_ns() - start) / 1e6;
        *ret_found += count;
        if (count) {
            last = tasks[count - 1];
            find.after = &last;
        }
    }
    kl_arena_free(&arena);
    return page;
}

static void search(kl__history *history, const struct kind *kind)
{
    double ms[PAGES];
    size_t found;
    kl_find find = kind->find;
    find.max = PAGE;
    turn_pages(history, find, ms, &found);
    int pages = turn_pages(history, find, ms, &found);
    qsort(ms, (size_t)pages, sizeof ms[0], compare);
    printf("  %-44s %6zu %6d %9.2f %9.2f%s\n", kind->name, found, pages, ms[pages / 2], ms[pages - 1],
           ms[pages - 1] > LIMIT_MS ? "   over 50 ms" : "");
}

static void search_all(kl__history *history, uint64_t rows)
{
    char common_key[16], rare_key[16], absent_key[] = "nobody";
    kl_bytes common = print_key(common_key, 0), rare = print_key(rare_key, key_of(rows / 3 | 1));
    kl_bytes absent = kl_str(absent_key), kind = kl_str("kind-7"), odd_kind = kl_str("kind-39");
    kl_task_id job = job_of(rows / 2 / JOB_EVERY);
    int64_t middle = finished_of(rows / 2);
    const struct kind kinds[] = {
        {"latest", {0}},
        {"partition", {.partition = 3}},
        {"dead", {.state = KL_TASK_DEAD}},
        {"cancelled (none)", {.state = KL_TASK_CANCELLED}},
        {"common key", {.key = common}},
        {"rare key", {.key = rare}},
        {"absent key", {.key = absent}},
        {"kind", {.kind = kind}},
        {"job", {.job = job}},
        {"10 ms of time", {.from_ms = middle, .until_ms = middle + 10}},
        {"rare word", {.words = kl_str("needle")}},
        {"common word", {.words = kl_str("timeout")}},
        {"words of medium frequency", {.words = kl_str("host 999 odd")}},
        {"two words that never meet", {.words = kl_str("odd even")}},
        {"common word, rare key", {.words = kl_str("timeout"), .key = rare}},
        {"common word, common key", {.words = kl_str("timeout"), .key = common}},
        {"rare word, common key", {.words = kl_str("needle"), .key = common}},
        {"rare word, done", {.words = kl_str("needle"), .state = KL_TASK_DONE}},
        {"common word, 10 ms of time", {.words = kl_str("timeout"), .from_ms = middle, .until_ms = middle + 10}},
        {"partition, dead, kind", {.partition = 3, .state = KL_TASK_DEAD, .kind = kind}},
        {"partition, kind that is not in it", {.partition = 3, .kind = odd_kind}},
        {"common key, kind, partition not together", {.partition = 3, .kind = odd_kind, .key = common}},
        {"job, dead", {.job = job, .state = KL_TASK_DEAD}},
        {"job, rare key", {.job = job, .key = rare}},
        {"all: partition, done, common key, kind, word",
         {.partition = 3, .state = KL_TASK_DONE, .key = common, .kind = kind, .words = kl_str("timeout odd")}},
        {"the same, first half of the time",
         {.partition = 3,
          .state = KL_TASK_DONE,
          .key = common,
          .kind = kind,
          .words = kl_str("timeout odd"),
          .until_ms = middle}},
    };
    printf("pages of %d                                     found  pages   p50 (ms)  max (ms)\n", PAGE);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        search(history, &kinds[i]);
}

static void trim(kl__history *history, uint64_t rows)
{
    size_t trimmed;
    int64_t start = kl__monotonic_ns();
    must(kl__history_trim(history, finished_of(rows / 100) + INT64_C(30) * 86400 * 1000, BATCH, false, &trimmed));
    printf("trim: %.0f rows/s\n", (double)trimmed * 1e9 / (double)(kl__monotonic_ns() - start));
}

int main(int argc, char **argv)
{
    uint64_t rows = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
    DIR *release = opendir("build-release");
    const char *directory = argc > 2 ? argv[2] : release ? "build-release" : ".";
    char path[400];
    if (release)
        closedir(release);
    if (rows < 1000) {
        fprintf(stderr, "bench-history: write how many rows to add, 1000 or more\n");
        return 2;
    }
    snprintf(path, sizeof path, "%s/bench-history.db", directory);

    uint64_t plain = rows < PLAIN_ROWS_MAX ? rows : PLAIN_ROWS_MAX;
    printf("%llu tasks of %d B without errors\n", (unsigned long long)plain, PAYLOAD);
    kl__history *history = open_new(path, INT64_MAX);
    fill(history, plain, false);
    kl__history_close(history);

    printf("%llu tasks\n", (unsigned long long)rows);
    history = open_new(path, INT64_MAX);
    fill(history, rows, true);
    printf("  %.0f bytes of file for a row\n", (double)bytes_of(path) / (double)rows);
    search_all(history, rows);
    trim(history, rows);
    kl__history_close(history);
    remove_db(path);
    return 0;
}
