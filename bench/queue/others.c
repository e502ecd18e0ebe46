/* others.c - what one key, or many, must not do to the others: a line of a million tasks, and failing for ever. */
#include <pthread.h>
#include <stdatomic.h>

#include "keyline.h"
#include "keyline/control.h"

static const char hot_key[] = "hot"; /* no other key begins with this letter */
static const char bad_prefix[] = "bad";

static bool begins_with(kl_bytes key, char letter) { return key.len > 0 && *(const char *)key.data == letter; }

/* ---- fill: a key with many waiting tasks ---- */

void run_fill(const struct settings *settings)
{
    struct place place;
    size_t at = 0;
    struct turn hot = make_turn(hot_key, 1);
    for (size_t i = 0; i <= GROUP_MAX; i++)
        hot.tasks[i].key = kl_str(hot_key);
    open_place(&place, settings);
    if (settings->paused)
        MUST_KL(kl_key_pause(place.queue, kl_str(hot_key)));
    put_tasks(place.queue, &hot, &at, settings->tasks, WARM_GROUP);
    printf("tasks %ld\n", settings->tasks);
    close_place(&place);
    free_turn(&hot);
}

/* ---- start: from the acknowledgement of a put to the start of the task, at a modest rate ---- */

enum { START_GROUP = 4, STARTS_MAX = 1 << 20 };

struct starts {
    int64_t hot_us;
    _Atomic(int64_t) started_ns[STARTS_MAX]; /* by the number in the payload */
    int64_t put_ns[STARTS_MAX];
    _Atomic(int64_t) count;
};

static kl_outcome note_start(kl_work *work, void *ctx)
{
    struct starts *starts = ctx;
    uint32_t number;
    if (begins_with(kl_work_key(work), hot_key[0])) {
        sleep_us(starts->hot_us);
        return KL_DONE;
    }
    memcpy(&number, kl_work_payload(work).data, sizeof number);
    if (number < STARTS_MAX)
        atomic_store(&starts->started_ns[number], now_ns());
    atomic_fetch_add(&starts->count, 1);
    return KL_DONE;
}

/* One small group after the other, at fixed times. Numbers from `from` on; returns the next one. */
static uint32_t put_at_rate(kl_queue *queue, const struct settings *settings, const struct turn *turn, int64_t ms,
                            struct starts *starts)
{
    int64_t every_ns = START_GROUP * INT64_C(1000000000) / settings->rate, next_ns = now_ns();
    uint32_t number = 0;
    for (int64_t end_ns = next_ns + ms * 1000000; next_ns < end_ns && number + START_GROUP <= STARTS_MAX;
         next_ns += every_ns) {
        unsigned char bytes[START_GROUP][PAYLOAD_BYTES];
        kl_put tasks[START_GROUP];
        for (uint32_t i = 0; i < START_GROUP; i++) {
            memcpy(bytes[i], payload, sizeof payload);
            memcpy(bytes[i], &(uint32_t){number + i}, sizeof(uint32_t));
            tasks[i] = turn->tasks[(number + i) % turn->keys];
            tasks[i].payload = (kl_bytes){bytes[i], sizeof bytes[i]};
        }
        if (next_ns > now_ns())
            sleep_us((next_ns - now_ns()) / 1000);
        MUST_KL(kl_queue_put(queue, tasks, START_GROUP, (kl_bytes){0}, NULL));
        int64_t put_ns = now_ns();
        for (uint32_t i = 0; i < START_GROUP; i++)
            starts->put_ns[number + i] = put_ns;
        number += START_GROUP;
    }
    return number;
}

static void await_starts(struct starts *starts, uint32_t count)
{
    enum { POLL_US = 1000 };
    while (atomic_load(&starts->count) < (int64_t)count)
        sleep_us(POLL_US);
    atomic_store(&starts->count, 0);
}

