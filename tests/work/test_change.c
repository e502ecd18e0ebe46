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
