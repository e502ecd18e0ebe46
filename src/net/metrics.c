/* metrics.c - counting. See metrics.h; metrics_text.c tells what was counted. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/api.h"
#include "net/metrics_inside.h"

const int64_t kl__metric_quick_ns[KL_METRIC_BUCKETS] = {100000,    250000,     500000,    1000000,  2500000,
                                                        5000000,   10000000,   25000000,  50000000, 100000000,
                                                        250000000, 1000000000, 5000000000};
const int64_t kl__metric_slow_ns[KL_METRIC_BUCKETS] = {
    1000000,     10000000,    50000000,    100000000,    500000000,     1000000000,   5000000000,
    10000000000, 30000000000, 60000000000, 300000000000, 1800000000000, 7200000000000};

#define RATE_NS INT64_C(60000000000)

static void add(_Atomic(uint64_t) *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static void observe(kl__histogram *histogram, const int64_t *bounds_ns, int64_t ns)
{
    int bucket = 0;
    while (bucket < KL_METRIC_BUCKETS && ns > bounds_ns[bucket])
        bucket++;
    add(&histogram->buckets[bucket], 1);
    add(&histogram->sum_ns, ns > 0 ? (uint64_t)ns : 0);
}

/* ---- Open and close ---- */

kl_rc kl__metrics_open(const kl__metrics_opts *opts, kl__metrics **ret_metrics)
{
    kl__metrics *metrics = kl__alloc_zeroed(1, sizeof *metrics);
    if (!metrics)
        return kl__fail_memory();
    metrics->routes = kl__alloc_zeroed(kl__route_count + 1, sizeof *metrics->routes);
    if (!metrics->routes) {
        kl__free(metrics);
        return kl__fail_memory();
    }
    metrics->opts = *opts;
    metrics->began_ms = kl__wall_ms();
    pthread_mutex_init(&metrics->mutex, NULL);
    *ret_metrics = metrics;
    return KL_OK;
}

static void free_queue(kl__queue_metrics *queue)
{
    kl__part_slot *parts = atomic_load(&queue->parts);
    for (size_t i = 0; parts && i <= KL_METRIC_ANY; i++)
        kl__free(atomic_load(&parts[i]));
    kl__free(parts);
    kl__free(queue->looked);
    kl__free(queue);
}

void kl__metrics_close(kl__metrics *metrics)
{
    if (!metrics)
        return;
    for (size_t i = 0; i < KL_METRIC_QUEUE_ROOMS; i++)
        while (metrics->rooms[i]) {
            kl__queue_metrics *queue = metrics->rooms[i];
            metrics->rooms[i] = queue->next;
            free_queue(queue);
        }
    pthread_mutex_destroy(&metrics->mutex);
    kl__free(metrics->routes);
    kl__free(metrics);
}

