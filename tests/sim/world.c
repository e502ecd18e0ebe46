/* world.c - clock, scheduler, processes.
 *
 * The scheduler lets one thread at a time go on, chosen by chance among those that can, until it sleeps, waits for its
 * process's mutex or calls the store. When none can go on, the clock moves to the time when the next one can. So time
 * passes only while everybody waits, and a run of minutes takes no longer than its operations do.
 *
 * The library asks for time, sleep and randomness as ever; the linker sends it here (tests/meson.build, --wrap). Each
 * process has a clock of its own, up to an hour off and up to 5 % too fast or too slow. */
#include "sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SKEW_MS = 3600 * 1000, DRIFT_PPM = 50000 };

/* --- Chance --- */

uint64_t sim_below(struct world *world, uint64_t bound) { return kl__random_below(&world->random, bound); }

bool sim_chance(struct world *world, uint64_t of, uint64_t in) { return sim_below(world, in) < of; }

int64_t sim_between(struct world *world, int64_t least, int64_t most)
{
    return least + (int64_t)sim_below(world, (uint64_t)(most - least) + 1);
}

/* --- What the library asks for --- */

static struct world *running; /* whose threads run now */

static struct sim_process *running_process(void)
{
    return running && running->current && fiber_current() ? running->current->process : NULL;
}

int64_t sim_local_ms(void *context)
{
    const struct sim_process *process = context;
    int64_t since_ms = process->world->now_ms - SIM_BEGIN_MS;
    return SIM_BEGIN_MS + process->skew_ms + since_ms + since_ms * process->drift_ppm / 1000000;
}

int __real_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    struct sim_process *process = running_process();
    if (!process)
        return __real_clock_gettime(clock, ret_time);
    int64_t ms = sim_local_ms(process);
    *ret_time = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    return 0;
}

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    struct sim_process *process = running_process();
    if (!process)
        return __real_nanosleep(time, left);
    sim_sleep(process, time->tv_sec * 1000 + time->tv_nsec / 1000000);
    return 0;
}

uint64_t __real_kl__random_seed(void);
uint64_t __wrap_kl__random_seed(void);
uint64_t __wrap_kl__random_seed(void)
{
    return running ? kl__random_next(&running->library_random) : __real_kl__random_seed();
}

/* --- What is told --- */

void sim_note(struct world *world, const struct sim_process *process, const struct sim_task *task, const char *format,
              ...)
{
    struct sim_event *event = &world->events[world->event_count++ % SIM_EVENTS_MAX];
    va_list arguments;
    event->at_ms = world->now_ms;
    event->process = process ? process->number : SIM_NOBODY;
    event->task = task ? task->number : 0;
    event->key = task ? task->key : 0;
    va_start(arguments, format);
    vsnprintf(event->text, sizeof event->text, format, arguments);
    va_end(arguments);
    if (world->trace)
        printf("%8lld  p%-3d key %-3u task %-5llu %s\n", (long long)(event->at_ms - SIM_BEGIN_MS),
               process ? (int)process->number : -1, event->key, (unsigned long long)event->task, event->text);
}

void sim_break(struct world *world, const char *invariant, const struct sim_task *task, const char *format, ...)
{
    va_list arguments;
    if (world->broken)
        return;
    world->broken = invariant;
    world->broken_task = task ? task->number : 0;
    world->broken_key = task ? task->key : 0;
    va_start(arguments, format);
    vsnprintf(world->why, sizeof world->why, format, arguments);
    va_end(arguments);
    sim_note(world, NULL, task, "%s is broken: %.70s", invariant, world->why);
}

/* --- Threads --- */

static void run_thread(void *context)
{
    struct sim_thread *thread = context;
    thread->run(thread->process);
}

void sim_thread_new(struct sim_process *process, void (*run)(struct sim_process *process))
{
    struct world *world = process->world;
    struct sim_thread *thread = NULL;
    for (uint32_t i = 0; !thread && i < SIM_FIBERS_MAX; i++)
        if (!world->threads[i].fiber)
            thread = &world->threads[i];
    KL_ASSERT(thread);
    *thread = (struct sim_thread){.process = process, .run = run, .wake_ms = world->now_ms};
    thread->fiber = fiber_new(run_thread, thread);
    KL_ASSERT(thread->fiber);
    process->fibers++;
    uint32_t index = (uint32_t)(thread - world->threads);
    world->thread_count = index >= world->thread_count ? index + 1 : world->thread_count;
}

void sim_sleep(struct sim_process *process, int64_t ms)
{
    struct world *world = process->world;
    struct sim_thread *thread = world->current;
    if (!fiber_current())
        return;
    thread->wake_ms = world->now_ms + ms;
    fiber_pause();
}

