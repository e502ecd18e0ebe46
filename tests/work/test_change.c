/* test_change.c - order per key survives changes of the layout under load. */
#include <time.h>

#include "change.h"
#include "store/lossy.h"

static void change(rig_kind kind, int retry_every)
{
    struct rig rig;
    if (!rig_open(&rig, kind, CHANGE_OPTS))
        return;
    change_under_load(&rig, retry_every);
    rig_close(&rig);
}

TEST(order_per_key_survives_growing_and_shrinking_under_load) { change(RIG_MEMORY, 0); }
TEST(order_per_key_survives_changes_of_layout_with_retries) { change(RIG_MEMORY, 50); }
TEST(order_per_key_survives_changes_of_layout_on_disk) { change(RIG_DISK, 50); }

/* With a lease of an hour the next beat that is due by itself is twenty minutes away. */
TEST(a_new_layout_is_taken_at_once_however_long_the_lease)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000}, wider = {.size = sizeof wider, .partitions = 4};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(rig.queue, "k", "done before");
    runs_wait(&runs, 1);
    CHECK_INT(kl_queue_alter(rig.queue, &wider), KL_OK);
    put_task(rig.queue, "k", "done behind");
    runs_wait(&runs, 2);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

static atomic_int delayed_puts;
static atomic_bool puts_are_slow;

/* What is delayed takes a while to become durable. */
static kl_rc append_slowly(void *self, const kl_append *append)
{
    const struct lossy *slow = self;
    struct timespec pause = {.tv_nsec = 500000};
    if (append->entries[0].due_ms && atomic_load(&puts_are_slow)) {
        nanosleep(&pause, NULL);
        atomic_fetch_add(&delayed_puts, 1);
    }
    if (!append->done)
        return kl_store_append(slow->inner, append->entries, append->count, append->token);
    return kl_store_append_async(slow->inner, append->entries, append->count, append->token, append->done, append->ctx);
}

TEST(tasks_run_while_the_delayed_ones_of_an_older_layout_are_moved)
{
    enum { DELAYED = 4000 };
    struct rig rig;
    struct runs runs;
    struct lossy slow;
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_queue_opts wider = {.size = sizeof wider, .partitions = 2};
    static kl_put puts[DELAYED];
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    atomic_store(&delayed_puts, 0);
    atomic_store(&puts_are_slow, false);
    REQUIRE(lossy_open(&slow, rig.store, 1, &store) == KL_OK);
    slow.replies_lost = slow.requests_lost = 0;
    slow.engine.append = append_slowly;
    REQUIRE(kl_queue_find(store, "orders", &queue) == KL_OK);
    for (int i = 0; i < DELAYED; i++)
        puts[i] = (kl_put){.payload = kl_str("later"), .delay_ms = 3600000};
    CHECK_INT(kl_queue_put(queue, puts, DELAYED, (kl_bytes){0}, NULL), KL_OK);
    kl_worker *worker = start_worker(queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_shards(worker, 16);
    atomic_store(&puts_are_slow, true);
    CHECK_INT(kl_queue_alter(queue, &wider), KL_OK);
    put_task(queue, "k", "done");
    runs_wait(&runs, 1);
    CHECK(atomic_load(&delayed_puts) < DELAYED);
    atomic_store(&puts_are_slow, false);
    drain_and_close(worker);
    CHECK_INT(rig_waiting(&rig), DELAYED);
    kl_queue_close(queue);
    kl_store_close(store);
    runs_free(&runs);
    rig_close(&rig);
}
