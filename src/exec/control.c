/* control.c - looking at tasks and keys, and steering them: status, cancel, pause, skip, drain, barrier.
 *
 * None of this is on the hot path: each call takes the shard's mutex, recalls the hands that hold its tasks and empties
 * its inbox, so that it sees every task whose submit has returned, and all that no thread is about to run. */
#include "exec/internal.h"

#include "base/wait.h"
#include "exec/hand.h"

kl_rc kl__shard_look_closely(kl__shard *shard)
{
    int64_t now_ns = kl__exec_now_ns(shard->exec);
    kl__hand_recall_all(shard, now_ns);
    kl_rc rc = kl__shard_drain_inbox(shard, UINT64_MAX, now_ns);
    kl__lanes_advance(shard->lanes, kl__ns_to_ms(now_ns));
    return rc;
}

/* Between looks at an inbox in which somebody is about to publish. Not a yield: if we are more urgent than he is, that
 * would keep him from it for ever. */
enum { NAP_NS = 50000 };

/* Ends a visit of this file: what has become ready needs a thread. */
static void leave(kl__shard *shard)
{
    kl__shard_offer(shard);
    pthread_mutex_unlock(&shard->mutex);
}

/* --- One task --- */

static kl_rc fail_gone(void)
{
    return kl__fail(KL_ENOTFOUND, "there is no such task: it has ended, or the id is not from this executor");
}

/* Whether the task with this id has entered the lanes and not ended. Its memory may be another's by now, or free and
 * just being filled in; only while a task lives does it have a place. */
static bool is_alive(const kl__shard *shard, const kl__exec_task *task, kl_exec_id id)
{
    return __atomic_load_n(&task->lane.mark.place, __ATOMIC_RELAXED) != KL_PLACE_NONE &&
           kl__exec_id(shard, task, task->lane.position) == id;
}

/* Finds a live task and returns with its shard's mutex held. A task is briefly out of sight while the submit of another
 * one, before it in the inbox, is under way. */
static kl_rc find_task(kl_exec *exec, kl_exec_id id, kl__shard **ret_shard, kl__exec_task **ret_task)
{
    uint64_t index = (id & ((UINT64_C(1) << exec->index_bits) - 1)) - 1; /* of no id: far too large */
    uint64_t shard_index = (id >> exec->index_bits) & ((UINT64_C(1) << exec->shard_bits) - 1);
    if (shard_index >= exec->shard_count || index >= exec->shards[shard_index].task_count)
        return fail_gone();
    kl__shard *shard = &exec->shards[shard_index];
    kl__exec_task *task = &shard->tasks[index];
    for (uint64_t claimed = kl__inbox_claimed(&shard->inbox);;) {
        pthread_mutex_lock(&shard->mutex);
        kl_rc rc = kl__shard_look_closely(shard);
        if (is_alive(shard, task, id)) {
            *ret_shard = shard;
            *ret_task = task;
            return KL_OK;
        }
        bool entered = atomic_load(&shard->inbox.drained) >= claimed;
        leave(shard);
        if (entered)
            return fail_gone();
        if (rc != KL_OK)
            return kl__fail_memory();
        kl__nap(NAP_NS);
    }
}

/* It has ended, or never will run, and is just being reported. */
static bool is_over(const kl__exec_task *task)
{
    return task->lane.mark.place == KL_PLACE_OUT || kl__stop_asked(task) == KL_STOP_OVER;
}

kl_rc kl_exec_cancel(kl_exec *exec, kl_exec_id id)
{
    if (!exec)
        return kl__exec_fail_null("kl_exec_cancel", "exec");
    kl__shard *shard = NULL;
    kl__exec_task *task = NULL;
    kl_rc rc = find_task(exec, id, &shard, &task);
    if (rc != KL_OK)
        return rc;
    if (is_over(task)) {
        rc = fail_gone();
    } else if (task->lane.mark.place == KL_PLACE_RUNNING) {
        kl__ask_stop(task, KL_STOP_CANCEL);
        rc = kl__fail(KL_EBUSY, "the task is running: it has been asked to stop and will not be retried");
    } else {
        kl__lanes_withdraw(shard->lanes, &task->lane, kl__exec_now_ms(exec));
        kl__shard_end_chain(shard, &task->lane, KL_CANCELLED, KL_ECANCELLED);
    }
    leave(shard);
    return rc;
}

static kl_exec_state state_of(const kl__exec_task *task, int64_t now_ms)
{
    switch ((kl__lane_place)task->lane.mark.place) {
    case KL_PLACE_RUNNING:
        return KL_EXEC_RUNNING;
    case KL_PLACE_HELD:
        return task->lane.due_ms > now_ms ? KL_EXEC_RETRYING : KL_EXEC_WAITING;
    case KL_PLACE_LATER: /* where a failed task without a key waits, too */
        return task->lane.mark.attempts > 0 ? KL_EXEC_RETRYING : KL_EXEC_DELAYED;
    default:
        return KL_EXEC_WAITING;
    }
}

