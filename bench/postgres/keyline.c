/* keyline.c - Keyline's side: kl_queue_put, or put_many in SQL, from two threads, and a worker in the same process, or
 * some in processes of their own. Keys are strictly serial.
 *
 * Processes are forked before anything is opened, and share struct load. */
#include "keyline/keyline.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "keyline/job.h"
#include "keyline/queue.h"
#include "keyline/worker.h"

enum { KEEP_MS = 3600000 };
#define RESULT "{\"ok\": true, \"took_ms\": 17}"

struct side {
    struct load *load;
    kl_queue *queue;
};

/* When those were put that have run and are not settled, the first to run first. At half load alone: it takes time. */
static struct {
    pthread_mutex_t mutex;
    unsigned long run, settled;
    int64_t put_ns[LATENCIES_MAX];
} unsettled = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void note_run(int64_t put_ns)
{
    pthread_mutex_lock(&unsettled.mutex);
    unsettled.put_ns[unsettled.run++ % LATENCIES_MAX] = put_ns;
    pthread_mutex_unlock(&unsettled.mutex);
}

/* After each call of the store. Outcomes are settled in about the order in which tasks have run. */
static void note_settled(void *ctx, const kl_store_call *call)
{
    struct load *load = ctx;
    if (strcmp(call->name, "settle") != 0 || call->rc != KL_OK)
        return;
    pthread_mutex_lock(&unsettled.mutex);
    for (uint64_t i = 0; i < call->items && unsettled.settled < unsettled.run; i++)
        note_latency(&load->settled, unsettled.put_ns[unsettled.settled++ % LATENCIES_MAX]);
    pthread_mutex_unlock(&unsettled.mutex);
}

static kl_outcome handle(kl_work *work, void *ctx)
{
    struct load *load = ctx;
    int64_t put_ns = stamp_of(kl_work_payload(work).data);
    note_latency(&load->picked_up, put_ns);
    if (load->settings->rate > 0)
        note_run(put_ns);
    if (load->settings->kept != KEPT_NOT)
        MUST(kl_work_result(work, kl_str(RESULT)) == KL_OK, kl_error_text());
    atomic_fetch_add(&load->run, 1);
    return KL_DONE;
}

static void *produce_in_sql(void *ctx)
{
    struct load *load = ((struct side *)ctx)->load;
    produce_sql(load, load->settings->put_sql);
    return NULL;
}

static void put(const struct side *side, const kl_put *tasks, size_t count)
{
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = count, .keep_ms = KEEP_MS};
    kl_job_answer answer;
    kl_rc rc = side->load->settings->kept == KEPT_JOBS ? kl_job_submit(side->queue, &spec, &answer, NULL)
                                                       : kl_queue_put(side->queue, tasks, count, (kl_bytes){0}, NULL);
    MUST(rc == KL_OK, kl_error_text());
}

static void *produce(void *ctx)
{
    struct side *side = ctx;
    long group = side->load->settings->group;
    int64_t keep_ms = side->load->settings->kept == KEPT_TASKS ? KEEP_MS : 0;
    kl_put *tasks = calloc((size_t)group, sizeof *tasks);
    char(*keys)[KEY_BYTES + 1] = calloc((size_t)group, sizeof *keys);
    char bytes[PAYLOAD_BYTES];
    unsigned long number = (unsigned long)now_ns();
    MUST(tasks && keys, "memory");
    while (goes_on(side->load)) {
        stamp(bytes);
        for (long i = 0; i < group; i++) {
            make_key(keys[i], number++);
            tasks[i] = (kl_put){.key = kl_str(keys[i]), .payload = {bytes, PAYLOAD_BYTES}, .keep_ms = keep_ms};
        }
        put(side, tasks, (size_t)group);
        atomic_fetch_add(&side->load->put, group);
    }
    free(tasks);
    free(keys);
    return NULL;
}

static void rest_ms(long ms) { nanosleep(&(struct timespec){0, ms * 1000000}, NULL); }
static void nap(void) { rest_ms(2); }

static kl_queue *open_queue(struct load *load, kl_store **ret_store)
{
    kl_queue *queue;
    kl_store_opts noted = {
        .size = sizeof noted, .trace = load->settings->rate > 0 ? note_settled : NULL, .trace_ctx = load};
    kl_queue_opts opts = {
        .size = sizeof opts, .partitions = load->settings->partitions, .lease_ms = load->settings->lease_ms};
    MUST(kl_store_open(load->settings->url, &noted, ret_store) == KL_OK, kl_error_text());
    MUST(kl_queue_open(*ret_store, load->settings->queue, &opts, &queue) == KL_OK, kl_error_text());
    return queue;
}

