/* metrics.c - the executor's metrics in Prometheus text, one line per shard. */
#include "base/text.h"
#include "exec/internal.h"

#include <stdio.h>

/* What one shard shows, copied out under its mutex. */
struct sample {
    uint64_t submitted, full, depth, done, retries, dead, cancelled;
    kl__run_histogram runs;
    uint64_t keys[KL_LANE_STATES];
};

static void take_sample(kl__shard *shard, struct sample *ret_sample)
{
    pthread_mutex_lock(&shard->mutex);
    (void)kl__shard_look_closely(shard); /* without memory, what is still in the inbox is no key's yet */
    uint64_t ended = atomic_load(&shard->inbox.ended), claimed = kl__inbox_claimed(&shard->inbox);
    kl__lane_counts counts = kl__lanes_counts(shard->lanes);
    *ret_sample = (struct sample){.submitted = claimed,
                                  .full = kl__shard_full_count(shard),
                                  .depth = claimed - ended,
                                  .done = ended - shard->dead - shard->cancelled,
                                  .retries = shard->retries,
                                  .dead = shard->dead,
                                  .cancelled = shard->cancelled,
                                  .runs = shard->runs};
    for (int i = 0; i < KL_LANE_STATES; i++)
        ret_sample->keys[i] = counts.keys[i];
    kl__shard_offer(shard);
    pthread_mutex_unlock(&shard->mutex);
}

/* Seconds as a decimal number, whatever the locale: "0.005", "1". */
static const char *seconds_text(int64_t ns, char *buffer, size_t size)
{
    int length = snprintf(buffer, size, "%lld.%09lld", (long long)(ns / 1000000000), (long long)(ns % 1000000000));
    while (buffer[length - 1] == '0')
        length--;
    if (buffer[length - 1] == '.')
        length--;
    buffer[length] = '\0';
    return buffer;
}

static void put_histogram(kl__text *text, uint32_t shard, const kl__run_histogram *runs)
{
    uint64_t below = 0;
    char seconds[32];
    for (int i = 0; i < KL_RUN_BUCKETS; i++) {
        below += runs->count[i];
        kl__text_put(text, "keyline_exec_run_duration_seconds_bucket{shard=\"%u\",le=\"%s\"} %llu\n", shard,
                     seconds_text(kl__run_bucket_ns(i), seconds, sizeof seconds), (unsigned long long)below);
    }
    below += runs->count[KL_RUN_BUCKETS];
    kl__text_put(text, "keyline_exec_run_duration_seconds_bucket{shard=\"%u\",le=\"+Inf\"} %llu\n", shard,
                 (unsigned long long)below);
    kl__text_put(text, "keyline_exec_run_duration_seconds_sum{shard=\"%u\"} %s\n", shard,
                 seconds_text(runs->sum_ns, seconds, sizeof seconds));
    kl__text_put(text, "keyline_exec_run_duration_seconds_count{shard=\"%u\"} %llu\n", shard,
                 (unsigned long long)below);
}

struct family {
    const char *name, *type, *help;
    size_t offset; /* of its value in a sample */
};

static const struct family families[] = {
    {"keyline_exec_submitted_total", "counter", "Tasks taken.", offsetof(struct sample, submitted)},
    {"keyline_exec_full_total", "counter", "Submits refused because the shard was full, or the key blocked.",
     offsetof(struct sample, full)},
    {"keyline_exec_depth", "gauge", "Tasks taken and not ended.", offsetof(struct sample, depth)},
    {"keyline_exec_done_total", "counter", "Tasks that were done.", offsetof(struct sample, done)},
    {"keyline_exec_retries_total", "counter", "Attempts that failed and were followed by another.",
     offsetof(struct sample, retries)},
    {"keyline_exec_dead_total", "counter", "Tasks that failed for good or timed out.", offsetof(struct sample, dead)},
    {"keyline_exec_cancelled_total", "counter", "Tasks that were cancelled or given up.",
     offsetof(struct sample, cancelled)},
};

static void put_keys(kl__text *text, uint32_t shard, const uint64_t *keys)
{
    static const char *const names[KL_LANE_STATES] = {"idle",    "ready",  "running", "retrying",
                                                      "delayed", "paused", "halted"};
    for (int i = KL_LANE_READY; i < KL_LANE_STATES; i++)
        kl__text_put(text, "keyline_exec_keys{shard=\"%u\",state=\"%s\"} %llu\n", shard, names[i],
                     (unsigned long long)keys[i]);
}

kl_rc kl_exec_metrics(kl_exec *exec, char *buffer, size_t size, size_t *ret_length)
{
    if (!exec || !ret_length || (!buffer && size > 0))
        return kl__exec_fail_null("kl_exec_metrics", !exec ? "exec" : !ret_length ? "ret_length" : "buffer");
    kl__text text = {buffer, size, 0};
    struct sample *samples = kl__alloc_zeroed(exec->shard_count, sizeof *samples);
    if (!samples)
        return kl__fail_memory();
    for (uint32_t i = 0; i < exec->shard_count; i++)
        take_sample(&exec->shards[i], &samples[i]);
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const struct family *family = &families[f];
        kl__text_put(&text, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name, family->type);
        for (uint32_t i = 0; i < exec->shard_count; i++) {
            uint64_t value = *(const uint64_t *)(const void *)((const char *)&samples[i] + family->offset);
            kl__text_put(&text, "%s{shard=\"%u\"} %llu\n", family->name, i, (unsigned long long)value);
        }
    }
    kl__text_put(&text, "# HELP keyline_exec_keys Keys that have tasks or are paused, by what they are doing.\n# TYPE "
                        "keyline_exec_keys gauge\n");
    for (uint32_t i = 0; i < exec->shard_count; i++)
        put_keys(&text, i, samples[i].keys);
    kl__text_put(
        &text,
        "# HELP keyline_exec_run_duration_seconds How long attempts ran; those of less than 10 us are timed together.\n"
        "# TYPE keyline_exec_run_duration_seconds histogram\n");
    for (uint32_t i = 0; i < exec->shard_count; i++)
        put_histogram(&text, i, &samples[i].runs);
    kl__free(samples);
    *ret_length = text.length;
    return KL_OK;
}
