/* bench.c - `keyline bench`: what this machine's disk gives, measured where the user is.
 *
 * Three figures over the same tasks: writing them raw, with one fdatasync for each batch, which is the most that a
 * durable queue on this disk could do in one thread; putting them; and running them through a worker whose handler does
 * nothing, until everything is settled. It works in a directory of its own, or with --store in a queue of its own, and
 * removes it. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "cli/config.h"
#include "cli/output.h"
#include "keyline/worker.h"

typedef struct bench_opts {
    int64_t tasks, payload, batch, keys;
} bench_opts;

enum {
    TASKS = 200000,
    PAYLOAD = 200,
    BATCH = 1000,
    KEYS = 1000,
    OVERHEAD = 96 /* bytes of a task beside its payload in the journal: head, id, key */
};

#define GIVE_UP_NS INT64_C(600000000000)

struct bench {
    kl__call *call;
    size_t tasks, payload, batch, keys;
    char scratch[64]; /* "": none was made */
    char queue_name[KL_QUEUE_NAME_MAX + 1];
    kl_store *store;
    kl_queue *queue;
    _Atomic(uint64_t) run;
    double raw, put, work, both; /* tasks in a second; 0: not measured */
};

/* ---- The directory ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static int make_scratch(struct bench *bench)
{
    snprintf(bench->scratch, sizeof bench->scratch, "keyline-bench-XXXXXX");
    if (mkdtemp(bench->scratch))
        return KL_EXIT_OK;
    bench->scratch[0] = '\0';
    kl__complain_of(KL_ESYSTEM, KL_EXIT_FAILURE,
                    "no directory can be made here to measure in; call it where you may write");
    return KL_EXIT_FAILURE;
}

static void remove_scratch(struct bench *bench)
{
    if (bench->scratch[0] && nftw(bench->scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        kl__complain("%s could not be removed (%s); remove it yourself", bench->scratch, strerror(errno));
}

static double per_second(const struct bench *bench, int64_t began_ns)
{
    return (double)bench->tasks * 1e9 / (double)(kl__monotonic_ns() - began_ns + 1);
}

/* ---- Raw ---- */

static int write_raw(struct bench *bench, int descriptor, const char *bytes, size_t each)
{
    int64_t began_ns = kl__monotonic_ns();
    for (size_t at = 0; at < bench->tasks; at += bench->batch) {
        size_t length = (bench->tasks - at < bench->batch ? bench->tasks - at : bench->batch) * each;
        for (size_t written = 0; written < length;) {
            ssize_t put = write(descriptor, bytes + written, length - written);
            if (put < 0 && errno != EINTR)
                return errno;
            written += put > 0 ? (size_t)put : 0;
        }
        if (fdatasync(descriptor) != 0)
            return errno;
    }
    bench->raw = per_second(bench, began_ns);
    return 0;
}

static int measure_raw(struct bench *bench)
{
    char path[96];
    size_t each = bench->payload + OVERHEAD;
    snprintf(path, sizeof path, "%s/raw", bench->scratch);
    char *bytes = kl__alloc_zeroed(bench->batch, each);
    if (!bytes)
        return kl__fail_call(kl__fail_memory());
    memset(bytes, 'x', bench->batch * each);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int error = descriptor < 0 ? errno : write_raw(bench, descriptor, bytes, each);
    if (descriptor >= 0)
        close(descriptor);
    unlink(path);
    kl__free(bytes);
    return error ? kl__fail_call(kl__fail(KL_ESYSTEM, "%s cannot be written (%s); make room, or call it elsewhere",
                                          path, strerror(error)))
                 : KL_EXIT_OK;
}

/* ---- The queue ---- */

static kl_rc put_all(struct bench *bench, kl_put *tasks)
{
    int64_t began_ns = kl__monotonic_ns();
    kl_rc rc = KL_OK;
    for (size_t at = 0; rc == KL_OK && at < bench->tasks; at += bench->batch) {
        size_t count = bench->tasks - at < bench->batch ? bench->tasks - at : bench->batch;
        rc = kl_queue_put(bench->queue, tasks, count, (kl_bytes){0}, NULL);
    }
    bench->put = per_second(bench, began_ns);
    return rc;
}

