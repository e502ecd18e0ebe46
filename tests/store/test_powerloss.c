/* test_powerloss.c - power is lost after every operation of a scripted run, in eight ways each: what is opened then
 * holds everything that was acknowledged and nothing that was never asked for, and goes on working.
 *
 * The script's calls come one after another, so the store that is found must be the model after the acknowledged
 * calls, or behind some step of the one call that was under way. Then the call is made again, as one would who lost
 * its reply, a few more follow, and in a third of the cases the store is opened once more. In a tenth of the cases
 * power is lost a second time, at some operation of the recovery.
 *
 * A process for each processor runs scripts of its own. KL_TEST_IMAGES says how many images to try in all; by
 * default these are all of a script for each process, and more until there are 20,000. What fails is printed with
 * the line that repeats it:
 *
 *     KL_POWERLOSS="FILE OP OUTCOME" test-powerloss
 *
 * where FILE holds the run as it was, OP the last operation before the end, and OUTCOME what became of the unsynced
 * ones. */
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "harness.h"
#include "recording.h"
#include "workers.h"

enum {
    CALLS = 168,
    CALLS_AFTER = 3,
    SECOND_IN = 10, /* cases: one in so many */
    AGAIN_IN = 3,
    WORKER_FAILURES_MAX = 3,
    CANDIDATES = SCRIPT_STEPS_MAX + 1,
    IMAGES = 20000,
};

/* One image to be found. */
struct power_case {
    uint64_t op;
    int outcome;
    uint64_t seed; /* of everything that is random in it */
};

/* Shared by the processes. */
struct tally {
    _Atomic uint64_t images, seconds, operations, runs, failures;
};

static struct tally *tally;

/* Everything about one image under check. */
struct trial {
    const struct recording *recording;
    struct power_case now;
    uint32_t call; /* the one under way; the script's number of calls: none */
    simdisk *image;
    struct sim_store store;
    struct subject subject;
    struct model models[CANDIDATES]; /* [0]: all acknowledged calls; then behind each step of the one under way */
    int count;
    char second[160]; /* in words */
};

static void report(struct trial *t, const char *what, const char *why)
{
    static bool saved;
    char path[64], operation[200], call[160];
    snprintf(path, sizeof path, "/tmp/keyline-powerloss-%" PRIu64, t->recording->script->seed);
    if (!saved)
        saved = recording_save(t->recording, path);
    simdisk_describe(t->recording->disk, t->now.op, operation, sizeof operation);
    script_describe(t->recording->script, t->call, call, sizeof call);
    test_fail(__FILE__, __LINE__,
              "%s: %s (after operation %" PRIu64 ": %s; under way: %s%s); again with: "
              "KL_POWERLOSS=\"%s %" PRIu64 " %s\" test-powerloss",
              what, why, t->now.op, operation, call, t->second, path, t->now.op, simdisk_outcome_names[t->now.outcome]);
}

/* ---- One image ---- */

static void open_disk(struct trial *t)
{
    t->store = sim_store_on(simdisk_vfs(t->image));
    t->subject.script = t->recording->script;
    t->subject.open = sim_store_open;
    t->subject.ctx = &t->store;
}

static bool open_store(struct trial *t, const char *what)
{
    kl_rc rc = subject_open(&t->subject);
    if (rc == KL_OK)
        return true;
    char why[600];
    snprintf(why, sizeof why, "%s: %s", kl_rc_name(rc), kl_error_text());
    report(t, what, why);
    return false;
}

/* Recovers once, loses power at some operation of that, and leaves what is found then. */
static bool lose_power_again(struct trial *t)
{
    simdisk *again = simdisk_clone(t->image);
    simdisk_record(t->image);
    open_disk(t);
    bool ok = open_store(t, "the image does not open");
    if (kl__random_below(&t->now.seed, 2))
        subject_close(&t->subject);
    uint64_t ops = simdisk_ops(t->image);
    subject_close(&t->subject);
    sim_store_end(&t->store);
    uint64_t op = kl__random_below(&t->now.seed, ops + 1);
    simdisk_outcome outcome = (simdisk_outcome)kl__random_below(&t->now.seed, SIM_OUTCOMES);
    char operation[100];
    simdisk_describe(t->image, op, operation, sizeof operation);
    snprintf(t->second, sizeof t->second, "; lost again after %" PRIu64 ": %s, %s", op, operation,
             simdisk_outcome_names[outcome]);
    simdisk_forward(again, t->image, op);
    simdisk_free(t->image);
    t->image = simdisk_image(again, outcome, kl__random_next(&t->now.seed));
    simdisk_free(again);
    atomic_fetch_add(&tally->seconds, 1);
    return ok;
}