static kl__queue_metrics *make_queue(kl__metrics *metrics, const char *name)
{
    kl__queue_metrics *queue = kl__alloc_zeroed(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->metrics = metrics;
    queue->samples[0].at_ns = kl__monotonic_ns();
    queue->sample_count = 1;
    snprintf(queue->name, sizeof queue->name, "%s", name);
    return queue;
}

kl__queue_metrics *kl__metrics_queue(kl__metrics *metrics, const char *name)
{
    if (!metrics)
        return NULL;
    kl__queue_metrics **room = &metrics->rooms[kl__hash(kl_str(name), 0) % KL_METRIC_QUEUE_ROOMS];
    pthread_mutex_lock(&metrics->mutex);
    kl__queue_metrics *queue = *room;
    while (queue && strcmp(queue->name, name) != 0)
        queue = queue->next;
    if (!queue && (queue = make_queue(metrics, name)) != NULL) {
        queue->next = *room;
        *room = queue;
    }
    pthread_mutex_unlock(&metrics->mutex);
    return queue;
}

/* ---- The data path ---- */

const kl__part_metrics *kl__queue_metrics_part(const kl__queue_metrics *queue, uint32_t partition)
{
    kl__part_slot *parts = atomic_load_explicit(&queue->parts, memory_order_acquire);
    if (partition == 0)
        return &queue->first;
    return parts ? atomic_load_explicit(&parts[partition], memory_order_acquire) : NULL;
}

static kl__part_slot *slots_of(kl__queue_metrics *queue)
{
    kl__part_slot *parts = atomic_load_explicit(&queue->parts, memory_order_acquire), *none = NULL;
    if (parts)
        return parts;
    parts = kl__alloc_zeroed(KL_METRIC_ANY + 1, sizeof *parts);
    if (!parts || atomic_compare_exchange_strong(&queue->parts, &none, parts))
        return parts;
    kl__free(parts);
    return none;
}

/* Made when something is first counted. Without memory it is counted as of the first partition. */
static kl__part_metrics *part_of(kl__queue_metrics *queue, uint32_t partition)
{
    if (partition == 0 || partition > KL_METRIC_ANY)
        return &queue->first;
    kl__part_slot *parts = slots_of(queue);
    if (!parts)
        return &queue->first;
    kl__part_metrics *part = atomic_load_explicit(&parts[partition], memory_order_acquire), *none = NULL;
    if (part)
        return part;
    part = kl__alloc_zeroed(1, sizeof *part);
    if (!part)
        return &queue->first;
    if (atomic_compare_exchange_strong(&parts[partition], &none, part))
        return part;
    kl__free(part);
    return none;
}

/* Which partitions one request has had tasks of. */
struct touched {
    uint64_t bits[KL_METRIC_ANY / 64 + 1];
};

static bool touch(struct touched *touched, uint32_t partition)
{
    uint64_t *word = &touched->bits[partition / 64], bit = UINT64_C(1) << partition % 64;
    bool first = !(*word & bit);
    *word |= bit;
    return first;
}

static uint32_t partition_of(const kl_layout *layout, const kl_put *task)
{
    return task->key.len > 0 && !task->partition ? kl_partition_of(layout, task->key) : KL_METRIC_ANY;
}

static void count_puts(kl__queue_metrics *queue, const kl_layout *layout, const kl_put *tasks,
                       const kl_put_result *results, size_t count, int64_t ns)
{
    struct touched touched = {{0}};
    for (size_t i = 0; i < count; i++) {
        uint32_t partition = partition_of(layout, &tasks[i]);
        kl__part_metrics *part = part_of(queue, partition);
        if (!results || !results[i].duplicate)
            add(&part->put, 1);
        if (touch(&touched, partition))
            observe(&part->histograms[KL_METRIC_COMMIT], kl__metric_quick_ns, ns);
    }
}

static size_t count_new(const kl_put_result *results, size_t count)
{
    size_t fresh = results ? 0 : count;
    for (size_t i = 0; results && i < count; i++)
        fresh += !results[i].duplicate;
    return fresh;
}

void kl__metrics_put(kl__queue_metrics *queue, kl_queue *of, const kl_put *tasks, const kl_put_result *results,
                     size_t count, int64_t ns)
{
    if (!queue)
        return;
    kl__descriptor *descriptor = of ? kl__queue_descriptor(of) : NULL;
    const kl_layout *layout = descriptor ? &kl__put_layout(descriptor)->layout : NULL;
    if (layout && layout->partitions > 1) {
        count_puts(queue, layout, tasks, results, count, ns);
    } else {
        add(&queue->first.put, count_new(results, count));
        observe(&queue->first.histograms[KL_METRIC_COMMIT], kl__metric_quick_ns, ns);
    }
    kl__descriptor_release(descriptor);
}

void kl__metrics_claimed(kl__queue_metrics *queue, const kl__claimed *tasks, size_t count, int64_t ns)
{
    struct touched touched = {{0}};
    for (size_t i = 0; queue && i < count; i++)
        if (touch(&touched, tasks[i].partition_index))
            observe(&part_of(queue, tasks[i].partition_index)->histograms[KL_METRIC_CLAIM], kl__metric_quick_ns, ns);
}

void kl__metrics_ran(kl__queue_metrics *queue, uint32_t partition, int64_t ns)
{
    if (queue)
        observe(&part_of(queue, partition)->histograms[KL_METRIC_RUN], kl__metric_slow_ns, ns);
}

void kl__metrics_settled(kl__queue_metrics *queue, const kl__claim_say *says, size_t count, int64_t ns)
{
    struct touched touched = {{0}};
    for (size_t i = 0; queue && i < count; i++)
        if (says[i].rc == KL_OK && touch(&touched, says[i].partition))
            observe(&part_of(queue, says[i].partition)->histograms[KL_METRIC_SETTLE], kl__metric_quick_ns, ns);
}

void kl__metrics_ended(void *context, uint32_t partition, kl_outcome outcome)
{
    if (context)
        add(&part_of(context, partition)->outcomes[outcome], 1);
}

void kl__metrics_lapsed(void *context, uint32_t partition)
{
    if (context)
        add(&part_of(context, partition)->lapsed, 1);
}

/* Tokens say their partition, and anybody can write one. */
void kl__metrics_stale(kl__queue_metrics *queue, kl_queue *of, uint32_t partition)
{
    if (!queue)
        return;
    kl__descriptor *descriptor = kl__queue_descriptor(of);
    bool known = false;
    for (size_t i = 0; i < descriptor->layout_count; i++)
        known |= partition < descriptor->layouts[i].layout.partitions;
    kl__descriptor_release(descriptor);
    add(&part_of(queue, known ? partition : KL_METRIC_ANY)->stale, 1);
}

void kl__metrics_request(kl__metrics *metrics, const kl__route *route, int status, int64_t ns)
{
    if (!metrics)
        return;
    kl__route_metrics *to = &metrics->routes[route ? (size_t)(route - kl__routes) : kl__route_count];
    if (status >= 100 && status < 100 * (KL_METRIC_CLASSES + 1))
        add(&to->classes[status / 100 - 1], 1);
    observe(&to->duration, kl__metric_quick_ns, ns);
}

/* ---- Counts of claims ---- */

/* Adds what only ever grows; what is so now is that of `more`. */
static kl__claims_counts sum(const kl__claims_counts *left, const kl__claims_counts *more)
{
    kl__claims_counts counts = *more;
    counts.given += left->given;
    counts.expired += left->expired;
    counts.stale += left->stale;
    counts.pump.started += left->pump.started;
    counts.pump.done += left->pump.done;
    counts.pump.retried += left->pump.retried;
    counts.pump.halted += left->pump.halted;
    counts.pump.dead += left->pump.dead;
    counts.pump.cancelled += left->pump.cancelled;
    counts.pump.refused += left->pump.refused;
    return counts;
}

/* Lower counts than before are those of new claims: the old ones ended without a word. */
static bool is_new(const kl__claims_counts *before, const kl__claims_counts *now)
{
    return now->given < before->given || now->pump.started < before->pump.started;
}

void kl__metrics_claims(kl__queue_metrics *queue, const kl__claims_counts *counts)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->metrics->mutex);
    if (is_new(&queue->now, counts))
        queue->left = sum(&queue->left, &queue->now);
    queue->now = *counts;
    pthread_mutex_unlock(&queue->metrics->mutex);
}

