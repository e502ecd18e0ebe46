/* worker.c - worker processes: the pump with the threads that worker.c of the library gives it, simulated.
 *
 *     main     opens everything, then keeps what it owns     ticker    looks at records, carries out requests
 *     hands    take, load, run and finish tasks              looker    reads more tasks
 *                                                            settler   sends outcomes
 *
 * A run is a sleep. What comes of it is decided by the task's behaviour; a poisonous one ends the process. */
#include "sim/world.h"

static bool is_over(const struct sim_process *process)
{
    return process->dead || (process->stopping && kl__pump_gone(process->pump));
}

/* --- Looking and settling --- */

/* By any clock, and however full its memory is. */
static void check_looks(struct sim_process *process)
{
    struct world *world = process->world;
    if (!process->stopping && !process->dead &&
        world->now_ms - process->look_began_ms > KL_LOOK_EVERY_MS * 107 / 100 + 1)
        sim_break(world, "I3", NULL, "p%u does not look for what is more urgent", process->number);
}

static kl_rc look(struct sim_process *process, uint64_t *ret_ready)
{
    if (!kl__pump_wants_look(process->pump)) {
        check_looks(process);
        return KL_OK;
    }
    process->look_began_ms = process->world->now_ms;
    order_look_begins(process);
    kl_rc rc = kl__pump_look(process->pump, ret_ready);
    order_look_ends(process, rc);
    return rc;
}

static void looker(struct sim_process *process)
{
    struct world *world = process->world;
    while (!is_over(process)) {
        uint64_t ready = 0;
        sim_enter(process);
        kl_rc rc = look(process, &ready);
        sim_leave(process);
        bool eager = rc == KL_OK && process->pump->eager;
        sim_sleep(process, eager         ? sim_between(world, 0, 2)
                           : rc != KL_OK ? 20
                                         : sim_between(world, 4, ready ? 12 : 30));
    }
}

static void settle(struct sim_process *process)
{
    uint64_t sent;
    kl_rc rc = kl__pump_settle(process->pump, &sent);
    if (rc != KL_OK)
        sim_note(process->world, process, NULL, "a settle failed: %s", kl_rc_name(rc));
}

static void settler(struct sim_process *process)
{
    while (!is_over(process)) {
        sim_enter(process);
        if (kl__pump_has_finished(process->pump))
            settle(process);
        sim_leave(process);
        sim_sleep(process, sim_between(process->world, 1, 9));
    }
}

/* --- Running --- */

static int64_t duration_ms(struct world *world)
{
    uint64_t dice = sim_below(world, 1000);
    if (dice < 3 && !world->quiet)
        return sim_between(world, world->plan.lease_ms / 2, world->plan.lease_ms * 3);
    return dice < 50 ? sim_between(world, 10, 200) : sim_between(world, 0, 6);
}

static kl_outcome outcome_of(struct sim_process *process, const struct sim_task *task)
{
    struct world *world = process->world;
    switch (task->behaviour) {
    case SIM_WELL:
        return KL_DONE;
    case SIM_FLAKY:
        return sim_chance(world, 1, 2) ? KL_DONE : KL_RETRY;
    case SIM_BAD:
        return KL_RETRY;
    case SIM_FATAL:
        return KL_DEAD;
    case SIM_POISON:
        sim_note(world, process, task, "is poison");
        sim_crash(process, "its task is poison");
        return KL_RETRY;
    }
    return KL_DONE;
}

/* The mutex is held, and left while the task runs. False: the process has ended. */
static bool run_one(struct sim_process *process, kl__held *held, struct sim_entry *entry, const kl_task_extra *extra)
{
    struct world *world = process->world;
    oracle_runs(process, entry, held->window);
    sim_leave(process);
    sim_sleep(process, duration_ms(world));
    sim_enter(process);
    kl__verdict verdict = {.outcome = outcome_of(process, entry->task),
                           .retry_after_ms = sim_chance(world, 1, 2) ? -1 : sim_between(world, 0, 100),
                           .attempts_max = extra->attempts_max,
                           .keep_ms = extra->keep_ms};
    if (process->dead) {
        kl__pump_untake(process->pump, held);
        return false;
    }
    bool lost = held->window->lost;
    kl__pump_finish(process->pump, held, &verdict);
    oracle_finished(process, entry, lost ? NULL : held);
    return true;
}