/* In whole milliseconds, so never more than was asked for. */
static int64_t due_in(const kl_exec *exec, int64_t due_ms)
{
    int64_t now_ms = kl__ms_after(kl__exec_now_ns(exec), 0);
    return due_ms > now_ms && due_ms != KL_NEVER ? due_ms - now_ms : 0;
}

kl_rc kl_exec_status_of(kl_exec *exec, kl_exec_id id, kl_exec_status *ret_status)
{
    kl__shard *shard = NULL;
    kl__exec_task *task = NULL;
    if (!exec || !ret_status)
        return kl__exec_fail_null("kl_exec_status_of", exec ? "ret_status" : "exec");
    kl_rc rc = find_task(exec, id, &shard, &task);
    if (rc != KL_OK)
        return rc;
    if (is_over(task)) {
        leave(shard);
        return fail_gone();
    }
    kl_exec_state state = state_of(task, kl__exec_now_ms(exec));
    *ret_status = (kl_exec_status){
        .state = state,
        .attempts = task->lane.mark.attempts,
        .due_in_ms = state == KL_EXEC_DELAYED || state == KL_EXEC_RETRYING ? due_in(exec, task->lane.due_ms) : 0,
        .stop_asked = state == KL_EXEC_RUNNING && kl__task_stopping(exec, task),
    };
    leave(shard);
    return KL_OK;
}

/* --- One key --- */

/* Returns with the mutex of the key's shard held and its inbox empty, as far as it is published. So many places had
 * been claimed when it was emptied. */
static kl_rc enter_claimed(const char *call, kl_exec *exec, kl_bytes key, kl__shard **ret_shard, kl__lane_key *ret_key,
                           uint64_t *ret_claimed)
{
    if (!exec)
        return kl__exec_fail_null(call, "exec");
    kl_rc rc = kl__exec_check_key(key);
    if (rc != KL_OK)
        return rc;
    if (key.len == 0)
        return kl__fail(KL_EINVAL, "this call needs a key; tasks without one have no line to act on");
    uint64_t hash;
    kl__shard *shard = kl__exec_shard_of(exec, key, &hash);
    *ret_key = (kl__lane_key){key, (uint32_t)hash};
    pthread_mutex_lock(&shard->mutex);
    *ret_claimed = kl__inbox_claimed(&shard->inbox);
    if (kl__shard_look_closely(shard) != KL_OK) {
        leave(shard);
        return kl__fail_memory();
    }
    *ret_shard = shard;
    return KL_OK;
}

static kl_rc enter(const char *call, kl_exec *exec, kl_bytes key, kl__shard **ret_shard, kl__lane_key *ret_key)
{
    uint64_t claimed;
    return enter_claimed(call, exec, key, ret_shard, ret_key, &claimed);
}

/* Empties the shard's inbox of everything that was claimed before the call. Holds its mutex on return, unless it fails.
 * KL_ETIMEDOUT: until_ns has come, and something is not published yet; without a sentence. */
static kl_rc enter_all(const char *call, kl_exec *exec, kl_bytes key, int64_t until_ns, kl__shard **ret_shard,
                       kl__lane_key *ret_key)
{
    uint64_t claimed;
    kl_rc rc = enter_claimed(call, exec, key, ret_shard, ret_key, &claimed);
    while (rc == KL_OK && atomic_load(&(*ret_shard)->inbox.drained) < claimed) {
        leave(*ret_shard); /* somebody is about to publish */
        if (kl__monotonic_ns() >= until_ns)
            return KL_ETIMEDOUT;
        kl__nap(NAP_NS);
        rc = enter(call, exec, key, ret_shard, ret_key);
    }
    return rc;
}

kl_rc kl_exec_key_show(kl_exec *exec, kl_bytes key, kl_key_info *ret_info)
{
    static const kl_key_state states[KL_LANE_STATES] = {
        [KL_LANE_IDLE] = KL_KEY_IDLE,         [KL_LANE_READY] = KL_KEY_READY,     [KL_LANE_RUNNING] = KL_KEY_RUNNING,
        [KL_LANE_RETRYING] = KL_KEY_RETRYING, [KL_LANE_DELAYED] = KL_KEY_DELAYED, [KL_LANE_PAUSED] = KL_KEY_PAUSED,
        [KL_LANE_HALTED] = KL_KEY_HALTED,
    };
    kl__shard *shard = NULL;
    kl__lane_key lane_key;
    if (!ret_info)
        return kl__exec_fail_null("kl_exec_key_show", "ret_info");
    kl_rc rc = enter_all("kl_exec_key_show", exec, key, KL_NEVER, &shard, &lane_key);
    if (rc != KL_OK)
        return rc;
    kl__lane_info info = kl__lanes_show(shard->lanes, &lane_key);
    if (info.state == KL_LANE_IDLE && info.tasks > 0)
        info.state = KL_LANE_RUNNING; /* they are withdrawn, and just being reported */
    *ret_info = (kl_key_info){states[info.state], info.tasks, due_in(exec, info.until_ms)};
    leave(shard);
    return KL_OK;
}

