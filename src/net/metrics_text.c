/* metrics_text.c - /metrics: what was counted, and what waits, as OpenMetrics text. See metrics.h.
 *
 * Everything is sampled first, queue by queue; then the text is written family by family, as the format wants it.
 * docs/server.md lists the names, and tests/check-metrics compares it with this. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "net/api.h"
#include "net/metrics_inside.h"
#include "net/tokens.h"

enum { NAMES_MAX = 500, TEXT_ROOM = 1 << 16, LOOKED_NS = 1000000000 };

/* ---- Text that grows ---- */

struct out {
    char *text;
    size_t len, room;
    bool failed; /* out of memory */
};

static bool grow(struct out *out, size_t more)
{
    size_t room = out->room ? out->room : TEXT_ROOM;
    while (room < out->len + more + 1)
        room *= 2;
    if (room == out->room)
        return true;
    char *text = out->failed ? NULL : kl__alloc(room);
    if (!text) {
        out->failed = true;
        return false;
    }
    if (out->len)
        memcpy(text, out->text, out->len);
    kl__free(out->text);
    out->text = text;
    out->room = room;
    return true;
}

static void put_bytes(struct out *out, const char *bytes, size_t len)
{
    if (!grow(out, len))
        return;
    memcpy(out->text + out->len, bytes, len);
    out->len += len;
}

KL_PRINTF(2, 3) static void put(struct out *out, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    put_bytes(out, line, len < (int)sizeof line ? (size_t)len : sizeof line - 1);
}

static void put_family(struct out *out, const char *name, const char *type, const char *help)
{
    put(out, "# TYPE %s %s\n", name, type);
    if (strcmp(type, "histogram") == 0)
        put(out, "# UNIT %s seconds\n", name);
    put(out, "# HELP %s %s\n", name, help);
}

/* ---- Samples ---- */

/* What a queue's series are made of. */
struct sample {
    const char *name;
    kl__queue_metrics *metrics;
    kl__claims_counts claims;
    kl_layout layout; /* with as many partitions as its widest layout has */
    kl_counts *parts; /* of each */
    uint64_t draining;
    bool paused;
    bool looked; /* parts are known */
};

struct scrape {
    kl__metrics *metrics;
    kl_store *store;
    const char *scope;
    kl_arena *arena;
    struct sample *samples;
    size_t count, room;
    int64_t now_ms; /* the store's clock */
    uint64_t errors;
};

static void add_counts(kl_counts *to, const kl_counts *more)
{
    bool older = more->oldest_id_ms && (!to->oldest_id_ms || more->oldest_id_ms < to->oldest_id_ms);
    to->ready += more->ready;
    to->due += more->due;
    to->retry += more->retry;
    to->done += more->done;
    to->dead += more->dead;
    to->cancelled += more->cancelled;
    to->oldest_id_ms = older ? more->oldest_id_ms : to->oldest_id_ms;
    to->at_least |= more->at_least;
    to->finished_behind |= more->finished_behind;
}

static kl_rc count_layout(const kl__queue_layout *layout, kl_counts *parts)
{
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        kl_counts counts = {0};
        kl_place place = {kl__layout_number(layout, i), KL_ALL_SHARDS};
        kl_rc rc = kl_store_counts(layout->stores[i], place, NULL, &counts);
        if (rc != KL_OK)
            return rc;
        add_counts(&parts[i], &counts);
    }
    return KL_OK;
}

