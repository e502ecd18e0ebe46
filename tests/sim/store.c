/* store.c - the store as one process sees it: an engine over the one memory store of the world.
 *
 * From: the library, in some thread of some process.  To: the world's store, and oracle.c, which is told of everything
 * that took effect at the moment when it did.
 *
 *      call -> [pause] -> request lost? -> takes effect -> [pause] -> reply lost? -> answer
 *
 * A process that has crashed gets errors, and nothing that it calls has an effect; so its threads come to their ends by
 * themselves, and all memory is freed. */
#include <stdlib.h>
#include <string.h>

#include "sim/world.h"

static struct world *opening;

void sim_store_world(struct world *world) { opening = world; }

/* --- The way there and back --- */

enum fate { GOES_WELL, REQUEST_LOST, REPLY_LOST };

static enum fate choose(const struct sim_process *process)
{
    struct world *world = process->world;
    if (world->quiet || !fiber_current())
        return GOES_WELL;
    uint64_t dice = sim_below(world, 1000);
    enum fate fate = dice < world->plan.lost_per_mille       ? REQUEST_LOST
                     : dice < 2 * world->plan.lost_per_mille ? REPLY_LOST
                                                             : GOES_WELL;
    world->losses += fate != GOES_WELL;
    return fate;
}

static int64_t latency_ms(struct world *world)
{
    if (!world->quiet && sim_chance(world, world->plan.stall_per_10000, 10000)) {
        world->stalls++;
        return sim_between(world, world->plan.lease_ms / 2, world->plan.lease_ms * 5 / 2);
    }
    if (!world->quiet && sim_chance(world, world->plan.slow_per_mille, 1000))
        return sim_between(world, 5, 100);
    return (int64_t)sim_below(world, 3);
}

static void travel(struct sim_process *process)
{
    struct world *world = process->world;
    if (!fiber_current() || process->dead)
        return;
    if (!world->quiet && sim_chance(world, world->plan.crash_per_10000, 10000) &&
        (process->role != SIM_WORKER || sim_alive(world, SIM_WORKER) > 1))
        sim_crash(process, "in a call of the store");
    sim_sleep(process, latency_ms(world));
}

static kl_rc lose(const struct sim_process *process)
{
    return process->dead ? kl__fail(KL_ESYSTEM, "this process has ended")
                         : kl__fail(KL_EBUSY, "no answer has come; make the call again");
}

static bool there(struct sim_process *process, enum fate fate)
{
    process->world->operations++;
    travel(process);
    return !process->dead && fate != REQUEST_LOST;
}

static bool back(struct sim_process *process, enum fate fate)
{
    if (fiber_current() && !sim_chance(process->world, 1, 2))
        travel(process);
    return !process->dead && fate != REPLY_LOST;
}

#define PASS_ON(process, call, effect)                                                                                 \
    do {                                                                                                               \
        enum fate fate_ = choose(process);                                                                             \
        if (!there(process, fate_))                                                                                    \
            return lose(process);                                                                                      \
        kl_rc rc = (call);                                                                                             \
        effect;                                                                                                        \
        return back(process, fate_) ? rc : lose(process);                                                              \
    } while (0)

/* The same where the answer stands in an rc field of each item as well. */
#define PASS_ON_ITEMS(process, call, effect, items, count)                                                             \
    do {                                                                                                               \
        enum fate fate_ = choose(process);                                                                             \
        bool made_ = there(process, fate_);                                                                            \
        kl_rc rc = made_ ? (call) : KL_OK;                                                                             \
        if (made_)                                                                                                     \
            effect;                                                                                                    \
        if (made_ && back(process, fate_))                                                                             \
            return rc;                                                                                                 \
        rc = lose(process);                                                                                            \
        for (size_t i_ = 0; i_ < (count); i_++)                                                                        \
            (items)[i_].rc = rc;                                                                                       \
        return rc;                                                                                                     \
    } while (0)

/* --- Calls --- */

static kl_rc open_sim(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)opts;
    *ret_self = opening->processes[strtoul(where, NULL, 10)];
    return KL_OK;
}

