/* test_faults.c - a call to the file system fails, each in its turn: nothing that was acknowledged is lost, nothing
 * is acknowledged that is not there.
 *
 * For each kind of fault the script is run again and again, and the fault comes one call later each time. When a
 * call of the store fails, its effect is unknown: it is repeated as often as its class allows, else the store is
 * closed and opened again, on the machine as it is or after it has lost power, and must then be in a state of the
 * run. The rest of the script follows, and at the end power is lost once more.
 *
 * KL_TEST_OPS says how many runs to make. What fails is printed with the line that repeats it:
 *
 *     KL_FAULT="SEED FAULT N" test-faults */
#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "faultvfs.h"
#include "harness.h"
#include "recording.h"
#include "store/calls.h"
#include "workers.h"

enum { CALLS = 90, RUNS = 1000, TRIES = 4, CANDIDATES = SCRIPT_STEPS_MAX + 1 };

enum { CHANGES = FAULT_WRITE | FAULT_CREATE | FAULT_TRUNCATE | FAULT_RENAME | FAULT_MKDIR };

/* A way to fail. */
static const struct way {
    const char *name;
    unsigned kinds;
    int error;
    bool lasting;
    simdisk_dirty dirty;
} ways[] = {
    {"eio-once", FAULT_ANY & ~FAULT_SYNC, EIO, false, SIM_DIRTY_KEPT},
    {"eio-lasting", FAULT_ANY & ~FAULT_SYNC, EIO, true, SIM_DIRTY_KEPT},
    {"enospc-once", CHANGES, ENOSPC, false, SIM_DIRTY_KEPT},
    {"enospc-lasting", CHANGES, ENOSPC, true, SIM_DIRTY_KEPT},
    {"sync-kept", FAULT_SYNC, EIO, false, SIM_DIRTY_KEPT},
    {"sync-forgotten", FAULT_SYNC, EIO, false, SIM_DIRTY_FORGOTTEN},
    {"sync-dropped", FAULT_SYNC, EIO, false, SIM_DIRTY_DROPPED},
    {"sync-lasting", FAULT_SYNC, EIO, true, SIM_DIRTY_DROPPED},
    {"short-once", FAULT_WRITE, 0, false, SIM_DIRTY_KEPT},
    {"short-lasting", FAULT_WRITE, 0, true, SIM_DIRTY_KEPT},
    {"eintr", FAULT_WRITE | FAULT_READ, EINTR, true, SIM_DIRTY_KEPT},
};

enum { WAYS = sizeof ways / sizeof ways[0] };

/* One run with one fault. */
struct faulty_run {
    const struct script *script;
    const struct way *way;
    uint64_t at;
    uint64_t random;
    simdisk *disk;
    faultvfs *faults;
    struct sim_store store;
    struct subject subject;
    struct model models[CANDIDATES]; /* [0]: what is acknowledged; then behind each step of the call that failed */
    int count;
    uint32_t call; /* number of the one being made */
    bool failed;
};

static void report(struct faulty_run *run, const char *what, const char *why)
{
    char path[200], call[160];
    faultvfs_hits(run->faults, path, sizeof path);
    script_describe(run->script, run->call, call, sizeof call);
    test_fail(__FILE__, __LINE__,
              "%s: %s (%s on %s; %s); again with: KL_FAULT=\"%" PRIu64 " %s %" PRIu64 "\" test-faults", what, why,
              run->way->name, path, call, run->script->seed, run->way->name, run->at);
    run->failed = true;
}

static void lose_dirty(void *ctx, kl__file *file)
{
    struct faulty_run *run = ctx;
    simdisk_fail_sync(run->disk, file, run->way->dirty);
}

static void set_fault(struct faulty_run *run)
{
    vfs_fault fault = {.kinds = run->way->kinds,
                       .at = run->at,
                       .lasting = run->way->lasting,
                       .error = run->way->error,
                       .sync_failed = lose_dirty,
                       .ctx = run};
    faultvfs_set(run->faults, &fault);
}

/* ---- After a failure ---- */

static void put_on(struct faulty_run *run)
{
    run->faults = faultvfs_new(simdisk_vfs(run->disk));
    run->store = sim_store_on(faultvfs_vfs(run->faults));
    run->subject.ctx = &run->store;
}

static void take_off(struct faulty_run *run)
{
    sim_store_end(&run->store);
    faultvfs_free(run->faults);
}

