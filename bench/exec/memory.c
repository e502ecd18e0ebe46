/* memory.c - what a queued task costs in memory, everything the executor allocates counted.
 *
 * Tasks that wait at a gate keep every thread busy; then the queues are filled to the brim. The growth of the heap
 * since before the executor was opened, divided by the tasks it holds, is the price of a task. Stacks are not heap. */
#include "bench.h"

#include <malloc.h>
#include <semaphore.h>

enum { THREADS = 2, CAPACITY = 8192 };

static sem_t gate, arrivals;

static kl_outcome wait_at_gate(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    sem_post(&arrivals);
    sem_wait(&gate);
    return KL_DONE;
}

static kl_outcome nothing(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    return KL_DONE;
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd; /* in use, in the arenas and mapped on their own */
}

/* Submits until every shard is full; key i is i modulo key_count. */
static size_t fill(kl_exec *exec, size_t key_count)
{
    size_t queued = 0, refused_in_a_row = 0;
    for (size_t i = 0; refused_in_a_row < KEYS; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%04zu", i % key_count);
        kl_rc rc = kl_exec_submit(exec, kl_str(key), nothing, NULL, NULL, NULL);
        MUST(rc == KL_OK || rc == KL_EFULL);
        queued += rc == KL_OK;
        refused_in_a_row = rc == KL_OK ? 0 : refused_in_a_row + 1;
    }
    return queued;
}

void measure_memory(size_t key_count)
{
    MUST(sem_init(&gate, 0, 0) == 0 && sem_init(&arrivals, 0, 0) == 0);
    kl_exec_opts opts = {.size = sizeof opts,
                         .shards = SHARDS,
                         .threads = THREADS,
                         .shard_capacity = CAPACITY,
                         .submit_timeout_ms = KL_NO_WAIT};
    size_t before = heap_bytes();
    kl_exec *exec;
    MUST(kl_exec_open(&opts, &exec) == KL_OK);
    for (int i = 0; i < THREADS; i++) {
        MUST(kl_exec_submit(exec, kl_str(i ? "gate-1" : "gate-0"), wait_at_gate, NULL, NULL, NULL) == KL_OK);
        sem_wait(&arrivals);
    }
    size_t queued = fill(exec, key_count);
    size_t full = heap_bytes() - before;
    MUST(queued == SHARDS * CAPACITY - THREADS);
    printf("bytes %.1f\n", (double)full / (double)(queued + THREADS));

    for (int i = 0; i < THREADS; i++)
        sem_post(&gate);
    MUST(kl_exec_drain(exec, KL_FOREVER) == KL_OK);
    kl_exec_close(exec);
}
