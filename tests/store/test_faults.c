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
#include <sched.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "faultvfs.h"
#include "harness.h"
#include "recording.h"
#include "store/calls.h"
#include "store/disk/disk.h"
#include "store/dispatch.h"
#include "workers.h"

enum { CALLS = 90, RUNS = 1000, TRIES = 4, CANDIDATES = SCRIPT_STEPS_MAX + 1, PATIENCE_MS = 60000 };

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

/* ---- A full disk ---- */

enum { FULL_TASKS = 4000, FULL_PAYLOAD = 400 };

struct full_disk {
    simdisk *disk;
    struct sim_store store;
    kl_store *handle;
    kl_place place;
    kl_task_id ids[FULL_TASKS];
    uint64_t positions[FULL_TASKS];
    uint32_t count, settled;
    uint32_t straggler; /* every so manieth task is due at the end of time; 0: none */
    kl_log_fn *log;
    void *log_ctx;
};

static kl_rc append_one(struct full_disk *full)
{
    static const kl_layout layout = {1, 1};
    static const char payload[FULL_PAYLOAD];
    kl_id_parts parts = {.shard = full->place.shard, .sequence = full->count, .ms = SCRIPT_START_MS};
    kl_entry entry = {.place = full->place, .payload = {payload, sizeof payload}};
    if (full->straggler && full->count % full->straggler == 0)
        entry.due_ms = KL_ID_MS_MAX;
    KL_ASSERT(full->count < FULL_TASKS);
    kl_rc rc = kl_id_pack(&layout, &parts, &entry.id);
    if (rc == KL_OK)
        rc = kl_store_append(full->handle, &entry, 1, NULL);
    if (rc == KL_OK)
        full->ids[full->count++] = entry.id;
    return rc;
}

static kl_rc settle_one(struct full_disk *full, int64_t keep_ms)
{
    kl_stub stub;
    size_t count = 0;
    kl_scan scan = {.place = full->place, .max = 1};
    kl_rc rc = scan_one(full->handle, &scan, &stub, &count);
    if (rc != KL_OK || count == 0)
        return rc == KL_OK ? KL_ENOTFOUND : rc;
    kl_settled settled = {.id = stub.id, .position = stub.position, .attempts = 1, .keep_ms = keep_ms};
    kl_settle batch = {.place = full->place, .tasks = &settled, .count = 1};
    rc = kl_store_settle(full->handle, &batch, 1);
    full->settled += rc == KL_OK;
    return rc;
}

static uint64_t waiting(struct full_disk *full)
{
    kl_counts counts = {0};
    kl_rc rc = kl_store_counts(full->handle, full->place, NULL, &counts);
    CHECK_INT(rc, KL_OK);
    return counts.ready;
}

static bool open_full(struct full_disk *full)
{
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = 64 << 10, .log = full->log, .log_ctx = full->log_ctx};
    uint32_t partition = 0;
    kl_rc rc = kl__disk_open_on(full->store.vfs, RECORDING_PATH, &opts, &full->handle);
    if (rc == KL_OK)
        rc = kl_store_partition(full->handle, "orders", 1, &partition);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", kl_rc_name(rc), kl_error_text());
    full->place = (kl_place){partition, 0};
    return rc == KL_OK;
}

static bool fill(struct full_disk *full)
{
    simdisk_capacity(full->disk, simdisk_used(full->disk) + (400 << 10));
    kl_rc rc;
    do
        rc = append_one(full);
    while (rc == KL_OK);
    CHECK_STR(kl_rc_name(rc), "KL_EFULL");
    CHECK(full->count > 100);
    return rc == KL_EFULL;
}

/* Space is given back by the store's own thread: until it has been, appends are refused, and then they are not. */
static void await_room(struct full_disk *full)
{
    int64_t until = kl__deadline_ns(PATIENCE_MS);
    kl_rc rc = append_one(full);
    while (rc == KL_EFULL && kl__monotonic_ns() < until) {
        sched_yield();
        rc = append_one(full);
    }
    CHECK_STR(kl_rc_name(rc), "KL_OK");
}

