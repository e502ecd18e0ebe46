/* bench.c - how many requests a task costs on S3, and how fast it goes, beside the object-per-task protocol.
 *
 *     bench-s3 URL batched TASKS      puts of 1,000 tasks, run by one worker
 *     bench-s3 URL single TASKS       puts of one task each, one after the other, run by one worker
 *     bench-s3 URL threads TASKS      the same from 8 threads of one producer
 *     bench-s3 URL several TASKS      the same from 8 producers that know nothing of one another
 *     bench-s3 URL idle SECONDS       a worker with nothing to do
 *     bench-s3 URL pair SECONDS       each of two such workers
 *     bench-s3 URL deep TASKS         a backlog, and how a new process finds its first task
 *     bench-s3 URL baseline TASKS     the protocol of object-per-task queues, see baseline.c
 *
 *     bench-s3 ENDPOINT bucket NAME   makes a bucket
 *
 * Producer and worker have a store each, as they would in two processes; the requests of both count. */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "keyline/keyline.h"
#include "keyline/store.h"

enum { PAYLOAD = 200, KEYS = 1000, GROUP = 1000, PUTTERS = 8, PATIENCE_MS = 600000 };

static char payload[PAYLOAD];
static char names[KEYS][16];

struct place {
    kl_store *store;
    kl_queue *queue;
};

static void open_place(const char *url, struct place *place)
{
    MUST_KL(kl_store_open(url, NULL, &place->store));
    MUST_KL(kl_queue_open(place->store, "bench", NULL, &place->queue));
}

static void close_place(struct place *place)
{
    kl_queue_close(place->queue);
    kl_store_close(place->store);
}

struct kl__s3_bill bill_of(kl_store *store)
{
    kl__s3_account account;
    if (!kl__s3_account_of(store, &account)) {
        fprintf(stderr, "bench-s3: that is no store on S3\n");
        exit(2);
    }
    return account.bill;
}

void bill_add(struct kl__s3_bill *sum, const struct kl__s3_bill *more, const struct kl__s3_bill *less)
{
    for (int i = 0; i < KL_S3_KINDS; i++)
        sum->requests[i] += more->requests[i] - (less ? less->requests[i] : 0);
}

uint64_t bill_total(const struct kl__s3_bill *bill)
{
    uint64_t total = 0;
    for (int i = 0; i < KL_S3_KINDS; i++)
        total += bill->requests[i];
    return total;
}

void print_bill(const char *what, const struct kl__s3_bill *bill, double per, int64_t took_ns, double tasks)
{
    printf("%-10s requests/task %.4f  put %.4f get %.4f list %.4f delete %.4f", what, (double)bill_total(bill) / per,
           (double)bill->requests[KL_S3_PUT] / per, (double)bill->requests[KL_S3_GET] / per,
           (double)bill->requests[KL_S3_LIST] / per, (double)bill->requests[KL_S3_DELETE] / per);
    printf("  tasks/s %.0f\n", tasks * 1e9 / (double)took_ns);
}

static kl_outcome run_noop(kl_work *work, void *ctx)
{
    (void)work, (void)ctx;
    return KL_DONE;
}

