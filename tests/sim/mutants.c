/* mutants.c - known bugs, switched on one at a time: the simulator must find each of them.
 *
 * A seed finds what it finds for as long as the code is as it is. The suite begins with the seed that found the bug
 * last, and looks for another one when that finds it no more; `make mutants` tells the first that does. Seed 0
 * (by_hand.c) takes no time and comes first in any case. */
#include "base/mutant.h"

#include <string.h>

#include "sim/world.h"

enum kl__mutant_name kl__mutant = KL_MUTANT_none;

const struct sim_mutant sim_mutants[] = {
#define MUTANT(name, bug, seen) {#name, bug, seen},
    KL_MUTANT_TABLE(MUTANT)
#undef MUTANT
        {NULL, NULL, NULL},
};

enum { WELL_MAX = 256 };

/* Where neither 0 nor 1 does. */
static const uint16_t seeds_of[KL_MUTANTS_COUNT] = {
    [KL_MUTANT_unique_unwritten] = 19,   [KL_MUTANT_halt_holds_shard] = 13, [KL_MUTANT_outcomes_turned] = 35,
    [KL_MUTANT_tick_twice] = 2,          [KL_MUTANT_lease_renewed] = 17,    [KL_MUTANT_floor_lost] = 4,
    [KL_MUTANT_due_run_here] = 4,        [KL_MUTANT_submit_blind] = 259,    [KL_MUTANT_lines_unread] = 31,
    [KL_MUTANT_due_unread] = 2,          [KL_MUTANT_due_piecemeal] = 2,     [KL_MUTANT_side_alone] = 83,
    [KL_MUTANT_partition_unlimited] = 6, [KL_MUTANT_capacity_leaks] = 6,
};

static bool mutated;

bool sim_is_mutated(void) { return mutated; }

bool sim_mutate(const char *name)
{
    kl__mutant = KL_MUTANT_none;
    mutated = name != NULL;
    for (int i = 0; name && sim_mutants[i].name; i++) {
        if (strcmp(sim_mutants[i].name, name) == 0) {
            kl__mutant = (enum kl__mutant_name)i;
            return true;
        }
    }
    return name == NULL;
}

/* Whether the world is well without a bug; each is asked about once. */
static bool is_well(uint64_t seed, uint64_t operations)
{
    static struct {
        uint64_t operations;
        bool well;
    } known[WELL_MAX];
    if (seed >= WELL_MAX)
        return !sim_run_apart(seed, operations, "none", NULL).broken;
    if (known[seed].operations != operations) {
        known[seed].operations = operations;
        known[seed].well = !sim_run_apart(seed, operations, "none", NULL).broken;
    }
    return known[seed].well;
}

static bool catches(const char *mutant, uint64_t seed, uint64_t operations, struct sim_result *ret_result)
{
    *ret_result = sim_run_apart(seed, operations, mutant, NULL);
    return ret_result->broken && is_well(seed, operations);
}

bool sim_catch(const char *mutant, uint64_t seeds, uint64_t operations, struct sim_result *ret_result,
               uint64_t *ret_seed)
{
    for (uint64_t seed = 0; seed <= seeds; seed++) {
        if (catches(mutant, seed, operations, ret_result)) {
            *ret_seed = seed;
            return true;
        }
    }
    return false;
}

bool sim_catch_again(size_t number, uint64_t seeds, uint64_t operations)
{
    struct sim_result result;
    const char *name = sim_mutants[number].name;
    uint64_t seed = seeds_of[number];
    return (seed && catches(name, seed, operations, &result)) || sim_catch(name, seeds, operations, &result, &seed);
}
