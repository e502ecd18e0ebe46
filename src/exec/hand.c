/* hand.c - filling, settling and recalling hands. */
#include "exec/hand.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t kl__hand_most(void)
{
    bool has_membarrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    return has_membarrier ? KL_HAND_MAX : 1;
}

static bool pass_barrier_everywhere(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

/* The last first: each goes before those that are ready, and so they are taken again in the same order. */
static void untake(kl__hand *hand, kl__shard *shard, uint32_t from, int64_t now_ns)
{
    for (uint32_t i = hand->count; i-- > from;) {
        if (!hand->tasks[i])
            continue; /* it was recalled */
        bool started_before = --hand->tasks[i]->mark.attempts > 0;
        kl__lanes_untake(shard->lanes, hand->tasks[i], started_before, kl__ns_to_ms(now_ns));
        kl__shard_keep_deadline(shard, kl__exec_task_of(hand->tasks[i])); /* it may have passed, as if it had run */
        hand->tasks[i] = NULL;
    }
}

/* A task with a deadline, a report or an error text needs more care than a hand gives: it is taken alone. */
static void part_from_special(kl__hand *hand, kl__shard *shard, int64_t now_ns)
{
    for (uint32_t i = 0; i < hand->count; i++) {
        if (KL_UNLIKELY(hand->tasks[i]->mark.kind != 0 || kl__lane_goes_alone(hand->tasks[i]->lane))) {
            uint32_t keep = i > 0 ? i : 1;
            untake(hand, shard, keep, now_ns);
            hand->count = keep;
            hand->cut_short = true;
        }
    }
}

uint32_t kl__hand_fill(kl__hand *hand, kl__shard *shard, uint32_t most, int64_t *now_ns)
{
    hand->count = kl__shard_take(shard, hand->tasks, most, now_ns);
    if (hand->count == 0)
        hand->count = kl__shard_start(shard, hand->tasks, most, now_ns);
    for (uint32_t i = 0; i < hand->count; i++)
        hand->tasks[i]->mark.attempts++;
    hand->cut_short = false;
    if (hand->count > 1)
        part_from_special(hand, shard, *now_ns);
    atomic_store_explicit(&hand->next, 0, memory_order_relaxed);
    atomic_store_explicit(&hand->recalled, hand->count <= 1,
                          memory_order_relaxed); /* of one there is nothing to recall */
    atomic_store_explicit(&hand->filled_ns, *now_ns, memory_order_relaxed);
    atomic_store_explicit(&hand->shard, hand->count > 0 ? shard : NULL, memory_order_relaxed);
    return hand->count;
}

void kl__hand_settle(kl__hand *hand, kl__shard *shard, uint32_t ran, int64_t now_ns)
{
    untake(hand, shard, ran, now_ns);
    atomic_store_explicit(&hand->shard, NULL, memory_order_relaxed);
    kl__shard_end(shard, hand->tasks, hand->count, now_ns);
    hand->count = 0;
}

kl__lane_task *kl__hand_recheck(kl__hand *hand, uint32_t index)
{
    kl__shard *shard = atomic_load_explicit(&hand->shard, memory_order_relaxed);
    pthread_mutex_lock(&shard->mutex);
    kl__lane_task *task = hand->tasks[index];
    pthread_mutex_unlock(&shard->mutex);
    return task;
}

void kl__hand_recall(kl__hand *hand, kl__shard *shard, int64_t now_ns)
{
    if (atomic_load_explicit(&hand->shard, memory_order_relaxed) != shard ||
        atomic_load_explicit(&hand->recalled, memory_order_relaxed))
        return;
    atomic_store(&hand->recalled, true);
    if (KL_UNLIKELY(!pass_barrier_everywhere())) {
        /* A sandbox has closed around the process. What is in hand stays there; from now on hands are of one task. */
        atomic_store(&shard->exec->hand_most, 1);
        return;
    }
    uint32_t next = atomic_load_explicit(&hand->next, memory_order_acquire), done = next > 0 ? next - 1 : 0;
    kl__shard_end(shard, hand->tasks, done, now_ns);
    for (uint32_t i = 0; i < done; i++)
        hand->tasks[i] = NULL;
    untake(hand, shard, next, now_ns);
}

void kl__hand_recall_all(kl__shard *shard, int64_t now_ns)
{
    kl_exec *exec = shard->exec;
    for (uint32_t i = 0; i < exec->thread_count; i++)
        kl__hand_recall(&exec->threads[i].hand, shard, now_ns);
}
