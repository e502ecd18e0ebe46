/* stop.c - ending an executor: drain, drain with a deadline, abort.
 *
 *      OPEN --> DRAINING --> ABORTING        and never back
 *
 * Stopping shuts every inbox, which is atomic against claims: a submit has either claimed its place before, and then
 * the task is run or reported, or it gets KL_ECLOSED. The executor is over when every shard is shut and has ended as
 * many tasks as it has claimed. */
#include "exec/internal.h"

#include "base/wait.h"

bool kl__exec_all_ended(kl_exec *exec)
{
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        kl__inbox *inbox = &exec->shards[i].inbox;
        uint64_t tail = atomic_load(&inbox->tail);
        if (!(tail & KL_INBOX_CLOSED) || (tail & KL_INBOX_COUNT_MASK) != atomic_load(&inbox->ended))
            return false;
    }
    return true;
}

void kl__exec_note_end(kl_exec *exec)
{
    if (!kl__exec_all_ended(exec))
        return;
    pthread_mutex_lock(&exec->park_mutex);
    pthread_cond_broadcast(&exec->all_ended);
    pthread_mutex_unlock(&exec->park_mutex);
    kl__exec_wake_all(exec);
}

/* False: it was there already, or further. */
static bool raise_phase(kl_exec *exec, kl__exec_phase phase)
{
    int old = atomic_load(&exec->phase);
    while (old < (int)phase)
        if (atomic_compare_exchange_weak(&exec->phase, &old, phase))
            return true;
    return false;
}

/* Does to every shard what the phase asks for. */
static void stop_shards(kl_exec *exec)
{
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        kl__shard *shard = &exec->shards[i];
        pthread_mutex_lock(&shard->mutex);
        kl__answers_forget(shard); /* first: who is refused after that sees that it is shut */
        kl__inbox_shut(&shard->inbox);
        pthread_cond_broadcast(&shard->room); /* those who wait for room wait in vain */
        if (atomic_load(&exec->phase) == KL_EXEC_ABORTING)
            kl__shard_give_up(shard);
        else
            kl__lanes_resume_all(shard->lanes, kl__exec_now_ms(exec));
        kl__shard_offer(shard);
        pthread_mutex_unlock(&shard->mutex);
    }
    kl__exec_wake_all(exec);
}

/* False: until_ns came first. Looks once more then: the end may have come while we were waiting for a core. */
static bool wait_for_end(kl_exec *exec, int64_t until_ns)
{
    bool ended, in_time = true;
    pthread_mutex_lock(&exec->park_mutex);
    while (!(ended = kl__exec_all_ended(exec)) && in_time)
        in_time = kl__cond_wait(&exec->all_ended, &exec->park_mutex, until_ns);
    pthread_mutex_unlock(&exec->park_mutex);
    return ended;
}

static kl_rc fail_inside(const char *call)
{
    return kl__fail(KL_EBUSY,
                    "%s was called inside a task or a report: the stop has begun, but a task cannot wait for itself",
                    call);
}

/* All tasks have ended: by themselves? */
static kl_rc judge_drain(kl_exec *exec)
{
    uint64_t given_up = atomic_load(&exec->given_up);
    if (given_up == 0)
        return KL_OK;
    return kl__fail(KL_ECLOSED,
                    "the executor was aborted meanwhile: %llu task%s given up and reported; submit to a new one "
                    "what is still wanted",
                    (unsigned long long)given_up, given_up == 1 ? " was" : "s were");
}

kl_rc kl_exec_drain(kl_exec *exec, int64_t wait_ms)
{
    if (!exec)
        return kl__exec_fail_null("kl_exec_drain", "exec");
    kl_rc rc = kl__exec_check_wait("kl_exec_drain", wait_ms);
    if (rc != KL_OK)
        return rc;
    int64_t until_ns = kl__deadline_ns(wait_ms);
    bool begins = raise_phase(exec, KL_EXEC_DRAINING);
    stop_shards(exec);
    if (begins) /* after that: who is cancelled while he writes it must not leave half of it undone */
        kl__exec_log(exec, KL_LOG_INFO, "draining %u shard%s", exec->shard_count, kl__plural(exec->shard_count));
    if (kl__is_inside(exec))
        return fail_inside("kl_exec_drain");
    if (wait_for_end(exec, until_ns))
        return judge_drain(exec);
    begins = raise_phase(exec, KL_EXEC_ABORTING);
    stop_shards(exec);
    if (begins)
        kl__exec_log(exec, KL_LOG_WARN, "the drain took too long; giving up what is left");
    wait_for_end(exec, KL_NEVER);
    return kl__fail(KL_ETIMEDOUT, "not everything ended within %lld ms; the rest was given up and reported",
                    (long long)wait_ms);
}

kl_rc kl_exec_abort(kl_exec *exec)
{
    if (!exec)
        return kl__exec_fail_null("kl_exec_abort", "exec");
    (void)raise_phase(exec, KL_EXEC_ABORTING);
    stop_shards(exec);
    if (kl__is_inside(exec))
        return fail_inside("kl_exec_abort");
    wait_for_end(exec, KL_NEVER);
    return KL_OK;
}