/* Works as number `at` of all until the load ends, and says how far it is. */
static void work(struct load *load, kl_queue *queue, long at, long handlers)
{
    kl_worker *worker;
    kl_handler handler = {.fn = handle, .ctx = load};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = handlers};
    MUST(kl_worker_start(&served, 1, &opts, &worker) == KL_OK, kl_error_text());
    while (!atomic_load(&load->ends)) {
        kl_worker_info status = kl_worker_show(worker);
        atomic_store(&load->shards[at], (long)status.shards);
        atomic_store(&load->done[at], (long)status.done);
        rest_ms(TELL_MS);
    }
    kl_worker_close(worker);
}

static void *work_here(void *ctx)
{
    struct side *side = ctx;
    work(side->load, side->queue, 0, side->load->settings->handlers);
    return NULL;
}

static pid_t fork_worker(struct load *load, long at)
{
    pid_t child = fork();
    MUST(child >= 0, "no process");
    if (child > 0)
        return child;
    kl_store *store;
    long handlers = load->settings->handlers / load->settings->processes;
    kl_queue *queue = open_queue(load, &store);
    work(load, queue, at, handlers > 0 ? handlers : 1);
    kl_queue_close(queue);
    kl_store_close(store);
    _exit(0);
}

static long sum(atomic_long *numbers)
{
    long all = 0;
    for (int i = 0; i < PROCESSES_MAX; i++)
        all += atomic_load(&numbers[i]);
    return all;
}

static long least(struct load *load)
{
    long shards = atomic_load(&load->shards[0]);
    for (long i = 1; i < load->settings->processes; i++)
        shards = atomic_load(&load->shards[i]) < shards ? atomic_load(&load->shards[i]) : shards;
    return shards;
}

/* Until every shard is owned, and nobody has more than one above his share. */
static void await_owners(struct load *load)
{
    long all = 16 * load->settings->partitions, processes = load->settings->processes ? load->settings->processes : 1;
    while (sum(load->shards) < all || least(load) < all / processes)
        nap();
}

/* Kills the first process after a quarter of the time. */
static void kill_one(struct load *load, pid_t child)
{
    while (now_ns() - load->began_ns < load->settings->ms * 250000)
        nap();
    MUST(kill(child, SIGKILL) == 0, "it is not there");
}

/* For so long; `first` is killed meanwhile if it is not 0. Returns how long it took. */
static int64_t put_all(struct side *side, long ms, pid_t first)
{
    pthread_t threads[PRODUCERS];
    struct load *load = side->load;
    bool in_sql = load->settings->put_sql[0] != '\0';
    begin(load, ms);
    for (int i = 0; i < PRODUCERS; i++)
        MUST(pthread_create(&threads[i], NULL, in_sql ? produce_in_sql : produce, side) == 0, "no thread");
    if (first)
        kill_one(load, first);
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    return now_ns() - load->began_ns;
}

/* Settled, and not only run; `before` were when it began. */
static void await_settled(struct load *load, long before)
{
    while (sum(load->done) - before < atomic_load(&load->put))
        nap();
}

static void measure(struct side *side, pid_t first)
{
    struct load *load = side->load;
    if (load->settings->lease_ms > 0) {
        finish(load, put_all(side, load->settings->ms, first));
        return;
    }
    put_all(side, load->settings->processes ? WARM_ALL_MS : WARM_MS, 0);
    await_settled(load, 0);
    long before = sum(load->done);
    int64_t put_ns = put_all(side, load->settings->ms, 0);
    await_settled(load, before);
    finish(load, put_ns);
}

void run_keyline(struct load *load)
{
    kl_store *store;
    pid_t children[PROCESSES_MAX] = {0};
    pthread_t worker;
    struct side side = {.load = load};
    const long processes = load->settings->processes; /* 0: a worker in this one */
    for (long i = 0; i < processes; i++)
        children[i] = fork_worker(load, i);
    side.queue = open_queue(load, &store);
    if (processes == 0)
        MUST(pthread_create(&worker, NULL, work_here, &side) == 0, "no thread");
    await_owners(load);
    measure(&side, children[0]);
    atomic_store(&load->ends, 1);
    if (processes == 0)
        pthread_join(worker, NULL);
    for (long i = 0; i < processes; i++)
        waitpid(children[i], NULL, 0);
    kl_queue_close(side.queue);
    kl_store_close(store);
}
