/* clients.c - those who put tasks, submit jobs, and steer.
 *
 * Each remembers what it was told, and tells the oracle. A call that fails is made again where that is safe: with a
 * token, a unique or an idempotency key; otherwise it is left open whether its tasks are there. */
#include <stdio.h>
#include <string.h>

#include "keyline/control.h"
#include "sim/world.h"

enum { BURST_MAX = 60, TRIES_MAX = 30, LAYOUTS_MAX = 6, RESTLESS_LAYOUTS_MAX = 9 };

static bool goes_on(const struct sim_process *process) { return !process->dead && !process->world->quiet; }

/* --- Tasks --- */

static enum sim_behaviour choose_behaviour(struct world *world)
{
    uint64_t dice = sim_below(world, 1000);
    if (dice < 4 && world->poisons < world->plan.poison_max) {
        world->poisons++;
        return SIM_POISON;
    }
    return dice < 60 ? SIM_FLAKY : dice < 66 ? SIM_BAD : dice < 72 ? SIM_FATAL : SIM_WELL;
}

/* Some keys are busier than others. */
static uint32_t choose_key(struct world *world)
{
    uint64_t keys = world->plan.keys;
    if (sim_chance(world, 1, 8))
        return 0;
    return 1 + (uint32_t)(sim_chance(world, 1, 2) ? sim_below(world, (keys + 3) / 4) : sim_below(world, keys));
}

/* Where it stands in its key's line. Some priorities are in use now and then only. */
static void choose_turn(struct world *world, struct sim_task *task)
{
    task->delayed = sim_chance(world, 1, 2);
    task->priority = (int8_t)(sim_chance(world, 1, 20) ? sim_between(world, KL_PRIORITY_MIN, KL_PRIORITY_MAX)
                                                       : sim_between(world, -2, 2));
}

static struct sim_task *new_task(struct world *world, uint32_t key)
{
    struct sim_task *task = oracle_task(world, key);
    task->behaviour = choose_behaviour(world);
    task->delayed = world->plan.delays && sim_chance(world, 1, world->plan.restless ? 2 : 8);
    task->priority = (int8_t)(world->plan.priorities && sim_chance(world, 1, 4) ? sim_between(world, -2, 2) : 0);
    if (world->plan.ordered && sim_chance(world, 1, 2))
        choose_turn(world, task);
    task->rare = world->plan.kinds && sim_chance(world, 1, 12);
    return task;
}

static kl_put put_of(struct world *world, const struct sim_task *task)
{
    static const char *const groups[] = {"", "red", "green", "blue"};
    kl_put put = {.key = kl_str(world->keys[task->key].name),
                  .kind = kl_str(task->rare ? SIM_KIND_RARE : "often"),
                  .payload = {&task->number, sizeof task->number},
                  .priority = task->priority};
    if (task->delayed)
        put.delay_ms = (int64_t)(1 + task->number * 37 % (task->number % 3 ? 300 : 6000));
    if (world->plan.groups)
        put.group = kl_str(groups[task->number % 4]);
    return put;
}

/* --- Producers --- */

static void put_plain(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_task *tasks[BURST_MAX];
    kl_put puts[BURST_MAX];
    kl_put_result results[BURST_MAX];
    bool burst = world->plan.bursts && sim_chance(world, 1, 12), one_key = sim_chance(world, 1, 2);
    size_t count = burst ? BURST_MAX : 1 + sim_below(world, 4);
    uint32_t key = choose_key(world);
    bool alike = world->plan.ordered && sim_chance(world, 1, 2);
    for (size_t i = 0; i < count; i++) {
        tasks[i] = new_task(world, one_key ? key : choose_key(world));
        if (alike) /* all in one line */
            tasks[i]->priority = tasks[0]->priority;
        puts[i] = put_of(world, tasks[i]);
    }
    kl_rc rc = kl_queue_put(process->queue, puts, count, (kl_bytes){0}, results);
    if (rc == KL_OK && !process->dead)
        oracle_acknowledged(process, tasks, results, count);
}