/* Makes the call that was under way again, unless it is known to have happened and would happen twice. */
static bool repeat_call(struct trial *t, int found)
{
    if (t->count == 1)
        return true;
    const struct script_call *call = &t->recording->script->calls[t->call];
    bool twice = call->kind == CALL_APPEND && !call->has_token && found > 0;
    kl_rc rc = twice ? KL_OK : subject_call(&t->subject, &t->models[0], &t->models[t->count - 1], call);
    if (rc != KL_OK)
        report(t, "the call under way cannot be repeated", rc == KL_EINVAL ? t->subject.why : kl_error_text());
    t->models[0] = t->models[t->count - 1];
    return rc == KL_OK;
}

/* The next calls of the script; models[0] is what is there. */
static bool go_on(struct trial *t)
{
    const struct script *script = t->recording->script;
    uint32_t first = t->count == 1 ? t->call : t->call + 1;
    for (uint32_t i = first; i < script->call_count && i < first + CALLS_AFTER; i++) {
        const struct script_call *call = &script->calls[i];
        model_begin(script, &t->models[0], call);
        t->models[1] = t->models[0];
        model_call(script, &t->models[1], call);
        kl_rc rc = subject_call(&t->subject, &t->models[0], &t->models[1], call);
        if (rc != KL_OK) {
            report(t, "a later call fails", rc == KL_EINVAL ? t->subject.why : kl_error_text());
            return false;
        }
        t->models[0] = t->models[1];
    }
    return true;
}

static bool compare_again(struct trial *t, const char *what)
{
    if (subject_compare(&t->subject, t->models, 1, kl__random_next(&t->now.seed)) == 0)
        return true;
    report(t, what, t->subject.why);
    return false;
}

static void check_store(struct trial *t)
{
    if (!open_store(t, "the image does not open"))
        return;
    int found = subject_compare(&t->subject, t->models, t->count, kl__random_next(&t->now.seed));
    if (found < 0) {
        report(t, "what was found is no state of the run", t->subject.why);
        return;
    }
    if (!repeat_call(t, found) || !go_on(t) || !compare_again(t, "it does not go on right"))
        return;
    subject_close(&t->subject);
    if (kl__random_below(&t->now.seed, AGAIN_IN) == 0 && open_store(t, "it does not open again"))
        compare_again(t, "opened again it is another");
}

/* The states that may be found: behind each step of the call that is under way. */
static void fill_models(struct trial *t, const struct model *acknowledged, uint64_t op)
{
    const struct script *script = t->recording->script;
    t->models[0] = *acknowledged;
    t->count = 1;
    if (t->call == script->call_count || t->recording->began[t->call] >= op)
        return;
    const struct script_call *call = &script->calls[t->call];
    model_begin(script, &t->models[0], call);
    for (uint32_t i = 0; i < script_steps(call); i++, t->count++) {
        t->models[t->count] = t->models[t->count - 1];
        model_step(script, &t->models[t->count], call, i);
    }
}

static void check_case(struct trial *t, simdisk *disk, const struct model *acknowledged)
{
    t->second[0] = '\0';
    memset(&t->subject, 0, sizeof t->subject);
    fill_models(t, acknowledged, t->now.op);
    atomic_store(&t->subject.clock_ms, t->models[0].now_ms ? t->models[0].now_ms : SCRIPT_START_MS);
    memcpy(t->subject.partitions, t->models[0].partitions, sizeof t->subject.partitions);
    t->image = simdisk_image(disk, (simdisk_outcome)t->now.outcome, kl__random_next(&t->now.seed));
    bool ok = kl__random_below(&t->now.seed, SECOND_IN) != 0 || lose_power_again(t);
    if (ok) {
        open_disk(t);
        check_store(t);
        subject_close(&t->subject);
        sim_store_end(&t->store);
    }
    simdisk_free(t->image);
    atomic_fetch_add(&tally->images, 1);
}

/* ---- One run ---- */

/* Which images of a run are wanted: every n-th of all, and all of one operation. */
struct wanted {
    uint64_t images; /* 0: all */
    uint64_t op;     /* 0: any */
    int outcome;
};

static bool is_wanted(const struct wanted *wanted, const struct power_case *now, uint64_t index, uint64_t total)
{
    if (wanted->op)
        return now->op == wanted->op && now->outcome == wanted->outcome;
    return wanted->images == 0 || wanted->images >= total ||
           index * wanted->images / total != (index + 1) * wanted->images / total;
}

