/* crash.c - the program crash-store: kills a process under load so many times, and says what was found.
 *
 *     crash-store [ROUNDS [SEED]] */
#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"
#include "crash.h"

enum { ROUNDS = 50, CALLS_MAX = 3000 };

int main(int argc, char **argv)
{
    struct crash_opts opts = {
        .rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : ROUNDS,
        .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : kl__random_seed() >> 1,
        .calls_max = CALLS_MAX,
        .tells = true,
    };
    if (argc > 3 || opts.rounds == 0) {
        fprintf(stderr, "usage: crash-store [ROUNDS [SEED]]\n");
        return 2;
    }
    printf("a process with %d producers and %d settlers is killed %llu times, seed %llu\n", CRASH_PRODUCERS,
           CRASH_SETTLERS, (unsigned long long)opts.rounds, (unsigned long long)opts.seed);
    return crash_run(&opts) ? 0 : 1;
}
