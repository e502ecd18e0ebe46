/* top_look.c - reads what `keyline top` shows. */
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/top.h"

static const kl__top_queue *find_queue(const kl__top *top, const char *name)
{
    for (size_t i = 0; top && i < top->queue_count; i++)
        if (strcmp(top->queues[i].name, name) == 0)
            return &top->queues[i];
    return NULL;
}

static void rate(const kl__top *before, const kl__top *top, kl__top_queue *queue)
{
    const kl__top_queue *old = find_queue(before, queue->name);
    double seconds = old ? (double)(top->at_ns - before->at_ns) / 1e9 : 0;
    queue->has_rates = seconds > 0;
    if (!queue->has_rates)
        return;
    queue->waiting_rate = ((double)queue->waiting - (double)old->waiting) / seconds;
    queue->finished_rate = ((double)queue->finished - (double)old->finished) / seconds;
}

static kl_rc look_at_workers(kl_queue *queue, const char *name, kl__top *top)
{
    size_t room = KL_TOP_WORKERS_MAX - top->worker_count, count = 0;
    kl_worker_status found[KL_TOP_WORKERS_MAX];
    kl_rc rc = room ? kl_queue_workers(queue, room, &top->arena, found, &count) : KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        top->workers[top->worker_count++] = (kl__top_worker){name, found[i]};
    return rc;
}

/* Puts it where it belongs; the shortest line falls out. */
static void add_key(kl__top *top, const kl__top_key *key)
{
    size_t at = top->key_count;
    while (at > 0 && top->keys[at - 1].status.waiting < key->status.waiting)
        at--;
    if (at == KL_TOP_KEYS_MAX)
        return;
    size_t last = top->key_count < KL_TOP_KEYS_MAX ? top->key_count++ : KL_TOP_KEYS_MAX - 1;
    memmove(&top->keys[at + 1], &top->keys[at], (last - at) * sizeof top->keys[0]);
    top->keys[at] = *key;
}

static kl_rc look_at_keys(kl_queue *queue, const char *name, kl__top *top)
{
    kl_key_status found[KL_TOP_KEYS_EACH];
    size_t count = 0;
    kl_rc rc = kl_key_list(queue, KL_KEYS_BY_DEPTH, KL_TOP_KEYS_LOOK_MAX, KL_TOP_KEYS_EACH, &top->arena, found, &count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        add_key(top, &(kl__top_key){name, found[i]});
    return rc;
}

static kl_rc look_at(kl_store *store, const char *name, const kl__top *before, kl__top *top)
{
    kl_queue *queue;
    kl__top_queue *entry = &top->queues[top->queue_count];
    kl_rc rc = kl_queue_find(store, name, &queue);
    if (rc != KL_OK)
        return rc == KL_ENOTFOUND ? KL_OK : rc; /* removed meanwhile */
    *entry = (kl__top_queue){.name = name};
    rc = kl_queue_show(queue, &top->arena, &entry->info);
    if (rc == KL_OK) {
        const kl_counts *counts = &entry->info.counts;
        entry->waiting = counts->ready + counts->due + counts->retry;
        entry->finished = counts->done + counts->dead + counts->cancelled;
        rate(before, top, entry);
        top->queue_count++;
        rc = look_at_workers(queue, name, top);
    }
    if (rc == KL_OK && entry->waiting)
        rc = look_at_keys(queue, name, top);
    kl_queue_close(queue);
    return rc;
}

kl_rc kl__top_look(kl_store *store, const kl__top *before, kl__top *ret_top)
{
    const char *names[KL_TOP_QUEUES_MAX];
    size_t count = 0;
    memset(ret_top, 0, sizeof *ret_top);
    ret_top->at_ns = kl__monotonic_ns();
    kl_rc rc = kl_store_now(store, &ret_top->now_ms);
    if (rc == KL_OK)
        rc = kl_queue_list(store, "", KL_TOP_QUEUES_MAX, &ret_top->arena, names, &count);
    ret_top->more_queues = count == KL_TOP_QUEUES_MAX;
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        rc = look_at(store, names[i], before, ret_top);
    if (rc != KL_OK)
        kl_arena_free(&ret_top->arena);
    return rc;
}
