/* hand.h - the tasks that a thread has taken and will run next, which others can take back.
 *
 * Taking one task at a time costs a mutex and a look at the clock for each. While tasks are short, a thread takes
 * several at once, each of another key. That must not show: when one of them blocks after all, the others must run
 * elsewhere, and keys whose tasks are done must go on. So a hand can be recalled at any moment by whoever holds the
 * shard's mutex:
 *
 *      tasks[0 .. next-2] are done, tasks[next-1] is the thread's, tasks[next .. count-1] have not started
 *
 * The thread claims a task by storing `next`, then looks at `recalled`. The recaller stores `recalled`, then looks at
 * `next`. For one of them to see the other, each needs a full barrier between its two steps. The thread would pay for
 * it with every task, so the recaller pays for both: membarrier(2) makes all threads of the process pass a barrier. If
 * the thread's store came before that, the recaller sees it and leaves the task alone; if not, the thread's look comes
 * after it and sees the recall. When it sees one, it asks under the mutex whether the task is still its own.
 *
 * The recaller ends what is done, returns to the lanes what has not started, and clears their entries; what it leaves
 * is the thread's own to settle. Where the kernel has no membarrier, hands are of one task, and there is nothing to
 * recall. */
#ifndef KL_HAND_H
#define KL_HAND_H

#include "exec/internal.h"

/* The largest hand that this process can use. */
uint32_t kl__hand_most(void);

/* After a recall: the task if it was left to the thread, or NULL. */
kl__lane_task *kl__hand_recheck(kl__hand *hand, uint32_t index);

/* Claims the hand's task number `index`, to be asked for in order. NULL: there is none, or not any more. */
static inline kl__lane_task *kl__hand_claim(kl__hand *hand, uint32_t index)
{
    if (index == hand->count)
        return NULL;
    atomic_store_explicit(&hand->next, index + 1, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler's part of the barrier; membarrier is the processor's */
    if (KL_LIKELY(!atomic_load_explicit(&hand->recalled, memory_order_relaxed)))
        return hand->tasks[index];
    return kl__hand_recheck(hand, index);
}

/* Whether somebody who has nothing to do should recall this hand. */
static inline bool kl__hand_recallable(kl__hand *hand)
{
    return atomic_load(&hand->shard) != NULL && !atomic_load(&hand->recalled);
}

/* All under the shard's mutex. Fill takes up to `most` tasks, says how many, and sets the time anew where reports took
 * some of it. Settle, by the thread itself, ends the first `ran` and returns the others. Recall does the same for
 * another thread, up to the task that it is running; recall_all for every hand that holds tasks of the shard: then all
 * that no thread is about to run is in the lanes. */
uint32_t kl__hand_fill(kl__hand *hand, kl__shard *shard, uint32_t most, int64_t *now_ns);
void kl__hand_settle(kl__hand *hand, kl__shard *shard, uint32_t ran, int64_t now_ns);
void kl__hand_recall(kl__hand *hand, kl__shard *shard, int64_t now_ns);
void kl__hand_recall_all(kl__shard *shard, int64_t now_ns);

#endif