/* A batch, which is put again and again. */
static kl_rc measure_put(struct bench *bench, kl_arena *arena)
{
    kl_put *tasks = kl_arena_alloc(arena, bench->batch * sizeof *tasks);
    char *payload = kl_arena_alloc(arena, bench->payload + 1);
    if (!tasks || !payload)
        return kl__fail_memory();
    memset(payload, 'x', bench->payload);
    for (size_t i = 0; i < bench->batch; i++) {
        const char *key = kl__format(arena, "key-%zu", i % bench->keys);
        if (!key)
            return kl__fail_memory();
        tasks[i] = (kl_put){.key = kl_str(key), .payload = {payload, bench->payload}};
    }
    return put_all(bench, tasks);
}

static kl_outcome do_nothing(kl_work *work, void *ctx)
{
    struct bench *bench = ctx;
    (void)work;
    atomic_fetch_add_explicit(&bench->run, 1, memory_order_relaxed);
    return KL_DONE;
}

static kl_rc measure_work(struct bench *bench)
{
    kl_handler handler = {.fn = do_nothing, .ctx = bench};
    kl_worker_queue served = {.queue = bench->queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .until_empty = true, .log = kl__log_print};
    kl_worker *worker;
    opts.log_ctx = bench->call->config;
    int64_t began_ns = kl__monotonic_ns();
    kl_rc rc = kl_worker_start(&served, 1, &opts, &worker);
    if (rc != KL_OK)
        return rc;
    while (kl_worker_wait(worker, 1) != KL_OK && kl_worker_show(worker).done < bench->tasks)
        if (kl__monotonic_ns() - began_ns > GIVE_UP_NS)
            break;
    bench->work = per_second(bench, began_ns); /* all are settled; giving the shards back is no part of it */
    kl_worker_info info = kl_worker_show(worker);
    kl_worker_close(worker);
    if (info.done != bench->tasks)
        return kl__fail(KL_ETIMEDOUT, "%" PRIu64 " of %zu tasks were done; see what --log debug says", info.done,
                        bench->tasks);
    return KL_OK;
}

static kl_rc open_queue(struct bench *bench)
{
    const kl__config *config = bench->call->config;
    char url[96];
    kl_store_opts opts = {.size = sizeof opts, .log = kl__log_print, .log_ctx = (void *)config};
    if (bench->scratch[0])
        snprintf(url, sizeof url, "disk:%s/store", bench->scratch);
    snprintf(bench->queue_name, sizeof bench->queue_name, "keyline-bench-%ld-%08" PRIx32, (long)getpid(),
             (uint32_t)kl__random_seed());
    kl_rc rc = kl_store_open(bench->scratch[0] ? url : config->values[KL_SET_STORE].text, &opts, &bench->store);
    return rc == KL_OK ? kl_queue_open(bench->store, bench->queue_name, NULL, &bench->queue) : rc;
}

/* Its own queue goes with the directory; in a store of the user's it has to be removed. */
static kl_rc close_queue(struct bench *bench, kl_rc rc)
{
    if (bench->queue && !bench->scratch[0]) {
        kl_rc removed = kl_queue_remove(bench->queue);
        rc = rc == KL_OK ? removed : rc;
    }
    kl_queue_close(bench->queue);
    kl_store_close(bench->store);
    return rc;
}

static kl_rc measure_queue(struct bench *bench)
{
    kl_arena arena = {0};
    kl_rc rc = open_queue(bench);
    if (rc == KL_OK)
        rc = measure_put(bench, &arena);
    if (rc == KL_OK)
        rc = measure_work(bench);
    if (rc == KL_OK)
        bench->both = 1 / (1 / bench->put + 1 / bench->work);
    kl_arena_free(&arena);
    return close_queue(bench, rc);
}

