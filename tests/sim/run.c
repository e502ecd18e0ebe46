/* run.c - one seed from beginning to end.
 *
 *     set up -> faults and work, for so many operations -> quiet: no more faults -> at rest -> everybody stops -> check
 *
 * An operation is a call of the store, a start of a task or its end. In the quiet time poisonous tasks go on ending
 * their workers; everything else works. Then all tasks must come to an end, but for those of keys that are halted. */
#include <stdio.h>
#include <string.h>

#include "keyline/control.h"
#include "sim/world.h"

enum {
    KEEP_EVERY = 32,      /* steps between two looks at which processes are missing */
    REST_EVERY = 256,     /* and at whether all tasks have ended */
    QUIET_MS = 900000,    /* of the store's clock, until all tasks must have ended */
    STEPS_FACTOR = 60,    /* of the operations, for the same */
    JUMP_MS = 61000,      /* time that nobody sees pass; */
    JUMPS_MAX = 9,        /* less than the ten minutes for which stores know an append again */
    TELL_EVENTS_MAX = 40, /* before what broke */
};

/* --- The plan --- */

static struct sim_plan make_plan(struct world *world, uint64_t operations)
{
    static const kl_head_policy policies[] = {KL_HEAD_CONTINUE, KL_HEAD_CONTINUE, KL_HEAD_HALT, KL_HEAD_DRAIN};
    bool calm = sim_chance(world, 1, 8);
    struct sim_plan plan = {
        .operations = operations,
        .keys = (uint32_t)sim_between(world, 2, SIM_KEYS_MAX - 2) / (sim_chance(world, 1, 2) ? 1 : 6) + 1,
        .workers = (uint32_t)sim_between(world, 2, 4),
        .producers = (uint32_t)sim_between(world, 1, 3),
        .submitters = (uint32_t)sim_between(world, 0, 3),
        .operators = (uint32_t)sim_between(world, 0, 2),
        .lease_ms = sim_between(world, 1000, 3000),
        .attempts_max = (uint32_t)sim_between(world, 1, 4),
        .policy = policies[sim_below(world, 4)],
        .window_max = sim_chance(world, 1, 2) ? 32 : sim_between(world, 64, 512),
        .lost_per_mille = calm ? 0 : (uint32_t)sim_below(world, 25),
        .stall_per_10000 = calm ? 0 : (uint32_t)sim_below(world, 25),
        .slow_per_mille = (uint32_t)sim_below(world, 40),
        .crash_per_10000 = calm ? 0 : (uint32_t)sim_below(world, 12),
        .delays = sim_chance(world, 1, 2),
        .priorities = sim_chance(world, 1, 2),
        .groups = sim_chance(world, 1, 4),
        .bursts = sim_chance(world, 1, 2),
        .kinds = sim_chance(world, 1, 4),
        .crons = sim_chance(world, 1, 4),
        .requests = sim_chance(world, 1, 5),
        .layouts = sim_chance(world, 2, 5),
        .pauses = sim_chance(world, 1, 3),
        .redrives = sim_chance(world, 1, 4),
        .poison_max = (uint32_t)sim_below(world, 3),
    };
    if (world->seed % 8 == 6) /* so that it takes nothing from chance: the other seeds stay what they are */
        plan.per_partition = 1 + (int64_t)(world->seed / 8 % 2);
    if (world->seed % 8 == 3) { /* likewise */
        plan.ordered = plan.true_clocks = plan.priorities = plan.delays = true;
        plan.keys = 1 + plan.keys % 5;
        if (world->seed / 8 % 2) /* who owns all shards reads less of each at a time */
            plan.workers = 1;
    }
    if (world->seed % 8 == 5) { /* likewise */
        plan.altered = plan.layouts = true;
        plan.operators += plan.operators == 0;
    }
    if (world->seed % 8 == 1) { /* likewise */
        plan.concurrency = 1 + (int64_t)(world->seed / 8 % 4);
        plan.layouts |= world->seed / 32 % 2;
    }
    if (world->seed % 8 == 7) { /* likewise */
        plan.reruns = true;
        plan.redrives = false; /* who does both at once may put a task twice */
        plan.submitters += plan.submitters == 0;
        plan.operators += plan.operators == 0;
        plan.layouts |= world->seed / 8 % 2;
    }
    if (sim_is_mutated()) { /* everything happens, so that fewer seeds are needed */
        plan.layouts = plan.crons = plan.pauses = plan.delays = true;
        plan.submitters = plan.operators = 2;
        plan.lost_per_mille += 5;
        plan.stall_per_10000 += 5;
        plan.restless = world->seed % 2 == 0;
        plan.requests |= plan.restless;
        plan.stall_per_10000 += plan.restless ? 25 : 0;
        plan.crash_per_10000 += plan.restless ? 12 : 0;
    }
    return plan;
}

