/* hand.h - the tasks that a thread has taken and will run next, which others can take back.
 *
 * Taking one task at a time costs a mutex and a look at the clock for each. While tasks are short, a thread takes several
 * at once, each of another key. That must not show: when one of them blocks after all, the others must run elsewhere, and
 * keys whose tasks are done must go on. So a hand can be recalled at any moment by whoever holds the shard's mutex:
 *
 *      tasks[0 .. next-2] are done, tasks[next-1] is running, tasks[next .. count-1] have not started
 *
 * The thread starts a task by adding 1 to `next`; a recall replaces `next` by KL_HAND_RECALLED. Both are atomic
 * exchanges of one word, so each task is either started or recalled. The recaller ends what is done and returns what has
 * not started to the lanes, and clears their entries; what it leaves is the thread's own to settle. */
#ifndef KL_HAND_H
#define KL_HAND_H

#include "exec/internal.h"

#define KL_HAND_RECALLED (UINT32_C(1) << 31)

/* The next task to start, or NULL: there is none, or not any more. */
static inline kl__lane_task *kl__hand_next(kl__hand *hand, uint32_t *ret_index)
{
    uint32_t index = atomic_fetch_add(&hand->next, 1);
    *ret_index = index;
    return index < hand->count ? hand->tasks[index] : NULL;
}

/* Whether somebody who has nothing to do should recall this hand. */
static inline bool kl__hand_recallable(kl__hand *hand)
{
    return atomic_load_explicit(&hand->shard, memory_order_relaxed) != NULL &&
           atomic_load_explicit(&hand->next, memory_order_relaxed) < KL_HAND_RECALLED;
}

/* All under the shard's mutex. Fill takes up to `most` tasks and says how many. Settle ends what is left after running.
 * Recall_all takes back every hand that holds tasks of the shard: then whatever is not in fact running is in the lanes. */
uint32_t kl__hand_fill(kl__hand *hand, kl__shard *shard, uint32_t most, int64_t now_ns);
void kl__hand_settle(kl__hand *hand, kl__shard *shard, int64_t now_ns);
void kl__hand_recall(kl__hand *hand, kl__shard *shard, int64_t now_ns);
void kl__hand_recall_all(kl__shard *shard, int64_t now_ns);

#endif