static void put_unique(struct sim_process *process)
{
    struct world *world = process->world;
    char unique[16];
    int32_t number = (int32_t)sim_below(world, SIM_UNIQUES_MAX);
    struct sim_task *task = new_task(world, 1 + (uint32_t)number % world->plan.keys);
    kl_put put = put_of(world, task);
    kl_put_result result;
    task->unique = number;
    snprintf(unique, sizeof unique, "unique-%d", number);
    put.unique = kl_str(unique);
    kl_rc rc = KL_EBUSY;
    for (int i = 0; i < TRIES_MAX && kl_rc_class(rc) == KL_CLASS_RETRY && !process->dead; i++)
        rc = kl_queue_put(process->queue, &put, 1, (kl_bytes){0}, &result);
    if (rc == KL_OK && !process->dead)
        oracle_acknowledged(process, &task, &result, 1);
}

static struct sim_call *choose_call(struct world *world)
{
    if (world->call_count == SIM_CALLS_MAX || (world->call_count > 0 && sim_chance(world, 2, 5)))
        return &world->calls[world->call_count - 1 - sim_below(world, world->call_count < 4 ? world->call_count : 4)];
    struct sim_call *call = &world->calls[world->call_count++];
    snprintf(call->token, sizeof call->token, "token-%u", world->call_count);
    call->count = 1 + sim_below(world, SIM_CALL_TASKS_MAX);
    for (size_t i = 0; i < call->count; i++)
        call->tasks[i] = new_task(world, choose_key(world));
    return call;
}

static void check_repeat(struct sim_process *process, struct sim_call *call, const kl_put_result *results)
{
    for (size_t i = 0; i < call->count && call->answered; i++)
        if (kl_id_compare(&call->results[i].id, &results[i].id) != 0)
            sim_break(process->world, "I6", call->tasks[i], "two answers for the token %s", call->token);
    memcpy(call->results, results, sizeof call->results);
    call->answered = true;
}

static void put_with_token(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_call *call = choose_call(world);
    kl_put puts[SIM_CALL_TASKS_MAX];
    kl_put_result results[SIM_CALL_TASKS_MAX] = {0};
    for (size_t i = 0; i < call->count; i++)
        puts[i] = put_of(world, call->tasks[i]);
    kl_rc rc = KL_EBUSY;
    for (int i = 0; i < TRIES_MAX && kl_rc_class(rc) == KL_CLASS_RETRY && !process->dead; i++)
        rc = kl_queue_put(process->queue, puts, call->count, kl_str(call->token), results);
    if (rc != KL_OK || process->dead) {
        if (rc == KL_EINVAL)
            sim_break(world, "I6", call->tasks[0], "the token %s is refused: %s", call->token, kl_error_text());
        return;
    }
    oracle_acknowledged(process, call->tasks, results, call->count);
    check_repeat(process, call, results);
}

void sim_producer(struct sim_process *process)
{
    struct world *world = process->world;
    if (sim_open(process) != KL_OK)
        return;
    while (goes_on(process)) {
        uint64_t dice = sim_below(world, 10);
        if (dice < 6)
            put_plain(process);
        else if (dice < 7)
            put_unique(process);
        else
            put_with_token(process);
        sim_sleep(process, sim_between(world, 0, world->waiting > 400 ? 400 : 40));
    }
}

/* --- Submitters --- */

static struct sim_job *choose_job(struct world *world)
{
    if (world->job_count == SIM_JOBS_MAX || (world->job_count > 0 && sim_chance(world, 3, 5)))
        return &world->jobs[world->job_count - 1 - sim_below(world, world->job_count < 4 ? world->job_count : 4)];
    struct sim_job *job = &world->jobs[world->job_count++];
    snprintf(job->key, sizeof job->key, "job-%u", world->job_count);
    job->count = 1 + sim_below(world, SIM_JOB_TASKS_MAX);
    for (size_t i = 0; i < job->count; i++) {
        job->tasks[i] = new_task(world, choose_key(world));
        job->tasks[i]->job = (int32_t)(job - world->jobs);
    }
    return job;
}

