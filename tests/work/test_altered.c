/* test_altered.c - settings that are altered while outcomes are on their way to the store. */
#include "work/hand.h"

/* Its last attempt has failed, and that is not settled yet when the record is read. */
TEST(a_key_that_is_about_to_halt_goes_by_the_altered_policy)
{
    struct hand hand;
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_HALT, .attempts_max = 1};
    if (!hand_open(&hand, &opts))
        return;
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_put(&hand, "k", "first", 0);
    hand_put(&hand, "k", "second", 0);
    hand_own(pump);
    CHECK_STR(hand_start(pump), "first");
    hand_end(pump, hand_running(pump, 0), KL_RETRY);
    kl_queue_opts altered = {.size = sizeof altered, .head_policy = KL_HEAD_CONTINUE};
    CHECK_INT(kl_queue_alter(hand.queue, &altered), KL_OK);
    hand_beats(pump, 1, HAND_STEP_MS);
    hand_settle(pump);
    CHECK_STR(hand_start(pump), ""); /* it is looked at again, and dead */
    hand_settle(pump);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "second");
    CHECK_INT(kl__pump_counted(pump->pump).dead, 1);
    hand_close(&hand);
}