static void close_sim(void *self) { (void)self; }

static kl_rc sim_now(void *self, int64_t *ret_ms)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_now(process->world->inner, ret_ms), (void)0);
}

static kl_rc sim_partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_partition(process->world->inner, name, shard_prefix_len, ret_partition),
            oracle_partition(process->world, *ret_partition, name, shard_prefix_len));
}

static kl_rc append_now(struct sim_process *process, const kl_append *append)
{
    kl_rc rc = kl_store_append(process->world->inner, append->entries, append->count, append->token);
    if (rc == KL_OK)
        oracle_appended(process, append->entries, append->count);
    return rc;
}

static kl_rc append_waiting(struct sim_process *process, const kl_append *append)
{
    PASS_ON(process, append_now(process, append), (void)0);
}

/* An append that does not wait ends before the call returns. */
static kl_rc sim_append(void *self, const kl_append *append)
{
    struct sim_process *process = self;
    kl_rc rc = append_waiting(process, append);
    if (!append->done)
        return rc;
    append->done(append->ctx, rc, rc == KL_OK ? "" : kl_error_text());
    return KL_OK;
}

static kl_rc sim_scan(void *self, kl_scan *scans, size_t count)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_scan(process->world->inner, scans, count), order_scanned(process, scans, count));
}

static kl_rc sim_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                      size_t *ret_count)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_read(process->world->inner, refs, count, arena, ret_tasks, ret_count), (void)0);
}

static kl_rc sim_settle(void *self, kl_settle *batches, size_t count)
{
    struct sim_process *process = self;
    PASS_ON_ITEMS(process, kl_store_settle(process->world->inner, batches, count),
                  oracle_settled(process, batches, count), batches, count);
}

static kl_rc sim_fence(void *self, kl_fence *fences, size_t count)
{
    struct sim_process *process = self;
    PASS_ON_ITEMS(process, kl_store_fence(process->world->inner, fences, count), oracle_fenced(process, fences, count),
                  fences, count);
}

static kl_rc sim_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_counts(process->world->inner, place, job, ret_counts),
            order_counted(process, place.partition, ret_counts->priorities));
}

static kl_rc sim_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    struct sim_process *process = self;
    (void)wait_ms;
    PASS_ON(process, kl_store_wait(process->world->inner, partition, 0, seen), (void)0);
}

static kl_rc sim_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                         kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_results(process->world->inner, place, job, after, max, arena, ret_tasks, ret_count),
            (void)0);
}

static kl_rc sim_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_find(process->world->inner, find, arena, ret_tasks, ret_count), (void)0);
}

static kl_rc sim_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_forget(process->world->inner, place, ids, count), (void)0);
}

static kl_rc sim_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_get(process->world->inner, names, count, arena, ret_records), (void)0);
}

static kl_rc sim_put(void *self, kl_write *writes, size_t count)
{
    struct sim_process *process = self;
    PASS_ON_ITEMS(process, kl_store_put(process->world->inner, writes, count), oracle_written(process, writes, count),
                  writes, count);
}

static kl_rc sim_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                      size_t *ret_count)
{
    struct sim_process *process = self;
    PASS_ON(process, kl_store_list(process->world->inner, prefix, after, max, arena, ret_records, ret_count), (void)0);
}

const kl_engine *sim_engine(void)
{
    static kl_engine engine = {
        .size = sizeof engine,
        .scheme = "sim",
        .usage = "sim:",
        .open = open_sim,
        .close = close_sim,
        .now = sim_now,
        .partition = sim_partition,
        .append = sim_append,
        .scan = sim_scan,
        .read = sim_read,
        .settle = sim_settle,
        .fence = sim_fence,
        .counts = sim_counts,
        .wait = sim_wait,
        .results = sim_results,
        .find = sim_find,
        .forget = sim_forget,
        .get = sim_get,
        .put = sim_put,
        .list = sim_list,
    };
    engine.can = kl_store_info_of(opening->inner).can;
    return &engine;
}
