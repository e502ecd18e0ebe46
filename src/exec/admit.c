/* admit.c - how much of a shard may be taken up by what cannot run.
 *
 * The tasks of a key that waits for its retry, or is paused, keep their places for as long as that takes, and so does a
 * task that is not due. A producer that goes on submitting such tasks would fill the shard, and its other keys would wait
 * after all. So they get half of the places together, and a key of them what the others leave of that:
 *
 *      stuck tasks of this key + stuck tasks of all keys  <  capacity / 2
 *
 * One key alone gets a quarter of the shard, two a sixth each, and there is always some left for one more. What a key had
 * in line before it was blocked stays, whatever it was; for that, places are lent (shard.c). Between being admitted and
 * claiming a place there is no mutex, so of several threads that submit at the same moment each may be one too many.
 *
 * Hardly a submit comes here: the lanes show signs of blocked keys, which producers look at without the mutex. */
#include "exec/internal.h"

#include "base/wait.h"

enum { LOOK_NS = 2000000 };

/* Whether one more task of the key may come in. *ret_refusal tells what there is, if not. */
static bool has_share(kl__shard *shard, const kl__lane_key *key, bool delayed, kl__refusal *ret_refusal)
{
    const kl__lane *lane = kl__lanes_find(shard->lanes, key);
    bool blocked = lane && kl__lane_blocked(lane), keyed = key->bytes.len > 0;
    if (!blocked && !delayed)
        return true;
    uint64_t stuck = kl__lanes_stuck(shard->lanes), own = lane && keyed ? kl__lane_stuck(lane) : 0;
    if (stuck == 0 || own + stuck < shard->inbox.capacity / 2)
        return true;
    *ret_refusal = (kl__refusal){.state = blocked ? kl__lane_state_of(lane) : KL_LANE_DELAYED,
                                 .key_tasks = (uint32_t)own,
                                 .stuck = (uint32_t)stuck};
    return false;
}

/* The same, and nothing of it is still on the way. */
static bool is_admitted(kl__shard *shard, const kl__lane_key *key, bool delayed, kl__refusal *ret_refusal)
{
    if (!has_share(shard, key, delayed, ret_refusal))
        return false;
    kl__shard_drain_inbox(shard, UINT64_MAX, kl__exec_now_ns(shard->exec)); /* without memory, as far as it goes */
    return has_share(shard, key, delayed, ret_refusal);
}

kl_rc kl__shard_admit(kl__shard *shard, const kl__lane_key *key, bool delayed, bool patient, kl__refusal *ret_refusal)
{
    kl_rc rc;
    pthread_mutex_lock(&shard->mutex);
    for (;;) {
        bool admitted = is_admitted(shard, key, delayed, ret_refusal);
        rc = admitted ? KL_OK : kl__inbox_is_shut(&shard->inbox) ? KL_ECLOSED : KL_EFULL;
        if (rc != KL_EFULL || !patient)
            break;
        kl__shard_offer(shard);
        kl__cond_wait(&shard->room, &shard->mutex, kl__monotonic_ns() + LOOK_NS);
    }
    kl__shard_offer(shard); /* what came in needs a thread */
    pthread_mutex_unlock(&shard->mutex);
    return rc;
}