/* Those behind it go back when the process stops, the lease is over, or somebody else has time for them. */
static void run_all(struct sim_process *process, kl__held **held, struct sim_entry **entries,
                    const kl_task_extra *extras, size_t count)
{
    size_t done = 0;
    while (done < count && !process->dead && kl__pump_may_start(held[done], sim_local_ms(process)) &&
           !(done > 0 && (process->stopping || sim_chance(process->world, 1, 10)))) {
        bool alive = run_one(process, held[done], entries[done], &extras[done]);
        done++;
        if (!alive)
            break;
    }
    for (size_t i = count; i-- > done;) {
        if (!process->dead)
            oracle_untaken(process, entries[i], held[i]->window->epoch);
        kl__pump_untake(process->pump, held[i]);
    }
}

struct hand {
    kl__held *held[SIM_HANDS_MAX];
    struct sim_entry *entries[SIM_HANDS_MAX]; /* of those that are held */
    kl_task_id ids[SIM_HANDS_MAX];
    struct sim_entry *taken[SIM_HANDS_MAX];
    uint64_t epochs[SIM_HANDS_MAX]; /* under which they were */
    kl_task tasks[SIM_HANDS_MAX];
    kl_task_extra extras[SIM_HANDS_MAX];
    const kl_handler *handlers[SIM_HANDS_MAX];
};

static bool is_among(const struct hand *hand, size_t count, const struct sim_entry *entry)
{
    for (size_t i = 0; i < count; i++)
        if (hand->entries[i] == entry)
            return true;
    return false;
}

/* Load moves those that are to be run to the front. */
static size_t load(struct sim_process *process, struct hand *hand, size_t count, kl_arena *arena)
{
    size_t run = 0;
    kl_rc rc = kl__pump_load(process->pump, hand->held, count, arena, hand->tasks, hand->extras, hand->handlers, &run);
    run = rc == KL_OK ? run : 0;
    for (size_t i = 0; i < run; i++)
        hand->entries[i] = oracle_find(process->world, hand->held[i]->window->place.partition, &hand->held[i]->id);
    for (size_t i = 0; i < count && !process->dead; i++) {
        if (rc != KL_OK)
            oracle_untaken(process, hand->taken[i], hand->epochs[i]);
        else if (!is_among(hand, run, hand->taken[i]))
            oracle_dealt(process, hand->taken[i], hand->epochs[i]);
    }
    return run;
}

/* Not by the pump's own count: by what is in its windows. */
static int64_t running_of(const kl__pump *pump, uint32_t index)
{
    int64_t count = 0;
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next)
        for (const kl__window *window = partition->index == index ? partition->windows : NULL; window;
             window = window->next)
            for (uint32_t i = 0; i < window->table_capacity; i++)
                count += window->table[i].held && window->table[i].held->state == KL_HELD_RUNNING;
    return count;
}

static void check_limit(struct sim_process *process, const kl__held *held)
{
    int64_t limit = process->world->plan.per_partition;
    uint32_t index = held->window->partition->index;
    if (limit && running_of(process->pump, index) > limit)
        sim_break(process->world, "I8", NULL, "p%u has more than %lld tasks of partition %u", process->number,
                  (long long)limit, index);
}

/* True: there was something to do. */
static bool take(struct sim_process *process)
{
    struct hand hand;
    kl_arena arena = {0};
    size_t most = sim_chance(process->world, 1, 4) ? SIM_HANDS_MAX : 1;
    size_t count = kl__pump_take(process->pump, hand.held, most);
    for (size_t i = 0; i < count; i++) {
        hand.epochs[i] = hand.held[i]->window->epoch;
        if (!(hand.taken[i] = oracle_taken(process, hand.held[i])))
            sim_crash(process, "what it takes is not there");
    }
    for (size_t i = 0; i < count; i++)
        check_limit(process, hand.held[i]);
    if (process->dead) {
        for (size_t i = count; i-- > 0;)
            kl__pump_untake(process->pump, hand.held[i]);
        return false;
    }
    size_t run = count > 0 ? load(process, &hand, count, &arena) : 0;
    run_all(process, hand.held, hand.entries, hand.extras, run);
    kl_arena_free(&arena);
    return count > 0;
}

