/* hand.c - filling, settling and recalling hands. */
#include "exec/hand.h"

/* A task with a deadline, a report or an error text needs more care than a hand gives: it is taken alone. */
uint32_t kl__hand_fill(kl__hand *hand, kl__shard *shard, uint32_t most, int64_t now_ns)
{
    uint32_t count = 0;
    while (count < most) {
        kl__exec_task *task = kl__shard_take(shard, now_ns);
        if (!task)
            break;
        if (KL_UNLIKELY(task->extra != NULL)) {
            if (count > 0)
                kl__lanes_untake(shard->lanes, &task->lane, task->lane.attempts > 0, kl__ns_to_ms(now_ns));
            else
                hand->tasks[count++] = task;
            break;
        }
        hand->tasks[count++] = task;
    }
    hand->count = count;
    atomic_store_explicit(&hand->shard, shard, memory_order_relaxed);
    atomic_store_explicit(&hand->next, count > 1 ? 0 : KL_HAND_RECALLED,
                          memory_order_relaxed); /* one: nothing to recall */
    return count;
}

void kl__hand_settle(kl__hand *hand, kl__shard *shard, int64_t now_ns)
{
    atomic_store_explicit(&hand->shard, NULL, memory_order_relaxed);
    for (uint32_t i = 0; i < hand->count; i++)
        if (hand->tasks[i])
            kl__shard_end(shard, hand->tasks[i], now_ns);
    hand->count = 0;
}

void kl__hand_recall(kl__hand *hand, kl__shard *shard, int64_t now_ns)
{
    if (atomic_load_explicit(&hand->shard, memory_order_relaxed) != shard)
        return;
    uint32_t next = atomic_exchange(&hand->next, KL_HAND_RECALLED);
    if (next >= KL_HAND_RECALLED)
        return;
    uint32_t done = next > hand->count ? hand->count : next > 0 ? next - 1 : 0;
    for (uint32_t i = 0; i < done; i++) {
        if (hand->tasks[i])
            kl__shard_end(shard, hand->tasks[i], now_ns);
        hand->tasks[i] = NULL;
    }
    for (uint32_t i = next; i < hand->count; i++) {
        kl__lanes_untake(shard->lanes, &hand->tasks[i]->lane, hand->tasks[i]->lane.attempts > 0, kl__ns_to_ms(now_ns));
        hand->tasks[i] = NULL;
    }
}

void kl__hand_recall_all(kl__shard *shard, int64_t now_ns)
{
    kl_exec *exec = shard->exec;
    for (uint32_t i = 0; i < exec->thread_count; i++)
        kl__hand_recall(&exec->threads[i].hand, shard, now_ns);
}