static uint64_t case_seed(uint64_t seed, uint64_t op, int outcome)
{
    uint64_t state = seed ^ (op * SIM_OUTCOMES + (uint64_t)outcome);
    return kl__random_next(&state);
}

static void check_run(const struct recording *recording, const struct wanted *wanted)
{
    struct trial *t = calloc(1, sizeof *t);
    struct model *acknowledged = calloc(1, sizeof *acknowledged);
    KL_ASSERT(t && acknowledged);
    simdisk *disk = simdisk_new();
    uint64_t ops = wanted->op ? wanted->op : simdisk_recorded(recording->disk), index = 0;
    t->recording = recording;
    for (uint64_t op = 1; op <= ops; op++) {
        simdisk_forward(disk, recording->disk, op);
        for (; t->call < recording->script->call_count && recording->ended[t->call] <= op; t->call++)
            recording_apply(recording, acknowledged, t->call);
        for (int outcome = 0; outcome < SIM_OUTCOMES; outcome++) {
            t->now = (struct power_case){op, outcome, case_seed(recording->script->seed, op, outcome)};
            if (!is_wanted(wanted, &t->now, index++, ops * SIM_OUTCOMES))
                continue;
            workers_doing("seed %" PRIu64 ", operation %" PRIu64 ", %s", recording->script->seed, op,
                          simdisk_outcome_names[outcome]);
            check_case(t, disk, acknowledged);
        }
        if (test_failed() && atomic_fetch_add(&tally->failures, 1) >= WORKER_FAILURES_MAX)
            break;
    }
    simdisk_free(disk);
    free(acknowledged);
    free(t);
}

/* ---- All processes ---- */

struct plan {
    uint64_t seed, images;
    bool whole; /* each process tries all images of a script, however many those are */
};

static struct plan make_plan(void)
{
    const char *asked = getenv("KL_TEST_IMAGES");
    struct plan plan = {.seed = test_seed(), .images = test_ops(IMAGES)};
    if (asked && *asked)
        plan.images = strtoull(asked, NULL, 10);
    else
        plan.whole = plan.images == IMAGES;
    return plan;
}

/* Runs scripts until its share of images is done. */
static void work(void *ctx, int worker, int workers)
{
    const struct plan *plan = ctx;
    uint64_t seed = plan->seed + (uint64_t)worker, done = 0;
    uint64_t share = (plan->images + (uint64_t)workers - 1) / (uint64_t)workers;
    do {
        workers_doing("seed %" PRIu64 ", the run itself", seed);
        struct recording *recording = recording_make(seed, CALLS);
        struct wanted wanted = {.images = plan->whole && done == 0 ? 0 : share - done};
        uint64_t all = simdisk_recorded(recording->disk) * SIM_OUTCOMES;
        if (recording->why[0])
            test_fail(__FILE__, __LINE__, "the run itself fails, seed %" PRIu64 ": %s", seed, recording->why);
        else
            check_run(recording, &wanted);
        atomic_fetch_add(&tally->runs, 1);
        atomic_fetch_add(&tally->operations, simdisk_recorded(recording->disk));
        recording_free(recording);
        done += wanted.images && wanted.images < all ? wanted.images : all;
        seed += WORKERS_MAX;
    } while (!test_failed() && done < share);
}

/* KL_POWERLOSS="FILE OP OUTCOME" */
static void repeat_one(const char *line)
{
    char path[256] = "", name[32] = "";
    struct wanted wanted = {.outcome = 0};
    REQUIRE(sscanf(line, "%255s %" SCNu64 " %31s", path, &wanted.op, name) == 3);
    while (wanted.outcome < SIM_OUTCOMES && strcmp(simdisk_outcome_names[wanted.outcome], name) != 0)
        wanted.outcome++;
    REQUIRE(wanted.outcome < SIM_OUTCOMES);
    struct recording *recording = recording_load(path);
    REQUIRE(recording && wanted.op <= simdisk_recorded(recording->disk));
    check_run(recording, &wanted);
    recording_free(recording);
}

TEST(what_was_acknowledged_survives_power_loss_at_every_operation)
{
    const char *line = getenv("KL_POWERLOSS");
    REQUIRE((tally = workers_share(sizeof *tally)) != NULL);
    if (line && *line) {
        repeat_one(line);
        return;
    }
    struct plan plan = make_plan();
    workers_run(work, &plan);
    printf("# %" PRIu64 " images of %" PRIu64 " operations in %" PRIu64 " runs; power lost again in %" PRIu64 "\n",
           atomic_load(&tally->images), atomic_load(&tally->operations), atomic_load(&tally->runs),
           atomic_load(&tally->seconds));
    CHECK(atomic_load(&tally->images) >= plan.images);
}