void kl__metrics_leave(kl__queue_metrics *queue, const kl__claims_counts *counts)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->metrics->mutex);
    queue->left = sum(&queue->left, counts);
    queue->now = (kl__claims_counts){0};
    pthread_mutex_unlock(&queue->metrics->mutex);
    kl__metrics_blocked_told(queue);
}

void kl__metrics_blocked(void *context, uint32_t partition, uint64_t keys)
{
    if (context && keys > 0)
        add(&part_of(context, partition)->blocking, keys);
}

void kl__metrics_blocked_told(kl__queue_metrics *queue)
{
    kl__part_slot *parts = queue ? atomic_load_explicit(&queue->parts, memory_order_acquire) : NULL;
    if (queue)
        atomic_store(&queue->first.blocked, atomic_exchange(&queue->first.blocking, 0));
    for (uint32_t i = 1; parts && i < KL_METRIC_ANY; i++) {
        kl__part_metrics *part = atomic_load_explicit(&parts[i], memory_order_acquire);
        if (part)
            atomic_store(&part->blocked, atomic_exchange(&part->blocking, 0));
    }
}

kl__claims_counts kl__queue_metrics_claims(kl__queue_metrics *queue)
{
    pthread_mutex_lock(&queue->metrics->mutex);
    kl__claims_counts counts = sum(&queue->left, &queue->now);
    pthread_mutex_unlock(&queue->metrics->mutex);
    return counts;
}

/* ---- Reading ---- */

void kl__metrics_refresh(kl__metrics *metrics)
{
    if (metrics && metrics->opts.refresh)
        metrics->opts.refresh(metrics->opts.ctx);
}