/* The machine loses power; what is found then is the disk from now on. */
static void lose_power(struct faulty_run *run, simdisk_outcome outcome)
{
    uint64_t seed = kl__random_next(&run->random);
    simdisk *found = simdisk_image(run->disk, outcome, seed);
    take_off(run);
    simdisk_free(run->disk);
    run->disk = found;
    put_on(run);
}

static bool open_again(struct faulty_run *run, const char *what)
{
    kl_rc rc = subject_open(&run->subject);
    if (rc == KL_OK)
        return true;
    char why[600];
    snprintf(why, sizeof why, "%s: %s", kl_rc_name(rc), kl_error_text());
    report(run, what, why);
    return false;
}

/* Closes and opens the store, half of the times with a loss of power between, and finds out where it stands:
 * models[0] is that afterwards. The fault is over. */
static bool restart(struct faulty_run *run, int *ret_found)
{
    subject_close(&run->subject);
    if (kl__random_below(&run->random, 2))
        lose_power(run, (simdisk_outcome)kl__random_below(&run->random, SIM_OUTCOMES));
    else
        faultvfs_set(run->faults, NULL);
    if (!open_again(run, "it does not open after the fault"))
        return false;
    *ret_found = subject_compare(&run->subject, run->models, run->count, kl__random_next(&run->random));
    if (*ret_found < 0)
        report(run, "after the fault it is in no state of the run", run->subject.why);
    return *ret_found >= 0;
}

/* After a failed sync of the journal the store is of no more use: the same call may not be acknowledged. */
static void check_poisoned(struct faulty_run *run, const struct script_call *call)
{
    char path[200];
    if (run->way->kinds != FAULT_SYNC || !faultvfs_hits(run->faults, path, sizeof path) || !strstr(path, ".seg"))
        return;
    struct model after = run->models[run->count - 1];
    kl_rc rc = subject_call(&run->subject, &run->models[0], &after, call);
    if (rc == KL_OK || rc == KL_EINVAL)
        report(run, "a call is answered after a failed sync of the journal", rc == KL_OK ? "KL_OK" : run->subject.why);
    else if (kl_rc_class(rc) != KL_CLASS_FATAL)
        report(run, "a failed sync of the journal does not end the store", kl_rc_name(rc));
}

/* The call failed with an unknown effect. Repeats it until it is acknowledged. */
static void recover_call(struct faulty_run *run, const struct script_call *call, kl_rc rc)
{
    struct model *after = &run->models[run->count - 1];
    int found = 0;
    for (int i = 0; i < TRIES && rc != KL_OK && kl_rc_class(rc) == KL_CLASS_RETRY; i++) {
        if (call->kind == CALL_APPEND && !call->has_token)
            break;
        rc = subject_call(&run->subject, &run->models[0], after, call);
    }
    if (rc == KL_OK || run->failed)
        return;
    if (rc == KL_EINVAL) {
        report(run, "a repeated call is answered wrongly", run->subject.why);
        return;
    }
    if (call->kind != CALL_REOPEN)
        check_poisoned(run, call);
    if (run->failed || !restart(run, &found) || (call->kind == CALL_APPEND && !call->has_token && found > 0))
        return;
    rc = subject_call(&run->subject, &run->models[0], after, call);
    if (rc != KL_OK)
        report(run, "a call fails when the fault is over", rc == KL_EINVAL ? run->subject.why : kl_error_text());
}

/* ---- A run ---- */

static void make_call(struct faulty_run *run, const struct script_call *call)
{
    const struct script *script = run->script;
    model_begin(script, &run->models[0], call);
    run->count = 1;
    for (uint32_t i = 0; i < script_steps(call); i++, run->count++) {
        run->models[run->count] = run->models[run->count - 1];
        model_step(script, &run->models[run->count], call, i);
    }
    kl_rc rc = subject_call(&run->subject, &run->models[0], &run->models[run->count - 1], call);
    if (rc == KL_EINVAL)
        report(run, "a call is answered wrongly", run->subject.why);
    else if (rc != KL_OK)
        recover_call(run, call, rc);
    run->models[0] = run->models[run->count - 1];
}

/* The first open may fail; then it is made again without the fault. */
static bool open_first(struct faulty_run *run)
{
    kl_rc rc = subject_open(&run->subject);
    if (rc == KL_OK)
        return true;
    if (rc != KL_ESYSTEM && rc != KL_EFULL) {
        report(run, "the first open fails in another way than it should", kl_rc_name(rc));
        return false;
    }
    faultvfs_set(run->faults, NULL);
    return open_again(run, "it cannot be opened after an open that failed");
}