static struct full_disk *begin_on(simdisk *disk)
{
    struct full_disk *full = calloc(1, sizeof *full);
    KL_ASSERT(full);
    full->disk = disk;
    full->store = sim_store_on(simdisk_vfs(disk));
    return full;
}

static struct full_disk *begin_full(void) { return begin_on(simdisk_new()); }

static void end_full(struct full_disk *full)
{
    kl_store_close(full->handle);
    sim_store_end(&full->store);
    simdisk_free(full->disk);
    free(full);
}

/* Power is lost, and nothing that was not synced is found. */
static struct full_disk *lose_unsynced(struct full_disk *full)
{
    simdisk *found = simdisk_image(full->disk, SIM_NOTHING, 1);
    end_full(full);
    return begin_on(found);
}

TEST(a_full_disk_refuses_tasks_and_accepts_what_came_of_them_until_there_is_room_again)
{
    struct full_disk *full = begin_full();
    if (open_full(full) && fill(full)) {
        uint32_t there = full->count;
        CHECK_INT(append_one(full), KL_EFULL);
        CHECK_INT(waiting(full), there);
        kl_rc rc = KL_OK;
        while (rc == KL_OK && full->settled < there)
            rc = settle_one(full, 0);
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        CHECK_INT(waiting(full), 0);
        await_room(full);
        CHECK_INT(waiting(full), 1);
    }
    end_full(full);
}

/* A few tasks that stay must not keep the segments in which all others are settled. */
TEST(a_full_disk_is_worked_off_around_tasks_that_are_due_much_later)
{
    struct full_disk *full = begin_full();
    full->straggler = 50;
    if (open_full(full) && fill(full)) {
        uint64_t there = waiting(full);
        kl_rc rc = KL_OK;
        while (rc == KL_OK && full->settled < there)
            rc = settle_one(full, 0);
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        CHECK_INT(waiting(full), 0);
        await_room(full);
    }
    end_full(full);
}

TEST(a_full_disk_accepts_tasks_again_when_it_grows_and_has_lost_none)
{
    struct full_disk *full = begin_full();
    if (open_full(full) && fill(full)) {
        for (int i = 0; i < 50; i++)
            CHECK_STR(kl_rc_name(settle_one(full, 1000000)), "KL_OK");
        simdisk_capacity(full->disk, simdisk_used(full->disk) + (4 << 20));
        await_room(full);
        uint32_t there = full->count - full->settled;
        CHECK_INT(waiting(full), there);
        full = lose_unsynced(full);
        if (open_full(full)) {
            kl_counts counts = {0};
            CHECK_INT(waiting(full), there);
            CHECK_INT(kl_store_counts(full->handle, (kl_place){full->place.partition, KL_ALL_SHARDS}, NULL, &counts),
                      KL_OK);
            CHECK_INT(counts.done, 50);
        }
    }
    end_full(full);
}

/* Finished tasks that are shown; false: not all yet. */
static bool count_done(struct full_disk *full, uint64_t *ret_done)
{
    kl_counts counts = {0};
    kl_rc rc = kl_store_counts(full->handle, (kl_place){full->place.partition, KL_ALL_SHARDS}, NULL, &counts);
    CHECK_STR(kl_rc_name(rc), "KL_OK");
    CHECK_INT(counts.ready, full->count - full->settled);
    *ret_done = counts.done;
    return !counts.finished_behind;
}

static kl_rc find_done(struct full_disk *full)
{
    kl_task found[4];
    size_t count;
    kl_arena arena = {0};
    kl_find find = {.partition = full->place.partition, .max = 4};
    kl_rc rc = kl_store_find(full->handle, &find, &arena, found, &count);
    kl_arena_free(&arena);
    return rc;
}

