/* top_text.c - one look at a store, for people and for machines. */
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "cli/output.h"
#include "cli/top.h"
#include "queue/json.h"
#include "work/why.h"

enum { NAME_WIDTH = 24, TEXT_BYTES = 48 };

/* ---- For people ---- */

/* A text in a column: made harmless, cut off, filled up. */
static void put_text(FILE *out, kl_bytes text, size_t width)
{
    kl_arena arena = {0};
    const char *shown = kl__out_harmless(text, &arena), *end = shown;
    size_t columns = 0;
    for (; end && *end && columns < width; columns++)
        do
            end++;
        while (((unsigned char)*end & 0xc0) == 0x80);
    if (shown)
        fprintf(out, "%.*s", (int)(end - shown), shown);
    fprintf(out, "%*s", (int)(width - columns) + 1, "");
    kl_arena_free(&arena);
}

/* So long, in its largest unit: 3m. */
static const char *age(int64_t ms, char text[TEXT_BYTES])
{
    static const struct {
        int64_t ms;
        char unit;
    } units[] = {{86400000, 'd'}, {3600000, 'h'}, {60000, 'm'}, {1000, 's'}};
    ms = ms < 0 ? 0 : ms;
    snprintf(text, TEXT_BYTES, "%" PRId64 "ms", ms);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (ms < units[i].ms)
            continue;
        snprintf(text, TEXT_BYTES, "%" PRId64 "%c", ms / units[i].ms, units[i].unit);
        break;
    }
    return text;
}

static const char *rate(bool known, double rate, const char *format, char text[TEXT_BYTES])
{
    snprintf(text, TEXT_BYTES, known ? format : "-", rate);
    return text;
}

static void put_queue(const kl__top *top, const kl__top_queue *queue, FILE *out)
{
    const kl_counts *counts = &queue->info.counts;
    char change[TEXT_BYTES], finished[TEXT_BYTES], oldest[TEXT_BYTES];
    put_text(out, kl_str(queue->name), NAME_WIDTH);
    fprintf(out, "%-7s%9" PRIu64 "%9" PRIu64 "%9" PRIu64 "%9" PRIu64 "%11s%11s%8s%s\n",
            queue->info.paused ? "paused" : "active", counts->ready, counts->due, counts->retry, counts->dead,
            rate(queue->has_rates, queue->waiting_rate, "%+.0f", change),
            rate(queue->has_rates, queue->finished_rate, "%.0f", finished),
            counts->oldest_id_ms ? age(top->now_ms - counts->oldest_id_ms, oldest) : "-",
            counts->at_least ? "  or more" : "");
}

static void put_worker(const kl__top *top, const kl__top_worker *worker, FILE *out)
{
    char seen[TEXT_BYTES];
    put_text(out, kl_str(worker->status.name), NAME_WIDTH);
    put_text(out, kl_str(worker->queue), NAME_WIDTH);
    fprintf(out, "%7" PRIu64 "%9" PRIu64 " of %-5" PRIu64 "%8s\n", worker->status.shards, worker->status.running,
            worker->status.concurrency, age(top->now_ms - worker->status.seen_ms, seen));
}

static void put_key(const kl__top_key *key, FILE *out)
{
    char until[KL_TIME_TEXT_BYTES] = "";
    if (key->status.until_ms)
        kl__time_print(key->status.until_ms - key->status.until_ms % 1000, until);
    put_text(out, key->status.key, NAME_WIDTH);
    put_text(out, kl_str(key->queue), NAME_WIDTH);
    fprintf(out, "%7" PRIu64 "%s %-9s%9" PRIu32 "  %s\n", key->status.waiting, key->status.at_least ? "+" : " ",
            kl__why_listed(key->status.why), key->status.attempts, until);
}

static void put_title(FILE *out, const char *first, const char *second, const char *rest)
{
    fprintf(out, "\1%-*s ", NAME_WIDTH, first);
    if (second)
        fprintf(out, "%-*s ", NAME_WIDTH, second);
    fprintf(out, "%s\n", rest);
}

void kl__top_print(const kl__top *top, const char *store, FILE *out)
{
    char time[KL_TIME_TEXT_BYTES];
    kl__time_print(top->now_ms - top->now_ms % 1000, time);
    fprintf(out, "\1%s  %s\n\n", store, time);
    put_title(out, "QUEUE", NULL, "STATE      READY      DUE    RETRY     DEAD WAITING/S FINISHED/S  OLDEST");
    for (size_t i = 0; i < top->queue_count; i++)
        put_queue(top, &top->queues[i], out);
    fprintf(out, "%s\n", top->queue_count == 0 ? "there are no queues\n" : top->more_queues ? "and more\n" : "");
    put_title(out, "WORKER", "QUEUE", " SHARDS  RUNNING            SEEN");
    for (size_t i = 0; i < top->worker_count; i++)
        put_worker(top, &top->workers[i], out);
    fprintf(out, "%s\n", top->worker_count == 0 ? "nobody works here\n" : "");
    put_title(out, "KEY", "QUEUE", "WAITING  STATE     ATTEMPTS  UNTIL");
    for (size_t i = 0; i < top->key_count; i++)
        put_key(&top->keys[i], out);
}

