/* crash_run.c - round after round: fork, work, kill, check; see crash.h. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "crash.h"

enum { LOOK_NS = 50000, DELAY_NS_MAX = 3000000, PATIENCE_S = 120, EARLY_OF_8 = 1 };

struct run {
    const struct crash_opts *opts;
    struct crash_ledger *ledger; /* shared */
    struct crash_ledger *copy;   /* of the ledger, for an image */
    char dir[WORKDIR_BYTES], data[WORKDIR_BYTES + 8], image[WORKDIR_BYTES + 8];
    uint64_t random;
    uint64_t calls, images;
    struct crash_found found;
};

static bool complain(const struct run *run, const char *what, const char *why)
{
    printf("# round %llu, seed %llu, %s: %s\n", (unsigned long long)run->ledger->round,
           (unsigned long long)run->opts->seed, what, why);
    printf("# again with: crash-store %llu %llu; the directory is left at %s\n", (unsigned long long)run->opts->rounds,
           (unsigned long long)run->opts->seed, run->dir);
    fflush(stdout);
    return false;
}

static void pause_ns(uint64_t ns)
{
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&pause, NULL);
}

static bool has_died(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
}

/* Until the process has been told of so many calls in this round, and a moment longer. False: it died, or hangs. */
static bool await_calls(struct run *run, pid_t child, uint64_t calls)
{
    int64_t until_ns = kl__deadline_ns(PATIENCE_S * 1000);
    while (atomic_load(&run->ledger->calls) < calls || (calls && !atomic_load(&run->ledger->is_open))) {
        if (has_died(child))
            return false; /* kill_child says how */
        if (kl__monotonic_ns() > until_ns)
            return complain(run, "the process", "it does not get on");
        pause_ns(LOOK_NS);
    }
    pause_ns(kl__random_below(&run->random, DELAY_NS_MAX));
    return true;
}

/* ---- Images ---- */

static bool check_image(struct run *run)
{
    char why[CRASH_TEXT_BYTES];
    struct crash_found found;
    bool good = crash_check(run->copy, run->image, &found, why) || complain(run, "a copy of the directory", why);
    if (good)
        good = crash_check(run->copy, run->image, &found, why) || complain(run, "the copy, opened again", why);
    run->images++;
    return good && (workdir_remove(run->image) || complain(run, "the copy", strerror(errno)));
}

/* Stops the process between two instructions of each thread, copies what it has, lets it go on, and checks the copy:
 * what a kill at that moment would have left. */
static bool take_image(struct run *run, pid_t child)
{
    int status;
    if (kill(child, SIGSTOP) != 0 || waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
        return complain(run, "the process ended by itself", run->ledger->failure);
    bool good = workdir_copy(run->data, run->image) || complain(run, "the copy", strerror(errno));
    memcpy(run->copy, run->ledger, sizeof *run->copy);
    kill(child, SIGCONT);
    return good && check_image(run);
}

static bool take_images(struct run *run, pid_t child)
{
    for (uint64_t i = 0; i < run->opts->images_each; i++) {
        uint64_t more = kl__random_below(&run->random, run->opts->calls_max / 2 + 1);
        if (!await_calls(run, child, atomic_load(&run->ledger->calls) + more) || !take_image(run, child))
            return false;
    }
    return true;
}

/* ---- Rounds ---- */

static bool kill_child(struct run *run, pid_t child)
{
    int status = 0;
    char how[64];
    kill(child, SIGKILL);
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            return complain(run, "waiting for the process", strerror(errno));
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    snprintf(how, sizeof how, "the process ended by itself (status %x)", (unsigned)status);
    return complain(run, how, run->ledger->failure);
}

/* One round in eight is killed while it opens what the last one left. */
static bool work_and_kill(struct run *run)
{
    bool early = kl__random_below(&run->random, 8) < EARLY_OF_8;
    uint64_t calls = early ? 0 : 1 + kl__random_below(&run->random, run->opts->calls_max);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        return complain(run, "fork", strerror(errno));
    if (child == 0)
        crash_load(run->ledger, run->data);
    bool good = await_calls(run, child, calls) && (early || take_images(run, child));
    return kill_child(run, child) && good; /* killed in any case */
}

static bool run_round(struct run *run)
{
    char why[CRASH_TEXT_BYTES];
    int64_t start_ns = kl__monotonic_ns();
    atomic_store(&run->ledger->calls, 0);
    atomic_store(&run->ledger->is_open, false);
    if (!work_and_kill(run))
        return false;
    uint64_t calls = atomic_load(&run->ledger->calls);
    run->calls += calls;
    if (!crash_check(run->ledger, run->data, &run->found, why))
        return complain(run, "after the kill", why);
    if (run->opts->tells)
        printf("round %llu of %llu: killed after %llu acknowledged calls; %llu tasks wait, %llu are kept, in %llu "
               "segments: as acknowledged (%.2f s)\n",
               (unsigned long long)run->ledger->round, (unsigned long long)run->opts->rounds, (unsigned long long)calls,
               (unsigned long long)run->found.waiting, (unsigned long long)run->found.kept,
               (unsigned long long)run->found.segments, (double)(kl__monotonic_ns() - start_ns) / 1e9);
    fflush(stdout);
    return true;
}

static bool run_rounds(struct run *run)
{
    for (uint64_t round = 1; round <= run->opts->rounds; round++) {
        run->ledger->round = round;
        run->random = crash_hash(run->opts->seed, round);
        if (!run_round(run))
            return false;
    }
    printf("%s%llu rounds killed with %llu calls acknowledged, %llu copies on the way: nothing lost, nothing invented, "
           "nothing twice (seed %llu)\n",
           run->opts->tells ? "" : "# ", (unsigned long long)run->opts->rounds, (unsigned long long)run->calls,
           (unsigned long long)run->images, (unsigned long long)run->opts->seed);
    return true;
}

static void begin_ledger(struct crash_ledger *ledger, uint64_t seed)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    ledger->seed = seed;
    ledger->base_ms = (int64_t)now.tv_sec * 1000;
    ledger->partition = 1;
    ledger->free_count = CRASH_SLOTS;
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++)
        ledger->free_slots[slot] = slot;
}

bool crash_run(const struct crash_opts *opts)
{
    struct run run = {.opts = opts};
    run.ledger = mmap(NULL, sizeof *run.ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run.copy = calloc(1, sizeof *run.copy);
    if (run.ledger == MAP_FAILED || !run.copy || !workdir_make(run.dir)) {
        printf("# no memory or no directory to work in: %s\n", strerror(errno));
        return false;
    }
    snprintf(run.data, sizeof run.data, "%s/data", run.dir);
    snprintf(run.image, sizeof run.image, "%s/image", run.dir);
    begin_ledger(run.ledger, opts->seed);
    bool good = run_rounds(&run);
    if (good && !workdir_remove(run.dir))
        good = complain(&run, "the directory cannot be removed", strerror(errno));
    munmap(run.ledger, sizeof *run.ledger);
    free(run.copy);
    return good;
}