static void submit(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_job *job = choose_job(world);
    kl_put puts[SIM_JOB_TASKS_MAX];
    kl_job_answer answer;
    int64_t retry_ms = 0;
    for (size_t i = 0; i < job->count; i++)
        puts[i] = put_of(world, job->tasks[i]);
    kl_job_spec spec = {.size = sizeof spec, .tasks = puts, .count = job->count, .idempotency_key = kl_str(job->key)};
    kl_rc rc = KL_EBUSY;
    for (int i = 0; i < TRIES_MAX && kl_rc_class(rc) == KL_CLASS_RETRY && !process->dead; i++) {
        rc = kl_job_submit(process->queue, &spec, &answer, &retry_ms);
        if (rc == KL_EBUSY && retry_ms > 0)
            sim_sleep(process, retry_ms);
    }
    if (rc == KL_EINVAL)
        sim_break(world, "I6", job->tasks[0], "a repeat of %s is refused: %s", job->key, kl_error_text());
    if (rc == KL_OK && !process->dead)
        oracle_answered(process, job, &answer);
}

void sim_submitter(struct sim_process *process)
{
    if (sim_open(process) != KL_OK)
        return;
    while (goes_on(process)) {
        submit(process);
        sim_sleep(process, sim_between(process->world, 10, 200));
    }
}

/* --- Operators --- */

static void pause_key(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_key *key = &world->keys[1 + sim_below(world, world->plan.keys)];
    if (key->steered)
        return;
    sim_note(world, process, NULL, "pauses %s", key->name);
    key->steered = true; /* until it is resumed; where its operator dies, until the quiet time */
    if (kl_key_pause(process->queue, kl_str(key->name)) != KL_OK)
        return;
    key->paused = !world->quiet; /* then run.c resumes it too */
    key->paused_ms = world->now_ms;
    sim_sleep(process, sim_between(world, 0, 2 * world->plan.lease_ms));
    key->paused = false; /* from here on it may run again at any time */
    kl_rc rc = kl_key_resume(process->queue, kl_str(key->name));
    key->steered = rc != KL_OK;
    sim_note(world, process, NULL, "resumes %s: %s", key->name, kl_rc_name(rc));
}

static void pause_queue(struct sim_process *process)
{
    struct world *world = process->world;
    if (world->queue_steered)
        return;
    world->queue_steered = true;
    if (kl_queue_pause(process->queue) != KL_OK)
        return;
    sim_note(world, process, NULL, "the queue is paused");
    world->queue_paused = !world->quiet;
    world->queue_paused_ms = world->now_ms;
    sim_sleep(process, sim_between(world, 0, 1000));
    world->queue_paused = false;
    world->queue_steered = kl_queue_resume(process->queue) != KL_OK;
    sim_note(world, process, NULL, "the queue %s", world->queue_steered ? "should go on" : "goes on");
}

static void change_layout(struct sim_process *process)
{
    struct world *world = process->world;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = sim_between(world, 1, 3)};
    if (world->layouts >= (world->plan.restless ? RESTLESS_LAYOUTS_MAX : LAYOUTS_MAX))
        return;
    if (world->plan.altered) /* never fewer again: an id that went there and back is not the one that it was */
        opts.shard_prefix_len = world->layouts > 2 ? 2 : 1;
    kl_rc rc = kl_queue_alter(process->queue, &opts);
    sim_note(world, process, NULL, "changes the layout to %lld partitions: %s", (long long)opts.partitions,
             kl_rc_name(rc));
}