/* ---- For machines ---- */

static json_t *queue_json(const kl__top *top, const kl__top_queue *queue)
{
    const kl_counts *counts = &queue->info.counts;
    json_t *object = kl__json_object();
    int64_t oldest_ms = counts->oldest_id_ms ? top->now_ms - counts->oldest_id_ms : 0;
    bool made =
        kl__json_set_text(object, "queue", queue->name) &&
        kl__json_set_text(object, "state", queue->info.paused ? "paused" : "active") &&
        kl__json_set_int(object, "ready", (int64_t)counts->ready) &&
        kl__json_set_int(object, "due", (int64_t)counts->due) &&
        kl__json_set_int(object, "retry", (int64_t)counts->retry) &&
        kl__json_set_int(object, "done", (int64_t)counts->done) &&
        kl__json_set_int(object, "dead", (int64_t)counts->dead) &&
        kl__json_set_int(object, "cancelled", (int64_t)counts->cancelled) &&
        kl__json_set(object, "at_least", json_boolean(counts->at_least)) &&
        kl__json_set(object, "finished_behind", json_boolean(counts->finished_behind)) &&
        kl__json_set_int(object, "oldest_ms", oldest_ms) &&
        kl__json_set(object, "waiting_per_s", queue->has_rates ? json_real(queue->waiting_rate) : json_null()) &&
        kl__json_set(object, "finished_per_s", queue->has_rates ? json_real(queue->finished_rate) : json_null());
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *worker_json(const kl__top_worker *worker)
{
    char seen[KL_TIME_TEXT_BYTES];
    json_t *object = kl__json_object();
    kl__time_print(worker->status.seen_ms, seen);
    bool made = kl__json_set_bytes(object, "worker", kl_str(worker->status.name)) &&
                kl__json_set_text(object, "queue", worker->queue) &&
                kl__json_set_int(object, "shards", (int64_t)worker->status.shards) &&
                kl__json_set_int(object, "running", (int64_t)worker->status.running) &&
                kl__json_set_int(object, "concurrency", (int64_t)worker->status.concurrency) &&
                kl__json_set_text(object, "seen", seen);
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *key_json(const kl__top_key *key)
{
    json_t *object = kl__json_object();
    bool made = kl__json_set_bytes(object, "key", key->status.key) && kl__json_set_text(object, "queue", key->queue) &&
                kl__json_set_int(object, "waiting", (int64_t)key->status.waiting) &&
                kl__json_set(object, "at_least", json_boolean(key->status.at_least)) &&
                kl__json_set_text(object, "state", kl__why_listed(key->status.why)) &&
                kl__json_set_int(object, "attempts", key->status.attempts);
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

static bool fill_json(const kl__top *top, const char *store, json_t *whole)
{
    char time[KL_TIME_TEXT_BYTES];
    json_t *queues = kl__json_array(), *workers = kl__json_array(), *keys = kl__json_array();
    bool made = true;
    for (size_t i = 0; i < top->queue_count; i++)
        made = kl__json_append(queues, queue_json(top, &top->queues[i])) && made;
    for (size_t i = 0; i < top->worker_count; i++)
        made = kl__json_append(workers, worker_json(&top->workers[i])) && made;
    for (size_t i = 0; i < top->key_count; i++)
        made = kl__json_append(keys, key_json(&top->keys[i])) && made;
    kl__time_print(top->now_ms, time);
    made = kl__json_set_text(whole, "time", time) && kl__json_set_bytes(whole, "store", kl_str(store)) && made;
    made = kl__json_set(whole, "queues", queues) && made;
    made = kl__json_set(whole, "workers", workers) && made;
    return kl__json_set(whole, "keys", keys) && made;
}

int kl__top_print_json(const kl__top *top, const char *store)
{
    json_t *whole = kl__json_object();
    bool made = fill_json(top, store, whole);
    if (made)
        made = json_dumpf(whole, stdout, JSON_COMPACT) == 0 || ferror(stdout);
    if (made)
        putchar('\n');
    json_decref(whole);
    return made ? KL_EXIT_OK : kl__fail_call(kl__fail_memory());
}
