/* test_change.c - order per key survives changes of the layout under load. */
#include "change.h"

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