TEST(history_that_cannot_be_written_catches_up_by_itself_when_it_can)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    uint64_t done = 0;
    if (open_full(full)) {
        for (int i = 0; i < 20; i++)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        CHECK_STR(kl_rc_name(settle_one(full, 1000000)), "KL_OK");
        CHECK(count_done(full, &done));
        CHECK_INT(done, 1);
        faultvfs_set(faults,
                     &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .lasting = true, .error = ENOSPC, .only = "history"});
        for (int i = 1; i < 20; i++)
            CHECK_STR(kl_rc_name(settle_one(full, 1000000)), "KL_OK");
        CHECK(!count_done(full, &done)); /* what waits is known all the same */
        CHECK_INT(done, 1);
        CHECK_STR(kl_rc_name(find_done(full)), "KL_EFULL");
        faultvfs_set(faults, NULL);
        int64_t until = kl__deadline_ns(PATIENCE_MS);
        while (!count_done(full, &done) && kl__monotonic_ns() < until)
            sched_yield();
        CHECK_INT(done, 20);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

struct asking {
    kl_store *store;
    kl_place place;
    _Atomic(int) answers;
};

static void ask_store(void *ctx, kl_log_level level, const char *text)
{
    struct asking *asking = ctx;
    kl_stub stub;
    kl_scan scan = {.place = asking->place, .max = 1, .stubs = &stub};
    if (level == KL_LOG_ERROR && strstr(text, "history.db is behind"))
        asking->answers += kl_store_scan(asking->store, &scan, 1) == KL_OK;
}

/* Where it is told of with a mutex held, this hangs. */
TEST(the_log_is_told_that_history_is_behind_while_the_store_answers)
{
    struct full_disk *full = begin_full();
    struct asking asking = {0};
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->log = ask_store;
    full->log_ctx = &asking;
    uint64_t done = 0;
    if (open_full(full)) {
        asking.store = full->handle;
        asking.place = full->place;
        CHECK_INT(append_one(full), KL_OK);
        faultvfs_set(faults,
                     &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .lasting = true, .error = ENOSPC, .only = "history"});
        CHECK_INT(settle_one(full, 1000000), KL_OK);
        CHECK(!count_done(full, &done));
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    CHECK_INT(atomic_load(&asking.answers), 1);
    end_full(full);
    faultvfs_free(faults);
}

/* The disk is full, and the next write of the journal finds no room, once: as when an outcome stands in a group with a
 * task that is too large for what is left. */
static void find_no_room(faultvfs *faults)
{
    faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .error = ENOSPC, .only = ".seg"});
}

TEST(what_a_full_disk_accepts_is_not_refused_with_the_tasks_beside_it)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full) && fill(full)) {
        kl_fence fence = {.place = full->place, .epoch = 1};
        kl_write write = {.name = {"name", 4}, .value = {"value", 5}};
        find_no_room(faults);
        CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
        find_no_room(faults);
        CHECK_STR(kl_rc_name(kl_store_put(full->handle, &write, 1)), "KL_OK");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
        find_no_room(faults);
        CHECK_STR(kl_rc_name(kl_store_fence(full->handle, &fence, 1)), "KL_OK");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

static kl_rc append_large(struct full_disk *full)
{
    static const char payload[100 << 10]; /* more than a segment */
    kl_entry entry = {.place = full->place, .id = {{0, 1}}, .payload = {payload, sizeof payload}};
    return kl_store_append(full->handle, &entry, 1, NULL);
}

TEST(a_batch_for_which_no_segment_can_be_enlarged_is_refused_until_there_is_room)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full)) {
        CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_TRUNCATE, .at = 1, .error = ENOSPC});
        CHECK_STR(kl_rc_name(append_large(full)), "KL_EFULL");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
        CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        CHECK_STR(kl_rc_name(append_large(full)), "KL_OK");
        CHECK_INT(waiting(full), 2);
        kl_store_close(full->handle);
        full->handle = NULL;
        if (open_full(full))
            CHECK_INT(waiting(full), 2);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

