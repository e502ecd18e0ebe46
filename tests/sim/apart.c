/* apart.c - a seed in a process of its own. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/world.h"

enum { SECONDS_MAX = 120 };

static _Noreturn void run(uint64_t seed, uint64_t operations, const char *mutant, FILE *out, int to)
{
    alarm(SECONDS_MAX);
    if (!out && !freopen("/dev/null", "w", stderr)) /* an assertion that fails is what is looked for */
        _exit(1);
    if (!sim_mutate(mutant))
        _exit(2);
    struct sim_result result = sim_run(seed, operations, false, out);
    bool told = write(to, &result, sizeof result) == (ssize_t)sizeof result;
    _exit(told ? 0 : 1);
}

static void describe(int status, struct sim_result *result)
{
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result->broken = number == SIGALRM ? "time" : "crash";
    snprintf(result->why, sizeof result->why, "the library ended the process: %s",
             number == SIGABRT   ? "an assertion failed"
             : number == SIGALRM ? "it went on and on"
             : number            ? "it crashed"
                                 : "it exited");
}

struct sim_result sim_run_apart(uint64_t seed, uint64_t operations, const char *mutant, void *out)
{
    struct sim_result result = {.broken = NULL};
    int ends[2], status = 0;
    fflush(NULL);
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    KL_ASSERT(child >= 0);
    if (child == 0)
        run(seed, operations, mutant, out, ends[1]);
    close(ends[1]);
    bool whole = read(ends[0], &result, sizeof result) == (ssize_t)sizeof result;
    close(ends[0]);
    KL_ASSERT(waitpid(child, &status, 0) == child);
    if (!whole) {
        result = (struct sim_result){.broken = NULL};
        describe(status, &result);
        if (out)
            fprintf(out, "%s: %s\nreproduce: build/tests/simulate %llu %llu\n", result.broken, result.why,
                    (unsigned long long)seed, (unsigned long long)operations);
    }
    return result;
}