/* --- Processes --- */

static void set_up(struct sim_process *process)
{
    struct world *world = process->world;
    kl_store_opts opts = {.size = sizeof opts};
    kl_queue_opts settings = {.size = sizeof settings,
                              .lease_ms = world->plan.lease_ms,
                              .attempts_max = world->plan.attempts_max,
                              .head_policy = world->plan.policy,
                              .concurrency = world->plan.concurrency,
                              .backoff_base_ms = 10,
                              .backoff_max_ms = 400};
    if (kl_store_open_engine(sim_engine(), "0", &opts, &process->store) != KL_OK ||
        kl_queue_open(process->store, SIM_QUEUE, &settings, &process->queue) != KL_OK ||
        (world->plan.crons && sim_schedule(process) != KL_OK))
        sim_break(world, "I7", NULL, "the queue cannot be made: %s", kl_error_text());
}

/* Whatever operators have left paused. */
static void resume_all(struct sim_process *process)
{
    struct world *world = process->world;
    if (sim_open(process) != KL_OK)
        return;
    world->queue_paused = false;
    for (uint32_t i = 0; i < SIM_KEYS_MAX; i++)
        world->keys[i].paused = false;
    kl_rc rc = kl_queue_resume(process->queue);
    kl_queue_opts free = {
        .size = sizeof free, .lease_ms = world->plan.lease_ms, .rate = KL_FOREVER, .concurrency = KL_FOREVER};
    while (world->plan.altered && kl_queue_alter(process->queue, &free) != KL_OK && !process->dead)
        sim_sleep(process, 100);
    for (uint32_t i = 1; i < SIM_KEYS_MAX; i++)
        while (world->keys[i].steered && (rc = kl_key_resume(process->queue, kl_str(world->keys[i].name))) != KL_OK &&
               !process->dead)
            sim_sleep(process, 100);
    sim_note(world, process, NULL, "everything is resumed: %s", kl_rc_name(rc));
}

/* And then a third of the keys are paused: what is left of the others must end all the same. */
static void hold_some(struct sim_process *process)
{
    struct world *world = process->world;
    resume_all(process);
    for (uint32_t i = 1 + (uint32_t)(world->seed % 3); i <= world->plan.keys; i += 3) {
        world->keys[i].held = true;
        while (!process->dead && kl_key_pause(process->queue, kl_str(world->keys[i].name)) != KL_OK)
            sim_sleep(process, 100);
    }
    sim_note(world, process, NULL, "a third of the keys are paused");
}

static void let_go(struct sim_process *process)
{
    struct world *world = process->world;
    if (sim_open(process) != KL_OK)
        return;
    for (uint32_t i = 1; i < SIM_KEYS_MAX; i++) {
        while (!process->dead && world->keys[i].held &&
               kl_key_resume(process->queue, kl_str(world->keys[i].name)) != KL_OK)
            sim_sleep(process, 100);
        world->keys[i].held = false;
    }
    sim_note(world, process, NULL, "those keys are resumed");
}

static void keep(struct world *world, enum sim_role role, uint32_t count, void (*run)(struct sim_process *process))
{
    while (sim_alive(world, role) < count && world->process_count < SIM_PROCESSES_MAX)
        sim_process_new(world, role, run);
}

