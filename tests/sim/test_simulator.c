/* test_simulator.c - many simulated worlds, each of which keeps every promise; and bugs, each of which breaks one.
 *
 * A seed that fails prints one line that reproduces it. What was found so far and put right is in `once_broken`. */
#include <string.h>

#include "harness.h"
#include "sim/world.h"

enum { OPERATIONS = 10000, SEEDS = 300, MUTANT_SEEDS = 100 };

/* Each failed before the bug that it found was put right. Changes of the code change what a seed does, so these are
 * worth no more than others by now; they are here because they were worth something once. */
static const uint64_t once_broken[] = {
    0, /* by_hand.c */
    1,
    4,
    7,
    8,
    14,
    15,
    21,
    24,
    29,
    585053494355,
    585053494363,
    654353059982,
    102482334799,
    39994510244093,
    98427317135046, /* tried tasks behind a halted one filled the memory */
    98427317135218, /* a hand was run on after the lease */
    736925984554,   /* a stale owner moved a delayed task that the next one ran */
    169991107586,
    169991107797, /* a worker that had stopped came to a new layout */
    416509727517, /* the oracle: what was put back from the dead letters may be moved */
    267988499122,
    267988500855,  /* a delayed task was drained in an older layout, and its copy was not */
    98097726279,   /* a due task went before a more urgent one whose line its look had passed over */
    1084237964296, /* a task that was given back went before a more urgent one that could not be read */
    1079987419426, /* while its key was drained, a task went before a more urgent one that was stored since */
    707145626354,  /* no look was made while the store's clock, as the worker knew it, stood still */
    146976863544,  /* the oracle: a submit that is continued puts again what was put back from the dead letters */
    374961590830,  /* a submit that was continued did not know what workers had moved */
    351109729273,  /* a key was drained while a task of it was being given back */
    329388505595,  /* a task was started before a due one whose reading an operator had spoiled */
    329388507388,  /* a task that was given back passed a more urgent one that was not read, because memory was full */
    978678572967,  /* after a look that was spoiled a task passed a more urgent one that was stored before it */
    276400767287,  /* a task that was tried now waited behind a less urgent one of its key that had not started */
};

static bool is_well(uint64_t seed)
{
    struct sim_result result = sim_run_apart(seed, OPERATIONS, NULL, stdout);
    if (result.broken)
        test_fail(__FILE__, __LINE__, "seed %" PRIu64 ": %s: %s", seed, result.broken, result.why);
    return !result.broken && (seed == 0 || result.operations >= OPERATIONS);
}

TEST(whatever_crashes_stalls_or_is_lost_every_promise_is_kept)
{
    uint64_t first = 1, seeds = test_rounds(SEEDS);
    printf("# %" PRIu64 " seeds from %" PRIu64 " on, of %d operations\n", seeds, first, OPERATIONS);
    for (uint64_t i = 0; i < seeds; i++)
        CHECK(is_well(first + i));
}

TEST(seeds_that_once_found_a_bug_find_none)
{
    for (size_t i = 0; i < sizeof once_broken / sizeof once_broken[0]; i++)
        CHECK(is_well(once_broken[i]));
}

TEST(the_same_seed_makes_the_same_world)
{
    uint64_t seed = test_seed() >> 16;
    for (int i = 0; i < 3; i++) {
        struct sim_result one = sim_run_apart(seed + (uint64_t)i, OPERATIONS, NULL, NULL);
        struct sim_result two = sim_run_apart(seed + (uint64_t)i, OPERATIONS, NULL, NULL);
        CHECK_INT(one.operations, two.operations);
        CHECK_INT(one.simulated_ms, two.simulated_ms);
        CHECK_INT(one.starts, two.starts);
        CHECK_INT(one.takeovers, two.takeovers);
    }
}

TEST(every_known_bug_is_caught)
{
    size_t count = 0;
    while (sim_mutants[count].name)
        count++;
    CHECK(count > 20);
    for (size_t i = 1; i < count; i++)
        if (!sim_catch_again(i, MUTANT_SEEDS, OPERATIONS))
            test_fail(__FILE__, __LINE__, "nobody noticed: %s", sim_mutants[i].bug);
}