TEST(a_full_disk_can_be_opened_and_worked_off)
{
    struct full_disk *full = begin_full();
    if (open_full(full) && fill(full)) {
        uint32_t there = full->count;
        kl_store_close(full->handle);
        full->handle = NULL;
        if (open_full(full)) {
            CHECK_INT(waiting(full), there);
            kl_rc rc = KL_OK;
            while (rc == KL_OK && full->settled < there)
                rc = settle_one(full, 0);
            CHECK_STR(kl_rc_name(rc), "KL_OK");
            await_room(full);
        }
    }
    end_full(full);
}

static bool has_next(struct full_disk *full)
{
    return atomic_load(&((kl__disk *)full->handle->self)->segments.has_next);
}

/* Of those that are there, without the next. */
static uint64_t first_segment(struct full_disk *full, size_t *ret_count)
{
    kl__state *state = &((kl__disk *)full->handle->self)->state;
    pthread_mutex_lock(&state->mutex);
    uint64_t first = state->first_segment;
    *ret_count = state->segment_count;
    pthread_mutex_unlock(&state->mutex);
    return first;
}

static void await_next(struct full_disk *full)
{
    int64_t until = kl__deadline_ns(PATIENCE_MS);
    while (!has_next(full) && kl__monotonic_ns() < until)
        sched_yield();
    CHECK(has_next(full));
}

/* There is room for the next segment, and none for a spare, which upkeep would like to have while the journal is brisk. To
 * try means to take what room there is from everybody else for a moment. */
