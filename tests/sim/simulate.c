/* simulate.c - the simulator as a program.
 *
 *     simulate SEED [OPERATIONS]          one seed, and what it came to
 *     simulate --trace SEED [OPERATIONS]  the same with everything that happens
 *     simulate --seeds N [OPERATIONS]     that many from a random one on
 *     simulate --mutants [N]              each known bug for up to N seeds: a table of how it is caught
 *
 * --mutant NAME before these switches a known bug on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/world.h"

enum { OPERATIONS = 10000, MUTANT_SEEDS = 300 };

static int usage(void)
{
    fprintf(stderr, "usage: simulate [--mutant NAME] [--trace] SEED [OPERATIONS]\n"
                    "       simulate [--mutant NAME] --seeds N [OPERATIONS]\n"
                    "       simulate --mutants [N]\n");
    return 2;
}

static void tell(uint64_t seed, const struct sim_result *result)
{
    printf("seed %llu: %s; %llu operations, %llu tasks, %llu starts, %llu crashes, %llu takeovers, %llu losses, "
           "%llu stalls, %llu layouts, %lld s\n",
           (unsigned long long)seed, result->broken ? result->broken : "all is well",
           (unsigned long long)result->operations, (unsigned long long)result->tasks,
           (unsigned long long)result->starts, (unsigned long long)result->crashes,
           (unsigned long long)result->takeovers, (unsigned long long)result->losses,
           (unsigned long long)result->stalls, (unsigned long long)result->layouts,
           (long long)result->simulated_ms / 1000);
}

static int run_one(uint64_t seed, uint64_t operations, const char *mutant, bool trace)
{
    if (!sim_mutate(mutant))
        return usage();
    struct sim_result result = sim_run(seed, operations, trace, stdout);
    tell(seed, &result);
    fiber_free_stacks();
    return result.broken != NULL;
}

static int run_many(uint64_t count, uint64_t operations, const char *mutant)
{
    uint64_t first = kl__random_seed() >> 24, failed = 0, done = 0;
    printf("%llu seeds from %llu on, %llu operations each\n", (unsigned long long)count, (unsigned long long)first,
           (unsigned long long)operations);
    for (uint64_t i = 0; i < count; i++) {
        struct sim_result result = sim_run_apart(first + i, operations, mutant, stdout);
        failed += result.broken != NULL;
        done += result.operations;
    }
    printf("%llu operations; %llu of %llu seeds failed\n", (unsigned long long)done, (unsigned long long)failed,
           (unsigned long long)count);
    return failed > 0;
}

static int run_mutants(uint64_t seeds)
{
    int escaped = 0;
    printf("%-18s %-7s %5s  %s\n", "mutant", "broken", "seed", "what is wrong (where it has been seen)");
    for (int i = 1; sim_mutants[i].name; i++) {
        struct sim_result result;
        uint64_t seed = 0;
        bool caught = sim_catch(sim_mutants[i].name, seeds, OPERATIONS, &result, &seed);
        escaped += !caught;
        printf("%-18s %-7s %5llu  %s (%s)\n", sim_mutants[i].name, caught ? result.broken : "ESCAPED",
               (unsigned long long)seed, sim_mutants[i].bug, sim_mutants[i].seen);
        fflush(stdout);
    }
    printf("%d mutants escaped\n", escaped);
    return escaped > 0;
}

static bool parse_number(const char *text, uint64_t *ret_number)
{
    char *end;
    *ret_number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && *ret_number > 0;
}

int main(int argc, char **argv)
{
    const char *mutant = NULL;
    bool trace = false, many = false;
    int at = 1;
    if (argc > at + 1 && strcmp(argv[at], "--mutant") == 0) {
        mutant = argv[at + 1];
        at += 2;
    }
    if (argc > at && strcmp(argv[at], "--mutants") == 0)
        return run_mutants(argc > at + 1 ? strtoull(argv[at + 1], NULL, 10) : MUTANT_SEEDS);
    if (argc > at && strcmp(argv[at], "--trace") == 0)
        trace = at++ > 0;
    else if (argc > at && strcmp(argv[at], "--seeds") == 0)
        many = at++ > 0;
    uint64_t number, operations = OPERATIONS;
    if (argc <= at || !parse_number(argv[at], &number) || (argc > at + 1 && !parse_number(argv[at + 1], &operations)))
        return usage();
    return many ? run_many(number, operations, mutant) : run_one(number, operations, mutant, trace);
}