static uint32_t serve_all(const struct world *world)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct sim_process *process = world->processes[i];
        count +=
            process->role == SIM_WORKER && !process->dead && !process->stopping && !process->over && process->all_kinds;
    }
    return count;
}

static void keep_all(struct world *world)
{
    if (world->broken || world->ending)
        return;
    keep(world, SIM_WORKER, world->plan.workers, sim_worker);
    if (world->quiet) {
        if (serve_all(world) == 0)
            sim_process_new(world, SIM_WORKER, sim_worker);
        return;
    }
    keep(world, SIM_PRODUCER, world->plan.producers, sim_producer);
    keep(world, SIM_SUBMITTER, world->plan.submitters, sim_submitter);
    keep(world, SIM_OPERATOR, world->plan.operators, sim_operator);
}

/* --- The phases --- */

static bool step(struct world *world)
{
    if (world->steps % KEEP_EVERY == 0)
        keep_all(world);
    if (world->plan.crons && !world->quiet && world->jumps < JUMPS_MAX && sim_chance(world, 1, 4000)) {
        world->now_ms += JUMP_MS;
        world->jumps++;
    }
    return sim_step(world);
}

static void work(struct world *world)
{
    while (!world->broken && world->operations < world->plan.operations)
        step(world);
}

/* What the workers' pumps are at. */
static void note_pumps(struct world *world)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        const kl__pump *pump = world->processes[i]->pump;
        if (pump && !world->processes[i]->dead)
            sim_note(world, world->processes[i], NULL,
                     "held %llu, blocked %llu, room %llu, run %llu, ended %llu, shards %llu",
                     (unsigned long long)pump->held, (unsigned long long)pump->blocked,
                     (unsigned long long)kl__pump_startable(pump), (unsigned long long)pump->running,
                     (unsigned long long)pump->finished, (unsigned long long)pump->shard_count);
    }
}

static void tell_stuck(struct world *world, const struct sim_entry *stuck)
{
    bool blocked = false;
    note_pumps(world);
    for (uint32_t key = 1; key < SIM_KEYS_MAX; key++)
        blocked |= world->keys[key].held || oracle_halted(world, key);
    const struct sim_owner *owner = &world->partitions[stuck->place.partition]->owners[stuck->place.shard];
    sim_break(world, blocked ? "I4" : "I5", stuck->task,
              "task %llu of key %u still waits in shard %u of %s (p%d): %llu tasks in all; attempts %u, starts %u%s%s",
              (unsigned long long)stuck->task->number, stuck->task->key, stuck->place.shard,
              world->partitions[stuck->place.partition]->name, (int)owner->process, (unsigned long long)world->waiting,
              stuck->attempts, stuck->starts, stuck->retry_line ? ", tried" : "", stuck->due ? ", was due later" : "");
}

static void await_rest(struct world *world)
{
    const struct sim_entry *stuck = NULL;
    int64_t until_ms = world->now_ms + QUIET_MS;
    uint64_t steps_max = world->steps + STEPS_FACTOR * (world->plan.operations + 2000);
    while (!world->broken) {
        step(world);
        if (world->steps % REST_EVERY != 0)
            continue;
        if (sim_alive(world, SIM_OPERATOR) + sim_alive(world, SIM_PRODUCER) + sim_alive(world, SIM_SUBMITTER) == 0 &&
            oracle_at_rest(world, &stuck))
            break;
        if (world->now_ms > until_ms || world->steps > steps_max) {
            if (stuck && !oracle_at_rest(world, &stuck))
                tell_stuck(world, stuck);
            else
                sim_break(world, "I5", NULL, "somebody's call does not come to an end");
        }
    }
}

/* First all that is not blocked, then the rest. */
static void come_to_rest(struct world *world)
{
    world->quiet = true;
    for (uint32_t i = 0; i < world->process_count; i++)
        world->processes[i]->frozen_until_ms = 0;
    sim_note(world, NULL, NULL, "quiet from now on");
    sim_process_new(world, SIM_OPERATOR, hold_some);
    await_rest(world);
    sim_process_new(world, SIM_OPERATOR, let_go);
    await_rest(world);
}

