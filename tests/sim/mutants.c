/* mutants.c - known bugs, switched on one at a time: the simulator must find each of them. */
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

uint64_t sim_catch(const char *mutant, uint64_t first, uint64_t seeds, uint64_t operations,
                   struct sim_result *ret_result)
{
    for (uint64_t i = 0; i < seeds; i++) {
        *ret_result = sim_run_apart(first + i, operations, mutant, NULL);
        if (ret_result->broken && !sim_run_apart(first + i, operations, "none", NULL).broken)
            return i + 1;
    }
    return 0;
}
