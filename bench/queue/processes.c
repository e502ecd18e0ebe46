/* processes.c - a store that several workers share.
 *
 * `processes`: on disk. One process holds and fills it, the others work on it over its socket.
 * `workers`: a simulated store that is far away (shared.h), with room for everybody.
 *
 * All workers together have the same number of threads, however many they are. They are started first and say when each
 * has its share of the shards; then tasks are put, and the time counts until four fifths of them are settled. The rest
 * is left out because keys are not spread evenly: whoever has the most is still busy when the others have nothing left,
 * and what one worker does alone says nothing of how several get along. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keyline.h"
#include "shared.h"

enum { SHARDS = 16, POLL_US = 1000, WORKERS_MAX = 64 };

struct shared {
    _Atomic(int) filled; /* the holder has made the queue */
    _Atomic(int) ready;  /* workers that have their share */
    _Atomic(int) over;
};

static kl_outcome run_sleeping(kl_work *work, void *ctx)
{
    (void)work;
    const struct settings *settings = ctx;
    if (settings->sleep_us)
        sleep_us(settings->sleep_us);
    return KL_DONE;
}

/* ---- What both have ---- */

static kl_worker *start_one(kl_queue *queue, const struct settings *settings)
{
    long threads = settings->threads / settings->processes;
    return start_worker(queue, run_sleeping, unconst(settings), threads > 0 ? threads : 1);
}

static void await_share(kl_worker *worker, const struct settings *settings)
{
    uint64_t least = SHARDS / (uint64_t)settings->processes, most = least + (SHARDS % settings->processes != 0);
    for (;;) {
        uint64_t shards = kl_worker_show(worker).shards;
        if (shards >= least && shards <= most)
            return;
        sleep_us(POLL_US);
    }
}

/* As many as can be put in the time, or as all threads can run in it. */
static int64_t put_load(kl_queue *queue, const struct settings *settings, const struct turn *tasks)
{
    size_t at = 0;
    if (settings->sleep_us == 0)
        return produce(queue, settings, tasks);
    long count = settings->threads * settings->ms * 1000 / settings->sleep_us;
    put_tasks(queue, tasks, &at, count, settings->group);
    return count;
}

static int64_t waiting(kl_queue *queue)
{
    kl_arena arena = {0};
    kl_queue_info info;
    MUST_KL(kl_queue_show(queue, &arena, &info));
    kl_arena_free(&arena);
    return (int64_t)(info.counts.ready + info.counts.due + info.counts.retry);
}

/* `queue` is where they are put, `seen` the same queue where it is looked at. */
static void measure(kl_queue *queue, kl_queue *seen, const struct settings *settings)
{
    struct turn tasks = make_turn("key", KEYS);
    int64_t begin_ns = now_ns(), left;
    int64_t count = put_load(queue, settings, &tasks);
    while ((left = waiting(seen)) > count / 5)
        sleep_us(POLL_US);
    printf("tasks/s %.0f\n", (double)(count - left) * 1e9 / (double)(now_ns() - begin_ns));
    while (waiting(seen) > 0)
        sleep_us(POLL_US);
    free_turn(&tasks);
}

/* ---- Processes ---- */

/* Does not return. */
static _Noreturn void work(const struct settings *settings, struct shared *shared)
{
    struct place place;
    while (!atomic_load(&shared->filled))
        sleep_us(POLL_US);
    open_place(&place, settings);
    kl_worker *worker = start_one(place.queue, settings);
    await_share(worker, settings);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->over))
        sleep_us(POLL_US);
    kl_worker_close(worker);
    close_place(&place);
    _exit(0);
}

static void await_children(const pid_t *children, long count)
{
    for (long i = 0; i < count; i++) {
        int status;
        MUST(waitpid(children[i], &status, 0) == children[i]);
        MUST_SAYING(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a worker process failed");
    }
}

static void check_children(const pid_t *children, long count)
{
    for (long i = 0; i < count; i++)
        MUST_SAYING(waitpid(children[i], NULL, WNOHANG) == 0, "a worker process has ended");
}

void run_processes(const struct settings *settings)
{
    struct place place;
    pid_t children[WORKERS_MAX];
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    for (long i = 0; i < settings->processes; i++) { /* before there are threads */
        MUST((children[i] = fork()) >= 0);
        if (children[i] == 0)
            work(settings, shared);
    }
    open_place(&place, settings);
    atomic_store(&shared->filled, 1);
    while (atomic_load(&shared->ready) < settings->processes) {
        check_children(children, settings->processes);
        sleep_us(POLL_US);
    }
    measure(place.queue, place.queue, settings);
    atomic_store(&shared->over, 1);
    await_children(children, settings->processes);
    close_place(&place);
}

/* ---- Workers far from their store ---- */

static void open_far(struct place *place)
{
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = KL_ATTEMPTS_MAX};
    MUST_KL(open_far_store(&place->store));
    MUST_KL(kl_queue_open(place->store, "bench", &opts, &place->queue));
}

void run_workers(const struct settings *settings)
{
    struct place here, producers, places[WORKERS_MAX];
    kl_worker *workers[WORKERS_MAX];
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = KL_ATTEMPTS_MAX};
    MUST_KL(open_inner(&here.store));
    MUST_KL(kl_queue_open(here.store, "bench", &opts, &here.queue));
    open_far(&producers);
    for (long i = 0; i < settings->processes; i++) {
        open_far(&places[i]);
        workers[i] = start_one(places[i].queue, settings);
    }
    for (long i = 0; i < settings->processes; i++)
        await_share(workers[i], settings);
    measure(producers.queue, here.queue, settings);
    for (long i = 0; i < settings->processes; i++) {
        kl_worker_close(workers[i]);
        close_place(&places[i]);
    }
    close_place(&producers);
    close_place(&here);
}