void sim_enter(void *context)
{
    struct sim_process *process = context;
    struct sim_thread *thread = process->world->current;
    while (process->locked) {
        thread->waits_for_lock = true;
        fiber_pause();
    }
    process->locked = true;
}

void sim_leave(void *context)
{
    struct sim_process *process = context;
    KL_ASSERT(process->locked);
    process->locked = false;
}

/* --- The scheduler --- */

/* When the thread can go on; INT64_MAX: not before somebody else has. */
static int64_t ready_ms(const struct sim_thread *thread)
{
    const struct sim_process *process = thread->process;
    if (thread->waits_for_lock && process->locked)
        return INT64_MAX;
    if (process->dead)
        return thread->wake_ms;
    return process->frozen_until_ms > thread->wake_ms ? process->frozen_until_ms : thread->wake_ms;
}

static void close_process(struct sim_process *process)
{
    kl__pump_close(process->pump);
    kl_queue_close(process->queue);
    kl_store_close(process->store);
    process->pump = NULL;
    process->queue = NULL;
    process->store = NULL;
    process->over = true;
}

static void go_on(struct world *world, struct sim_thread *thread)
{
    struct sim_process *process = thread->process;
    thread->waits_for_lock = false;
    world->current = thread;
    running = world;
    bool more = fiber_resume(thread->fiber);
    world->current = NULL;
    running = NULL;
    if (more)
        return;
    fiber_free(thread->fiber);
    thread->fiber = NULL;
    if (--process->fibers == 0)
        close_process(process);
}

bool sim_step(struct world *world)
{
    struct sim_thread *ready[SIM_FIBERS_MAX];
    world->steps++;
    uint32_t count = 0;
    int64_t next_ms = INT64_MAX;
    for (uint32_t i = 0; i < world->thread_count; i++) {
        struct sim_thread *thread = &world->threads[i];
        int64_t at_ms = thread->fiber ? ready_ms(thread) : INT64_MAX;
        next_ms = at_ms < next_ms ? at_ms : next_ms;
        if (at_ms <= world->now_ms)
            ready[count++] = thread;
    }
    if (next_ms == INT64_MAX)
        return false;
    if (count > 0)
        go_on(world, ready[sim_below(world, count)]);
    else
        world->now_ms = next_ms;
    return true;
}

/* --- Processes --- */

struct sim_process *sim_process_new(struct world *world, enum sim_role role, void (*run)(struct sim_process *process))
{
    struct sim_process *process = kl__alloc_zeroed(1, sizeof *process);
    KL_ASSERT(process && world->process_count < SIM_PROCESSES_MAX);
    process->world = world;
    process->role = role;
    process->number = world->process_count;
    process->skew_ms = sim_between(world, -SKEW_MS, SKEW_MS);
    process->drift_ppm = (int32_t)sim_between(world, -DRIFT_PPM, DRIFT_PPM);
    if (world->plan.true_clocks)
        process->skew_ms = process->drift_ppm = 0;
    process->tick_began_ms = -1;
    for (size_t i = 0; i < sizeof process->worker.bytes; i++)
        process->worker.bytes[i] = (uint8_t)sim_below(world, 256);
    world->processes[world->process_count++] = process;
    sim_thread_new(process, run);
    return process;
}

void sim_crash(struct sim_process *process, const char *why)
{
    if (process->dead || process->over)
        return;
    process->dead = true;
    process->world->crashes++;
    for (uint32_t i = 0; i < process->world->thread_count; i++)
        if (process->world->threads[i].process == process)
            process->world->threads[i].wake_ms = process->world->now_ms;
    sim_note(process->world, process, NULL, "crashes: %s", why);
}

kl_rc sim_open(struct sim_process *process)
{
    char where[16];
    kl_store_opts opts = {.size = sizeof opts};
    snprintf(where, sizeof where, "%u", process->number);
    kl_rc rc = kl_store_open_engine(sim_engine(), where, &opts, &process->store);
    while (rc == KL_OK && !process->queue && !process->dead) {
        kl_rc opened = kl_queue_find(process->store, SIM_QUEUE, &process->queue);
        if (opened != KL_OK)
            sim_sleep(process, 5);
    }
    return rc == KL_OK && process->dead ? KL_ECLOSED : rc;
}

uint32_t sim_alive(const struct world *world, enum sim_role role)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct sim_process *process = world->processes[i];
        count += process->role == role && !process->dead && !process->stopping && !process->over;
    }
    return count;
}

void sim_world_free(struct world *world)
{
    for (uint32_t i = 0; i < world->process_count; i++)
        kl__free(world->processes[i]);
    oracle_free(world);
    kl_store_close(world->inner);
    kl__free(world);
}