static kl_worker *start_worker(kl_queue *queue)
{
    kl_handler any = {.fn = run_noop};
    kl_worker_queue served = {.queue = queue, .handlers = &any, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    kl_worker *worker;
    MUST_KL(kl_worker_start(&served, 1, &opts, &worker));
    return worker;
}

static void await_done(kl_worker *worker, uint64_t tasks)
{
    struct timespec tick = {.tv_nsec = 2000000};
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (kl_worker_show(worker).done < tasks) {
        if (kl__monotonic_ns() > until_ns) {
            fprintf(stderr, "bench-s3: %llu of %llu tasks were run in ten minutes\n",
                    (unsigned long long)kl_worker_show(worker).done, (unsigned long long)tasks);
            exit(1);
        }
        nanosleep(&tick, NULL);
    }
}

/* --- Putting --- */

static void make_puts(kl_put *puts, size_t count, uint64_t *at)
{
    for (size_t i = 0; i < count; i++, ++*at)
        puts[i] = (kl_put){.key = kl_str(names[*at % KEYS]), .payload = {payload, sizeof payload}};
}

static void put_batches(kl_queue *queue, uint64_t tasks)
{
    static kl_put puts[GROUP];
    for (uint64_t at = 0; at < tasks;) {
        size_t count = tasks - at < GROUP ? (size_t)(tasks - at) : GROUP;
        make_puts(puts, count, &at);
        MUST_KL(kl_queue_put(queue, puts, count, (kl_bytes){0}, NULL));
    }
}

struct putter {
    pthread_t thread;
    kl_queue *queue;
    uint64_t first, tasks; /* each begins with another key, so that they are not in step */
};

static void *put_singles(void *ctx)
{
    const struct putter *putter = ctx;
    kl_put put;
    for (uint64_t at = putter->first; at < putter->first + putter->tasks;) {
        make_puts(&put, 1, &at);
        MUST_KL(kl_queue_put(putter->queue, &put, 1, (kl_bytes){0}, NULL));
    }
    return NULL;
}

/* Each thread takes the next of these places: with as many as threads, they are processes as far as the store can
 * tell. */
static uint64_t put_by_threads(const struct place *places, int place_count, int count, uint64_t tasks)
{
    struct putter putters[PUTTERS];
    uint64_t put = 0;
    for (int i = 0; i < count; i++) {
        putters[i] = (struct putter){.queue = places[i % place_count].queue,
                                     .first = (uint64_t)i * KEYS / (uint64_t)count,
                                     .tasks = tasks / (uint64_t)count};
        if (pthread_create(&putters[i].thread, NULL, put_singles, &putters[i]) != 0)
            abort();
    }
    for (int i = 0; i < count; i++) {
        pthread_join(putters[i].thread, NULL);
        put += putters[i].tasks;
    }
    return put;
}

/* --- Modes --- */

static void run_batched(const char *url, uint64_t tasks)
{
    struct place producer, consumer;
    open_place(url, &producer);
    open_place(url, &consumer);
    int64_t begin_ns = kl__monotonic_ns();
    put_batches(producer.queue, tasks);
    int64_t put_ns = kl__monotonic_ns() - begin_ns;
    kl_worker *worker = start_worker(consumer.queue);
    await_done(worker, tasks);
    int64_t took_ns = kl__monotonic_ns() - begin_ns;
    kl_worker_close(worker);
    struct kl__s3_bill sum = bill_of(producer.store), more = bill_of(consumer.store);
    bill_add(&sum, &more, NULL);
    print_bill("batched", &sum, (double)tasks, took_ns, (double)tasks);
    printf("           put alone: %.0f tasks/s\n", (double)tasks * 1e9 / (double)put_ns);
    close_place(&producer);
    close_place(&consumer);
}

static void run_puts(const char *url, const char *what, int producers, int threads, uint64_t tasks)
{
    struct place consumer, places[PUTTERS];
    struct kl__s3_bill sum = {0};
    open_place(url, &consumer);
    for (int i = 0; i < producers; i++)
        open_place(url, &places[i]);
    int64_t begin_ns = kl__monotonic_ns();
    kl_worker *worker = start_worker(consumer.queue);
    uint64_t put = put_by_threads(places, producers, threads, tasks);
    await_done(worker, put);
    int64_t took_ns = kl__monotonic_ns() - begin_ns;
    kl_worker_close(worker);
    struct kl__s3_bill more = bill_of(consumer.store);
    bill_add(&sum, &more, NULL);
    for (int i = 0; i < producers; i++) {
        more = bill_of(places[i].store);
        bill_add(&sum, &more, NULL);
        close_place(&places[i]);
    }
    print_bill(what, &sum, (double)put, took_ns, (double)put);
    close_place(&consumer);
}

static void run_single(const char *url, uint64_t tasks) { run_puts(url, "single", 1, 1, tasks); }

static void run_threads(const char *url, uint64_t tasks) { run_puts(url, "threads", 1, PUTTERS, tasks); }

static void run_several(const char *url, uint64_t tasks) { run_puts(url, "several", PUTTERS, PUTTERS, tasks); }

/* Workers of one queue with nothing to do, each as in a process of its own; what one of them takes on average. */
static void rest(const char *url, const char *name, int workers, uint64_t seconds)
{
    struct place places[PUTTERS];
    kl_worker *running[PUTTERS];
    struct kl__s3_bill before[PUTTERS], sum = {0};
    struct timespec warm = {.tv_sec = seconds > 5 ? 60 : 0}, time = {.tv_sec = (time_t)seconds};
    for (int i = 0; i < workers; i++) {
        open_place(url, &places[i]);
        running[i] = start_worker(places[i].queue);
    }
    nanosleep(&warm, NULL);
    for (int i = 0; i < workers; i++)
        before[i] = bill_of(places[i].store);
    nanosleep(&time, NULL);
    for (int i = 0; i < workers; i++) {
        struct kl__s3_bill after = bill_of(places[i].store);
        bill_add(&sum, &after, &before[i]);
    }
    double hours = (double)seconds / 3600 * workers;
    printf("%-10s requests/hour %.0f  put %.0f get %.0f list %.0f\n", name, (double)bill_total(&sum) / hours,
           (double)sum.requests[KL_S3_PUT] / hours, (double)sum.requests[KL_S3_GET] / hours,
           (double)sum.requests[KL_S3_LIST] / hours);
    for (int i = 0; i < workers; i++) {
        kl_worker_close(running[i]);
        close_place(&places[i]);
    }
}

static void run_idle(const char *url, uint64_t seconds) { rest(url, "idle", 1, seconds); }

static void run_pair(const char *url, uint64_t seconds) { rest(url, "pair", 2, seconds); }

static void run_deep(const char *url, uint64_t tasks)
{
    struct place producer, consumer;
    open_place(url, &producer);
    put_batches(producer.queue, tasks);
    close_place(&producer);
    open_place(url, &consumer);
    struct kl__s3_bill before = bill_of(consumer.store);
    int64_t begin_ns = kl__monotonic_ns();
    kl_worker *worker = start_worker(consumer.queue);
    await_done(worker, 1);
    struct kl__s3_bill after = bill_of(consumer.store), sum = {0};
    int64_t took_ns = kl__monotonic_ns() - begin_ns;
    bill_add(&sum, &after, &before);
    printf("deep       backlog %llu  first task after %.0f ms: list %llu get %llu put %llu\n",
           (unsigned long long)tasks, (double)took_ns / 1e6, (unsigned long long)sum.requests[KL_S3_LIST],
           (unsigned long long)sum.requests[KL_S3_GET], (unsigned long long)sum.requests[KL_S3_PUT]);
    kl_worker_close(worker);
    close_place(&consumer);
}

/* A bucket for the others; one that is there already is fine. */
static void make_bucket(const char *endpoint, const char *bucket)
{
    kl__s3_site site = {.scheme = (char *)"http",
                        .host = (char *)endpoint + strlen("http://"),
                        .bucket = (char *)bucket,
                        .path_style = true};
    kl__s3_http *http;
    kl__s3_request request = {.kind = KL_S3_PUT};
    MUST_KL(kl__s3_credentials(&site));
    MUST_KL(kl__s3_http_open(&site, &http));
    MUST_KL(kl__s3_send(http, &request, 1));
    kl__s3_request_free(&request);
    kl__s3_http_close(http);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *url, uint64_t number);
    } modes[] = {{"batched", run_batched}, {"single", run_single},    {"threads", run_threads},
                 {"several", run_several}, {"idle", run_idle},        {"pair", run_pair},
                 {"deep", run_deep},       {"baseline", run_baseline}};
    if (argc == 4 && strcmp(argv[2], "bucket") == 0) {
        make_bucket(argv[1], argv[3]);
        return 0;
    }
    memset(payload, 'x', sizeof payload);
    for (int i = 0; i < KEYS; i++)
        snprintf(names[i], sizeof names[i], "key-%d", i);
    for (size_t i = 0; argc == 4 && i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(argv[2], modes[i].name) != 0)
            continue;
        modes[i].run(argv[1], strtoull(argv[3], NULL, 10));
        return 0;
    }
    fprintf(stderr, "usage: bench-s3 URL batched|single|threads|several|idle|pair|deep|baseline NUMBER; bench/s3/run "
                    "compares everything\n");
    return 2;
}
