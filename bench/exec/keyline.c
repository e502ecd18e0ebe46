/* keyline.c - our side, through the public interface and with nothing switched off. */
#include "bench.h"

#include <string.h>

enum { HOUR_MS = 3600000 };

struct ours {
    kl_exec *exec;
    long failing;
    char failing_keys[KEYS][sizeof "failing-0000"];
    kl_exec_id failing_ids[KEYS];
};

static kl_outcome fail(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    return KL_RETRY;
}

static void *keyline_open(const struct settings *settings)
{
    struct ours *ours = calloc(1, sizeof *ours);
    MUST(ours);
    kl_exec_opts opts = {.size = sizeof opts,
                         .shards = SHARDS,
                         .threads = settings->threads,
                         .shard_capacity = settings->capacity,
                         .submit_timeout_ms = HOUR_MS}; /* but no submit to a failing key waits */
    MUST(kl_exec_open(&opts, &ours->exec) == KL_OK);

    kl_exec_task_opts for_ever = {.size = sizeof for_ever, .attempts_max = KL_EXEC_ATTEMPTS_MAX};
    for (long i = 0; i < settings->failing; i++) {
        char *key = ours->failing_keys[i];
        snprintf(key, sizeof ours->failing_keys[0], "failing-%04ld", i % KEYS);
        if (settings->healthy)
            continue;
        MUST(kl_exec_submit(ours->exec, kl_str(key), fail, NULL, &for_ever, &ours->failing_ids[i]) == KL_OK);
        ours->failing++;
    }
    return ours;
}

/* Only failing keys are refused: of the others all must have run in the end. */
static bool is_taken(kl_rc rc) { return rc == KL_OK || (rc == KL_EFULL && kl_exec_last_full().blocked); }

static void keyline_submit(void *queue, kl_bytes key, kl_task_fn *fn, void *ctx)
{
    MUST(is_taken(kl_exec_submit(((struct ours *)queue)->exec, key, fn, ctx, NULL, NULL)));
}

static void keyline_submit_batch(void *queue, const kl_exec_task *tasks, size_t count)
{
    MUST(is_taken(kl_exec_submit_batch(((struct ours *)queue)->exec, tasks, count, NULL, NULL)));
}

static kl_outcome nothing(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    return KL_DONE;
}

static kl_exec_task keyline_knock(void *queue, size_t failing_key)
{
    struct ours *ours = queue;
    return (kl_exec_task){.key = {ours->failing_keys[failing_key], sizeof ours->failing_keys[0] - 1}, .fn = nothing};
}

static void keyline_finish(void *queue)
{
    struct ours *ours = queue;
    for (long i = 0; i < ours->failing; i++) {
        kl_rc rc = kl_exec_cancel(ours->exec, ours->failing_ids[i]);
        MUST(rc == KL_OK || rc == KL_EBUSY); /* still there: it did fail for ever */
    }
    MUST(kl_exec_drain(ours->exec, KL_FOREVER) == KL_OK);
    kl_exec_close(ours->exec);
    free(ours);
}

const struct side keyline_side = {"keyline",     keyline_open,  keyline_submit, keyline_submit_batch,
                                  keyline_knock, keyline_finish};

static void note_shard(void *ctx, const kl_exec_end *end) { *(uint32_t *)ctx = end->shard; }

size_t keyline_same_shard(kl_bytes *keys, size_t count)
{
    static uint32_t shard_of[KEYS];
    struct ours *ours = keyline_open(&(struct settings){.capacity = KEYS});
    MUST(count <= KEYS);
    for (size_t i = 0; i < count; i++) {
        kl_exec_task_opts opts = {.size = sizeof opts, .end = note_shard, .end_ctx = &shard_of[i]};
        MUST(kl_exec_submit(ours->exec, keys[i], nothing, NULL, &opts, NULL) == KL_OK);
    }
    keyline_finish(ours);

    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (shard_of[i] == shard_of[0])
            keys[n++] = keys[i];
    return n;
}
