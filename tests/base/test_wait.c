/* test_wait.c - yielding while it is cheap. */
#include "base/wait.h"
#include "harness.h"

TEST(after_a_yield_that_took_long_there_are_none_until_its_time_has_passed)
{
    int64_t now_ns = kl__monotonic_ns(), dear_until_ns = KL_NEVER;
    CHECK(!kl__yield(0, &dear_until_ns));
    CHECK(dear_until_ns == KL_NEVER);
    dear_until_ns = now_ns;
    CHECK(kl__yield(KL_NEVER, &dear_until_ns));
    CHECK(dear_until_ns == now_ns);
    CHECK(kl__yield(0, &dear_until_ns));
    CHECK(dear_until_ns > now_ns);
    bool heeded = false; /* unless we are interrupted here for longer than that */
    for (int i = 0; i < 1000 && !heeded; i++) {
        dear_until_ns = 0;
        CHECK(kl__yield(0, &dear_until_ns));
        heeded = !kl__yield(0, &dear_until_ns);
    }
    CHECK(heeded);
}