static kl__queue_totals totals_of(kl__queue_metrics *queue)
{
    kl__claims_counts claims = sum(&queue->left, &queue->now);
    bool several = atomic_load_explicit(&queue->parts, memory_order_acquire) != NULL;
    uint64_t put = 0, stale = 0;
    for (uint32_t i = 0; i == 0 || (several && i <= KL_METRIC_ANY); i++) {
        const kl__part_metrics *part = kl__queue_metrics_part(queue, i);
        put += part ? kl__metric_load(&part->put) : 0;
        stale += part ? kl__metric_load(&part->stale) : 0;
    }
    return (kl__queue_totals){.put = put,
                              .claimed = claims.given,
                              .done = claims.pump.done,
                              .retried = claims.pump.retried,
                              .dead = claims.pump.dead,
                              .cancelled = claims.pump.cancelled,
                              .expired = claims.expired,
                              .stale = stale};
}

static kl__queue_totals minus(const kl__queue_totals *now, const kl__queue_totals *before)
{
    return (kl__queue_totals){.put = now->put - before->put,
                              .claimed = now->claimed - before->claimed,
                              .done = now->done - before->done,
                              .retried = now->retried - before->retried,
                              .dead = now->dead - before->dead,
                              .cancelled = now->cancelled - before->cancelled,
                              .expired = now->expired - before->expired,
                              .stale = now->stale - before->stale};
}

void kl__metrics_changes(kl__metrics *metrics, kl__metrics_visit_fn *visit, void *ctx)
{
    pthread_mutex_lock(&metrics->mutex);
    for (size_t i = 0; i < KL_METRIC_QUEUE_ROOMS; i++)
        for (kl__queue_metrics *queue = metrics->rooms[i]; queue; queue = queue->next) {
            kl__queue_totals totals = totals_of(queue), more = minus(&totals, &queue->told);
            if (memcmp(&totals, &queue->told, sizeof totals) != 0)
                visit(ctx, queue->name, &more);
            queue->told = totals;
        }
    pthread_mutex_unlock(&metrics->mutex);
}

/* ---- Rates ---- */

void kl__metrics_sample(kl__metrics *metrics)
{
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&metrics->mutex);
    for (size_t i = 0; i < KL_METRIC_QUEUE_ROOMS; i++)
        for (kl__queue_metrics *queue = metrics->rooms[i]; queue; queue = queue->next) {
            size_t at = queue->sample_count++ % KL_METRIC_SAMPLES;
            queue->samples[at].at_ns = now_ns;
            queue->samples[at].totals = totals_of(queue);
        }
    pthread_mutex_unlock(&metrics->mutex);
}

/* The oldest sample that is not older than a minute; the newest, if all are. */
static size_t base_of(const kl__queue_metrics *queue, int64_t now_ns)
{
    size_t kept = queue->sample_count < KL_METRIC_SAMPLES ? queue->sample_count : KL_METRIC_SAMPLES;
    size_t at = queue->sample_count - kept;
    while (at + 1 < queue->sample_count && now_ns - queue->samples[at % KL_METRIC_SAMPLES].at_ns > RATE_NS)
        at++;
    return at % KL_METRIC_SAMPLES;
}

kl__queue_rates kl__metrics_rates(kl__queue_metrics *queue)
{
    kl__queue_rates rates = {0};
    if (!queue)
        return rates;
    pthread_mutex_lock(&queue->metrics->mutex);
    int64_t now_ns = kl__monotonic_ns();
    size_t base = base_of(queue, now_ns);
    kl__queue_totals now = totals_of(queue), before = queue->samples[base].totals;
    int64_t over_ns = now_ns - queue->samples[base].at_ns;
    pthread_mutex_unlock(&queue->metrics->mutex);
    double seconds = over_ns > 1000000 ? (double)over_ns / 1e9 : 0.001;
    uint64_t settled = now.done + now.dead + now.cancelled - before.done - before.dead - before.cancelled;
    rates.put = (double)(now.put - before.put) / seconds;
    rates.claimed = (double)(now.claimed - before.claimed) / seconds;
    rates.settled = (double)settled / seconds;
    rates.failed = (double)(now.retried + now.dead - before.retried - before.dead) / seconds;
    rates.over_ms = over_ns / 1000000;
    return rates;
}