static void cancel_job(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_job *job = world->job_count ? &world->jobs[sim_below(world, world->job_count)] : NULL;
    if (!job || !job->answered)
        return;
    job->cancel_asked = true;
    kl_rc rc = kl_job_cancel(process->queue, &job->answer.job);
    if (rc == KL_OK && job->cancelled_ms == 0)
        job->cancelled_ms = world->now_ms;
    sim_note(world, process, job->tasks[0], "cancels the job %s: %s", job->key, kl_rc_name(rc));
}

/* One that waits, chosen by chance. */
static struct sim_entry *choose_waiting(struct world *world)
{
    for (int tries = 0; tries < 8; tries++) {
        struct sim_entry *entry = world->keys[sim_below(world, world->plan.keys + 1)].waiting;
        for (uint64_t skip = sim_below(world, 8); entry && entry->next_of_key && skip > 0; skip--)
            entry = entry->next_of_key;
        if (entry)
            return entry;
    }
    return NULL;
}

/* Unless it has been submitted again before this was heard. */
static void told_ended(struct sim_process *process, const kl_task_id *id)
{
    const struct sim_entry *told = oracle_find(process->world, 0, id);
    bool again = false;
    for (const struct sim_entry *entry = told ? told->task->entries : NULL; entry; entry = entry->next_of_task)
        again |= told->ended && !entry->ended && told->task->job >= 0;
    if (told && !again && !process->dead)
        told->task->ended_told = true;
}

static bool is_idle(const struct sim_entry *entry)
{
    return !entry->running && entry->taken_by == SIM_NOBODY && entry->finished_by == SIM_NOBODY && !entry->moved;
}

/* What waited when the call was made, and nobody has started since, has ended when it returns. */
static kl_rc drain(struct sim_process *process, struct sim_key *key)
{
    struct world *world = process->world;
    uint64_t count;
    for (struct sim_entry *entry = key->waiting; entry; entry = entry->next_of_key) {
        entry->drained_by = is_idle(entry) ? process->number : SIM_NOBODY;
        entry->drained_starts = entry->starts;
    }
    kl_rc rc = kl_key_drain(process->queue, kl_str(key->name), NULL, sim_chance(world, 1, 2), &count);
    for (struct sim_entry *entry = key->waiting; entry && rc == KL_OK && !process->dead; entry = entry->next_of_key)
        if (entry->drained_by == process->number && entry->drained_starts == entry->starts && is_idle(entry))
            sim_break(world, "I2", entry->task, "p%u drained %s, and task %llu of it waits", process->number, key->name,
                      (unsigned long long)entry->task->number);
    return rc;
}

static void request(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_entry *entry = choose_waiting(world);
    bool running = true;
    kl_task_id id;
    kl_rc rc = KL_OK;
    if (!entry)
        return;
    struct sim_key *key = &world->keys[entry->task->key];
    uint64_t dice = sim_below(world, 4);
    if (dice == 0 || entry->task->key == 0) {
        entry->task->cancel_asked = true;
        id = entry->id;
        sim_note(world, process, entry->task, "is to be cancelled");
        rc = kl_task_cancel(process->queue, &id, &running);
        if (rc == KL_OK && !running)
            told_ended(process, &id);
    } else if (dice == 1) {
        key->skip_asked = true;
        rc = kl_key_skip(process->queue, kl_str(key->name), NULL, &id);
        if (rc == KL_OK)
            told_ended(process, &id);
    } else if (dice == 2) {
        rc = kl_key_retry(process->queue, kl_str(key->name), NULL);
    } else {
        key->drain_asked = true;
        rc = drain(process, key);
    }
    sim_note(world, process, NULL, "request %llu: %s", (unsigned long long)dice, kl_rc_name(rc));
}

/* One that waits, or that has died since it was chosen. */
static void retry_task(struct sim_process *process)
{
    struct world *world = process->world;
    const struct sim_entry *entry = choose_waiting(world);
    if (!entry)
        return;
    kl_task_id id = entry->id;
    sim_note(world, process, entry->task, "is to be tried now");
    process->redriving = true;
    kl_rc rc = kl_task_retry(process->queue, &id, NULL);
    process->redriving = false;
    sim_note(world, process, entry->task, "is tried now: %s", kl_rc_name(rc));
}