kl_rc kl_exec_key_pause(kl_exec *exec, kl_bytes key)
{
    kl__shard *shard = NULL;
    kl__lane_key lane_key;
    kl_rc rc = enter("kl_exec_key_pause", exec, key, &shard, &lane_key);
    if (rc != KL_OK)
        return rc;
    if (atomic_load(&exec->phase) != KL_EXEC_OPEN)
        rc = kl__fail(KL_ECLOSED,
                      "the executor is stopping, and a paused key would keep it from ending; drain the key instead");
    else if (kl__lanes_pause(shard->lanes, &lane_key, kl__exec_now_ms(exec)) != KL_OK)
        rc = kl__fail_memory();
    leave(shard);
    return rc;
}

kl_rc kl_exec_key_resume(kl_exec *exec, kl_bytes key)
{
    kl__shard *shard = NULL;
    kl__lane_key lane_key;
    kl_rc rc = enter("kl_exec_key_resume", exec, key, &shard, &lane_key);
    if (rc != KL_OK)
        return rc;
    kl__lanes_resume(shard->lanes, &lane_key, kl__exec_now_ms(exec));
    leave(shard);
    return KL_OK;
}

kl_rc kl_exec_key_skip(kl_exec *exec, kl_bytes key)
{
    kl__shard *shard = NULL;
    kl__lane_key lane_key;
    bool running;
    kl_rc rc = enter_all("kl_exec_key_skip", exec, key, KL_NEVER, &shard, &lane_key);
    if (rc != KL_OK)
        return rc;
    kl__lane_task *task = kl__lanes_skip(shard->lanes, &lane_key, kl__exec_now_ms(exec), &running);
    if (task)
        kl__shard_end_chain(shard, task, KL_CANCELLED, KL_ECANCELLED);
    else if (running)
        rc = kl__fail(KL_EBUSY, "the key's first task is running; cancel it, or skip it once it has failed");
    else
        rc = kl__fail(KL_ENOTFOUND, "the key has no task to skip; kl_exec_key_show tells what it has");
    leave(shard);
    return rc;
}

kl_rc kl_exec_key_drain(kl_exec *exec, kl_bytes key, uint64_t *ret_count)
{
    kl__shard *shard = NULL;
    kl__lane_key lane_key;
    kl_rc rc = enter_all("kl_exec_key_drain", exec, key, KL_NEVER, &shard, &lane_key);
    if (rc != KL_OK)
        return rc;
    uint64_t count = 0;
    kl__lane_task *chain = kl__lanes_drain(shard->lanes, &lane_key, kl__exec_now_ms(exec));
    for (kl__lane_task *task = chain; task; task = task->next)
        count++;
    kl__shard_end_chain(shard, chain, KL_CANCELLED, KL_ECANCELLED);
    leave(shard);
    if (ret_count)
        *ret_count = count;
    return KL_OK;
}

/* --- Barrier --- */

struct barrier {
    kl__lane_barrier lane;
    pthread_cond_t ended;
    bool reached;
};

/* Called under the shard's mutex. */
static void barrier_reached(kl__lane_barrier *lane)
{
    struct barrier *barrier = KL_CONTAINER(lane, struct barrier, lane);
    barrier->reached = true;
    pthread_cond_signal(&barrier->ended);
}

static kl_rc fail_barrier(int64_t wait_ms)
{
    return kl__fail(
        KL_ETIMEDOUT,
        "not everything before the barrier ended within %lld ms; wait again, or ask kl_exec_key_show what the "
        "key is doing",
        (long long)wait_ms);
}

kl_rc kl_exec_barrier(kl_exec *exec, kl_bytes key, int64_t wait_ms)
{
    kl_rc rc = kl__exec_check_wait("kl_exec_barrier", wait_ms);
    if (rc != KL_OK)
        return rc;
    if (exec && kl__is_inside(exec))
        return kl__fail(
            KL_EBUSY, "a barrier inside a task or a report would wait for the task itself; submit what comes after it "
                      "instead");
    int64_t until_ns = kl__deadline_ns(wait_ms);
    kl__shard *shard = NULL;
    kl__lane_key lane_key;
    rc = enter_all("kl_exec_barrier", exec, key, until_ns, &shard, &lane_key);
    if (rc != KL_OK)
        return rc == KL_ETIMEDOUT ? fail_barrier(wait_ms) : rc;
    struct barrier barrier = {.lane = {.position = atomic_load(&shard->inbox.drained), .reached = barrier_reached}};
    kl__cond_init(&barrier.ended);
    if (kl__lanes_await(shard->lanes, &lane_key, &barrier.lane)) {
        kl__shard_offer(shard); /* what came in needs a thread while we wait */
        while (!barrier.reached && kl__cond_wait(&barrier.ended, &shard->mutex, until_ns))
            ;
        if (!barrier.reached) {
            kl__lanes_forget(shard->lanes, &lane_key, &barrier.lane);
            rc = fail_barrier(wait_ms);
        }
    }
    leave(shard);
    pthread_cond_destroy(&barrier.ended);
    return rc;
}
