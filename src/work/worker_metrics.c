/* worker_metrics.c - a worker's counters as Prometheus text. */
#include "base/text.h"
#include "work/worker_inside.h"

/* What is told of one queue, copied so that the text's length is known before it is written. */
struct sample {
    const char *queue;
    kl__pump_counts counts;
    uint64_t shards, running, held;
};

static void put_settled(kl__text *text, const struct sample *sample)
{
    const struct {
        const char *outcome;
        uint64_t count;
    } outcomes[] = {{"done", sample->counts.done},
                    {"retry", sample->counts.retried},
                    {"dead", sample->counts.dead},
                    {"cancelled", sample->counts.cancelled}};
    for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++)
        kl__text_put(text, "keyline_worker_settled_total{queue=\"%s\",outcome=\"%s\"} %llu\n", sample->queue,
                     outcomes[i].outcome, (unsigned long long)outcomes[i].count);
}

static uint64_t started(const struct sample *sample) { return sample->counts.started; }
static uint64_t refused(const struct sample *sample) { return sample->counts.refused; }
static uint64_t unserved(const struct sample *sample) { return sample->counts.unserved; }
static uint64_t shards(const struct sample *sample) { return sample->shards; }
static uint64_t running(const struct sample *sample) { return sample->running; }
static uint64_t held(const struct sample *sample) { return sample->held; }

static const struct family {
    const char *name, *type, *help;
    uint64_t (*value)(const struct sample *sample); /* NULL: one line for each outcome */
} families[] = {
    {"settled_total", "counter", "Tasks settled, by outcome.", NULL},
    {"started_total", "counter", "Tasks handed to a handler.", started},
    {"refused_total", "counter", "Outcomes that came too late: another worker owns the shard.", refused},
    {"unserved_total", "counter", "Tasks found for which there is no handler here.", unserved},
    {"shards", "gauge", "Shards owned.", shards},
    {"running", "gauge", "Tasks running.", running},
    {"held", "gauge", "Tasks in memory.", held},
};

static void write_text(kl__text *text, const struct sample *samples, size_t count)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const struct family *family = &families[f];
        kl__text_put(text, "# HELP keyline_worker_%s %s\n# TYPE keyline_worker_%s %s\n", family->name, family->help,
                     family->name, family->type);
        for (size_t i = 0; i < count; i++) {
            if (!family->value)
                put_settled(text, &samples[i]);
            else
                kl__text_put(text, "keyline_worker_%s{queue=\"%s\"} %llu\n", family->name, samples[i].queue,
                             (unsigned long long)family->value(&samples[i]));
        }
    }
}

kl_rc kl_worker_metrics(kl_worker *worker, kl_arena *arena, kl_bytes *ret_text)
{
    struct sample *samples = kl_arena_alloc(arena, worker->served_count * sizeof *samples);
    if (!samples)
        return kl__fail_memory();
    pthread_mutex_lock(&worker->mutex);
    for (size_t i = 0; i < worker->served_count; i++) {
        kl__pump *pump = worker->served[i].pump;
        samples[i] = (struct sample){worker->served[i].queue->name, kl__pump_counted(pump), kl__pump_shards(pump),
                                     kl__pump_running(pump), kl__pump_held(pump)};
    }
    pthread_mutex_unlock(&worker->mutex);
    kl__text text = {0};
    write_text(&text, samples, worker->served_count);
    text = (kl__text){.buffer = kl_arena_alloc(arena, text.length + 1), .size = text.length + 1};
    if (!text.buffer)
        return kl__fail_memory();
    write_text(&text, samples, worker->served_count);
    *ret_text = (kl_bytes){text.buffer, text.length};
    return KL_OK;
}