TEST(a_spare_for_which_there_is_no_room_is_tried_once_for_each_segment)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->straggler = FULL_TASKS; /* the first, which upkeep is going to copy */
    if (open_full(full)) {
        size_t count = 0;
        for (int i = 0; i < 10; i++)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        await_next(full);
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_CREATE,
                                          .at = 2, /* the first is to be the segment behind the next */
                                          .lasting = true,
                                          .error = ENOSPC,
                                          .only = "/journal/spare"});
        while (first_segment(full, &count) == 1 && count == 1)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        while (full->settled + 1 < full->count && !test_failed())
            CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        await_next(full);
        int64_t until = kl__deadline_ns(PATIENCE_MS);
        while (first_segment(full, &count) == 1 && kl__monotonic_ns() < until)
            sched_yield(); /* until the journal is not brisk any more, and the straggler was copied */
        CHECK(first_segment(full, &count) > 1);
        CHECK(faultvfs_hits(faults, NULL, 0) <= 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

/* ---- A segment that cannot be read ---- */

static void count_copies(void *ctx, kl_log_level level, const char *text)
{
    if (level == KL_LOG_WARN && strstr(text, "could not be copied"))
        atomic_fetch_add((_Atomic(int) *)ctx, 1);
}

/* A disk may take long to fail, and whoever reads its log wants to read other things, too. */
TEST(copying_of_a_segment_that_cannot_be_read_is_tried_again_in_a_while)
{
    struct full_disk *full = begin_full();
    _Atomic(int) failed = 0;
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->straggler = FULL_TASKS; /* the first, which upkeep is going to copy */
    full->log = count_copies;
    full->log_ctx = &failed;
    if (open_full(full)) {
        int64_t began_ns = kl__monotonic_ns();
        kl_rc rc = append_one(full);
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_READ, .at = 1, .lasting = true, .error = EIO, .only = ".seg"});
        while (rc == KL_OK && full->count < FULL_TASKS / 2)
            rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        int64_t took_s = (kl__monotonic_ns() - began_ns) / 1000000000;
        CHECK(atomic_load(&failed) <= took_s + 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

static void count_removals(void *ctx, kl_log_level level, const char *text)
{
    if (level == KL_LOG_ERROR && strstr(text, "could not be removed"))
        atomic_fetch_add((_Atomic(int) *)ctx, 1);
}

TEST(a_segment_that_cannot_be_removed_is_tried_again_in_a_while)
{
    struct full_disk *full = begin_full();
    _Atomic(int) failed = 0;
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->log = count_removals;
    full->log_ctx = &failed;
    if (open_full(full)) {
        int64_t began_ns = kl__monotonic_ns();
        kl_rc rc = KL_OK;
        faultvfs_set(faults,
                     &(vfs_fault){.kinds = FAULT_UNLINK, .at = 1, .lasting = true, .error = EIO, .only = ".seg"});
        while (rc == KL_OK && full->count < FULL_TASKS / 4)
            rc = append_one(full);
        while (rc == KL_OK && full->settled < full->count)
            rc = settle_one(full, 0);
        while (rc == KL_OK && full->count < FULL_TASKS / 2)
            rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        int64_t took_s = (kl__monotonic_ns() - began_ns) / 1000000000;
        CHECK(atomic_load(&failed) <= took_s + 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

static void count_next(void *ctx, kl_log_level level, const char *text)
{
    if (level == KL_LOG_ERROR && strstr(text, "could not be prepared"))
        atomic_fetch_add((_Atomic(int) *)ctx, 1);
}

TEST(a_next_segment_that_cannot_be_made_is_tried_again_in_a_while)
{
    struct full_disk *full = begin_full();
    _Atomic(int) failed = 0;
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->straggler = FULL_TASKS; /* the first, which upkeep is going to copy, and waits for */
    full->log = count_next;
    full->log_ctx = &failed;
    if (open_full(full)) {
        size_t count = 0;
        for (int i = 0; i < 10; i++)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        await_next(full);
        int64_t began_ns = kl__monotonic_ns();
        faultvfs_set(
            faults,
            &(vfs_fault){.kinds = FAULT_CREATE, .at = 1, .lasting = true, .error = EIO, .only = "/journal/spare"});
        while (first_segment(full, &count) == 1 && count == 1)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        while (full->settled + 1 < full->count && !test_failed())
            CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        int64_t until = kl__deadline_ns(PATIENCE_MS);
        while (first_segment(full, &count) == 1 && kl__monotonic_ns() < until)
            sched_yield(); /* until the journal is not brisk any more, and the straggler was copied */
        int64_t took_s = (kl__monotonic_ns() - began_ns) / 1000000000;
        CHECK(atomic_load(&failed) <= took_s + 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

/* ---- Going to the next segment ---- */

/* ---- What is said of a failure ---- */

struct following {
    struct full_disk *full;
    kl_entry entry;
    kl_token token;
    int told;
};

/* Whoever is told of it makes calls of his own, which fail for reasons of their own. */
static void be_told(void *ctx, kl_rc rc, const char *error)
{
    struct following *following = ctx;
    CHECK_STR(kl_rc_name(rc), "KL_ESYSTEM");
    CHECK_CONTAINS(error, "syncing the journal failed");
    CHECK_INT(kl_store_now(following->full->handle, NULL), KL_EINVAL);
    following->told++;
}

static void follow_twice(void *ctx, kl__file *under)
{
    (void)under;
    struct following *following = ctx;
    for (int i = 0; i < 2; i++)
        CHECK_INT(kl_store_append_async(following->full->handle, &following->entry, 1, &following->token, be_told, ctx),
                  KL_OK);
}

TEST(repeats_of_an_append_that_fails_and_its_caller_are_told_the_same)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full)) {
        struct following following = {.full = full, .entry = {.place = full->place, .id = {{0, 1}}}, .token = {{1}}};
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_SYNC,
                                          .at = 1,
                                          .error = EIO,
                                          .only = "/journal/",
                                          .sync_failed = follow_twice,
                                          .ctx = &following});
        CHECK_INT(kl_store_append(full->handle, &following.entry, 1, &following.token), KL_ESYSTEM);
        CHECK_CONTAINS(kl_error_text(), "syncing the journal failed");
        CHECK_INT(following.told, 2);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

/* One task, settled, so that the first segment is there for nothing but its partition; then a task that is larger than
 * what is left of it, while sync `at` of the journal fails. Upkeep comes at once. False: no sync failed. */
static bool fail_the_roll(struct full_disk *full, uint64_t at)
{
    static const kl_layout layout = {1, 1};
    static const char payload[100 << 10];
    kl_id_parts parts = {.sequence = 1, .ms = SCRIPT_START_MS};
    kl_entry entry = {.payload = {payload, sizeof payload}};
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    sim_store_end(&full->store);
    full->store = sim_store_on(faultvfs_vfs(faults));
    bool failed = false;
    if (open_full(full)) {
        CHECK_INT(append_one(full), KL_OK);
        CHECK_INT(settle_one(full, 0), KL_OK);
        CHECK_INT(kl_id_pack(&layout, &parts, &entry.id), KL_OK);
        entry.place = full->place;
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_SYNC, .at = at, .error = EIO, .only = "/journal/"});
        failed = kl_store_append(full->handle, &entry, 1, NULL) != KL_OK;
        kl__segments_drop(&((kl__disk *)full->handle->self)->segments);
    }
    simdisk *found = simdisk_image(full->disk, SIM_NOTHING, 1);
    kl_store_close(full->handle);
    full->handle = NULL;
    sim_store_end(&full->store);
    faultvfs_free(faults);
    simdisk_free(full->disk);
    full->disk = found;
    full->store = sim_store_on(simdisk_vfs(found));
    return failed;
}

TEST(a_segment_goes_only_when_the_next_durably_names_the_partitions)
{
    bool failed = true;
    uint64_t at = 1;
    for (; failed && !test_failed(); at++) {
        struct full_disk *full = begin_full();
        failed = fail_the_roll(full, at);
        kl_rc rc = kl__disk_open_on(full->store.vfs, RECORDING_PATH, NULL, &full->handle);
        CHECK_INT(rc, KL_OK);
        uint32_t partition;
        if (rc == KL_OK)
            CHECK_INT(kl_store_partition(full->handle, "orders", 2, &partition), KL_EINVAL);
        end_full(full);
    }
    CHECK(at > 4); /* the next segment's header, its first frame, the task: each has failed once */
}

/* ---- Removing a segment ---- */

/* Tasks come and go until the fault has come, and through some segments behind it; at least one segment is filled. */
static void churn(struct full_disk *full, faultvfs *faults)
{
    enum { BEHIND = 800, MOST = FULL_TASKS - BEHIND };
    kl_rc rc = KL_OK;
    while (rc == KL_OK && full->count < MOST && !faultvfs_hits(faults, NULL, 0))
        rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
    CHECK(faultvfs_hits(faults, NULL, 0) == 1);
    for (int i = 0; i < BEHIND && rc == KL_OK; i++)
        rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "task %u: %s", full->count, kl_error_text());
    CHECK_INT(append_one(full), KL_OK);
}

/* Fault `at` of these kinds comes once; then power is lost. */
static void fail_a_removal(unsigned kinds, uint64_t at)
{
    struct full_disk *full = begin_full();
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    sim_store_end(&full->store);
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full)) {
        faultvfs_set(faults, &(vfs_fault){.kinds = kinds, .at = at, .error = EIO, .only = "/journal"});
        churn(full, faults);
    }
    simdisk *found = simdisk_image(full->disk, SIM_NOTHING, 1);
    end_full(full);
    faultvfs_free(faults);
    full = begin_on(found);
    if (open_full(full))
        CHECK_INT(waiting(full), 1);
    end_full(full);
}

TEST(one_error_while_a_segment_is_removed_does_not_end_the_store)
{
    for (uint64_t at = 1; at <= 6 && !test_failed(); at++) {
        fail_a_removal(FAULT_RENAME | FAULT_UNLINK, at);
        fail_a_removal(FAULT_SYNC_DIR, at);
    }
}