/* ---- Telling ---- */

static void add_row(const struct bench *bench, kl__out *out, const char *what, double rate)
{
    kl__out_row(
        out, (kl__cell[]){kl__cell_text(what), kl__cell_number((int64_t)rate),
                          bench->raw > 0 ? kl__cell_number((int64_t)(100 * rate / bench->raw + 0.5)) : kl__cell_none(),
                          kl__cell_number((int64_t)bench->tasks), kl__cell_number((int64_t)bench->payload),
                          kl__cell_number((int64_t)bench->batch)});
}

static int tell(const struct bench *bench)
{
    static const kl__column columns[] = {{"measured", KL_COLUMN_WHOLE},
                                         {"tasks_per_s", KL_COLUMN_RIGHT},
                                         {"percent_of_raw", KL_COLUMN_RIGHT},
                                         {"tasks", KL_COLUMN_MACHINE},
                                         {"payload", KL_COLUMN_MACHINE},
                                         {"batch", KL_COLUMN_MACHINE},
                                         {NULL, 0}};
    kl__out out;
    if (!kl__call_json(bench->call))
        printf("%zu tasks of %zu bytes in batches of %zu, from one thread\n\n", bench->tasks, bench->payload,
               bench->batch);
    kl__out_begin(&out, bench->call, columns);
    if (bench->raw > 0)
        add_row(bench, &out, "raw: write a batch, fdatasync", bench->raw);
    add_row(bench, &out, "put", bench->put);
    add_row(bench, &out, "run and settle", bench->work);
    add_row(bench, &out, "put, run and settle", bench->both);
    return kl__out_end(&out);
}

static int run_bench(kl__call *call)
{
    const bench_opts *opts = call->values;
    struct bench bench = {.call = call,
                          .tasks = (size_t)(opts->tasks ? opts->tasks : TASKS),
                          .payload = (size_t)(opts->payload ? opts->payload : PAYLOAD),
                          .batch = (size_t)(opts->batch ? opts->batch : BATCH),
                          .keys = (size_t)(opts->keys ? opts->keys : KEYS)};
    bool named = strncmp(call->config->values[KL_SET_STORE].origin, "flag ", 5) == 0;
    if (bench.batch * (bench.payload + OVERHEAD) > KL_BATCH_BYTES_MAX) {
        kl__complain("a batch of %zu tasks of %zu bytes is too much for one put; lower --batch or --payload",
                     bench.batch, bench.payload);
        return KL_EXIT_USAGE;
    }
    int status = named ? KL_EXIT_OK : make_scratch(&bench);
    if (status == KL_EXIT_OK && !named)
        status = measure_raw(&bench);
    if (status == KL_EXIT_OK)
        status = kl__fail_given(measure_queue(&bench));
    remove_scratch(&bench);
    return status == KL_EXIT_OK ? tell(&bench) : status;
}

static const kl__option options[] = {
    {"--tasks", "N", "how many tasks (200000)", offsetof(bench_opts, tasks), 1, 100000000},
    {"--payload", "N", "bytes of each payload (200)", offsetof(bench_opts, payload), 1, KL_PAYLOAD_BYTES_MAX},
    {"--batch", "N", "tasks in one put, and in one fdatasync of the raw figure (1000)", offsetof(bench_opts, batch), 1,
     KL_PUT_MAX},
    {"--keys", "N", "different keys in a batch (1000)", offsetof(bench_opts, keys), 1, KL_PUT_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

const kl__command kl__bench_command = {
    .name = "bench",
    .summary = "measure how fast a queue is on this disk",
    .about = "Measures, with one thread that puts and a handler that does nothing: writing tasks raw with an\n"
             "fdatasync for each batch, putting them, and running them until they are settled. Works in a\n"
             "directory of its own below the current one, on whose disk the figures are, and removes it. With\n"
             "--store on the command line it works in that store, in a queue of its own that it removes, and\n"
             "without the raw figure.\n",
    .options = options,
    .values_size = sizeof(bench_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_bench,
};