/* Everybody stops, and gives back what he owns; where something broke, at once. */
static void stop_all(struct world *world)
{
    uint64_t steps_max = world->steps + 100000;
    world->ending = true;
    for (uint32_t i = 0; world->broken && i < world->process_count; i++)
        if (!world->processes[i]->over)
            sim_crash(world->processes[i], "the world ends");
    while (step(world)) {
        if (world->steps < steps_max)
            continue;
        sim_break(world, "I5", NULL, "a worker that was asked to stop does not");
        for (uint32_t i = 0; i < world->process_count; i++)
            if (!world->processes[i]->over)
                sim_crash(world->processes[i], "the world ends");
        steps_max = UINT64_MAX;
    }
}

/* --- What is told --- */

static void tell(const struct world *world, FILE *out)
{
    uint64_t first = world->event_count > SIM_EVENTS_MAX ? world->event_count - SIM_EVENTS_MAX : 0, end, told = 0;
    fprintf(out, "%s: %s\n", world->broken, world->why);
    fprintf(out, "reproduce: build/tests/simulate %llu %llu\n", (unsigned long long)world->seed,
            (unsigned long long)world->plan.operations);
    for (end = world->event_count; end > first && told < TELL_EVENTS_MAX; end--) {
        const struct sim_event *event = &world->events[(end - 1) % SIM_EVENTS_MAX];
        told += event->task == 0 || event->task == world->broken_task ||
                (world->broken_key && event->key == world->broken_key);
    }
    for (uint64_t i = end; i < world->event_count; i++) {
        const struct sim_event *event = &world->events[i % SIM_EVENTS_MAX];
        if (event->task == 0 || event->task == world->broken_task ||
            (world->broken_key && event->key == world->broken_key))
            fprintf(out, "  %8lld ms  p%-3d task %-5llu %s\n", (long long)(event->at_ms - SIM_BEGIN_MS),
                    (int)event->process, (unsigned long long)event->task, event->text);
    }
    fflush(out);
}

static int64_t store_ms(void *ctx) { return ((const struct world *)ctx)->now_ms; }

static struct sim_result result_of(const struct world *world)
{
    struct sim_result result = {.broken = world->broken,
                                .operations = world->operations,
                                .tasks = world->task_count,
                                .starts = world->starts,
                                .crashes = world->crashes,
                                .takeovers = world->takeovers,
                                .stalls = world->stalls,
                                .losses = world->losses,
                                .layouts = world->layouts,
                                .simulated_ms = world->now_ms - SIM_BEGIN_MS};
    memcpy(result.why, world->why, sizeof result.why);
    return result;
}

struct sim_result sim_run(uint64_t seed, uint64_t operations, bool trace, void *out)
{
    if (seed == 0)
        return sim_by_hand(out);
    struct world *world = kl__alloc_zeroed(1, sizeof *world);
    KL_ASSERT(world);
    *world = (struct world){.seed = seed, .random = seed, .now_ms = SIM_BEGIN_MS, .trace = trace};
    world->library_random = kl__random_next(&world->random);
    world->plan = make_plan(world, operations);
    for (uint32_t i = 1; i < SIM_KEYS_MAX; i++)
        snprintf(world->keys[i].name, sizeof world->keys[i].name, "key-%u", i);
    kl_store_opts opts = {.size = sizeof opts, .now_ms = store_ms, .now_ctx = world};
    kl_rc rc = kl_store_open("memory:", &opts, &world->inner);
    KL_ASSERT(rc == KL_OK);
    sim_store_world(world);
    world->quiet = true;
    sim_process_new(world, SIM_OPERATOR, set_up);
    while (sim_step(world))
        ;
    world->quiet = false;
    work(world);
    if (!world->broken)
        come_to_rest(world);
    stop_all(world);
    if (!world->broken)
        oracle_end(world);
    if (world->broken && out)
        tell(world, out);
    struct sim_result result = result_of(world);
    sim_world_free(world);
    return result;
}
