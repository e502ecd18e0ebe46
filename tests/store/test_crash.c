/* test_crash.c - kill -9 of a process under load, in the suite; crash.h says what is compared. `make crash N=...` does
 * more of it. */
#include "crash.h"
#include "harness.h"

enum { ROUNDS = 50, IMAGES = 20, CALLS_MAX = 2000 };

TEST(a_killed_process_has_lost_nothing_that_it_was_told)
{
    struct crash_opts opts = {.rounds = test_rounds(ROUNDS), .seed = test_seed(), .calls_max = CALLS_MAX};
    CHECK(crash_run(&opts));
}

/* The same process is stopped, copied and let go on, again and again; each copy is opened twice. */
TEST(the_directory_is_whole_at_any_moment_of_the_run)
{
    struct crash_opts opts = {
        .rounds = 2, .seed = test_seed(), .calls_max = CALLS_MAX / 2, .images_each = test_rounds(IMAGES) / 2};
    CHECK(crash_run(&opts));
}