/* Everything acknowledged is there when it is opened again, and after power was lost with nothing unsynced kept. */
static void check_end(struct faulty_run *run)
{
    run->call = run->script->call_count;
    if (kl__random_below(&run->random, 2)) {
        subject_close(&run->subject);
        faultvfs_set(run->faults, NULL);
        if (!open_again(run, "it does not open again at the end"))
            return;
        if (subject_compare(&run->subject, run->models, 1, kl__random_next(&run->random)) != 0) {
            report(run, "at the end it is another", run->subject.why);
            return;
        }
    }
    simdisk *found = simdisk_image(run->disk, SIM_NOTHING, 1);
    subject_close(&run->subject);
    take_off(run);
    simdisk_free(run->disk);
    run->disk = found;
    put_on(run);
    if (open_again(run, "it does not open after power was lost at the end") &&
        subject_compare(&run->subject, run->models, 1, kl__random_next(&run->random)) != 0)
        report(run, "something acknowledged is lost with power at the end", run->subject.why);
}

/* Makes a run with the fault. Returns how many calls were counted, to know where the last can come. */
static uint64_t run_with(const struct script *script, const struct way *way, uint64_t at)
{
    struct faulty_run *run = calloc(1, sizeof *run);
    KL_ASSERT(run);
    *run = (struct faulty_run){.script = script, .way = way, .at = at, .random = script->seed ^ at};
    run->subject.script = script;
    run->subject.open = sim_store_open;
    run->disk = simdisk_new();
    put_on(run);
    set_fault(run);
    bool ok = open_first(run);
    for (; ok && !run->failed && run->call < script->call_count; run->call++)
        make_call(run, &script->calls[run->call]);
    uint64_t calls = faultvfs_calls(run->faults);
    if (ok && !run->failed)
        check_end(run);
    subject_close(&run->subject);
    take_off(run);
    simdisk_free(run->disk);
    free(run);
    return calls;
}

/* ---- All of them ---- */

struct plan {
    uint64_t seed, runs;
    _Atomic uint64_t *made;
};

/* Each way gets the same number of runs, spread over all the calls that it could hit. */
static void work(void *ctx, int worker, int workers)
{
    const struct plan *plan = ctx;
    struct script *script = script_make(plan->seed, CALLS);
    uint64_t share = plan->runs / WAYS + 1;
    for (uint64_t i = 0; i < WAYS && !test_failed(); i++) {
        workers_doing("seed %" PRIu64 ", %s, no fault", plan->seed, ways[i].name);
        uint64_t calls = run_with(script, &ways[i], UINT64_MAX);
        uint64_t step = calls > share ? calls / share : 1;
        uint64_t first = 1 + plan->seed % step + (uint64_t)worker * step;
        for (uint64_t at = first; at <= calls && !test_failed(); at += step * (uint64_t)workers) {
            workers_doing("KL_FAULT=\"%" PRIu64 " %s %" PRIu64 "\"", plan->seed, ways[i].name, at);
            run_with(script, &ways[i], at);
            atomic_fetch_add(plan->made, 1);
        }
    }
    script_free(script);
}

static void repeat_one(const char *line)
{
    uint64_t seed = 0, at = 0;
    char name[32] = "";
    size_t way = 0;
    REQUIRE(sscanf(line, "%" SCNu64 " %31s %" SCNu64, &seed, name, &at) == 3);
    while (way < WAYS && strcmp(ways[way].name, name) != 0)
        way++;
    REQUIRE(way < WAYS);
    struct script *script = script_make(seed, CALLS);
    run_with(script, &ways[way], at);
    script_free(script);
}

TEST(a_fault_at_any_call_loses_nothing_and_acknowledges_nothing_falsely)
{
    const char *line = getenv("KL_FAULT");
    if (line && *line) {
        repeat_one(line);
        return;
    }
    struct plan plan = {test_seed(), test_ops(RUNS), workers_share(sizeof(uint64_t))};
    REQUIRE(plan.made);
    workers_run(work, &plan);
    printf("# %" PRIu64 " runs with a fault\n", atomic_load(plan.made));
    CHECK(atomic_load(plan.made) >= WAYS);
}