static kl_rc look_at(const kl__descriptor *descriptor, kl_arena *arena, struct sample *sample)
{
    sample->layout = kl__newest_layout(descriptor)->layout;
    sample->paused = descriptor->paused;
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        sample->draining += !layout->drained && layout != kl__newest_layout(descriptor);
        if (layout->layout.partitions > sample->layout.partitions)
            sample->layout.partitions = layout->layout.partitions;
    }
    sample->parts = kl_arena_alloc(arena, sample->layout.partitions * sizeof *sample->parts);
    if (!sample->parts)
        return kl__fail_memory();
    memset(sample->parts, 0, sample->layout.partitions * sizeof *sample->parts);
    for (size_t i = 0; i < descriptor->layout_count; i++) {
        kl_rc rc = count_layout(&descriptor->layouts[i], sample->parts);
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

/* What was looked at a moment ago is not asked again: several may scrape, and a queue may have many partitions. */
static bool recall(struct scrape *scrape, struct sample *sample)
{
    kl__queue_metrics *queue = sample->metrics;
    bool there = false;
    pthread_mutex_lock(&scrape->metrics->mutex);
    const kl__looked *looked = queue->looked;
    if (looked && kl__monotonic_ns() - looked->at_ns < LOOKED_NS) {
        size_t bytes = looked->layout.partitions * sizeof *looked->parts;
        sample->parts = kl_arena_alloc(scrape->arena, bytes);
        there = sample->parts != NULL;
        if (there)
            memcpy(sample->parts, looked->parts, bytes);
        sample->layout = looked->layout;
        sample->draining = looked->draining;
        sample->paused = looked->paused;
    }
    pthread_mutex_unlock(&scrape->metrics->mutex);
    return there;
}

static void remember(struct scrape *scrape, const struct sample *sample)
{
    size_t bytes = sample->layout.partitions * sizeof *sample->parts;
    kl__looked *looked = kl__alloc(sizeof *looked + bytes);
    if (!looked)
        return; /* it is asked again */
    *looked = (kl__looked){kl__monotonic_ns(), sample->layout, sample->draining, sample->paused};
    memcpy(looked->parts, sample->parts, bytes);
    pthread_mutex_lock(&scrape->metrics->mutex);
    kl__looked *before = sample->metrics->looked;
    sample->metrics->looked = looked;
    pthread_mutex_unlock(&scrape->metrics->mutex);
    kl__free(before);
}

/* KL_ENOTFOUND: it was removed meanwhile. */
static kl_rc look(struct scrape *scrape, struct sample *sample)
{
    kl_queue *queue;
    if (recall(scrape, sample))
        return KL_OK;
    kl_rc rc = kl_queue_find(scrape->store, sample->name, &queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    rc = look_at(descriptor, scrape->arena, sample);
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
    if (rc == KL_OK)
        remember(scrape, sample);
    return rc;
}

static bool make_room(struct scrape *scrape)
{
    size_t room = scrape->room ? scrape->room * 2 : NAMES_MAX;
    struct sample *samples = kl_arena_alloc(scrape->arena, room * sizeof *samples);
    if (!samples)
        return false;
    if (scrape->count)
        memcpy(samples, scrape->samples, scrape->count * sizeof *samples);
    scrape->samples = samples;
    scrape->room = room;
    return true;
}

/* A queue that cannot be looked at keeps what was counted here. */
static kl_rc take_sample(struct scrape *scrape, const char *name)
{
    struct sample sample = {.name = name, .metrics = kl__metrics_queue(scrape->metrics, name)};
    if (!sample.metrics || (scrape->count == scrape->room && !make_room(scrape)))
        return kl__fail_memory();
    kl_rc rc = look(scrape, &sample);
    if (rc == KL_ENOTFOUND)
        return KL_OK;
    sample.looked = rc == KL_OK;
    scrape->errors += rc != KL_OK;
    if (!sample.looked)
        sample.layout = (kl_layout){1, 1};
    sample.claims = kl__queue_metrics_claims(sample.metrics);
    scrape->samples[scrape->count++] = sample;
    return KL_OK;
}

static kl_rc take_samples(struct scrape *scrape)
{
    const char *after = "";
    size_t count = NAMES_MAX;
    kl_rc rc = kl_store_now(scrape->store, &scrape->now_ms);
    while (rc == KL_OK && count == NAMES_MAX) {
        const char **names = kl_arena_alloc(scrape->arena, NAMES_MAX * sizeof *names);
        rc = names ? kl_queue_list(scrape->store, after, NAMES_MAX, scrape->arena, names, &count) : kl__fail_memory();
        for (size_t i = 0; rc == KL_OK && i < count; i++)
            if (kl__token_may(scrape->scope, names[i]))
                rc = take_sample(scrape, names[i]);
        after = rc == KL_OK && count > 0 ? names[count - 1] : "";
    }
    return rc;
}

/* ---- Queues ---- */

/* The labels of a partition, without the braces. */
static const char *labels_of(const struct sample *sample, uint32_t partition, char *buffer, size_t size)
{
    char name[KL_PARTITION_NAME_BYTES] = "any";
    if (partition != KL_METRIC_ANY &&
        kl_partition_name(&sample->layout, sample->name, partition, sizeof name, name) != KL_OK)
        name[0] = 0;
    snprintf(buffer, size, "queue=\"%s\",partition=\"%s\"", sample->name, name);
    return buffer;
}

static void put_states(struct out *out, const char *family, const char *labels, const char *const names[3],
                       const uint64_t values[3])
{
    for (int i = 0; i < 3; i++)
        put(out, "%s{%s,state=\"%s\"} %llu\n", family, labels, names[i], (unsigned long long)values[i]);
}

static void put_waiting(struct out *out, const struct scrape *scrape, const struct sample *sample, uint32_t partition)
{
    static const char *const names[] = {"ready", "due", "retry"};
    const kl_counts *counts = &sample->parts[partition];
    char labels[256];
    (void)scrape;
    put_states(out, "keyline_queue_tasks", labels_of(sample, partition, labels, sizeof labels), names,
               (uint64_t[]){counts->ready, counts->due, counts->retry});
}

static void put_kept(struct out *out, const struct scrape *scrape, const struct sample *sample, uint32_t partition)
{
    static const char *const names[] = {"done", "dead", "cancelled"};
    const kl_counts *counts = &sample->parts[partition];
    char labels[256];
    (void)scrape;
    put_states(out, "keyline_queue_kept_tasks", labels_of(sample, partition, labels, sizeof labels), names,
               (uint64_t[]){counts->done, counts->dead, counts->cancelled});
}

static void put_oldest(struct out *out, const struct scrape *scrape, const struct sample *sample, uint32_t partition)
{
    int64_t oldest_ms = sample->parts[partition].oldest_id_ms;
    int64_t age_ms = oldest_ms && oldest_ms < scrape->now_ms ? scrape->now_ms - oldest_ms : 0;
    char labels[256];
    put(out, "keyline_queue_oldest_seconds{%s} %lld.%03lld\n", labels_of(sample, partition, labels, sizeof labels),
        (long long)(age_ms / 1000), (long long)(age_ms % 1000));
}

static void put_at_least(struct out *out, const struct scrape *scrape, const struct sample *sample, uint32_t partition)
{
    char labels[256];
    (void)scrape;
    put(out, "keyline_queue_at_least{%s} %d\n", labels_of(sample, partition, labels, sizeof labels),
        sample->parts[partition].at_least);
}

typedef void put_part_fn(struct out *out, const struct scrape *scrape, const struct sample *sample, uint32_t partition);

static const struct {
    const char *name, *help;
    put_part_fn *put;
} part_families[] = {
    {"keyline_queue_tasks", "Tasks that wait, by line; running ones are among them.", put_waiting},
    {"keyline_queue_kept_tasks", "Finished tasks that are kept, by how they ended.", put_kept},
    {"keyline_queue_oldest_seconds", "Age of the oldest task that is ready and was never tried; 0: none.", put_oldest},
    {"keyline_queue_at_least", "1 where the store did not count all of the partition: there may be more tasks.",
     put_at_least},
};

static void put_parts(struct out *out, const struct scrape *scrape)
{
    for (size_t f = 0; f < sizeof part_families / sizeof *part_families; f++) {
        put_family(out, part_families[f].name, "gauge", part_families[f].help);
        for (size_t i = 0; i < scrape->count; i++) {
            const struct sample *sample = &scrape->samples[i];
            for (uint32_t p = 0; sample->looked && p < sample->layout.partitions; p++)
                part_families[f].put(out, scrape, sample, p);
        }
    }
}

/* ---- What was counted, by partition ---- */

typedef void put_counted_fn(struct out *out, const char *labels, const kl__part_metrics *part, size_t which);

/* All partitions, from the first moment on; and `any`, where that can be, once something was counted of it. */
static void put_counted(struct out *out, const struct scrape *scrape, put_counted_fn *put_one, size_t which, bool any)
{
    static const kl__part_metrics nothing;
    char labels[256];
    for (size_t i = 0; i < scrape->count; i++) {
        const struct sample *sample = &scrape->samples[i];
        for (uint32_t p = 0; p < sample->layout.partitions; p++) {
            const kl__part_metrics *part = kl__queue_metrics_part(sample->metrics, p);
            put_one(out, labels_of(sample, p, labels, sizeof labels), part ? part : &nothing, which);
        }
        const kl__part_metrics *part = any ? kl__queue_metrics_part(sample->metrics, KL_METRIC_ANY) : NULL;
        if (part)
            put_one(out, labels_of(sample, KL_METRIC_ANY, labels, sizeof labels), part, which);
    }
}

static uint64_t appended(const kl__part_metrics *part) { return kl__metric_load(&part->put); }
static uint64_t lapsed(const kl__part_metrics *part) { return kl__metric_load(&part->lapsed); }
static uint64_t stale(const kl__part_metrics *part) { return kl__metric_load(&part->stale); }
static uint64_t blocked(const kl__part_metrics *part) { return kl__metric_load(&part->blocked); }

static const struct {
    const char *name, *type, *help;
    uint64_t (*value)(const kl__part_metrics *part);
    bool any;
} numbers[] = {
    {"keyline_queue_blocked_keys", "gauge",
     "Keys of owned shards that are retrying, paused or halted, of those in memory.", blocked, false},
    {"keyline_tasks_appended", "counter", "Tasks put through this server.", appended, true},
    {"keyline_leases_expired", "counter", "Claimed tasks whose lease was over before they were finished.", lapsed,
     false},
    {"keyline_stale_finishes", "counter", "Finishes and the like that were refused: the token was stale.", stale, true},
};

static void put_number_of(struct out *out, const char *labels, const kl__part_metrics *part, size_t which)
{
    bool counter = strcmp(numbers[which].type, "counter") == 0;
    put(out, "%s%s{%s} %llu\n", numbers[which].name, counter ? "_total" : "", labels,
        (unsigned long long)numbers[which].value(part));
}

static void put_numbers(struct out *out, const struct scrape *scrape)
{
    for (size_t f = 0; f < sizeof numbers / sizeof *numbers; f++) {
        put_family(out, numbers[f].name, numbers[f].type, numbers[f].help);
        put_counted(out, scrape, put_number_of, f, numbers[f].any);
    }
}

static uint64_t is_paused(const struct sample *sample) { return sample->paused; }
static uint64_t draining(const struct sample *sample) { return sample->draining; }
static uint64_t running(const struct sample *sample) { return sample->claims.running; }
static uint64_t shards(const struct sample *sample) { return sample->claims.shards; }
static uint64_t asks(const struct sample *sample) { return sample->claims.asks; }
static uint64_t claimed(const struct sample *sample) { return sample->claims.given; }
static uint64_t refused(const struct sample *sample) { return sample->claims.pump.refused; }
static uint64_t halted(const struct sample *sample) { return sample->claims.pump.halted; }

static const struct {
    const char *name, *type, *help;
    uint64_t (*value)(const struct sample *sample);
} queue_families[] = {
    {"keyline_queue_paused", "gauge", "1 while the queue is paused.", is_paused},
    {"keyline_queue_draining_layouts", "gauge", "Older layouts that still hold tasks.", draining},
    {"keyline_queue_running_tasks", "gauge", "Tasks that clients of this server have claimed.", running},
    {"keyline_queue_owned_shards", "gauge", "Shards that this server owns.", shards},
    {"keyline_queue_waiting_claims", "gauge", "Claims that wait for tasks.", asks},
    {"keyline_tasks_claimed", "counter", "Tasks given to clients.", claimed},
    {"keyline_tasks_halted", "counter", "Tasks that failed for good and hold their keys until somebody acts.", halted},
    {"keyline_settles_refused", "counter", "Outcomes that came too late: another worker owns the shard.", refused},
};

static void put_queues(struct out *out, const struct scrape *scrape)
{
    for (size_t f = 0; f < sizeof queue_families / sizeof *queue_families; f++) {
        bool counter = strcmp(queue_families[f].type, "counter") == 0;
        put_family(out, queue_families[f].name, queue_families[f].type, queue_families[f].help);
        for (size_t i = 0; i < scrape->count; i++)
            put(out, "%s%s{queue=\"%s\"} %llu\n", queue_families[f].name, counter ? "_total" : "",
                scrape->samples[i].name, (unsigned long long)queue_families[f].value(&scrape->samples[i]));
    }
}

static void put_settled_of(struct out *out, const char *labels, const kl__part_metrics *part, size_t which)
{
    static const struct {
        const char *name;
        kl_outcome outcome;
    } outcomes[] = {{"done", KL_DONE}, {"retry", KL_RETRY}, {"dead", KL_DEAD}, {"cancelled", KL_CANCELLED}};
    (void)which;
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        put(out, "keyline_tasks_settled_total{%s,outcome=\"%s\"} %llu\n", labels, outcomes[i].name,
            (unsigned long long)kl__metric_load(&part->outcomes[outcomes[i].outcome]));
}

static void put_settled(struct out *out, const struct scrape *scrape)
{
    put_family(out, "keyline_tasks_settled", "counter", "Tasks settled by this server, by outcome.");
    put_counted(out, scrape, put_settled_of, 0, false);
}

/* ---- Histograms ---- */

/* Seconds as a decimal number, whatever the locale: "0.005", "1.0". */
static const char *seconds_text(uint64_t ns, char *buffer, size_t size)
{
    int length = snprintf(buffer, size, "%llu.%09llu", (unsigned long long)(ns / 1000000000),
                          (unsigned long long)(ns % 1000000000));
    while (buffer[length - 1] == '0' && buffer[length - 2] != '.')
        length--;
    buffer[length] = '\0';
    return buffer;
}

/* The count is made of the buckets, so that the two agree whatever is counted meanwhile. */
static void put_histogram(struct out *out, const char *name, const char *labels, const kl__histogram *histogram,
                          const int64_t *bounds_ns)
{
    uint64_t below = 0;
    char seconds[48];
    for (int i = 0; i < KL_METRIC_BUCKETS; i++) {
        below += kl__metric_load(&histogram->buckets[i]);
        put(out, "%s_bucket{%s,le=\"%s\"} %llu\n", name, labels,
            seconds_text((uint64_t)bounds_ns[i], seconds, sizeof seconds), (unsigned long long)below);
    }
    below += kl__metric_load(&histogram->buckets[KL_METRIC_BUCKETS]);
    put(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels, (unsigned long long)below);
    put(out, "%s_sum{%s} %s\n", name, labels,
        seconds_text(kl__metric_load(&histogram->sum_ns), seconds, sizeof seconds));
    put(out, "%s_count{%s} %llu\n", name, labels, (unsigned long long)below);
}

static const struct {
    const char *name, *help;
    const int64_t *bounds_ns;
} histograms[KL_METRIC_HISTOGRAMS] = {
    [KL_METRIC_COMMIT] = {"keyline_commit_duration_seconds", "From a put's request to its tasks being durable.",
                          kl__metric_quick_ns},
    [KL_METRIC_CLAIM] = {"keyline_claim_duration_seconds",
                         "From a claim's request to its answer with tasks, waiting for them included.",
                         kl__metric_quick_ns},
    [KL_METRIC_SETTLE] = {"keyline_settle_duration_seconds", "From a finish's request to its outcomes being durable.",
                          kl__metric_quick_ns},
    [KL_METRIC_RUN] = {"keyline_run_duration_seconds", "From a task's claim to its finish.", kl__metric_slow_ns},
};

static void put_histogram_of(struct out *out, const char *labels, const kl__part_metrics *part, size_t which)
{
    put_histogram(out, histograms[which].name, labels, &part->histograms[which], histograms[which].bounds_ns);
}

static void put_histograms(struct out *out, const struct scrape *scrape)
{
    for (size_t f = 0; f < KL_METRIC_HISTOGRAMS; f++) {
        put_family(out, histograms[f].name, "histogram", histograms[f].help);
        put_counted(out, scrape, put_histogram_of, f, f == KL_METRIC_COMMIT);
    }
}

/* ---- Requests, the process, the store ---- */

static const char *route_name(size_t index) { return index < kl__route_count ? kl__routes[index].name : "none"; }

static bool is_used(const kl__route_metrics *route)
{
    uint64_t sum = 0;
    for (int i = 0; i <= KL_METRIC_BUCKETS; i++)
        sum += kl__metric_load(&route->duration.buckets[i]);
    return sum > 0;
}

/* Only routes that somebody used: there are some sixty. */
static void put_requests(struct out *out, const kl__metrics *metrics)
{
    put_family(out, "keyline_http_requests", "counter", "Requests answered, by route and class of status.");
    for (size_t i = 0; i <= kl__route_count; i++)
        for (int class_ = 0; class_ < KL_METRIC_CLASSES; class_++)
            if (kl__metric_load(&metrics->routes[i].classes[class_]) > 0)
                put(out, "keyline_http_requests_total{route=\"%s\",status=\"%dxx\"} %llu\n", route_name(i), class_ + 1,
                    (unsigned long long)kl__metric_load(&metrics->routes[i].classes[class_]));
    put_family(out, "keyline_http_request_duration_seconds", "histogram",
               "From a request's complete head to its answer, waiting in long polls included.");
    for (size_t i = 0; i <= kl__route_count; i++)
        if (is_used(&metrics->routes[i])) {
            char label[128];
            snprintf(label, sizeof label, "route=\"%s\"", route_name(i));
            put_histogram(out, "keyline_http_request_duration_seconds", label, &metrics->routes[i].duration,
                          kl__metric_quick_ns);
        }
}

static void put_http(struct out *out, const kl__http *http)
{
    kl__http_counts counts = http ? kl__http_counted(http) : (kl__http_counts){0};
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } families[] = {
        {"keyline_http_connections", "gauge", "Connections that are open.", counts.connections},
        {"keyline_http_refused", "counter", "Requests that were no proper HTTP.", counts.refused},
        {"keyline_http_received_bytes", "counter", "Bytes received.", counts.bytes_in},
        {"keyline_http_sent_bytes", "counter", "Bytes sent.", counts.bytes_out},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        bool counter = strcmp(families[i].type, "counter") == 0;
        put_family(out, families[i].name, families[i].type, families[i].help);
        put(out, "%s%s %llu\n", families[i].name, counter ? "_total" : "", (unsigned long long)families[i].value);
    }
}

static void put_process(struct out *out, const struct scrape *scrape)
{
    const kl__metrics *metrics = scrape->metrics;
    put_family(out, "keyline_build", "info", "The version that runs.");
    put(out, "keyline_build_info{version=\"%s\"} 1\n", metrics->opts.version ? metrics->opts.version : "");
    put_family(out, "process_start_time_seconds", "gauge", "When the process began, in seconds since 1970.");
    put(out, "process_start_time_seconds %lld.%03lld\n", (long long)(metrics->began_ms / 1000),
        (long long)(metrics->began_ms % 1000));
    put_family(out, "keyline_scrape_errors", "gauge", "Queues that could not be looked at for this answer.");
    put(out, "keyline_scrape_errors %llu\n", (unsigned long long)scrape->errors);
}

/* The store's text is Prometheus', where a counter's family is called as its series; here it is without _total. */
static void put_store(struct out *out, kl_bytes text)
{
    static const char total[] = "_total ";
    for (const char *line = text.data, *stop = line + text.len; line < stop;) {
        const char *end = memchr(line, '\n', (size_t)(stop - line));
        size_t len = (size_t)((end ? end + 1 : stop) - line);
        const char *mark = *line == '#' ? memmem(line, len, total, sizeof total - 1) : NULL;
        const char *second = mark ? memchr(line + 7, ' ', len - 7) : NULL; /* behind the family's name */
        if (mark && second == mark + sizeof total - 2) {
            put_bytes(out, line, (size_t)(mark - line));
            put_bytes(out, second, len - (size_t)(second - line));
        } else {
            put_bytes(out, line, len);
        }
        line += len;
    }
}

static void put_all(struct out *out, const struct scrape *scrape, const kl__http *http, kl_bytes store)
{
    put_process(out, scrape);
    put_parts(out, scrape);
    put_queues(out, scrape);
    put_numbers(out, scrape);
    put_settled(out, scrape);
    put_histograms(out, scrape);
    put_requests(out, scrape->metrics);
    put_http(out, http);
    put_store(out, store);
    put(out, "# EOF\n");
}

kl_rc kl__metrics_text(kl__metrics *metrics, kl_store *store, const kl__http *http, const char *scope, kl_arena *arena,
                       kl_bytes *ret_text)
{
    struct scrape scrape = {.metrics = metrics, .store = store, .scope = scope, .arena = arena};
    struct out out = {0};
    kl_bytes from_store;
    kl__metrics_refresh(metrics);
    kl_rc rc = take_samples(&scrape);
    if (rc == KL_OK)
        rc = kl_store_metrics(store, arena, &from_store);
    if (rc != KL_OK)
        return rc;
    put_all(&out, &scrape, http, from_store);
    if (out.failed || !kl_arena_copy(arena, (kl_bytes){out.text, out.len}, ret_text))
        rc = kl__fail_memory();
    kl__free(out.text);
    return rc;
}
