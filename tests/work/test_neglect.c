/* test_neglect.c - a task that takes long holds up nobody in its thread's hand, although no other thread is ever idle.
 *
 * Which tasks share a hand is the worker's business, so the handler chooses as it goes: some run takes long, and the
 * other thread is kept for a moment, until that can be seen. Each key has two tasks. The second ones come into the line
 * as the first ones are done, so there is always something to run; and what waits behind the long one has its turn
 * before those of keys that were done after it. */
#include <sched.h>

#include "work/support.h"
#include "work/worker_inside.h"

enum { KEYS = 1500, LONG_AT = 300 };

struct crowd {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int first, second;  /* runs that were begun of first and of second tasks of a key */
    int second_at_last; /* of the second ones, when the last of the first ones began */
    bool is_read, is_long, was_beside, may_end;
    int64_t long_since_ns;
};

/* With the mutex held, until it is set. */
static void wait_for(struct crowd *crowd, const bool *flag)
{
    while (!*flag)
        pthread_cond_wait(&crowd->changed, &crowd->mutex);
}

static void set(struct crowd *crowd, bool *flag)
{
    *flag = true;
    pthread_cond_broadcast(&crowd->changed);
}

static void take_part(struct crowd *crowd)
{
    if (crowd->first == LONG_AT && !crowd->is_long) {
        crowd->is_long = true;
        crowd->long_since_ns = kl__monotonic_ns();
        wait_for(crowd, &crowd->may_end);
    } else if (crowd->is_long && !crowd->was_beside) {
        crowd->was_beside = true;
        while (kl__monotonic_ns() - crowd->long_since_ns < 2 * KL_STEAL_NS)
            sched_yield();
    }
}

static kl_outcome crowd_handle(kl_work *work, void *ctx)
{
    struct crowd *crowd = ctx;
    bool is_second = *(const char *)kl_work_payload(work).data == '2';
    pthread_mutex_lock(&crowd->mutex);
    wait_for(crowd, &crowd->is_read);
    *(is_second ? &crowd->second : &crowd->first) += 1;
    take_part(crowd);
    if (!is_second && crowd->first == KEYS && !crowd->may_end) { /* the long one comes here behind that */
        crowd->second_at_last = crowd->second;
        set(crowd, &crowd->may_end);
    }
    pthread_mutex_unlock(&crowd->mutex);
    return KL_DONE;
}

static void put_many(kl_queue *queue, const char *payload)
{
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        put_task(queue, key, payload);
    }
}

TEST(a_long_task_holds_up_nobody_in_its_thread_s_hand_while_the_others_are_busy)
{
    struct rig rig;
    struct crowd crowd = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_many(rig.queue, "1");
    put_many(rig.queue, "2");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = crowd_handle, .ctx = &crowd, .concurrency = 2});
    REQUIRE(worker != NULL);
    await_held(worker, (uint64_t)2 * KEYS);
    pthread_mutex_lock(&crowd.mutex);
    set(&crowd, &crowd.is_read);
    wait_for(&crowd, &crowd.may_end);
    CHECK(crowd.second_at_last < KEYS - 2 * KL_HAND_SIZE_MAX); /* else the others' have all been run before */
    pthread_mutex_unlock(&crowd.mutex);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    rig_close(&rig);
}
