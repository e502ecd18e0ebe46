/* mutex.c - the plain design to compare with: for each shard a bounded ring, a mutex, two conditions and one worker.
 *
 * No retry, no stealing, no priorities; a blocked task blocks its whole shard. Within that it is as fast as it gets:
 * the worker runs up to 64 tasks in place for each time it takes the lock, a batch is pushed under one lock a shard,
 * nobody is woken who does not wait, and producers are woken only when half of the ring is free. */
#include "bench.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>

#define RUN_MAX 64

struct slot {
    kl_task_fn *fn;
    void *ctx;
};

struct shard {
    alignas(64) pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    struct slot *ring;
    size_t capacity;   /* a power of two */
    size_t head, tail; /* positions, not indexes; what runs is still between them */
    bool worker_waits, closed;
    int producers_wait;
    pthread_t worker;
};

static struct slot *slot_at(struct shard *shard, size_t position)
{
    return &shard->ring[position & (shard->capacity - 1)];
}

static uint32_t shard_of(kl_bytes key)
{
    const unsigned char *text = key.data;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < key.len; i++)
        hash = (hash ^ text[i]) * 16777619u;
    return hash % SHARDS;
}

/* Waits for tasks and returns how many to run: 0 when there will be none. The lock is held. */
static size_t wait_for_tasks(struct shard *shard)
{
    while (shard->head == shard->tail && !shard->closed) {
        shard->worker_waits = true;
        pthread_cond_wait(&shard->filled, &shard->lock);
    }
    size_t n = shard->tail - shard->head;
    return n < RUN_MAX ? n : RUN_MAX;
}

static void *work(void *arg)
{
    struct shard *shard = arg;
    size_t n;
    pthread_mutex_lock(&shard->lock);
    while ((n = wait_for_tasks(shard)) > 0) {
        pthread_mutex_unlock(&shard->lock);
        for (size_t i = 0; i < n; i++) {
            struct slot *slot = slot_at(shard, shard->head + i);
            slot->fn(NULL, slot->ctx);
        }
        pthread_mutex_lock(&shard->lock);
        shard->head += n;
        if (shard->producers_wait && shard->tail - shard->head <= shard->capacity / 2)
            pthread_cond_broadcast(&shard->freed);
    }
    pthread_mutex_unlock(&shard->lock);
    return NULL;
}

static void wait_for_room(struct shard *shard)
{
    while (shard->tail - shard->head == shard->capacity) {
        shard->producers_wait++;
        pthread_cond_signal(&shard->filled); /* a batch may have filled the ring before the worker heard of it */
        pthread_cond_wait(&shard->freed, &shard->lock);
        shard->producers_wait--;
    }
}

static void push(struct shard *shard, const struct slot *slots, size_t count)
{
    pthread_mutex_lock(&shard->lock);
    for (size_t i = 0; i < count; i++) {
        wait_for_room(shard);
        *slot_at(shard, shard->tail++) = slots[i];
    }
    bool wake = shard->worker_waits;
    shard->worker_waits = false;
    pthread_mutex_unlock(&shard->lock);
    if (wake)
        pthread_cond_signal(&shard->filled);
}

static void mutex_submit(void *queue, kl_bytes key, kl_task_fn *fn, void *ctx)
{
    struct shard *shards = queue;
    push(&shards[shard_of(key)], &(struct slot){fn, ctx}, 1);
}

static void mutex_submit_batch(void *queue, const kl_exec_task *tasks, size_t count)
{
    struct shard *shards = queue;
    struct slot slots[SHARDS][BATCH_MAX];
    size_t counts[SHARDS] = {0};
    for (size_t i = 0; i < count; i++) {
        uint32_t s = shard_of(tasks[i].key);
        slots[s][counts[s]++] = (struct slot){tasks[i].fn, tasks[i].ctx};
    }
    for (int s = 0; s < SHARDS; s++)
        if (counts[s])
            push(&shards[s], slots[s], counts[s]);
}

static void *mutex_open(const struct settings *settings)
{
    struct shard *shards = aligned_alloc(alignof(struct shard), SHARDS * sizeof *shards);
    MUST(shards && (settings->capacity & (settings->capacity - 1)) == 0);
    for (int s = 0; s < SHARDS; s++) {
        shards[s] = (struct shard){.capacity = (size_t)settings->capacity};
        pthread_mutex_init(&shards[s].lock, NULL);
        pthread_cond_init(&shards[s].filled, NULL);
        pthread_cond_init(&shards[s].freed, NULL);
        MUST(shards[s].ring = calloc(shards[s].capacity, sizeof(struct slot)));
        MUST(pthread_create(&shards[s].worker, NULL, work, &shards[s]) == 0);
    }
    return shards;
}

static void mutex_finish(void *queue)
{
    struct shard *shards = queue;
    for (int s = 0; s < SHARDS; s++) {
        pthread_mutex_lock(&shards[s].lock);
        shards[s].closed = true;
        pthread_cond_signal(&shards[s].filled);
        pthread_mutex_unlock(&shards[s].lock);
        pthread_join(shards[s].worker, NULL);
        free(shards[s].ring);
    }
    free(shards);
}

const struct side mutex_side = {"mutex", mutex_open, mutex_submit, mutex_submit_batch, NULL, mutex_finish};
