/* processes.c - a store that several processes share: one holds and fills it, the others work on it over its socket.
 *
 * All of them together have the same number of threads, however many they are. Those who work are started first and say
 * when each has its share of the shards; then tasks are put, and the time counts until nothing waits. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keyline.h"

enum { SHARDS = 16, POLL_US = 1000, PROCESSES_MAX = 64 };

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

/* Does not return. */
static _Noreturn void work(const struct settings *settings, struct shared *shared)
{
    struct place place;
    uint64_t least = SHARDS / (uint64_t)settings->processes, most = least + (SHARDS % settings->processes != 0);
    long threads = settings->threads / settings->processes;
    while (!atomic_load(&shared->filled))
        sleep_us(POLL_US);
    open_place(&place, settings);
    kl_worker *worker = start_worker(place.queue, run_sleeping, unconst(settings), threads > 0 ? threads : 1);
    for (;;) {
        uint64_t shards = kl_worker_show(worker).shards;
        if (shards >= least && shards <= most)
            break;
        sleep_us(POLL_US);
    }
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->over))
        sleep_us(POLL_US);
    kl_worker_close(worker);
    close_place(&place);
    _exit(0);
}

static uint64_t waiting(kl_queue *queue)
{
    kl_arena arena = {0};
    kl_queue_info info;
    MUST_KL(kl_queue_show(queue, &arena, &info));
    kl_arena_free(&arena);
    return info.counts.ready + info.counts.due + info.counts.retry;
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
    pid_t children[PROCESSES_MAX];
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    for (long i = 0; i < settings->processes; i++) { /* before there are threads */
        MUST((children[i] = fork()) >= 0);
        if (children[i] == 0)
            work(settings, shared);
    }
    open_place(&place, settings);
    struct turn tasks = make_turn("key", KEYS);
    atomic_store(&shared->filled, 1);
    while (atomic_load(&shared->ready) < settings->processes) {
        check_children(children, settings->processes);
        sleep_us(POLL_US);
    }
    int64_t begin_ns = now_ns();
    int64_t put = produce(place.queue, settings, &tasks);
    while (waiting(place.queue) > 0)
        sleep_us(POLL_US);
    printf("tasks/s %.0f\n", (double)put * 1e9 / (double)(now_ns() - begin_ns));
    atomic_store(&shared->over, 1);
    await_children(children, settings->processes);
    close_place(&place);
    free_turn(&tasks);
}