void run_start(const struct settings *settings)
{
    enum { WARM_MS = 200 };
    struct place place;
    struct starts *starts = calloc(1, sizeof *starts);
    MUST(starts);
    starts->hot_us = settings->sleep_us;
    open_place(&place, settings);
    struct turn tasks = make_turn("key", KEYS);
    kl_worker *worker = start_worker(place.queue, note_start, starts, settings->threads);
    await_starts(starts, put_at_rate(place.queue, settings, &tasks, WARM_MS, starts));
    uint32_t count = put_at_rate(place.queue, settings, &tasks, settings->ms, starts);
    await_starts(starts, count);
    int64_t *ns = malloc(count * sizeof *ns);
    MUST(ns);
    for (uint32_t i = 0; i < count; i++) { /* who starts before the producer is back has not waited */
        int64_t waited_ns = atomic_load(&starts->started_ns[i]) - starts->put_ns[i];
        ns[i] = waited_ns > 0 ? waited_ns : 0;
    }
    print_percentiles(ns, count);
    printf(" tasks %u\n", count);
    kl_worker_close(worker);
    close_place(&place);
    free_turn(&tasks);
    free(starts);
    free(ns);
}

/* ---- failing: good keys alone, or beside keys whose first task fails for ever ---- */

enum { GOOD_KEYS = 90000, BAD_TASKS = 4 }; /* of each failing key */

/* How long the handler puts a retry off (kl_work_retry_after), instead of the queue's own policy: 0 to 7.5 minutes,
 * spread evenly by golden sections. This is to stand for keys that have failed for long: the default policy tries those
 * every 5 to 10 minutes, but takes 20 minutes to come there. With --fresh=1 the policy decides, for keys that have just
 * begun. */
static int64_t wait_ms(void)
{
    enum { LONGEST_MS = 450000 };
    static atomic_uint count;
    uint32_t part = atomic_fetch_add(&count, 1) * 2654435769u;
    return (int64_t)((uint64_t)part * LONGEST_MS >> 32);
}

static kl_outcome fail_bad(kl_work *work, void *ctx)
{
    const struct settings *settings = ctx;
    if (!begins_with(kl_work_key(work), bad_prefix[0]))
        return KL_DONE;
    if (!settings->fresh)
        kl_work_retry_after(work, wait_ms());
    return KL_RETRY;
}

/* Each has failed at least once when this returns. */
static void begin_failing(kl_queue *queue, kl_worker *worker, long keys)
{
    enum { POLL_US = 1000 };
    size_t at = 0;
    if (keys == 0)
        return;
    struct turn bad = make_turn(bad_prefix, (size_t)keys);
    put_tasks(queue, &bad, &at, keys * BAD_TASKS, WARM_GROUP);
    while ((long)kl_worker_show(worker).retried < keys)
        sleep_us(POLL_US);
    free_turn(&bad);
}

void run_failing(const struct settings *settings)
{
    struct place place;
    size_t at = 0;
    long keys = settings->tasks < GOOD_KEYS ? settings->tasks : GOOD_KEYS;
    open_place(&place, settings);
    struct turn good = make_turn("key", (size_t)keys);
    kl_worker *worker = start_worker(place.queue, fail_bad, unconst(settings), settings->threads);
    begin_failing(place.queue, worker, settings->failing);
    put_tasks(place.queue, &good, &at, settings->warm + keys, WARM_GROUP);
    await_done(worker, settings->warm + keys);
    uint64_t retried = kl_worker_show(worker).retried;

    int64_t begin_ns = now_ns(), begin_cpu_ns = cpu_ns();
    int64_t put = produce(place.queue, settings, &good);
    uint64_t held = kl_worker_show(worker).held;
    await_done(worker, settings->warm + keys + put);
    int64_t took_ns = now_ns() - begin_ns;
    printf("tasks/s %.0f cpu_ns %.0f held %.0f retries/s %.0f\n", (double)put * 1e9 / (double)took_ns,
           (double)(cpu_ns() - begin_cpu_ns) / (double)put, (double)held,
           (double)(kl_worker_show(worker).retried - retried) * 1e9 / (double)took_ns);
    kl_worker_close(worker);
    close_place(&place);
    free_turn(&good);
}