static void hand(struct sim_process *process)
{
    struct world *world = process->world;
    while (!is_over(process)) {
        sim_enter(process);
        bool busy = !process->dead && take(process);
        if (!process->dead && sim_chance(world, 1, 20) && kl__pump_has_finished(process->pump))
            settle(process);
        sim_leave(process);
        sim_sleep(process, busy ? 0 : sim_between(world, 3, 25));
    }
}

/* --- The process --- */

static kl_rc open_pump(struct sim_process *process)
{
    static const kl_handler all[] = {{.kind = NULL}}, some[] = {{.kind = "often"}};
    struct world *world = process->world;
    kl__pump_opts opts = {.queue = process->queue,
                          .worker = process->worker,
                          .worker_name = "simulated",
                          .handlers = process->all_kinds ? all : some,
                          .handler_count = 1,
                          .window_max = world->plan.window_max,
                          .concurrency = process->concurrency,
                          .per_partition = world->plan.per_partition,
                          .seed = kl__random_next(&world->random),
                          .local_ms = sim_local_ms,
                          .local_ctx = process,
                          .leave = sim_leave,
                          .enter = sim_enter,
                          .mutex_ctx = process};
    return kl__pump_open(&opts, &process->pump);
}

static void stop(struct sim_process *process)
{
    sim_note(process->world, process, NULL, "stops");
    process->stopping = true;
    kl__pump_stop(process->pump);
}

/* Longer than the pump lets a tick rest, by any clock: it does not pass one over. */
static void rest(struct sim_process *process) { sim_sleep(process, kl__pump_beat_ms(process->pump) * 107 / 100 + 1); }

static void ticker(struct sim_process *process)
{
    struct world *world = process->world;
    while (!is_over(process)) {
        sim_enter(process);
        int64_t began_ms = world->now_ms;
        kl_rc rc = kl__pump_tick(process->pump);
        if (rc == KL_OK)
            process->tick_began_ms = began_ms;
        else
            sim_note(world, process, NULL, "a tick failed: %s", kl_rc_name(rc));
        sim_leave(process);
        rest(process);
    }
}

static void keep(struct sim_process *process)
{
    kl_rc rc = kl__pump_keep(process->pump);
    if (rc != KL_OK)
        sim_note(process->world, process, NULL, "a beat failed: %s", kl_rc_name(rc));
    if (process->world->ending && !process->stopping)
        stop(process);
}

void sim_worker(struct sim_process *process)
{
    struct world *world = process->world;
    process->all_kinds = world->quiet || !world->plan.kinds || sim_chance(world, 1, 2);
    process->concurrency = (uint32_t)sim_between(world, 1, SIM_HANDS_MAX);
    sim_note(world, process, NULL, "a worker starts with %u hands", process->concurrency);
    if (sim_open(process) != KL_OK || open_pump(process) != KL_OK)
        return;
    sim_thread_new(process, ticker);
    sim_thread_new(process, looker);
    sim_thread_new(process, settler);
    for (uint32_t i = 0; i < process->concurrency; i++)
        sim_thread_new(process, hand);
    while (!is_over(process)) {
        sim_enter(process);
        keep(process);
        sim_leave(process);
        rest(process);
        if (!world->quiet && sim_chance(world, 1, 400))
            process->frozen_until_ms = world->now_ms + sim_between(world, 10, world->plan.lease_ms * 3);
        if (!world->quiet && !process->stopping && sim_chance(world, 1, 300) && sim_alive(world, SIM_WORKER) > 1) {
            sim_enter(process);
            stop(process);
            sim_leave(process);
        }
    }
}