/* Its tasks live once more; which of them, the store says. */
static void rerun_job(struct sim_process *process)
{
    struct world *world = process->world;
    struct sim_job *job = world->job_count ? &world->jobs[sim_below(world, world->job_count)] : NULL;
    uint64_t count = 0;
    if (!job || !job->answered)
        return;
    job->rerun = process->redriving = true;
    kl_rc rc = kl_job_rerun(process->queue, &job->answer.job, sim_chance(world, 1, 2), &count);
    process->redriving = false;
    sim_note(world, process, job->tasks[0], "reruns %llu tasks of the job %s: %s", (unsigned long long)count, job->key,
             kl_rc_name(rc));
}

static void redrive(struct sim_process *process)
{
    struct world *world = process->world;
    kl_redrive which = {.max = 1 + sim_below(world, 4)};
    kl_account account = {0};
    process->redriving = true;
    kl_rc rc = kl_dead_retry(process->queue, &which, &account);
    process->redriving = false;
    sim_note(world, process, NULL, "puts %llu dead letters back: %s", (unsigned long long)account.done, kl_rc_name(rc));
}

kl_rc sim_schedule(struct sim_process *process)
{
    kl_rc rc = KL_OK;
    for (int i = 0; i < SIM_CRONS && rc == KL_OK; i++) {
        char name[] = "tick0";
        name[sizeof name - 2] = (char)('0' + i);
        kl_cron cron = {.size = sizeof cron,
                        .name = name,
                        .when = "* * * * *",
                        .catch_up = KL_CATCH_UP_ALL,
                        .task = {.kind = kl_str("often"), .payload = kl_str(name)}};
        rc = kl_cron_add(process->queue, &cron);
    }
    return rc;
}

static void alter(struct sim_process *process)
{
    struct world *world = process->world;
    kl_queue_opts opts = {.size = sizeof opts};
    uint64_t dice = sim_below(world, 4);
    if (dice < 2)
        opts.lease_ms = sim_between(world, 1000, dice ? 20000 : 3000);
    else if (dice == 2)
        opts.rate = sim_chance(world, 1, 2) ? KL_FOREVER : sim_between(world, 20, 200);
    else
        opts.concurrency = sim_chance(world, 1, 2) ? KL_FOREVER : sim_between(world, 1, 6);
    kl_rc rc = kl_queue_alter(process->queue, &opts);
    sim_note(world, process, NULL, "alters lease %lld, rate %lld, concurrency %lld: %s", (long long)opts.lease_ms,
             (long long)opts.rate, (long long)opts.concurrency, kl_rc_name(rc));
}

static void act(struct sim_process *process)
{
    struct world *world = process->world;
    const struct sim_plan *plan = &world->plan;
    uint64_t dice = sim_below(world, 12);
    if (plan->altered && sim_chance(world, 1, 4))
        alter(process);
    else if (plan->reruns && sim_chance(world, 1, 3))
        rerun_job(process);
    else if (plan->reruns && sim_chance(world, 1, 3))
        retry_task(process);
    else if (dice < 3 && plan->layouts)
        change_layout(process);
    else if (dice < 5 && plan->pauses)
        pause_key(process);
    else if (dice < 6 && plan->pauses)
        pause_queue(process);
    else if (dice < 8)
        cancel_job(process);
    else if (dice < 10 && plan->requests)
        request(process);
    else if (plan->redrives)
        redrive(process);
}

void sim_operator(struct sim_process *process)
{
    if (sim_open(process) != KL_OK)
        return;
    while (goes_on(process)) {
        act(process);
        sim_sleep(process, sim_between(process->world, 50, process->world->plan.restless ? 200 : 900));
    }
}
